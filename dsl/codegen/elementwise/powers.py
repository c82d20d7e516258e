"""Powers of floats with a whole or half exponent that is known: products instead of the general function, which takes ten times as long."""

from __future__ import annotations

from math import inf
from struct import pack, unpack

from dsl.codegen import math
from dsl.codegen.llvm import Function, Value
from dsl.codegen.math.reals import Body, Number, Real, exact_product, fma, select, sqrt

__all__ = ["power", "whole_constant"]

Pair = tuple[Real, Number]
"""The sum of a number and what its rounding lost, which is 0.0 where that is nothing."""

_MOST = 64  # the largest exponent; beyond it the general function is as quick
_PLAIN = 4  # the largest for which products that are rounded each time are within 2 units of the last place


def power(fn: Function, x: Value, y: Value) -> Value:
    """x**y."""
    exponent = _constant(y)
    if exponent is None or not _is_product(exponent, fn.module.device or math.cpu_has_fma()):
        return math.call(fn, "pow", x, y)
    base = Real(Body(fn, has_fma=True), fn.use(x))
    if exponent != int(exponent):
        return _with_root(base, exponent).value
    return _whole(base, int(exponent)).value


def _is_product(exponent: float, has_fma: object) -> bool:
    """Tell whether a power is had by products: of whole and half exponents, without fma of few."""
    if not has_fma:
        return exponent in range(2, _PLAIN + 1)
    return (2 * exponent).is_integer() and (exponent < 0 or exponent > 1) and abs(exponent) <= _MOST


def whole_constant(y: Value) -> int | None:
    """Return a number if it is a constant and whole."""
    number = _constant(y)
    return int(number) if number is not None and number.is_integer() else None


def _constant(y: Value) -> float | None:
    return None if y.owner is not None else unpack("<d", pack("<Q", int(y.text, 16)))[0]


def _whole(x: Real, exponent: int) -> Real:
    if 2 <= exponent <= _PLAIN:
        return _plain(x, exponent)
    if exponent == -1:
        return 1.0 / x
    return _joined(_exact(_base(x, exponent), abs(exponent)))


def _with_root(x: Real, exponent: float) -> Real:
    """x**(k + 1/2) as x**k * sqrt(x), with 1 / x for x if it is negative; minus infinity and -0 count as positive."""
    x = select(x.equals(-inf), inf, x) + 0.0
    if exponent == -0.5:
        return 1.0 / sqrt(x)  # 1 / x would overflow before its root is taken
    base, whole = _base(x, exponent), int(abs(exponent))
    return _joined(_times(_exact(base, whole), sqrt(base[0])))


def _base(x: Real, exponent: float) -> Pair:
    """What is multiplied: x, or 1 / x and what its rounding loses."""
    if exponent > 0:
        return x, 0.0
    inverse = 1.0 / x
    return inverse, fma(-x, inverse, 1.0) * inverse


def _plain(x: Real, exponent: int) -> Real:
    square = x * x
    found = square if exponent < 4 else square * square
    return found * x if exponent == 3 else found


def _exact(x: Pair, exponent: int) -> Pair:
    """Square and multiply, from the exponent's first binary digit on, and keep what each rounding loses."""
    pair = x
    for digit in f"{exponent:b}"[1:]:
        pair = _squared(pair)
        pair = _times(pair, *x) if digit == "1" else pair
    return pair


def _joined(pair: Pair) -> Real:
    high, low = pair
    if not isinstance(low, Real):
        return high
    # The correction is NaN, or would make -0 a 0.
    keeps = abs(high).equals(inf) | high.equals(0.0) | low.equals(0.0)
    return select(keeps, high, high + low)


def _squared(pair: Pair) -> Pair:
    high, low = exact_product(pair[0], pair[0])
    return high, _plus(low, pair[0] + pair[0], pair[1])


def _times(pair: Pair, x: Real, lost: Number = 0.0) -> Pair:
    high, low = exact_product(pair[0], x)
    return high, _plus(_plus(low, x, pair[1]), pair[0], lost)


def _plus(sum: Real, x: Real, lost: Number) -> Real:
    """Return sum + x * lost, if anything was."""
    return fma(x, lost, sum) if isinstance(lost, Real) else sum
