"""Loops: a stencil in place, explicit scalar loops, and while loops of scalar arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Case, Target, Way

if TYPE_CHECKING:
    import jax
    import jnp
    from numba import prange


# --- Heat ----------------------------------------------------------------------------------------


def heat(plate, steps):
    u = plate.copy()
    for _ in range(steps):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] += 0.1 * (around - 4 * u[1:-1, 1:-1])
    return u


def heat_numba(plate, steps):
    u, v = plate.copy(), plate.copy()
    rows, columns = plate.shape
    for _ in range(steps):
        for i in prange(1, rows - 1):
            for j in range(1, columns - 1):
                around = u[i + 1, j] + u[i - 1, j] + u[i, j + 1] + u[i, j - 1]
                v[i, j] = u[i, j] + 0.1 * (around - 4 * u[i, j])
        u, v = v, u
    return u


def heat_jax(plate, steps):
    def step(_, u):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].add(0.1 * (around - 4 * u[1:-1, 1:-1]))

    return jax.lax.fori_loop(0, steps, step, plate)


def heat_torch(plate, steps):
    u = plate.clone()
    for _ in range(steps):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] += 0.1 * (around - 4 * u[1:-1, 1:-1])
    return u


# --- Scalar loops: numba compiles the same source ------------------------------------------------


def lu(matrix):
    """Lower and upper factors in one array, without pivots."""
    a = matrix.copy()
    n = a.shape[0]
    for k in range(n):
        for i in range(k + 1, n):
            a[i, k] /= a[k, k]
            for j in range(k + 1, n):
                a[i, j] -= a[i, k] * a[k, j]
    return a


def floyd_warshall(lengths):
    d = lengths.copy()
    n = d.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if d[i, k] + d[k, j] < d[i, j]:
                    d[i, j] = d[i, k] + d[k, j]
    return d


def biquad(x):
    """A low-pass filter of second order."""
    y = np.zeros_like(x)
    x1, x2, y1, y2 = 0.0, 0.0, 0.0, 0.0
    for i in range(x.shape[0]):
        now = 0.0675 * x[i] + 0.135 * x1 + 0.0675 * x2 + 1.143 * y1 - 0.413 * y2
        x2, x1 = x1, x[i]
        y2, y1 = y1, now
        y[i] = now
    return y


def adler(data):
    a, b = 1, 0
    for i in range(data.shape[0]):
        a = (a + data[i]) % 65521
        b = (b + a) % 65521
    return b * 65536 + a


def fnv(data):
    h = 2166136261
    for i in range(data.shape[0]):
        h = ((h ^ data[i]) * 16777619) & 0xFFFFFFFF
    return h


def xorshift(seed, trips):
    x = seed
    for _ in range(trips):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
    return x


# --- While loops ---------------------------------------------------------------------------------


def relax(trips):
    x, total, i = 0.0, 0.0, 0
    while i < trips:
        x = x + 0.001 * (1.0 - x * x)
        total += x
        i += 1
    return total


def relax_jax(trips):
    def step(state):
        x, total, i = state
        x = x + 0.001 * (1.0 - x * x)
        return x, total + x, i + 1

    zero = jnp.float64(0.0)
    return jax.lax.while_loop(lambda s: s[2] < trips, step, (zero, zero, jnp.int64(0)))[1]


def collatz(limit):
    """Steps until 1 is reached, for all numbers below the limit."""
    steps, start = 0, 1
    while start < limit:
        n = start
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        start += 1
    return steps


def collatz_jax(limit):
    def step(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    def follow(state):
        start, steps = state
        _, steps = jax.lax.while_loop(lambda s: s[0] != 1, step, (start, steps))
        return start + 1, steps

    one, zero = jnp.int64(1), jnp.int64(0)
    return jax.lax.while_loop(lambda s: s[0] < limit, follow, (one, zero))[1]


# --- Cases ---------------------------------------------------------------------------------------


def plate(rng, n, steps):
    return rng.random((n, n)), steps


def dominant(rng, n):
    return (rng.random((n, n)) + n * np.eye(n),)


def lengths(rng, n):
    return (rng.random((n, n)) + 0.01,)


def signal(rng, n):
    return (rng.standard_normal(n),)


def bytes_of(rng, n):
    return (rng.integers(0, 256, n),)


def scalar_loop(program, inputs, size, tiny, short=False):
    return Case(
        name=program.__name__.replace("_", "-"),
        row="scalar loops",
        program=program,
        inputs=inputs,
        size=size,
        tiny=tiny,
        numba=program,
        targets=(Target(0.95, "numba"),),
        plain_is_slow=True,
        short=short,
    )


def while_loop(name, program, jax_way, size, tiny):
    return Case(
        name=name,
        row="while loop, 10 M trips",
        program=program,
        inputs=lambda rng, n: (n,),
        size=size,
        tiny=tiny,
        numba=program,
        jax=Way(jax_way),
        targets=(Target(1.0, "numba", "jax"),),
        plain_is_slow=True,
        short=program is relax,
    )


def heat_case(size, steps, *, short):
    return Case(
        name=f"heat-f64-{size}",
        row="heat stencil",
        program=heat,
        inputs=plate,
        size=(size, steps),
        tiny=(7, 3),
        numba=Way(heat_numba, parallel=True),
        jax=Way(heat_jax, static_argnames="steps"),
        torch=heat_torch,
        targets=(Target(1.0, "numba"), Target(3.0, "jax")),
        short=short,
    )


CASES = [
    heat_case(500, 1000, short=True),
    heat_case(2000, 100, short=False),  # which caches do not hold
    scalar_loop(lu, dominant, (300,), (4,), short=True),
    scalar_loop(floyd_warshall, lengths, (300,), (4,)),
    scalar_loop(biquad, signal, (10**6,), (9,)),
    scalar_loop(adler, bytes_of, (10**7,), (9,)),
    scalar_loop(fnv, bytes_of, (10**7,), (9,)),
    scalar_loop(xorshift, lambda rng, n: (2463534242, n), (10**7,), (9,)),
    while_loop("while-relax", relax, relax_jax, (10**7,), (9,)),
    while_loop("while-collatz", collatz, collatz_jax, (92_000,), (6,)),  # 9.9 M trips
]
