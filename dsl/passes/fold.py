"""Constant folding: evaluate what depends on constants alone.

A pure node with constant inputs becomes a constant, computed by the op's own NumPy meaning. A node that raises stays,
so that the exception comes when the program runs, and only if it gets there. A result of more than 4096 elements
stays an op unless its inputs are larger still; what only spreads a few numbers (`iota`, `full`, `broadcast_to`) and
random bits stay ops above 64 elements, for they are cheaper to make than to keep.

    %0 = const() {value=2.0} : f64[]              %0 = const() {value=1.4142135623730951} : f64[]
    %1 = sqrt(%0) : f64[]                  ->     %1 = multiply(%x, %0) : f64[n]
    %2 = multiply(%x, %1) : f64[n]
"""

from __future__ import annotations

import math

from dsl.errors import InternalError
from dsl.ir.facts import constant_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import apply_node
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import TensorType, ValueType, size_of

__all__ = ["fold"]

LARGEST, LARGEST_SPREAD = 4096, 64


def fold(graph: Graph) -> Graph:
    """Return the graph with constant expressions evaluated."""
    return rebuild(graph, _fold)


def _fold(builder: Rewriter, node: Node) -> list[Value] | None:
    inputs = [constant_of(value) for value in node.inputs]
    known = [array for array in inputs if array is not None]
    if len(known) < len(inputs) or not _foldable(node, sum(array.size for array in known)):
        return None
    try:
        arrays = apply_node(node, known)
    except InternalError:
        raise
    except Exception:  # whatever it is, the program raises it itself when it gets there
        return None
    return [builder.constant(array) for array in arrays]


def _foldable(node: Node, given: int) -> bool:
    if not node.op.has(Trait.PURE) or node.regions or node.controls or node.op.name == "const":
        return False
    made = sum(map(_elements, node.types))
    spread = node.op.has(Trait.RANDOM) or node.op.name in ("iota", "full", "broadcast_to")
    return made <= LARGEST_SPREAD if spread else made <= max(LARGEST, given)


def _elements(type: ValueType) -> float:
    """Count the elements of a result; one whose size is symbolic cannot become a constant."""
    if not isinstance(type, TensorType):
        return math.inf
    size = size_of(type.shape)
    return size if isinstance(size, int) and type.is_static() else math.inf
