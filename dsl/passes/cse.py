"""Common subexpression elimination: compute equal things once.

Two nodes are equal when op, inputs, attributes, controls and types are; the inputs of ops that commute exactly are
compared unordered, and structured nodes also compare their regions. Only pure nodes merge: an effect happens as often
as the program says. Random ops are pure functions of their keys and so merge; the flat control ops do not, for their
tokens belong to one frame. The first of equal nodes stays, with its source location.

    %0 = multiply(%x, %y) : f64[n]               %0 = multiply(%x, %y) : f64[n]
    %1 = multiply(%y, %x) : f64[n]        ->     %1 = add(%0, %0) : f64[n]
    %2 = add(%0, %1) : f64[n]
"""

from __future__ import annotations

from typing import Any

from dsl.ir.facts import commutes, has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["cse"]


def cse(graph: Graph) -> Graph:
    """Return the graph with equal pure nodes merged, in each region for itself."""
    return rebuild(graph, _merge)


def _merge(builder: Rewriter, node: Node) -> tuple[Value, ...] | None:
    if not node.op.has(Trait.PURE) or has_effect(node):
        return None
    alike = builder.memo.setdefault(_key(node), [])
    # Regions are compared only here, among nodes that agree in all else: their text is long.
    for other in alike:
        if other.regions == node.regions:
            return None if other is node else other.outputs
    alike.append(node)
    return None


def _key(node: Node) -> Any:
    inputs = node.inputs
    if commutes(node):
        inputs = (*sorted(inputs[:2], key=id), *inputs[2:])
    attrs = tuple((name, _exact(node.attrs[name])) for name in sorted(node.attrs))
    return (node.op.name, inputs, attrs, node.types, node.controls, node.dims)


def _exact(attr: Any) -> Any:
    """Tell 1 from True and 1.0, and 0.0 from -0.0, which compare equal."""
    if isinstance(attr, tuple):
        return tuple(map(_exact, attr))
    return (type(attr), repr(attr) if isinstance(attr, float) else attr)
