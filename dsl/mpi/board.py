"""Memory that all ranks share if they are on one machine: what each is about to do, and pieces of arrays.

Each rank has a mark, which says how many times it has come and what for, and room for a piece of an array; both twice, for even and
odd times. Who comes writes its piece, then what for, then the number. Who sees the numbers of all others may read their
pieces until it comes again: nobody writes there before it has seen that number. So to meet costs each rank a few stores and loads,
where messages take microseconds, and a reduction reads what the others have where it is.

This needs stores of one processor to be seen by others in their order, as they are on x86; elsewhere there is no board.
"""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["PIECE", "Board", "bytes_of", "make_boards"]

PIECE = 1 << 20  # bytes of an array that go at once
_RANKS = 8  # that read what all others have; for more, MPI's ways to reduce are quicker
_MARK = 64  # bytes: a cache line, so that who waits disturbs nobody else
_PAGE = 4096
_VIEWS = 256  # of pieces as arrays that are kept: to make one takes as long as to meet


class Board:
    """The shared memory of a number of ranks, as one of them sees it."""

    def __init__(self, memory: memoryview, rank: int, size: int) -> None:
        self._memory, self._rank, self._size, self._number = memory, rank, size, 0
        self._each = len(memory) // size
        data = memory
        self._words = data.cast("q")
        marks = [[r * self._each + odd * _MARK for r in range(size)] for odd in (0, 1)]
        self._own = [(mark[rank] // 8, data[mark[rank] + 8 : mark[rank] + 24]) for mark in marks]
        self._others = [[m // 8 for r, m in enumerate(mark) if r != rank] for mark in marks]
        self._digests = [[data[m + 8 : m + 24] for m in mark] for mark in marks]
        self._views: dict[tuple[int, np.dtype, int], list[np.ndarray]] = {}

    @property
    def reduces(self) -> bool:
        """Whether ranks have room for pieces of arrays."""
        return self._each > _PAGE

    def come(self, digest: bytes) -> Callable[[], bool]:
        """Say that this rank is here, and what for; return what tells whether all others are."""
        self._number = number = self._number + 1
        words = self._words
        place, what = self._own[number & 1]
        what[:] = digest
        words[place] = number
        places = self._others[number & 1]
        if len(places) == 1:
            (other,) = places
            return lambda: words[other] == number
        return lambda: all(words[other] == number for other in places)

    def agree(self, digest: bytes) -> bool:
        """Tell whether all ranks, which are here, are here for the same."""
        return self._digests[self._number & 1] == [digest] * self._size

    def bring(self, piece: np.ndarray) -> None:
        """Put down a piece of an array for the others, before `come`."""
        np.copyto(self._pieces(self._number + 1, piece)[self._rank], piece)

    def reduce(self, ufunc: np.ufunc, out: np.ndarray) -> None:
        """Combine the pieces of all ranks, which are here, from the first rank to the last."""
        first, second, *rest = self._pieces(self._number, out)
        ufunc(first, second, out)
        for piece in rest:
            ufunc(out, piece, out)

    def _pieces(self, number: int, like: np.ndarray) -> list[np.ndarray]:
        """Return all ranks' pieces, as arrays of the size and dtype of another one."""
        key = (number & 1, like.dtype, like.size)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            starts = [r * self._each + _PAGE + key[0] * PIECE for r in range(self._size)]
            self._views[key] = found = [
                np.frombuffer(self._memory, like.dtype, like.size, start) for start in starts
            ]
        return found


def bytes_of(size: int, *, pieces: bool = True) -> int:
    """Return how much memory so many ranks share on a board, with room for pieces of arrays or without."""
    return size * (_PAGE + (2 * PIECE if pieces and size <= _RANKS else 0))


def make_boards(comm: Any, count: int) -> list[Board | None]:
    """Return boards for a communicator's ranks, the first with room for arrays; None for each if they share no memory.

    All ranks call this, and wait for one another here: it belongs where they are together anyway.
    """
    from mpi4py import MPI

    rank, ranks = comm.Get_rank(), comm.Get_size()
    near = comm.Split_type(MPI.COMM_TYPE_SHARED, rank)
    together = near.Get_size() == ranks
    near.Free()
    able = together and platform.machine() in ("x86_64", "AMD64") and os.name == "posix"
    if not comm.allreduce(able, MPI.LAND):
        return [None] * count
    sizes = [bytes_of(ranks, pieces=k == 0) for k in range(count)]
    memory = _shared_memory(comm, sum(sizes))
    if not comm.allreduce(memory is not None, MPI.LAND) or memory is None:
        return [None] * count
    whole, starts = memoryview(memory), [sum(sizes[:k]) for k in range(count)]
    return [Board(whole[at : at + n], rank, ranks) for at, n in zip(starts, sizes)]


def _shared_memory(comm: Any, size: int) -> mmap.mmap | None:
    """Return memory that all ranks of a machine map; its file is gone when they have."""
    path = comm.bcast(_make_file(size) if comm.Get_rank() == 0 else None)
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), size)
    except (OSError, TypeError):
        memory = None
    comm.Barrier()
    if comm.Get_rank() == 0 and path is not None:
        os.unlink(path)
    return memory


def _make_file(size: int) -> str | None:
    """Make a file in memory, all of whose pages are there; None if that cannot be had."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    try:
        handle, path = tempfile.mkstemp(prefix="dsl-ranks-", dir=folder)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, size)  # now, rather than a signal when memory runs out later
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path
