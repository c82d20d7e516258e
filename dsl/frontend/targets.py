"""What `a, b = value` and `a, *b = value` take apart.

If only the data tells how many items there are, the program raises what Python raises unless they are as many as the targets.
"""

from __future__ import annotations

from typing import Any

from dsl.frontend import sequences
from dsl.frontend.iterators import Cursor, rest_of
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import unwrap
from dsl.frontend.own_items import iterable
from dsl.frontend.scopes import current_scope
from dsl.frontend.traced import Traced
from dsl.frontend.trees import forwarded
from dsl.frontend.views import Sliced
from dsl.ir.types import I64

__all__ = ["unpack", "unpack_around"]


def unpack(value: Any, count: int) -> Any:
    """Check the length of what a tuple target takes apart."""
    value = _unpacked(value)
    if isinstance(value, Traced):
        if value.ndim == 0:
            raise TypeError("cannot unpack non-iterable value of rank 0")
        value = _of_length(value, count)
        return [value[k] for k in range(count)]
    return sequences.of_length(value, count) if isinstance(value, TracedList) else value


def unpack_around(value: Any, before: int, after: int) -> Any:
    """The items for `a, *b, c = value`; of a list whose length the data decides, the middle is such a list."""
    value = _unpacked(value)
    if isinstance(value, TracedList):
        return sequences.split_around(value, before, after)
    items = list(value)
    least, end = before + after, len(items) - after
    if len(items) < least:
        raise ValueError(
            f"not enough values to unpack (expected at least {least}, got {len(items)})"
        )
    return [*items[:before], items[before:end], *items[end:]]


def _unpacked(value: Any) -> Any:
    """Return what a tuple target takes apart; of items whose number the data decides, a list."""
    value = iterable(forwarded(unwrap(value)))
    left = value.rest() if isinstance(value, Cursor) else None
    return sequences.collected(rest_of(value), list) if sequences.is_open(left) else value


def _of_length(value: Traced, count: int) -> Traced:
    """Return an array as one of `count` rows; if it is of another length, raise what Python raises on unpacking it."""
    many = f"too many values to unpack (expected {count})"
    few = f"not enough values to unpack (expected {count}, got {{}})"
    length, *rest = value.type.shape
    if isinstance(length, int):
        if length != count:
            raise ValueError(many if length > count else few.format(length))
        return value
    scope = current_scope()
    size, wanted = scope.size(length), scope.constant(count, I64)
    for test, message in (("less_equal", many), ("greater_equal", few)):
        values = (scope.emit(test, size, wanted), *([size] if message is few else []))
        scope.node("assert", values, {"message": message, "error": "ValueError"})
    zeros, ones = (0,) * value.ndim, (1,) * value.ndim
    return Traced(value.storage, (*value.views, Sliced(zeros, (count, *rest), ones)))
