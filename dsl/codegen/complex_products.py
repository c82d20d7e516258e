"""Takes products of large complex matrices as four of real ones, which have the same bits for any number of threads.

OpenBLAS cuts a complex product up in one way for one thread and in another for several, and its last bits differ.

    %2 = matmul(%x, %y) : c128[m, n]     ->     %2 = subtract(matmul(real(%x), real(%y)), matmul(imag(%x), imag(%y)))
                                                %3 = add(matmul(real(%x), imag(%y)), matmul(imag(%x), real(%y)))
                                                %4 = complex(%2, %3)

Small ones take one thread, and go to BLAS whole.
"""

from __future__ import annotations

from functools import partial

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import size_of

__all__ = ["multiply_parts"]

_SMALL = 32**3  # multiplications for which OpenBLAS surely takes one thread


def multiply_parts(graph: Graph) -> Graph:
    """Return the graph without products of large complex matrices."""
    return rebuild(graph, _rewritten, frozenset(("matmul",)))


def _rewritten(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name != "matmul" or node.output.dtype.kind != "c" or _is_small(node):
        return None
    make = partial(_made, builder, node)
    (a, b), (c, d) = ([make(part, x) for part in ("real", "imag")] for x in node.data_inputs)
    real = make("subtract", make("matmul", a, c), make("matmul", b, d))
    imag = make("add", make("matmul", a, d), make("matmul", b, c))
    return [make("complex", real, imag)]


def _made(builder: Rewriter, node: Node, name: str, *inputs: Value) -> Value:
    attrs = node.attrs if name == "matmul" else {}
    return builder.node(name, inputs, attrs, loc=node.loc).output


def _is_small(node: Node) -> bool:
    x, y = node.data_inputs
    rows = size_of((*x.shape[-2:], *y.shape[-1:]))
    return isinstance(rows, int) and rows <= _SMALL
