"""Counting elements in bins."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    agree,
    along,
    array_of,
    ask,
    convert,
    dims_of,
    gather_axis,
    is_inexact,
    number,
    result_dtype,
    splat,
    vector_of,
    with_dims,
)
from dsl.frontend.functions.creation import linspace
from dsl.frontend.functions.differences import diff
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.index import searchsorted
from dsl.frontend.functions.join import concatenate
from dsl.frontend.functions.reduce import max_, min_
from dsl.frontend.functions.shape import ravel
from dsl.frontend.functions.sort import argsort, sort
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Kind, Traced, as_dim, cast, concrete, emit, fresh, lift, read, wrap
from dsl.ir.dims import DimLike
from dsl.ir.types import I64, size_of

Array = Any
F64 = np.dtype(np.float64)


def _tally(index: Array, weights: Any, size: DimLike, dtype: np.dtype) -> Array:
    """Return the sum of weights, or the number of elements, for each index below `size`."""
    base = splat(0, (size,), dtype)
    ones = splat(1, dims_of(index), dtype) if weights is None else cast(read(weights), dtype)
    return fresh(current_scope().emit("scatter", base, ones, read(index), axes=(0,), mode="add"))


@implements("bincount")
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    """Count the occurrences of each non-negative integer, or add their weights."""
    values = vector_of(x)
    if values.dtype.kind not in "iub" and dims_of(values) != (0,):
        text = f"Cannot cast array data from {values.dtype!r} to dtype('int64') according to the rule 'safe'"
        raise TypeRuleError(text, location=here())
    values = convert(values, I64)
    least = operator.index(minlength) if not isinstance(minlength, Traced) else minlength
    if isinstance(least, int) and least < 0:
        raise ShapeError("'minlength' must not be negative", location=here())
    if isinstance(least, Traced):
        ask(np.greater_equal(least, 0), "'minlength' must not be negative")
    if weights is not None:
        weights = convert(vector_of(weights), F64)
        text = "The weights and list don't have the same length."
        agree(dims_of(weights)[0], dims_of(values)[0], text)
    ask(min_(values, initial=0) >= 0, "'list' argument must have no negative elements")
    size = as_dim(fresh(read(np.maximum(max_(values, initial=-1) + 1, least)), Kind.PYTHON))
    return _tally(np.maximum(values, 0), weights, size, I64 if weights is None else F64)


def _outer_edges(x: Array, bounds: Any) -> tuple[Any, Any]:
    """Return the first and last edge of bins, from the range argument or the data."""
    if bounds is not None:
        first, last = bounds
        _check_bounds(first, last)
    elif size_of(dims_of(x)) == 0:
        first, last = 0, 1
    else:
        first, last = min_(x), max_(x)
        if is_inexact(x.dtype):
            words = "autodetected range of [{0}, {1}] is not finite"
            ask(np.isfinite(first) & np.isfinite(last), words, values=(first, last))
    if not isinstance(first, Traced) and not isinstance(last, Traced):
        return (first - 0.5, last + 0.5) if first == last else (first, last)
    same = np.equal(first, last)
    return wrap(read(choose(same, first - 0.5, first))), wrap(read(choose(same, last + 0.5, last)))


def _check_bounds(first: Any, last: Any) -> None:
    if isinstance(first, Traced) or isinstance(last, Traced):
        ask(np.less_equal(first, last), "max must be larger than min in range parameter.")
        return
    if first > last:
        raise ShapeError("max must be larger than min in range parameter.", location=here())
    if not (np.isfinite(first) and np.isfinite(last)):
        raise ShapeError(f"supplied range of [{first}, {last}] is not finite", location=here())


def _uniform_edges(x: Array, bins: Any, bounds: Any) -> tuple[Array, tuple[Any, Any, int]]:
    count = _bin_count(bins)
    first, last = _outer_edges(x, bounds)
    dtype = result_dtype(*(lift(e).dtype for e in (first, last)), x.dtype)
    given = result_dtype(first, last, x)
    dtype = given if is_inexact(given) else result_dtype(dtype, F64)
    return linspace(first, last, count + 1, dtype=dtype), (first, last, count)


def _bin_count(bins: Any) -> int:
    try:
        count = operator.index(bins)
    except TypeError:
        raise TypeRuleError(
            "`bins` must be an integer, a string, or an array", location=here()
        ) from None
    if count < 1:
        raise ShapeError("`bins` must be positive, when an integer", location=here())
    return count


def _given_edges(bins: Any) -> Array:
    edges = array_of(bins)
    if edges.ndim != 1:
        raise ShapeError("`bins` must be 1d, when an array", location=here())
    words = "`bins` must increase monotonically, when an array"
    known = concrete(edges)
    if known is None:
        ask(np.all(edges[:-1] <= edges[1:]), words)
    elif np.any(known[:-1] > known[1:]):
        raise ShapeError(words, location=here())
    return edges


def _samples(a: Any, weights: Any) -> tuple[Array, Any]:
    x = array_of(a)
    if weights is not None:
        weights = array_of(weights)
        text = "weights should have the same shape as a."
        if x.ndim != weights.ndim:
            raise ShapeError(text, location=here())
        for one, other in zip(dims_of(x), dims_of(weights), strict=True):
            agree(one, other, text)
        weights = ravel(weights)
    x = ravel(x)
    return (x.astype(np.uint8) if x.dtype.kind == "b" else x), weights


def _is_count(bins: Any) -> bool:
    if isinstance(bins, str):
        raise TypeRuleError(
            f"bins={bins!r}: how many bins there are would depend on data", location=here(),
            remedy="give their number, or find the edges outside (`np.histogram_bin_edges`) and pass them in",
        )  # fmt: skip
    return lift(bins).ndim == 0


@implements("histogram_bin_edges")
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """Return the edges of the bins of a histogram."""
    x, _ = _samples(a, weights)
    return _uniform_edges(x, bins, range)[0] if _is_count(bins) else _given_edges(bins)


@implements("histogram")
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return how many elements, or what weight, falls into each bin, and the edges."""
    x, weights = _samples(a, weights)
    if _is_count(bins):
        edges, uniform = _uniform_edges(x, bins, range)
        counts = _uniform_counts(x, weights, edges, *uniform)
    else:
        edges = _given_edges(bins)
        counts = _edge_counts(x, weights, edges)
    if density:
        return counts / diff(edges).astype(F64) / counts.sum(), edges
    return counts, edges


def _uniform_counts(
    x: Array, weights: Any, edges: Array, first: Any, last: Any, count: int
) -> Array:
    keep = (x >= first) & (x <= last)
    at = x.astype(edges.dtype)
    low, high = convert(first, edges.dtype), convert(last, edges.dtype)
    position = (at - low) / (high - low) * count
    index = np.clip(choose(keep, position, convert(0, position.dtype)).astype(I64), 0, count - 1)
    index = index - (at < gather_axis(edges, index, 0))
    index = np.maximum(index, 0)
    index = index + ((at >= gather_axis(edges, index + 1, 0)) & (index != count - 1))
    dtype = I64 if weights is None else weights.dtype
    amounts = convert(keep, I64) if weights is None else choose(keep, weights, convert(0, dtype))
    return _tally(array_of(index), amounts, count, dtype)


def _edge_counts(x: Array, weights: Any, edges: Array) -> Array:
    order = argsort(x) if weights is not None else None
    ranked = sort(x) if order is None else gather_axis(x, order, 0)
    inner = searchsorted(ranked, edges[:-1], "left")
    last = searchsorted(ranked, edges[-1:], "right")
    below = concatenate([inner, last])
    if order is None:
        return diff(below)
    sums = emit("cumsum", gather_axis(weights, order, 0), axis=0)
    start = fresh(splat(0, (1,), weights.dtype))
    return diff(gather_axis(concatenate([start, sums]), below, 0))


@implements("histogramdd")
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return a histogram of points in several dimensions, and the edges."""
    columns = _columns(sample)
    rank = len(columns)
    choices = list(bins) if isinstance(bins, (list, tuple)) else [bins] * rank
    if len(choices) != rank:
        text = "The dimension of bins must be equal to the dimension of the sample x."
        raise ShapeError(text, location=here())
    bounds = [None] * rank if range is None else list(range)
    if len(bounds) != rank:
        raise ShapeError("range argument must have one entry per dimension", location=here())
    edges = [_axis_edges(*item) for item in zip(columns, choices, bounds, strict=True)]
    counts = _grid_counts(columns, edges, weights)
    if density:
        total = counts.sum()
        for axis, edge in enumerate(edges):
            width = diff(edge)
            counts = counts / along(width, axis, rank)
        counts = counts / total
    return counts, edges


def _columns(sample: Any) -> list[Array]:
    if isinstance(sample, (list, tuple)):
        dtype = result_dtype(*map(array_of, sample))
        return [ravel(convert(s, dtype)) for s in sample]
    points = array_of(sample)
    return [points[:, k] for k in range(len(points.T))] if points.ndim == 2 else [ravel(points)]


def _axis_edges(x: Array, bins: Any, bounds: Any) -> Array:
    if not _is_count(bins):
        return _given_edges(bins)
    first, last = _outer_edges(x, bounds)
    return linspace(first, last, _bin_count(bins) + 1)


def _grid_counts(columns: list[Array], edges: list[Array], weights: Any) -> Array:
    flat: Any = 0
    inside: Any = True
    sizes = [dims_of(edge)[0] - 1 for edge in edges]
    for x, edge, size in zip(columns, edges, sizes, strict=True):
        at = searchsorted(edge, x, "right") - (x == edge[-1]) - 1
        inside = np.logical_and(inside, (at >= 0) & (at < number(size)))
        flat = flat * number(size) + np.clip(at, 0, number(size - 1))
    given = convert(1.0 if weights is None else weights, F64)
    amounts = choose(inside, given, 0.0)
    return with_dims(_tally(array_of(flat), amounts, size_of(tuple(sizes)), F64), tuple(sizes))


@implements("histogram2d")
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return a histogram of points in the plane, and the edges."""
    one, two = array_of(x), array_of(y)
    if one.type.is_static() and two.type.is_static() and dims_of(one) != dims_of(two):
        raise ShapeError("x and y must have the same length.", location=here())
    sequence = isinstance(bins, (list, tuple)) or lift(bins).ndim > 0
    shared = sequence and (not isinstance(bins, (list, tuple)) or len(bins) not in (1, 2))
    counts, (first, second) = histogramdd(
        [one, two], [bins, bins] if shared else bins, range, density, weights
    )
    return counts, first, second
