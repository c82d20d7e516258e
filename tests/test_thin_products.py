"""Products of vectors and matrices of a few columns, or of rows whose ends fill no register, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import dsl

LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 100, 257)


def times(x, v):
    return x @ v


def times_column(x, v):
    return x @ v[:, None]


def transposed_times(x, v):
    return x.T @ v


def row_times(x, v):
    return v @ x


def row_times_transposed(x, v):
    return v @ x.T


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: sums of their products have no rounding, in any order."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(dtype)


def check(function, shape: tuple[int, int], dtype: str, by_rows: bool) -> None:
    x, v = numbers(shape, dtype), numbers((shape[0] if by_rows else shape[1],), dtype)
    got = dsl.jit(function)(x, v)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, function(x, v))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8"])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 9])
def test_few_columns(width: int, dtype: str) -> None:
    for function in (times, times_column, row_times_transposed):
        check(function, (2000, width), dtype, by_rows=False)
        check(function, (width, 2000), dtype, by_rows=False)
    for function in (transposed_times, row_times):
        check(function, (2000, width), dtype, by_rows=True)
        check(function, (width, 2000), dtype, by_rows=True)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_any_length(length: int, dtype: str) -> None:
    for rows in (1, 3, 4, 6, 200):
        check(times, (rows, length), dtype, by_rows=False)


@pytest.mark.parametrize("function", [times, transposed_times])
def test_sizes_known_when_it_runs(function) -> None:
    jitted = dsl.jit(function)
    for rows in (1500, 1501, 3, 5000, 0, 1):
        x = numbers((rows, 3), "f8")
        v = numbers((3 if function is times else rows,), "f8")
        np.testing.assert_array_equal(jitted(x, v), function(x, v))


def test_sizes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        dsl.jit(times)(np.ones((2000, 3)), np.ones(4))


def test_they_are_fused() -> None:
    """A residual is computed while the matrix is read, and nothing of its size is kept."""
    x, v, y = numbers((5000, 3), "f8"), numbers((3,), "f8"), numbers((5000,), "f8")
    residual = dsl.jit(lambda x, v, y: np.abs(x @ v - y))
    assert "[library]" not in residual.ir(x, v, y, stage="kernels")
    np.testing.assert_array_equal(residual(x, v, y), np.abs(x @ v - y))


def test_derivatives() -> None:
    x, v, y = numbers((2000, 3), "f8"), numbers((3,), "f8"), numbers((2000,), "f8")

    def loss(v):
        e = x @ v - y
        return (e * e).sum()

    np.testing.assert_allclose(dsl.grad(loss)(v), 2 * x.T @ (x @ v - y))
