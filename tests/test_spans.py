"""Loops over places of which nothing is known before the program runs: they are looked at for many trips at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

X = np.arange(1.0, 41.0)
M = X.reshape(5, 8)
FAR = 2**62


def summed(x, start, stop):
    total = 0.0
    for j in range(start, stop, 3):
        total = total * 0.5 + x[j]
    return total


def marked(x, start, stop, step):
    for j in range(start, stop, step):
        x[j] = -1.0
    return x


def scaled(x, start, stop):
    for j in range(start, stop):
        x[j] = 2.0 * x[j]
    return x


def differences(x, start, stop):
    y = np.zeros(len(x))
    for j in range(start, stop):
        y[j - start] = x[j] - x[j - 1]
    return y


def multiples(x, stop, factor):
    total = 0.0
    for j in range(stop):
        total = total * 0.5 + x[j * factor]
    return total


def one_for_all(x, k, stop):
    total = 0.0
    for j in range(stop):
        total = total * 0.5 + x[k] + j
    return total


def along_rows(m, k, start, stop):
    total = 0.0
    for i in range(2):
        for j in range(start, stop):
            total = total * 0.5 + m[i + k, j]
    return total


def data_between(x, start, stop):
    total = 0.0
    for j in range(start, stop):
        total = total * 0.5 + x[int(x[j])] + x[j + 2]
    return total


def from_the_end(x, start, stop):
    y = np.zeros(99)
    for j in range(start, stop):
        y[j] = x[-1 - j] + x[j]
    return y


def two_arrays(x, start, stop):
    y = np.zeros(30)
    for j in range(start, stop):
        y[j + 1] = x[j]
        x[j + 2] = 0.0
    return y


def clipped(x, start, stop):
    for j in range(start, stop):
        if x[j] < 9.0:
            x[j] = 9.0
        elif x[j] > 30.0:
            x[j] = x[j] - 1.0
    return x


def beside_what_is_asked(x, start, stop):
    y = np.zeros(40)
    for j in range(start, stop):
        if x[j] > 9.0:
            y[j + 1] = x[j]
    return y


def table(x, n, m):
    for i in range(n):
        for j in range(m):
            x[8 * i + j] = 2.0 * x[8 * i + j]
    return x


def below_the_diagonal(m, n, shift):
    for i in range(n):
        m[i, i + shift] = 0.0
        for j in range(i + 1, n):
            m[j, i] = m[i, j] + m[j - shift, i]
    return m


def three_deep(m, n, k):
    for i in range(n):
        for j in range(k):
            for l in range(i, n + j - 1):
                m[i, l + j] += 1.0
    return m


def by_data_within(m, n, k):
    for i in range(n):
        at = int(m[i, k]) % 9
        for j in range(k):
            m[i, j] = m[at, j]
    return m


def first_of_several(x, n, shift):
    for i in range(n):
        x[3 * i + shift] = 1.0
        x[2 * i + shift] = x[4 * i + 1]
        x[3 * i + shift] += 1.0
    return x


def under_a_test(x, start, stop):
    total = 0.0
    for j in range(start, stop):
        if x[j] > 3.0:
            total += x[j + 1]
    return total


def after_an_assertion(x, start, stop):
    for j in range(start, stop):
        assert j < 3, "too many"
        x[j + 50] = 0.0
    return x


CALLS = [
    (summed, (X, 2, 40)), (summed, (X, -40, 40)), (summed, (X, -41, 0)), (summed, (X, 1, 41)), (summed, (X, 5, 2)),
    (summed, (X, 0, 47)), (summed, (X, 38, 100)),
    (marked, (X, 4, 40, 2)), (marked, (X, 39, -1, -1)), (marked, (X, -1, -41, -3)), (marked, (X, 30, 50, 7)),
    (marked, (X, 5, -50, -9)), (marked, (X, 0, 10, 0)), (marked, (X, 3, 4, FAR)),
    (scaled, (X, 1, 40)), (scaled, (X, -5, 5)), (scaled, (X, -40, -7)), (scaled, (X, 7, 41)), (scaled, (X, 40, 41)),
    (differences, (X, 0, 40)), (differences, (X, 3, 40)), (differences, (X, -40, 0)), (differences, (X, 0, 41)),
    (multiples, (X, 14, 3)), (multiples, (X, 13, 3)), (multiples, (X, 41, -1)), (multiples, (X, 42, -1)), (multiples, (X, 40, 0)),
    (multiples, (X, 5, FAR)), (multiples, (X, 2, FAR)), (multiples, (X, 1, FAR)),
    (one_for_all, (X, 39, 5)), (one_for_all, (X, -40, 5)), (one_for_all, (X, 40, 5)), (one_for_all, (X, 40, 0)),
    (along_rows, (M, 3, 0, 8)), (along_rows, (M, 4, 0, 8)), (along_rows, (M, -1, -8, 8)), (along_rows, (M, 0, 3, 9)),
    (along_rows, (M, 9, 3, 9)), (along_rows, (M, 5, 8, 8)),
    (data_between, (X, 0, 20)), (data_between, (X, 30, 39)), (data_between, (X, 37, 41)),
    (from_the_end, (X, 0, 40)), (from_the_end, (X, -1, 40)), (from_the_end, (X, -20, 20)), (from_the_end, (X, 1, 42)),
    (two_arrays, (X, 0, 29)), (two_arrays, (X, 0, 30)), (two_arrays, (X, 9, 40)), (two_arrays, (X, -33, 30)), (two_arrays, (X, -9, 9)),
    (clipped, (X, 0, 40)), (clipped, (X, 3, 41)), (clipped, (X, -9, 40)), (clipped, (X, -41, 0)),
    (beside_what_is_asked, (X, 0, 39)), (beside_what_is_asked, (X, 0, 40)), (beside_what_is_asked, (X, -41, 0)),
    (beside_what_is_asked, (X, -40, 8)),
    (first_of_several, (X, 11, 8)), (first_of_several, (X, 11, 9)), (first_of_several, (X, 11, 10)),
    (table, (X, 5, 8)), (table, (X, 6, 8)), (table, (X, 5, 9)), (table, (X, 5, 1)), (table, (X, 0, 99)), (table, (X, 99, -1)),
    (below_the_diagonal, (M, 5, 0)), (below_the_diagonal, (M, 5, 4)), (below_the_diagonal, (M, 6, 0)), (below_the_diagonal, (M, 5, -5)),
    (below_the_diagonal, (M, 4, 6)), (below_the_diagonal, (M, 5, -9)),
    (three_deep, (M, 4, 2)), (three_deep, (M, 5, 3)), (three_deep, (M, 6, 1)), (three_deep, (M, 2, 5)), (three_deep, (M, 5, 0)),
    (by_data_within, (M, 5, 7)), (by_data_within, (M, 2, 3)), (by_data_within, (M, 6, 7)), (by_data_within, (M, 5, 8)),
    (under_a_test, (X, 0, 39)), (under_a_test, (X, 0, 40)), (under_a_test, (X, -3, 2)),
    (after_an_assertion, (X, 0, 9)),
]  # fmt: skip


def outcome(function: Any, args: Any) -> tuple[Any, np.ndarray | None]:
    """What a call returns or raises, and what it leaves in the array if it returns."""
    array = args[0].copy()
    try:
        return np.asarray(function(array, *args[1:])).tolist(), array
    except (IndexError, ValueError, AssertionError) as error:
        assert function.__class__ is type(outcome) or (array == args[0]).all()
        return (type(error).__mro__[-4:], str(error).split("\n")[0]), None


@pytest.mark.parametrize("function", dict.fromkeys(f for f, _ in CALLS), ids=lambda f: f.__name__)
def test_places_are_those_of_python(function: Any) -> None:
    compiled = dsl.jit(function)
    for args in (args for f, args in CALLS if f is function):
        got, want = outcome(compiled, args), outcome(function, args)
        assert got[0] == want[0], args
        if want[1] is not None:
            np.testing.assert_array_equal(got[1], want[1], str(args))


def test_long_products_do_not_go_around() -> None:
    """All ends of such steps are in the array if they are taken modulo 2**64."""
    for trips, factor in ((5, FAR), (3, 2**63 - 1), (2**32 + 1, 2**32)):
        with pytest.raises(IndexError, match="out of bounds for axis 0 with size 40"):
            dsl.jit(multiples)(X, trips, factor)


def test_a_loop_from_an_argument_on_goes_by_vectors() -> None:
    for function in (scaled, clipped):
        assert " x double>" in dsl.jit(function).ir(X, 1, 40, stage="llvm")


def test_arguments_are_written_in_place_where_the_loop_fails_before_it_writes() -> None:
    for function in (scaled, two_arrays):
        assert "copies: 0" in dsl.jit(function).lower(X, 1, 20).memory_report()
    assert "copies: 0" in dsl.jit(table).lower(X, 3, 4).memory_report()
    for function in (below_the_diagonal, three_deep):
        assert "copies: 0" in dsl.jit(function).lower(M, 3, 2).memory_report()
    assert "copies: 0" not in dsl.jit(by_data_within).lower(M, 3, 2).memory_report()
    assert "copies: 0" not in dsl.jit(after_an_assertion).lower(X, 1, 2).memory_report()
