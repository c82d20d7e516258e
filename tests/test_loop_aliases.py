"""Loops that rebind variables and write their arrays: the arrays that they drop, pass on and exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl

LONG = 100  # trips, more than are unrolled


def line() -> np.ndarray:
    return np.linspace(0.1, 0.9, 40)


def written_after_it_is_passed_on(u, steps):
    before, now = u.copy(), 0.9 * u
    for _ in range(steps):
        after = 2 * now - before
        after[1:-1] += 0.1 * (now[2:] + now[:-2] - 2 * now[1:-1])
        before = now
        now = after
        before[0] = 0.0
    return before, now


def passed_on_and_replaced(u, steps):
    a, b, c = u.copy(), 2 * u, 3 * u
    for _ in range(steps):
        a, b, c = b, c, 0.5 * a + 0.1 * b
        b[0] = 0.0
        a[-1] = 1.0
    return a, b, c


def exchanged_in_an_inner_loop(u, steps):
    a, b = u.copy(), 2 * u
    for t in range(steps):
        for _ in range(3):
            b[1:-1] = 0.2 * (a[2:] + a[:-2])
            a, b = b, a
        a[0] = 0.01 * t
    return a, b


def exchanged_and_replaced(u, steps):
    a, b = u.copy(), 2 * u
    for _ in range(steps):
        for _ in range(7):
            b[1:-1] = 0.5 * (a[2:] + a[:-2])
            b[0] = b[1]
            a, b = b, a
        c = 0.5 * a + 0.1 * b
        a, b = c, a
        b[0] = 0.3
    return a, b


def exchanged_by_data(u, steps):
    a, b = u.copy(), 2 * u
    for _ in range(steps):
        if a[0] > b[0]:
            a, b = b, a
        a[0] += 0.7
    return a, b


def exchanged_by_data_and_replaced(u, steps):
    a, b = u.copy(), 2 * u
    for _ in range(steps):
        if a[0] > b[0]:
            a, b = b, a
        a[0] += 0.7
        b = 0.5 * b
    return a, b


def a_part_of_what_is_dropped(u, steps):
    a = u.copy()
    for _ in range(steps):
        part = a[1:-1]
        part += 0.1
        a = 0.9 * a
        part += 0.1
    return a, part


def old_one_by_the_same_name_before(u, steps):
    u = u.copy()
    old = u
    for _ in range(steps):
        old = u.copy()
        u[1:-1] = 0.5 * (old[2:] + old[:-2])
    return u, old


def what_a_function_replaces(u, steps):
    def relax(x):
        for _ in range(steps):
            x[0] = 0.0
            x = 0.5 * x
        return x

    x = u.copy()
    for _ in range(3):
        x = relax(x)
    return x


def returned_when_it_settles(u, steps):
    u = u.copy()
    for _ in range(steps):
        if u.max() < 0.2:
            return u
        u[u > 0.1] *= 0.5
    return u


def returned_where_two_are_exchanged(u, steps):
    a, b = u.copy(), 0.3 * u
    for k in range(steps):
        b[1:-1] = 0.5 * (a[2:] + a[:-2])
        if np.abs(a - b).max() < 0.1:
            return b, k
        a, b = b, a
    return a, -1


@pytest.mark.parametrize("steps", [0, 1, 2, LONG])
@pytest.mark.parametrize(
    "program",
    [
        written_after_it_is_passed_on, passed_on_and_replaced, exchanged_in_an_inner_loop, exchanged_and_replaced,
        exchanged_by_data, exchanged_by_data_and_replaced, old_one_by_the_same_name_before, what_a_function_replaces,
        returned_when_it_settles,
        returned_where_two_are_exchanged,
    ],
)  # fmt: skip
def test_arrays_that_only_variables_of_the_loop_name(
    program: Callable[..., Any], steps: int
) -> None:
    check_as_plain(program, line(), steps)


def test_a_part_of_an_array_that_is_dropped() -> None:
    check_as_plain(a_part_of_what_is_dropped, line(), LONG)


def read_afterwards(u, steps):
    x = u.copy()
    y = x
    for _ in range(steps):
        x[0] = 0.0
        x = 0.5 * x
    return x, y


def part_read_afterwards(u, steps):
    x = u.copy()
    y = x[1:]
    for _ in range(steps):
        x[1] = 0.0
        x = 0.5 * x
    return x, y


def item_read_afterwards(u, steps):
    x = u.copy()
    y = [x]
    for _ in range(steps):
        x[0] = 0.0
        x = 0.5 * x
    return x, y[0]


def callers_variable_read_afterwards(u, steps):
    def relax(x):
        for _ in range(steps):
            x[0] = 0.0
            x = 0.5 * x
        return x

    x = u.copy()
    return relax(x), x


def read_in_each_trip(u, steps):
    x = u.copy()
    y, total = x, 0.0
    for _ in range(steps):
        x[0] += 1.0
        total += y[0]
        x = 0.5 * x
    return x, total


def read_by_the_condition(u, steps):
    x = u.copy()
    y = x
    while y[0] < steps and x[1] > 1e-9:
        x[0] += 1000.0
        x = 0.5 * x
    return x


def read_while_exchanged(u, steps):
    a, b = u.copy(), 2 * u
    y, total = a, 0.0
    for _ in range(steps):
        a[0] += 1.0
        total += y[0]
        a, b = b, a
    return a, b, total


def written_in_each_round(u, steps):
    z = u.copy()
    for _ in range(steps):
        x = z
        for _ in range(steps):
            x[0] += 1.0
            x = 0.5 * x
    return x, z


@pytest.mark.parametrize(
    "program",
    [
        read_afterwards, part_read_afterwards, item_read_afterwards, callers_variable_read_afterwards,
        read_while_exchanged, written_in_each_round,
    ],
)  # fmt: skip
def test_reads_of_what_only_some_trips_write_are_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(dsl.errors.AliasError, match="reads the array that the variable"):
        dsl.jit(program)(line(), LONG)


def two_names_for_one(u, steps):
    a, b = u.copy(), 2 * u
    c = a
    for _ in range(steps):
        c[0] += 1.0
        a, b, c = b, a, 0.5 * c
    return a, b, c


def one_of_another_array(u, steps):
    x, z = u.copy(), 2 * u
    for k in range(steps):
        x[0] += 1.0
        x = z if x[1] > 0.005 * k else 0.5 * x
    return x, z


def two_names_after_a_trip(u, steps):
    a, b = u.copy(), 2 * u
    for _ in range(steps):
        a[0] += b[0]
        b = a
        a[1] += 1.0
    return a, b


@pytest.mark.parametrize("program", [read_in_each_trip, read_by_the_condition, two_names_for_one])
def test_what_the_first_trip_alone_writes_is_written_once(program: Callable[..., Any]) -> None:
    check_as_plain(program, line(), LONG)


@pytest.mark.parametrize("program", [one_of_another_array])
def test_variables_for_the_same_array_are_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(dsl.errors.AliasError, match="which array is written depends on the trip"):
        dsl.jit(program)(line(), LONG)
    check_as_plain(program, line(), 3)


def test_several_names_after_a_trip() -> None:
    check_as_plain(two_names_after_a_trip, line(), 3)


@pytest.mark.parametrize("written", ["no", "inside", "after"])
def test_arrays_of_different_sizes_change_places(written: str) -> None:
    def turns(a, b, n):
        first = a
        for _ in range(n):
            a, b = b, a
            if written == "inside":
                a[0] += 1
        if written == "after":
            a[0] = 7.0
        return a * 2, b, first.sum(), len(a) - len(b)

    for n in (0, 1, 4, 5):
        check_as_plain(turns, np.arange(3.0), np.arange(5.0), n)
        check_as_plain(turns, np.arange(3.0), np.arange(3.0), n)


def passed_to_another_that_is_written(u, steps):
    c, a, total = 2 * u, 3 * u, 0.0
    for _ in range(steps):
        c[0] += 1.0
        total += a[0]
        a = c
    return a, c, total


def one_array_under_two_names_afterwards(u, steps):
    a, b = 3 * u, 2 * u
    for _ in range(steps):
        a = 0.5 * b
        b = a
    b[0] = 99.0
    return a, b


def perhaps_another_before(u, steps):
    c = 2 * u
    a = u
    for _ in range(steps - 1):
        a = c
    for _ in range(steps):
        a[0] += 1.0
        a = 0.5 * a
    return a, c


def new_array_in_each_inner_trip(u, steps):
    u = u.copy()
    for _ in range(3):
        u[0] = 1.0
        for _ in range(steps):
            new = 0.5 * u
            u = new
    return u


@pytest.mark.parametrize("steps", [1, 3, LONG])
@pytest.mark.parametrize(
    "program",
    [
        passed_to_another_that_is_written, one_array_under_two_names_afterwards, perhaps_another_before,
        new_array_in_each_inner_trip,
    ],
)  # fmt: skip
def test_arrays_that_have_two_names_after_a_trip(program: Callable[..., Any], steps: int) -> None:
    check_as_plain(program, line(), steps)


def test_a_view_of_what_another_variable_has_after_a_loop_is_not_written() -> None:
    def program(u):
        a, b = 3 * u, 2 * u
        for _ in range(LONG):
            a = 0.5 * b
            b = a[::-1]
        b[0] = 99.0
        return a, b

    with pytest.raises(dsl.errors.AliasError, match="may or may not share memory"):
        dsl.jit(program)(line())
