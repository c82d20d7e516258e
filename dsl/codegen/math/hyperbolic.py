"""sinh, cosh, tanh and their inverses.

With |x| = n ln 2 + r the first two combine polynomials for sinh(r) and cosh(r) with sums and differences of powers of
two, which needs no division and cancels nowhere. The inverses are logarithms of 1 + t, t known to twice the precision.
"""

from __future__ import annotations

import math
import struct

from dsl.codegen.math.exponential import LOG2_E, fractions, reduced_twice
from dsl.codegen.math.logarithm import log_of_sum
from dsl.codegen.math.reals import (
    F32,
    F64,
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
from dsl.codegen.math.register_tables import SIZE

__all__ = ["arccosh", "arcsinh", "arctanh", "cosh", "sinh", "tanh", "tanh_beside_one"]

HALF_LN2 = {
    "f32": (0.3465736, -9.523271e-10),
    "f64": (0.34657359027997264, 1.1595234069231498e-17),
}
# (tanh(r) / r - 1) / r**2 as a polynomial in r**2, |r| <= 3/8 ln 2
TANH = {
    "f32": (-0.33333215, 0.13322687, -0.051224872),
    "f64": (
        -0.3333333333333242, 0.13333333332988337, -0.053968253526531805, 0.021869461686333583,
        -0.008862360733287106, 0.0035763957200149778, -0.0013076063277010742,
    ),
}  # fmt: skip
# (r / tanh(r) - 1) / r**2 as a polynomial in r**2, |r| <= 3/16
TANH_NEAR = (0.3333322, -0.0221188)
# (sinh(r) / r - 1) / r**2 and (cosh(r) - 1) / r**2 as polynomials in r**2, |r| <= ln 2 / 2
SINH = {
    "f32": (0.16666667, 0.008333175, 0.0001997408),
    "f64": (
        0.16666666666666677, 0.008333333333321376, 0.000198412698868661, 2.7557243378992926e-06,
        2.510935361616366e-08,
    ),
}  # fmt: skip
COSH = {
    "f32": (0.5, 0.04166646, 0.0013935439),
    "f64": (
        0.5000000000000013, 0.04166666666651047, 0.001388888894835458, 2.4801488508901752e-05,
        2.763180863929967e-07,
    ),
}  # fmt: skip
LARGEST = {"f32": 89.5, "f64": 710.6}  # sinh and cosh are infinite from here on


def tanh(x: Real) -> Real:
    """Of the sum |x| = n ln 2 / 2 + r: over / (over + 1 - tanh(r)), over = (2**n - 1 + (2**n + 1) tanh(r)) / 2.

    For n = 0 that is tanh(r), without further rounding; for large n the error of `over` cancels. A multiple of 1/2 is
    rounded down to n, so r is above -1/8 ln 2 and hardly anything cancels in `over`.
    """
    format = x.format
    if x.body.has_scaling and format is F32:
        return _tanh_by_table(x)
    size = abs(x).at_most({"f32": 10.0, "f64": 20.0}[format.name])
    offset = format.shifter / 2 + format.bias - 1
    halves = fma(size, 2 * LOG2_E, offset).bits() & -2
    n, half = halves.real() - offset, (halves << (format.digits - 1)).real()
    high, low = HALF_LN2[format.name]
    r = exact_fma(n, -high, size)
    if format is F64:  # in single precision that is less than a tenth of the last place
        r = fma(n, -low, r)
    square = r * r
    part = fma(r * square, polynomial(square, TANH[format.name]), r)
    over = fma(half + 0.5, part, half - 0.5)
    return copysign(over / (over + (1.0 - part)), x)


def _tanh_by_table(x: Real) -> Real:
    """Of the sum |x| = c + r: t + (1 - t**2) r / (r / tanh(r) + t r), t = tanh(c), for a c of a table with a step of 1/4.

    c is behind the middle of its step, so r is above -1/16 and little cancels; beyond the table t is next to 1, and r hardly counts.
    """
    size = abs(x).at_most(10.0)
    offset = x.format.shifter / 4
    whole = size + offset
    k = whole.bits().at_most(_bits_of_float(offset) + SIZE - 1)
    t, r = k.look_up("tanh_of"), size - k.look_up("tanh_at")
    below = fma(t, r, polynomial(r * r, (1.0, *TANH_NEAR)))
    return copysign(t + k.look_up("tanh_slope") * r / below, x)


def tanh_beside_one(x: Real) -> Real:
    """tanh(x) for sums with constants of at least 1, where its error counts in units of their last place: 1.6 of them at most.

    With x = n ln 2 / 2 + r, r so small that it is tanh(r) but for 5e-8: (less + more r) / (more + less r), less = 2**n - 1,
    more = 2**n + 1.
    """
    if not (x.body.has_scaling and x.format is F32):
        return tanh(x)
    x = x.at_most(10.0).at_least(-10.0)
    n, root = fractions(x, 2.0 * LOG2_E)
    power, r = root.times_power(n), fma(n, -HALF_LN2["f32"][0], x)
    less, more = power - 1.0, power + 1.0
    return fma(more, r, less) / fma(less, r, more)


def _bits_of_float(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little")


def sinh(x: Real) -> Real:
    """(e**x - e**-x) / 2."""
    r, low, large, small = _powers(x)
    odd, even = _curves(r, low)
    total, (difference, lost) = large + small, quick_sum(large, -small)
    result = _combined(difference, lost, total, r, odd, even)
    tiny = abs(x) < 2.0 ** -(x.format.digits // 2 + 1)
    return select(tiny, x, copysign(result, x))


def cosh(x: Real) -> Real:
    """(e**x + e**-x) / 2."""
    r, low, large, small = _powers(x)
    odd, even = _curves(r, low)
    total, lost = quick_sum(large, small)
    return _combined(total, lost, large - small, r, odd, even)


def _powers(x: Real) -> tuple[Real, Real, Real, Real]:
    """Return r, its correction, 2**n / 4 and 2**-n / 4, where |x| = n ln 2 + r."""
    format = x.format
    size = abs(x).at_most(LARGEST[format.name])
    offset = format.shifter + format.bias - 2
    whole = fma(size, LOG2_E, offset)
    n, up = whole - offset, whole.bits() << format.digits
    down = ((2 * (format.bias - 2)) << format.digits) - up
    large, small = up.real(), select(n > 2.0 * format.digits, 0.0, down.real())
    return *reduced_twice(size, n), large, small


def _curves(r: Real, low: Real) -> tuple[Real, Real]:
    """Return sinh(r) - r and cosh(r) - 1."""
    square, name = r * r, r.format.name
    return fma(r * square, polynomial(square, SINH[name]), low), square * polynomial(
        square, COSH[name]
    )


def _combined(a: Real, a_low: Real, b: Real, r: Real, odd: Real, even: Real) -> Real:
    """2 ((a + a_low) (1 + even) + b (r + odd)), a at least as large as b r."""
    product, error = exact_product(b, r)
    total, rest = quick_sum(a, product)
    return (total + fma(b, odd, fma(a, even, rest + (error + a_low)))) * 2.0


def arcsinh(x: Real) -> Real:
    """log(|x| + sqrt(x**2 + 1)), with the sign of x; log(2 |x|) where the 1 does not count."""
    format = x.format
    size = abs(x)
    large = size > 2.0 ** (format.digits // 2 + 2)
    inner = select(large, 1.0, size)
    t, low = exact_sum(inner, inner * inner / (sqrt(fma(inner, inner, 1.0)) + 1.0))
    u, error = exact_sum(t, t.constant(1.0))
    result = log_of_sum(select(large, size, u), select(large, 0.0, error + low), large)
    return select(size < 2.0 ** -(format.digits // 2 + 1), x, copysign(result, x))


def arccosh(x: Real) -> Real:
    """log(x + sqrt(x**2 - 1)), from x - 1 so that nothing cancels near 1."""
    format = x.format
    large = x > 2.0 ** (format.digits // 2 + 2)
    d = select(large, 1.0, x - 1.0)
    square = fma(d, d, d + d)
    root = sqrt(square)
    lost = exact_fma(root, -root, square) / (root + root).at_least(format.smallest)
    t, low = exact_sum(root, d)
    u, error = exact_sum(t, t.constant(1.0))
    result = log_of_sum(select(large, x, u), select(large, 0.0, error + (low + lost)), large)
    return select(x < 1.0, math.nan, result)


def arctanh(x: Real) -> Real:
    """log(1 + 2x / (1 - x)) / 2."""
    size = abs(x)
    d, d_low = quick_sum(size.constant(1.0), -size)
    inverse = 1.0 / d
    t = (size + size) * inverse
    low = fma(t, -d_low, exact_fma(t, -d, size + size)) * inverse
    u, error = exact_sum(t, t.constant(1.0))
    result = log_of_sum(u, error + select(d > 0.0, low, 0.0)) * 0.5
    return select(size < 2.0 ** -(x.format.digits // 2 + 1), x, copysign(result, x))
