"""Explicit loops whose trips are made several at a time, and such as look like it but whose trips need one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

SIZES = (0, 1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257)


# --- Trips that touch places of their own ---------------------------------------------------------------------------


def scales(a, b):
    for i in range(len(a)):
        a[i] = b[i] * 3 - a[i]
    return a


def into_another(a, b):
    c = np.empty_like(a)
    for i in range(len(a)):
        c[i] = np.sqrt(abs(a[i])) + b[i]
    return c


def within(a, b):
    for i in range(1, len(a) - 1):
        a[i] = b[i - 1] + b[i] + b[i + 1]
    return a


def steps_of_lu(m):
    n = len(m)
    for k in range(n):
        for i in range(k + 1, n):
            m[i, k] /= m[k, k]
            for j in range(k + 1, n):
                m[i, j] -= m[i, k] * m[k, j]
    return m


def same_column(a, b):
    m = np.stack((a, b, a + b))
    for i in range(3):
        for j in range(len(a)):
            m[i, j] = m[(i + 1) % 3, j] * 2 - m[i, j]
    return m


def two_at_once(a, b):
    for i in range(len(a)):
        a[i], b[i] = b[i] + 1, a[i] - 1
    return a, b


def two_columns(a, b):
    c = np.zeros((2, len(a)))
    for i in range(len(a)):
        c[0, i] = a[i] + b[i]
        c[1, i] = c[0, i] * a[i]
        c[0, i] += c[1, i]
    return c


def sums_of_integers(a, b):
    total, seen = 0, np.zeros(len(a), np.int64)
    whole = np.floor(a * 8).astype(np.int64)
    for i in range(len(a)):
        total += whole[i]
        seen[i] = whole[i] ^ 5
    return total, seen


def chooses(a, b):
    for i in range(len(a)):
        a[i] = np.where(a[i] > b[i], a[i], -b[i])
    return a


def functions(a, b):
    for i in range(len(a)):
        b[i] = np.exp(a[i]) * np.tanh(b[i]) + np.sin(len(a) + 0.5)
    return b


def reads_the_first(a, b):
    for i in range(1, len(a)):
        a[i] = a[i] * a[0] + b[0]
    return a


def rows_in_turn(a, b):
    m = np.stack((a, b))
    for k in range(4):
        for j in range(len(a)):
            m[(k + 1) % 2, j] = m[k % 2, j] * 0.5 + k
    return m


# --- One trip writes what the others read ---------------------------------------------------------------------------


def reads_what_one_trip_writes(a, b):
    k = len(a) // 2
    for i in range(len(a)):
        a[i] = a[i] + a[k]
    return a


def reads_the_first_which_changes(a, b):
    for i in range(len(a)):
        a[i] = a[i] + a[0]
    return a


def reads_the_last(a, b):
    for i in range(len(a)):
        a[i] = a[i] + a[-1]
    return a


def reads_where_told(a, b):
    k = int(abs(a).sum()) % max(len(a), 1)
    for i in range(len(a)):
        a[i] = b[i] + 2 * a[k]
    return a


def shortest_paths(m):
    for k in range(m.shape[0]):
        for i in range(m.shape[0]):
            for j in range(m.shape[1]):
                m[i, j] = min(m[i, j], m[i, k] + m[k, j])
    return m


def two_read_what_one_writes(a, b):
    for i in range(len(a)):
        a[i], b[i] = a[i] + b[3] if len(b) > 3 else a[i], b[i] * 2
    return a, b


def writes_further_on(a, b):
    for i in range(len(a) - 2):
        a[i + 2] = a[i + 2] * 0.5 + a[5] if len(a) > 7 else b[i]
    return a


def eliminates(m):
    for k in range(m.shape[0]):
        for i in range(m.shape[0]):
            if i != k:
                for j in range(m.shape[1]):
                    m[i, j] = m[i, j] - m[i, k] * m[k, j] / 100
    return m


# --- Branches that become choices -----------------------------------------------------------------------------------


def keeps_or_replaces(a, b):
    for i in range(len(a)):
        if a[i] > b[i]:
            a[i] = b[i] * 2
    return a


def clips(a, b):
    c = np.empty_like(a)
    for i in range(len(a)):
        if a[i] < -0.5:
            c[i] = -0.5
        elif a[i] > 0.5:
            c[i] = b[i]
        else:
            c[i] = a[i]
    return c


def writes_two_or_none(a, b):
    c = np.zeros_like(a)
    for i in range(len(a)):
        if not a[i] > b[i]:
            quotient = a[i] / b[i]
            c[i] = quotient
            b[i] = quotient + 1
    return b, c


def least_of_paths(m):
    for k in range(m.shape[0]):
        for i in range(m.shape[0]):
            for j in range(m.shape[1]):
                if m[i, k] + m[k, j] < m[i, j]:
                    m[i, j] = m[i, k] + m[k, j]
    return m


def relaxes(m):
    """Bellman and Ford's: the nodes of a dense graph, one after the other."""
    d = m.sum(axis=0)
    for u in range(m.shape[0]):
        for v in range(m.shape[1]):
            if d[u] + m[u, v] < d[v]:
                d[v] = d[u] + m[u, v]
    return d


def writes_two_places(a, b):
    c = np.zeros((2, len(a)))
    for i in range(len(a)):
        if a[i] > b[i]:
            c[0, i] = a[i]
            c[1, i] = c[0, i] - b[i]
        else:
            c[0, i] = b[i]
            c[1, i] = c[1, i] + 1
    return c


def reads_what_the_branch_wrote(a, b):
    for i in range(len(a)):
        if a[i] > b[i]:
            a[i] = b[i] + 1
            b[i] = a[i] * a[i]
    return a, b


# --- Branches that stay ---------------------------------------------------------------------------------------------


def reads_only_where_it_may(a, b):
    c = np.zeros_like(a)
    for i in range(len(a)):
        if i > 0:
            c[i] = a[i - 1] + b[i]
    return c


def counts_too(a, b):
    count = 0
    for i in range(len(a)):
        if a[i] > b[i]:
            a[i] = b[i]
            count += 1
    return a, count


def elsewhere_in_each_branch(a, b):
    c = np.zeros(2 * len(a))
    for i in range(len(a)):
        if a[i] > b[i]:
            c[2 * i] = a[i]
        else:
            c[2 * i + 1] = b[i]
    return c


# --- Trips that need one another ------------------------------------------------------------------------------------


def adds_up(a, b):
    for i in range(1, len(a)):
        a[i] = a[i - 1] + b[i]
    return a


def adds_up_from_far(a, b):
    for i in range(9, len(a)):
        a[i] = a[i - 9] + b[i]
    return a


def reads_ahead(a, b):
    for i in range(len(a) - 1):
        a[i] = a[i + 1] + b[i]
    return a


def reads_backwards(a, b):
    for i in range(len(a)):
        a[i] = a[len(a) - 1 - i] + b[i]
    return a


def writes_twice(a, b):
    for i in range(len(a) - 1):
        a[i] = a[i] + b[i]
        a[i + 1] = a[i + 1] - a[i]
    return a


def writes_two_that_are_one(a, b):
    for i in range(len(a)):
        a[i // 2] = a[i // 2] + b[i]
    return a


def reads_what_it_wrote(a, b):
    for i in range(len(a)):
        a[i] = b[i] * 2
        b[i] = a[i] + a[0]
    return a, b


def sums_of_floats(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i]
        b[i] = total
    return total, b


def last_number(a, b):
    at = -1
    for i in range(len(a)):
        a[i] = b[i] + 1
        at = i
    return a, at


APART = [
    scales, into_another, within, steps_of_lu, same_column, two_at_once, two_columns, sums_of_integers, chooses, functions,
    reads_the_first, rows_in_turn,
]  # fmt: skip
ALONE = [
    reads_what_one_trip_writes, reads_the_first_which_changes, reads_the_last, reads_where_told, shortest_paths,
    two_read_what_one_writes, writes_further_on, eliminates,
]  # fmt: skip
CHOICES = [
    keeps_or_replaces,
    clips,
    writes_two_or_none,
    least_of_paths,
    relaxes,
    reads_what_the_branch_wrote,
]
BRANCHES = [reads_only_where_it_may, counts_too, elsewhere_in_each_branch]
TOGETHER = [
    adds_up, adds_up_from_far, reads_ahead, reads_backwards, writes_twice, writes_two_that_are_one, reads_what_it_wrote,
    sums_of_floats, last_number,
]  # fmt: skip
ALL = [*APART, *ALONE, *CHOICES, *BRANCHES, *TOGETHER]
EXACT = [f for f in ALL if f not in (functions, reads_where_told)]
TABLES = (steps_of_lu, shortest_paths, eliminates, least_of_paths, relaxes)


def arrays(size: int, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return rng.standard_normal(size).astype(dtype), rng.standard_normal(size).astype(dtype)


def arguments(function: Any, size: int, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """Arrays of a size, or a square table of no more than 40 rows for those that go through all of it for each."""
    if function not in TABLES:
        return arrays(size, dtype)
    size = min(size, 40)
    return ((np.random.default_rng(size).random((size, size)) + np.eye(size)).astype(dtype),)


def same(got: Any, want: Any, exact: bool) -> None:
    for one, other in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):  # fmt: skip
        if exact:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_is_as_in_python(function: Any) -> None:
    compiled = dsl.jit(function)
    for size in SIZES:
        got = compiled(*arguments(function, size))  # symbolic from the second size on
        same(got, function(*arguments(function, size)), function in EXACT)


@pytest.mark.parametrize("size", [17, 40, 100])
@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_is_as_in_python_for_a_known_size(function: Any, size: int) -> None:
    got = dsl.jit(function)(*arguments(function, size))
    same(got, function(*arguments(function, size)), function in EXACT)


@pytest.mark.parametrize("function", [*APART, *ALONE, *CHOICES], ids=lambda f: f.__name__)
def test_goes_by_vectors(function: Any) -> None:
    text = dsl.jit(function).ir(*arguments(function, 100), stage="llvm")
    assert " x double>" in text or function is sums_of_integers


@pytest.mark.parametrize("function", [*BRANCHES, *TOGETHER], ids=lambda f: f.__name__)
def test_goes_one_by_one(function: Any) -> None:
    assert " x double>" not in dsl.jit(function).ir(*arguments(function, 100), stage="llvm")


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize("function", [shortest_paths, least_of_paths, keeps_or_replaces, clips], ids=lambda f: f.__name__)  # fmt: skip
def test_choices_of_other_elements(function: Any, dtype: Any) -> None:
    scaled = [(x * 50).astype(dtype) for x in arguments(function, 100)]
    got, want = (f(*(x.copy() for x in scaled)) for f in (dsl.jit(function), function))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("k", [-100, -1, 0, 1, 50, 97, 98, 99, 100, 1 << 62])
def test_the_trip_that_is_made_alone_may_be_any_or_none(k: int) -> None:
    def adds(a, b, k):
        for i in range(98):
            a[i + 1] = a[i + 1] * 0.5 + (a[k] if 0 <= k < 100 else b[i])
        return a

    a, b = arrays(100)
    np.testing.assert_array_equal(dsl.jit(adds)(a.copy(), b, k), adds(a, b, k))


def test_choices_write_nothing_where_nothing_is_read() -> None:
    """NaN compares false, so the old elements stay, with their bits."""
    a, b = arrays(100)
    a[::3] = np.nan
    want = keeps_or_replaces(a.copy(), b)
    np.testing.assert_array_equal(dsl.jit(keeps_or_replaces)(a.copy(), b), want)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int16, np.int64, np.uint8])
def test_other_elements(dtype: Any) -> None:
    def mixes(a, b):
        for i in range(len(a)):
            a[i] = (a[i] + b[i]) * a[i] - b[i]
        return a

    for size in (16, 33, 100):
        a, b = ((10 * x).astype(dtype) for x in arrays(size))
        with np.errstate(over="ignore"):
            want = mixes(a.copy(), b)
        np.testing.assert_array_equal(dsl.jit(mixes)(a.copy(), b), want)


def test_strides() -> None:
    a, b = arrays(200)
    want = into_another(a[::2], b[::-2])
    np.testing.assert_array_equal(dsl.jit(into_another)(a[::2], b[::-2]), want)


def test_out_of_bounds_raises() -> None:
    def beyond(a, n):
        for i in range(n):
            a[i] = 2 * a[i]
        return a

    with pytest.raises(IndexError):
        dsl.jit(beyond)(np.ones(50), 60)
    np.testing.assert_array_equal(dsl.jit(beyond)(np.ones(50), 50), np.full(50, 2.0))


def test_long_loops() -> None:
    """Longer than what is done between two looks for the keyboard."""
    a, b = arrays(200_003)
    want = b * 3 - a
    np.testing.assert_array_equal(dsl.jit(scales)(a.copy(), b), want)
