"""Matrices in formulas: their parts, products and quotients. Batches are in front."""

from __future__ import annotations

from functools import reduce

import numpy as np

from dsl.errors import GradientError
from dsl.ir.algebra import Algebra, Operand
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, is_complex

__all__ = [
    "Maybe",
    "as_column",
    "as_row",
    "block_of",
    "diagonal",
    "diagonal_matrix",
    "h",
    "half",
    "hermitian",
    "identity",
    "imaginary",
    "is_diagonal",
    "is_none",
    "like",
    "lower_part",
    "over_gaps",
    "pairs",
    "phases",
    "product",
    "quotient",
    "refusal",
    "row_and_column",
    "row_sum",
    "scaled",
    "total",
    "upper_part",
    "where",
]

A = Algebra
Maybe = Value | None


def product(a: A, *factors: Value) -> Value:
    return reduce(a.matmul, factors)


def h(a: A, x: Value) -> Value:
    return a.conjugated(a.adjoint(x))


def total(a: A, *terms: Maybe) -> Value:
    return reduce(a.add, (term for term in terms if term is not None))


def hermitian(a: A, x: Value) -> Value:
    """The mean of x and x^H."""
    return a.multiply(a.add(x, h(a, x)), 0.5)


def imaginary(a: A, x: Value) -> Value:
    """What is left of complex numbers without their real part."""
    return a.multiply(a.subtract(x, a.conjugate(x)), 0.5)


def where(a: A, condition: Value, x: Operand, y: Operand, dtype: np.dtype) -> Value:
    sides = (v if isinstance(v, Value) else a.builder.constant(v, dtype) for v in (x, y))
    return a.where(condition, *sides)


def row_and_column(a: A, x: Value) -> tuple[Value, Value]:
    """The number of its row, and of its column, for each element of a matrix."""
    rows, columns = (a.iota(size=dim, dtype=I64) for dim in x.shape[-2:])
    return pairs(a, rows, columns)


def pairs(a: A, v: Value, w: Value) -> tuple[Value, Value]:
    """v[i] and w[j], for each i and j."""
    shape = (*v.shape, w.shape[-1])
    return a.to_shape(as_column(a, v), shape), a.to_shape(as_row(a, w), shape)


def is_diagonal(a: A, x: Value) -> Value:
    return a.equal(*row_and_column(a, x))


def identity(a: A, x: Value) -> Value:
    return where(a, is_diagonal(a, x), 1, 0, x.dtype)


def lower_part(a: A, x: Value) -> Value:
    """The part below the diagonal."""
    return where(a, a.greater(*row_and_column(a, x)), x, 0, x.dtype)


def upper_part(a: A, x: Value) -> Value:
    """The part on and above the diagonal."""
    return where(a, a.less_equal(*row_and_column(a, x)), x, 0, x.dtype)


def half(a: A, x: Value) -> Value:
    """The part below the diagonal, and half of that."""
    on_it = where(a, is_diagonal(a, x), a.multiply(x, 0.5), 0, x.dtype)
    return a.add(lower_part(a, x), on_it)


def diagonal(a: A, x: Value) -> Value:
    found = where(a, is_diagonal(a, x), x, 0, x.dtype)
    return a.sum(found, axes=(len(x.shape) - 1,))


def diagonal_matrix(a: A, v: Value, dtype: np.dtype) -> Value:
    row = as_row(a, a.as_dtype(v, dtype))
    full = a.to_shape(row, (*v.shape, v.shape[-1]))
    return where(a, is_diagonal(a, full), full, 0, dtype)


def as_row(a: A, v: Value) -> Value:
    return a.expanded(v, (len(v.shape) - 1,))


def as_column(a: A, v: Value) -> Value:
    return a.expanded(v, (len(v.shape),))


def scaled(a: A, x: Value, factor: Value) -> Value:
    """Scale the columns by a row, or the rows by a column, of real numbers."""
    return a.multiply(x, a.as_dtype(factor, x.dtype))


def quotient(a: A, x: Value, y: Value) -> Value:
    """x / y, and 0 of two zeros: what is not asked for is not infinite."""
    below = a.to_shape(a.as_dtype(y, x.dtype), x.shape)
    nothing = a.logical_and(a.equal(x, 0), a.equal(below, 0))
    ratio = a.divide(x, where(a, nothing, 1, below, x.dtype))
    return where(a, nothing, 0, ratio, x.dtype)


def over_gaps(a: A, x: Value, w: Value, *, squares: bool = False) -> Value:
    """x[i, j] / (w[j] - w[i]), or of their `squares`, and 0 on the diagonal."""
    off = where(a, is_diagonal(a, x), 0, x, x.dtype)
    one, other = pairs(a, w, w)
    gaps = a.subtract(other, one)
    return quotient(a, off, a.multiply(gaps, a.add(other, one)) if squares else gaps)


def block_of(a: A, x: Value, top: DimLike, left: DimLike, rows: DimLike, columns: DimLike) -> Value:
    batch = x.shape[:-2]
    start = (*(0 for _ in batch), top, left)
    return a.slice(x, start=start, size=(*batch, rows, columns), step=(1,) * len(x.shape))


def is_none(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim == 0


def like(a: A, g: Value, x: Value) -> Value:
    """A cotangent of x: of a real matrix, the real part."""
    return g if is_complex(x.dtype) or not is_complex(g.dtype) else a.real(g)


def refusal(node: Node, reason: str, remedy: str) -> GradientError:
    message = f"`{node.op.name}` cannot be differentiated: {reason}"
    return GradientError(message, location=node.loc, remedy=remedy)


def row_sum(a: A, x: Value) -> Value:
    axis = len(x.shape) - 1
    return a.expanded(a.sum(x, axes=(axis,)), (axis,))


def phases(a: A, c: Value) -> Value:
    return where(a, is_diagonal(a, c), imaginary(a, c), 0, c.dtype)
