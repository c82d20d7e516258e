"""gamma and lgamma.

From 8 on, Stirling's formula: log gamma(w) = (w - 1/2) log w - w + log(2 pi) / 2 + s(w), s a polynomial in w**-2 over w.
Below, gamma(z) = gamma(z + 8) / (z (z + 1) ... (z + 7)), and lgamma steps down to 2 + t, |t| <= 1/2, where it is a
polynomial. Negative arguments are reflected: gamma(-z) = -1 / (z s gamma(z)) with s = sin(pi z) / pi.

The results in double precision are computed in twice that up to the last step; those in single precision in double.
"""

from __future__ import annotations

import math

from dsl.codegen.math.exponential import exp2_parts
from dsl.codegen.math.logarithm import log2_parts, natural, rough_log2, split
from dsl.codegen.math.reals import (
    F32,
    F64,
    Double,
    Flag,
    Real,
    choose,
    copysign,
    exact_fma,
    exact_product,
    exact_sum,
    fma,
    polynomial,
    quick_sum,
    scaled,
    select,
)

__all__ = ["gamma", "lgamma"]

LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
HALF_LOG2_TAU = (1.3257480647361595, -7.153413670427599e-17)  # log2(2 pi) / 2
HALF_LN_TAU = 0.9189385332046728
ONE_LESS_EULER = (0.42278433509846713, 4.942915152430645e-18)

# w (log gamma(w) - ((w - 1/2) log w - w + log(2 pi) / 2)) as a polynomial in w**-2, w >= 8
STIRLING = {
    "f32": (0.08333333309600371, -0.0027776554663871368, 0.0007778313625460407),
    "f64": (
        0.08333333333333333, -0.0027777777777667277, 0.0007936507860041931, -0.0005952357547355123,
        0.0008413807610477325, -0.0018857666717119995, 0.004974139706637168,
    ),
}  # fmt: skip
# (log gamma(2 + t) / t - (1 - Euler's constant)) / t for |t| <= 1/2
LGAMMA = {
    "f32": (
        0.32246703365194057, -0.06735230156733879, 0.020580789272647095, -0.007385526884036528,
        0.002890945018902839, -0.0011931354430921345, 0.0005057100348088146, -0.0002204787490570976,
        0.00011491786369895982, -5.343416725252079e-05,
    ),
    "f64": (
        0.32246703342411326, -0.0673523010531981, 0.0205808084277757, -0.007385551028672683,
        0.0028905103313101, -0.0011927539117956723, 0.0005096695081657584, -0.0002231547552902643,
        9.945777393576879e-05, -4.492629567081156e-05, 2.050480546771284e-05, -9.438850236736895e-06,
        4.388190351107852e-06, -2.0433257206108426e-06, 9.118675339560605e-07, -4.338286369819546e-07,
        2.8663373533436717e-07, -1.309967288135482e-07,
    ),
}  # fmt: skip
# (sin(pi r) / (pi r) - 1) / r**2 as a polynomial in r**2, |r| <= 1/2; the longer one goes on from -pi**2 / 6
SIN_PI = {
    "f32": (
        -1.6449340628489864, 0.811742208562619, -0.19074796275327924, 0.02611754579979574,
        -0.0022371487612195752,
    ),
    "f64": (
        0.8117424252833487, -0.19075182412175162, 0.026147847809057836, -0.0023460809221921707,
        0.00014842795621186738, -6.972359800389387e-06, 2.4527144578148496e-07,
    ),
}  # fmt: skip
SIN_PI_3 = (-1.6449340668482264, -3.040672350398476e-17)
LARGEST = 2.5599833278516383e305  # the largest number whose lgamma is finite


def gamma(x: Real) -> Real:
    """The gamma function; NaN at negative whole numbers, infinite with the sign of x at zero."""
    wide = x.to(F64)
    size = abs(wide)
    negative = wide < 0.0
    nearest = size.intrinsic("rint")
    r = size - nearest
    result = (_single if x.format is F32 else _double)(size.at_most(200.0), negative, r)
    odd = (nearest * 0.5).intrinsic("rint").equals(nearest * 0.5)
    result = select(negative & odd, -result, result)
    result = select(size.equals(0.0), copysign(size.constant(math.inf), wide), result)
    result = select(negative & r.equals(0.0), math.nan, result)
    result = select(size < math.inf, result, select(negative, math.nan, wide))
    return result.to(x.format)


def _single(size: Real, negative: Flag, r: Real) -> Real:
    """gamma(size), or 1 / (gamma(size) size s) if negative, to about 30 bits."""
    small = size < 8.0
    w = select(small, size + 8.0, size)
    inverse = 1.0 / w
    k, m = split(w, subnormals=False)
    logarithm = rough_log2(k, m)
    s = inverse * polynomial(inverse * inverse, STIRLING["f32"])
    power = fma(w - 0.5, logarithm, fma(s - w, LOG2_E[0], HALF_LOG2_TAU[0]))
    value, _, scales = exp2_parts(select(negative, -power, power), size.constant(0.0))
    t = fma(size, size, size * 7.0)
    product = (size + 7.0) * (t + 6.0) * ((t + 10.0) * (t + 12.0))
    product = select(small, product, 1.0)
    sine = fma(r * (r * r), polynomial(r * r, SIN_PI["f32"]), r)
    bottom = select(negative, sine, product) * select(negative ^ small, size, 1.0)
    return scaled(value * (select(negative, product, 1.0) / bottom), scales)


def _double(size: Real, negative: Flag, r: Real) -> Real:
    """gamma(size), or 1 / (gamma(size) size s) if negative."""
    small = size < 8.0
    w, w_low = exact_sum(size.constant(8.0), size)
    w, w_low = select(small, w, size), select(small, w_low, 0.0)
    value, value_low, scales = exp2_parts(*_log2_gamma(w, w_low, negative))
    product, product_low = _rising(size)
    product, product_low = select(small, product, 1.0), select(small, product_low, 0.0)
    sine, sine_low = _sine(r)
    bottom, bottom_low = select(negative, sine, product), select(negative, sine_low, product_low)
    bottom, bottom_low = _times(bottom, bottom_low, select(negative ^ small, size, 1.0))
    top, top_low = select(negative, product, 1.0), select(negative, product_low, 0.0)
    tiny = size < 2.0**-54
    inverse = 1.0 / select(tiny, size, bottom)
    quotient = top * inverse
    rest = exact_fma(quotient, -bottom, top) + fma(quotient, -bottom_low, top_low)
    rest = rest * inverse
    result = scaled(fma(value, quotient, fma(value, rest, value_low * quotient)), scales)
    return select(tiny, inverse, result)


def _log2_gamma(w: Real, low: Real, negative: Flag) -> Double:
    """log2(gamma(w + low)), or its opposite, by Stirling's formula."""
    inverse = 1.0 / w
    s = inverse * polynomial(inverse * inverse, STIRLING["f64"])
    logarithm, logarithm_low = log2_parts(w)
    first, first_low = _times(logarithm, logarithm_low, w - 0.5)
    second, second_low = _times(w.constant(-LOG2_E[0]), w.constant(-LOG2_E[1]), w)
    total, error = quick_sum(first, second)
    total, rest = quick_sum(total, total.constant(HALF_LOG2_TAU[0]))
    slope = fma(inverse, -0.5 * LOG2_E[0], logarithm)
    error = fma(s, LOG2_E[0], fma(low, slope, (error + rest) + (first_low + second_low)))
    error = error + HALF_LOG2_TAU[1]
    return select(negative, -total, total), select(negative, -error, error)


def _rising(z: Real) -> Double:
    """(z + 1) (z + 2) ... (z + 7), in pairs with the same sum."""
    total = seven = exact_sum(z.constant(7.0), z)
    t, t_low = _times(*seven, z)
    for offset in (6.0, 10.0, 12.0):
        factor, error = exact_sum(t.constant(offset), t)
        total = _product(total, (factor, error + t_low))
    return total


def _sine(r: Real) -> Double:
    """sin(pi r) / pi for |r| <= 1/2."""
    square, square_low = exact_product(r, r)
    cube, cube_low = exact_product(r, square)
    cube_low = fma(r, square_low, cube_low)
    rest = fma(
        cube, fma(square, polynomial(square, SIN_PI["f64"]), SIN_PI_3[1]), cube_low * SIN_PI_3[0]
    )
    total = fma(cube, SIN_PI_3[0], r)
    return quick_sum(total, exact_fma(cube, SIN_PI_3[0], r - total) + rest)


def _times(high: Real, low: Real, factor: Real) -> Double:
    product, error = exact_product(high, factor)
    return product, fma(low, factor, error)


def _product(a: Double, b: Double) -> Double:
    product, error = exact_product(a[0], b[0])
    return product, fma(a[0], b[1], fma(a[1], b[0], error))


def lgamma(x: Real) -> Real:
    """log |gamma(x)|; infinite at zero and negative whole numbers."""
    wide = x.to(F64)
    size = abs(wide)
    double = x.format is F64
    r = size - size.intrinsic("rint")
    high, low = _log_gamma(size, double)
    # The reflection, log |gamma(-z)| = -log(z s) - log(gamma(z)), save near 0, where the sign does not count.
    sine, sine_low = _sine(abs(r))
    reflected, reflected_low = _times(sine, sine_low, size)
    negative = wide < -(2.0**-60)
    log, log_low = _logarithm(select(negative, reflected, 1.0), double)
    log_low = log_low + select(negative, reflected_low, 0.0) / select(negative, reflected, 1.0)
    total, error = exact_sum(log, high)
    turned = -(total + (error + (log_low + low)))
    result = select(negative, turned, high + low)
    poles = size.equals(0.0) | (negative & r.equals(0.0))
    result = select(poles | (size > LARGEST), math.inf, result)
    return select(size < math.inf, result, wide).to(x.format)


def _log_gamma(z: Real, double: bool) -> Double:
    """log(gamma(z)) of a positive number."""
    name = "f64" if double else "f32"
    large = z >= 8.0
    t, product = z, z.constant(1.0)
    for _ in range(6):
        down = t >= 2.5
        t = select(down, t - 1.0, t)
        product = select(down, product * t, product)
    # Below 1.5 up, not down: gamma(t) = gamma(t + 1) / t = gamma(t + 2) / (t (t + 1))
    up, far_up = z < 1.5, z < 0.5
    product = select(up, select(far_up, fma(z, z, z), z), product)
    t = select(far_up, z, select(up, z - 1.0, t - 2.0))
    log, log_low = _logarithm(select(large, z, product), double)
    shifted, error = quick_sum(log, choose(large, z, -1.0, 0.0))
    factor = select(large, z - 0.5, choose(up, z, -1.0, 1.0))
    first, first_low = _times(shifted, log_low + error, factor)
    linear, linear_low = _times(t.constant(ONE_LESS_EULER[0]), t.constant(ONE_LESS_EULER[1]), t)
    inverse = 1.0 / z
    series = fma(inverse, polynomial(inverse * inverse, STIRLING[name]), HALF_LN_TAU - 0.5)
    tail = select(large, series, fma(t * t, polynomial(t, LGAMMA[name]), linear_low))
    total, error = exact_sum(first, select(large, 0.0, linear))
    return quick_sum(total, error + (first_low + tail))


def _logarithm(x: Real, double: bool) -> Double:
    """The natural logarithm of a positive number."""
    if not double:
        k, m = split(x, subnormals=False)
        return natural(k, m - 1.0), x.constant(0.0)
    high, low = log2_parts(x)
    product, error = exact_product(high, LN2[0])
    return product, fma(low, LN2[0], fma(high, LN2[1], error))
