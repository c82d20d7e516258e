"""Which values of a graph and its regions are needed, across loops and branches at once.

A carried value is live if the predicate, an effect, a used result or another live carried value needs it; one that only feeds
itself around two nested loops is dead. `Structured` says how the operands of control flow and the params of its regions belong
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsl.ir.graph import Graph, Node, Value

__all__ = ["Structured", "is_structured", "live_values"]

_STRUCTURED = frozenset({"cond", "while", "scan"})


def live_values(graph: Graph) -> set[Value]:
    """Return the values of a graph and its regions that results and effects need."""
    return _Liveness(graph).values


@dataclass(frozen=True)
class Structured:
    """A `cond`, `while` or `scan` node seen from its regions: param k of each is given by operand k.

    `carried` are the params that take part in a loop; result i of the node goes with `carried[i]`.
    """

    node: Node

    @property
    def carried(self) -> range:
        first = 1 if self.node.op.name == "scan" else 0
        return range(first, first + self.node.attrs.get("carried", 0))

    @property
    def is_loop(self) -> bool:
        return self.node.op.name != "cond"

    @property
    def operands(self) -> tuple[Value, ...]:
        """The inputs that the regions see; a scan's first is the trip count, which they see as the trip number."""
        return self.node.inputs if self.is_loop else self.node.inputs[1:]

    @property
    def invariants(self) -> range:
        """The params that are the same in every trip, and those of a cond."""
        return range(self.carried.stop, len(self.operands))

    @property
    def body(self) -> Graph:
        return self.node.regions[-1]

    @property
    def yielding(self) -> tuple[Graph, ...]:
        """The regions whose results become the node's."""
        return (self.body,) if self.is_loop else self.node.regions


class _Liveness:
    """The values of a graph and its regions that results and effects need."""

    def __init__(self, graph: Graph) -> None:
        self.values: set[Value] = set()
        self._nodes: set[Node] = set()
        self._back: dict[Node, Value] = dict(graph.back)
        self._given_by: dict[Value, list[Value]] = {}
        self._pending: list[Value] = list(graph.results)
        self._started: list[Node] = list(graph.effects)
        while self._pending or self._started:
            if self._started:
                self._start(self._started.pop())
            else:
                self._mark(self._pending.pop())

    def _mark(self, value: Value) -> None:
        if value in self.values:
            return
        self.values.add(value)
        self._started.append(value.node)
        self._pending.extend(self._given_by.get(value, ()))
        if is_structured(value.node):
            self._pending.extend(_sources(value))

    def _start(self, node: Node) -> None:
        """Mark what a node needs in order to run, whichever of its outputs are read."""
        if node in self._nodes:
            return
        self._nodes.add(node)
        self._started.extend(node.controls)
        self._pending.extend(_always_read(node))
        if node in self._back:
            self._pending.append(self._back[node])
        for param, needed in _bindings(node):
            self._given_by.setdefault(param, []).extend(needed)
            if param in self.values:
                self._pending.extend(needed)
        for region in node.regions:
            self._back.update(region.back)
            self._started.extend(region.effects)


def is_structured(node: Node) -> bool:
    """Tell whether a node is a branch or loop, whose regions run when it does."""
    return node.op.name in _STRUCTURED


def _always_read(node: Node) -> tuple[Value, ...]:
    """Return what a node needs for whichever of its results; one that keeps its regions for later needs all of them."""
    if not is_structured(node):
        return (*node.inputs, *(value for region in node.regions for value in region.results))
    return node.regions[0].results if node.op.name == "while" else node.inputs[:1]


def _sources(value: Value) -> list[Value]:
    """Return what an output of a structured node is made from."""
    view = Structured(value.node)
    first = [view.operands[view.carried[value.index]]] if view.is_loop else []
    return first + [region.results[value.index] for region in view.yielding]


def _bindings(node: Node) -> Iterator[tuple[Value, list[Value]]]:
    """Yield each param of a node's regions with the values it takes."""
    if not is_structured(node):
        return
    view = Structured(node)
    for region in node.regions:
        for k, param in enumerate(region.params):
            again = [view.body.results[k - view.carried.start]] if k in view.carried else []
            yield param, [view.operands[k], *again]
