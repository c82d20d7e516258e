"""Explicit loops around others that are made by vectors, all lanes going through the loops within, and such as look like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

# Rows of a, which are what the loops within go through, and columns of b and c, which are the trips that vectors make.
SIZES = ((3, 5, 70), (2, 0, 40), (2, 1, 17), (4, 3, 0), (0, 3, 33), (5, 7, 131))


# --- By vectors ------------------------------------------------------------------------------------------------------


def product(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] += a[i, k] * b[k, j]
    return c


def product_of_sums(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            s = c[i, j]
            for k in range(a.shape[1]):
                s -= a[i, k] * b[k, j]
            c[i, j] = s * 2
    return c


def writes_twice_in_a_trip(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] -= a[i, k]
                c[i, j] = c[i, j] * b[k, j]
    return c


def several_loops_within(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            s, t = c[i, j], c[i, j] * 0
            for k in range(a.shape[1]):
                s, t = t, s - b[k, j]
            for k in range(3):
                for l in range(k):
                    s = s - t * l
            c[i, j] = s
    return c


def chooses_within(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            best = c[i, j]
            for k in range(a.shape[1]):
                if a[i, k] * b[k, j] < best:
                    best = a[i, k] * b[k, j]
            c[i, j] = best
    return c


def neighbours(a, b, c):
    for j in range(2, b.shape[1] - 1):
        for i in range(a.shape[0]):
            for k in range(-1, 2):
                c[i, j] += b[0, j + k] if len(b) > 0 else 1
    return c


def fewer_trips_in_first_rows(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(min(i, a.shape[1])):
                c[i, j] += a[i, k] * b[k, j]
    return c


def forces(a, b, c):
    """Of bodies on each other: several elements of rows of three, which are far apart in memory, written in a branch."""
    n = b.shape[1]
    pos, acc = np.empty((n, 3)), np.zeros((n, 3))
    for i in range(n):
        for axis in range(3):
            pos[i, axis] = i * (axis - 1) % 7
    for i in range(n):
        for j in range(n):
            if i != j:
                dx, dy = pos[j, 0] - pos[i, 0], pos[j, 2] - pos[i, 2]
                inverse = 1 / np.sqrt(dx * dx + dy * dy + 1)
                acc[i, 0] += dx * inverse
                acc[i, 2] += dy * inverse
                acc[i, 1] = acc[i, 1] - acc[i, 2]
    return acc


def first_of_the_least(a, b, c):
    found = np.zeros(b.shape[1], dtype=np.int64)
    for j in range(b.shape[1]):
        least, at = 1e9, -1
        for k in range(b.shape[0]):
            if b[k, j] < least:
                least, at = b[k, j], k
        found[j] = at * 2 + j
    return found


# --- One by one ------------------------------------------------------------------------------------------------------


def trips_depend_on_the_lane(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(min(j, a.shape[1])):
                c[i, j] += a[i, k] * b[k, j]
    return c


def reads_what_another_lane_writes(a, b, c):
    for i in range(a.shape[0]):
        for j in range(1, b.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] += c[i, j - 1] * a[i, k]
    return c


def all_write_one_place(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                c[i, 0] += a[i, k] * b[k, j]
    return c


def backwards(a, b, c):
    m = b.shape[1]
    for i in range(a.shape[0]):
        for j in range(m):
            for k in range(a.shape[1] - 1, -1, -1):
                c[i, m - 1 - j] += a[i, k] * b[k, j]
    return c


def writes_a_place_of_the_next(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1] - 1):
            for k in range(a.shape[1]):
                c[i, j] += a[i, k]
            c[i, j + 1] = c[i, j] * 2
    return c


def writes_in_branches_within_branches(a, b, c):
    n = b.shape[1]
    acc = np.zeros((3, n))
    for i in range(n):
        for k in range(b.shape[0]):
            if b[k, i] > 0:
                acc[0, i] += b[k, i]
                acc[0, i] += acc[-1, i]
            elif b[k, i] < -3:
                acc[1, i] = acc[0, i]
                acc[-1, i] = 5
    return acc


def keeps_the_last(a, b, c):
    last = 0.0
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            last = c[i, j]
            for k in range(a.shape[1]):
                last += a[i, k] * b[k, j]
            c[i, j] = last
    return c, last


def looks_where_no_trip_goes(a, b, c):
    none = c.shape[0] - a.shape[0]
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(none):
                c[i, j] += a[i, none - 1 - a.size] * b[k, j]
    return c


TOGETHER = [
    product, product_of_sums, writes_twice_in_a_trip, several_loops_within, chooses_within, fewer_trips_in_first_rows,
    forces, first_of_the_least,
]  # fmt: skip
OTHERS = [
    neighbours, trips_depend_on_the_lane, reads_what_another_lane_writes, all_write_one_place, backwards, keeps_the_last,
    looks_where_no_trip_goes, writes_a_place_of_the_next, writes_in_branches_within_branches,
]  # fmt: skip


def arrays(sizes: tuple[int, int, int], dtype: Any = np.float64) -> list[np.ndarray]:
    n, k, m = sizes
    rng = np.random.default_rng(m)
    return [(rng.normal(size=s) * 4).astype(dtype) for s in ((n, k), (k, m), (n, m))]


def same(function: Any, compiled: Any, sizes: tuple[int, int, int], dtype: Any) -> None:
    got, want = arrays(sizes, dtype), arrays(sizes, dtype)
    for one, other in zip(np.atleast_1d(compiled(*got)), np.atleast_1d(function(*want))):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(got[2], want[2])


@pytest.mark.parametrize("function", [*TOGETHER, *OTHERS], ids=lambda f: f.__name__)
def test_has_the_bits_of_trips_one_by_one(function: Any) -> None:
    compiled = dsl.jit(function)
    for sizes in SIZES:  # symbolic from the second on
        if function is all_write_one_place and not sizes[2]:
            continue
        if function is not keeps_the_last:
            same(function, compiled, sizes, np.float64)
            continue
        got, want = compiled(*arrays(sizes)), function(*arrays(sizes))
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1] == want[1] or not want[0].size


@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", "c16"])
@pytest.mark.parametrize("function", [product, chooses_within], ids=lambda f: f.__name__)
def test_other_elements(function: Any, dtype: str) -> None:
    if function is product or dtype != "c16":
        with np.errstate(over="ignore"):
            same(function, dsl.jit(function), (3, 5, 70), dtype)


@pytest.mark.parametrize("function", TOGETHER, ids=lambda f: f.__name__)
def test_goes_by_vectors(function: Any) -> None:
    assert " x double>" in dsl.jit(function).ir(*arrays((3, 5, 70)), stage="llvm")


@pytest.mark.parametrize("function", OTHERS[1:], ids=lambda f: f.__name__)
def test_goes_one_by_one(function: Any) -> None:
    assert " x double>" not in dsl.jit(function).ir(*arrays((3, 5, 70)), stage="llvm")


def test_an_index_out_of_bounds_within_leaves_the_arrays() -> None:
    def too_far(a, b, c):
        for i in range(a.shape[0]):
            for j in range(b.shape[1]):
                for k in range(a.shape[1] + 1):
                    c[i, j] += a[i, k] * b[k, j]

    a, b, c = arrays((3, 5, 70))
    before = c.copy()
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1 with size 5"):
        dsl.jit(too_far)(a, b, c)
    np.testing.assert_array_equal(c, before)


def test_long_loops_look_for_interrupts() -> None:
    text = dsl.jit(product).ir(*arrays((1, 100, 5000)), stage="llvm")
    assert "call i32 @dsl_poll()" in text
    got, want = arrays((1, 300, 5000)), arrays((1, 300, 5000))
    dsl.jit(product)(*got)
    for k in range(300):
        want[2] += want[0][:, k : k + 1] * want[1][k]
    np.testing.assert_array_equal(got[2], want[2])
