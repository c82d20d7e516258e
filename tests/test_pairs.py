"""`while` loops of numbers that make two trips at once: results are those of plain Python, wherever the loop ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps, n


def masked(n):
    total = 0
    while n > 3:
        if n & 3 == 1:
            n, total = n - 1, total + n
        else:
            n = (n + 3) >> 1
    return n, total


def root(a, low, high):
    """Bisection: the condition takes longer than what it chooses between."""
    steps = 0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        if middle * middle * middle - 2.0 * middle < a:
            low = middle
        else:
            high = middle
        steps += 1
    return low, high, steps


def integer_root(n):
    low, high = 0, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if middle * middle <= n:
            low = middle
        else:
            high = middle
    return low


def three_ways(n):
    total = 0
    while n > 1:
        if n % 4 == 0:
            n = n // 4
        elif n % 4 == 2:
            n = n // 2
        else:
            n = 3 * n + 1
        total += n
    return total


def nested(limit):
    total = 0
    for start in range(1, limit):
        n = start
        while n >= start and n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            total += n
    return total


def with_break(n, most):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
        if steps == most:
            break
    return n, steps


NUMBERS = [0, 1, 2, 3, 4, 5, 6, 7, 27, 1000, 12345]


@pytest.mark.parametrize("function", [masked, integer_root, three_ways, nested])
def test_results_are_those_of_python(function: Any) -> None:
    compiled = dsl.jit(function)
    for n in [-5, *NUMBERS]:
        if (n := min(n, 500) if function is nested else n) >= 0 or function is not integer_root:
            assert compiled(n) == function(n), n


def test_a_loop_may_end_after_any_trip() -> None:
    compiled, stopped = dsl.jit(collatz), dsl.jit(with_break)
    for n in NUMBERS[1:]:
        assert compiled(n) == collatz(n)
        for most in range(1, 9):
            assert stopped(n, most) == with_break(n, most)


def test_bisections_have_the_bits_of_python() -> None:
    compiled = dsl.jit(root)
    for a, low, high in [(3.3, 0.0, 10.0), (0.0, -3.0, 2.0), (1.0, 2.0, 1.0), (1.0, np.nan, 2.0)]:
        np.testing.assert_array_equal(compiled(a, low, high), root(a, low, high))


@pytest.mark.parametrize(
    ("function", "args"), [(collatz, (27,)), (root, (1.0, 0.0, 4.0)), (nested, (9,))]
)
def test_loops_that_wait_for_a_choice_make_two_trips(function: Any, args: Any) -> None:
    assert "two trips at once" in dsl.jit(function).ir(*args, stage="kernels")


def greatest_divisor(a, b):
    while a != b:
        if a > b:
            a -= b
        else:
            b -= a
    return a


def test_loops_that_gain_nothing_do_not() -> None:
    assert "two trips" not in dsl.jit(greatest_divisor).ir(12, 18, stage="kernels")
    assert dsl.jit(greatest_divisor)(1071, 462) == 21
