"""Covariance, convolution, polynomials, functions along axes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.calls import call as call_user
from dsl.frontend.functions.arguments import (
    array_of,
    ask,
    box,
    common,
    convert,
    counter,
    dims_of,
    gather_axis,
    is_symbolic,
    normal_axis,
    number,
    result_dtype,
    splat,
    vector_of,
    with_dims,
)
from dsl.frontend.functions.creation import array
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.grids import vander
from dsl.frontend.functions.join import concatenate, stack
from dsl.frontend.functions.moments import average
from dsl.frontend.functions.reduce import sum_
from dsl.frontend.functions.shape import atleast_1d, moveaxis
from dsl.frontend.library import implements
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.sequences import each_of_many
from dsl.frontend.traced import Traced, emit, fresh, lift, read, wrap
from dsl.ir.dims import DimLike
from dsl.ir.types import size_of

Array = Any
F64 = np.dtype(np.float64)


# -- covariance ----------------------------------------------------------------------------------------------------


@implements("cov")
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    """Return the covariance matrix of variables in rows."""
    x = _variables(m, y, rowvar, dtype)
    if dims_of(x)[0] == 0:
        return fresh(splat(0, (0, 0), F64))
    free = (0 if bias else 1) if ddof is None else ddof
    weights = _cov_weights(fweights, aweights)
    center, total = average(x, axis=1, weights=weights, returned=True)
    total = total[0]
    if weights is None:
        factor = number(dims_of(x)[1]) - free
    elif free == 0:
        factor = total
    elif aweights is None:
        factor = total - free
    else:
        factor = total - free * sum_(weights * aweights) / total
    factor = np.maximum(np.multiply(lift(factor), 1.0), 0.0)
    x = x - center[:, None]
    scaled = x if weights is None else x * weights
    product = x @ np.conj(scaled.T)
    return np.squeeze(product * convert(np.true_divide(1, factor), product.real.dtype))


def _variables(m: Any, y: Any, rowvar: bool, dtype: Any) -> Array:
    first = array_of(m)
    second = None if y is None else array_of(y)
    for name, x in (("m", first), ("y", second)):
        if x is not None and x.ndim > 2:
            raise ShapeError(f"{name} has more than 2 dimensions", location=here())
    given = [first] if second is None else [first, second]
    target = result_dtype(*(x.dtype for x in given), F64) if dtype is None else np.dtype(dtype)
    rows = array(first, target, ndmin=2)
    rows = rows.T if not rowvar and first.ndim != 1 else rows
    if second is None:
        return rows
    other = array(second, target, ndmin=2)
    other = other.T if not rowvar and dims_of(other)[0] != 1 else other
    return concatenate([rows, other], 0)


def _cov_weights(fweights: Any, aweights: Any) -> Any:
    if fweights is not None:
        counts = convert(fweights, F64)
        ask(np.all(counts == np.rint(counts)), "fweights must be integer", "TypeError")
        ask(np.all(counts >= 0), "fweights cannot be negative")
        return counts if aweights is None else counts * _cov_weights(None, aweights)
    if aweights is None:
        return None
    weights = convert(aweights, F64)
    ask(np.all(weights >= 0), "aweights cannot be negative")
    return weights


@implements("corrcoef")
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the matrix of correlation coefficients."""
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    spread = np.sqrt(np.diagonal(c).real)
    c = c / spread[:, None] / spread[None, :]
    if c.dtype.kind == "c":
        return emit("complex", np.clip(c.real, -1, 1), np.clip(c.imag, -1, 1))
    return np.clip(c, -1, 1)


# -- convolution ---------------------------------------------------------------------------------------------------

# Up to this many taps a convolution is a sum of shifted slices, which fuses into one loop without gathers.
_UNROLLED_TAPS = 16


@implements("correlate")
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Return the cross-correlation of two vectors."""
    x, taps = common(vector_of(a), vector_of(v))
    _refuse_empty(x, taps)
    return _correlate(x, np.conj(taps) if taps.dtype.kind == "c" else taps, mode)


@implements("convolve")
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Return the convolution of two vectors."""
    x, taps = common(atleast_1d(array_of(a)), atleast_1d(array_of(v)))
    _refuse_empty(x, taps)
    x, taps = vector_of(x), vector_of(taps)
    if _shorter(x, taps):
        x, taps = taps, x
    return _correlate(x, taps[::-1], mode)


def _refuse_empty(x: Array, taps: Array) -> None:
    for vector, name in ((x, "a"), (taps, "v")):
        if dims_of(vector)[0] == 0:
            raise ShapeError(f"{name} cannot be empty", location=here())


def _shorter(x: Array, taps: Array) -> bool:
    n, m = dims_of(x)[0], dims_of(taps)[0]
    return isinstance(n, int) and isinstance(m, int) and n < m


def _correlate(x: Array, taps: Array, mode: str) -> Array:
    if mode not in ("valid", "same", "full"):
        text = f"mode must be one of 'valid', 'same', or 'full' (got '{mode}')"
        raise ShapeError(text, location=here())
    if _shorter(x, taps):
        return _correlate(taps, x, mode)[::-1].copy()
    n, m = dims_of(x)[0], dims_of(taps)[0]
    left, right = {"valid": (0, 0), "same": (m // 2, m - m // 2 - 1), "full": (m - 1, m - 1)}[mode]
    if mode != "full" and is_symbolic(n, m):
        ask(
            np.less_equal(lift(number(m)), number(n)),
            f"mode='{mode}' for sizes that vary needs a first operand that is not shorter: "
            "exchange the operands, or compile for each size (`dsl.jit(dynamic=False)`)",
        )
    length = n + left + right - m + 1
    if isinstance(m, int) and m <= _UNROLLED_TAPS:
        parts = [_placed(x * taps[k], left - k, length) for k in range(m)]
        return functools.reduce(operator.add, parts)
    padded = fresh(
        current_scope().emit("pad", read(x), read(convert(0, x.dtype)), low=(left,), high=(right,))
    )
    place = with_dims(counter(length), (length, 1)) + with_dims(counter(m), (1, m))
    products = gather_axis(padded, place, 0) * taps
    if mode == "valid":
        return emit("sum", products, axes=(1,))
    # No zero of the padding meets a NaN or an infinity.
    inside = (place >= number(left)) & (place < number(left + n))
    return emit("sum", choose(inside, products, convert(0, x.dtype)), axes=(1,))


def _placed(part: Array, offset: Any, length: DimLike) -> Array:
    """Return a vector put at `offset` of a vector of zeros, cut to `length`; no zero meets a NaN."""
    size = dims_of(part)[0]
    cut = max(-offset, 0)
    end = length - size - offset
    over = -end if isinstance(end, int) and end < 0 else 0
    kept = box(part, 0, cut, size - cut - over)
    low, high = max(offset, 0), 0 if over else end
    zero = splat(0, (), part.dtype)
    return fresh(current_scope().emit("pad", read(kept), zero, low=(low,), high=(high,)))


# -- polynomials ---------------------------------------------------------------------------------------------------


@implements("polyval")
def polyval(p: Any, x: Any) -> Any:
    """Evaluate a polynomial given by its coefficients, highest first."""
    coefficients, at = array_of(p), array_of(x)
    y: Any = np.zeros_like(at)
    for coefficient in list(coefficients):
        y = y * at + coefficient
    return y


def _leading_zeros(x: Array, count: int) -> Array:
    if count <= 0:
        return x
    return concatenate([fresh(splat(0, (count,), x.dtype)), x])


def _aligned(a1: Any, a2: Any) -> tuple[Array, Array]:
    one, two = atleast_1d(array_of(a1)), atleast_1d(array_of(a2))
    gap = len(two) - len(one)
    return _leading_zeros(one, gap), _leading_zeros(two, -gap)


@implements("polyadd")
def polyadd(a1: Any, a2: Any) -> Any:
    """Add two polynomials."""
    one, two = _aligned(a1, a2)
    return one + two


@implements("polysub")
def polysub(a1: Any, a2: Any) -> Any:
    """Subtract two polynomials."""
    one, two = _aligned(a1, a2)
    return one - two


@implements("polymul")
def polymul(a1: Any, a2: Any) -> Any:
    """Multiply two polynomials; leading zeros stay."""
    return convolve(a1, a2)


@implements("polyder")
def polyder(p: Any, m: Any = 1) -> Any:
    """Return the m-th derivative of a polynomial."""
    order = int(m)
    if order < 0:
        raise ShapeError("Order of derivative must be positive (see polyint)", location=here())
    x = array_of(p)
    for _ in range(order):
        n = number(dims_of(x)[0])
        x = x[:-1] * (
            n - 1 - np.arange(n)[:-1] if isinstance(n, int) else n - 1 - counter(dims_of(x)[0])[:-1]
        )
    return x


@implements("polyint")
def polyint(p: Any, m: Any = 1, k: Any = None) -> Any:
    """Return the m-th integral of a polynomial."""
    order = int(m)
    if order < 0:
        raise ShapeError("Order of integral must be positive (see polyder)", location=here())
    constants = (
        [0.0] * order if k is None else list(k) if isinstance(k, (list, tuple)) else [k] * order
    )
    if len(constants) < order:
        text = "k must be a scalar or a rank-1 array of length 1 or >m."
        raise ShapeError(text, location=here())
    x = array_of(p)
    for constant in constants[:order]:
        n = number(dims_of(x)[0])
        x = concatenate([x / (n - counter(dims_of(x)[0])), convert([constant], F64)])
    return x


@implements("polyfit")
def polyfit(
    x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """Fit a polynomial of a given degree by least squares."""
    order = int(deg) + 1
    at, values = array_of(x) + 0.0, array_of(y) + 0.0
    if order < 1:
        raise ShapeError("expected deg >= 0", location=here())
    if at.ndim != 1:
        raise TypeRuleError("expected 1D vector for x", location=here())
    lhs, rhs = vander(at, order), values
    if w is not None:
        weights = array_of(w) + 0.0
        lhs = lhs * weights[:, None]
        rhs = rhs * (weights[:, None] if rhs.ndim == 2 else weights)
    limit = number(dims_of(at)[0]) * float(np.finfo(at.dtype).eps) if rcond is None else rcond
    scale = np.sqrt((lhs * lhs).sum(axis=0))
    found, residuals, rank, singular = np.linalg.lstsq(lhs / scale, rhs, limit)
    fit = (found.T / scale).T
    if full:
        return fit, residuals, rank, singular, limit
    return (fit, _fit_covariance(lhs / scale, scale, residuals, rhs, cov)) if cov else fit


def _fit_covariance(lhs: Any, scale: Any, residuals: Any, rhs: Any, cov: Any) -> Any:
    """Return the covariance of the coefficients; "unscaled" leaves out the spread of the residuals."""
    base = np.linalg.inv(lhs.T @ lhs) / np.outer(scale, scale)
    count, order = lhs.shape
    factor = 1
    if not (isinstance(cov, str) and cov == "unscaled"):
        if not isinstance(count, Traced) and count <= order:
            text = (
                "the number of data points must exceed order to scale the covariance matrix, which "
                'cov="unscaled" does not'
            )
            raise ShapeError(text, location=here())
        factor = residuals / (count - order)
    return base * factor if rhs.ndim == 1 else base[:, :, None] * factor


# -- functions along axes ------------------------------------------------------------------------------------------


@implements("apply_along_axis")
def apply_along_axis(func1d: Any, axis: Any, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function on each vector along an axis; over many vectors by a loop of the program."""
    x = array_of(arr)
    axis = normal_axis(axis, x.ndim)
    rest = tuple(d for k, d in enumerate(dims_of(x)) if k != axis)
    count = size_of(rest)
    if not isinstance(count, int):
        raise ShapeError(
            "apply_along_axis needs the other sizes known when tracing", location=here()
        )
    if count == 0:
        raise ShapeError(
            "Cannot apply_along_axis when any iteration dimensions are 0", location=here()
        )
    rows = with_dims(moveaxis(x, axis, -1), (count, dims_of(x)[axis]))
    joined = _results_of(rows, lambda row: array_of(call_user(func1d, row, *args, **kwargs)))
    shaped = with_dims(joined, (*rest, *dims_of(joined)[1:]))
    inner = joined.ndim - 1
    last = len(rest)
    order = (*range(axis), *range(last, last + inner), *range(axis, last))
    return wrap(read(shaped.transpose(order))) if shaped.ndim else shaped


def _results_of(rows: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function gives for each row, stacked; the dtype is that of the first, as in NumPy."""
    made = each_of_many(rows, rows, lambda some: [function(row) for row in some], list)
    if isinstance(made, TracedList):
        return made.array()
    return stack([convert(result, made[0].dtype) for result in made])


@implements("apply_over_axes")
def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Apply a function over axes one after the other, keeping the rank."""
    x = array_of(a)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        place = normal_axis(axis, x.ndim)
        result = call_user(func, x, place)
        x = result if result.ndim == x.ndim else np.expand_dims(result, place)
    return x
