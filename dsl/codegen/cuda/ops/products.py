"""What a product of two stacks of matrices is: its sizes, its factors, and how its terms are summed.

A factor may be an array with its axes in another order, which is not copied (`Lowering.turned`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import Array, Scalar
from dsl.codegen.cuda.ops.lines import offset, stack_axes
from dsl.codegen.cuda.source import Source
from dsl.codegen.elementwise.casts import is_half
from dsl.codegen.llvm import Function, Operand, Value
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import BY_NAME, is_float, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = [
    "Factor",
    "Sizes",
    "axes_of",
    "divided",
    "factors_of",
    "multiply_add",
    "sizes_of",
    "work_dtype",
]

F32, I32 = BY_NAME["f32"], BY_NAME["i32"]


@dataclass(frozen=True)
class Sizes:
    """`[m, k] @ [k, n]`, `batch` times: sizes as the graph has them."""

    batch: tuple[DimLike, ...]
    m: DimLike
    n: DimLike
    k: DimLike

    @property
    def count(self) -> DimLike:
        return size_of(self.batch) * self.m * self.n


def sizes_of(node: ir.Node) -> Sizes:
    x, y = (v.shape for v in node.data_inputs)
    core = (len(x) > 1) + (len(y) > 1)
    out = node.outputs[0].shape
    return Sizes(
        out[: len(out) - core], x[-2] if len(x) > 1 else 1, y[-1] if len(y) > 1 else 1, x[-1]
    )


def work_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which products are summed."""
    if is_half(dtype):
        return F32
    return I32 if dtype.kind in "biu" and dtype.itemsize < 4 else dtype


def multiply_add(fn: Function, dtype: np.dtype, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    if isinstance(a, tuple) and isinstance(b, tuple) and isinstance(c, tuple):
        real = fn.fma(fn.fneg(a[1]), b[1], fn.fma(a[0], b[0], c[0]))
        return real, fn.fma(a[1], b[0], fn.fma(a[0], b[1], c[1]))
    assert isinstance(a, Value)
    assert isinstance(b, Value)
    assert isinstance(c, Value)
    if is_float(dtype):
        return fn.fma(a, b, c)
    return fn.binary("add", c, fn.binary("mul", a, b))


# -- factors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """One factor: its rows (columns, for the right one) and their points along the sums, with strides in elements."""

    array: Array
    batch: list[tuple[Operand, Operand]]
    across: Operand
    along: Operand
    packed: bool  # whether it is in C order, if with other axes

    def start(self, source: Source, number: Operand) -> Operand:
        """Return where a matrix of the stack begins."""
        return offset(source, self.batch, number)


def axes_of(lowering: Lowering, value: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """Return the array that a factor is, and in which order its axes are."""
    return lowering.turned.get(value, (value, tuple(range(len(value.shape)))))


def factors_of(
    lowering: Lowering, source: Source, node: ir.Node, sizes: Sizes
) -> tuple[Factor, Factor]:
    """Return the factors as a kernel sees them."""
    x, y = node.data_inputs
    (a, b), core = (_array(lowering, source, v) for v in (x, y)), len(y.shape) > 1
    packed = [not source.layouts.strided(axes_of(lowering, v)[0]) for v in (x, y)]
    left = a.strides[-2] if len(x.shape) > 1 else 0
    right = (b.strides[-1], b.strides[-2]) if core else (0, b.strides[-1])
    return (
        Factor(a, stack_axes(source, sizes.batch, x, a, 2), left, a.strides[-1], packed[0]),
        Factor(b, stack_axes(source, sizes.batch, y, b, 2), *right, packed[1]),
    )


def _array(lowering: Lowering, source: Source, value: ir.Value) -> Array:
    base, axes = axes_of(lowering, value)
    found = source.array(base)
    dims, strides = (tuple(part[k] for k in axes) for part in (found.dims, found.strides))
    return Array(found.dtype, found.pointer, dims, strides)


def divided(source: Source, number: Operand, size: DimLike) -> tuple[Operand, Operand]:
    """Return the rest and the quotient of a number by a size."""
    fn = source.fn
    if isinstance(size, int) and size == 1:
        return 0, number
    dim = source.dim(size)
    return fn.binary("urem", number, dim), fn.binary("udiv", number, dim)
