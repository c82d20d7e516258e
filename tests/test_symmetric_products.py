"""Products of a matrix and its own transpose, of which only one half is computed."""

from __future__ import annotations

import numpy as np
import pytest

import dsl


def gram(x):
    return x.T @ x


def gram_of_rows(x):
    return x @ x.T


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: sums of their products have no rounding, in any order."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "c16"])
@pytest.mark.parametrize("function", [gram, gram_of_rows])
def test_sizes(function, dtype: str) -> None:
    for n in (1, 30, 64, 65, 128, 129, 200, 515):
        for k in (1, 20, 65):
            x = numbers((k, n) if function is gram else (n, k), dtype)
            got = dsl.jit(function)(x)
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(got, function(x))


@pytest.mark.parametrize("function", [gram, gram_of_rows])
def test_operands_of_any_strides(function) -> None:
    x = numbers((300, 600), "f8")
    for view in (x[::2, ::3], x.T[::-1, 1:290], x[:, ::-1]):
        np.testing.assert_array_equal(dsl.jit(function)(view), function(view))
    np.testing.assert_array_equal(dsl.jit(lambda x: function(x + 1.0))(x), function(x + 1.0))


def test_the_result_is_symmetric_and_the_same_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal((400, 333))
    found = []
    for threads in (1, 2, 3):
        with dsl.config.override(num_threads=threads):
            found.append(dsl.jit(gram)(x))
    np.testing.assert_array_equal(found[0], found[0].T)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[0], gram(x), rtol=1e-10, atol=1e-10)


def test_derivatives() -> None:
    x, w = numbers((70, 150), "f8"), numbers((150, 150), "f8")
    got = dsl.grad(lambda x: (gram(x) * w).sum())(x)
    np.testing.assert_array_equal(got, x @ (w + w.T))
