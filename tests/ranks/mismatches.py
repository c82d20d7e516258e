"""Ranks that do different things. `python mismatches.py all` catches the errors that all ranks get at once; each other case ends a run."""

from __future__ import annotations

import contextlib
import sys
import time

import numpy as np

import dsl
from dsl import parallel
from dsl.errors import DeadlineError, MismatchError

RANK, SIZE = parallel.rank(), parallel.size()


def expect(run, *words: str) -> None:
    try:
        run()
    except MismatchError as error:
        text = str(error)
        missing = [word for word in words if word not in text]
        assert not missing, f"{missing} not in {text}"
        assert "mismatches.py:" in text, text
        return
    raise AssertionError(f"rank {RANK}: no MismatchError that says {words}")


def shapes() -> None:
    parallel.allreduce(np.zeros(3 + (RANK == 1)))


def dtypes() -> None:
    parallel.allgather(np.zeros(3, np.float32 if RANK else np.float64))


def order() -> None:
    for call in (
        (parallel.barrier, parallel.allreduce) if RANK else (parallel.allreduce, parallel.barrier)
    ):
        expect(
            lambda call=call: call() if call is parallel.barrier else call(1.0),
            "rank 0: ",
            "barrier",
        )


def roots() -> None:
    parallel.broadcast(np.zeros(2), RANK % 2)


@dsl.jit
def compiled(x):
    return parallel.allreduce(x) + 1


def all_at_once() -> None:
    expect(shapes, "rank 0: all_reduce(sum) of f64[3]", "rank 1: all_reduce(sum) of f64[4]")
    expect(dtypes, "rank 0: allgather of f64[3]", "rank 1: allgather of f32[3]")
    order()
    expect(roots, "rank 0: broadcast(root=0)", "rank 1: broadcast(root=1)")
    expect(lambda: compiled(np.zeros(2 + RANK)), "rank 0: all_reduce(sum) of f64[2]", "f64[3]")
    assert parallel.allreduce(1) == SIZE  # and they can go on
    print("well", RANK)


def some_ranks() -> None:
    if RANK == 0:
        parallel.allreduce(np.zeros(3))


def stuck() -> None:
    if RANK == 0:
        parallel.recv(np.zeros(3), 1)
    else:
        parallel.allreduce(np.zeros(3))


def message() -> None:
    if RANK == 0:
        parallel.send(np.zeros(300_000), 1)
    if RANK == 1:
        parallel.recv(np.zeros(3, np.float32), 0)


def raises() -> None:
    if RANK == 1:
        raise ValueError("no such luck")
    parallel.allreduce(np.zeros(3))


def late() -> None:
    if RANK == 1:
        time.sleep(30)
    parallel.allreduce(np.zeros(3))


def goes_on() -> None:
    """Rank 0 takes its wait for over, and is in the next collective when rank 1 comes for the first."""
    if RANK == 1:
        time.sleep(4)
    with contextlib.suppress(DeadlineError):
        parallel.allreduce(np.zeros(3))
    parallel.barrier()


def gradients() -> None:
    """The buckets of rank 1 are others than those of rank 0."""
    parallel.reduce_gradients([np.zeros(3 + RANK)])


@dsl.jit
def placed(x):
    with dsl.device("/rank:1/cpu:0"):
        y = x + 1
    with dsl.device("/rank:0/cpu:0"):
        return y * 2


def step() -> None:
    """Rank 1 has no part in the second step any more."""
    placed(np.zeros(3))
    if RANK == 0:
        placed(np.zeros(3))
    else:
        parallel.allreduce(np.zeros(3))


def no_step() -> None:
    placed(np.zeros(3))
    if RANK == 0:
        placed(np.zeros(3))


def table() -> None:
    table = parallel.ShardedEmbedding(5, 2, optimizer=dsl.optim.SGD(0.1))
    if RANK == 0:
        table.lookup([1])
    else:
        table.update([1], np.zeros((1, 2)))


def no_lookup() -> None:
    table = parallel.ShardedEmbedding(5, 2)
    if RANK == 0:
        table.lookup([1])
    else:
        parallel.barrier()


def checkpoint() -> None:
    if RANK == 0:
        parallel.save(sys.argv[2], {"w": np.zeros(3)})
    else:
        parallel.restore(sys.argv[2])


def no_worker() -> None:
    training = parallel.ParameterServer(lambda w: (w**2).sum(), dsl.optim.SGD(0.1), np.zeros(2))
    if RANK == 0:
        training.train([], 5)


def _on_rank_1() -> tuple[dsl.Graph, object]:
    with dsl.Graph() as graph, dsl.device("/rank:1/cpu:0"):
        return graph, dsl.Variable(1.0, name="v") + 1


def no_server() -> None:
    graph, tensor = _on_rank_1()
    if RANK == 0:
        dsl.Session(graph).run(tensor)
    else:
        parallel.barrier()


def left_open() -> None:
    """The script of the client ends, and nobody has closed its session."""
    graph, tensor = _on_rank_1()
    if RANK == 0:
        assert dsl.Session(graph).run(tensor) == 2
    else:
        parallel.serve(graph)
    print("well", RANK)


{
    "all": all_at_once, "some_ranks": some_ranks, "stuck": stuck, "message": message, "raises": raises, "late": late,
    "gradients": gradients, "goes_on": goes_on, "step": step, "no_step": no_step, "table": table, "no_lookup": no_lookup,
    "checkpoint": checkpoint, "no_worker": no_worker, "no_server": no_server, "left_open": left_open,
}[sys.argv[1]]()  # fmt: skip
