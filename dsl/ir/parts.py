"""Parts of a graph, one for each device, and how they make one step.

`dsl.passes.partition` makes them; whoever runs a step gives each part its arguments and puts the results together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dsl.errors import DslError
from dsl.ir.graph import Graph, Node

__all__ = ["Part", "Partition", "Source", "node_names"]


class Source(NamedTuple):
    """Where a result of the whole graph comes from: a result of a device's part, or, without a device, an argument."""

    device: str | None
    position: int


@dataclass(frozen=True)
class Part:
    """What one device runs. `params` and `results` number those of the whole graph, in the order of the part's own."""

    device: str
    graph: Graph
    params: tuple[int, ...]
    results: tuple[int, ...]

    def arguments(self, args: Sequence[Any]) -> list[Any]:
        """Return the part's arguments among those of the whole graph."""
        return [args[index] for index in self.params]


@dataclass(frozen=True)
class Partition:
    """The parts of a graph by device, and the source of each result of the graph."""

    parts: Mapping[str, Part]
    sources: tuple[Source, ...]

    def gather(self, args: Sequence[Any], found: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return the results of the whole graph from copies of the arguments and what each part returned."""
        return [
            np.array(args[position]) if device is None else found[device][position]
            for device, position in self.sources
        ]

    def check_complete(self) -> None:
        """Raise unless each token that a part waits for is sent by a part: what runs in one process needs that."""
        if self._unsent:
            node = self._unsent[0]
            key = node.attrs["key"]
            raise DslError(f"no part sends {key!r}, for which a recv waits", location=node.loc)

    @cached_property
    def _unsent(self) -> list[Node]:
        nodes = [node for part in self.parts.values() for node in part.graph.nodes]
        sent = {node.attrs["key"] for node in nodes if node.op.name == "send"}
        return [n for n in nodes if n.op.name == "recv" and n.attrs["key"] not in sent]


def node_names(graph: Graph) -> dict[Node, str]:
    """Name each node after its op and its place in the graph's order: the same for graphs that are equal.

    Measured costs are kept under these names, and transfers between devices are called after them.
    """
    return {node: f"{node.op.name}_{index}" for index, node in enumerate(graph.nodes)}
