"""Derivatives of matrix products, factorisations and solvers.

Batches are in front. `x^T` transposes, `x^H` also conjugates. Cotangents are transposed, so the rules keep
`Re sum(g * dy) = Re sum(gx * dx)`: what `dx -> b @ dx @ c` sends forward comes back as `b^T @ g @ c^T`, through a
conjugate transpose as `g^H`, through a real part unchanged.

- `cholesky`, `eigh` and `eigvalsh` read one triangle, and are differentiated as functions of `(x + x^H) / 2`: their
  cotangents are Hermitian. For tangents that are Hermitian there is no other answer.
- Factors with a free sign or phase (see `NOT_UNIQUE`) get the tangent of one choice. Functions that do not depend on
  the choice have the right derivatives, of all orders. Columns of `u` and `v` of `svd` turn their phases in `u`; of
  `eigh` and `eig`, each eigenvector changes at a right angle to itself.
- Vectors of equal singular values or eigenvalues have no derivative: infinities or NaNs come out, except for those that
  get no cotangent, and for the values alone.
- Triangular factors without an inverse have no derivative either: of `qr` and `lu`, whose first columns must be
  independent, the backward half raises `LinAlgError`, as that of `eig` does for a matrix without a basis of eigenvectors.
  `slogdet` of a singular matrix gets NaNs. `det` is a polynomial, and is right everywhere (see `_cofactors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from dsl.errors import GradientError
from dsl.ir.algebra import Algebra, Operand
from dsl.ir.build import Builder
from dsl.ir.derivative import Derivative, Part, derive, linear
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, is_complex, scalar

A = Algebra
Maybe = Value | None


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


# -- matrices -----------------------------------------------------------------------------------------------------


def _product(a: A, *factors: Value) -> Value:
    return reduce(a.matmul, factors)


def _h(a: A, x: Value) -> Value:
    return a.conjugated(a.adjoint(x))


def _sum(a: A, *terms: Maybe) -> Value:
    return reduce(a.add, (term for term in terms if term is not None))


def _hermitian(a: A, x: Value) -> Value:
    """The mean of x and x^H."""
    return a.multiply(a.add(x, _h(a, x)), 0.5)


def _imaginary(a: A, x: Value) -> Value:
    """What is left of complex numbers without their real part."""
    return a.multiply(a.subtract(x, a.conjugate(x)), 0.5)


def _where(a: A, condition: Value, x: Operand, y: Operand, dtype: np.dtype) -> Value:
    sides = (v if isinstance(v, Value) else a.builder.constant(v, dtype) for v in (x, y))
    return a.where(condition, *sides)


def _places(a: A, x: Value) -> tuple[Value, Value]:
    """The number of its row, and of its column, for each element of a matrix."""
    rows, columns = (a.iota(size=dim, dtype=I64) for dim in x.shape[-2:])
    return _pairs(a, rows, columns)


def _pairs(a: A, v: Value, w: Value) -> tuple[Value, Value]:
    """v[i] and w[j], for each i and j."""
    shape = (*v.shape, w.shape[-1])
    return a.to_shape(_column(a, v), shape), a.to_shape(_row(a, w), shape)


def _is_diagonal(a: A, x: Value) -> Value:
    return a.equal(*_places(a, x))


def _identity(a: A, x: Value) -> Value:
    return _where(a, _is_diagonal(a, x), 1, 0, x.dtype)


def _lower(a: A, x: Value) -> Value:
    """The part below the diagonal."""
    return _where(a, a.greater(*_places(a, x)), x, 0, x.dtype)


def _upper(a: A, x: Value) -> Value:
    """The part on and above the diagonal."""
    return _where(a, a.less_equal(*_places(a, x)), x, 0, x.dtype)


def _half(a: A, x: Value) -> Value:
    """The part below the diagonal, and half of that."""
    on_it = _where(a, _is_diagonal(a, x), a.multiply(x, 0.5), 0, x.dtype)
    return a.add(_lower(a, x), on_it)


def _diagonal(a: A, x: Value) -> Value:
    found = _where(a, _is_diagonal(a, x), x, 0, x.dtype)
    return a.sum(found, axes=(len(x.shape) - 1,))


def _diagonal_matrix(a: A, v: Value, dtype: np.dtype) -> Value:
    row = _row(a, a.as_dtype(v, dtype))
    full = a.to_shape(row, (*v.shape, v.shape[-1]))
    return _where(a, _is_diagonal(a, full), full, 0, dtype)


def _row(a: A, v: Value) -> Value:
    return a.expanded(v, (len(v.shape) - 1,))


def _column(a: A, v: Value) -> Value:
    return a.expanded(v, (len(v.shape),))


def _scaled(a: A, x: Value, factor: Value) -> Value:
    """Scale the columns by a row, or the rows by a column, of real numbers."""
    return a.multiply(x, a.as_dtype(factor, x.dtype))


def _quotient(a: A, x: Value, y: Value) -> Value:
    """x / y, and 0 of two zeros: what is not asked for is not infinite."""
    below = a.to_shape(a.as_dtype(y, x.dtype), x.shape)
    nothing = a.logical_and(a.equal(x, 0), a.equal(below, 0))
    ratio = a.divide(x, _where(a, nothing, 1, below, x.dtype))
    return _where(a, nothing, 0, ratio, x.dtype)


def _over_gaps(a: A, x: Value, w: Value, *, squares: bool = False) -> Value:
    """x[i, j] / (w[j] - w[i]), or of their `squares`, and 0 on the diagonal."""
    off = _where(a, _is_diagonal(a, x), 0, x, x.dtype)
    one, other = _pairs(a, w, w)
    gaps = a.subtract(other, one)
    return _quotient(a, off, a.multiply(gaps, a.add(other, one)) if squares else gaps)


def _block(a: A, x: Value, top: DimLike, left: DimLike, rows: DimLike, columns: DimLike) -> Value:
    batch = x.shape[:-2]
    start = (*(0 for _ in batch), top, left)
    return a.slice(x, start=start, size=(*batch, rows, columns), step=(1,) * len(x.shape))


def _is_none(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim == 0


def _like(a: A, g: Value, x: Value) -> Value:
    """A cotangent of x: of a real matrix, the real part."""
    return g if is_complex(x.dtype) or not is_complex(g.dtype) else a.real(g)


def _refusal(node: Node, reason: str, remedy: str) -> GradientError:
    message = f"`{node.op.name}` cannot be differentiated: {reason}"
    return GradientError(message, location=node.loc, remedy=remedy)


# -- triangular systems -------------------------------------------------------------------------------------------


def _solved(
    a: A, m: Value, b: Value, *, lower: bool, flip: bool = False, unit: bool = False
) -> Value:
    """m^-1 @ b, or m^-T @ b with `flip`."""
    return a.triangular_solve(m, b, lower=lower, transpose=flip, unit=unit)


def _divided(
    a: A, b: Value, m: Value, *, lower: bool, flip: bool = False, unit: bool = False
) -> Value:
    """b @ m^-1, or b @ m^-T with `flip`."""
    return a.adjoint(_solved(a, m, a.adjoint(b), lower=lower, flip=not flip, unit=unit))


def _read(a: A, node: Node, x: Value) -> Value:
    """The part of a matrix that the op reads."""
    compare = a.greater if node.attrs["lower"] else a.less
    if not node.attrs["unit"]:
        compare = a.greater_equal if node.attrs["lower"] else a.less_equal
    return _where(a, compare(*_places(a, x)), x, 0, x.dtype)


def _triangular_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """gb = m^-T @ g and gm = -gb @ x^T; of the transpose, the transpose of that."""
    (m, b, *_), x, flip = node.inputs, node.output, node.attrs["transpose"]
    gb = _solved(a, m, gs[0], lower=node.attrs["lower"], flip=not flip, unit=node.attrs["unit"])
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


# -- systems, inverses, determinants ------------------------------------------------------------------------------


def _solve_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (m, b, *_), x = node.inputs, node.output
    gb = a.solve(a.adjoint(m), gs[0])
    gm = a.negative(a.matmul(gb, a.adjoint(x)))
    return [a.unbroadcast(gm, m.shape), a.unbroadcast(gb, b.shape)]


def _solve_jvp(a: A, node: Node, ts: Sequence[Maybe]) -> list[Value]:
    return [a.solve(node.inputs[0], _moved(a, node, *ts[:2]))]


def _inv_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    y = a.adjoint(node.output)
    return [a.negative(_product(a, y, gs[0], y))]


def _inv_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [a.negative(_product(a, node.output, ts[0], node.output))]


def _border(a: A, x: Value) -> Value:
    """x with a column and a row more, which are no combination of others even if one of x is."""
    *batch, n = x.shape[:-1]
    count = a.as_dtype(a.iota(size=n, dtype=I64), np.zeros(0, x.dtype).real.dtype)
    number = a.square(a.add(count, 1))
    u, v = (a.as_dtype(a.add(wave(number), 1.5), x.dtype) for wave in (a.cos, a.sin))
    column, row = a.to_shape(_column(a, u), (*batch, n, 1)), a.to_shape(_row(a, v), (*batch, 1, n))
    corner = a.zeros(x.tensor.with_shape((*batch, 1, 1)))
    axis = len(batch)
    top, bottom = a.concatenate(x, column, axis=axis + 1), a.concatenate(row, corner, axis=axis + 1)
    return a.concatenate(top, bottom, axis=axis)


def _cofactors(a: A, x: Value) -> Value:
    """The derivative of the determinant, det(x) x^-T, in a form that is right for singular matrices too.

    With a border m = [[x, u], [v, 0]] that is regular, and m^-1 = [[p, q], [r, s]], it is det(m) (s p - q r)^T. The border
    is fixed, so all derivatives of this are right where x lacks one rank at most. Where it lacks two or more, m is singular
    too, and the cofactors are 0, as they should be; only their derivatives are not to be had from this.
    """
    m, n = _border(a, x), x.shape[-1]
    d = _column(a, _column(a, a.det(m)))
    inverse = a.inv(_where(a, a.equal(d, 0), _identity(a, m), m, m.dtype))
    p, s = _block(a, inverse, 0, 0, n, n), _block(a, inverse, n, n, 1, 1)
    q, r = _block(a, inverse, 0, n, n, 1), _block(a, inverse, n, 0, 1, n)
    return a.adjoint(a.multiply(d, a.subtract(a.multiply(s, p), a.matmul(q, r))))


def _det_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [a.multiply(_column(a, _column(a, gs[0])), _cofactors(a, node.inputs[0]))]


def _trace_of_product(a: A, x: Value, y: Value) -> Value:
    """The trace of x^T @ y."""
    rank = len(x.shape)
    return a.sum(a.multiply(x, y), axes=(rank - 2, rank - 1))


def _det_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [_trace_of_product(a, _cofactors(a, node.inputs[0]), ts[0])]


def _inverse_transpose(a: A, node: Node) -> Value:
    """x^-T, and NaN for a singular matrix, whose logarithm is infinite."""
    (x,), sign = node.inputs, node.outputs[0]
    singular = _column(a, _column(a, a.equal(sign, 0)))
    found = a.inv(_where(a, singular, _identity(a, x), x, x.dtype))
    return a.adjoint(_where(a, singular, np.nan, found, x.dtype))


def _slogdet_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Maybe]:
    """d log(det) = trace(x^-1 dx): its real part is that of the logarithm, its imaginary part turns the sign."""
    (x,), (sign, _), (g_sign, g_log) = node.inputs, node.outputs, gs
    turns = g_sign is not None and is_complex(x.dtype)
    turn = _imaginary(a, a.multiply(g_sign, sign)) if turns else None
    growth = None if g_log is None else a.as_dtype(g_log, x.dtype)
    if turn is None and growth is None:
        return [None]
    factor = _column(a, _column(a, _sum(a, growth, turn)))
    return [a.multiply(factor, _inverse_transpose(a, node))]


def _slogdet_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Maybe]:
    growth = _trace_of_product(a, _inverse_transpose(a, node), ts[0])
    if not is_complex(growth.dtype):
        return [None, growth]
    return [a.multiply(node.outputs[0], _imaginary(a, growth)), a.real(growth)]


derive("solve", Derivative(_solve_vjp, _solve_jvp))
derive("inv", Derivative(_inv_vjp, _inv_jvp))
derive("det", Derivative(_det_vjp, _det_jvp))
derive("slogdet", Derivative(_slogdet_vjp, _slogdet_jvp))


# -- triangular factors -------------------------------------------------------------------------------------------


def _cholesky_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """Of dl = l half(l^-1 s l^-H), with s the Hermitian part of dx; the upper factor is l^H."""
    upper = node.attrs["upper"]
    l, g = (_h(a, v) if upper else v for v in (node.output, gs[0]))
    inner = _half(a, a.matmul(a.adjoint(l), g))
    left = _solved(a, l, inner, lower=True, flip=True)
    return [_hermitian(a, _divided(a, left, a.conjugated(l), lower=True))]


def _cholesky_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    upper = node.attrs["upper"]
    l = _h(a, node.output) if upper else node.output
    left = _solved(a, l, _hermitian(a, ts[0]), lower=True)
    inner = _divided(a, left, a.conjugated(l), lower=True, flip=True)
    found = a.matmul(l, _half(a, inner))
    return [_h(a, found) if upper else found]


derive("cholesky", Derivative(_cholesky_vjp, _cholesky_jvp))


class _Lu:
    """The blocks of `lu`: a square one, one right of it if x is wide, one below it if x is tall; pivots stay."""

    def __init__(self, a: A, node: Node) -> None:
        self.a, self.node = a, node
        *_, m, n = node.inputs[0].shape
        self.k = dim_min(m, n)
        self.below, self.beside = m - self.k, n - self.k
        self.square, self.right, self.bottom = self.split(node.outputs[0])
        self.l = a.add(_lower(a, self.square), _identity(a, self.square))
        self.u = _upper(a, self.square)

    def split(self, x: Value) -> tuple[Value, Maybe, Maybe]:
        k, a = self.k, self.a
        right = None if _is_none(self.beside) else _block(a, x, 0, k, k, self.beside)
        bottom = None if _is_none(self.below) else _block(a, x, k, 0, self.below, k)
        return _block(a, x, 0, 0, k, k), right, bottom

    def join(self, square: Value, right: Maybe, bottom: Maybe) -> Value:
        """Put blocks together; the place right of the bottom one is empty."""
        rank = len(square.shape)
        found = self.a.zeros(self.node.inputs[0].tensor)
        for block, row, column in ((square, 0, 0), (right, 0, self.k), (bottom, self.k, 0)):
            if block is not None:
                start = (*(0 for _ in range(rank - 2)), row, column)
                found = self.a.update_slice(found, block, start=start, step=(1,) * rank)
        return found

    def rows(self) -> dict[str, Any]:
        """The attributes and inputs of the `gather` that permutes rows as the pivots say."""
        a, (*batch, m, _) = self.a, self.node.inputs[0].shape
        order = _permutation(a, self.node.outputs[1], m)
        rank = len(order.shape)
        others = [
            a.reshaped(a.iota(size=dim, dtype=I64), [dim if j == k else 1 for j in range(rank)])
            for k, dim in enumerate(batch)
        ]
        return {"attrs": {"axes": tuple(range(rank))}, "inputs": (*others, order)}


def _permutation(a: A, pivots: Value, m: DimLike) -> Value:
    """Which row each row came from, after swapping row k with row `pivots[k]` for each k in turn."""
    *batch, steps = pivots.shape
    places = a.iota(size=m, dtype=I64)
    rows = a.to_shape(places, (*batch, m))
    if _is_none(steps):
        return rows
    body = Builder("swap_rows")
    inputs = (a.builder.size(steps), rows, a.as_dtype(pivots, I64), places)
    params = [body.param(scalar(I64)), *(body.param(v.type) for v in inputs[1:])]
    region = body.finish([_swapped(Algebra(body), *params)])
    return a.builder.node(
        "scan", inputs, {"carried": 1}, regions=(region,), types=(rows.type,)
    ).output


def _swapped(a: A, step: Value, rows: Value, pivots: Value, places: Value) -> Value:
    axis = len(rows.shape) - 1
    there = a.equal(
        a.to_shape(places, rows.shape), a.dynamic_slice(pivots, step, axis=axis, size=1)
    )
    first = a.dynamic_slice(rows, step, axis=axis, size=1)
    second = _row_sum(a, _where(a, there, rows, 0, I64))
    return a.where(a.equal(places, step), second, a.where(there, first, rows))


def _row_sum(a: A, x: Value) -> Value:
    axis = len(x.shape) - 1
    return a.expanded(a.sum(x, axes=(axis,)), (axis,))


def _lu_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Maybe]:
    """With n = l^-1 dx u^-1 of the square block: dl = l lower(n), du = upper(n) u; the other blocks follow from those."""
    at = _Lu(a, node)
    rows = at.rows()
    square, right, bottom = at.split(a.gather(ts[0], *rows["inputs"], **rows["attrs"]))
    n = _divided(a, _solved(a, at.l, square, lower=True, unit=True), at.u, lower=False)
    dl, du = a.matmul(at.l, _lower(a, n)), a.matmul(_upper(a, n), at.u)
    if right is not None:
        right = _solved(a, at.l, a.subtract(right, a.matmul(dl, at.right)), lower=True, unit=True)
    if bottom is not None:
        bottom = _divided(a, a.subtract(bottom, a.matmul(at.bottom, du)), at.u, lower=False)
    return [at.join(a.add(dl, du), right, bottom), None]


def _lu_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Part]:
    at = _Lu(a, node)
    g, right, bottom = at.split(gs[0])
    gl = gu = g
    if right is not None:
        right = _solved(a, at.l, right, lower=True, flip=True, unit=True)
        gl = a.subtract(g, a.matmul(right, a.adjoint(at.right)))  # type: ignore[arg-type]
    if bottom is not None:
        bottom = _divided(a, bottom, at.u, lower=False, flip=True)
        gu = a.subtract(g, a.matmul(a.adjoint(at.bottom), bottom))  # type: ignore[arg-type]
    n = a.add(_lower(a, a.matmul(a.adjoint(at.l), gl)), _upper(a, a.matmul(gu, a.adjoint(at.u))))
    square = _divided(
        a, _solved(a, at.l, n, lower=True, flip=True, unit=True), at.u, lower=False, flip=True
    )
    return [Part("gather", node.inputs[0].tensor, at.join(square, right, bottom), **at.rows())]


derive("lu", Derivative(_lu_vjp, _lu_jvp))


def _qr_factors(a: A, node: Node) -> tuple[Value, Value, Value]:
    """q, r, and the square block of r; the columns of x behind it only follow."""
    (x,), r, mode = node.inputs, node.outputs[-1], node.attrs["mode"]
    *_, m, n = x.shape
    k = dim_min(m, n)
    if mode == "complete" and k != m:
        raise _refusal(node, "the columns that complete `q` are arbitrary", 'use mode="reduced"')
    square = _block(a, r, 0, 0, k, k)
    if mode != "r":
        return node.outputs[0], r, square
    return _divided(a, _block(a, x, 0, 0, m, k), square, lower=False), r, square


def _turn(a: A, c: Value) -> Value:
    """The anti-Hermitian matrix with the same part below the diagonal and the same imaginary part on it."""
    below = _lower(a, c)
    found = a.subtract(below, _h(a, below))
    return a.add(found, _phases(a, c)) if is_complex(c.dtype) else found


def _turn_back(a: A, g: Value) -> Value:
    """The cotangent of c from that of turn(c)."""
    below = _lower(a, a.subtract(g, _h(a, g)))
    return a.add(below, _phases(a, g)) if is_complex(g.dtype) else below


def _phases(a: A, c: Value) -> Value:
    return _where(a, _is_diagonal(a, c), _imaginary(a, c), 0, c.dtype)


def _qr_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    """With w = dx r^-1 and o = turn(q^H w): dq = q o + (1 - q q^H) w, dr = q^H dx - o r, whose diagonal stays real."""
    q, r, square = _qr_factors(a, node)
    (t,), (*_, m, k) = ts, q.shape
    w = _divided(a, _block(a, t, 0, 0, m, k), square, lower=False)
    c = a.matmul(_h(a, q), w)
    o = _turn(a, c)
    dr = a.subtract(a.matmul(_h(a, q), t), a.matmul(o, r))
    return [a.add(a.matmul(q, a.subtract(o, c)), w), dr][-len(node.outputs) :]


def _qr_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    q, r, square = _qr_factors(a, node)
    x, bar = node.inputs[0], a.conjugated(q)
    gq, gr = gs if len(gs) == 2 else (None, gs[0])
    through_q = None if gq is None else a.matmul(a.adjoint(q), gq)
    through_r = None if gr is None else a.negative(a.matmul(gr, a.adjoint(r)))
    gc = _turn_back(a, _sum(a, through_q, through_r))
    gw = _sum(a, gq, a.matmul(bar, gc if through_q is None else a.subtract(gc, through_q)))
    first = _divided(a, gw, square, lower=False, flip=True)
    whole = _widened(a, first, x.shape[-1])
    return [_sum(a, whole, None if gr is None else a.matmul(bar, gr))]


def _widened(a: A, x: Value, n: DimLike) -> Value:
    """x with columns of zeros behind its own, n in all."""
    missing, none = n - x.shape[-1], (0,) * (len(x.shape) - 1)
    if _is_none(missing):
        return x
    return a.pad(x, a.builder.constant(0, x.dtype), low=(*none, 0), high=(*none, missing))


derive("qr", Derivative(_qr_vjp, _qr_jvp))


# -- eigenvalues --------------------------------------------------------------------------------------------------


def _eigh_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    """Of c = v^H s v, with s the Hermitian part of dx: dw = diagonal of c, dv = v (c[i, j] / (w[j] - w[i]))."""
    (w, v), (gw, gv) = node.outputs, gs
    on_it = None if gw is None else _diagonal_matrix(a, gw, v.dtype)
    off_it = None if gv is None else _over_gaps(a, a.matmul(a.adjoint(v), gv), w)
    return [_hermitian(a, _product(a, a.conjugated(v), _sum(a, on_it, off_it), a.adjoint(v)))]


def _eigh_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    w, v = node.outputs
    c = _product(a, _h(a, v), _hermitian(a, ts[0]), v)
    return [a.as_dtype(_diagonal(a, c), w.dtype), a.matmul(v, _over_gaps(a, c, w))]


def _eigvalsh_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    whole = a.several("eigh", *node.inputs, **node.attrs)[0].node
    return _eigh_vjp(a, whole, [gs[0], None])


def _eigvalsh_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    whole = a.several("eigh", *node.inputs, **node.attrs)[0].node
    return _eigh_jvp(a, whole, ts)[:1]


def _eig_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    """Of c = v^-1 dx v: dw = diagonal of c; dv = v e without its part along v, e = c[i, j] / (w[j] - w[i])."""
    (x,), (w, v), (gw, gv) = node.inputs, node.outputs, gs
    on_it = None if gw is None else _diagonal_matrix(a, gw, v.dtype)
    off_it = None
    if gv is not None:
        ge = a.matmul(a.adjoint(v), gv)
        overlap = a.matmul(a.adjoint(v), a.conjugate(v))
        ge = a.subtract(ge, a.multiply(overlap, _row(a, _diagonal(a, ge))))
        off_it = _over_gaps(a, ge, w)
    right = a.matmul(_sum(a, on_it, off_it), a.adjoint(v))
    return [_like(a, a.solve(a.adjoint(v), right), x)]


def _eig_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    w, v = node.outputs
    c = a.solve(v, a.matmul(a.as_dtype(ts[0], v.dtype), v))
    dv = a.matmul(v, _over_gaps(a, c, w))
    along = _diagonal(a, a.matmul(_h(a, v), dv))
    return [_diagonal(a, c), a.subtract(dv, a.multiply(v, _row(a, along)))]


def _matches(a: A, w: Value, found: Value) -> Value:
    """1 where eigenvalue i of `w` is eigenvalue j of `found`, which may be in another order, else 0.

    LAPACK orders large spectra otherwise when it is asked for the vectors too. The same place is preferred, so that equal
    eigenvalues keep apart.
    """
    far = a.absolute(a.subtract(*_pairs(a, w, found)))
    slack = a.multiply(_row_sum(a, a.absolute(w)), float(np.sqrt(np.finfo(w.dtype).eps)))
    near = a.where(_is_diagonal(a, far), far, a.add(far, a.to_shape(_column(a, slack), far.shape)))
    # One column more, which no eigenvalue is near to: of no columns there is no nearest.
    none = (0,) * len(w.shape)
    longer = a.pad(near, a.builder.constant(np.inf, near.dtype), low=(*none, 0), high=(*none, 1))
    best = a.argmin(longer, axis=len(w.shape))
    column = a.to_shape(_places(a, near)[1], near.shape)
    return _where(a, a.equal(column, _column(a, best)), 1, 0, w.dtype)


def _eigvals_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (x,), w = node.inputs, node.output
    found, _ = a.several("eig", x)
    ordered = a.matmul(_row(a, gs[0]), _matches(a, w, found))
    return _eig_vjp(a, found.node, [a.reshaped(ordered, w.shape), None])


def _eigvals_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    (x,), w = node.inputs, node.output
    found, _ = a.several("eig", x)
    ordered = a.matmul(_matches(a, w, found), _column(a, _eig_jvp(a, found.node, ts)[0]))
    return [a.reshaped(ordered, w.shape)]


derive("eigh", Derivative(_eigh_vjp, _eigh_jvp))
derive("eigvalsh", Derivative(_eigvalsh_vjp, _eigvalsh_jvp))
derive("eig", Derivative(_eig_vjp, _eig_jvp))
derive("eigvals", Derivative(_eigvals_vjp, _eigvals_jvp))


# -- singular values ----------------------------------------------------------------------------------------------


def _is_thin(node: Node) -> bool:
    *_, m, n = node.inputs[0].shape
    return not node.attrs["full_matrices"] or m == n


def _require_thin(node: Node) -> None:
    if not _is_thin(node):
        reason = "the singular vectors that complete `u` or `vh` are arbitrary"
        raise _refusal(node, reason, "pass `full_matrices=False`")


def _doubled(a: A, x: Value) -> Value:
    return a.add(x, _h(a, x))


def _outside(a: A, x: Value, u: Value, s: Value, inside: Value) -> Value:
    """(x - u inside) / s, column by column: what columns of x have outside the columns of u."""
    return _quotient(a, a.subtract(x, a.matmul(u, inside)), _row(a, s))


def _svd_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    """As in Townsend, "Differentiating the singular value decomposition", 2016; of complex numbers as in JAX.

    With c = u^H dx v: ds = real diagonal of c; du = u f(c s + s c^H), dv = v f(s c + c^H s), f dividing by
    s[j]^2 - s[i]^2; then what leaves the columns of u and v, and the phases of c, which u takes.
    """
    _require_thin(node)
    (t,), (u, s, vh) = ts, node.outputs
    v = _h(a, vh)
    c = _product(a, _h(a, u), t, v)
    left = _over_gaps(a, _doubled(a, _scaled(a, c, _row(a, s))), s, squares=True)
    right = _over_gaps(a, _doubled(a, _scaled(a, c, _column(a, s))), s, squares=True)
    if is_complex(c.dtype):
        left = a.add(left, _quotient(a, _phases(a, c), _row(a, s)))
    du, dv = a.matmul(u, left), a.matmul(v, right)
    if u.shape[-2] != u.shape[-1]:
        du = a.add(du, _outside(a, a.matmul(t, v), u, s, c))
    if v.shape[-2] != v.shape[-1]:
        dv = a.add(dv, _outside(a, a.matmul(_h(a, t), u), v, s, _h(a, c)))
    return [du, a.as_dtype(_diagonal(a, c), s.dtype), _h(a, dv)]


def _svd_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    gu, gs_, gvh = gs
    if gs_ is not None and gu is None and gvh is None:
        return _values_vjp(a, node, gs_)
    _require_thin(node)
    u, s, vh = node.outputs
    found = [] if gu is None else [_left_vectors(a, u, s, vh, gu)]
    found += [] if gvh is None else [_right_vectors(a, u, s, vh, _h(a, gvh))]
    inner, outer = zip(*found)
    c = _sum(a, None if gs_ is None else _diagonal_matrix(a, gs_, u.dtype), *inner)
    return [_sum(a, _product(a, a.conjugated(u), c, a.conjugated(vh)), *outer)]


def _left_vectors(a: A, u: Value, s: Value, vh: Value, g: Value) -> tuple[Value, Maybe]:
    """What a cotangent of u gives to that of c, and what goes past c to that of x."""
    inside = a.matmul(a.adjoint(u), g)
    c = _scaled(a, _doubled(a, _over_gaps(a, inside, s, squares=True)), _row(a, s))
    if is_complex(u.dtype):
        c = a.add(c, _quotient(a, _phases(a, inside), _row(a, s)))
    if u.shape[-2] == u.shape[-1]:
        return c, None
    return c, a.matmul(_outside(a, g, a.conjugated(u), s, inside), a.conjugated(vh))


def _right_vectors(a: A, u: Value, s: Value, vh: Value, g: Value) -> tuple[Value, Maybe]:
    """The same for v."""
    inside = a.matmul(a.conjugated(vh), g)
    c = _scaled(a, _doubled(a, _over_gaps(a, inside, s, squares=True)), _column(a, s))
    if vh.shape[-2] == vh.shape[-1]:
        return c, None
    return c, a.matmul(a.conjugated(u), _h(a, _outside(a, g, a.adjoint(vh), s, inside)))


def _values_vjp(a: A, node: Node, g: Value) -> list[Value]:
    u, _, vh = _vectors(a, node)
    inner = _diagonal_matrix(a, g, u.dtype)
    return [_product(a, a.conjugated(u), inner, a.conjugated(vh))]


def _vectors(a: A, node: Node) -> Sequence[Value]:
    """The factors of `svd` without what completes them."""
    if node.op.name == "svd" and _is_thin(node):
        return node.outputs
    return a.several("svd", node.inputs[0], full_matrices=False)


def _svdvals_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    u, s, vh = _vectors(a, node)
    return [a.as_dtype(_diagonal(a, _product(a, _h(a, u), ts[0], _h(a, vh))), s.dtype)]


derive("svd", Derivative(_svd_vjp, _svd_jvp))
derive("svdvals", Derivative(lambda a, node, gs: _values_vjp(a, node, gs[0]), _svdvals_jvp))
