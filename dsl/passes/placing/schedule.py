"""The cost model of the white paper: run a graph in thought, and give each node the device that finishes it first.

Nodes are taken in the order in which they would become ready. On a device a node starts when the device is free and its
inputs are there; an input from another device comes later by the time of a transfer, once for all its readers there. A group
is on the device that its first node gets; ties go to the device listed first. Loops are looked at as if they made one trip.

A node at a time this is greedy: it spreads small nodes whose results then have to come together again. So the run in which
every group has the first device that it may have is made too, and the shorter one counts, where each device that takes part
costs as much as a transfer.

The numbers are those of one core of a desktop machine. They decide where nodes go, never what they compute.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.parts import node_names
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType
from dsl.passes.placing.groups import Group, Groups
from dsl.passes.placing.homes import is_generator, readers_of

__all__ = ["LINKS", "Links", "estimate", "schedule"]

DISPATCH = 1e-6  # seconds to get a node going
MEMORY = 1e10  # bytes a second that elementwise work reads and writes
ARITHMETIC = 2e10  # multiplications and additions a second in matrix products
UNKNOWN_SIZE = 100  # what a symbolic size is taken for
TRIPS = 10  # what a loop is taken to make


@dataclass(frozen=True)
class Links:
    """What a transfer costs: seconds for any, and bytes a second, within a rank and between ranks."""

    latency: float = 1e-5
    bandwidth: float = 2e10
    far_latency: float = 5e-5
    far_bandwidth: float = 1e9

    def time(self, size: int, source: DeviceName, target: DeviceName) -> float:
        if source == target:
            return 0.0
        if source.rank == target.rank:
            return self.latency + size / self.bandwidth
        return self.far_latency + size / self.far_bandwidth


LINKS = Links()


def schedule(
    graph: Graph,
    groups: Groups,
    feasible: Mapping[Group, Sequence[DeviceName]],
    pinned: Mapping[Group, DeviceName],
    costs: Mapping[str, float],
    links: Links,
) -> dict[Group, DeviceName]:
    """Return a device for every group but those of lone generators; `pinned` ones have theirs."""
    first = {group: found[:1] for group, found in feasible.items()}
    runs = [_Run(graph, groups, each, pinned, costs, links) for each in (first, feasible)]
    return min(runs, key=lambda run: run.length).chosen  # the simpler of equals


class _Run:
    """A run in thought. `chosen` holds the device of each group that is decided, `length` the seconds it takes."""

    def __init__(
        self,
        graph: Graph,
        groups: Groups,
        feasible: Mapping[Group, Sequence[DeviceName]],
        pinned: Mapping[Group, DeviceName],
        costs: Mapping[str, float],
        links: Links,
    ) -> None:
        self.graph, self.groups, self.feasible = graph, groups, feasible
        self.chosen = dict(pinned)
        self.links = links
        names = node_names(graph)
        self.seconds = {n: costs.get(name, None) for n, name in names.items()}
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.sources = {node: _sources(node) for node in graph.nodes}
        self.free: dict[DeviceName, float] = {}
        self.finish: dict[Node, float] = {}
        self._arrivals: dict[tuple[Value, DeviceName], float] = {}
        self.length = self._decide()

    def _decide(self) -> float:
        """Choose the device of every group but those of lone generators, which go where they are read."""
        readers = readers_of(self.graph)
        missing = {node: len(sources) for node, sources in self.sources.items()}
        ready = [(0.0, self.position[n], n) for n, count in missing.items() if count == 0]
        heapq.heapify(ready)
        while ready:
            _, _, node = heapq.heappop(ready)
            self._run(node)
            for reader in dict.fromkeys(readers[node]):
                if node in self.sources[reader]:  # not through a back edge
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        heapq.heappush(ready, (self._ready(reader), self.position[reader], reader))
        return max(self.finish.values(), default=0.0) + self.links.latency * len(self.free)

    def _ready(self, node: Node) -> float:
        return max((self.finish[source] for source in self.sources[node]), default=0.0)

    def _run(self, node: Node) -> None:
        group = self.groups[node]
        if group not in self.chosen and self._floats(node):
            self.finish[node] = 0.0
            return
        devices = [self.chosen[group]] if group in self.chosen else self.feasible[group]
        times = {device: self._finish(node, device) for device in devices}
        best = min(devices, key=lambda device: times[device])  # the first of equals
        self.chosen[group] = best
        self.free[best] = self.finish[node] = times[best]

    def _floats(self, node: Node) -> bool:
        return is_generator(node) and len(self.groups[node].members) == 1

    def _finish(self, node: Node, device: DeviceName) -> float:
        start = max([self.free.get(device, 0.0), *(self._arrival(v, device) for v in node.inputs)])
        start = max([start, *(self.finish[n] for n in node.controls if n in self.finish)])
        cost = self.seconds[node]
        return start + (estimate(node) if cost is None else cost)

    def _arrival(self, value: Value, device: DeviceName) -> float:
        source = value.node
        home = self.chosen.get(self.groups[source]) if source in self.finish else None
        if home is None:  # an argument or a generator: at hand everywhere
            return 0.0
        key = (value, device)
        if key not in self._arrivals:
            self._arrivals[key] = self.finish[source] + self.links.time(_bytes(value), home, device)
        return self._arrivals[key]


def _sources(node: Node) -> set[Node]:
    """Return the nodes that must have run before a node, in an iteration."""
    found = {value.node for value in node.inputs} | set(node.controls)
    return {source for source in found if source.op.name != "param"}


def estimate(node: Node) -> float:
    """Return the seconds that a node is taken to need."""
    if node.regions:
        trips = (
            TRIPS if node.op.name not in ("cond", "checkpoint", "custom_vjp", "custom_jvp") else 1
        )
        inner = sum(estimate(each) for region in node.regions for each in region.nodes)
        return DISPATCH + trips * inner
    if node.op.has(Trait.FLAT) or node.op.has(Trait.VIEW) or not node.inputs:
        return DISPATCH
    if node.op.name in ("matmul", "dot_general", "einsum"):
        return DISPATCH + _products(node) / ARITHMETIC
    moved = sum(map(_bytes, node.inputs)) + sum(map(_bytes, node.outputs))
    return DISPATCH + moved / MEMORY


def _products(node: Node) -> int:
    """Return the operations of a matrix product: for each element of the result a row of the first operand."""
    inner = node.inputs[0].type
    row = _size(inner.shape[-1:]) if isinstance(inner, TensorType) else 1
    return 2 * row * sum(_size(value.shape) for value in node.outputs)


def _bytes(value: Value) -> int:
    type = value.type
    return _size(type.shape) * type.dtype.itemsize if isinstance(type, TensorType) else 8


def _size(shape: Sequence[object]) -> int:
    total = 1
    for dim in shape:
        total *= dim if isinstance(dim, int) else UNKNOWN_SIZE
    return total
