"""Derivatives of eigenvalues and eigenvectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Derivative, derive
from dsl.ir.derivatives.linalg.matrices import (
    Maybe,
    as_column,
    as_row,
    diagonal,
    diagonal_matrix,
    h,
    hermitian,
    is_diagonal,
    like,
    over_gaps,
    pairs,
    product,
    row_and_column,
    row_sum,
    total,
    where,
)
from dsl.ir.graph import Node, Value

A = Algebra


def _eigh_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    """Of c = v^H s v, with s the Hermitian part of dx: dw = diagonal of c, dv = v (c[i, j] / (w[j] - w[i]))."""
    (w, v), (gw, gv) = node.outputs, gs
    on_it = None if gw is None else diagonal_matrix(a, gw, v.dtype)
    off_it = None if gv is None else over_gaps(a, a.matmul(a.adjoint(v), gv), w)
    return [hermitian(a, product(a, a.conjugated(v), total(a, on_it, off_it), a.adjoint(v)))]


def _eigh_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    w, v = node.outputs
    c = product(a, h(a, v), hermitian(a, ts[0]), v)
    return [a.as_dtype(diagonal(a, c), w.dtype), a.matmul(v, over_gaps(a, c, w))]


def _eigvalsh_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    whole = a.several("eigh", *node.inputs, **node.attrs)[0].node
    return _eigh_vjp(a, whole, [gs[0], None])


def _eigvalsh_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    whole = a.several("eigh", *node.inputs, **node.attrs)[0].node
    return _eigh_jvp(a, whole, ts)[:1]


def _eig_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    """Of c = v^-1 dx v: dw = diagonal of c; dv = v e without its part along v, e = c[i, j] / (w[j] - w[i])."""
    (x,), (w, v), (gw, gv) = node.inputs, node.outputs, gs
    on_it = None if gw is None else diagonal_matrix(a, gw, v.dtype)
    off_it = None
    if gv is not None:
        ge = a.matmul(a.adjoint(v), gv)
        overlap = a.matmul(a.adjoint(v), a.conjugate(v))
        ge = a.subtract(ge, a.multiply(overlap, as_row(a, diagonal(a, ge))))
        off_it = over_gaps(a, ge, w)
    right = a.matmul(total(a, on_it, off_it), a.adjoint(v))
    return [like(a, a.solve(a.adjoint(v), right), x)]


def _eig_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    w, v = node.outputs
    c = a.solve(v, a.matmul(a.as_dtype(ts[0], v.dtype), v))
    dv = a.matmul(v, over_gaps(a, c, w))
    along = diagonal(a, a.matmul(h(a, v), dv))
    return [diagonal(a, c), a.subtract(dv, a.multiply(v, as_row(a, along)))]


def _matches(a: A, w: Value, found: Value) -> Value:
    """1 where eigenvalue i of `w` is eigenvalue j of `found`, which may be in another order, else 0.

    LAPACK orders large spectra otherwise when it is asked for the vectors too. The same place is preferred, so that equal
    eigenvalues keep apart.
    """
    far = a.absolute(a.subtract(*pairs(a, w, found)))
    slack = a.multiply(row_sum(a, a.absolute(w)), float(np.sqrt(np.finfo(w.dtype).eps)))
    near = a.where(is_diagonal(a, far), far, a.add(far, a.to_shape(as_column(a, slack), far.shape)))
    # One column more, which no eigenvalue is near to: of no columns there is no nearest.
    none = (0,) * len(w.shape)
    longer = a.pad(near, a.builder.constant(np.inf, near.dtype), low=(*none, 0), high=(*none, 1))
    best = a.argmin(longer, axis=len(w.shape))
    column = a.to_shape(row_and_column(a, near)[1], near.shape)
    return where(a, a.equal(column, as_column(a, best)), 1, 0, w.dtype)


def _eigvals_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (x,), w = node.inputs, node.output
    found, _ = a.several("eig", x)
    ordered = a.matmul(as_row(a, gs[0]), _matches(a, w, found))
    return _eig_vjp(a, found.node, [a.reshaped(ordered, w.shape), None])


def _eigvals_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    (x,), w = node.inputs, node.output
    found, _ = a.several("eig", x)
    ordered = a.matmul(_matches(a, w, found), as_column(a, _eig_jvp(a, found.node, ts)[0]))
    return [a.reshaped(ordered, w.shape)]


derive("eigh", Derivative(_eigh_vjp, _eigh_jvp))
derive("eigvalsh", Derivative(_eigvalsh_vjp, _eigvalsh_jvp))
derive("eig", Derivative(_eig_vjp, _eig_jvp))
derive("eigvals", Derivative(_eigvals_vjp, _eigvals_jvp))
