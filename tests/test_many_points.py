"""Scatters of many points, which a routine writes; few points go another way, and must give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsl

MANY = 40_003  # points: more than those for which the routine is called, and no multiple of a round
BINS = 1_000


def add(x: Any, i: Any, v: Any) -> Any:
    np.add.at(x, i, v)
    return x.sum()


def put(x: Any, i: Any, v: Any) -> Any:
    x[i] = v
    return x.sum()


def multiply(x: Any, i: Any, v: Any) -> Any:
    np.multiply.at(x, i, v)
    return x.sum()


def least(x: Any, i: Any, v: Any) -> Any:
    np.minimum.at(x, i, v)
    return x.sum()


def most(x: Any, i: Any, v: Any) -> Any:
    np.maximum.at(x, i, v)
    return x.sum()


def one_for_all(x: Any, i: Any, v: Any) -> Any:
    np.add.at(x, i, 2)
    return x.sum()


def computed(x: Any, i: Any, v: Any) -> Any:
    np.add.at(x, i // 2, v * 3)
    return x.sum()


def apart(x: Any, i: Any, v: Any) -> Any:
    np.add.at(x, i[::-1], v[::-1])
    return x.sum()


def own(x: Any, i: Any, v: Any) -> Any:
    x[i] = x[0] - v
    return x.sum()


WAYS = [add, put, multiply, least, most, one_for_all, computed, apart, own]


def points(dtype: str, count: int = MANY) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    x, v = (rng.integers(1, 3, n).astype(dtype) for n in (BINS, count))
    return x, rng.integers(-BINS, BINS, count), v


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "complex64", "float16"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_they_agree_with_numpy(way: Callable[..., Any], dtype: str, dynamic: bool) -> None:
    x, i, v = points(dtype)
    mine, compiled = x.copy(), dsl.jit(way, dynamic=dynamic)
    with np.errstate(over="ignore"):
        way(x, i, v)
    compiled(mine, i, v)
    np.testing.assert_array_equal(mine, x)


@pytest.mark.parametrize("wrong", [BINS, -BINS - 1, 2**62, -(2**63)])
@pytest.mark.parametrize("place", [0, 20_000, MANY - 1])
def test_the_first_wrong_index_is_told_and_arguments_stay(wrong: int, place: int) -> None:
    x, i, v = points("float64")
    i[place] = wrong
    i[-1] = BINS + 5 if place < MANY - 1 else wrong
    before = x.copy()
    with pytest.raises(
        IndexError, match=f"index {wrong} is out of bounds for axis 0 with size {BINS}"
    ):
        dsl.jit(add)(x, i, v)
    np.testing.assert_array_equal(x, before)


def test_an_array_of_the_functions_own_is_written_at_once() -> None:
    def counted(i: Any) -> Any:
        found = np.zeros(BINS)
        np.add.at(found, i, 1)
        return found

    _, i, _ = points("float64")
    compiled = dsl.jit(counted)
    np.testing.assert_array_equal(compiled(i), counted(i))
    assert "@dsl_lib_wrong_index" not in compiled.ir(i, stage="llvm")
    i[7] = BINS
    with pytest.raises(IndexError, match=f"index {BINS} is out of bounds"):
        compiled(i)


def test_without_checks_nothing_else_is_written() -> None:
    x, i, v = points("float64")
    i[-1] = BINS
    with dsl.config.override(bounds_checks="off"):
        dsl.jit(add)(x, i, v)
    expected = points("float64")[0]
    np.add.at(expected, i[:-1], v[:-1])
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("count", [50, MANY])
def test_an_index_may_be_what_is_written(count: int) -> None:
    def swap(x: Any) -> Any:
        y = x[::-1].copy()
        y[y] = np.arange(len(y))
        return y

    def itself(x: Any) -> None:
        x[x] = x[::-1].copy()

    def mapped(x: Any) -> None:
        np.add.at(x, (x * 7) % len(x), x)

    for fn in (swap, itself, mapped):
        x = np.random.default_rng(0).permutation(count)
        mine = x.copy()
        expected, found = fn(x), dsl.jit(fn)(mine)
        np.testing.assert_array_equal(mine, x)
        if expected is not None:
            np.testing.assert_array_equal(found, expected)


def test_no_points_and_no_elements() -> None:
    empty = np.zeros(0, np.int64)
    x = np.ones(3)
    dsl.jit(add, dynamic=True)(x, empty, np.zeros(0))
    np.testing.assert_array_equal(x, np.ones(3))
    nothing = np.zeros(0)
    with pytest.raises(IndexError):
        dsl.jit(add)(nothing, np.zeros(MANY, np.int64), np.ones(MANY))
