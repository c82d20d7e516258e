"""Saves a tree with a table over the ranks, or restores it on as many ranks as there are now and compares."""

import sys

import numpy as np

import dsl
from dsl import parallel

mode, directory, strategy = sys.argv[1:4]
ROWS = 11


def make_table():
    return parallel.ShardedEmbedding(
        ROWS, 3, optimizer=dsl.optim.Adam(0.1), strategy=strategy, dtype=np.float64
    )


def train(table, steps):
    """The same updates on any number of ranks: rank 0 has all the ids."""
    for step in steps:
        ids = np.arange(0, ROWS, step) if parallel.rank() == 0 else np.arange(0)
        table.update(ids, np.ones((len(ids), 3)) * step)


table = make_table()
tree = {"w": np.arange(5.0), "table": table, "step": 0, "flags": np.zeros(3, bool)}
with parallel.ShardedCheckpoints(directory, background=mode == "background") as checkpoints:
    if mode != "restore":
        train(table, (1, 2))
        checkpoints.save(1, tree)
        train(table, (3,))
        checkpoints.save(2, tree | {"w": tree["w"] + 1, "step": 2})
        train(table, (5,))
    else:
        found = checkpoints.restore(like=tree)
        assert found["table"] is table
        assert found["step"] == checkpoints.restored == 2
        np.testing.assert_array_equal(found["w"], np.arange(5.0) + 1)
        train(table, (5,))
        train_again = make_table()
        train(train_again, (1, 2, 3, 5))
        np.testing.assert_array_equal(table.gather(), train_again.gather())
        for name, slot in table.state.slots.items():
            np.testing.assert_array_equal(slot, train_again.state.slots[name])
if (
    mode == "background"
):  # what is not kept is gone on all ranks when a save in the foreground returns
    with parallel.ShardedCheckpoints(directory + "/kept", keep=2) as kept:
        for step in range(20):
            kept.save(step, {"w": np.zeros(3)})
            assert kept.steps() == list(range(max(0, step - 1), step + 1)), kept.steps()
            parallel.barrier()
if parallel.rank() == 0:
    print("fine")
