"""Derivatives of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import derive, linear
from dsl.ir.graph import Node, Value

A = Algebra


def _matmul(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """dx = g @ y^T, dy = x^T @ g; a vector stands for a matrix of one row or column; batches that were repeated are summed."""
    (x, y), (g,) = node.inputs, gs
    row, column = len(x.shape) == 1, len(y.shape) == 1
    left = a.expanded(x, (0,)) if row else x
    right = a.expanded(y, (1,)) if column else y
    rank = len(g.shape) + row + column
    places = ([rank - 2] if row else []) + ([rank - 1] if column else [])
    full = a.expanded(g, places) if places else g
    dx = a.unbroadcast(a.matmul(full, a.adjoint(right)), left.shape)
    dy = a.unbroadcast(a.matmul(a.adjoint(left), full), right.shape)
    return [a.reshaped(dx, x.shape), a.reshaped(dy, y.shape)]


derive("matmul", linear(_matmul, 0, 1, each=True))
