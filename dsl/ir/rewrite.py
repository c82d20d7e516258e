"""Rewriting graphs: the walk that all passes share.

`rebuild(graph, rewrite)` visits the nodes of a graph, producers first, and lets `rewrite(builder, node)` replace each.
The node comes with its inputs, controls and regions already rewritten. What `rewrite` returns stands for the outputs:
one value for each, of the same type, or None for an output that nothing reads. Returning None keeps the node. Nodes
whose inputs did not change stay the same objects, and so does a graph in which nothing was replaced.

A node that has control edges, or that one points to, is pinned: only structured control flow is offered for
replacement then, and `Rewriter.stand_in` says which nodes take its place in the ordering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from dsl.errors import InternalError
from dsl.ir.build import Builder
from dsl.ir.dims import Dim
from dsl.ir.facts import checks_of, is_flat
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.liveness import is_structured
from dsl.ir.registry import Op, Trait, placement_of

__all__ = ["Rewrite", "Rewriter", "UnknownSize", "rebuild", "with_params"]

Rewrite = Callable[["Rewriter", Node], Sequence[Value | None] | None]


class UnknownSize(Exception):
    """A size that nothing in the graph gives."""


class Rewriter(Builder):
    """Builds what replaces the nodes of one graph. `memo` is for the pass; `origin` is the old node being visited."""

    def __init__(
        self,
        graph: Graph,
        rewrite: Rewrite,
        values: Mapping[Value, Value] | None = None,
        nested: bool = True,
    ) -> None:
        super().__init__(graph.name)
        self.memo: dict[Any, Any] = {}
        self.nested = nested
        self.flat = is_flat(graph)
        self.origin: Node
        self.graph, self._rewrite = graph, rewrite
        self._values: dict[Value, Value] = dict(values or {})
        self._after: dict[Node, tuple[Node, ...]] = {}
        self._stand_ins: dict[Node, tuple[Node, ...]] = {}
        self._adopted: list[Node] = []
        self._pinned = _pinned(graph)
        # What params stand for in the graphs around, and nodes from which nothing is computed that may raise.
        self.given: Mapping[Value, Value] = {}
        self._quiet: set[Node] = set()
        for param in graph.params:
            self.note_sizes(self._values.get(param, param))

    def run(self, results: Iterable[Value], params: tuple[Value, ...]) -> Graph:
        """Return the graph from `params` to what became of `results`; the same object if nothing changed."""
        for node in self.graph.nodes:
            self._visit(node)
        old, ended = self.graph, tuple(results)
        found = tuple(self._values.get(value, value) for value in ended)
        effects = self._moved_nodes(old.effects)
        back = {
            self._after[merge][0]: self._values.get(value, value)
            for merge, value in old.back.items()
        }
        same = (
            params == old.params
            and found == old.results
            and effects == old.effects
            and back == old.back
        )
        return old if same else Graph(old.name, params, found, effects, back)

    def _visit(self, node: Node) -> None:
        self.origin, self.loc, self.placement = node, node.loc, placement_of(node)
        moved, regions = node, node.regions
        if regions or self._values or node.controls:
            moved = self._moved(node)
        outputs = None if not regions and node in self._pinned else self._rewrite(self, moved)
        if self.placement and outputs is not None and not self._stays(outputs):
            outputs = None
        after: tuple[Node, ...] = (moved,) if outputs is None else _makers(outputs, moved)
        if outputs is None:
            outputs = self.adopt(moved).outputs
        self._after[node] = self._stand_ins.pop(moved, after) if self._stand_ins else after
        if outputs is not node.outputs:
            for old, new in zip(node.outputs, outputs, strict=True):
                self._replace(old, new)

    def _stays(self, outputs: Sequence[Value | None]) -> bool:
        """Tell whether what replaces a node with a place is in that place."""
        device = self.placement.get("device")
        return all(
            v is None or v.node.op.name == "const" or v.node.attrs.get("device") == device
            for v in outputs
        )

    def _replace(self, old: Value, new: Value | None) -> None:
        if new is None or new is old:
            return
        if new.type != old.type:
            raise InternalError(
                f"a rewrite of {old.node.op.name} turned {old.type} into {new.type}"
            )
        self._values[old] = new

    def _moved(self, node: Node) -> Node:
        """Return the node with what it refers to replaced; the same node if that changes nothing."""
        regions = node.regions
        inputs = tuple([self._values.get(value, value) for value in node.inputs])
        controls = self._moved_nodes(node.controls)
        if regions and self.nested:
            regions = tuple([self._inside(region, node, inputs) for region in regions])
        same = regions is node.regions or _all_same(regions, node.regions)
        if inputs == node.inputs and controls == node.controls and same:
            return node
        return _with(node, inputs, regions, controls)

    def _inside(self, region: Graph, node: Node, inputs: tuple[Value, ...]) -> Graph:
        """Return a region rewritten, as one of a node with other inputs."""
        inner = Rewriter(region, self._rewrite)
        given = inputs[len(inputs) - len(region.params) :] if is_structured(node) else ()
        inner.given = {**self.given, **dict(zip(region.params, given, strict=False))}
        inner._quiet = self._quiet
        return inner.run(region.results, region.params)

    def may_drop(self, values: Iterable[Value], kept: Iterable[Value]) -> bool:
        """Tell whether no exception is lost when values are not computed any more, and some others still are."""
        lost = {node for v in values for node in checks_of(v, self._quiet, self.given)}
        return not lost or lost <= {
            node for v in kept for node in checks_of(v, self._quiet, self.given)
        }

    def _moved_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if not nodes:
            return ()
        return tuple(dict.fromkeys(new for old in nodes for new in self._after[old]))

    def became(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that are in the place of one of the old graph, after `run`."""
        return self._after[node]

    # -- for rewrites ----------------------------------------------------------------------------------------------

    def adopt(self, node: Node) -> Node:
        """Take in a finished node: later nodes may share it and read sizes from it. Return it."""
        if not self.flat:
            if node.dims:
                sizes = node.inputs[len(node.inputs) - len(node.dims) :]
                for symbol, value in zip(node.dims, sizes, strict=True):
                    self.bind(symbol, value)
            for value in node.outputs:
                self.note_sizes(value)
            if not node.regions and Trait.PURE in node.op.traits:
                self._adopted.append(node)
        return node

    def node(self, op: Op | str, inputs: Iterable[Value], attrs: Attrs, **options: Any) -> Node:
        """Add a node, or return one that was taken in. Those are made known only here: most rewrites add none."""
        for old in self._adopted:
            key = tuple(sorted(old.attrs.items(), key=lambda kv: kv[0]))
            self._interned.setdefault((old.op.name, old.inputs, key, old.controls), old)
        self._adopted.clear()
        return super().node(op, inputs, attrs, **options)

    @cached_property
    def read(self) -> set[Value]:
        """The values of the old graph that a node in it reads."""
        return {value for node in self.graph.nodes for value in node.inputs}

    def stand_in(self, node: Node, nodes: Iterable[Node]) -> None:
        """Say which nodes take the place of `node` in control edges and among the effects."""
        self._stand_ins[node] = tuple(nodes)

    def make(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """Emit a node and rewrite it at once."""
        node = self.node(op, inputs, attrs)
        found = self._rewrite(self, node)
        return node.output if found is None or found[0] is None else found[0]

    def inline(
        self, graph: Graph, args: Sequence[Value], controls: tuple[Node, ...]
    ) -> tuple[list[Value], list[Node]]:
        """Copy a region's nodes here; return its results and effects. Its first effects come after `controls`."""
        values, copies = dict(zip(graph.params, args, strict=True)), dict[Node, Node]()
        pinned = _pinned(graph)
        for node in graph.nodes:
            before = tuple(copies[control] for control in node.controls)
            copies[node] = self.copy(node, values, before or (controls if node in pinned else ()))
            values.update(zip(node.outputs, copies[node].outputs, strict=True))
        return [values[value] for value in graph.results], [copies[node] for node in graph.effects]

    def copy(
        self, node: Node, values: Mapping[Value, Value], controls: tuple[Node, ...] = ()
    ) -> Node:
        """Add a node of another graph here, its inputs replaced by `values`."""
        inputs = tuple(values[value] for value in node.inputs)
        if node.op.has(Trait.PURE) and not node.regions:
            made = self.node(
                node.op, inputs, node.attrs,
                types=node.types, controls=controls, dims=node.dims, loc=node.loc,
            )  # fmt: skip
            if made.types == node.types:
                return made
        return self.adopt(_with(node, inputs, node.regions, controls))

    def outer_size(self, symbol: Dim) -> Value:
        raise UnknownSize(symbol)


def rebuild(graph: Graph, rewrite: Rewrite, ops: frozenset[str] | None = None) -> Graph:
    """Return the graph with nodes replaced by what `rewrite` says, in its regions too; the same if nothing changed.

    `ops` names the only ops for which it ever says something: a graph without them is not walked.
    """
    if ops is not None and ops.isdisjoint(graph.op_names):
        return graph
    return Rewriter(graph, rewrite).run(graph.results, graph.params)


def with_params(
    region: Graph,
    params: Sequence[Value],
    results: Iterable[Value],
    values: Mapping[Value, Value] | None = None,
) -> Graph:
    """Return a region with fresh params in place of the values `params`, and other results.

    `params` may name inner values, which are then given from outside, and values of other graphs, which nothing here
    reads. `values` maps other values of the region to those that replace them.
    """
    builder = Builder(region.name)
    mapping: dict[Value, Value] = {}
    for value in params:
        builder.loc = value.node.loc
        mapping.setdefault(value, builder.param(value.type, _hint(value)))
    for old, new in (values or {}).items():
        mapping[old] = mapping.get(new, new)
    rewriter = Rewriter(region, lambda b, node: _given(b, mapping), mapping, nested=False)
    return rewriter.run(results, tuple(builder.params))


def _given(builder: Rewriter, mapping: Mapping[Value, Value]) -> list[Value | None] | None:
    """Replace a node whose outputs are given from outside."""
    outputs = builder.origin.outputs
    return [mapping.get(v) for v in outputs] if any(v in mapping for v in outputs) else None


def _hint(value: Value) -> str:
    return str(value.node.attrs.get("name", value.node.op.name))


def _with(
    node: Node, inputs: tuple[Value, ...], regions: tuple[Graph, ...], controls: tuple[Node, ...]
) -> Node:
    return Node(node.op, inputs, node.attrs, node.types, regions, controls, node.dims, node.loc)


def _pinned(graph: Graph) -> set[Node]:
    found = set(graph.effects)
    for node in graph.nodes:
        if node.controls:
            found.update(node.controls)
            found.add(node)
    return found


def _makers(outputs: Sequence[Value | None], node: Node) -> tuple[Node, ...]:
    made = [v.node for v in outputs if v is not None and v.node.op.name != "param"]
    return tuple(dict.fromkeys([*made, *node.controls]))


def _all_same(some: tuple[Graph, ...], others: tuple[Graph, ...]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))
