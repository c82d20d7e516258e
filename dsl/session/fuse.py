"""Parts of a step that wait for nothing become one node each: a native program that has its variables to itself.

    dequeue -> matmul -> ... -> update_variable      becomes      dequeue -> program

So what a step does between two waits is compiled as a whole, and what it does to variables is atomic, as in a step that
never waits. A part are the nodes that come after the very same waits: none of them could begin before another, and no way
leads out of a part and back into it. (Were parts larger, one wait could come to hold up another that it depends on, through
a queue or another device.) Reads move to where they are used, so that a read and a write of a variable are one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.ir.build import Builder
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import PLACEMENT, Trait, get_op
from dsl.ir.types import TensorType
from dsl.session.native import NativeStep, make_native, waits_for_nothing, walk

__all__ = ["fuse", "fuse_part"]

_serial = itertools.count(1)


def fuse(graph: Graph, resources: Mapping[str, Any]) -> Graph:
    """Return a graph with a `program` for each part that waits for nothing; one with branches or loops in tokens stays."""
    if any(node.op.has(Trait.FLAT) and node.op.name not in _TRANSFERS for node in graph.nodes):
        return graph
    made = _Fused(graph)
    for part, others in _stages(graph):
        for nodes in part:
            made.replace(nodes, resources)
        for node in others:
            made.keep(node)
    return made.finish()


_TRANSFERS = ("send", "recv")


def fuse_part(graph: Graph, resources: Mapping[str, Any]) -> Graph:
    """Do the same to the part of a graph that one device runs; it is the device's already, so nodes need not say so."""
    return fuse(_undressed(graph), resources)


def _undressed(graph: Graph) -> Graph:
    """Return a graph whose nodes name no devices."""
    values: dict[Value, Value] = {}
    after: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple(values.get(v, v) for v in node.inputs)
        controls = tuple(after[c] for c in node.controls)
        attrs = {key: attr for key, attr in node.attrs.items() if key not in PLACEMENT}
        regions = tuple(map(_undressed, node.regions))
        made = Node(node.op, inputs, attrs, node.types, regions, controls, node.dims, node.loc)
        after[node] = made
        values.update(zip(node.outputs, made.outputs, strict=True))
    back = {after[merge]: values.get(value, value) for merge, value in graph.back.items()}
    results = tuple(values.get(v, v) for v in graph.results)
    return Graph(graph.name, graph.params, results, tuple(after[n] for n in graph.effects), back)


def _stages(graph: Graph) -> list[tuple[list[list[Node]], list[Node]]]:
    """Return parts, and nodes that stay, in an order in which all can run; constants are wherever they are read."""
    fusible = {
        node: not _is_anywhere(node) and all(map(waits_for_nothing, walk(node)))
        for node in graph.nodes
    }
    waits = _late(graph, fusible, _early(graph, fusible))
    found: list[tuple[dict[int, list[Node]], list[Node]]] = [
        ({}, []) for _ in range(1 + max((w.bit_count() for w in waits.values()), default=0))
    ]
    for node in graph.nodes:
        parts, others = found[waits[node].bit_count()]
        if fusible[node]:
            parts.setdefault(waits[node], []).append(node)
        else:
            others.append(node)
    return [(list(parts.values()), others) for parts, others in found]


def _before(node: Node) -> list[Node]:
    nodes = [*(v.node for v in node.inputs), *node.controls]
    return [n for n in nodes if n.op.name != "param" and not _is_anywhere(n)]


def _is_anywhere(node: Node) -> bool:
    """Tell whether a node is a constant, which is wherever it is read; one that comes after something has its own place."""
    return node.op.name == "const" and not node.controls


def _early(graph: Graph, fusible: Mapping[Node, bool]) -> dict[Node, int]:
    """Return which nodes that wait, or act otherwise, come before each node, as the bits of a number."""
    before: dict[Node, int] = {}
    bits: dict[Node, int] = {}
    for node in graph.nodes:
        before[node] = 0
        for p in _before(node):
            before[node] |= before[p] | bits.get(p, 0)
        if not fusible[node] and not _is_anywhere(node):
            bits[node] = 1 << len(bits)
    return before


def _late(graph: Graph, fusible: Mapping[Node, bool], early: Mapping[Node, int]) -> dict[Node, int]:
    """Move reads, and what is computed from them, to where they are needed: after a wait, with what uses them."""
    limit: dict[Node, int] = {}
    waits: dict[Node, int] = {}
    moving = _computed_from_reads(graph, fusible)
    for node in reversed(graph.nodes):
        waits[node] = limit.get(node, early[node]) if node in moving else early[node]
        for p in _before(node):
            limit[p] = limit.get(p, waits[node]) & waits[node]
    return waits


def _computed_from_reads(graph: Graph, fusible: Mapping[Node, bool]) -> set[Node]:
    found: set[Node] = set()
    for node in graph.nodes:
        reads = node.op.name == "read_variable"
        computes = not has_effect(node) and not found.isdisjoint(_before(node))
        if fusible[node] and (reads or computes):
            found.add(node)
    return found


class _Fused:
    """The new graph under construction."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[Value, Value] = {}
        self.after: dict[Node, tuple[Node, ...]] = {}
        self.read: dict[Value, set[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self.read.setdefault(value, set()).add(node)

    def keep(self, node: Node) -> None:
        inputs = tuple(self.values.get(v, v) for v in node.inputs)
        controls = self._moved(node.controls)
        made = _with(node, inputs, controls)
        self.after[node] = (made,)
        self.values.update(zip(node.outputs, made.outputs, strict=True))

    def _moved(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(new for old in nodes for new in self.after.get(old, ())))

    def replace(self, part: Sequence[Node], resources: Mapping[str, Any]) -> None:
        """Put a program in the place of a part, or keep the nodes if it cannot be compiled as one."""
        inside = set(part)
        outputs = [v for node in part for v in node.outputs if self._is_used(v, inside)]
        inputs = self._inputs(part, inside)
        step = make_native(_body(self.graph.name, part, inputs, outputs), (), resources)
        if step is None:
            for node in part:
                self.keep(node)
            return
        controls = self._moved(c for node in part for c in node.controls if c not in inside)
        attrs = {"name": f"{self.graph.name}_{next(_serial)}", "run": _runner(step)}
        given = tuple(self.values.get(v, v) for v in inputs)
        types = tuple(v.type for v in outputs)
        made = Node(get_op("program"), given, attrs, types, (), controls, (), part[-1].loc)
        self.after.update((node, (made,)) for node in part)
        self.values.update(zip(outputs, made.outputs, strict=True))

    def _is_used(self, value: Value, inside: set[Node]) -> bool:
        return value in self.graph.results or not self.read.get(value, set()) <= inside

    def _inputs(self, part: Sequence[Node], inside: set[Node]) -> list[Value]:
        """Return what a part reads from outside, and what tells the sizes that it knows by name only."""
        found: dict[Value, None] = {}
        for node in part:
            for value in node.inputs:
                if value.node not in inside and not _is_anywhere(value.node):
                    found[value] = None
        known = _plain_symbols(found) | _plain_symbols(v for n in part for v in n.outputs)
        for symbol in _symbols((*found, *(v for n in part for v in n.outputs))):
            if symbol not in known:
                source = self._source(symbol, inside)
                if source is not None:
                    found[source] = None
                    known.add(symbol)
        return list(found)

    def _source(self, symbol: Dim, inside: set[Node]) -> Value | None:
        """Return a value from outside, made already, that has the size among its own."""
        made = (v for n in self.after for v in n.outputs)
        for value in itertools.chain(self.graph.params, made):
            if isinstance(value.type, TensorType) and symbol in value.type.shape:
                return value
        return None

    def finish(self) -> Graph:
        results = tuple(self.values.get(v, v) for v in self.graph.results)
        effects = self._moved(self.graph.effects)
        programs = [n for made in self.after.values() for n in made if n.op.name == "program"]
        kept = tuple(dict.fromkeys((*effects, *programs)))
        return Graph(self.graph.name, self.graph.params, results, kept)


def _body(
    name: str, part: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Graph:
    """Return a part as a graph of its own; order with what is outside is the business of the program's node."""
    builder = Builder(name)
    values = {v: builder.param(v.type, _name(v)) for v in inputs}
    after: dict[Node, Node] = {}
    for node in part:
        controls = tuple(after[c] for c in node.controls if c in after)
        given = tuple(values.get(v, v) for v in node.inputs)
        made = after[node] = _with(node, given, controls)
        values.update(zip(node.outputs, made.outputs, strict=True))
    effects = tuple(after[node] for node in part if has_effect(node))
    return Graph(name, tuple(builder.params), tuple(values[v] for v in outputs), effects)


def _name(value: Value) -> str:
    return str(value.node.attrs.get("name", ""))


def _with(node: Node, inputs: tuple[Value, ...], controls: tuple[Node, ...]) -> Node:
    if inputs == node.inputs and controls == node.controls:
        return node
    return Node(
        node.op, inputs, node.attrs, node.types, node.regions, controls, node.dims, node.loc
    )


def _symbols(values: Iterable[Value]) -> list[Dim]:
    found: dict[Dim, None] = {}
    for value in values:
        if isinstance(value.type, TensorType):
            for dim in value.type.shape:
                found.update(dict.fromkeys(symbols_of(dim)))
    return list(found)


def _plain_symbols(values: Iterable[Value]) -> set[Dim]:
    return {
        dim
        for value in values
        if isinstance(value.type, TensorType)
        for dim in value.type.shape
        if isinstance(dim, Dim) and symbols_of(dim) == [dim]
    }


def _runner(step: NativeStep) -> Callable[[Any, Sequence[Any]], Sequence[Any]]:
    direct = step.direct

    def run(environment: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        return direct(*[np.ascontiguousarray(x).reshape(np.shape(x)) for x in inputs])  # type: ignore[no-any-return]

    return run
