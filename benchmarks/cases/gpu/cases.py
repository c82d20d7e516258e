"""The programs of `python -m dsl bench cuda`: those of the CPU's benchmark at a GPU's sizes, and some of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Way
from dsl.commands.bench.gpu_case import BAR, GpuCase, on_gpu
from dsl.commands.bench.load import case_named

if TYPE_CHECKING:
    import jnp
    import torch

MANY, SOME = (1 << 24,), (1 << 18,)
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


# --- Elementwise ---------------------------------------------------------------------------------


def polynomial(x, y):
    return ((x * 0.5 + y) * x - 0.25) * y + 1


def gelu(x, y):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) + y


def gelu_torch(x, y):
    return torch.nn.functional.gelu(x, approximate="tanh") + y


def two(dtype):
    return lambda rng, n: tuple(rng.standard_normal(n, np.float32).astype(dtype) for _ in range(2))


def elementwise(program, torch_way, dtype):
    return GpuCase(
        name=f"{program.__name__}-{dtype}",
        row="elementwise",
        program=program,
        inputs=two(DTYPES[dtype]),
        size=MANY,
        small=SOME,
        tiny=(37,),
        jax=program,
        torch=torch_way,
        torch_compile=True,
        tolerance=1e-2 if dtype == "f16" else None,
        bar=BAR,
    )


# --- Reductions ----------------------------------------------------------------------------------


def sum_along(x, axis):
    return x.sum(axis=axis)


def max_along(x, axis):
    return x.max(axis=axis)


def max_along_torch(x, axis):
    return x.amax(axis)


def reduction(program, torch_way, axis):
    return GpuCase(
        name=f"{program.__name__[:3]}-{'columns' if axis == 0 else 'rows'}-f32",
        row="reductions",
        program=program,
        inputs=lambda rng, m, n: (rng.standard_normal((m, n), np.float32), axis),
        size=(16384, 1024) if axis == 0 else (4096, 4096),
        small=(1024, 256) if axis == 0 else (64, 4096),
        tiny=(6, 5),
        jax=program,
        torch=torch_way,
        static=("axis",),
        tolerance=1e-4,
        bar=BAR,
    )


# --- Neighbours, counts, loops -------------------------------------------------------------------


def blur(x):
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return 0.2 * (around + x[1:-1, 1:-1])


def bincount(x, bins):
    return np.bincount(x, minlength=bins)


def bincount_jax(x, bins):
    return jnp.bincount(x, length=bins)


def histogram(x):
    return np.histogram(x, bins=64, range=(-4.0, 4.0))[0]


def histogram_torch(x):
    return torch.histc(x, 64, -4.0, 4.0).to(torch.int64)


def relax(x, steps):
    """A loop around one kernel."""
    for _ in range(steps):
        x = x + 0.1 * (np.tanh(x) - x)
    return x


def relax_jax(x, steps):
    for _ in range(steps):
        x = x + 0.1 * (jnp.tanh(x) - x)
    return x


def relax_torch(x, steps):
    for _ in range(steps):
        x = x + 0.1 * (torch.tanh(x) - x)
    return x


def square(rng, n):
    return (rng.standard_normal((n, n), np.float32),)


def factors(rng, m, k, n):
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def other(name, row, program, inputs, size, small, tiny, **more):
    return GpuCase(
        name=name,
        row=row,
        program=program,
        inputs=inputs,
        size=size,
        small=small,
        tiny=tiny,
        **more,
    )


# --- Cases ---------------------------------------------------------------------------------------


def distinct(x, index):
    """The bytes that a gather needs: what the index names, once, and the index."""
    return np.unique(index).size * x[0].nbytes + index.nbytes


def along(case, small, **more):
    return on_gpu(case_named(case), small=small, row="along an axis", bar=BAR, **more)


CASES = [
    *(elementwise(polynomial, polynomial, dtype) for dtype in DTYPES),
    *(elementwise(gelu, gelu_torch, dtype) for dtype in DTYPES),
    on_gpu(case_named("mixed-f32-16M"), name="mixed-f32", size=MANY, small=SOME, bar=BAR),
    on_gpu(case_named("chain-f64-100MB"), name="chain-f64", size=MANY, small=SOME, bar=BAR),
    *(
        along(f"{name}-axis{axis}-f32", (1024, 256) if axis == 0 else (128, 1024))
        for name in ("softmax", "logsumexp")
        for axis in (1, 0)
    ),
    # All rows, or columns, since blocks take several of them where there are many.
    along("layernorm-axis1-f32", (4096, 1024)),
    along("layernorm-axis0-f32", (1024, 1024)),
    on_gpu(case_named("sum-f32-16M"), name="sum-f32", size=MANY, small=SOME, bar=BAR),
    on_gpu(case_named("max-f32-16M"), name="max-f32", size=MANY, small=SOME, bar=BAR),
    *(reduction(sum_along, sum_along, axis) for axis in (1, 0)),
    *(reduction(max_along, max_along_torch, axis) for axis in (1, 0)),
    on_gpu(case_named("cumsum-f32-16M"), name="cumsum-f32", size=MANY, small=SOME),
    on_gpu(case_named("transpose"), size=(4096,), small=(512,)),
    on_gpu(case_named("concatenate-axis0"), size=(2048,), small=(256,)),
    on_gpu(case_named("concatenate-axis1"), size=(2048,), small=(256,)),
    on_gpu(case_named("pad-zeros"), size=(4096,), small=(512,)),
    on_gpu(
        case_named("gather-elements"), size=(1 << 22,), small=(1 << 17,), needed=distinct,
    ),
    on_gpu(
        case_named("gather-rows"), size=(10**5, 64, 2 * 10**5), small=(1000, 64, 2000), needed=distinct,
    ),
    on_gpu(case_named("scatter-add-elements"), size=(10**6, 1 << 22), small=(1 << 15, 1 << 17)),
    other("bincount", "counts", bincount, lambda rng, n, bins: (rng.integers(0, bins, n), bins),
          (1 << 24, 256), (1 << 18, 256), (50, 7), static=("bins",), torch=None, jax=bincount_jax),
    other("histogram", "counts", histogram, lambda rng, n: (rng.standard_normal(n, np.float32),),
          MANY, SOME, (50,), torch=histogram_torch, mismatches=0.05),
    other("blur-f32", "stencil", blur, square, (4096,), (512,), (5,), torch=blur, jax=blur),
    other("relax-loop-f32", "loop", relax, lambda rng, n, steps: (rng.standard_normal(n, np.float32), steps),
          (1 << 24, 8), (1 << 18, 8), (9, 3), passes=8, torch=relax_torch, jax=Way(relax_jax, static_argnames="steps")),
    on_gpu(case_named("heat-f64-500"), name="heat-loop-f64", size=(4096, 10), small=(256, 10), passes=10),
    on_gpu(case_named("dense-f32-1024"), name="dense-f32", size=(1024,), small=(256,)),
    # Few terms and many tiles, so that the tiles are as large as at full size.
    on_gpu(case_named("matmul-f32-2048"), name="matmul-f32", inputs=factors, size=(2048, 2048, 2048),
           small=(1280, 32, 1280), tiny=(5, 4, 3)),
]  # fmt: skip
