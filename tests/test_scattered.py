"""Elements that index arrays point to, and their indices, fetched some points ahead: where that is done, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

LARGE = 7 << 18  # doubles: more than a near cache holds, less than the last one
rng = np.random.default_rng(0)


def take(x, i):
    return x[i]


def take_from_rows(x, i):
    return x.reshape(-1, 2)[i, 1]


def take_twice(x, i):
    return np.sqrt(abs(x[i])) - x[i[::-1]]


def total(x, i):
    return (2 * x[i]).max()


def by_rows(x, i):
    return x.reshape(-1, 4)[i % (x.size // 4), 1]


def sum_of_rows(x, i):
    return x.reshape(-1, 8)[i % (x.size // 8)].sum(axis=0)


@pytest.mark.parametrize(
    ("function", "size", "points", "count"),
    [
        (take, LARGE, 50_000, 0),  # by a routine
        (take, LARGE, 5000, 0),  # a near cache holds the indices
        (take_from_rows, LARGE, 50_000, 17),  # lines of indices, and an element
        (take_from_rows, 1000, 50_000, 16),  # a near cache holds the elements
        (lambda x, i: 2 * x[i], LARGE, 50_000, 16),  # what computes takes time
        (lambda x, i: 2 * x[i], 3 * LARGE, 50_000, 17),
        (lambda x, i: 2 * x[i], LARGE, 5000, 0),
    ],
)
def test_where_elements_are_fetched(function: Any, size: int, points: int, count: int) -> None:
    x, i = rng.standard_normal(size), rng.integers(-size // 2, size // 2, points)
    text = dsl.jit(function).ir(x, i, stage="llvm")
    assert text.count("call void @llvm.prefetch") == count
    assert ("@dsl_lib_gather_u64" in text) == (function is take and points > 5000)
    np.testing.assert_array_equal(dsl.jit(function)(x, i), function(x, i))


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "i8", "c8", "c16"])
def test_elements_of_any_size(dtype: str) -> None:
    x = (100 * rng.standard_normal(1000)).astype(dtype)
    i = rng.integers(-1000, 1000, (3, 20_001))
    np.testing.assert_array_equal(dsl.jit(take)(x, i), take(x, i))
    np.testing.assert_array_equal(dsl.jit(take)(x[::2], i // 2), take(x[::2], i // 2))
    np.testing.assert_array_equal(dsl.jit(take)(x, i.T), take(x, i.T))
    np.testing.assert_array_equal(dsl.jit(take)(x, i[:, ::2]), take(x, i[:, ::2]))


def test_indices_of_an_empty_array() -> None:
    with pytest.raises(IndexError, match="index 0 is out of bounds for axis 0 with size 0"):
        dsl.jit(take)(np.zeros(0), np.zeros(50_000, int))


@pytest.mark.parametrize("function", [take, take_twice, total, by_rows])
@pytest.mark.parametrize("dtype", ["i8", "i4", "u4"])
@pytest.mark.parametrize("points", [1024, 1 << 15, (1 << 15) + 65, 100_003])
def test_finds_what_numpy_finds(function: Any, dtype: str, points: int) -> None:
    x = rng.standard_normal(LARGE)
    low = -LARGE if dtype.startswith("i") else 0
    i = rng.integers(low, LARGE, points).astype(dtype)
    for threads in (1, 2):
        with dsl.num_threads(threads):
            np.testing.assert_array_equal(dsl.jit(function)(x, i), function(x, i))


@pytest.mark.parametrize("points", [5000, 33_333, 100_003])
def test_short_rows_are_added_up_where_indices_point(points: int) -> None:
    x, i = rng.standard_normal(LARGE), rng.integers(0, LARGE, points)
    for threads in (1, 2):
        with dsl.num_threads(threads):
            np.testing.assert_allclose(dsl.jit(sum_of_rows)(x, i), sum_of_rows(x, i), rtol=1e-9)


@pytest.mark.parametrize("function", [take, take_twice, total])
def test_sizes_known_when_it_runs(function: Any) -> None:
    jitted = dsl.jit(function)
    for size, points in ((LARGE, 3000), (LARGE + 1, 3001), (10, 1), (70, 64), (2 * LARGE, 65), (3, 130)):  # fmt: skip
        x, i = rng.standard_normal(size), rng.integers(-size, size, points)
        np.testing.assert_array_equal(jitted(x, i), function(x, i))


def test_indices_of_two_axes() -> None:
    x, i = rng.standard_normal(LARGE), rng.integers(0, LARGE, (40, 300))
    np.testing.assert_array_equal(dsl.jit(take)(x, i), take(x, i))
    np.testing.assert_array_equal(dsl.jit(take)(x, i.T), take(x, i.T))


@pytest.mark.parametrize("wrong", [LARGE, -LARGE - 1, 1 << 60, -(1 << 62)])
@pytest.mark.parametrize("where", [0, 200, 49_999])
def test_wrong_indices_raise(wrong: int, where: int) -> None:
    """Also those far outside of memory, which are asked for as well."""
    x, i = rng.standard_normal(LARGE), rng.integers(0, LARGE, 50_000)
    i[where] = wrong
    with pytest.raises(IndexError, match=str(wrong)):
        dsl.jit(take)(x, i)


def follow(perm, i, trips):
    for _ in range(trips):
        i[:] = perm[i]


@pytest.mark.parametrize("wrong", [40_000, -40_001])
@pytest.mark.parametrize("where", [0, 30_000, 39_999])
def test_an_index_that_takes_what_it_points_to_is_as_before_if_it_was_wrong(
    wrong: int, where: int
) -> None:
    perm, i = rng.permutation(40_000), rng.integers(0, 40_000, 40_000)
    expected, found = i.copy(), i.copy()
    follow(perm, expected, 3)
    dsl.jit(follow)(perm, found, 3)
    np.testing.assert_array_equal(found, expected)
    i[where] = wrong
    before = i.copy()
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
        dsl.jit(follow)(perm, i, 3)
    np.testing.assert_array_equal(i, before)
