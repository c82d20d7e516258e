"""Short last axes that are reduced, many of them side by side: vectors go across them. And windows, which are read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

windows = np.lib.stride_tricks.sliding_window_view
rng = np.random.default_rng(0)


def squares(x, y):
    return ((x[:, None] - y) ** 2).sum(axis=1)


def least(x, y):
    return (x[:, None] - y).min(axis=1)


def below(x, y):
    return (x[:, None] < y).sum(axis=1) / y.size


def density(x, y):
    return np.exp(-np.abs(x[:, None] - y)).sum(axis=1)


def any_near(x, y):
    return (np.abs(x[:, None] - y) < 0.01).any(axis=1)


def spread(x, y):
    return windows(x, y.size).std(axis=1)


def largest(x, y):
    return windows(x, y.size).max(axis=1) - windows(x, y.size).mean(axis=1)


FUNCTIONS = (squares, least, below, density, any_near, spread, largest)


def numbers(size: int, dtype: str) -> np.ndarray:
    return (rng.standard_normal(size) * 8).astype(dtype)


def check(function: Any, jitted: Any, *args: np.ndarray) -> None:
    got, wanted = jitted(*args), function(*args)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("length", [5, 10, 17, 40, 300])
def test_lengths(function: Any, dtype: str, length: int) -> None:
    for size in (301, 5000):
        with dsl.num_threads(2):
            check(function, dsl.jit(function), numbers(size, dtype), numbers(length, dtype))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_number_of_them(function: Any) -> None:
    jitted, y = dsl.jit(function), numbers(20, "f8")
    for size in (100, 90, 3000, 20, 21, 63):
        check(function, jitted, numbers(size, "f8"), y)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_bits_do_not_depend_on_threads(function: Any) -> None:
    jitted, args = dsl.jit(function), (numbers(9001, "f4"), numbers(33, "f4"))
    with dsl.num_threads(1):
        one = jitted(*args)
    with dsl.num_threads(3):
        np.testing.assert_array_equal(jitted(*args), one)


@pytest.mark.parametrize("step", [1, -1, 2, 3])
def test_points_that_lie_apart(step: int) -> None:
    points, corners = rng.random((3000, 2))[::step], rng.random((20, 2))

    def inside(points, corners):
        (x, y), (u, v) = points.T[..., None], corners.T
        to_u, to_v = np.roll(u, -1), np.roll(v, -1)
        crosses = (v > y) != (to_v > y)
        return (crosses & (x < (to_u - u) * (y - v) / (to_v - v) + u)).sum(axis=1) % 2 == 1

    np.testing.assert_array_equal(dsl.jit(inside)(points, corners), inside(points, corners))


def blurred(x, w):
    return (windows(x, w.shape) * w).sum(axis=(2, 3))


def opened(x, w):
    return windows(windows(x, w.shape).min(axis=(2, 3)), w.shape).max(axis=(2, 3))


def blocks(x, w):
    k, m = np.arange(w.shape[0]), np.arange(w.shape[1])
    rows = x[np.arange(0, x.shape[0] - k.size, 3)[:, None] + k]
    return rows[:, :, np.arange(0, x.shape[1] - m.size, 2)[:, None] + m].mean(axis=(1, 3))


@pytest.mark.parametrize("function", [blurred, opened, blocks])
@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (1, 12), (7, 7), (12, 3)])
def test_windows_of_two_axes(function: Any, shape: tuple[int, int]) -> None:
    jitted, w = dsl.jit(function), rng.standard_normal(shape)
    for size in ((40, 90), (100, 200), (53, 71)):
        check(function, jitted, rng.standard_normal(size), w)


def test_windows_of_two_axes_are_read_where_they_lie() -> None:
    kernels = dsl.jit(blurred).ir(rng.random((40, 90)), rng.random((3, 3)), stage="kernels")
    assert kernels.count("kernel") == 1


def test_windows_that_are_read_twice_are_read_where_they_lie() -> None:
    def scaled(x):
        w = windows(x, 16)
        return w.mean(axis=1) / np.sqrt((w * w).sum(axis=1))

    x = rng.random(500)
    assert dsl.jit(scaled).ir(x, stage="kernels").count("kernel") == 1
    np.testing.assert_allclose(dsl.jit(scaled)(x), scaled(x))


def of_two_axes(x, w):
    return windows(x, w.shape[-2:], axis=(-2, -1))


PRODUCTS = [
    lambda x, w: np.einsum("ijkl,kl->ij", of_two_axes(x, w), w),
    lambda x, w: np.einsum("kl,ijkl->ji", w, of_two_axes(x, w)),
    lambda x, w: np.tensordot(of_two_axes(x, w), w, 2),
    lambda x, w: np.tensordot(w, of_two_axes(x, w), ((0, 1), (2, 3))),
    lambda x, w: np.einsum("cijkl,ckl->cij", of_two_axes(np.stack([x, -x]), w), np.stack([w, 2 * w])),
    lambda x, w: np.einsum("cijkl,ckl->ij", of_two_axes(np.stack([x, -x]), w), np.stack([w, 2 * w])),
    lambda x, w: windows(x[0], w.size) @ w.ravel(),
    lambda x, w: w.ravel() @ windows(x[0], w.size).T,
    lambda x, w: windows(x[0], w.size) @ w.reshape(-1, 1),
    lambda x, w: windows(x, w.size, axis=1) @ w.ravel(),
]  # fmt: skip


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_windows_need_no_array_of_windows(function: Any, dtype: str) -> None:
    jitted = dsl.jit(function)
    for shape in ((30, 80), (40, 90), (50, 100)):
        for sizes in ((3, 3), (1, 5), (4, 1)):
            x, w = rng.integers(-8, 9, shape).astype(dtype), rng.integers(-8, 9, sizes)
            args = x, w.astype(dtype)
            np.testing.assert_array_equal(jitted(*args), function(*args), strict=True)
    assert "matmul" not in dsl.jit(function).ir(*args, stage="kernels")


def test_windows_of_no_elements() -> None:
    jitted = dsl.jit(lambda x: windows(x, 4, axis=1).sum(axis=2))
    for shape in ((3, 9), (4, 8), (0, 7), (5, 4)):
        x = rng.random(shape)
        np.testing.assert_allclose(jitted(x), windows(x, 4, axis=1).sum(axis=2))
    with pytest.raises(ValueError, match="window shape cannot be larger"):
        jitted(rng.random((0, 3)))


def test_windows_of_sizes_known_when_it_runs_are_read_where_they_lie() -> None:
    jitted = dsl.jit(lambda x: windows(x, (3, 4)).max(axis=(2, 3)))
    for shape in ((30, 80), (40, 90), (50, 100)):
        jitted(rng.random(shape))
    kernels = jitted.ir(rng.random((20, 70)), stage="kernels")
    assert kernels.count("kernel for") == 1
    assert "?" not in kernels


def test_many_short_sums_are_vectors_across() -> None:
    """No vector is added up to a number."""
    args = numbers(5000, "f4"), numbers(20, "f4")
    assert "llvm.vector.reduce" not in dsl.jit(squares).ir(*args, stage="llvm")
