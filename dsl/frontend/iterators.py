"""Iterators in traced code: items of which some have been taken.

`iter`, `zip`, `map`, generators and their like give a `Cursor`. How many items it has given is an attribute that branches and loops
follow like any other, so that Python finds it where it was when a branch is traced again, or the other one is. Where the data
decides how far it is, it cannot be used any more. A cursor over what can be looped over in the graph hands over all that is left of
it at once.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from dsl.errors import BranchError
from dsl.frontend import loops
from dsl.frontend.conditions import conditional
from dsl.frontend.scopes import Scope, current_scope, current_trace, here, is_here, move
from dsl.frontend.traced import lift, read
from dsl.frontend.trees import forwarded

__all__ = ["Cursor", "as_cursor", "generated", "is_plain", "rest_of", "searched"]

_DONE = 2**62
_LOST = -1  # after a search, or in the hands of another iterator


class Cursor(Iterator[Any]):
    """An iterator of traced code over a source: something counted, a list or tuple, or an iterator of Python's."""

    dsl_cursor = True
    # Whether nobody can tell how many items have been computed; where a function of the user's does, a search may not go too far.
    total = True

    def __init__(self, source: Any) -> None:
        self.source = source
        self.position: Any = 0
        self.taken: list[Any] = []  # what an iterator of Python's has given
        self.dsl_scope: Scope | None = current_scope()

    def __next__(self) -> Any:
        place = self._place()
        item = self._item(place)
        self._move(place + 1)
        return item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dsl_"):
            raise AttributeError(name)
        self._refuse_elsewhere()
        return getattr(self.source, name)

    def rest(self) -> Any:
        """Return what is left as something counted, or None if Python goes through it item by item."""
        source = loops.as_counted(forwarded(self.source))
        if source is None:
            return None
        place = self._place()
        return [] if place == _DONE else _bare(source.rest(place) if place else source)

    def finish(self, *, lost: bool = False) -> None:
        """Note that all items have been taken, or that nobody can tell how many."""
        self._move(_LOST if lost else _DONE)

    def advance(self, *default: Any) -> Any:
        """`next(self, default)`."""
        counted = loops.as_counted(forwarded(self.source))
        if counted is None or isinstance(counted.trips(), int):
            return next(self, *default)
        place = self._place()
        self._move(min(place + 1, _DONE))
        return _item_of(counted, place, default)

    def _place(self) -> int:
        if isinstance(self.position, int) and self.position != _LOST:
            return self.position
        raise BranchError(
            "how many items of this iterator have been taken depends on data, or on another iterator or a search that went through it",
            location=here(), remedy="make a new one where it is used, or keep the items in a list or an array and count",
        )  # fmt: skip

    def _item(self, place: int) -> Any:
        source = forwarded(self.source)
        counted = loops.as_counted(source)
        if counted is not None:
            count = counted.trips()
            if not isinstance(count, int):
                return next(iter(counted))  # which says why it cannot
            if place >= count:
                raise StopIteration
            return counted.item(place)
        if isinstance(source, (list, tuple)):
            if place >= len(source):
                raise StopIteration
            return forwarded(source[place])
        return self._drawn(place)

    def _drawn(self, place: int) -> Any:
        if place == _DONE:
            raise StopIteration
        if place == len(self.taken):
            self._refuse_elsewhere()
            self.taken.append(next(self.source))
        return self.taken[place]

    def _refuse_elsewhere(self) -> None:
        """Refuse to go on with a generator in a branch or loop: it would not go back for the other one, or the next trip."""
        if isinstance(self.source, types.GeneratorType) and not is_here(self):
            raise BranchError(
                "a generator goes on in a branch or loop that the data decides",
                location=here(), remedy="take its items before (`list(...)`), or make it in the branch or loop",
            )  # fmt: skip

    def _move(self, place: int) -> None:
        move(self, "position", place)


def _bare(counted: Any) -> Any:
    """Return the array or list for what goes through its items."""
    if isinstance(counted, loops.Rows):
        return counted.array
    return counted.items if isinstance(counted, loops.Items) else counted


def _item_of(counted: Any, place: int, default: tuple[Any, ...]) -> Any:
    """Return an item of what the data decides the length of."""
    inside = loops.fresh_count(counted) > place
    if default:
        return conditional(inside, lambda: counted.item(place), lambda: default[0])
    error = {"message": "", "error": "StopIteration"}
    current_scope().node("assert", (read(lift(inside)),), error)
    return counted.item(place)


def as_cursor(made: Any) -> Any:
    """Return an iterator of Python's, or what stands for one, as one of traced code; those of the user's classes stay as they are."""
    if isinstance(made, Cursor) or current_trace() is None:
        return made
    return made if hasattr(type(made), "__next__") and not is_plain(made) else Cursor(made)


def generated(made: Any, total: bool) -> Any:
    """Return what a generator gives as an iterator of traced code."""
    cursor = as_cursor(made)
    if isinstance(cursor, Cursor):
        cursor.total = total
    return cursor


def is_plain(item: Any) -> bool:
    """Tell whether an object is one of Python's own iterators."""
    own = type(item).__module__ in ("builtins", "itertools")
    return own and hasattr(type(item), "__next__")


def rest_of(items: Any, *, lost: bool = False) -> Any:
    """Take what is left of an iterator: something counted, or the iterator itself, for Python to go through; others are as they are."""
    if not isinstance(items, Cursor):
        return items
    rest = items.rest()
    if rest is None:
        return items
    items.finish(lost=lost)
    return rest


def searched(items: Any) -> Any:
    """Take what is left of an iterator for a search, which ends somewhere."""
    return rest_of(items, lost=True)
