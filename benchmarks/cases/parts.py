"""Programs on parts of arrays, and others of which nothing was asked: found by timing what users write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import dsl
from dsl.commands.bench.case import Case

if TYPE_CHECKING:
    import jax


# --- A row of a table after the other ------------------------------------------------------------


def heat_rows(start, steps):
    """Temperatures of a rod, one row for each moment."""
    u = np.zeros((steps, start.size))
    u[0] = start
    for t in range(steps - 1):
        u[t + 1, 1:-1] = u[t, 1:-1] + 0.25 * (u[t, 2:] - 2 * u[t, 1:-1] + u[t, :-2])
    return u


def heat_rows_numba(start, steps):
    u = np.zeros((steps, start.size))
    u[0] = start
    for t in range(steps - 1):
        for i in range(1, start.size - 1):
            u[t + 1, i] = u[t, i] + 0.25 * (u[t, i + 1] - 2 * u[t, i] + u[t, i - 1])
    return u


def rod(rng, n):
    return rng.standard_normal(n), n


# --- The derivative of a stencil -----------------------------------------------------------------


def roughness(x):
    inner = 4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    return (inner**2).sum()


def roughness_own(x):
    return dsl.grad(roughness)(x)


def roughness_by_hand(x):
    g = 2 * (4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:])
    out = np.zeros_like(x)
    out[1:-1, 1:-1] += 4 * g
    out[:-2, 1:-1] -= g
    out[2:, 1:-1] -= g
    out[1:-1, :-2] -= g
    out[1:-1, 2:] -= g
    return out


def roughness_jax(x):
    def roughness(x):
        inner = 4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
        return (inner**2).sum()

    return jax.grad(roughness)(x)


def square(rng, n):
    return (rng.standard_normal((n, n)),)


# --- Short rows, selection, powers ---------------------------------------------------------------


def row_sums(x):
    return x.sum(axis=1)


def middle(x):
    return np.median(x)


def cubes(x):
    return x**3 + 2 * x


def table(rng, rows, columns):
    return (rng.standard_normal((rows, columns)),)


def vector(rng, n):
    return (rng.standard_normal(n),)


def untargeted(name, program, inputs, size, tiny, **more):
    return Case(
        name=name, row="without a target", program=program, inputs=inputs, size=size, tiny=tiny, **more
    )  # fmt: skip


CASES = [
    untargeted("heat-rows-500", heat_rows, rod, (500,), (9,), numba=heat_rows_numba),
    untargeted(
        "grad-stencil-1000",
        roughness_by_hand,
        square,
        (1000,),
        (7,),
        own=roughness_own,
        jax=roughness_jax,
    ),
    untargeted(
        "row-sums-8-f64", row_sums, table, (300_000, 8), (5, 8), jax=row_sums, torch=row_sums
    ),
    untargeted("median-f64-2M", middle, vector, (2 * 10**6,), (9,), jax=middle),
    untargeted("cubes-f64-1M", cubes, vector, (10**6,), (9,), jax=cubes, torch=cubes),
]
