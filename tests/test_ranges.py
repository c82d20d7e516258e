"""Slices in loops whose size follows from the loop: it is known while tracing, and Python's rules hold where it is not."""

from __future__ import annotations

import numpy as np
import pytest

import dsl


def windows(x):
    total = np.zeros(3)
    for i in range(len(x) - 2):
        total = total + x[i : i + 3]
    return total


def every_other(x):
    total = np.zeros(3)
    for i in range(len(x) // 2 - 3):
        total = total + x[2 * i : 2 * i + 6 : 2]
    return total


def backwards(x):
    total = np.zeros(2)
    for i in range(len(x) - 2, -1, -1):
        total = total * 0.5 + x[i : i + 2]
    return total


def nested(x):
    total = np.zeros(4)
    for i in range(3):
        for j in range(2):
            total = total + x[i + j + 1 : i + j + 5] * x[j : j + 4]
    return total


def blocks(x):
    out = x.copy()
    for b in range(len(x) // 4):
        out[4 * b : 4 * b + 4] = x[4 * b : 4 * b + 4][::-1]
    return out


def from_one_to_another(x):
    total = np.zeros(2)
    for i in range(1, 5):
        total = total + x[i - 1 : i + 1]
    return total


@pytest.mark.parametrize(
    "function", [windows, every_other, backwards, nested, blocks, from_one_to_another]
)
def test_sizes_follow_from_loops(function) -> None:
    jitted = dsl.jit(function)
    for length in (12, 13, 40, 8, 9):
        x = np.arange(1.0, length + 1)
        np.testing.assert_allclose(jitted(x), function(x))


@pytest.mark.parametrize("function", [windows, backwards, nested, blocks, from_one_to_another])
def test_nothing_is_clamped_where_sizes_are_known(function) -> None:
    text = dsl.jit(function).ir(np.arange(12.0), stage="traced")
    assert "dynamic_slice" in text
    assert "minimum" not in text
    assert "where" not in text


def past_the_end(x):
    total = 0.0
    for i in range(len(x)):
        total = total + x[i : i + 3].sum() * (i + 1)
    return total


def before_the_start(x):
    total = 0.0
    for i in range(len(x)):
        total = total + x[i - 2 : i + 1].sum() * (i + 1)
    return total


def to_the_end(x):
    total = 0.0
    for i in range(len(x)):
        total = total + x[i:].sum() * (i + 1)
    return total


def empty(x):
    total = 0.0
    for i in range(3):
        total = total + x[i + 2 : i].sum() + len(x[i:i])
    return total


@pytest.mark.parametrize("function", [past_the_end, before_the_start, to_the_end, empty])
def test_elsewhere_slices_are_pythons(function) -> None:
    jitted = dsl.jit(function)
    for length in (7, 8, 1):
        x = np.arange(1.0, length + 1)
        np.testing.assert_allclose(jitted(x), function(x))


def test_a_loop_without_trips() -> None:
    jitted = dsl.jit(windows)
    for length in (5, 6, 2, 1, 0):
        x = np.arange(float(length))
        np.testing.assert_array_equal(jitted(x), windows(x))


def test_after_a_break() -> None:
    def function(x, stop):
        total = np.zeros(2)
        i = 0
        for i in range(len(x) - 1):
            if x[i] > stop:
                break
            total = total + x[i : i + 2]
        return total, x[i : i + 2].sum()

    jitted, x = dsl.jit(function), np.arange(6.0)
    for stop in (-1.0, 2.5, 10.0):
        for got, wanted in zip(jitted(x, stop), function(x, stop), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_derivatives_of_a_convolution() -> None:
    def convolution(kernel, image):
        out = np.zeros((6, 5))
        for i in range(3):
            for j in range(2):
                out = out + kernel[i, j] * image[i : i + 6, j : j + 5]
        return (out * out).sum()

    rng = np.random.default_rng(0)
    kernel, image = rng.normal(size=(3, 2)), rng.normal(size=(8, 6))
    found = dsl.grad(convolution, argnums=(0, 1))(kernel, image)
    for k, (got, at) in enumerate(zip(found, (kernel, image), strict=True)):
        for place in ((0, 0), (2, 1)):
            step = np.zeros_like(at)
            step[place] = 1e-6
            args = [[kernel, image], [kernel, image]]
            args[0][k], args[1][k] = at + step, at - step
            slope = (convolution(*args[0]) - convolution(*args[1])) / 2e-6
            np.testing.assert_allclose(got[place], slope, rtol=1e-5)
    assert "d" not in dsl.jit(dsl.grad(convolution)).ir(kernel, image, stage="kernels").split()


def remaining(x):
    total = 0.0
    for i in range(len(x)):
        total = total + x[i + 1 :].sum() * x[:i].sum()
    return total


def remaining_backwards(x):
    total = 0.0
    for i in range(len(x) - 1, -1, -1):
        total = total + x[i + 1 :].sum() * x[:i].sum()
    return total


def remaining_by_twos(x):
    total = 0.0
    for i in range(len(x) - 1, 0, -2):
        total = total + x[i - 1 :].sum()
    return total


@pytest.mark.parametrize("function", [remaining, remaining_backwards, remaining_by_twos])
def test_bounds_that_lie_in_the_axis_are_not_clamped(function) -> None:
    jitted = dsl.jit(function, dynamic=True)
    for length in (12, 13, 2, 3):
        x = np.arange(1.0, length + 1)
        np.testing.assert_allclose(jitted(x), function(x))
    if function is not remaining_by_twos:
        text = jitted.ir(np.arange(12.0), stage="traced")
        assert "where" not in text
        assert "minimum" not in text


@pytest.mark.parametrize("ends", [(9, -1, -2), (9, 0, -3), (0, 9, 4), (5, 5, -1), (2, 7, -1)])
def test_trips_of_ranges_whose_ends_are_traced(ends) -> None:
    def visited(start, stop, seen):
        for i in range(start, stop, ends[2]):
            seen[i] += 1
        return seen

    want = visited(*ends[:2], np.zeros(12, int))
    got = dsl.jit(visited)(*ends[:2], np.zeros(12, int))
    np.testing.assert_array_equal(got, want)


def test_a_step_of_zero_raises_what_python_raises() -> None:
    def program(x, step):
        x[0] = 9.0
        for k in range(1, len(x), step):
            x[k] += 1.0

    x = np.zeros(4)
    compiled = dsl.jit(program)
    compiled(x, 2)
    np.testing.assert_array_equal(x, [9.0, 1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"range\(\) arg 3 must not be zero"):
        compiled(x, 0)
