"""Differences of neighbours, gradients and integrals by the trapezoidal rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    agree,
    along,
    array_of,
    ask,
    convert,
    dims_of,
    normal_axes,
    normal_axis,
    number,
    splat,
)
from dsl.frontend.functions.reduce import sum_
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    fresh,
    lift,
)
from dsl.ir.types import BOOL

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


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
    parts = [
        _extra(to_begin, x.dtype, "to_begin"),
        x[1:] - x[:-1],
        _extra(to_end, x.dtype, "to_end"),
    ]
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
        width = (
            along(diff(points), axis, values.ndim) if points.ndim == 1 else diff(points, axis=axis)
        )
    pairs = values[_at(axis, slice(1, None))] + values[_at(axis, slice(None, -1))]
    return sum_(width * pairs / 2.0, axis)


@implements("gradient")
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return the gradient by central differences, one-sided at the ends."""
    x = array_of(f)
    axes = (
        normal_axes(axis, x.ndim)
        if not isinstance(axis, tuple)
        else tuple(normal_axis(a, x.ndim) for a in axis)
    )
    spacings = _spacings(varargs, x, axes)
    if edge_order > 2:
        raise ShapeError("'edge_order' greater than 2 not supported", location=here())
    x = x.astype(F64) if x.dtype.kind in "iu" else x
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
    text = "when 1d, distances must match the length of the corresponding dimension"
    agree(dims_of(points)[0], size, text)
    return diff(points.astype(F64) if points.dtype.kind in "iu" else points)


def _slope(x: Array, axis: int, spacing: Any, edge_order: int) -> Array:
    size = dims_of(x)[axis]
    text = (
        "Shape of array too small to calculate a numerical gradient, at least (edge_order + 1) elements are "
        "required."
    )
    if isinstance(size, int) and size < edge_order + 1:
        raise ShapeError(text, location=here())
    if not isinstance(size, int):
        ask(np.greater(lift(number(size)), edge_order), text)
    uniform = lift(spacing).ndim == 0
    inner = _central(x, axis, spacing, uniform)
    first, last = (_one_sided if edge_order == 1 else _parabolic)(x, axis, spacing, uniform)
    parts = [convert(part, x.dtype) for part in (first, inner, last)]
    return np.concatenate(parts, axis=axis)


def _central(x: Array, axis: int, h: Any, uniform: bool) -> Array:
    before, here_, after = (
        x[_at(axis, k)] for k in (slice(None, -2), slice(1, -1), slice(2, None))
    )
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
