"""Loops whose first trips give variables another structure than they had before."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl


def total_of_rows(x):
    total = 0
    for row in x:
        total = total + row
    return total


def series(x):
    total, term = 0, 1
    for k in range(1, len(x) + 1):
        total = total + term
        term = term * x / k
    return total


def rows_until(x):
    total, last = 0, {}
    for k, row in enumerate(x):
        total = total + row
        last["row"], last["k"] = row, k
        if total.sum() > 300:
            break
    else:
        k = -1
    return total, k, last


def first_apart(x):
    for k in range(len(x)):
        if k == 0:
            level = x[k]
        else:
            level = 0.5 * level + x[k]
    return level


def none_in_one_branch(x):
    level, tops = None, 0.0
    for k in range(len(x)):
        level = x[k] if k == 0 else 0.5 * level + x[k]
        tops += level.max()
    return level, tops


class Momentum:
    def __init__(self) -> None:
        self.velocity: Any = None
        self.seen: dict[str, Any] = {}

    def step(self, gradients):
        for name, gradient in gradients.items():
            self.seen[name] = self.seen[name] + gradient if name in self.seen else gradient
        if self.velocity is None:
            self.velocity = np.zeros_like(gradients["a"])
        self.velocity = 0.9 * self.velocity - gradients["a"]


def lazy_attributes(x):
    momentum = Momentum()
    for row in x:
        momentum.step({"a": row, "b": row[:1]})
    return momentum.velocity, momentum.seen


def last_three(x):
    last = collections.deque(maxlen=3)
    for row in x:
        last.append(row.sum())
    return list(last)


def until_small(x):
    change, estimate, trips = np.inf, 0, 0
    while change > 1e-3:
        new = 0.5 * estimate + x
        change = np.abs(new - estimate).max()
        estimate = new
        trips += 1
    return estimate, trips


def writes_the_callers_first(x):
    y = x
    for _ in range(100):
        y[0] += 1.0
        y = y / 2
    return y


PROGRAMS = [
    total_of_rows, series, rows_until, first_apart, none_in_one_branch, lazy_attributes, last_three, until_small,
    writes_the_callers_first,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_the_first_trips_settle(program: Any) -> None:
    for rows in (100, 70, 5, 1):
        check_as_plain(program, np.arange(4.0 * rows).reshape(rows, 4) / rows)


def test_loops_of_many_sizes_compile_twice() -> None:
    compiled = dsl.jit(total_of_rows)
    for rows in (100, 70, 200, 3):
        np.testing.assert_allclose(compiled(np.ones((rows, 4))), np.full(4, rows))
    assert compiled.cache_info().entries == 2


def test_a_number_of_trips_that_is_an_argument() -> None:
    def program(x, trips):
        total = 0
        for k in range(trips):
            total = total + k * x
        return total

    for trips in (100, 0, 1):
        check_as_plain(program, np.ones(3), trips)


def test_the_gradient_of_a_loop_after_its_first_trip() -> None:
    x = np.linspace(0.1, 1.0, 300).reshape(100, 3)
    got = dsl.grad(lambda x: (total_of_rows(x) ** 2).sum())(x)
    np.testing.assert_allclose(got, np.broadcast_to(2 * x.sum(axis=0), x.shape))


def test_an_error_of_the_first_trip_is_the_users() -> None:
    def program(x):
        level = None
        for row in x:
            level = level + row
        return level

    with pytest.raises(TypeError, match="NoneType"):
        dsl.jit(program)(np.ones((100, 3)))


def test_a_search_through_a_list_that_grows_is_not_unrolled() -> None:
    def program(x):
        found = []
        for row in x:
            if not any(np.abs(row - other).sum() < 1.0 for other in found):
                found.append(row)
        return len(found)

    x = np.random.default_rng(0).random((60, 3)) * 3
    check_as_plain(program, x)
    assert dsl.jit(program).ir(x).count("while") < 10


def test_small_integers_among_python_s_numbers_are_refused() -> None:
    def program(x):
        table = [1] * 1000
        table[0] = x[0]
        for k in range(1, 500):
            if x[k] > 50:
                table[k] = x[k]
        return table[60] * 100

    with pytest.raises(dsl.errors.LoopTypeError, match=r"\[np.int8\(0\)\] \* n"):
        dsl.jit(program)(np.arange(1000).astype(np.int8))
