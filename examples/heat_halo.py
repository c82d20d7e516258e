"""Heat on a plate that is cut into strips, one for each rank, and the gradient of what it is in the end.

    mpirun -n 4 python examples/heat_halo.py

Every sweep of the stencil needs the rows beside a strip, its halo, which `sendrecv` brings from the neighbours. It is an op like any
other, inside the compiled loop, and has a derivative: in the backward sweeps the cotangents of the halos travel the other way.
With the gradient the ranks find what the plate looked like at first from what is left after many sweeps.
"""

import numpy as np

import dsl
from dsl import parallel

ROWS, COLUMNS, SWEEPS, RATE = 24, 20, 8, 0.2  # rows that 1, 2, 3, 4, 6, ... ranks can share
RANK, SIZE = parallel.rank(), parallel.size()
ABOVE = RANK - 1 if RANK > 0 else None
BELOW = RANK + 1 if RANK < SIZE - 1 else None


def laplacian(padded):
    """Five points, on rows that have a neighbour above and below; the sides are kept cold."""
    wide = np.pad(padded, ((0, 0), (1, 1)))
    middle = wide[1:-1, 1:-1]
    return wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * middle


def sweep(strip):
    """One step of time. At the ends of the plate nobody answers, and `sendrecv` returns zeros: the cold rim."""
    above = parallel.sendrecv(strip[-1:], dest=BELOW, source=ABOVE)
    below = parallel.sendrecv(strip[:1], dest=ABOVE, source=BELOW)
    return strip + RATE * laplacian(np.concatenate([above, strip, below]))


def final(strip):
    for _ in range(SWEEPS):
        strip = sweep(strip)
    return strip


def loss(strip, target):
    """The share of this rank; derivatives are of the sum over all ranks."""
    return np.sum((final(strip) - target) ** 2)


def final_alone(plate):
    for _ in range(SWEEPS):
        plate = plate + RATE * laplacian(np.pad(plate, ((1, 1), (0, 0))))
    return plate


def loss_alone(plate, target):
    return np.sum((final_alone(plate) - target) ** 2)


def mine(plate):
    """Return this rank's strip of a plate."""
    return np.split(plate, SIZE)[RANK].copy()


def whole(strip):
    """Return the plate, on every rank."""
    return parallel.allgather(strip).reshape(ROWS, COLUMNS)


def recover(target, steps=60):
    """Find a first state that ends at the target, by gradients with momentum; return it and the losses."""
    slope = dsl.value_and_grad(loss)
    guess, speed, losses = target.copy(), np.zeros_like(target), []
    for _ in range(steps):
        value, g = slope(guess, target)
        speed = 0.9 * speed - 0.6 * g
        guess = guess + speed
        losses.append(float(parallel.allreduce(value)))
    return guess, losses


def main():
    truth = np.zeros((ROWS, COLUMNS))
    truth[6:12, 5:9], truth[14:17, 11:15] = 1.0, 2.0
    noise = np.random.default_rng(0).normal(size=truth.shape)
    target = dsl.jit(final)(mine(truth))
    gradient = whole(dsl.grad(loss)(mine(truth + noise), target))
    plate = whole(target)
    guess, losses = recover(target)
    found = whole(guess)
    if RANK > 0:
        return
    np.testing.assert_allclose(plate, final_alone(truth), rtol=1e-12, atol=1e-14)
    expected = dsl.grad(loss_alone)(truth + noise, plate)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
    print(f"{SIZE} rank(s) of {ROWS // SIZE} rows: state and gradient equal those of one rank")
    for k in (*range(0, len(losses), 15), len(losses) - 1):
        print(f"step {k:2d}: loss {losses[k]:.2e}")
    before, after = (np.linalg.norm(x - truth) / np.linalg.norm(truth) for x in (plate, found))
    print(f"distance to the first state: {before:.0%} after {SWEEPS} sweeps, {after:.0%} recovered")
    assert losses[-1] < 1e-2 * losses[0]
    assert after < 0.7 * before


if __name__ == "__main__":
    main()
