"""Expressions of which the data decides a part: `a if t else b`, `and`, `or`, `not`.

Parts come in as functions. Python calls them if it can decide which; if a condition is traced, they become branches of a `cond`,
so that each is evaluated only where Python would. Variables whose containers a part may change are noted on its function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsl.frontend.branches import if_
from dsl.frontend.leaves import predicate
from dsl.frontend.scopes import current_scope
from dsl.frontend.state import Undefined, put_in_place
from dsl.frontend.traced import Kind, Traced, fresh

__all__ = ["HELD", "conditional", "holding", "logic", "negated", "truth", "truth_of"]


def conditional(test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Evaluate one of two thunks, by a `cond` when the test is traced."""
    chosen = predicate(test)
    if isinstance(chosen, bool):
        return then() if chosen else otherwise()
    box: list[Any] = [Undefined("dsl__value")]
    held = _held_by(then, otherwise)
    put_held = put_in_place(lambda: [read() for read in held.values()], tuple(held))

    def put(values: list[Any]) -> None:
        box[0] = values[0]
        put_held(values[1:])

    def run(thunk: Callable[[], Any]) -> Callable[[], None]:
        def keep() -> None:
            box[0] = thunk()

        return keep

    if_(
        fresh(chosen, Kind.PYTHON),
        run(then),
        run(otherwise),
        lambda: [*box, *(read() for read in held.values())],
        put,
        ("dsl__value", *held),
        1,
    )
    if isinstance(box[0], Undefined):
        box[0].fail()
    return box[0]


HELD = "dsl_held"
"""The attribute of a part's function that has the variables whose containers it may change, and how to read them."""


def _held_by(*thunks: Any) -> dict[str, Callable[[], Any]]:
    """Return the variables whose containers parts of an expression may change, and how to read them."""
    return {name: read for thunk in thunks for name, read in getattr(thunk, HELD, {}).items()}


def holding(thunk: Any, *parts: Any) -> Any:
    """Return a function that stands for parts of an expression, with what they may change."""
    if held := _held_by(*parts):
        setattr(thunk, HELD, held)
    return thunk


def logic(first: Any, rest: tuple[Callable[[], Any], ...], all_of: bool) -> Any:
    """`a and b and …`, or `or` unless `all_of`: plain Python up to the first traced condition."""
    value = first
    for k, thunk in enumerate(rest):
        chosen = predicate(value)
        if isinstance(chosen, bool):
            if chosen is not all_of:
                return value
            value = thunk()
            continue
        return _traced_logic(value, fresh(chosen, Kind.PYTHON), thunk, rest[k + 1 :], all_of)
    return value


def _traced_logic(
    value: Any,
    chosen: Traced,
    thunk: Callable[[], Any],
    rest: tuple[Callable[[], Any], ...],
    all_of: bool,
) -> Any:
    """Short-circuit: the second operand is evaluated only where Python would."""

    def more() -> Any:
        return logic(thunk(), rest, all_of)

    holding(more, thunk, *rest)
    if all_of:
        return conditional(chosen, more, lambda: value)
    return conditional(chosen, lambda: value, more)


def truth(value: Any) -> Any:
    """Return whether something is true, as a Python bool or a traced one."""
    chosen = predicate(value)
    return chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)


def truth_of(thunk: Callable[[], Any]) -> Callable[[], Any]:
    """Return a part of an expression as one of which only the truth matters."""
    return holding(lambda: truth(thunk()), thunk)  # type: ignore[no-any-return]


def negated(value: Any) -> Any:
    """`not value`."""
    chosen = predicate(value)
    if isinstance(chosen, bool):
        return not chosen
    return fresh(current_scope().emit("logical_not", chosen), Kind.PYTHON)
