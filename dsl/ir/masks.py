"""Cotangents that `where` made zero for certain, and that stay so.

The derivative of `where(x > 0, log(x), 0)` is 0 at 0, though that of `log` is infinite there: what was not chosen has
no say. So a product of such a cotangent with a factor is masked again, `where(x > 0, g / x, 0)`, and the mask is found
through whatever only moves or converts the cotangent on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsl.ir.algebra import Algebra, Operand
from dsl.ir.graph import Node, Value

__all__ = ["Mask", "is_zero", "masked", "through", "total"]


@dataclass(frozen=True)
class Mask:
    """A value that is `value` where `condition` is `holds`, and zero elsewhere."""

    condition: Value
    value: Value
    holds: bool

    def keeps(self, a: Algebra) -> Value:
        """Return where the value may be other than zero."""
        return self.condition if self.holds else a.logical_not(self.condition)

    def put(self, a: Algebra, value: Value) -> Value:
        """Mask another value in the same way."""
        zero = a.builder.constant(0, value.dtype)
        sides = (value, zero) if self.holds else (zero, value)
        return a.where(self.condition, *sides)


_CONVERTS = frozenset({"negative", "cast", "conjugate", "real", "imag"})
_MOVES = frozenset({"reshape", "transpose", "broadcast_to", "slice", "dynamic_slice", "gather"})
_PUTS = frozenset({"update_slice", "update_dynamic_slice", "scatter"})
_SUMS = (None, "add", "update")


def masked(a: Algebra, g: Value) -> Mask | None:
    """Take a value apart that `where` made of another and zeros, perhaps some moves or conversions ago."""
    op, inputs = g.node.op.name, g.node.inputs
    if op == "where":
        return _chosen(*inputs)
    if op in _CONVERTS:
        mask = masked(a, inputs[0])
        return mask and replace(mask, value=_again(a, g.node, mask.value))
    if op == "complex" and is_zero(inputs[0]):
        mask = masked(a, inputs[1])
        return mask and replace(mask, value=_again(a, g.node, inputs[0], mask.value))
    if op in _MOVES or (op == "pad" and is_zero(inputs[1])):
        return _moved(a, g.node, masked(a, inputs[0]))
    if op in _PUTS and is_zero(inputs[0]) and g.node.attrs.get("mode") in _SUMS:
        return _put(a, g, masked(a, inputs[1]))
    return _summed(a, g, masked(a, inputs[0])) if op == "sum" else None


def _moved(a: Algebra, node: Node, mask: Mask | None) -> Mask | None:
    if mask is None:
        return None
    condition, value = (a.to_shape(v, node.inputs[0].shape) for v in (mask.condition, mask.value))
    filler = [a.builder.constant(not mask.holds)] if node.op.name == "pad" else []
    return replace(
        mask, condition=_again(a, node, condition, *filler), value=_again(a, node, value)
    )


def _put(a: Algebra, g: Value, mask: Mask | None) -> Mask | None:
    """What is put among zeros, several perhaps into one place: all of them are zero there, or it is not masked."""
    if mask is None:
        return None
    nowhere = a.zeros(g.tensor.with_dtype(mask.condition.dtype))
    kept = a.to_shape(mask.keeps(a), g.node.inputs[1].shape)
    return Mask(_again(a, g.node, nowhere, kept), g, True)


def _summed(a: Algebra, g: Value, mask: Mask | None) -> Mask | None:
    """A sum of what is zero for certain is, too."""
    if mask is None:
        return None
    kept = a.to_shape(mask.keeps(a), g.node.inputs[0].shape)
    return Mask(a.any(kept, axes=g.node.attrs["axes"]), g, True)


def _chosen(condition: Value, yes: Value, no: Value) -> Mask | None:
    if is_zero(no):
        return Mask(condition, yes, True)
    return Mask(condition, no, False) if is_zero(yes) else None


def _again(a: Algebra, node: Node, *first: Value) -> Value:
    """Apply an op again, with other values for its first inputs."""
    return a.builder.node(node.op, (*first, *node.data_inputs[len(first) :]), node.attrs).output


def is_zero(x: Value) -> bool:
    """Tell whether a value is zeros for certain."""
    while x.node.op.name in ("full", "broadcast_to", "reshape"):
        x = x.node.inputs[0]
    return x.node.op.name == "const" and not x.node.attrs["value"].array.any()


def through(a: Algebra, g: Value, factor: Operand) -> Value:
    """Return `g * factor`; where `g` is masked, zero, even if the factor is infinite or NaN there."""
    mask = masked(a, g)
    if mask is None or not isinstance(factor, Value):
        return a.scaled(g, factor)
    inner = a.scaled(g, factor) if mask.value is g else through(a, mask.value, factor)
    return mask.put(a, inner)


def total(a: Algebra, x: Value, y: Value) -> Value:
    """Add two cotangents; where both are masked, so is the sum."""
    one, other = masked(a, x), masked(a, y)
    if one is None or other is None:
        return a.add(x, y)
    if one.condition is not other.condition or one.value is x or other.value is y:
        return Mask(a.logical_or(one.keeps(a), other.keeps(a)), x, True).put(a, a.add(x, y))
    if one.holds == other.holds:
        return one.put(a, total(a, one.value, other.value))
    sides = (one.value, other.value) if one.holds else (other.value, one.value)
    return a.where(one.condition, *sides)
