"""The order of results in memory: NumPy's, where an array is computed element by element from others."""

from __future__ import annotations

import copy
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


def copies(x):
    y = x.T + 1
    return (
        x.copy(), x.copy(order="F"), x.copy("A"), x.copy(order="K"), x.T.copy("K"), x[::-1, ::2].copy("K"), x.T.copy("A"),
        np.copy(x), np.copy(x.T), np.copy(x, order="C"), np.copy(x, order="F"), y.copy("F"), np.copy(y),
        copy.copy(x), copy.deepcopy(x.T), np.array(x), np.array(x, order="F"), np.array(x, order="C"), np.array(x.T),
        np.array(x, dtype=np.float32), np.asarray(x, order="F"), np.asarray(x, order="C"), np.asarray([[x[0, 0], 2]] * 3, order="F"),
    )  # fmt: skip


def converted_in_an_order(x):
    return [x.astype(t, order=o) for t in (np.float32, np.float64) for o in "CFAK"]


def ufuncs_in_an_order(x):
    return (
        np.add(x, 1, order="F"),
        np.add(x, 1, order="C"),
        np.exp(x.T, order="C"),
        np.multiply(x, x, order="K"),
    )


def made(x):
    n, m = x.shape
    return (
        np.zeros((n, m), order="F"), np.ones((n, m), order="F"), np.full((n, m), 2.0, order="F"), np.full((n, m), x[0], order="F"),
        np.zeros_like(x), np.zeros_like(x.T), np.ones_like(x, order="F"), np.full_like(x, 3), np.full_like(x, x[0], order="F"),
        np.ones_like(x, order="C"), np.zeros_like(x, shape=(2, 3)), np.zeros_like(x, order="A", shape=(2, 3, 4)),
        np.zeros_like(x, order="F", shape=(2, 3, 4)), np.zeros_like(x, shape=(2, 3, 4)),
    )  # fmt: skip


FUNCTIONS = [
    turned, chain, with_a_row, comparison, converted, several, mixed, copied, in_c_order, in_fortran_order, required,
    turned_back, copies, ufuncs_in_an_order, converted_in_an_order, made,
]  # fmt: skip
X = np.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("x", [X, np.asfortranarray(X)], ids=["C", "F"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_lie_in_memory_as_numpys_do(function: Any, x: np.ndarray) -> None:
    got, expected = dsl.jit(function)(x), function(x)
    pairs = zip(got, expected) if isinstance(got, (tuple, list)) else [(got, expected)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6)
        assert one.strides == other.strides


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_the_same_for_all_sizes(function: Any) -> None:
    compiled = dsl.jit(function, dynamic=True)
    for x in (X, X[:2], X.T, X[::-1]):
        got, expected = compiled(x), function(x)
        pairs = zip(got, expected) if isinstance(got, (tuple, list)) else [(got, expected)]
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


@pytest.mark.parametrize("order", ["X", "K"])
def test_an_order_that_numpy_refuses_is_refused(order: str) -> None:
    def program(x):
        return x.copy(order="X") if order == "X" else np.zeros((2, 3), order=order)

    with pytest.raises(ValueError, match="order") as expected:
        program(X)
    with pytest.raises(ValueError, match="order") as got:
        dsl.jit(program)(X)
    assert str(expected.value) in str(got.value)


@pytest.mark.parametrize("dtype", ["?", "i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(66, 97), (130, 64)])
def test_what_is_read_across_is_turned_round(shape: tuple[int, int], dtype: str) -> None:
    """Whole blocks in registers and what remains, forwards and backwards, copied and computed with."""
    x = (np.random.default_rng(0).random((3, *shape)) * 9 - 3).astype(dtype)

    def turn(x: np.ndarray) -> Any:
        one, steps = x[0], x[0, ::-1, ::2]
        sums = one.T + x[1].reshape(one.T.shape)
        parts = np.moveaxis(x, 0, -1).copy(), np.moveaxis(x, -1, 0).copy()
        return one.T.copy(), np.rot90(one).copy(), np.ascontiguousarray(steps.T), sums, *parts

    for dynamic in (False, True):
        for got, expected in zip(dsl.jit(turn, dynamic=dynamic)(x), turn(x), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


def _is_contiguous(x: Any) -> bool:
    return x.flags.c_contiguous


@pytest.mark.parametrize("told", [_is_contiguous, lambda x: x.strides[0]])
def test_how_an_array_lies_is_not_told_wrongly(told: Any) -> None:
    compiled = dsl.jit(lambda x: told(x * 2))
    x = np.ones((3, 4))
    assert compiled(x) == told(x)
    with pytest.raises(dsl.errors.UnsupportedError, match="of a new array whose axes"):
        compiled(x.T)
