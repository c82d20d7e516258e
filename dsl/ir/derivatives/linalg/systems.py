"""Derivatives of solutions of systems, of inverses and determinants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Derivative, derive
from dsl.ir.derivatives.linalg.matrices import (
    Maybe,
    as_column,
    as_row,
    block_of,
    identity,
    imaginary,
    product,
    row_and_column,
    total,
    where,
)
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, is_complex

__all__ = ["divided", "solved"]

A = Algebra


def solved(
    a: A, m: Value, b: Value, *, lower: bool, flip: bool = False, unit: bool = False
) -> Value:
    """m^-1 @ b, or m^-T @ b with `flip`."""
    return a.triangular_solve(m, b, lower=lower, transpose=flip, unit=unit)


def divided(
    a: A, b: Value, m: Value, *, lower: bool, flip: bool = False, unit: bool = False
) -> Value:
    """b @ m^-1, or b @ m^-T with `flip`."""
    return a.adjoint(solved(a, m, a.adjoint(b), lower=lower, flip=not flip, unit=unit))


def _read(a: A, node: Node, x: Value) -> Value:
    """The part of a matrix that the op reads."""
    compare = a.greater if node.attrs["lower"] else a.less
    if not node.attrs["unit"]:
        compare = a.greater_equal if node.attrs["lower"] else a.less_equal
    return where(a, compare(*row_and_column(a, x)), x, 0, x.dtype)


def _triangular_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """gb = m^-T @ g and gm = -gb @ x^T; of the transpose, the transpose of that."""
    (m, b, *_), x, flip = node.inputs, node.output, node.attrs["transpose"]
    gb = solved(a, m, gs[0], lower=node.attrs["lower"], flip=not flip, unit=node.attrs["unit"])
    left, right = (x, gb) if flip else (gb, x)
    gm = _read(a, node, a.negative(a.matmul(left, a.adjoint(right))))
    return [a.unbroadcast(gm, m.shape), a.unbroadcast(gb, b.shape)]


def _triangular_jvp(a: A, node: Node, ts: Sequence[Maybe]) -> list[Value]:
    """m @ dx = db - dm @ x."""
    tm = ts[0] if ts[0] is None else _read(a, node, ts[0])
    if tm is not None and node.attrs["transpose"]:
        tm = a.adjoint(tm)
    return [a.triangular_solve(node.inputs[0], _moved(a, node, tm, ts[1]), **node.attrs)]


def _moved(a: A, node: Node, tm: Maybe, tb: Maybe) -> Value:
    """db - dm @ x: the right side of the system that a tangent of x solves."""
    x = node.output
    if tm is None:
        return tb  # type: ignore[return-value]
    lost = a.matmul(tm, x)
    return a.negative(lost) if tb is None else a.subtract(a.to_shape(tb, x.shape), lost)


derive("triangular_solve", Derivative(_triangular_vjp, _triangular_jvp))


def _solve_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (m, b, *_), x = node.inputs, node.output
    gb = a.solve(a.adjoint(m), gs[0])
    gm = a.negative(a.matmul(gb, a.adjoint(x)))
    return [a.unbroadcast(gm, m.shape), a.unbroadcast(gb, b.shape)]


def _solve_jvp(a: A, node: Node, ts: Sequence[Maybe]) -> list[Value]:
    return [a.solve(node.inputs[0], _moved(a, node, *ts[:2]))]


def _inv_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    y = a.adjoint(node.output)
    return [a.negative(product(a, y, gs[0], y))]


def _inv_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [a.negative(product(a, node.output, ts[0], node.output))]


def _border(a: A, x: Value) -> Value:
    """x with a column and a row more, which are no combination of others even if one of x is."""
    *batch, n = x.shape[:-1]
    count = a.as_dtype(a.iota(size=n, dtype=I64), np.zeros(0, x.dtype).real.dtype)
    number = a.square(a.add(count, 1))
    u, v = (a.as_dtype(a.add(wave(number), 1.5), x.dtype) for wave in (a.cos, a.sin))
    column, row = (
        a.to_shape(as_column(a, u), (*batch, n, 1)),
        a.to_shape(as_row(a, v), (*batch, 1, n)),
    )
    corner = a.zeros(x.tensor.with_shape((*batch, 1, 1)))
    axis = len(batch)
    top, bottom = a.concatenate(x, column, axis=axis + 1), a.concatenate(row, corner, axis=axis + 1)
    return a.concatenate(top, bottom, axis=axis)


def _small_cofactors(a: A, x: Value) -> Value:
    """The cofactors of matrices of two or three rows, as the polynomials that they are: many matrices in one kernel."""
    n, axis = x.shape[-1], len(x.shape) - 1
    assert isinstance(n, int)

    def part(i: int, j: int) -> Value:
        return block_of(a, x, i % n, j % n, 1, 1)

    def minor(i: int, j: int) -> Value:
        if n == 2:
            return part(i + 1, j + 1) if i == j else a.negative(part(i + 1, j + 1))
        along = a.multiply(part(i + 1, j + 1), part(i + 2, j + 2))
        return a.subtract(along, a.multiply(part(i + 1, j + 2), part(i + 2, j + 1)))

    rows = [a.concatenate(*[minor(i, j) for j in range(n)], axis=axis) for i in range(n)]
    return a.concatenate(*rows, axis=axis - 1)


def _cofactors(a: A, x: Value) -> Value:
    """The derivative of the determinant, det(x) x^-T, in a form that is right for singular matrices too.

    With a border m = [[x, u], [v, 0]] that is regular, and m^-1 = [[p, q], [r, s]], it is det(m) (s p - q r)^T. The border
    is fixed, so all derivatives of this are right where x lacks one rank at most. Where it lacks two or more, m is singular
    too, and the cofactors are 0, as they should be; only their derivatives are not to be had from this.
    """
    if x.shape[-1] in (2, 3):
        return _small_cofactors(a, x)
    m, n = _border(a, x), x.shape[-1]
    d = as_column(a, as_column(a, a.det(m)))
    inverse = a.inv(where(a, a.equal(d, 0), identity(a, m), m, m.dtype))
    p, s = block_of(a, inverse, 0, 0, n, n), block_of(a, inverse, n, n, 1, 1)
    q, r = block_of(a, inverse, 0, n, n, 1), block_of(a, inverse, n, 0, 1, n)
    return a.adjoint(a.multiply(d, a.subtract(a.multiply(s, p), a.matmul(q, r))))


def _det_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [a.multiply(as_column(a, as_column(a, gs[0])), _cofactors(a, node.inputs[0]))]


def _trace_of_product(a: A, x: Value, y: Value) -> Value:
    """The trace of x^T @ y."""
    rank = len(x.shape)
    return a.sum(a.multiply(x, y), axes=(rank - 2, rank - 1))


def _det_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [_trace_of_product(a, _cofactors(a, node.inputs[0]), ts[0])]


def _inverse_transpose(a: A, node: Node) -> Value:
    """x^-T, and NaN for a singular matrix, whose logarithm is infinite."""
    (x,), sign = node.inputs, node.outputs[0]
    singular = as_column(a, as_column(a, a.equal(sign, 0)))
    found = a.inv(where(a, singular, identity(a, x), x, x.dtype))
    return a.adjoint(where(a, singular, np.nan, found, x.dtype))


def _slogdet_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Maybe]:
    """d log(det) = trace(x^-1 dx): its real part is that of the logarithm, its imaginary part turns the sign."""
    (x,), (sign, _), (g_sign, g_log) = node.inputs, node.outputs, gs
    turns = g_sign is not None and is_complex(x.dtype)
    turn = imaginary(a, a.multiply(g_sign, sign)) if turns else None
    growth = None if g_log is None else a.as_dtype(g_log, x.dtype)
    if turn is None and growth is None:
        return [None]
    factor = as_column(a, as_column(a, total(a, growth, turn)))
    return [a.multiply(factor, _inverse_transpose(a, node))]


def _slogdet_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Maybe]:
    growth = _trace_of_product(a, _inverse_transpose(a, node), ts[0])
    if not is_complex(growth.dtype):
        return [None, growth]
    return [a.multiply(node.outputs[0], imaginary(a, growth)), a.real(growth)]


derive("solve", Derivative(_solve_vjp, _solve_jvp))
derive("inv", Derivative(_inv_vjp, _inv_jvp))
derive("det", Derivative(_det_vjp, _det_jvp))
derive("slogdet", Derivative(_slogdet_vjp, _slogdet_jvp))
