"""Parameter servers, backup workers with a straggler, and tables over ranks."""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import pytest

from dsl.mpi.world import world
from dsl.optim import SGD, Adagrad, Momentum
from dsl.parallel.embeddings import ShardedEmbedding
from dsl.parallel.servers import BackupWorkers, ParameterServer

RANK, SIZE = world().rank, world().size
TRUE = np.array([[1.0], [2.0], [3.0]])
START = {"w": np.zeros((3, 1)), "b": np.zeros(1)}


def loss(params, x, y):
    return ((x @ params["w"] + params["b"] - y) ** 2).mean()


def batches(pause: float = 0.0):
    rng = np.random.default_rng(RANK)
    while True:
        x = rng.normal(size=(16, 3))
        time.sleep(pause)
        yield x, x @ TRUE + 0.5


def check_learned(params) -> None:
    np.testing.assert_allclose(params["w"], TRUE, atol=1e-3)
    np.testing.assert_allclose(params["b"], 0.5, atol=1e-3)


def asynchronous() -> None:
    trainer = ParameterServer(loss, SGD(0.05), START)
    check_learned(trainer.train(batches(), 300))
    if RANK == 0:
        assert trainer.counts.steps == trainer.counts.applied == 300
    finite = ParameterServer(loss, SGD(0.05), START)  # workers that run out of batches end the run
    finite.train(itertools.islice(batches(), 5), 10_000)
    if RANK == 0:
        assert finite.counts.applied == 5 * max(1, SIZE - 1), finite.counts


def synchronous(steps: int) -> None:
    """Exactly `needed` gradients count in each step; those of a straggler are dropped, and it comes along again."""
    workers = max(1, SIZE - 1)
    needed = max(1, workers - 1)
    trainer = BackupWorkers(loss, SGD(0.05), START, needed=needed)
    slow = SIZE > 2 and RANK == SIZE - 1
    check_learned(trainer.train(batches(0.01 if slow else 0.0), steps))
    if RANK == 0:
        counts = trainer.counts
        assert counts.steps == steps
        assert counts.applied == steps * (needed if SIZE > 1 else 1), counts
        if SIZE > 2:
            assert counts.dropped > 0, counts


def again() -> None:
    """Another call of `train` goes on, with the optimiser's state."""
    workers = max(1, SIZE - 1)
    one, two = (BackupWorkers(loss, Momentum(0.05), START, needed=workers) for _ in range(2))
    same = itertools.repeat(next(batches()))
    one.train(same, 7)
    found, expected = one.train(same, 8), two.train(same, 15)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-12)
    if RANK == 0:
        assert one.counts.steps == 15, one.counts
        assert one.counts.applied == 15 * workers, one.counts


def too_few() -> None:
    """Training ends when fewer workers than are needed have batches."""
    workers = max(1, SIZE - 1)
    trainer = BackupWorkers(loss, SGD(0.05), START, needed=workers)
    trainer.train(itertools.islice(batches(), 2 + RANK), 100)
    if RANK == 0:
        assert trainer.counts.steps == (3 if SIZE > 1 else 2), trainer.counts


def tables() -> None:
    for strategy, rows in itertools.product(("mod", "div"), (1, 2, 5, 17)):
        table = ShardedEmbedding(rows, 4, strategy=strategy, optimizer=SGD(1.0), dtype=np.float64)
        before = table.gather()
        rng = np.random.default_rng(rows)
        everyone = [rng.integers(0, rows, size=(3, k % 3)) for k in range(SIZE)]
        gradients = [rng.normal(size=(*ids.shape, 4)) for ids in everyone]
        ids = everyone[RANK]
        np.testing.assert_array_equal(table.lookup(ids), before[ids])
        table.update(ids, gradients[RANK])
        after = before.copy()
        for some, g in zip(everyone, gradients):
            np.subtract.at(after, some.reshape(-1), g.reshape(-1, 4))
        np.testing.assert_allclose(table.gather(), after, atol=1e-12)
    assert table.lookup(np.int64(3)).shape == (4,)
    once = ShardedEmbedding(6, 2, optimizer=Adagrad(0.1), dtype=np.float64)
    before = once.gather()
    once.update([2, 2], np.ones((2, 2)))  # of all ranks: one update of row 2
    total = 2.0 * SIZE
    expected = before[2] - 0.1 * total / np.sqrt(0.1 + total**2)
    np.testing.assert_allclose(once.gather()[2], expected, rtol=1e-6)
    for wrong in ([-1], [6]):
        with pytest.raises(IndexError):
            once.lookup(wrong)


if __name__ == "__main__":
    asynchronous()
    synchronous(int(sys.argv[1]))
    again()
    too_few()
    tables()
    print("done")
