"""`sorted`, `min` and `max` of items that may be traced: the first of equal items comes first, as in Python.

Numbers, and items whose number the data decides, are sorted by the program; of others, neighbours change places by `cond`, so there may
not be many.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError
from dsl.frontend import sequences
from dsl.frontend.array_likes import as_array, kind_of_items
from dsl.frontend.builtin_functions import length_of
from dsl.frontend.calls import BUILTINS, call
from dsl.frontend.comparisons import compare_two
from dsl.frontend.conditions import conditional
from dsl.frontend.leaves import the_trace
from dsl.frontend.library import has_traced, has_traced_fields
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, fresh, lift, read
from dsl.frontend.trees import OBJECTS
from dsl.frontend.user_code import own_method
from dsl.ir.types import I64

__all__ = ["sorted_items"]


def _extreme(
    plain: Callable[..., Any], pick: Callable[[Any, Any], Any], name: str
) -> Callable[..., Any]:
    """Make `min` or `max`; `pick` tells whether the first of two items is taken before the second."""

    def choose(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        if len(args) == 1 and not (isinstance(args[0], Traced) and key is None):
            found = sequences.sortable(args[0], key)
            args = args if found is None else (found,)
        if len(args) == 1 and _is_ordered_by_items(args[0], key):
            first = functools.partial(sequences.first, args[0], key, name == "max")
            if "default" not in kwargs:
                return first()
            return conditional(length_of(args[0]) == 0, lambda: kwargs["default"], first)
        if len(args) != 1 and kwargs:
            return plain(*args, **kwargs)  # Python's error
        kind = kind_of_items(args[0]) if args else Kind.SCALAR
        args = tuple(map(as_array, args))
        if "default" in kwargs and isinstance(args[0], Traced) and key is None:
            default = kwargs.pop("default")
            return conditional(
                length_of(args[0]) == 0,
                lambda: default,
                lambda: _extreme_element(name, args[0], kind),
            )
        items = (
            list(args[0])
            if len(args) == 1 and (key is not None or not isinstance(args[0], Traced))
            else args
        )
        if len(items) == 0:
            return plain(items, **kwargs)
        if key is not None:
            return _extreme_by_key(items, key, pick, plain)
        if len(args) == 1 and isinstance(args[0], Traced):
            return _extreme_element(name, args[0], kind)
        if _are_decided(list(items)):
            return plain(items, **kwargs)  # which may have been taken out of an iterator
        if all(map(_is_python_int, items)):
            values = (read(lift(item)) for item in items)
            best = functools.reduce(lambda a, b: current_scope().emit(f"{name}imum", a, b), values)
            return fresh(best, Kind.PYTHON)
        # Python keeps the first of equal items: max takes a later item only if it is larger.
        return functools.reduce(lambda a, b: conditional(pick(b, a), lambda: b, lambda: a), items)

    return choose


def _extreme_element(name: str, items: Traced, kind: Kind) -> Any:
    """`max(items)` of an array: Python's comparisons pass over a NaN, unless it comes first."""
    if items.ndim != 1:
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
        )
    length, empty = length_of(items), sequences.empty_message(name)
    if isinstance(length, int) and length == 0:
        raise ValueError(empty)
    if not isinstance(length, int):
        error = {"message": empty, "error": "ValueError"}
        current_scope().node("assert", (read(length > 0),), error)
    found = _FUNCTIONS[name](items)
    if items.dtype.kind == "f":
        first, rest = items[0], _FUNCTIONS[f"nan{name}"](items)
        found = np.where(np.isnan(first), first, rest)
    return fresh(read(lift(found)), kind)


def _is_ordered_by_items(items: Any, key: Any) -> bool:
    """Tell whether the extreme of a traced list is found by its items, not by those of an array."""
    return isinstance(items, TracedList) and (key is not None or as_array(items) is items)


def _is_python_int(x: Any) -> bool:
    if isinstance(x, Traced):
        return x.kind is Kind.PYTHON and x.dtype == I64
    return type(x) is int and -(2**63) <= x < 2**63


def _extreme_by_key(
    items: Any, key: Any, pick: Callable[[Any, Any], Any], plain: Callable[..., Any]
) -> Any:
    """`max(items, key=f)` where the keys may be traced."""
    pairs = [(call(key, item), item) for item in items]
    if not has_traced([k for k, _ in pairs]):
        return pairs[plain(range(len(pairs)), key=lambda j: pairs[j][0])][1]
    best = functools.reduce(lambda a, b: conditional(pick(b[0], a[0]), lambda: b, lambda: a), pairs)
    return best[1]


def sorted_items(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
    """`sorted(items, key=key, reverse=reverse)`."""
    if isinstance(items, Traced) and key is None:
        ordered = _FUNCTIONS["sort"](items)
        return sequences.listed(ordered[::-1] if reverse else ordered)
    found = sequences.sortable(items, key)
    if found is not None:
        return sequences.ordered(found, key, reverse)
    items = list(items)
    pairs = [(item if key is None else call(key, item), item) for item in items]
    if _are_decided([k for k, _ in pairs]):
        order = sorted(range(len(pairs)), key=lambda j: pairs[j][0], reverse=reverse)
        return [pairs[j][1] for j in order]
    return [item for _, item in _sorted_pairs(pairs, reverse)]


def _are_decided(keys: list[Any]) -> bool:
    """Tell whether Python can compare all keys now."""
    if any(has_traced(k) or OBJECTS[0].is_made(k) or has_traced_fields(k) for k in keys):
        return False
    if not any(own_method(k, "__lt__") or own_method(k, "__gt__") for k in keys):
        return True
    the_trace().roles.note_native(keys)
    return len(keys) > sequences.MOST_SORTED


def _sorted_pairs(pairs: list[Any], reverse: bool) -> list[Any]:
    """Sort pairs of a traced key and an item: neighbours change places, so that equal ones stay in order."""
    if len(pairs) > sequences.MOST_SORTED:
        raise NonConcreteError(
            f"sorting {len(pairs)} Python objects by keys that are known only when the compiled function runs",
            location=here(),
            remedy="put the items into one array and use `np.sort` or `np.argsort`",
        )
    pairs = list(pairs)
    for end in range(len(pairs) - 1, 0, -1):
        for j in range(end):
            pairs[j], pairs[j + 1] = _in_order(pairs[j], pairs[j + 1], reverse)
    return pairs


def _in_order(a: Any, b: Any, reverse: bool) -> Any:
    wrong = compare_two("Lt", *((a[0], b[0]) if reverse else (b[0], a[0])))
    return conditional(wrong, lambda: (b, a), lambda: (a, b))


BUILTINS.update(
    {
        builtins.min: _extreme(min, functools.partial(compare_two, "Lt"), "min"),
        builtins.max: _extreme(max, functools.partial(compare_two, "Gt"), "max"),
        builtins.sorted: sorted_items,
    }
)
