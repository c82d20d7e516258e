"""Derivatives as users ask for them: loops and branches in both modes and orders, trees, nesting, effects, rules, errors."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.config import config
from dsl.errors import GradientError
from dsl.ir.interpret import interpret
from dsl.ir.text import parse, print_graph
from dsl.transforms.graphs import gradient_graph

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
    (loop_in_branch_taken, -0.8),
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


def everything(function, **options):
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

    return dsl.jit(run, **options)


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


def check_modes_and_orders(function: Any, x: Any) -> None:
    """Compare both modes, and each after each, with differences; the argument stays as it is."""
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


@pytest.mark.parametrize(("function", "x"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_loop(function: Any, x: Any, backend: str) -> None:
    check_modes_and_orders(function, x)


def in_jax(function: Any) -> Any:
    """The same function of JAX's arrays; run eagerly, so that Python decides about branches and loops."""
    import jax.numpy as jnp

    return types.FunctionType(function.__code__, {**function.__globals__, "np": jnp})


@pytest.mark.parametrize(("function", "x"), JAX_TOO, ids=[f.__name__ for f, _ in JAX_TOO])
def test_loop_as_jax_has_it(function: Any, x: Any) -> None:
    jax = pytest.importorskip("jax")
    mine = anew(function)
    v = directions(x)[0]
    slope, bend = dsl.jit(lambda x, v: dsl.jvp(dsl.grad(mine), (x,), (v,)))(x, v)
    with jax.enable_x64(True):
        theirs = in_jax(function)
        np.testing.assert_allclose(slope, jax.grad(theirs)(x), rtol=1e-9, atol=1e-12)
        expected = jax.grad(lambda y: (jax.grad(theirs)(y) * v).sum())(x)
        np.testing.assert_allclose(bend, expected, rtol=1e-8, atol=1e-10)


def test_third_order_of_a_scalar_while(backend: str) -> None:
    def power(x):
        y, k = x, 0
        while k < 3:
            y = y * x
            k += 1
        return y

    third = dsl.grad(dsl.grad(dsl.grad(power)))
    np.testing.assert_allclose(third(1.5), 24 * 1.5, rtol=1e-12)
    mixed = dsl.jvp(dsl.grad(lambda x: dsl.jvp(power, (x,), (1.0,))[1]), (1.5,), (1.0,))
    np.testing.assert_allclose(mixed, (12 * 1.5**2, 24 * 1.5), rtol=1e-12)


@pytest.mark.parametrize("modes", ["rrrr", "rrrf", "rfrr", "frrf"])
def test_fourth_order_of_a_while(modes: str) -> None:
    def powers(x):
        i = 0
        while i < 3:
            x, i = x * x, i + 1
        return x

    function = powers
    for mode in modes:
        function = dsl.grad(function) if mode == "r" else slope_of(function)
    with config.override(verify="each"):
        assert function(1.5) == pytest.approx(8 * 7 * 6 * 5 * 1.5**4)


def slope_of(function: Any) -> Any:
    return lambda x: dsl.jvp(function, (x,), (1.0,))[1]


def test_third_order_of_a_while_that_ends_with_the_data() -> None:
    third = dsl.grad(dsl.grad(dsl.grad(anew(squared_until_large))))
    np.testing.assert_allclose(third(1.3), 32 * 31 * 30 * 1.3**29, rtol=1e-10)


def test_zero_trips_give_the_identity_and_zeros(backend: str) -> None:
    def never(x, w):
        while np.sum(x) > 1e6:
            x = np.tanh(w @ x)
        return np.sum(x * np.array([1.0, 2.0]))

    by_x, by_w = dsl.grad(never, argnums=(0, 1))(np.ones(2), np.ones((2, 2)))
    np.testing.assert_array_equal(by_x, [1.0, 2.0])
    np.testing.assert_array_equal(by_w, np.zeros((2, 2)))


def test_what_the_result_ignores_has_zeros_for_gradient() -> None:
    found = dsl.grad(lambda x, y: x * 2.0, argnums=(0, 1))(1.0, {"a": np.ones(2), "b": 3.0})
    assert found[0] == 2.0
    np.testing.assert_array_equal(found[1]["a"], np.zeros(2))
    assert found[1]["b"] == 0.0


def test_two_gradients_of_one_loop_in_one_function() -> None:
    def both(x):
        return dsl.grad(recurrence)(x), dsl.grad(lambda y: recurrence(y) ** 2)(x)

    x = np.array([0.3, 0.5, 0.7])
    one, other = dsl.jit(both)(x)
    np.testing.assert_allclose(other, 2 * recurrence(x) * one, rtol=1e-12)


@pytest.mark.parametrize("times", [1, 2, 7])
def test_captured_array_gets_the_sum_over_trips(times: int) -> None:
    def function(w):
        total = 0.0
        for i in range(times):
            total = total + np.sum(w) * (i + 1)
        return total

    np.testing.assert_allclose(dsl.grad(function)(np.ones(3)), sum(range(times + 1)))


def test_sizes_may_change_between_calls() -> None:
    slope = dsl.grad(anew(recurrence))
    for n in (3, 5, 9, 1):
        x = np.linspace(0.1, 0.9, n)
        v = np.cos(np.arange(float(n)))
        np.testing.assert_allclose(dot(slope(x), v), differences(recurrence, x, v), rtol=1e-6)


SOME_SIZES = [
    recurrence,
    captured_many_times,
    swapped_buffers,
    appended_in_branch,
    unknown_shape,
    by_scan,
    gather_many_in_loop,
]


@pytest.mark.parametrize("function", SOME_SIZES)
def test_symbolic_sizes(function: Any) -> None:
    x = next(x for f, x in CASES if f is function)
    v, w = directions(x)
    expected = everything(anew(function))(x, v, w)
    found = everything(anew(function), dynamic=True)(x, v, w)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_loops_over_nothing(backend: str) -> None:
    def scanned(x):
        last, rows = dsl.scan(lambda carry, row: (carry * row, carry), x[0] * 2.0, x[3:])
        return last + np.sum(rows) + np.sum(dsl.map(np.sin, x[3:]))

    np.testing.assert_array_equal(dsl.grad(scanned)(np.ones(3)), [2.0, 0.0, 0.0])
    np.testing.assert_array_equal(dsl.hessian(scanned)(np.ones(3)), np.zeros((3, 3)))


# -- arguments and results ----------------------------------------------------------------------------------------


@dataclass
class Layer:
    weight: Any
    bias: Any


def test_tree_of_everything() -> None:
    def loss(p, scale):
        total = np.sum(p["layer"].weight * p["layer"].bias) + p["list"][0] ** 2
        return scale * (total + np.sum(np.sin(p["pair"][1])) * p["pair"][0])

    params = {
        "layer": Layer(np.array([1.0, 2.0]), np.array([3.0, 4.0])),
        "list": [2.0],
        "pair": (3.0, np.array([[0.1, 0.2]])),
    }
    found = dsl.grad(loss)(params, 2.0)
    assert isinstance(found["layer"], Layer)
    np.testing.assert_allclose(found["layer"].weight, [6.0, 8.0])
    np.testing.assert_allclose(found["layer"].bias, [2.0, 4.0])
    assert found["list"] == [8.0]
    assert isinstance(found["pair"], tuple)
    np.testing.assert_allclose(found["pair"][0], 2 * np.sum(np.sin([0.1, 0.2])))
    np.testing.assert_allclose(found["pair"][1], 6 * np.cos([[0.1, 0.2]]))


def product(x, y, z=2.0):
    return x * y * z


def test_argnums() -> None:
    assert dsl.grad(product)(3.0, 4.0) == 8.0
    assert dsl.grad(product, argnums=1)(3.0, 4.0) == 6.0
    assert dsl.grad(product, argnums=(0, 1))(3.0, 4.0) == (8.0, 6.0)
    assert dsl.grad(product, argnums=(1, 0))(3.0, 4.0, 5.0) == (15.0, 20.0)
    assert dsl.grad(product, argnums=-1)(3.0, 4.0, 5.0) == 12.0
    assert dsl.grad(product, argnums=(-1, 0))(3.0, 4.0, 5.0) == (12.0, 20.0)


def test_keyword_arguments_are_not_differentiated() -> None:
    assert dsl.grad(product)(3.0, 4.0, z=5.0) == 20.0
    assert dsl.grad(product)(3.0, y=4.0, z=5.0) == 20.0
    assert dsl.value_and_grad(product, argnums=1)(3.0, 4.0, z=1.0) == (12.0, 3.0)


def test_has_aux() -> None:
    def loss(x):
        y = x * x
        return np.sum(y), {"y": y, "count": 3, "name": "loss"}

    x = np.array([1.0, 2.0])
    slope, aux = dsl.grad(loss, has_aux=True)(x)
    np.testing.assert_array_equal(slope, 2 * x)
    np.testing.assert_array_equal(aux["y"], x * x)
    assert (aux["count"], aux["name"]) == (3, "loss")
    (value, aux), slope = dsl.value_and_grad(loss, has_aux=True)(x)
    assert value == 5.0
    np.testing.assert_array_equal(slope, 2 * x)
    value, pull, aux = dsl.vjp(loss, x, has_aux=True)
    np.testing.assert_array_equal(pull(2.0)[0], 4 * x)
    value, moved, aux = dsl.jvp(loss, (x,), (np.ones(2),), has_aux=True)
    assert (value, moved) == (5.0, 6.0)
    np.testing.assert_array_equal(aux["y"], x * x)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (3.0, float),
        (np.float64(3), np.float64),
        (np.float32(3), np.float32),
        (np.array(3.0), np.ndarray),
    ],
    ids=["float", "float64", "float32", "0-d"],
)
def test_gradient_is_of_the_kind_of_the_argument(x: Any, kind: type) -> None:
    found = dsl.grad(lambda x: x * x)(x)
    assert type(found) is kind
    assert np.asarray(found).dtype == np.asarray(x).dtype
    assert found == 6.0


def test_float32_stays_float32() -> None:
    x = np.array([0.5, 2.0], np.float32)
    value, slope = dsl.value_and_grad(lambda x: np.sum(np.sin(x) * x))(x)
    assert (value.dtype, slope.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(slope, np.sin(x) + x * np.cos(x), rtol=1e-6)


def test_jacfwd_takes_complex_results_of_real_arguments() -> None:
    x = np.array([0.5, -1.0])
    slope = dsl.jacfwd(lambda x: np.exp(2j * x))(x)
    np.testing.assert_allclose(slope, np.diag(2j * np.exp(2j * x)), rtol=1e-14)
    bend = dsl.jacfwd(dsl.jacfwd(lambda x: np.exp(2j * x).sum()))(x)
    np.testing.assert_allclose(bend, np.diag(-4 * np.exp(2j * x)), rtol=1e-14)


def test_jacrev_of_complex_results_names_the_way() -> None:
    with raises("the function returns complex numbers", "`dsl.jacfwd`"):
        dsl.jacrev(lambda x: x * 1j)(np.ones(2))


def test_complex_gradient_is_not_conjugated() -> None:
    z = np.array([1.0 + 2.0j, -0.5j])
    found = dsl.grad(lambda z: np.sum(np.abs(z) ** 2))(z)
    np.testing.assert_allclose(found, 2 * z.conj())  # df/dx - i df/dy
    slope = dsl.grad(lambda z: np.sum(z**3), holomorphic=True)(z)
    np.testing.assert_allclose(slope, 3 * z**2)


def test_complex_loop() -> None:
    def orbit(c):
        z = c * 0.0
        for _ in range(4):
            z = z * z + c
        return z

    c = 0.3 + 0.2j
    found = dsl.grad(orbit, holomorphic=True)(c)
    np.testing.assert_allclose(found, (orbit(c + 1e-6) - orbit(c - 1e-6)) / 2e-6, rtol=1e-8)
    dsl.check_grads(orbit, (c,), order=2)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2],
        lambda a: a[::-1],
        lambda a: a.reshape(2, 3).T,
        lambda a: np.broadcast_to(a[0], (3,)),
    ],
    ids=["strided", "reversed", "transposed", "broadcast"],
)
def test_layouts(view: Any) -> None:
    x = view(np.linspace(0.1, 0.9, 6))
    found = dsl.grad(lambda x: np.sum(np.sin(x) * x))(x)
    np.testing.assert_allclose(found, np.sin(x) + x * np.cos(x), rtol=1e-12)


def test_empty_array() -> None:
    assert dsl.grad(lambda x: np.sum(x * x))(np.zeros((0, 3))).shape == (0, 3)


def test_vjp_over_trees() -> None:
    def function(p, x):
        return {"y": p["w"] * x, "total": np.sum(x)}

    value, pull = dsl.vjp(function, {"w": np.array([1.0, 2.0])}, np.array([3.0, 4.0]))
    np.testing.assert_array_equal(value["y"], [3.0, 8.0])
    by_p, by_x = pull({"y": np.array([1.0, 10.0]), "total": 0.5})
    np.testing.assert_array_equal(by_p["w"], [3.0, 40.0])
    np.testing.assert_array_equal(by_x, [1.5, 20.5])
    np.testing.assert_array_equal(pull({"y": np.zeros(2), "total": 1.0})[1], [1.0, 1.0])


def test_vjp_leaves_integers_alone() -> None:
    value, pull = dsl.vjp(lambda x, k: (x * k, k + 1), 3.0, 2)
    assert value == (6.0, 3)
    assert pull((1.0, 0))[0] == 2.0


def test_vjp_remembers_the_arguments_of_its_call() -> None:
    x = np.array([1.0, 2.0])
    _, pull = dsl.vjp(lambda x: x * x, x)
    x[:] = 100.0
    np.testing.assert_array_equal(pull(np.ones(2))[0], [2.0, 4.0])


def test_vjp_in_a_compiled_function() -> None:
    def function(x):
        y, pull = dsl.vjp(np.sin, x)
        return pull(y)[0]

    x = np.array([0.3, 0.5])
    np.testing.assert_allclose(dsl.jit(function)(x), np.sin(x) * np.cos(x), rtol=1e-12)


def test_pull_in_a_loop() -> None:
    def function(x):
        _, pull = dsl.vjp(lambda x: np.sin(x) * x, x)
        total = x * 0.0
        for i in range(3):
            total = total + pull(x * i)[0]
        return total

    x = np.array([0.3, 0.5])
    np.testing.assert_allclose(
        dsl.jit(function)(x), 3 * x * (np.sin(x) + x * np.cos(x)), rtol=1e-12
    )


def test_jvp_over_trees() -> None:
    value, moved = dsl.jvp(
        lambda p, x: [p["w"] * x, x],
        ({"w": np.ones(2)}, np.ones(2)),
        ({"w": np.full(2, 3.0)}, np.zeros(2)),
    )
    np.testing.assert_array_equal(value[0], [1.0, 1.0])
    np.testing.assert_array_equal(moved[0], [3.0, 3.0])
    np.testing.assert_array_equal(moved[1], [0.0, 0.0])


# -- nesting ------------------------------------------------------------------------------------------------------


def quartic(x):
    return np.sum(x**4) + x[0] * x[1]


X = np.array([0.5, 2.0, -1.0])


def quartic_slope(x):
    return 4 * x**3 + np.array([x[1], x[0], 0.0])


def quartic_bend(x):
    return np.diag(12 * x**2) + np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_jit_and_grad_in_any_order() -> None:
    for function in (dsl.grad(quartic), dsl.jit(dsl.grad(quartic)), dsl.grad(dsl.jit(quartic))):
        np.testing.assert_allclose(function(X), quartic_slope(X), rtol=1e-12)


def test_grad_of_grad() -> None:
    assert dsl.grad(dsl.grad(lambda x: x**3))(2.0) == pytest.approx(12.0)
    assert dsl.grad(dsl.jit(dsl.grad(lambda x: x**3)))(2.0) == pytest.approx(12.0)
    assert dsl.grad(lambda x: x * dsl.grad(lambda y: x * y * y)(3.0))(2.0) == pytest.approx(24.0)


def test_grad_with_respect_to_what_an_inner_grad_captures() -> None:
    def outer(a):
        return dsl.grad(lambda x: np.sin(a * x))(2.0)

    np.testing.assert_allclose(dsl.grad(outer)(0.7), np.cos(1.4) - 1.4 * np.sin(1.4), rtol=1e-12)


def test_grad_in_a_loop() -> None:
    def descended(x):
        for _ in range(3):
            x = x - 0.1 * dsl.grad(quartic)(x)
        return np.sum(x)

    dsl.check_grads(descended, (X * 0.5,), order=2)


def test_hessian_vector_product() -> None:
    v = np.array([1.0, -1.0, 0.5])
    whole = dsl.hessian(quartic)(X)
    np.testing.assert_allclose(whole, quartic_bend(X), rtol=1e-12, atol=1e-12)
    moved = dsl.jvp(dsl.grad(quartic), (X,), (v,))[1]
    np.testing.assert_allclose(moved, whole @ v, rtol=1e-12)
    pulled = dsl.vjp(dsl.grad(quartic), X)[1](v)[0]
    np.testing.assert_allclose(pulled, whole @ v, rtol=1e-12)


def test_jacobians_agree() -> None:
    def function(x):
        return np.array([np.sum(x * x), x[0] * x[1], np.sin(x[2])])

    forward, reverse = dsl.jacfwd(function)(X), dsl.jacrev(function)(X)
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)
    np.testing.assert_allclose(forward, [2 * X, [2.0, 0.5, 0], [0, 0, np.cos(-1.0)]], rtol=1e-12)


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
def test_jacobian_over_trees(jacobian: Any) -> None:
    def function(p, x):
        return {"y": p["w"] @ x, "z": np.sum(p["b"])}

    p, x = {"w": np.arange(6.0).reshape(2, 3), "b": 2.0}, X
    found = jacobian(function, argnums=(0, 1))(p, x)
    (by_p, by_x), (z_by_p, z_by_x) = found["y"], found["z"]
    np.testing.assert_allclose(by_x, p["w"])
    assert by_p["w"].shape == (2, 2, 3)
    np.testing.assert_allclose(by_p["w"], np.einsum("ij,k->ijk", np.eye(2), x))
    np.testing.assert_array_equal(by_p["b"], np.zeros(2))
    assert z_by_p["b"] == 1.0
    np.testing.assert_array_equal(z_by_x, np.zeros(3))


def test_hessian_of_a_list_that_grows() -> None:
    """Its size is known inside the loop alone, so its items take turns."""

    def squares(x):
        found = []
        for v in x:
            if v > 0:
                found.append(v * v)
        return np.array(found).sum()

    x = np.array([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(dsl.hessian(squares)(x), np.diag([2.0, 0.0, 2.0]))


def by_recursion(x, n=3):
    return x[0] if n == 0 else np.sin(by_recursion(x, n - 1)) * x[n % 2]


def by_comprehension(x, n=3):
    return np.stack([x * k for k in range(n)]).prod(axis=1).sum()


def by_choice(x, n=1):
    return [np.sin, np.cos, np.exp][n](x).sum()


@pytest.mark.parametrize("fn", [by_recursion, by_comprehension, by_choice])
def test_python_integers_are_known_in_derivatives_as_in_compiled_functions(fn: Any) -> None:
    """Tracing needs their values: they are compiled for, given or by default."""
    x = np.array([0.3, 0.7])
    for call in (lambda f: f(x), lambda f: f(x, 2), lambda f: f(x, n=1)):
        expected = call(lambda *args, **more: dsl.grad(lambda v: fn(v, *args[1:], **more))(x))
        for transform in (dsl.grad, dsl.jacfwd, dsl.jacrev, lambda f: dsl.jit(dsl.grad(f))):
            np.testing.assert_allclose(call(transform(fn)), expected, rtol=1e-12)
        np.testing.assert_allclose(call(dsl.checkpoint(fn)), call(fn), rtol=1e-12)
    batched = dsl.vmap(dsl.grad(fn), in_axes=(0, None))(np.stack([x, x]), 2)
    np.testing.assert_allclose(batched[1], dsl.grad(fn)(x, 2), rtol=1e-12)


def test_gradient_through_a_loop_over_a_list_that_grows() -> None:
    def cubes(x):
        found, total = [], 0.0
        for v in x:
            if v > 0:
                found.append((v, v * v))
        for k, (one, two) in enumerate(found):
            total += one * two * (k + 1)
        return total

    found = dsl.grad(cubes)(np.array([1.0, -2.0, 3.0]))
    np.testing.assert_allclose(found, [3.0, 0.0, 54.0])


def test_hessian_over_trees() -> None:
    found = dsl.hessian(lambda p: np.sum(p["a"] ** 2) * p["b"])(
        {"a": np.array([1.0, 2.0]), "b": 3.0}
    )
    np.testing.assert_allclose(found["a"]["a"], 6 * np.eye(2))
    np.testing.assert_allclose(found["a"]["b"], [2.0, 4.0])
    np.testing.assert_allclose(found["b"]["a"], [2.0, 4.0])
    np.testing.assert_allclose(found["b"]["b"], 0.0, atol=1e-15)


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
def test_jacobian_of_a_loop(jacobian: Any) -> None:
    def function(x):
        y = x * 1.0
        while y[0] < 5.0:
            y = y * 1.5 + np.sin(x)
        return y

    x = np.array([0.4, 0.7])
    expected = np.stack([differences(function, x, e) for e in np.eye(2)], axis=1)
    np.testing.assert_allclose(jacobian(function)(x), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
def test_jacobian_of_a_result_whose_size_the_data_decides(jacobian: Any, backend: str) -> None:
    def function(x):
        return np.cumsum(x[x > 0] ** 2)

    found = jacobian(anew(function))(np.array([1.0, -1.0, 3.0]))
    np.testing.assert_allclose(found, [[2.0, 0, 0], [2.0, 0, 6.0]])


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
@pytest.mark.parametrize("dynamic", [False, True])
def test_jacobian_with_respect_to_arguments_of_several_sizes(jacobian: Any, dynamic: bool) -> None:
    def function(x, y, z):
        return x * z, np.outer(y, x)

    compiled = dsl.jit(jacobian(anew(function), argnums=(2, 0, 1, 0)), dynamic=dynamic)
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    (by_z, by_x, by_y, again), (_, outer_by_x, outer_by_y, _) = compiled(x, y, np.float32(2))
    np.testing.assert_array_equal(by_z, x)
    np.testing.assert_array_equal(by_x, 2 * np.eye(2))
    np.testing.assert_array_equal(again, by_x)
    np.testing.assert_array_equal(by_y, np.zeros((2, 3)))
    np.testing.assert_array_equal(outer_by_x, np.einsum("i,jk->ijk", y, np.eye(2)))
    np.testing.assert_array_equal(outer_by_y, np.einsum("ik,j->ijk", np.eye(3), x))


def test_jacobian_has_aux() -> None:
    found, aux = dsl.jacrev(lambda x: (x * x, "beside"), has_aux=True)(X)
    np.testing.assert_allclose(found, np.diag(2 * X))
    assert aux == "beside"


def test_vmap_of_grad_and_grad_of_vmap() -> None:
    rows = np.stack([X, 2 * X])
    np.testing.assert_allclose(
        dsl.vmap(dsl.grad(quartic))(rows), np.stack(list(map(quartic_slope, rows))), rtol=1e-12
    )
    total = dsl.grad(lambda rows: np.sum(dsl.vmap(quartic)(rows)))
    np.testing.assert_allclose(total(rows), np.stack(list(map(quartic_slope, rows))), rtol=1e-12)


def test_vmap_of_grad_of_a_while_with_different_trips() -> None:
    xs = np.array([1.1, 1.3, 2.0, 200.0])
    slope = dsl.grad(anew(squared_until_large))
    np.testing.assert_allclose(dsl.vmap(slope)(xs), [slope(float(x)) for x in xs], rtol=1e-12)
    total = dsl.grad(lambda xs: np.sum(dsl.vmap(squared_until_large)(xs)))
    np.testing.assert_allclose(total(xs), [slope(float(x)) for x in xs], rtol=1e-12)


def test_stop_gradient() -> None:
    assert dsl.grad(lambda x: x * dsl.stop_gradient(x))(3.0) == 3.0
    found = dsl.jvp(lambda x: x * dsl.stop_gradient({"a": x * x})["a"], (3.0,), (1.0,))
    assert found == (27.0, 9.0)


# -- what a function does besides ---------------------------------------------------------------------------------


def test_prints_once(capsys: pytest.CaptureFixture[str], backend: str) -> None:
    def noisy(x):
        print("x is", x)
        y = x
        for i in range(2):
            print("trip", i)
            y = y * x
        return y

    assert dsl.grad(noisy)(2.0) == 12.0
    assert capsys.readouterr().out == "x is 2.0\ntrip 0\ntrip 1\n"
    assert dsl.jvp(noisy, (2.0,), (1.0,))[1] == 12.0
    assert capsys.readouterr().out == "x is 2.0\ntrip 0\ntrip 1\n"
    assert dsl.grad(dsl.checkpoint(noisy))(2.0) == 12.0
    assert capsys.readouterr().out == "x is 2.0\ntrip 0\ntrip 1\n"


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
def test_jacobians_do_once_what_the_function_does(
    jacobian: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def noisy(x, y):
        print("x is", x)
        return x * y, x + y

    assert jacobian(noisy, argnums=(0, 1))(2.0, 3.0) == ((3.0, 2.0), (1.0, 1.0))
    assert capsys.readouterr().out == "x is 2.0\n"


@pytest.mark.parametrize("jacobian", [dsl.jacfwd, dsl.jacrev])
def test_jacobians_take_one_element_of_a_queue(jacobian: Any) -> None:
    queue = dsl.FIFOQueue(10, np.float64, ())
    queue.enqueue_many([5.0, 6.0, 7.0])

    def function(x, y):
        taken = queue.dequeue()
        return x * taken, y + taken

    assert jacobian(function, argnums=(0, 1))(2.0, 3.0) == ((5.0, 0.0), (0.0, 1.0))
    assert queue.size() == 2
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float64, ())
        found = jacobian(function)(x, 3.0)
    with dsl.Session(graph) as session:
        assert session.run(found, {x: 2.0}) == (6.0, 0.0)
    assert queue.size() == 1


def test_vmap_takes_one_element_of_a_queue_for_all_items() -> None:
    """It depends on no item, so that it happens once; what depends on them goes into a queue in their order."""
    queue, sent = dsl.FIFOQueue(10, np.float64, ()), dsl.FIFOQueue(10, np.float64, ())
    queue.enqueue_many([5.0, 6.0])

    def function(x):
        found = x + queue.dequeue()
        sent.enqueue(found)
        return found

    np.testing.assert_array_equal(dsl.vmap(function)(np.arange(3.0)), [5.0, 6.0, 7.0])
    assert queue.size() == 1
    np.testing.assert_array_equal(sent.dequeue_many(3), [5.0, 6.0, 7.0])


def test_jacfwd_in_turns_does_once_what_the_function_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sizes of what a backward loop carries are known inside it alone, so directions take turns there."""
    queue = dsl.FIFOQueue(10, np.float64, ())
    queue.enqueue(1.0)

    def cubes(x):
        print("x is", x)
        found = []
        for i in range(len(x)):
            if x[i] > 0:
                found.append(x[i] ** 3)
        return np.array(found).sum(), x * len(found)

    hessian, aux = dsl.hessian(cubes, has_aux=True)(np.array([1.0, -1.0]))
    np.testing.assert_array_equal(hessian, np.diag([6.0, 0.0]))
    np.testing.assert_array_equal(aux, [1.0, -1.0])
    assert capsys.readouterr().out == "x is [ 1. -1.]\n"
    with pytest.raises(GradientError, match="`dequeue` happens once"):
        dsl.hessian(lambda x: cubes(x)[0] * queue.dequeue())(np.array([1.0, -1.0]))
    assert queue.size() == 1


def test_assertions_hold_in_gradients(backend: str) -> None:
    def checked(x):
        for i in range(3):
            assert x[i] > 0.0, "must be positive"
        return np.sum(np.log(x))

    np.testing.assert_allclose(dsl.grad(checked)(np.array([1.0, 2.0, 4.0])), [1.0, 0.5, 0.25])
    with pytest.raises(AssertionError, match="must be positive"):
        dsl.grad(checked)(np.array([1.0, -2.0, 4.0]))


WEIGHTS = np.array([1.0, 2.0])


def test_captured_arrays_are_read_when_called() -> None:
    slope = dsl.grad(lambda x: np.sum(x * x * WEIGHTS))
    x = np.array([3.0, 4.0])
    np.testing.assert_array_equal(slope(x), [6.0, 16.0])
    WEIGHTS[0] = 10.0
    try:
        np.testing.assert_array_equal(slope(x), [60.0, 16.0])
    finally:
        WEIGHTS[0] = 1.0


def test_written_captured_array() -> None:
    log = np.zeros(3)

    def noting(x):
        y = x
        for i in range(3):
            y = y * x
            log[i] = y
        return y

    assert dsl.grad(noting)(2.0) == 32.0
    np.testing.assert_array_equal(log, [4.0, 8.0, 16.0])


class Counter:
    def __init__(self) -> None:
        self.total, self.calls = np.zeros(2), 0

    def add(self, x: Any) -> None:
        self.total = self.total + x * x
        self.calls += 1


def test_attributes_that_the_function_assigns() -> None:
    counter = Counter()

    def function(x):
        for _ in range(3):
            counter.add(x)
        return np.sum(counter.total)

    slope = dsl.grad(function)
    x = np.array([1.0, 2.0])
    for k in (1, 2):
        np.testing.assert_array_equal(slope(x), 6 * x)
        np.testing.assert_array_equal(counter.total, 3 * k * x * x)
        assert counter.calls == 3 * k


def test_arguments_are_not_written() -> None:
    x = np.array([0.3, 0.5, 0.7])
    for transform in (dsl.grad, dsl.value_and_grad, dsl.jacfwd, dsl.jacrev, dsl.hessian):
        transform(anew(recurrence_in_argument))(x)
        np.testing.assert_array_equal(x, [0.3, 0.5, 0.7])
    dsl.vjp(recurrence_in_argument, x)[1](1.0)
    dsl.jvp(recurrence_in_argument, (x,), (x,))
    np.testing.assert_array_equal(x, [0.3, 0.5, 0.7])


def test_closure_and_method() -> None:
    def make(k):
        return lambda x: x**k

    assert dsl.grad(make(2.0))(3.0) == 6.0
    assert dsl.grad(make(3.0))(3.0) == pytest.approx(27.0)

    class Model:
        scale = 2.0

        def loss(self, x):
            return self.scale * x * x

    assert dsl.grad(Model().loss)(3.0) == 12.0


def test_library_function_itself() -> None:
    assert dsl.grad(np.sin)(0.0) == 1.0
    np.testing.assert_allclose(dsl.grad(np.sum)(np.ones(2)), [1.0, 1.0])


# -- checkpoint ---------------------------------------------------------------------------------------------------


def straight(x):
    y = np.sin(x) * x
    return np.sum(np.exp(-y) * y)


def nested_checkpoints(x):
    inner = dsl.checkpoint(lambda y: np.sin(y) * y)
    return np.sum(dsl.checkpoint(lambda y: inner(inner(y)) * y)(x))


def checkpoint_in_loop(x):
    step = dsl.checkpoint(lambda y: np.tanh(y * x + 0.1))
    y = x * 1.0
    for _ in range(5):
        y = step(y)
    return np.sum(y)


CHECKPOINTED = [
    (straight, np.array([0.3, 0.5])),
    (recurrence, np.linspace(0.1, 0.9, 12)),
    (captured_many_times, np.array([[0.2, 0.5, -0.3], [0.1, 0.7, 0.2], [-0.6, 0.3, 0.4]])),
    (squared_until_large, 1.003),
    (inner_while_in_while, np.array([0.3, 0.5])),
    (loops_in_branches_in_loops, np.array([0.4, 0.9])),
    (early_break, 0.9),
    (zero_trips, 2.0),
    (appended, 1.1),
    (nested_checkpoints, np.array([0.3, 0.5])),
    (checkpoint_in_loop, np.array([0.3, 0.5])),
    (by_scan, np.array([0.3, 0.5, 0.7])),
]


@pytest.mark.parametrize("policy", ["nothing", "states"])
@pytest.mark.parametrize(("function", "x"), CHECKPOINTED, ids=[f.__name__ for f, _ in CHECKPOINTED])
def test_checkpoint_changes_no_derivative(function: Any, x: Any, policy: str) -> None:
    plain = anew(function)
    again = dsl.checkpoint(anew(function), policy=policy)

    def run(x, v):
        bends = [dsl.grad(lambda y, f=f: dot(dsl.grad(f)(y), v))(x) for f in (plain, again)]
        moved = [dsl.jvp(dsl.grad(f), (x,), (v,))[1] for f in (plain, again)]
        return [dsl.value_and_grad(f)(x) for f in (plain, again)], bends, moved

    (one, other), *pairs = dsl.jit(run)(x, directions(x)[0])
    for a, b in [*zip(one, other), *pairs]:
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_checkpoint_as_a_decorator() -> None:
    @dsl.checkpoint(policy="states")
    def function(x):
        return x * x

    assert function(3.0) == 9.0
    assert dsl.grad(function)(3.0) == 6.0
    with pytest.raises(ValueError, match="policy is 'nothing' or 'states', not 'some'"):
        dsl.checkpoint(straight, policy="some")


MEMORY = """
import sys
import numpy as np
import dsl

def long_for(x, n):
    for _ in range(n):
        x = np.sin(x) + 0.1 * x
    return np.sum(x)

def long_while(x, n):
    k = 0
    while k < n:
        x = np.sin(x) + 0.1 * x
        k += 1
    return np.sum(x)

def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

function = {"for": long_for, "while": long_while}[sys.argv[1]]
steps, again = int(sys.argv[2]), sys.argv[3] == "checkpoint"
slope = dsl.grad(dsl.checkpoint(function) if again else function)
x = np.linspace(0.1, 0.9, 1000)
slope(x, 3)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # forget the peak so far, which is that of compiling
before = kilobytes("VmRSS")
assert np.all(np.isfinite(slope(x, steps)))
print(kilobytes("VmHWM") - before)
"""


def peak(folder: Path, *args: str) -> int:
    """Kilobytes that a gradient takes beyond those of a short one."""
    script = folder / "memory.py"
    script.write_text(MEMORY)
    made = subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return int(made.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["for", "while"])
def test_checkpoint_of_a_long_loop_takes_little_memory(kind: str, tmp_path: Path) -> None:
    short = peak(tmp_path, kind, "1000", "plain")
    assert short > 6_000, "1,000 states of 8 kB"
    assert peak(tmp_path, kind, "100000", "checkpoint") <= 4 * short


# -- rules of one's own -------------------------------------------------------------------------------------------


def make_clipped():
    """The identity, whose cotangents are at most 1."""

    @dsl.custom_vjp
    def clipped(x):
        return x * 1.0

    clipped.defvjp(lambda x: (x * 1.0, ()), lambda _, g: (np.clip(g, -1.0, 1.0),))
    return clipped


def make_log1pexp():
    """A function whose derivative overflows when it is made of those of its parts."""

    @dsl.custom_jvp
    def log1pexp(x):
        return np.log1p(np.exp(x))

    log1pexp.defjvp(lambda p, t: (log1pexp(p[0]), t[0] * (1.0 - 1.0 / (1.0 + np.exp(p[0])))))
    return log1pexp


def make_cubed():
    """A cube whose rule is right, in terms of residuals and in terms of another function with a rule."""

    @dsl.custom_vjp
    def cubed(x):
        return x**3

    cubed.defvjp(lambda x: (x**3, {"x": x}), lambda kept, g: (3.0 * kept["x"] ** 2 * g,))
    return cubed


def test_custom_vjp_replaces_the_derivative(backend: str) -> None:
    clipped = make_clipped()
    assert clipped(3.0) == 3.0
    assert dsl.jit(clipped)(3.0) == 3.0
    x = np.array([2.0, 3.0])
    found = dsl.grad(lambda x: np.sum(clipped(x) * np.array([0.5, 7.0])))(x)
    np.testing.assert_array_equal(found, [0.5, 1.0])


def test_custom_rules_with_arguments_that_have_no_derivative(backend: str) -> None:
    @functools.partial(dsl.custom_vjp, nondiff_argnums=(0, 2))
    def apply(f, x, n):
        return f(x) * n

    apply.defvjp(
        lambda f, x, n: (apply(f, x, n), x), lambda f, n, x, g: (2 * n * g * dsl.grad(f)(x),)
    )
    assert apply(np.square, 3.0, 2) == 18.0
    assert dsl.grad(lambda x: apply(lambda z: z**2, x, 3))(5.0) == 60.0
    np.testing.assert_array_equal(
        dsl.vmap(dsl.grad(lambda x: apply(lambda z: z**2, x, 3)))(np.arange(2.0)), [0.0, 12.0]
    )

    @functools.partial(dsl.custom_jvp, nondiff_argnums=(1,))
    def scaled(x, f, y):
        return f(x) * y

    scaled.defjvp(lambda f, p, t: (scaled(p[0], f, p[1]), 3 * t[0] + 5 * t[1]))
    assert dsl.grad(lambda x, y: scaled(x, np.sin, y), argnums=(0, 1))(1.0, 2.0) == (3.0, 5.0)
    assert dsl.jvp(lambda x: scaled(x, np.sin, 2.0), (0.0,), (1.0,)) == (0.0, 3.0)
    assert dsl.grad(lambda x: apply(np.square, x, n=3))(5.0) == 60.0
    variadic = functools.partial(dsl.custom_vjp, nondiff_argnums=(0, 2))(lambda f, *x: f(*x))
    variadic.defvjp(lambda f, *x: (f(*x), ()), lambda f, n, _, g: (g,))
    with raises("nondiff_argnums=(0, 2)", "2 positional arguments"):
        dsl.grad(lambda x: variadic(np.sin, x))(1.0)
    with raises("nondiff_argnums: expected numbers of positional arguments, got 'f'"):
        dsl.custom_vjp(np.sin, nondiff_argnums="f")


@pytest.mark.parametrize(
    "transform", [dsl.grad, dsl.value_and_grad, dsl.jacrev, dsl.jacfwd, dsl.hessian]
)
def test_argnums_that_are_no_numbers(transform: Any) -> None:
    for wrong in ("x", 0.5, ("x",)):
        with raises(f"argnums: expected the numbers of positional arguments, got {wrong!r}"):
            transform(lambda x: x * x, argnums=wrong)(1.0)
    with raises("with respect to argument 1", "1 positional argument"):
        transform(lambda x: x * x, argnums=1)(1.0)


def test_custom_jvp_serves_both_modes(backend: str) -> None:
    log1pexp = make_log1pexp()
    assert dsl.grad(log1pexp)(1000.0) == 1.0
    np.testing.assert_allclose(dsl.jvp(log1pexp, (0.0,), (2.0,)), (np.log(2.0), 1.0))
    np.testing.assert_allclose(dsl.grad(dsl.grad(log1pexp))(0.0), 0.25, rtol=1e-12)
    np.testing.assert_allclose(dsl.jvp(dsl.grad(log1pexp), (0.0,), (1.0,))[1], 0.25, rtol=1e-12)


def test_custom_vjp_to_second_order(backend: str) -> None:
    cubed = make_cubed()
    assert dsl.grad(cubed)(2.0) == 12.0
    assert dsl.grad(dsl.grad(cubed))(2.0) == 12.0
    assert dsl.grad(dsl.grad(dsl.grad(cubed)))(2.0) == 6.0


def test_custom_vjp_in_loops_and_branches(backend: str) -> None:
    cubed = make_cubed()

    def function(x):
        y = x
        while y < 50.0:
            y = cubed(y) if y > 2.0 else y + cubed(x) * 0.5
        return y

    def plain(x):
        y = x
        while y < 50.0:
            y = y**3 if y > 2.0 else y + x**3 * 0.5
        return y

    x = 1.2
    np.testing.assert_allclose(dsl.grad(function)(x), dsl.grad(plain)(x), rtol=1e-12)
    np.testing.assert_allclose(
        dsl.grad(dsl.grad(function))(x), dsl.grad(dsl.grad(plain))(x), rtol=1e-12
    )


def test_custom_jvp_in_a_loop() -> None:
    log1pexp = make_log1pexp()

    def function(x):
        for _ in range(3):
            x = log1pexp(x) * x
        return np.sum(x)

    dsl.check_grads(function, (np.array([0.3, 0.8]),), order=2)


def test_custom_rules_under_vmap() -> None:
    x = np.array([0.5, 2.0, -1.0])
    clipped, cubed, log1pexp = make_clipped(), make_cubed(), make_log1pexp()
    np.testing.assert_array_equal(dsl.vmap(dsl.grad(lambda x: 5.0 * clipped(x)))(x), np.ones(3))
    np.testing.assert_allclose(dsl.vmap(dsl.grad(cubed))(x), 3 * x**2)
    np.testing.assert_allclose(dsl.grad(lambda x: np.sum(dsl.vmap(cubed)(x)))(x), 3 * x**2)
    np.testing.assert_allclose(dsl.vmap(dsl.grad(log1pexp))(x), 1 / (1 + np.exp(-x)))


def test_custom_vjp_over_trees() -> None:
    @dsl.custom_vjp
    def scaled(p, x, name):
        return {"y": p["w"] * x}

    scaled.defvjp(
        lambda p, x, name: ({"y": p["w"] * x}, (p, x)),
        lambda kept, g: ({"w": 10.0 * g["y"]}, None, None),
    )
    by_p, by_x = dsl.grad(lambda p, x: np.sum(scaled(p, x, "name")["y"]), argnums=(0, 1))(
        {"w": np.ones(2)}, np.ones(2)
    )
    np.testing.assert_array_equal(by_p["w"], [10.0, 10.0])
    np.testing.assert_array_equal(by_x, [0.0, 0.0])


@dsl.custom_vjp
def weighted(x, weight=2.0):
    return weight * x


weighted.defvjp(lambda x, w: (w * x, (x, w)), lambda kept, g: (10.0 * kept[1] * g, kept[0] * g))


@dsl.custom_jvp
def powered(x, n=2):
    return x**n


powered.defjvp(lambda p, t: (p[0] ** p[1], 10.0 * p[1] * p[0] ** (p[1] - 1) * t[0]))


def test_custom_rules_take_defaults_and_arguments_by_keyword() -> None:
    assert dsl.grad(lambda x: weighted(x))(3.0) == 20.0
    assert dsl.grad(lambda x: weighted(weight=x, x=4.0))(3.0) == 4.0
    assert dsl.grad(lambda x: powered(x) + powered(x, n=3))(2.0) == 40.0 + 120.0


def test_functions_with_rules_are_pickled_and_are_methods() -> None:
    assert pickle.loads(pickle.dumps(weighted)) is weighted
    again = pickle.loads(pickle.dumps(dsl.custom_jvp(np.sin)))
    again.defjvp(lambda p, t: (np.sin(p[0]), 5.0 * t[0]))
    assert dsl.grad(lambda x: again(x))(1.0) == 5.0

    class Model:
        rate = 3.0

        @dsl.custom_vjp
        def scaled(self, x):
            return self.rate * x

        scaled.defvjp(
            lambda self, x: (self.rate * x, self.rate), lambda rate, g: (None, 10.0 * rate * g)
        )

    model = Model()
    assert model.scaled(2.0) == 6.0
    assert dsl.grad(lambda x: model.scaled(x))(2.0) == 30.0


def test_the_order_of_entries_of_dicts_does_not_matter() -> None:
    def cubes(p):
        return {"u": p["a"] ** 3, "v": p["b"]}

    ruled = dsl.custom_vjp(cubes)
    ruled.defvjp(
        lambda p: ({"v": p["b"], "u": p["a"] ** 3}, p),
        lambda p, g: ({"b": g["v"], "a": 3 * p["a"] ** 2 * g["u"]},),
    )
    p, t = {"a": 2.0, "b": 5.0}, {"b": 0.0, "a": 1.0}
    for fn in (cubes, ruled):
        assert dsl.vjp(fn, p)[1]({"v": 7.0, "u": 1.0}) == ({"a": 12.0, "b": 7.0},)
    assert dsl.jvp(cubes, (p,), (t,))[1] == {"u": 12.0, "v": 0.0}


def test_jvp_takes_arguments_and_tangents_in_tuples() -> None:
    with raises("jvp takes the arguments in a tuple, got a ndarray", "dsl.jvp(f, (x,), (t,))"):
        dsl.jvp(np.sin, np.ones(2), np.ones(2))


def test_derivatives_of_methods_are_compiled_once_for_an_object() -> None:
    class Model:
        def loss(self, x):
            return (x**2).sum()

    model = Model()
    assert dsl.grad(model.loss) is dsl.grad(model.loss)
    assert dsl.grad(model.loss) is not dsl.grad(Model().loss)


def test_axes_of_dicts_are_matched_by_key() -> None:
    p = {"a": np.ones((2, 3)), "b": np.arange(6.0).reshape(3, 2)}
    f = dsl.vmap(lambda p: p["a"].sum() * p["b"], in_axes=({"b": 0, "a": 1},), out_axes=1)
    np.testing.assert_array_equal(f(p), 2 * p["b"].T)
    g = dsl.vmap(lambda x: {"u": x, "v": np.outer(x, x)}, out_axes={"v": 2, "u": 0})
    assert {k: v.shape for k, v in g(p["a"]).items()} == {"u": (2, 3), "v": (3, 3, 2)}
    with pytest.raises(dsl.errors.ShapeError, match="do not fit an argument"):
        dsl.vmap(lambda p: p["a"], in_axes=({"c": 0},))({"a": np.ones(2)})
    with pytest.raises(dsl.errors.ShapeError, match="out_axes is 4"):
        dsl.vmap(np.sin, out_axes=4)(np.ones(2))


def test_implicit_derivative_of_a_fixed_point() -> None:
    """What rules are for: the derivative of Newton's method without its loop."""

    @dsl.custom_vjp
    def root(a):
        return newton(a)

    def forward(a):
        x = newton(a)
        return x, x

    root.defvjp(forward, lambda x, g: (g / (2.0 * x),))
    np.testing.assert_allclose(dsl.grad(root)(2.0), 0.5 / np.sqrt(2.0), rtol=1e-12)


# -- gradients are graphs -----------------------------------------------------------------------------------------


def count(text: str, op: str) -> int:
    return sum(f" = {op}(" in line for line in text.splitlines())


def test_gradient_has_no_leftover() -> None:
    text = dsl.grad(lambda x: np.sum(np.sin(x))).ir(np.ones(3))
    assert count(text, "cos") == 1
    nodes = [line for line in text.splitlines() if " = " in line]
    assert len(nodes) == 1, text


def test_gradient_shares_what_the_value_computes() -> None:
    text = dsl.value_and_grad(lambda x: np.sum(np.exp(x))).ir(np.ones(3))
    assert count(text, "exp") == 1
    text = dsl.value_and_grad(lambda w: np.sum(np.tanh(w) ** 2)).ir(np.ones(3))
    assert count(text, "tanh") == 1


def test_stages_of_a_gradient() -> None:
    lowered = dsl.grad(anew(squared_until_large)).lower(1.3)
    assert count(lowered.text("traced"), "recording_while") == 1
    assert "recording" not in lowered.text("optimized")
    assert count(lowered.text("optimized"), "scan") == 1
    assert "loop_cond" in lowered.text("lowered")
    assert lowered.text("llvm")
    assert lowered.fallbacks() == []


def test_loop_without_use_for_its_states_keeps_none() -> None:
    def linear(x):
        for _ in range(50):
            x = x * 2.0 + 1.0
        return x

    text = dsl.grad(linear).ir(1.0)
    assert "[50]" not in text


def test_loop_keeps_the_array_that_others_are_made_of_and_not_the_others() -> None:
    def attract(x):
        for _ in range(50):
            x = x + 0.1 * ((x[None] - x[:, None]) ** 3).sum(axis=1)
        return x.sum()

    def advect(u):
        u = u.copy()
        for _ in range(50):
            u[1:-1] -= 0.1 * u[1:-1] * (u[2:] - u[:-2])
        return u.sum()

    for loss in (attract, advect):
        kept = set(re.findall(r"f64\[50, [^]]*", dsl.grad(loss).ir(np.ones(20))))
        assert kept == {"f64[50, 20"}


# -- mistakes -----------------------------------------------------------------------------------------------------


def raises(*words: str) -> Any:
    """Expect an error of derivatives that has all these words."""
    return pytest.raises(GradientError, match="(?s)" + ".*".join(map(re.escape, words)))


def test_gradient_of_an_array() -> None:
    with raises("return one number, this one returns f64[3]", "test_autodiff.py", "sum it"):
        dsl.grad(lambda x: x * x)(np.ones(3))


def test_gradient_of_a_tree() -> None:
    with raises("return one number, this one returns a tuple", "has_aux=True"):
        dsl.grad(lambda x: (x, x))(1.0)
    with raises("this one returns None"):
        dsl.grad(lambda x: None)(1.0)


def test_gradient_of_an_integer_function() -> None:
    with raises("returns i64[], which has no gradient", "return a float"):
        dsl.grad(lambda x: np.argmax(x))(np.ones(3))
    with raises("returns bool[]"):
        dsl.grad(lambda x: x[0] > 1.0)(np.ones(3))


def test_gradient_with_respect_to_integers() -> None:
    with raises("with respect to argument 0", "i64", "integers have none", "pass floats"):
        dsl.grad(lambda x: x * 1.0)(3)
    with raises("with respect to argument 1['k']", "i64"):
        dsl.grad(lambda x, y: x * y["w"], argnums=1)(1.0, {"w": 2.0, "k": np.arange(3)})
    with raises("argument 0", "i32"):
        dsl.jacfwd(lambda x: x * 1.0)(np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("nothing", [(), [], {}, {"a": [], "b": None}])
def test_trees_without_numbers_have_themselves_for_gradient(nothing: Any) -> None:
    def function(p, x):
        return x * x

    assert dsl.grad(function)(nothing, 3.0) == nothing
    assert dsl.value_and_grad(function, argnums=(0, 1))(nothing, 3.0) == (9.0, (nothing, 6.0))
    assert dsl.jacrev(function)(nothing, 3.0) == dsl.jacfwd(function)(nothing, 3.0) == nothing
    assert dsl.hessian(function)(nothing, 3.0) == nothing


@pytest.mark.parametrize("nothing", [None, (), {"a": None}])
def test_vjp_of_arguments_without_numbers(nothing: Any) -> None:
    _, pull = dsl.vjp(lambda p, x: x * x, nothing, 3.0)
    assert pull(1.0) == (nothing, 6.0)


@dataclass
class Labelled:
    w: Any
    label: str


def test_gradient_with_respect_to_strings() -> None:
    with raises("argument 1 holds 'name', which has no gradient"):
        dsl.grad(lambda x, name: x, argnums=1)(1.0, "name")
    with raises("argument 1 is None, which has no gradient", "arrays and floats"):
        dsl.grad(lambda x, y: x, argnums=1)(1.0, None)
    with raises(
        "argument 0.label holds 'name', which has no gradient", "line", "dsl.grad(lambda p: p.w)"
    ):
        dsl.grad(lambda p: p.w)(Labelled(1.0, "name"))


@pytest.mark.parametrize("argnums", [2, -3, (0, 2)])
def test_gradient_with_respect_to_an_unknown_argument(argnums: Any) -> None:
    wrong = argnums if isinstance(argnums, int) else 2
    with raises(f"`<lambda>` is asked with respect to argument {wrong}", "2 positional arguments"):
        dsl.grad(lambda x, y: x * y, argnums=argnums)(1.0, 2.0)


def test_has_aux_without_a_pair() -> None:
    with raises("has_aux: the function must return a pair"):
        dsl.grad(lambda x: x, has_aux=True)(1.0)


def test_complex_result() -> None:
    with raises("returns c128[]", "holomorphic=True"):
        dsl.grad(lambda z: z * z)(1.0 + 2.0j)
    with raises("holomorphic: argument 0 is f64, not complex"):
        dsl.grad(lambda x: x * (1.0 + 2.0j), holomorphic=True)(1.0)


def test_cotangent_that_does_not_fit() -> None:
    _, pull = dsl.vjp(lambda x: {"y": x * 2.0}, np.ones(3))
    with raises("the cotangent must be a tree like the result", "got"):
        pull(np.ones(3))
    with raises("the cotangent must have the shape of its value, f64[3], got f64[2]"):
        pull({"y": np.ones(2)})
    _, pull = dsl.vjp(lambda x: x * 2.0, 1.0)
    with raises("the cotangent of a real value is complex"):
        pull(1.0j)


def test_tangents_that_do_not_fit() -> None:
    with raises("the tangents must be a tree like the arguments"):
        dsl.jvp(lambda x: x, (1.0,), (1.0, 2.0))
    with raises("the tangent must have the shape of its value, f64[3], got f64[]"):
        dsl.jvp(lambda x: x, (np.ones(3),), (1.0,))


def completed(a):
    q, _ = np.linalg.qr(a, mode="complete")
    return np.sum(q)


def _rough_root(x):
    i = 0x5FE6EB50C7B537A9 - (x.view(np.int64) >> 1)
    return np.sum(i.view(float))


def _rough_logarithm(x):
    return np.sum(x.view(np.int64) * 2.0**-52)


def _cleared_sign(x):
    y = x.copy()
    y.view(np.int64)[:] &= 0x7FFFFFFFFFFFFFFF
    return np.sum(y)


def _without_a_number_of_bits(x):
    """Bits that choose, sort or are no part of the result may be looked at."""
    bits = x.view(np.int64)
    signs = np.where(bits >> 63 == 0, 1.0, -1.0)
    return np.sum((signs * x)[np.argsort(bits)] * dsl.stop_gradient(0 * bits + x))


@pytest.mark.parametrize("fn", [_rough_root, _rough_logarithm, _cleared_sign])
def test_bits_that_become_numbers_have_no_derivative(fn: Any) -> None:
    x = np.array([1.0, -2.0])
    with raises("`bitcast` cannot be differentiated", "view(np.int64)", "Fix: "):
        dsl.grad(fn)(x)
    with raises("`bitcast` cannot be differentiated", "view(np.int64)", "Fix: "):
        dsl.jvp(fn, (x,), (x,))


def test_bits_may_choose() -> None:
    x = np.array([1.0, -2.0])
    np.testing.assert_array_equal(dsl.grad(_without_a_number_of_bits)(x), [-2.0, -1.0])


@pytest.mark.parametrize(
    "transform", [dsl.grad, lambda f: lambda x: dsl.jvp(f, (x,), (x,))], ids=["grad", "jvp"]
)
def test_op_that_has_no_derivative(transform: Any) -> None:
    line = 'q, _ = np.linalg.qr(a, mode="complete")'
    with raises("`qr` cannot be differentiated", "test_autodiff.py", "in completed", line, "Fix: "):
        transform(completed)(np.eye(3, 2))


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_what_is_unique_of_a_completed_factorization(shape: tuple[int, int]) -> None:
    a = np.arange(1.0, 7.0).reshape(shape) ** 2
    for jacobian in (dsl.jacfwd, dsl.jacrev, dsl.hessian):
        found = jacobian(lambda a: np.linalg.svd(a)[1])(a)
        expected = jacobian(lambda a: np.linalg.svdvals(a))(a)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        found = jacobian(lambda a: np.linalg.qr(a, mode="complete")[1])(a)
        expected = jacobian(lambda a: np.linalg.qr(a)[1])(a)
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-9, atol=1e-9)
        assert not found[len(expected) :].any()


def test_kernel_of_the_users() -> None:
    pytest.importorskip("numba")

    @dsl.kernel
    def half(x):
        return 0.5 * x

    with raises(
        "`kernel_half",
        "cannot be differentiated: it has no derivative rule",
        "half(x)",
        "dsl.custom_vjp",
    ):
        dsl.grad(lambda x: half(x) * x)(3.0)
    with raises("`kernel_half", "cannot be differentiated"):
        dsl.jvp(lambda x: half(x) * x, (3.0,), (1.0,))
    assert dsl.grad(lambda x: dsl.stop_gradient(half(dsl.stop_gradient(x))) * x)(3.0) == 1.5
    ruled = dsl.custom_vjp(lambda x: half(x))
    ruled.defvjp(lambda x: (half(x), ()), lambda _, g: (0.5 * g,))
    assert dsl.grad(lambda x: ruled(x) * x)(3.0) == 3.0


def test_custom_vjp_without_a_rule() -> None:
    @dsl.custom_vjp
    def function(x):
        return x

    with raises("`function` has no derivative rule yet", "function.defvjp"):
        dsl.grad(function)(1.0)


def with_vjp(forward: Any, backward: Any) -> Any:
    @dsl.custom_vjp
    def function(x, y):
        return x * y

    function.defvjp(forward, backward)
    return lambda x, y: np.sum(function(x, y))


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        (lambda x, y: x * y, lambda r, g: (g, g), ["the forward rule of `function` must return (result, residuals)"]),
        (lambda x, y: (x, (), ()), lambda r, g: (g, g), ["must return (result, residuals)"]),
        (lambda x, y: ((x, y), ()), lambda r, g: (g, g), ["with a result like the function's"]),
        (lambda x, y: (x[:1], ()), lambda r, g: (g, g), ["the forward rule", "f64[1] where f64[2] is expected"]),
        (lambda x, y: (x * y, ()), lambda r, g: g, ["must return a tuple of 2", "one for each argument"]),
        (lambda x, y: (x * y, ()), lambda r, g: (g,), ["must return a tuple of 2", "it returned a tuple of 1"]),
        (lambda x, y: (x * y, ()), lambda r, g: (g, [g]), ["for argument 1", "return a tree like the argument"]),
        (lambda x, y: (x * y, ()), lambda r, g: (g[:1], g), ["for argument 0: f64[1] where f64[2] is expected"]),
    ],
)  # fmt: skip
def test_custom_vjp_with_a_wrong_rule(forward: Any, backward: Any, words: list[str]) -> None:
    with raises(*words):
        dsl.grad(with_vjp(forward, backward))(np.ones(2), np.ones(2))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda p, t: p[0] * t[0], ["the rule of `function` must return (result, tangent)"]),
        (lambda p, t: (p[0], (t[0],)), ["both like the function's result"]),
        (lambda p, t: (p[0] * 2.0, t[0][:1]), ["f64[1] where f64[2] is expected"]),
    ],
)
def test_custom_jvp_with_a_wrong_rule(rule: Any, words: list[str]) -> None:
    @dsl.custom_jvp
    def function(x):
        return x * 2.0

    function.defjvp(rule)
    with raises(*words):
        dsl.grad(lambda x: np.sum(function(x)))(np.ones(2))


def test_forward_mode_of_a_reverse_rule() -> None:
    with raises(
        "a rule for reverse mode alone (`custom_vjp`) is differentiated in forward mode",
        "dsl.custom_jvp",
    ):
        dsl.jvp(make_cubed(), (2.0,), (1.0,))


def through_a_comparison(x, f):
    return (x**2 * (f(x) > 0)).sum()


def through_a_constant(x, f):
    return (x**2 * dsl.stop_gradient(f(x))).sum()


def through_an_index(x, f):
    return x[np.argmax(f(x))] ** 2


def through_a_test(x, f):
    return (x**2).sum() if f(x).sum() > 0 else x.sum()


def through_a_branch(x, f):
    y, z = x, x
    if x[0] > 0:
        y, z = x**3, f(x)
    return (y * (z > 0)).sum()


def through_a_loop(x, f):
    y, z = x, f(x)
    for _ in range(3):
        y, z = np.sin(y), f(z)
    return (y * (z > 0)).sum()


def through_a_while(x, f):
    z, i = x, 0
    while i < 3 and x[0] > -5:
        x, z, i = x * x[0], f(z) + x, i + 1
    return x.sum() * (z[0] > 0)


def through_a_scan(x, f):
    last, rows = dsl.scan(lambda c, e: (c * e, (f(c), c)), x[0], x)
    return last + (rows[1] * (rows[0] > 0)).sum()


def through_a_checkpoint(x, f):
    y, z = dsl.checkpoint(lambda v: (v**2, f(v)))(x)
    return (y * (z > 0)).sum()


@pytest.mark.parametrize(
    "function",
    [
        through_a_comparison, through_a_constant, through_an_index, through_a_test, through_a_branch,
        through_a_loop, through_a_while, through_a_scan, through_a_checkpoint,
    ],
)  # fmt: skip
def test_forward_mode_asks_for_no_rule_where_no_derivative_flows(function: Any) -> None:
    x = np.array([1.2, 0.7, 1.5])
    cubed = make_cubed()
    gradient = dsl.grad(lambda x: function(x, cubed))(x)
    np.testing.assert_allclose(dsl.jacfwd(lambda x: function(x, cubed))(x), gradient)
    _, slope = dsl.jvp(dsl.jit(lambda x: function(x, cubed)), (x,), (np.ones(3),))
    np.testing.assert_allclose(slope, gradient.sum())


def test_forward_mode_asks_for_no_rule_of_what_is_returned_beside() -> None:
    cubed = make_cubed()
    value, slope, beside = dsl.jvp(lambda x: (x * x, cubed(x)), (2.0,), (1.0,), has_aux=True)
    assert (value, slope, beside) == (4.0, 4.0, 8.0)
    jacobian, beside = dsl.jacfwd(lambda x: (x * x, cubed(x)), has_aux=True)(2.0)
    assert (jacobian, beside) == (4.0, 8.0)


def test_check_grads_finds_a_wrong_rule() -> None:
    @dsl.custom_jvp
    def wrong(x):
        return x * x

    wrong.defjvp(lambda p, t: (p[0] * p[0], p[0] * t[0]))
    with raises("forward mode of fn disagrees with finite differences", "largest error"):
        dsl.check_grads(wrong, (3.0,))
    with raises("reverse mode of fn disagrees"):
        dsl.check_grads(wrong, (3.0,), modes=("rev",))
    dsl.check_grads(lambda x: x * x, (3.0,), order=2)


def test_not_a_function() -> None:
    with pytest.raises(dsl.DslError, match="expected a function, got 3"):
        dsl.grad(3)


def test_a_hand_written_flat_graph_is_differentiated_through_its_structured_form() -> None:
    def grown(x):
        y = x
        while y < 100.0:
            if y > 3.0:
                y = y * y
            else:
                y = y * 2.0 + x
        return y

    flat = parse(print_graph(dsl.jit(grown).lower(1.3).graph("lowered")))
    value, gradient = interpret(gradient_graph(flat), [np.float64(1.3)])
    assert value == grown(1.3)
    np.testing.assert_allclose(gradient, dsl.grad(grown)(1.3), rtol=1e-12)


def _filtered(x: Any) -> Any:
    y, z = np.zeros(len(x)), np.zeros((len(x), 2))
    for t in range(1, len(x)):
        y[t] = x[t] * y[t - 1] + x[t - 1]
        y[t - 1] = y[t] * 0.5
        z[t, 0] = y[t]
        z[-t] = z[-t] * x[t] + z[t, ::-1]
    return (y**2).sum() + (z**3).sum()


def test_the_derivative_of_a_write_to_one_place_does_not_look_at_the_whole_array() -> None:
    """It took the time of the array's size for each trip of a loop: a filter of 16,000 samples 100 ms, not 0.06."""
    x = np.linspace(-1.0, 1.0, 12)
    dsl.check_grads(_filtered, (x,), order=1)
    assert "where" not in dsl.jit(dsl.grad(_filtered)).ir(x)
