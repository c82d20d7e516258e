"""Linear algebra and Fourier ops: type rules, NumPy's words for mistakes, and what defines each result.

Results that are unique only up to a sign, phase or order (`NOT_UNIQUE`) are tested here by what they satisfy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsl.errors import DslError, InternalError, ShapeError, TypeRuleError
from dsl.ir.dims import Symbol, dim_min
from dsl.ir.ops import fft, linalg
from dsl.ir.registry import OPS, Op, Sample, get_op
from dsl.ir.types import BFLOAT16, BY_NAME, DTYPES, HandleType, TensorType, ValueType, is_inexact

NAMES = (
    "matmul", "cholesky", "lu", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "solve", "inv", "det",
    "slogdet", "triangular_solve", "fft", "rfft", "irfft",
)  # fmt: skip
F64 = BY_NAME["f64"]
N, M, B = Symbol("n", 2), Symbol("m", 2), Symbol("b", 2)


def samples(name: str) -> list[Sample]:
    return list(get_op(name).samples(np.random.default_rng(1)))


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(array.dtype, array.shape)


def typed(name: str, *types: ValueType, **attrs: Any) -> tuple[Any, ...]:
    found = get_op(name).type(types, attrs)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def f64(*shape: Any) -> TensorType:
    return TensorType(F64, shape)


def run(record: Op | str, *inputs: np.ndarray, **attrs: Any) -> Any:
    record = get_op(record) if isinstance(record, str) else record
    with np.errstate(all="ignore"):
        return record.numpy(*inputs, **attrs)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


def assert_close(found: Any, expected: Any, like: np.ndarray) -> None:
    """Compare with an error that suits well-conditioned small matrices in the precision of `like`."""
    epsilon = np.finfo(like.dtype).eps
    np.testing.assert_allclose(found, expected, rtol=200 * epsilon, atol=200 * epsilon)


def eye(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.eye(x.shape[-1]), x.shape)


# -- every op ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_result_has_the_type_the_rule_says(name: str) -> None:
    for sample in samples(name):
        found = run(name, *sample.inputs, **sample.attrs)
        results = found if isinstance(found, tuple) else (found,)
        types = typed(name, *map(type_of, sample.inputs), **sample.attrs)
        assert tuple(type_of(np.asarray(array)) for array in results) == types


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_not_written_and_layout_does_not_matter(name: str) -> None:
    for sample in samples(name)[::3]:
        strided = [np.repeat(x[..., None], 2, axis=-1)[..., 0] for x in sample.inputs]
        for array in strided:
            array.setflags(write=False)
        found, expected = (run(name, *xs, **sample.attrs) for xs in (strided, sample.inputs))
        for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (found, expected))):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_op_says_what_it_does_and_names_itself_pure(name: str) -> None:
    record = get_op(name)
    assert record.doc.endswith(".")
    assert {trait.name for trait in record.traits} <= {"PURE", "CHECKED"}


def test_not_unique_lists_registered_ops() -> None:
    assert set(OPS) >= linalg.NOT_UNIQUE
    assert fft.__doc__ is not None


# -- matmul ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmul_of_whole_numbers_is_exact(dtype: np.dtype) -> None:
    x, y = np.arange(6).reshape(2, 3) % 3, np.arange(12).reshape(3, 4) % 2
    expected = x @ y != 0 if dtype == np.bool_ else x @ y
    found = run("matmul", x.astype(dtype), y.astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected.astype(dtype))


def test_matmul_of_integers_wraps() -> None:
    x = np.full((1, 2), 100, np.int8)
    assert run("matmul", x, x.T).item() == (2 * 100 * 100 + 128) % 256 - 128


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_matmul_of_halves_is_summed_in_float32(dtype: np.dtype) -> None:
    # A running sum kept in half precision would stop growing at 2048, respectively 256.
    ones = np.ones(4096, dtype)
    assert float(run("matmul", ones, ones)) == 4096


@pytest.mark.parametrize(
    "shapes",
    [((), (3,)), ((3,), ()), ((2, 3), (2, 3)), ((2, 3), (2,)), ((2,), (3, 2)), ((2, 2, 3), (3, 3, 2)),
     ((2, 5, 2, 3), (3, 3, 4))],
    ids=str,
)  # fmt: skip
def test_matmul_refuses_shapes_in_numpys_words(shapes: Any) -> None:
    arrays = [np.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError) as numpys:
        np.matmul(*arrays)
    with pytest.raises(ShapeError) as ours:
        typed("matmul", *map(type_of, arrays))
    assert ours.value.message == str(numpys.value)


def test_matmul_refuses_mixed_dtypes() -> None:
    with pytest.raises(TypeRuleError, match=r"matmul: y must be f64 as x is, got f32\[2\]"):
        typed("matmul", f64(2), TensorType(BY_NAME["f32"], (2,)))


def test_matmul_takes_symbolic_dims() -> None:
    assert typed("matmul", f64(N, M), f64(M, 3)) == (f64(N, 3),)
    assert typed("matmul", f64(N), f64(N)) == (f64(),)
    assert typed("matmul", f64(B, N, M), f64(M)) == (f64(B, N),)
    assert typed("matmul", f64(N), f64(B, M, 4)) == (f64(B, 4),)
    with pytest.raises(ShapeError, match=r"size n \+ 1 is different from n"):
        typed("matmul", f64(2, N), f64(N + 1, 2))


def test_sizes_that_could_not_be_compared_are_compared_at_run_time() -> None:
    attrs = {"lower": True, "transpose": False, "unit": False}
    assert typed("triangular_solve", f64(N, N), f64(M, 1), **attrs) == (f64(N, 1),)
    for name, chosen in (("matmul", {}), ("solve", {}), ("triangular_solve", attrs)):
        with pytest.raises(ValueError, match="mismatch in its core dimension 0"):
            run(name, np.eye(3), np.ones((2, 1)), **chosen)


# -- type rules of the factorisations ----------------------------------------------------------------------------

SQUARE_OPS: dict[str, dict[str, Any]] = {
    "cholesky": {"upper": False}, "eigh": {"lower": True}, "eigvalsh": {"lower": True}, "eig": {}, "eigvals": {},
    "inv": {}, "det": {}, "slogdet": {},
}  # fmt: skip
OBLONG_OPS: dict[str, dict[str, Any]] = {
    "lu": {}, "qr": {"mode": "reduced"}, "svd": {"full_matrices": True}, "svdvals": {},
}  # fmt: skip


@pytest.mark.parametrize(("name", "attrs"), [*SQUARE_OPS.items(), *OBLONG_OPS.items()])
def test_matrices_of_rank_2_and_lapacks_dtypes_only(name: str, attrs: Any) -> None:
    with pytest.raises(np.linalg.LinAlgError, match="1-dimensional array given"):
        typed(name, f64(3), **attrs)
    for dtype in set(DTYPES) - set(linalg.LAPACK_DTYPES):
        with pytest.raises(TypeRuleError, match=f"array type {dtype.name} is unsupported in linal"):
            typed(name, TensorType(dtype, (2, 2)), **attrs)


@pytest.mark.parametrize(("name", "attrs"), SQUARE_OPS.items())
def test_square_matrices_only(name: str, attrs: Any) -> None:
    with pytest.raises(
        np.linalg.LinAlgError, match="Last 2 dimensions of the array must be square"
    ):
        typed(name, f64(2, 3), **attrs)
    with pytest.raises(DslError, match="must be square"):
        typed(name, f64(N, N + 1), **attrs)
    assert typed(name, f64(B, N, N), **attrs)[-1].shape[:1] == (B,)


def test_factor_shapes_with_symbolic_dims() -> None:
    k = dim_min(N, M)
    x = f64(B, N, M)
    assert typed("qr", x, mode="reduced") == (f64(B, N, k), f64(B, k, M))
    assert typed("qr", x, mode="complete") == (f64(B, N, N), f64(B, N, M))
    assert typed("qr", x, mode="r") == (f64(B, k, M),)
    assert typed("svd", x, full_matrices=True) == (f64(B, N, N), f64(B, k), f64(B, M, M))
    assert typed("svd", x, full_matrices=False) == (f64(B, N, k), f64(B, k), f64(B, k, M))
    assert typed("lu", x) == (x, TensorType(BY_NAME["i32"], (B, k)))


def test_the_better_known_size_is_kept() -> None:
    assert typed("inv", f64(N, 3)) == (f64(3, 3),)
    assert typed("eigh", f64(3, N), lower=True) == (f64(3), f64(3, 3))
    assert typed("solve", f64(N, N), f64(3, M)) == (f64(3, M),)


def test_unknown_qr_mode() -> None:
    with pytest.raises(TypeRuleError, match="Unrecognized mode 'raw'"):
        typed("qr", f64(2, 2), mode="raw")


@pytest.mark.parametrize("shapes", [((2, 2), (3, 1)), ((2, 2, 2), (3, 2, 1))], ids=str)
def test_solve_refuses_shapes_in_numpys_words(shapes: Any) -> None:
    arrays = [np.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError) as numpys:
        np.linalg.solve(*arrays)
    with pytest.raises(ShapeError) as ours:
        typed("solve", *map(type_of, arrays))
    assert ours.value.message == str(numpys.value)


# -- what defines the results ------------------------------------------------------------------------------------


def test_cholesky_multiplies_back_and_reads_one_triangle() -> None:
    for sample in samples("cholesky"):
        (x,), upper = sample.inputs, sample.attrs["upper"]
        half = np.triu(x) if upper else np.tril(x)
        factor = run("cholesky", half, upper=upper)
        assert_close(adjoint(factor) @ factor if upper else factor @ adjoint(factor), x, x)
        np.testing.assert_array_equal(factor, np.triu(factor) if upper else np.tril(factor))


def swap_rows(x: np.ndarray, pivots: np.ndarray) -> np.ndarray:
    x = x.copy()
    for i, pivot in enumerate(pivots):
        x[[i, pivot]] = x[[pivot, i]]
    return x


def test_lu_multiplies_back_to_the_rows_in_pivot_order() -> None:
    for sample in samples("lu"):
        (x,) = sample.inputs
        packed, pivots = run("lu", x)
        rows, columns = x.shape[-2:]
        inner = min(rows, columns)
        lower = np.tril(packed, -1)[..., :inner] + np.eye(rows, inner)
        upper = np.triu(packed)[..., :inner, :]
        for at in np.ndindex(x.shape[:-2]):
            assert_close(lower[at] @ upper[at], swap_rows(x[at], pivots[at]), x)
        assert (abs(lower) <= 1.5).all()


def test_lu_of_a_singular_matrix_is_defined() -> None:
    packed, pivots = run("lu", np.zeros((2, 3, 3)))
    assert not packed.any()
    np.testing.assert_array_equal(pivots, [[0, 1, 2]] * 2)


def test_qr_is_orthonormal_times_triangular() -> None:
    for sample in samples("qr"):
        (x,), mode = sample.inputs, sample.attrs["mode"]
        q, r = (None, run("qr", x, mode=mode)) if mode == "r" else run("qr", x, mode=mode)
        np.testing.assert_array_equal(r, np.triu(r))
        assert_close(adjoint(r) @ r, adjoint(x) @ x, x)
        if q is not None:
            assert_close(adjoint(q) @ q, eye(adjoint(q) @ q), x)
            assert_close(q @ r, x, x)


def test_svd_is_unitary_diagonal_unitary() -> None:
    for sample in samples("svd"):
        (x,) = sample.inputs
        u, s, vh = run("svd", x, **sample.attrs)
        assert (np.diff(s) <= 0).all()
        assert (s >= 0).all()
        k = s.shape[-1]
        assert_close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, x)
        for side in (adjoint(u) @ u, vh @ adjoint(vh)):
            assert_close(side, eye(side), x)
        assert_close(run("svdvals", x), s, x)


def test_eigh_diagonalises_and_reads_one_triangle() -> None:
    for sample in samples("eigh"):
        (x,), lower = sample.inputs, sample.attrs["lower"]
        half = np.tril(x) if lower else np.triu(x)
        w, v = run("eigh", half, lower=lower)
        assert (np.diff(w) >= 0).all()
        assert_close(v * w[..., None, :] @ adjoint(v), x, x)
        assert_close(adjoint(v) @ v, eye(v), x)
        assert_close(run("eigvalsh", half, lower=lower), w, x)


def test_eig_satisfies_its_equation_and_is_complex() -> None:
    for sample in samples("eig"):
        (x,) = sample.inputs
        w, v = run("eig", x)
        assert w.dtype == v.dtype == np.result_type(x.dtype, np.complex64)
        assert_close(x @ v, v * w[..., None, :], x)
        assert_close(np.sort_complex(run("eigvals", x)), np.sort_complex(w), x)


def test_eig_of_a_rotation() -> None:
    w, _ = run("eig", np.array([[0.0, -1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(np.sort_complex(w), [-1j, 1j], atol=1e-15)


def test_solve_and_inv_undo_the_product() -> None:
    for sample in samples("solve"):
        a, b = sample.inputs
        x = run("solve", a, b)
        assert_close(a @ x, np.broadcast_to(b, x.shape), a)
        inverse = run("inv", a)
        assert_close(a @ inverse, eye(a), a)


def test_det_is_the_product_of_eigenvalues_and_slogdet_its_parts() -> None:
    for sample in samples("det"):
        (x,) = sample.inputs
        det, (sign, logdet) = run("det", x), run("slogdet", x)
        assert_close(det, run("eigvals", x).prod(axis=-1), x)
        assert_close(sign * np.exp(logdet), det, x)


def test_det_of_a_singular_matrix_is_zero() -> None:
    sign, logdet = run("slogdet", np.zeros((2, 2)))
    assert (run("det", np.zeros((2, 2))), sign, logdet) == (0, 0, -np.inf)


def test_triangular_solve_agrees_with_solve_on_the_triangle() -> None:
    for sample in samples("triangular_solve"):
        (a, b), attrs = sample.inputs, sample.attrs
        triangle = np.tril(a) if attrs["lower"] else np.triu(a)
        if attrs["unit"]:
            triangle = triangle - triangle * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
        if attrs["transpose"]:
            triangle = triangle.swapaxes(-1, -2)
        junk = np.triu(np.full(a.shape, 7), 1)
        noisy = a + (junk if attrs["lower"] else junk.swapaxes(-1, -2)).astype(a.dtype)
        assert_close(run("triangular_solve", noisy, b, **attrs), np.linalg.solve(triangle, b), a)


# -- data that cannot be handled ---------------------------------------------------------------------------------

ONE_BAD = np.stack([np.eye(2), np.zeros((2, 2))])
NANS = np.full((2, 2), np.nan)
TRIANGLE = {"lower": True, "transpose": False, "unit": False}


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "words"),
    [
        ("inv", (ONE_BAD,), {}, "Singular matrix"),
        ("solve", (ONE_BAD, np.ones((2, 1))), {}, "Singular matrix"),
        ("triangular_solve", (ONE_BAD, np.ones((2, 1))), TRIANGLE, "Singular matrix"),
        ("cholesky", (-np.eye(2),), {"upper": False}, "Matrix is not positive definite"),
        ("eig", (NANS,), {}, "Array must not contain infs or NaNs"),
        ("eigvals", (NANS,), {}, "Array must not contain infs or NaNs"),
        ("svd", (NANS,), {"full_matrices": False}, "SVD did not converge"),
        ("svdvals", (NANS,), {}, "SVD did not converge"),
    ],
)
def test_bad_data_raises_in_numpys_words(name: str, inputs: Any, attrs: Any, words: str) -> None:
    assert "CHECKED" in {trait.name for trait in get_op(name).traits}
    with pytest.raises(np.linalg.LinAlgError, match=words):
        run(name, *inputs, **attrs)


def test_a_unit_triangle_is_never_singular() -> None:
    b = np.ones((2, 1))
    found = run("triangular_solve", np.zeros((2, 2)), b, lower=True, transpose=False, unit=True)
    np.testing.assert_array_equal(found, b)


# -- Fourier -----------------------------------------------------------------------------------------------------


def direct(x: np.ndarray, axis: int, sign: int) -> np.ndarray:
    """The transform by its definition, in double precision."""
    n = x.shape[axis]
    angles = np.outer(np.arange(n), np.arange(n)) % n * (2 * np.pi / n)
    return np.moveaxis(np.moveaxis(x, axis, -1) @ np.exp(sign * 1j * angles), -1, axis)


def fourier_close(found: np.ndarray, expected: np.ndarray) -> None:
    scale = np.abs(expected).max(initial=1.0)
    assert np.abs(found - expected).max(initial=0.0) <= 32 * np.finfo(found.dtype).eps * scale


def test_fft_is_the_unscaled_sum_in_both_directions() -> None:
    for sample in samples("fft"):
        (x,), attrs = sample.inputs, sample.attrs
        fourier_close(
            run("fft", x, **attrs), direct(x, attrs["axis"], 1 if attrs["inverse"] else -1)
        )


def test_rfft_is_the_first_half() -> None:
    for sample in samples("rfft"):
        (x,), (axis, n) = sample.inputs, (sample.attrs["axis"], sample.attrs["n"])
        half = np.take(direct(x, axis, -1), np.arange(n // 2 + 1), axis=axis)
        fourier_close(run("rfft", x, axis=axis, n=n), half)


def test_irfft_undoes_rfft_up_to_the_length() -> None:
    for sample in samples("rfft"):
        (x,), (axis, n) = sample.inputs, (sample.attrs["axis"], sample.attrs["n"])
        half = run("rfft", x, axis=axis, n=n)
        fourier_close(run("irfft", half, axis=axis, n=n), x * n)


def test_irfft_ignores_the_imaginary_parts_that_reals_cannot_have() -> None:
    x = np.array([1 + 5j, 2 + 1j, 3 + 7j])
    np.testing.assert_allclose(
        run("irfft", x, axis=0, n=4), run("irfft", np.array([1, 2 + 1j, 3]), axis=0, n=4)
    )


def test_fourier_types_with_symbolic_sizes() -> None:
    c128 = BY_NAME["c128"]
    assert typed("rfft", f64(B, N), axis=1, n=N) == (TensorType(c128, (B, N // 2 + 1)),)
    half = TensorType(c128, (N, B))
    assert typed("irfft", half, axis=0, n=2 * (N - 1)) == (f64(2 * N - 2, B),)
    assert typed("fft", half, axis=1, n=B, inverse=True) == (half,)


FFT: dict[str, Any] = {"axis": 0, "inverse": False}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: typed("fft", f64(4), n=4, **FFT), TypeRuleError, "fft: x must be c64 or c128, got f64"),
        (lambda: typed("irfft", f64(4), n=4, axis=0), TypeRuleError, "irfft: x must be c64 or c128"),
        (lambda: typed("rfft", f64(4), n=4, axis=1), InternalError, "axis 1 is not a normalised axis"),
        (lambda: typed("rfft", f64(4), n=4, axis=-1), InternalError, "axis -1 is not a normalised axis"),
        (lambda: typed("rfft", f64(0), n=0, axis=0), ShapeError, "Invalid number of FFT data points \\(0\\)"),
        (lambda: typed("rfft", f64(4), n=5, axis=0), ShapeError, "rfft: length 5 takes size 5 on axis 0, got 4"),
        (lambda: typed("rfft", f64(N), n=N + 1, axis=0), ShapeError, r"length n \+ 1 takes size n \+ 1"),
        (lambda: run("rfft", np.ones(4), axis=0, n=5), ShapeError, "length 5 takes size 5"),
        (lambda: run("irfft", np.ones(4), axis=0, n=4), ShapeError, "length 4 takes size 3"),
        (lambda: typed("rfft", f64(4), f64(4), n=4, axis=0), TypeRuleError, "expected 1 operands"),
        (lambda: typed("inv", HandleType("queue")), TypeRuleError, "inv: x must be an array, got !queue"),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_matmul_is_inexact_only_where_its_dtype_is() -> None:
    for sample in samples("matmul"):
        if sample.tolerance:
            assert is_inexact(sample.inputs[0].dtype)
