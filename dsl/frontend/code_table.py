"""What is known about code objects, by their identity and for as long as they live.

By identity, since hashing a code object reads all of it. Code that is made at run time, as functions in a loop or a notebook's
cells are, goes away with its functions; what is known about it must not keep it.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Generic, TypeVar

__all__ = ["CodeTable"]

Item = TypeVar("Item")


class CodeTable(Generic[Item]):
    """A dict of code objects that forgets those that are gone; no item may refer to its code."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[types.CodeType], Item]] = {}

    def __contains__(self, code: types.CodeType) -> bool:
        return id(code) in self._items

    def __len__(self) -> int:
        return len(self._items)

    def get(self, code: types.CodeType) -> Item | None:
        """Return the item of a code object, or None."""
        found = self._items.get(id(code))
        return None if found is None else found[1]

    def put(self, code: types.CodeType, item: Item) -> Item:
        """Keep an item, and return it."""
        forget = functools.partial(self._forget, id(code))
        self._items[id(code)] = (weakref.ref(code, forget), item)
        return item

    def _forget(self, key: int, gone: object) -> None:
        self._items.pop(key, None)
