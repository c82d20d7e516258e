"""Canonical form: one spelling for what can be spelled in several ways, so that later passes look for one only.

Ops: constants stand to the right of ops that commute; casts, views and double negations that undo one another are gone;
`x > y` is `y < x` unless y is a constant. Control flow: regions hold their own constants, take each value once, and
take nothing that they do not read (`dce` does that part); what a loop carries unchanged is an invariant; branches
and loops that are decided when compiling are gone.

    %0 = const() {value=2.0} : f64[]
    %1, %2 = while(%x, %y, %0) {carried=2}              %0 = while(%x, %y) {carried=1}
      @test(%x, %y, %c) { less(%x, %y) }         ->       @test(%x, %y) { less(%x, %y) }
      @body(%x, %y, %c) { multiply(%c, %x), %y }          @body(%x, %y) { multiply(%x, 2.0) }
    return %1, %2                                       return %0, %y
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsl.ir.facts import commutes, constant_of, has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.liveness import Structured
from dsl.ir.patterns import apply_rules
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import I64
from dsl.passes.dce import dce, narrow
from dsl.passes.rules import CANONICAL, is_constant

__all__ = ["canonicalize"]

Outputs = Sequence[Value | None] | None
_apply = apply_rules(CANONICAL)


def canonicalize(graph: Graph) -> Graph:
    """Return the graph in canonical form."""
    swept = False
    while True:
        found = rebuild(graph, _rewrite)
        if found is graph and swept:
            return graph
        found = dce(found)
        if found is graph:
            return graph
        graph, swept = found, True


def _rewrite(builder: Rewriter, node: Node) -> Outputs:
    if node.regions:
        cleanups = _CLEANUPS[node.op.name]
        return next(
            (found for clean in cleanups if (found := clean(builder, node)) is not None), None
        )
    return _constant_right(builder, node) or _apply(builder, node)


def _constant_right(builder: Rewriter, node: Node) -> Outputs:
    if len(node.inputs) != 2 or not commutes(node):
        return None
    lhs, rhs = node.inputs
    if not is_constant(lhs) or is_constant(rhs):
        return None
    return [builder.make(node.op.name, rhs, lhs, **node.attrs)]


# -- decided control flow -----------------------------------------------------------------------------------------


def _inline(builder: Rewriter, node: Node, region: Graph, args: Sequence[Value]) -> Outputs:
    """Replace a node by a region that certainly runs once, if the types say the same inside and outside."""
    if (
        not _same_types(args, region.params)
        or tuple(value.type for value in region.results) != node.types
    ):
        return None
    results, effects = builder.inline(region, args, node.controls)
    builder.stand_in(node, effects or node.controls)
    return results


def _same_types(some: Sequence[Value], others: Sequence[Value]) -> bool:
    return [value.type for value in some] == [value.type for value in others]


def _decided(builder: Rewriter, node: Node) -> Outputs:
    """Put the branch that a constant predicate takes in place of the cond."""
    pred = constant_of(node.inputs[0])
    if pred is None:
        return None
    taken = node.regions[0 if pred else 1]
    if not _takes_all(builder, taken, node.inputs[1:]):
        return None
    return _inline(builder, node, taken, node.inputs[1:])


def _takes_all(builder: Rewriter, region: Graph, operands: Sequence[Value]) -> bool:
    """Tell whether a region reads all operands that may raise, or what those are computed from that may."""
    read = {value for inner in region.nodes for value in inner.inputs} | set(region.results)
    pairs = list(zip(operands, region.params, strict=True))
    unread = [operand for operand, param in pairs if param not in read]
    return builder.may_drop(unread, [operand for operand, param in pairs if param in read])


def _never(builder: Rewriter, node: Node) -> Outputs:
    """Return the initial values of a while loop that makes no trip; its condition may have effects."""
    (test, _), (pred,) = node.regions, node.regions[0].results
    array = constant_of(pred)
    if array is None or array or test.effects:
        return None
    return _initial(builder, node)


def _counted(builder: Rewriter, node: Node) -> Outputs:
    """Return the initial values of a scan without trips; put the body of one with a single trip in its place."""
    trips = constant_of(node.inputs[0])
    if trips is None or trips > 1:
        return None
    if trips == 1:
        return _inline(builder, node, node.regions[0], [builder.constant(0, I64), *node.inputs[1:]])
    return _initial(builder, node)


def _initial(builder: Rewriter, node: Node) -> Outputs:
    view = Structured(node)
    values = [view.operands[k] for k in view.carried]
    if tuple(value.type for value in values) != node.types:
        return None
    if not builder.may_drop([view.operands[k] for k in view.invariants], values):
        return None
    builder.stand_in(node, node.controls)
    return values


# -- results that are known ---------------------------------------------------------------------------------------


def _same_results(builder: Rewriter, node: Node) -> Outputs:
    """Use the operand, or the constant, that both branches of a cond return."""
    known = [_known_result(builder, node, i) for i in range(len(node.types))]
    if not any(known) or not _still_asks(builder, node, known):
        return None
    builder.stand_in(node, [builder.adopt(node)])
    return [new or old for new, old in zip(known, node.outputs, strict=True)]


def _still_asks(builder: Rewriter, node: Node, known: Sequence[Value | None]) -> bool:
    """Tell whether the predicate is needed though some results are known, or cannot raise."""
    outputs = builder.origin.outputs
    unknown = [old for old, new in zip(outputs, known, strict=True) if new is None]
    is_read = any(v in builder.read or v in builder.graph.results for v in unknown)
    return is_read or has_effect(node) or builder.may_drop(node.inputs[:1], [])


def _known_result(builder: Rewriter, node: Node, i: int) -> Value | None:
    one, other = (region.results[i] for region in node.regions)
    for k, operand in enumerate(node.inputs[1:]):
        if (
            one is node.regions[0].params[k]
            and other is node.regions[1].params[k]
            and operand.type == node.types[i]
        ):
            return operand
    if constant_of(one) is None or constant_of(other) is None:
        return None
    literal = one.node.attrs["value"]
    return builder.emit("const", value=literal) if literal == other.node.attrs["value"] else None


def _unchanged(builder: Rewriter, node: Node) -> Outputs:
    """Make invariants of the carried values that the body returns as they came."""
    view = Structured(node)
    fixed = [k for k in view.carried if _passes_through(view, k)]
    if not fixed:
        return None
    moving = [k for k in view.carried if k not in fixed]
    results = [k - view.carried.start for k in moving]
    params = [*range(view.carried.start), *moving, *view.invariants, *fixed]
    made = dict(zip(moving, narrow(builder, node, params, results).outputs, strict=True))
    return [made.get(k, view.operands[k]) for k in view.carried]


def _passes_through(view: Structured, k: int) -> bool:
    param, operand = view.body.params[k], view.operands[k]
    types = {param.type, operand.type, view.node.types[k - view.carried.start]}
    return view.body.results[k - view.carried.start] is param and len(types) == 1


# -- operands -----------------------------------------------------------------------------------------------------


def _plain_operands(builder: Rewriter, node: Node) -> Outputs:
    """Move constant operands into the regions, and pass a value that is passed twice only once."""
    view = Structured(node)
    first: dict[Value, int] = {}
    gone: dict[int, int | None] = {}
    for k in view.invariants:
        operand = view.operands[k]
        if any(region.params[k].type != operand.type for region in node.regions):
            continue
        if constant_of(operand) is not None:
            gone[k] = None
        elif first.setdefault(operand, k) != k:
            gone[k] = first[operand]
    if not gone:
        return None
    kept = [k for k in range(len(view.operands)) if k not in gone]
    replaced = [
        {region.params[k]: _stand_in(region, view, k, j) for k, j in gone.items()}
        for region in node.regions
    ]
    return narrow(builder, node, kept, range(len(node.types)), replaced).outputs


def _stand_in(region: Graph, view: Structured, k: int, j: int | None) -> Value:
    """Return what replaces param k: param j, or a constant of the region's own."""
    if j is not None:
        return region.params[j]
    node = view.operands[k].node
    return Node(node.op, (), node.attrs, node.types, loc=node.loc).output


Cleanup = Callable[[Rewriter, Node], Outputs]
_CLEANUPS: dict[str, tuple[Cleanup, ...]] = {
    "cond": (_decided, _same_results, _plain_operands),
    "while": (_never, _unchanged, _plain_operands),
    "scan": (_counted, _unchanged, _plain_operands),
}
