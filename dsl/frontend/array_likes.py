"""What NumPy takes for arrays: traced lists, ranges whose bounds the data decides, and deques."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.frontend import loops
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.lists import TracedList
from dsl.frontend.traced import _FUNCTIONS, Kind
from dsl.frontend.trees import forwarded

__all__ = ["as_array", "as_arrays", "as_blocks", "has_array", "kind_of_items"]


def as_array(items: Any) -> Any:
    """Return a traced list of numbers as an array."""
    if isinstance(items, TracedList) and len(items.columns) == 1 and items.columns[0].ndim == 1:
        return items.array()
    return items


def as_arrays(item: Any) -> Any:
    """Return traced lists and ranges, also in tuples and lists, as the arrays that NumPy makes of them."""
    item = forwarded(item)
    if isinstance(item, BoundedDeque):
        item = list(item)
    if isinstance(item, TracedList):
        return item.array()
    if isinstance(item, loops.Span):
        return item.dsl_traced()
    if type(item) in (tuple, list) and any(map(_holds_list, item)):
        return type(item)(map(as_arrays, item))
    return item


def _holds_list(item: Any) -> bool:
    item = forwarded(item)
    return isinstance(item, (TracedList, loops.Span, BoundedDeque)) or (
        type(item) in (tuple, list) and any(map(_holds_list, item))
    )


def has_array(args: Any) -> bool:
    """Tell whether there is one of NumPy's own arrays among arguments."""
    return any(isinstance(a, np.ndarray) for a in args)


def kind_of_items(items: Any) -> Kind:
    """Return the kind of the numbers in a list, or of the elements of an array."""
    return items.layout[1][0] if isinstance(items, TracedList) else Kind.SCALAR


def as_blocks(item: Any) -> Any:
    """Return traced lists among what `np.block` gets, for which arrays are no lists, as lists of one block: of their items side by side."""
    item = forwarded(item)
    if isinstance(item, TracedList):
        array = item.array()
        return [array if array.ndim == 1 else _FUNCTIONS["concatenate"](array, axis=-1)]
    return type(item)(map(as_blocks, item)) if type(item) in (tuple, list) else as_arrays(item)
