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
from dsl.frontend.functions.reduce import all_, any_, sum_
from dsl.frontend.functions.shape import moveaxis
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    concrete,
    emit,
    read,
    wrap,
)
from dsl.ir.dims import DimLike
from dsl.ir.types import BOOL, I64, Shape, size_of

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


def _rows_at(x: Array, axes: tuple[int, ...], *places: Array) -> list[Array]:
    """Return what is at places of shape (q, 1, …) or (q, …) of the elements sorted along axes, as (q, …)."""
    if all(d == 1 for d in dims_of(places[0])[1:]):
        flat = np.stack([with_dims(at, dims_of(at)[:1]) for at in places], 1)  # neighbours together
        found = _selected(x, axes, convert(with_dims(flat, (size_of(dims_of(flat)),)), I64))
        return [found[k :: len(places)] for k in range(len(places))]
    rows = emit("sort", merge_axes(x, axes), axis=0, stable=False, descending=False)
    return [np.take_along_axis(rows, np.maximum(at, 0), 0) for at in places]


def _selected(x: Array, axes: tuple[int, ...], places: Array) -> Array:
    """Return elements by their places along axes, in front of the other axes; lines in memory stay as they are."""
    if x.ndim - 1 not in axes:
        return emit("nth_element", merge_axes(x, axes), places, axis=0)
    rest = tuple(k for k in range(x.ndim) if k not in axes)
    others = tuple(dims_of(x)[k] for k in rest)
    lines = with_dims(x.transpose((*rest, *axes)), (*others, _count(x, axes)))
    return moveaxis(emit("nth_element", lines, places, axis=len(rest)), -1, 0)


def _count(x: Array, axes: tuple[int, ...]) -> DimLike:
    """Return how many elements are reduced to one."""
    return size_of(tuple(dims_of(x)[k] for k in axes))


def _kept(
    result: Array, q_dims: Shape, shape: Shape, axes: tuple[int, ...], keepdims: Any
) -> Array:
    if keepdims is NoValue or not keepdims:
        return result
    return wrap(
        read(with_dims(result, (*q_dims, *(1 if k in axes else d for k, d in enumerate(shape)))))
    )


def _middle(size: Any, low: Array, high: Array) -> Array:
    """Return the mean of two rows, of shape (1, …), or the first one where a size is odd."""
    return choose(size % 2 == 1, mean(low, 0), mean(np.concatenate([low, high]), 0))


@implements("median")
def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """Return the median over axes; NaN if there is one."""
    x = array_of(a)
    axes = normal_axes(axis, x.ndim)
    size = number(_count(x, axes))
    places = (convert([at], I64) for at in ((size - 1) // 2, size // 2))
    result = _middle(size, *_rows_at(x, axes, *places))
    missing = any_(np.isnan(x), axes) if is_inexact(x.dtype) else convert(size == 0, BOOL)
    result = wrap(read(choose(missing, convert(np.nan, result.dtype), result)))
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
    count = sum_(~np.isnan(x), axes)
    places = (at[None] for at in ((count - 1) // 2, count // 2))
    result = _middle(count, *_rows_at(x, axes, *places))
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
    q_dims, size = dims_of(q), _count(x, axes)
    others = tuple(d for k, d in enumerate(dims_of(x)) if k not in axes)
    if skip_nan and size == 0:
        empty = splat(np.nan, (*q_dims, *others), result_dtype(x, q))
        return into(_kept(wrap(empty), q_dims, dims_of(x), axes, keepdims), out, "unsafe")
    if not isinstance(size, int) or size == 0:
        words = "index -1 is out of bounds for axis 0 with size 0"
        ask(convert(number(size) != 0, BOOL), words, "IndexError")
    flat = with_dims(q, (size_of(q_dims), *(1,) * len(others)))
    has_nan = is_inexact(x.dtype)
    count = sum_(~np.isnan(x), axes) if skip_nan and has_nan else number(size)
    if skip_nan and has_nan and is_inexact(q.dtype):
        count = convert(count, q.dtype)
    result = _interpolated(x, axes, count, flat, method, weak_q)
    if has_nan:
        missing = count == 0 if skip_nan else any_(np.isnan(x), axes)
        result = choose(missing, convert(np.nan, result.dtype), result)
    result = wrap(read(with_dims(result, (*q_dims, *others))))
    return into(_kept(result, q_dims, dims_of(x), axes, keepdims), out, "unsafe")


def _interpolated(
    x: Array, axes: tuple[int, ...], count: Any, q: Array, method: str, weak_q: bool
) -> Array:
    at = _POSITIONS[method](count, q)
    if at.dtype.kind in "iu":
        return _rows_at(x, axes, at)[0]
    last = count - 1
    below, above = at < 0, at >= last
    low = choose(above, last, choose(below, 0.0, np.floor(at)))
    high = choose(above, last, choose(below, 0.0, np.floor(at) + 1))
    previous, following = _rows_at(x, axes, low.astype(I64), high.astype(I64))
    start = choose(above, -1.0, low)
    gamma = _GAMMAS.get(method, lambda gamma, at: gamma)(at - start, at).astype(at.dtype)
    near, rest = gamma >= 0.5, 1 - gamma
    if weak_q:  # a Python number in NumPy, rounded where it meets the elements
        gamma, rest = (part.astype(result_dtype(x, 1.0)) for part in (gamma, rest))
    gap = following - previous
    return choose(near, following - gap * rest, previous + gap * gamma)


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
