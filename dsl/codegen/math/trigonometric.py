"""sin, cos and tan.

The nearest multiple of pi (of pi / 2 for tan) is subtracted in three parts, each product exact, up to `FAR`. Beyond,
where the multiple itself has too few bits, libm's function is called; that call stands behind a branch that is hardly
ever taken, and carries an attribute that lets LLVM vectorise a loop around it: the lanes are tested one by one.
"""

from __future__ import annotations

from dsl.codegen.math.reals import (
    F64,
    Double,
    Flag,
    Real,
    exact_fma,
    exact_product,
    exact_sum,
    fma,
    polynomial,
    quick_sum,
    select,
)

__all__ = ["cos", "sin", "tan"]

FAR = 2.0**40
PI = (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)

# (sin(r) / r - 1) / r**2 as a polynomial in r**2, |r| <= pi / 2; the longer one goes on from -1/6
SIN = {
    "f32": (
        -0.16666666626104346, 0.008333331106668214, -0.00019840867952357715, 2.752537094672436e-06,
        -2.3888667151503237e-08,
    ),
    "f64": (
        0.008333333333333283, -0.000198412698412353, 2.75573192149376e-06, -2.5052107177280633e-08,
        1.6058953371717683e-10, -7.643313818630986e-13, 2.7242866039319338e-15,
    ),
}  # fmt: skip
SIXTH = (-0.16666666666666666, -9.25185853854297e-18)
# (tan(r) / r - 1) / r**2 as a polynomial in r**2, |r| <= pi / 4
TAN = {
    "f32": (0.3333335, 0.13332675, 0.054058913, 0.021286206, 0.010827454, 9.82276e-05, 0.0043727076),
    "f64": (
        0.33333333333332776, 0.13333333333414837, 0.05396825392656078, 0.02186948961164604,
        0.008863219126181827, 0.003592289428370243, 0.0014547558100909195, 0.0005950739433588748,
        0.00022235240474832843, 0.0001365823548920627, -2.6466529364364355e-05, 8.952632275630043e-05,
        -4.4916524312526116e-05, 2.0872869488701097e-05,
    ),
}  # fmt: skip


def sin(x: Real) -> Real:
    """The sine of an angle in radians."""
    size = abs(x).to(F64)
    whole = fma(size, 1 / PI[0], F64.shifter)
    result = _sine(size, whole - F64.shifter, PI, x)
    return beyond(signed(result, whole, x), size > FAR, "sin", x)


def cos(x: Real) -> Real:
    """The cosine of an angle in radians: an odd multiple of pi / 2 is subtracted."""
    size = abs(x).to(F64)
    whole = fma(size, 1 / PI[0], -0.5) + F64.shifter
    result = -_sine(size, fma(whole - F64.shifter, 2.0, 1.0), HALF_PI, x)
    return beyond(signed(result, whole), size > FAR, "cos", x)


def tan(x: Real) -> Real:
    """The tangent of an angle in radians; around odd multiples of pi / 2 it is -1 / tan(r)."""
    size = abs(x).to(F64)
    whole = fma(size, 1 / HALF_PI[0], F64.shifter)
    r, low = reduced(size, whole - F64.shifter, HALF_PI, x)
    square = r * r
    tail = fma(r * square, polynomial(square, TAN[x.format.name]), fma(square, low, low))
    high, rest = quick_sum(r, tail)
    inverse = -1.0 / high
    inverse = fma(
        inverse, fma(inverse, rest, exact_fma(inverse, high, high.constant(1.0))), inverse
    )
    odd = (whole.bits() & 1).compare("ne", 0)
    result = select(odd, inverse, high)
    near = (result.bits() ^ (x.bits() & x.format.sign)).real()
    return beyond(near, size > FAR, "tan", x)


def reduced(size: Real, n: Real, period: tuple[float, ...], like: Real) -> Double:
    """size - n * period in double precision, and what rounding to the format of `like` lost."""
    first = exact_fma(n, -period[0], size)
    if like.format is not F64:
        r = fma(n, -period[1], first)
        narrow = r.to(like.format)
        return narrow, (r - narrow.to(F64)).to(like.format)
    product, error = exact_product(n, -period[1])
    r, low = exact_sum(first, product)
    return quick_sum(r, fma(n, -period[2], low + error))


def _sine(size: Real, n: Real, period: tuple[float, ...], x: Real) -> Real:
    """The sine of size - n * period, at most pi / 2; all in double precision, that of a single to 30 bits."""
    if x.format is not F64:
        r = fma(n, -period[1], exact_fma(n, -period[0], size))
        square = r * r
        return fma(r * square, polynomial(square, SIN["f32"]), r)
    r, low = reduced(size, n, period, x)
    square, square_low = exact_product(r, r)
    cube, cube_low = exact_product(r, square)
    cube_low = fma(r, square_low, cube_low)
    rest = fma(cube, fma(square, polynomial(square, SIN["f64"]), SIXTH[1]), cube_low * SIXTH[0])
    rest = fma(low, fma(square, -0.5, 1.0), rest)
    total = fma(cube, SIXTH[0], r)
    return total + (exact_fma(cube, SIXTH[0], r - total) + rest)


def signed(result: Real, whole: Real, x: Real | None = None) -> Real:
    """Negate the result if the number in the low bits of `whole` is odd; negate it if x is negative."""
    flipped = (result.bits() ^ (whole.bits() << 63)).real()
    if x is None:
        return flipped
    flipped = flipped.to(x.format)
    return (flipped.bits() ^ (x.bits() & x.format.sign)).real()


def beyond(near: Real, far: Flag, name: str, x: Real) -> Real:
    """The result of libm's function where x is far from zero."""
    body = x.body
    result = near.to(x.format).value
    return Real(body, body.rarely(far, result, body.libm(name, x.format), x.value))
