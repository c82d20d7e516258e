"""A network whose layers are on different ranks, trained on micro-batches that follow each other through it.

    mpirun -n 4 python examples/pipeline.py

Every rank calls the same compiled function and runs the part of it that is placed there; values cross between ranks where
the layers meet. A trip of the loop over micro-batches needs of the trip before only the sums of the gradients, so while one
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


def at(place, function, *args):
    """Call a function with all its operations on a device."""
    with dsl.device(place):
        return function(*args)


def forward_and_back(weights, x, y):
    """Return the error of a micro-batch and its gradients, each computed where its layer is."""
    backward, grads = [], []
    for place, w in zip(PLACES, weights):
        x, back = at(place, dsl.vjp, layer, w, x)
        backward.append(back)
    value, g = at(PLACES[-1], dsl.value_and_grad(error), x, y)
    for place, back in zip(PLACES[::-1], backward[::-1]):
        grad, g = at(place, back, g)
        grads.append(grad)
    return value, grads[::-1]


@dsl.jit
def step(weights, xs, ys):
    """Return the error over all micro-batches, on rank 0, and the new weights, each where it is used."""
    total, sums = 0.0, [np.zeros((WIDTH, WIDTH))] * LAYERS
    for i in range(MICRO_BATCHES):
        value, grads = forward_and_back(weights, xs[i], ys[i])
        total = at(PLACES[-1], np.add, total, value)
        sums = [at(place, np.add, s, g) for place, s, g in zip(PLACES, sums, grads)]
    new = [at(place, descend, w, s) for place, w, s in zip(PLACES, weights, sums)]
    return at(PLACES[0], np.divide, total, MICRO_BATCHES), new


def descend(w, total):
    return w - RATE * total / MICRO_BATCHES


def train(weights, xs, ys):
    """Return the errors, on rank 0, and all weights."""
    errors = []
    for _ in range(STEPS):
        # The new weights of other ranks are not here, and are not read here.
        value, weights = step(weights, xs, ys)
        errors.append(value)
    return errors, [parallel.broadcast(w, root=k) for k, w in zip(OWNERS, weights)]


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
    print("layers 0 to 3 are on ranks", *OWNERS)
    for k in (*range(0, STEPS, 15), STEPS - 1):
        print(f"step {k:2d}: error {errors[k]:.4f}")
    alone = first
    for expected in errors:
        value, alone = step_alone(alone, xs.reshape(-1, WIDTH), ys.reshape(-1, WIDTH))
        np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(weights, alone, rtol=1e-7, atol=1e-10)
    assert errors[-1] < 0.2 * errors[0]
    print(f"{MICRO_BATCHES} micro-batches on {parallel.size()} rank(s): equal to one batch on one")


if __name__ == "__main__":
    main()
