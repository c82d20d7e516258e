"""Memory that all ranks share if they are on one machine: what each is about to do, and pieces of arrays.

Each rank has a mark, which says how many times it has come and what for, and room for a piece of an array; both twice, for even and
odd times. Who comes writes its piece, then what for, then the number. Who sees the numbers of all others may read their
pieces until it comes again: nobody writes there before it has seen that number. So to meet costs each rank a few stores and loads,
where messages take microseconds, and a reduction reads what the others have where it is.

This needs stores of one processor to be seen by others in their order, as they are on x86; elsewhere there is no board.
"""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.ir.shared_memory import Code, Reducer, code
from dsl.mpi.patience import cores
from dsl.mpi.shared_memory import shared_memory

__all__ = ["PIECE", "Board", "Ways", "bytes_of", "make_boards"]

PIECE = 1 << 20  # bytes of an array that go at once
_RANKS = 8  # that read what all others have; for more, MPI's ways to reduce are quicker
_MARK = 64  # bytes: a cache line, so that who waits disturbs nobody else
_PAGE = 4096
_LOOKS = 400, 20  # of machine code for each other rank, if each can have a core or not
_TRIALS = 9  # arrays, after which the faster way is known
_VIEWS = 256  # of pieces as arrays that are kept: to make one takes as long as to meet


class Ways:
    """Two ways to bring large arrays: which is faster depends on how near the ranks' cores are, so both are tried first."""

    def __init__(self) -> None:
        self._count = 0
        self._best = [math.inf, math.inf]  # seconds for a byte

    def past_caches(self) -> bool:
        """Tell which way the next array goes."""
        self._count += self._count < _TRIALS
        if self._count < _TRIALS:
            return self._count % 2 == 1
        return self._best[1] < self._best[0]

    def note(self, past: bool, seconds: float, size: int) -> None:
        """Remember how long an array took."""
        self._best[past] = min(self._best[past], seconds / size)


class Board:
    """The shared memory of a number of ranks, as one of them sees it."""

    def __init__(
        self, memory: memoryview, rank: int, size: int, native: Code | None = None
    ) -> None:
        self._memory, self._rank, self._size = memory, rank, size
        self._each = len(memory) // size
        data = memory
        self._words = data.cast("q")
        marks = [[r * self._each + odd * _MARK for r in range(size)] for odd in (0, 1)]
        self._own = [(mark[rank] // 8, data[mark[rank] + 8 : mark[rank] + 24]) for mark in marks]
        self._others = [[m // 8 for r, m in enumerate(mark) if r != rank] for mark in marks]
        self._digests = [[data[m + 8 : m + 24] for m in mark] for mark in marks]
        self._views: dict[tuple[int, np.dtype, int], list[np.ndarray]] = {}
        self.reducer = self._made(native, marks) if native is not None and self.reduces else None
        self._counter = ctypes.c_int64() if self.reducer is None else self.reducer.counter

    def _made(self, native: Code, marks: list[list[int]]) -> Reducer:
        base = np.frombuffer(self._memory, np.uint8).ctypes.data
        places = [[base + mark for mark in each] for each in marks]
        pieces = [[base + start for start in self._starts(odd)] for odd in (0, 1)]
        looks = _LOOKS[self._size > cores()]
        return native.reducer(places, pieces, self._rank, room=PIECE, looks=looks)

    @property
    def number(self) -> int:
        """How many times this rank has come."""
        return self._counter.value

    @property
    def reduces(self) -> bool:
        """Whether ranks have room for pieces of arrays."""
        return self._each > _PAGE

    def come(self, digest: bytes) -> Callable[[], bool]:
        """Say that this rank is here, and what for; return what tells whether all others are."""
        number = self._counter.value + 1
        self._counter.value = number
        words = self._words
        place, what = self._own[number & 1]
        what[:] = digest
        words[place] = number
        return self.here()

    def here(self) -> Callable[[], bool]:
        """Return what tells whether all others are here too."""
        words, number = self._words, self.number
        places = self._others[number & 1]
        if len(places) == 1:
            (other,) = places
            return lambda: words[other] == number
        return lambda: all(words[other] == number for other in places)

    def agree(self, digest: bytes) -> bool:
        """Tell whether all ranks, which are here, are here for the same."""
        return self._digests[self.number & 1] == [digest] * self._size

    def bring(self, piece: np.ndarray, past: bool = False) -> None:
        """Put down a piece of an array for the others, before `come`; a contiguous one `past` the caches, if need be."""
        target = self._pieces(self.number + 1, piece)[self._rank]
        if past and self.reducer is not None:
            self.reducer.bring(target, piece)
        else:
            np.copyto(target, piece)

    def reduce(self, ufunc: np.ufunc, out: np.ndarray, own: np.ndarray | None = None) -> None:
        """Combine the pieces of all ranks, which are here, from the first rank to the last; this one may have its `own` nearer."""
        pieces = list(self._pieces(self.number, out))
        if own is not None:
            pieces[self._rank] = own
        first, second, *rest = pieces
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
            self._views[key] = found = [
                np.frombuffer(self._memory, like.dtype, like.size, start)
                for start in self._starts(key[0])
            ]
        return found

    def _starts(self, odd: int) -> list[int]:
        """Return where all ranks' pieces begin, at even or odd times."""
        return [r * self._each + _PAGE + odd * PIECE for r in range(self._size)]


def bytes_of(size: int, *, pieces: bool = True) -> int:
    """Return how much memory so many ranks share on a board, with room for pieces of arrays or without."""
    return size * (_PAGE + (2 * PIECE if pieces and size <= _RANKS else 0))


def make_boards(comm: Any, near: Any, count: int) -> list[Board | None]:
    """Return boards for a communicator's ranks, the first with room for arrays; None for each if they share no memory.

    `near` has those of this machine. All ranks call this, and wait for one another here: it belongs where they are together anyway.
    """
    from mpi4py import MPI

    rank, ranks = comm.Get_rank(), comm.Get_size()
    able = near.Get_size() == ranks and platform.machine() in ("x86_64", "AMD64")
    if not comm.allreduce(able, MPI.LAND):
        return [None] * count
    sizes = [bytes_of(ranks, pieces=k == 0) for k in range(count)]
    memory = shared_memory(comm, sum(sizes))
    if memory is None:
        return [None] * count
    whole, starts = memoryview(memory), [sum(sizes[:k]) for k in range(count)]
    native = code()
    return [Board(whole[at : at + n], rank, ranks, native) for at, n in zip(starts, sizes)]
