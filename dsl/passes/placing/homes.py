"""On which devices the nodes of a placed flat graph run.

An ordinary node runs on one device, its home. Some rules for the nodes of loops and branches override what they ask for,
because a token that changes its frame or dies should do so where it is:

- A `switch` runs where its data is made, and an `exit` where its switch runs.
- An `enter` runs wherever something reads it, so what enters a frame crosses devices before it enters: an invariant does
  so once, not in every iteration. A `next_iteration` runs where the `loop_merge` is that reads it.
- A small constant is made wherever something reads it.
- So is the pivot of a region, which is live where the region runs: what decides about that, mostly goes there anyway, as a
  loop's predicate does.

Nodes of the last three kinds are *copied*: they run on all the devices that read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsl.errors import DeviceError
from dsl.ir.graph import Graph, Node
from dsl.ir.registry import Trait

__all__ = ["SMALL", "Homes", "is_generator", "leader_of", "readers_of"]

SMALL = 4096
"""Bytes of a constant up to which every device that reads it has its own."""


def leader_of(node: Node) -> Node | None:
    """Return the node that a `switch` or an `exit` follows to its device, if there is one."""
    if node.op.name not in ("switch", "exit"):
        return None
    leader = node.inputs[0].node
    return None if leader.op.name in ("param", "enter", "const") else leader


def is_generator(node: Node) -> bool:
    """Tell whether a node makes its value out of nothing, so that it may as well be made where it is read."""
    return node.op.has(Trait.PURE) and not (node.inputs or node.controls or node.regions)


def readers_of(graph: Graph) -> dict[Node, list[Node]]:
    """Map each node to those that read its outputs, back edges included, or wait for it."""
    found: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for source in (*(value.node for value in node.inputs), *node.controls):
            if source in found:
                found[source].append(node)
    for merge, value in graph.back.items():
        found[value.node].append(merge)
    return found


class Homes:
    """The home of each node, and the devices on which it runs. Every node must have a `device`."""

    def __init__(self, graph: Graph, small: int = SMALL) -> None:
        self.graph, self.small = graph, small
        self.home: dict[Node, str] = {}
        for node in graph.nodes:
            leader = leader_of(node)
            self.home[node] = _device(node) if leader is None else self.home[leader]
        self.devices: Mapping[Node, tuple[str, ...]] = self._spread()

    def _spread(self) -> dict[Node, tuple[str, ...]]:
        """Find the devices of each node, readers first: a copied node is where its readers are."""
        found: dict[Node, tuple[str, ...]] = {}
        readers = readers_of(self.graph)
        kept = {*self.graph.effects, *(value.node for value in self.graph.results)}
        for node in reversed(self.graph.nodes):
            if not self._is_copied(node):
                found[node] = (self.home[node],)
                continue
            # A reader through a back edge is a loop_merge, which may come earlier in the order but is never copied.
            spread = [found.get(reader, (self.home[reader],)) for reader in readers[node]]
            own = [(self.home[node],)] if node in kept or not spread else []
            found[node] = _distinct(own + spread)
        return found

    def _is_copied(self, node: Node) -> bool:
        if node.op.name == "const":
            return bool(node.attrs["value"].array.nbytes <= self.small)
        return node.op.name in ("enter", "next_iteration") or _is_pivot(node)


def _is_pivot(node: Node) -> bool:
    """Tell whether a node says only that a region runs: the switch of its predicate, or what stands for one side of that."""
    if node.controls:
        return False
    if node.op.name == "switch":
        return bool(node.attrs.get("pivot")) and node.inputs[0] is node.inputs[1]
    return node.op.name == "identity" and _is_pivot(node.inputs[0].node)


def _device(node: Node) -> str:
    if "device" not in node.attrs:
        raise DeviceError(
            f"`{node.op.name}` has no device", location=node.loc, remedy="`place` the graph first"
        )
    return str(node.attrs["device"])


def _distinct(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device for group in groups for device in group))
