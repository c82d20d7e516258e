"""Reverse mode: a graph forward into one builder, its cotangents backward into another.

`Reverse(graph, builder, args, …)` copies a graph into a builder; loops and branches that derivatives flow through are
made to keep what their backward halves need. `pull(builder, cotangents)` then walks the nodes in reverse and applies
each op's rule. Both builders may be the same. If they are not, as with the bodies of loops, the backward one is a
`Backward` region, which asks for forward values by capturing them; who finishes the loop decides how they get there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import Flow, is_met, joins_ranks
from dsl.autodiff.region import Region, copy_node, is_dropped, is_known
from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import Cotangent, derivative_of
from dsl.ir.dims import Dim
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait, placement_of
from dsl.ir.types import TensorType

__all__ = ["BITS", "Backward", "Reverse", "Step"]


class Step(Protocol):
    """Control flow that was copied forward and can be pulled back through."""

    @property
    def outputs(self) -> Sequence[Value]:
        """What stands for the outputs of the node."""

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        """Return the cotangents of the inputs; `sums` are those that the inputs have so far, which they include."""


class Reverse:
    """One graph, copied forward.

    `looping` says that it is the body of a loop, or inside one; `segmented`, that loops shall keep the state before some of
    their trips only, and repeat the others; `effects`, whether prints and assertions are copied.
    """

    def __init__(
        self, graph: Graph, builder: Builder, args: Sequence[Value], active: Sequence[bool],
        wanted: Sequence[bool], *, looping: bool = False, segmented: bool = False, effects: bool = True,
    ) -> None:  # fmt: skip
        self.graph, self.builder, self.looping, self.segmented = graph, builder, looping, segmented
        self.effects, self.in_place = (
            effects,
            args is graph.params,
        )  # then nodes stay where they are
        self.flow = Flow(graph, active, wanted)
        self.values: dict[Value, Value] = dict(zip(graph.params, args, strict=True))
        self.steps: dict[Node, Step] = {}
        self.made: dict[Node, Node] = {}
        for node in graph.nodes:
            if effects or not is_dropped(node):
                self._copy(node)
        self.outputs = [self.values[value] for value in graph.results]

    def _copy(self, node: Node) -> None:
        outputs: Sequence[Value]
        if node.regions and (
            any(value in self.flow.live for value in node.outputs) or is_met(node)
        ):
            from dsl.autodiff.control import step_of

            step = self.steps[node] = step_of(self, node)
            outputs = step.outputs
        else:
            stays = self.in_place and node.op.has(Trait.EFFECT)
            made = self.made[node] = (
                node if stays else copy_node(self.builder, node, self.values, effects=self.effects)
            )
            outputs = made.outputs
        self.values.update(zip(node.outputs, outputs, strict=True))

    # -- backward --------------------------------------------------------------------------------------------------

    def pull(
        self, builder: Builder, cotangents: Sequence[Value | None],
        sums: Mapping[int, Value] | None = None,
    ) -> list[list[Cotangent]]:  # fmt: skip
        """Return what each param gets; `sums` are cotangents that params have already, which are then the first."""
        a = Algebra(builder)
        found: dict[Value, list[Cotangent]] = {}
        for k, value in (sums or {}).items():
            found[self.graph.params[k]] = [value]
        for value, g in zip(self.graph.results, cotangents, strict=True):
            if g is not None and value in self.flow.live:
                found.setdefault(value, []).append(g)
        for node in reversed(self.graph.nodes):
            if any(value in found for value in node.outputs) or is_met(node):
                builder.loc = node.loc.backward() if node.loc else None
                builder.placement = placement_of(node)
                self._pull_node(a, node, found)
        builder.placement = {}
        return [found.get(param, []) for param in self.graph.params]

    def _pull_node(self, a: Algebra, node: Node, found: dict[Value, list[Cotangent]]) -> None:
        if node in self.flow.stops:
            raise undifferentiable(self.flow.stops[node], BITS)
        gs = [combine(a, found.pop(v)) if v in found else None for v in node.outputs]
        live = [value in self.flow.live for value in node.inputs]
        if node in self.steps:
            sums = [self._take(a, found, v) if on else None for v, on in zip(node.inputs, live)]
            for value, total in zip(node.inputs, self.steps[node].pull(a, gs, sums), strict=True):
                if total is not None:
                    found.setdefault(value, []).append(total)
            return
        if not any(live) and not is_met(node):
            return
        for value, on, g in zip(node.inputs, live, self._apply_rule(a, node, gs)):
            if on and g is not None:
                found.setdefault(value, []).append(g)

    def _take(self, a: Algebra, found: dict[Value, list[Cotangent]], value: Value) -> Value | None:
        """Return the sum so far, once: of several inputs that are one value the first gets it."""
        return combine(a, found.pop(value), in_place=self.looping) if value in found else None

    def _apply_rule(self, a: Algebra, node: Node, gs: list[Value | None]) -> Sequence[Any]:
        rule = derivative_of(node.op.name)
        if rule.vjp is None:
            raise undifferentiable(node, rule.reason)
        return rule.vjp(a, self.made[node], gs)


BITS = "bits are no numbers that could change a little"


def undifferentiable(node: Node, reason: str) -> GradientError:
    """Return the error for an op that stops derivatives."""
    return GradientError(
        f"`{node.op.name}` cannot be differentiated: {reason}",
        location=node.loc,
        remedy="take it out of what is differentiated (`dsl.stop_gradient`), or give the function a rule (`dsl.custom_vjp`)",
    )


# -- what backward regions ask for --------------------------------------------------------------------------------

CHEAP = frozenset({
    "add", "subtract", "multiply", "negative", "square", "absolute", "maximum", "minimum", "cast", "where", "full", "iota",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not",
    "sign", "isnan", "conjugate", "real", "imag", "complex", "reshape", "broadcast_to", "transpose", "identity", "dim_size",
    "bitwise_and", "bitwise_or", "slice",
})  # fmt: skip
"""Ops that cost less to repeat than a trip of their result to memory and back."""


_SLACK = 1.25
"""How much more than a value may be kept in its place: all of an array for its inner points, from which others come too."""

_CHAIN = 32
"""As many cheap ops may make a value again; more of them cost what a trip to memory does."""


class Backward(Region):
    """The backward half of a region. `requests` maps forward values that it needs to the params they will come in by.

    A value is computed again rather than kept if it depends on what every trip sees alike, if cheap ops make it of what is
    kept anyway, or if its size is not known outside, so that it cannot be kept.
    """

    def __init__(
        self, name: str, forward: Region, free: Sequence[Value], costly_only: bool = False
    ) -> None:
        super().__init__(name, forward)
        self.forward = forward
        self.requests: dict[Value, Value] = {}
        self.costly_only = costly_only
        self._found: dict[Value, Value] = {}
        self._copies: dict[Node, Node] = {}
        self._free = set(free)

    def capture(self, value: Value) -> Value:
        if value not in self._found:
            self._found[value] = self._fetch(value)
        return self._found[value]

    def _fetch(self, value: Value) -> Value:
        if not self.forward.owns(value):
            value = self.forward.local(value)
        node = value.node
        if node.op.name == "const":
            return super().capture(value)
        if node.op.name != "param" and self._repeats(value):
            if node not in self._copies:
                inputs = {v: self.local(v) for v in node.inputs}
                self._copies[node] = copy_node(self, node, inputs, effects=False)
            return self._copies[node].outputs[value.index]
        return self.request(value)

    def request(self, value: Value) -> Value:
        """Have a forward value brought here."""
        if value not in self.requests:
            self.requests[value] = self.param(value.type)
        return self.requests[value]

    def outer_size(self, symbol: Dim) -> Value:
        return self.local(self.forward.size(symbol))

    def _repeats(self, value: Value) -> bool:
        node = value.node
        if not is_known(self.forward.parent, value.type) or self.is_free(value):
            return True
        if self.costly_only:
            return _is_light(node)
        if node.op.name not in CHEAP:
            return False
        return self._sources_are_less(value)

    def _sources_are_less(self, value: Value) -> bool:
        """Tell whether all that would have to be kept for computing a value again by cheap ops takes no more than itself."""
        room, seen, wanted = _SLACK * _bytes(value), {value}, list(value.node.inputs)
        while wanted:
            source = wanted.pop()
            if source in seen or self._is_at_hand(source):
                continue
            seen.add(source)
            owned = self.forward.owns(source)
            if owned and source.node.op.name in CHEAP:
                wanted.extend(source.node.inputs)
            else:
                room -= _bytes(source)
            if not owned or room < 0 or len(seen) > _CHAIN:
                return False
        return True

    def _is_at_hand(self, value: Value) -> bool:
        return value in self._found or value.node.op.name == "const" or self.is_free(value)

    def is_free(self, value: Value) -> bool:
        """Tell whether a forward value depends on nothing but what every trip sees alike, or its number."""
        if value in self._free:
            return True
        node = value.node
        if node.op.name == "param":
            return value in self.forward.captured.values()
        if node.op.has(Trait.EFFECT) or joins_ranks(node):
            return False
        if all(self.is_free(v) for v in node.inputs):
            self._free.add(value)
            return True
        return False


def _is_light(node: Node) -> bool:
    return not node.regions and (
        node.op.has(Trait.ELEMENTWISE) or node.op.has(Trait.VIEW) or node.op.name in CHEAP
    )


def _bytes(value: Value) -> float:
    if not isinstance(value.type, TensorType):
        return 0.0
    size = float(value.type.dtype.itemsize)
    for dim in value.type.shape:
        size *= dim if isinstance(dim, int) else 1e4
    return size
