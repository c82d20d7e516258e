"""Determinants of small matrices, which have routines of their own, against NumPy and against exact fractions."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest

import dsl


def det(x):
    return np.linalg.det(x)


def exact(matrix: np.ndarray) -> float:
    rows = [[Fraction(float(v)) for v in row] for row in matrix]
    if len(rows) == 2:
        return float(rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0])
    a, b, c = rows
    return float(
        sum(
            a[i] * (b[(i + 1) % 3] * c[(i + 2) % 3] - b[(i + 2) % 3] * c[(i + 1) % 3])
            for i in range(3)
        )
    )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "shape", [(2, 2), (3, 3), (0, 2, 2), (1, 3, 3), (21, 2, 2), (21, 3, 3), (4, 5, 3, 3), (7, 4, 4)]
)
def test_stacks(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    got = dsl.jit(det)(x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, det(x), rtol=1e-5 if dtype == "f4" else 1e-12)
    np.testing.assert_allclose(
        dsl.jit(lambda x: det(x.mT))(x), got, rtol=1e-5 if dtype == "f4" else 1e-12
    )
    np.testing.assert_allclose(
        dsl.jit(det, dynamic=True)(x), got, rtol=1e-5 if dtype == "f4" else 1e-12
    )


@pytest.mark.parametrize("n", [2, 3])
def test_all_orders_of_pivots(n: int) -> None:
    x = np.stack([np.array(list(np.ndindex(*(3,) * n * n))).reshape(-1, n, n)[::7] - 1.0])[0]
    np.testing.assert_allclose(dsl.jit(det)(x), [exact(matrix) for matrix in x], atol=1e-14)


def test_matrices_near_rank_one_are_as_exact_as_by_elimination() -> None:
    """Where cofactors cancel, and a formula of them has no right digit."""
    generator = np.random.default_rng(0)
    x = np.ones((100, 3, 3)) + 1e-7 * generator.standard_normal((100, 3, 3))
    np.testing.assert_allclose(dsl.jit(det)(x), [exact(matrix) for matrix in x], rtol=1e-6)


def test_large_and_small_numbers_in_one_matrix() -> None:
    x = np.array(
        [
            np.diag(d)
            for d in ((1e200, 1e200, 1e-300), (1e-300, 1e200, 1e200), (1e-200, 1e-200, 1e300))
        ]
    )
    np.testing.assert_allclose(dsl.jit(det)(x), [1e100, 1e100, 1e-100], rtol=1e-12)


def test_singular_and_undefined() -> None:
    x = np.zeros((4, 3, 3))
    x[1] = 1
    x[2] = np.nan
    x[3] = np.eye(3)
    x[3, 1, 2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(dsl.jit(det)(x), [0, 0, np.nan, np.nan])


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((30_001, 3, 3))
    found = []
    for threads in (1, 2, 3):
        with dsl.config.override(num_threads=threads):
            found.append(dsl.jit(det)(x))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("n", [2, 3])
def test_derivatives_and_batches(n: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, n, n))
    got = dsl.grad(lambda x: det(x).sum())(x)
    np.testing.assert_allclose(got, det(x)[:, None, None] * np.linalg.inv(x).mT, rtol=1e-10)
    np.testing.assert_allclose(dsl.vmap(det)(x), det(x), rtol=1e-12)
