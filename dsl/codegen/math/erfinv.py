"""erfinv.

With w = -log(1 - x**2), erfinv(x) / x is a polynomial in w near 0, and in sqrt(w) farther out (after M. Giles,
Approximating the erfinv function, 2011).
"""

from __future__ import annotations

import math

from dsl.codegen.math.logarithm import natural_parts, split
from dsl.codegen.math.reals import (
    F64,
    Double,
    Flag,
    Real,
    copysign,
    exact_fma,
    exact_product,
    exact_sum,
    fma,
    polynomial,
    quick_sum,
    select,
    sqrt,
)

__all__ = ["erfinv"]

# erfinv(x) / x as polynomials in w - 2.5 up to 5, and in sqrt(w) - 3 beyond; the constant term in two parts
CENTRAL_SINGLE = (
    1.5014094, -5.192794e-08, 0.24664028, -0.004177384, -0.0012527348, 0.00021834251, -4.96589e-06,
    -3.4623095e-06, 4.665196e-07, 2.3208653e-08, -8.806142e-09,
)  # fmt: skip
TAIL_SINGLE = (
    2.8329768, -2.276029e-08, 1.0016751, 0.009445706, -0.0076397257, 0.0056829983, -0.003586324,
    0.00149631, -7.7134115e-05, -0.0003191338, 0.00012917891,
)  # fmt: skip
# and in w - 3.125 up to 6.25, in sqrt(w) - 3.25 up to 16, and in sqrt(w) - 5 beyond
CENTRAL = (
    1.6536545626831027, 7.483286653711129e-18, 0.24015818242558826, -0.006033670871427765,
    -0.0007407025341538878, 0.00018673420802427034, -1.3882523395898347e-05, -1.3654691844534776e-06,
    4.2347881914293436e-07, -2.90703827509545e-08, -4.112661988910017e-09, 1.0512183810451756e-09,
    -5.414239628191701e-11, -1.297695118574314e-11, 2.6303586910840413e-12, -8.117181548534718e-14,
    -3.9990869464664377e-14, 6.594957176316277e-15, -4.270314440897362e-17, -1.30062024598154e-16,
    1.574562945589308e-17, 1.1455410101825463e-18, -3.5687571712205987e-19, -1.0326431225331865e-21,
    3.3621485568919945e-21,
)  # fmt: skip
MIDDLE = (
    3.0838856104922208, -1.4443720074529682e-16, 1.005258967694166, 0.005370914553575002,
    -0.0037512085082780523, 0.0024914420968086427, -0.0016882755338264233, 0.0009532893672041035,
    -0.0003550378362410738, 2.4031222567241873e-05, 6.828728601454299e-05, -4.7318792831969066e-05,
    1.2464283419811427e-05, 2.925109451351693e-06, -3.983715521564536e-06, 1.49987605257855e-06,
    -3.0780760787189076e-08, -2.725155337697586e-07, 1.3433806979625574e-07, 1.18535305625594e-09,
    -1.6313417922809192e-08,
)  # fmt: skip
TAIL = (
    4.849906401408584, -1.0481492702187618e-16, 1.0103004648645457, -0.0001387193183760023,
    -0.00021503011984658354, 7.599527798169245e-05, -1.968177043649825e-05, 4.526053734440527e-06,
    -9.93031038065316e-07, 2.290465504537799e-07, -6.755071080700954e-08, 2.903671764263649e-08,
    -1.526538485491753e-08, 7.791076219891619e-09, -3.4602900617729724e-09, 1.345551444449667e-09,
    -4.43820338582689e-10, 5.411435343534982e-11, 4.432725274214737e-11, -1.7035182504927526e-11,
)  # fmt: skip
# 1 / 2r to 3 % for 2.2 <= r <= 6.2
HALF_INVERSE = (0.40593463, -0.10245965, 0.008131718)


def erfinv(x: Real) -> Real:
    """The inverse of erf; infinite at 1 and -1, NaN beyond, +0 at -0."""
    k, m = split(exact_fma(x, -x, x.constant(1.0)), subnormals=False)
    w, low = quick_sum(*natural_parts(k, m - 1.0))
    base, rest = (_double if x.format is F64 else _single)(-w, -low)
    product, error = exact_product(x, base)
    size = abs(x)
    result = select(size < 1.0, product + fma(x, rest, error), math.nan)
    return select(size.equals(1.0), copysign(x.constant(math.inf), x), result)


def _single(w: Real, low: Real) -> Double:
    root, rest = _root(w, low)
    far = _terms(root - 3.0, rest, TAIL_SINGLE)
    return _choice(w < 5.0, _terms(*exact_sum(w.constant(-2.5), w), CENTRAL_SINGLE), far)


def _double(w: Real, low: Real) -> Double:
    root, rest = _root(w, low)
    middle, tail = _terms(root - 3.25, rest, MIDDLE), _terms(root - 5.0, rest, TAIL)
    near = _terms(*exact_sum(w.constant(-3.125), w), CENTRAL)
    return _choice(w < 6.25, near, _choice(w < 16.0, middle, tail))


def _root(w: Real, low: Real) -> Double:
    """sqrt(w + low) and what its rounding lost."""
    root = sqrt(w)
    return root, (exact_fma(root, -root, w) + low) * polynomial(root, HALF_INVERSE)


def _terms(t: Real, low: Real, coefficients: tuple[float, ...]) -> Double:
    """The constant term of a polynomial of t + low, and the rest."""
    constant, lost, slope, *others = coefficients
    return t.constant(constant), polynomial(t, (fma(low, slope, lost), slope, *others))


def _choice(flag: Flag, a: Double, b: Double) -> Double:
    return select(flag, a[0], b[0]), select(flag, a[1], b[1])
