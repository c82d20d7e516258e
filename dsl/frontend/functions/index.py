"""Functions that read and write by index: take, choose, nonzero, searching, scattering."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import IndexTypeError, ShapeError, TypeRuleError
from dsl.frontend.accesses import note_read
from dsl.frontend.functions.arguments import (
    array_of,
    ask,
    common,
    convert,
    convert_array,
    counter,
    dims_of,
    gather_axis,
    into,
    normal_axis,
    number,
    result_dtype,
    vector_of,
    with_dims,
)
from dsl.frontend.functions.edit import bounded
from dsl.frontend.functions.elementwise import where as choose_by
from dsl.frontend.functions.shape import broadcast_arrays, ravel
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _UFUNCS,
    Traced,
    as_shape,
    concrete,
    emit,
    emit_many,
    fresh,
    lift,
    read,
    wrap,
)
from dsl.frontend.ufuncs import broadcast_values
from dsl.ir.types import BOOL, I64, size_of

Array = Any


def _integers(x: Any, rule: str = "safe") -> Array:
    """Return an index argument as an array of integers, or raise NumPy's error."""
    index = array_of(x)
    if index.dtype.kind == "f" and not isinstance(x, (Traced, np.ndarray, np.generic)):
        return convert(index, I64)
    if index.dtype.kind not in "iub":
        text = f"Cannot cast array data from {index.dtype!r} to dtype('int64') according to the rule {rule!r}"
        raise TypeRuleError(text, location=here())
    return index if index.dtype.kind != "b" else convert(index, I64)


# -- taking --------------------------------------------------------------------------------------------------------


@implements("take")
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    """Return the elements at positions along an axis, or of the flattened array."""
    x = array_of(a)
    if axis is None:
        x, axis = with_dims(x, (size_of(dims_of(x)),)), 0
    x = x if x.ndim else with_dims(x, (1,))
    axis = normal_axis(axis, x.ndim)
    index = bounded(_integers(indices, "same_kind"), dims_of(x)[axis], mode)
    return into(gather_axis(x, index, axis), out)


def _open_index(x: Array, indices: Array, axis: int) -> list[Any]:
    """Return index arrays that go through every axis but one, at which they are `indices`."""
    if x.ndim != indices.ndim:
        raise ShapeError(
            "`indices` and `arr` must have the same number of dimensions", location=here()
        )
    rank = x.ndim
    grids = [
        with_dims(counter(d), tuple(d if k == j else 1 for j in range(rank)))
        for k, d in enumerate(dims_of(x))
    ]
    grids[axis] = indices
    return grids


def _flat_along(x: Array, indices: Any, axis: Any) -> tuple[Array, Array, int]:
    index = array_of(indices)
    if index.dtype.kind not in "iu":
        raise IndexTypeError("`indices` must be an integer array", location=here())
    if axis is None:
        if index.ndim != 1:
            raise ShapeError(
                "when axis=None, `indices` must have a single dimension.", location=here()
            )
        return ravel(x), index, 0
    return x, index, normal_axis(axis, x.ndim)


@implements("take_along_axis")
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    """Return elements by an index array that goes along with the others axes."""
    x, index, axis = _flat_along(array_of(arr), indices, axis)
    values = broadcast_values([read(i) for i in _open_index(x, index, axis)])
    b, every = current_scope(), tuple(range(x.ndim))
    note_read(b, x.type.shape, every, values)
    return fresh(b.emit("gather", read(x), *values, axes=every))


@implements("put_along_axis")
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """Write values by an index array that goes along with the other axes."""
    target = lift(arr)
    x, index, axis = _flat_along(target, indices, axis)
    x[tuple(_open_index(x, index, axis))] = values


@implements("choose")
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Build an array from a list of arrays by an index into the list."""
    parts = list(lift(choices)) if isinstance(choices, (Traced, np.ndarray)) else list(choices)
    dtype = result_dtype(*parts)
    index, *spread = broadcast_arrays(_integers(a), *(convert_array(part, dtype) for part in parts))
    index = bounded(index, len(parts), mode)
    if mode == "raise":
        ask(np.all((index >= 0) & (index < len(parts))), "invalid entry in choice array")
    result = spread[-1]
    for k in reversed(range(len(parts) - 1)):
        result = choose_by(index == k, spread[k], result)
    return into(wrap(read(result)), out)


@implements("compress")
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the slices along an axis for which a condition holds."""
    flags = convert(condition, BOOL)
    if flags.ndim != 1:
        raise ShapeError("condition must be a 1-d array", location=here())
    return take(a, flatnonzero(flags), axis, out)


@implements("extract")
def extract(condition: Any, arr: Any) -> Any:
    """Return the elements for which a condition holds."""
    return take(ravel(array_of(arr)), flatnonzero(array_of(condition)), 0)


# -- finding -------------------------------------------------------------------------------------------------------


@implements("nonzero")
def nonzero(a: Any) -> Any:
    """Return the indices of the elements that are not zero, one array per axis."""
    x = array_of(a)
    if x.ndim == 0:
        text = (
            "Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() "
            "instead."
        )
        raise ShapeError(text, location=here())
    return emit_many("nonzero", x)


@implements("flatnonzero")
def flatnonzero(a: Any) -> Any:
    """Return the flat indices of the elements that are not zero."""
    return nonzero(ravel(array_of(a)))[0]


@implements("argwhere")
def argwhere(a: Any) -> Any:
    """Return the indices of the elements that are not zero, one row per element."""
    x = array_of(a)
    if x.ndim == 0:
        return np.nonzero(np.atleast_1d(x))[0][:, None][:, :0]
    return np.transpose(np.stack(nonzero(x)))


@implements("searchsorted")
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return where elements would be put into a sorted array."""
    if side not in ("left", "right"):
        raise ShapeError(f"search side must be 'left' or 'right' (got '{side}')", location=here())
    table = vector_of(a)
    if sorter is not None:
        table = gather_axis(table, _integers(sorter), 0)
    table, wanted = common(table, array_of(v))
    return emit("searchsorted", table, wanted, side=side)


@implements("digitize")
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return the index of the bin that each element falls into."""
    values, edges = array_of(x), array_of(bins)
    if values.dtype.kind == "c":
        raise TypeRuleError("x may not be complex", location=here())
    side = "left" if right else "right"
    count = number(dims_of(edges)[0])
    if dims_of(edges) == (0,):
        return searchsorted(edges, values, side)
    known = concrete(edges)
    words = "bins must be monotonically increasing or decreasing"
    if known is not None:
        steps = np.diff(known)
        if not (np.all(steps >= 0) or np.all(steps <= 0)):
            raise ShapeError(words, location=here())
        rising = bool(np.all(steps >= 0))
        return (
            searchsorted(edges, values, side)
            if rising
            else count - searchsorted(edges[::-1], values, side)
        )
    rises, falls = np.all(edges[1:] >= edges[:-1]), np.all(edges[1:] <= edges[:-1])
    ask(rises | falls, words)
    ordered = choose_by(rises, edges, edges[::-1])
    found = searchsorted(ordered, values, side)
    return wrap(read(choose_by(rises, found, count - found)))


# -- index arithmetic ----------------------------------------------------------------------------------------------


@implements("unravel_index")
def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Return the index along each axis of flat positions."""
    left = _integers(indices)
    dims = as_shape(shape)
    total = number(size_of(dims))
    _check_flat(left, total)
    left = convert(left, I64)
    found = []
    for dim in dims if order == "F" else reversed(dims):
        found.append(left % number(dim))
        left = left // number(dim)
    found = found if order == "F" else found[::-1]
    return tuple(found)


def _check_flat(index: Array, total: Any) -> None:
    known = concrete(index)
    if known is not None and isinstance(total, int):
        wrong = known[(known < 0) | (known >= total)]
        if wrong.size:
            text = f"index {wrong.flat[0]} is out of bounds for array with size {total}"
            raise ShapeError(text, location=here())
        return
    ask(
        np.all((index >= 0) & (index < total)),
        "index is out of bounds for the array to unravel into",
    )


@implements("ravel_multi_index")
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """Return the flat positions of an index along each axis."""
    sizes = as_shape(dims)
    modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
    indices = [convert(_integers(i), I64) for i in multi_index]
    if len(indices) != len(sizes):
        text = f"parameter multi_index must be a sequence of length {len(sizes)}"
        raise ShapeError(text, location=here())
    limited = [_limited(i, d, m) for i, d, m in zip(indices, sizes, modes, strict=True)]
    pairs = list(zip(limited, sizes, strict=True))
    total: Any = 0
    for index, dim in reversed(pairs) if order == "F" else pairs:
        total = total * number(dim) + index
    return total


def _limited(index: Array, dim: Any, mode: str) -> Array:
    if mode == "raise":
        ask(np.all((index >= 0) & (index < number(dim))), "invalid entry in coordinates array")
        return index
    return bounded(index, dim, mode)


@implements("ix_")
def ix_(*args: Any) -> Any:
    """Return index arrays that select a grid."""
    found = []
    for k, arg in enumerate(args):
        index = array_of(arg)
        if index.ndim != 1:
            raise ShapeError("Cross index must be 1 dimensional", location=here())
        if dims_of(index) == (0,) and not isinstance(arg, (Traced, np.ndarray)):
            index = convert(index, I64)
        if index.dtype == BOOL:
            index = flatnonzero(index)
        (count,) = dims_of(index)
        found.append(with_dims(index, tuple(count if j == k else 1 for j in range(len(args)))))
    return tuple(found)


# -- scattering ----------------------------------------------------------------------------------------------------


@implements("scatter")
def scatter(x: Any, indices: Any, values: Any, mode: str = "update") -> Any:
    """Return a copy of `x` with values written to, or combined into, indexed places.

    `mode` is "update", "add", "multiply", "min" or "max"; where several values go to one place, the last wins or all
    are combined.
    """
    if mode not in ("update", "add", "multiply", "min", "max"):
        raise ShapeError(f"scatter: unknown mode {mode!r}", location=here())
    result = fresh(read(array_of(x)))
    if mode == "update":
        result[indices] = values
    else:
        _UFUNCS["scatter"](result, indices, values, mode)
    return result
