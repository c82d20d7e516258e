"""Products of matrices whose rows fit in a few registers, alone and in stacks, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import dsl

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 48, 50)
FORMS = {
    "plain": lambda x, y: x @ y,
    "right transposed": lambda x, y: x @ y.mT.copy().mT,
    "left transposed": lambda x, y: x.mT.copy().mT @ y,
    "reversed": lambda x, y: x[..., ::-1] @ y[..., ::-1, :],
    "shared": lambda x, y: x @ y[0],
    "columns reversed": lambda x, y: x @ y[..., ::-1],
}


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: sums of their products have no rounding, in any order."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("form", FORMS)
def test_stacks_of_small_matrices(form: str, dtype: str) -> None:
    for n in SIZES:
        x, y = numbers((3, n, n), dtype), numbers((3, n, n), dtype)
        got = dsl.jit(FORMS[form])(x, y)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, FORMS[form](x, y))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_stacks_of_transposed_arguments(dtype: str) -> None:
    f = dsl.jit(lambda x, y: (x @ y.mT, x.mT @ y, x.mT @ y.mT))
    for n in SIZES:
        x, y = numbers((3, n, n), dtype), numbers((3, n, n), dtype)
        for got, expected in zip(f(x, y), (x @ y.mT, x.mT @ y, x.mT @ y.mT)):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_few_columns_and_any_number_of_rows(dtype: str) -> None:
    f = dsl.jit(lambda x, y: x @ y)
    for rows in (0, 1, 5, 13, 100, 3000):
        for inner, columns in ((3, 3), (40, 5), (7, 17), (100, 2), (1, 9)):
            x, y = numbers((rows, inner), dtype), numbers((inner, columns), dtype)
            np.testing.assert_array_equal(f(x, y), x @ y)
            np.testing.assert_array_equal(f(x, y.T.copy().T), x @ y)


def test_nothing_past_the_end_is_read_or_written() -> None:
    f = dsl.jit(lambda x, y: x @ y)
    whole = np.full((2, 12), np.nan)
    x, y = whole[0, 1:10].reshape(3, 3), whole[1, 1:10].reshape(3, 3)
    x[...], y[...] = 2, 3
    np.testing.assert_array_equal(f(x, y), np.full((3, 3), 18.0))
    assert np.isnan(whole[:, [0, 10, 11]]).all()


@pytest.mark.parametrize("columns", [3, 16, 20])
def test_any_number_of_threads_gives_the_same_bits(columns: int) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((200_003, 6)), generator.standard_normal((6, columns))
    found = []
    for threads in (1, 2, 3):
        with dsl.config.override(num_threads=threads):
            found.append(dsl.jit(lambda x, y: x @ y)(x, y))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[0], x @ y, rtol=1e-12, atol=1e-12)


def test_derivatives_and_batches() -> None:
    x, y = numbers((5, 4, 3), "f8"), numbers((5, 3, 6), "f8")
    dx, dy = dsl.grad(lambda x, y: ((x @ y) ** 2).sum(), argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(dx, 2 * (x @ y) @ y.mT)
    np.testing.assert_array_equal(dy, 2 * x.mT @ (x @ y))
    np.testing.assert_array_equal(dsl.vmap(lambda x, y: x @ y)(x, y), x @ y)


def test_beside_kernels_that_end_within_a_register() -> None:
    x, y, v = numbers((5, 5, 5), "f8"), numbers((5, 5, 5), "f8"), numbers((21,), "f8")
    f = dsl.jit(lambda x, y, v: (x @ y, v @ v, v * 2))
    for got, expected in zip(f(x, y, v), (x @ y, v @ v, v * 2)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_many_products_of_one_kind_share_a_function(dtype: str) -> None:
    def f(x, y, w):
        for k in dsl.unroll(range(20)):
            x = np.sign(x @ w[k] + x[::-1] @ w[k].T)
            y = np.sign(w[k, ::-1].T @ y)
        return x, y

    x, y, w = numbers((4, 8), dtype), numbers((8,), dtype), numbers((20, 8, 8), dtype)
    compiled = dsl.jit(f)
    for got, expected in zip(compiled(x, y, w), f(x, y, w)):
        np.testing.assert_array_equal(got, expected)
    text = compiled.ir(x, y, w, stage="llvm")
    assert text.count("call void @product_") > 40
    assert text.count("@product_") - text.count("call void @product_") <= 3
