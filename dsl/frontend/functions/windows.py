"""Sliding windows, bits of bytes, and reductions over segments."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.bounds import require_inside
from dsl.frontend.functions.arguments import array_of, ask, flat_view
from dsl.frontend.library import IMPLEMENTATIONS, implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.strided import strided
from dsl.frontend.strides import contiguous, is_contiguous
from dsl.frontend.traced import _FUNCTIONS, _UFUNCS, Traced, lift, normalise_axis, read
from dsl.frontend.views import Windowed
from dsl.ir.dims import DimLike
from dsl.ir.types import I64

__all__ = ["as_strided", "packbits", "reduceat", "sliding_window_view", "unpackbits"]


@implements("sliding_window_view")
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Traced:
    """Return a view of all windows of a shape, as new trailing axes; it is not written, `writeable` or not."""
    traced = array_of(x)
    sizes = tuple(window_shape) if isinstance(window_shape, (tuple, list)) else (window_shape,)
    axes = _window_axes(traced, sizes, axis)
    for size, at in zip(sizes, axes, strict=True):
        traced = _windows(traced, Windowed(at, int(size), writeable))
    return traced  # type: ignore[no-any-return]


IMPLEMENTATIONS[np.lib.stride_tricks.sliding_window_view] = sliding_window_view


def _window_axes(x: Traced, sizes: tuple[Any, ...], axis: Any) -> list[int]:
    if axis is None:
        axes = list(range(x.ndim))
    else:
        axes = [normalise_axis(a, x.ndim) for a in (axis if isinstance(axis, tuple) else (axis,))]
    if len(axes) != len(sizes):
        raise ShapeError(
            f"Must provide matching length window_shape and axis; got {len(sizes)} window_shape elements and "
            f"{len(axes)} axes elements.",
            location=here(),
        )
    return axes


def _windows(x: Traced, view: Windowed) -> Traced:
    count = x.shape[view.axis] - view.size + 1
    text = "window shape cannot be larger than input array shape"
    if isinstance(count, int) and count < 1:
        raise ShapeError(text, location=here())
    if isinstance(count, Traced):
        ask(np.greater(count, 0), text)
    return x._view(view)


@implements("as_strided")
def as_strided(
    x: Any, shape: Any = None, strides: Any = None, subok: bool = False, writeable: bool = True
) -> Any:
    """Return a view of the elements at even steps through the memory of an array, all of them in it."""
    traced = array_of(x)
    shape = traced.shape if shape is None else tuple(map(operator.index, shape))
    in_a_row = is_contiguous(traced.shape, traced.strides, traced.itemsize)
    if strides is None:
        strides = contiguous(shape, traced.itemsize) if in_a_row else traced.strides
    if len(shape) != len(strides):
        raise ShapeError("mismatch in length of strides and shape", location=here())
    seen = flat_view(traced) if in_a_row else traced  # a step may pass the end of a row
    view = strided(seen.shape, seen.strides, shape, tuple(map(operator.index, strides)), writeable)
    if view is None:
        raise UnsupportedError(
            f"as_strided with shape {shape} and strides {strides} goes beyond or between the elements of an array with shape "
            f"{traced.shape} and strides {traced.strides}",
            location=here(), remedy="use `sliding_window_view`, slices or indices",
        )  # fmt: skip
    return seen._view(view)


IMPLEMENTATIONS[np.lib.stride_tricks.as_strided] = as_strided


@implements("unpackbits")
def unpackbits(a: Any, axis: Any = None, count: Any = None, bitorder: str = "big") -> Traced:
    """Return the bits of bytes as an array of zeros and ones."""
    traced = _bytes(a)
    if axis is None:
        traced, axis = traced.reshape(-1), 0
    axis = normalise_axis(axis, traced.ndim)
    shifts = (
        np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8)
    )
    moved = _FUNCTIONS["moveaxis"](traced, axis, -1)
    bits = (moved.reshape((*moved.shape, 1)) >> shifts) & np.uint8(1)
    flat = bits.reshape((*moved.shape[:-1], moved.shape[-1] * 8))
    if count is not None:
        missing = max(count - flat.shape[-1], 0)
        flat = _FUNCTIONS["pad"](flat, [(0, 0)] * (flat.ndim - 1) + [(0, missing)])[..., :count]
    return _FUNCTIONS["moveaxis"](flat, -1, axis)  # type: ignore[no-any-return]


def _bytes(a: Any) -> Traced:
    traced = lift(a)
    if traced.dtype != np.uint8:
        raise TypeRuleError("Expected an input array of unsigned byte data type", location=here())
    return traced


@implements("packbits")
def packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Traced:
    """Return zeros and ones packed into bytes, the last byte filled with zeros."""
    traced = lift(a) != 0
    if axis is None:
        traced, axis = traced.reshape(-1), 0
    axis = normalise_axis(axis, traced.ndim)
    moved = _FUNCTIONS["moveaxis"](traced, axis, -1).astype(np.uint8)
    missing = -moved.shape[-1] % 8
    padded = _FUNCTIONS["pad"](moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    grouped = padded.reshape((*moved.shape[:-1], (moved.shape[-1] + 7) // 8, 8))
    shifts = (
        np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8)
    )
    packed = _FUNCTIONS["sum"](grouped << shifts, axis=-1, dtype=np.uint8)
    return _FUNCTIONS["moveaxis"](packed, -1, axis)  # type: ignore[no-any-return]


def reduceat(
    ufunc: np.ufunc, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
) -> Any:
    """`ufunc.reduceat`: reduce over segments that start at `indices`; one that does not grow gives its first element."""
    from dsl.frontend.verbs import map

    if dtype is not None or out is not None:
        raise UnsupportedError(f"np.{ufunc.__name__}.reduceat with dtype= or out=", location=here())
    x = _FUNCTIONS["moveaxis"](lift(array), axis, 0)
    starts = lift(indices).astype(np.int64)
    if starts.type.shape == (0,):
        kind = ufunc.reduce(np.ones(1, x.dtype)).dtype
        return _FUNCTIONS["moveaxis"](x[:0].astype(kind), 0, axis)
    _require_starts(ufunc, starts, x.type.shape[0])
    ends = _FUNCTIONS["concatenate"]([starts[1:], _FUNCTIONS["array"]([x.shape[0]])])

    def segment(bounds: Any) -> Any:
        start, end = bounds
        return ufunc.reduce(x[start : np.maximum(end, start + 1)], axis=0)

    result = map(segment, (starts, ends))
    return _FUNCTIONS["moveaxis"](result, 0, axis) if x.ndim > 1 else result


def _require_starts(ufunc: np.ufunc, starts: Traced, size: DimLike) -> None:
    """Make the program raise for a segment that starts outside the axis; here NumPy counts no index from the end."""
    b = current_scope()
    message = f"index {{}} out-of-bounds in {ufunc.__name__}.reduceat [0, {{}})"
    require_inside(b, read(starts), b.constant(0, I64), b.size(size), message)


_UFUNCS["reduceat"] = reduceat
