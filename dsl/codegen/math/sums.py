"""logaddexp and logaddexp2."""

from __future__ import annotations

import math

from dsl.codegen.math.exponential import exp, exp2
from dsl.codegen.math.logarithm import log1p_of_unit
from dsl.codegen.math.reals import Real, exact_product, exact_sum, fma, select

__all__ = ["logaddexp", "logaddexp2"]

LN2 = 0.6931471805599453
LOG2_E = {"f32": (1.442695, 1.925963e-08), "f64": (1.4426950408889634, 2.0355273740931033e-17)}


def logaddexp(x: Real, y: Real) -> Real:
    """log(e**x + e**y) = max + log(1 + e**-|x - y|)."""
    high, low = log1p_of_unit(exp(-abs(x - y)))
    return _sum(x, y, high, low, LN2)


def logaddexp2(x: Real, y: Real) -> Real:
    """log2(2**x + 2**y)."""
    high, low = log1p_of_unit(exp2(-abs(x - y)))
    factor, rest = LOG2_E[x.format.name]
    product, error = exact_product(high, factor)
    return _sum(x, y, product, fma(low, factor, fma(high, rest, error)), 1.0)


def _sum(x: Real, y: Real, high: Real, low: Real, of_equals: float) -> Real:
    """The larger number plus the two parts; equal numbers, which may be infinite, plus a constant."""
    total, error = exact_sum(select(x > y, x, y), high)
    result = select(abs(total) < math.inf, total + (error + low), total)
    return select(x.equals(y), x + of_equals, result)
