"""Expressions that change something: parts that are evaluated or not, and tests of `while`, do so as often as in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

UP, DOWN, MIXED = np.arange(1.0, 7.0), -np.arange(1.0, 7.0), np.array([3.0, -1, 4, -1, 5, -9])


def push(stack, v):
    stack.append(v)
    return True


def in_and_and_or(x):
    log = []
    x[0] > 0 and log.append(1)
    x[1] > 0 or push(log, 2)
    if not (x[2] > 0 or log.append(3)):
        log.append(4)
    return log


def in_conditional_expressions(x):
    stack = [x[0], x[1], x[2]]
    y = stack.pop() if x[0] > 0 else x[3]
    stack.append(y) if x[1] > 0 else stack.insert(0, x[4])
    return y, stack


def in_chained_comparisons(x):
    stack = [1.0, 2.0, 3.0]
    inside = 0 < x[0] < stack.pop()
    return inside, stack


def by_closures(x):
    counts = {"n": 0}

    def bump(k):
        counts["n"] += k
        return True

    x[0] > 0 and bump(1)
    if x[1] > 0 or bump(10):
        counts["n"] *= 2
    return counts


def without_doubles(x):
    seen, found = [], []
    for v in x:
        if not (v in seen or seen.append(v)):
            found.append(v)
    return seen, found


def counting_calls_in_while(x):
    calls = 0

    def error(v):
        nonlocal calls
        calls += 1
        return abs(v * v - abs(x[0]) - 1)

    v = 1.0
    while error(v) > 1e-9:
        v = 0.5 * (v + (abs(x[0]) + 1) / v)
    return v, calls


def popping_in_while(x):
    stack, n = list(x), 0
    while stack and stack.pop() > -4:
        n += 1
    return n, len(stack)


def writing_in_while(x):
    def halve():
        x[:] = x / 2
        return np.abs(x).max()

    n = 0
    while halve() > 1:
        n += 1
    return n


class Search:
    def __init__(self, value):
        self.value, self.steps, self.seen = value, 0, []

    def step(self):
        self.value = self.value * 0.5
        self.steps += 1
        self.seen.append(self.value)
        return self.value


def stepping_an_object_in_while(x):
    search = Search(abs(x[0]) * 100)
    while search.step() > 1:
        pass
    return search.steps, search.seen


def counting_down_with_else(x):
    left = [len(x)]

    def more():
        left[0] -= 1
        return left[0] > 0

    while more():
        if x[left[0]] > 4:
            break
    else:
        return -1
    return left[0]


PROGRAMS = [
    in_and_and_or, in_conditional_expressions, in_chained_comparisons, by_closures, without_doubles, counting_calls_in_while,
    popping_in_while, writing_in_while, stepping_an_object_in_while, counting_down_with_else,
]  # fmt: skip


@pytest.mark.parametrize("x", [UP, DOWN, MIXED], ids=["up", "down", "mixed"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_an_expression_changes(program: Callable[..., Any], x: np.ndarray) -> None:
    check_as_plain(program, x)
