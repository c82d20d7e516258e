"""Finds functions whose results go into sums with constants of at least 1 alone, as in `0.5 * x * (1 + np.tanh(x))`.

The result of such a sum has few digits of a small number that is added. So what is between -1 and 1 need not be exact to the last of
its own digits, if it is to the last of those of 1: that takes fewer instructions.
"""

from __future__ import annotations

from dsl.codegen.math import BESIDE_ONE
from dsl.ir.facts import splat_of
from dsl.ir.graph import Graph, Node, Value

__all__ = ["beside_one"]

_SUMS = frozenset(("add", "subtract"))


def beside_one(graph: Graph) -> frozenset[Node]:
    """Return the nodes that `BESIDE_ONE` has another function for, and of which every reader is such a sum."""
    found = {node for node in graph.nodes if _is_short(node)}
    found -= {value.node for value in graph.results}
    for reader in graph.nodes if found else ():
        found -= {v.node for v in reader.inputs if v.node in found and not _is_sum(reader, v)}
    return frozenset(found)


def _is_short(node: Node) -> bool:
    return node.op.name in BESIDE_ONE and node.output.dtype.itemsize <= 4


def _is_sum(reader: Node, value: Value) -> bool:
    """Tell whether a node adds a constant of at least 1, or is such a difference."""
    others = [v for v in reader.inputs if v is not value]
    if reader.op.name not in _SUMS or len(others) != 1:
        return False
    constant = splat_of(others[0])
    return constant is not None and bool(abs(constant) >= 1)
