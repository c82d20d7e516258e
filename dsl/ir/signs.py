"""Floats that are surely not negative: squares, absolute values, roots and what sums, products and quotients make of them.

`math.sqrt(dx * dx + dy * dy)` asks whether its number is below zero, which it never is, and `y / (1 + x * x)` whether it
divides by zero; without the questions a loop has vectors. NaN counts as everything here: what it is compared with is
neither below nor equal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np

from dsl.ir.facts import splat_of
from dsl.ir.graph import Value
from dsl.ir.types import TensorType, is_float

__all__ = ["Sign", "sign_of"]

_DEPTH = 12


class Sign(IntEnum):
    """What is known of every element that is a number; more is known of the greater ones."""

    ANY = 0
    NOT_BELOW = 1  # zero or more; -0.0 too, by which a quotient would be negative
    NOT_NEGATIVE = 2
    POSITIVE = 3


def sign_of(value: Value, depth: int = _DEPTH) -> Sign:
    """Return what is known of a value from the ops that it is made by."""
    if not isinstance(value.type, TensorType) or not depth:
        return Sign.ANY
    array = splat_of(value)
    if array is not None:
        return _of_number(array)
    name, inputs = value.node.op.name, value.node.inputs
    if name not in _RULES or not is_float(value.dtype):
        return Sign.ANY
    if _is_even_power(name, inputs):
        return Sign.NOT_NEGATIVE
    return _RULES[name](*(sign_of(x, depth - 1) for x in inputs))


def _is_even_power(name: str, inputs: tuple[Value, ...]) -> bool:
    if name == "multiply":
        return inputs[0] is inputs[1]
    exponent = splat_of(inputs[1]) if name == "power" else None
    return exponent is not None and bool(exponent % 2 == 0)


def _of_number(array: np.ndarray) -> Sign:
    if array.dtype.kind not in "biuf":
        return Sign.ANY
    if array == 0:
        return Sign.NOT_BELOW if np.signbit(array) else Sign.NOT_NEGATIVE
    return Sign.POSITIVE if array > 0 else Sign.ANY


def _length(*signs: Sign) -> Sign:
    return Sign.NOT_NEGATIVE


def _sum(x: Sign, y: Sign) -> Sign:
    return max(x, y) if x and y else Sign.ANY


def _product(x: Sign, y: Sign) -> Sign:
    """That of two small numbers may be rounded to zero."""
    return min(x, y, Sign.NOT_NEGATIVE)


def _quotient(x: Sign, y: Sign) -> Sign:
    return _product(x, y) if y >= Sign.NOT_NEGATIVE else Sign.ANY


def _root(x: Sign) -> Sign:
    return max(x, Sign.NOT_BELOW)


def _power(x: Sign, y: Sign) -> Sign:
    """That of -0.0 and -1.0 is negative."""
    return Sign.NOT_NEGATIVE if x >= Sign.NOT_NEGATIVE else Sign.ANY


def _larger(x: Sign, y: Sign) -> Sign:
    """Of 0.0 and -0.0 it may be either."""
    most = max(x, y)
    sure = most == Sign.POSITIVE or most == min(x, y)
    return most if sure else min(most, Sign.NOT_BELOW)


def _narrowed(x: Sign) -> Sign:
    """A float of fewer bits may be zero."""
    return min(x, Sign.NOT_NEGATIVE)


def _either(choice: Sign, x: Sign, y: Sign) -> Sign:
    return min(x, y)


_RULES: dict[str, Callable[..., Sign]] = {
    "square": _length, "absolute": _length, "exp": _length, "exp2": _length, "sqrt": _root, "add": _sum,
    "multiply": _product, "divide": _quotient, "maximum": _larger, "minimum": min, "cast": _narrowed, "where": _either,
    "power": _power,
}  # fmt: skip
