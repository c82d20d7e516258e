"""Rules of indexing by data. Where items have indices of their own, the number of the item is one more index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.items import one_by_one
from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


def _further(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)


def _numbers(a: Batching, rank: int) -> Value:
    """Return the number of each item, to go with indices of a rank."""
    return a.of_rank(a.iota(size=a.size, dtype=I64), rank)


def _index_rank(indices: Values, batched: Flags) -> int:
    return max((len(index.shape) - on for index, on in zip(indices, batched)), default=0)


@batches("gather")
def gather(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    x, *indices = inputs
    axes, rank = node.attrs["axes"], _index_rank(indices, batched[1:])
    if not any(batched[1:]):
        return whole(a.moved(a.gather(x, *indices, axes=_further(axes)), rank, 0))
    indices = a.aligned(indices, batched[1:])
    if not batched[0]:
        return whole(a.gather(x, *indices, axes=axes))
    return whole(a.gather(x, _numbers(a, rank), *indices, axes=(0, *_further(axes))))


@batches("scatter")
def scatter(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Items are written in order; what is written within one keeps its order."""
    x, v = a.all_repeated(inputs[:2], batched[:2])
    indices, mode = inputs[2:], node.attrs["mode"]
    axes, rank = _further(node.attrs["axes"]), _index_rank(indices, batched[2:])
    if not any(batched[2:]):
        return whole(a.scatter(x, a.moved(v, 0, rank), *indices, axes=axes, mode=mode))
    indices = a.aligned(indices, batched[2:])
    return whole(a.scatter(x, v, _numbers(a, rank), *indices, axes=(0, *axes), mode=mode))


# -- boxes that start where data says -----------------------------------------------------------------------------


@batches("dynamic_slice")
def dynamic_slice(
    a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike
) -> Outputs:
    x, start = inputs
    axis, length, step = node.attrs["axis"], node.attrs["size"], node.attrs.get("step", 1)
    if not batched[1]:
        return whole(a.dynamic_slice(x, start, **{**node.attrs, "axis": axis + 1}))
    places = _places(a, start, length, step, x.shape[axis + batched[0]])
    if batched[0]:
        found = a.gather(x, _numbers(a, 1), places, axes=(0, axis + 1))
    else:
        found = a.gather(x, places, axes=(axis,))
    return whole(a.moved(found, 1, axis + 1))


@batches("update_dynamic_slice")
def update_dynamic_slice(
    a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike
) -> Outputs:
    x, v = a.all_repeated(inputs[:2], batched[:2])
    axis, step = node.attrs["axis"] + 1, node.attrs.get("step", 1)
    if not batched[2]:
        return whole(a.update_dynamic_slice(x, v, inputs[2], **{**node.attrs, "axis": axis}))
    places = _places(a, inputs[2], v.shape[axis], step, x.shape[axis])
    moved = a.moved(v, axis, 1)
    return whole(a.scatter(x, moved, _numbers(a, 1), places, axes=(0, axis), mode="update"))


def _places(a: Batching, start: Value, length: DimLike, step: int, dim: DimLike) -> Value:
    """Return the indices of each item's box. Boxes do not wrap around: a negative index is made one that is refused."""
    offsets = a.multiply(a.iota(size=length, dtype=I64), step)
    places = a.builder.emit("add", a.expanded(start, (1,)), offsets)
    return a.where(a.less(places, 0), a.subtract(places, a.builder.size(dim)), places)


# -- order --------------------------------------------------------------------------------------------------------


@batches("nth_element")
def nth_element(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    if batched[1]:
        return one_by_one(a, node, inputs, batched, size)
    return whole(a.nth_element(*inputs, axis=node.attrs["axis"] + 1))


@batches("searchsorted")
def searchsorted(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    if batched[0]:
        return one_by_one(a, node, inputs, batched, size)
    return whole(a.searchsorted(*inputs, side=node.attrs["side"]))
