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
nothing uses; where the user's code does something that may raise, it has put an `assert` or a `keep` (`frontend/bounds.py`).
Ops with effects, those two among them, stay.

`narrow` leaves out operands and results of control flow; the other passes use it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.liveness import Structured, live_values
from dsl.ir.rewrite import Rewriter, rebuild, with_params

__all__ = ["dce", "narrow"]


def dce(graph: Graph) -> Graph:
    """Return the graph without what nothing needs."""
    while (smaller := _sweep(graph)) is not graph:
        graph = smaller
    return graph


def _sweep(graph: Graph) -> Graph:
    if not any(node.regions for node in graph.nodes):
        return graph
    live = live_values(graph)
    inner = (node for node in graph.walk() if node.regions)
    if all(_kept(node, node.outputs, live) is None for node in inner):
        return graph
    return rebuild(graph, lambda builder, node: _prune(builder, node, live))


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


# -- sweeping -----------------------------------------------------------------------------------------------------


def _kept(
    node: Node, outputs: Sequence[Value], live: set[Value]
) -> tuple[list[int], list[int]] | None:
    """Return which params of its regions, and which results, a structured node keeps; None if it keeps all."""
    view = Structured(node)
    params = [
        k
        for k in range(len(view.operands))
        if any(region.params[k] in live for region in node.regions)
    ]
    results = [i for i, value in enumerate(outputs) if value in live]
    if view.is_loop and (results or has_effect(node)):
        start = view.carried.start
        kept = {*params, *(start + i for i in results), *range(start)}
        params = sorted(kept)
        results = [k - start for k in params if k in view.carried]
    whole = len(params) == len(view.operands) and len(results) == len(node.types)
    return None if whole and (results or has_effect(node)) else (params, results)


def _prune(builder: Rewriter, node: Node, live: set[Value]) -> list[Value | None] | None:
    kept = _kept(node, builder.origin.outputs, live) if node.regions else None
    if kept is None:
        return None
    params, results = kept
    if not results and not has_effect(node):
        # It has lost its effects and is here only because it once had its place in their order.
        builder.stand_in(node, node.controls)
        return [None] * len(node.types)
    made = dict(zip(results, narrow(builder, node, params, results).outputs, strict=True))
    return [made.get(i) for i in range(len(node.types))]
