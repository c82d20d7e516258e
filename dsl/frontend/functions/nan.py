"""Reductions that leave NaN out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    array_of,
    ask,
    convert,
    into,
    is_inexact,
)
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.moments import correction_of, mean, share, var
from dsl.frontend.functions.reduce import (
    all_,
    any_,
    argmax,
    argmin,
    max_,
    min_,
    prod,
    running,
    sum_,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    read,
    wrap,
)
from dsl.ir.types import I64

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


def _without_nan(x: Array, fill: Any) -> Array:
    return choose(np.isnan(x), convert(fill, x.dtype), x) if is_inexact(x.dtype) else x


@implements("nansum")
def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Add the elements that are not NaN."""
    return sum_(_without_nan(array_of(a), 0), axis, dtype, out, keepdims, initial, where)


@implements("nanprod")
def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Multiply the elements that are not NaN."""
    return prod(_without_nan(array_of(a), 1), axis, dtype, out, keepdims, initial, where)


def _valid(x: Array, where: Any) -> Array:
    flags = ~np.isnan(x)
    return flags if where is NoValue or where is True else flags & where


def _require_inexact(dtype: Any) -> None:
    if dtype is not None and not is_inexact(np.dtype(dtype)):
        raise TypeRuleError("If a is inexact, then dtype must be inexact", location=here())


@implements("nanmean")
def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    *,
    where: Any = NoValue,
) -> Any:
    """Return the mean of the elements that are not NaN."""
    x = array_of(a)
    if not is_inexact(x.dtype):
        return mean(x, axis, dtype, out, keepdims, where=where)
    _require_inexact(dtype)
    total = sum_(_without_nan(x, 0), axis, dtype, None, keepdims, where=where)
    count = sum_(_valid(x, where), axis, I64, None, keepdims)
    return into(share(total, count), out, "unsafe")


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
        return var(
            x, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction
        )
    _require_inexact(dtype)
    valid = _valid(x, where)
    center = nanmean(x, axis, dtype, None, True, where=where) if mean is NoValue else mean
    apart = choose(valid, x - center, convert(0, x.dtype))
    squares = (
        np.square(apart.real) + np.square(apart.imag) if x.dtype.kind == "c" else np.square(apart)
    )
    free = sum_(valid, axis, I64, None, keepdims) - correction_of(ddof, correction)
    result = share(sum_(squares, axis, dtype, None, keepdims), free)
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
    spread = nanvar(
        a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction
    )
    return into(np.sqrt(spread), out, "unsafe")


def _nan_extremum(
    extremum: Callable[..., Any], sign: float, a: Any, axis: Any, out: Any, keepdims: Any, rest: Any
) -> Any:
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
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Return the largest element that is not NaN."""
    return _nan_extremum(max_, -1.0, a, axis, out, keepdims, (initial, where))


@implements("nanmin")
def nanmin(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Return the smallest element that is not NaN."""
    return _nan_extremum(min_, 1.0, a, axis, out, keepdims, (initial, where))


def _nan_arg(
    arg: Callable[..., Any], sign: float, a: Any, axis: Any, out: Any, keepdims: Any
) -> Any:
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


@implements("nancumsum")
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running sums that skip NaN."""
    return running("cumsum", _without_nan(array_of(a), 0), axis, dtype, out)


@implements("nancumprod")
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running products that skip NaN."""
    return running("cumprod", _without_nan(array_of(a), 1), axis, dtype, out)
