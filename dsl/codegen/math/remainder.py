"""fmod."""

from __future__ import annotations

import math

from dsl.codegen.math.reals import Real, copysign, fma, select

__all__ = ["fmod"]


def fmod(x: Real, y: Real) -> Real:
    """x - y trunc(x / y), exactly. Quotients that do not fit a number are left to libm, behind a branch."""
    body = x.body
    if not body.has_fma:
        type = x.format.type
        return Real(body, body.define(type, f"frem {type} {x.value.text}, {y.value.text}"))
    a, b = abs(x), abs(y)
    quotient = a / b
    rest = fma(quotient.intrinsic("trunc"), -b, a)
    rest = select(rest < 0.0, rest + b, rest)
    rest = copysign(select(b.equals(math.inf) & (a < math.inf), a, rest), x)
    far = quotient >= 2.0**x.format.digits
    return Real(
        body, body.rarely(far, rest.value, body.libm("fmod", x.format, 2), x.value, y.value)
    )
