"""Programs that move data and compute little: the results are arrays of their own, not views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.commands.bench.case import Case, Target

if TYPE_CHECKING:
    import jnp
    import torch


def transpose(x):
    return np.transpose(x).copy()


def transpose_torch(x):
    return x.t().contiguous()


def concatenate_rows(x, y, z):
    return np.concatenate((x, y, z), axis=0)


def concatenate_rows_torch(x, y, z):
    return torch.cat((x, y, z), dim=0)


def concatenate_columns(x, y, z):
    return np.concatenate((x, y, z), axis=1)


def concatenate_columns_torch(x, y, z):
    return torch.cat((x, y, z), dim=1)


def pad_zeros(x):
    return np.pad(x, 16)


def pad_zeros_torch(x):
    return torch.nn.functional.pad(x, (16, 16, 16, 16))


def pad_edge(x):
    return np.pad(x, 16, mode="edge")


def pad_edge_torch(x):
    return torch.nn.functional.pad(x[None], (16, 16, 16, 16), mode="replicate")[0]


def every_other(x):
    return x[::2, 1::3].copy()


def every_other_torch(x):
    return x[::2, 1::3].contiguous()


def flip(x):
    return x[::-1, ::-1].copy()


def flip_torch(x):
    return torch.flip(x, (0, 1))


def halve(x):
    """Haar's transform of the rows, which reads even and odd columns."""
    return np.concatenate((x[:, ::2] + x[:, 1::2], x[:, ::2] - x[:, 1::2]), axis=1) * 0.5


def halve_torch(x):
    return torch.cat((x[:, ::2] + x[:, 1::2], x[:, ::2] - x[:, 1::2]), dim=1) * 0.5


def gather(x, index):
    return x[index]


def scatter_add(x, index, values):
    out = x.copy()
    np.add.at(out, index, values)
    return out


def scatter_add_jax(x, index, values):
    return jnp.asarray(x).at[index].add(values)


def scatter_add_torch(x, index, values):
    return x.clone().index_add_(0, index, values)


def square(rng, n):
    return (rng.standard_normal((n, n), np.float32),)


def three(rng, n):
    return tuple(rng.standard_normal((n, n), np.float32) for _ in range(3))


def pick_elements(rng, n):
    return rng.standard_normal(n, np.float32), rng.integers(0, n, n)


def pick_rows(rng, rows, width, picks):
    return rng.standard_normal((rows, width), np.float32), rng.integers(0, rows, picks)


def add_elements(rng, bins, n):
    values = rng.standard_normal(n, np.float32)
    return np.zeros(bins, np.float32), rng.integers(0, bins, n), values


def add_rows(rng, rows, width, picks):
    table, index = pick_rows(rng, rows, width, picks)
    return table, index, rng.standard_normal((picks, width), np.float32)


def moving(name, program, torch_way, inputs, size, tiny, jax_way=None, short=False):
    return Case(
        name=name,
        row="moving data",
        program=program,
        inputs=inputs,
        size=size,
        tiny=tiny,
        jax=jax_way or program,
        torch=torch_way,
        targets=(Target(1.0, "numpy", "jax"),),
        tolerance=1e-4 if program is scatter_add else None,
        short=short,
    )


CASES = [
    moving("transpose", transpose, transpose_torch, square, (4096,), (5,), short=True),
    moving("concatenate-axis0", concatenate_rows, concatenate_rows_torch, three, (2048,), (5,)),
    moving(
        "concatenate-axis1", concatenate_columns, concatenate_columns_torch, three, (2048,), (5,)
    ),
    moving("pad-zeros", pad_zeros, pad_zeros_torch, square, (2048,), (5,)),
    moving("pad-edge", pad_edge, pad_edge_torch, square, (2048,), (5,)),
    moving("slice-strided", every_other, every_other_torch, square, (4096,), (6,)),
    moving("slice-reversed", flip, flip_torch, square, (4096,), (5,)),
    moving("slice-haar", halve, halve_torch, square, (4096,), (6,)),
    moving("gather-elements", gather, gather, pick_elements, (4 * 10**6,), (20,)),
    moving("gather-rows", gather, gather, pick_rows, (10**5, 64, 2 * 10**5), (20, 3, 9)),
    moving(
        "scatter-add-elements",
        scatter_add,
        scatter_add_torch,
        add_elements,
        (10**6, 4 * 10**6),
        (5, 20),
        scatter_add_jax,
        short=True,
    ),
    moving(
        "scatter-add-rows",
        scatter_add,
        scatter_add_torch,
        add_rows,
        (10**5, 64, 2 * 10**5),
        (7, 3, 9),
        scatter_add_jax,
    ),
]
