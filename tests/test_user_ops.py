"""`dsl.op`: primitives of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

import dsl
from dsl.errors import DslError, GradientError, TypeRuleError

X = np.linspace(0.1, 0.8, 7)


@dsl.op(vjp=lambda g, y, x: (g / (x * (1 - x)),))
def logit(x: Any) -> Any:
    """log(x / (1 - x)), by SciPy."""
    return scipy.special.logit(x)


@dsl.op(out=lambda x, y: [(x.shape[:1], np.int64), (x.shape, x.dtype)])
def both(x: Any, y: Any) -> Any:
    """Two results of other types."""
    return np.arange(x.shape[0]), x * y


@dsl.op
def shifted(x: Any, *, by: int = 0, mode: str = "up") -> Any:
    return x + by if mode == "up" else x - by


def test_a_call_is_the_function() -> None:
    np.testing.assert_array_equal(logit(X), scipy.special.logit(X))
    assert logit.__doc__ == "log(x / (1 - x)), by SciPy."


def test_in_a_program_it_is_one_node() -> None:
    def f(x: Any) -> Any:
        total = 0.0
        for k in range(3):
            total += (logit(x) * k).sum()
        return total

    compiled = dsl.jit(f)
    np.testing.assert_allclose(compiled(X), f(X))
    assert compiled.ir(X).count(" user_logit_") == 1
    np.testing.assert_allclose(compiled(X[:3]), f(X[:3]))
    with dsl.config.override(backend="interpreter"):
        np.testing.assert_allclose(dsl.jit(f)(X), f(X))


def test_it_has_the_derivative_that_was_given() -> None:
    np.testing.assert_allclose(dsl.grad(lambda x: logit(x).sum())(X), 1 / (X * (1 - X)))
    second = dsl.grad(lambda x: dsl.grad(lambda x: logit(x).sum())(x).sum())(X)
    np.testing.assert_allclose(second, -(1 - 2 * X) / (X * (1 - X)) ** 2)


def test_without_one_derivatives_are_refused() -> None:
    with pytest.raises(GradientError, match="user_shifted"):
        dsl.grad(lambda x: shifted(x).sum())(X)


def test_several_results_and_options() -> None:
    places, product = dsl.jit(lambda x: both(x, 2 * x))(X)
    np.testing.assert_array_equal(places, np.arange(7))
    np.testing.assert_array_equal(product, 2 * X * X)
    np.testing.assert_array_equal(dsl.jit(lambda x: shifted(x, by=3, mode="down"))(X), X - 3)


def test_vmap_maps_it() -> None:
    rows = np.stack([X, X**2])
    np.testing.assert_allclose(dsl.vmap(logit)(rows), scipy.special.logit(rows))


def test_a_function_that_does_not_keep_its_word_is_told() -> None:
    wrong = dsl.op(lambda x: x.astype(np.float32))
    with pytest.raises(TypeRuleError, match="returned f32"):
        dsl.jit(lambda x: wrong(x))(X)
    bad = dsl.op(lambda x: x, out=lambda x: 5)
    with pytest.raises(TypeRuleError, match="`out` returned 5"):
        dsl.jit(lambda x: bad(x))(X)
    with pytest.raises(DslError, match="function of NumPy arrays"):
        dsl.op(3)


def test_a_kernel_may_be_what_programs_run() -> None:
    @dsl.kernel
    def fast(x):
        return x * 2.0

    doubled = dsl.op(lambda x: 2 * x, lowering=fast)
    np.testing.assert_array_equal(dsl.jit(lambda x: doubled(x) + 1)(X), 2 * X + 1)
    np.testing.assert_array_equal(doubled(X), 2 * X)


def test_it_never_writes_into_its_operands() -> None:
    @dsl.op
    def careless(x: Any) -> Any:
        x[:] = 0.0
        return x

    found, kept = dsl.jit(lambda x: (careless(x * 1), x))(X)
    np.testing.assert_array_equal(found, 0 * X)
    np.testing.assert_array_equal(kept, X)
