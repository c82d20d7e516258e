"""Cotangents that `where`, or a write, made zero for certain, and that stay so.

The derivative of `where(x > 0, log(x), 0)` is 0 at 0, though that of `log` is infinite there: what was not chosen has
no say. So a product of such a cotangent with a factor is masked again, `where(x > 0, g / x, 0)`, and the mask is found
through whatever only moves, converts or scales the cotangent on its way. What `r[0] = 0` overwrites has no say either: there the
cotangent is overwritten with zeros, and so is its product, which needs no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from dsl.ir.algebra import Algebra, Operand
from dsl.ir.facts import splat_of
from dsl.ir.graph import Node, Value
from dsl.ir.types import BOOL, TensorType

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


@dataclass(frozen=True)
class Erased:
    """A value that is `value` with zeros written into it by `node`."""

    node: Node
    value: Value

    def put(self, a: Algebra, value: Value) -> Value:
        """Write zeros into another value in the same places."""
        return _again(a, self.node, value, a.zeros(self._written().with_dtype(value.dtype)))

    def as_mask(self, a: Algebra) -> Mask:
        """Return the same as a mask, for where the places are named in another way."""
        others = a.spread(True, self.value.tensor.with_dtype(BOOL))
        kept = _again(a, self.node, others, a.zeros(self._written().with_dtype(BOOL)))
        return Mask(kept, self.value, True)

    def is_like(self, other: Mask | Erased | None) -> TypeGuard[Erased]:
        """Tell whether zeros were written into the same places of another."""
        return isinstance(other, Erased) and _writer(self.node) == _writer(other.node)

    def _written(self) -> TensorType:
        return self.node.inputs[1].tensor


def _writer(node: Node) -> tuple[object, ...]:
    return node.op.name, node.attrs, node.inputs[1].shape, node.inputs[2:]


_CONVERTS = frozenset({"negative", "cast", "conjugate", "real", "imag"})
_MOVES = frozenset({"reshape", "transpose", "broadcast_to", "slice", "dynamic_slice", "gather"})
_PUTS = frozenset({"update_slice", "update_dynamic_slice", "scatter"})
_WRITES = (None, "update")
_SUMS = (*_WRITES, "add")


def masked(a: Algebra, g: Value) -> Mask | Erased | None:
    """Take a value apart that `where` or a write made of another and zeros, perhaps some moves or conversions ago."""
    op, inputs = g.node.op.name, g.node.inputs
    if op in _PUTS and is_zero(inputs[1]) and g.node.attrs.get("mode") in _WRITES:
        return Erased(g.node, inputs[0])
    if op == "where":
        return _chosen(*inputs)
    if op in _CONVERTS:
        mask = masked(a, inputs[0])
        return mask and replace(mask, value=_again(a, g.node, mask.value))
    if op == "complex" and is_zero(inputs[0]):
        mask = masked(a, inputs[1])
        return mask and replace(mask, value=_again(a, g.node, inputs[0], mask.value))
    if op == "multiply" and inputs[0].shape == g.shape and _is_finite(inputs[1]):
        mask = masked(a, inputs[0])
        return mask and replace(mask, value=_again(a, g.node, mask.value))
    if op in _MOVES or (op == "pad" and is_zero(inputs[1])):
        return _moved(a, g.node, _as_mask(a, inputs[0]))
    if op in _PUTS and is_zero(inputs[0]) and g.node.attrs.get("mode") in _SUMS:
        return _put(a, g, _as_mask(a, inputs[1]))
    return _summed(a, g, _as_mask(a, inputs[0])) if op == "sum" else None


def _as_mask(a: Algebra, g: Value) -> Mask | None:
    found = masked(a, g)
    return found.as_mask(a) if isinstance(found, Erased) else found


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


def _is_finite(x: Value) -> bool:
    """Tell whether a value is a known number that makes no NaN of zero."""
    number = splat_of(x)
    return number is not None and bool(np.isfinite(number))


def through(a: Algebra, g: Value, factor: Operand) -> Value:
    """Return `g * factor`; where `g` is masked, zero, even if the factor is infinite or NaN there."""
    if not isinstance(factor, Value) or _is_finite(factor):
        return a.scaled(g, factor)
    mask = masked(a, g)
    if mask is None:
        return a.scaled(g, factor)
    inner = a.scaled(g, factor) if mask.value is g else through(a, mask.value, factor)
    return mask.put(a, inner)


def total(a: Algebra, x: Value, y: Value) -> Value:
    """Add two cotangents; where both are masked, so is the sum."""
    one, other = masked(a, x), masked(a, y)
    if isinstance(one, Erased) and one.is_like(other):
        return one.put(a, total(a, one.value, other.value))
    if not isinstance(one, Mask) or not isinstance(other, Mask):
        return a.add(x, y)
    if one.condition is not other.condition or one.value is x or other.value is y:
        return Mask(a.logical_or(one.keeps(a), other.keeps(a)), x, True).put(a, a.add(x, y))
    if one.holds == other.holds:
        return one.put(a, total(a, one.value, other.value))
    sides = (one.value, other.value) if one.holds else (other.value, one.value)
    return a.where(one.condition, *sides)
