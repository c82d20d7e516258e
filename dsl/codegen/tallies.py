"""Tells whether the trips of a loop that carries numbers can be made many at once, and puts choices into the form in which they can.

That is so where a number is a tally, to which each trip adds something (or takes the larger, ...) and which nothing else asks for, or
comes of the trip before in other ways than of itself:

    for i in range(n):
        space = text[i] == 32
        if not space and not inside:     # inside: of the trip before, but no more than that
            words += 1                   # words: a tally
        inside = not space
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dsl.ir.build import Builder
from dsl.ir.facts import constant_of, depends
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["chosen", "has_no_chain", "with_switches"]

_TALLIES = frozenset((
    "add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum",
))  # fmt: skip


def has_no_chain(body: Graph, carried: int) -> bool:
    """Tell whether no number that a counted loop carries comes of itself, but for tallies of integers."""
    params = body.params[1 : 1 + carried]
    waits = {
        k: {j for j, param in enumerate(params) if depends(result, param)}
        for k, result in enumerate(body.results)
        if not _is_tally(body, params[k], result)
    }
    while ready := [k for k, others in waits.items() if others.isdisjoint(waits)]:
        for k in ready:
            del waits[k]
    return not waits


def _is_tally(body: Graph, param: Value, result: Value) -> bool:
    """Tell whether each trip adds something to a whole number, and nothing else reads it."""
    node = result.node
    if result.dtype.kind not in "iub" or node.op.name not in _TALLIES:
        return False
    if node.op.name == "subtract" and node.inputs[0] is not param:
        return False
    others = [v for v in node.inputs if v is not param]
    readers = [other for other in body.nodes if param in other.inputs]
    once = readers == [node] and param not in body.results and len(others) == 1
    return once and not any(result in other.inputs for other in body.nodes)


def chosen(builder: Builder, predicate: Value, one: Value, other: Value) -> Value:
    """Return a choice between numbers, without one where that can be."""
    if _is_same(one, other):
        return one
    test = predicate.node
    if _is_whole(one) and test.op.name in _SIDES and {*test.inputs} == {one, other}:
        return (one, other)[_SIDES[test.op.name]]  # if they are equal, either will do
    return _added(builder, predicate, one, other) or builder.emit("where", predicate, one, other)


_SIDES = {"equal": 1, "not_equal": 0}
"""Which side of a choice by a comparison is that for numbers that differ."""


def _added(builder: Builder, predicate: Value, one: Value, other: Value) -> Value | None:
    """Return a choice between sums of whole numbers that have a term in common: `n + (1 if p else 0)` for `n + 1 if p else n`."""
    if not _is_whole(one):
        return None
    for term, rest in _sums(builder, one):
        for common, least in _sums(builder, other):
            if term is common and (rest or least):
                nothing = builder.constant(0, one.dtype)
                more = builder.emit("where", predicate, rest or nothing, least or nothing)
                return builder.emit("add", term, more)
    return None


def _sums(builder: Builder, value: Value) -> Sequence[tuple[Value, Value | None]]:
    """Return a number as sums of two: a term and the rest, if there is one."""
    found: list[tuple[Value, Value | None]] = [(value, None)]
    if value.node.op.name == "add":
        a, b = value.node.inputs
        found += [(a, b), (b, a)]
    if value.node.op.name == "subtract":
        a, b = value.node.inputs
        found.append((a, builder.emit("negative", b)))
    return found


# --- Switches ------------------------------------------------------------------------------------


def with_switches(body: Graph, starts: Sequence[Value]) -> Graph:
    """Return a loop's body that knows of whole numbers with two states that they are in one if not in the other.

    So `inside = 1 if inside == 0 else inside` is 1, if nothing else than 0 and 1 ever is.
    """
    states = {}
    for param, start, result in zip(body.params[1:], starts, body.results):
        found = [*_leaves(result, param), constant_of(start)]
        known = {int(leaf) for leaf in found if leaf is not None} if _is_whole(param) else set()
        if len(known) == 2 and all(leaf is not None for leaf in found):
            states[param] = known

    def rewrite(builder: Rewriter, node: Node) -> list[Value] | None:
        if node.op.name != "where":
            return None
        predicate, *sides = node.inputs
        test, other = predicate.node, _SIDES.get(predicate.node.op.name)
        param = next((v for v in test.inputs if v in states), None)
        asked = [constant_of(v) for v in test.inputs if v is not param]
        if other is None or param is None or sides[other] is not param or asked[0] is None:
            return None
        rest = states[param] - {int(asked[0])}
        if len(rest) != 1:
            return None
        sides[other] = builder.constant(rest.pop(), param.dtype)
        return [chosen(builder, predicate, *sides)]

    return rebuild(body, rewrite) if states else body


def _is_whole(value: Value) -> bool:
    return not value.shape and value.dtype.kind in "iu"


def _leaves(value: Value, param: Value) -> Iterator[np.ndarray | None]:
    """Yield what choices of a number are between, but for the param itself: constants, or None."""
    if value.node.op.name == "where":
        for side in value.node.inputs[1:]:
            yield from _leaves(side, param)
    elif value is not param:
        yield constant_of(value)


def _is_same(one: Value, other: Value) -> bool:
    """Tell whether two values are one, or equal constants."""
    a, b = constant_of(one), constant_of(other)
    if a is None or b is None:
        return one is other
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()
