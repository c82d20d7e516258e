"""How much work a node is, beside what a loop around it does in each trip."""

from __future__ import annotations

import math

from dsl.codegen.control.brief import goes_through_bits
from dsl.ir import graph as ir
from dsl.ir.facts import constant_of, is_array
from dsl.ir.registry import Trait
from dsl.ir.types import size_of

__all__ = ["is_loop", "is_short", "weight"]

_FEW = 64  # trips of a loop that no loop around it counts
_SMALL = 64  # elements of an array that take no longer than looking at the clock
_UPDATES = frozenset(("update_slice", "update_dynamic_slice"))
_LIGHT = frozenset(("const", "gather", "scatter", "dim_size"))


def weight(node: ir.Node) -> int:
    """0 for scalar code, branches and views, 1 for loops and small arrays, 2 for what goes through others."""
    if is_loop(node):
        return 1
    if node.regions or node.op.name in _LIGHT or node.op.has(Trait.VIEW):
        return 0
    touched = node.inputs[1:] if node.op.name in _UPDATES else (*node.inputs, *node.outputs)
    arrays = [v for v in touched if is_array(v)]
    if all(size_of(v.shape) == 1 for v in arrays):
        return 0
    return 1 if all(map(_is_small, arrays)) else 2


def is_loop(node: ir.Node) -> bool:
    """Tell whether a node is a loop that may make many trips."""
    return node.op.name in ("while", "scan") and not goes_through_bits(node) and not is_short(node)


def is_short(node: ir.Node) -> bool:
    """Tell whether a counted loop and those in it surely make few trips together, as over the neighbours of a point."""
    return node.op.name == "scan" and _trips(node) <= _FEW


def _trips(node: ir.Node) -> float:
    """Return how many trips the loops of a node make at most, infinitely many if that is not known."""
    if not node.regions:
        return 0
    inside = [sum(map(_trips, graph.nodes)) for graph in node.regions]
    if node.op.name == "cond":
        return max(inside)
    trips = constant_of(node.inputs[0]) if node.op.name == "scan" else None
    return math.inf if trips is None else int(trips) * (1 + inside[0])


def _is_small(value: ir.Value) -> bool:
    size = size_of(value.shape)
    return isinstance(size, int) and size <= _SMALL
