"""Finds branches that take the same side in all trips of an innermost loop, for which LLVM can make a loop of each side.

for j in range(m):
    if i == 0:              # as in the first row of a table
        d[i, j] = ...
    else:
        d[i, j] = ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsl.ir import graph as ir
from dsl.ir.facts import is_array
from dsl.ir.registry import Trait

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Loop

__all__ = ["takes_one_side"]


def takes_one_side(loop: Loop) -> bool:
    """Tell whether an innermost loop has a branch that is decided before it starts."""
    body = loop.body
    if any(node.op.name in ("while", "scan") for node in body.walk()):
        return False
    return _has_steady(body, body.params[loop.skip + len(loop.carried) :])


def _has_steady(graph: ir.Graph, given: Iterable[ir.Value]) -> bool:
    """Tell whether a branch asks for what is computed from some of a graph's params alone."""
    steady = set(given)
    for node in graph.nodes:
        if node.op.name == "cond":
            if node.inputs[0] in steady or any(_has_steady(*s) for s in _sides(node, steady)):
                return True
        elif node.op.has(Trait.ELEMENTWISE) or node.op.name == "const":
            found = steady.issuperset(node.inputs) and not any(map(is_array, node.outputs))
            steady.update(node.outputs if found else ())
    return False


def _sides(node: ir.Node, steady: set[ir.Value]) -> Iterable[tuple[ir.Graph, list[ir.Value]]]:
    """Return the sides of a branch, and which of their params stand for what is steady."""
    for side in node.regions:
        given = zip(side.params, node.inputs[1:], strict=True)
        yield side, [param for param, value in given if value in steady]
