"""Everybody sends everybody an array of its own size: one exchange of counts, one of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.mpi.agreement import meet, wait
from dsl.mpi.world import world

__all__ = ["swap"]


def swap(parts: Sequence[np.ndarray], what: str) -> list[np.ndarray]:
    """Send `parts[k]` to rank k and return what each rank sent here; parts differ in their first dim only."""
    here = world()
    if here.size == 1:
        return [parts[0]]
    row = parts[0].shape[1:]
    width = int(np.prod(row, dtype=np.int64)) * parts[0].itemsize
    counts = np.array([len(part) for part in parts], np.int64)
    incoming = np.empty_like(counts)
    comm = meet(what)
    wait(comm.Ialltoall(counts, incoming), what)
    sent = np.ascontiguousarray(np.concatenate(parts)).reshape(-1).view(np.uint8)
    found = np.empty((int(incoming.sum()), *row), parts[0].dtype)
    flat = found.reshape(-1).view(np.uint8)
    request = comm.Ialltoallv(
        [sent, (counts * width, _starts(counts) * width)],
        [flat, (incoming * width, _starts(incoming) * width)],
    )
    wait(request, what)
    return np.split(found, np.cumsum(incoming)[:-1])


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
