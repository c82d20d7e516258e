"""Derivatives of nodes that call a graph: `checkpoint`, and functions with rules of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.forward import push
from dsl.autodiff.region import copy_node, inline
from dsl.autodiff.reverse import Reverse, Step
from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import total
from dsl.ir.graph import Node, Value

__all__ = ["call_push", "call_step"]


def call_step(whole: Reverse, node: Node) -> Step:
    """Copy a call forward."""
    return _STEPS[node.op.name](whole, node)


def call_push(
    a: Algebra, node: Node, inputs: list[Value], ts: list[Value | None], wanted: list[bool]
) -> tuple[Sequence[Value], Sequence[Value | None]]:
    """Copy a call forward with tangents."""
    if node.op.name == "custom_vjp":
        raise GradientError(
            "a function with a rule for reverse mode alone (`custom_vjp`) is differentiated in forward mode",
            location=node.loc, remedy="give it a rule with `dsl.custom_jvp`, which serves both, or use `grad` and `vjp`",
        )  # fmt: skip
    if node.op.name == "custom_jvp":
        return _custom_push(a, node, inputs, ts)
    return push(node.regions[0], a.builder, inputs, ts, wanted)


def _later(builder: Builder, value: Value, gs: Sequence[Value | None]) -> Value:
    """Return a value as one that is there only after cotangents are: what it makes is computed then, and not shared."""
    after = dict.fromkeys(
        g.node for g in gs if g is not None and g.node.op.name not in ("param", "const")
    )
    return builder.node("identity", [value], {}, controls=after).output


class _Checkpoint:
    """Nothing is kept but the operands: going back runs the region again."""

    def __init__(self, whole: Reverse, node: Node) -> None:
        self.node = node
        self.active = [value in whole.flow.active for value in node.inputs]
        self.live = [value in whole.flow.live for value in node.inputs]
        self.wanted = [value in whole.flow.live for value in node.outputs]
        self.looping = whole.looping
        self.made = copy_node(whole.builder, node, whole.values, effects=whole.effects)
        self.outputs = self.made.outputs

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        builder = a.builder
        args = [_later(builder, value, gs) for value in self.made.inputs]
        again = Reverse(
            self.node.regions[0], builder, args, self.active, self.wanted,
            looping=self.looping, segmented=not self.node.attrs.get("whole"), effects=False,
        )  # fmt: skip
        given = {k: value for k, value in enumerate(sums) if value is not None}
        found = again.pull(builder, gs, given)
        return [
            combine(a, parts) if parts and on else so_far
            for parts, on, so_far in zip(found, self.live, sums, strict=True)
        ]


# -- rules of the user's ------------------------------------------------------------------------------------------


class _CustomVjp:
    """The forward rule in place of the function; its residuals are what the backward rule gets."""

    def __init__(self, whole: Reverse, node: Node) -> None:
        self.node = node
        self.inputs = [whole.values[value] for value in node.inputs]
        self.live = [value in whole.flow.live for value in node.inputs]
        results = inline(whole.builder, node.regions[1], self.inputs, effects=whole.effects)
        count = len(node.outputs)
        self.outputs, self.residuals = results[:count], results[count:]

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        count = self.node.attrs["operands"]
        seeds = [
            a.zeros(v.tensor) if g is None else g for g, v in zip(gs, self.outputs, strict=True)
        ]
        found = inline(
            a.builder, self.node.regions[2], [*self.inputs[count:], *self.residuals, *seeds]
        )
        totals = list(sums)
        for k, value in zip(self.node.attrs["given"], found, strict=True):
            if self.live[k]:
                totals[k] = value if totals[k] is None else total(a, totals[k], value)
        return totals


class _CustomJvp:
    """Going back transposes the user's rule, which is linear in the tangents: it is pulled back through at tangents of zero."""

    def __init__(self, whole: Reverse, node: Node) -> None:
        self.node, a = node, Algebra(whole.builder)
        inputs = [whole.values[value] for value in node.inputs]
        rule, given = node.regions[1], node.attrs["given"]
        zeros = [a.zeros(inputs[k].tensor) for k in given]
        active = [False] * len(inputs) + [node.inputs[k] in whole.flow.live for k in given]
        results = len(node.outputs)
        wanted = [False] * results + [True] * (len(rule.results) - results)
        self.inner = Reverse(
            rule, whole.builder, [*inputs, *zeros], active, wanted,
            looping=whole.looping, effects=whole.effects,
        )  # fmt: skip
        self.outputs = self.inner.outputs[:results]
        self.moving = [k for k, value in enumerate(node.outputs) if carries(value)]

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        count, given = len(self.node.inputs), self.node.attrs["given"]
        seeds = [None] * len(self.outputs) + [gs[k] for k in self.moving]
        found = self.inner.pull(a.builder, seeds)[count:]
        totals = list(sums)
        for k, parts in zip(given, found, strict=True):
            if parts:
                whole = [*([totals[k]] if totals[k] is not None else []), *parts]
                totals[k] = combine(a, whole)
        return totals


def _custom_push(
    a: Algebra, node: Node, inputs: list[Value], ts: list[Value | None]
) -> tuple[Sequence[Value], Sequence[Value | None]]:
    given = node.attrs["given"]
    moved = [a.zeros(inputs[k].tensor) if ts[k] is None else ts[k] for k in given]
    results = inline(a.builder, node.regions[1], [*inputs, *moved])
    count = len(node.outputs)
    left = iter(results[count:])
    return results[:count], [next(left) if carries(value) else None for value in node.outputs]


_STEPS: dict[str, Callable[[Reverse, Node], Step]] = {
    "checkpoint": _Checkpoint,
    "custom_vjp": _CustomVjp,
    "custom_jvp": _CustomJvp,
}
