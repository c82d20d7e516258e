"""Along an axis: softmax, layer norm, logsumexp, variance. Over everything: sum, max, argmax, cumsum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Case, Target

if TYPE_CHECKING:
    import jax
    import torch


# --- Along an axis -------------------------------------------------------------------------------


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def softmax_jax(x, axis):
    return jax.nn.softmax(x, axis=axis)


def softmax_torch(x, axis):
    return torch.softmax(x, dim=axis)


def layernorm(x, gain, bias, axis):
    centred = x - x.mean(axis=axis, keepdims=True)
    variance = (centred * centred).mean(axis=axis, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * gain + bias


def layernorm_torch(x, gain, bias, axis):
    if axis == 1:
        return torch.nn.functional.layer_norm(x, gain.shape[1:], gain[0], bias[0])
    variance, mean = torch.var_mean(x, dim=axis, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * gain + bias


def logsumexp(x, axis):
    top = x.max(axis=axis)
    return top + np.log(np.exp(x - np.expand_dims(top, axis)).sum(axis=axis))


def logsumexp_jax(x, axis):
    return jax.nn.logsumexp(x, axis=axis)


def logsumexp_torch(x, axis):
    return torch.logsumexp(x, dim=axis)


def variance(x, axis):
    return x.var(axis=axis)


def variance_torch(x, axis):
    return x.var(dim=axis, correction=0)


def matrix(axis):
    return lambda rng, rows, columns: (rng.standard_normal((rows, columns), np.float32), axis)


def layer(axis):
    def inputs(rng, rows, columns):
        shape = (1, columns) if axis == 1 else (rows, 1)
        arrays = (rng.standard_normal(s, np.float32) for s in ((rows, columns), shape, shape))
        return (*arrays, axis)

    return inputs


AXIS_PROGRAMS = (
    (softmax, softmax_jax, softmax_torch, matrix),
    (layernorm, layernorm, layernorm_torch, layer),
    (logsumexp, logsumexp_jax, logsumexp_torch, matrix),
    (variance, variance, variance_torch, matrix),
)

# --- Over everything -----------------------------------------------------------------------------


def total(x):
    return x.sum()


def largest(x):
    return x.max()


def largest_place(x):
    return x.argmax()


def running_total(x):
    return np.cumsum(x)


def running_total_torch(x):
    return torch.cumsum(x, 0)


WHOLE_PROGRAMS = {
    "sum": (total, total),
    "max": (largest, largest),
    "argmax": (largest_place, largest_place),
    "cumsum": (running_total, running_total_torch),
}


def uniform(rng, n, dtype):
    return (rng.random(n, dtype) + dtype(0.5),)


def bell(rng, n, dtype):
    return (rng.standard_normal(n, dtype),)  # far out no two are equal: one argmax


def whole_case(name, dtype):
    program, torch_way = WHOLE_PROGRAMS[name]
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    draw = uniform if name == "sum" else bell
    return Case(
        name=f"{name}-{dtype}-16M",
        row="whole-array reductions, 16 M",
        program=program,
        inputs=lambda rng, n: draw(rng, n, kind),
        size=(16 * 10**6,),
        tiny=(41,),
        jax=program,
        torch=torch_way,
        targets=(Target(1.0, "numpy", "jax"),),
        # One after the other, as NumPy adds, 16 M single-precision sums round differently than in blocks.
        tolerance=1e-3 if (name, dtype) == ("cumsum", "f32") else None,
        throughput=name == "sum",
        short=(name, dtype) in (("sum", "f64"), ("argmax", "f32")),
    )


CASES = [
    *(
        Case(
            name=f"{program.__name__}-axis{axis}-f32",
            row="along an axis, f32 4096 x 1024",
            program=program,
            inputs=inputs(axis),
            size=(4096, 1024),
            tiny=(6, 5),
            jax=jax_way,
            torch=torch_way,
            static=("axis",),
            targets=(Target(1.2, "jax", "torch"),),
            short=(program, axis) in ((softmax, 1), (layernorm, 1), (variance, 0)),
        )
        for program, jax_way, torch_way, inputs in AXIS_PROGRAMS
        for axis in (0, 1)
    ),
    *(whole_case(name, dtype) for name in WHOLE_PROGRAMS for dtype in ("f32", "f64")),
]
