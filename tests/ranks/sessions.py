"""A session on rank 0 whose steps the other ranks serve; then every rank but one a client of shared variables."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dsl
from dsl.errors import PeerError
from dsl.mpi.world import world
from dsl.session.remote import serve

RANK, SIZE = world().rank, world().size


def in_one_graph() -> None:
    graph = dsl.Graph()
    with graph:
        x = dsl.placeholder(np.float64, (None,), name="x")
        with dsl.device("/rank:1/cpu:0"):
            w = dsl.Variable(np.ones(3), name="w")
            y = x * w
            more = w.assign_add(x)
            bad = np.linalg.inv(x.reshape(1, 3)[:, :1] * 0)
        with dsl.device(f"/rank:{SIZE - 1}/cpu:0"):
            z = y.sum()

        def body(i, v):
            with dsl.device("/rank:1/cpu:0"):
                v = v * 0.5
            with dsl.device("/rank:0/cpu:0"):
                return i + 1, v + 1

        _, looped = dsl.while_loop(lambda i, v: i < 5, body, (0, x))
    if RANK:
        serve(graph)
        return
    given = np.arange(3.0)
    with dsl.Session(graph, timeout=60) as session:
        np.testing.assert_array_equal(session.run(y, {x: given}), given)
        assert session.run([z, more], {x: given})[0] == 3.0
        np.testing.assert_array_equal(session.run(w), given + 1)
        expected = given
        for _ in range(5):
            expected = expected * 0.5 + 1
        np.testing.assert_array_equal(session.run(looped, {x: given}), expected)
        with pytest.raises(PeerError, match="rank 1: LinAlgError"):
            session.run(bad, {x: given})
        add = session.make_callable(more, [x])
        threads = [
            threading.Thread(target=lambda: [add(np.ones(3)) for _ in range(20)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(session.run(w), given + 61)


def between_graphs() -> None:
    """Every rank but 0 is a client with a graph of its own; the variable is on rank 0."""
    graph = dsl.Graph()
    with graph:
        with dsl.device("/rank:0/cpu:0"):
            total = dsl.Variable(0.0, name="total")
        with dsl.device(f"/rank:{RANK}/cpu:0"):
            own = np.float64(RANK) * dsl.placeholder(np.float64, (), name="x")
        add = total.assign_add(own)
    if RANK == 0:
        serve(graph)
        assert float(total.value) == sum(10.0 * r for r in range(1, SIZE)), total.value
        return
    with dsl.Session(graph, timeout=60) as session:
        for _ in range(10):
            session.run(add, {"x": 1.0})


def one_home() -> None:
    """What no device was named for is on one rank in all steps, and a queue where it was made."""
    graph, last = dsl.Graph("home"), SIZE - 1
    with graph:
        v = dsl.Variable(1.0, name="v")
        with dsl.device(f"/rank:{last}/cpu:0"):
            more = v.assign_add(1.0)
            queue = dsl.FIFOQueue(10, np.float64, (), name="queue")
        ten = v * 10
        put, taken, size = queue.enqueue(v), queue.dequeue(), queue.size()
    if RANK:
        serve(graph)
        assert float(v.value) == (3.0 if last == RANK else 1.0)
        assert queue.size() == (last == RANK)
        return
    with dsl.Session(graph, timeout=60) as session:
        assert [session.run(more), session.run(more)] == [2.0, 3.0]
        assert [session.run(ten), session.run(v)] == [30.0, 3.0]
        session.run(put)
        session.run(put)
        assert [session.run(taken), session.run(size)] == [3.0, 1]


if __name__ == "__main__":
    in_one_graph()
    between_graphs()
    one_home()
    print("done")
