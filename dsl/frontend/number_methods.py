"""The methods that Python's numbers and NumPy's scalars have, and arrays have not, on traced ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.frontend.traced import Kind, Traced, fresh, lift, read

__all__ = ["ATTRIBUTES"]


def _number(value: Any) -> Traced:
    return fresh(read(lift(value)), Kind.PYTHON)


def _bit_length(x: Traced) -> Traced:
    """By halves, since a double has not the digits of 64 bits."""
    magnitude = np.absolute(x).astype(np.uint64)
    high, low = magnitude >> np.uint64(32), magnitude & np.uint64(2**32 - 1)
    lengths = [np.frexp(half.astype(np.float64))[1] for half in (high, low)]
    return _number(np.where(high > 0, lengths[0] + 32, lengths[1]).astype(np.int64))


def _bit_count(x: Traced) -> Traced:
    return _number(np.bitwise_count(np.absolute(x)).astype(np.int64))


def _is_integer(x: Traced) -> Traced:
    return _number(np.isfinite(x) & (np.floor(x) == x))


def _method(apply: Callable[[Traced], Any]) -> Callable[[Traced], Callable[[], Any]]:
    return lambda x: lambda: apply(x)


# The kinds of dtypes whose numbers have it, and what it is.
ATTRIBUTES: dict[str, tuple[str, Callable[[Traced], Any]]] = {
    "bit_length": ("i", _method(_bit_length)),
    "bit_count": ("iu", _method(_bit_count)),
    "is_integer": ("iuf", _method(_is_integer)),
    "numerator": ("iu", lambda x: x),
    "denominator": ("iu", lambda x: _number(np.int64(1))),
}
