"""Reductions: sums, extrema, moments, order statistics, running sums and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    along,
    array_of,
    ask,
    convert,
    counter,
    dims_of,
    gather_axis,
    into,
    is_half,
    is_inexact,
    keep_dims,
    merge_axes,
    normal_axes,
    normal_axis,
    number,
    result_dtype,
    splat,
    with_dims,
)
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Kind, cast, concrete, emit, fresh, lift, read, supported_dtype, wrap
from dsl.ir.dims import lower_bound
from dsl.ir.types import BOOL, I64, Shape, size_of

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


# -- sums and products ---------------------------------------------------------------------------------------------


def _widened(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which NumPy adds: integers in at least 64 bits."""
    if dtype.kind == "u":
        return U64
    return I64 if dtype.kind in "bi" else dtype


def _masked(x: Array, where: Any, fill: Any) -> Array:
    if where is NoValue or where is True:
        return x
    mask = array_of(where)
    if mask.dtype != BOOL:
        text = f"Cannot cast array data from {mask.dtype!r} to dtype('bool') according to the rule 'safe'"
        raise TypeRuleError(text, location=here())
    return choose(mask, x, convert(fill, x.dtype))


def _total(op: str, ufunc: np.ufunc, identity: int) -> Callable[..., Any]:
    def total(a: Any, axis: Any, dtype: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
        x = array_of(a)
        x = convert(x, _widened(x.dtype) if dtype is None else dtype)
        axes = normal_axes(axis, x.ndim)
        result = emit(op, _masked(x, where, identity), axes=axes)
        if initial is not NoValue and initial is not None:
            result = ufunc(result, convert(initial, x.dtype))
        return into(keep_dims(result, dims_of(x), axes, keepdims), out)

    return total


_sum, _prod = _total("sum", np.add, 0), _total("prod", np.multiply, 1)


@implements("sum")
def sum_(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Add the elements over axes."""
    return _sum(a, axis, dtype, out, keepdims, initial, where)


@implements("prod")
def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Multiply the elements over axes."""
    return _prod(a, axis, dtype, out, keepdims, initial, where)


@implements("trace")
def trace(a: Any, offset: Any = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """Add the elements of a diagonal."""
    return sum_(np.diagonal(array_of(a), offset, axis1, axis2), axis=-1, dtype=dtype, out=out)


@implements("count_nonzero")
def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Count the elements that are not zero."""
    x = array_of(a)
    return sum_(x if x.dtype == BOOL else x != 0, axis, I64, None, keepdims)


# -- extrema -------------------------------------------------------------------------------------------------------


def _extremum(op: str, ufunc: np.ufunc) -> Callable[..., Any]:
    def extremum(a: Any, axis: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
        x = array_of(a)
        axes = normal_axes(axis, x.ndim)
        given = initial is not NoValue and initial is not None
        if not given and where is not NoValue and where is not True:
            text = (
                f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has "
                "to specify 'initial'"
            )
            raise ShapeError(text, location=here())
        result = _extreme(op, ufunc, _masked(x, where, initial), axes, initial if given else None)
        return into(keep_dims(result, dims_of(x), axes, keepdims), out)

    return extremum


def _extreme(op: str, ufunc: np.ufunc, x: Array, axes: tuple[int, ...], initial: Any) -> Array:
    if initial is None:
        return emit(op, x, axes=axes)
    start = convert(initial, x.dtype)
    shape = dims_of(x)
    if all((lower_bound(shape[k]) or 0) > 0 for k in axes):
        return ufunc(emit(op, x, axes=axes), start)
    high = tuple(1 if k in axes else 0 for k in range(len(shape)))
    padded = current_scope().emit("pad", read(x), read(start), low=(0,) * len(shape), high=high)
    return emit(op, fresh(padded), axes=axes)


_max, _min = _extremum("max", np.maximum), _extremum("min", np.minimum)


@implements("max", "amax")
def max_(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Return the largest element over axes; NaN if there is one."""
    return _max(a, axis, out, keepdims, initial, where)


@implements("min", "amin")
def min_(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Return the smallest element over axes; NaN if there is one."""
    return _min(a, axis, out, keepdims, initial, where)


@implements("ptp")
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue) -> Any:
    """Return the range of values: largest minus smallest."""
    return into(max_(a, axis, None, keepdims) - min_(a, axis, None, keepdims), out)


def _arg(op: str, a: Any, axis: Any, out: Any, keepdims: Any) -> Any:
    x = array_of(a)
    if axis is None:
        found = emit(op, with_dims(x, (size_of(dims_of(x)),)), axis=0)
        return into(keep_dims(found, dims_of(x), tuple(range(x.ndim)), keepdims), out)
    position = normal_axis(axis, max(x.ndim, 1))
    found = emit(op, x if x.ndim else with_dims(x, (1,)), axis=position)
    return into(keep_dims(found, dims_of(x), (position,), keepdims), out)


@implements("argmax")
def argmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first largest element."""
    return _arg("argmax", a, axis, out, keepdims)


@implements("argmin")
def argmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first smallest element."""
    return _arg("argmin", a, axis, out, keepdims)


# -- truth and bits ------------------------------------------------------------------------------------------------


def _truth(op: str, a: Any, axis: Any, out: Any, keepdims: Any, where: Any) -> Any:
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    flags = _masked(convert(x, BOOL), where, op == "all")
    return into(keep_dims(emit(op, flags, axes=axes), dims_of(x), axes, keepdims), out, "unsafe")


@implements("any")
def any_(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue) -> Any:
    """Tell whether any element over axes is true."""
    return _truth("any", a, axis, out, keepdims, where)


@implements("all")
def all_(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue) -> Any:
    """Tell whether all elements over axes are true."""
    return _truth("all", a, axis, out, keepdims, where)


def _bits(op: str) -> Callable[..., Any]:
    def bits(a: Any, axis: Any = 0, out: Any = None, keepdims: Any = False, **kwargs: Any) -> Any:
        x = array_of(a)
        axes = normal_axes(axis, x.ndim)
        return into(keep_dims(emit(op, x, axes=axes), dims_of(x), axes, keepdims), out)

    bits.__doc__ = "Combine the bits of the elements over axes."
    return bits


for _name in ("reduce_and", "reduce_or", "reduce_xor"):
    implements(_name)(_bits(_name))


# -- moments -------------------------------------------------------------------------------------------------------


def _count(x: Array, axes: tuple[int, ...], where: Any, keepdims: bool) -> Any:
    """Return the number of elements over axes: a number, or an array where a mask counts."""
    if where is NoValue or where is True:
        return number(size_of(tuple(dims_of(x)[k] for k in axes)))
    mask = np.broadcast_to(array_of(where), x.shape)
    return keep_dims(emit("sum", convert(mask, I64), axes=axes), dims_of(x), axes, keepdims)


def _share(total: Array, count: Any) -> Array:
    """Divide by a count as NumPy does: the dtype stays."""
    if is_inexact(total.dtype) and not is_half(total.dtype):
        return total / convert(count, F64 if total.dtype.itemsize in (8, 16) and total.dtype.kind != "c" else F32) if (
            total.dtype.kind != "c"
        ) else total / convert(count, total.real.dtype)
    return wrap(cast(read(total / convert(count, F64)), total.dtype))


def _mean_dtype(dtype: np.dtype) -> np.dtype:
    if is_half(dtype):
        return F32
    return dtype if is_inexact(dtype) else F64


@implements("mean")
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue
) -> Any:
    """Return the arithmetic mean over axes."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    loop = _mean_dtype(x.dtype) if dtype is None else supported_dtype(dtype)
    total = sum_(x, axes, loop, None, keepdims, where=where)
    result = _share(total, _count(x, axes, where, bool(keepdims is not NoValue and keepdims)))
    if dtype is None and is_half(x.dtype) and out is None:
        result = wrap(cast(read(result), x.dtype))
    return into(result, out, "unsafe")


def _ddof(ddof: Any, correction: Any) -> Any:
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
        center = _share(total, _count(x, axes, where, True))
    apart = x - center
    squares = np.square(apart.real) + np.square(apart.imag) if apart.dtype.kind == "c" else np.square(apart)
    real = np.dtype(f"f{loop.itemsize // 2}") if loop.kind == "c" else loop
    spread = sum_(squares, axes, real, None, keepdims, where=where)
    count = _count(x, axes, where, bool(keepdims is not NoValue and keepdims))
    free = np.maximum(count - _ddof(ddof, correction), 0)
    return into(_share(spread, free), out, "unsafe")


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
    spread = var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)
    return into(np.sqrt(spread), out, "unsafe")


@implements("average")
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = NoValue) -> Any:
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
    spread = np.broadcast_to(scale, result.shape) if scale.ndim != result.ndim else scale
    return result, wrap(read(spread))


def _weights(x: Array, w: Array, axis: Any, axes: tuple[int, ...]) -> Array:
    if dims_of(w) == dims_of(x):
        return w
    if axis is None:
        raise TypeRuleError("Axis must be specified when shapes of a and weights differ.", location=here())
    if dims_of(w) != tuple(dims_of(x)[k] for k in axes):
        raise ShapeError("Shape of weights must be consistent with shape of a along specified axis.", location=here())
    return with_dims(w, tuple(d if k in axes else 1 for k, d in enumerate(dims_of(x))))


# -- without NaN ---------------------------------------------------------------------------------------------------


def _without_nan(x: Array, fill: Any) -> Array:
    return choose(np.isnan(x), convert(fill, x.dtype), x) if is_inexact(x.dtype) else x


@implements("nansum")
def nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Add the elements that are not NaN."""
    return _sum(_without_nan(array_of(a), 0), axis, dtype, out, keepdims, initial, where)


@implements("nanprod")
def nanprod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Multiply the elements that are not NaN."""
    return _prod(_without_nan(array_of(a), 1), axis, dtype, out, keepdims, initial, where)


def _valid(x: Array, where: Any) -> Array:
    flags = ~np.isnan(x)
    return flags if where is NoValue or where is True else flags & where


@implements("nanmean")
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue
) -> Any:
    """Return the mean of the elements that are not NaN."""
    x = array_of(a)
    if not is_inexact(x.dtype):
        return mean(x, axis, dtype, out, keepdims, where=where)
    total = sum_(_without_nan(x, 0), axis, dtype, None, keepdims, where=where)
    count = sum_(_valid(x, where), axis, I64, None, keepdims)
    return into(_share(total, count), out, "unsafe")


@implements("nanvar")
def nanvar(
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
    """Return the variance of the elements that are not NaN."""
    x = array_of(a)
    if not is_inexact(x.dtype):
        return var(x, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction)
    valid = _valid(x, where)
    center = nanmean(x, axis, dtype, None, True, where=where) if mean is NoValue else mean
    apart = choose(valid, x - center, convert(0, x.dtype))
    squares = np.square(apart.real) + np.square(apart.imag) if x.dtype.kind == "c" else np.square(apart)
    free = sum_(valid, axis, I64, None, keepdims) - _ddof(ddof, correction)
    result = _share(sum_(squares, axis, None, None, keepdims), free)
    return into(wrap(read(choose(free <= 0, convert(np.nan, result.dtype), result))), out, "unsafe")


@implements("nanstd")
def nanstd(
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
    """Return the standard deviation of the elements that are not NaN."""
    spread = nanvar(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)
    return into(np.sqrt(spread), out, "unsafe")


def _nan_extremum(extremum: Callable[..., Any], sign: float, a: Any, axis: Any, out: Any, keepdims: Any, rest: Any) -> Any:
    x = array_of(a)
    if not is_inexact(x.dtype):
        return extremum(x, axis, out, keepdims, *rest)
    found = extremum(_without_nan(x, sign * np.inf), axis, None, keepdims, *rest)
    empty = all_(np.isnan(x), axis, None, keepdims)
    if rest[0] is not NoValue:
        return into(found, out)
    return into(wrap(read(choose(empty, convert(np.nan, x.dtype), found))), out)


@implements("nanmax")
def nanmax(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Return the largest element that is not NaN."""
    return _nan_extremum(max_, -1.0, a, axis, out, keepdims, (initial, where))


@implements("nanmin")
def nanmin(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, initial: Any = NoValue, where: Any = NoValue
) -> Any:
    """Return the smallest element that is not NaN."""
    return _nan_extremum(min_, 1.0, a, axis, out, keepdims, (initial, where))


def _nan_arg(arg: Callable[..., Any], sign: float, a: Any, axis: Any, out: Any, keepdims: Any) -> Any:
    x = array_of(a)
    if is_inexact(x.dtype):
        ask(~any_(all_(np.isnan(x), axis)), "All-NaN slice encountered")
    return arg(_without_nan(x, sign * np.inf), axis, out, keepdims=keepdims)


@implements("nanargmax")
def nanargmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first largest element that is not NaN."""
    return _nan_arg(argmax, -1.0, a, axis, out, keepdims)


@implements("nanargmin")
def nanargmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first smallest element that is not NaN."""
    return _nan_arg(argmin, 1.0, a, axis, out, keepdims)


# -- running -------------------------------------------------------------------------------------------------------


def _running(op: str, a: Any, axis: Any, dtype: Any, out: Any) -> Any:
    x = array_of(a)
    x = convert(x, _widened(x.dtype) if dtype is None else dtype)
    if axis is None:
        x, axis = with_dims(x, (size_of(dims_of(x)),)), 0
    return into(emit(op, x, axis=normal_axis(axis, x.ndim)), out)


@implements("cumsum")
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running sums."""
    return _running("cumsum", a, axis, dtype, out)


@implements("cumprod")
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running products."""
    return _running("cumprod", a, axis, dtype, out)


@implements("nancumsum")
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running sums that skip NaN."""
    return _running("cumsum", _without_nan(array_of(a), 0), axis, dtype, out)


@implements("nancumprod")
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running products that skip NaN."""
    return _running("cumprod", _without_nan(array_of(a), 1), axis, dtype, out)


def _cumulative(op: str, identity: int, x: Any, axis: Any, dtype: Any, out: Any, include_initial: bool) -> Any:
    values = array_of(x)
    if values.ndim == 0:
        text = f"For array of dimension 0, the input must be at least one-dimensional: cumulative_{op[3:]}"
        raise ShapeError(text, location=here())
    if axis is None:
        if values.ndim > 1:
            raise ShapeError(
                f"For arrays which have more than one dimension ``axis`` argument is required.", location=here()
            )
        axis = 0
    axis = normal_axis(axis, values.ndim)
    result = _running(op, values, axis, dtype, None)
    if include_initial:
        low = tuple(1 if k == axis else 0 for k in range(result.ndim))
        start = splat(identity, (), result.dtype)
        result = fresh(current_scope().emit("pad", read(result), start, low=low, high=(0,) * result.ndim))
    return into(result, out)


@implements("cumulative_sum")
def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Any:
    """Return running sums, from 0 on if asked."""
    return _cumulative("cumsum", 0, x, axis, dtype, out, include_initial)


@implements("cumulative_prod")
def cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Any:
    """Return running products, from 1 on if asked."""
    return _cumulative("cumprod", 1, x, axis, dtype, out, include_initial)


# -- order statistics ----------------------------------------------------------------------------------------------


def _sorted_rows(x: Array) -> Array:
    return emit("sort", x, axis=0, stable=False, descending=False)


def _kept(result: Array, q_dims: Shape, shape: Shape, axes: tuple[int, ...], keepdims: Any) -> Array:
    if keepdims is NoValue or not keepdims:
        return result
    return wrap(read(with_dims(result, (*q_dims, *(1 if k in axes else d for k, d in enumerate(shape))))))


@implements("median")
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """Return the median over axes; NaN if there is one."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    rows = _sorted_rows(merge_axes(x, axes))
    size = dims_of(rows)[0]
    if isinstance(size, int):
        result = mean(rows[(size - 1) // 2 : size // 2 + 1] if size else rows, axis=0)
    else:
        low, high = rows[(number(size) - 1) // 2], rows[number(size) // 2]
        result = wrap(read(choose(number(size) % 2 == 1, mean(low[None], 0), mean(np.stack([low, high]), 0))))
    if is_inexact(x.dtype) and size != 0:
        result = wrap(read(choose(np.isnan(rows[-1]), rows[-1], result)))
    return into(_kept(result, (), dims_of(x), axes, keepdims), out, "unsafe")


@implements("nanmedian")
def nanmedian(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = NoValue
) -> Any:
    """Return the median of the elements that are not NaN."""
    x = array_of(a)
    if not is_inexact(x.dtype):
        return median(x, axis, out, overwrite_input, bool(keepdims is not NoValue and keepdims))
    axes = normal_axes(axis, x.ndim)
    rows = _sorted_rows(merge_axes(x, axes))
    count = sum_(~np.isnan(rows), 0)
    low = np.take_along_axis(rows, np.maximum((count - 1) // 2, 0)[None], 0)
    high = np.take_along_axis(rows, np.minimum(count // 2, rows.shape[0] - 1)[None], 0)
    result = choose(count % 2 == 1, low[0], mean(np.concatenate([low, high]), 0))
    result = wrap(read(choose(count == 0, convert(np.nan, x.dtype), result)))
    return into(_kept(result, (), dims_of(x), axes, keepdims), out, "unsafe")


def _virtual(alpha: float, beta: float) -> Callable[[Any, Any], Any]:
    return lambda n, q: n * q + (alpha + q * (1 - alpha - beta)) - 1


def _nearer(index: Any, stay: Callable[[Any], Any]) -> Any:
    low = np.floor(index)
    chosen = choose(stay(index), low, low + 1)
    return np.maximum(chosen.astype(I64), 0)


_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "inverted_cdf": lambda n, q: _nearer(n * q - 1, lambda i: i == np.floor(i)),
    "averaged_inverted_cdf": lambda n, q: n * q - 1,
    "closest_observation": lambda n, q: _nearer(
        n * q - 1 - 0.5, lambda i: (i == np.floor(i)) & (np.floor(i) % 2 == 1)
    ),
    "interpolated_inverted_cdf": _virtual(0, 1),
    "hazen": _virtual(0.5, 0.5),
    "weibull": _virtual(0, 0),
    "linear": lambda n, q: (n - 1) * q,
    "median_unbiased": _virtual(1 / 3.0, 1 / 3.0),
    "normal_unbiased": _virtual(3 / 8.0, 3 / 8.0),
    "lower": lambda n, q: np.floor((n - 1) * q).astype(I64),
    "higher": lambda n, q: np.ceil((n - 1) * q).astype(I64),
    "midpoint": lambda n, q: 0.5 * (np.floor((n - 1) * q) + np.ceil((n - 1) * q)),
    "nearest": lambda n, q: np.around((n - 1) * q).astype(I64),
}
_GAMMAS: dict[str, Callable[[Any, Any], Any]] = {
    "averaged_inverted_cdf": lambda gamma, at: choose(gamma == 0, 0.5, 1.0),
    "midpoint": lambda gamma, at: choose(at % 1 == 0, 0.0, 0.5),
}


def _quantiles(a: Any, q: Any, axis: Any, out: Any, method: str, keepdims: Any, skip_nan: bool, weak_q: bool) -> Any:
    x = array_of(a)
    if x.dtype.kind == "c":
        raise TypeRuleError("a must be an array of real numbers", location=here())
    if method not in _POSITIONS:
        raise ShapeError(f"{method!r} is not a valid method. Use one of: {_POSITIONS.keys()}", location=here())
    axes = normal_axes(axis, x.ndim)
    rows = _sorted_rows(merge_axes(x, axes))
    q_dims = dims_of(q)
    flat = with_dims(q, (size_of(q_dims), *(1,) * (rows.ndim - 1)))
    has_nan = is_inexact(x.dtype)
    count = sum_(~np.isnan(rows), 0) if skip_nan and has_nan else number(dims_of(rows)[0])
    result = _interpolated(rows, count, flat, method, weak_q)
    if has_nan and not skip_nan:
        result = choose(np.isnan(rows[-1]), convert(np.nan, result.dtype), result)
    elif has_nan:
        result = choose(count == 0, convert(np.nan, result.dtype), result)
    result = wrap(read(with_dims(result, (*q_dims, *dims_of(rows)[1:]))))
    return into(_kept(result, q_dims, dims_of(x), axes, keepdims), out, "unsafe")


def _interpolated(rows: Array, count: Any, q: Array, method: str, weak_q: bool) -> Array:
    at = _POSITIONS[method](count, q)
    if at.dtype.kind in "iu":
        return _rows_at(rows, at)
    last = count - 1
    below, above = at < 0, at >= last
    low = choose(above, last, choose(below, 0.0, np.floor(at)))
    high = choose(above, last, choose(below, 0.0, np.floor(at) + 1))
    previous, following = _rows_at(rows, low.astype(I64)), _rows_at(rows, high.astype(I64))
    start = choose(above, -1.0, low)
    gamma = _GAMMAS.get(method, lambda gamma, at: gamma)(at - start, at).astype(at.dtype)
    if weak_q:
        gamma = gamma.astype(result_dtype(rows, 1.0))
    gap = following - previous
    return choose(gamma >= 0.5, following - gap * (1 - gamma), previous + gap * gamma)


def _rows_at(rows: Array, at: Array) -> Array:
    """Return rows at positions of shape (q, 1, …) or, one per column, of shape (q, …)."""
    if all(d == 1 for d in dims_of(at)[1:]):
        return gather_axis(rows, with_dims(at, dims_of(at)[:1]), 0)
    return np.take_along_axis(rows, np.maximum(at, 0), 0)


def _fractions(q: Any, scale: float, words: str) -> tuple[Array, bool]:
    weak_q = isinstance(q, (int, float)) and not isinstance(q, np.generic)
    fractions = array_of(q)
    fractions = fractions / scale if scale != 1 else fractions
    fractions = fresh(read(fractions))
    known = concrete(fractions)
    if known is None:
        ask(all_((fractions >= 0) & (fractions <= 1)), words)
    elif not np.all((known >= 0) & (known <= 1)):
        raise ShapeError(words, location=here())
    return fractions, weak_q


def _quantile_function(scale: float, words: str, skip_nan: bool) -> Callable[..., Any]:
    def quantile(
        a: Any,
        q: Any,
        axis: Any = None,
        out: Any = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: Any = NoValue,
        *,
        weights: Any = None,
    ) -> Any:
        if weights is not None:
            raise ShapeError("quantiles with weights are not supported on traced values", location=here())
        fractions, weak_q = _fractions(q, scale, words)
        return _quantiles(a, fractions, axis, out, method, keepdims, skip_nan, weak_q)

    quantile.__doc__ = "Return quantiles over axes" + (", leaving NaN out." if skip_nan else ".")
    return quantile


_FRACTION, _PERCENT = "Quantiles must be in the range [0, 1]", "Percentiles must be in the range [0, 100]"
implements("quantile")(_quantile_function(1, _FRACTION, False))
implements("percentile")(_quantile_function(100, _PERCENT, False))
implements("nanquantile")(_quantile_function(1, _FRACTION, True))
implements("nanpercentile")(_quantile_function(100, _PERCENT, True))


# -- differences ---------------------------------------------------------------------------------------------------


def _at(axis: int, key: Any) -> tuple[Any, ...]:
    return (slice(None),) * axis + (key,)


@implements("diff")
def diff(a: Any, n: Any = 1, axis: int = -1, prepend: Any = NoValue, append: Any = NoValue) -> Any:
    """Return the n-th differences of neighbours along an axis."""
    order = int(n)
    if order == 0:
        return a
    if order < 0:
        raise ShapeError(f"order must be non-negative but got {order!r}", location=here())
    x = array_of(a)
    if x.ndim == 0:
        raise ShapeError("diff requires input that is at least one dimensional", location=here())
    axis = normal_axis(axis, x.ndim)
    parts = [_edge(prepend, x, axis), x, _edge(append, x, axis)]
    given = [part for part in parts if part is not None]
    x = np.concatenate(given, axis) if len(given) > 1 else x
    subtract = np.not_equal if x.dtype == BOOL else np.subtract
    for _ in range(order):
        x = subtract(x[_at(axis, slice(1, None))], x[_at(axis, slice(None, -1))])
    return x


def _edge(value: Any, x: Array, axis: int) -> Array | None:
    if value is NoValue:
        return None
    edge = array_of(value)
    if edge.ndim:
        return edge
    shape = tuple(1 if k == axis else d for k, d in enumerate(dims_of(x)))
    return fresh(splat(edge, shape, edge.dtype))


@implements("ediff1d")
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Return the differences of neighbours of the flattened array."""
    x = np.ravel(array_of(ary))
    parts = [_extra(to_begin, x.dtype, "to_begin"), x[1:] - x[:-1], _extra(to_end, x.dtype, "to_end")]
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if len(given) > 1 else given[0]


def _extra(value: Any, dtype: np.dtype, name: str) -> Array | None:
    if value is None:
        return None
    extra = np.ravel(array_of(value))
    if not np.can_cast(extra.dtype, dtype, casting="same_kind"):
        text = f"dtype of `{name}` must be compatible with input `ary` under the `same_kind` rule."
        raise TypeRuleError(text, location=here())
    return convert(extra, dtype)


@implements("trapezoid")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Integrate along an axis by the trapezoidal rule."""
    values = array_of(y)
    axis = normal_axis(axis, values.ndim)
    width = dx
    if x is not None:
        points = array_of(x)
        width = along(diff(points), axis, values.ndim) if points.ndim == 1 else diff(points, axis=axis)
    pairs = values[_at(axis, slice(1, None))] + values[_at(axis, slice(None, -1))]
    return sum_(width * pairs / 2.0, axis)


@implements("gradient")
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return the gradient by central differences, one-sided at the ends."""
    x = array_of(f)
    axes = normal_axes(axis, x.ndim) if not isinstance(axis, tuple) else tuple(normal_axis(a, x.ndim) for a in axis)
    spacings = _spacings(varargs, x, axes)
    if edge_order > 2:
        raise ShapeError("'edge_order' greater than 2 not supported", location=here())
    if not is_inexact(x.dtype):
        x = x.astype(F64)
    results = [_slope(x, k, spacing, edge_order) for k, spacing in zip(axes, spacings, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)


def _spacings(varargs: tuple[Any, ...], x: Array, axes: tuple[int, ...]) -> list[Any]:
    if not varargs:
        return [1.0] * len(axes)
    if len(varargs) == 1 and lift(varargs[0]).ndim == 0:
        return list(varargs) * len(axes)
    if len(varargs) != len(axes):
        raise TypeRuleError("invalid number of arguments", location=here())
    return [_spacing(distance, dims_of(x)[k]) for distance, k in zip(varargs, axes, strict=True)]


def _spacing(distance: Any, size: Any) -> Any:
    points = lift(distance)
    if points.ndim == 0:
        return distance
    if points.ndim != 1:
        raise ShapeError("distances must be either scalars or 1d", location=here())
    if isinstance(size, int) and isinstance(dims_of(points)[0], int) and dims_of(points)[0] != size:
        raise ShapeError("when 1d, distances must match the length of the corresponding dimension", location=here())
    return diff(points.astype(F64) if points.dtype.kind in "iu" else points)


def _slope(x: Array, axis: int, spacing: Any, edge_order: int) -> Array:
    size = dims_of(x)[axis]
    if isinstance(size, int) and size < edge_order + 1:
        text = (
            "Shape of array too small to calculate a numerical gradient, at least (edge_order + 1) elements are "
            "required."
        )
        raise ShapeError(text, location=here())
    uniform = lift(spacing).ndim == 0
    inner = _central(x, axis, spacing, uniform)
    first, last = (_one_sided if edge_order == 1 else _parabolic)(x, axis, spacing, uniform)
    parts = [convert(part, x.dtype) for part in (first, inner, last)]
    return np.concatenate(parts, axis=axis)


def _central(x: Array, axis: int, h: Any, uniform: bool) -> Array:
    before, here_, after = (x[_at(axis, k)] for k in (slice(None, -2), slice(1, -1), slice(2, None)))
    if uniform:
        return (after - before) / (2.0 * h)
    h1, h2 = (along(part, axis, x.ndim) for part in (h[:-1], h[1:]))
    a, b, c = -h2 / (h1 * (h1 + h2)), (h2 - h1) / (h1 * h2), h1 / (h2 * (h1 + h2))
    return a * before + b * here_ + c * after


def _one_sided(x: Array, axis: int, h: Any, uniform: bool) -> tuple[Array, Array]:
    first, last = (h, h) if uniform else (h[0], h[-1])
    start = (x[_at(axis, slice(1, 2))] - x[_at(axis, slice(0, 1))]) / first
    return start, (x[_at(axis, slice(-1, None))] - x[_at(axis, slice(-2, -1))]) / last


def _parabolic(x: Array, axis: int, h: Any, uniform: bool) -> tuple[Array, Array]:
    head = [x[_at(axis, slice(k, k + 1))] for k in range(3)]
    tail = [x[_at(axis, slice(k, k + 1 or None))] for k in (-3, -2, -1)]
    if uniform:
        left, right = (-1.5 / h, 2.0 / h, -0.5 / h), (0.5 / h, -2.0 / h, 1.5 / h)
    else:
        h1, h2 = h[0], h[1]
        left = (-(2.0 * h1 + h2) / (h1 * (h1 + h2)), (h1 + h2) / (h1 * h2), -h1 / (h2 * (h1 + h2)))
        h1, h2 = h[-2], h[-1]
        right = (h2 / (h1 * (h1 + h2)), -(h2 + h1) / (h1 * h2), (2.0 * h2 + h1) / (h2 * (h1 + h2)))
    return _weighted(left, head), _weighted(right, tail)


def _weighted(factors: tuple[Any, ...], parts: list[Array]) -> Array:
    return factors[0] * parts[0] + factors[1] * parts[1] + factors[2] * parts[2]


_ = (Kind, counter)
