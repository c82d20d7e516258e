"""Padding arrays on the sides of their axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    array_of,
    box,
    convert,
    counter,
    dims_of,
    gather_axis,
    is_symbolic,
    not_negative,
    number,
    plain,
    splat,
)
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.functions.join import concatenate, flip
from dsl.frontend.functions.shape import squeeze
from dsl.frontend.library import implements
from dsl.frontend.numbers import assigned
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    as_dim,
    constant,
    fresh,
    lift,
    read,
)
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.graph import Value
from dsl.ir.types import Shape

Array = Any


@implements("pad")
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Pad an array on both sides of each axis."""
    x = array_of(array)
    widths = _pad_widths(pad_width, x.ndim)
    if callable(mode):
        raise TypeRuleError(
            "pad with a function as mode is not supported on traced values", location=here()
        )
    if mode not in _PAD_OPTIONS:
        raise ShapeError(f"mode '{mode}' is not supported", location=here())
    unknown = set(kwargs) - _PAD_OPTIONS[mode]
    if unknown:
        raise ShapeError(
            f"unsupported keyword arguments for mode '{mode}': {unknown}", location=here()
        )
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, kwargs.get("constant_values", 0))
    for axis, (low, high) in enumerate(widths):
        if (low, high) != (0, 0):
            x = _pad_axis(x, axis, low, high, mode, kwargs)
    return x if x is not array else x.copy()


_PAD_OPTIONS: dict[Any, set[str]] = {
    "constant": {"constant_values"}, "empty": set(), "edge": set(), "wrap": set(), "linear_ramp": {"end_values"},
    "reflect": {"reflect_type"}, "symmetric": {"reflect_type"}, "maximum": {"stat_length"},
    "minimum": {"stat_length"}, "mean": {"stat_length"}, "median": {"stat_length"},
}  # fmt: skip


def _pairs(given: Any, rank: int) -> list[tuple[Any, Any]]:
    """Return a per-axis pair of options from a number, a pair, or a pair per axis."""
    if isinstance(given, dict):
        found = {k % rank: v for k, v in given.items()}
        return [_pair(found.get(k, 0)) for k in range(rank)]
    if not isinstance(given, (tuple, list, np.ndarray)) or (
        isinstance(given, np.ndarray) and given.ndim == 0
    ):
        return [(given, given)] * rank
    items = list(given)
    if not any(isinstance(item, (tuple, list, np.ndarray)) for item in items):
        return [(items[0], items[-1])] * rank
    if len(items) == 1:
        return [_pair(items[0])] * rank
    if len(items) != rank:
        text = f"operands could not be broadcast together with remapped shapes [original->remapped]: ({len(items)},2)"
        raise ShapeError(f"{text}  and requested shape ({rank},2)", location=here())
    return [_pair(item) for item in items]


def _pair(item: Any) -> tuple[Any, Any]:
    return (item[0], item[-1]) if isinstance(item, (tuple, list, np.ndarray)) else (item, item)


def _pad_widths(pad_width: Any, rank: int) -> list[tuple[DimLike, DimLike]]:
    def width(given: Any) -> DimLike:
        return not_negative(as_dim(given), "index can't contain negative values")

    return [(width(low), width(high)) for low, high in _pairs(pad_width, rank)]


def _pad_constant(x: Array, widths: list[tuple[DimLike, DimLike]], values: Any) -> Array:
    fills = _pairs(values, x.ndim)
    low, high = (tuple(pair[side] for pair in widths) for side in (0, 1))
    if plain(fills) and len({*itertools.chain(*fills)}) <= 1:
        fill = _fill(fills[0][0] if fills else 0, (), x.dtype)
        return fresh(current_scope().emit("pad", read(x), fill, low=low, high=high))
    for axis, (before, after) in enumerate(widths):
        x = _joined(
            x, axis, _band(x, axis, before, fills[axis][0]), _band(x, axis, after, fills[axis][1])
        )
    return x


def _band(x: Array, axis: int, width: DimLike, value: Any) -> Array:
    dims = tuple(width if k == axis else d for k, d in enumerate(dims_of(x)))
    return fresh(_fill(value, dims, x.dtype))


def _fill(value: Any, shape: Shape, dtype: np.dtype) -> Value:
    """Return an array full of a number, which NumPy makes a NumPy scalar before it stores it."""
    stored = constant(assigned(np.asarray(value)[()], dtype)) if plain(value) else value
    return splat(stored, shape, dtype)


def _joined(x: Array, axis: int, before: Array, after: Array) -> Array:
    parts = [part for part in (before, x, after) if dims_of(part)[axis] != 0]
    return concatenate(parts, axis) if parts else x


def _pad_axis(
    x: Array, axis: int, low: DimLike, high: DimLike, mode: str, options: dict[str, Any]
) -> Array:
    length = dims_of(x)[axis]
    if mode in ("edge", "reflect", "symmetric", "wrap") and length == 0:
        text = f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'"
        raise ShapeError(text, location=here())
    if mode in _STATISTICS:
        return _pad_statistic(x, axis, low, high, mode, options.get("stat_length"))
    if mode == "linear_ramp":
        return _pad_ramp(x, axis, low, high, options.get("end_values", 0))
    if options.get("reflect_type", "even") == "odd":
        return _pad_odd(x, axis, low, high, mode)
    if is_symbolic(length, low, high):
        before = _pad_positions(length, counter(low) - number(low), mode)
        after = _pad_positions(length, counter(high) + number(length), mode)
        return _joined(x, axis, gather_axis(x, before, axis), gather_axis(x, after, axis))
    positions = np.pad(np.arange(_known(length)), (low, high), mode=mode)  # type: ignore[call-overload]
    return from_runs(x, positions, axis)


def _known(dim: DimLike) -> int:
    assert isinstance(dim, int)
    return dim


def from_runs(x: Array, positions: np.ndarray, axis: int) -> Array:
    """Return `x` at constant positions along an axis, as joined slices where they form few runs."""
    runs = list(_runs(positions))
    if len(runs) > 16:
        return gather_axis(x, lift(positions), axis)
    pieces = [box(x, axis, *run) for run in runs]
    return concatenate(pieces, axis) if len(pieces) > 1 else pieces[0].copy()


def _runs(positions: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Split positions into runs (start, size, step) with a step of 1, -1 or 0."""
    start = 0
    values = positions.tolist()
    while start < len(values):
        end = start + 1
        step = values[end] - values[start] if end < len(values) else 1
        step = step if step in (1, -1, 0) else 1
        while end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        yield values[start], end - start, step
        start = end
    if not values:
        yield 0, 0, 1


def _pad_positions(length: DimLike, index: Array, mode: str) -> Array:
    """Return the places of a padding's elements, of which `index` says where they are: below 0 or past the last."""
    n = number(length)
    if mode == "edge":
        return np.clip(index, 0, n - 1)
    if mode == "wrap":
        return index % n
    period = np.maximum(2 * (n - 1), 1) if mode == "reflect" else 2 * n
    folded = index % period
    return choose(folded < n, folded, (period if mode == "reflect" else period - 1) - folded)


def _pad_odd(x: Array, axis: int, low: Any, high: Any, mode: str) -> Array:
    length: Any = dims_of(x)[axis]
    if is_symbolic(length, low, high) or max(low, high) > length - (1 if mode == "reflect" else 0):
        text = "odd reflection is supported up to the size of the axis, which must be known"
        raise ShapeError(text, location=here())
    skip = 1 if mode == "reflect" else 0
    first, last = box(x, axis, 0, 1), box(x, axis, length - 1, 1)
    before = 2 * first - flip(box(x, axis, skip, low), axis)
    after = 2 * last - flip(box(x, axis, length - high - skip, high), axis)
    return _joined(x, axis, before, after)


_STATISTICS = {"maximum": np.max, "minimum": np.min, "mean": np.mean, "median": np.median}


def _pad_statistic(
    x: Array, axis: int, low: DimLike, high: DimLike, mode: str, lengths: Any
) -> Array:
    spans = _pairs(lengths, x.ndim)[axis]
    statistic: Any = _STATISTICS[mode]
    bands = []
    for side, (width, span) in enumerate(zip((low, high), spans, strict=True)):
        whole = dims_of(x)[axis]
        size_ = whole if span is None else dim_min(int(span), whole)
        value = statistic(
            box(x, axis, 0 if side == 0 else whole - size_, size_), axis=axis, keepdims=True
        )
        value = convert(
            np.rint(value) if x.dtype.kind in "iu" and mode in ("mean", "median") else value,
            x.dtype,
        )
        dims = tuple(width if k == axis else d for k, d in enumerate(dims_of(x)))
        bands.append(fresh(current_scope().emit("broadcast_to", read(value), shape=dims)))
    return _joined(x, axis, *bands)


def _pad_ramp(x: Array, axis: int, low: Any, high: Any, end_values: Any) -> Array:
    first, last = _pairs(end_values, x.ndim)[axis]
    length = dims_of(x)[axis]
    edge = [squeeze(box(x, axis, k, 1), axis) for k in (0, length - 1)]
    integers = x.dtype.kind in "iu"
    bands = []
    for end, start, width in ((first, edge[0], low), (last, edge[1], high)):
        ramp = np.linspace(array_of(end), start, number(width), endpoint=False, axis=axis)
        bands.append(convert(np.floor(ramp) if integers else ramp, x.dtype))
    return _joined(x, axis, bands[0], flip(bands[1], axis))
