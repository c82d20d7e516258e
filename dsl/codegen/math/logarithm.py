"""log, log2, log10 and log1p.

x = 2**k m with sqrt(1/2) <= m < sqrt(2), f = m - 1. k log 2 and f, the large parts of the sum, are added with their
rounding error; log(1 + f) - f is a polynomial in f, or where that needs twenty terms, in s = f / (2 + f), the division
being faster (1.5 ns an element against 2.1).
"""

from __future__ import annotations

import math

from dsl.codegen.math.reals import (
    F32,
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
    select,
)

__all__ = ["log", "log1p", "log1p_of_unit", "log2", "log10", "log_of_sum", "split"]

# (log(1 + f) - f) / f**2 for |log2(1 + f)| <= 1/2, in single precision
QUADRATIC = (
    -0.49999988, 0.33333325, -0.25001612, 0.20002016, -0.16608322, 0.14180435, -0.13248445, 0.12916416,
    -0.07622762,
)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2s) / s**3 as a polynomial in s**2, for s = f / (2 + f), in double precision
CUBIC = (
    0.6666666666666734, 0.39999999999416647, 0.28571428742028654, 0.22222198604709215, 0.18183562885300747,
    0.1531408358751257, 0.14795649371523562,
)  # fmt: skip

# log 2 in each base, the first part short enough that its product with any exponent is exact.
LN2 = {
    "f32": (0.693145751953125, 1.4286068e-06),
    "f64": (0.6931471805598903, 5.497923018708371e-14),
}
LOG10_2 = {
    "f32": (0.3010292053222656, 7.903415e-07),
    "f64": (0.30102999566395283, 2.8363394551044964e-14),
}
LOG2_E = {"f32": (1.442695, 1.9259630e-08), "f64": (1.4426950408889634, 2.0355273740931033e-17)}
LOG10_E = {"f32": (0.4342945, -1.0103050e-08), "f64": (0.4342944819032518, 1.098319650216765e-17)}
# log2(m) = s (SERIES_1 + SERIES_3 w + w**2 TAIL(w)) with s = (m - 1) / (m + 1), w = s**2
SERIES_1 = {"f32": (2.88539, 3.851926e-08), "f64": (2.8853900817779268, 4.0710547481862066e-17)}
SERIES_3 = {"f32": (0.9617967, -7.028462e-09), "f64": (0.9617966939259756, 5.0577616648125907e-17)}
TAIL = {
    "f32": (0.5770802, 0.41184992, 0.33782083),
    "f64": (
        0.5770780163555851, 0.4121985831113457, 0.3205988979127791, 0.26230819865934196,
        0.2219522702027275, 0.1924013305073005, 0.16845130208942807, 0.1728194222749503,
    ),
}  # fmt: skip
# log2(1 + f) / f to 38 bits
ROUGH_LOG2 = (
    1.4426950408865746, -0.7213475203275677, 0.4808983488031676, -0.3606737931376086, 0.288538795708418,
    -0.24044643352352207, 0.2061071235583818, -0.1804367517755272, 0.1602166594764317, -0.14249862775806144,
    0.1302756992264437, -0.1346293901352394, 0.13251163090021892, -0.0697385523916584,
)  # fmt: skip


def split(x: Real, *, subnormals: bool = True) -> tuple[Real, Real]:
    """Return the exponent k and the significand m of a positive finite number."""
    format = x.format
    lift = format.digits + 1
    tiny = x < format.smallest
    normal = select(tiny, x * 2.0**lift, x) if subnormals else x
    root = _bits_of_root_half(format.name)
    raised = normal.bits() + (format.one - root)
    power = ((raised >> format.digits) | shifter_bits(x)).real()
    offset = format.shifter + format.bias
    k = power - (choose(tiny, x, offset + lift, offset) if subnormals else offset)
    return k, ((raised & ((1 << format.digits) - 1)) + root).real()


def shifter_bits(x: Real) -> int:
    return (x.format.bias + x.format.digits << x.format.digits) | (1 << (x.format.digits - 1))


def _bits_of_root_half(name: str) -> int:
    return {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}[name]


def patched(x: Real, result: Real) -> Real:
    """The result where x is positive and finite; else the logarithm of infinity, zero, a negative number or NaN.

    One comparison at a time: LLVM makes integer arithmetic of two joined ones.
    """
    result = select(x < math.inf, result, x)
    result = select(x <= 0.0, -math.inf, result)
    return select(x < 0.0, math.nan, result)


def log(x: Real) -> Real:
    """The natural logarithm."""
    k, m = split(x)
    f = m - 1.0
    return patched(x, natural(k, f))


def natural(k: Real, f: Real, low: Real | None = None) -> Real:
    """k log 2 + log(1 + f + low)."""
    total, rest = natural_parts(k, f, low)
    return total + rest


def natural_parts(k: Real, f: Real, low: Real | None = None) -> Double:
    """The same, as a number and a correction."""
    high, rest = LN2[f.format.name]
    tail = beyond_linear(f)
    if low is not None:
        tail = tail + low
    total, error = quick_sum(k * high, f)
    return total, error + fma(k, rest, tail)


def beyond_linear(f: Real) -> Real:
    """log(1 + f) - f."""
    if f.format is F32:
        return f * f * polynomial(f, QUADRATIC)
    s = f / (f + 2.0)
    square, half = s * s, f * f * 0.5
    return fma(s, fma(square, polynomial(square, CUBIC), half), -half)


def log2(x: Real) -> Real:
    """The logarithm to base 2."""
    k, m = split(x)
    product, rest = _times(m - 1.0, LOG2_E[x.format.name])
    total, error = quick_sum(k, product)
    return patched(x, total + (error + rest))


def log10(x: Real) -> Real:
    """The logarithm to base 10."""
    k, m = split(x)
    product, rest = _times(m - 1.0, LOG10_E[x.format.name])
    high, low = LOG10_2[x.format.name]
    total, error = quick_sum(k * high, product)
    return patched(x, total + (error + fma(k, low, rest)))


def _times(f: Real, factor: tuple[float, float]) -> Double:
    """log(1 + f) times a number given in two parts."""
    product, error = exact_product(f, factor[0])
    return product, fma(beyond_linear(f), factor[0], fma(f, factor[1], error))


def log1p(x: Real) -> Real:
    """log(1 + x), accurate near 0: what 1 + x loses by rounding is added to f."""
    u, lost = exact_sum(x, x.constant(1.0))
    result = copysign(log_of_sum(u, lost), x)
    return select(abs(x) < 2.0 ** -(x.format.digits + 2), x, result)


def log1p_of_unit(x: Real) -> Double:
    """log(1 + x) for 0 <= x <= 1, as a number and a correction; x if it is NaN."""
    u, lost = quick_sum(x.constant(1.0), x)
    k, m = split(u, subnormals=False)
    scale = ((m.bits() - u.bits()) + x.format.one).real()
    f, low = quick_sum(m - 1.0, lost * scale)
    total, rest = natural_parts(k, f, low)
    return select(x >= 0.0, total, x), rest


def log_of_sum(u: Real, low: Real, double: Flag | None = None) -> Real:
    """log(u + low), low being below the last bit of u; where the flag is true, log(2u) instead."""
    format = u.format
    k, m = split(u, subnormals=False)
    scale = ((m.bits() - u.bits()) + format.one).real()
    lost = select(u < 2.0 ** (format.digits + 2), low * scale, 0.0)
    f, rest = quick_sum(m - 1.0, lost)
    if double is not None:
        k = k + choose(double, u, 1.0, 0.0)
    return patched(u, natural(k, f, rest))


def rough_log2(k: Real, m: Real) -> Real:
    """k + log2(m) in double precision, to about 38 bits."""
    f = m - 1.0
    return fma(f, polynomial(f, ROUGH_LOG2), k)


def log2_parts(x: Real) -> Double:
    """log2(x) of a positive finite number to about 68 bits, or 34 in single precision."""
    name = x.format.name
    series_1, series_3 = SERIES_1[name], SERIES_3[name]
    k, m = split(x)
    f, d = m - 1.0, m + 1.0
    d_low = m - (d - 1.0)
    inverse = 1.0 / d
    s = f * inverse
    s_low = fma(s, -d_low, exact_fma(s, -d, f)) * inverse
    w, w_low = exact_product(s, s)
    w_low = fma(s + s, s_low, w_low)
    b, b_low = quick_sum(w.constant(series_3[0]), w * polynomial(w, TAIL[name]))
    b_low = b_low + series_3[1]
    t, t_low = exact_product(w, b)
    t_low = fma(w, b_low, fma(w_low, b, t_low))
    a, a_low = quick_sum(w.constant(series_1[0]), t)
    a_low = a_low + (t_low + series_1[1])
    high, low = exact_product(s, a)
    low = fma(s, a_low, fma(s_low, a, low))
    total, error = quick_sum(k, high)
    return total, error + low
