"""erf and erfc.

Near 0 both come from a polynomial. Farther out erf is 1 - exp(a polynomial), and erfc is exp(-x**2) times
erfc(x) exp(x**2) (1 + 2x), which is a polynomial in (x - k) / (x + k), over 1 + 2x.
"""

from __future__ import annotations

from dsl.codegen.math.exponential import exp_of, exp_parts
from dsl.codegen.math.reals import (
    Real,
    copysign,
    exact_fma,
    exact_product,
    fma,
    polynomial,
    quick_sum,
    select,
)

__all__ = ["erf", "erfc"]

# erf(x) / x - 1 as a polynomial in x**2 for |x| <= 1
NEAR = {
    "f32": (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.0051871627, -0.00079978653, 7.8069825e-05),
    "f64": (
        0.12837916709551256, -0.3761263890318352, 0.11283791670944208, -0.026866170643111538,
        0.005223977606107843, -0.000854832592878403, 0.00012055293566340151, -1.4924712211823256e-05,
        1.6447131342575288e-06, -1.62063128282268e-07, 1.371095226631943e-08, -7.779322990336067e-10,
    ),
}  # fmt: skip
# log(erfc(x)) for 0.9 <= x <= 4.1 and 0.9 <= x <= 6
FAR = {
    "f32": (
        -0.00017759904, -1.1277491, -0.63706064, -0.104036495, 0.022276625, -0.0030554791, 0.00019716728,
    ),
    "f64": (
        -2.509831637906262e-07, -1.1283764943981522, -0.6366329690169623, -0.10273255715233671,
        0.019045073403877198, 0.00033484777457625854, -0.0018366375376361902, 0.0007063868952463303,
        -9.424857858444473e-05, -4.068504730990096e-05, 3.0874524129367406e-05, -1.1155037297265558e-05,
        2.730550177147228e-06, -4.810679375660433e-07, 6.07066300251028e-08, -5.2395944796008235e-09,
        2.7793428734686805e-10, -6.843889111562685e-12,
    ),
}  # fmt: skip
# erfc(x) exp(x**2) (1 + 2x) as a polynomial in (x - k) / (x + k), k = 3 and 4, for x >= 0.74,
# from the linear term on; the constant term in two parts
SCALED = {
    "f32": (
        -0.13562109, -0.0475622, 0.12964416, -0.11927595, 0.068321556, -0.023750136, 0.0024571402,
        0.0018118089, -0.0006185551,
    ),
    "f64": (
        -0.13962111684056233, 0.01537965210262187, 0.06809705425466589, -0.10103906603645317,
        0.09373283499951149, -0.06633036580820868, 0.0371675155142859, -0.016197734112193246,
        0.005031970233851091, -0.000757772868923712, -0.0001992584014454959, 0.00015061973358367325,
        -2.4392023713247243e-05, -1.1216605027458298e-05, 5.69041049991602e-06, 2.851222321953953e-07,
        -7.931085577977619e-07, 8.120737042157194e-08, 7.891326992272211e-08, -1.814255915103096e-08,
    ),
}  # fmt: skip
CENTRE = {
    "f32": (1.253008, 4.9616865e-08),
    "f64": (1.2329951186255526, -5.0523691629312766e-17),
}


def erf(x: Real) -> Real:
    """The error function: a polynomial near 0, 1 - exp(log(erfc(x))) farther out."""
    size = abs(x).at_most({"f32": 4.0, "f64": 6.0}[x.format.name])
    near = fma(x, polynomial(x * x, NEAR[x.format.name]), x)
    far = 1.0 - exp_of(polynomial(size, FAR[x.format.name], near=3))
    return select(size < 1.0, near, copysign(far, x))


def erfc(x: Real) -> Real:
    """1 - erf(x), accurate where that is small."""
    name = x.format.name
    size = abs(x).at_most({"f32": 10.1, "f64": 27.3}[name])
    total, error = quick_sum(x.constant(1.0), -x)
    near = total + fma(-x, polynomial(x * x, NEAR[name]), error)
    tail = _tail(size)
    return select(abs(x) < 0.75, near, select(x < 0.0, 2.0 - tail, tail))


def _tail(x: Real) -> Real:
    """erfc(x) for x >= 0.74."""
    name = x.format.name
    power, power_low, scales = exp_parts(*exact_product(x, -x))
    shift = 4.0 if name == "f64" else 3.0
    place = (x - shift) / (x + shift)
    high, low = CENTRE[name]
    scaled, rest = quick_sum(x.constant(high), place * polynomial(place, SCALED[name]))
    top, top_low = exact_product(power, scaled)
    top_low = fma(power_low, scaled, fma(power, rest + low, top_low))
    bottom = fma(x, 2.0, 1.0)
    bottom_low = fma(x, 2.0, 1.0 - bottom)
    inverse = 1.0 / bottom
    quotient = top * inverse
    rest = fma(quotient, -bottom_low, exact_fma(quotient, -bottom, top) + top_low)
    return fma(rest, inverse, quotient) * scales[0] * scales[1]
