"""Derivatives of linear algebra, and of running products, against finite differences and against each other.

Each case is a graph: one op and, where its result has a free sign or phase, what does not depend on that. Forward mode
is compared with central differences; reverse mode with forward mode, by `Re sum(g * dy) = Re sum(gx * dx)`. For the
second order the same is done with the graphs that forward and reverse mode made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsl.autodiff.cotangents import combine
from dsl.autodiff.forward import push
from dsl.autodiff.reverse import Reverse
from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import derivative_of
from dsl.ir.dims import Symbol
from dsl.ir.graph import Graph, Value
from dsl.ir.interpret import interpret
from dsl.ir.types import TensorType, is_inexact
from dsl.ir.verify import verify

F64, C128 = np.dtype(np.float64), np.dtype(np.complex128)
Body = Callable[..., Any]
Arrays = list[np.ndarray]


# -- graphs -------------------------------------------------------------------------------------------------------


def build(body: Body, *types: TensorType) -> Graph:
    builder = Builder()
    found = body(Algebra(builder), *map(builder.param, types))
    return builder.finish([v for v in np.ravel(found) if is_inexact(v.dtype)])


def zeros_for(a: Algebra, given: Sequence[Value | None], like: Sequence[Value]) -> list[Value]:
    return [a.zeros(v.tensor) if g is None else g for g, v in zip(given, like, strict=True)]


def forward(graph: Graph) -> Graph:
    """Values and tangents -> tangents."""

    def body(a: Algebra, *given: Value) -> list[Value]:
        n = len(given) // 2
        outputs, tangents = push(
            graph, a.builder, given[:n], given[n:], [True] * len(graph.results)
        )
        return zeros_for(a, tangents, outputs)

    return build(body, *(p.type for p in graph.params * 2))


def backward(graph: Graph) -> Graph:
    """Values and cotangents -> cotangents."""

    def body(a: Algebra, *given: Value) -> list[Value]:
        n = len(graph.params)
        walk = Reverse(graph, a.builder, given[:n], [True] * n, [True] * len(graph.results))
        found = walk.pull(a.builder, given[n:])
        return zeros_for(a, [combine(a, g) if g else None for g in found], given[:n])

    return build(body, *(v.type for v in (*graph.params, *graph.results)))


# -- checks -------------------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    x = rng.uniform(-1, 1, shape)
    return x + 1j * rng.uniform(-1, 1, shape) if dtype == C128 else np.asarray(x)


def alike(rng: np.random.Generator, arrays: Sequence[np.ndarray]) -> Arrays:
    return [draw(rng, x.shape, x.dtype) for x in arrays]


def pairing(xs: Arrays, ys: Arrays) -> float:
    return sum(float(np.sum(x * y).real) for x, y in zip(xs, ys, strict=True))


def difference(graph: Graph, args: Arrays, ts: Arrays, step: float = 1e-6) -> Arrays:
    high, low = (interpret(graph, [x + s * t for x, t in zip(args, ts)]) for s in (step, -step))
    return [(h - l) / (2 * step) for h, l in zip(high, low)]


def check(graph: Graph, args: Arrays, order: int = 2) -> None:
    verify(graph)
    rng = np.random.default_rng(1)
    ts, along, back = alike(rng, args), forward(graph), backward(graph)
    found = interpret(along, [*args, *ts])
    for have, want in zip(found, difference(graph, args, ts), strict=True):
        np.testing.assert_allclose(
            have, want, rtol=1e-6, atol=1e-6 * (1 + np.abs(want).max(initial=0))
        )
    gs = alike(rng, found)
    received = interpret(back, [*args, *gs])
    np.testing.assert_allclose(pairing(received, ts), pairing(gs, found), rtol=1e-9, atol=1e-9)
    if order > 1:
        check(along, [*args, *ts], order - 1)
        check(back, [*args, *gs], order - 1)


# -- cases --------------------------------------------------------------------------------------------------------


def h(a: Algebra, x: Value) -> Value:
    return a.conjugated(a.adjoint(x))


def hermitian(a: Algebra, x: Value) -> Value:
    return a.multiply(a.add(x, h(a, x)), 0.5)


def weighted(a: Algebra, v: Value, inverse: Value) -> Value:
    """`v @ diag(1, 2, …) @ inverse`: it has no free phase, and tells the columns of v apart."""
    count = a.add(a.as_dtype(a.iota(size=v.shape[-1], dtype=F64), v.dtype), 1)
    return a.matmul(a.multiply(v, count), inverse)


def through(op: str, **attrs: Any) -> Body:
    return lambda a, *xs: a.several(op, *xs, **attrs)


def symmetric(op: str, **attrs: Any) -> Body:
    return lambda a, x: getattr(a, op)(hermitian(a, x), **attrs)


def svd(full: bool = False) -> Body:
    def body(a: Algebra, x: Value) -> list[Value]:
        u, s, vh = a.several("svd", x, full_matrices=full)
        both = a.matmul(
            a.multiply(u, a.expanded(a.as_dtype(a.sin(s), u.dtype), (s.tensor.rank - 1,))), vh
        )
        return [s, both, weighted(a, u, h(a, u)), weighted(a, h(a, vh), vh)]

    return body


def eigh(a: Algebra, x: Value) -> list[Value]:
    w, v = a.several("eigh", hermitian(a, x), lower=True)
    return [w, weighted(a, v, h(a, v))]


def eig(a: Algebra, x: Value) -> list[Value]:
    w, v = a.several("eig", x)
    return [w, weighted(a, v, a.inv(v)), weighted(a, v, h(a, v))]


SQUARES = ((2, 3, 3), (1, 1), (0, 0))
OBLONGS = (*SQUARES, (2, 4), (2, 3, 2), (2, 0))
ONE: dict[str, tuple[Body, Any]] = {
    "cholesky": (symmetric("cholesky", upper=False), SQUARES),
    "upper cholesky": (symmetric("cholesky", upper=True), ((2, 2),)),
    "lu": (through("lu"), OBLONGS),
    "qr": (through("qr", mode="reduced"), OBLONGS),
    "r": (through("qr", mode="r"), ((3, 2),)),
    "complete qr": (through("qr", mode="complete"), ((2, 3),)),
    "svd": (svd(), OBLONGS),
    "r of a complete qr": (lambda a, x: a.several("qr", x, mode="complete")[1], OBLONGS),
    "full svd": (svd(True), ((3, 3),)),
    "values of a full svd": (lambda a, x: a.several("svd", x, full_matrices=True)[1], OBLONGS),
    "svdvals": (through("svdvals"), OBLONGS),
    "eigh": (eigh, SQUARES),
    "eigvalsh": (symmetric("eigvalsh", lower=False), SQUARES),
    "eig": (eig, SQUARES),
    "eigvals": (through("eigvals"), SQUARES),
    "inv": (through("inv"), SQUARES),
    "det": (through("det"), SQUARES),
    "slogdet": (through("slogdet"), SQUARES),
}


@pytest.mark.parametrize("dtype", [F64, C128], ids=["real", "complex"])
@pytest.mark.parametrize("name", ONE)
def test_derivatives(name: str, dtype: np.dtype) -> None:
    body, shapes = ONE[name]
    for shape in shapes:
        x = draw(np.random.default_rng(5), shape, dtype)
        x = x + 2 * np.eye(*shape[-2:]) * np.arange(1, shape[-1] + 1)
        check(build(body, TensorType(dtype, shape)), [x], order=1 if 0 in shape else 2)


SYSTEMS = (
    ((1, 3, 3), (2, 3, 2)),
    ((0, 0), (0, 2)),
    ((3, 3), (3, 2)),
    ((2, 3, 3), (3, 1)),
    ((1, 1), (1, 1)),
)
FLAGS = [
    dict(zip(("lower", "transpose", "unit"), flags)) for flags in product((True, False), repeat=3)
]


@pytest.mark.parametrize("dtype", [F64, C128], ids=["real", "complex"])
@pytest.mark.parametrize("attrs", [None, *FLAGS])
def test_derivatives_of_solvers(attrs: dict[str, bool] | None, dtype: np.dtype) -> None:
    rng = np.random.default_rng(2)
    body = through("solve") if attrs is None else through("triangular_solve", **attrs)
    for left, right in SYSTEMS[: 5 if attrs is None else 2]:
        m, b = draw(rng, left, dtype) + 3 * np.eye(left[-1]), draw(rng, right, dtype)
        graph = build(body, TensorType(dtype, left), TensorType(dtype, right))
        check(graph, [m, b], order=1 if 0 in left or (attrs and dtype == C128) else 2)


@pytest.mark.parametrize("dtype", [F64, C128], ids=["real", "complex"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_products_with_zeros(axis: int, dtype: np.dtype) -> None:
    x = draw(np.random.default_rng(3), (4, 4), dtype)
    x[np.eye(4, dtype=bool)[[0, 0, 2, 1]] | np.eye(4, dtype=bool)] = 0
    for array in (x, x[:0, :0]):
        check(build(through("cumprod", axis=axis), TensorType(dtype, array.shape)), [array])


# -- facts --------------------------------------------------------------------------------------------------------


def gradient(body: Body, x: np.ndarray, *gs: Any) -> np.ndarray:
    graph = build(body, TensorType(x.dtype, x.shape))
    return interpret(backward(graph), [x, *gs])[0]


def test_gradients_that_are_known() -> None:
    x = draw(np.random.default_rng(4), (3, 3), C128)
    logarithm = gradient(lambda a, x: a.several("slogdet", x)[1], x, 1.0)
    np.testing.assert_allclose(logarithm, np.linalg.inv(x).T)
    trace = gradient(through("eigvals"), x, np.ones(3) + 0j)
    np.testing.assert_allclose(trace, np.eye(3), atol=1e-12)
    u, _, vh = np.linalg.svd(x)
    np.testing.assert_allclose(gradient(through("svdvals"), x, np.ones(3)), (u @ vh).conj())
    lower = gradient(through("cholesky", upper=False), x @ x.conj().T, x)
    np.testing.assert_allclose(lower, lower.conj().T)


@pytest.mark.parametrize("x", [[[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.zeros((3, 3)), np.ones((3, 3)), [[1, 1], [1, 1]],
                               [[0]], np.diag([0, 1, 2]), np.eye(3), np.zeros((4, 4)), np.ones((4, 4)),
                               np.diag([0, 1, 2, 3])])  # fmt: skip
@pytest.mark.parametrize("scale", [1e-8, 1, 1e8])
def test_determinant_of_singular_matrices(x: Any, scale: float) -> None:
    x = np.array(x, float) * scale
    minor = lambda i, j: np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) * (-1) ** (i + j)
    cofactors = [[minor(i, j) for j in range(len(x))] for i in range(len(x))]
    atol = 1e-13 * np.abs(x).max() ** (len(x) - 1)
    np.testing.assert_allclose(gradient(through("det"), x, 1.0), cofactors, rtol=1e-12, atol=atol)


@pytest.mark.parametrize("x", [np.zeros((2, 2)), np.zeros((3, 3)), np.ones((3, 3))])
def test_derivatives_of_small_determinants_are_right_whatever_the_rank(x: np.ndarray) -> None:
    check(build(through("det"), TensorType(F64, x.shape)), [x], order=3)


@pytest.mark.parametrize("x", [np.arange(1.0, 10).reshape(3, 3), np.diag([0.0, 1, 2, 3])])
def test_second_derivatives_of_the_determinant_where_it_is_zero(x: np.ndarray) -> None:
    check(build(through("det"), TensorType(F64, x.shape)), [x], order=3)


def test_eigenvalues_in_another_order_than_beside_their_vectors() -> None:
    """LAPACK orders the two differently for matrices of more than a hundred rows."""
    rng, order, rule = np.random.default_rng(7), [1, 2, 0], derivative_of("eigvals")
    x, t, g = draw(rng, (3, 3), F64), draw(rng, (3, 3), F64), draw(rng, 3, C128)

    def body(a: Algebra, x: Value, t: Value, g: Value, w: Value) -> list[Value]:
        node: Any = SimpleNamespace(inputs=(x,), output=w)
        return [*rule.vjp(a, node, [g]), *rule.jvp(a, node, [t])]

    args = [x, t, g, np.linalg.eigvals(x)[order] + 0j]
    back, along = interpret(build(body, *(TensorType(v.dtype, v.shape) for v in args)), args)
    graph = forward(build(through("eigvals"), TensorType(F64, (3, 3))))
    np.testing.assert_allclose(along, interpret(graph, [x, t])[0][order])
    np.testing.assert_allclose(pairing([back], [t]), pairing([g], [along]))


def test_vectors_of_equal_values_that_nobody_asks_for() -> None:
    x = np.diag([3.0, 2, 0, 0])
    only = {"start": (0, 0), "size": (4, 1), "step": (1, 1)}
    first = lambda a, x: a.slice(a.several("svd", x, full_matrices=False)[0], **only)
    assert np.isfinite(gradient(first, x, np.ones((4, 1)))).all()
    for body, g in (
        (through("eigvalsh", lower=True), np.ones(3)),
        (through("eigvals"), np.ones(3) + 0j),
    ):
        np.testing.assert_allclose(gradient(body, np.eye(3), g), np.eye(3))


def test_logarithms_of_singular_matrices_are_steeper_than_any_number() -> None:
    x = np.stack([np.eye(2), np.ones((2, 2))])
    found = gradient(lambda a, x: a.several("slogdet", x)[1], x, np.ones(2))
    np.testing.assert_allclose(found, [np.eye(2), np.full((2, 2), np.nan)])


@pytest.mark.parametrize(("body", "reason"), [
    (through("qr", mode="complete"), "complete `q` are arbitrary"),
    (lambda a, x: a.several("svd", x, full_matrices=True)[0], "complete `u` or `vh` are arbitrary"),
])  # fmt: skip
def test_what_completes_a_basis_is_refused(body: Body, reason: str) -> None:
    graph = build(body, TensorType(F64, (3, 2)))
    for mode in (forward, backward):
        with pytest.raises(GradientError, match=reason):
            mode(graph)


@pytest.mark.parametrize("name", ["lu", "qr", "svd", "eigh", "eigvals", "det", "slogdet"])
def test_sizes_that_are_not_known(name: str) -> None:
    m, n = Symbol("m"), Symbol("n")
    body, shapes = ONE[name]
    known = shapes is SQUARES
    for shape in ((3, 3),) if known else ((3, 2), (2, 3)):
        x = draw(np.random.default_rng(6), shape, F64) + np.eye(*shape) * np.arange(3, 3 + shape[1])
        check(build(body, TensorType(F64, (n, n) if known else (m, n))), [x])
