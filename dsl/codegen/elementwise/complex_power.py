"""Powers of complex numbers, as NumPy and C compute them."""

from __future__ import annotations

from math import inf, nan

from dsl.codegen.elementwise.complex_formulas import Complex, exp, log
from dsl.codegen.elementwise.complexes import divide
from dsl.codegen.elementwise.powers import whole_constant
from dsl.codegen.math.reals import Flag, Real, copysign, select

__all__ = ["power"]


def power(x: Real, y: Real, c: Real, d: Real) -> Complex:
    """x + yi to the power c + di: by squaring for whole exponents below 100, else e**(exponent * log)."""
    zero, one = x.constant(0.0), x.constant(1.0)
    exponent = _whole_constant(c, d)
    if exponent is not None:
        found = _constant_power((x, y), exponent)
    else:
        whole = d.equals(0.0) & (abs(c) < 100.0) & c.intrinsic("trunc").equals(c)
        general = exp(*_times_as_c((c, d), log(x, y)))
        found = _choose(whole, _whole_power((x, y), c), general)
    null = x.equals(0.0) & y.equals(0.0)
    of_null = select(c > 0.0, zero, nan)
    found = _choose(null, (of_null, of_null), found)
    return _choose(c.equals(0.0) & d.equals(0.0), (one, zero), found)


def _times(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _times_as_c(a: Complex, b: Complex) -> Complex:
    """Return a product as C has it, where an infinity times a number that is not zero is infinite."""
    re, im = _times(a, b)
    large = [_is_infinite(z) for z in (a, b)]
    partial = [x * y for x in a for y in b]
    overflow = partial[0].equals(inf)
    for product in partial:
        overflow = overflow | abs(product).equals(inf)
    recovered = large[0] | large[1] | overflow
    x, y = _direction(a, large), _direction(b, large[::-1])
    again = _times(x, y)
    wrong = re.is_nan() & im.is_nan() & recovered
    return _choose(wrong, (again[0] * inf, again[1] * inf), (re, im))


def _is_infinite(z: Complex) -> Flag:
    return abs(z[0]).equals(inf) | abs(z[1]).equals(inf)


def _direction(z: Complex, large: list[Flag]) -> Complex:
    """Make infinities 1 and other parts beside them 0; NaN becomes 0."""

    def part(x: Real) -> Real:
        unit = select(abs(x).equals(inf), x.constant(1.0), 0.0)
        plain = select(x.is_nan(), 0.0, x)
        return copysign(select(large[0], unit, plain), x)

    return part(z[0]), part(z[1])


def _choose(flag: Flag, a: Complex, b: Complex) -> Complex:
    return select(flag, a[0], b[0]), select(flag, a[1], b[1])


def _whole_constant(c: Real, d: Real) -> int | None:
    """Return an exponent if it is a constant whole number between -100 and 100."""
    re, im = (whole_constant(part.value) for part in (c, d))
    return re if re is not None and im == 0 and abs(re) < 100 else None


def _constant_power(base: Complex, exponent: int) -> Complex:
    one, zero = base[0].constant(1.0), base[0].constant(0.0)
    if 1 <= exponent <= 3:
        return _small_powers(base)[exponent - 1]
    done = (one, zero)
    for digit in reversed(f"{abs(exponent):b}"):
        done = _times(done, base) if digit == "1" else done
        base = _times(base, base)
    return _reciprocal(done) if exponent < 0 else done


def _small_powers(base: Complex) -> list[Complex]:
    """The powers that NumPy does not start from 1, which makes a difference for infinities."""
    square = _times(base, base)
    return [base, square, _times(base, square)]


def _whole_power(base: Complex, exponent: Real) -> Complex:
    """Multiply the squares of the base that the binary digits of |exponent| < 128 ask for."""
    small, left = _small_powers(base), abs(exponent)
    done = left.constant(1.0), left.constant(0.0)
    for _ in range(7):
        half = (left * 0.5).intrinsic("trunc")
        done = _choose(~left.equals(half + half), _times(done, base), done)
        base, left = _times(base, base), half
    done = _choose(exponent < 0.0, _reciprocal(done), done)
    for k, power in enumerate(small):
        done = _choose(exponent.equals(k + 1.0), power, done)
    return done


def _reciprocal(z: Complex) -> Complex:
    body = z[0].body
    one, zero = z[0].constant(1.0).value, z[0].constant(0.0).value
    re, im = divide(body.fn, (one, zero), (z[0].value, z[1].value))
    return Real(body, re), Real(body, im)
