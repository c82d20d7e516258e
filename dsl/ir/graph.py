"""Graphs: frozen nodes joined by typed values.

A `Node` applies an op to values; its outputs are `Value`s. A `Graph` is closed: every value in it comes from one of
its params, so a sub-graph (region) of a structured control-flow node reads only its own params. Nodes are ordered by
data and by control edges, never by position; `Graph.nodes` is a canonical topological order of what the results and
effects need.

The flat spelling of loops is cyclic. Its cycles run through `Graph.back` alone: a `loop_merge` node holds its first
input, and `back` maps the node to the `next_iteration` value that later iterations read.

Two graphs are equal when their texts are, so equality ignores source locations and the names of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.location import Location
from dsl.ir.types import Shape, TensorType, ValueType

if TYPE_CHECKING:
    from dsl.ir.registry import Op

__all__ = ["Attrs", "Graph", "Literal", "Node", "Value"]

Attrs = Mapping[str, Any]


class Literal:
    """An immutable array as an attribute: compares by dtype, shape and bytes, so NaNs and -0.0 keep their identity."""

    __slots__ = ("_key", "array")

    def __init__(self, array: Any) -> None:
        self.array: np.ndarray = np.array(array, order="C", copy=True)
        self.array.setflags(write=False)
        self._key = (self.array.dtype, self.array.shape, self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Literal({self.array!r})"


class Value:
    """One output of a node. Values compare by identity."""

    __slots__ = ("index", "node", "type")

    def __init__(self, node: Node, index: int, type: ValueType) -> None:
        self.node, self.index, self.type = node, index, type

    @property
    def tensor(self) -> TensorType:
        """The type, for a value that is known to be a tensor."""
        if not isinstance(self.type, TensorType):
            raise InternalError(f"expected a tensor, got a value of type {self.type}")
        return self.type

    @property
    def dtype(self) -> np.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    def __repr__(self) -> str:
        return f"<{self.node.op.name}#{self.index} : {self.type}>"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An op applied to values. Frozen; compares by identity.

    `controls` are nodes that must have run before this one. `dims` are symbols that the node's attributes mention and
    no input's shape gives; their sizes arrive as the last `len(dims)` inputs, rank-0 int64.
    """

    op: Op
    inputs: tuple[Value, ...]
    attrs: Attrs
    types: tuple[ValueType, ...]
    regions: tuple[Graph, ...] = ()
    controls: tuple[Node, ...] = ()
    dims: tuple[Any, ...] = ()
    loc: Location | None = None
    outputs: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        values = tuple(Value(self, index, type) for index, type in enumerate(self.types))
        object.__setattr__(self, "outputs", values)

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    @property
    def data_inputs(self) -> tuple[Value, ...]:
        """The inputs without the sizes of `dims`."""
        return self.inputs[: len(self.inputs) - len(self.dims)]

    def __repr__(self) -> str:
        return f"<node {self.op.name} at {self.loc}>"


@dataclass(frozen=True, eq=False)
class Graph:
    """A closed dataflow graph from `params` to `results`.

    `effects` are nodes that must run although no result needs them; `back` holds the back edges of flat loops.
    """

    name: str
    params: tuple[Value, ...]
    results: tuple[Value, ...]
    effects: tuple[Node, ...] = ()
    back: Mapping[Node, Value] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that a result or effect needs, producers first; params are not listed."""
        return tuple(_topological(self))

    @cached_property
    def op_names(self) -> frozenset[str]:
        """The names of the ops of all nodes, those of regions included."""
        own = {node.op.name for node in self.nodes}
        inner = {region.op_names for node in self.nodes for region in node.regions}
        return frozenset(own).union(*inner)

    @cached_property
    def text(self) -> str:
        """The canonical text, without source locations."""
        from dsl.ir.text import print_graph

        return print_graph(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def walk(self) -> Iterator[Node]:
        """Yield the nodes of this graph and, after each, those of its regions."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def uses(self) -> dict[Value, list[Node]]:
        """Map each value to the nodes that read it, a node once per reading input."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found


def _topological(graph: Graph) -> list[Node]:
    """Depth-first, inputs before controls, without recursion; back edges are followed last.

    Effects come before results, so that a failed assertion is raised before what it guards is computed.
    """
    done = {value.node for value in graph.params}
    roots = list(graph.effects) + [value.node for value in graph.results]
    order: list[Node] = []
    while roots:
        first = len(order)
        for root in roots:
            _visit(root, done, order)
        merges = [node for node in order[first:] if node in graph.back] if graph.back else []
        roots = [graph.back[merge].node for merge in merges]
    return order


def _visit(root: Node, done: set[Node], order: list[Node]) -> None:
    """Append a node and all before it that are not `done`, each after what it needs."""
    stack: list[tuple[Node, Iterator[Node]]] = []
    following: Node | None = root if root not in done else None
    while True:
        if following is not None:
            done.add(following)
            sources = [value.node for value in following.inputs]
            stack.append((following, iter([*sources, *following.controls])))
        elif stack:
            order.append(stack.pop()[0])
        else:
            return
        following = None
        if stack:
            for source in stack[-1][1]:
                if source not in done:
                    following = source
                    break


def producers(values: Iterable[Value]) -> set[Node]:
    """Return the nodes that make `values`."""
    return {value.node for value in values}
