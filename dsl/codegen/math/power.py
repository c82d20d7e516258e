"""pow: 2**(y log2(x)), the logarithm and its product with y to half as many bits again as the format has."""

from __future__ import annotations

import math

from dsl.codegen.math.exponential import exp2_of
from dsl.codegen.math.logarithm import log2_parts
from dsl.codegen.math.reals import Real, copysign, exact_product, fma, select

__all__ = ["pow"]

LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
LIMIT = {"f32": 160.0, "f64": 1100.0}  # 2 to this power is infinite; to the opposite, zero


def pow(x: Real, y: Real) -> Real:
    """x**y with the special cases of C's pow."""
    size = abs(x)
    whole = y.intrinsic("trunc").equals(y)
    half = y * 0.5
    odd = whole & ~half.intrinsic("trunc").equals(half)
    high, low = log2_parts(size)
    # Each of these undoes the one before where both apply. One comparison at a time: see `logarithm.patched`.
    high = select((x < 0.0) & ~whole, math.nan, high)
    high = select(size < math.inf, high, size)
    high = select(size.equals(0.0), -math.inf, high)
    result = copysign(_power_of_two(high, low, y), select(odd, x, 1.0))
    return select(x.equals(1.0) | y.equals(0.0), 1.0, result)


def _power_of_two(high: Real, low: Real, y: Real) -> Real:
    """2**(y (high + low)) for numbers that may be infinite or NaN."""
    largest, limit = LARGEST[y.format.name], LIMIT[y.format.name]
    y = y.at_most(largest).at_least(-largest)  # so that log2(1) times y is never NaN
    product, error = exact_product(y, high)
    rest = select(abs(product) < 2 * limit, fma(y, low, error), 0.0)
    return exp2_of(product.at_most(limit).at_least(-limit), rest)
