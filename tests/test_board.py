"""The memory that ranks of one machine share, here between threads."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from dsl.mpi.board import PIECE, Board, bytes_of

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
