"""Ops on integers, which wrap; the dtype tells signed from unsigned. Ops on bools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.elementwise.casts import sign_bit
from dsl.codegen.elementwise.integer_division import DIVISIONS, constant_of
from dsl.codegen.llvm import Function, Value

__all__ = ["BOOLS", "INTEGERS"]

_UNROLLED_POWER = 64


def _extremum(word: str) -> Callable[[Function, np.dtype, Value, Value], Value]:
    """Return the emitter of `max` or `min`."""

    def emit(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
        return fn.intrinsic(f"llvm.{'s' if dtype.kind == 'i' else 'u'}{word}", x, y)

    return emit


def _plain(instruction: str) -> Callable[..., Value]:
    return lambda fn, dtype, x, y: fn.binary(instruction, x, y)


def _same(fn: Function, dtype: np.dtype, x: Value) -> Value:
    return x


def _absolute(fn: Function, dtype: np.dtype, x: Value) -> Value:
    if dtype.kind == "u":
        return x
    return fn.call(x.type, f"llvm.abs.{x.type}", x, Value("false", "i1"))


def _sign(fn: Function, dtype: np.dtype, x: Value) -> Value:
    if dtype.kind == "u":
        return fn.convert("zext", fn.compare("ne", x, 0), x.type)
    positive = fn.convert("zext", fn.compare("sgt", x, 0), x.type)
    return fn.binary("or", positive, fn.binary("ashr", x, _bits(x) - 1))


def _reciprocal(fn: Function, dtype: np.dtype, x: Value) -> Value:
    """1 / x truncated; of 0, infinity cast to the dtype."""
    if dtype.kind == "u":
        return fn.convert("zext", fn.compare("eq", x, 1), x.type)
    unit = fn.select(fn.compare("ult", fn.binary("add", x, 1), 3), x, 0)
    if dtype.itemsize < 4:
        return unit
    return fn.select(fn.compare("eq", x, 0), sign_bit(x.type), unit)


def _count(fn: Function, dtype: np.dtype, x: Value) -> Value:
    ones = fn.intrinsic("llvm.ctpop", _absolute(fn, dtype, x))
    return fn.convert("trunc", ones, "i8")


def _bits(x: Value) -> int:
    return int(x.type[1:])


# -- shifts ------------------------------------------------------------------------------------------------------


def _left_shift(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    inside = fn.compare("ult", y, _bits(x))
    return fn.select(inside, fn.binary("shl", x, y), 0)


def _right_shift(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    inside = fn.compare("ult", y, _bits(x))
    if dtype.kind == "u":
        return fn.select(inside, fn.binary("lshr", x, y), 0)
    return fn.binary("ashr", x, fn.select(inside, y, _bits(x) - 1))


# -- loops -------------------------------------------------------------------------------------------------------

_POWER = """
define internal {t} @dsl.power.{t}({t} %x, {t} %y) nounwind willreturn memory(none) {{
entry:
  br label %loop
loop:
  %base = phi {t} [ %x, %entry ], [ %square, %loop ]
  %left = phi {t} [ %y, %entry ], [ %half, %loop ]
  %done = phi {t} [ 1, %entry ], [ %next, %loop ]
  %odd = trunc {t} %left to i1
  %factor = select i1 %odd, {t} %base, {t} 1
  %next = mul {t} %done, %factor
  %square = mul {t} %base, %base
  %half = lshr {t} %left, 1
  %more = icmp ne {t} %half, 0
  br i1 %more, label %loop, label %end
end:
  ret {t} %next
}}"""

_GCD = """
define internal {t} @dsl.gcd.{t}({t} %x, {t} %y) nounwind willreturn memory(none) {{
entry:
  %either = or {t} %x, %y
  %common = call {t} @llvm.cttz.{t}({t} %either, i1 false)
  %x0 = icmp eq {t} %x, 0
  %y0 = icmp eq {t} %y, 0
  %trivial = or i1 %x0, %y0
  br i1 %trivial, label %zero, label %start
zero:
  ret {t} %either
start:
  %xz = call {t} @llvm.cttz.{t}({t} %x, i1 true)
  %a0 = lshr {t} %x, %xz
  br label %loop
loop:
  %a = phi {t} [ %a0, %start ], [ %low, %loop ]
  %b = phi {t} [ %y, %start ], [ %rest, %loop ]
  %bz = call {t} @llvm.cttz.{t}({t} %b, i1 true)
  %odd = lshr {t} %b, %bz
  %low = call {t} @llvm.umin.{t}({t} %a, {t} %odd)
  %high = call {t} @llvm.umax.{t}({t} %a, {t} %odd)
  %rest = sub {t} %high, %low
  %more = icmp ne {t} %rest, 0
  br i1 %more, label %loop, label %end
end:
  %gcd = shl {t} %low, %common
  ret {t} %gcd
}}"""


def _call(fn: Function, name: str, text: str, x: Value, y: Value) -> Value:
    """Call a function that the module gets once."""
    fn.module.include(f"dsl.{name}.{x.type}", text.format(t=x.type))
    return fn.call(x.type, f"dsl.{name}.{x.type}", x, y)


def _power(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    exponent = constant_of(y)
    if exponent is None or not 0 <= exponent <= _UNROLLED_POWER:
        return _call(fn, "power", _POWER, x, y)
    return _power_by_squaring(fn, x, exponent)


def _power_by_squaring(fn: Function, x: Value, exponent: int) -> Value:
    result: Value = fn.as_value(1, x.type)
    for bit in bin(exponent)[2:]:
        result = fn.binary("mul", result, result)
        result = fn.binary("mul", result, x) if bit == "1" else result
    return result


def _gcd(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    for word in ("cttz", "umin", "umax"):
        second = "i1" if word == "cttz" else x.type
        fn.module.declare(f"llvm.{word}.{x.type}", x.type, [x.type, second])
    return _call(fn, "gcd", _GCD, _absolute(fn, dtype, x), _absolute(fn, dtype, y))


def _lcm(fn: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    divisor = fn.intrinsic("llvm.umax", _gcd(fn, dtype, x, y), fn.as_value(1, x.type))
    share = fn.binary("udiv", _absolute(fn, dtype, x), divisor)
    return fn.binary("mul", share, _absolute(fn, dtype, y))


INTEGERS: dict[str, Callable[..., Any]] = {
    "add": _plain("add"),
    "subtract": _plain("sub"),
    "multiply": _plain("mul"),
    "bitwise_and": _plain("and"),
    "bitwise_or": _plain("or"),
    "bitwise_xor": _plain("xor"),
    "maximum": _extremum("max"),
    "minimum": _extremum("min"),
    "fmax": _extremum("max"),
    "fmin": _extremum("min"),
    "left_shift": _left_shift,
    "right_shift": _right_shift,
    **DIVISIONS,
    "power": _power,
    "gcd": _gcd,
    "lcm": _lcm,
    "invert": lambda fn, dtype, x: fn.invert(x),
    "negative": lambda fn, dtype, x: fn.binary("sub", 0, x),
    "square": lambda fn, dtype, x: fn.binary("mul", x, x),
    "absolute": _absolute,
    "sign": _sign,
    "reciprocal": _reciprocal,
    "bitwise_count": _count,
    **dict.fromkeys(("positive", "conjugate", "floor", "ceil", "trunc"), _same),
}

BOOLS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "maximum", "fmax", "bitwise_or"), _plain("or")),
    **dict.fromkeys(("multiply", "minimum", "fmin", "bitwise_and"), _plain("and")),
    "bitwise_xor": _plain("xor"),
    "invert": lambda fn, dtype, x: fn.invert(x),
    **dict.fromkeys(("absolute", "floor", "ceil", "trunc"), _same),
}
