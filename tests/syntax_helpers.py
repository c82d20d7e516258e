"""Functions for test_syntax.py that live in another module than their callers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

SCALE = 3.0


def clamp(x, low, high=1.0):
    """Branches on data; calls another function of this module."""
    if x < low:
        return low
    return smaller(x, high)


def smaller(a, b):
    return a if a < b else b


def scaled(x):
    return SCALE * x


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 2 * function(*args, **kwargs)

    return wrapper


@twice
def decorated(x):
    if x.sum() > 0:
        return x
    return np.zeros_like(x)
