"""Determinants from the pivots of an elimination, for a matrix in each lane: their product, or its sign and logarithm.

Products of more than three pivots are had from their fractions and exponents apart, so that no step leaves the range of
doubles unless the determinant does.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.codegen import math
from dsl.codegen.library.elimination import Arithmetic, Factors
from dsl.codegen.library.vectors import compare, constant, int_type, lanes
from dsl.codegen.llvm import Value

__all__ = ["determinant", "sign_and_logarithm"]

_FRACTION = (1 << 52) - 1
_ONE = 1023 << 52  # the bits of 1.0
_SPECIAL = 0x7FF  # the exponent of infinities and NaN
_MOST = 1000  # of an exponent that is made a factor
_LOG_2 = 0.6931471805599453


def determinant(x: Arithmetic, found: Factors) -> Value:
    """Return the product of the pivots, negative if rows were exchanged an odd number of times; zero if one is zero."""
    pivots = found.pivots()
    product = _product(x, pivots) if len(pivots) < 4 else _long_product(x, pivots)
    return _or_zero(x, pivots, _signed(x, found, product), 0.0)


def sign_and_logarithm(x: Arithmetic, found: Factors) -> tuple[Value, Value]:
    """Return the sign of the determinant and the logarithm of its size; 0 and -inf if a pivot is zero."""
    fn, pivots = x.fn, found.pivots()
    sign = _signed(x, found, _signs(x, pivots))
    fraction, exponent, special = _parts(x, pivots)
    whole = fn.convert("sitofp", exponent, x.type)
    name = math.routine_name("log", "double", lanes(x.type) or 1)
    log = fn.fadd(fn.call(x.type, name, fraction), fn.fmul(whole, x.number(_LOG_2)))
    log = x.select(special, x.size(_plain(x, pivots)), log)
    return _or_zero(x, pivots, sign, 0.0), _or_zero(x, pivots, log, -float("inf"))


def _or_zero(x: Arithmetic, pivots: Sequence[Value], value: Value, other: float) -> Value:
    for pivot in pivots:
        value = x.select(x.is_zero(pivot), x.number(other), value)
    return value


def _signed(x: Arithmetic, found: Factors, value: Value) -> Value:
    return value if found.odd is None else x.select(found.odd, x.fn.fneg(value), value)


def _signs(x: Arithmetic, pivots: Sequence[Value]) -> Value:
    """Return the product of the signs of the pivots; a NaN counts as positive."""
    sign = x.number(1.0)
    for pivot in pivots:
        sign = x.select(x.less(pivot, x.number(0.0)), x.fn.fneg(sign), sign)
    return sign


def _plain(x: Arithmetic, factors: Sequence[Value]) -> Value:
    total, *rest = factors
    for factor in rest:
        total = x.fn.fmul(total, factor)
    return total


def _product(x: Arithmetic, factors: Sequence[Value]) -> Value:
    """Return the product of three factors at most, the largest times the smallest first: no step leaves the range needlessly."""
    factors = list(factors)
    if len(factors) < 3:
        return _plain(x, factors)
    for i, k in ((0, 1), (0, 2), (1, 2)):
        swap = x.less(x.size(factors[i]), x.size(factors[k]))
        factors[i], factors[k] = x.exchanged(swap, factors[i], factors[k])
    return _plain(x, [factors[0], factors[2], factors[1]])


def _long_product(x: Arithmetic, pivots: Sequence[Value]) -> Value:
    fn = x.fn
    fraction, exponent, special = _parts(x, pivots)
    product = fn.fmul(fraction, _signs(x, pivots))
    for _ in range(2):
        step = _between(x, exponent, -_MOST, _MOST)
        exponent = fn.binary("sub", exponent, step)
        product = fn.fmul(product, _power_of_two(x, step))
    last = _power_of_two(x, _between(x, exponent, -_MOST, _MOST))
    return x.select(special, _plain(x, pivots), fn.fmul(product, last))


def _between(x: Arithmetic, number: Value, low: int, high: int) -> Value:
    for predicate, limit in (("slt", low), ("sgt", high)):
        bound = constant(limit, number.type)
        number = x.select(compare(x.fn, predicate, number, bound), bound, number)
    return number


def _power_of_two(x: Arithmetic, exponent: Value) -> Value:
    fn, kind = x.fn, exponent.type
    bits = fn.binary("shl", fn.binary("add", exponent, constant(1023, kind)), constant(52, kind))
    return fn.convert("bitcast", bits, x.type)


def _parts(x: Arithmetic, pivots: Sequence[Value]) -> tuple[Value, Value, Value]:
    """Return the product of the fractions, each from 1 to 2, the sum of the exponents, and where a pivot is inf or NaN."""
    fn, kind = x.fn, int_type(x.type)
    fractions, exponent, special = list[Value](), constant(0, kind), None
    for pivot in pivots:
        small = x.less(x.size(pivot), x.number(2.0**-1022))
        bits = fn.convert(
            "bitcast", x.select(small, fn.fmul(pivot, x.number(2.0**54)), pivot), kind
        )
        shifted = fn.binary("lshr", bits, constant(52, kind))
        own = fn.binary("and", shifted, constant(_SPECIAL, kind))
        odd = compare(fn, "eq", own, constant(_SPECIAL, kind))
        special = odd if special is None else fn.either(special, odd)
        bias = x.select(small, constant(1023 + 54, kind), constant(1023, kind))
        exponent = fn.binary("add", exponent, fn.binary("sub", own, bias))
        kept = fn.binary("and", bits, constant(_FRACTION, kind))
        kept = fn.binary("or", kept, constant(_ONE, kind))
        fractions.append(fn.convert("bitcast", kept, x.type))
    assert special is not None
    return _plain(x, fractions), exponent, special
