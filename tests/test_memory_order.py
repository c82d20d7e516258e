"""The order of results in memory: NumPy's, where an array is computed element by element from others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl


def turned(x):
    return x.T + 1


def chain(x):
    return np.exp(-x.T) * 2 - x.T


def with_a_row(x):
    return x.T * np.arange(x.shape[0])


def comparison(x):
    return x.T > 0


def converted(x):
    return x.T.astype(np.float32)


def several(x):
    y = x.T * 2
    return y, y[1:], y.sum(axis=0)


def mixed(x):
    return x.T + np.ones((x.shape[1], x.shape[0]))


def copied(x):
    return (x.T + 1).copy()


def in_c_order(x):
    return np.ascontiguousarray(x.T + 1), np.ascontiguousarray(x.T), np.ascontiguousarray(x)


def in_fortran_order(x):
    return np.asfortranarray(x), np.asfortranarray(x.T), np.asfortranarray(x + 1)


def required(x):
    return np.require(x, None, ["F"]), np.require(x.T + 1, np.float64, "C"), np.require(x)


def turned_back(x):
    return (x.T + 1).T


FUNCTIONS = [
    turned, chain, with_a_row, comparison, converted, several, mixed, copied, in_c_order, in_fortran_order, required,
    turned_back,
]  # fmt: skip
X = np.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("x", [X, np.asfortranarray(X)], ids=["C", "F"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_lie_in_memory_as_numpys_do(function: Any, x: np.ndarray) -> None:
    got, expected = dsl.jit(function)(x), function(x)
    pairs = zip(got, expected) if isinstance(got, tuple) else [(got, expected)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6)
        assert one.strides == other.strides


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_the_same_for_all_sizes(function: Any) -> None:
    compiled = dsl.jit(function, dynamic=True)
    for x in (X, X[:2], X.T, X[::-1]):
        got, expected = compiled(x), function(x)
        pairs = zip(got, expected) if isinstance(got, tuple) else [(got, expected)]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_three_axes() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for axes in ((2, 0, 1), (0, 2, 1), (1, 0, 2)):

        def program(x, axes=axes):
            return x.transpose(axes) * 2

        got, expected = dsl.jit(program)(x), program(x)
        np.testing.assert_array_equal(got, expected)
        assert got.strides == expected.strides


def test_a_copy_in_another_order_shares_no_memory() -> None:
    def program(x):
        y = np.asfortranarray(x)
        y[0, 0] = 7
        z = np.ascontiguousarray(x.T)
        z[0, 0] = 8
        w = np.ascontiguousarray(x)
        w[1, 1] = 9
        return y, z, w

    plain, compiled = X.copy(), X.copy()
    expected, got = program(plain), dsl.jit(program)(compiled)
    np.testing.assert_array_equal(compiled, plain)
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one, other)


def test_loops_over_arrays_in_other_orders() -> None:
    def program(x):
        y = x.T * 2
        for i in range(y.shape[0]):
            y[i] += y.sum()
            y = y * 0.5
        return y

    np.testing.assert_allclose(dsl.jit(program)(X), program(X.copy()))
