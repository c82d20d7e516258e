"""Takes products that fill no block of a library as kernels, fused with their operands.

Libraries multiply blocks that fill registers. A product without free axes, or of a vector and a small or thin matrix,
has none; nor has a complex one of vectors that BLAS would pack as matrices. Those are sums of products, and a product
over an axis of one element is no sum at all.

    %2 = matmul(%x, %v)                     %2 = multiply(%x, %v)
                                     ->     %3 = sum(%2) {axes=(1,)}

A sum goes through its larger operand in the order in which that lies: transposes move to the other operand and the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import Shape, size_of

__all__ = ["sum_thin_products"]

_THIN = 8  # columns, at most
_LONG = 1024  # rows that are added up, at least
_SMALL = 512  # elements of a matrix of rows that are too short for a routine
_FAR = 1 << 23  # bytes of a vector that is in no cache

Labels = tuple[str, ...]
Sizes = dict[str, DimLike]


class _Operand(NamedTuple):
    """An array as it lies, a label for each of its axes, and whether it is conjugated."""

    base: Value
    labels: Labels
    conjugated: bool


def sum_thin_products(graph: Graph) -> Graph:
    """Return the graph with kernels for products that have no blocks."""
    return rebuild(graph, _rewritten, frozenset(("matmul",)))


def _rewritten(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name != "matmul":
        return None
    x, y = node.data_inputs
    left, right = _labels(x, "m", "k"), _labels(y, "k", "n")
    sizes = _sizes((x, left), (y, right))
    if sizes is None:
        return None
    operands = [_as_it_lies(x, left), _as_it_lies(y, right)]
    if sizes["k"] == 1:
        return [_outer(builder, node, operands, sizes)]
    free = [label for label in "mn" if sizes.get(label, 1) != 1]
    if len(free) == 2 or not _is_sum(builder, node.output.dtype, operands, sizes, free):
        return None
    return [_summed(builder, node, operands, sizes)]


# -- axes ---------------------------------------------------------------------------------------------------------


def _labels(value: Value, row: str, column: str) -> Labels:
    """Name the axes of an operand; batches are counted from the right."""
    core = (row, column) if len(value.shape) > 1 else ("k",)
    batch = len(value.shape) - len(core)
    return (*(str(batch - place) for place in range(batch)), *core)


def _sizes(*operands: tuple[Value, Labels]) -> Sizes | None:
    """Return the size of each label; None if some are to be compared at run time."""
    sizes: Sizes = {}
    for value, labels in operands:
        for label, dim in zip(labels, value.shape):
            known = sizes.setdefault(label, dim)
            if known != dim and (label == "k" or 1 not in (known, dim)):
                return None
            sizes[label] = dim if known == 1 else known
    return sizes


def _as_it_lies(value: Value, labels: Labels) -> _Operand:
    """Look through transposes, conjugates and axes of size 1; labels of size 1 are dropped."""
    labels = tuple(label if dim != 1 else "" for label, dim in zip(labels, value.shape))
    conjugated = False
    while (moved := _before(value.node, labels)) is not None:
        conjugated ^= value.node.op.name == "conjugate"
        value, labels = value.node.inputs[0], moved
    return _Operand(value, labels, conjugated)


def _before(node: Node, labels: Labels) -> Labels | None:
    """Return the labels of the input of a transpose, conjugate or reshape; None for others, and if axes were merged or split."""
    if node.op.name == "conjugate":
        return labels
    if node.op.name not in ("transpose", "reshape"):
        return None
    if node.op.name == "transpose":
        places = dict(zip(node.attrs["axes"], labels))
        return tuple(places[axis] for axis in range(len(labels)))
    old, new = node.inputs[0].shape, node.output.shape
    if [dim for dim in old if dim != 1] != [dim for dim in new if dim != 1]:
        return None
    kept = iter(label for label, dim in zip(labels, new) if dim != 1)
    return tuple("" if dim == 1 else next(kept) for dim in old)


def _in_order(sizes: Sizes) -> Labels:
    """Return the labels of the axes of the result that are not of size 1, in order."""
    batch = sorted((label for label in sizes if label.isdigit()), key=int, reverse=True)
    return tuple(label for label in (*batch, "m", "n") if sizes.get(label, 1) != 1)


# -- which products, and what they become ------------------------------------------------------------------------


def _is_sum(
    builder: Rewriter,
    dtype: np.dtype,
    operands: Sequence[_Operand],
    sizes: Sizes,
    free: Sequence[str],
) -> bool:
    """Tell whether a product with at most one free axis is a sum; those of halves and bools are another kind of sum."""
    if dtype.kind not in "iufc" or dtype == np.float16:
        return False
    if dtype.kind == "c":
        return True
    if not free:
        return not (_is_far(dtype, sizes) and _are_apart(builder.graph, operands))
    (label,) = free
    (matrix,) = (operand for operand in operands if label in operand.labels)
    last = [name for name in matrix.labels if name][-1]
    other = label if last == "k" else "k"
    size = size_of((sizes[label], sizes["k"]))
    if last == "k" and isinstance(size, int) and size <= _SMALL:
        return True
    if dtype.kind != "f" or last not in (label, "k") or not _is_few(sizes[last]):
        return False
    return last == "k" or _is_many(sizes[other])  # short rows, however many, gain from no routine


def _is_far(dtype: np.dtype, sizes: Sizes) -> bool:
    """Tell whether two vectors come from memory: the routine reads each from one end to the other."""
    size = sizes["k"]
    alone = not any(label.isdigit() for label in sizes)
    return alone and dtype.kind == "f" and isinstance(size, int) and size * dtype.itemsize >= _FAR


def _are_apart(graph: Graph, operands: Sequence[_Operand]) -> bool:
    """Tell whether only this product reads two arrays, which a kernel would not compute on the way."""
    x, y = (operand.base for operand in operands)
    if x is y or any(v.node.op.has(Trait.ELEMENTWISE) for v in (x, y)):
        return False
    readers = [node for node in graph.nodes if x in node.inputs or y in node.inputs]
    return len(readers) == 1


def _is_few(size: DimLike) -> bool:
    return isinstance(size, int) and 1 < size <= _THIN


def _is_many(size: DimLike) -> bool:
    return not isinstance(size, int) or size >= _LONG


def _outer(builder: Rewriter, node: Node, operands: Sequence[_Operand], sizes: Sizes) -> Value:
    order = _in_order(sizes)
    x, y = (_spread(builder, node, operand, order, sizes) for operand in operands)
    found = builder.node("multiply", (x, y), {}, loc=node.loc).output
    return _reshaped(builder, node, found, node.output.shape)


def _summed(builder: Rewriter, node: Node, operands: Sequence[_Operand], sizes: Sizes) -> Value:
    larger = max(operands, key=lambda operand: sum(map(bool, operand.labels)))
    wanted, own = _in_order(sizes), tuple(label for label in larger.labels if label)
    order = (*(label for label in wanted if label not in own), *own)
    x, y = (_spread(builder, node, operand, order, sizes) for operand in operands)
    both = builder.node("multiply", (x, y), {}, loc=node.loc).output
    axis = order.index("k")
    found = builder.node("sum", (both,), {"axes": (axis,)}, loc=node.loc).output
    kept = order[:axis] + order[axis + 1 :]
    found = _transposed(builder, node, found, tuple(kept.index(label) for label in wanted))
    return _reshaped(builder, node, found, node.output.shape)


def _spread(builder: Rewriter, node: Node, operand: _Operand, order: Labels, sizes: Sizes) -> Value:
    """Return an operand with its axes in an order, and axes of size 1 for the labels that it has not."""
    own, value = [label for label in operand.labels if label], operand.base
    if operand.conjugated:
        value = builder.node("conjugate", (value,), {}, loc=node.loc).output
    value = _reshaped(builder, node, value, tuple(sizes[label] for label in own))
    there = [label for label in order if label in own]
    value = _transposed(builder, node, value, tuple(own.index(label) for label in there))
    shape = tuple(sizes[label] if label in own else 1 for label in order)
    return _reshaped(builder, node, value, shape)


def _reshaped(builder: Rewriter, node: Node, value: Value, shape: Shape) -> Value:
    if value.shape == shape:
        return value
    return builder.node("reshape", (value,), {"shape": shape}, loc=node.loc).output


def _transposed(builder: Rewriter, node: Node, value: Value, axes: tuple[int, ...]) -> Value:
    if axes == tuple(range(len(axes))):
        return value
    return builder.node("transpose", (value,), {"axes": axes}, loc=node.loc).output
