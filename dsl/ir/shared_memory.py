"""Machine code that works on memory which ranks of one machine share, as `dsl.mpi` sees it.

Whoever can make such code says so (`provide`); without, messages of MPI and NumPy do the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

__all__ = [
    "DEAD", "EAGER", "LARGE", "LOST", "NOTHING", "SHARED", "Code", "Mail", "Reducer", "code", "provide",
]  # fmt: skip

EAGER = 16 << 10
"""Bytes of an array that travels inside its record."""

DEAD, LARGE, NOTHING, LOST, SHARED = 1, 2, 4, 8, 16
"""Flags of a record: a dead token; its array comes separately, or is in the process of who sent it; it has none; who sent it is gone,
and the array too; the array is in shared memory."""


class Mail(Protocol):
    """The mailboxes of one rank, for ranks by their number among those of the machine.

    One thread at a time posts, and one takes.
    """

    @property
    def post(self) -> Callable[[int, int, tuple[int, ...], np.ndarray | None, bool], Any]:
        """Send a record: to whom, its kind, numbers, an array, whether it is a dead token.

        Return 0; for a large array that is to stay as it is until it was taken, how many there were; -1 if there is no room;
        NotImplemented if the array does not lie in one piece, or its dtype object is not the usual one.
        """

    @property
    def take(self) -> Callable[[int], tuple[int, int, int, tuple[int, ...], Any] | None]:
        """Return rank, kind, flags, numbers and array of the next record; None if none comes while one looks so often."""

    @property
    def taken(self) -> Callable[[int], int]:
        """Return how many large arrays somebody has taken of those that were to stay; -1 if no more are taken."""

    def close(self) -> None:
        """Take nothing any more."""


class Reducer(Protocol):
    """What reduces arrays over the ranks that meet on a board, all of it at once, if the others are there already or come soon."""

    @property
    def reduce(self) -> Callable[[np.ndarray, str], Any]:
        """Return the reduction of an array and those of the others.

        NotImplemented if arrays like this one were not learned: nothing was done. None if not all others are here, or not for the
        same: this rank is, and its array is on the board.
        """

    def learn(self, x: np.ndarray, how: str, digest: bytes) -> None:
        """Let `reduce` take arrays of this dtype and shape; the digest says what for ranks are there."""

    @property
    def counter(self) -> ctypes.c_int64:
        """How many times this rank has come to the board, by way of this or otherwise."""

    def bring(self, target: np.ndarray, piece: np.ndarray) -> None:
        """Copy a piece of an array, both contiguous, to where other ranks read it."""

    def last(self) -> tuple[np.dtype, tuple[int, ...], str]:
        """Return what the last `reduce` that did something was of: dtype, shape, and how."""


class Code(Protocol):
    """What makes all that."""

    def mail_bytes(self, ranks: int) -> int:
        """Return how much memory so many ranks need for mailboxes, all of it zero at first."""

    def mail(self, memory: memoryview, own: int, ranks: Sequence[int], pids: Sequence[int]) -> Mail:
        """Return the mailboxes of one of these ranks, the one with that index."""

    def reducer(
        self, marks: Sequence[Sequence[int]], pieces: Sequence[Sequence[int]], own: int, *, room: int, looks: int,
    ) -> Reducer:  # fmt: skip
        """Return what reduces for a rank over a board, given the addresses of all ranks' marks and pieces at even and odd times.

        A piece has room for so many bytes; for each other rank one looks so often.
        """


_makers: list[Callable[[], Code | None]] = []


def provide(make: Callable[[], Code | None]) -> None:
    """Say what returns the code."""
    _makers[:] = [make]


def code() -> Code | None:
    """Return the code, or None."""
    return _makers[0]() if _makers else None
