"""Which functions may be rounded as parts of sums with constants: those of which nothing else is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.beside_one import beside_one


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def several_sums(x):
    t = np.tanh(x)
    return (1 - t) * (t + 2) * (t - 1.5)


def small_constant(x):
    return 0.5 + np.tanh(x)


def result(x):
    t = np.tanh(x)
    return t, 1 + t


def product(x):
    t = np.tanh(x)
    return (1 + t) * t


def with_itself(x):
    t = np.tanh(x)
    return t + t


def with_an_array(x):
    return np.tanh(x) + x


def in_double(x):
    return 1 + np.tanh(x.astype(np.float64))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (gelu, 1), (several_sums, 1), (small_constant, 0), (result, 0), (product, 0), (with_itself, 0),
        (with_an_array, 0), (in_double, 0),
    ],
)  # fmt: skip
def test_functions_of_which_sums_alone_are_made(function: Any, found: int) -> None:
    x = np.linspace(-12, 12, 1001, dtype=np.float32)
    compiled = dsl.jit(function)
    assert len(beside_one(compiled.lower(x).graph("optimized"))) == found
    tolerance = 4 * np.finfo(np.float32).eps * np.max(np.abs(x))
    for got, want in zip(np.atleast_2d(compiled(x)), np.atleast_2d(function(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def test_what_is_zero_stays_zero() -> None:
    x = np.array([-np.inf, -100, -20, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(dsl.jit(lambda x: 1 + np.tanh(x))(x), 1 + np.tanh(x))
