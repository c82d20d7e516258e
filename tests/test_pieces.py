"""Kernels that are cut where their expressions ask where they are: same values as NumPy's, and loads without tests."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.kernels import pieces


def padded(x: Any) -> Any:
    return np.pad(x, 3) * 2.0


def rolled(x: Any) -> Any:
    return np.roll(x, 3) + x


def rolled_back(x: Any) -> Any:
    return np.roll(x, -2) - x


def joined(x: Any) -> Any:
    return np.concatenate([x, x[:5]]) + np.concatenate([x[-5:], x])


def differences(x: Any) -> Any:
    return ((x[1:] - x[:-1]) ** 2).sum()


def wide_differences(x: Any) -> Any:
    return (np.sin(x[7:]) * x[:-7] + x[3:-4]).sum()


def strided(x: Any) -> Any:
    return (x[::2] * 3.0).sum() + (x[1::3] ** 2).sum()


def laplacian(x: Any) -> Any:
    inner = x[1:-1, 1:-1] * 4 - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    return (inner**2).sum()


def cube(x: Any) -> Any:
    return (x[1:, 2:, :-1] * x[:-1, :-2, 1:]).sum()


def blurred(x: Any) -> Any:
    return np.convolve(x, np.array([1.0, 2.0, 4.0, 2.0, 1.0]))


VECTORS = [padded, rolled, rolled_back, joined]
SUMS = [differences, wide_differences, strided]


@pytest.mark.parametrize("size", [5, 8, 70, 1024, 1500, 4001])
@pytest.mark.parametrize("function", VECTORS)
def test_vectors(function: Any, size: int) -> None:
    x = np.random.default_rng(0).normal(size=size)
    np.testing.assert_array_equal(dsl.jit(function)(x), function(x))


@pytest.mark.parametrize("function", VECTORS)
def test_vectors_of_sizes_that_are_not_known(function: Any) -> None:
    compiled = dsl.jit(function, dynamic=True)
    for size in (2 if function is rolled_back else 5, 7, 64, 1024, 3000):
        x = np.random.default_rng(size).normal(size=size)
        np.testing.assert_array_equal(compiled(x), function(x))


def test_axes_that_are_shorter_than_their_borders() -> None:
    compiled = dsl.jit(blurred, dynamic=True)
    for size in (2, 3, 4, 7, 8, 9, 50, 2000):
        x = np.random.default_rng(size).integers(-8, 9, size).astype(float)
        np.testing.assert_array_equal(compiled(x), blurred(x))
    assert re.search(r"load <\d+ x double>", compiled.ir(np.ones(100), stage="llvm"))


def gradient(function: Any, x: np.ndarray) -> np.ndarray:
    """By a complex step, which is exact to rounding."""
    found = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[index] += 1e-30j
        found[index] = function(moved).imag / 1e-30
    return found


@pytest.mark.parametrize("function", SUMS)
def test_derivatives_of_slices(function: Any) -> None:
    plain, compiled = dsl.grad(function), dsl.jit(dsl.grad(function), dynamic=True)
    for size in (9, 1100, 1331):
        x = np.random.default_rng(size).normal(size=size)
        expected = gradient(function, x)
        np.testing.assert_allclose(plain(x), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (5, 300), (300, 5), (40, 41), (100, 70)])
def test_derivatives_of_a_stencil(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    expected = gradient(laplacian, x)
    np.testing.assert_allclose(dsl.grad(laplacian)(x), expected, rtol=1e-12, atol=1e-12)
    symbolic = dsl.jit(dsl.grad(laplacian), dynamic=True)
    np.testing.assert_allclose(symbolic(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 2), (4, 30, 20), (20, 4, 30), (12, 12, 12)])
def test_derivatives_in_space(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape)
    np.testing.assert_allclose(dsl.grad(cube)(x), gradient(cube, x), rtol=1e-12, atol=1e-12)


def test_most_points_are_read_without_tests() -> None:
    text = dsl.jit(dsl.grad(differences)).ir(np.ones(100_000), stage="llvm")
    assert re.search(r"load <\d+ x double>", text)
    assert "llvm.masked.gather" not in text


def test_a_kernel_without_tests_is_left_whole() -> None:
    from dsl.codegen.expressions import Pool, Var
    from dsl.codegen.statements import Kernel

    kernel = Kernel((Var(5000),), Pool(), None)  # type: ignore[arg-type]
    assert pieces.pieces(kernel) == [kernel]


def as_columns(x: Any, y: Any) -> Any:
    return np.stack([x, y * 2, x + y], axis=-1)


def interleaved(x: Any, y: Any) -> Any:
    return np.stack([x, y], axis=-1).reshape(-1)


def homogeneous(x: Any, y: Any) -> Any:
    """Parts of different widths."""
    points = np.stack([x, y], axis=-1)
    return np.concatenate(
        [np.sqrt(points), np.ones((*x.shape, 1), x.dtype), points[..., ::-1]], axis=-1
    )


def many_columns(x: Any, y: Any) -> Any:
    return np.stack([*(x * k for k in range(11)), y], axis=-1)


def picked_columns(x: Any, y: Any) -> Any:
    x, y = x.reshape(-1), y.reshape(-1)
    return np.stack([x[y.astype(int) % 7], y, y[y.astype(int) % 5]], axis=-1)


COLUMNS = [as_columns, interleaved, homogeneous, many_columns, picked_columns]


@pytest.mark.parametrize("shape", [(7,), (300, 5), (70_001,)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("program", COLUMNS)
def test_parts_that_alternate_in_lines_of_memory_are_written_together(
    program: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype) % 100
    y = x[::-1] + 3
    expected = program(x, y)
    for dynamic in (False, True):
        got = dsl.jit(program, dynamic=dynamic)(x, y)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_columns_are_one_kernel() -> None:
    x = np.ones(1000)
    assert dsl.jit(as_columns).ir(x, x, stage="kernels").count("kernel for") == 1
    assert dsl.jit(many_columns).ir(x, x, stage="kernels").count("kernel for") == 2
    long = dsl.jit(lambda x, y: np.concatenate([x, y])).ir(x, x, stage="kernels")
    assert long.count("kernel for") == 2


def test_a_wrong_index_in_one_of_the_columns_is_named() -> None:
    f = dsl.jit(lambda x, i: np.stack([x, x[i], x[i - 1]], axis=-1))
    i = np.arange(3000)
    np.testing.assert_array_equal(f(i, i), np.stack([i, i, np.roll(i, 1)], axis=-1))
    i[1234] = 3000
    with pytest.raises(IndexError, match="index 3000 is out of bounds for axis 0 with size 3000"):
        f(np.arange(3000), i)
    i[1234] = -3000
    with pytest.raises(IndexError, match="index -3001 is out of bounds"):
        f(np.arange(3000), i)
