"""Arithmetic of complex numbers: pairs of floats or doubles.

Products are the plain formula, so infinities may give NaN as they do in NumPy. Quotients are Smith's, which scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsl.codegen.elementwise.reals import REALS, flags
from dsl.codegen.llvm import Function, Value

__all__ = ["COMPLEXES", "Pair", "divide", "multiply"]

Pair = tuple[Value, Value]


def _partwise(name: str) -> Callable[..., Pair]:
    """Apply a real op to the real parts and to the imaginary parts."""
    emit = REALS[name]
    return lambda fn, *args: (
        emit(fn, *(re for re, _ in args)),
        emit(fn, *(im for _, im in args)),
    )


def multiply(fn: Function, x: Pair, y: Pair) -> Pair:
    """Return x * y."""
    (a, b), (c, d), mark = x, y, flags(fn).strip()
    re = fn.fsub(fn.fmul(a, c, mark), fn.fmul(b, d, mark), mark)
    im = fn.fadd(fn.fmul(a, d, mark), fn.fmul(b, c, mark), mark)
    return re, im


def _square(fn: Function, x: Pair) -> Pair:
    return multiply(fn, x, x)


def divide(fn: Function, x: Pair, y: Pair) -> Pair:
    """Return x / y; the divisor 0 divides both parts."""
    (a, b), (c, d) = x, y
    size_c, size_d = fn.intrinsic("llvm.fabs", c), fn.intrinsic("llvm.fabs", d)
    swap = fn.fcompare("ult", size_c, size_d)
    large, small = fn.select(swap, d, c), fn.select(swap, c, d)
    ratio = fn.fdiv(small, large)
    scale = fn.fdiv(fn.constant(1.0, c.type), fn.fadd(large, fn.fmul(small, ratio)))
    re = fn.fadd(fn.select(swap, b, a), fn.fmul(fn.select(swap, a, b), ratio))
    minus = fn.fneg(a)
    im = fn.fadd(fn.select(swap, minus, b), fn.fmul(fn.select(swap, b, minus), ratio))
    zero = fn.fcompare("oeq", fn.select(swap, size_d, size_c), fn.constant(0.0, c.type))
    return (
        fn.select(zero, fn.fdiv(a, size_c), fn.fmul(re, scale)),
        fn.select(zero, fn.fdiv(b, size_c), fn.fmul(im, scale)),
    )


def _reciprocal(fn: Function, x: Pair) -> Pair:
    a, b = x
    one = fn.constant(1.0, a.type)
    keep = fn.fcompare("ole", fn.intrinsic("llvm.fabs", b), fn.intrinsic("llvm.fabs", a))
    large, small = fn.select(keep, a, b), fn.select(keep, b, a)
    ratio = fn.fdiv(small, large)
    scale = fn.fadd(large, fn.fmul(small, ratio))
    re = fn.fdiv(fn.select(keep, one, ratio), scale)
    im = fn.fdiv(fn.fneg(fn.select(keep, ratio, one)), scale)
    return re, im


def _sign(fn: Function, x: Pair) -> Pair:
    """x / |x|; 0 of 0; if one part is infinite, its direction."""
    a, b = x
    zero, infinity = fn.constant(0.0, a.type), fn.constant(float("inf"), a.type)
    size = REALS["hypot"](fn, a, b)
    along = [fn.fcompare("oeq", fn.intrinsic("llvm.fabs", v), infinity) for v in x]
    infinite, null = fn.binary("xor", along[0], along[1]), fn.fcompare("oeq", size, zero)

    def part(v: Value, mine: Value) -> Value:
        unit = fn.intrinsic("llvm.copysign", fn.constant(1.0, a.type), v)
        ratio = fn.select(null, zero, fn.fdiv(v, size))
        return fn.select(infinite, fn.select(mine, unit, zero), ratio)

    return part(a, along[0]), part(b, along[1])


COMPLEXES: dict[str, Callable[..., Any]] = {
    **{name: _partwise(name) for name in ("add", "subtract", "rint")},
    "multiply": multiply,
    "square": _square,
    "divide": divide,
    "reciprocal": _reciprocal,
    "sign": _sign,
    "absolute": lambda fn, x: REALS["hypot"](fn, *x),
    "positive": lambda fn, x: x,
    "negative": lambda fn, x: (fn.fneg(x[0]), fn.fneg(x[1])),
    "conjugate": lambda fn, x: (x[0], fn.fneg(x[1])),
    "real": lambda fn, x: x[0],
    "imag": lambda fn, x: x[1],
}
