"""Train a classifier on all ranks at once, and get the same numbers as one rank with the whole batch.

    mpirun -n 4 python examples/data_parallel.py

Every rank has a copy of the parameters and a share of each batch. `DataParallel` averages the gradients, in buckets that travel
while earlier layers are still being differentiated, so all ranks make the same step. Rank 0 also trains alone, to compare.
"""

import itertools

import numpy as np

import dsl
from dsl import parallel

CLASSES, HIDDEN, STEPS = 3, 32, 160
BATCH = 48  # rows, which 1, 2, 3, 4, 6, ... ranks can share


def spirals(rng, n):
    """Return n points on three arms of a spiral, and which arm each is on."""
    arm = rng.integers(0, CLASSES, n)
    radius = rng.uniform(0.1, 1.0, n)
    angle = 4.0 * radius + 2 * np.pi * arm / CLASSES + rng.normal(0, 0.1, n)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), arm


def first_params():
    rng = np.random.default_rng(1)
    sizes = [2, HIDDEN, HIDDEN, CLASSES]
    pairs = itertools.pairwise(sizes)
    return [{"w": rng.normal(0, n**-0.5, (n, m)), "b": np.zeros(m)} for n, m in pairs]


def scores(params, x):
    for layer in params[:-1]:
        x = np.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, x, arm):
    logits = scores(params, x)
    logits = logits - logits.max(axis=1, keepdims=True)
    right = np.take_along_axis(logits, arm[:, None], axis=1)[:, 0]
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - right)


def share(array):
    """Return this rank's rows of a batch."""
    return np.split(array, parallel.size())[parallel.rank()]


def train(batches):
    """Train on all ranks; return the loss of each step and the parameters."""
    training = parallel.DataParallel(loss, dsl.optim.Adam(0.01))
    params, state = training.init(first_params())
    losses = []
    for x, arm in batches:
        value, params, state = training.step(params, state, share(x), share(arm))
        losses.append(float(value))
    return losses, params


def train_alone(batches):
    """The same on this rank only, with whole batches."""
    optimizer, params = dsl.optim.Adam(0.01), first_params()
    state, step = optimizer.init(params), optimizer.minimize(loss)
    losses = []
    for x, arm in batches:
        value, params, state = step(params, state, x, arm)
        losses.append(float(value))
    return losses, params


def main():
    rng = np.random.default_rng(0)
    batches = [spirals(rng, BATCH) for _ in range(STEPS)]
    losses, params = train(batches)
    if parallel.rank() > 0:
        return
    for step in (*range(0, STEPS, 40), STEPS - 1):
        print(f"step {step:3d}: loss {losses[step]:.4f}")
    expected, alone = train_alone(batches)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(params[0]["w"], alone[0]["w"], rtol=1e-5, atol=1e-8)
    x, arm = spirals(np.random.default_rng(9), 1000)
    right = np.mean(scores(params, x).argmax(axis=1) == arm)
    assert right > 0.9, right
    print(
        f"{parallel.size()} rank(s), {BATCH // parallel.size()} rows each: equal to one rank with {BATCH} rows"
    )
    print(f"{right:.1%} of new points are on the right arm")


if __name__ == "__main__":
    main()
