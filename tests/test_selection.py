"""Medians, quantiles and partitions, which select instead of sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsl


def median(x):
    return np.median(x)


def median_of_columns(x):
    return np.median(x, axis=0)


def median_of_rows(x):
    return np.median(x, axis=1, keepdims=True)


def nanmedian(x):
    return np.nanmedian(x), np.nanmedian(x, axis=0)


def percentiles(x):
    return np.percentile(x, [5, 50, 95])


def quantile_of_rows(x):
    return np.quantile(x, 0.3, axis=1)


def nanquantile(x):
    return np.nanquantile(x, [0.1, 0.7]), np.nanquantile(x, 0.4, axis=1)


def many_quantiles(x):
    return np.quantile(x, np.linspace(0, 1, 101))


PROGRAMS = [
    median, median_of_columns, median_of_rows, nanmedian, percentiles, quantile_of_rows, nanquantile, many_quantiles,
]  # fmt: skip
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@every_program
@pytest.mark.filterwarnings("ignore")
def test_the_bits_are_numpys(program: Callable[..., Any]) -> None:
    rng, compiled = np.random.default_rng(1), dsl.jit(program)
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.uint8):
        for shape in ((1, 1), (2, 3), (7, 40), (300, 200), (5, 1001)):
            x = (rng.normal(size=shape) * 50 + 60).clip(0, 250).astype(dtype)
            _check_same(compiled(x), program(x))


@every_program
@pytest.mark.filterwarnings("ignore")
def test_nans_are_where_numpy_has_them(program: Callable[..., Any]) -> None:
    rng, compiled = np.random.default_rng(2), dsl.jit(program)
    for dtype in (np.float16, np.float32, np.float64):
        for shape in ((2, 3), (300, 200), (5, 1001)):
            x = rng.normal(size=shape).astype(dtype)
            x[rng.random(shape) < 0.01] = np.nan
            x[1] = np.inf
            x[1, 1] = np.nan
            _check_same(compiled(x), program(x))


def _check_same(given: Any, wanted: Any) -> None:
    if not isinstance(wanted, tuple):
        given, wanted = (given,), (wanted,)
    for one, other in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("dtype", [float, int])
@pytest.mark.filterwarnings("ignore")
def test_a_median_of_nothing_is_nan(dtype: type) -> None:
    for dynamic in (False, True):
        assert np.isnan(dsl.jit(dynamic=dynamic)(median)(np.zeros((0, 4), dtype)))


def test_a_quantile_of_nothing_is_refused_in_numpys_words() -> None:
    x = np.zeros((0, 3))
    with pytest.raises(IndexError, match="index -1 is out of bounds for axis 0 with size 0"):
        np.percentile(x, [5, 50, 95])
    with pytest.raises(IndexError, match="index -1 is out of bounds for axis 0 with size 0"):
        dsl.jit(percentiles)(x)


@pytest.mark.parametrize(
    "program", [median, median_of_rows, percentiles], ids=lambda program: program.__name__
)
def test_derivatives_go_to_the_elements_that_are_selected(program: Callable[..., Any]) -> None:
    x = np.random.default_rng(3).normal(size=(4, 7))
    dsl.check_grads(program, (x,), order=1)


def test_the_derivative_of_a_median() -> None:
    found = dsl.grad(lambda x: np.median(x))(np.array([3.0, 1.0, 2.0, 5.0]))
    assert found.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_medians_of_a_batch() -> None:
    x = np.random.default_rng(4).normal(size=(3, 5, 8))
    np.testing.assert_array_equal(dsl.vmap(median)(x), np.median(x, axis=(1, 2)))
    np.testing.assert_array_equal(dsl.vmap(median_of_columns)(x), np.median(x, axis=1))


# -- partitions -------------------------------------------------------------------------------------------------------


def partitions(x, k):
    return np.partition(x, k), np.argpartition(x, k)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1", "c8"])
def test_a_partition_has_the_smaller_elements_before_the_kth(dtype: str, dynamic: bool) -> None:
    rng, compiled = np.random.default_rng(5), dsl.jit(dynamic=dynamic)(partitions)
    for shape in ((3, 7), (2, 2000), (5000,)):
        x = (rng.normal(size=shape) * 50 + 60).clip(0, 250).astype(dtype)
        if x.dtype.kind == "f":
            x[..., ::7] = np.nan
        for k in (0, 3, shape[-1] // 2, -1, -2):
            values, indices = compiled(x, k)
            ordered, before = np.sort(x), k % shape[-1]
            np.testing.assert_array_equal(np.take_along_axis(x, indices, -1), values)
            np.testing.assert_array_equal(np.sort(values), ordered)
            np.testing.assert_array_equal(values[..., k], ordered[..., k])
            np.testing.assert_array_equal(np.sort(values[..., :before]), ordered[..., :before])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_partition_by_a_place_that_is_not_there(dynamic: bool) -> None:
    compiled = dsl.jit(dynamic=dynamic)(partitions)
    for k in (5, -6, np.int64(7)):
        with pytest.raises(ValueError, match=rf"kth\(={k}\) out of bounds \(5\)"):
            compiled(np.arange(5), k)


def test_the_derivative_of_a_partition() -> None:
    x = np.random.default_rng(6).permutation(3000).astype(float)
    found = dsl.grad(lambda x: np.partition(x, 2000)[2000:].sum())(x)
    np.testing.assert_array_equal(found, x >= 2000)


def test_partitions_of_a_batch() -> None:
    x = np.random.default_rng(7).normal(size=(3, 1500))
    found = dsl.vmap(lambda x: np.partition(x, 700)[700])(x)
    np.testing.assert_array_equal(found, np.sort(x)[:, 700])


# -- sets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_isin_with_nans_and_without_elements(dynamic: bool) -> None:
    compiled = dsl.jit(dynamic=dynamic)(lambda x, tests: np.isin(x, tests))
    x = np.array([[1.0, np.nan, 3.0], [-0.0, np.inf, 7.0]])
    for tests in ([], [3.0], [np.nan, 3.0, 0.0], [9.0, -1.0], [np.inf, 7.0, 7.0]):
        np.testing.assert_array_equal(compiled(x, np.array(tests)), np.isin(x, tests))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "f2", "f8", "c16"])
def test_the_distinct_values_alone(dtype: str, dynamic: bool) -> None:
    rng, compiled = np.random.default_rng(8), dsl.jit(dynamic=dynamic)(lambda x: np.unique(x))
    for n in (0, 1, 2, 5, 700):
        x = rng.integers(0, 40, n).astype(dtype)
        if x.dtype.kind in "fc":
            x[::5] = np.nan
        np.testing.assert_array_equal(compiled(x), np.unique(x), strict=True)


@pytest.mark.parametrize("dtype", ["?", "u1", "i1"])
def test_rows_of_bytes_of_any_length(dtype: str) -> None:
    rng, compiled = np.random.default_rng(9), dsl.jit(lambda x: (np.sort(x), np.argsort(x)))
    for n in (1, 8, 63, 64, 511, 512, 1000):
        x = rng.integers(-128, 128, (3, n)).astype(dtype)
        values, order = compiled(x)
        np.testing.assert_array_equal(values, np.sort(x))
        np.testing.assert_array_equal(order, np.argsort(x, stable=True))


# -- sizes that do not fit, where nothing uses the result ----------------------------------------------------------------


def add_up(x, y):
    x[x > 0] + y
    return x


def add_up_in_a_branch(x, y):
    if x[0] > 0:
        x[x > 0] + y
    return x


def add_up_in_a_loop(x, y):
    for _ in range(3):
        x[x > 0] * y
    return x


def join(x, y):
    np.concatenate([x[x > 0][None], y[None]])
    return x


def multiply(x, y):
    x[x > 0] @ y
    return x


def spread(x, y):
    np.broadcast_to(x[x > 0], y.shape)
    return x


@pytest.mark.parametrize(
    "function", [add_up, add_up_in_a_branch, add_up_in_a_loop, join, multiply, spread]
)
def test_sizes_that_do_not_fit_raise_where_nothing_uses_the_result(function: Any) -> None:
    compiled, y = dsl.jit(function), np.arange(3.0)
    fitting, other = np.array([1.0, 2.0, -1.0, 3.0]), np.array([1.0, 2.0, 1.0, 3.0])
    np.testing.assert_array_equal(compiled(fitting, y), function(fitting, y))
    for run in (function, compiled):
        with pytest.raises(ValueError):
            run(other, y)
