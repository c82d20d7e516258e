"""Find what first made a NaN, by running a graph in the interpreter and going back from a result that is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import apply_node, interpret

__all__ = ["find_nan", "has_nan"]


def has_nan(array: Any) -> bool:
    """Tell whether an array of floats or complex numbers holds a NaN."""
    found = np.asarray(array)
    if found.dtype.kind in "fc":
        return bool(np.isnan(found).any())
    return found.dtype.name == "bfloat16" and bool(np.isnan(found.astype(np.float32)).any())


def find_nan(graph: Graph, args: Sequence[Any]) -> Node | None:
    """Return the node, perhaps deep in a loop, that made the NaN in a result of NaN-free inputs; None if it came in with `args`."""
    values: dict[Value, Any] = dict(zip(graph.params, map(np.asarray, args), strict=True))
    for node in graph.nodes:
        values.update(
            zip(node.outputs, apply_node(node, [values[v] for v in node.inputs]), strict=True)
        )
    start = next((value for value in graph.results if has_nan(values[value])), None)
    return None if start is None else _maker(start, values)


def _maker(value: Value, values: dict[Value, Any]) -> Node | None:
    """Go back as long as an input is NaN already."""
    while True:
        node = value.node
        if node.op.name == "param":
            return None
        before = next((v for v in node.inputs if has_nan(values[v])), None)
        if before is None:
            inputs = [values[v] for v in node.inputs]
            return (
                (_INSIDE[node.op.name](node, inputs) or node) if node.op.name in _INSIDE else node
            )
        value = before


def _in_branch(node: Node, inputs: list[Any]) -> Node | None:
    return find_nan(node.regions[0 if bool(inputs[0]) else 1], inputs[1:])


def _in_while(node: Node, inputs: list[Any]) -> Node | None:
    test, body = node.regions
    count = node.attrs["carried"]
    carried, shared = inputs[:count], inputs[count:]
    while bool(interpret(test, carried + shared)[0]):
        after = interpret(body, carried + shared)
        if any(map(has_nan, after)):
            return find_nan(body, carried + shared)
        carried = after[:count]
    return None


def _in_scan(node: Node, inputs: list[Any]) -> Node | None:
    (body,), count = node.regions, node.attrs["carried"]
    carried, shared = inputs[1 : 1 + count], inputs[1 + count :]
    for trip in range(int(inputs[0])):
        given = [np.int64(trip), *carried, *shared]
        after = interpret(body, given)
        if any(map(has_nan, after)):
            return find_nan(body, given)
        carried = after[:count]
    return None


_INSIDE = {"cond": _in_branch, "while": _in_while, "scan": _in_scan}
