"""What is outside of a function at a call: looked up again where tracing found it, and described, to tell whether it has changed.

A place is a holder and a key there. Where an object may be another one in the next call, its role stands in its place, and `objects`
are those that play the roles in a call.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsl.frontend.roles import (
    Attributes,
    Closure,
    Declared,
    Own,
    Presence,
    Role,
    held_in,
    is_plain_tuple,
)
from dsl.frontend.scopes import Item, Trace
from dsl.frontend.signature import Same, is_number
from dsl.ir.sameness import identity

__all__ = [
    "ANY",
    "acting",
    "changed_in",
    "contents_acted",
    "contents_but_inputs",
    "contents_of",
    "is_found_at",
    "is_same",
    "kind_of",
    "look_up",
    "place_of",
]  # fmt: skip


def look_up(holder: Any, key: Any) -> Any:
    """Read a captured object again."""
    if key is Attributes:
        return getattr(holder, "__dict__", None)
    if type(key) is Closure:
        return holder.__closure__[key.number]
    if type(key) is Declared:
        return key.found_in(holder)
    if type(key) is Own:
        return vars(holder).get(key.name)
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return None
    kinds = (list, tuple, str, bytes, range, collections.deque)
    in_order = isinstance(holder, kinds) and not isinstance(key, str)
    if in_order or isinstance(key, Item) or isinstance(holder, dict):
        try:
            return holder[key.key if isinstance(key, Item) else key]
        except (KeyError, IndexError):
            return None
    return getattr(holder, key, None)


def acting(item: Any, objects: Sequence[Any]) -> Any:
    """Return the object that plays a role; anything else as it is."""
    if type(item) is Role:
        return objects[item.number]
    if type(item) is Presence and type(held := held_in(item)) is Role:
        return Presence(objects[held.number])
    return item


def is_found_at(expected: Any, holder: Any, key: Any) -> bool:
    """Tell whether a role is played by what is at a place, whatever that is."""
    return type(expected) is Role and expected.holder is holder and expected.key == key


def place_of(holder: Any, key: Any) -> Any:
    """Return the way to what a holder has under a key: see `Roles.place`."""
    if type(holder) is Presence:
        return "has", *place_of(held_in(holder), key)
    return (*(holder.place if type(holder) is Role else ("at", id(holder))), key)


def contents_acted(contents: Any, objects: Sequence[Any]) -> Any:
    """Return a description by `contents_of` with the objects in it that play the roles."""
    if contents is ANY:
        return contents
    if isinstance(contents, Same):
        return Same(acting(contents.item, objects)) if type(contents.item) is Role else contents
    if isinstance(contents, tuple) and isinstance(contents[1], list):
        return contents[0], [(key, contents_acted(item, objects)) for key, item in contents[1]]
    return contents


class _Any:
    """Equals whatever a container holds at a place, which is an input."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = _Any()


def contents_but_inputs(held: Any, contents: Any, trace: Trace) -> Any:
    """Return a description by `contents_of` that holds for all numbers that are inputs, if tracing has seen no others."""
    if id(held) not in trace.stand_ins.copies:
        return contents
    items = []
    for key, item in contents[1]:
        is_input = isinstance(item, Same) and (id(held), key) in trace.captures
        items.append((key, ANY if is_input else contents_but_inputs(held[key], item, trace)))
    return contents[0], items


def changed_in(found: Any, contents: Any, place: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield the places of numbers in a container that are others than a description by `contents_of` says, and their names."""
    if (
        type(found) not in (list, dict)
        or not isinstance(contents, tuple)
        or len(found) != len(contents[1])
    ):
        return
    for key, item in contents[1]:
        now = look_up(found, key)
        if isinstance(item, Same) and is_number(item.item):
            if type(now) is type(item.item) and not is_same(now, item.item):
                yield (*place, key), f"{name}[{key!r}]"
        else:
            yield from changed_in(now, item, (*place, key), f"{name}[{key!r}]")


def contents_of(found: Any, depth: int = 4) -> Any:
    """Describe what is in a container from outside, as far as a trace may depend on it; None for other objects."""
    is_open = isinstance(found, (list, dict, collections.deque)) or (
        type(found) is tuple and not is_plain_tuple(found)
    )
    if is_open and depth:
        items = found.items() if isinstance(found, dict) else enumerate(found)
        return type(found), [(key, _item(item, depth - 1)) for key, item in items]
    if isinstance(found, set):
        return type(found), frozenset((type(item), item) for item in found)
    return (bytearray, bytes(found)) if isinstance(found, bytearray) else None


def _item(item: Any, depth: int) -> Any:
    if isinstance(item, np.ndarray):
        return item.dtype, item.shape  # arrays are inputs
    return contents_of(item, depth) or Same(item)


def is_same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected) or not isinstance(
        found, (int, float, complex, str, bytes, tuple, np.generic)
    ):
        return False
    return identity(found) == identity(expected)


def kind_of(found: Any) -> str:
    return (
        f"{found.dtype}{list(found.shape)}"
        if isinstance(found, np.ndarray)
        else f"a {type(found).__name__}"
    )
