"""Dead code elimination: drop what no result and no effect needs.

`Graph.nodes` holds only what is reachable, so what is left to do is inside structured control flow: operands that no
region reads, results that nobody reads, and carried values that neither the predicate, nor an effect, nor a used
result, nor another live carried value needs. One walk marks live values across all regions at once, so a value that
only feeds itself around two nested loops is found dead.

    %1:2 = while(%i, %x, %n) {carried=2} : i64[], f64[]         %1 = while(%i, %n) {carried=1} : i64[]
      @test(%i, %x, %n) { less(%i, %n) }                 ->       @test(%i, %n) { less(%i, %n) }
      @body(%i, %x, %n) { add(%i, 1), sin(%x) }                   @body(%i, %n) { add(%i, 1) }
    return %1#0                                                 return %1

A dead op goes even if it is CHECKED, and with it the exception it might have raised: tracing leaves many reads that
nothing uses; where the user's code reads, it has put an `assert` (`frontend/bounds.py`). Ops with effects, `assert` among them, stay.

`Structured` and `narrow` say how the operands of control flow and the params of its regions belong together; the other
passes use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild, with_params

__all__ = ["Structured", "dce", "narrow"]


def dce(graph: Graph) -> Graph:
    """Return the graph without what nothing needs."""
    while (smaller := _sweep(graph)) is not graph:
        graph = smaller
    return graph


def _sweep(graph: Graph) -> Graph:
    if not any(node.regions for node in graph.nodes):
        return graph
    live = _Liveness(graph).values
    return rebuild(graph, lambda builder, node: _prune(builder, node, live))


# -- how operands, params and results belong together -------------------------------------------------------------


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


def narrow(
    builder: Rewriter,
    node: Node,
    params: Sequence[int],
    results: Sequence[int],
    replaced: Sequence[Mapping[Value, Value]] | None = None,
) -> Node:
    """Add a structured node with only some params and results; of a loop, the results are those of the carried params.

    `replaced` says for each region which values take the place of the params that go.
    """  # fmt: skip
    view = Structured(node)
    regions = [
        with_params(
            region, [region.params[k] for k in params],
            [region.results[i] for i in results] if region in view.yielding else region.results,
            replaced[place] if replaced else {},
        )
        for place, region in enumerate(node.regions)
    ]  # fmt: skip
    inputs = node.inputs[: len(node.inputs) - len(view.operands)] + tuple(
        view.operands[k] for k in params
    )
    attrs = {**node.attrs, "carried": len(results)} if view.is_loop else node.attrs
    types = tuple(node.types[i] for i in results)
    made = builder.adopt(
        Node(node.op, inputs, attrs, types, tuple(regions), node.controls, loc=node.loc)
    )
    builder.stand_in(node, [made])
    return made


# -- marking ------------------------------------------------------------------------------------------------------


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
        if value.node.regions:
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


def _always_read(node: Node) -> tuple[Value, ...]:
    if not node.regions:
        return node.inputs
    return node.regions[0].results if node.op.name == "while" else node.inputs[:1]


def _sources(value: Value) -> list[Value]:
    """Return what an output of a structured node is made from."""
    view = Structured(value.node)
    first = [view.operands[view.carried[value.index]]] if view.is_loop else []
    return first + [region.results[value.index] for region in view.yielding]


def _bindings(node: Node) -> Iterator[tuple[Value, list[Value]]]:
    """Yield each param of a node's regions with the values it takes."""
    if not node.regions:
        return
    view = Structured(node)
    for region in node.regions:
        for k, param in enumerate(region.params):
            again = [view.body.results[k - view.carried.start]] if k in view.carried else []
            yield param, [view.operands[k], *again]


# -- sweeping -----------------------------------------------------------------------------------------------------


def _prune(builder: Rewriter, node: Node, live: set[Value]) -> list[Value | None] | None:
    if not node.regions:
        return None
    view = Structured(node)
    params = [
        k
        for k in range(len(view.operands))
        if any(region.params[k] in live for region in node.regions)
    ]
    results = [i for i, value in enumerate(builder.origin.outputs) if value in live]
    if not results and not has_effect(node):
        # It has lost its effects and is here only because it once had its place in their order.
        builder.stand_in(node, node.controls)
        return [None] * len(node.types)
    if view.is_loop:
        start = view.carried.start
        kept = {*params, *(start + i for i in results), *range(start)}
        params = sorted(kept)
        results = [k - start for k in params if k in view.carried]
    if len(params) == len(view.operands) and len(results) == len(node.types):
        return None
    made = dict(zip(results, narrow(builder, node, params, results).outputs, strict=True))
    return [made.get(i) for i in range(len(node.types))]
