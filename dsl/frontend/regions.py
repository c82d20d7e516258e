"""What branches and loops share: finishing a scope as a region, putting values back into variables, lists and raises."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dsl.errors import (
    AliasError,
    BranchError,
    ConversionError,
    DslError,
    LeakError,
    LoopTypeError,
    MissingAttributeError,
    NonConcreteError,
    UnsupportedError,
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
from dsl.frontend.trees import (
    OBJECTS,
    Forward,
    Structure,
    attributes_of,
    flatten,
    forwarded,
    unflatten,
)
from dsl.ir.graph import Graph, Value
from dsl.ir.types import Shape

_REFUSALS = (
    AliasError, BranchError, ConversionError, LeakError, LoopTypeError, NonConcreteError, UnsupportedError,
)  # fmt: skip


def refuse_try() -> None:
    if the_trace().trying:
        raise ConversionError(
            "a `try` around control flow that depends on traced values cannot be converted",
            location=here(),
            remedy="move the `try` outside the decorated function, or test the condition instead of catching the error",
        )


def grow_lists(
    state: State,
    before: Snapshot,
    afters: list[Snapshot],
    named: dict[int, set[Storage]],
    unrollable: bool = False,
) -> bool:
    """Make traced lists of variables that hold lists of other lengths after a block than before; tell whether there were any.

    Numbers that are put into a traced list may be of other kinds: then it has room for those from the beginning.
    `named` are arrays in lists that have other names too, by the ids of the lists.
    """
    made: list[TracedList] = []
    for cell, item in enumerate(before.objects):
        if any(_differ(before, after, cell) for after in afters):
            ends = [unflatten(a.structures[cell], a.leaves[cell]) for a in afters]
            _grow(item, ends, named, unrollable, made)
    if made:
        state.put([forwarded(item) for item in before.objects])
    return bool(made)


def _differ(before: Snapshot, after: Snapshot, cell: int) -> bool:
    """Tell whether a variable has other structure, or arrays of other dtypes, after a block than before."""
    if after.structures[cell] != before.structures[cell]:
        return True
    pairs = zip(before.leaves[cell], after.leaves[cell], strict=True)
    return any(
        isinstance(a, Traced) and isinstance(b, Traced) and a.dtype != b.dtype for a, b in pairs
    )


def _grow(
    item: Any,
    ends: list[Any],
    named: dict[int, set[Storage]],
    unrollable: bool,
    made: list[TracedList],
) -> None:
    """Make traced lists of a list that has other lengths at the ends, and of those inside a container."""
    if forwarded(item) is not item:
        return
    traced = [e for e in ends if isinstance(e, TracedList)]
    if isinstance(item, TracedList):
        made += [item for end in traced if item.admit(end)]
        return
    if type(item) is list:
        grown = traced[0] if traced else None
        lists = [item, *(e for e in ends if type(e) is list)]
        if grown is not None or len({len(each) for each in lists}) > 1:
            found = grown.spec() if grown is not None else _list_spec(lists)
            if found is not None and (grown is not None or not unrollable):
                made.append(as_traced_list(item, *found))
                made[-1].note_items(item, named.get(id(item), set()))
                item[:] = [Forward(made[-1])]
                if id(item) in the_trace().deques:
                    the_trace().deques[id(made[-1])] = made[-1]
            return
    inner = [_containers_in(end) for end in ends]
    for key, part in _containers_in(item).items():
        _grow(part, [each[key] for each in inner if key in each], named, unrollable, made)


def _containers_in(item: Any) -> dict[Any, Any]:
    """Return the containers that are items of a container."""
    if isinstance(item, (list, tuple)):
        pairs: Any = enumerate(item)
    elif isinstance(item, dict):
        pairs = item.items()
    elif hasattr(type(item), "__dataclass_fields__"):
        pairs = ((name, getattr(item, name, None)) for name in item.__dataclass_fields__)
    elif OBJECTS[0].is_tree(item):
        pairs = attributes_of(item).items()
    else:
        return {}
    return {key: part for key, part in pairs if is_mutable(part) or isinstance(part, tuple)}


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

    is_said = isinstance(error, (KeyError, DslError))  # not in quotes, not with its place
    message = str(error) if not is_said else str(error.args[0] if error.args else "")
    values = tuple(read(v) for v in getattr(error, "dsl_values", ()))
    template = message if values else message.replace("{", "{{").replace("}", "}}")
    b = current_scope()
    b.node(
        "assert",
        (b.constant(False), *values),
        {"message": template, "error": known_error(type(error))},
        loc=getattr(error, "location", None),
    )


def installed(
    snapshot: Snapshot, cell: int, structure: Structure, leaves: list[Any], same: bool = True
) -> Any:
    """Return the object of a cell with new leaves: the `same` container, if it can change, or a new one."""
    item = snapshot.objects[cell]
    if same and structure == snapshot.structures[cell] and _holds_all(item, structure, leaves):
        refill(item, structure, leaves)
        return item
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


def _holds_all(item: Any, structure: Structure, leaves: list[Any]) -> bool:
    """Tell whether new leaves are all in containers inside a tuple, which can hold them."""
    if type(item) is not tuple:
        return False
    return all(
        old is new
        or is_mutable(old)
        or (type(old) is tuple and _holds_all(old, *flatten(new)[::-1]))
        for old, new in zip(item, unflatten(structure, leaves), strict=True)
    )


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


def contents_if(same: Value, new: Value, old: Value) -> Value:
    """Return what an array holds that, if a predicate says so, is the same memory as one that holds `new`, and of its sizes then."""
    b = current_scope()
    if new.shape == old.shape:
        return b.emit("where", same, new, old)
    if len(new.shape) != len(old.shape) or _are_apart(new.shape, old.shape):
        return old
    yes, no = Scope("yes", b), Scope("no", b)
    unchanged = no.local(old, b)
    yes.local(old, b)  # which tells its sizes
    changed = yes.emit("reshape", yes.local(new, b), shape=old.shape)
    captures = list(dict.fromkeys([*yes.captured, *no.captured]))
    regions = [region_of(yes, captures, [changed]), region_of(no, captures, [unchanged])]
    return b.node("cond", (same, *captures), {}, regions=regions, types=[old.type]).output


def _are_apart(some: Shape, others: Shape) -> bool:
    """Tell whether sizes are known to differ."""
    pairs = zip(some, others, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def handling() -> None:
    """Let no handler take what cannot be traced, or is traced again with values, for an error of the plain function."""
    error = sys.exc_info()[1]
    if isinstance(error, _REFUSALS) and not isinstance(error, MissingAttributeError):
        raise error


@contextmanager
def trying(*caught: str) -> Iterator[None]:
    """Mark code inside a `try` that catches exceptions of these names."""
    trace = the_trace()
    trace.trying.append(caught)
    try:
        yield
    finally:
        trace.trying.pop()
