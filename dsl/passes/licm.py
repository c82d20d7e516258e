"""Loop-invariant code motion: compute once, before the loop, what every trip computes alike.

Pure nodes of loop bodies and `while` conditions whose inputs are invariants move in front of the loop and become
invariants themselves, through as many nested loops as they can; a `cond` in between stops them. A node moves only if it
is total: a loop without trips would not have run it, so it must not raise, and a nested `while` might not end. What
costs nothing to repeat (constants, `iota`, `full`, `broadcast_to`, sizes) moves only along with what uses it.

    %0 = while(%x, %w) {carried=1}                     %0 = tanh(%w) : f64[3]
      @body(%x, %w) {                                  %1 = while(%x, %0) {carried=1}
        %0 = tanh(%w) : f64[3]                  ->       @body(%x, %tanh) {
        %1 = multiply(%x, %0) : f64[3]                     %0 = multiply(%x, %tanh) : f64[3]
        return %1                                          return %0

The invariant %w, which nothing reads any more, is dropped by dce.
"""

from __future__ import annotations

from dsl.ir.facts import is_total
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.liveness import Structured
from dsl.ir.rewrite import Rewriter, rebuild, with_params

__all__ = ["licm"]

LOOPS = frozenset({"while", "scan"})
CHEAP = frozenset({"const", "iota", "full", "broadcast_to", "dim_size", "identity"})


def licm(graph: Graph) -> Graph:
    """Return the graph with invariant computations moved out of loops."""
    return rebuild(graph, _hoist, LOOPS)


def _hoist(builder: Rewriter, node: Node) -> tuple[Value, ...] | None:
    if not node.regions or not Structured(node).is_loop:
        return None
    moved = [_escaping(region, _outside(builder, node, region)) for region in node.regions]
    added = list(dict.fromkeys(outer for values in moved for outer in values.values()))
    if not added:
        return None
    regions = tuple(
        _with_invariants(region, values, added) for region, values in zip(node.regions, moved)
    )
    made = Node(
        node.op,
        (*node.inputs, *added),
        node.attrs,
        node.types,
        regions,
        node.controls,
        loc=node.loc,
    )
    builder.stand_in(node, [made])
    return builder.adopt(made).outputs


def _outside(builder: Rewriter, node: Node, region: Graph) -> dict[Value, Value]:
    """Copy what can move in front of the loop; map it, and the invariants, to their values there."""
    view = Structured(node)
    pairs = [(region.params[k], view.operands[k]) for k in view.invariants]
    known = {param: operand for param, operand in pairs if param.type == operand.type}
    for inner in region.nodes:
        if not inner.controls and all(value in known for value in inner.inputs) and is_total(inner):
            copy = builder.copy(inner, known)
            known.update(zip(inner.outputs, copy.outputs, strict=True))
    return known


def _escaping(region: Graph, known: dict[Value, Value]) -> dict[Value, Value]:
    """Return the moved values that what stays in the region reads."""
    read = set(region.results)
    for inner in reversed(region.nodes):
        moved = bool(inner.outputs) and inner.outputs[0] in known
        if not moved or (inner.op.name in CHEAP and inner.output in read):
            read.update(inner.inputs)
    values = [
        value for inner in region.nodes if inner.op.name not in CHEAP for value in inner.outputs
    ]
    return {value: known[value] for value in values if value in known and value in read}


def _with_invariants(region: Graph, values: dict[Value, Value], added: list[Value]) -> Graph:
    """Give a region the moved values as params; of several that are one value outside, the first stands for all."""
    first: dict[Value, Value] = {}
    for inner, outer in values.items():
        first.setdefault(outer, inner)
    same = {inner: first[outer] for inner, outer in values.items() if first[outer] is not inner}
    params = [*region.params, *(first.get(outer, outer) for outer in added)]
    return with_params(region, params, region.results, same)
