"""Functions whose parts are on ranks: loops and branches across them, results where they are, errors everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import dsl
from dsl import parallel
from dsl.errors import DeviceError, MismatchError, PeerError, UnsupportedError
from dsl.ir.remote import Remote
from dsl.mpi.world import world

RANK, SIZE = world().rank, world().size


@dsl.jit
def pipeline(x, n):
    for i in range(n):
        with dsl.device("/rank:0/cpu:0"):
            y = np.sin(x) + i
        with dsl.device("/rank:1/cpu:0"):
            x = 0.5 * y
    return x


def plain(x, n):
    for i in range(n):
        x = 0.5 * (np.sin(x) + i)
    return x


@dsl.jit
def branches(x):
    with dsl.device("/rank:0/cpu:0"):
        big = x.sum() > 3
    if big:
        with dsl.device("/rank:1/cpu:0"):
            y = x * 2
    else:
        with dsl.device("/rank:0/cpu:0"):
            y = x + 1
    with dsl.device("/rank:1/cpu:0"):
        return y * 10


@dsl.jit
def failing(x):
    with dsl.device("/rank:1/cpu:0"):
        y = np.linalg.inv(x)
    with dsl.device("/rank:0/cpu:0"):
        return y + 1


def check_results() -> None:
    for x in (np.ones(3), np.linspace(0, 1, 50_000)):
        for n in (0, 1, 5):
            found = pipeline(x, n)
            if RANK == 1 or (n == 0 and not isinstance(found, Remote)):
                np.testing.assert_allclose(found, plain(x, n), rtol=1e-15)
            else:
                assert isinstance(found, Remote), found
    for x in (np.ones(2), np.ones(5)):
        found = branches(x)
        if RANK == 1:
            np.testing.assert_array_equal(found, (x * 2 if x.sum() > 3 else x + 1) * 10)
    if RANK != 1:
        with pytest.raises(DeviceError, match="/rank:1/cpu:0"):
            np.asarray(found)


def check_results_can_be_shared() -> None:
    """Where a result is not, what stands for it says dtype and shape: of these arguments, though the graph is for all sizes."""
    for size in (3, 4, 5):
        tree = {"x": pipeline(np.ones(size), 2)}
        found = parallel.broadcast(tree, 1)["x"]
        np.testing.assert_allclose(found, plain(np.ones(size), 2), rtol=1e-15)
    if RANK == 0:
        np.testing.assert_array_equal(parallel.recv(tree["x"], 1), found)
    elif RANK == 1:
        parallel.send(tree["x"], 0)
    else:
        with pytest.raises(DeviceError, match="/rank:1/cpu:0"):
            parallel.broadcast(tree, 0)


def check_a_result_of_a_size_that_one_rank_knows() -> None:
    """The others have to be told the size; what they get says so, not to do what they did."""

    @dsl.jit
    def positive(x):
        with dsl.device("/rank:1/cpu:0"):
            return x[x > 0]

    found = positive(np.array([1.0, -1.0, 2.0]))
    if RANK != 1:
        with pytest.raises(DeviceError, match=r"so is its size\n(.|\n)*broadcast its shape first"):
            parallel.broadcast(found, 1)
    (size,) = parallel.broadcast(np.array(found.shape if RANK == 1 else [0]), 1)
    whole = parallel.broadcast(found if RANK == 1 else np.zeros(size), 1)
    np.testing.assert_array_equal(whole, [1.0, 2.0])


def check_what_stands_for_a_result() -> None:
    """It has the shape that the result has, whatever view of an array, list or optional that is; and it is no array."""

    @dsl.jit
    def views(x):
        with dsl.device("/rank:1/cpu:0"):
            y = np.sin(x)
        return y.T, y[::2, 1], y.reshape(-1), y.T.reshape(-1), y[0, 0]

    @dsl.jit
    def others(x):
        with dsl.device("/rank:1/cpu:0"):
            y = x * 2
            first, found = None, []
            for i in range(len(y)):
                if y[i] > 1:
                    found.append(y[i])
                    first = y[i] if first is None else first
        return found, first

    for rows in (4, 6):  # the second time for all sizes
        x = np.arange(3.0 * rows).reshape(rows, 3)
        y = np.sin(x)
        expected = (y.T, y[::2, 1], y.reshape(-1), y.T.reshape(-1), y[0, 0])
        for found, wanted in zip(views(x), expected, strict=True):
            assert found.shape == wanted.shape, found
            assert (found.dtype, found.ndim, found.size) == (wanted.dtype, wanted.ndim, wanted.size)
            np.testing.assert_allclose(parallel.broadcast(found, 1), wanted, rtol=1e-15)
    found, first = others(np.array([0.0, 1.0, 2.0]))
    if RANK == 1:
        assert (found, first) == ([2.0, 4.0], 2.0)
        return
    for result in (found, first):
        assert isinstance(result, Remote), result
        for use in (lambda r: -r, lambda r: 2**r, lambda r: r == r, lambda r: r.sum(), lambda r: r.T, list, "{:.1f}".format):  # fmt: skip
            with pytest.raises(DeviceError, match="/rank:1/cpu:0"):
                use(result)


def check_a_copy_is_where_it_is_made() -> None:
    def square(x):
        with dsl.device("/rank:1/cpu:0"):
            y = x * x
        with dsl.device("/rank:0/cpu:0"):
            return y.copy(), np.copy(y), np.array(y)

    x = np.arange(3.0)
    for found in dsl.jit(square)(x):
        assert isinstance(found, Remote) == (RANK != 0), found
        np.testing.assert_array_equal(parallel.broadcast(found, 0), x * x)
    slope = dsl.jit(dsl.grad(lambda x: square(x)[0].sum()))(x)
    assert isinstance(slope, Remote) or (slope == 2 * x).all()


def check_results_are_arguments_again() -> None:
    """What is on another rank is passed on, if it is read there alone: state stays where it is from step to step."""

    @dsl.jit
    def step(state, x):
        with dsl.device("/rank:0/cpu:0"):
            y = np.sin(x)
        with dsl.device("/rank:1/cpu:0"):
            m, count = 0.5 * state["m"] + y, state["count"] + 1
        return {"m": m, "count": count, "turned": np.outer(m, y).T}

    state = {"m": np.zeros(3), "count": 0, "turned": np.zeros((3, 3))}
    m, x = np.zeros(3), np.arange(3.0)
    for k in range(4):
        state = step(state, x + k)
        m = 0.5 * m + np.sin(x + k)
    if RANK == 1:
        np.testing.assert_allclose(state["m"], m, rtol=1e-15)
        assert state["count"] == 4
    assert step.cache_info().entries <= 2, step.explain()
    plain = dsl.jit(lambda x: x + 1)
    if RANK != 1:
        assert isinstance(state["m"], Remote)
        with pytest.raises(DeviceError, match="is on /rank:1/cpu:0, not here"):
            plain(state["m"])
    if RANK == 0:
        with pytest.raises(DeviceError, match=r"of `step` .* is on /rank:1/cpu:0, and /rank:0/cpu:0 reads it"):  # fmt: skip
            step(state, state["m"])
    elif RANK == 1:
        with pytest.raises(PeerError, match="rank 0: DeviceError"):
            step(state, state["m"])
    else:
        step(state, state["m"])


def check_collectives_are_refused() -> None:
    """One rank would run it, and wait for the others for ever."""

    @dsl.jit
    def average(x):
        with dsl.device("/rank:1/cpu:0"):
            y = x * 2
        return dsl.parallel.allreduce(y)

    with pytest.raises(UnsupportedError, match=r"all_reduce: all ranks take part(.|\n)*placed.py"):
        average(np.ones(3))


def check_errors() -> None:
    """A part that raises ends the step on every rank; the next step works."""
    if RANK == 1:
        with pytest.raises(np.linalg.LinAlgError):
            failing(np.zeros((2, 2)))
    elif RANK == 0:
        with pytest.raises(PeerError, match="rank 1: LinAlgError"):
            failing(np.zeros((2, 2)))
    else:  # a rank without a part is done before it hears of it
        failing(np.zeros((2, 2)))
    found = failing(np.eye(2))
    if RANK == 0:
        np.testing.assert_array_equal(found, np.eye(2) + 1)


def check_mismatch() -> None:
    """Ranks that trace different graphs are told which differ, and where."""
    factor = 2.0 if RANK == SIZE - 1 else 3.0

    @dsl.jit
    def differs(x):
        with dsl.device("/rank:0/cpu:0"):
            y = x * factor
        with dsl.device("/rank:1/cpu:0"):
            return y + 1

    with pytest.raises(MismatchError, match=f"ranks 0 and {SIZE - 1} differ[^$]*value="):
        differs(np.ones(2))


if __name__ == "__main__":
    check_results()
    check_results_can_be_shared()
    check_what_stands_for_a_result()
    check_a_copy_is_where_it_is_made()
    check_results_are_arguments_again()
    check_a_result_of_a_size_that_one_rank_knows()
    check_errors()
    check_mismatch()
    check_collectives_are_refused()
    print("done")
