"""How much arithmetic a graph is, as it is written: one operation for each element that an op makes or a reduction takes."""

from __future__ import annotations

from collections import Counter

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType, is_float, size_of

__all__ = ["count_flops"]

_MOVES = {"where", "cast", "bitcast", "positive", "real", "imag", "complex"}
_REDUCTIONS = {"sum", "prod", "max", "min", "cumsum", "cumprod", "cummax", "cummin"}


def count_flops(graph: Graph, trips: int = 1) -> Counter[str]:
    """Return operations on floats by dtype; `trips` is how often loops turn where the graph does not tell.

    `exp` counts as one, a fused multiply and add as two. Of the sides of a branch all are counted.
    """
    found: Counter[str] = Counter()
    for node in graph.nodes:
        times = _times(node, trips)
        for region in node.regions:
            inner = count_flops(region, trips)
            found.update({name: times * count for name, count in inner.items()})
        name, count = _of_node(node)
        if count:
            found[name] += count
    return found


def _of_node(node: Node) -> tuple[str, int]:
    if not node.outputs or not isinstance(node.outputs[0].type, TensorType):
        return "", 0
    value = node.outputs[0]
    if not is_float(value.dtype):
        return "", 0
    return value.dtype.name, _count(node, _elements(value))


def _count(node: Node, made: int) -> int:
    name = node.op.name
    if name == "matmul":
        inner = node.inputs[0].shape[-1]
        return 2 * made * inner if isinstance(inner, int) else 0
    if name in _REDUCTIONS:
        return _elements(node.inputs[0])
    return made if node.op.has(Trait.ELEMENTWISE) and name not in _MOVES else 0


def _elements(value: Value) -> int:
    size = size_of(value.shape)
    return size if isinstance(size, int) else 0


def _times(node: Node, trips: int) -> int:
    """How often the regions of a node run."""
    if node.op.name == "scan" and node.inputs[0].node.op.name == "const":
        return int(node.inputs[0].node.attrs["value"].array)
    return trips if node.op.name in ("scan", "while") else 1
