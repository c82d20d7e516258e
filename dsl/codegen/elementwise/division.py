"""Floor division and remainder of float and double, step by step as NumPy computes them from `fmod`."""

from __future__ import annotations

from dsl.codegen import math
from dsl.codegen.llvm import Function, Value

__all__ = ["divmod_"]


def divmod_(fn: Function, x: Value, y: Value) -> tuple[Value, Value]:
    """Return floor division and remainder."""
    zero, one = fn.constant(0.0, x.type), fn.constant(1.0, x.type)
    ratio, rest = fn.fdiv(x, y), math.call(fn, "fmod", x, y)
    exact = fn.fcompare("oeq", rest, zero)
    opposite = fn.binary("xor", fn.fcompare("olt", y, zero), fn.fcompare("olt", rest, zero))
    down = fn.both(opposite, fn.invert(exact))
    quotient = fn.fdiv(fn.fsub(x, rest), y)
    quotient = fn.select(down, fn.fsub(quotient, one), quotient)
    adjusted = fn.select(down, fn.fadd(rest, y), rest)
    remainder = fn.select(exact, fn.intrinsic("llvm.copysign", zero, y), adjusted)
    by_zero = fn.fcompare("oeq", y, zero)
    return fn.select(by_zero, ratio, _whole(fn, quotient, ratio)), remainder


def _whole(fn: Function, quotient: Value, ratio: Value) -> Value:
    """Round a quotient that is nearly whole, a zero getting the sign of the ratio."""
    zero, one = fn.constant(0.0, ratio.type), fn.constant(1.0, ratio.type)
    floor = fn.intrinsic("llvm.floor", quotient)
    far = fn.fcompare("ogt", fn.fsub(quotient, floor), fn.constant(0.5, ratio.type))
    rounded = fn.select(far, fn.fadd(floor, one), floor)
    return fn.select(
        fn.fcompare("oeq", quotient, zero), fn.intrinsic("llvm.copysign", zero, ratio), rounded
    )
