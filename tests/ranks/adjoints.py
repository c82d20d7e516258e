"""Derivatives of every collective against finite differences: all ranks move their inputs, all losses are added up."""

from __future__ import annotations

import sys

import numpy as np

import dsl
from dsl import parallel

RANK, SIZE = parallel.rank(), parallel.size()
ROOT = SIZE - 1
AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
WEIGHT = np.random.default_rng(100 + RANK).normal(size=(3,))
STEP = 1e-6


def loss(y):
    return (np.sin(y) * WEIGHT).sum() + (y * y).sum() * (RANK + 1)


def row_of_ranks(x):
    return parallel.sendrecv(x, RANK + 1 if RANK + 1 < SIZE else None, RANK - 1 if RANK else None)


def message(x):
    """Rank 0 sends to the last; each uses what it has."""
    if SIZE == 1:
        return x
    if RANK == 0:
        parallel.send(x * 2, ROOT)
        return x
    return parallel.recv(x, 0) * x if RANK == ROOT else x


def unused_message(x):
    """Nobody needs what is received: the way back happens all the same."""
    if SIZE > 1 and RANK == 0:
        parallel.send(x, ROOT, tag=7)
    if SIZE > 1 and RANK == ROOT:
        parallel.recv(x, 0, tag=7)
    return x


def root_alone(x):
    """Only the root's loss has the result."""
    y = parallel.reduce(np.cos(x), "sum", ROOT)
    return y if RANK == ROOT else x


def one_rank_depends(x):
    """What others give does not depend on their arguments."""
    return parallel.allreduce(x * x if RANK == 0 else np.ones(3))


def loop(x):
    for _ in range(3):
        x = parallel.allreduce(np.sin(x), "mean") + x
    return x


def while_loop(x):
    total = x
    while parallel.allreduce(np.abs(total).max(), "max") < 20.0:
        total = total + parallel.sendrecv(total, AFTER, BEFORE) + 1.0
    return total


def messages_in_a_loop(x):
    """Rank 0 has no result of the loop that it sends in."""
    for i in range(3):
        if SIZE > 1 and RANK == 0:
            parallel.send(x * (i + 1), ROOT)
        if SIZE > 1 and RANK == ROOT:
            x = x + parallel.recv(x, 0)
    return x


def branch(x):
    if parallel.allreduce(x.sum()) > -1e9:
        y = parallel.allreduce(x * x)
    else:
        y = x
    return y


def checkpointed(x):
    return dsl.checkpoint(lambda x: np.sin(parallel.allreduce(np.cos(x))))(x)


def checkpointed_loop(x):
    return dsl.checkpoint(loop)(x)


def rows(x):
    return np.stack([x * (k + 1) + k for k in range(SIZE)])


FUNCTIONS = {
    **{f"allreduce {how}": lambda x, how=how: parallel.allreduce(x, how) for how in ("sum", "mean", "max", "min", "prod")},
    **{f"reduce {how}": lambda x, how=how: parallel.reduce(x, how, ROOT) for how in ("sum", "mean", "max", "prod")},
    **{
        f"reduce_scatter {how}": lambda x, how=how: parallel.reduce_scatter(rows(x), how)
        for how in ("sum", "mean", "min", "prod")
    },
    "broadcast": lambda x: parallel.broadcast(x * x, ROOT),
    "gather": lambda x: parallel.gather(x, 0),
    "allgather": parallel.allgather,
    "scatter": lambda x: parallel.scatter(rows(x), ROOT),
    "alltoall": lambda x: parallel.alltoall(rows(x)),
    "ring": lambda x: parallel.sendrecv(x, AFTER, BEFORE),
    "vmap": lambda x: dsl.vmap(lambda v: parallel.allreduce(v) * v)(x),
    **{
        f.__name__: f
        for f in (
            row_of_ranks, message, unused_message, root_alone, one_rank_depends, loop, while_loop, messages_in_a_loop, branch,
            checkpointed, checkpointed_loop,
        )
    },
}  # fmt: skip


def total(x: float) -> float:
    return float(parallel.allreduce(float(x)))


def directions() -> list[np.ndarray]:
    rng = np.random.default_rng(7 + RANK)
    everybody = rng.normal(size=3)
    return [everybody, everybody if RANK == 0 else np.zeros(3)]


def check_first_order(name: str, point: np.ndarray) -> None:
    function = FUNCTIONS[name]

    def f(x):
        return loss(function(x))

    @dsl.jit
    def everything(x, v):
        return f(x), dsl.grad(f)(x), dsl.jvp(f, (x,), (v,))[1]

    for v in directions():
        _, g, moved = everything(point, v)
        more, less = (everything(point + step * v, v)[0] for step in (STEP, -STEP))
        expected = (total(more) - total(less)) / (2 * STEP)
        np.testing.assert_allclose(
            total((g * v).sum()), expected, rtol=1e-5, atol=1e-6, err_msg=name
        )
        np.testing.assert_allclose(
            total(moved), expected, rtol=1e-5, atol=1e-6, err_msg=f"jvp {name}"
        )


def check_second_order(name: str, point: np.ndarray) -> None:
    function = FUNCTIONS[name]
    v = directions()[0]

    @dsl.jit
    def both(x):
        gradient = dsl.grad(lambda x: loss(function(x)))
        return gradient(x), dsl.grad(lambda x: (gradient(x) * v).sum())(x)

    more, less = (both(point + step * v)[0] for step in (STEP, -STEP))
    found = both(point)[1]
    np.testing.assert_allclose(
        found, (more - less) / (2 * STEP), rtol=1e-4, atol=1e-4, err_msg=f"second {name}"
    )


def check_special_points() -> None:
    """Ties share the derivative; a product with zeros has one."""
    ones = np.ones(2)
    g = dsl.grad(lambda x: parallel.allreduce(x, "max").sum() * (1.0 if RANK == 0 else 0.0))(ones)
    np.testing.assert_allclose(g, ones / SIZE)
    zero = np.array([0.0 if RANK == 0 else 2.0])
    g = dsl.grad(lambda x: parallel.allreduce(x, "prod").sum() * (1.0 if RANK == 0 else 0.0))(zero)
    np.testing.assert_allclose(g, [2.0 ** (SIZE - 1) if RANK == 0 else 0.0])


def check_complex() -> None:
    z = np.array([1.0 + 2.0j * RANK, -0.5j])
    g = dsl.grad(lambda z: (np.abs(parallel.allreduce(z)) ** 2).sum())(z)
    whole = sum(np.array([1.0 + 2.0j * r, -0.5j]) for r in range(SIZE))
    np.testing.assert_allclose(g, SIZE * 2 * whole.conj())


POINT = np.random.default_rng(RANK).normal(size=3) + 0.1
SECOND = (
    "allreduce sum", "allreduce mean", "allreduce prod", "allgather", "ring", "message", "loop",
)  # fmt: skip
for case in sys.argv[1:] or FUNCTIONS:
    check_first_order(case, POINT)
    if case in SECOND:
        check_second_order(case, POINT)
check_special_points()
check_complex()
parallel.barrier()
print("well", RANK)
