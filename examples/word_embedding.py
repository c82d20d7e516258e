"""Word vectors in tables that are spread over the ranks (skip-gram with negative samples).

    mpirun -n 4 python examples/word_embedding.py

Each rank has some rows of the two tables and a share of each batch. A lookup asks the ranks that have the rows, an update sends them
gradients; only rows that a batch names travel or change, so that a step costs the same however many words there are. The
corpus is made up: sentences about one topic each. Words of a topic are to end up close to each other.
"""

import numpy as np

import dsl
from dsl import parallel

TOPICS, WORDS, WIDTH, NEGATIVES, STEPS = 5, 100, 16, 4, 100
PAIRS = 240  # of a batch, which 1, 2, 3, 4, 5, 6, ... ranks can share
RANK, SIZE = parallel.rank(), parallel.size()


def make_batch(rng):
    """Return words, a word of the same sentence for each, and words that have nothing to do with them."""
    words = rng.integers(0, WORDS, PAIRS)
    near = (words % TOPICS + TOPICS * rng.integers(0, WORDS // TOPICS, PAIRS)) % WORDS
    return words, near, rng.integers(0, WORDS, (PAIRS, NEGATIVES))


def loss(word, near, others):
    """The sum over pairs of -log p(near belongs to word) - sum of log p(other does not)."""
    good = np.sum(word * near, axis=1)
    bad = np.sum(word[:, None] * others, axis=2)
    return np.sum(np.logaddexp(0.0, -good)) + np.sum(np.logaddexp(0.0, bad))


slopes = dsl.value_and_grad(loss, argnums=(0, 1, 2))


def share(array):
    """Return this rank's rows of a batch."""
    return np.split(array, SIZE)[RANK]


def train():
    """Return the table of word vectors and the loss of each step."""
    make = lambda seed: parallel.ShardedEmbedding(
        WORDS, WIDTH, optimizer=dsl.optim.Adagrad(0.3), dtype=np.float64, seed=seed
    )
    vectors, contexts = make(0), make(1)
    rng, losses = np.random.default_rng(0), []  # the same on all ranks
    for _ in range(STEPS):
        words, near, others = (share(ids) for ids in make_batch(rng))
        ids = np.concatenate([near[:, None], others], axis=1)
        around = contexts.lookup(ids)
        value, (a, b, c) = slopes(vectors.lookup(words), around[:, 0], around[:, 1:])
        vectors.update(words, a)
        contexts.update(ids, np.concatenate([b[:, None], c], axis=1))
        losses.append(float(parallel.allreduce(value)) / PAIRS)
    return vectors, losses


def neighbours(table, count=5):
    """Return the words whose vectors point most nearly where each word's does."""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -1.0)
    return np.argsort(-alike, axis=1)[:, :count]


def main():
    vectors, losses = train()
    sizes = parallel.gather(np.int64(len(vectors.table)))
    table = vectors.gather()
    if RANK > 0:
        return
    print(f"{WORDS} words; rows by rank: {sizes.tolist()}")
    for step in (*range(0, STEPS, 20), STEPS - 1):
        print(f"step {step:2d}: loss {losses[step]:.4f}")
    found = neighbours(table)
    same = np.mean(found % TOPICS == np.arange(WORDS)[:, None] % TOPICS)
    for word in range(TOPICS):
        print(f"close to word {word}: {', '.join(map(str, found[word]))}")
    assert same > 0.95, same
    print(f"{same:.0%} of the closest words are about the same topic")


if __name__ == "__main__":
    main()
