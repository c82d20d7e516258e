"""Memory that the ranks of one machine share: a file that all of them map, and that is gone when they have."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

__all__ = ["shared_memory"]


def shared_memory(comm: Any, size: int) -> mmap.mmap | None:
    """Return memory, zero at first, that all ranks of a communicator have; None for all of them if it cannot be had.

    All of them call this, and wait for one another.
    """
    path = comm.bcast(_make_file(size) if comm.Get_rank() == 0 else None)
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), size)
    except (OSError, TypeError):
        memory = None
    had = comm.allgather(memory is not None)
    if comm.Get_rank() == 0 and path is not None:
        os.unlink(path)
    return memory if all(had) else None


def _make_file(size: int) -> str | None:
    """Make a file in memory, all of whose pages are there; None if that cannot be had."""
    if not hasattr(os, "posix_fallocate"):
        return None
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
