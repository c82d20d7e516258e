"""What the checks know about the graph before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from dsl.ir.checks.frames import Frames
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait

__all__ = ["Facts", "Finding"]

# The guilty node and what is wrong with it.
Finding = tuple[Node, str]


class Facts:
    """One graph, without its regions. `homes` maps the nodes that may be in one graph only to all they are in."""

    def __init__(self, graph: Graph, homes: Mapping[Node, list[Graph]]) -> None:
        self.graph, self.homes = graph, homes
        self.nodes = graph.nodes
        self.broken: set[Node] = set()

    def sound(self) -> Iterator[Node]:
        """Yield the nodes that no rule has found wrong so far."""
        if not self.broken:
            return iter(self.nodes)
        return (node for node in self.nodes if node not in self.broken)

    @cached_property
    def own_params(self) -> set[Node]:
        return {value.node for value in self.graph.params}

    @cached_property
    def members(self) -> set[Node]:
        """The nodes and params of the graph."""
        return {*self.nodes, *self.own_params}

    @cached_property
    def is_flat(self) -> bool:
        return any(node.op.has(Trait.FLAT) for node in self.nodes)

    @cached_property
    def frames(self) -> Frames:
        return Frames(self.graph)

    @cached_property
    def uses(self) -> dict[Value, list[Node]]:
        return self.graph.uses()

    def of(self, name: str) -> Iterator[Node]:
        """Yield the sound nodes of one op."""
        return (node for node in self.sound() if node.op.name == name)
