"""`dsl.linalg` and the products of `dsl.numpy` against NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from against_numpy import assert_same, calling, check

import dsl

LINALG = ["f4", "f8", "c8", "c16"]
EVERY = ["?", "i1", "i4", "i8", "u2", "f2", *LINALG]


def draw(shape: Any, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *np.atleast_1d(shape)])
    x = rng.normal(size=shape) * 3
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return np.asarray(np.abs(x) if np.dtype(dtype).kind == "u" else x).astype(dtype)


def hermitian(n: int, dtype: str = "f8", batch: tuple[int, ...] = ()) -> np.ndarray:
    x = draw((*batch, n, n), dtype)
    return (x @ x.swapaxes(-1, -2).conj() + 5 * np.eye(n)).astype(dtype)


# -- products ----------------------------------------------------------------------------------------------------

PRODUCTS = [
    ((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("shapes", PRODUCTS)
def test_matmul(shapes: Any, dtype: str) -> None:
    check(
        lambda x, y: x @ y,
        draw(shapes[0], dtype),
        draw(shapes[1], dtype, 1),
        tolerance=3e-2 if dtype == "f2" else None,
    )


@pytest.mark.parametrize(
    ("left", "right"), [("i4", "f4"), ("?", "i2"), ("f4", "c8"), ("u8", "i8"), ("f2", "f4")]
)
def test_products_promote_as_numpy_does(left: str, right: str) -> None:
    x, y = draw((3, 3), left), draw((3, 3), right)
    for product in (np.matmul, np.dot, np.inner, np.outer, np.vdot, np.tensordot, np.kron):
        check(lambda a, b, product=product: product(a, b), x, y)


@pytest.mark.parametrize(
    "shapes",
    [((), ()), ((), (3,)), ((3,), (3,)), ((2, 3), (3,)), ((4, 2, 3), (3,)), ((2, 3), (3, 4)), ((4, 2, 3), (5, 3, 2)),
     ((3,), (5, 3, 2)), ((2, 3), (5, 3, 2))],
)  # fmt: skip
def test_dot_in_all_ranks(shapes: Any) -> None:
    x, y = draw(shapes[0]), draw(shapes[1], seed=1)
    check(lambda a, b: np.dot(a, b), x, y)
    check(lambda a, b: a.dot(b), x, y)


@pytest.mark.parametrize(
    "shapes", [((), (3,)), ((3,), (3,)), ((2, 3), (4, 3)), ((5, 2, 3), (4, 6, 3)), ((3,), (4, 3))]
)
def test_inner(shapes: Any) -> None:
    check(lambda a, b: np.inner(a, b), draw(shapes[0]), draw(shapes[1], seed=1))


def test_dot_with_a_python_number_is_float64_as_in_numpy() -> None:
    check(lambda a: np.dot(a, 2.0), draw(3, "f4"))


def test_vdot_and_vecdot_conjugate_the_first_operand() -> None:
    x, y = draw((2, 3), "c16"), draw((2, 3), "c16", 1)
    check(lambda a, b: np.vdot(a, b), x, y)
    check(lambda a, b: np.vecdot(a, b), x, y)
    check(lambda a, b: np.vecdot(a, b, axis=0), x, y)
    check(lambda a, b: np.linalg.vecdot(a, b), x, y)


@pytest.mark.parametrize("dtype", LINALG)
def test_matvec_and_vecmat(dtype: str) -> None:
    check(lambda a, b: np.matvec(a, b), draw((5, 2, 3), dtype), draw((5, 3), dtype, 1))
    check(lambda a, b: np.vecmat(a, b), draw((5, 2), dtype), draw((5, 2, 3), dtype, 1))
    check(lambda a, b: np.matvec(a, b), draw((2, 3), dtype), draw(3, dtype))


def test_matmul_moves_axes() -> None:
    x, y = draw((3, 2, 5)), draw((5, 3, 4))
    check(lambda a, b: np.matmul(a, b, axes=[(1, 0), (1, 2), (0, 1)]), x, y)


def test_matmul_writes_into_out() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        y = np.zeros((2, 2))
        np.matmul(x, x, out=y)
        np.dot(x, y, out=y)
        return y

    check(function, draw((2, 2)))


def test_matmul_in_place() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x @= x
        return x

    check(function, draw((3, 3)))


@pytest.mark.parametrize("axes", [0, 1, 2, ([1, 0], [0, 1]), (1, 0), ([-1], [0])])
def test_tensordot(axes: Any) -> None:
    check(lambda a, b: np.tensordot(a, b, axes), draw((3, 3)), draw((3, 3), seed=1))
    check(lambda a, b: np.linalg.tensordot(a, b, axes=axes), draw((3, 3)), draw((3, 3), seed=1))


def test_tensordot_of_higher_ranks() -> None:
    check(lambda a, b: np.tensordot(a, b, axes=([1, 2], [0, 2])), draw((2, 3, 4)), draw((3, 5, 4)))


@pytest.mark.parametrize(
    "shapes", [((2, 3), (4, 5)), ((3,), (2, 2)), ((2, 2, 2), (3, 2)), ((), (2,)), ((), ())]
)
def test_kron(shapes: Any) -> None:
    check(lambda a, b: np.kron(a, b), draw(shapes[0]), draw(shapes[1], seed=1))


def test_cross() -> None:
    x, y = draw((4, 3)), draw((4, 3), seed=1)
    check(lambda a, b: np.cross(a, b), x, y)
    check(lambda a, b: np.cross(a, b), x, y[0])
    check(lambda a, b: np.cross(a.T, b.T, axis=0), x, y)
    check(lambda a, b: np.cross(a, b, axisc=0), x, y)
    check(lambda a, b: np.linalg.cross(a, b), x, y)


@pytest.mark.filterwarnings("ignore:Arrays of 2-dimensional vectors:DeprecationWarning")
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2)])
def test_cross_of_plane_vectors(sizes: tuple[int, int]) -> None:
    check(lambda a, b: np.cross(a, b), draw((4, sizes[0]), "i4"), draw((4, sizes[1]), "f8"))
    check(lambda a, b: np.cross(a, b), draw(sizes[0]), draw(sizes[1]))


def test_outer() -> None:
    check(lambda a, b: np.outer(a, b), draw((2, 2), "i4"), draw(3, "f4"))
    check(lambda a, b: np.linalg.outer(a, b), draw(2), draw(3))


@pytest.mark.parametrize("ends", ["matrices", "vector first", "vector last", "vectors"])
def test_multi_dot(ends: str) -> None:
    first = draw(4) if ends in ("vector first", "vectors") else draw((3, 4))
    last = draw(3) if ends in ("vector last", "vectors") else draw((3, 2))
    check(
        lambda a, b, c, d: np.linalg.multi_dot([a, b, c, d]),
        first,
        draw((4, 5)),
        draw((5, 3)),
        last,
    )
    check(lambda a, b, c: np.linalg.multi_dot([a, b, c]), first, draw((4, 3)), last)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 10, -1, -3])
def test_matrix_power(n: int) -> None:
    check(lambda a: np.linalg.matrix_power(a, n), draw((3, 3)), tolerance=1e-7)
    check(lambda a: np.linalg.matrix_power(a, abs(n)), draw((2, 3, 3), "i4"))


# -- factorisations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*LINALG, "i4", "?"])
@pytest.mark.parametrize("name", ["inv", "det", "slogdet"])
def test_square_matrices(name: str, dtype: str) -> None:
    eye = 7 * np.eye(3) if dtype != "?" else np.eye(3)
    for batch in ((), (2,)):
        x = (
            (draw((*batch, 3, 3), dtype) + eye).astype(dtype)
            if dtype != "?"
            else np.broadcast_to(eye, (*batch, 3, 3)).astype(dtype)
        )
        check(lambda a: getattr(np.linalg, name)(a), x)


@pytest.mark.parametrize("dtype", LINALG)
def test_cholesky_and_eigenvalues_of_hermitian_matrices(dtype: str) -> None:
    for batch in ((), (2, 2)):
        x = hermitian(3, dtype, batch)
        check(lambda a: np.linalg.cholesky(a), x)
        check(lambda a: np.linalg.cholesky(a, upper=True), x)
        check(lambda a: np.linalg.eigh(a), x)
        check(lambda a: np.linalg.eigh(a, UPLO="U"), x)
        check(lambda a: np.linalg.eigvalsh(a), x)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 4, 3)])
def test_qr(shape: Any, mode: str) -> None:
    check(lambda a: np.linalg.qr(a, mode), draw(shape))
    check(lambda a: np.linalg.qr(a, mode=mode), draw(shape, "c8"))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 4, 3)])
def test_svd(shape: Any) -> None:
    for dtype in LINALG:
        x = draw(shape, dtype)
        check(lambda a: np.linalg.svd(a), x)
        check(lambda a: np.linalg.svd(a, full_matrices=False), x)
        check(lambda a: np.linalg.svd(a, compute_uv=False), x)
        check(lambda a: np.linalg.svdvals(a), x)


def test_svd_of_hermitian_matrices() -> None:
    x = draw((2, 4, 4))
    x = x + x.swapaxes(-1, -2)
    check(lambda a: np.linalg.svd(a[0], hermitian=True), x)
    check(lambda a: np.linalg.svd(a, hermitian=True, compute_uv=False), x)


@pytest.mark.parametrize("dtype", ["f8", "c16", "i4"])
def test_eig_is_always_complex(dtype: str) -> None:
    x = draw((4, 4), dtype)
    result = dsl.jit(lambda a: np.linalg.eig(a))(x)
    assert type(result).__name__ == "EigResult"
    assert result.eigenvalues.dtype == result.eigenvectors.dtype == np.complex128
    assert_same(x @ result.eigenvectors, result.eigenvectors * result.eigenvalues)
    values = dsl.jit(lambda a: np.linalg.eigvals(a))(x)
    assert_same(np.sort(values), np.sort(result.eigenvalues))
    symmetric = dsl.jit(lambda a: np.linalg.eigvals(a))(np.diag([1.0, 2.0]))
    assert symmetric.dtype == np.complex128


# -- triangular factors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (6, 6), (2, 4, 4)])
@pytest.mark.parametrize("dtype", LINALG)
def test_lu_as_scipy(shape: Any, dtype: str) -> None:
    x = draw(shape, dtype)
    for got, want in zip(dsl.jit(lambda a: dsl.linalg.lu(a))(x), scipy.linalg.lu(x), strict=True):
        assert_same(got, want)
    p, low, up = dsl.jit(lambda a: dsl.linalg.lu(a, p_indices=True))(x)
    if len(shape) == 2:
        assert_same(low[p] @ up, x)
    pl, up = dsl.jit(lambda a: dsl.linalg.lu(a, permute_l=True))(x)
    assert_same(pl @ up, x)


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_lu_solve_as_scipy(trans: int) -> None:
    for dtype in LINALG:
        x = draw((5, 5), dtype) + 4 * np.eye(5, dtype=dtype)
        for b in (draw(5, dtype), draw((5, 2), dtype)):
            got = dsl.jit(lambda a, b: dsl.linalg.lu_solve(dsl.linalg.lu_factor(a), b, trans))(x, b)
            assert_same(got, scipy.linalg.lu_solve(scipy.linalg.lu_factor(x), b, trans))


def test_lu_factor_as_scipy() -> None:
    x = draw((4, 4))
    packed, pivots = dsl.jit(lambda a: dsl.linalg.lu_factor(a))(x)
    expected = scipy.linalg.lu_factor(x)
    assert_same(packed, expected[0])
    np.testing.assert_array_equal(pivots, expected[1])


@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
@pytest.mark.parametrize("lower", [True, False])
def test_solve_triangular_as_scipy(trans: Any, lower: bool) -> None:
    x = draw((4, 4), "c16") + 6 * np.eye(4)
    for b in (draw(4), draw((4, 2), "c16")):
        for unit in (True, False):
            options = {"trans": trans, "lower": lower, "unit_diagonal": unit}
            got = dsl.jit(
                lambda a, b, options=options: dsl.linalg.solve_triangular(a, b, **options)
            )(x, b)
            want = scipy.linalg.solve_triangular(x, b, **options)
            np.testing.assert_allclose(got, want, rtol=1e-10)


# -- solving -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 3), (3,)),
        ((3, 3), (3, 2)),
        ((2, 3, 3), (3,)),
        ((2, 3, 3), (2, 3, 1)),
        ((3, 3), (2, 3, 2)),
    ],
)
def test_solve(shapes: Any) -> None:
    for dtype in (*LINALG, "i4"):
        a = (draw(shapes[0], dtype) + 9 * np.eye(3)).astype(dtype)
        check(lambda a, b: np.linalg.solve(a, b), a, draw(shapes[1], dtype))


def test_solve_promotes() -> None:
    a = draw((3, 3), "f4") + 9 * np.eye(3, dtype="f4")
    check(lambda a, b: np.linalg.solve(a, b), a, draw(3, "c8"))
    check(lambda a, b: np.linalg.solve(a, b), a, draw(3, "i4"))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3), (0, 3)])
def test_pinv(shape: Any) -> None:
    for dtype in LINALG:
        x = draw(shape, dtype)
        check(lambda a: np.linalg.pinv(a), x)
        check(lambda a: np.linalg.pinv(a, rcond=0.3), x)
        check(lambda a: np.linalg.pinv(a, rtol=None), x)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (2, 4, 3), (3,), ()])
def test_matrix_rank(shape: Any) -> None:
    x = draw(shape)
    check(lambda a: np.linalg.matrix_rank(a), x)
    check(lambda a: np.linalg.matrix_rank(a * 0), x)
    check(lambda a: np.linalg.matrix_rank(a, tol=2.0), x)
    check(lambda a: np.linalg.matrix_rank(a, rtol=0.5), x)


@pytest.mark.parametrize("p", [None, 2, -2, 1, -1, np.inf, -np.inf, "fro"])
def test_cond(p: Any) -> None:
    check(lambda a: np.linalg.cond(a, p), draw((3, 3)), tolerance=1e-9)
    check(lambda a: np.linalg.cond(a, p), draw((2, 3, 3)), tolerance=1e-9)
    check(lambda a: np.linalg.cond(a, p), draw((3, 3), "f4"), tolerance=1e-4)


@pytest.mark.parametrize("p", [1, np.inf, "fro"])
def test_cond_of_a_singular_matrix_is_infinite(p: Any) -> None:
    check(lambda a: np.linalg.cond(a, p), np.zeros((2, 2)))
    check(lambda a: np.linalg.cond(a, p), np.stack([np.eye(2), np.zeros((2, 2))]))


@pytest.mark.parametrize(
    "shapes", [((5, 3), (5,)), ((5, 3), (5, 2)), ((3, 3), (3,)), ((3, 5), (3, 2))]
)
def test_lstsq(shapes: Any) -> None:
    for dtype in (*LINALG, "i4"):
        check(lambda a, b: np.linalg.lstsq(a, b), draw(shapes[0], dtype), draw(shapes[1], dtype))


def test_lstsq_of_a_deficient_matrix_has_no_residuals() -> None:
    a = np.stack([np.arange(5.0), np.arange(5.0) * 2, np.ones(5)], axis=1)
    check(lambda a, b: np.linalg.lstsq(a, b), a, draw(5), tolerance=1e-8)
    check(lambda a, b: np.linalg.lstsq(a, b, rcond=0.5), draw((5, 3)), draw(5))


def test_tensor_equations() -> None:
    x = draw((2, 3, 6))
    check(lambda a, b: np.linalg.tensorsolve(a, b), x, draw((2, 3)), tolerance=1e-9)
    check(lambda a: np.linalg.tensorinv(a), x, tolerance=1e-9)
    check(
        lambda a, b: np.linalg.tensorsolve(a, b, axes=(0,)),
        draw((6, 2, 3)),
        draw((2, 3)),
        tolerance=1e-9,
    )


# -- norms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ord", [None, np.inf, -np.inf, 0, 1, -1, 2, -2, 3, 0.5])
@pytest.mark.parametrize("dtype", ["f2", "i4", *LINALG])
def test_vector_norms(ord: Any, dtype: str) -> None:
    tolerance = 3e-2 if dtype == "f2" else None
    x = draw((4, 3), dtype)
    x[x == 0] = 1
    for axis in (0, 1, -1):
        for keepdims in (False, True):
            check(calling(np.linalg.norm, ord, axis, keepdims), x, tolerance=tolerance)
    check(lambda a: np.linalg.norm(a, ord), x[0], tolerance=tolerance)


@pytest.mark.parametrize("ord", [None, "fro", "nuc", np.inf, -np.inf, 1, -1, 2, -2])
@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (-2, -1), (2, 0)])
def test_matrix_norms(ord: Any, axis: Any) -> None:
    for dtype in LINALG:
        for keepdims in (False, True):
            check(calling(np.linalg.norm, ord, axis, keepdims), draw((2, 3, 4), dtype))
    check(lambda a: np.linalg.norm(a, ord), draw((3, 4)))


@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_the_array_standard(keepdims: bool) -> None:
    x = draw((2, 3, 4))
    check(lambda a: np.linalg.norm(a, keepdims=keepdims), x)
    check(lambda a: np.linalg.matrix_norm(a, keepdims=keepdims), x)
    check(lambda a: np.linalg.matrix_norm(a, ord="nuc", keepdims=keepdims), x)
    for axis in (None, 0, (0, 2), (2, 1)):
        for ord in (1, 2, np.inf):
            check(calling(np.linalg.vector_norm, axis=axis, keepdims=keepdims, ord=ord), x)


def test_views() -> None:
    x = draw((2, 3, 3))
    check(lambda a: np.linalg.matrix_transpose(a), x)
    check(lambda a: np.linalg.diagonal(a, offset=1), x)
    check(lambda a: np.linalg.trace(a, offset=-1), x)


# -- sizes known at run time -------------------------------------------------------------------------------------


def test_products_of_sizes_known_at_run_time() -> None:
    def function(x: np.ndarray) -> Any:
        y = x[x > 0]
        return (
            y @ y,
            np.outer(y, y),
            np.dot(y, y),
            np.linalg.norm(y),
            np.linalg.inv(np.outer(y, y) + np.eye(y.size)),
        )

    check(function, draw(9), tolerance=1e-9)


# -- mistakes ----------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[Any, tuple[Any, ...]]] = [
    (lambda a, b: a @ b, ((2, 3), (2, 3))),
    (lambda a, b: a @ 2.0, ((2, 3), ())),
    (lambda a, b: np.dot(a, b), ((2, 3), (2, 3))),
    (lambda a, b: np.inner(a, b), ((2, 3), (2, 4))),
    (lambda a, b: np.vdot(a, b), ((2,), (3,))),
    (lambda a, b: np.vecdot(a, b), ((2,), (3,))),
    (lambda a, b: np.tensordot(a, b), ((2, 3), (2, 4))),
    (lambda a, b: np.tensordot(a, b, axes=([5], [0])), ((2, 3), (2, 4))),
    (lambda a, b: np.cross(a, b), ((4,), (3,))),
    (lambda a, b: np.linalg.cross(a, b), ((4,), (3,))),
    (lambda a, b: np.linalg.inv(a), ((2, 3), ())),
    (lambda a, b: np.linalg.inv(a), ((2,), ())),
    (lambda a, b: np.linalg.solve(a, b), ((2, 2), (3,))),
    (lambda a, b: np.linalg.solve(a, b), ((2, 2), (3, 1))),
    (lambda a, b: np.linalg.qr(a, mode="x"), ((2, 2), ())),
    (lambda a, b: np.linalg.eigh(a, UPLO="X"), ((2, 2), ())),
    (lambda a, b: np.linalg.norm(a, "fro"), ((3,), ())),
    (lambda a, b: np.linalg.norm(a, 3), ((3, 3), ())),
    (lambda a, b: np.linalg.norm(a, 1), ((3, 3, 3), ())),
    (lambda a, b: np.linalg.norm(a, axis=(0, 0)), ((3, 3), ())),
    (lambda a, b: np.linalg.matrix_power(a, 1.5), ((3, 3), ())),
    (lambda a, b: np.linalg.multi_dot([a]), ((3, 3), ())),
    (lambda a, b: np.linalg.multi_dot([a, b, a]), ((2, 3), (2, 3))),
    (lambda a, b: np.linalg.lstsq(a, b), ((3, 2), (4,))),
    (lambda a, b: np.linalg.cond(a), ((0, 0), ())),
    (lambda a, b: np.linalg.outer(a, b), ((2, 2), (2,))),
    (lambda a, b: np.linalg.inv(a.astype("f2")), ((2, 2), ())),
    (lambda a, b: np.linalg.matrix_transpose(a), ((2,), ())),
]


@pytest.mark.parametrize("case", range(len(MISTAKES)))
def test_mistakes_raise_numpys_errors(case: int) -> None:
    function, shapes = MISTAKES[case]
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises((ValueError, TypeError, IndexError)) as expected:
        function(*arrays)
    with pytest.raises(type(expected.value)) as found:
        dsl.jit(function)(*arrays)
    assert (
        getattr(found.value, "message", str(found.value)).splitlines()[0]
        == str(expected.value).splitlines()[0]
    )


def test_errors_of_data_come_when_the_function_runs() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        dsl.jit(lambda a: np.linalg.inv(a))(np.zeros((2, 2)))
    with pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"):
        dsl.jit(lambda a: np.linalg.cholesky(a))(-np.eye(2))


def test_triangles_whose_sizes_are_known_when_they_are_there() -> None:
    f = dsl.jit(lambda a, b: dsl.linalg.solve_triangular(a, b, lower=True), dynamic=True)
    rng = np.random.default_rng(3)
    for m, n in ((2, 3), (5, 1), (40, 1), (40, 9), (200, 2), (0, 3), (3, 0)):
        a, b = np.tril(rng.normal(size=(m, m)) / max(m, 1) + 2 * np.eye(m)), rng.normal(size=(m, n))
        np.testing.assert_allclose(a @ f(a, b), b, rtol=1e-10, atol=1e-12)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        f(np.zeros((2, 2)), np.ones((2, 1)))


@pytest.mark.parametrize("size", [3, 8, 16, 24, 33])
def test_stacks_of_matrices_are_shared_among_threads(size: int) -> None:
    """Each thread has a flag of its own for what LAPACK cannot do."""
    rng = np.random.default_rng(size)
    x = rng.random((3, 20, size, size)) + size * np.eye(size)
    y, s = rng.random((3, 20, size, 2)), x + x.mT
    programs = [
        (np.linalg.solve, (x, y)), (np.linalg.solve, (x[:1], y)), (np.linalg.inv, (x,)), (np.linalg.det, (x,)),
        (np.linalg.cholesky, (s,)), (np.linalg.eigvalsh, (s,)), (lambda s: np.linalg.eigh(s)[1] ** 2, (s,)),
        (lambda x: np.linalg.svd(x)[1], (x,)), (lambda x: np.linalg.svd(x[..., :-1], full_matrices=False)[0] ** 2, (x,)),
    ]  # fmt: skip
    for program, args in programs:
        compiled = dsl.jit(program)
        with dsl.num_threads(1):
            one = compiled(*args)
        with dsl.num_threads(3):
            assert compiled(*args).tobytes() == one.tobytes()
        np.testing.assert_allclose(one, program(*args), rtol=1e-10, atol=1e-12)
    for where in [(0, 0), (1, 7), (2, 19)]:
        z = x.copy()
        z[where] = 0
        for name, args in (("solve", (z, y)), ("inv", (z,)), ("cholesky", (z - 1,))):
            compiled = dsl.jit(getattr(np.linalg, name))
            with (
                dsl.num_threads(3),
                pytest.raises(np.linalg.LinAlgError, match=r"Singular|positive definite"),
            ):
                compiled(*args)
            assert np.isfinite(compiled(s, y) if name == "solve" else compiled(s)).all()
