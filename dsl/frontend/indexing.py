"""Subscripts: NumPy's basic and advanced indexing on traced arrays, to read and to write.

Basic subscripts (integers, slices, `...`, `None`) give views; integers and slice bounds may be traced. Arrays of integers
gather and scatter; boolean masks are integer arrays by way of `nonzero`, except that assigning one value through a mask
is a `where`.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsl.errors import IndexTypeError, ShapeError, UnsupportedError
from dsl.frontend.accesses import note_read, note_write
from dsl.frontend.numbers import assigned, is_assigned
from dsl.frontend.ranges import distance, is_at_most, range_of
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    _UFUNCS,
    Kind,
    Traced,
    cast,
    concrete,
    fresh,
    lift,
    read,
    seen_whole,
    size_number,
    wrap,
    write,
)
from dsl.frontend.views import (
    DynamicSliced,
    Owned,
    Picked,
    Reshaped,
    Sliced,
    Stepped,
    View,
    chained,
)
from dsl.ir.dims import Dim, DimLike, dim_max, dim_min, lower_bound
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64, Shape, broadcast_shapes

__all__ = ["getitem", "setitem"]


@dataclass
class Selection:
    """A subscript taken apart: views of the base first, then index arrays on some axes of what they show."""

    views: list[View]
    shape: Shape
    axes: tuple[int, ...] = ()
    indices: tuple[Traced, ...] = ()
    front: int = 0
    scalar: bool = False
    mask: Traced | None = None


def getitem(x: Traced, key: Any) -> Any:
    """`x[key]`."""
    chosen = select(x, key)
    _note_picks(x, chosen)
    if chosen.scalar:
        view = _chain(x, chosen.views)
        return fresh(read(view), Kind.SCALAR)
    if not chosen.axes:
        if x.kind is not Kind.ARRAY or _has_index_array(key):
            return fresh(read(_chain(x, chosen.views)), Kind.ARRAY)
        return _chain(x, chosen.views)
    base = read(_chain(x, chosen.views))
    b = current_scope()
    indices = _index_values(chosen)
    plain = [read(index) for index in chosen.indices]
    note_read(b, base.shape, chosen.axes, plain, indices)
    value = b.emit("gather", base, *indices, axes=chosen.axes)
    return wrap(_move_out(value, chosen, indices))


def _note_picks(x: Traced, chosen: Selection, *, written: bool = False) -> None:
    """Remember the integers of a subscript that are known only when the program runs."""
    picked = chosen.views[0] if chosen.views else None
    if not isinstance(picked, Picked):
        return
    b, indices = current_scope(), [value for value, _ in picked.indices]
    if written:
        note_write(b, x.type.shape, picked.axes, indices)
    else:
        note_read(b, x.type.shape, picked.axes, indices, is_empty=0 in chosen.shape)


def _has_index_array(key: Any) -> bool:
    """Tell whether an index is an array without axes, for which NumPy makes a copy, not a view as for a number."""
    keys = key if isinstance(key, tuple) else (key,)
    return any(
        isinstance(k, np.ndarray) or (isinstance(k, Traced) and k.kind is Kind.ARRAY) for k in keys
    )


def setitem(x: Traced, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    if x.kind is not Kind.ARRAY:
        raise UnsupportedError(
            f"a {x.kind.value} does not support item assignment",
            location=here(),
            remedy="use an array",
        )
    chosen = select(x, key)
    _note_picks(x, chosen, written=True)
    view = _chain(x, chosen.views)
    if (
        isinstance(value, Traced)
        and value.storage is x.storage
        and value.views == view.views
        and not chosen.axes
    ):
        return
    new = cast(_value_of(value, x.dtype), x.dtype)
    if chosen.mask is not None and len(new.shape) <= x.ndim - chosen.mask.ndim:
        return _assign_masked(x, chosen.mask, new)
    if chosen.scalar and new.shape and not _elements_take_arrays():
        raise ShapeError("setting an array element with a sequence.", location=here())
    if not chosen.axes:
        return write(view, _fit(new, chosen.shape))
    _scatter_into(view, chosen, new, "update")


@functools.cache
def _elements_take_arrays() -> bool:
    """Tell whether an array of one element can be assigned to an element, as before NumPy 2.4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            np.zeros(1)[0] = np.zeros(1)
        except ValueError:
            return False
    return True


def scatter(x: Traced, key: Any, value: Any, mode: str) -> None:
    """`np.add.at` and its like."""
    chosen = select(x, key)
    _note_picks(x, chosen, written=True)
    view = _chain(x, chosen.views)
    new = cast(read(lift(value)), x.dtype)
    if chosen.axes:
        return _scatter_into(view, chosen, new, mode)
    names = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
    if chosen.scalar:
        view = Traced(view.storage, view.views)
    _UFUNCS["inplace"](names[mode], view, fresh(new))


def _value_of(value: Any, dtype: np.dtype) -> Value:
    """Return what is to be stored: numbers and lists of them must fit the dtype, arrays wrap."""
    if is_assigned(value, dtype):
        return current_scope().constant(assigned(value, dtype))
    return read(
        _FUNCTIONS["array"](value, dtype) if isinstance(value, list | tuple) else lift(value)
    )


def _chain(x: Traced, views: list[View]) -> Traced:
    return Traced(x.storage, chained(x.views, views), Kind.ARRAY) if views else seen_whole(x)


def _assign_masked(x: Traced, mask: Traced, new: Value) -> None:
    b = current_scope()
    flags = read(mask)
    extra = x.ndim - mask.ndim
    if extra:
        flags = b.emit("reshape", flags, shape=(*flags.shape, *(1,) * extra))
    old = read(x)
    result = b.emit("where", *_UFUNCS["broadcast_values"]([flags, new, old]))
    if result.shape != old.shape and any(isinstance(d, Dim) for d in (*result.shape, *old.shape)):
        result = b.emit("broadcast_to", result, shape=old.shape)
    if result.shape != old.shape:
        raise ShapeError(
            f"could not broadcast input array from shape {_text(new.shape)} into shape {_text(old.shape)}",
            location=here(),
        )
    write(x, result)


def _scatter_into(view: Traced, chosen: Selection, new: Value, mode: str) -> None:
    b = current_scope()
    indices = _index_values(chosen)
    base = read(view)
    note_write(b, base.shape, chosen.axes, [read(index) for index in chosen.indices], indices)
    spread = broadcast_shapes(*(i.shape for i in indices))
    rest = tuple(dim for axis, dim in enumerate(base.shape) if axis not in chosen.axes)
    count = len(spread)
    result_shape = (*rest[: chosen.front], *spread, *rest[chosen.front :])
    fitted = _fit(new, result_shape)
    if chosen.front and count:
        order = (
            *range(chosen.front, chosen.front + count),
            *range(chosen.front),
            *range(chosen.front + count, len(result_shape)),
        )
        fitted = b.emit("transpose", fitted, axes=order)
    write(view, b.emit("scatter", base, fitted, *indices, axes=chosen.axes, mode=mode))


def _index_values(chosen: Selection) -> list[Value]:
    values = [read(index) for index in chosen.indices]
    try:
        broadcast_shapes(*(value.shape for value in values))
    except ShapeError:
        shapes = [value.shape for value in values]
        if all(isinstance(dim, int) for shape in shapes for dim in shape):
            listing = " ".join(map(_text, shapes))
            raise IndexTypeError(
                f"shape mismatch: indexing arrays could not be broadcast together with shapes {listing}",
                location=here(),
            ) from None
    return _UFUNCS["broadcast_values"](values)  # type: ignore[no-any-return]


def _move_out(value: Value, chosen: Selection, indices: list[Value]) -> Value:
    """Move the index dims from the front to where NumPy puts them."""
    count = len(broadcast_shapes(*(i.shape for i in indices)))
    if not chosen.front or not count:
        return value
    order = (
        *range(count, count + chosen.front),
        *range(count),
        *range(count + chosen.front, len(value.shape)),
    )
    return current_scope().emit("transpose", value, axes=order)


def _fit(value: Value, shape: Shape) -> Value:
    """Broadcast an assigned value to the selection, dropping leading ones as NumPy does."""
    if value.shape == shape:
        return value
    b = current_scope()
    extra = len(value.shape) - len(shape)
    if extra > 0 and all(d == 1 for d in value.shape[:extra]):
        value = b.emit("reshape", value, shape=value.shape[extra:])
    try:
        fits = len(value.shape) <= len(shape) and broadcast_shapes(value.shape, shape) == shape
    except ShapeError:
        fits = any(isinstance(d, Dim) for d in (*value.shape, *shape))
    static = all(isinstance(d, int) for d in (*value.shape, *shape))
    if not fits and (static or len(value.shape) > len(shape)):
        raise ShapeError(
            f"could not broadcast input array from shape {_text(value.shape)} into shape {_text(shape)}",
            location=here(),
        )
    return value if value.shape == shape else b.emit("broadcast_to", value, shape=shape)


def _text(shape: Shape) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


# -- taking a subscript apart --------------------------------------------------------------------------------------


def select(x: Traced, key: Any) -> Selection:
    """Take the subscript `key` of `x` apart."""
    items = _expand(x, [_item(k) for k in (key if isinstance(key, tuple) else (key,))])
    if any(map(_is_flag, items)):
        return _flagged(x, items)
    if any(isinstance(i, Traced) and i.ndim > 0 for i in items):
        return _advanced(x, items)
    return _basic(x, items)


def _is_flag(item: Any) -> bool:
    return isinstance(item, Traced) and item.dtype == BOOL and item.ndim == 0


def _flagged(x: Traced, items: list[Any]) -> Selection:
    """A subscript with boolean scalars: each is the mask of a new axis of size 1."""
    shape: list[DimLike] = []
    masked: list[Any] = []
    axis = 0
    for item in items:
        width = 0 if item is Ellipsis else _width(item)
        shape += [1] if _is_flag(item) else x.type.shape[axis : axis + width]
        masked.append(item.reshape(1) if _is_flag(item) else item)
        axis += width
    opened = Reshaped(tuple(shape))
    found = _advanced(_chain(x, [opened]), masked)
    return replace(found, views=[opened, *found.views], mask=None)


def _item(k: Any) -> Any:
    if k is None or k is Ellipsis or isinstance(k, slice):
        return k
    if isinstance(k, (bool, np.bool_)):
        return lift(np.bool_(k))
    if isinstance(k, (int, np.integer)):
        return int(k)
    if isinstance(k, (list, np.ndarray)):
        array = lift(np.asarray(k) if _plain(k) else k)
        k = array if array.size != 0 or array.dtype.kind in "biu" else array.astype(np.int64)
    if isinstance(k, range) or hasattr(type(k), "dsl_traced"):
        k = lift(k)
    if isinstance(k, Traced):
        if _is_flag(k):
            return k
        if k.dtype.kind not in "iub" and k.ndim == 0:
            raise IndexTypeError(
                "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are valid indices",
                location=here(),
            )
        if k.dtype.kind not in "iub":
            raise IndexTypeError(
                "arrays used as indices must be of integer (or boolean) type", location=here()
            )
        known = concrete(k) if k.ndim == 0 else None
        return k if known is None else int(known)
    if hasattr(k, "__index__"):
        return int(k.__index__())
    raise IndexTypeError(
        "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are valid indices",
        location=here(),
    )


def _plain(k: Any) -> bool:
    return not isinstance(k, list) or not any(
        isinstance(i, Traced) or (isinstance(i, list) and not _plain(i)) for i in k
    )


def _width(item: Any) -> int:
    if item is None:
        return 0
    return item.ndim if isinstance(item, Traced) and item.dtype == BOOL else 1


def _expand(x: Traced, items: list[Any]) -> list[Any]:
    """Replace `...` by full slices and pad with them."""
    used = sum(_width(i) for i in items if i is not Ellipsis)
    if used > x.ndim:
        raise IndexTypeError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed",
            location=here(),
        )
    if sum(i is Ellipsis for i in items) > 1:
        raise IndexTypeError("an index can only have a single ellipsis ('...')", location=here())
    fill = [slice(None)] * (x.ndim - used)
    if not any(i is Ellipsis for i in items):
        return [*items, *fill]
    at = next(k for k, i in enumerate(items) if i is Ellipsis)
    # An ellipsis turns a rank-0 result into a rank-0 array, which the marker remembers.
    return (
        [*items[:at], *fill, *items[at + 1 :]]
        if fill
        else [*items[:at], *items[at + 1 :], Ellipsis]
    )


def _basic(x: Traced, items: list[Any]) -> Selection:
    keep_array = Ellipsis in [i for i in items if i is Ellipsis]
    items = [i for i in items if i is not Ellipsis]
    found = [
        item if isinstance(item, slice) else _place(item, axis, x.type.shape[axis])
        for axis, item in enumerate(i for i in items if i is not None)
    ]
    picks = _picks(found)
    # Picked first: what is sliced, read and written is then a row or a column, never all of them.
    left = [axis for axis in range(len(found)) if axis not in picks]
    views, shape = _slice_views([x.type.shape[k] for k in left], [found[k] for k in left])
    if picks:
        views.insert(0, Picked(tuple(picks), tuple(_owned(index) for index in picks.values())))
    kept = [isinstance(item, slice) for item in found]
    final = _with_new_axes(items, shape, kept, bool(picks))
    if final != shape:
        views.append(Reshaped(final))
    picks_one = not items or any(isinstance(i, (int, Traced)) for i in items)
    scalar = not final and picks_one and not keep_array
    return Selection(views, final, scalar=scalar)


def _owned(index: Any) -> Owned:
    return cast(read(lift(index)), I64), current_scope()


def _picks(found: list[Any]) -> dict[int, Any]:
    """Return the integers of a subscript by axis if one of them is traced; otherwise they are slices of one element."""
    if not any(isinstance(item, Traced) for item in found):
        return {}
    return {
        axis: size_number(item) if isinstance(item, Dim) else item
        for axis, item in enumerate(found)
        if not isinstance(item, slice)
    }


def _slice_views(dims: list[DimLike], items: list[Any]) -> tuple[list[View], Shape]:
    """Return views for slices and known places, one per axis, and the shape they leave."""
    dynamic: list[View] = []
    start: list[DimLike] = [0] * len(dims)
    size, step = list(dims), [1] * len(dims)
    for axis, item in enumerate(items):
        if not isinstance(item, slice):
            start[axis], size[axis] = item, 1
            continue
        bounds = _static_slice(item, dims[axis])
        if bounds is None:
            dynamic.append(_dynamic_slice(item, axis, dims[axis]))
            dims[axis] = size[axis] = dynamic[-1].size  # type: ignore[attr-defined]
        else:
            start[axis], size[axis], step[axis] = bounds
    views = dynamic
    if any(s != 0 or n != d or t != 1 for s, n, d, t in zip(start, size, dims, step, strict=True)):
        views.append(Sliced(tuple(start), tuple(size), tuple(step)))
    return views, tuple(size)


def _place(item: Any, axis: int, dim: DimLike) -> Any:
    """Return the place that an index means if it can be written with known sizes, else the index.

    Whether it is in bounds is checked here or, where that depends on sizes, when the program runs.
    """
    place = item if isinstance(item, int) else _known_size(item)
    if isinstance(place, int) and isinstance(dim, int):
        return _static_index(place, axis, dim)
    if place is None or (sign := _sign(place)) is None:
        return item
    found = place if sign >= 0 else dim + place
    _check_place(item, found, axis, dim)
    return found


def _known_size(item: Traced) -> DimLike | None:
    """Return a traced integer that is computed from sizes alone as a dim, else None."""
    if item.ndim or item.dtype.kind not in "iu":
        return None
    return current_scope().known_dim(cast(read(item), I64))


def _sign(dim: DimLike) -> int | None:
    """Return 1 for a dim that is never negative, -1 for one that always is, else None."""
    if _is_below(-1, dim):
        return 1
    return -1 if _is_below(dim, 0) else None


def _is_below(low: DimLike, high: DimLike) -> bool:
    """Tell whether one dim is less than another for certain."""
    gap = lower_bound(high - low)
    return gap is not None and gap > 0


def _check_place(item: Any, place: DimLike, axis: int, dim: DimLike) -> None:
    """Make the program raise if a place is not in an axis, unless it surely is or the program has checked before."""
    b = current_scope()
    message = f"index {{}} is out of bounds for axis {axis} with size {{}}"
    for low, high in ((place, dim), (-1, place)):
        if not _is_below(low, high) and b.is_unchecked((low, high, axis)):
            inside = b.emit("less", b.size(low), b.size(high))
            values = (inside, cast(read(lift(item)), I64), b.size(dim))
            b.node("assert", values, {"message": message, "error": "IndexError"})


def _checked(item: Any, axis: int, dim: DimLike) -> Any:
    if isinstance(item, int) and isinstance(dim, int):
        return _static_index(item, axis, dim)
    return item


def _static_index(item: int, axis: int, dim: Any) -> int:
    if not -dim <= item < dim:
        raise IndexTypeError(
            f"index {item} is out of bounds for axis {axis} with size {dim}", location=here()
        )
    return item % dim  # type: ignore[no-any-return]


def _with_new_axes(items: list[Any], shape: Shape, kept: list[bool], picked: bool) -> Shape:
    """Return the final shape: kept axes in order, with ones where the subscript has None."""
    left = iter(shape)
    final: list[DimLike] = []
    axis = 0
    for item in items:
        if item is None:
            final.append(1)
            continue
        if kept[axis]:
            final.append(next(left))
        elif not picked:
            next(left)
        axis += 1
    return tuple(final)


def _static_slice(item: slice, dim: DimLike) -> tuple[DimLike, DimLike, int] | None:
    """Return start, size and step when they are known or can be written with known sizes, else None."""
    start, stop, step = (_size_bound(b) for b in (item.start, item.stop, item.step))
    if isinstance(step, (Traced, Dim)) or isinstance(start, Traced) or isinstance(stop, Traced):
        return None
    if step == 0:
        raise ShapeError("slice step cannot be zero", location=here())
    if isinstance(dim, int) and not isinstance(start, Dim) and not isinstance(stop, Dim):
        low, high, stride = slice(start, stop, step).indices(dim)
        return low, len(range(low, high, stride)), stride
    return _symbolic_slice(start, stop, 1 if step is None else step, dim)


def _size_bound(b: Any) -> Any:
    bound = _bound(b)
    known = _known_size(bound) if isinstance(bound, Traced) else bound
    return bound if known is None else known


def _symbolic_slice(
    start: DimLike | None, stop: DimLike | None, step: int, dim: DimLike
) -> tuple[DimLike, DimLike, int] | None:
    """Clamp bounds as Python does; None where the sign of one of them is not known."""
    lowest, highest = (0, dim) if step > 0 else (-1, dim - 1)
    first, last = (lowest, highest) if step > 0 else (highest, lowest)
    low = first if start is None else _clamped(start, dim, lowest, highest)
    high = last if stop is None else _clamped(stop, dim, lowest, highest)
    if low is None or high is None:
        return None
    if step > 0 and start is not None and _sign(start) == 1:
        low = start  # beyond the end there is nothing, wherever that starts: `x[3:]` and `x[:-3]` have one length
    whole = start is None and stop is None
    length = dim if whole else dim_max(high - low if step > 0 else low - high, 0)
    return low, length if abs(step) == 1 else (length + abs(step) - 1) // abs(step), step


def _clamped(bound: DimLike, dim: DimLike, lowest: DimLike, highest: DimLike) -> DimLike | None:
    sign = _sign(bound)
    if sign is None:
        return None
    return dim_min(bound, highest) if sign > 0 else dim_max(dim + bound, lowest)


def _bound(b: Any) -> Any:
    if isinstance(b, Traced):
        known = concrete(b)
        if b.dtype.kind not in "iu" or b.ndim:
            raise IndexTypeError(
                "slice indices must be integers or None or have an __index__ method",
                location=here(),
            )
        return b if known is None else int(known)
    if b is None:
        return None
    if not hasattr(b, "__index__"):
        raise IndexTypeError(
            "slice indices must be integers or None or have an __index__ method", location=here()
        )
    return int(b.__index__())


def _dynamic_slice(item: slice, axis: int, dim: DimLike) -> DynamicSliced | Stepped:
    """A slice with traced bounds: clamp them as Python does, in the graph; the length is a symbolic dim."""
    step = 1 if item.step is None else _bound(item.step)
    if isinstance(step, Traced):
        return _stepped_slice(item, step, axis, dim)
    b = current_scope()
    within = _slice_within(item, step, dim)
    if within is not None:
        return DynamicSliced(axis, (within[0], b), within[1], step)
    n = b.size(dim)
    zero, one = b.constant(0, I64), b.constant(1, I64)
    low_limit, high_limit = (
        (zero, n) if step > 0 else (b.constant(-1, I64), b.emit("subtract", n, one))
    )
    most = dim if step > 0 else dim - 1
    low = _clamp(item.start, n, low_limit, high_limit, low_limit if step > 0 else high_limit, most)
    high = _clamp(item.stop, n, low_limit, high_limit, high_limit if step > 0 else low_limit, most)
    gap = b.emit("subtract", high, low) if step > 0 else b.emit("subtract", low, high)
    if abs(step) != 1:
        gap = b.emit(
            "floor_divide",
            b.emit("add", gap, b.constant(abs(step) - 1, I64)),
            b.constant(abs(step), I64),
        )
    # A size of its own, even where it is surely not negative: `n - i` would have to be proved so wherever it is used.
    length = b.emit("maximum", gap, zero)
    return DynamicSliced(axis, (low, b), b.as_dim(length), step)


def _slice_within(item: slice, step: int, dim: DimLike) -> tuple[Value, DimLike] | None:
    """Return the start and the length of a slice whose bounds surely lie in the axis, a known distance apart."""
    if step < 1:
        return None
    b = current_scope()
    ends = [
        0 if item.start is None else _bound(item.start),
        dim if item.stop is None else _bound(item.stop),
    ]
    first, last = (cast(read(end), I64) if isinstance(end, Traced) else b.size(end) for end in ends)
    low, high, gap = range_of(b, first), range_of(b, last), distance(b, first, last)
    if low is None or high is None or gap is None:
        return None
    if not (is_at_most(b, 0, low.low) and is_at_most(b, high.high, dim) and is_at_most(b, 0, gap)):
        return None
    return first, gap if step == 1 else (gap + step - 1) // step


def _stepped_slice(item: slice, step: Traced, axis: int, dim: DimLike) -> Stepped:
    """A slice whose step is traced: its sign decides which way the bounds are clamped."""
    b = current_scope()
    n, stride = b.size(dim), cast(read(step), I64)
    zero, one = b.constant(0, I64), b.constant(1, I64)
    b.node(
        "assert",
        (b.emit("not_equal", stride, zero),),
        {"message": "slice step cannot be zero", "error": "ValueError"},
    )
    forward = b.emit("greater", stride, zero)
    low_limit = b.emit("where", forward, zero, b.constant(-1, I64))
    high_limit = b.emit("where", forward, n, b.emit("subtract", n, one))
    low = _clamp(
        item.start, n, low_limit, high_limit, b.emit("where", forward, low_limit, high_limit)
    )
    high = _clamp(
        item.stop, n, low_limit, high_limit, b.emit("where", forward, high_limit, low_limit)
    )
    # ceil((high - low) / step), the number of steps from low that stay before high
    gap = b.emit("floor_divide", b.emit("subtract", low, high), stride)
    length = b.emit("maximum", b.emit("negative", gap), zero)
    return Stepped(axis, (low, b), (stride, b), b.as_dim(length))


def _clamp(
    bound: Any, n: Value, low: Value, high: Value, default: Value, most: DimLike | None = None
) -> Value:
    """Clamp a bound as Python does, as far as it may need it; `most` is `high` as a size."""
    bound = _bound(bound)
    if bound is None:
        return default
    b = current_scope()
    value = cast(read(lift(bound)), I64)
    known = range_of(b, value)
    if known is None or not is_at_most(b, 0, known.low):
        wrapped = b.emit("add", value, n)
        value = b.emit("where", b.emit("less", value, b.constant(0, I64)), wrapped, value)
        return b.emit("minimum", b.emit("maximum", value, low), high)
    within = most is not None and is_at_most(b, known.high, most)
    return value if within else b.emit("minimum", value, high)


# -- advanced indexing ---------------------------------------------------------------------------------------------


def _advanced(x: Traced, items: list[Any]) -> Selection:
    items = [i for i in items if i is not Ellipsis]
    mask = (
        items[0]
        if len(items) >= 1 and _is_mask(items[0]) and all(_full(i) for i in items[1:])
        else None
    )
    if mask is not None:
        _check_mask(x, mask, 0)
        if mask.type.shape != x.type.shape[: mask.ndim]:
            mask = None  # it may be empty, which fits any array
    expanded = _expand_masks(x, items)
    basic = [slice(None) if isinstance(i, (int, Traced)) else i for i in expanded]
    plain = _basic(x, basic)
    axes, indices = [], []
    for axis, item in enumerate(expanded):
        if isinstance(item, (int, Traced)):
            axes.append(axis)
            indices.append(_index_array(item, axis, plain.shape[axis]))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    front = axes[0] if adjacent else 0
    return Selection(plain.views, plain.shape, tuple(axes), tuple(indices), front, mask=mask)


def _is_mask(item: Any) -> bool:
    return isinstance(item, Traced) and item.dtype == BOOL


def _full(item: Any) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _check_mask(x: Traced, mask: Traced, axis: int) -> None:
    """Refuse a mask of other sizes than the array's, unless it is empty: NumPy then takes it for an empty index array."""
    if 0 in mask.type.shape:
        return
    for k, dim in enumerate(mask.type.shape):
        own = x.type.shape[axis + k]
        text = (
            f"boolean index did not match indexed array along axis {axis + k}; size of axis is {{}} but size of "
            "corresponding boolean axis is {}"
        )
        if isinstance(dim, int) and isinstance(own, int) and dim != own:
            raise IndexTypeError(text.format(own, dim), location=here())
        if dim != own:
            b = current_scope()
            sizes = (b.size(own), b.size(dim))
            fits = functools.reduce(_either, _emptiness(mask), b.emit("equal", *sizes))
            b.node("assert", (fits, *sizes), {"message": text, "error": "IndexError"})


def _emptiness(mask: Traced) -> list[Value]:
    """Return a flag for each axis that may have no elements."""
    b = current_scope()
    zero = b.constant(0, I64)
    open_sizes = [dim for dim in mask.type.shape if isinstance(dim, Dim)]
    return [b.emit("equal", b.size(dim), zero) for dim in open_sizes]


def _either(one: Value, other: Value) -> Value:
    return current_scope().emit("logical_or", one, other)


def _expand_masks(x: Traced, items: list[Any]) -> list[Any]:
    result: list[Any] = []
    axis = 0
    for item in items:
        if _is_mask(item):
            _check_mask(x, item, axis)
            found = current_scope().node("nonzero", (read(item),), {}).outputs
            result.extend(wrap(v) for v in found)
        else:
            result.append(item)
        axis += _width(item)
    return result


def _index_array(item: Any, axis: int, dim: DimLike) -> Traced:
    if isinstance(item, int):
        return lift(np.int64(_checked(item, axis, dim)))
    return item  # type: ignore[no-any-return]


_UFUNCS.update(getitem=getitem, setitem=setitem, scatter=scatter)
_ = _FUNCTIONS
