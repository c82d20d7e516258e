"""Sorting, distinct values and sets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    agree,
    array_of,
    ask,
    common,
    convert,
    counter,
    dims_of,
    gather_axis,
    is_inexact,
    normal_axis,
    number,
    with_dims,
)
from dsl.frontend.functions.index import flatnonzero
from dsl.frontend.functions.join import concatenate
from dsl.frontend.functions.shape import moveaxis, ravel
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Traced, emit, emit_many, fresh, lift, read
from dsl.ir.dims import DimLike
from dsl.ir.types import I64, size_of

Array = Any
_SHORT = 1024  # rows up to here are sorted where a partition is asked for


# -- sorting -------------------------------------------------------------------------------------------------------


def _along(a: Any, axis: Any) -> tuple[Array, int]:
    x = array_of(a)
    if axis is None:
        return with_dims(x, (size_of(dims_of(x)),)), 0
    return x, normal_axis(axis, x.ndim)


def _is_stable(kind: Any, stable: Any) -> bool:
    if kind is not None and stable is not None:
        text = "`kind` and `stable` parameters can't be provided at the same time. Use only one of them."
        raise ShapeError(text, location=here())
    if kind not in (None, "quicksort", "heapsort", "stable", "mergesort"):
        text = f"sort kind must be one of 'quick', 'heap', or 'stable' (got '{kind}')"
        raise ShapeError(text, location=here())
    return bool(stable) or kind in ("stable", "mergesort")


@implements("sort")
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """Return a sorted copy, NaN last."""
    x, axis = _along(a, axis)
    return emit("sort", x, axis=axis, stable=_is_stable(kind, stable), descending=False)


@implements("argsort")
def argsort(
    a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> Any:
    """Return the indices that sort an array."""
    x = array_of(a)
    x, axis = _along(with_dims(x, (1,)) if x.ndim == 0 else x, axis)
    return emit("argsort", x, axis=axis, stable=_is_stable(kind, stable))


def _kth(kth: Any, size: DimLike) -> list[Any]:
    """Return the places to be put in order, each from 0 on."""
    found = [kth] if np.ndim(kth) == 0 else list(kth)
    for k in found:
        if isinstance(k, int) and isinstance(size, int):
            if not -size <= k < size:
                raise ShapeError(f"kth(={k}) out of bounds ({size})", location=here())
            continue
        n, k = number(size), array_of(k)
        ask(array_of((k >= -n) & (k < n)), "kth(={}) out of bounds ({})", values=(k, array_of(n)))
    return [np.where(array_of(k) < 0, k + number(size), k) for k in found]


@implements("partition")
def partition(
    a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None
) -> Any:
    """Return a copy with the k-th element in its sorted place; the order of those before and after it is open."""
    x, place = _along(a, axis)
    places = _kth(kth, dims_of(x)[place])
    if _is_sorted(x, place, places):
        return sort(x, place)
    return np.take_along_axis(x, _partitioned(x, place, places[0]), place)


@implements("argpartition")
def argpartition(
    a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None
) -> Any:
    """Return the indices of a partition."""
    x, place = _along(a, axis)
    places = _kth(kth, dims_of(x)[place])
    if _is_sorted(x, place, places):
        return argsort(x, place, stable=True)
    return _partitioned(x, place, places[0])


def _is_sorted(x: Array, axis: int, places: list[Any]) -> bool:
    """Tell whether a partition is best had by sorting everything."""
    size = dims_of(x)[axis]
    return len(places) != 1 or x.dtype.kind == "c" or (isinstance(size, int) and size <= _SHORT)


def _partitioned(x: Array, axis: int, k: Any) -> Array:
    """Return the indices of what is smaller than the k-th element, then of what is equal, then of what is larger."""
    pivot = emit("nth_element", x, convert([k], I64), axis=axis)
    less, more = x < pivot, x > pivot
    if is_inexact(x.dtype):
        lost, last = np.isnan(x), np.isnan(pivot)
        less, more = less | (last & ~lost), more | (lost & ~last)
    sides = convert(more, np.int8) - convert(less, np.int8)
    return emit("argsort", array_of(sides), axis=axis, stable=True)


@implements("lexsort")
def lexsort(keys: Any, axis: Any = -1) -> Any:
    """Return the indices that sort by several keys, the last one first."""
    columns = (
        list(lift(keys)) if isinstance(keys, (Traced, np.ndarray)) else [array_of(k) for k in keys]
    )
    if not columns:
        raise TypeRuleError("need sequence of keys with len > 0 in lexsort", location=here())
    if not columns[0].ndim:
        return np.zeros_like(columns[0], dtype=I64)
    place = normal_axis(axis, columns[0].ndim)
    order = argsort(columns[0], place, stable=True)
    for column in columns[1:]:
        for one, other in zip(dims_of(columns[0]), dims_of(column), strict=False):
            agree(one, other, "all keys need to be the same shape")
        ranked = argsort(np.take_along_axis(array_of(column), order, place), place, stable=True)
        order = np.take_along_axis(order, ranked, place)
    return order


@implements("sort_complex")
def sort_complex(a: Any) -> Any:
    """Return complex numbers sorted by real, then imaginary part."""
    x = sort(array_of(a))
    if x.dtype.kind == "c":
        return x
    return x.astype(np.complex64 if x.dtype.char in "bhBH" else np.complex128)


# -- distinct values -----------------------------------------------------------------------------------------------


@implements("unique")
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """Return the sorted distinct values, and where they come from if asked."""
    x = array_of(ar)
    size = size_of(dims_of(x))
    if axis is None and equal_nan and not (return_index or return_inverse) and size != 0:
        values, counts = _unique_values(with_dims(x, (size,)))
        return (values, counts) if return_counts else values
    if axis is not None:
        parts = _unique_rows(x, normal_axis(axis, x.ndim))
    elif is_inexact(x.dtype) and not equal_nan:
        flat = with_dims(x, (size_of(dims_of(x)), 1))
        parts = _unique_rows(flat, 0)
        parts = (ravel(parts[0]), *parts[1:])
    else:
        parts = emit_many("unique", with_dims(x, (size_of(dims_of(x)),)))
    values, index, inverse, counts = parts
    if axis is None:
        inverse = with_dims(inverse, dims_of(x))
    wanted = [(return_index, index), (return_inverse, inverse), (return_counts, counts)]
    chosen = (values, *(part for asked, part in wanted if asked))
    return chosen if len(chosen) > 1 else values


def _unique_values(x: Array) -> tuple[Array, Array]:
    """Return the distinct values of a vector that is not empty, all NaNs being one, and their counts: without an argsort."""
    ranked = sort(x, stable=True)
    one, other = ranked[1:], ranked[:-1]
    new = one != other
    if is_inexact(x.dtype):
        new = new & ~(np.isnan(one) & np.isnan(other))
    count = dims_of(x)[0]
    starts = flatnonzero(concatenate([counter(count)[:1] == 0, new]))
    return gather_axis(ranked, starts, 0), _ends(starts, count) - starts


def _ends(starts: Array, count: DimLike) -> Array:
    """Return where groups end that start at some places of a row."""
    return concatenate([starts[1:], convert([number(count)], I64)])


def _unique_rows(x: Array, axis: int) -> tuple[Array, ...]:
    """Return distinct slices along an axis, in lexicographic order, with index, inverse and counts."""
    moved = moveaxis(x, axis, 0)
    count = dims_of(moved)[0]
    width = size_of(dims_of(moved)[1:])
    if not isinstance(width, int):
        raise ShapeError(
            "unique along an axis needs slices of a size known when tracing", location=here()
        )
    rows = with_dims(moved, (count, width))
    order = lexsort([rows[:, k] for k in reversed(range(width))])
    ranked = gather_axis(rows, order, 0)
    new = np.any(ranked[1:] != ranked[:-1], axis=1)
    first = concatenate([counter(count)[:1] == 0, new])
    starts = flatnonzero(first)
    values = gather_axis(moved, gather_axis(order, starts, 0), 0)
    inverse = np.zeros_like(order)
    inverse[order] = np.cumsum(first) - 1
    counts = _ends(starts, count) - starts
    return moveaxis(values, 0, axis).copy(), gather_axis(order, starts, 0), inverse, counts


class UniqueAllResult(NamedTuple):
    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    values: Any
    inverse_indices: Any


@implements("unique_all")
def unique_all(x: Any) -> Any:
    """Return distinct values with first indices, inverse and counts; NaNs are all different."""
    return UniqueAllResult(*unique(x, True, True, True, equal_nan=False))


@implements("unique_counts")
def unique_counts(x: Any) -> Any:
    """Return distinct values with counts; NaNs are all different."""
    return UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False))


@implements("unique_inverse")
def unique_inverse(x: Any) -> Any:
    """Return distinct values with the inverse; NaNs are all different."""
    return UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False))


@implements("unique_values")
def unique_values(x: Any) -> Any:
    """Return distinct values; NaNs are all different."""
    return unique(x, equal_nan=False)


# -- sets ----------------------------------------------------------------------------------------------------------


@implements("isin", "in1d")
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    """Tell which elements are among the test elements."""
    x, tests = common(array_of(element), array_of(test_elements))
    table = sort(ravel(tests))
    low = emit("searchsorted", table, fresh(read(x)), side="left")
    size = dims_of(table)[0]
    if isinstance(size, int) and size:
        found = gather_axis(table, np.minimum(low, size - 1), 0) == x  # never for NaN
    else:
        found = low != emit("searchsorted", table, fresh(read(x)), side="right")
        found = found & (x == x)
    return array_of(~found if invert else found)


@implements("union1d")
def union1d(ar1: Any, ar2: Any) -> Any:
    """Return the sorted union of two arrays."""
    return unique(concatenate([array_of(ar1), array_of(ar2)], axis=None))


@implements("intersect1d")
def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    """Return the sorted values that both arrays have."""
    one, two = ravel(array_of(ar1)), ravel(array_of(ar2))
    index1 = index2 = None
    if not assume_unique:
        (one, index1), (two, index2) = (
            unique(one, return_index=True),
            unique(two, return_index=True),
        )
    joined = concatenate([one, two])
    order = argsort(joined, stable=True)
    ranked = gather_axis(joined, order, 0)
    places = flatnonzero(ranked[1:] == ranked[:-1])
    values = gather_axis(ranked, places, 0)
    if not return_indices:
        return values
    at1 = gather_axis(order, places, 0)
    at2 = gather_axis(order, places + 1, 0) - one.shape[0]
    if index1 is not None and index2 is not None:
        at1, at2 = gather_axis(index1, at1, 0), gather_axis(index2, at2, 0)
    return values, at1, at2


@implements("setdiff1d")
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the values of the first array that the second lacks."""
    one = ravel(array_of(ar1)) if assume_unique else unique(ar1)
    other = array_of(ar2)
    return gather_axis(one, flatnonzero(isin(one, other, invert=True)), 0)


@implements("setxor1d")
def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the sorted values that exactly one of the arrays has."""
    one, two = (ravel(array_of(a)) if assume_unique else unique(a) for a in (ar1, ar2))
    ranked = sort(concatenate([one, two]))
    edge = fresh(current_scope().constant(np.ones(1, bool)))
    changes = concatenate([edge, ranked[1:] != ranked[:-1], edge])
    flags = (changes[1:] & changes[:-1])[: ranked.shape[0]]
    return gather_axis(ranked, flatnonzero(flags), 0)
