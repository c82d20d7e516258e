"""Ops on floats that work on sign, exponent and significand.

Those of `BITS` take values as registers hold them and work on integers of the float's own width; those of `PARTS` take
float or double.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.elementwise.casts import bits, from_bits, narrow, sign_bit, widen
from dsl.codegen.llvm import Function, Value
from dsl.ir.types import BFLOAT16

__all__ = ["BITS", "PARTS", "Format", "copy_sign", "format_of", "power_of_two"]


class Format(NamedTuple):
    """The layout of a float: explicit significand bits, and the bits of infinity, which are the exponent's mask."""

    fraction: int
    infinity: int

    @property
    def bias(self) -> int:
        return self.infinity >> self.fraction + 1

    @property
    def integer(self) -> str:
        return {10: "i16", 7: "i16", 23: "i32", 52: "i64"}[self.fraction]


_FORMATS = {
    "half": Format(10, 0x7C00), "bfloat": Format(7, 0x7F80),
    "float": Format(23, 0x7F800000), "double": Format(52, 0x7FF0000000000000),
}  # fmt: skip


def format_of(dtype: np.dtype) -> Format:
    """Return the layout of a float dtype."""
    return _FORMATS["bfloat" if dtype == BFLOAT16 else register_type(dtype)]


# -- on bits -----------------------------------------------------------------------------------------------------


def _magnitude(fn: Function, x: Value) -> Value:
    return fn.binary("and", x, ~sign_bit(x.type))


def _negative(fn: Function, dtype: np.dtype, x: Value) -> Value:
    if x.type in ("float", "double"):
        return fn.fneg(x)
    whole = bits(fn, x)
    return from_bits(fn, fn.binary("xor", whole, sign_bit(whole.type)), x.type)


def _absolute(fn: Function, dtype: np.dtype, x: Value) -> Value:
    if x.type in ("float", "double"):
        return fn.intrinsic("llvm.fabs", x)
    return from_bits(fn, _magnitude(fn, bits(fn, x)), x.type)


def copy_sign(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    """Return x with the sign of y."""
    if x.type in ("float", "double"):
        return fn.intrinsic("llvm.copysign", x, y)
    a, b = bits(fn, x), bits(fn, y)
    sign = fn.binary("and", b, sign_bit(b.type))
    return from_bits(fn, fn.binary("or", _magnitude(fn, a), sign), x.type)


def _signbit(fn: Function, dtype: np.dtype, x: Value) -> Value:
    return fn.compare("slt", bits(fn, x), 0)


def _nextafter(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    a, b = bits(fn, x), bits(fn, y)
    size, goal = _magnitude(fn, a), _magnitude(fn, b)
    same_sign = fn.compare("sge", fn.binary("xor", a, b), 0)
    outward = fn.both(same_sign, fn.compare("ult", size, goal))
    stepped = fn.binary("add", a, fn.select(outward, 1, -1, a.type))
    smallest = fn.binary("or", fn.binary("and", b, sign_bit(b.type)), 1)
    stepped = fn.select(fn.compare("eq", size, 0), smallest, stepped)
    zeros = fn.compare("eq", fn.binary("or", size, goal), 0)
    # Of two zeros, NumPy returns the second, but the first in float16.
    stepped = fn.select(zeros, a if dtype == np.float16 else b, stepped)
    stepped = fn.select(fn.compare("eq", a, b), b, stepped)
    infinity = format_of(dtype).infinity
    nan = fn.either(fn.compare("ugt", size, infinity), fn.compare("ugt", goal, infinity))
    quiet = infinity | 1 << format_of(dtype).fraction - 1
    return from_bits(fn, fn.select(nan, quiet, stepped), x.type)


def _spacing(fn: Function, dtype: np.dtype, x: Value) -> Value:
    """The distance to the next float away from 0; for float16, as in NumPy, to the next one above."""
    a = bits(fn, x)
    size = _magnitude(fn, a)
    step: Value = fn.as_value(1, a.type)
    if dtype == np.float16:
        step = fn.select(fn.compare("slt", a, 0), -1, step)
    following = fn.binary("add", a, step)
    if dtype != BFLOAT16:  # there, the spacing of -0.0 is negative
        following = fn.select(fn.compare("eq", size, 0), 1, following)
    gap = fn.fsub(widen(fn, dtype, from_bits(fn, following, x.type)), widen(fn, dtype, x))
    nan = fn.constant(float("nan"), gap.type)
    unbounded = fn.compare("uge", size, format_of(dtype).infinity)
    return narrow(fn, fn.select(unbounded, nan, gap), dtype)


def _sign(fn: Function, dtype: np.dtype, x: Value) -> Value:
    """-1, 0 or 1; bfloat16 keeps the sign of a zero."""
    wide = widen(fn, dtype, x)
    zero, one = fn.constant(0.0, wide.type), fn.constant(1.0, wide.type)
    unit = fn.intrinsic("llvm.copysign", one, wide)
    rest = wide if dtype == BFLOAT16 else fn.select(fn.fcompare("uno", wide, wide), wide, zero)
    return narrow(fn, fn.select(fn.fcompare("one", wide, zero), unit, rest), dtype)


BITS: dict[str, Callable[..., Any]] = {
    "negative": _negative,
    "absolute": _absolute,
    "fabs": _absolute,
    "positive": lambda fn, dtype, x: x,
    "conjugate": lambda fn, dtype, x: x,
    "copysign": copy_sign,
    "signbit": _signbit,
    "nextafter": _nextafter,
    "spacing": _spacing,
    "sign": _sign,
}


# -- on float and double -----------------------------------------------------------------------------------------


def _frexp(fn: Function, x: Value) -> tuple[Value, Value]:
    fraction, infinity = form = _FORMATS[x.type]
    subnormal = fn.compare("ult", _magnitude(fn, bits(fn, x)), 1 << fraction)
    scaled = fn.fmul(x, fn.constant(2.0 ** (fraction + 1), x.type))
    whole = bits(fn, fn.select(subnormal, scaled, x))
    biased = fn.binary("lshr", fn.binary("and", whole, infinity), fraction)
    shift = fn.select(subnormal, form.bias - 1 + fraction + 1, form.bias - 1, whole.type)
    exponent = fn.convert("trunc", fn.binary("sub", biased, shift), "i32")
    mantissa = fn.binary("or", fn.binary("and", whole, ~infinity), form.bias - 1 << fraction)
    size = _magnitude(fn, bits(fn, x))
    special = fn.either(fn.compare("eq", size, 0), fn.compare("uge", size, infinity))
    return (
        fn.select(special, x, from_bits(fn, mantissa, x.type)),
        fn.select(special, 0, exponent),
    )


def power_of_two(fn: Function, exponent: Value, type: str) -> Value:
    """Return 2**exponent for an exponent, as wide as the float, of a normal number."""
    form = _FORMATS[type]
    return from_bits(
        fn, fn.binary("shl", fn.binary("add", exponent, form.bias), form.fraction), type
    )


def _ldexp(fn: Function, x: Value, y: Value) -> Value:
    """x * 2**y, rounded once: the factors before the last keep the number normal or exact."""
    form = _FORMATS[x.type]
    most, least = form.bias, 1 - form.bias
    for _ in range(2):
        high, low = fn.compare("sgt", y, most), fn.compare("slt", y, least)
        # Down in smaller steps than up, so that no bits are lost before the last product.
        step = fn.select(high, most, fn.select(low, least + form.fraction + 1, 0, y.type))
        factor = fn.select(high, fn.constant(2.0**most, x.type), fn.constant(1.0, x.type))
        small = fn.constant(2.0 ** (least + form.fraction + 1), x.type)
        x = fn.fmul(x, fn.select(low, small, factor))
        y = fn.binary("sub", y, step)
    y = fn.intrinsic("llvm.smax", y, fn.as_value(least, y.type))
    y = fn.intrinsic("llvm.smin", y, fn.as_value(most, y.type))
    exponent = fn.convert("sext" if x.type == "double" else "trunc", y, form.integer)
    return fn.fmul(x, power_of_two(fn, exponent, x.type))


def _modf(fn: Function, x: Value) -> tuple[Value, Value]:
    whole = fn.intrinsic("llvm.trunc", x)
    infinite = fn.fcompare("oeq", whole, x)
    rest = fn.select(infinite, fn.constant(0.0, x.type), fn.fsub(x, whole))
    return fn.intrinsic("llvm.copysign", rest, x), whole


PARTS: dict[str, Callable[..., Any]] = {"frexp": _frexp, "ldexp": _ldexp, "modf": _modf}
