"""Reductions before axes that lie one behind the other in memory: those are one axis to the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

SHAPES = [(7, 5, 3), (50, 40, 3), (3, 2, 2, 2), (20, 1, 8), (5, 130, 9), (4, 600, 2), (6, 3, 4, 5)]


def total(x: Any) -> Any:
    return x.sum(axis=0)


def spread(x: Any) -> Any:
    return x.var(axis=0)


def centred(x: Any) -> Any:
    return x - x.mean(axis=0)


def shares(x: Any) -> Any:
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def weighted(x: Any) -> Any:
    return (x * np.arange(x.shape[-1])).sum(axis=0)


def by_middle(x: Any) -> Any:
    return (x + np.arange(x.shape[1]).reshape(1, -1, *[1] * (x.ndim - 2))).max(axis=0)


@pytest.mark.parametrize("function", [total, spread, centred, shares, weighted, by_middle])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["plain", "strided", "turned"])
def test_reductions_of_the_first_axis(function: Any, shape: tuple[int, ...], layout: str) -> None:
    rng = np.random.default_rng(len(shape))
    x = rng.normal(size=shape)
    if layout == "strided":
        x = rng.normal(size=(*shape[:-1], 2 * shape[-1]))[..., ::2]
    elif layout == "turned":
        x = np.asfortranarray(x)
    np.testing.assert_allclose(dsl.jit(function)(x), function(x), rtol=1e-12, atol=1e-12)


def test_sizes_that_are_not_known() -> None:
    compiled = dsl.jit(lambda x: x.sum(axis=0), dynamic=True)
    for shape in ((3, 4, 5), (9, 7, 3), (100, 33, 2)):
        x = np.random.default_rng(0).normal(size=shape)
        np.testing.assert_allclose(compiled(x), x.sum(axis=0), rtol=1e-12, atol=1e-12)


def test_axes_of_one_element_are_no_loops() -> None:
    def program(x, y):
        return x[:, None] * 2 + y[:, None], (x[:, None, None] + np.ones((1, 4))) / y[:, None, None]

    x, y = np.linspace(0, 1, 300), np.linspace(1, 2, 300)
    for got, expected in zip(dsl.jit(program)(x, y), program(x, y)):
        np.testing.assert_array_equal(got, expected)
    text = dsl.jit(lambda x, y: x[:, None] * 2 + y[:, None]).ir(x, y, stage="llvm")
    assert "x double>" in text  # vectors of the axis that has elements
