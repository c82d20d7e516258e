"""Derivatives of ops: what reverse and forward mode ask of each.

A `Derivative` belongs to one op and has two rules. With `node` the op applied in the program, and `a` to write with:

    vjp(a, node, gs) -> the cotangent of each input, or None where there is none
    jvp(a, node, ts) -> the tangent of each output, or None, or the error to raise if that tangent is wanted

`gs` holds the cotangents of the outputs and `ts` the tangents of the inputs; None stands for zero, and one of them at
least is not None. A cotangent has the dtype of its value, and its shape; it is a value, or a `Part` of one.

Complex numbers: a cotangent is transposed, not conjugated, as in JAX. The gradient of a real function of `z = x + iy` is
`df/dx - i df/dy`, and that of a holomorphic one its derivative.

An op without a derivative says why. `constant("…")` is zero everywhere, or almost; its inputs simply get no cotangent.
`undifferentiable("…")` is refused, with the user's line, when a derivative must go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsl.errors import InternalError
from dsl.ir.algebra import Algebra, Operand
from dsl.ir.graph import Node, Value
from dsl.ir.masks import through, total
from dsl.ir.types import TensorType, is_complex, is_inexact

__all__ = [
    "DERIVATIVES",
    "Cotangent",
    "Derivative",
    "Part",
    "constant",
    "derivative_of",
    "derive",
    "elementwise",
    "linear",
    "through",
    "total",
    "undifferentiable",
]  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A cotangent that is zero except where `value` lies: `place` is `slice`, `dynamic_slice` or `gather`.

    `attrs` and `inputs` are those of the op that read the part, without the array.
    """

    place: str
    type: TensorType
    value: Value
    attrs: dict[str, Any]
    inputs: tuple[Value, ...] = ()


Cotangent = Value | Part
Vjp = Callable[[Algebra, Node, Sequence[Any]], Sequence[Any]]
Jvp = Callable[[Algebra, Node, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Derivative:
    """The rules of one op; without rules, the `reason`, and whether the op is refused for it."""

    vjp: Vjp | None = None
    jvp: Jvp | None = None
    reason: str = ""
    refused: bool = False


DERIVATIVES: dict[str, Derivative] = {}


def derive(name: str, derivative: Derivative) -> None:
    """Say what the derivative of an op is, once."""
    if name in DERIVATIVES:
        raise InternalError(f"the derivative of {name} is given twice")
    DERIVATIVES[name] = derivative


def derivative_of(name: str) -> Derivative:
    """Return the derivative of a registered op."""
    import dsl.ir.derivatives  # noqa: F401 - gives those of the built-in ops

    found = DERIVATIVES.get(name)
    return found or undifferentiable("it has no derivative rule")


def constant(reason: str) -> Derivative:
    """The derivative is zero wherever it exists."""
    return Derivative(reason=reason)


def undifferentiable(reason: str) -> Derivative:
    """There is a derivative, or should be, that this op does not give."""
    return Derivative(reason=reason, refused=True)


# -- families -----------------------------------------------------------------------------------------------------

Partials = Callable[..., Any]


def elementwise(partials: Partials) -> Derivative:
    """Return the rules of an elementwise op from its partial derivatives.

    `partials(a, *outputs, *inputs)` returns one for each input, or a tuple of those for each output of several; each is a
    value, a number, or None for zero. The rules see the values as they are in the program, with the node's attributes not
    among them.
    """

    def of(a: Algebra, node: Node) -> list[tuple[Operand | None, ...]]:
        found = partials(a, *node.outputs, *node.data_inputs)
        several = len(node.outputs) > 1
        rows = found if several else (found if isinstance(found, tuple) else (found,),)
        return [tuple(row) for row in rows]

    def vjp(a: Algebra, node: Node, gs: Sequence[Value | None]) -> list[Value | None]:
        totals: list[Value | None] = [None] * len(node.inputs)
        for g, row in zip(gs, of(a, node)):
            for k, factor in enumerate(row):
                if g is not None and factor is not None and is_inexact(node.inputs[k].dtype):
                    term = through(a, g, factor)
                    totals[k] = term if totals[k] is None else total(a, totals[k], term)  # type: ignore[arg-type]
        return [_as_input(a, g, x) for g, x in zip(totals, node.inputs)]

    def jvp(a: Algebra, node: Node, ts: Sequence[Value | None]) -> list[Value | None]:
        found = []
        for y, row in zip(node.outputs, of(a, node)):
            sum_: Value | None = None
            for t, factor in zip(ts, row):
                if t is not None and factor is not None:
                    term = through(a, t, factor)
                    sum_ = term if sum_ is None else a.add(sum_, term)
            found.append(None if sum_ is None else a.to_shape(a.as_dtype(sum_, y.dtype), y.shape))
        return found

    return Derivative(vjp, jvp)


def _as_input(a: Algebra, g: Value | None, x: Value) -> Value | None:
    """Give a cotangent the shape and dtype of its value; a real one takes the real part."""
    if g is None:
        return None
    if is_complex(g.dtype) and not is_complex(x.dtype):
        g = a.real(g)
    return a.unbroadcast(a.as_dtype(g, x.dtype), x.shape)


def linear(vjp: Vjp, *positions: int, each: bool = False) -> Derivative:
    """Return the rules of an op that is linear in its inputs at `positions` (all, if none are given), taken together.

    With `each`, it is linear in each of them while the others stay, as a product is.
    """

    def jvp(a: Algebra, node: Node, ts: Sequence[Value | None]) -> list[Value | None]:
        places = positions or tuple(range(len(node.data_inputs)))
        if each:
            terms = [
                _apply(a, node, {k: t}) for k, t in enumerate(ts) if t is not None and k in places
            ]
            found = terms[0]
            for term in terms[1:]:
                found = a.add(found, term)
            return [found]
        given = {k: ts[k] if ts[k] is not None else a.zeros(node.inputs[k].tensor) for k in places}
        return [_apply(a, node, given)]  # type: ignore[arg-type]

    return Derivative(vjp, jvp)


def _apply(a: Algebra, node: Node, replaced: dict[int, Value]) -> Value:
    inputs = [replaced.get(k, x) for k, x in enumerate(node.data_inputs)]
    return a.builder.node(node.op, inputs, node.attrs).output
