"""Views: how a traced array that shares another's memory reads and writes it.

A view knows how to read its elements out of its base's contents (`get`), how to put new elements back (`put`), and what
the same view of a NumPy array is (`of`), by which results that are views of arguments are made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsl.errors import ShapeError, UnsupportedError
from dsl.frontend.scopes import Scope, here
from dsl.ir.dims import Dim, DimLike, substitute, symbols_of
from dsl.ir.graph import Value
from dsl.ir.types import I64, Shape

__all__ = [
    "Bitcast",
    "Broadcasted",
    "DynamicSliced",
    "Part",
    "Picked",
    "Raveled",
    "Recast",
    "Reshaped",
    "Sliced",
    "Stepped",
    "Transposed",
    "View",
    "Windowed",
    "chained",
    "placed",
    "positions_in",
    "read_only",
    "resolve",
    "run_size",
    "symbols_in",
]

Owned = tuple[Value, Scope]


def symbols_in(view: View) -> list[Dim]:
    """Return the symbols in the sizes that a view mentions."""
    return symbols_of(*(dim for _, dims in _sizes(view) for dim in dims))


def resolve(view: View, sizes: Mapping[Dim, int]) -> View:
    """Return a view with its sizes known."""
    found = {
        name: tuple(substitute(dim, sizes) for dim in dims)
        for name, dims in _sizes(view)
        if symbols_of(*dims)
    }
    return dataclasses.replace(view, **found) if found else view  # type: ignore[type-var]


def positions_in(view: View) -> tuple[Owned, ...]:
    """Return the traced positions and steps that a view mentions."""
    if isinstance(view, Picked):
        return view.indices
    if isinstance(view, DynamicSliced):
        return (view.start,)
    return (view.start, view.step) if isinstance(view, Stepped) else ()


def run_size(view: View) -> DimLike:
    """Return how long the run of an axis is that starts at a traced position; 0 for other views."""
    return view.size if isinstance(view, (DynamicSliced, Stepped)) else 0


def placed(view: View, told: Mapping[Any, int]) -> View:
    """Return a view with its positions and sizes known: `told` has what traced values and symbols stand for."""
    if symbols_in(view):
        view = resolve(view, told)
    found = [told[value] for value, _ in positions_in(view)]
    if isinstance(view, Picked):
        return At(view.axes, tuple(found))
    if isinstance(view, (DynamicSliced, Stepped)):
        step = view.step if isinstance(view, DynamicSliced) else found[1]
        return Run(view.axis, found[0], substitute(view.size, told), step)  # type: ignore[arg-type]
    return view


def _sizes(view: View) -> list[tuple[str, Shape]]:
    """Return the fields of a view that are shapes."""
    fields = ((f.name, getattr(view, f.name)) for f in dataclasses.fields(view))  # type: ignore[arg-type]
    return [
        (name, item)
        for name, item in fields
        if isinstance(item, tuple) and all(isinstance(dim, (int, Dim)) for dim in item)
    ]


def chained(views: Sequence[View], further: Sequence[View]) -> tuple[View, ...]:
    """Return views followed by further ones, with transpositions after the choice of a part.

    A part of `x.T` is the transposed part of x: to read and write it, nobody has to transpose all of x. `x[i][j]` is `x[i, j]`: nobody
    has to take the row.
    """
    found = list(views)
    for view in further:
        last = found[-1] if found else None
        swapped = last.after(view) if isinstance(last, (Transposed, Picked)) else None
        found[len(found) - (swapped is not None) :] = [view] if swapped is None else swapped
    return tuple(found)


class View(Protocol):
    def get(self, b: Scope, base: Value) -> Value: ...
    def put(self, b: Scope, base: Value, value: Value) -> Value: ...
    def of(self, array: np.ndarray) -> np.ndarray | None: ...


@dataclass(frozen=True)
class Sliced:
    """A box: element k of an axis is the base's `start + step * k`."""

    start: tuple[DimLike, ...]
    size: Shape
    step: tuple[int, ...]

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("slice", base, start=self.start, size=self.size, step=self.step)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        if self.size == base.shape and set(self.step) <= {1}:
            return value
        return b.emit("update_slice", base, value, start=self.start, step=self.step)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        if not all(isinstance(d, int) for d in (*self.start, *self.size)):
            return None
        return array[tuple(map(_as_slice, self.start, self.size, self.step))]  # type: ignore[arg-type]


def _as_slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0, 1)


@dataclass(frozen=True)
class Reshaped:
    """The same elements in C order under another shape."""

    shape: Shape

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("reshape", base, shape=self.shape)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        return b.emit("reshape", value, shape=base.shape)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        if not all(isinstance(d, int) for d in self.shape):
            return None
        try:
            view = array.view()
            view.shape = self.shape  # type: ignore[assignment]
        except (AttributeError, ValueError):
            return None
        return view


def read_only() -> ShapeError:
    """Return the error of a write into a view that must not be written."""
    return ShapeError(
        "assignment destination is read-only",
        location=here(),
        remedy="write to a copy: `y = y.copy()`",
    )


@dataclass(frozen=True)
class Broadcasted:
    """The base repeated along new and size-1 axes; read-only, as in NumPy."""

    shape: Shape

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("broadcast_to", base, shape=self.shape)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        raise read_only()

    def of(self, array: np.ndarray) -> np.ndarray | None:
        if not all(isinstance(d, int) for d in self.shape):
            return None
        return np.broadcast_to(array, self.shape)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Windowed:
    """The runs of `size` elements of an axis, each along a new last axis; they share elements."""

    axis: int
    size: int
    writeable: bool = False

    def count(self, shape: Shape) -> DimLike:
        """Return how many runs an axis of an array of that shape has."""
        return shape[self.axis] - self.size + 1

    def get(self, b: Scope, base: Value) -> Value:
        count = self.count(base.shape)
        firsts = b.emit("reshape", b.emit("iota", size=count, dtype=I64), shape=(count, 1))
        places = b.emit("add", firsts, b.emit("iota", size=self.size, dtype=I64))
        # No index is outside, so none needs the checks that an index of the user's has where there are no elements.
        taken = b.emit("gather", base, places, axes=(self.axis,))
        others = iter(range(2, len(taken.shape)))
        order = (*(0 if k == self.axis else next(others) for k in range(len(base.shape))), 1)
        return b.emit("transpose", taken, axes=order) if order != (0, 1) else taken

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        if not self.writeable:
            raise read_only()
        raise UnsupportedError(
            "a write into windows, which share their elements",
            location=here(),
            remedy="write to the array that the windows are of",
        )

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return np.lib.stride_tricks.sliding_window_view(
            array, self.size, self.axis, writeable=self.writeable
        )


@dataclass(frozen=True)
class Raveled(Reshaped):
    """The same elements in one axis, of an array that is one run of memory."""

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return super().of(array) if array.flags.c_contiguous else None


@dataclass(frozen=True)
class Transposed:
    """The base with its axes permuted."""

    axes: tuple[int, ...]

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("transpose", base, axes=self.axes)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        inverse = tuple(sorted(range(len(self.axes)), key=self.axes.__getitem__))
        return b.emit("transpose", value, axes=inverse)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return array.transpose(self.axes)

    def after(self, view: View) -> list[View] | None:
        """Return views that show what `view` shows of this one, this kind last; None if there are none."""
        if isinstance(view, Sliced):
            start, size, step = (self._back(item) for item in (view.start, view.size, view.step))
            return [Sliced(start, size, step), self]
        if isinstance(view, DynamicSliced):
            return [dataclasses.replace(view, axis=self.axes[view.axis]), self]
        if not isinstance(view, Picked):
            return None
        names = view.named or view.axes
        picks = {self.axes[k]: each for k, *each in zip(view.axes, view.indices, names)}
        axes = tuple(sorted(picks))
        indices, named = zip(*(picks[k] for k in axes), strict=True)
        return [Picked(axes, indices, named if named != axes else ()), *self._without(view.axes)]

    def _back(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what there is one of for each axis in the order of the base's axes."""
        return tuple(items[self.axes.index(k)] for k in range(len(self.axes)))

    def _without(self, axes: tuple[int, ...]) -> list[Transposed]:
        left = [axis for k, axis in enumerate(self.axes) if k not in axes]
        order = tuple(sorted(left).index(axis) for axis in left)
        return [Transposed(order)] if list(order) != sorted(order) else []


@dataclass(frozen=True)
class DynamicSliced:
    """A run of one axis that starts at a traced position."""

    axis: int
    start: Owned
    size: DimLike
    step: int

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit(
            "dynamic_slice",
            base,
            b.local(*self.start),
            axis=self.axis,
            size=self.size,
            step=self.step,
        )

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        start = b.local(*self.start)
        return b.emit("update_dynamic_slice", base, value, start, axis=self.axis, step=self.step)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return None


@dataclass(frozen=True)
class Stepped:
    """A run of one axis with a traced start and step."""

    axis: int
    start: Owned
    step: Owned
    size: DimLike

    def _indices(self, b: Scope) -> Value:
        steps = b.emit("iota", size=self.size, dtype=I64)
        return b.emit("add", b.local(*self.start), b.emit("multiply", steps, b.local(*self.step)))

    def _front(self, rank: int) -> tuple[int, ...]:
        return (self.axis, *(k for k in range(rank) if k != self.axis))

    def get(self, b: Scope, base: Value) -> Value:
        rows = b.emit("gather", base, self._indices(b), axes=(self.axis,))
        order = tuple(sorted(range(len(base.shape)), key=self._front(len(base.shape)).__getitem__))
        return b.emit("transpose", rows, axes=order) if self.axis else rows

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        rows = b.emit("transpose", value, axes=self._front(len(base.shape))) if self.axis else value
        return b.emit("scatter", base, rows, self._indices(b), axes=(self.axis,), mode="update")

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return None


@dataclass(frozen=True)
class Picked:
    """The base at traced integer positions of some axes; errors name axes of a part of a part as that part has them."""

    axes: tuple[int, ...]
    indices: tuple[Owned, ...]
    named: tuple[int, ...] = ()

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("gather", base, *(b.local(*i) for i in self.indices), **self._attrs)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        indices = [b.local(*i) for i in self.indices]
        return b.emit("scatter", base, value, *indices, mode="update", **self._attrs)

    @property
    def _attrs(self) -> dict[str, Any]:
        return {"axes": self.axes} | ({"named": self.named} if self.named else {})

    def after(self, view: View) -> list[View] | None:
        """Return the view that shows what `view` shows of this one, if it picks too."""
        if not isinstance(view, Picked):
            return None
        picks = {k: (i, n) for k, i, n in zip(self.axes, self.indices, self.named or self.axes)}
        for k, index, name in zip(view.axes, view.indices, view.named or view.axes, strict=True):
            picks[self._below(k)] = index, name
        axes = tuple(sorted(picks))
        indices, named = zip(*(picks[k] for k in axes), strict=True)
        return [Picked(axes, indices, named if named != axes else ())]

    def _below(self, axis: int) -> int:
        """Return which axis of the base an axis of this view is."""
        for picked in self.axes:
            axis += picked <= axis
        return axis

    @property
    def places(self) -> list[int] | None:
        """The positions, if they are known."""
        if any(value.node.op.name != "const" for value, _ in self.indices):
            return None
        return [int(value.node.attrs["value"].array) for value, _ in self.indices]

    def of(self, array: np.ndarray) -> np.ndarray | None:
        places = self.places
        return None if places is None else At(self.axes, tuple(places)).of(array)


class Delivered:
    """A view of a result whose place the run has told, which nothing reads or writes while tracing."""

    def get(self, b: Scope, base: Value) -> Value:
        raise NotImplementedError

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        raise NotImplementedError


@dataclass(frozen=True)
class At(Delivered):
    """An array at positions of some axes."""

    axes: tuple[int, ...]
    places: tuple[int, ...]

    def of(self, array: np.ndarray) -> np.ndarray | None:
        key: list[Any] = [slice(None)] * array.ndim
        for axis, place in zip(self.axes, self.places, strict=True):
            key[axis] = place
        return array[(*key, ...)]


@dataclass(frozen=True)
class Run(Delivered):
    """A run of one axis."""

    axis: int
    start: int
    size: int
    step: int

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return array[(*[slice(None)] * self.axis, _as_slice(self.start, self.size, self.step))]


@dataclass(frozen=True)
class Part:
    """The real or imaginary part of a complex array."""

    name: str

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit(self.name, base)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        real = value if self.name == "real" else b.emit("real", base)
        imag = value if self.name == "imag" else b.emit("imag", base)
        return b.emit("complex", real, imag)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return getattr(array, self.name)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Bitcast:
    """The same bytes under another dtype of the same size."""

    dtype: Any

    def get(self, b: Scope, base: Value) -> Value:
        return b.emit("bitcast", base, dtype=self.dtype)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        return b.emit("bitcast", value, dtype=base.dtype)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return array.view(self.dtype)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recast:
    """The same bytes under a dtype of another size: the last axis is longer or shorter."""

    dtype: Any

    def get(self, b: Scope, base: Value) -> Value:
        return _recast(b, base, self.dtype)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        return _recast(b, value, base.dtype)

    def of(self, array: np.ndarray) -> np.ndarray | None:
        try:
            return array.view(self.dtype)  # type: ignore[no-any-return]
        except ValueError:
            return None


def _recast(b: Scope, x: Value, dtype: np.dtype) -> Value:
    """Return the bytes of `x` as numbers of another dtype, the low ones first."""
    if x.dtype == dtype:
        return x
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return b.emit("bitcast", x, dtype=dtype)
    if x.dtype.kind == "c":
        return _recast(b, _interleaved(b, [b.emit("real", x), b.emit("imag", x)]), dtype)
    if dtype.kind == "c":
        real, imag = _every(b, _recast(b, x, np.dtype(f"f{new // 2}")), 2)
        return b.emit("complex", real, imag)
    if old > new:
        words = _recast(b, x, np.dtype(f"u{old}"))
        low = [_shifted(b, words, "right_shift", 8 * new * k) for k in range(old // new)]
        return _recast(
            b, _interleaved(b, [b.emit("cast", v, dtype=np.dtype(f"u{new}")) for v in low]), dtype
        )
    parts = _every(b, _recast(b, x, np.dtype(f"u{old}")), new // old)
    wide = [b.emit("cast", v, dtype=np.dtype(f"u{new}")) for v in parts]
    moved = [_shifted(b, v, "left_shift", 8 * old * k) for k, v in enumerate(wide)]
    return _recast(b, functools.reduce(lambda v, w: b.emit("bitwise_or", v, w), moved), dtype)


def _shifted(b: Scope, x: Value, op: str, bits: int) -> Value:
    return b.emit(op, x, b.constant(bits, x.dtype)) if bits else x


def _interleaved(b: Scope, parts: list[Value]) -> Value:
    shape = parts[0].shape
    columns = [b.emit("reshape", part, shape=(*shape, 1)) for part in parts]
    joined = b.emit("concatenate", *columns, axis=len(shape))
    return b.emit("reshape", joined, shape=(*shape[:-1], shape[-1] * len(parts)))


def _every(b: Scope, x: Value, step: int) -> list[Value]:
    """Return every so manieth element of the last axis, from each of the first ones on."""
    rest = x.shape[:-1]
    size, steps = (*rest, x.shape[-1] // step), (1,) * len(rest) + (step,)
    starts = [(0,) * len(rest) + (k,) for k in range(step)]
    return [b.emit("slice", x, start=start, size=size, step=steps) for start in starts]
