"""The methods that Python's numbers and NumPy's scalars have, and arrays have not, on traced ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.frontend.traced import Kind, Traced, fresh, lift, read

__all__ = ["ATTRIBUTES", "rounded"]


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


def rounded(x: Any, digits: int) -> Traced:
    """`round(x, digits)` of a Python number, which is the nearest decimal to what `x` is exactly.

    NumPy scales and rounds, so that 2.675 * 100 is a tie. Here the error of the product tells on which side of the tie it is.
    """
    if x.dtype.kind != "f" or abs(digits) > _EXACT_POWER:
        return _number(lift(np.round(x, digits)).astype(x.dtype))
    scale = 10.0 ** abs(digits)
    scaled = x * scale if digits >= 0 else x / scale
    whole = np.rint(scaled)
    product, error = _exact_product(x if digits >= 0 else scaled, scale)
    beyond = error if digits >= 0 else (x - product) - error
    tie = np.absolute(scaled - whole) == 0.5
    up, down = tie & (beyond > 0), tie & (beyond < 0)
    whole = np.where(up, np.ceil(scaled), np.where(down, np.floor(scaled), whole))
    result = whole / scale if digits >= 0 else whole * scale
    # From there on no other double is as near to the decimal; infinities and NaN stay, too.
    return _number(np.where(np.absolute(scaled) < 2.0**53, result, x))


_EXACT_POWER = 22  # of ten, in a double


def _exact_product(a: Any, b: float) -> tuple[Any, Any]:
    """Return a product as a double, and what is missing to the exact one: the halves of both have exact products."""
    product = a * b
    (high, low), (upper, lower) = _halves(a), _halves(b)
    return product, low * lower - (((product - high * upper) - low * upper) - high * lower)


def _halves(a: Any) -> tuple[Any, Any]:
    large = a * (2.0**27 + 1)
    high = large - (large - a)
    return high, a - high


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
