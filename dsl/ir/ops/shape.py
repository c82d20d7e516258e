"""Ops that move elements: broadcasting, reshaping, slicing, joining, padding, filling.

- No arithmetic on elements: every bit, NaN payloads included, arrives as it was. `iota` counts in int64 and
  converts, so narrow integers wrap.
- A box is given by `start`, `size` and `step` for each axis: element k of an axis is `x[start + step * k]`. Starts
  are not negative; steps may be negative or, for reading, 0. Boxes lie inside x, except that one without elements
  may lie anywhere.
- Sizes that are ints are checked when the graph is built, in NumPy's words; symbolic ones when it runs.
- Writes are values: `update_slice` returns x with the box replaced and leaves x as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np

from dsl.errors import InternalError, ShapeError
from dsl.ir.dims import DimLike
from dsl.ir.ops.rules import (
    ANY,
    I64S,
    NUMBERS,
    Attrs,
    Inputs,
    check_axis,
    check_dtype,
    differ,
    merge_dims,
    operands,
    refuse,
    require_rank,
    require_same_dtype,
    require_same_shape,
    shape_text,
)
from dsl.ir.ops.samples import draw, dtypes_of, one_operand
from dsl.ir.registry import Sample, Trait, op
from dsl.ir.types import DTYPES, I64, Shape, TensorType, scalar, size_of

PURE, VIEW, CHECKED, INDEXED = Trait.PURE, Trait.VIEW, Trait.CHECKED, Trait.INDEXED
Ints = tuple[int, ...]


# -- broadcast_to, reshape, transpose -----------------------------------------------------------------------------


def _broadcast_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("broadcast_to", inputs, x=ANY)
    shape = attrs["shape"]
    if _has_negative(shape):
        raise ShapeError("all elements of broadcast shape must be non-negative")
    if x.rank > len(shape):
        raise ShapeError("input operand has more dimensions than allowed by the axis remapping")
    aligned = zip(x.shape, shape[len(shape) - x.rank :])
    if any(own != 1 and differ(own, wanted) for own, wanted in aligned):
        raise ShapeError(
            "operands could not be broadcast together with remapped shapes [original->remapped]: "
            f"{shape_text(x.shape)}  and requested shape {shape_text(shape)}"
        )
    return x.with_shape(shape)


def _has_negative(shape: Shape) -> bool:
    return any(isinstance(dim, int) and dim < 0 for dim in shape)


def _reshape_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("reshape", inputs, x=ANY)
    shape, size = attrs["shape"], size_of(x.shape)
    if _has_negative(shape) or differ(size, size_of(shape)):
        raise ShapeError(f"cannot reshape array of size {size} into shape {shape_text(shape)}")
    return x.with_shape(shape)


def _transpose_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("transpose", inputs, x=ANY)
    axes = attrs["axes"]
    if len(axes) != x.rank:
        raise ShapeError("axes don't match array")
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError("repeated axis in transpose")
    return x.with_shape(x.shape[axis] for axis in axes)


op("broadcast_to", "x -> y", doc="x repeated along new and size-1 axes to `shape`.",
   type=_broadcast_type, numpy=lambda x, shape: np.broadcast_to(x, shape), traits={PURE, VIEW},
   samples=lambda rng: one_operand(rng, ANY, {"shape": (2, 3)}, {"shape": (4, 2, 3)}))  # fmt: skip
op("reshape", "x -> y", doc="The elements of x in C order, in another `shape`.",
   type=_reshape_type, numpy=lambda x, shape: x.reshape(shape), traits={PURE, VIEW},
   samples=lambda rng: one_operand(rng, ANY, {"shape": (6,)}, {"shape": (3, 1, 2)}))  # fmt: skip
op("transpose", "x -> y", doc="x with axis k of the result being axis `axes[k]` of x.",
   type=_transpose_type, numpy=lambda x, axes: np.transpose(x, axes), traits={PURE, VIEW},
   samples=lambda rng: one_operand(rng, ANY, {"axes": (1, 0)}, {"axes": (0, 1)}))  # fmt: skip


# -- boxes --------------------------------------------------------------------------------------------------------


def _check_box(name: str, x: TensorType, start: Shape, size: Shape, step: Ints) -> None:
    if not len(start) == len(size) == len(step) == x.rank:
        raise InternalError(f"{name}: start {start}, size {size}, step {step} do not fit {x}")
    for axis, dim in enumerate(x.shape):
        _check_span(name, axis, dim, start[axis], size[axis], step[axis])


def _check_span(
    name: str, axis: int, dim: DimLike, start: DimLike, size: DimLike, step: int
) -> None:
    if _negative(size):
        raise ShapeError(f"{name}: size {size} of axis {axis} is negative")
    if not isinstance(size, int) or size == 0:
        return
    for end in (start, start + (size - 1) * step):
        if _negative(end) or _negative(dim - 1 - end):
            raise ShapeError(
                f"{name}: index {end} is out of bounds for axis {axis} with size {dim}"
            )


def _negative(dim: DimLike) -> bool:
    """Tell whether a dim is negative for certain."""
    return isinstance(dim, int) and dim < 0


def _span(start: int, size: int, step: int, dim: int, axis: int) -> slice:
    """Return the Python slice of one axis of a box whose step is not 0; raise if it leaves the axis."""
    if size <= 0:
        return slice(0, 0)
    last = start + step * (size - 1)
    for end in (start, last):
        if not 0 <= end < dim:
            raise IndexError(f"index {end} is out of bounds for axis {axis} with size {dim}")
    stop = last + (1 if step > 0 else -1)
    return slice(start, stop if stop >= 0 else None, step)


def _box(shape: Ints, start: Ints, size: Ints, step: Ints) -> tuple[slice, ...]:
    return tuple(map(_span, start, size, step, shape, range(len(shape))))


def _slice_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("slice", inputs, x=ANY)
    _check_box("slice", x, attrs["start"], attrs["size"], attrs["step"])
    return x.with_shape(attrs["size"])


def _slice(x: np.ndarray, start: Ints, size: Ints, step: Ints) -> np.ndarray:
    """A step of 0 repeats one element: take that, then broadcast."""
    distinct = tuple(min(n, 1) if s == 0 else n for n, s in zip(size, step))
    box = _box(x.shape, start, distinct, tuple(s or 1 for s in step))
    return np.broadcast_to(x[box], size)


def _update_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    x, v = operands("update_slice", inputs, x=ANY, v=ANY)
    require_same_dtype("update_slice", x=x, v=v)
    require_rank("update_slice", "v", v, x.rank)
    _refuse_zero_step("update_slice", attrs["step"])
    _check_box("update_slice", x, attrs["start"], v.shape, attrs["step"])
    return x


def _refuse_zero_step(name: str, steps: Ints) -> None:
    if 0 in steps:
        refuse(name, "step", "other than 0", steps)


def _update(x: np.ndarray, v: np.ndarray, start: Ints, step: Ints) -> np.ndarray:
    out = np.array(x, order="C", copy=True)
    out[_box(x.shape, start, v.shape, step)] = v
    return out


def _dynamic_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    x, start = operands("dynamic_slice", inputs, x=ANY, start=I64S)
    require_rank("dynamic_slice", "start", start, 0)
    axis, size, step = (
        check_axis("dynamic_slice", attrs["axis"], x), attrs["size"], attrs.get("step", 1)
    )  # fmt: skip
    _check_reach("dynamic_slice", axis, x.shape[axis], size, step)
    return x.with_shape(_replaced(x.shape, axis, size))


def _check_reach(name: str, axis: int, dim: DimLike, size: DimLike, step: int) -> None:
    """Refuse a box that is too long for its axis wherever it starts."""
    if _negative(size):
        raise ShapeError(f"{name}: size {size} of axis {axis} is negative")
    if isinstance(size, int) and size > 0 and _negative(dim - 1 - (size - 1) * abs(step)):
        raise ShapeError(
            f"{name}: {size} elements at step {step} do not fit axis {axis} with size {dim}"
        )


def _replaced(shape: Shape, axis: int, size: DimLike) -> Shape:
    return shape[:axis] + (size,) + shape[axis + 1 :]


def _along(x: np.ndarray, axis: int, start: Any, size: int, step: int) -> tuple[slice, ...]:
    """Return the index of a box along one axis that is whole along the others."""
    span = _span(int(start), size, step, x.shape[axis], axis)
    return (slice(None),) * axis + (span,)


def _dynamic_slice(
    x: np.ndarray, start: np.ndarray, axis: int, size: int, step: int = 1
) -> np.ndarray:
    if step == 0:
        one = x[_along(x, axis, start, min(size, 1), 1)]
        return np.broadcast_to(one, _replaced(x.shape, axis, size))  # type: ignore[arg-type]
    return x[_along(x, axis, start, size, step)]


def _update_dynamic_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    name = "update_dynamic_slice"
    x, v, start = operands(name, inputs, x=ANY, v=ANY, start=I64S)
    require_same_dtype(name, x=x, v=v)
    require_rank(name, "start", start, 0)
    require_rank(name, "v", v, x.rank)
    axis, step = check_axis(name, attrs["axis"], x), attrs.get("step", 1)
    _refuse_zero_step(name, (step,))
    require_same_shape(name, "v", _replaced(x.shape, axis, v.shape[axis]), v.shape)
    _check_reach(name, axis, x.shape[axis], v.shape[axis], step)
    return x


def _update_dynamic(
    x: np.ndarray, v: np.ndarray, start: np.ndarray, axis: int, step: int = 1
) -> np.ndarray:
    out = np.array(x, order="C", copy=True)
    out[_along(x, axis, start, v.shape[axis], step)] = v
    return out


_BOXES: list[dict[str, Any]] = [
    {"start": (0, 1), "size": (2, 2), "step": (1, 1)},
    {"start": (1, 2), "size": (2, 2), "step": (-1, -2)},
    {"start": (1, 0), "size": (3, 2), "step": (0, 2)},
    {"start": (0, 3), "size": (2, 0), "step": (1, 1)},
]


def _update_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        x = draw(rng, dtype)
        yield Sample((x, draw(rng, dtype, (1, 2))), {"start": (1, 0), "step": (1, 2)})
        yield Sample((x, draw(rng, dtype, (2, 3))), {"start": (1, 2), "step": (-1, -1)})
        yield Sample((x, draw(rng, dtype, (2, 0))), {"start": (0, 3), "step": (1, 1)})


def _dynamic_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        x = draw(rng, dtype)
        yield Sample((x, np.array(1)), {"axis": 1, "size": 2, "step": 1})
        yield Sample((x, np.array(2)), {"axis": 1, "size": 2, "step": -2})
        yield Sample((x, np.array(1)), {"axis": 0, "size": 1})


def _update_dynamic_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        x, v = draw(rng, dtype), draw(rng, dtype, (2, 2))
        yield Sample((x, v, np.array(1)), {"axis": 1, "step": 1})
        yield Sample((x, v, np.array(2)), {"axis": 1, "step": -1})


op("slice", "x -> y", doc="The box of x given by `start`, `size` and `step` of each axis.",
   type=_slice_type, numpy=_slice, traits={PURE, VIEW},
   samples=lambda rng: one_operand(rng, ANY, *_BOXES))  # fmt: skip
op("update_slice", "x, v -> y", doc="x with the box at `start` with `step` replaced by v.",
   type=_update_type, numpy=_update, samples=_update_samples)  # fmt: skip
op("dynamic_slice", "x, start -> y", doc="The part of x of `size` along `axis` from `start` on.",
   type=_dynamic_type, numpy=_dynamic_slice, traits={PURE, VIEW, CHECKED, INDEXED},
   samples=_dynamic_samples)  # fmt: skip
op("update_dynamic_slice", "x, v, start -> y", doc="x with v put along `axis` from `start` on.",
   type=_update_dynamic_type, numpy=_update_dynamic, traits={PURE, CHECKED, INDEXED},
   samples=_update_dynamic_samples)  # fmt: skip


# -- joining and filling ------------------------------------------------------------------------------------------


def _concatenate_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    if not inputs:
        raise ShapeError("need at least one array to concatenate")
    xs = operands("concatenate", inputs, **{f"x{k}": ANY for k in range(len(inputs))})
    require_same_dtype("concatenate", **{f"x{k}": x for k, x in enumerate(xs)})
    if not xs[0].rank:
        raise ShapeError("zero-dimensional arrays cannot be concatenated")
    axis = check_axis("concatenate", attrs["axis"], xs[0])
    for k, x in enumerate(xs):
        _check_joint(k, xs[0], x, axis)
    total = reduce(lambda a, b: a + b, (x.shape[axis] for x in xs))
    others = (reduce(merge_dims, dims) for dims in zip(*(x.shape for x in xs)))
    return xs[0].with_shape(_replaced(tuple(others), axis, total))


def _check_joint(k: int, first: TensorType, x: TensorType, axis: int) -> None:
    if x.rank != first.rank:
        raise ShapeError(
            "all the input arrays must have same number of dimensions, but the array at index 0 has "
            f"{first.rank} dimension(s) and the array at index {k} has {x.rank} dimension(s)"
        )
    for other, (a, b) in enumerate(zip(first.shape, x.shape)):
        if other != axis and differ(a, b):
            raise ShapeError(
                "all the input array dimensions except for the concatenation axis must match exactly, "
                f"but along dimension {other}, the array at index 0 has size {a} and the array at index "
                f"{k} has size {b}"
            )


def _pad_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    x, value = operands("pad", inputs, x=ANY, value=ANY)
    require_same_dtype("pad", x=x, value=value)
    require_rank("pad", "value", value, 0)
    low, high = attrs["low"], attrs["high"]
    if not len(low) == len(high) == x.rank:
        raise InternalError(f"pad: low {low} and high {high} do not fit {x}")
    if _has_negative(low) or _has_negative(high):
        raise ShapeError("index can't contain negative values")
    return x.with_shape(a + dim + b for a, dim, b in zip(low, x.shape, high))


def _pad(x: np.ndarray, value: np.ndarray, low: Ints, high: Ints) -> np.ndarray:
    out = np.full([a + n + b for a, n, b in zip(low, x.shape, high)], value, x.dtype)
    out[tuple(slice(a, a + n) for a, n in zip(low, x.shape))] = x
    return out


def _full_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (value,) = operands("full", inputs, value=ANY)
    require_rank("full", "value", value, 0)
    if _has_negative(attrs["shape"]):
        raise ShapeError("negative dimensions are not allowed")
    return value.with_shape(attrs["shape"])


def _iota_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    operands("iota", inputs)
    dtype = check_dtype("iota", attrs["dtype"])
    if dtype not in NUMBERS.dtypes:
        refuse("iota", "dtype", NUMBERS.words, dtype)
    if _negative(attrs["size"]):
        raise ShapeError("negative dimensions are not allowed")
    return TensorType(dtype, (attrs["size"],))


def _broadcast_dim_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    a, b = operands("broadcast_dim", inputs, a=I64S, b=I64S)
    require_rank("broadcast_dim", "a", a, 0)
    require_rank("broadcast_dim", "b", b, 0)
    return scalar(I64)


def _broadcast_dim(a: np.ndarray, b: np.ndarray) -> np.int64:
    if a != b and a != 1 and b != 1:
        raise ValueError(f"operands could not be broadcast together with shapes ({a},) ({b},)")
    return np.int64(b if a == 1 else a)


def _concatenate_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        x, y = draw(rng, dtype), draw(rng, dtype, (2, 1))
        yield Sample((x, y, x), {"axis": 1})
        yield Sample((x, draw(rng, dtype, (0, 3))), {"axis": 0})


def _pad_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        yield Sample((draw(rng, dtype), draw(rng, dtype, ())), {"low": (1, 0), "high": (0, 2)})


def _full_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        for shape in ((2, 3), (0,), ()):
            yield Sample((draw(rng, dtype, ()),), {"shape": shape})


def _iota_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in dtypes_of(NUMBERS):
        for size in (0, 5, 300):
            yield Sample((), {"size": size, "dtype": dtype})


def _broadcast_dim_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for a, b in ((3, 3), (1, 4), (5, 1), (0, 1), (1, 0), (2, 3)):
        yield Sample((np.array(a), np.array(b)))


op("concatenate", "*xs -> y", doc="Arrays joined along an `axis`.", type=_concatenate_type,
   numpy=lambda *xs, axis: np.concatenate(xs, axis), samples=_concatenate_samples)  # fmt: skip
op("pad", "x, value -> y", doc="x with `low` and `high` copies of a value around it, per axis.",
   type=_pad_type, numpy=_pad, samples=_pad_samples)  # fmt: skip
op("full", "value -> y", doc="An array of `shape` full of one value.", type=_full_type,
   numpy=lambda value, shape: np.full(shape, value, value.dtype), samples=_full_samples)  # fmt: skip
op("iota", "-> y", doc="The vector 0, 1, 2, … of `size` elements.", type=_iota_type,
   numpy=lambda size, dtype: np.arange(size).astype(dtype), samples=_iota_samples)  # fmt: skip
op("broadcast_dim", "a, b -> n", doc="The size that two sizes broadcast to; refuses those that do not.",
   type=_broadcast_dim_type, numpy=_broadcast_dim, traits={PURE, CHECKED},
   samples=_broadcast_dim_samples)  # fmt: skip
