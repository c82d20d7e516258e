"""Rules of collectives: one for the whole batch.

The batch axis goes behind that of the ranks, where there is one. Of a message, both sides must know whether it is of a
batch: inside a `vmap` it always is, and is sent and received as one array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching

__all__ = ["MESSAGES", "sends"]

MESSAGES = ("send_to", "recv_from")


def sends(node: Node) -> bool:
    """Tell whether a node is a message to or from another rank, or has one in its regions."""
    if node.op.name in MESSAGES:
        return True
    return any(sends(inner) for region in node.regions if region.effects for inner in region.nodes)


@batches("all_reduce", "reduce_to", "broadcast_from", "exchange")
def elementwise(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(*a.builder.node(node.op, inputs, node.attrs).outputs)


@batches("gather_to", "all_gather")
def stacking(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.moved(a.builder.node(node.op, inputs, node.attrs).output, 1, 0))


@batches("scatter_from", "reduce_scatter")
def taking(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.builder.node(node.op, [a.moved(inputs[0], 0, 1)], node.attrs).output)


@batches("all_to_all")
def turning(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    made = a.builder.node(node.op, [a.moved(inputs[0], 0, 1)], node.attrs)
    return whole(a.moved(made.output, 1, 0))


@batches("send_to")
def send(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    a.builder.node(node.op, a.all_repeated(inputs, batched), node.attrs)
    return (), ()


@batches("recv_from")
def receive(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    attrs = {**node.attrs, "shape": (size, *node.attrs["shape"])}
    return whole(a.builder.node(node.op, (), attrs).output)
