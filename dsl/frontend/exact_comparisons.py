"""Comparisons of integers with Python's, which are exact: 300 is above all of uint8, and equals none of it.

In: a comparison and its two operands. Out: a value of truths, or None where no Python int could leave the other operand's
dtype, and the comparison in that dtype is exact. A number that is known while tracing decides at once if the dtype does not
hold it. One that is known when the program runs is taken to the nearest that the dtype holds, and how it compares with
that one is put right once, outside of the loop over the elements, which stay as narrow as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.frontend.scopes import current_scope
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, cast, read, shape_of
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64

__all__ = ["compare", "saturated"]

_MIRRORED: dict[np.ufunc, np.ufunc] = {
    np.less: np.greater, np.less_equal: np.greater_equal, np.greater: np.less, np.greater_equal: np.less_equal,
    np.equal: np.equal, np.not_equal: np.not_equal,
}  # fmt: skip
"""The comparisons, and what they are with their operands exchanged."""

_PUT_RIGHT: dict[np.ufunc, tuple[str, str]] = {
    np.less: ("logical_or", "greater"), np.greater: ("logical_or", "less"), np.not_equal: ("logical_or", "not_equal"),
    np.less_equal: ("logical_and", "greater_equal"), np.greater_equal: ("logical_and", "less_equal"),
    np.equal: ("logical_and", "equal"),
}  # fmt: skip
"""How `x ? n` follows from `x ? nearest`: by which op it is joined to the comparison of n with its nearest."""


def compare(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Value | None:
    """Return the comparison of an integer array with a Python int that its dtype may not hold; None for all others."""
    if ufunc not in _MIRRORED or len(inputs) != 2:
        return None
    if _is_python_int(inputs[0]):
        return compare(_MIRRORED[ufunc], inputs[::-1]) if not _is_python_int(inputs[1]) else None
    x, number = inputs
    dtype = getattr(x, "dtype", None)
    if not _is_python_int(number) or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return None
    if isinstance(number, Traced):
        return None if dtype == I64 else _compare_with_traced(ufunc, x, number)
    if np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        return None
    answer: Value = _FUNCTIONS["_splat"](bool(ufunc(dtype.type(0), number)), shape_of(x), BOOL)
    return answer


def _is_python_int(x: Any) -> bool:
    if isinstance(x, Traced):
        return x.kind is Kind.PYTHON and x.dtype == I64
    return type(x) is int


def _compare_with_traced(ufunc: np.ufunc, x: Any, number: Traced) -> Value:
    b, n = current_scope(), read(number)
    elements = read(x) if isinstance(x, Traced) else b.constant(np.asarray(x))
    if not elements.shape:  # a single number is as soon compared in 64 bits
        return b.emit(ufunc.__name__, _widened(elements), n)
    nearest = saturated(n, elements.dtype)
    compared = b.emit(ufunc.__name__, elements, cast(nearest, elements.dtype))
    join, relation = _PUT_RIGHT[ufunc]
    return b.emit(join, compared, b.emit(relation, n, nearest))


def _widened(value: Value) -> Value:
    """Return a value as int64, unless it is one of uint64, which has comparisons with int64 of its own."""
    return value if value.dtype == np.uint64 else cast(value, I64)


def saturated(number: Value, dtype: np.dtype) -> Value:
    """Return the int64 nearest to another that an integer dtype holds."""
    b = current_scope()
    low, high = np.iinfo(dtype).min, min(np.iinfo(dtype).max, np.iinfo(I64).max)
    above = b.emit("maximum", number, b.constant(low, I64))
    return b.emit("minimum", above, b.constant(high, I64))
