"""Forward mode: tangents beside values, in one walk.

`push(graph, builder, args, tangents, wanted)` copies a graph into a builder and returns its results and the tangents of those
that are wanted; None stands for a tangent that is zero. Loops carry the tangents of what they carry, so no value of a trip
is kept. Only values that are live have a tangent: a rule that nothing wanted depends on is not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.autodiff.flow import LOOPS, Flow, active_results, is_met, loop_activity, loop_liveness
from dsl.autodiff.region import Region, copy_node, inline
from dsl.autodiff.reverse import BITS, undifferentiable
from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import derivative_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import placement_of

__all__ = ["push"]

Tangents = Sequence[Value | None]


def push(
    graph: Graph,
    builder: Builder,
    args: Sequence[Value],
    tangents: Tangents,
    wanted: Sequence[bool],
) -> tuple[list[Value], list[Value | None]]:
    """Copy a graph forward; return its results and the tangents of those that are wanted."""
    flow = Flow(graph, [t is not None for t in tangents], wanted)
    walk = _Walk(builder, dict(zip(graph.params, args, strict=True)), flow)
    for param, tangent in zip(graph.params, tangents, strict=True):
        if tangent is not None:
            walk.tangents[param] = tangent
    for node in graph.nodes:
        walk.visit(node)
    found = [walk.tangents.get(v) if on else None for v, on in zip(graph.results, wanted)]
    return [walk.values[value] for value in graph.results], found


class _Walk:
    def __init__(self, builder: Builder, values: dict[Value, Value], flow: Flow) -> None:
        self.builder, self.values, self.live = builder, values, flow.live
        self.stops = flow.stops
        self.a = Algebra(builder)
        self.tangents: dict[Value, Value] = {}

    def visit(self, node: Node) -> None:
        self.builder.loc, self.builder.placement = node.loc, placement_of(node)
        ts = [self.tangents.get(value) for value in node.inputs]
        wanted = [value in self.live for value in node.outputs]
        if node in self.stops and any(wanted):
            raise undifferentiable(self.stops[node], BITS)
        moves = any(t is not None for t in ts) and any(wanted)
        if not moves and not is_met(node):
            made = copy_node(self.builder, node, self.values)
            self.values.update(zip(node.outputs, made.outputs, strict=True))
            return
        inputs = [self.values[value] for value in node.inputs]
        outputs, found = self._apply(node, inputs, ts, wanted)
        self.values.update(zip(node.outputs, outputs, strict=True))
        live = zip(node.outputs, found, wanted)
        self.tangents.update({v: t for v, t, on in live if t is not None and on})

    def _apply(
        self, node: Node, inputs: list[Value], ts: list[Value | None], wanted: list[bool]
    ) -> tuple[Sequence[Value], Tangents]:
        if node.op.name == "cond":
            return _cond(self.a, node, inputs, ts, wanted)
        if node.op.name in LOOPS:
            return _loop(self.a, node, inputs, ts, wanted)
        if node.regions:
            from dsl.autodiff.calls import call_push

            return call_push(self.a, node, inputs, ts, wanted)
        made = copy_node(self.builder, node, self.values)
        rule = derivative_of(node.op.name)
        if rule.jvp is None:
            if rule.refused:
                raise undifferentiable(node, rule.reason)
            return made.outputs, [None] * len(made.outputs)
        return made.outputs, _granted(rule.jvp(self.a, made, ts), wanted)


def _granted(found: Sequence[Value | GradientError | None], wanted: list[bool]) -> Tangents:
    """Raise the first refusal of a tangent that is wanted; the others are of no interest."""
    for tangent, on in zip(found, wanted):
        if on and isinstance(tangent, GradientError):
            raise tangent
    return [None if isinstance(t, GradientError) else t for t in found]


def _or_zeros(a: Algebra, t: Value | None, like: Value) -> Value:
    return a.zeros(like.tensor) if t is None else t


def _region(
    parent: Builder, graph: Graph, given: Sequence[bool], wanted: Sequence[bool]
) -> tuple[Region, list[Value], list[Value]]:
    """Return a region of values, then tangents of the `given` params; it returns results, then the `wanted` tangents."""
    region = Region(graph.name, parent)
    params = [region.param(p.type, p.node.attrs["name"]) for p in graph.params]
    ts = [region.param(p.type) if on else None for p, on in zip(graph.params, given, strict=True)]
    results, found = push(graph, region, params, ts, wanted)
    a = Algebra(region)
    tangents = [_or_zeros(a, t, r) for t, r, on in zip(found, results, wanted, strict=True) if on]
    return region, [*params, *(t for t in ts if t is not None)], [*results, *tangents]


def _cond(
    a: Algebra, node: Node, inputs: list[Value], ts: list[Value | None], live: list[bool]
) -> tuple[Sequence[Value], Tangents]:
    given = [t is not None for t in ts[1:]]
    branches = [active_results(region, given) for region in node.regions]
    wanted = [on and any(pair) for on, *pair in zip(live, *branches, strict=True)]
    built = [_region(a.builder, region, given, wanted) for region in node.regions]
    captured = dict.fromkeys(v for region, _, _ in built for v in region.captured)
    regions = []
    for region, params, results in built:
        inside = [region.capture(value) for value in captured]
        done = region.finish(results)
        regions.append(Graph(region.name, (*params, *inside), done.results, done.effects))
    tangents = [t for t in ts[1:] if t is not None]
    types = [*node.types, *(t for t, on in zip(node.types, wanted) if on)]
    made = a.builder.node(
        "cond", [*inputs, *tangents, *captured], {}, regions=regions, types=types, loc=node.loc
    )
    return made.outputs[: len(node.types)], _spread(made.outputs[len(node.types) :], wanted)


def _spread(found: Sequence[Value], wanted: Sequence[bool]) -> list[Value | None]:
    left = iter(found)
    return [next(left) if on else None for on in wanted]


def _loop(
    a: Algebra, node: Node, inputs: list[Value], ts: list[Value | None], live: list[bool]
) -> tuple[Sequence[Value], Tangents]:
    """Carried: values, then tangents; after them the invariants and theirs. Recorded ones likewise."""
    first, count = LOOPS[node.op.name], node.attrs["carried"]
    end = first + count
    active = [t is not None for t in ts]
    carried = loop_liveness(node, active, live)[first:end]
    _, results = loop_activity(node, active)
    given = [False] * first + carried + active[end:]
    wanted = carried + [x and y for x, y in zip(results[count:], live[count:], strict=True)]
    region, params, outcome = _region(a.builder, node.regions[-1], given, wanted)
    total, moving = len(given), sum(carried)
    order = [
        *params[:end],
        *params[total : total + moving],
        *params[end:total],
        *params[total + moving :],
    ]
    split = len(wanted)
    values, moved = outcome[:split], outcome[split:]
    returned = [*values[:count], *moved[:moving], *values[count:], *moved[moving:]]
    body = region.graph(order, returned)
    starts = [_or_zeros(a, ts[first + k], inputs[first + k]) for k in range(count) if carried[k]]
    shared = [t for t in ts[end:] if t is not None]
    extra = [node.types[k] for k in range(split) if wanted[k]]
    types = [*node.types[:count], *extra[:moving], *node.types[count:], *extra[moving:]]
    captured = list(region.captured)
    made = a.builder.node(
        node.op, [*inputs[:end], *starts, *inputs[end:], *shared, *captured],
        {"carried": count + moving}, regions=[*_test(a, node, order, captured, count, moving), body],
        types=types, loc=node.loc,
    )  # fmt: skip
    outputs = list(made.outputs)
    stacks = len(node.types) - count
    own = outputs[:count] + outputs[count + moving : count + moving + stacks]
    tangents = outputs[count : count + moving] + outputs[count + moving + stacks :]
    return own, _spread(tangents, wanted)


def _test(
    a: Algebra,
    node: Node,
    order: Sequence[Value],
    captured: Sequence[Value],
    count: int,
    active: int,
) -> list[Graph]:
    if len(node.regions) == 1:
        return []
    test = Region("test", a.builder)
    own = [test.param(value.type) for value in (*order, *captured)]
    shared = len(node.inputs) - count
    taken = own[:count] + own[count + active : count + active + shared]
    done = test.finish(inline(test, node.regions[0], taken))
    return [Graph("test", tuple(own), done.results, done.effects)]
