"""Order statistics: medians, quantiles and percentiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    array_of,
    ask,
    convert,
    dims_of,
    gather_axis,
    into,
    is_inexact,
    merge_axes,
    normal_axes,
    number,
    result_dtype,
    splat,
    with_dims,
)
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.moments import mean
from dsl.frontend.functions.reduce import all_, sum_
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    concrete,
    emit,
    read,
    wrap,
)
from dsl.ir.types import I64, Shape, size_of

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


def _sorted_rows(x: Array) -> Array:
    return emit("sort", x, axis=0, stable=False, descending=False)


def _kept(
    result: Array, q_dims: Shape, shape: Shape, axes: tuple[int, ...], keepdims: Any
) -> Array:
    if keepdims is NoValue or not keepdims:
        return result
    return wrap(
        read(with_dims(result, (*q_dims, *(1 if k in axes else d for k, d in enumerate(shape)))))
    )


@implements("median")
def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """Return the median over axes; NaN if there is one."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    rows = _sorted_rows(merge_axes(x, axes))
    size = dims_of(rows)[0]
    if isinstance(size, int):
        result = mean(rows[(size - 1) // 2 : size // 2 + 1] if size else rows, axis=0)
    else:
        low, high = rows[(number(size) - 1) // 2], rows[number(size) // 2]
        result = wrap(
            read(choose(number(size) % 2 == 1, mean(low[None], 0), mean(np.stack([low, high]), 0)))
        )
    if is_inexact(x.dtype) and size != 0:
        result = wrap(read(choose(np.isnan(rows[-1]), rows[-1], result)))
    return into(_kept(result, (), dims_of(x), axes, keepdims), out, "unsafe")


@implements("nanmedian")
def nanmedian(
    a: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: Any = NoValue,
) -> Any:
    """Return the median of the elements that are not NaN."""
    x = array_of(a)
    if not is_inexact(x.dtype):
        return median(x, axis, out, overwrite_input, bool(keepdims is not NoValue and keepdims))
    axes = normal_axes(axis, x.ndim)
    if any(dims_of(x)[k] == 0 for k in axes):
        return mean(x, axes, None, out, keepdims)
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


def _quantiles(
    a: Any, q: Any, axis: Any, out: Any, method: str, keepdims: Any, skip_nan: bool, weak_q: bool
) -> Any:
    x = array_of(a)
    if x.dtype.kind == "c":
        raise TypeRuleError("a must be an array of real numbers", location=here())
    if method not in _POSITIONS:
        raise ShapeError(
            f"{method!r} is not a valid method. Use one of: {_POSITIONS.keys()}", location=here()
        )
    axes = normal_axes(axis, x.ndim)
    rows = _sorted_rows(merge_axes(x, axes))
    q_dims = dims_of(q)
    flat = with_dims(q, (size_of(q_dims), *(1,) * (rows.ndim - 1)))
    has_nan = is_inexact(x.dtype)
    count = sum_(~np.isnan(rows), 0) if skip_nan and has_nan else number(dims_of(rows)[0])
    if skip_nan and has_nan and is_inexact(q.dtype):
        count = convert(count, q.dtype)
    if skip_nan and dims_of(rows)[0] == 0:
        empty = splat(np.nan, (*q_dims, *dims_of(rows)[1:]), result_dtype(rows, q))
        return into(_kept(wrap(empty), q_dims, dims_of(x), axes, keepdims), out, "unsafe")
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
    fractions: Any = array_of(q)
    fractions = array_of(fractions / scale if scale != 1 else fractions)
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
            raise ShapeError(
                "quantiles with weights are not supported on traced values", location=here()
            )
        fractions, weak_q = _fractions(q, scale, words)
        return _quantiles(a, fractions, axis, out, method, keepdims, skip_nan, weak_q)

    quantile.__doc__ = "Return quantiles over axes" + (", leaving NaN out." if skip_nan else ".")
    return quantile


_FRACTION, _PERCENT = (
    "Quantiles must be in the range [0, 1]",
    "Percentiles must be in the range [0, 100]",
)
implements("quantile")(_quantile_function(1, _FRACTION, False))
implements("percentile")(_quantile_function(100, _PERCENT, False))
implements("nanquantile")(_quantile_function(1, _FRACTION, True))
implements("nanpercentile")(_quantile_function(100, _PERCENT, True))
