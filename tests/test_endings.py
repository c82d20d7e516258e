"""Loops that a flag ends, whole-number division in loops, and what is known about numbers that a branch may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl


def first_below(x, limit):
    found = -1
    for i in range(len(x)):
        if x[i] < limit:
            found = i
            break
    return found


def sum_until(x, limit):
    total, count = 0.0, 0
    for value in x:
        if value < 0:
            continue
        total += value
        count += 1
        if total > limit:
            break
    return total, count


def writes_before_it_breaks(x):
    y = np.zeros_like(x)
    for i in range(len(x)):
        y[i] = 2 * x[i]
        if x[i] > 1:
            break
        y[i] += 1
    return y


def two_flags(x, n):
    i, done, failed = 0, False, False
    while not done and not failed and i < n:
        if x[i % len(x)] > 2:
            done = True
        if x[i % len(x)] < -2:
            failed = True
        i += 1
    return i, done, failed


def returns_from_within(x, v):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > v:
                return i * 100 + j
    return -1


def primes(n):
    count = 0
    for i in range(2, n):
        j = 2
        prime = True
        while j * j <= i:
            if i % j == 0:
                prime = False
                break
            j += 1
        if prime:
            count += 1
    return count


def sinks(x):
    """Each element goes down to its place; the index of a `while` ends at -1."""
    y = x.copy()
    for i in range(1, len(y)):
        v, j = y[i], i - 1
        while j >= 0 and y[j] > v:
            y[j + 1] = y[j]
            j -= 1
        y[j + 1] = v
    return y


NUMBERS = np.array([0.5, -1.0, 1.5, 0.25, 3.0, -2.5, 0.75])
CASES = [
    (first_below, (NUMBERS, 0.0)),
    (first_below, (NUMBERS, -9.0)),
    (first_below, (NUMBERS[:0], 0.0)),
    (sum_until, (NUMBERS, 2.0)),
    (sum_until, (NUMBERS, 99.0)),
    (writes_before_it_breaks, (NUMBERS,)),
    (writes_before_it_breaks, (-NUMBERS[:2],)),
    (two_flags, (NUMBERS, 100)),
    (two_flags, (-NUMBERS, 100)),
    (two_flags, (NUMBERS[:3], 10)),
    (returns_from_within, (NUMBERS[:6].reshape(2, 3), 1.0)),
    (returns_from_within, (NUMBERS[:6].reshape(2, 3), 9.0)),
    (primes, (200,)),
    (sinks, (NUMBERS,)),
]


@pytest.mark.parametrize(("function", "args"), CASES)
def test_a_loop_ends_where_it_does_in_python(function: Any, args: Any) -> None:
    expected = function(*args)
    for got in (dsl.jit(function)(*args), dsl.jit(function, dynamic=True)(*args)):
        np.testing.assert_equal(got, expected)


def test_a_test_that_may_fail_is_made_although_a_flag_is_set() -> None:
    def run(x):
        i, done = 0, False
        while (x[i] > 0) & np.logical_not(done):
            i += 1
            done = i >= len(x)
        return i

    with pytest.raises(IndexError):
        run(np.ones(3))
    with pytest.raises(IndexError):
        dsl.jit(run)(np.ones(3))


WHOLE = np.array([0, 1, -1, 2, -2, 7, -7, 2**62, -(2**62), 2**63 - 1, -(2**63)])


def quotients(a, b):
    q, r = np.zeros_like(a), np.zeros_like(a)
    for i in range(len(a)):
        q[i] = a[i] // b[i]
        r[i] = a[i] % b[i]
    return q, r


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_numbers_in_loops_are_divided_as_in_numpy(dtype: Any) -> None:
    a, b = (v.ravel().astype(dtype) for v in np.meshgrid(WHOLE, WHOLE))
    with np.errstate(all="ignore"):
        expected = a // b, a % b
    np.testing.assert_array_equal(dsl.jit(quotients)(a, b), expected)


def counted_quotients(n, a):
    """The divisor counts up from one, the other number has any sign."""
    total = 0
    for i in range(n):
        total += (a // (i + 1)) * 3 + a % (i + 1) - i // (i + 1) + (n - i) % (i + 2)
    return total


@pytest.mark.parametrize("a", [5, -5, 0, 2**55, -(2**55)])
def test_positive_divisors_need_no_looking_at(a: int) -> None:
    assert dsl.jit(counted_quotients)(20, a) == counted_quotients(20, a)


def test_a_divisor_that_a_branch_lets_grow_is_known_to_be_positive() -> None:
    text = dsl.jit(primes).ir(200, stage="llvm")
    assert "urem" in text
    assert "sdiv" not in text


def falls_to_zero(n):
    total, d = 0, 3
    for _ in range(n):
        total += 100 % d
        d -= 1
    return total


def test_division_by_zero_in_a_loop_raises() -> None:
    assert dsl.jit(falls_to_zero)(3) == falls_to_zero(3)
    with pytest.raises(ZeroDivisionError):
        dsl.jit(falls_to_zero)(5)


def grows_in_one_branch(x):
    """An index that one branch moves on stays an index; beyond the end it raises."""
    i, total = 0, 0.0
    for _ in range(2 * len(x)):
        total += x[i]
        if x[i] > 0:
            i += 1
    return total


def test_an_index_that_a_branch_moves_on_is_checked() -> None:
    x = np.array([1.0, 2.0, -1.0])
    assert dsl.jit(grows_in_one_branch)(x) == grows_in_one_branch(x)
    with pytest.raises(IndexError):
        dsl.jit(grows_in_one_branch)(np.ones(3))


def counted(x, bins, count):
    for value in x:
        bins[int(value * len(bins))] += 1
        count += 1
    return count


def test_floats_that_become_indices() -> None:
    bins = np.zeros(4, np.int64)
    for dtype in (np.float64, np.float32):
        dsl.jit(counted)(np.array([0.1, 0.9, 0.3, 0.99, -0.3], dtype), bins, 0)
    np.testing.assert_array_equal(bins, [2, 2, 0, 6])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30, 1.0])
def test_floats_out_of_range_are_no_indices(bad: float) -> None:
    with pytest.raises((IndexError, OverflowError, ValueError)):
        counted(np.array([0.5, bad]), np.zeros(4, np.int64), 0)
    with pytest.raises((IndexError, OverflowError, ValueError)):
        dsl.jit(counted)(np.array([0.5, bad]), np.zeros(4, np.int64), 0)
