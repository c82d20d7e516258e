"""Which integers of the text a Python integer of the graph may be: a constant, or what branches choose among constants."""

from __future__ import annotations

from dsl.ir import graph as ir
from dsl.ir.facts import constant_of

__all__ = ["Span", "join_spans", "span_of"]

Span = tuple[int, int]
"""The least and the greatest of the integers that are known."""

_DEPTH = 8  # of branches after one another


def span_of(value: ir.Value, depth: int = _DEPTH) -> Span | None:
    """Return the least and the greatest constant that a number may be, or None if no constant is seen."""
    constant = constant_of(value)
    if constant is not None:
        return int(constant), int(constant)
    node = value.node
    if node.op.name != "cond" or not depth:
        return None
    at = node.outputs.index(value)
    one, other = (_of_side(node, side, side.results[at], depth - 1) for side in node.regions)
    return join_spans(one, other)


def _of_side(node: ir.Node, side: ir.Graph, result: ir.Value, depth: int) -> Span | None:
    if result in side.params:
        result = node.inputs[1 + side.params.index(result)]
    return span_of(result, depth)


def join_spans(one: Span | None, other: Span | None) -> Span | None:
    """Return the span of what is in either."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
