"""Elementary functions of complex numbers, as formulas over pairs of doubles.

Zeros, infinities and NaN give what C's Annex G and glibc, and so NumPy, give: the regular formula comes first, then the
cases that it gets wrong. "Strange" is an angle that has no direction: infinite or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp as exp_of_constant
from math import inf, nan

from dsl.codegen import math
from dsl.codegen.elementwise.reals import REALS
from dsl.codegen.math.reals import Flag, Real, copysign, exact_product, exact_sum, select, sqrt

__all__ = [
    "Complex", "cos", "cosh", "exp", "exp2", "expm1", "log", "log1p", "log_to_base", "sin", "sinh", "square_root",
    "tan", "tanh",
]  # fmt: skip

Complex = tuple[Real, Real]

_HUGE = 709.0  # e**709 is finite, e**710 is not
_E_HUGE = exp_of_constant(_HUGE)
_FLAT = 22.0  # from here on, e**-x is below the last bit of e**x
_LN2 = 0.6931471805599453


def _real(name: str, *args: Real) -> Real:
    """Call an elementary function of reals."""
    body = args[0].body
    return Real(body, math.call(body.fn, name, *(arg.value for arg in args)))


def _hypot(x: Real, y: Real) -> Real:
    return Real(x.body, REALS["hypot"](x.body.fn, x.value, y.value))


def _strange(y: Real) -> Flag:
    return ~(abs(y) < inf)


# -- exponentials ------------------------------------------------------------------------------------------------


def exp(x: Real, y: Real) -> Complex:
    large = x > _HUGE
    scale = select(large, x.constant(_E_HUGE), 1.0)
    size = _real("exp", select(large, x - _HUGE, x))
    re, im = (_real(name, y) * scale * size for name in ("cos", "sin"))
    im = select(y.equals(0.0), y, im)
    strange = _strange(y)
    re = select(strange & abs(x).equals(inf), size, re)
    return re, select(strange & x.equals(-inf), copysign(x.constant(0.0), y), im)


def exp2(x: Real, y: Real) -> Complex:
    return exp(x * _LN2, y * _LN2)


def expm1(x: Real, y: Real) -> Complex:
    half = _real("sin", y * 0.5)
    re = _real("expm1", x) * _real("cos", y) - 2.0 * half * half
    return re, _real("exp", x) * _real("sin", y)


def log(x: Real, y: Real) -> Complex:
    return _log_of_size(abs(x), abs(y)), _real("arctan2", y, x)


def _log_of_size(a: Real, b: Real) -> Real:
    """log(hypot(a, b)): near 1 as log1p of a**2 + b**2 - 1, which is computed without cancellation."""
    high, low = select(a < b, b, a), select(a < b, a, b)
    (p, p_error), (q, q_error) = exact_product(high, high), exact_product(low, low)
    total, error = exact_sum(p - 1.0, q)
    near = 0.5 * _real("log1p", total + (error + (p_error + q_error)))
    large, small = high > 2.0**1000, high < 2.0**-1000
    scale = select(large, a.constant(2.0**-64), select(small, a.constant(2.0**64), 1.0))
    shift = select(large, a.constant(64 * _LN2), select(small, a.constant(-64 * _LN2), 0.0))
    far = _real("log", _hypot(a * scale, b * scale)) + shift
    return select((total > -0.5) & (total < 1.0), near, far)


def log_to_base(factor: float) -> Callable[[Real, Real], Complex]:
    def emit(x: Real, y: Real) -> Complex:
        re, im = log(x, y)
        return re * factor, im * factor

    return emit


def log1p(x: Real, y: Real) -> Complex:
    base = x + 1.0
    return _real("log", _hypot(base, y)), _real("arctan2", y, base)


def square_root(x: Real, y: Real) -> Complex:
    a, b = abs(x), abs(y)
    large, small = (a > 2.0**1000) | (b > 2.0**1000), (a < 2.0**-900) & (b < 2.0**-900)
    scale = select(large, x.constant(2.0**-64), select(small, x.constant(2.0**128), 1.0))
    back = select(large, x.constant(2.0**32), select(small, x.constant(2.0**-64), 1.0))
    root = sqrt((a * scale + _hypot(a * scale, b * scale)) * 0.5)
    other = select(root.equals(0.0), 0.0, b * scale / (root * 2.0)) * back
    root = root * back
    positive = x >= 0.0
    re, im = select(positive | x.is_nan(), root, other), select(positive, other, root)
    re = select(a.equals(inf), select(positive, x, select(y.is_nan(), nan, x.constant(0.0))), re)
    im = select(a.equals(inf), select(positive, select(y.is_nan(), y, 0.0), inf), im)
    infinite = b.equals(inf)
    return select(infinite, b, re), copysign(select(infinite, b, im), y)


# -- trigonometric and hyperbolic --------------------------------------------------------------------------------


def _growth(x: Real) -> tuple[Real, Real, Real]:
    """Return sinh(x), cosh(x) and a factor that both are to be multiplied by."""
    a = abs(x)
    large = a > _HUGE
    t = _real("expm1", select(large, a - _HUGE, a))
    half, rest = 0.5 * (t + 1.0), t / (t + 1.0)
    flat = a > _FLAT
    odd = select(flat, half, 0.5 * (t + rest))
    even = select(flat, half, 1.0 + 0.5 * t * rest)
    return copysign(odd, x), even, select(large, x.constant(_E_HUGE), 1.0)


def sinh(x: Real, y: Real) -> Complex:
    odd, even, scale = _growth(x)
    re, im = odd * _real("cos", y) * scale, even * _real("sin", y) * scale
    strange = _strange(y)
    re = select(strange & x.equals(0.0), x, re)
    re = select(strange & abs(x).equals(inf), inf, re)
    return re, select(y.equals(0.0), y, im)


def cosh(x: Real, y: Real) -> Complex:
    odd, even, scale = _growth(x)
    re, im = even * _real("cos", y) * scale, odd * _real("sin", y) * scale
    strange = _strange(y)
    re = select(strange & abs(x).equals(inf), inf, re)
    im = select(strange & x.equals(0.0), 0.0, im)
    side = select(x.is_nan(), 1.0, copysign(x.constant(1.0), x))
    return re, select(y.equals(0.0), side * y, im)


def tanh(x: Real, y: Real) -> Complex:
    limited = abs(x).at_most(_HUGE)
    odd, even, _ = _growth(limited)
    across = _real("cos", y)
    product, below = _real("sin", y) * across, odd * odd + across * across
    flat = limited > _FLAT
    re = copysign(select(flat, 1.0, odd * even / below), x)
    im = select(flat, product / odd / odd, product / below)
    strange = _strange(y)
    infinite = abs(x).equals(inf)
    re = select(strange & ~infinite, select(x.equals(0.0), x, nan), re)
    im = select(strange & infinite, copysign(x.constant(0.0), y), im)
    return re, select(y.equals(0.0), y, im)


def sin(x: Real, y: Real) -> Complex:
    re, im = sinh(y, x)
    return im, re


def cos(x: Real, y: Real) -> Complex:
    return cosh(-y, x)


def tan(x: Real, y: Real) -> Complex:
    re, im = tanh(y, x)
    return im, re
