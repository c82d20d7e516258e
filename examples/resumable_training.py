"""Training on many ranks that survives the death of any of them, and ends with the same numbers as if none had died.

    python -m dsl launch -n 4 --restarts 3 examples/resumable_training.py --directory /tmp/run

A small network on top of a word embedding whose rows are spread over the ranks. Three things make it resumable: batches depend on
seed, step and rank alone; everything that a step changes is in the checkpoint; and the script begins with the newest whole one.
Kill a rank (`kill -9`) while it runs: `launch` says which one it was and starts all of them again, and the last line is the same.
"""

import argparse
import hashlib
import time

import numpy as np

import dsl
from dsl import parallel

WORDS, WIDTH, HIDDEN, BATCH = 500, 8, 16, 32


def make_batch(seed, step):
    """Return this rank's words and targets of a step."""
    rng = np.random.default_rng([seed, step, parallel.rank()])
    words = rng.integers(0, WORDS, BATCH)
    return words, np.sin(0.1 * words)[:, None]


def predict(params, vectors):
    return np.tanh(vectors @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss(params, vectors, targets):
    return np.mean((predict(params, vectors) - targets) ** 2)


gradient_of_vectors = dsl.jit(dsl.grad(loss, argnums=1))


def first_params(seed):
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(0, 0.5, (WIDTH, HIDDEN)), "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, 0.5, (HIDDEN, 1)), "b2": np.zeros(1),
    }  # fmt: skip


def train(given):
    """Run the steps that are left, and return the parameters and the table."""
    training = parallel.DataParallel(loss, dsl.optim.Adam(0.01), seed=given.seed)
    params, state = training.init(first_params(given.seed))
    table = parallel.ShardedEmbedding(
        WORDS, WIDTH, optimizer=dsl.optim.Adagrad(0.1), dtype=np.float64
    )
    checkpoints = parallel.ShardedCheckpoints(given.directory, keep=3, background=True)
    done = 0
    if checkpoints.latest() is not None:
        tree = {"params": params, "state": state, "table": table}
        tree = checkpoints.restore(like=tree)
        params, state, done = tree["params"], tree["state"], checkpoints.restored
        tell(f"going on after step {done}")
    for step in range(done + 1, given.steps + 1):
        words, targets = make_batch(given.seed, step)
        vectors = table.lookup(words)
        table.update(words, gradient_of_vectors(params, vectors, targets) / parallel.size())
        error, params, state = training.step(params, state, vectors, targets)
        if step % given.every == 0 or step == given.steps:
            checkpoints.save(step, {"params": params, "state": state, "table": table})
        if step % 10 == 0:
            tell(f"step {step}: loss {error:.6f}")
        time.sleep(given.pause)
    checkpoints.close()
    return params, table.gather()


def tell(text):
    """Print on rank 0 only."""
    if parallel.rank() == 0:
        print(text)


def digest(params, table):
    """Return a number that any other bit anywhere would change."""
    found = hashlib.sha256(table.tobytes())
    for name in sorted(params):
        found.update(np.ascontiguousarray(params[name]).tobytes())
    return found.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", required=True, help="where checkpoints are")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds after each step, to kill something in"
    )
    given = parser.parse_args()
    tell(f"trained: {digest(*train(given))}")


if __name__ == "__main__":
    main()
