"""A parameter server that does not wait for its slowest worker.

    mpirun -n 4 python examples/parameter_server.py

Rank 0 has the parameters, the others compute gradients on batches of their own. With `BackupWorkers` a step takes the first gradients
that come, of all workers but one: a worker that is late holds nobody up, its gradient is dropped, and it goes on with the parameters
of the step that the others have reached. Here the last rank is slow on purpose.
"""

import time

import numpy as np

import dsl
from dsl import parallel

FEATURES, ROWS, STEPS, PAUSE = 8, 32, 300, 0.02
RANK, SIZE = parallel.rank(), parallel.size()
SLOW = SIZE - 1 if SIZE > 2 else None  # one worker alone cannot be done without
TRUTH = np.linspace(-2.0, 2.0, FEATURES)


def loss(params, x, y):
    """Logistic regression: the mean of -log p(y)."""
    score = (x @ params["w"] + params["b"]) * (2 * y - 1)
    return np.mean(np.logaddexp(0.0, -score))


def make_batch(rng, rows=ROWS):
    x = rng.normal(size=(rows, FEATURES))
    likely = 1 / (1 + np.exp(-(x @ TRUTH + 0.5)))
    return x, (rng.uniform(size=rows) < likely).astype(float)


def batches():
    """Return batches of this worker, for ever; those of the slow one come late."""
    rng = np.random.default_rng(RANK)
    while True:
        if RANK == SLOW:
            time.sleep(PAUSE)
        yield make_batch(rng)


def main():
    first = {"w": np.zeros(FEATURES), "b": np.zeros(())}
    trainer = parallel.BackupWorkers(loss, dsl.optim.Adam(0.05), first)
    params = trainer.train(batches(), STEPS)
    everywhere = parallel.allgather(params["w"])
    assert (everywhere == everywhere[0]).all()  # all ranks end with the same parameters
    if RANK > 0:
        return
    counts = trainer.counts
    print(
        f"{counts.steps} steps, each with the first {trainer.needed} of {max(1, SIZE - 1)} gradients"
    )
    print(f"{counts.applied} gradients counted, {counts.dropped} dropped")
    for worker in range(1, SIZE):
        counted = counts.by_worker.get(worker, 0)
        print(f"  rank {worker}: {counted} counted" + (", the slow one" if worker == SLOW else ""))
    assert (counts.steps, counts.applied) == (STEPS, STEPS * trainer.needed)
    if SLOW is not None:
        assert counts.by_worker.get(SLOW, 0) < STEPS / 2
    test = make_batch(np.random.default_rng(99), 4000)
    value, best = (float(loss(p, *test)) for p in (params, {"w": TRUTH, "b": 0.5}))
    assert value < best + 0.03, (value, best)
    print(f"loss on new rows {value:.3f}; with the true weights {best:.3f}")


if __name__ == "__main__":
    main()
