"""Finds the coefficients of the polynomials in this package. Nothing imports it; it needs mpmath and SciPy.

`fit` minimises the largest weighted error over Chebyshev points: least squares in 220-bit arithmetic first, then linear
programming for what is left of the error, which double precision resolves. Coefficients are rounded one after the
other, the lowest power first, each time fitting the rest anew, so that the rounding of one is made up for by the others.

The tables say what they approximate. Their weights make the error relative to the function's result, except where the
polynomial is added to something larger. For example `exponential.EXP["f32"]`, whose error counts beside 1:

>>> from mpmath import exp, log                                                 # doctest: +SKIP
>>> half = log(2) / 2                                                           # doctest: +SKIP
>>> fit(lambda r: (exp(r) - 1 - r) / r**2, -half, half, 5, 24, lambda r: r**2)  # doctest: +SKIP
[0.5, 0.16666515, 0.041666374, 0.008369394, 0.0013943245]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["fit", "split"]

Real = Any  # an `mpmath.mpf`, whose context has the functions on such numbers


def fit(
    function: Callable[[Real], Real], low: Real, high: Real, terms: int, bits: int,
    weight: Callable[[Real], Real],
) -> list[float]:  # fmt: skip
    """Return coefficients of `bits` bits of 1, x, x**2 … for the interval, which may not be a pole of either function."""
    from mpmath import mp

    with mp.workprec(220):
        x = _points(mp.mpf(low), mp.mpf(high), 25 * terms + 20)
        weights = [weight(p) for p in x]
        powers = [[w * p**k for w, p in zip(weights, x)] for k in range(terms)]
        left = [w * function(p) for w, p in zip(weights, x)]
        found = []
        for k in range(terms):
            coefficients = _improved(powers[k:], left, _least_squares(powers[k:], left))
            found.append(_rounded(coefficients[0], bits))
            left = [e - found[-1] * b for e, b in zip(left, powers[k])]
        print(f"error 2**{float(mp.log(max(map(abs, left)), 2)):.2f}")
        return [float(c) for c in found]


def split(number: Real, bits: int, parts: int) -> list[float]:
    """Return numbers of `bits` bits that add up to a number."""
    found = []
    for _ in range(parts):
        found.append(_rounded(number, bits))
        number -= found[-1]
    return [float(part) for part in found]


def _points(low: Real, high: Real, count: int) -> list[Real]:
    mp, middle, radius = low.context, (low + high) / 2, (high - low) / 2
    return [middle - radius * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]


def _rounded(number: Real, bits: int) -> Real:
    mp = number.context
    fraction, exponent = mp.frexp(number)
    return mp.ldexp(mp.nint(mp.ldexp(fraction, bits)), exponent - bits)


def _least_squares(basis: list[list[Real]], wanted: list[Real]) -> list[Real]:
    mp = wanted[0].context
    gram = mp.matrix([[mp.fdot(zip(a, b)) for b in basis] for a in basis])
    return list(mp.lu_solve(gram, mp.matrix([mp.fdot(zip(a, wanted)) for a in basis])))


def _improved(basis: list[list[Real]], wanted: list[Real], coefficients: list[Real]) -> list[Real]:
    """Return the coefficients changed by what makes the largest error smallest."""
    from scipy.optimize import linprog

    left = [
        w - sum(c * b for c, b in zip(coefficients, row)) for w, row in zip(wanted, zip(*basis))
    ]
    error = np.array([float(e) for e in left])
    size = np.abs(error).max()
    # An orthogonal basis keeps the problem well conditioned.
    q, r = np.linalg.qr(np.array([[float(b) for b in row] for row in basis]).T)
    bound = -np.ones((len(error), 1))
    result = linprog(
        [0.0] * len(basis) + [1.0],
        A_ub=np.block([[q, bound], [-q, bound]]),
        b_ub=np.concatenate([error, -error]) / size,
        bounds=[(None, None)] * len(basis) + [(0, None)],
    )
    change = np.linalg.solve(r, result.x[:-1] * size)
    return [c + float(d) for c, d in zip(coefficients, change)]
