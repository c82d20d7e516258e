"""exp, exp2 and expm1.

x = n ln 2 + r with |r| <= ln 2 / 2; e**r is a polynomial; 2**n is put together from bits. Adding `shifter` rounds to
the whole number n and leaves n in the low bits of the sum.

With AVX-512 an instruction multiplies by 2**n, and for floats another takes 2**(k / 32) from two registers: n is then a number of
parts of 32, and the polynomial has two terms. The former makes zero or infinity of arguments that are large, whatever the
(positive) number that it multiplies; that this is one, and no NaN, is seen to by keeping r below two.
"""

from __future__ import annotations

from dsl.codegen.math.reals import (
    F32,
    Double,
    Real,
    exact_fma,
    exact_sum,
    fma,
    polynomial,
    quick_sum,
    select,
)
from dsl.codegen.math.register_tables import SIZE

__all__ = [
    "exp",
    "exp2",
    "exp2_of",
    "exp2_parts",
    "exp_of",
    "exp_parts",
    "expm1",
    "fractions",
    "reduced_twice",
]

LOG2_E = 1.4426950408889634
LN2 = {
    "f32": (0.6931472, -1.9046542e-09),
    "f64": (0.6931471805599453, 2.3190468138462996e-17),
}
# The arguments from which on results are infinite, and below which they are zero.
EXP_LIMITS = {"f32": (89.0, -104.0), "f64": (710.0, -746.0)}
EXP2_LIMITS = {"f32": (129.0, -151.0), "f64": (1025.0, -1076.0)}

# (e**r - 1 - r) / r**2
EXP = {
    "f32": (0.5, 0.16666515, 0.041666374, 0.008369394, 0.0013943245),
    "f64": (
        0.5000000000000013, 0.16666666666666669, 0.041666666666510456, 0.008333333333329257,
        0.0013888888948360896, 0.00019841269864251965, 2.480148850046378e-05, 2.755726850532644e-06,
        2.7631812064915005e-07, 2.5099858292986156e-08,
    ),
}  # fmt: skip
# (e**r - 1) / r for |r| <= ln 2 / 64
EXP_NEAR = (1.0000147, 0.5000034)
# The same, with a relative error for e**r - 1.
EXPM1 = {
    "f32": (0.49999997, 0.16666546, 0.041667435, 0.008366273, 0.0013870697),
    "f64": (
        0.5000000000000006, 0.1666666666666664, 0.041666666666575716, 0.008333333333364645,
        0.0013888888931630633, 0.00019841269761973842, 2.4801505287138538e-05, 2.7557375794949398e-06,
        2.7626025214193713e-07, 2.5062331993440385e-08,
    ),
}  # fmt: skip
# (2**r - 1) / r
EXP2 = {
    "f32": (0.6931472, 0.2402265, 0.055503618, 0.0096180625, 0.0013390431, 0.00015462877),
    "f64": (
        0.6931471805599453, 0.24022650695910133, 0.05550410866482169, 0.00961812910759315,
        0.0013333558146386626, 0.00015403530458459942, 1.5252733862728567e-05, 1.3215434571293254e-06,
        1.0178047883704132e-07, 7.073910083515358e-09, 4.457228188703833e-10,
    ),
}  # fmt: skip
# The same for |r| <= 1 / 64
EXP2_NEAR = (0.6931472, 0.24022841, 0.05549663)


def exp(x: Real) -> Real:
    """e**x."""
    if x.body.has_scaling:
        return exp_of(x)
    high, low = EXP_LIMITS[x.format.name]
    return exp_of(x.at_most(high).at_least(low))


def exp_of(x: Real) -> Real:
    """e**x for an x within `EXP_LIMITS`, or NaN."""
    if x.body.has_scaling and x.format is F32:
        n, root = fractions(x, LOG2_E)
        r = reduced(x, n).below_two()
        return fma(r * polynomial(r, EXP_NEAR), root, root).times_power(n)
    if x.body.has_scaling:
        n = (x * LOG2_E).intrinsic("rint")
        r = reduced(x, n).below_two()
        return polynomial(r, (1.0, 1.0, *EXP[x.format.name])).times_power(n)
    n, scales = _whole_part(x, LOG2_E)
    r = reduced(x, n)
    return polynomial(r, (1.0, 1.0, *EXP[x.format.name])) * scales[0] * scales[1]


def exp_parts(x: Real, low: Real) -> tuple[Real, Real, Double]:
    """e**(x + low) as a sum of two numbers times the product of two powers of two."""
    n, scales = _whole_part(x, LOG2_E)
    first, second = LN2[x.format.name]
    r, rest = exact_sum(exact_fma(n, -first, x), fma(n, -second, low))
    tail = fma(r * r, polynomial(r, EXP[x.format.name]), rest)
    total, error = quick_sum(x.constant(1.0), r)
    total, rest = quick_sum(total, tail)
    return total, error + rest, scales


def reduced(x: Real, n: Real) -> Real:
    """x - n ln 2, the first product exact."""
    high, low = LN2[x.format.name]
    return fma(n, -low, exact_fma(n, -high, x))


def reduced_twice(x: Real, n: Real) -> Double:
    """x - n ln 2 and what its rounding lost."""
    high, low = LN2[x.format.name]
    first = exact_fma(n, -high, x)
    r = fma(n, -low, first)
    return r, fma(n, -low, first - r)


def fractions(x: Real, factor: float) -> Double:
    """Round factor * x to a multiple n of 1/32; return n and 2**(n - floor(n))."""
    offset = x.format.shifter / SIZE
    whole = fma(x, factor, offset)
    return whole - offset, whole.bits().look_up("root")


def _whole_part(x: Real, factor: float) -> tuple[Real, Double]:
    """Round factor * x to n; return n and two powers of two of about the same size with the product 2**n.

    Two, because 2**n itself may overflow or be subnormal when the result of the multiplications does not or is.
    """
    format = x.format
    offset = format.shifter + 2 * format.bias
    whole = fma(x, factor, offset)
    half = whole.bits() >> 1
    first, second = half << format.digits, (whole.bits() - half) << format.digits
    return whole - offset, (first.real(), second.real())


def exp2(x: Real) -> Real:
    """2**x."""
    if x.body.has_scaling:
        return exp2_of(x)
    high, low = EXP2_LIMITS[x.format.name]
    return exp2_of(x.at_most(high).at_least(low))


def exp2_of(x: Real, low: Real | None = None) -> Real:
    """2**(x + low) for an x not far outside `EXP2_LIMITS`, or NaN, and a tiny correction."""
    if x.body.has_scaling and x.format is F32:
        n, root = fractions(x, 1.0)
        r = (x - n if low is None else (x - n) + low).below_two()
        return fma(r * polynomial(r, EXP2_NEAR), root, root).times_power(n)
    n, scales = (x.intrinsic("rint"), None) if x.body.has_scaling else _whole_part(x, 1.0)
    r = x - n if low is None else (x - n) + low
    if x.body.has_scaling:
        r = r.below_two()
    power = fma(r, polynomial(r, EXP2[x.format.name]), 1.0)
    return power.times_power(n) if scales is None else power * scales[0] * scales[1]


def exp2_parts(x: Real, low: Real) -> tuple[Real, Real, Double]:
    """2**(x + low), in double precision, low being tiny: a sum of two numbers times the product of two powers of two.

    That product may be far below the smallest number, if only a further factor makes up for it.
    """
    x = x.at_most(1400.0).at_least(-1400.0)
    n, scales = _whole_part(x, 1.0)
    r = (x - n) + low
    total, rest = quick_sum(r.constant(1.0), r * polynomial(r, EXP2[x.format.name]))
    return total, rest, scales


def expm1(x: Real) -> Real:
    """e**x - 1, accurate near 0: 2**n (e**r - 1) + (2**n - 1)."""
    format = x.format
    limit = {"f32": (89.0, -20.0), "f64": (710.0, -40.0)}[format.name]
    clamped = x.at_most(limit[0]).at_least(limit[1])
    n, (first, second) = _whole_part(clamped, LOG2_E)
    r, low = reduced_twice(clamped, n)
    tail = fma(r * r, polynomial(r, EXPM1[format.name]), low)
    half = first * 0.5 * second  # of 2**n, which itself may overflow
    total, error = quick_sum(half - 0.5, half * r)
    result = (total + fma(half, tail, error)) * 2.0
    return select(abs(x) < 2.0 ** -(format.digits + 2), x, result)
