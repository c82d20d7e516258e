"""Corners of NumPy functions: empty arrays, arrays without axes, `out=` of another shape, views of other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against_numpy import check

import dsl

EMPTY, ONE, LOW = np.zeros(0), np.array(3.0), np.array([1, 2, 3], np.int8)
SMALL_PRINT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ix_ of empty": (lambda a: np.ix_(a, [0, 1]), (EMPTY,)),
    "trim_zeros of empty": (lambda a: np.trim_zeros(a), (EMPTY,)),
    "roll by several": (lambda a: np.roll(a, (1, 2)), (LOW,)),
    "insert a matrix": (lambda a: np.insert(a, 1, np.ones((1, 1))), (LOW,)),
    "lexsort of one row": (lambda a: np.lexsort((a,)), (LOW,)),
    "packbits of empty": (lambda a: np.packbits(a, axis=-1), (np.zeros((2, 0, 2), np.uint8),)),
    "unpackbits of more": (lambda a: np.unpackbits(a, count=20), (LOW.view(np.uint8)[:2],)),
    "c_ with numbers": (lambda a: np.c_[a[:1], 1, 2], (LOW,)),
    "r_ with numbers": (lambda a: np.r_[a, 1, 2], (LOW,)),
    "take along no axis": (lambda a: np.take(a, [0, 0], axis=0), (ONE,)),
    "repeat along no axis": (lambda a: np.repeat(a, 2, axis=0), (ONE,)),
    "squeeze along no axis": (lambda a: np.squeeze(a, axis=-1), (ONE,)),
    "edges of one dtype": (lambda a, b: np.histogram2d(a, b, 2), (LOW, LOW.astype(np.float32))),
    "round complex infinity": (lambda a: np.round(a, 1), (np.array([1.25 + 2j, np.inf - 0.25j]),)),
    "in": (lambda a: 2 in a, (LOW,)),
}


@pytest.mark.parametrize("name", SMALL_PRINT)
def test_small_print(name: str) -> None:
    function, args = SMALL_PRINT[name]
    check(function, *args)


@pytest.mark.parametrize(
    "function", [np.sum, np.max, np.any, np.argmax, np.mean, np.median, np.cumsum]
)
def test_out_has_the_shape_of_the_result(function: Any) -> None:
    x, out = np.ones((3, 4)), np.zeros((2, 4))
    for call in (function, dsl.jit(function)):
        with pytest.raises(ValueError):
            call(x, axis=0, out=out)


NUMBERS = np.arange(1.0, 9.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64, np.complex64, complex])
@pytest.mark.parametrize("source", [NUMBERS, NUMBERS.astype(np.float32), NUMBERS + 1j * NUMBERS])
def test_view_as_numbers_of_another_size(source: Any, dtype: Any) -> None:
    check(lambda x: x.view(dtype), source)
    check(lambda x: x.reshape(2, 4).view(dtype) * 2, source)

    def write(x):
        parts = x.view(dtype)
        parts[1:3] = 1
        return parts

    mine, plain = source.copy(), source.copy()
    np.testing.assert_array_equal(dsl.jit(write)(mine), write(plain))
    np.testing.assert_array_equal(mine, plain)


def test_view_of_another_size_needs_a_last_axis_that_fits() -> None:
    for x in (np.ones(3), np.ones((4, 4))[:, ::2], np.array(1.0)):
        with pytest.raises(ValueError):
            dsl.jit(lambda a: a.view(complex))(x)


def test_index_that_is_an_array_without_axes_makes_a_copy() -> None:
    def program(x, i):
        row, also = x[i], x[np.array(0)]
        row += 1.0
        also[...] = 5.0
        return row, also

    check(program, np.ones((2, 3)), np.array(1))


# -- indices that count: read as slices are ----------------------------------------------------------


def sums_of_windows(x):
    return np.lib.stride_tricks.sliding_window_view(x, 4).sum(axis=-1)


def backwards(x):
    return x[5 - np.arange(6)] + x[np.arange(6) - 0]


def diagonal_of(x):
    return x.reshape(4, -1)[np.arange(4), np.arange(4)]


def by_two_counters(x):
    return x[np.arange(5)[:, None] + np.arange(4)[::-1] + 2]


COUNTING = [sums_of_windows, backwards, diagonal_of, by_two_counters]


@pytest.mark.parametrize("function", COUNTING)
def test_indices_that_count_are_read_as_slices_are(function: Any) -> None:
    x = np.arange(16.0) ** 2
    compiled = dsl.jit(function)
    assert "[?]" not in compiled.ir(x, stage="kernels")
    check(function, x)
    for size in (20, 24):
        np.testing.assert_array_equal(
            compiled(np.arange(size) * 1.0), function(np.arange(size) * 1.0)
        )


@pytest.mark.parametrize("first", [-20, -3, 0, 3, 12, 13, 14])
def test_indices_that_count_are_checked_and_count_from_the_end(first: int) -> None:
    def program(x):
        return x[np.arange(4) + first]

    x = np.arange(16.0)
    if -16 <= first <= 12:
        check(program, x)
        return
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 16"):
        dsl.jit(program)(x)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_long_correlations_keep_nan_and_infinity_where_they_are(mode: str) -> None:
    x, taps = np.arange(90.0), np.arange(40.0) + 1
    check(lambda a, v: np.correlate(a, v, mode), x, taps)
    x[3], taps[[0, 7]] = np.inf, [np.nan, -np.inf]
    check(lambda a, v: np.correlate(a, v, mode), x, taps)
    check(lambda a, v: np.convolve(a, v, mode), x[50:], taps)
    check(lambda a, v: np.convolve(v, a, mode), x, taps + 1j)


# -- integers that are near each other are counted ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["h", "i", "l", "H", "I", "L"])
@pytest.mark.parametrize("size", [4095, 4096, 150_000])
def test_sort_of_integers_near_each_other(dtype: str, size: int) -> None:
    limits, rng = np.iinfo(dtype), np.random.default_rng(size)
    low, high = int(limits.min), int(limits.max)
    for first, last in ((0, 60), (low, low + 99), (high - 4095, high), (1, 4097), (low, high)):
        x = rng.integers(first, last, size, np.dtype(dtype), endpoint=True)
        x[0], x[-1] = last, first
        np.testing.assert_array_equal(dsl.jit(np.sort)(x), np.sort(x))
        np.testing.assert_array_equal(dsl.jit(np.unique)(x), np.unique(x))
    rows = rng.integers(0, 50, (3, size)).astype(dtype)
    check(lambda a: np.sort(a, axis=1), rows)


@pytest.mark.parametrize(
    "counts", [[0, 2, 0, 3, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [4, 0, 0, 0, 0]]
)
def test_repeat_each_its_own_number_of_times(counts: list[int]) -> None:
    check(lambda x, c: np.repeat(x, c), np.arange(5.0), np.array(counts))
    check(lambda x, c: np.repeat(x, c, axis=1), np.arange(10.0).reshape(2, 5), np.array(counts))


def test_repeats_are_not_negative() -> None:
    for call in (np.repeat, dsl.jit(np.repeat)):
        with pytest.raises(ValueError, match=r"repeats may not contain negative values\."):
            call(np.arange(3.0), np.array([1, -1, 2]))


@pytest.mark.parametrize("ufunc", [np.maximum, np.add, np.logical_and, np.hypot])
def test_methods_of_ufuncs_take_lists_of_arrays(ufunc: np.ufunc) -> None:
    x, y = (
        np.array([[1.0, 0.0, 2.0], [3.0, 1.5, 0.0]]),
        np.array([[2.0, 0.0, 1.0], [0.5, 1.0, 4.0]]),
    )
    check(lambda x, y: ufunc.reduce([x, y, x * y]), x, y)
    check(lambda x, y: ufunc.reduce((x > 1, y > 1), axis=1, keepdims=True), x, y)
    check(lambda x, y: ufunc.outer([x[0, 0], y[0, 1]], x), x, y)
    check(lambda x: ufunc.accumulate([x[0, 0], x[0, 2], x[1, 1]]), x)


def test_bincount_takes_weights_of_a_size_that_the_data_decides() -> None:
    f = dsl.jit(lambda at, counts, w: np.bincount(at, np.repeat(w, counts), minlength=4))
    weights = np.array([1.0, 2.0])
    np.testing.assert_array_equal(f(np.array([0, 1, 1]), np.array([1, 2]), weights), [1, 4, 0, 0])
    np.testing.assert_array_equal(f(np.array([3, 1]), np.array([2, 0]), weights), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="don't have the same length"):
        f(np.array([0, 1, 1]), np.array([1, 1]), weights)
    with pytest.raises(ValueError, match="object too deep"):
        dsl.jit(lambda at: np.bincount(at, np.ones((2, 1))))(np.array([0, 1]))
