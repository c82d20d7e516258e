"""What loops and functions go through: for an object of the user's, what its methods give, which are converted.

Python calls `__iter__`, `__next__` and `__getitem__` by itself, unconverted: what they read of arrays would be constants of the graph.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsl.frontend.captures import watched
from dsl.frontend.iterators import as_cursor, is_plain
from dsl.frontend.roles import stands_in
from dsl.frontend.scopes import current_trace
from dsl.frontend.user_code import own_method

__all__ = ["CALL", "given_items", "iterable"]

CALL: list[Any] = []
"""Calls a function as traced code does; set by `calls`."""
_BY_PLACE = collections.abc.Sequence.__iter__
_VIEWS = {collections.abc.ValuesView, collections.abc.ItemsView}

_FIRST, _SECOND, _REST, _EVERY = slice(1), slice(1, 2), slice(1, None), slice(None)
_GOES_THROUGH: dict[Any, slice] = {
    builtins.list: _FIRST, builtins.tuple: _FIRST, builtins.set: _FIRST, builtins.frozenset: _FIRST, builtins.sum: _FIRST,
    builtins.min: _FIRST, builtins.max: _FIRST, builtins.sorted: _FIRST, builtins.any: _FIRST, builtins.all: _FIRST,
    builtins.enumerate: _FIRST, builtins.zip: _EVERY, builtins.map: _REST, builtins.filter: _SECOND, math.prod: _FIRST,
    math.fsum: _FIRST, functools.reduce: _SECOND, np.fromiter: _FIRST, itertools.accumulate: _FIRST, itertools.chain: _EVERY,
    itertools.islice: _FIRST, itertools.pairwise: _FIRST, itertools.product: _EVERY, itertools.zip_longest: _EVERY,
    itertools.combinations: _FIRST, itertools.permutations: _FIRST, itertools.cycle: _FIRST, itertools.takewhile: _SECOND,
    itertools.dropwhile: _SECOND, itertools.starmap: _SECOND, collections.deque: _FIRST,
}  # fmt: skip
"""Functions, and which of their arguments they go through."""


def iterable(items: Any) -> Any:
    """Return what gives the items of an object; those of a list or tuple from outside are captured arrays and guarded objects."""
    items = watched(items)
    if current_trace() is None or isinstance(items, type):
        return items
    if type(items) in _VIEWS and own_method(items._mapping, "__getitem__") is not None:
        return as_cursor(_entries(items))
    own = own_method(items, "__iter__")
    if own is not None:
        made = CALL[0](own, items)
        return as_cursor(made) if is_plain(made) else _stepped(made)
    return _stepped(items)


def _stepped(items: Any) -> Any:
    """Return what asks an object for one item after the other, or the object if it is none of the user's."""
    by_place = getattr(type(items), "__iter__", None) in (None, _BY_PLACE)
    if own_method(items, "__next__") is not None:
        return as_cursor(_nexts(items))
    if by_place and own_method(items, "__getitem__") is not None:
        return as_cursor(_places(items))
    trace = current_trace()
    if trace is not None and (stands_in(items) or isinstance(items, (set, frozenset))):
        trace.roles.note_native(
            items
        )  # the order of a set, too, depends on which objects are in it
    return watched(items)


def _nexts(items: Any) -> Iterator[Any]:
    step = own_method(items, "__next__")
    while True:
        try:
            item = CALL[0](step, items)
        except StopIteration:
            return
        yield item


def _places(items: Any) -> Iterator[Any]:
    get = own_method(items, "__getitem__")
    for place in itertools.count():
        try:
            item = CALL[0](get, items, place)
        except IndexError:
            return
        yield item


def _entries(view: Any) -> Iterator[Any]:
    """Go through the `values()` or `items()` of a mapping that the user wrote."""
    get = own_method(view._mapping, "__getitem__")
    for key in iterable(view._mapping):
        value = CALL[0](get, view._mapping, key)
        yield (key, value) if type(view) is collections.abc.ItemsView else value


def given_items(fn: Any, args: Any) -> tuple[Any, ...]:
    """Return the arguments of a function with the items of objects that it goes through."""
    try:
        places = _GOES_THROUGH.get(fn)
    except TypeError:
        places = None
    if places is None or (fn in (builtins.min, builtins.max) and len(args) > 1):
        return tuple(args)
    chosen = range(len(args))[places]
    return tuple(iterable(a) if k in chosen else a for k, a in enumerate(args))
