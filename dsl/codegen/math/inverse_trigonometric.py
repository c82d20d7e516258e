"""arcsin, arccos, arctan and arctan2.

Each is an odd polynomial in a reduced argument, added to a multiple of pi / 2 that is known to twice the precision.
"""

from __future__ import annotations

from dsl.codegen.math.reals import (
    Flag,
    Real,
    choose,
    copysign,
    fma,
    polynomial,
    quick_sum,
    select,
    sqrt,
)

__all__ = ["arccos", "arcsin", "arctan", "arctan2"]

PI = {"f32": (3.1415927, -8.742278e-08), "f64": (3.141592653589793, 1.2246467991473532e-16)}
HALF_PI = {"f32": (1.5707964, -4.371139e-08), "f64": (1.5707963267948966, 6.123233995736766e-17)}

# (arctan(t) / t - 1) / t**2 as a polynomial in t**2, |t| <= 1
ARCTAN = {
    "f32": (
        -0.333333, 0.1999853, -0.14264014, 0.109508604, -0.083992034, 0.05787877, -0.03109343, 0.010866224,
        -0.0017821377,
    ),
    "f64": (
        -0.3333333333333307, 0.19999999999951754, -0.1428571428258842, 0.11111111007352796,
        -0.09090907007996159, 0.07692279891254034, -0.06666404442732747, 0.05880529925928529,
        -0.052535273220645905, 0.047223502713619754, -0.04219248811979628, 0.03664327185021025,
        -0.029905933526875175, 0.021987317080488695, -0.013902812108007444, 0.0071980561652561234,
        -0.002885699436796748, 0.0008315919945364755, -0.00015221830615243673, 1.3230733243828655e-05,
    ),
}  # fmt: skip
# (arcsin(s) / s - 1) / s**2 as a polynomial in s**2, |s| <= 1/2
ARCSIN = {
    "f32": (0.1666666, 0.07500522, 0.044513393, 0.031838577, 0.014318826, 0.037687674),
    "f64": (
        0.16666666666665408, 0.07500000000337197, 0.044642856828158675, 0.030381959144404152,
        0.022371757864182315, 0.017359707674548377, 0.0138852058038495, 0.012169411820365149,
        0.006527087887123632, 0.01953074850635493, -0.01622822931877555, 0.03191504596700785,
    ),
}  # fmt: skip


def arctan(x: Real) -> Real:
    """The angle in [-pi/2, pi/2] with this tangent; pi/2 - arctan(1/x) beyond 1."""
    size = abs(x)
    steep = size > 1.0
    t = select(steep, -1.0, size) / select(steep, size, 1.0)
    high, low = HALF_PI[x.format.name]
    result = _from_tangent(t, choose(steep, x, high, 0.0), choose(steep, x, low, 0.0))
    return copysign(result, x)


def arctan2(y: Real, x: Real) -> Real:
    """The angle of the point (x, y), from the quotient of the smaller by the larger coordinate."""
    name = x.format.name
    height, width = abs(y), abs(x)
    steep, left = height > width, x.bits().compare("slt", 0)
    t = select(steep, -width, height) / select(steep, height, width)
    t = select(height.equals(width), choose(height.equals(0.0), x, 0.0, 1.0), t)
    t = select(left, -t, t)
    high, low = (
        select(steep, half, choose(left, x, whole, 0.0))
        for half, whole in zip(HALF_PI[name], PI[name])
    )
    return copysign(_from_tangent(t, high, low), y)


def _from_tangent(t: Real, high: Real, low: Real) -> Real:
    """high + low + arctan(t)."""
    square = t * t
    return high + (t + fma(t * square, polynomial(square, ARCTAN[t.format.name]), low))


def arcsin(x: Real) -> Real:
    """The angle in [-pi/2, pi/2] with this sine; pi/2 - 2 arcsin(sqrt((1 - x) / 2)) beyond 1/2."""
    size, outer, s, tail = _sine_parts(x)
    high, low = HALF_PI[x.format.name]
    total, error = quick_sum(size.constant(high), s * -2.0)
    result = select(outer, total + (error + fma(tail, -2.0, low)), s + tail)
    return copysign(result, x)


def arccos(x: Real) -> Real:
    """The angle in [0, pi] with this cosine."""
    name = x.format.name
    _, outer, s, tail = _sine_parts(x)
    negative = x < 0.0
    scale = select(outer, choose(negative, x, -2.0, 2.0), choose(negative, x, 1.0, -1.0))
    high, low = (
        select(outer, choose(negative, x, whole, 0.0), half)
        for half, whole in zip(HALF_PI[name], PI[name])
    )
    total, error = quick_sum(high, s * scale)
    return total + (error + fma(tail, scale, low))


def _sine_parts(x: Real) -> tuple[Real, Flag, Real, Real]:
    """Return |x|, whether it is beyond 1/2, and the arcsine of x or of sqrt((1 - x) / 2), in two parts."""
    size = abs(x)
    outer = size > 0.5
    square = select(outer, fma(size, -0.5, 0.5), size * size)
    s = select(outer, sqrt(square), size)
    return size, outer, s, s * square * polynomial(square, ARCSIN[x.format.name])
