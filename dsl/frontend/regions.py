"""What branches and loops share: finishing a scope as a region, putting values back into variables, lists and raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dsl.errors import (
    ConversionError,
)
from dsl.frontend.leaves import info_of, the_trace, zeros
from dsl.frontend.lists import TracedList, as_traced_list, item_layout
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import (
    Scope,
    Storage,
    current_scope,
    here,
)
from dsl.frontend.state import Snapshot, State, is_mutable, is_numeric, refill
from dsl.frontend.traced import (
    Traced,
    read,
)
from dsl.frontend.trees import Structure, unflatten
from dsl.ir.graph import Graph, Value


def refuse_try() -> None:
    if the_trace().trying:
        raise ConversionError(
            "a `try` around control flow that depends on traced values cannot be converted",
            location=here(),
            remedy="move the `try` outside the decorated function, or test the condition instead of catching the error",
        )


def grow_lists(
    state: State, before: Snapshot, afters: list[Snapshot], unrollable: bool = False
) -> bool:
    """Make traced lists of variables that hold lists of other lengths after a block than before; tell whether there were any."""
    objects = list(before.objects)
    for cell, item in enumerate(before.objects):
        if type(item) is list:
            ends = [a.objects_then[cell] for a in afters]
            grown = next((e for e in ends if isinstance(e, TracedList)), None)
            lengths = {len(item), *(len(e) for e in ends if type(e) is list)}
            if grown is None and (len(lengths) == 1 or unrollable):
                continue
            found = (
                grown.spec()
                if grown is not None
                else _list_spec([item, *(e for e in ends if type(e) is list)])
            )
            if found is not None:
                objects[cell] = as_traced_list(item, *found)
    if all(a is b for a, b in zip(objects, before.objects, strict=True)):
        return False
    state.put(objects)
    return True


def _list_spec(lists: list[list[Any]]) -> Any:
    return item_layout(
        [item for items in lists for item in items],
        lambda leaf: info_of(leaf) if is_numeric(leaf) else None,
    )


def discard(*scopes: Scope) -> None:
    for scope in scopes:
        scope.closed = True


def with_types(snapshot: Snapshot) -> Snapshot:
    """Let views find their types now: outside their region they cannot be read."""
    for leaves in snapshot.leaves:
        for leaf in leaves:
            if isinstance(leaf, Traced) and not leaf.storage.scope.closed:
                _ = leaf.type
    return snapshot


def emit_raise(error: BaseException) -> None:
    """Make the current region raise."""
    from dsl.ir.ops.state import known_error

    message = (
        str(error) if not isinstance(error, KeyError) else str(error.args[0] if error.args else "")
    )
    values = tuple(read(v) for v in getattr(error, "dsl_values", ()))
    template = message if values else message.replace("{", "{{").replace("}", "}}")
    b = current_scope()
    b.node(
        "assert",
        (b.constant(False), *values),
        {"message": template, "error": known_error(type(error))},
    )


def installed(
    snapshot: Snapshot, cell: int, structure: Structure, leaves: list[Any], same: bool = True
) -> Any:
    """Return the object of a cell with new leaves: the `same` container, if it can change, or a new one."""
    item = snapshot.objects[cell]
    if structure.type is not None and not (same and is_mutable(item)):
        kept = structure == snapshot.structures[cell] and all(
            x is y for x, y in zip(leaves, snapshot.leaves[cell], strict=True)
        )
        return item if kept and same else unflatten(structure, leaves)
    if structure.type is None:
        return leaves[0]
    if structure == snapshot.structures[cell] and all(
        x is y for x, y in zip(leaves, snapshot.leaves[cell], strict=True)
    ):
        return item
    if structure == snapshot.structures[cell]:
        refill(item, structure, leaves)
        return item
    return unflatten(structure, leaves)


def absent_optional(structure: Structure, leaves: list[Any]) -> TracedOptional:
    """An optional without a value, whose value would have these leaves' types."""
    if structure.type is TracedOptional:
        structure, leaves = structure.keys[0], leaves[1:]
    scope = current_scope()
    blank = [
        Traced(Storage(zeros(info, scope), scope), (), info.kind) for info in map(info_of, leaves)
    ]
    return TracedOptional(structure, False, blank)


def region_of(
    scope: Scope, captures: Sequence[Value], results: Sequence[Value], leading: Sequence[Value] = ()
) -> Graph:
    """Finish a scope as a region whose params are `leading`, then one for each capture."""
    params = [
        scope.captured[outer] if outer in scope.captured else scope.param(outer.type, "")
        for outer in captures
    ]
    graph = scope.finish(results)
    return Graph(scope.name, (*leading, *params), graph.results, graph.effects)


@contextmanager
def trying(*caught: str) -> Iterator[None]:
    """Mark code inside a `try` that catches exceptions of these names."""
    trace = the_trace()
    trace.trying.append(caught)
    try:
        yield
    finally:
        trace.trying.pop()
