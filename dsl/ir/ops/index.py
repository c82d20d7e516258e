"""Indexing by data: gather, scatter, nonzero, sorting, searching.

- Index arrays are of any integer dtype and broadcast together, one for each of `axes`. An index from -n to -1
  counts from the end; one outside raises IndexError in NumPy's words, which look into arrays of rank 1 or more only
  if the indices broadcast to some elements. The result's dims are those of the indices, then the remaining ones of
  x.
- `scatter` works in C order of `v`: with "update" the last of several writers wins, the other modes accumulate one
  at a time, as `np.add.at`. Integers wrap; min and max keep NaN.
- Sorting puts NaN last (complex: any number with a NaN part, by NumPy's order) and so first when descending. Equal
  elements keep their order when `stable`; otherwise their order is open. bfloat16 is ordered as float32 is.
- `nth_element` takes a place before the first or after the last for that one.
- `searchsorted` in an array that is not sorted gives some index, as NumPy does.
- `unique` returns sorted values, all NaNs counting as one; an index is that of the first element equal to the
  value, for complex NaNs that of the first in sorted order.
- `nonzero` and `unique` have results of a size that only the data tells: one fresh symbol for each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from dsl.errors import InternalError, TypeRuleError
from dsl.ir.dims import Symbol
from dsl.ir.ops.rules import (
    ANY,
    INTEGERS,
    Attrs,
    Inputs,
    check_axis,
    operands,
    refuse,
    require_rank,
    require_same_dtype,
    require_same_shape,
)
from dsl.ir.ops.samples import draw, dtypes_of, one_operand
from dsl.ir.registry import Sample, Trait, op
from dsl.ir.types import BFLOAT16, DTYPES, I64, Shape, TensorType, broadcast_shapes

PURE, CHECKED, INDEXED, DYNAMIC = Trait.PURE, Trait.CHECKED, Trait.INDEXED, Trait.DYNAMIC


# -- gather and scatter -------------------------------------------------------------------------------------------


def _indexed_shape(name: str, x: TensorType, indices: Inputs, attrs: Attrs) -> Shape:
    axes: tuple[int, ...] = attrs["axes"]
    if len(attrs.get("named") or axes) != len(axes):
        raise InternalError(f"{name}: axes {axes} are named {attrs['named']}")
    if len(indices) != len(axes):
        raise TypeRuleError(
            f"{name}: expected {len(axes)} index arrays, one per axis, got {len(indices)}"
        )
    if list(axes) != sorted({check_axis(name, axis, x) for axis in axes}):
        raise InternalError(f"{name}: axes {axes} are not in increasing order")
    operands(name, indices, **{f"index{k}": INTEGERS for k in range(len(indices))})
    remaining = tuple(dim for axis, dim in enumerate(x.shape) if axis not in axes)
    return broadcast_shapes(*(index.shape for index in indices)) + remaining


def _gather_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("gather", inputs[:1], x=ANY)
    return x.with_shape(_indexed_shape("gather", x, inputs[1:], attrs))


def _scatter_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    x, v = operands("scatter", inputs[:2], x=ANY, v=ANY)
    require_same_dtype("scatter", x=x, v=v)
    if attrs["mode"] not in _MODES:
        refuse("scatter", "mode", f"one of {', '.join(_MODES)}", repr(attrs["mode"]))
    expected = _indexed_shape("scatter", x, inputs[2:], attrs)
    require_same_shape("scatter", "v", expected, v.shape)
    return x


def _checked_indices(
    x: np.ndarray, indices: tuple[np.ndarray, ...], axes: tuple[int, ...], named: tuple[int, ...]
) -> tuple[np.ndarray, ...]:
    """Return the indices as int64, broadcast together and laid out in C order; raise if one is out of range."""
    signed = [index.astype(np.int64) for index in indices]
    together = np.broadcast_arrays(*signed)
    for index, axis, name in zip(signed, axes, named or axes):
        if index.ndim == 0 or together[0].size:
            _check_range(index, name, x.shape[axis])
    return tuple(index.copy(order="C") for index in together)


def _check_range(index: np.ndarray, axis: int, size: int) -> None:
    wrong = index[(index < -size) | (index >= size)]
    if wrong.size:
        raise IndexError(f"index {wrong.flat[0]} is out of bounds for axis {axis} with size {size}")


def _leading(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return a view of `x` with `axes` in front."""
    return np.moveaxis(x, axes, range(len(axes)))


def _gather(
    x: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...], named: tuple[int, ...] = ()
) -> Any:
    """`named` are the axes as errors name them: those of parts, where a part of a part is meant."""
    if not indices:
        return x
    found = _checked_indices(x, indices, axes, named)
    if not found[0].size:  # what the others hold does not matter any more
        rest = np.delete(x.shape, axes).tolist()
        return np.empty((*found[0].shape, *rest), x.dtype)
    return _leading(x, axes)[found]


def _assign(x: np.ndarray, index: tuple[np.ndarray, ...], v: np.ndarray) -> None:
    x[index] = v


_MODES: dict[str, Callable[[np.ndarray, tuple[np.ndarray, ...], np.ndarray], None]] = {
    "update": _assign,
    "add": np.add.at,
    "multiply": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


def _scatter(
    x: np.ndarray, v: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...], mode: str,
    named: tuple[int, ...] = (),
) -> np.ndarray:  # fmt: skip
    out = np.array(x, order="C", copy=True)
    found = _checked_indices(x, indices, axes, named)
    if v.size:
        target = _leading(out, axes) if axes else out[np.newaxis]
        key = found if axes else (np.zeros((), np.int64),)
        _MODES[mode](target, key, np.array(v, order="C", copy=True))
    return out


def _gather_samples(rng: np.random.Generator) -> Iterable[Sample]:
    rows, columns = np.array([[1], [-1]]), np.array([2, 0, 2], np.uint8)
    for dtype in DTYPES:
        x = draw(rng, dtype, (2, 3, 4))
        yield Sample((x, rows, columns), {"axes": (0, 1)})
        yield Sample((x, np.array([3, -4, 0], np.int32)), {"axes": (2,)})
    for dtype in dtypes_of(INTEGERS):
        yield Sample((np.arange(3.0), np.array([2, 1], dtype)), {"axes": (0,)})
    x = np.arange(24.0).reshape(2, 3, 4)
    yield Sample((x, rows, columns), {"axes": (0, 2)})
    yield Sample((x, np.array(-1), np.array(2)), {"axes": (0, 2)})
    yield Sample((x, np.zeros((2, 0), np.int64)), {"axes": (1,)})


def _scatter_samples(rng: np.random.Generator) -> Iterable[Sample]:
    index = np.array([2, 0, 2, -1])
    for dtype in DTYPES:
        x, v = draw(rng, dtype, (2, 3)), draw(rng, dtype, (4, 2))
        for mode in _MODES:
            yield Sample((x, v, index), {"axes": (1,), "mode": mode})
    for dtype in dtypes_of(INTEGERS):
        attrs = {"axes": (0,), "mode": "add"}
        yield Sample((np.zeros(3), np.ones(3), np.array([1, 1, 2], dtype)), attrs)
    x, v = np.zeros((3, 2, 3)), np.arange(8.0).reshape(4, 2)
    yield Sample((x, v, index, index), {"axes": (0, 2), "mode": "add"})
    one = np.array(1)
    yield Sample((x, np.array(5.0), one, one, one), {"axes": (0, 1, 2), "mode": "update"})


op("gather", "x, *indices -> y", doc="Elements of x at index arrays over some `axes`.",
   type=_gather_type, numpy=_gather, traits={PURE, CHECKED, INDEXED}, samples=_gather_samples)  # fmt: skip
op("scatter", "x, v, *indices -> y", doc="x with v written to, or combined into, indexed places.",
   type=_scatter_type, numpy=_scatter, traits={PURE, CHECKED, INDEXED},
   samples=_scatter_samples)  # fmt: skip


# -- results whose size depends on data ---------------------------------------------------------------------------


def _nonzero_type(inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = operands("nonzero", inputs, x=ANY)
    if not x.rank:
        refuse("nonzero", "x", "of rank 1 or more", x)
    return (TensorType(I64, (Symbol("d"),)),) * x.rank


def _unique_type(inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = operands("unique", inputs, x=ANY)
    require_rank("unique", "x", x, 1)
    counts = TensorType(I64, (Symbol("d"),))
    return counts.with_dtype(x.dtype), counts, x.with_dtype(I64), counts


def _unique(x: np.ndarray) -> tuple[np.ndarray, ...]:
    values, *others = np.unique(
        _ordered(x), return_index=True, return_inverse=True, return_counts=True
    )
    return (values.astype(x.dtype), *others)


def _ordered(x: np.ndarray) -> np.ndarray:
    """Return bfloat16 as float32: NumPy's sorting does not know that bfloat16 has NaNs."""
    return x.astype(np.float32) if x.dtype == BFLOAT16 else x


def _unique_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        values = draw(rng, dtype, (3,))
        yield Sample((values[np.array([2, 0, 0, 1, 2, 1])],))


op("nonzero", "x -> *indices", doc="The indices of the elements that are not zero, per axis.",
   type=_nonzero_type, numpy=np.nonzero, traits={PURE, DYNAMIC},
   samples=lambda rng: one_operand(rng, ANY))  # fmt: skip
op("unique", "x -> values, index, inverse, counts",
   doc="The sorted distinct values of a vector, where each is first, which each element is, and how many there are.",
   type=_unique_type, numpy=_unique, traits={PURE, DYNAMIC}, samples=_unique_samples)  # fmt: skip


# -- order --------------------------------------------------------------------------------------------------------


def _sort_type(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands(name, inputs, x=ANY)
    check_axis(name, attrs["axis"], x)
    return x if name == "sort" else x.with_dtype(I64)


def _sort(x: np.ndarray, axis: int, stable: bool, descending: bool = False) -> np.ndarray:
    if descending:  # flipped before and after, so that equal elements keep their order
        return np.flip(_sort(np.flip(x, axis), axis, stable), axis)
    return np.sort(_ordered(x), axis=axis, stable=stable).astype(x.dtype)


def _argsort(x: np.ndarray, axis: int, stable: bool) -> np.ndarray:
    return np.argsort(_ordered(x), axis=axis, stable=stable)


def _nth_element_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    x, places = operands("nth_element", inputs, x=ANY, places=INTEGERS)
    axis = check_axis("nth_element", attrs["axis"], x)
    require_rank("nth_element", "places", places, 1)
    if places.dtype != I64:
        refuse("nth_element", "places", "of dtype i64", places)
    return TensorType(x.dtype, (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :]))


def _nth_element(x: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    size = x.shape[axis]
    if not size:
        shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
        return np.full(shape, 0 if x.dtype.kind in "biu" else np.nan, x.dtype)
    return _sort(x, axis, stable=False).take(places, axis, mode="clip")


def _searchsorted_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    a, v = operands("searchsorted", inputs, a=ANY, v=ANY)
    require_rank("searchsorted", "a", a, 1)
    require_same_dtype("searchsorted", a=a, v=v)
    if attrs["side"] not in ("left", "right"):
        refuse("searchsorted", "side", "'left' or 'right'", repr(attrs["side"]))
    return v.with_dtype(I64)


def _searchsorted(a: np.ndarray, v: np.ndarray, side: Any) -> Any:
    return np.searchsorted(_ordered(a), _ordered(v), side=side)


_SORTS: list[dict[str, Any]] = [
    {"axis": 0, "descending": False, "stable": True},
    {"axis": 1, "descending": False, "stable": False},
    {"axis": 1, "descending": True, "stable": True},
]
_ARGSORTS: list[dict[str, Any]] = [{"axis": axis, "stable": True} for axis in (0, 1)]


def _nth_element_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        for axis, places in ((0, [1]), (1, [2, 0, 1, 1])):
            yield Sample((draw(rng, dtype), np.array(places)), {"axis": axis})


def _searchsorted_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        for side in ("left", "right"):
            a = _sort(draw(rng, dtype, (5,)), 0, True)
            yield Sample((a, draw(rng, dtype)), {"side": side})


op("sort", "x -> y", doc="Elements in order along `axis`.", type=partial(_sort_type, "sort"),
   numpy=_sort, samples=lambda rng: one_operand(rng, ANY, *_SORTS))  # fmt: skip
op("argsort", "x -> y", doc="The indices that put x in order along `axis`, as int64.",
   type=partial(_sort_type, "argsort"), numpy=_argsort,
   samples=lambda rng: one_operand(rng, ANY, *_ARGSORTS))  # fmt: skip
op("nth_element", "x, places -> y",
   doc="The elements at `places` of the elements in order along `axis`; NaN or 0 if there are none.",
   type=_nth_element_type, numpy=_nth_element, samples=_nth_element_samples)  # fmt: skip
op("searchsorted", "a, v -> index", doc="Where v would go into the sorted vector a, as int64.",
   type=_searchsorted_type, numpy=_searchsorted, samples=_searchsorted_samples)  # fmt: skip
