"""Call overhead, fused elementwise arithmetic, and a long chain of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Case, Target, Way, size_name

if TYPE_CHECKING:
    import jax
    import torch
    from numba import prange

DTYPES = {"f32": np.float32, "f64": np.float64}


def normal(rng, size, dtype):
    return rng.standard_normal(size, dtype=dtype)


# --- One small call ------------------------------------------------------------------------------


def add(x, y):
    return x + y


# --- exp, tanh, sigmoid --------------------------------------------------------------------------


def mixed(x, y):
    return x / (1 + np.exp(-y)) + np.exp(-x * x) * np.tanh(y)


def mixed_numba(x, y):
    out, one = np.empty_like(x), x.dtype.type(1)
    for i in prange(x.size):
        out[i] = x[i] / (one + np.exp(-y[i])) + np.exp(-x[i] * x[i]) * np.tanh(y[i])
    return out


def mixed_jax(x, y):
    return x * jax.nn.sigmoid(y) + np.exp(-x * x) * np.tanh(y)


def mixed_torch(x, y):
    return x * torch.sigmoid(y) + torch.exp(-x * x) * torch.tanh(y)


def gauss(x, y):
    return np.exp(-0.5 * (x - y) * (x - y)) * y


def gauss_numba(x, y):
    out, half = np.empty_like(x), x.dtype.type(0.5)
    for i in prange(x.size):
        out[i] = np.exp(-half * (x[i] - y[i]) * (x[i] - y[i])) * y[i]
    return out


def gauss_torch(x, y):
    return torch.exp(-0.5 * (x - y) * (x - y)) * y


def gelu(x, y):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) + y


def gelu_numba(x, y):
    out, kind = np.empty_like(x), x.dtype.type
    half, one, a, b = kind(0.5), kind(1), kind(0.7978845608028654), kind(0.044715)
    for i in prange(x.size):
        v = x[i]
        out[i] = half * v * (one + np.tanh(a * (v + b * v * v * v))) + y[i]
    return out


def gelu_jax(x, y):
    return jax.nn.gelu(x, approximate=True) + y


def gelu_torch(x, y):
    return torch.nn.functional.gelu(x, approximate="tanh") + y


def silu(x, y):
    return x / (1 + np.exp(-x)) * y


def silu_numba(x, y):
    out, one = np.empty_like(x), x.dtype.type(1)
    for i in prange(x.size):
        out[i] = x[i] / (one + np.exp(-x[i])) * y[i]
    return out


def silu_jax(x, y):
    return jax.nn.silu(x) * y


def silu_torch(x, y):
    return torch.nn.functional.silu(x) * y


PROGRAMS = (
    (mixed, mixed_numba, mixed_jax, mixed_torch),
    (gauss, gauss_numba, gauss, gauss_torch),
    (gelu, gelu_numba, gelu_jax, gelu_torch),
    (silu, silu_numba, silu_jax, silu_torch),
)
TARGETS = {
    "f32": (Target(1.5, "jax"), Target(2.0, "torch.compile"), Target(8.0, "numpy")),
    "f64": (Target(1.2, "jax"), Target(4.0, "numpy")),
}

# --- Fifty operations ----------------------------------------------------------------------------


def chain(x, y):
    a = (x + y) * 0.5 - x * 0.25 + 1.0
    b = np.maximum(a, y) * 0.75 - np.minimum(a, x) * 0.5
    c = np.sqrt(np.abs(b) + 1.0) - a * b * 0.125
    d = (c - x) * (c + y) * 0.0625 + a
    e = np.abs(d - b) / (1.0 + np.abs(c)) - 0.5
    f = np.where(e > 0.0, e * a, d * 0.25) + c * 0.5
    g = np.maximum(f - e, -4.0) * np.minimum(f + e, 4.0) * 0.25
    h = np.sqrt(g * g + f * f + 1.0) - np.abs(g - y)
    return (h + e * 0.5) / (2.0 + np.abs(d)) - (a + b) * 0.125


def chain_numba(x, y):
    out = np.empty_like(x)
    for i in prange(x.size):
        a = (x[i] + y[i]) * 0.5 - x[i] * 0.25 + 1.0
        b = max(a, y[i]) * 0.75 - min(a, x[i]) * 0.5
        c = np.sqrt(abs(b) + 1.0) - a * b * 0.125
        d = (c - x[i]) * (c + y[i]) * 0.0625 + a
        e = abs(d - b) / (1.0 + abs(c)) - 0.5
        f = (e * a if e > 0.0 else d * 0.25) + c * 0.5
        g = max(f - e, -4.0) * min(f + e, 4.0) * 0.25
        h = np.sqrt(g * g + f * f + 1.0) - abs(g - y[i])
        out[i] = (h + e * 0.5) / (2.0 + abs(d)) - (a + b) * 0.125
    return out


def chain_torch(x, y):
    a = (x + y) * 0.5 - x * 0.25 + 1.0
    b = torch.maximum(a, y) * 0.75 - torch.minimum(a, x) * 0.5
    c = torch.sqrt(torch.abs(b) + 1.0) - a * b * 0.125
    d = (c - x) * (c + y) * 0.0625 + a
    e = torch.abs(d - b) / (1.0 + torch.abs(c)) - 0.5
    f = torch.where(e > 0.0, e * a, d * 0.25) + c * 0.5
    g = torch.clamp(f - e, min=-4.0) * torch.clamp(f + e, max=4.0) * 0.25
    h = torch.sqrt(g * g + f * f + 1.0) - torch.abs(g - y)
    return (h + e * 0.5) / (2.0 + torch.abs(d)) - (a + b) * 0.125


# --- Cases ---------------------------------------------------------------------------------------


def two(dtype):
    return lambda rng, n: (normal(rng, n, dtype), normal(rng, n, dtype))


def elementwise_cases():
    for program, numba, jax_way, torch_way in PROGRAMS:
        for dtype in DTYPES:
            for size in (10**6, 16 * 10**6):
                yield Case(
                    name=f"{program.__name__}-{dtype}-{size_name(size)}",
                    row=f"elementwise, {dtype}",
                    program=program,
                    inputs=two(DTYPES[dtype]),
                    size=(size,),
                    tiny=(37,),
                    numba=Way(numba, parallel=True),
                    jax=jax_way,
                    torch=torch_way,
                    torch_compile=dtype == "f32",
                    targets=TARGETS[dtype],
                    short=program is mixed and (size, dtype) != (16 * 10**6, "f64"),
                )


CASES = [
    Case(
        name="add-f32-1024",
        row="call overhead",
        program=add,
        inputs=two(np.float32),
        size=(1024,),
        tiny=(16,),
        numba=add,
        jax=add,
        torch=add,
        targets=(Target(10.0, "jax"),),
        at_most=0.5e-6,
        short=True,
    ),
    *elementwise_cases(),
    Case(
        name="chain-f64-100MB",
        row="chain of 50 ops, 100 MB",
        program=chain,
        inputs=two(np.float64),
        size=(100 * 2**20 // 8,),
        tiny=(37,),
        numba=Way(chain_numba, parallel=True),
        jax=chain,
        torch=chain_torch,
        memory=True,
        short=True,
    ),
]
