"""Functions of SciPy in compiled code: results, dtypes and errors of SciPy's, and refusals that name a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats
from against_numpy import assert_same, check, leaves

import dsl

special, linalg = scipy.special, scipy.linalg

POINTS = np.array([0, -0.0, 0.5, 1, 2, -1, np.nan, np.inf, -np.inf, 0.3, 0.65, 0.4, 1e-30, 30])
SYMMETRIC = np.array([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]])


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", ["entr", "logit", "log_expit", "ndtr", "expit"])
def test_special_functions_of_one_number(name: str, dtype: str) -> None:
    def program(x):
        return getattr(special, name)(x)

    check(program, POINTS.astype(dtype))
    assert_same(dsl.jit(program)(0.4), program(0.4))
    assert type(dsl.jit(program)(0.4)) is np.float64


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "rel_entr"])
def test_special_functions_of_two_numbers(name: str) -> None:
    def program(x, y):
        return getattr(special, name)(x, y)

    for dtype in ("f8", "f4"):
        check(program, POINTS[:, None].astype(dtype), POINTS.astype(dtype))
    check(program, np.arange(4), np.arange(4))
    check(program, POINTS.astype("f4"), 2.0)
    got, want = (f(POINTS[:, None], POINTS) for f in (dsl.jit(program), program))
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def test_the_derivative_of_xlogy_at_zero() -> None:
    slope = dsl.grad(lambda x, y: special.xlogy(x, y))
    assert slope(0.0, 2.0) == pytest.approx(np.log(2))
    assert np.isfinite(dsl.grad(lambda y: special.xlogy(0.0, y))(0.0))


def test_sums_of_exponentials_are_over_all_axes_unless_one_is_given() -> None:
    x = np.array([[1.0, 2], [3, -np.inf]])
    check(lambda x: special.logsumexp(x), x)
    check(lambda x: special.logsumexp(x, axis=1, b=2.0, keepdims=True), x)
    check(lambda x: special.softmax(x), x)
    check(lambda x: special.log_softmax(x, axis=1), x)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8"])
def test_linear_algebra(dtype: str) -> None:
    def program(a, b):
        upper, lower = linalg.cho_factor(a), linalg.cho_factor(a, lower=True)
        found = [upper[0], lower[0], linalg.cho_solve(upper, b), linalg.cho_solve(lower, b)]
        found += [*linalg.lu_factor(a), linalg.lu_solve(linalg.lu_factor(a), b), *linalg.lu(a)]
        found += [linalg.cholesky(a), linalg.cholesky(a, lower=True), linalg.solve(a, b)]
        found += [linalg.inv(a), linalg.norm(a), linalg.eigh(a, eigvals_only=True)]
        found += [linalg.eigvalsh(a), linalg.solve_triangular(a, b, trans=1, lower=True)]
        return found

    a = SYMMETRIC.astype(dtype)
    for b in (np.ones((3, 2), dtype), np.arange(3).astype(dtype)):
        for got, want in zip(*map(leaves, (dsl.jit(program)(a, b), program(a, b))), strict=True):
            assert_same(got, want)


def test_a_determinant_is_of_double_precision() -> None:
    got = dsl.jit(lambda a: linalg.det(a))(SYMMETRIC.astype("f4"))
    assert_same(got, np.float64(98), 1e-5)


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (lambda x: linalg.inv(x), np.array([[1.0, np.nan], [0, 1]])),
        (
            lambda x: linalg.solve_triangular(x, np.ones(2), lower=True),
            np.array([[1.0, 0], [3, 0]]),
        ),
        (lambda x: linalg.cholesky(x), -np.eye(2)),
        (lambda x: np.asarray_chkfinite(x) + 1, np.array([1.0, np.inf])),
    ],
)
def test_errors_are_scipy_s(program: Any, x: np.ndarray) -> None:
    with pytest.raises(ValueError) as want:
        program(x)
    with pytest.raises(want.type) as got:
        dsl.jit(program)(x)
    if want.type is not np.linalg.LinAlgError or "resolution" in str(want.value):
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda x: linalg.expm(x), r"scipy.linalg.expm is not supported .*\n(.*\n)*Fix: compute it outside"),
        (lambda x: linalg.qr(x), r"scipy.linalg.qr is not supported .*\n(.*\n)*Fix: use `np.linalg.qr`"),
        (lambda x: linalg.eigh(x, subset_by_index=[0, 1]), r"scipy.linalg.eigh is .* with these arguments"),
        (lambda x: scipy.stats.norm.pdf(x), r"scipy.stats.pdf is not supported .*\n(.*\n)*Fix: write the formula"),
        (lambda x: special.expit(x, out=np.zeros((3, 3))), r"scipy.special.expit with out= is not"),
        (lambda x: special.xlogy(x, 1j), r"scipy.special.xlogy is not supported for complex"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_a_remedy(program: Any, words: str) -> None:
    with pytest.raises(dsl.errors.UnsupportedError, match=words):
        dsl.jit(program)(SYMMETRIC)


def test_functions_of_constants_run_while_tracing() -> None:
    check(lambda x: x + special.logsumexp([1.0, 2.0]) + linalg.expm([[0.0]])[0, 0], np.ones(2))
