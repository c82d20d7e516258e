"""Means, variances and weighted averages over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    array_of,
    ask,
    convert,
    dims_of,
    into,
    is_half,
    is_inexact,
    keep_dims,
    normal_axes,
    number,
    result_dtype,
    with_dims,
)
from dsl.frontend.functions.reduce import sum_
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    cast,
    emit,
    read,
    supported_dtype,
    wrap,
)
from dsl.ir.types import I64, size_of

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


def _count(x: Array, axes: tuple[int, ...], where: Any, keepdims: bool) -> Any:
    """Return the number of elements over axes: a number, or an array where a mask counts."""
    if where is NoValue or where is True:
        return number(size_of(tuple(dims_of(x)[k] for k in axes)))
    mask = np.broadcast_to(array_of(where), x.shape)
    return keep_dims(emit("sum", convert(mask, I64), axes=axes), dims_of(x), axes, keepdims)


def share(total: Array, count: Any) -> Array:
    """Divide by a count as NumPy does: the dtype stays."""
    if total.dtype in (F32, F64):
        return total / convert(count, total.dtype)
    wide = np.dtype(np.complex128) if total.dtype.kind == "c" else F64
    return wrap(cast(read(total / convert(count, wide)), total.dtype))


def _mean_dtype(dtype: np.dtype) -> np.dtype:
    if is_half(dtype):
        return F32
    return dtype if is_inexact(dtype) else F64


@implements("mean")
def mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    *,
    where: Any = NoValue,
) -> Any:
    """Return the arithmetic mean over axes."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    loop = _mean_dtype(x.dtype) if dtype is None else supported_dtype(dtype)
    total = sum_(x, axes, loop, None, keepdims, where=where)
    result = share(total, _count(x, axes, where, bool(keepdims is not NoValue and keepdims)))
    if dtype is None and is_half(x.dtype) and out is None:
        result = wrap(cast(read(result), x.dtype))
    return into(result, out, "unsafe")


def correction_of(ddof: Any, correction: Any) -> Any:
    if correction is NoValue:
        return ddof
    if not isinstance(ddof, (int, float)) or ddof != 0:
        raise ShapeError("ddof and correction can't be provided simultaneously.", location=here())
    return correction


@implements("var")
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NoValue,
    *,
    where: Any = NoValue,
    mean: Any = NoValue,
    correction: Any = NoValue,
) -> Any:
    """Return the variance over axes."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    loop = (x.dtype if is_inexact(x.dtype) else F64) if dtype is None else supported_dtype(dtype)
    center = mean
    if mean is NoValue or mean is None:
        total = sum_(x, axes, loop, None, True, where=where)
        center = share(total, _count(x, axes, where, True))
    apart = x - center
    squares = (
        np.square(apart.real) + np.square(apart.imag)
        if apart.dtype.kind == "c"
        else np.square(apart)
    )
    real = np.dtype(f"f{loop.itemsize // 2}") if loop.kind == "c" else loop
    spread = sum_(squares, axes, real, None, keepdims, where=where)
    count = _count(x, axes, where, bool(keepdims is not NoValue and keepdims))
    free = np.maximum(count - correction_of(ddof, correction), 0)
    return into(share(spread, free), out, "unsafe")


@implements("std")
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NoValue,
    *,
    where: Any = NoValue,
    mean: Any = NoValue,
    correction: Any = NoValue,
) -> Any:
    """Return the standard deviation over axes."""
    spread = var(
        a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction
    )
    return into(np.sqrt(spread), out, "unsafe")


@implements("average")
def average(
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: Any = NoValue,
) -> Any:
    """Return the weighted mean over axes."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim, "axis")
    if weights is None:
        result = mean(x, axes, keepdims=keepdims)
        scale: Any = convert(_count(x, axes, NoValue, False), result.dtype)
    else:
        w = _weights(x, array_of(weights), axis, axes)
        floor = [] if is_inexact(x.dtype) else [F64]
        dtype = result_dtype(x.dtype, w.dtype, *floor)
        scale = sum_(w, axes, dtype, None, keepdims)
        ask(np.all(scale != 0.0), "Weights sum to zero, can't be normalized", "ZeroDivisionError")
        result = sum_(np.multiply(x, w, dtype=dtype), axes, None, None, keepdims) / scale
    if not returned:
        return result
    spread: Any = (
        scale if dims_of(scale) == dims_of(result) else np.broadcast_to(scale, result.shape)
    )
    return result, wrap(read(spread))


def _weights(x: Array, w: Array, axis: Any, axes: tuple[int, ...]) -> Array:
    if dims_of(w) == dims_of(x):
        return w
    if axis is None:
        raise TypeRuleError(
            "Axis must be specified when shapes of a and weights differ.", location=here()
        )
    wanted = tuple(dims_of(x)[k] for k in axes)
    if len(wanted) != w.ndim or any(
        isinstance(a - b, int) and a != b for a, b in zip(wanted, dims_of(w), strict=True)
    ):
        raise ShapeError(
            "Shape of weights must be consistent with shape of a along specified axis.",
            location=here(),
        )
    return with_dims(w, tuple(d if k in axes else 1 for k, d in enumerate(dims_of(x))))
