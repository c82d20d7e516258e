"""Inserting into and deleting from arrays, and writing into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import IndexTypeError, ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    agree,
    array_of,
    ask,
    convert,
    counter,
    dims_of,
    drop_view,
    flat_view,
    gather_axis,
    is_symbolic,
    normal_axis,
    number,
    plain,
    splat,
)
from dsl.frontend.functions.creation import arange
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.join import concatenate
from dsl.frontend.functions.pad import from_runs
from dsl.frontend.functions.shape import moveaxis, ravel
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    Kind,
    Traced,
    concrete,
    fresh,
    lift,
    read,
)
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.types import BOOL, Shape

Array = Any


# -- inserting and deleting ----------------------------------------------------------------------------------------


def _flat_or_axis(a: Any, axis: Any) -> tuple[Array, int]:
    x = array_of(a)
    if axis is None:
        return ravel(x), 0
    return x, normal_axis(axis, x.ndim)


def _place(obj: Any) -> Any:
    """Return an index argument as a plain one if it is known, else as it is."""
    if isinstance(obj, Traced):
        known = concrete(obj)
        return obj if known is None else known
    return obj


@implements("delete")
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    """Return an array without some positions along an axis."""
    x, axis = _flat_or_axis(arr, axis)
    length, place = dims_of(x)[axis], _place(obj)
    if isinstance(length, int) and plain(place):
        try:
            kept = np.delete(np.arange(length), place)
        except IndexError as error:
            text = str(error).replace("axis 0", f"axis {axis}")
            raise IndexTypeError(text, location=here()) from None
        return from_runs(x, kept, axis)
    if plain(place) and not isinstance(place, slice) and np.ndim(place) == 0:
        place = lift(int(place))
    if isinstance(place, Traced) and place.dtype == BOOL:
        text = (
            "boolean array argument obj to delete must be one dimensional and match the axis length"
        )
        agree(dims_of(place)[0] if place.ndim == 1 else -1, length, text)
        return gather_axis(x, np.flatnonzero(np.logical_not(place)), axis)
    if isinstance(place, Traced) and place.ndim == 0:
        return _delete_one(x, place, axis)
    return _delete_many(x, place, axis)


def _delete_one(x: Array, place: Array, axis: int) -> Array:
    n = number(dims_of(x)[axis])
    ask(
        (place >= -n) & (place < n),
        f"index out of bounds for axis {axis}",
        "IndexError",
    )
    index = counter(dims_of(x)[axis] - 1)
    return gather_axis(x, index + (index >= choose(place < 0, place + n, place)), axis)


def _delete_many(x: Array, place: Any, axis: int) -> Array:
    keep: Any = fresh(splat(True, (dims_of(x)[axis],), BOOL))
    keep[place] = False
    return gather_axis(x, np.flatnonzero(keep), axis)


@implements("insert")
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """Return an array with values put in before some positions along an axis."""
    x, axis = _flat_or_axis(arr, axis)
    new = convert(values, x.dtype)
    length, place = dims_of(x)[axis], _place(obj)
    scalar = not isinstance(place, slice) and lift(place).ndim == 0
    band = _inserted(x, new, place, axis, scalar)
    if isinstance(length, int) and plain(place):
        count = dims_of(band)[axis]
        try:
            order = np.insert(np.arange(length), place, length + np.arange(count))
        except IndexError as error:
            text = str(error).replace("axis 0", f"axis {axis}")
            raise IndexTypeError(text, location=here()) from None
        return from_runs(concatenate([x, band], axis), order, axis)
    if not scalar:
        raise TypeRuleError(
            "insert at several positions known only at run time is not supported", location=here()
        )
    return _insert_at(x, band, lift(place), axis)


def _inserted(x: Array, new: Array, place: Any, axis: int, scalar: bool) -> Array:
    """Return the inserted values broadcast to the other axes."""
    if x.ndim == 1 and new.ndim > 1:
        new = ravel(new)
    new = drop_view(new, (1,) * (x.ndim - new.ndim) + dims_of(new))
    new = moveaxis(new, 0, axis) if scalar else new
    count = dims_of(new)[axis] if scalar else _place_count(place, dims_of(x)[axis])
    count = dims_of(new)[axis] if count == 1 else count
    target = tuple(count if k == axis else d for k, d in enumerate(dims_of(x)))
    return fresh(current_scope().emit("broadcast_to", read(new), shape=target))


def _place_count(place: Any, size: Any) -> DimLike:
    if isinstance(place, slice):
        return len(range(*place.indices(size)))
    if isinstance(place, np.ndarray) and place.dtype == bool:
        return int(place.sum())
    return dims_of(lift(place))[0]


def _insert_at(x: Array, band: Array, place: Array, axis: int) -> Array:
    n, count = dims_of(x)[axis], dims_of(band)[axis]
    start = choose(place < 0, place + number(n), place)
    ask((start >= 0) & (start <= number(n)), f"index out of bounds for axis {axis}", "IndexError")
    index = counter(n + count)
    inside = (index >= start) & (index < start + number(count))
    source = choose(
        inside, number(n) + index - start, choose(index < start, index, index - number(count))
    )
    return gather_axis(concatenate([x, band], axis), source, axis)


@implements("trim_zeros")
def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Return a vector without its leading and trailing zeros."""
    x = array_of(filt)
    if x.ndim != 1:
        raise ShapeError(
            "trim_zeros of more than one dimension is not supported on traced values",
            location=here(),
        )
    if dims_of(x) == (0,):
        return x
    flags, n = x != 0, x.shape[0]
    found = np.any(flags)
    first = choose(found, np.argmax(flags), n) if "f" in trim.lower() else 0
    last = choose(found, n - np.argmax(flags[::-1]), 0) if "b" in trim.lower() else n
    return x[first:last]


# -- writing into an array -----------------------------------------------------------------------------------------


def _target(a: Any, name: str) -> Array:
    x = lift(a)
    if x.kind is not Kind.ARRAY:
        raise TypeRuleError(
            f"argument 1 to {name}() must be numpy.ndarray, not {x.kind.value}", location=here()
        )
    return x


@implements("copyto")
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """Copy values into an array, where a mask says so."""
    x = _target(dst, "copyto")
    source = lift(src)
    weak = source.kind is Kind.PYTHON and source.dtype.kind in "iu"
    if not weak and not np.can_cast(source.dtype, x.dtype, casting=casting):
        what = "array data" if source.ndim else "scalar"
        text = f"Cannot cast {what} from {source.dtype!r} to {x.dtype!r} according to the rule {casting!r}"
        raise TypeRuleError(text, location=here())
    new = convert(src if weak else source, x.dtype)
    x[...] = new if where is True else choose(where, new, x)


@implements("put")
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Write values at flat positions; fewer values than positions are repeated."""
    x = _target(a, "put")
    flat = flat_view(x)
    index = ravel(array_of(ind))
    values = ravel(convert(v, x.dtype))
    index = bounded(index, dims_of(flat)[0], mode)
    flat[index] = _cycled(values, dims_of(index)[0])


def bounded(index: Array, size: DimLike, mode: str) -> Array:
    """Return indices brought into range by NumPy's `mode` argument."""
    if mode not in ("raise", "wrap", "clip"):
        raise ShapeError(
            f"clipmode must be one of 'clip', 'raise', or 'wrap' (got '{mode}')", location=here()
        )
    if mode == "wrap":
        return index % number(size)
    return np.clip(index, 0, number(size - 1)) if mode == "clip" else index


def _cycled(values: Array, count: DimLike) -> Array:
    own = dims_of(values)[0]
    if own == count:
        return values
    if own == 1:
        return values.reshape(())
    return gather_axis(values, counter(count) % number(own), 0)


@implements("place")
def place(arr: Any, mask: Any, vals: Any) -> None:
    """Write values in order where a mask is true, repeating them."""
    x = _target(arr, "place")
    values = ravel(convert(_safely(vals, x.dtype), x.dtype))
    flags = ravel(convert(mask, BOOL))
    if dims_of(values)[0] == 0:
        raise ShapeError("Cannot insert from an empty array!", location=here())
    turn = (np.cumsum(flags) - 1) % number(dims_of(values)[0])
    flat = flat_view(x)
    flat[...] = choose(flags, gather_axis(values, turn, 0), flat)


@implements("putmask")
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Write values at their own flat positions where a mask is true, repeating them."""
    x = _target(a, "putmask")
    flat = flat_view(x)
    new = _cycled(ravel(convert(_safely(values, x.dtype), x.dtype)), dims_of(flat)[0])
    flat[...] = choose(ravel(convert(mask, BOOL)), new, flat)


def _safely(values: Any, dtype: np.dtype) -> Any:
    """Return values, which must fit the dtype if they are an array; numbers and lists of them are converted."""
    is_array = isinstance(values, np.ndarray) or (
        isinstance(values, Traced) and values.kind is Kind.ARRAY
    )
    if is_array and not np.can_cast(values.dtype, dtype, "safe"):
        raise TypeRuleError(
            f"Cannot cast array data from {values.dtype!r} to {dtype!r} according to the rule 'safe'",
            location=here(), remedy="convert the values first (`values.astype(...)`)",
        )  # fmt: skip
    return values


@implements("fill_diagonal")
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write values on the main diagonal."""
    x = _target(a, "fill_diagonal")
    if x.ndim < 2:
        raise ShapeError("array must be at least 2-d", location=here())
    dims = dims_of(x)
    if x.ndim > 2 and len(set(dims)) > 1:
        raise ShapeError("All dimensions of input must be of equal length", location=here())
    count = dims[0] if wrap else dim_min(dims[0], dims[1])
    step = None if is_symbolic(*dims) else 1 + sum(_stride(dims, k) for k in range(x.ndim - 1))
    if step is not None and wrap:
        count = -(-_stride(dims, -1) // step)
    new = _cycled(ravel(convert(val, x.dtype)), count)
    if step is not None:
        flat = flat_view(x)
        flat[: (count - 1) * step + 1 : step] = new
    else:
        x[(arange(number(count)),) * x.ndim] = new


def _stride(dims: Shape, axis: int) -> int:
    return int(np.prod([int(d) for d in dims[axis + 1 :]]))  # type: ignore[arg-type]
