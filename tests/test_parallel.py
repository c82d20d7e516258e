"""Collectives and data-parallel training, under mpirun on 1 to 4 ranks; each run has a deadline.

The programs are in `tests/ranks/`. Further down are tests of one rank in this process: types, text, adjoints as graphs.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import mpirun
import numpy as np
import pytest

import dsl
from dsl import parallel
from dsl.errors import ConfigError, MismatchError, ShapeError, TypeRuleError, UnsupportedError
from dsl.ir.build import Builder
from dsl.ir.types import TensorType
from dsl.mpi.once import once

on_ranks = pytest.mark.skipif(bool(mpirun.missing()), reason=mpirun.missing() or "no reason")
F64 = np.dtype(np.float64)


# --- Under mpirun --------------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("program", ["collectives", "adjoints", "training"])
def test_a_program_on_ranks(program: str, ranks: int) -> None:
    # Machine code on 2 ranks, the interpreter elsewhere: what they compute is the same, and compiling takes time.
    native = ranks == 2 and program != "adjoints"
    found = mpirun.run(program, ranks, DSL_BACKEND="native" if native else "interpreter")
    found.check()
    assert sorted(found.out.split()) == sorted([*["well"] * ranks, *map(str, range(ranks))])


@on_ranks
@pytest.mark.parametrize(("program", "args"), [("collectives", []), ("mismatches", ["all"])])
def test_ranks_that_share_no_memory(program: str, args: list[str]) -> None:
    mpirun.run(program, 3, *args, DSL_BACKEND="interpreter", DSL_MPI_SHARED_MEMORY="off").check()


@on_ranks
def test_derivatives_in_machine_code() -> None:
    cases = [
        "allreduce sum",
        "allreduce max",
        "message",
        "while_loop",
        "messages_in_a_loop",
        "branch",
        "checkpointed_loop",
    ]
    mpirun.run("adjoints", 2, *cases).check()


@on_ranks
def test_ranks_in_different_collectives_all_say_what_each_does() -> None:
    mpirun.run("mismatches", 3, "all").check()


@on_ranks
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("some_ranks", ["MismatchError: rank 1 has ended", "rank 0: all_reduce(sum) of f64[3] at", "mismatches.py:"]),
        ("stuck", ["rank 0: recv(source=1, tag=0) of f64[3] at", "rank 1: all_reduce(sum) of f64[3] at"]),
        ("message", ["rank 0 sends f64[300000], and rank 1 expects f32[3]", "rank 0: send(dest=1", "rank 1: recv("]),
        ("gradients", ["rank 0: all_reduce_start(mean) of f64[3]", "rank 1: all_reduce_start(mean) of f64[4]"]),
        ("raises", ["PeerError: rank 1 ended with an exception: ValueError: no such luck"]),
        ("step", ["rank 0: a step of `placed`", "rank 1: all_reduce(sum) of f64[3] at"]),
        ("no_step", ["MismatchError: rank 1 has ended", "rank 0: a step of `placed`"]),
        ("table", ["rank 0: ShardedEmbedding.lookup of 5 x 2", "rank 1: ShardedEmbedding.update of 5 x 2"]),
        ("no_lookup", ["rank 0: ShardedEmbedding.lookup of 5 x 2 float32 (mod) at", "rank 1: barrier at"]),
        ("checkpoint", ["rank 0: the tree of a checkpoint at", "rank 1: whether all ranks have restored at"]),
        ("no_worker", ["MismatchError: rank 1 has ended", "rank 0: ParameterServer.train, for a message of workers at"]),
        ("no_server", ["rank 0: a step of `graph` for rank 0", "rank 1: barrier at", "`dsl.parallel.serve(graph)`"]),
    ],
)  # fmt: skip
def test_ranks_that_cannot_go_on_end_with_an_error(
    case: str, words: list[str], tmp_path: Path
) -> None:
    found = mpirun.run("mismatches", 2, case, str(tmp_path / "set"), deadline=60)
    assert found.status != 0
    for word in words:
        assert word in found.err, found.err


@on_ranks
def test_who_serves_a_session_that_nobody_closes_ends_with_its_client() -> None:
    found = mpirun.run("mismatches", 2, "left_open", deadline=30)
    found.check()
    assert found.out.count("well") == 2


@on_ranks
def test_a_rank_that_does_not_come_ends_the_wait_of_the_others() -> None:
    found = mpirun.run("mismatches", 2, "late", deadline=60, DSL_MPI_TIMEOUT="2")
    assert found.status != 0
    assert "DeadlineError: rank 0 gave up after" in found.err
    assert "rank 1: waits for nobody" in found.err


@on_ranks
def test_a_rank_that_left_a_collective_cannot_go_on() -> None:
    found = mpirun.run("mismatches", 2, "goes_on", deadline=60, DSL_MPI_TIMEOUT="2")
    assert found.status != 0
    assert "rank 0 comes for barrier at" in found.err, found.err
    assert "after it left all_reduce(sum) of f64[3] at" in found.err, found.err


def test_threads_that_come_at_once_get_the_same() -> None:
    start, found = threading.Barrier(8), []

    @once
    def slow() -> object:
        time.sleep(0.01)
        return object()

    def call() -> None:
        start.wait()
        found.append(slow())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


# --- One rank ------------------------------------------------------------------------------------


def test_one_rank_has_everything_itself() -> None:
    x = np.arange(3.0)
    assert (parallel.rank(), parallel.size()) == (0, 1)
    for function in (parallel.allreduce, parallel.reduce, parallel.broadcast):
        np.testing.assert_array_equal(function(x), x)
        np.testing.assert_array_equal(dsl.jit(function)(x), x)
    for function in (parallel.gather, parallel.allgather):
        np.testing.assert_array_equal(function(x), x[None])
        np.testing.assert_array_equal(dsl.jit(function)(x), x[None])
    for function in (parallel.scatter, parallel.reduce_scatter):
        np.testing.assert_array_equal(function(x[None]), x)
        np.testing.assert_array_equal(dsl.jit(function)(x[None]), x)
    np.testing.assert_array_equal(parallel.sendrecv(x, 0, 0), x)
    np.testing.assert_array_equal(parallel.sendrecv(x, None, None), np.zeros(3))
    assert parallel.barrier() is None


def test_results_are_new_arrays() -> None:
    x = np.arange(3.0)
    parallel.allreduce(x)[0] = 5
    parallel.allgather(x)[0, 0] = 5
    assert x[0] == 0


def test_one_rank_computes_nothing_for_others_in_a_program() -> None:
    graph = dsl.jit(lambda x: parallel.allreduce(x) + 1).lower(np.zeros(3)).graph()
    assert [node.op.name for node in graph.nodes if node.op.name != "const"] == ["add"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: parallel.allreduce(1.0, "median"), ConfigError, "is none of sum, mean, max, min, prod"),
        (lambda: parallel.broadcast(1.0, 4), ConfigError, "root=4, and there are ranks 0 to 0"),
        (lambda: parallel.broadcast(1.0, [0]), ConfigError, r"root=\[0\], and there are ranks 0 to 0"),
        (lambda: parallel.allreduce(1j, "max"), TypeRuleError, "must be of real dtype, got c128"),
        (lambda: parallel.scatter(np.zeros(2)), ShapeError, "a row for each of 1 ranks"),
        (lambda: parallel.scatter(1.0), TypeRuleError, "a stack with a row for each rank"),
        (lambda: parallel.send(1.0, 0), UnsupportedError, "is this rank itself"),
        (lambda: parallel.recv(1.0, 0), UnsupportedError, "is this rank itself"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]


def _loss(w):
    return (w**2).sum()


_SGD = dsl.optim.SGD(0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parallel.ParameterServer(_SGD, _loss, np.zeros(2)), "loss must be .*got a SGD(.|\n)*ParameterServer.loss, optimizer"),
        (lambda: parallel.BackupWorkers(_loss, np.zeros(2), _SGD), "BackupWorkers: optimizer must be .*got a ndarray"),
        (lambda: parallel.DataParallel(_SGD, _loss), "DataParallel: loss must be a function"),
        (lambda: parallel.DataParallel(_loss, dsl.optim.SGD), "got the class SGD(.|\n)*call it"),
        (lambda: parallel.ParameterServer(_loss, _SGD, "abc"), "dtype <U3"),
        (lambda: parallel.ParameterServer(_loss, _SGD, np.zeros(2)).train([()], 2.5), "steps must be a whole number, 0 or more, got 2.5"),
        (lambda: parallel.ShardedEmbedding(5.5, 2), "rows must be a whole number, 1 or more, got 5.5"),
        (lambda: parallel.ShardedEmbedding(5, 0), "width must be a whole number, 1 or more, got 0"),
        (lambda: parallel.ShardedEmbedding(5, 2, optimizer="sgd"), "optimizer must be an optimiser, got 'sgd'"),
        (lambda: parallel.ShardedEmbedding(5, 2, init=lambda ids: np.zeros((2, 5))), "a row of 2 numbers for each of 5 ids"),
    ],
)  # fmt: skip
def test_what_trainers_and_tables_are_made_with_is_checked(call, words: str) -> None:
    with pytest.raises(dsl.DslError, match=words):
        call()


def test_a_program_for_more_ranks_is_refused() -> None:
    graph = dsl.ir.parse(
        """
        graph @f(%x: f64[3]) -> (f64[2, 3]) {
          %0 = all_gather(%x) {ranks=2} : f64[2, 3]
          return %0
        }
        """
    )
    dsl.ir.verify(graph)
    assert dsl.ir.parse(str(graph)) == graph
    with pytest.raises(MismatchError, match="for 2 ranks, and there is 1"):
        dsl.ir.interpret(graph, [np.zeros(3)])


def test_collectives_have_one_order() -> None:
    builder = Builder("f")
    x = builder.param(TensorType(F64, (3,)), "x")
    first = builder.node("all_reduce", [x], {"ranks": 2, "how": "sum"})
    second = builder.node("all_reduce", [x], {"ranks": 2, "how": "sum"})
    assert second is not first
    assert second.controls == (first,)


def test_the_adjoint_happens_though_nothing_needs_it() -> None:
    from dsl.autodiff.reverse import Reverse

    builder = Builder("f")
    x = builder.param(TensorType(F64, (3,)), "x")
    builder.node("send_to", [x], {"ranks": 2, "dest": 1, "tag": 0})
    builder.node("recv_from", [], {"ranks": 2, "source": 1, "tag": 0, "dtype": F64, "shape": (3,)})
    graph = builder.finish([builder.emit("sum", x, axes=(0,))])
    backward = Builder("g")
    y = backward.param(TensorType(F64, (3,)), "y")
    reverse = Reverse(graph, backward, [y], [True], [True])
    found = reverse.pull(backward, [backward.constant(1.0)])
    names = [
        node.op.name
        for node in backward.finish([]).nodes
        if "_to" in node.op.name or "_from" in node.op.name
    ]
    assert names == ["send_to", "recv_from", "send_to", "recv_from"]
    assert len(found[0]) == 2
