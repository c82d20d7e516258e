"""Takes products of a vector and a matrix of a few columns as sums of products, which kernels make, fused with their operands.

Libraries multiply blocks that fill registers, and a row of three elements fills none. As sums, `x @ v` goes through the rows of
x side by side, and `x.T @ r` adds up rows in chunks that threads share.

    %2 = matmul(%x, %v)                     %2 = multiply(%x, %v)
                                     ->     %3 = sum(%2) {axes=(1,)}
"""

from __future__ import annotations

from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["sum_thin_products"]

_THIN = 8  # columns, at most
_LONG = 1024  # rows, at least


def sum_thin_products(graph: Graph) -> Graph:
    """Return the graph with sums for products of thin matrices and vectors."""
    return rebuild(graph, _rewritten)


def _rewritten(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name != "matmul" or node.output.dtype.str not in ("<f4", "<f8"):
        return None
    x, y = node.data_inputs
    if len(x.shape) > 2 or len(y.shape) > 2 or x.shape[-1] != y.shape[0]:
        return None
    if y.shape[1:] in ((), (1,)) and len(x.shape) == 2:
        found = _product(builder, node, x, _flat(builder, node, y))
    elif len(x.shape) == 1 and len(y.shape) == 2:
        found = _product(builder, node, _transposed(builder, node, y), x)
    else:
        return None
    if found is None:
        return None
    return [builder.node("reshape", (found,), {"shape": node.output.shape}, loc=node.loc).output]


def _product(builder: Rewriter, node: Node, x: Value, v: Value) -> Value | None:
    """Return x @ v, if x or its transpose is thin."""
    rows, columns = x.shape
    inner = x.node.inputs[0] if x.node.op.name == "transpose" else None
    if inner is None and _is_thin(rows, columns):
        both = builder.node("multiply", (x, v), {}, loc=node.loc).output
        return builder.node("sum", (both,), {"axes": (1,)}, loc=node.loc).output
    if inner is not None and (_is_thin(columns, rows) or _is_thin(rows, columns)):
        column = builder.node("reshape", (v,), {"shape": (columns, 1)}, loc=node.loc).output
        both = builder.node("multiply", (inner, column), {}, loc=node.loc).output
        return builder.node("sum", (both,), {"axes": (0,)}, loc=node.loc).output
    return None


def _is_thin(long: DimLike, short: DimLike) -> bool:
    few = isinstance(short, int) and 1 < short <= _THIN
    return few and (not isinstance(long, int) or long >= _LONG)


def _flat(builder: Rewriter, node: Node, y: Value) -> Value:
    if len(y.shape) == 1:
        return y
    return builder.node("reshape", (y,), {"shape": y.shape[:1]}, loc=node.loc).output


def _transposed(builder: Rewriter, node: Node, y: Value) -> Value:
    if y.node.op.name == "transpose":
        return y.node.inputs[0]
    return builder.node("transpose", (y,), {"axes": (1, 0)}, loc=node.loc).output
