"""Elementary functions of complex numbers: the formulas in double, for pairs as registers hold them.

complex64 is widened and rounded once, so nothing overflows on the way. The inverse trigonometric and hyperbolic
functions are calls of the C library.
"""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.elementwise import complex_formulas as formulas
from dsl.codegen.elementwise.complex_formulas import Complex
from dsl.codegen.elementwise.complex_power import power
from dsl.codegen.llvm import Function, Value
from dsl.codegen.math.reals import Body, Real

__all__ = ["FUNCTIONS"]

Pair = tuple[Value, Value]


class _Inline(Body):
    """Emits into a function of the module that is being built."""

    def call(self, name: str, *args: Value, attributes: str = "nounwind") -> Value:
        return self.fn.call(args[0].type, name, *args)


def _in_double(formula: Callable[..., Complex]) -> Callable[..., Pair]:
    """Return an emitter for pairs of floats or doubles."""

    def emit(fn: Function, *args: Pair) -> Pair:
        type, body = args[0][0].type, _Inline(fn)
        re, im = formula(*(Real(body, _widened(fn, part)) for pair in args for part in pair))
        return fn.convert("fptrunc", re.value, type), fn.convert("fptrunc", im.value, type)

    return emit


def _widened(fn: Function, value: Value) -> Value:
    """Return a double; constants stay constants, being written alike in both types."""
    if value.owner is None:
        return Value(value.text, "double")
    return fn.convert("fpext", fn.use(value), "double")


def _library(name: str) -> Callable[..., Complex]:
    """Call a function of the C library; two doubles arrive and return as a `double complex` does."""

    def emit(x: Real, y: Real) -> Complex:
        fn = x.body.fn
        both = fn.call("{double, double}", name, x.value, y.value)
        parts = (fn.define("double", f"extractvalue {both.type} {both.text}, {k}") for k in (0, 1))
        re, im = (Real(x.body, part) for part in parts)
        return re, im

    return emit


_FORMULAS: dict[str, Callable[..., Complex]] = {
    "exp": formulas.exp,
    "exp2": formulas.exp2,
    "expm1": formulas.expm1,
    "log": formulas.log,
    "log2": formulas.log_to_base(1.4426950408889634),
    "log10": formulas.log_to_base(0.4342944819032518),
    "log1p": formulas.log1p,
    "sqrt": formulas.square_root,
    "sinh": formulas.sinh,
    "cosh": formulas.cosh,
    "tanh": formulas.tanh,
    "sin": formulas.sin,
    "cos": formulas.cos,
    "tan": formulas.tan,
    "power": power,
    "float_power": power,
    "arcsin": _library("casin"),
    "arccos": _library("cacos"),
    "arctan": _library("catan"),
    "arcsinh": _library("casinh"),
    "arccosh": _library("cacosh"),
    "arctanh": _library("catanh"),
}
FUNCTIONS = {name: _in_double(formula) for name, formula in _FORMULAS.items()}
