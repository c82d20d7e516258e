"""`while` and `for` on traced values: which loops are traced, and which Python runs.

A loop over Python objects, or whose body needs Python values, is unrolled; so is one that cannot be traced, up to a limit. One whose first
trip gives a variable another structure is traced from the second on. A test that
changes what it looks at is asked once for each trip. A list that grows while a loop goes over it is gone over by place.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import (
    AliasError,
    BranchError,
    DslError,
    LoopTypeError,
    NonConcreteError,
    UndefinedError,
)
from dsl.frontend.accesses import unnoted
from dsl.frontend.branches import if_
from dsl.frontend.carried import code_of
from dsl.frontend.conditions import truth
from dsl.frontend.first_trips import (
    MOST_FIRST_TRIPS,
    OF_LATER_TRIPS,
    are_few,
    may_settle,
    note_looped,
    settles,
)
from dsl.frontend.iterators import Cursor, rest_of
from dsl.frontend.leaves import Block, predicate
from dsl.frontend.loop_aliases import is_of_arrays
from dsl.frontend.loop_tracing import ChangingTest, Growing, Loop, StaticTest
from dsl.frontend.loops import ENDLESS, Grown, as_counted, finish, items_now
from dsl.frontend.regions import refuse_try
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.state import State, Undefined
from dsl.frontend.tables import refuse_tables
from dsl.frontend.traced import Kind, Traced, fresh
from dsl.frontend.trees import forwarded
from dsl.ir.graph import Value
from dsl.logs import log

__all__ = ["for_", "while_"]

_RETRY = (NonConcreteError, LoopTypeError, BranchError, UndefinedError, AliasError)


def while_(
    test: Block,
    body: Block,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
    items: tuple[str, ...],
) -> None:
    """Run a `while` statement."""
    _while(State(get, put, names, assigned), test, body, items)


def _while(
    state: State, test: Block, body: Block, items: tuple[str, ...] = (), *, is_rest: bool = False
) -> None:
    limit = config.unroll_limit
    trips = 0
    failed: DslError | None = None
    while True:
        fresh_try = failed is None or (trips <= MOST_FIRST_TRIPS and settles(failed))
        before = state.snapshot() if fresh_try else None
        with unnoted():  # a traced loop does it again
            chosen = predicate(test())
        if chosen is False:
            return
        changes = before is not None and not state.is_as(before)
        if changes and isinstance(chosen, Value):
            return _rotated(chosen, test, body, state, items)
        if fresh_try and not changes:
            loop = Loop(state.anew(), body, test, None, items)
            try:
                if not _is_plain(loop, chosen):
                    refuse_try()
                    return loop.trace()
            except StaticTest:
                pass
            except ChangingTest:
                return _rotated(chosen, test, body, state, items)
            except _RETRY as error:
                if isinstance(chosen, Value) and is_of_arrays(error) and not is_rest:
                    rest = functools.partial(_while, state.anew(), test, body, items, is_rest=True)
                    return _first_apart(state, test(), body, rest, error)
                if chosen is not True:
                    raise
                failed = error
        if isinstance(chosen, Value):
            raise failed or DslError("a loop condition became traced", location=here())
        trips += 1
        if trips > max(limit, _PLAIN_LIMIT if failed is None else 0):
            raise failed or LoopTypeError(
                "this loop runs in Python and does not end",
                location=here(),
                remedy="carry its state in arrays",
            )
        body()


_PLAIN_LIMIT = 100_000


def _is_plain(loop: Loop, chosen: bool | Value) -> bool:
    """Tell whether a loop computes with Python values alone, so that plain Python should run it."""
    if chosen is not True:
        return False
    touched = [leaf for leaves in loop.before.leaves for leaf in leaves]
    return not any(isinstance(leaf, (Traced, np.ndarray)) for leaf in touched)


def _first_apart(state: State, test: Any, first: Block, rest: Block, refused: Exception) -> None:
    """Trace `if test: first(); rest()`, where which array a trip writes depends on whether it is the first."""

    def both() -> None:
        first()
        rest()

    try:
        state.run_if(if_, test, both)
    except DslError:
        raise refused from None


def _rotated(
    chosen: bool | Value, test: Block, body: Block, state: State, items: tuple[str, ...]
) -> None:
    """Trace a `while` whose test was asked and changes something: every trip ends with the test for the next one."""
    flag: list[Any] = [chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)]

    def trip() -> None:
        body()
        flag[0] = truth(test())

    trip.dsl_code = code_of(body)  # type: ignore[attr-defined]
    refuse_try()
    Loop(state.with_cell("dsl__go_on", flag), trip, lambda: flag[0], None, items).trace()


def for_(
    iterable: Any, body: Block, guard: Block | None, get: Any, put: Any, names: tuple[str, ...], assigned: int,
    items: tuple[str, ...], targets: tuple[str, ...], tables: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Run a `for` statement."""
    if isinstance(iterable, Undefined):
        iterable.fail()
    iterable = rest_of(iterable, lost=guard is not None)
    counted = as_counted(iterable)
    state = State(get, put, names, assigned)
    if counted is not None:
        trips = counted.trips()
        if isinstance(trips, int) and trips == 0:
            return
        if tables:
            refuse_tables(tables, dict(zip(names, get(), strict=True)), trips)
        iterable = _traced_for(iterable, counted, body, guard, state, items)
        if iterable is None:
            return
    _python_for(iterable, body, guard, state.anew())


def _traced_for(
    iterable: Any, counted: Any, body: Block, guard: Block | None, state: State, items: tuple[str, ...]
) -> Any:  # fmt: skip
    """Trace a loop, after its first trips where these settle what it carries; return what is left for Python to go over, or None."""
    left, extents, failed = counted, list[int](), Exception()
    for taken in range(MOST_FIRST_TRIPS + 1):
        try:
            refuse_try()
            Loop(state.anew() if taken else state, body, guard, left, items).trace()
            return finish(counted)
        except Growing:
            return _while_over(iterable, taken, body, guard, state.anew())
        except (*_RETRY, *OF_LATER_TRIPS) as error:
            failed = failed if isinstance(failed, _RETRY) else error
        if (taken and _may_have_ended(guard)) or not may_settle(failed, left):
            if is_of_arrays(failed) and isinstance(left.trips(), Traced):
                rest = functools.partial(_rest, state.anew(), left, body, guard, items)
                first = functools.partial(body, left.item(0))
                _first_apart(state, left.trips() > 0, first, rest, failed)
                return finish(counted)
            break
        extent = current_scope().extent
        note_looped(left)
        body(left.item(0))
        extents.append(current_scope().extent - extent)
        left = left.rest(1)
        if left.trips() == 0 or (guard is not None and predicate(guard()) is False):
            return finish(counted)
        if are_few(left, extents):
            break
    if not extents and not isinstance(failed, _RETRY):
        raise failed
    _refuse_unrolling(counted.trips(), failed)
    return left if extents else iterable


def _rest(
    state: State, counted: Any, body: Block, guard: Block | None, items: tuple[str, ...]
) -> None:
    """Trace all but the first trip of a loop."""
    if guard is None or predicate(guard()) is not False:
        Loop(state, body, guard, counted.rest(1), items).trace()


def _may_have_ended(guard: Block | None) -> bool:
    return guard is not None and predicate(guard()) is not True


def _refuse_unrolling(trips: Any, error: Exception) -> None:
    limit = config.unroll_limit
    if isinstance(trips, int) and trips == ENDLESS:  # Python may see an end
        return
    if not isinstance(trips, int) or trips > limit:
        if isinstance(trips, int) and isinstance(error, DslError):
            error.remedy += f"; a loop of {trips} trips is longer than the limit for unrolling (DSL_UNROLL_LIMIT={limit})"
        raise error
    reason = error.message if isinstance(error, DslError) else error
    log("unroll", "%s: unrolled %s times because %s", here(), trips, reason)


def _python_for(iterable: Any, body: Block, guard: Block | None, state: State) -> None:
    """Loop in Python; once a traced `break` may have happened, the rest of the trips are conditional."""
    items, lost, tests = items_now(iterable), False, 0
    for k in itertools.count():
        go_on = True if guard is None else predicate(guard())
        item = next(items, _END) if go_on is not False else _END
        if item is _END:
            break
        if isinstance(item, Grown):
            return _while_over(iterable, k, body, guard, state)
        if go_on is True:
            body(item)
        else:
            assert guard is not None
            lost = True
            tests += 1
            _refuse_endless(iterable, tests)
            state.run_if(if_, guard(), functools.partial(body, item))
    if lost and isinstance(iterable, Cursor):
        iterable.finish(lost=True)


_END = object()


def _refuse_endless(iterable: Any, tests: int) -> None:
    """Refuse to unroll an iterator that may have no end, as the data ends the loop and tracing does not see that."""
    if tests > _TESTS * config.unroll_limit and not hasattr(iterable, "__len__"):
        raise LoopTypeError(
            f"this loop over a Python iterator is unrolled, and has not ended after {tests} trips that depend on data",
            location=here(), remedy="loop with `while`, or over a range, a list or `itertools.count`",
        )  # fmt: skip


# Trips of iterators are cheap to trace beside those of loops that had to be unrolled.
_TESTS = 8


def _while_over(items: Any, start: int, body: Block, guard: Block | None, state: State) -> None:
    """Go over a list whose length the data decides, and the loop changes, from an item on: Python looks at the length before each trip."""
    place: list[Any] = [start]

    def is_inside() -> Any:
        inside = predicate(place[0] < forwarded(items).length())
        go_on = True if guard is None or inside is False else predicate(guard())
        if isinstance(inside, bool) or go_on is False:
            return go_on if inside is True else False
        b = current_scope()
        both = inside if go_on is True else b.emit("logical_and", inside, go_on)
        return fresh(both, Kind.PYTHON)

    def trip() -> None:
        item = forwarded(items)[place[0]]
        place[0] = place[0] + 1
        body(item)

    trip.dsl_code = code_of(body)  # type: ignore[attr-defined]
    _while(state.with_cell("dsl__place", place), is_inside, trip)
