"""Random NumPy functions, differentiated: reverse mode and forward mode agree, and the function's value is unchanged.

The derivative of a random program jumps in places, so finite differences would not do; but the two modes share no rule for
control flow. `DSL_RANDOM_PROGRAMS=500` tries that many, as in `test_random_programs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given
from random_programs import arguments, programs
from test_random_programs import load, randomly

import dsl
from dsl.config import config
from dsl.errors import AliasError
from dsl.frontend.trees import flatten
from dsl.ir.text import parse, print_graph


def scalar_of(program: Any, args: tuple[Any, ...], weights: np.ndarray) -> Any:
    """Return the weighted sum of all floats that a program returns or writes, as a function of its float64 arguments."""
    _, y, u, v, b, _, k, _, flag = args

    def total(x: Any, m: Any, t: Any) -> Any:
        result = program(x, y.copy(), u.copy(), v.copy(), b.copy(), m, k, t, flag)
        found = 0.0
        for weight, leaf in zip(weights, flatten((result, x, m))[0]):
            if getattr(leaf, "dtype", np.dtype(type(leaf))) == np.float64:
                found = found + weight * np.sum(leaf)
        return found

    return total


def check_modes(text: str, seed: int, backend: Any) -> None:
    rng = np.random.default_rng(seed)
    args = arguments(seed)
    total = scalar_of(load(text), args, rng.standard_normal(40))
    wrt = (args[0], args[5], args[7])
    along = tuple(rng.standard_normal(np.shape(x)) for x in wrt)
    expected = total(*map(np.copy, wrt[:2]), wrt[2])
    assume(np.isfinite(expected))
    with config.override(backend=backend):
        try:
            gradient = dsl.grad(total, argnums=(0, 1, 2))(*wrt)
        except AliasError:
            assume(False)
        value, slope = dsl.jvp(total, wrt, along)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)
    product = sum(np.sum(g * t) for g, t in zip(gradient, along, strict=True))
    np.testing.assert_allclose(product, slope, rtol=1e-7, atol=1e-9)
    for stage in ("traced", "optimized"):
        graph = dsl.grad(total, argnums=(0, 1, 2)).lower(*wrt).graph(stage)
        assert parse(print_graph(graph)) == graph


@randomly(25)
@given(programs())
def test_both_modes_agree(program: tuple[str, int]) -> None:
    check_modes(*program, "interpreter")


@randomly(6)
@given(programs())
def test_both_modes_agree_natively(program: tuple[str, int]) -> None:
    check_modes(*program, "native")
