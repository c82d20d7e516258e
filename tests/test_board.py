"""The memory that ranks of one machine share, here between threads."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dsl.mpi.board import PIECE, Board, Ways, bytes_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no memory is shared there")
ONE, OTHER = b"1" * 16, b"2" * 16


def boards(size: int) -> list[Board]:
    memory = memoryview(mmap.mmap(-1, bytes_of(size)))
    return [Board(memory, rank, size) for rank in range(size)]


def wait(done: Callable[[], bool]) -> None:
    while not done():
        pass


def test_nobody_goes_on_before_all_are_here() -> None:
    a, b, c = boards(3)
    here = a.come(ONE)
    assert not here()
    b.come(ONE)
    assert not here()
    c.come(ONE)
    assert here()
    assert a.agree(ONE)


def test_who_is_here_for_something_else_is_noticed_by_all() -> None:
    a, b = boards(2)
    a.come(ONE)
    b.come(OTHER)
    assert not a.agree(ONE)
    assert not b.agree(OTHER)
    a.come(OTHER)
    b.come(OTHER)
    assert a.agree(OTHER)


def test_who_comes_again_at_once_takes_nothing_from_who_still_reads() -> None:
    a, b = boards(2)
    for board, number in ((a, 1.0), (b, 2.0)):
        board.bring(np.full(4, number))
        board.come(ONE)
    a.bring(np.full(4, 10.0))  # b has not read yet
    a.come(ONE)
    out = np.empty(4)
    b.reduce(np.add, out)
    assert (out == 3).all()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_reductions_have_the_same_bits_everywhere(size: int) -> None:
    rng = np.random.default_rng(size)
    rounds = [rng.normal(size=(size, n)).astype(t) for n in (1, 7, PIECE // 8) for t in "fd"] * 5
    found: list[list[np.ndarray]] = [[] for _ in range(size)]

    def work(rank: int, board: Board) -> None:
        for xs in rounds:
            board.bring(xs[rank])
            wait(board.come(ONE))
            out = np.empty_like(xs[rank])
            board.reduce(np.add, out)
            found[rank].append(out)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(boards(size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, xs in enumerate(rounds):
        for each in found:
            np.testing.assert_array_equal(each[k], found[0][k])
            np.testing.assert_allclose(each[k], xs.sum(0), rtol=1e-4, atol=1e-4)


# -- by machine code --------------------------------------------------------------------------------------------------


def native_boards(size: int) -> list[Board]:
    from dsl.codegen.cpu import shared_memory

    memory = memoryview(mmap.mmap(-1, bytes_of(size)))
    return [Board(memory, rank, size, shared_memory) for rank in range(size)]


def reduced(xs: Sequence[np.ndarray], how: str, boards: Sequence[Board], rank: int) -> Any:
    """Reduce arrays: all ranks but one have come already, and that one does all of it at once."""
    for other, board in enumerate(boards):
        if other != rank:
            board.bring(xs[other].reshape(-1))
            board.come(ONE)
    reducer: Any = boards[rank].reducer
    reducer.learn(xs[rank], how, ONE)
    found = reducer.reduce(xs[rank], how)
    if found is NotImplemented:
        boards[rank].come(ONE)
    return found


LOOPS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("how", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", "bhilqBHILQfdFD")
def test_machine_code_reduces_as_numpy_does(how: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    boards = native_boards(3)
    for shape in ((1,), (7,), (3, 5), (2, 3, 2, 1, 2), (33_000,)):
        xs = [(rng.normal(size=shape) * 5).astype(dtype) for _ in range(3)]
        if dtype in "fd":
            xs[1].flat[0] = np.nan
        ufunc = LOOPS.get(how, np.add)
        expected = ufunc(ufunc(xs[0], xs[1]), xs[2])
        expected = expected / xs[0].dtype.type(3) if how == "mean" else expected
        for rank in range(3):
            found = reduced(xs, how, boards, rank)
            if how == "mean" and dtype not in "fdFD":
                assert found is NotImplemented
            else:
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert found.tobytes() == expected.tobytes()


def test_machine_code_does_nothing_with_arrays_that_it_has_not_learned() -> None:
    (a, _) = native_boards(2)
    reducer: Any = a.reducer
    reducer.learn(np.zeros((2, 3)), "sum", ONE)
    for x, how in (
        (np.zeros((3, 2)), "sum"),
        (np.zeros((2, 3), np.float32), "sum"),
        (np.zeros((2, 3)), "max"),
        (np.zeros((3, 2)).T, "sum"),
        (np.zeros(6), "sum"),
        (np.zeros(()), "sum"),
        (5.0, "sum"),
    ):
        assert reducer.reduce(x, how) is NotImplemented
    for x in (np.zeros(3, ">f8"), np.zeros(0), np.zeros(()), np.zeros(PIECE), np.zeros([1] * 7)):
        reducer.learn(x, "sum", ONE)
        assert reducer.reduce(x, "sum") is NotImplemented
    assert a.number == 0


def test_who_is_alone_on_the_board_is_told_and_can_wait() -> None:
    a, b = native_boards(2)
    x = np.arange(4.0)
    for board in (a, b):
        board.reducer.learn(x, "sum", ONE)  # type: ignore[union-attr]
    assert a.reducer.reduce(x, "sum") is None  # type: ignore[union-attr]
    here = a.here()
    assert (a.number, here()) == (1, False)
    np.testing.assert_array_equal(b.reducer.reduce(2 * x, "sum"), 3 * x)  # type: ignore[union-attr]
    assert here()
    assert a.agree(ONE)
    out = np.empty(4)
    a.reduce(np.add, out)
    np.testing.assert_array_equal(out, 3 * x)


def test_machine_code_notices_who_is_here_for_something_else() -> None:
    a, b = native_boards(2)
    x = np.arange(4.0)
    a.reducer.learn(x, "sum", ONE)  # type: ignore[union-attr]
    b.come(OTHER)
    assert a.reducer.reduce(x, "sum") is None  # type: ignore[union-attr]
    assert not a.agree(ONE)


def test_what_was_learned_long_ago_may_be_forgotten_and_learned_again() -> None:
    boards = native_boards(2)
    for k in [*range(1, 70), 3]:
        found = reduced([np.full(k, 1.0), np.full(k, 2.0)], "sum", boards, 0)
        assert boards[0].reducer.last() == (np.dtype(float), (k,), "sum")  # type: ignore[union-attr]
        np.testing.assert_array_equal(found, np.full(k, 3.0))


def test_machine_code_of_threads_meets() -> None:
    """Arrays that are long enough for other threads to run meanwhile."""
    boards, xs = native_boards(2), [np.full(50_000, 1.0), np.full(50_000, 2.0)]

    def work(rank: int) -> None:
        reducer: Any = boards[rank].reducer
        reducer.learn(xs[rank], "sum", ONE)
        for _ in range(200):
            found = reducer.reduce(xs[rank], "sum")
            if found is None:
                wait(boards[rank].here())
                boards[rank].reduce(np.add, found := np.empty(50_000))
            assert (found == 3).all()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [board.number for board in boards] == [200, 200]


def test_large_arrays_go_the_way_that_was_faster() -> None:
    ways = Ways()
    tried = []
    for _ in range(8):
        past = ways.past_caches()
        tried.append(past)
        ways.note(past, 1.0 if past else 2.0, 1 << 20)
    assert set(tried) == {False, True}
    assert ways.past_caches()
    for _ in range(3):
        ways.note(False, 0.5, 1 << 20)
    assert not ways.past_caches()
