"""Powers of floats with a constant exponent: products, within 2 units of the last place, and NumPy's special values."""

from __future__ import annotations

import numpy as np
import pytest

import dsl

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0]
EXTREME = {"f4": [1e-30, -1e30, 3e38, 1e-44], "f8": [1e-200, -1e200, 1e308, 5e-324]}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "exponent",
    [*range(2, 13), 31, 32, 63, 64, 65, *range(-12, 0), -63, -64, -65]
    + [1.5, 2.5, 3.5, 7.5, 12.5, 63.5, 64.5, -0.5, -1.5, -2.5, -3.5, -7.5, -63.5, -64.5],
)
def test_whole_and_half_exponents(exponent: float, dtype: str) -> None:
    rng = np.random.default_rng(int(2 * abs(exponent)))
    x = np.concatenate([rng.normal(size=3000), SPECIAL, EXTREME[dtype]]).astype(dtype)
    found = dsl.jit(lambda x: x**exponent)(x)
    with np.errstate(all="ignore"):
        exact = x.astype(np.longdouble) ** np.longdouble(exponent)
        expected = exact.astype(dtype)
        unit = np.spacing(np.abs(expected)).astype(np.longdouble)
        error = np.abs(found.astype(np.longdouble) - exact) / unit
    finite = np.isfinite(expected) & (expected != 0)
    assert (error[finite] <= 2).all()
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


def test_the_general_function_is_not_called() -> None:
    text = dsl.jit(lambda x: x**3 + x**7).ir(np.ones(1000), stage="llvm")
    assert "pow" not in text
    halves = dsl.jit(lambda x: x**2.5 + x**-1.5 + x**-3)
    assert "pow" not in halves.ir(np.ones(1000), stage="llvm")
    assert "dsl_math_pow" in dsl.jit(lambda x: x**2.3).ir(np.ones(1000), stage="llvm")


@pytest.mark.parametrize("exponent", [3, 7])
def test_derivatives(exponent: int) -> None:
    x = np.array([-1.5, 0.0, 2.0])
    np.testing.assert_allclose(
        dsl.grad(lambda x: (x**exponent).sum())(x), exponent * x ** (exponent - 1), rtol=1e-15
    )


def test_the_derivative_of_a_known_power_of_a_sum_of_squares_is_a_known_power() -> None:
    slope = dsl.jit(dsl.grad(lambda x: (((x * x).sum(axis=1) + 0.1) ** -1.5).sum()))
    assert "pow" not in slope.ir(np.ones((100, 3)), stage="llvm")


def test_pow_with_a_modulus() -> None:
    def program(a, e, m):
        return pow(a, e, m), pow(3, e, 97), pow(a, 5, m)

    compiled = dsl.jit(program)
    for args in ((7, 10**9 + 6, 10**9 + 7), (-5, 0, 1), (123456789012, 77, -3037000500), (2, 3, 2)):
        assert compiled(*args) == program(*args)
    for args, error in (
        ((2, 3, 0), ValueError),
        ((2, -1, 5), ValueError),
        ((2, 3, 2**40), OverflowError),
    ):
        with pytest.raises(error):
            compiled(*args)


def test_squares_of_bools_are_small() -> None:
    x = np.array([True, False])
    got = dsl.jit(lambda x: (x**2, x**3, x[0] ** 2))(x)
    assert [a.dtype for a in got] == [a.dtype for a in (x**2, x**3, x[0] ** 2)]
