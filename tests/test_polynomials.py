"""NumPy's polynomials: `np.polynomial`, `np.roots` and their like, which are plain Python over arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from against_numpy import check
from numpy.polynomial import Chebyshev, Polynomial
from numpy.polynomial import chebyshev as C
from numpy.polynomial import hermite as H
from numpy.polynomial import legendre as L
from numpy.polynomial import polynomial as P

import dsl

X, Y = np.linspace(-1, 1, 7), np.cos(3 * np.linspace(-1, 1, 7))
COEFFICIENTS, SHORT = np.array([1.0, -3.0, 2.0, 5.0]), np.array([2.0, 1.0])


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "polyval": (lambda x, c: P.polyval(x, c), (X, COEFFICIENTS)),
    "polyval of a number": (lambda c: P.polyval(2.5, c), (COEFFICIENTS,)),
    "polyval of a list": (lambda x: P.polyval(x, [1, 2, 3]), (X,)),
    "polyval of columns": (lambda x, c: P.polyval(x, c), (X, np.ones((3, 2)))),
    "polyval2d": (lambda x, y, c: P.polyval2d(x, y, c), (X, Y, np.arange(6.0).reshape(2, 3))),
    "polygrid2d": (lambda x, y, c: P.polygrid2d(x, y, c), (X, Y, np.arange(6.0).reshape(2, 3))),
    "polyfit": (lambda x, y: P.polyfit(x, y, 2), (X, Y)),
    "polyder": (lambda c: P.polyder(c, 2), (COEFFICIENTS,)),
    "polyint": (lambda c: P.polyint(c), (COEFFICIENTS,)),
    "polymul": (lambda c, d: P.polymul(c, d), (COEFFICIENTS, SHORT)),
    "polyadd": (lambda c, d: P.polyadd(c, d), (COEFFICIENTS, SHORT)),
    "polyvander": (lambda x: P.polyvander(x, 3), (X,)),
    "chebval": (lambda x, c: C.chebval(x, c), (X, COEFFICIENTS)),
    "chebfit": (lambda x, y: C.chebfit(x, y, 3), (X, Y)),
    "legval": (lambda x, c: L.legval(x, c), (X, COEFFICIENTS)),
    "hermval": (lambda x, c: H.hermval(x, c), (X, COEFFICIENTS)),
    "quadrature": (lambda x: L.leggauss(4)[1] @ np.exp(L.leggauss(4)[0] * x[1]), (X,)),
    "Polynomial": (lambda x: Polynomial([1.0, 2.0, 3.0])(x), (X,)),
    "Polynomial of data": (lambda x, c: Polynomial(c)(x), (X, COEFFICIENTS)),
    "Chebyshev of data": (lambda x, c: Chebyshev(c)(x), (X, COEFFICIENTS)),
    "roots": (lambda c: np.roots(c), (COEFFICIENTS,)),
    "poly": (lambda r: np.poly(r), (COEFFICIENTS,)),
    "polydiv": (lambda c, d: np.polydiv(c, d), (COEFFICIENTS, SHORT)),
    "poly1d": (lambda x, c: np.poly1d(c)(x), (X, COEFFICIENTS)),
    "poly1d of a fit": (lambda x, y: np.poly1d(np.polyfit(x, y, 2))(x), (X, Y)),
    "polyfit in full": (lambda x, y: np.polyfit(x, y, 2, full=True), (X, Y)),
    "covariance": (lambda x, y: np.polyfit(x, y, 2, cov=True), (X, Y)),
    "covariance, two columns": (lambda x, y: np.polyfit(x, y, 2, cov=True), (X, np.c_[Y, X])),
    "covariance as it is": (
        lambda x, y: np.polyfit(x, y, 1, w=x + 2, cov="unscaled"),
        (X, Y),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_polynomials(name: str) -> None:
    function, args = PROGRAMS[name]
    check(function, *args)


def test_derivative_of_a_polynomial() -> None:
    slope = dsl.grad(lambda x: P.polyval(x, COEFFICIENTS))
    np.testing.assert_allclose(slope(0.5), P.polyval(0.5, P.polyder(COEFFICIENTS)))


def test_warnings_in_branches_on_data_are_not_given_while_tracing() -> None:
    def program(x):
        if x.sum() < 0:
            warnings.warn("negative", stacklevel=2)
        return 2 * x

    np.testing.assert_array_equal(dsl.jit(program)(X), 2 * X)
    with pytest.warns(UserWarning, match="known"):
        dsl.jit(lambda x: warnings.warn("known", stacklevel=2) or x)(X)
