"""What is outside of a function at a call: looked up again where tracing found it, and described, to tell whether it has changed.

A place is a holder and a key there. Where an object may be another one in the next call, its role stands in its place, and `objects`
are those that play the roles in a call.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.frontend.roles import Attributes, Presence, Role, held_in, is_plain_tuple
from dsl.frontend.scopes import Item
from dsl.frontend.signature import Same
from dsl.ir.sameness import identity

__all__ = [
    "acting", "contents_acted", "contents_of", "is_found_at", "is_same", "is_watched", "kind_of", "look_up", "place_of",
]  # fmt: skip


def look_up(holder: Any, key: Any) -> Any:
    """Read a captured object again."""
    if key is Attributes:
        return getattr(holder, "__dict__", None)
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
    if isinstance(contents, Same):
        return Same(acting(contents.item, objects)) if type(contents.item) is Role else contents
    if isinstance(contents, tuple) and isinstance(contents[1], list):
        return contents[0], [(key, contents_acted(item, objects)) for key, item in contents[1]]
    return contents


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


def is_watched(holder: Any) -> bool:
    """Tell whether an object is a container that is compared as a whole, other than a module's variables."""
    return isinstance(holder, (list, tuple, collections.deque)) or (
        isinstance(holder, dict) and "__builtins__" not in holder
    )


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
