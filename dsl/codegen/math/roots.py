"""cbrt and hypot."""

from __future__ import annotations

import math

from dsl.codegen.math.reals import (
    Real,
    choose,
    copysign,
    exact_fma,
    exact_product,
    fma,
    polynomial,
    select,
    sqrt,
)

__all__ = ["cbrt", "hypot"]

# m**(-1/3) for 1 <= m < 2
INVERSE_CUBE_ROOT = {
    "f32": (1.6700076, -1.1728827, 0.69548535, -0.22123918, 0.028591262),
    "f64": (1.5418914247254174, -0.8099693574737943, 0.3177630758853941, -0.04993816374013567),
}
THIRDS = (1.0, 0.7937005259840998, 0.6299605249474366)  # 2**(-j/3)


def cbrt(x: Real) -> Real:
    """The real cube root."""
    format = x.format
    size = abs(x)
    tiny = size < format.smallest
    lift = {"f32": 24, "f64": 54}[format.name]
    bits = select(tiny, size * 2.0**lift, size).bits()
    pad = -format.bias % 3  # makes the bias a multiple of 3
    exponent = (bits >> format.digits) + pad
    third = (exponent * 21846) >> 16
    rest = exponent - third * 3
    m = ((bits & ((1 << format.digits) - 1)) | format.one).real()
    a = (m.bits() + (rest << format.digits)).real()
    some = choose(rest.compare("eq", 1), m, THIRDS[1], THIRDS[2])
    factor = select(rest.compare("eq", 0), THIRDS[0], some)
    z = polynomial(m, INVERSE_CUBE_ROOT[format.name]) * factor
    for _ in range({"f32": 0, "f64": 1}[format.name]):
        e = fma(z * z * z, -a, 1.0)
        z = fma(z * e, fma(e, 2 / 9, 1 / 3), z)
    inverse = z * z
    y = a * inverse
    square, error = exact_product(y, y)
    residual = fma(error, -y, exact_fma(square, -y, a))
    y = fma(residual, inverse * (1 / 3), y)
    shift = (third + (format.bias - (format.bias + pad) // 3)) << format.digits
    root = y * shift.real()
    root = select(tiny, root * 2.0 ** (-lift // 3), root)
    root = select(size < math.inf, copysign(root, x), x)
    return select(size.equals(0.0), x, root)


def hypot(x: Real, y: Real) -> Real:
    """sqrt(x**2 + y**2), scaled so that the squares neither overflow nor vanish; infinite if either is."""
    a, b = abs(x), abs(y)
    large, small = select(a < b, b, a), select(a < b, a, b)
    down, up = {"f32": (2.0**-66, 2.0**100), "f64": (2.0**-520, 2.0**700)}[x.format.name]
    limits = {"f32": (2.0**62, 2.0**-50), "f64": (2.0**500, 2.0**-400)}[x.format.name]
    huge, tiny = large > limits[0], large < limits[1]
    scale = select(huge, down, choose(tiny, x, up, 1.0))
    unscale = select(huge, 1 / down, choose(tiny, x, 1 / up, 1.0))
    large, small = large * scale, small * scale
    result = sqrt(fma(large, large, small * small)) * unscale
    return select(a.equals(math.inf) | b.equals(math.inf), math.inf, result)
