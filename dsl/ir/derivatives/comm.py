"""Derivatives of collectives, as linear maps over all ranks: the loss is the sum of all ranks' losses.

The adjoint of a sum is the sum of the cotangents, that of a broadcast is the sum on the root, that of a gather a scatter,
and that of a message the message back. All of these happen even where this rank has no cotangent: then it sends zeros. A
reduction that is not linear has the derivative of the same reduction over the ranks' arrays in a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Derivative, constant, derivative_of, derive, undifferentiable
from dsl.ir.graph import Node, Value
from dsl.ir.types import TensorType

A = Algebra
Given = Sequence[Value | None]


def _or_zeros(a: A, g: Value | None, type: TensorType) -> Value:
    return a.zeros(type) if g is None else g


def _world(node: Node, *names: str) -> dict[str, Any]:
    """Return attributes for another op of the same ranks."""
    return {name: node.attrs[name] for name in ("ranks", *names)}


def _moving(adjoint: Callable[[A, Node, Value], Value]) -> Derivative:
    """The rules of an op that is linear in its only input."""

    def vjp(a: A, node: Node, gs: Given) -> list[Value]:
        return [adjoint(a, node, _or_zeros(a, gs[0], node.output.tensor))]

    return Derivative(vjp, _again)


def _again(a: A, node: Node, ts: Given) -> Sequence[Value]:
    """The tangents take the same way."""
    x = node.inputs[0].tensor
    return a.builder.node(node.op, [_or_zeros(a, ts[0], x)], node.attrs).outputs


def _reducing(adjoint: Callable[[A, Node, Value], Value], there: str, back: str) -> Derivative:
    """The rules of a reduction: `adjoint` is that of sums and means.

    For the others `there` brings all arrays that are reduced here into a stack, whose cotangent `back` returns.
    """
    linear = _moving(adjoint)

    def vjp(a: A, node: Node, gs: Given) -> Sequence[Any]:
        if node.attrs["how"] in ("sum", "mean"):
            return linear.vjp(a, node, gs)  # type: ignore[misc]
        local, rule = _local(a, node, there)
        (g,) = rule.vjp(a, local, [_or_zeros(a, gs[0], node.output.tensor)])  # type: ignore[misc]
        return [_passed(a, node, back, g)]

    def jvp(a: A, node: Node, ts: Given) -> Sequence[Any]:
        if node.attrs["how"] in ("sum", "mean"):
            return _again(a, node, ts)
        local, rule = _local(a, node, there)
        t = _passed(a, node, there, _or_zeros(a, ts[0], node.inputs[0].tensor))
        return rule.jvp(a, local, [t])  # type: ignore[misc]

    return Derivative(vjp, jvp)


def _local(a: A, node: Node, there: str) -> tuple[Node, Derivative]:
    how = node.attrs["how"]
    stack = _passed(a, node, there, node.inputs[0])
    return getattr(a, how)(stack, axes=(0,)).node, derivative_of(how)


def _passed(a: A, node: Node, op: str, x: Value) -> Value:
    more: dict[str, Any] = {"how": "sum"} if op == "reduce_scatter" else {}
    root = ("root",) if op.endswith(("_to", "_from")) else ()
    return a.builder.node(op, [x], {**_world(node, *root), **more}).output


def _shared(a: A, node: Node, g: Value) -> Value:
    """A mean gives each rank its share."""
    return g if node.attrs["how"] == "sum" else a.divide(g, node.attrs["ranks"])


def _reduce_to(a: A, node: Node, g: Value) -> Value:
    return _shared(a, node, a.broadcast_from(g, **_world(node, "root")))


def _reduce_scatter(a: A, node: Node, g: Value) -> Value:
    return _shared(a, node, a.all_gather(g, **_world(node)))


def _exchange(a: A, node: Node, g: Value) -> Value:
    """The way back."""
    back = {"dest": node.attrs["source"], "source": node.attrs["dest"]}
    return a.exchange(g, **_world(node, "tag"), **back)


def _send_vjp(a: A, node: Node, gs: Given) -> list[Value]:
    x = node.inputs[0].tensor
    return [
        a.recv_from(**_world(node, "tag"), source=node.attrs["dest"], dtype=x.dtype, shape=x.shape)
    ]


def _recv_vjp(a: A, node: Node, gs: Given) -> list[Value]:
    g = _or_zeros(a, gs[0], node.output.tensor)
    a.several("send_to", g, **_world(node, "tag"), dest=node.attrs["source"])
    return []


def _recv_jvp(a: A, node: Node, ts: Given) -> Sequence[Value]:
    return a.builder.node(node.op, (), node.attrs).outputs


derive("all_reduce", _reducing(
    lambda a, node, g: a.all_reduce(g, **_world(node, "how")), "all_gather", "reduce_scatter"))  # fmt: skip
derive("reduce_to", _reducing(_reduce_to, "gather_to", "scatter_from"))
derive("reduce_scatter", _reducing(_reduce_scatter, "all_to_all", "all_to_all"))
derive(
    "broadcast_from", _moving(lambda a, node, g: a.reduce_to(g, **_world(node, "root"), how="sum"))
)
derive("gather_to", _moving(lambda a, node, g: a.scatter_from(g, **_world(node, "root"))))
derive("scatter_from", _moving(lambda a, node, g: a.gather_to(g, **_world(node, "root"))))
derive("all_gather", _moving(lambda a, node, g: a.reduce_scatter(g, **_world(node), how="sum")))
derive("all_to_all", _moving(lambda a, node, g: a.all_to_all(g, **_world(node))))
derive("exchange", _moving(_exchange))
derive("send_to", Derivative(_send_vjp, _again))
derive("recv_from", Derivative(_recv_vjp, _recv_jvp))
derive("barrier", constant("no inputs"))
for _name in ("all_reduce_start", "all_reduce_wait"):
    derive(
        _name, undifferentiable("it is for gradients; `dsl.parallel.allreduce` is differentiable")
    )
