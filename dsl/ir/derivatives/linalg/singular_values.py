"""Derivatives of singular values and vectors."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Derivative, derive
from dsl.ir.derivatives.linalg.matrices import (
    Maybe,
    as_column,
    as_row,
    diagonal,
    diagonal_matrix,
    h,
    over_gaps,
    phases,
    product,
    quotient,
    refusal,
    scaled,
    total,
)
from dsl.ir.graph import Node, Value
from dsl.ir.types import is_complex

A = Algebra


def _is_thin(node: Node) -> bool:
    *_, m, n = node.inputs[0].shape
    return not node.attrs["full_matrices"] or m == n


def _arbitrary(node: Node) -> GradientError:
    reason = "the singular vectors that complete `u` or `vh` are arbitrary"
    return refusal(node, reason, "pass `full_matrices=False`")


def _doubled(a: A, x: Value) -> Value:
    return a.add(x, h(a, x))


def _outside(a: A, x: Value, u: Value, s: Value, inside: Value) -> Value:
    """(x - u inside) / s, column by column: what columns of x have outside the columns of u."""
    return quotient(a, a.subtract(x, a.matmul(u, inside)), as_row(a, s))


def _svd_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value | GradientError]:
    """As in Townsend, "Differentiating the singular value decomposition", 2016; of complex numbers as in JAX.

    With c = u^H dx v: ds = real diagonal of c; du = u f(c s + s c^H), dv = v f(s c + c^H s), f dividing by
    s[j]^2 - s[i]^2; then what leaves the columns of u and v, and the phases of c, which u takes.
    """
    if not _is_thin(node):
        return [_arbitrary(node), *_values_jvp(a, node, ts), _arbitrary(node)]
    (t,), (u, s, vh) = ts, node.outputs
    v = h(a, vh)
    c = product(a, h(a, u), t, v)
    left = over_gaps(a, _doubled(a, scaled(a, c, as_row(a, s))), s, squares=True)
    right = over_gaps(a, _doubled(a, scaled(a, c, as_column(a, s))), s, squares=True)
    if is_complex(c.dtype):
        left = a.add(left, quotient(a, phases(a, c), as_row(a, s)))
    du, dv = a.matmul(u, left), a.matmul(v, right)
    if u.shape[-2] != u.shape[-1]:
        du = a.add(du, _outside(a, a.matmul(t, v), u, s, c))
    if v.shape[-2] != v.shape[-1]:
        dv = a.add(dv, _outside(a, a.matmul(h(a, t), u), v, s, h(a, c)))
    return [du, a.as_dtype(diagonal(a, c), s.dtype), h(a, dv)]


def _svd_vjp(a: A, node: Node, gs: Sequence[Maybe]) -> list[Value]:
    gu, gs_, gvh = gs
    if gs_ is not None and gu is None and gvh is None:
        return _values_vjp(a, node, gs_)
    if not _is_thin(node):
        raise _arbitrary(node)
    u, s, vh = node.outputs
    found = [] if gu is None else [_left_vectors(a, u, s, vh, gu)]
    found += [] if gvh is None else [_right_vectors(a, u, s, vh, h(a, gvh))]
    inner, outer = zip(*found)
    c = total(a, None if gs_ is None else diagonal_matrix(a, gs_, u.dtype), *inner)
    return [total(a, product(a, a.conjugated(u), c, a.conjugated(vh)), *outer)]


def _left_vectors(a: A, u: Value, s: Value, vh: Value, g: Value) -> tuple[Value, Maybe]:
    """What a cotangent of u gives to that of c, and what goes past c to that of x."""
    inside = a.matmul(a.adjoint(u), g)
    c = scaled(a, _doubled(a, over_gaps(a, inside, s, squares=True)), as_row(a, s))
    if is_complex(u.dtype):
        c = a.add(c, quotient(a, phases(a, inside), as_row(a, s)))
    if u.shape[-2] == u.shape[-1]:
        return c, None
    return c, a.matmul(_outside(a, g, a.conjugated(u), s, inside), a.conjugated(vh))


def _right_vectors(a: A, u: Value, s: Value, vh: Value, g: Value) -> tuple[Value, Maybe]:
    """The same for v."""
    inside = a.matmul(a.conjugated(vh), g)
    c = scaled(a, _doubled(a, over_gaps(a, inside, s, squares=True)), as_column(a, s))
    if vh.shape[-2] == vh.shape[-1]:
        return c, None
    return c, a.matmul(a.conjugated(u), h(a, _outside(a, g, a.adjoint(vh), s, inside)))


def _values_vjp(a: A, node: Node, g: Value) -> list[Value]:
    u, _, vh = _vectors(a, node)
    inner = diagonal_matrix(a, g, u.dtype)
    return [product(a, a.conjugated(u), inner, a.conjugated(vh))]


def _vectors(a: A, node: Node) -> Sequence[Value]:
    """The factors of `svd` without what completes them."""
    if node.op.name == "svd" and _is_thin(node):
        return node.outputs
    return a.several("svd", node.inputs[0], full_matrices=False)


def _values_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    u, s, vh = _vectors(a, node)
    found = diagonal(a, product(a, h(a, u), ts[0], h(a, vh)))
    return [a.as_dtype(found, s.dtype)]


derive("svd", Derivative(_svd_vjp, _svd_jvp))
derive("svdvals", Derivative(lambda a, node, gs: _values_vjp(a, node, gs[0]), _values_jvp))
