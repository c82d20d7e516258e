"""Rules of ops that move elements. The batch axis stays in front; boxes and shapes take all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


@batches("broadcast_to", "full")
def broadcast(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    shape = node.attrs["shape"]
    return whole(a.to_shape(a.of_rank(inputs[0], len(shape)), (size, *shape)))


@batches("reshape")
def reshape(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.reshaped(inputs[0], (size, *node.attrs["shape"])))


@batches("transpose")
def transpose(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.permuted(inputs[0], [0, *(axis + 1 for axis in node.attrs["axes"])]))


@batches("dim_size")
def dim_size(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """All items have the same sizes."""
    return [a.builder.size(inputs[0].shape[node.attrs["axis"] + 1])], [False]


@batches("slice")
def slice_(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    start, sizes, step = (node.attrs[name] for name in ("start", "size", "step"))
    return whole(a.slice(inputs[0], start=(0, *start), size=(size, *sizes), step=(1, *step)))


@batches("update_slice")
def update_slice(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    x, v = a.all_repeated(inputs, batched)
    return whole(
        a.update_slice(x, v, start=(0, *node.attrs["start"]), step=(1, *node.attrs["step"]))
    )


@batches("concatenate")
def concatenate(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.concatenate(*a.all_repeated(inputs, batched), axis=node.attrs["axis"] + 1))


@batches("pad")
def pad(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """A value for each item is spread over the result, into which the items are put."""
    x, value = inputs
    low, high = (0, *node.attrs["low"]), (0, *node.attrs["high"])
    if not batched[1]:
        return whole(a.pad(x, value, low=low, high=high))
    x = a.repeated(x, batched[0])
    shape = tuple(before + dim + after for before, dim, after in zip(low, x.shape, high))
    around = a.to_shape(a.of_rank(value, len(shape) - 1), shape)
    return whole(a.update_slice(around, x, start=low, step=(1,) * len(shape)))
