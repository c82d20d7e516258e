"""Lists, dicts and objects between which the data chooses.

After `t = a if c else b` the variable `t` holds a new list, with the items of the one or the other: what is changed in it does not
reach `a` or `b`. So such a change is refused, and so is reading `t` after a change of `a` or `b`, while anything else may refer to
the lists that were chosen from. The same holds for what an index of the program picks from a list: `rows[i]` is a new list.
A loop in which this happens is unrolled, if it can be: then Python knows which list is meant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from typing import Any

from dsl.errors import AliasError
from dsl.frontend.convert import is_generated
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import Storage, Trace, current_trace, here
from dsl.frontend.sharing import hold, refuse_change
from dsl.frontend.traced import Kind, Traced
from dsl.frontend.trees import LEAVES, OBJECTS, Structure, attributes_of, flatten, forwarded

__all__ = [
    "holds_any",
    "named_elsewhere",
    "named_items",
    "note_change",
    "note_choice",
    "note_held",
    "note_item",
    "note_pick",
    "note_pop",
    "note_reading",
    "with_other_names",
]


def named_items(items: list[Any]) -> dict[int, set[Storage]]:
    """Return, for the Python lists in some trees that have arrays as items, the arrays that are known from elsewhere."""
    lists = [part for item in items for part in _containers(item) if type(part) is list]
    return {
        id(part): named_elsewhere(part) for part in lists if any(True for _ in _arrays_in(part, ()))
    }


def named_elsewhere(items: list[Any]) -> set[Storage]:
    """Return the arrays that variables know, apart from what they know as items of a list."""
    return {leaf.storage for v in _variables(set()) for leaf in _arrays_in(v, (items,))}


def _arrays_in(item: Any, around: tuple[Any, ...]) -> Iterator[Traced]:
    """Yield the arrays in a tree, apart from those of some containers."""
    item = forwarded(item)
    if isinstance(item, Traced):
        yield from (item,) if item.kind is Kind.ARRAY else ()
    elif isinstance(item, (tuple, *_KINDS)) or _is_object(item):
        for part in () if any(item is each for each in around) else _parts(item):
            yield from _arrays_in(part, (*around, item))


def note_choice(new: Any, sources: list[Any], names: set[str], twice: bool) -> None:
    """Remember that a variable holds a new container in the place of one of these, if some of them have other names.

    `names` are the variables that get new containers or are not read any more, and `twice` says that two of them hold the same
    one after a branch.
    """
    trace = current_trace()
    if trace is None or any(new is item for item in sources):
        return
    made = list(_containers(new))
    if not made:
        return
    for source in sources:
        if twice or with_other_names([source], names):
            _remember(trace, new, made, list(_containers(source)))


def note_pick(new: Any, items: Any) -> None:
    """Remember that `new` stands for one of the items of a list, which one the program knows when it runs.

    The items of a traced list have no containers of their own that could be changed.
    """
    trace = current_trace()
    made = list(_containers(new))
    if trace is None or not made:
        return
    known = [] if isinstance(items, TracedList) else items
    _remember(trace, new, made, [part for item in known for part in _containers(item)])


def note_pop(item: Any, items: TracedList) -> None:
    """Remember that an item was taken out of a traced list, which other variables and lists may know too."""
    trace = current_trace()
    if trace is not None:
        doubled = items.layout[0] in trace.doubled
        trace.popped.update(
            {id(part): (part, None if doubled else items) for part in _containers(item)}
        )


def _remember(trace: Trace, new: Any, made: list[Any], parts: list[Any]) -> None:
    """Remember that `new`, with the containers `made`, stands for something with the containers `parts`."""
    trace.chosen.update({id(part): part for part in made})
    for part in parts:
        trace.chosen_from.setdefault(id(part), (part, []))[1].append(new)


def with_other_names(items: list[Any], names: set[str]) -> list[Any]:
    """Return the containers in some trees that other variables than those of the names refer to."""
    known = {id(part) for item in _variables(names) for part in _containers(item)}
    return [part for item in items for part in _containers(item) if id(part) in known]


def note_item(item: Any) -> None:
    """Remember that a traced list has got a copy of an item, with the containers in it."""
    for part in _containers(item):
        hold(part)


def note_held(old: Any, new: Any) -> bool:
    """Let what stands for a container be known as an item of a traced list, as that is; tell whether it was not."""
    trace = current_trace()
    if trace is None or not trace.held:
        return False
    pairs = list(zip(_containers(old), _containers(new), strict=False))
    trace.popped.update(
        {id(b): (b, trace.popped[id(a)][1]) for a, b in pairs if id(a) in trace.popped}
    )
    found = {id(b): (b, trace.held[id(a)][1]) for a, b in pairs if id(a) in trace.held}
    fresh = found.keys() - trace.held.keys()
    trace.held.update({key: found[key] for key in fresh})
    return bool(fresh)


def holds_any(items: list[Any], found: Set[int]) -> bool:
    """Tell whether containers of some identities are in some trees."""
    return any(id(part) in found for item in items for part in _containers(item))


def note_change(item: Any) -> None:
    """Refuse to change a container that was chosen; reading it is refused from now on if one is changed that it was chosen from."""
    trace = current_trace()
    if trace is not None and id(item) in trace.originals:
        trace.touched[id(item)] = here()
    if trace is None or not (trace.chosen or trace.chosen_from or trace.held):
        return
    refuse_change(item)
    if id(item) in trace.popped:
        _refuse_known(trace, item)
    if id(item) in trace.chosen:
        _refuse("this changes a list, dict or object that the data chose among others")
    for new in trace.chosen_from.get(id(item), (None, []))[1]:
        trace.stale.update({id(part): part for part in _containers(new)})


def _refuse_known(trace: Trace, item: Any) -> None:
    """Refuse to change what was taken out of a traced list if something else may be the same container, or have it."""
    structure, source = flatten(item)[1], trace.popped[id(item)][1]
    parts = (part for v in _variables(set()) for part in _containers(v) if part is not item)
    if source is None or any(_may_be(trace, part, structure, source) for part in parts):
        raise AliasError(
            "this changes a list, dict or object that was taken out of a list, and that another variable or list may hold too: a "
            "list that grows in traced code keeps copies, so that the change would not show there",
            location=here(), remedy="change a copy (`row = rows.pop().copy()`), or put copies into the list",
        )  # fmt: skip


def _may_be(trace: Trace, part: Any, structure: Structure, source: TracedList) -> bool:
    if isinstance(part, TracedList):
        return part is not source and part.layout[0] == source.layout[0]
    if id(part) in trace.held or id(part) in trace.chosen:
        return flatten(part)[1] == structure
    return False


def note_reading(item: Any) -> None:
    """Refuse to read a container that was chosen from others of which one has been changed since."""
    trace = current_trace()
    if trace is not None and id(item) in trace.stale:
        _refuse(
            "this reads a list, dict or object that the data chose, after a change of those it was chosen from"
        )


def _refuse(message: str) -> None:
    raise AliasError(
        message,
        location=here(),
        remedy="change it in the branches, where it has one name, or choose between copies (`a.copy() if ... else b.copy()`); "
        "in the place of `rows[i][k] = x` use an array (`rows = np.zeros((n, m))`, `rows[i, k] = x`), or assign the whole item "
        "(`rows[i] = [...]`)",
    )


def _variables(names: set[str]) -> Iterator[Any]:
    """Yield what the variables of the functions that are being traced hold, apart from those of some names."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_generated(frame.f_code):
            yield from _locals(frame, names)
        frame = frame.f_back


def _locals(frame: Any, names: set[str]) -> list[Any]:
    held = frame.f_locals
    found = [v for k, v in held.items() if k not in names and not k.startswith("dsl__")]
    if type(held) is dict:  # Python's copy, which would keep alive what variables no longer hold
        held.clear()
    return found


def _is_object(item: Any) -> bool:
    return hasattr(type(item), "__dataclass_fields__") or OBJECTS[0].is_made(item)


_KINDS = (list, dict, BoundedDeque)


def _parts(item: Any) -> list[Any]:
    """Return what a container or object holds."""
    if isinstance(item, (list, tuple, BoundedDeque)):
        return list(item)
    held = item if isinstance(item, dict) else attributes_of(item)
    return list(held.values())


def _containers(item: Any, around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the containers and objects in a tree that can be changed, itself included."""
    if type(item) in LEAVES:
        return
    item = forwarded(item)
    if isinstance(item, TracedOptional):
        if item.structure.type is not None:
            yield item
        return
    if isinstance(item, TracedList):
        yield item
        return
    if not (isinstance(item, (tuple, *_KINDS)) or _is_object(item)):
        return
    if _is_object(item) and any(item is each for each in around):
        return
    if not isinstance(item, tuple):
        yield item
    for part in _parts(item):
        yield from _containers(part, (*around, item))
