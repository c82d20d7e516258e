"""Finds the flags that end a loop: a `break` or `return` sets one, and the loop's test is false from then on.

Where a trip ends with such a flag set, the test need not be made. That is more than a test saved: LLVM then sees that in each
trip the flag is not set, and what a trip computes need not wait for whether it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.codegen.control.carried import Carried
from dsl.ir import graph as ir
from dsl.ir.facts import has_effect, is_array, is_total

__all__ = ["endings"]


def endings(carried: Sequence[Carried], test: ir.Graph) -> list[Carried]:
    """Return the carried flags that end a loop when they are set, whatever else its test would do."""
    return [
        item
        for item, flag in zip(carried, test.params)
        if not is_array(flag)
        and flag.dtype.kind == "b"
        and item.result is not item.param
        and _refutes(test.results[0], flag)
        and all(_is_idle(node, flag) for node in test.nodes)
    ]


def _refutes(value: ir.Value, flag: ir.Value) -> bool:
    """Tell whether a condition is false if a flag is set."""
    node = value.node
    if node.op.name == "logical_not":
        return node.inputs[0] is flag
    if node.op.name == "logical_and":
        return any(_refutes(operand, flag) for operand in node.inputs)
    if node.op.name != "cond" or not _refutes(node.inputs[0], flag):
        return False
    other = node.regions[1]
    found = other.results[node.outputs.index(value)]
    if found in other.params:
        return _refutes(node.inputs[1 + other.params.index(found)], flag)
    return found.node.op.name == "const" and not found.node.attrs["value"].array


def _is_idle(node: ir.Node, flag: ir.Value) -> bool:
    """Tell whether a node neither fails nor does anything if a flag is set."""
    if node.op.name == "cond":
        skips = _refutes(node.inputs[0], flag)
        return skips and all(inner.op.name == "const" for inner in node.regions[1].nodes)
    return is_total(node) and not has_effect(node)
