"""Derivatives of triangular and orthogonal factors: `cholesky`, `lu`, `qr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import Derivative, Part, derive
from dsl.ir.derivatives.linalg.matrices import (
    Maybe,
    block_of,
    h,
    half,
    hermitian,
    identity,
    is_none,
    lower_part,
    phases,
    refusal,
    row_sum,
    total,
    upper_part,
    where,
)
from dsl.ir.derivatives.linalg.systems import divided, solved
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, is_complex, scalar

A = Algebra


def _cholesky_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """Of dl = l half(l^-1 s l^-H), with s the Hermitian part of dx; the upper factor is l^H."""
    upper = node.attrs["upper"]
    l, g = (h(a, v) if upper else v for v in (node.output, gs[0]))
    inner = half(a, a.matmul(a.adjoint(l), g))
    left = solved(a, l, inner, lower=True, flip=True)
    return [hermitian(a, divided(a, left, a.conjugated(l), lower=True))]


def _cholesky_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    upper = node.attrs["upper"]
    l = h(a, node.output) if upper else node.output
    left = solved(a, l, hermitian(a, ts[0]), lower=True)
    inner = divided(a, left, a.conjugated(l), lower=True, flip=True)
    found = a.matmul(l, half(a, inner))
    return [h(a, found) if upper else found]


derive("cholesky", Derivative(_cholesky_vjp, _cholesky_jvp))


class _Lu:
    """The blocks of `lu`: a square one, one right of it if x is wide, one below it if x is tall; pivots stay."""

    def __init__(self, a: A, node: Node) -> None:
        self.a, self.node = a, node
        *_, m, n = node.inputs[0].shape
        self.k = dim_min(m, n)
        self.below, self.beside = m - self.k, n - self.k
        self.square, self.right, self.bottom = self.split(node.outputs[0])
        self.l = a.add(lower_part(a, self.square), identity(a, self.square))
        self.u = upper_part(a, self.square)

    def split(self, x: Value) -> tuple[Value, Maybe, Maybe]:
        k, a = self.k, self.a
        right = None if is_none(self.beside) else block_of(a, x, 0, k, k, self.beside)
        bottom = None if is_none(self.below) else block_of(a, x, k, 0, self.below, k)
        return block_of(a, x, 0, 0, k, k), right, bottom

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
    if is_none(steps):
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
    second = row_sum(a, where(a, there, rows, 0, I64))
    return a.where(a.equal(places, step), second, a.where(there, first, rows))


def _lu_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Maybe]:
    """With n = l^-1 dx u^-1 of the square block: dl = l lower(n), du = upper(n) u; the other blocks follow from those."""
    at = _Lu(a, node)
    rows = at.rows()
    square, right, bottom = at.split(a.gather(ts[0], *rows["inputs"], **rows["attrs"]))
    n = divided(a, solved(a, at.l, square, lower=True, unit=True), at.u, lower=False)
    dl, du = a.matmul(at.l, lower_part(a, n)), a.matmul(upper_part(a, n), at.u)
    if right is not None:
        right = solved(a, at.l, a.subtract(right, a.matmul(dl, at.right)), lower=True, unit=True)
    if bottom is not None:
        bottom = divided(a, a.subtract(bottom, a.matmul(at.bottom, du)), at.u, lower=False)
    return [at.join(a.add(dl, du), right, bottom), None]


def _lu_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Part]:
    at = _Lu(a, node)
    g, right, bottom = at.split(gs[0])
    gl = gu = g
    if right is not None:
        right = solved(a, at.l, right, lower=True, flip=True, unit=True)
        gl = a.subtract(g, a.matmul(right, a.adjoint(at.right)))  # type: ignore[arg-type]
    if bottom is not None:
        bottom = divided(a, bottom, at.u, lower=False, flip=True)
        gu = a.subtract(g, a.matmul(a.adjoint(at.bottom), bottom))  # type: ignore[arg-type]
    n = a.add(
        lower_part(a, a.matmul(a.adjoint(at.l), gl)), upper_part(a, a.matmul(gu, a.adjoint(at.u)))
    )
    square = divided(
        a, solved(a, at.l, n, lower=True, flip=True, unit=True), at.u, lower=False, flip=True
    )
    return [Part("gather", node.inputs[0].tensor, at.join(square, right, bottom), **at.rows())]


derive("lu", Derivative(_lu_vjp, _lu_jvp))


def _arbitrary(node: Node) -> GradientError | None:
    """The reason why q has no derivative, where it has columns that complete it."""
    *_, m, n = node.inputs[0].shape
    if node.attrs["mode"] != "complete" or dim_min(m, n) == m:
        return None
    return refusal(node, "the columns that complete `q` are arbitrary", 'use mode="reduced"')


def _qr_factors(a: A, node: Node) -> tuple[Value, Value, Value]:
    """q, r, and the square block of r, without what completes them; the columns of x behind it only follow."""
    (x,), r, mode = node.inputs, node.outputs[-1], node.attrs["mode"]
    if _arbitrary(node):  # other factors, which derivatives of higher orders can go through
        q, r = a.several("qr", x, mode="reduced")
        return q, r, r
    *_, m, n = x.shape
    k = dim_min(m, n)
    square = block_of(a, r, 0, 0, k, k)
    if mode != "r":
        return node.outputs[0], r, square
    return divided(a, block_of(a, x, 0, 0, m, k), square, lower=False), r, square


def _turn(a: A, c: Value) -> Value:
    """The anti-Hermitian matrix with the same part below the diagonal and the same imaginary part on it."""
    below = lower_part(a, c)
    found = a.subtract(below, h(a, below))
    return a.add(found, phases(a, c)) if is_complex(c.dtype) else found


def _turn_back(a: A, g: Value) -> Value:
    """The cotangent of c from that of turn(c)."""
    below = lower_part(a, a.subtract(g, h(a, g)))
    return a.add(below, phases(a, g)) if is_complex(g.dtype) else below


def _qr_jvp(a: A, node: Node, ts: Sequence[Value]) -> Sequence[Value | GradientError]:
    """With w = dx r^-1 and o = turn(q^H w): dq = q o + (1 - q q^H) w, dr = q^H dx - o r, whose diagonal stays real."""
    q, r, square = _qr_factors(a, node)
    (t,), (*_, m, k) = ts, q.shape
    w = divided(a, block_of(a, t, 0, 0, m, k), square, lower=False)
    c = a.matmul(h(a, q), w)
    o = _turn(a, c)
    dr = a.subtract(a.matmul(h(a, q), t), a.matmul(o, r))
    if error := _arbitrary(node):
        return [error, _lengthened(a, dr, m)]
    return [a.add(a.matmul(q, a.subtract(o, c)), w), dr][-len(node.outputs) :]


def _qr_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    q, r, square = _qr_factors(a, node)
    x, bar = node.inputs[0], a.conjugated(q)
    gq, gr = gs if len(gs) == 2 else (None, gs[0])
    if error := _arbitrary(node):
        if gq is not None or gr is None:
            raise error
        gr = block_of(a, gr, 0, 0, r.shape[-2], r.shape[-1])
    through_q = None if gq is None else a.matmul(a.adjoint(q), gq)
    through_r = None if gr is None else a.negative(a.matmul(gr, a.adjoint(r)))
    gc = _turn_back(a, total(a, through_q, through_r))
    gw = total(a, gq, a.matmul(bar, gc if through_q is None else a.subtract(gc, through_q)))
    first = divided(a, gw, square, lower=False, flip=True)
    whole = _widened(a, first, x.shape[-1])
    return [total(a, whole, None if gr is None else a.matmul(bar, gr))]


def _lengthened(a: A, x: Value, m: DimLike) -> Value:
    """x with rows of zeros below its own, m in all."""
    none = (0,) * (len(x.shape) - 2)
    low, high = (*none, 0, 0), (*none, m - x.shape[-2], 0)
    return a.pad(x, a.builder.constant(0, x.dtype), low=low, high=high)


def _widened(a: A, x: Value, n: DimLike) -> Value:
    """x with columns of zeros behind its own, n in all."""
    missing, none = n - x.shape[-1], (0,) * (len(x.shape) - 1)
    if is_none(missing):
        return x
    return a.pad(x, a.builder.constant(0, x.dtype), low=(*none, 0), high=(*none, missing))


derive("qr", Derivative(_qr_vjp, _qr_jvp))
