"""Takes reductions along the last axes and some before them as two: of rows, and of what these give.

A reduction of [n, m, k] along the first and the last axis has a number for each m, which would go through n short rows far from
each other. In the order in which the array lies, each row gives a number, and n rows of such numbers are reduced along columns.

    %0 = sum(%x) {axes=(0, 2)} : f64[m]     ->     %0 = sum(%x) {axes=(2,)} : f64[n, m]
                                                   %1 = sum(%0) {axes=(0,)} : f64[m]

Halves are left alone, whose sums are rounded once.
"""

from __future__ import annotations

from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import is_inexact, size_of

__all__ = ["reduce_rows_first"]

_OPS = frozenset(("sum", "prod", "max", "min", "any", "all"))
_SUMS = frozenset(("sum", "prod"))
_FEW = 8  # rows for a number, of which some are next to each other in any order
_SMALL = 1 << 15  # elements of an array, which is in the first or second cache


def reduce_rows_first(graph: Graph) -> Graph:
    """Return the graph with reductions in the order in which arrays lie."""
    return rebuild(graph, _rewritten, _OPS)


def _rewritten(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name not in _OPS:
        return None
    (x,), axes = node.inputs, node.attrs["axes"]
    last = _trailing(axes, len(x.shape))
    before = tuple(axis for axis in axes if axis not in last)
    if not last or not before or _is_rounded(node):
        return None
    rows = size_of(tuple(x.shape[axis] for axis in before))
    if _is_below(rows, _FEW) or _is_below(size_of(x.shape), _SMALL):
        return None
    inner = builder.node(node.op, (x,), {**node.attrs, "axes": last}, loc=node.loc).output
    return [builder.node(node.op, (inner,), {**node.attrs, "axes": before}, loc=node.loc).output]


def _is_below(size: DimLike, least: int) -> bool:
    """Tell whether a size is known to be so small that one kernel more to compile does not pay."""
    return isinstance(size, int) and size < least


def _trailing(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return those of some axes behind which there are no others."""
    found: list[int] = []
    while rank - 1 - len(found) in axes:
        found.insert(0, rank - 1 - len(found))
    return tuple(found)


def _is_rounded(node: Node) -> bool:
    dtype = node.output.dtype
    return node.op.name in _SUMS and is_inexact(dtype) and dtype.itemsize == 2
