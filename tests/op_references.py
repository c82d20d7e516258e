"""What ops mean, spelled a second time: each by another route than the op's own NumPy function.

`reference(name)` returns a function of arrays and attributes, or None where there is no second route. Moves of elements
are written as loops over indices, order statistics by counting, the rest by another NumPy function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import scipy.special

from dsl.ir.types import BFLOAT16

__all__ = ["reference"]


def reference(name: str) -> Callable[..., Any] | None:
    """Return the second spelling of an op: NumPy's function of that name unless the table has one."""
    ufunc = getattr(np, name, None)
    elementwise = isinstance(ufunc, np.ufunc) and ufunc.signature is None
    return _TABLE.get(name, ufunc if elementwise else None)


# -- elementwise -------------------------------------------------------------------------------------------------


def _where(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.array(np.broadcast_arrays(condition, x, y)[2])
    np.copyto(out, x, where=condition)
    return out


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(x != np.zeros((), x.dtype))
    out = np.empty(x.shape, dtype)
    np.copyto(out, x.real if x.dtype.kind == "c" and dtype.kind != "c" else x, casting="unsafe")
    return out


def _bitcast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(x.tobytes(), dtype).reshape(x.shape)


def _parts(x: np.ndarray) -> np.ndarray:
    part = np.dtype(f"f{x.dtype.itemsize // 2}")
    return np.frombuffer(x.tobytes(), part).reshape((*x.shape, 2))


def _complex(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    pairs = np.stack(np.broadcast_arrays(re, im), axis=-1)
    return pairs.view(f"c{2 * re.dtype.itemsize}")[..., 0]


def _special(name: str) -> Callable[[np.ndarray], np.ndarray]:
    def compute(x: np.ndarray) -> np.ndarray:
        wide = np.promote_types(x.dtype, np.float32)
        return np.asarray(getattr(scipy.special, name)(x.astype(wide))).astype(x.dtype)

    return compute


# -- reductions --------------------------------------------------------------------------------------------------


def _bits(ufunc: np.ufunc, identity: int, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    rows = np.moveaxis(x, axes, range(len(axes)))
    rest = rows.shape[len(axes) :]
    start = np.full(rest, bool(identity) if x.dtype.kind == "b" else identity).astype(x.dtype)
    return reduce(ufunc, rows.reshape((int(np.prod(rows.shape[: len(axes)])), *rest)), start)


def _first(extremum: Callable[..., Any], word: str, x: np.ndarray, axis: int) -> np.ndarray:
    if not x.shape[axis] and np.delete(x.shape, axis).all():
        raise ValueError(f"attempt to get {word} of an empty sequence")
    if not x.size:
        return np.zeros(np.delete(x.shape, axis).tolist(), np.int64)
    hits = (x == extremum(x, axis=axis, keepdims=True)) | np.isnan(x)
    return np.sum(np.logical_and.accumulate(~hits, axis=axis), axis=axis)


def _running(ufunc: np.ufunc, x: np.ndarray, axis: int) -> np.ndarray:
    out = np.array(x)
    rows = np.moveaxis(out, axis, 0)
    for k in range(1, len(rows)):
        rows[k] = ufunc(rows[k - 1], rows[k])
    return out


# -- moves of elements -------------------------------------------------------------------------------------------


def _moved(
    x: np.ndarray, shape: tuple[int, ...], source: Callable[..., tuple[int, ...]]
) -> np.ndarray:
    """Return the array whose element at `index` is `x[source(index)]`."""
    out = np.empty(shape, x.dtype)
    for index in np.ndindex(*shape):
        out[index] = x[source(index)]
    return out


def _broadcast_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    skip = len(shape) - x.ndim
    return _moved(x, shape, lambda i: tuple(k * (n != 1) for k, n in zip(i[skip:], x.shape)))


def _reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, x.dtype, x.tobytes())


def _transpose(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    shape = tuple(x.shape[axis] for axis in axes)
    return _moved(x, shape, lambda i: tuple(i[axes.index(axis)] for axis in range(x.ndim)))


def _slice(x: np.ndarray, start: Any, size: Any, step: Any) -> np.ndarray:
    return _moved(x, size, lambda i: tuple(a + s * k for a, s, k in zip(start, step, i)))


def _update_slice(x: np.ndarray, v: np.ndarray, start: Any, step: Any) -> np.ndarray:
    out = np.array(x)
    for index in np.ndindex(*v.shape):
        out[tuple(a + s * k for a, s, k in zip(start, step, index))] = v[index]
    return out


def _unit(rank: int, axis: int, value: int, other: int) -> tuple[int, ...]:
    return tuple(value if k == axis else other for k in range(rank))


def _dynamic_slice(x: np.ndarray, start: Any, axis: int, size: int, step: int = 1) -> np.ndarray:
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return _slice(x, _unit(x.ndim, axis, int(start), 0), shape, _unit(x.ndim, axis, step, 1))


def _update_dynamic(x: Any, v: Any, start: Any, axis: int, step: int = 1) -> np.ndarray:
    return _update_slice(x, v, _unit(x.ndim, axis, int(start), 0), _unit(x.ndim, axis, step, 1))


def _concatenate(*xs: np.ndarray, axis: int) -> np.ndarray:
    shape = (*xs[0].shape[:axis], sum(x.shape[axis] for x in xs), *xs[0].shape[axis + 1 :])
    out, at = np.empty(shape, xs[0].dtype), 0
    for x in xs:
        np.moveaxis(out, axis, 0)[at : at + x.shape[axis]] = np.moveaxis(x, axis, 0)
        at += x.shape[axis]
    return out


def _pad(x: np.ndarray, value: np.ndarray, low: Any, high: Any) -> np.ndarray:
    return np.pad(x, list(zip(low, high)), constant_values=value)


def _full(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.repeat(value, int(np.prod(shape))).reshape(shape)


def _iota(size: int, dtype: np.dtype) -> np.ndarray:
    return _cast(np.array(range(size), np.int64), dtype)


def _broadcast_dim(a: np.ndarray, b: np.ndarray) -> np.int64:
    return np.int64((np.zeros(int(a)) + np.zeros(int(b))).size)


# -- indexing ----------------------------------------------------------------------------------------------------


def _targets(x: np.ndarray, indices: Any, axes: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return, in C order, each index of the broadcast index arrays and the part of x that it names."""
    together = np.broadcast_arrays(*indices)
    pairs = []
    for place in np.ndindex(*together[0].shape):
        where: list[Any] = [slice(None)] * x.ndim
        for index, axis in zip(together, axes):
            where[axis] = int(index[place])
        pairs.append((place, tuple(where)))
    return pairs


def _gather(x: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    rest = np.delete(x.shape, axes).tolist()
    out = np.empty((*np.broadcast_shapes(*(i.shape for i in indices)), *rest), x.dtype)
    for place, where in _targets(x, indices, axes):
        out[place] = x[where]
    return out


_COMBINE = {
    "update": lambda old, new: new,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _scatter(x: Any, v: Any, *indices: Any, axes: Any, mode: str) -> np.ndarray:
    out = np.array(x)
    for place, where in _targets(x, indices, axes):
        out[where] = _COMBINE[mode](out[where], v[place])
    return out


def _nonzero(x: np.ndarray) -> tuple[np.ndarray, ...]:
    found = [index for index in np.ndindex(*x.shape) if bool(x[index])]
    return tuple(np.array([index[axis] for index in found], np.int64) for axis in range(x.ndim))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == BFLOAT16 else x


def _argsort(x: np.ndarray, axis: int, stable: bool = True) -> np.ndarray:
    """Complex numbers go by real part, then by imaginary part, after those by which parts are NaN."""
    if x.dtype.kind != "c":
        return np.lexsort((_wide(x),), axis=axis)
    return np.lexsort((x.imag, x.real, np.isnan(x.imag), np.isnan(x.real)), axis=axis)


def _sort(x: np.ndarray, axis: int, stable: bool, descending: bool = False) -> np.ndarray:
    ordered = np.take_along_axis(x, _argsort(x, axis), axis)
    return np.flip(ordered, axis) if descending else ordered


def _nth_element(x: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    if not x.shape[axis]:
        x = np.full_like(
            x,
            0 if x.dtype.kind in "biu" else np.nan,
            shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        )
    return np.take(_sort(x, axis, stable=True), places, axis, mode="clip")


def _searchsorted(a: np.ndarray, v: np.ndarray, side: Any) -> np.ndarray:
    if a.dtype.kind == "c":
        return np.searchsorted(a, v, side=side)
    lhs, rhs = _wide(a), _wide(v)[..., np.newaxis]
    before = lhs < rhs if side == "left" else lhs <= rhs
    nan = np.isnan(rhs) & (~np.isnan(lhs) | (side == "right"))
    return np.sum(before | nan, axis=-1, dtype=np.int64)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or bool(a != a and b != b)


def _unique(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Walk the elements in sorted order; each that differs from the one before begins a group."""
    first: list[int] = []
    for k in _argsort(x, 0):
        if not first or not _equal(x[first[-1]], x[k]):
            first.append(int(k))
    inverse = [next(g for g, f in enumerate(first) if _equal(x[f], e)) for e in x]
    groups = np.array(inverse, np.int64)
    counts = [int(np.sum(groups == g)) for g in range(len(first))]
    index = np.array(first, np.int64)
    return x[index], index, groups, np.array(counts, np.int64)


_TABLE: dict[str, Callable[..., Any]] = {
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
    "real": lambda x: _parts(x)[..., 0],
    "imag": lambda x: _parts(x)[..., 1],
    "complex": _complex,
    "erf": _special("erf"),
    "erfc": _special("erfc"),
    "erfinv": _special("erfinv"),
    "gamma": _special("gamma"),
    "lgamma": _special("gammaln"),
    "digamma": _special("psi"),
    "sum": lambda x, axes: np.sum(x, axis=axes, dtype=x.dtype),
    "prod": lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
    "any": lambda x, axes: np.any(x, axis=axes),
    "all": lambda x, axes: np.all(x, axis=axes),
    "reduce_and": partial(_bits, np.bitwise_and, -1),
    "reduce_or": partial(_bits, np.bitwise_or, 0),
    "reduce_xor": partial(_bits, np.bitwise_xor, 0),
    "argmax": partial(_first, np.max, "argmax"),
    "argmin": partial(_first, np.min, "argmin"),
    "cumsum": partial(_running, np.add),
    "cumprod": partial(_running, np.multiply),
    "cummax": partial(_running, np.maximum),
    "cummin": partial(_running, np.minimum),
    "broadcast_to": _broadcast_to,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "update_slice": _update_slice,
    "dynamic_slice": _dynamic_slice,
    "update_dynamic_slice": _update_dynamic,
    "concatenate": _concatenate,
    "pad": _pad,
    "full": _full,
    "iota": _iota,
    "broadcast_dim": _broadcast_dim,
    "gather": _gather,
    "scatter": _scatter,
    "nonzero": _nonzero,
    "sort": _sort,
    "nth_element": _nth_element,
    "argsort": _argsort,
    "searchsorted": _searchsorted,
    "unique": _unique,
}
