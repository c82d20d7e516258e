"""Matrix products of many sizes; and, without a target, what libraries have tuned for decades."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Case, Target, size_name

if TYPE_CHECKING:
    import torch

DTYPES = {"f32": np.float32, "f64": np.float64}


def matmul(x, w):
    return x @ w


def dense(x, w, bias):
    return np.maximum(x @ w + bias, 0)


def dense_torch(x, w, bias):
    return torch.relu(torch.addmm(bias, x, w))


def two_squares(dtype):
    return lambda rng, n: tuple(rng.standard_normal((n, n), dtype) for _ in range(2))


def with_bias(dtype):
    return lambda rng, n: (*two_squares(dtype)(rng, n), rng.standard_normal(n, dtype))


def product(program, torch_way, inputs, dtype, n):
    return Case(
        name=f"{program.__name__}-{dtype}-{n}",
        row="matmul",
        program=program,
        inputs=inputs(DTYPES[dtype]),
        size=(n,),
        tiny=(5,),
        jax=program,
        torch=torch_way,
        targets=(Target(0.95, "torch"),),
        tolerance=1e-4 if dtype == "f32" else None,
        short=(program, dtype, n) in ((matmul, "f32", 512), (dense, "f32", 64)),
    )


# --- Without a target ----------------------------------------------------------------------------


def sort(x):
    return np.sort(x)


def sort_torch(x):
    return torch.sort(x).values


def singular_values(x):
    return np.linalg.svd(x, compute_uv=False)


def singular_values_torch(x):
    return torch.linalg.svdvals(x)


def solve(x, y):
    return np.linalg.solve(x, y)


def solve_torch(x, y):
    return torch.linalg.solve(x, y)


def fourier(x):
    return np.fft.fft(x)


def fourier_torch(x):
    return torch.fft.fft(x)


def numbers(rng, n):
    return (rng.standard_normal(n),)


def complex_numbers(rng, n):
    return (rng.standard_normal(n) + 1j * rng.standard_normal(n),)


def system(rng, n):
    return rng.standard_normal((n, n)) + n * np.eye(n), rng.standard_normal((n, n // 4 + 1))


def small_systems(rng, n):
    return rng.standard_normal((n, 3, 3)) + 3 * np.eye(3), rng.standard_normal((n, 3, 1))


def small_matrices(rng, n):
    return ((rng.uniform(-1, 1, (n, 4, 4)) + 4 * np.eye(4)).astype(np.float32),)


def inverses(x):
    return np.linalg.inv(x)


def inverses_torch(x):
    return torch.linalg.inv(x)


def matrix(rng, n):
    return (rng.standard_normal((n, n)),)


def untargeted(name, program, torch_way, inputs, size, tiny):
    return Case(
        name=f"{name}-{size_name(size)}",
        row="without a target",
        program=program,
        inputs=inputs,
        size=(size,),
        tiny=(tiny,),
        jax=program,
        torch=torch_way,
        short=program is sort,
    )


CASES = [
    *(
        product(program, torch_way, inputs, dtype, n)
        for program, torch_way, inputs in (
            (matmul, matmul, two_squares),
            (dense, dense_torch, with_bias),
        )
        for dtype in DTYPES
        for n in (64, 128, 256, 512, 1024, 2048)
    ),
    untargeted("sort-f64", sort, sort_torch, numbers, 4 * 10**6, 9),
    untargeted("svd-f64", singular_values, singular_values_torch, matrix, 512, 5),
    untargeted("solve-f64", solve, solve_torch, system, 1024, 5),
    untargeted("solve-3x3-f64", solve, solve_torch, small_systems, 10**5, 5),
    untargeted("inv-4x4-f32", inverses, inverses_torch, small_matrices, 10**5, 5),
    untargeted("fft-c128", fourier, fourier_torch, complex_numbers, 10**6, 16),
]
