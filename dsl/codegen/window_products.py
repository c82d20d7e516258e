"""Takes products of windows and a vector as sums in kernels, which read the windows where they lie.

A library would need an array of all windows, of nine elements for each of an image's in a convolution of three by three:

    %1 = gather(%x, %0) {axes=(0,)}     # windows             %2 = reshape(%v)
    %2 = reshape(%1)                    # one in a row   ->   %3 = multiply(%1, %2)
    %3 = matmul(%2, %v)                                       %4 = sum(%3) {axes=(2, 3)}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsl.codegen.counting import moves
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import Shape

__all__ = ["sum_products_of_windows"]

_DTYPES = (np.float32, np.float64)


class _Operand(NamedTuple):
    """An operand, how many of its last axes the product has, and which of them is summed over."""

    value: Value
    core: int
    summed: int


def sum_products_of_windows(graph: Graph) -> Graph:
    """Return the graph with kernels for products of windows and a vector."""
    return rebuild(graph, _rewritten, frozenset(("matmul",)))


def _rewritten(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name != "matmul" or node.output.dtype not in _DTYPES:
        return None
    x, y = node.data_inputs
    left = _Operand(x, min(len(x.shape), 2), -1)
    right = _Operand(y, min(len(y.shape), 2), -min(len(y.shape), 2))
    for matrix, vector in ((left, right), (right, left)):
        if _is_vector(vector) and (found := _summed(builder, node, matrix, vector)) is not None:
            return [found]
    return None


def _is_vector(operand: _Operand) -> bool:
    return operand.core == 1 or operand.value.shape[-1 if operand.summed == -2 else -2] == 1


def _summed(builder: Rewriter, node: Node, matrix: _Operand, vector: _Operand) -> Value | None:
    """Return the product as a sum over axes of the windows; None if the matrix has none, or the vector others for each."""
    windows = _windows(matrix.value)
    batch = matrix.value.shape[: -matrix.core]
    own = vector.value.shape[: -vector.core]
    if windows is None or matrix.core != 2 or own not in ((), batch):
        return None
    parts = _parts(windows.shape, matrix.value.shape)
    if parts is None:
        return None
    summed = parts[matrix.summed]
    shared = {*summed, *(k for part in parts[: len(own)] for k in part)}
    shape = tuple(dim if k in shared else 1 for k, dim in enumerate(windows.shape))
    weights = _reshaped(builder, node, vector.value, shape)
    both = builder.node("multiply", (windows, weights), {}, loc=node.loc).output
    found = builder.node("sum", (both,), {"axes": tuple(summed)}, loc=node.loc).output
    return _reshaped(builder, node, found, node.output.shape)


def _windows(value: Value) -> Value | None:
    """Return the windows that a value has one after the other, before their axes were merged; None if it has no windows."""
    found = value.node.inputs[0] if value.node.op.name == "reshape" else value
    node = found.node
    while node.op.name == "transpose":
        node = node.inputs[0].node
    return found if moves(node) and any(len(index.shape) > 1 for index in node.inputs[1:]) else None


def _parts(old: Shape, new: Shape) -> list[list[int]] | None:
    """Return for each axis after a reshape the axes that were merged into it; None if some were split."""
    parts: list[list[int]] = []
    axis = 0
    for dim in new:
        size: DimLike = 1
        part: list[int] = []
        while axis < len(old) and (size != dim or (dim == 1 and not part)):
            size = size * old[axis]
            part.append(axis)
            axis += 1
        if size != dim:
            return None
        parts.append(part)
    if any(dim != 1 for dim in old[axis:]):
        return None
    parts[-1].extend(range(axis, len(old)))
    return parts


def _reshaped(builder: Rewriter, node: Node, value: Value, shape: Sequence[DimLike]) -> Value:
    return builder.node("reshape", (value,), {"shape": tuple(shape)}, loc=node.loc).output
