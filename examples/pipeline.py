"""A network whose layers are on different ranks, trained on micro-batches that follow each other through it.

    mpirun -n 4 python examples/pipeline.py

Every rank calls the same compiled function and runs the part of it that is placed there; values cross between ranks where
the layers meet. Nothing in the loop over micro-batches depends on the trip before but the sums of the gradients, so while one
rank works on a micro-batch the rank before it is at the next. Weights, their gradients and updates never leave their rank.
"""

import numpy as np

import dsl
from dsl import parallel

LAYERS, WIDTH, MICRO_BATCHES, ROWS, STEPS, RATE = 4, 16, 6, 16, 60, 0.2
OWNERS = [k * parallel.size() // LAYERS for k in range(LAYERS)]
PLACES = [f"/rank:{owner}/cpu:0" for owner in OWNERS]


def layer(w, x):
    return x + np.tanh(x @ w)


def error(x, y):
    return np.mean((x - y) ** 2)


def forward_and_back(weights, x, y):
    """Return the error of a micro-batch and its gradients, each computed where its layer is."""
    backward = []
    for place, w in zip(PLACES, weights):
        with dsl.device(place):
            x, back = dsl.vjp(layer, w, x)
            backward.append(back)
    with dsl.device(PLACES[-1]):
        value, g = dsl.value_and_grad(error)(x, y)
    grads = []
    for place, back in zip(PLACES[::-1], backward[::-1]):
        with dsl.device(place):
            grad, g = back(g)
            grads.append(grad)
    return value, grads[::-1]


@dsl.jit
def step(weights, xs, ys):
    """Return the error over all micro-batches, on rank 0, and the new weights, each where it is used."""
    total, sums = 0.0, [np.zeros((WIDTH, WIDTH))] * LAYERS
    for i in range(MICRO_BATCHES):
        value, grads = forward_and_back(weights, xs[i], ys[i])
        with dsl.device(PLACES[-1]):
            total = total + value
        sums = [at(place, np.add, s, g) for place, s, g in zip(PLACES, sums, grads)]
    with dsl.device(PLACES[0]):
        mean = total / MICRO_BATCHES
    return mean, [at(place, descend, w, s) for place, w, s in zip(PLACES, weights, sums)]


def at(place, function, *args):
    with dsl.device(place):
        return function(*args)


def descend(w, total):
    return w - RATE * total / MICRO_BATCHES


def train(weights, xs, ys):
    """Return the errors, on rank 0, and the weights of all ranks."""
    errors = []
    for _ in range(STEPS):
        value, new = step(weights, xs, ys)
        errors.append(value)
        # What is on another rank is not here: this rank keeps its own layers up to date.
        mine = [owner == parallel.rank() for owner in OWNERS]
        weights = [n if here else w for here, n, w in zip(mine, new, weights)]
    return errors, [parallel.broadcast(w, root=owner) for w, owner in zip(weights, OWNERS)]


@dsl.jit
def step_alone(weights, x, y):
    """The same on one rank, with one batch."""

    def whole(weights):
        out = x
        for w in weights:
            out = layer(w, out)
        return error(out, y)

    value, grads = dsl.value_and_grad(whole)(weights)
    return value, [w - RATE * g for w, g in zip(weights, grads)]


def main():
    rng = np.random.default_rng(0)
    first = [rng.normal(0, 0.1, (WIDTH, WIDTH)) for _ in range(LAYERS)]
    xs = rng.normal(size=(MICRO_BATCHES, ROWS, WIDTH))
    ys = np.cumsum(xs, axis=2) / 4
    errors, weights = train(first, xs, ys)
    if parallel.rank() > 0:
        return
    for k, owner in enumerate(OWNERS):
        print(f"layer {k} is on rank {owner}")
    for k in (*range(0, STEPS, 15), STEPS - 1):
        print(f"step {k:2d}: error {errors[k]:.4f}")
    alone = first
    for expected in errors:
        value, alone = step_alone(alone, xs.reshape(-1, WIDTH), ys.reshape(-1, WIDTH))
        np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(weights, alone, rtol=1e-7, atol=1e-10)
    assert errors[-1] < 0.2 * errors[0]
    print(
        f"{parallel.size()} rank(s), {MICRO_BATCHES} micro-batches: equal to one rank with one batch"
    )


if __name__ == "__main__":
    main()
