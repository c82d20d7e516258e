"""Derivatives as users ask for them: loops and branches in both modes and orders, trees, nesting, effects, rules, errors."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.config import config

BACKENDS = ("native", "interpreter")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.override(backend=request.param):
        yield request.param


def anew(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that nothing was compiled for, since what is compiled stays with the function."""
    return types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )  # fmt: skip


# -- loops and branches -------------------------------------------------------------------------------------------


def squared_by_for(x):
    for _ in range(5):
        x = x * x
    return x


def squared_by_while(x):
    k = 5
    while k > 0:
        x = x * x
        k -= 1
    return x


def squared_until_large(x):
    while x < 100.0:
        x = x * x
    return x


def newton(a):
    x = a
    while abs(x * x - a) > 1e-13 * a:
        x = 0.5 * (x + a / x)
    return x


def newton_for_a_vector(p):
    x = np.ones(2)
    while np.sum((x * x - p) ** 2) > 1e-26:
        x = x - (x * x - p) / (2.0 * x)
    return np.sum(np.sin(x))


def adaptive_ode(p):
    """Heun's method with an error estimate from Euler's; steps are rejected, and their size follows the error."""
    t, y, h, rejected = 0.0, p[0], 0.5, 0
    while t < 1.0 and rejected < 50:
        h = np.minimum(h, 1.0 - t + 1e-15)
        a = p[1] * y * (1.0 - y)
        b = p[1] * (y + h * a) * (1.0 - (y + h * a))
        error = abs(0.5 * h * (b - a))
        if error < 5e-3:
            t = t + h
            y = y + 0.5 * h * (a + b)
            h = h * 1.6
        else:
            h = h * 0.5
            rejected += 1
    return y


def ragged_rnn(w):
    """Sequences of different lengths; each is as long as the number before it says."""
    lengths = np.array([3, 0, 5])
    inputs = np.cos(np.arange(15.0)).reshape(3, 5)
    total = 0.0
    for row in range(3):
        h = np.zeros(2)
        for t in range(lengths[row]):
            h = np.tanh(h @ w + inputs[row, t])
        total = total + np.sum(h * h)
    return total


def inner_count_is_outer_index(x):
    s = x[0] * 1.0
    for i in range(4):
        t = x[1] * 1.0
        for _ in range(i):
            t = t * x[0] + np.cos(s)
        s = s + t
    return s


def inner_while_in_while(x):
    s, i = x[0] * 1.0, 0
    while i < 4:
        t = x[1] * 1.0
        while t < 5.0 + s:
            t = t * 1.5 + x[0]
        s = s + np.sin(t)
        i += 1
    return s


def loop_in_branch_not_taken(x):
    y = x * x
    if x > 10.0:
        for _ in range(5):
            y = y * x
    return np.sin(y)


def loop_in_branch_taken(x):
    y = x * x
    if x > 0.0:
        while y < 30.0:
            y = y * x * 2.0
    else:
        for _ in range(3):
            y = y + np.sin(x)
    return y


def branch_in_loop(x):
    s = 0.0
    for i in range(6):
        if s > 1.0:
            s = s + np.sin(x * i)
        else:
            s = s + x * x
    return s


def loops_in_branches_in_loops(x):
    s = x[0] * 1.0
    for i in range(4):
        if i % 2 == 0:
            for j in range(i + 1):
                if s > x[1]:
                    s = s * 0.7 + np.sin(x[1]) * j
                else:
                    s = s + x[0] * x[1]
        else:
            while s < 2.0:
                s = s * 1.5 + 0.1 * x[0]
    return s * x[0]


def early_break(x):
    s = 0.0
    for i in range(10):
        s = s + x * i
        if s > 8.0:
            break
    return s * s


def early_return(x):
    for _ in range(10):
        x = x * 1.3
        if x > 4.0:
            return x * x
    return x


def with_continue(x):
    s = x * 1.0
    for i in range(6):
        if i % 3 == 1:
            continue
        s = s * x + i
    return s


def zero_trips(x):
    s = x * 1.0
    while s > 1e6:
        s = s * x
    return s


def zero_trips_of_for(x):
    for _ in range(len(x) - 3):
        x = x * x
    return np.sum(x)


def gather_in_loop(x):
    order = np.array([2, 0, 2, 3])
    s = 0.0
    for i in range(4):
        s = s + x[order[i]] ** 2 * (i + 1)
    return s


def gather_many_in_loop(x):
    order = np.array([[2, 0], [2, 2], [3, 1]])
    s = np.zeros(2)
    for i in range(3):
        s = np.sin(s) + x[order[i]] * x[i]
    return np.sum(s * s)


def captured_many_times(w):
    h = np.ones(3)
    for _ in range(5):
        h = np.tanh(w @ h)
    return np.sum(h)


def unused_variable(x):
    s, unused = x * 1.0, x * 2.0
    for _ in range(4):
        s, unused = s * np.sin(s), unused * unused
    return s


def ignores_itself(x):
    y = x * 3.0
    for i in range(4):
        y = x * i
    return y * y


def integer_beside(x):
    count, s = 0, x * 1.0
    while s < 50.0:
        s = s * (1.5 + 0.1 * x)
        count += 1
    return s * count


JAX_TOO = [
    (squared_by_for, 1.1),
    (squared_by_while, 1.1),
    (squared_until_large, 1.3),
    (newton, 2.0),
    (newton_for_a_vector, np.array([2.0, 0.7])),
    (adaptive_ode, np.array([0.1, 9.0])),
    (ragged_rnn, np.array([[0.3, -0.4], [0.5, 0.2]])),
    (inner_count_is_outer_index, np.array([0.3, 0.5])),
    (inner_while_in_while, np.array([0.3, 0.5])),
    (loop_in_branch_not_taken, 1.2),
    (loop_in_branch_taken, 1.2),
    (branch_in_loop, 0.7),
    (loops_in_branches_in_loops, np.array([0.4, 0.9])),
    (early_break, 0.9),
    (early_return, 1.1),
    (with_continue, 1.1),
    (zero_trips, 2.0),
    (zero_trips_of_for, np.array([0.5, 2.0, 3.0])),
    (gather_in_loop, np.array([0.3, 0.5, 0.7, 0.2])),
    (gather_many_in_loop, np.array([0.3, 0.5, 0.7, 0.2])),
    (captured_many_times, np.array([[0.2, 0.5, -0.3], [0.1, 0.7, 0.2], [-0.6, 0.3, 0.4]])),
    (unused_variable, 1.2),
    (ignores_itself, 1.2),
    (integer_beside, 1.2),
]


def recurrence(x):
    n = x.shape[0]
    y = np.zeros(n)
    y[0] = x[0]
    for i in range(1, n):
        y[i] = np.tanh(y[i - 1] * x[i]) + x[i]
    return np.sum(y * y)


def recurrence_in_argument(x):
    for i in range(1, len(x)):
        x[i] = np.sin(x[i - 1]) * x[i]
    return np.sum(x)


def written_slices(x):
    x[1] = x[0] * x[1]
    x[2:] = np.sin(x[2:]) * x[1]
    x[::2] *= 2.0
    return np.sum(x * x)


def swapped(x):
    a, b = x * 1.0, np.cos(x)
    for _ in range(3):
        a, b = b, a * np.sin(b)
    return np.sum(a * b)


def swapped_buffers(x):
    old, new = x.copy(), np.zeros(len(x))
    for _ in range(3):
        for i in range(1, len(x) - 1):
            new[i] = 0.25 * old[i - 1] + 0.5 * old[i] ** 2 + 0.25 * old[i + 1]
        old, new = new, old
    return np.sum(old * old)


def overwritten(x):
    y = x * 1.0
    for i in range(3):
        y[0] = y[0] * x[i]
        y[1] = y[0]
    y[0] = 0.0
    return np.sum(y * y)


def added_up_in_place(x):
    bins = np.zeros(2)
    for i in range(len(x)):
        bins[i % 2] += x[i] ** 3
    return bins[0] * bins[1]


def appended(x):
    found = []
    while x < 10.0:
        x = x * 1.5
        found.append(x * x)
    return np.sum(np.array(found))


def appended_in_branch(x):
    found = []
    for _ in range(5):
        x = np.sin(x) * 1.5
        if x[0] > 0.6:
            found.append(x * x)
    return np.sum(np.array(found))


def unknown_shape(x):
    """The size of `kept` is known when the function runs; there is a branch in the loop that uses it."""
    kept = x[x > 0.4]
    s = np.sum(kept)
    while s < 20.0:
        if s > 5.0:
            kept = kept * 1.5
        else:
            kept = kept + np.sin(kept)
        s = s + np.sum(kept)
    return s


def last_of_several(x):
    """`return` from two loops and a branch."""
    for i in range(4):
        for j in range(4):
            x = x * 1.1
            if x > 2.0:
                return x * x + i
            if j > i:
                break
    return np.sin(x)


IN_DSL = [
    (recurrence, np.array([0.3, 0.5, 0.7, 0.2])),
    (recurrence_in_argument, np.array([0.3, 0.5, 0.7, 0.2])),
    (written_slices, np.array([0.3, 0.5, 0.7, 0.2])),
    (swapped, np.array([0.3, 0.5])),
    (swapped_buffers, np.array([0.3, 0.5, 0.7, 0.2, 0.4])),
    (overwritten, np.array([0.3, 0.5, 0.7])),
    (added_up_in_place, np.array([0.3, 0.5, 0.7, 0.2])),
    (appended, 1.1),
    (appended_in_branch, np.array([0.9, 0.5])),
    (unknown_shape, np.array([0.3, 0.5, 0.7, 0.2])),
    (last_of_several, 1.1),
]


def by_scan(x):
    def step(carry, row):
        return np.sin(carry) * row + 0.1, carry * row

    last, rows = dsl.scan(step, x[0], x)
    return last + np.sum(rows * rows)


def by_scan_in_reverse(x):
    def step(carry, row):
        return np.sin(carry) * row + 0.1, carry * row

    last, rows = dsl.scan(step, x[0], x, reverse=True)
    return last * np.sum(rows)


def by_fori_loop(x):
    return dsl.fori_loop(0, 5, lambda i, y: np.sin(y) * x[i % 3] + i, x[0])


def by_while_loop(x):
    found = dsl.while_loop(
        lambda s: s[0] < 20.0, lambda s: (s[0] * 1.5 + x[1], s[1] * x[0]), (x[0], x[1])
    )
    return found[0] * found[1]


def by_map(x):
    return np.sum(dsl.map(lambda row: np.sin(row) * row * x[0], x))


def by_fold(x):
    return dsl.fold(lambda carry, row: carry * np.cos(row) + row, x, 1.0)


def by_cond(x):
    return dsl.cond(x[0] > 0.4, lambda y: np.sum(np.sin(y)), lambda y: np.prod(y) * x[1], x)


def by_switch(x):
    total = 0.0
    for i in range(3):
        total += dsl.switch(i, [lambda y: np.sin(y), lambda y: y * y, lambda y: y**3], x[i])
    return total


VERBS = [
    by_scan,
    by_scan_in_reverse,
    by_fori_loop,
    by_while_loop,
    by_map,
    by_fold,
    by_cond,
    by_switch,
]
CASES = [*JAX_TOO, *IN_DSL, *((verb, np.array([0.3, 0.5, 0.7])) for verb in VERBS)]


def dot(x, y):
    return np.sum(x * y)


def everything(function):
    """First and second derivatives along directions v and w, by each pair of modes."""

    def run(x, v, w):
        value, slope = dsl.value_and_grad(function)(x)
        return {
            "value": value,
            "grad": slope,
            "jvp": dsl.jvp(function, (x,), (v,))[1],
            "grad of grad": dsl.grad(lambda y: dot(dsl.grad(function)(y), v))(x),
            "jvp of grad": dsl.jvp(dsl.grad(function), (x,), (v,))[1],
            "grad of jvp": dsl.grad(lambda y: dsl.jvp(function, (y,), (v,))[1])(x),
            "jvp of jvp": dsl.jvp(lambda y: dsl.jvp(function, (y,), (v,))[1], (x,), (w,))[1],
        }

    return dsl.jit(run)


def directions(x):
    rng = np.random.default_rng(5)
    if np.ndim(x) == 0:
        return 1.0, -0.7
    return rng.standard_normal(x.shape), rng.standard_normal(x.shape)


def differences(function, x, v, step=1e-6):
    """The slope of a function along a direction, and of each number that it returns."""
    ahead, behind = function(np.array(x) + step * v), function(np.array(x) - step * v)
    return (np.asarray(ahead) - np.asarray(behind)) / (2 * step)


def like(x, value):
    return float(value) if isinstance(x, float) else value


@pytest.mark.parametrize(("function", "x"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_loop(function: Any, x: Any, backend: str) -> None:
    v, w = directions(x)
    run = everything(anew(function))
    kept = np.copy(x)
    found = run(x, v, w)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_allclose(
        found["value"], function(np.copy(x) if np.ndim(x) else x), rtol=1e-12
    )
    slope = differences(lambda y: function(like(x, y)), x, v)
    near = {"rtol": 1e-6, "atol": 1e-8}
    np.testing.assert_allclose(found["jvp"], slope, **near)
    np.testing.assert_allclose(dot(found["grad"], v), slope, **near)
    bend = differences(lambda y: run(like(x, y), v, w)["grad"], x, v)
    for name in ("grad of grad", "jvp of grad", "grad of jvp"):
        np.testing.assert_allclose(found[name], bend, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(found["jvp of jvp"], dot(bend, w), rtol=1e-5, atol=1e-6)
