"""Values between the sweeps of a kernel that wait where a later result will be: long rows, and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

rng = np.random.default_rng(0)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def softmax_of_what_stays(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True) + x


def softmax_in_place(x, axis):
    y = x * 2
    for _ in range(3):
        e = np.exp(y - y.max(axis=axis, keepdims=True))
        y = e / e.sum(axis=axis, keepdims=True)
    return y


def reads_the_operand_again(x, axis):
    y = x * 2
    e = np.exp(y)
    y = e / e.sum(axis=axis, keepdims=True) - y
    return y


def two_that_wait(x, axis):
    a, b = np.exp(x), np.sin(x)
    s, t = a.sum(axis=axis, keepdims=True), b.sum(axis=axis, keepdims=True)
    return a / s, b + t


def two_for_one_place(x, axis):
    a, b = np.exp(x), np.sin(x)
    s = (a * b).sum(axis=axis, keepdims=True)
    return a * s + b / s


def read_by_three(x, axis):
    e = np.exp(x)
    s = e.sum(axis=axis, keepdims=True)
    d = e / s
    m = (d * e).max(axis=axis, keepdims=True)
    return d * m, e - m


def into_other_elements(x, axis):
    e = np.exp(x)
    return (e / e.sum(axis=axis, keepdims=True)).astype(np.float32)


def turned(x, axis):
    e = np.exp(x)
    return (e / e.sum(axis=axis, keepdims=True)).T


def written_into_an_argument(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    x[:] = e / e.sum(axis=axis, keepdims=True)
    return x


FUNCTIONS = [
    softmax, softmax_of_what_stays, softmax_in_place, reads_the_operand_again, two_that_wait, two_for_one_place,
    read_by_three, into_other_elements, turned, written_into_an_argument,
]  # fmt: skip


@pytest.mark.parametrize("shape", [(300, 130), (4100, 140), (3, 5000), (2, 40, 700), (40, 20, 700)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_is_as_in_numpy(function: Any, axis: int, shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape)
    want = function(x.copy(), axis)
    for threads in (1, 2):
        with dsl.num_threads(threads):
            got = dsl.jit(function)(x.copy(), axis)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want))):
            tolerance = 1e-5 if other.dtype == np.float32 else 1e-9
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_sizes_known_when_it_runs() -> None:
    for function in FUNCTIONS:
        jitted = dsl.jit(function)
        for shape in ((30, 20), (31, 21), (3000, 33), (2, 9000)):
            for axis in (0, 1):
                x = rng.standard_normal(shape)
                got, want = jitted(x.copy(), axis), function(x.copy(), axis)
                for one, other in zip(
                    *((r if isinstance(r, tuple) else (r,)) for r in (got, want))
                ):
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [
        ((50, 5000), 1, 1),  # the result
        ((300, 130), 0, 1),
        ((4100, 140), 0, 2),  # and a copy of what is swept twice, where exponentials then are
    ],
)
def test_what_memory_is_asked_for(shape: tuple[int, int], axis: int, count: int) -> None:
    text = dsl.jit(softmax).ir(rng.standard_normal(shape), axis, stage="llvm")
    assert text.count("call ptr @dsl_alloc") == count
