"""digamma.

From 6 on the asymptotic series; below, steps of one lead to [1, 3), where digamma is (v - root) times a polynomial, and
the reciprocals met on the way add up to one fraction. digamma(-z) = digamma(z) + 1/z + pi cot(pi z).
"""

from __future__ import annotations

import math

from dsl.codegen.math.logarithm import natural, split
from dsl.codegen.math.reals import (
    F64,
    Flag,
    Real,
    choose,
    copysign,
    exact_fma,
    exact_product,
    exact_sum,
    fma,
    polynomial,
    select,
)

__all__ = ["digamma"]

ROOT = (1.4616321449683622, 9.549995429965697e-17)
PI_SQUARED = 9.869604401089358

# digamma(v) / (v - ROOT) as a polynomial in v - 2, 1 <= v <= 3
NEAR = (
    0.7853075386041053, -0.2607389546830014, 0.10899991701761821, -0.0495510329176698,
    0.023447309598261867, -0.011338432553524394, 0.00555225415726071, -0.0027395728783358286,
    0.001358142382737925, -0.0006753134347186635, 0.0003364308061651939, -0.00016781466170736104,
    8.378795073416425e-05, -4.1848992026592854e-05, 2.0862080475745003e-05, -1.043120046920308e-05,
    5.34244053005805e-06, -2.6583816933481697e-06, 1.082945353222209e-06, -5.62917134284228e-07,
    6.200225172891382e-07, -2.8371127607660223e-07, -1.8961349439939002e-07, 7.27684867120672e-08,
    1.8862626418499262e-07, -8.224974057337142e-08, -5.938822941624405e-08, 2.5810263668877317e-08,
    1.3618883569189114e-08, -6.251674630532265e-09,
)  # fmt: skip
# (digamma(z) - log z + 1 / 2z) z**2 as a polynomial in z**-2, z >= 6
FAR = (
    -0.08333333333333298, 0.008333333332914859, -0.0039682537975294415, 0.004166632801179329,
    -0.00757200483228281, 0.020846008597404157, -0.07355673592051584, 0.21457264109554183,
)  # fmt: skip
# (pi r cot(pi r) - 1) / r**2 as a polynomial in r**2, |r| <= 1/4
COT = (
    -3.2898681336964635, -2.1646464674154924, -2.03468612545943, -2.0081545522066597, -2.001998864379627,
    -2.0001376834565723, -2.008043349461564, -1.894657329655113, -2.7516781075186394,
)  # fmt: skip


def digamma(x: Real) -> Real:
    """The derivative of log gamma, computed in double precision; NaN at negative whole numbers."""
    wide = x.to(F64)
    size, negative = abs(wide), wide < 0.0
    r = size - size.intrinsic("rint")
    result = _of_size(size, negative) + select(negative, _cotangent(r), 0.0)
    result = select(size.equals(0.0), copysign(size.constant(math.inf), -wide), result)
    result = select(negative & r.equals(0.0), math.nan, result)
    return select(size < math.inf, result, select(negative, math.nan, wide)).to(x.format)


def _of_size(z: Real, negative: Flag) -> Real:
    """digamma(z), plus 1 / z if negative."""
    large, up = z >= 6.0, z < 1.0
    # 1 / z itself is a term of the sum: subtracted below 1, added for a negative number above.
    lone = up ^ negative
    v, top, bottom = z, select(lone, choose(up, z, -1.0, 1.0), 0.0), select(lone, z, 1.0)
    for _ in range(3):
        down = v >= 3.0
        v = select(down, v - 1.0, v)
        top, bottom = select(down, fma(top, v, bottom), top), select(down, bottom * v, bottom)
    quotient = select(large, 1.0, top) / select(large, z, bottom)
    return select(large, _far(z, quotient, negative), _near(z, v, up, quotient))


def _near(z: Real, v: Real, up: Flag, quotient: Real) -> Real:
    """digamma(v), or digamma(z + 1) if `up`, plus a number, which is -1 / z if `up`."""
    distance = select(up, z - (ROOT[0] - 1.0), v - ROOT[0])
    t = select(up, z - 1.0, v - 2.0)
    product, error = exact_product(distance, NEAR[0])
    others = t * polynomial(t, NEAR[1:])
    rest = fma(distance, others, fma(others + NEAR[0], -ROOT[1], error))
    # What 1 / z lost by rounding; of other sums of reciprocals it is a smaller part.
    lost = exact_fma(quotient, z, z.constant(1.0)) * quotient
    total, error = exact_sum(quotient, product)
    result = total + (error + (rest + select(up, lost, 0.0)))
    return select(z < 2.0**-60, quotient, result)  # which may be infinite


def _far(z: Real, inverse: Real, negative: Flag) -> Real:
    """The asymptotic series, plus 1 / z if negative."""
    square = inverse * inverse
    k, m = split(z, subnormals=False)
    half = choose(negative, z, 0.5, -0.5)
    return natural(k, m - 1.0) + fma(inverse, half, square * polynomial(square, FAR))


def _cotangent(r: Real) -> Real:
    """pi cot(pi r) for |r| <= 1/2; beyond 1/4 from pi tan(pi (1/2 - |r|))."""
    outer = abs(r) > 0.25
    h = copysign(0.5 - abs(r), r)
    s = select(outer, h, r)
    g = fma(s * s, polynomial(s * s, COT), 1.0)
    return select(outer, s * PI_SQUARED, g) / select(outer, g, s)
