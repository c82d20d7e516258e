"""Which values derivatives flow through.

A value is active if it depends on an active param through ops that have derivatives. It is live if, besides, a wanted
result depends on it so. Loops are followed until nothing more becomes active or live.

Integers that are the bits of an active value have no derivative. Where they become a number again, that number is active all the
same: a derivative that must go through it is refused, at the node that took the bits.

What other ranks take part in is active and live in any case: they may depend on active params of theirs, or be wanted there.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.ir.derivative import derivative_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType, is_inexact

__all__ = [
    "CUSTOM",
    "LOOPS",
    "Flow",
    "active_results",
    "carries",
    "is_joined",
    "is_met",
    "joins_ranks",
    "live_params",
    "loop_activity",
    "loop_liveness",
]


def carries(value: Value) -> bool:
    """Tell whether a value is of a type that has derivatives."""
    return isinstance(value.type, TensorType) and is_inexact(value.type.dtype)


def joins_ranks(node: Node) -> bool:
    """Tell whether other ranks take part in a node, or in something in its regions."""
    return node.op.has(Trait.COLLECTIVE) or any(
        joins_ranks(effect) for region in node.regions for effect in region.effects
    )


def is_met(node: Node) -> bool:
    """Tell whether other ranks may take part in the derivative of a node."""
    if not node.op.has(Trait.COLLECTIVE):
        return joins_ranks(node)
    found = derivative_of(node.op.name).vjp is not None
    return found and any(map(carries, (*node.inputs, *node.outputs)))


class Flow:
    """The active and the live values of one graph; `stops` has the nodes that make numbers of bits, and those that took these."""

    def __init__(self, graph: Graph, active: Sequence[bool], wanted: Sequence[bool]) -> None:
        self.stops: dict[Node, Node] = {}
        self.active = _active(graph, active, self.stops)
        self.live = _live(graph, self.active, wanted)


def _active(
    graph: Graph, params: Sequence[bool], stops: dict[Node, Node] | None = None
) -> set[Value]:
    found = {p for p, on in zip(graph.params, params, strict=True) if on and carries(p)}
    if not found and not any(map(joins_ranks, graph.effects)):
        return found
    bits: dict[Value, Node] = {}
    for node in graph.nodes:
        on = [value in found for value in node.inputs]
        if (taken := _taken_by(node, on, bits)) is not None:
            bits.update({v: taken for v in node.outputs if _may_be_bits(v)})
            if node.op.name in ("bitcast", "cast") and carries(node.output):
                found.add(node.output)
                (stops if stops is not None else {})[node] = taken
        if any(on) or is_met(node):
            found.update(
                v for v, is_on in zip(node.outputs, _outputs(node, on)) if is_on and carries(v)
            )
    return found


def _taken_by(node: Node, on: list[bool], bits: dict[Value, Node]) -> Node | None:
    """Return the node that took the bits of an active value which a node reads."""
    if node.op.name == "bitcast" and on[0] and not carries(node.output):
        return node
    return next((bits[value] for value in node.inputs if value in bits), None)


def _may_be_bits(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.kind in "iu"


def _outputs(node: Node, on: list[bool]) -> list[bool]:
    """Tell which outputs are active, given which inputs are."""
    if node.op.name == "cond":
        branches = [active_results(region, on[1:]) for region in node.regions]
        return [any(pair) for pair in zip(*branches)]
    if node.op.name in LOOPS:
        carried, results = loop_activity(node, on)
        return carried + results[len(carried) :]
    if node.op.name in CUSTOM:
        return [any(on[: node.attrs["operands"]])] * len(node.outputs)
    if node.regions:
        return active_results(node.regions[0], on)
    rule = derivative_of(node.op.name)
    passes = rule.vjp is not None or rule.refused
    return [passes] * len(node.outputs)


def active_results(graph: Graph, params: Sequence[bool]) -> list[bool]:
    found = _active(graph, params)
    return [value in found for value in graph.results]


def _live(graph: Graph, active: set[Value], wanted: Sequence[bool]) -> set[Value]:
    found = {r for r, on in zip(graph.results, wanted, strict=True) if on and r in active}
    for node in reversed(graph.nodes):
        on = [value in found for value in node.outputs]
        if any(on) or is_met(node):
            given = [value in active for value in node.inputs]
            found.update(
                v
                for v, is_on in zip(node.inputs, _inputs(node, given, on))
                if is_on and v in active
            )
    return found


def _inputs(node: Node, active: list[bool], on: list[bool]) -> list[bool]:
    """Tell which inputs are live, given which are active and which outputs are live."""
    if node.op.name == "cond":
        branches = [live_params(region, active[1:], on) for region in node.regions]
        return [False] + [any(pair) for pair in zip(*branches)]
    if node.op.name in LOOPS:
        return loop_liveness(node, active, on)
    if node.op.name in CUSTOM:
        return [is_on and k in node.attrs["given"] for k, is_on in enumerate(active)]
    if node.regions:
        return live_params(node.regions[0], active, on)
    return active


def live_params(graph: Graph, active: Sequence[bool], wanted: Sequence[bool]) -> list[bool]:
    flow = Flow(graph, active, wanted)
    return [param in flow.live for param in graph.params]


CUSTOM = ("custom_vjp", "custom_jvp")


# -- loops --------------------------------------------------------------------------------------------------------

LOOPS = {"while": 0, "scan": 1, "recording_while": 0, "recording_scan": 1}
"""How many inputs are in front of the carried ones."""


def is_joined(node: Node, k: int) -> bool:
    """Tell whether an output of a recording loop is the trips' values joined along their first axis, not stacked."""
    own = node.regions[-1].results[k]
    return k >= node.attrs["carried"] and len(node.outputs[k].shape) == len(own.shape)


def loop_activity(node: Node, inputs: list[bool]) -> tuple[list[bool], list[bool]]:
    """Return which carried values become active, and which results of the body are then."""
    first, count = LOOPS[node.op.name], node.attrs["carried"]
    carried, rest = list(inputs[first : first + count]), inputs[first + count :]
    while True:
        results = active_results(node.regions[-1], [False] * first + carried + rest)
        grown = [a or b for a, b in zip(carried, results)]
        if grown == carried:
            return carried, results
        carried = grown


def loop_liveness(node: Node, inputs: list[bool], outputs: list[bool]) -> list[bool]:
    """Return which inputs are live. Those carried include what becomes live on the way around."""
    first, count = LOOPS[node.op.name], node.attrs["carried"]
    carried, _ = loop_activity(node, inputs)
    active = [False] * first + carried + inputs[first + count :]
    wanted, recorded = outputs[:count], outputs[count:]
    while True:
        params = live_params(node.regions[-1], active, wanted + recorded)
        grown = [a or b for a, b in zip(wanted, params[first : first + count])]
        if grown == wanted:
            return [False] * first + wanted + params[first + count :]
        wanted = grown
