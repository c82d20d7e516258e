"""Joining, splitting, repeating, flipping and rolling arrays."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    agree,
    array_of,
    ask,
    box,
    convert,
    counter,
    dims_of,
    drop_view,
    gather_axis,
    into,
    is_symbolic,
    normal_axes,
    normal_axis,
    not_negative,
    number,
    result_dtype,
    shape_of_new,
    splat,
    with_dims,
)
from dsl.frontend.functions.shape import at_least, expand_dims, lifted, moveaxis, ravel, swapaxes
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    Kind,
    Traced,
    as_dim,
    cast,
    concrete,
    fresh,
    lift,
    read,
    supported_dtype,
)
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.types import I64, size_of

Array = Any


# -- joining -------------------------------------------------------------------------------------------------------


def _items(arrays: Any) -> list[Array]:
    if isinstance(arrays, (Traced, np.ndarray)):
        return list(lift(arrays))
    return [array_of(a) for a in arrays]


def _each_at_least(arrays: Any, rank: int) -> Any:
    """Return arrays, or an array of which they are the rows, so that each has as many axes."""
    if not isinstance(arrays, Traced) or arrays.ndim == 0:
        return [at_least(a, rank) for a in _items(arrays)]
    count, *dims = dims_of(arrays)
    return with_dims(arrays, (count, *lifted(tuple(dims), rank)))


@implements("concatenate", "concat")
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Join arrays along an axis."""
    if isinstance(arrays, Traced) and arrays.ndim and (arrays.ndim > 1 or axis is None):
        _refuse_none(arrays, "concatenate")
        if axis is None:
            arrays, axis = with_dims(arrays, (size_of(dims_of(arrays)), 1)), 0
        place = normal_axis(axis, arrays.ndim - 1)
        return into(_merged(arrays, place, dtype), out, casting)
    if isinstance(arrays, Traced) and arrays.ndim == 1 and is_symbolic(*dims_of(arrays)):
        raise ShapeError("zero-dimensional arrays cannot be concatenated", location=here())
    parts = _items(arrays)
    if not parts:
        raise ShapeError("need at least one array to concatenate", location=here())
    if axis is None:
        parts, axis = [ravel(part) for part in parts], 0
    if parts[0].ndim == 0:
        raise ShapeError("zero-dimensional arrays cannot be concatenated", location=here())
    place = normal_axis(axis, parts[0].ndim)
    target = _joint_dtype(parts, dtype, out, casting)
    values = [cast(read(part), target) for part in parts]
    return into(fresh(current_scope().emit("concatenate", *values, axis=place)), out, casting)


def _refuse_none(arrays: Array, verb: str) -> None:
    """Refuse an array without rows; where their number is not known yet, have the program do so."""
    count, message = dims_of(arrays)[0], f"need at least one array to {verb}"
    if isinstance(count, int) and not count:
        raise ShapeError(message, location=here())
    least = lower_bound(count)
    if least is None or least < 1:
        ask(np.greater(lift(number(count)), 0), message, "ValueError")


def _merged(x: Array, axis: int, dtype: Any) -> Array:
    """Return the rows of an array joined along one of their axes."""
    moved = moveaxis(x, 0, axis)
    dims = dims_of(moved)
    joined = with_dims(moved, (*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :]))
    return joined if dtype is None else convert(joined, dtype)


def _joint_dtype(parts: list[Array], dtype: Any, out: Any, casting: Any) -> np.dtype:
    found = result_dtype(*(part.dtype for part in parts))
    if dtype is None:
        return found
    if out is not None:
        text = "concatenate() only takes `out` or `dtype` as an argument, but both were provided."
        raise TypeRuleError(text, location=here())
    target = supported_dtype(dtype)
    for part in parts:
        if not np.can_cast(part.dtype, target, casting=casting):
            text = f"Cannot cast array data from {part.dtype!r} to {target!r} according to the rule {casting!r}"
            raise TypeRuleError(text, location=here())
    return target


@implements("stack")
def stack(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Join arrays of one shape along a new axis."""
    if isinstance(arrays, Traced) and arrays.ndim:
        _refuse_none(arrays, "stack")
        moved = moveaxis(arrays, 0, normal_axis(axis, arrays.ndim))
        return into(convert(moved, arrays.dtype if dtype is None else dtype), out, casting)
    parts = _items(arrays)
    if not parts:
        raise ShapeError("need at least one array to stack", location=here())
    if (
        len({dims_of(p) for p in parts if p.type.is_static()}) > 1
        or len({p.ndim for p in parts}) > 1
    ):
        raise ShapeError("all input arrays must have the same shape", location=here())
    place = normal_axis(axis, parts[0].ndim + 1)
    return concatenate(
        [expand_dims(p, place) for p in parts], place, out, dtype=dtype, casting=casting
    )


@implements("vstack", "row_stack")
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Join arrays one below the other."""
    return concatenate(_each_at_least(tup, 2), 0, dtype=dtype, casting=casting)


@implements("hstack")
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Join arrays side by side."""
    parts = _each_at_least(tup, 1)
    ranks = [parts.ndim - 1] if isinstance(parts, Traced) else [part.ndim for part in parts[:1]]
    return concatenate(parts, 0 if ranks == [1] else 1, dtype=dtype, casting=casting)


@implements("dstack")
def dstack(tup: Any) -> Any:
    """Join arrays along the third axis."""
    return concatenate(_each_at_least(tup, 3), 2)


@implements("column_stack")
def column_stack(tup: Any) -> Any:
    """Join vectors as the columns of a matrix."""
    if isinstance(tup, Traced) and tup.ndim:
        rows = _each_at_least(tup, 1)
        return concatenate(rows if rows.ndim > 2 else expand_dims(rows, 2), 1)
    return concatenate([at_least(a, 2).T if a.ndim < 2 else a for a in _items(tup)], 1)


@implements("block")
def block(arrays: Any) -> Any:
    """Assemble an array from nested lists of blocks."""
    depth = _depth(arrays)
    rank = max(depth, *(lift(leaf).ndim for leaf in _leaves(arrays)))
    return _assemble(arrays, rank, depth)


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x), default=0) if isinstance(x, list) else 0


def _leaves(x: Any) -> Iterator[Any]:
    if not isinstance(x, list):
        yield x
        return
    if not x:
        raise ShapeError("List at arrays cannot be empty", location=here())
    for item in x:
        yield from _leaves(item)


def _assemble(x: Any, rank: int, depth: int) -> Array:
    if not isinstance(x, list):
        part = array_of(x)
        return drop_view(part, (1,) * (rank - part.ndim) + dims_of(part)).copy()
    return concatenate([_assemble(item, rank, depth - 1) for item in x], rank - depth)


@implements("append")
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """Return an array with values added at the end."""
    x, extra = array_of(arr), array_of(values)
    if axis is None:
        return concatenate([ravel(x), ravel(extra)])
    return concatenate([x, extra], normal_axis(axis, x.ndim))


# -- splitting -----------------------------------------------------------------------------------------------------


@implements("array_split")
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    """Split into views that need not be of equal size."""
    x = array_of(ary)
    axis = normal_axis(axis, x.ndim)
    total = dims_of(x)[axis]
    if _is_sequence(indices_or_sections):
        return _split_at(x, list(indices_or_sections), axis)
    sections = int(indices_or_sections)
    if sections <= 0:
        raise ShapeError("number sections must be larger than 0.", location=here())
    sizes = [(total + sections - 1 - k) // sections for k in range(sections)]
    starts = itertools.accumulate(sizes, operator.add, initial=0)
    return [box(x, axis, start, length) for start, length in zip(starts, sizes, strict=False)]


def _is_sequence(x: Any) -> bool:
    return isinstance(x, (list, tuple)) or (isinstance(x, (np.ndarray, Traced)) and x.ndim > 0)


def _split_at(x: Array, places: list[Any], axis: int) -> list[Array]:
    before = (slice(None),) * axis
    bounds = [0, *places, None]
    return [x[(*before, slice(a, b))] for a, b in itertools.pairwise(bounds)]


@implements("split")
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    """Split into views of equal size, or at given places."""
    x = array_of(ary)
    if not _is_sequence(indices_or_sections):
        total = dims_of(x)[normal_axis(axis, x.ndim)]
        left = total % int(indices_or_sections)
        words = "array split does not result in an equal division"
        if is_symbolic(left):
            ask(number(left) == 0, words)
        elif left:
            raise ShapeError(words, location=here())
    return array_split(x, indices_or_sections, axis)


@implements("hsplit")
def hsplit(ary: Any, indices_or_sections: Any) -> Any:
    """Split along the second axis, or the only one."""
    x = array_of(ary)
    if x.ndim == 0:
        raise ShapeError("hsplit only works on arrays of 1 or more dimensions", location=here())
    return split(x, indices_or_sections, 1 if x.ndim > 1 else 0)


@implements("vsplit")
def vsplit(ary: Any, indices_or_sections: Any) -> Any:
    """Split along the first axis."""
    x = array_of(ary)
    if x.ndim < 2:
        raise ShapeError("vsplit only works on arrays of 2 or more dimensions", location=here())
    return split(x, indices_or_sections, 0)


@implements("dsplit")
def dsplit(ary: Any, indices_or_sections: Any) -> Any:
    """Split along the third axis."""
    x = array_of(ary)
    if x.ndim < 3:
        raise ShapeError("dsplit only works on arrays of 3 or more dimensions", location=here())
    return split(x, indices_or_sections, 2)


@implements("unstack")
def unstack(x: Any, /, *, axis: Any = 0) -> Any:
    """Return the parts along an axis as a tuple."""
    x = array_of(x)
    if x.ndim == 0:
        raise ShapeError("Input array must be at least 1-d.", location=here())
    return tuple(moveaxis(x, axis, 0))


# -- repeating -----------------------------------------------------------------------------------------------------


@implements("tile")
def tile(A: Any, reps: Any) -> Any:
    """Repeat an array along its axes."""
    x = array_of(A)
    counts = shape_of_new(reps)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    dims = (1,) * (rank - x.ndim) + dims_of(x)
    spaced = with_dims(x, tuple(itertools.chain(*((1, d) for d in dims))))
    wide = tuple(itertools.chain(*zip(counts, dims, strict=True)))
    value = current_scope().emit("broadcast_to", read(spaced), shape=wide)
    return with_dims(fresh(value), tuple(r * d for r, d in zip(counts, dims, strict=True)))


@implements("repeat")
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Repeat each element, all the same number of times or each its own."""
    x = array_of(a)
    if axis is None:
        x, axis = with_dims(x, (size_of(dims_of(x)),)), 0
    x = x if x.ndim else with_dims(x, (1,))
    axis = normal_axis(axis, x.ndim)
    counts = lift(repeats)
    if counts.dtype.kind == "f" and not isinstance(repeats, (Traced, np.ndarray, np.generic)):
        counts = convert(counts, I64)
    if counts.dtype.kind not in "iub":
        text = f"Cannot cast array data from {counts.dtype!r} to dtype('int64') according to the rule 'safe'"
        raise TypeRuleError(text, location=here())
    if counts.ndim == 0 or dims_of(counts) == (1,):
        return _repeat_evenly(x, as_dim(counts.reshape(())), axis)
    return _repeat_each(x, counts, axis)


def _repeat_evenly(x: Array, count: DimLike, axis: int) -> Array:
    not_negative(count)
    dims = dims_of(x)
    spaced = with_dims(x, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
    wide = (*dims[: axis + 1], count, *dims[axis + 1 :])
    value = current_scope().emit("broadcast_to", read(spaced), shape=wide)
    return with_dims(fresh(value), (*dims[:axis], dims[axis] * count, *dims[axis + 1 :]))


def _repeat_each(x: Array, counts: Array, axis: int) -> Array:
    own, given = dims_of(x)[axis], dims_of(counts)[0]
    agree(own, given, f"operands could not be broadcast together with shape ({own},) ({given},)")
    known = concrete(counts)
    if known is not None and isinstance(own, int):
        return gather_axis(x, lift(np.repeat(np.arange(own), known)), axis)
    ask(np.all(counts >= 0), "repeats may not contain negative values.")
    total = as_dim(fresh(read(np.sum(counts, dtype=I64)), Kind.PYTHON))
    # One mark where each element but the first begins: how many there are so far is whose turn it is.
    marks = fresh(splat(0, (total + 1,), I64))
    np.add.at(marks, np.cumsum(counts, dtype=I64)[:-1], 1)
    return gather_axis(x, np.cumsum(marks)[:-1], axis)


@implements("resize")
def resize(a: Any, new_shape: Any) -> Any:
    """Return an array of a new shape, filled with repeated copies."""
    flat = ravel(array_of(a))
    target = shape_of_new(new_shape, "all elements of `new_shape` must be non-negative")
    (own,) = dims_of(flat)
    total = size_of(target)
    if total == 0 or own == 0:
        return fresh(splat(0, target, flat.dtype))
    if own == total:
        return with_dims(flat, target)
    if isinstance(own, int) and isinstance(total, int) and total < own:
        return with_dims(box(flat, 0, 0, total), target)
    return with_dims(gather_axis(flat, counter(total) % number(own), 0), target)


# -- flipping and rolling ------------------------------------------------------------------------------------------


@implements("flip")
def flip(m: Any, axis: Any = None) -> Any:
    """Return a view with axes reversed."""
    x = array_of(m)
    axes = normal_axes(axis, x.ndim)
    if x.ndim == 0:
        return fresh(read(x), Kind.SCALAR)
    return x[tuple(slice(None, None, -1) if k in axes else slice(None) for k in range(x.ndim))]


@implements("flipud")
def flipud(m: Any) -> Any:
    """Return a view with the first axis reversed."""
    x = array_of(m)
    if x.ndim < 1:
        raise ShapeError("Input must be >= 1-d.", location=here())
    return x[::-1]


@implements("fliplr")
def fliplr(m: Any) -> Any:
    """Return a view with the second axis reversed."""
    x = array_of(m)
    if x.ndim < 2:
        raise ShapeError("Input must be >= 2-d.", location=here())
    return x[:, ::-1]


@implements("rot90")
def rot90(m: Any, k: Any = 1, axes: Any = (0, 1)) -> Any:
    """Return a view rotated by multiples of 90 degrees in a plane."""
    x = array_of(m)
    if len(tuple(axes)) != 2:
        raise ShapeError("len(axes) must be 2.", location=here())
    first, second = tuple(axes)
    if first == second or abs(first - second) == x.ndim:
        raise ShapeError("Axes must be different.", location=here())
    if any(not -x.ndim <= axis < x.ndim for axis in (first, second)):
        raise ShapeError(
            f"Axes={tuple(axes)} out of range for array of ndim={x.ndim}.", location=here()
        )
    turns = int(k) % 4
    if turns == 0:
        return x[...]
    if turns == 2:
        return flip(flip(x, first), second)
    turned = swapaxes(flip(x, second) if turns == 1 else x, first, second)
    return turned if turns == 1 else flip(turned, second)


@implements("roll")
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Shift elements along axes, those that leave one end coming in at the other."""
    x = array_of(a)
    if axis is None and _is_sequence(shift):
        shift = sum(shift)
    if axis is None:
        return with_dims(_roll_along(with_dims(x, (size_of(dims_of(x)),)), shift, 0), dims_of(x))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = list(shift) if _is_sequence(shift) else [shift]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        text = "shape mismatch: objects cannot be broadcast to a single shape.  Mismatch is between arg 0 with shape"
        raise ShapeError(
            f"{text} ({len(shifts)},) and arg 1 with shape ({len(axes)},).", location=here()
        )
    count = max(len(shifts), len(axes))
    pairs = zip(shifts * (count // len(shifts)), list(axes) * (count // len(axes)), strict=True)
    for amount, where in pairs:
        x = _roll_along(x, amount, normal_axis(where, x.ndim))
    return x.copy() if not axes else x


def _roll_along(x: Array, shift: Any, axis: int) -> Array:
    length = dims_of(x)[axis]
    known = concrete(shift) if isinstance(shift, Traced) else shift
    amount = None if known is None else _rolled_by(int(known), length)
    if amount is None:
        count = np.maximum(number(length), 1)
        return gather_axis(x, (counter(length) - shift) % count, axis)
    if isinstance(amount, int) and amount == 0:
        return x.copy()
    return concatenate(
        [box(x, axis, length - amount, amount), box(x, axis, 0, length - amount)], axis
    )


def _rolled_by(shift: int, length: DimLike) -> DimLike | None:
    """Return how many elements come in at the front; None if an axis of unknown size may have none."""
    if isinstance(length, int):
        return shift % length if length else 0
    least = lower_bound(length) or 0
    if least == 0:
        return None if shift else 0
    left = abs(shift) if abs(shift) <= least else abs(shift) % length
    return left if shift >= 0 else length - left
