"""Powers of floats with an exponent that is known: products instead of the general function, which takes ten times as long."""

from __future__ import annotations

from math import inf
from struct import pack, unpack

from dsl.codegen import math
from dsl.codegen.llvm import Function, Value
from dsl.codegen.math.reals import Body, Double, Real, exact_product, fma, select

__all__ = ["power", "whole_constant"]

_MOST = 64  # the largest exponent; beyond it the general function is as quick
_PLAIN = 4  # the largest for which products that are rounded each time are within 2 units of the last place


def power(fn: Function, x: Value, y: Value) -> Value:
    """x**y."""
    exponent = whole_constant(y)
    most = _MOST if fn.module.device or math.cpu_has_fma() else _PLAIN
    if exponent is None or not 2 <= exponent <= most:
        return math.call(fn, "pow", x, y)
    base = Real(Body(fn, has_fma=True), fn.use(x))
    return (_plain(base, exponent) if exponent <= _PLAIN else _exact(base, exponent)).value


def whole_constant(y: Value) -> int | None:
    """Return a number if it is a constant and whole."""
    if y.owner is not None:
        return None
    number = unpack("<d", pack("<Q", int(y.text, 16)))[0]
    return int(number) if abs(number) < inf and number == int(number) else None


def _plain(x: Real, exponent: int) -> Real:
    square = x * x
    found = square if exponent < 4 else square * square
    return found * x if exponent == 3 else found


def _exact(x: Real, exponent: int) -> Real:
    """Square and multiply, from the exponent's first binary digit on, and keep what each rounding loses."""
    second, *others = list(f"{exponent:b}"[1:])
    pair = exact_product(x, x)
    pair = _times(pair, x) if second == "1" else pair
    for digit in others:
        pair = _squared(pair)
        pair = _times(pair, x) if digit == "1" else pair
    high, low = pair
    keeps = abs(high).equals(inf) | low.equals(0.0)  # the correction is NaN, or would make -0 a 0
    return select(keeps, high, high + low)


def _squared(pair: Double) -> Double:
    high, low = exact_product(pair[0], pair[0])
    return high, fma(pair[0] + pair[0], pair[1], low)


def _times(pair: Double, x: Real) -> Double:
    high, low = exact_product(pair[0], x)
    return high, fma(pair[1], x, low)
