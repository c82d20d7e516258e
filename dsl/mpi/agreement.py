"""Agreements between all ranks: each says something, and all hear whether they said the same.

Before anything is exchanged the ranks meet, as for a collective, on a communicator for agreements alone: those that are here for
different things, or not here at all, are named.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np

from dsl.errors import MismatchError
from dsl.ir.communicator import current_location
from dsl.mpi.collectives import Meeting
from dsl.mpi.once import once
from dsl.mpi.shared import waits
from dsl.mpi.waiting import Call
from dsl.mpi.world import world

__all__ = ["agree", "gather_bytes", "meet", "wait"]

_lock = threading.RLock()  # one agreement at a time, whichever thread wants it


def agree(what: str, text: str) -> None:
    """Raise MismatchError, on every rank, unless all ranks call this with the same text.

    The message names a rank that differs and the first line in which it does.
    """
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    everyone = gather_bytes(own, what).reshape(world().size, -1)
    if (everyone == everyone[0]).all():
        return
    texts = _gather_texts(text, what)
    other = next(k for k in range(world().size) if texts[k] != texts[0])
    raise MismatchError(_difference(what, texts[0], texts[other], other))


def _difference(what: str, first: str, second: str, rank: int) -> str:
    a, b = first.splitlines(), second.splitlines()
    line = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    one, two = (t[line].strip() if line < len(t) else "(nothing more)" for t in (a, b))
    return f"{what}: ranks 0 and {rank} differ, first in line {line + 1}\n  rank 0: {one}\n  rank {rank}: {two}"


def _gather_texts(text: str, what: str) -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = gather_bytes(np.array([data.size], np.int64).view(np.uint8), what).view(np.int64)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    rows = gather_bytes(padded, what).reshape(world().size, -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes)]


def gather_bytes(own: np.ndarray, what: str) -> np.ndarray:
    """Return the bytes of all ranks, of the same size each, one after the other."""
    found = np.empty(own.size * world().size, np.uint8)
    with _lock:
        comm = meet(what)
        wait(comm.Iallgather(np.ascontiguousarray(own), found), what)
    return found


def meet(what: str) -> Any:
    """Wait until all ranks are here for the same, and return the communicator of MPI for it."""
    with _lock:
        return _meeting().meet(what)


@once
def _meeting() -> Meeting:
    *_, board = world().boards
    return Meeting(world().control, waits(), board)


def wait(request: Any, what: str) -> None:
    """Wait for a request of MPI, while messages move; raise if it will never be done."""
    waits().until(Call(what, current_location(), _meeting().count), request.Test)
