"""Compare compiled functions with the same functions run by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import dsl

# Relative and absolute error allowed by the precision of the result.
TOLERANCES = {2: 1e-2, 4: 2e-5, 8: 1e-11}


def calling(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """Return a function of the arrays alone, with the other arguments fixed."""
    return lambda *arrays: function(*arrays, *args, **options)


def leaves(tree: Any) -> list[Any]:
    """Return the arrays and numbers in nested tuples and lists."""
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def precision(dtype: np.dtype) -> int:
    return np.zeros((), dtype).real.dtype.itemsize if dtype.kind in "fc" else dtype.itemsize


def assert_same(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Check dtype, shape and values; whole numbers exactly."""
    actual, expected = np.asarray(got), np.asarray(want)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
        return
    allowed = TOLERANCES[precision(expected.dtype)] if tolerance is None else tolerance
    np.testing.assert_allclose(actual, expected, rtol=allowed, atol=allowed)


def check(function: Callable[..., Any], *arrays: Any, tolerance: float | None = None) -> None:
    """Check that the compiled function returns what NumPy returns, class of results included."""
    want = function(*arrays)
    got = dsl.jit(function)(*arrays)
    assert type(got) is type(want) or not isinstance(want, tuple)
    pairs = list(zip(leaves(got), leaves(want), strict=True))
    for actual, expected in pairs:
        assert_same(actual, expected, tolerance)
