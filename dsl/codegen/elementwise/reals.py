"""Ops on float and double, to which half precisions are widened.

Sums, differences, products, quotients and square roots are rounded as IEEE 754 has it, so equal to NumPy's bit for bit.
If the module has a true attribute `fastmath`, they carry the flags `reassoc nsz arcp contract afn`: LLVM may then
reorder sums, fuse products with sums and divide by multiplying. It still honours infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.elementwise.division import divmod_
from dsl.codegen.elementwise.representation import PARTS
from dsl.codegen.llvm import Function, Value

__all__ = ["MATH", "REALS", "flags"]

# Ops that are functions of `dsl.codegen.math`, and their names there.
MATH = {
    "power": "pow", "float_power": "pow", "arctan2": "arctan2", "logaddexp": "logaddexp", "logaddexp2": "logaddexp2",
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "arcsin", "arccos": "arccos", "arctan": "arctan",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "arcsinh": "arcsinh", "arccosh": "arccosh", "arctanh": "arctanh",
    "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "gamma": "gamma", "lgamma": "lgamma", "digamma": "digamma",
    "cbrt": "cbrt", "fmod": "fmod", "tanh_beside_one": "tanh_beside_one",
}  # fmt: skip


def flags(fn: Function) -> str:
    """Return the fast-math flags of the module, with a space before them, or nothing."""
    return " reassoc nsz arcp contract afn" if getattr(fn.module, "fastmath", False) else ""


def _plain(instruction: str) -> Callable[..., Value]:
    return lambda fn, x, y: fn.binary(instruction + flags(fn), x, y)


def _intrinsic(name: str) -> Callable[..., Value]:
    return lambda fn, x: fn.intrinsic(name, x, flags=flags(fn).strip())


def _scaled(above: float, below: float) -> Callable[..., Value]:
    """Multiply by a quotient of constants, which are rounded to the float's type first."""

    def emit(fn: Function, x: Value) -> Value:
        type = np.float32 if x.type == "float" else np.float64
        return fn.binary(
            "fmul" + flags(fn), x, fn.constant(float(type(above) / type(below)), x.type)
        )

    return emit


# Sizes from which squares are scaled down, below which they are scaled up, and the exponents of the scales.
_SQUARES = {"float": (60, -50, -80, 100), "double": (510, -450, -600, 600)}


def _hypot(fn: Function, x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2), scaled by a power of two where squares might overflow or lose bits."""

    def two_to(exponent: int) -> Value:
        return fn.constant(2.0**exponent, x.type)

    most, least, down, up = _SQUARES[x.type]
    a, b = fn.intrinsic("llvm.fabs", x), fn.intrinsic("llvm.fabs", y)
    size = fn.select(fn.fcompare("ogt", a, b), a, b)
    large, small = fn.fcompare("ogt", size, two_to(most)), fn.fcompare("olt", size, two_to(least))
    scale = fn.select(large, two_to(down), fn.select(small, two_to(up), two_to(0)))
    back = fn.select(large, two_to(-down), fn.select(small, two_to(-up), two_to(0)))
    c, d = fn.fmul(a, scale), fn.fmul(b, scale)
    root = fn.fmul(fn.intrinsic("llvm.sqrt", fn.fma(c, c, fn.fmul(d, d))), back)
    infinity = fn.constant(float("inf"), x.type)
    infinite = (fn.fcompare("oeq", v, infinity) for v in (a, b))
    return fn.select(fn.either(*infinite), infinity, root)  # also where the other is NaN


def _heaviside(fn: Function, x: Value, y: Value) -> Value:
    zero = fn.constant(0.0, x.type)
    positive = fn.select(fn.fcompare("ogt", x, zero), fn.constant(1.0, x.type), x)
    nonzero = fn.select(fn.fcompare("olt", x, zero), zero, positive)
    return fn.select(fn.fcompare("oeq", x, zero), y, nonzero)


REALS: dict[str, Callable[..., Any]] = {
    "add": _plain("fadd"),
    "subtract": _plain("fsub"),
    "multiply": _plain("fmul"),
    "divide": _plain("fdiv"),
    "square": lambda fn, x: fn.binary("fmul" + flags(fn), x, x),
    "reciprocal": lambda fn, x: fn.binary("fdiv" + flags(fn), fn.constant(1.0, x.type), x),
    "sqrt": _intrinsic("llvm.sqrt"),
    **{name: _intrinsic(f"llvm.{name}") for name in ("rint", "floor", "ceil", "trunc")},
    **dict.fromkeys(("deg2rad", "radians"), _scaled(np.pi, 180.0)),
    **dict.fromkeys(("rad2deg", "degrees"), _scaled(180.0, np.pi)),
    "heaviside": _heaviside,
    "hypot": _hypot,
    "divmod": divmod_,
    "floor_divide": lambda fn, x, y: divmod_(fn, x, y)[0],
    "remainder": lambda fn, x, y: divmod_(fn, x, y)[1],
    **PARTS,
}
