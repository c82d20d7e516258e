"""Agreements between all ranks: each says something, and all hear whether they said the same."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import numpy as np

from dsl.errors import DeadlineError, MismatchError
from dsl.mpi import pulse
from dsl.mpi.patience import Patience
from dsl.mpi.shared import transport
from dsl.mpi.world import world

__all__ = ["agree", "gather_bytes", "wait"]


def agree(what: str, text: str, timeout: float | None = None) -> None:
    """Raise MismatchError, on every rank, unless all ranks call this with the same text.

    The message names a rank that differs and the first line in which it does.
    """
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    everyone = gather_bytes(own, what, timeout).reshape(world().size, -1)
    if (everyone == everyone[0]).all():
        return
    texts = _gather_texts(text, what, timeout)
    other = next(k for k in range(world().size) if texts[k] != texts[0])
    raise MismatchError(_difference(what, texts[0], texts[other], other))


def _difference(what: str, first: str, second: str, rank: int) -> str:
    a, b = first.splitlines(), second.splitlines()
    line = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    one, two = (t[line].strip() if line < len(t) else "(nothing more)" for t in (a, b))
    return f"{what}: ranks 0 and {rank} differ, first in line {line + 1}\n  rank 0: {one}\n  rank {rank}: {two}"


def _gather_texts(text: str, what: str, timeout: float | None) -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = gather_bytes(np.array([data.size], np.int64).view(np.uint8), what, timeout).view(
        np.int64
    )
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    rows = gather_bytes(padded, what, timeout).reshape(world().size, -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes)]


def gather_bytes(own: np.ndarray, what: str, timeout: float | None = None) -> np.ndarray:
    """Return the bytes of all ranks, of the same size each, one after the other."""
    here = world()
    found = np.empty(own.size * here.size, np.uint8)
    request = here.control.Iallgather(np.ascontiguousarray(own), found)
    wait(request, what, timeout)
    return found


def wait(request: Any, what: str, timeout: float | None) -> None:
    """Wait for a request of MPI, while messages move; raise when the time is over or another rank has failed."""
    end = None if timeout is None else time.monotonic() + timeout
    patience = Patience(world().size)
    pulse.waits(what)
    while not request.Test():
        transport().poll(sleep=False)
        patience.rest()
        if end is not None and time.monotonic() > end:
            raise DeadlineError(
                f"{what}: rank {world().rank} waited {timeout:g} s for the other ranks",
                remedy="every rank must make the same calls in the same order",
            )
    pulse.beat(what)
