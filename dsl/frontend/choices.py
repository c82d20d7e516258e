"""Lists, dicts and objects between which the data chooses.

After `t = a if c else b` the variable `t` holds a new list, with the items of the one or the other: what is changed in it does not
reach `a` or `b`. So such a change is refused, and so is reading `t` after a change of `a` or `b`, while anything else may refer to
the lists that were chosen from. The same holds for what an index of the program picks from a list: `rows[i]` is a new list.
A loop in which this happens is unrolled, if it can be: then Python knows which list is meant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from dsl.errors import AliasError
from dsl.frontend.convert import is_generated
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import Trace, current_trace, here
from dsl.frontend.trees import OBJECTS, forwarded

__all__ = ["note_change", "note_choice", "note_pick", "note_reading", "with_other_names"]


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


def _remember(trace: Trace, new: Any, made: list[Any], parts: list[Any]) -> None:
    """Remember that `new`, with the containers `made`, stands for something with the containers `parts`."""
    trace.chosen.update({id(part): part for part in made})
    for part in parts:
        trace.chosen_from.setdefault(id(part), (part, []))[1].append(new)


def with_other_names(items: list[Any], names: set[str]) -> list[Any]:
    """Return the containers in some trees that other variables than those of the names refer to."""
    known = {id(part) for item in _variables(names) for part in _containers(item)}
    return [part for item in items for part in _containers(item) if id(part) in known]


def note_change(item: Any) -> None:
    """Refuse to change a container that was chosen; reading it is refused from now on if one is changed that it was chosen from."""
    trace = current_trace()
    if trace is None or not (trace.chosen or trace.chosen_from):
        return
    if id(item) in trace.chosen:
        _refuse("this changes a list, dict or object that the data chose among others")
    for new in trace.chosen_from.get(id(item), (None, []))[1]:
        trace.stale.update({id(part): part for part in _containers(new)})


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
        "in the place of `rows[i][k] = x` use an array, or assign the whole item (`rows[i] = [...]`)",
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


def _containers(item: Any, around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the containers and objects in a tree that can be changed, itself included."""
    item = forwarded(item)
    if isinstance(item, TracedOptional):
        if item.structure.type is not None:
            yield item
        return
    if isinstance(item, TracedList):
        yield item
        return
    if isinstance(item, (list, tuple, dict, BoundedDeque)):
        parts: Any = list(item.values()) if isinstance(item, dict) else item
    elif _is_object(item) and not any(item is each for each in around):
        parts = list(vars(item).values()) if hasattr(item, "__dict__") else []
    else:
        return
    if not isinstance(item, tuple):
        yield item
    for part in parts:
        yield from _containers(part, (*around, item))
