"""The bytes of large arrays, which travel as messages of their own.

Between two ranks each size has a tag, and what has one tag arrives in the order in which it was sent. So who has received an
array can tell MPI where the next one of that size goes before it is sent: its bytes move while its record is still made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.mpi.buffers import Buffers

__all__ = ["Incoming", "Outgoing", "as_bytes"]

_FIRST = 2  # the tag of records is below
_CHANNELS = 1_000  # sizes that have a tag of their own, for each rank
_TAGS = 30_000  # the smallest upper bound that MPI promises is 32,767
_AHEAD = 1 << 25  # bytes of memory that waits for arrays nobody has announced


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return a contiguous array as MPI takes it for bytes: itself, or a view if its dtype is one that Python's buffers lack."""
    return array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array


class Outgoing:
    """The tags of what is sent."""

    def __init__(self) -> None:
        self._tags: dict[tuple[int, int], int] = {}
        self._count: dict[int, int] = {}
        self._last = _FIRST + _CHANNELS

    def tag(self, rank: int, size: int) -> int:
        """Return the tag of an array of so many bytes for a rank."""
        found = self._tags.get((rank, size))
        if found is not None:
            return found
        count = self._count.get(rank, 0)
        if count == _CHANNELS:
            self._last = self._last + 1 if self._last < _TAGS else _FIRST + _CHANNELS
            return self._last
        self._count[rank] = count + 1
        self._tags[rank, size] = _FIRST + count
        return _FIRST + count


@dataclass
class _Channel:
    """Arrays of one size from one rank: how many were announced, and what waits for the next one."""

    announced: int = 0
    ahead: tuple[np.ndarray, Any] | None = None


class Incoming:
    """Memory for what arrives, and MPI's requests that fill it."""

    def __init__(self, receive: Callable[[np.ndarray, int, int], Any]) -> None:
        self._receive = receive  # into some bytes, from a rank, with a tag
        self._empty = Buffers().empty
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._wanted: dict[tuple[int, int], int] = {}  # bytes, by channel
        self._waiting = 0  # bytes

    def take(
        self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> tuple[Any, np.ndarray]:
        """Return the request for an array that was announced, and the array, which has its contents when that is done."""
        if tag >= _FIRST + _CHANNELS:
            array = self._empty(shape, dtype)
            return self._receive(as_bytes(array), source, tag), array
        channel = self._channels.setdefault((source, tag), _Channel())
        channel.announced += 1
        if channel.ahead is not None:
            (memory, request), channel.ahead = channel.ahead, None
            self._waiting -= memory.size
            self._wanted[source, tag] = memory.size
            return request, np.ndarray(shape, dtype, memory)
        array = self._empty(shape, dtype)
        if channel.announced > 1:  # so that what comes once has no second memory
            self._wanted[source, tag] = array.nbytes
        return self._receive(as_bytes(array), source, tag), array

    def expect(self) -> None:
        """Tell MPI where the next arrays go; to be called while there is time."""
        for (source, tag), size in self._wanted.items():
            channel = self._channels[source, tag]
            if channel.ahead is None and self._waiting + size <= _AHEAD:
                memory = self._empty((size,), np.dtype(np.uint8))
                self._waiting += size
                channel.ahead = memory, self._receive(memory, source, tag)
        self._wanted.clear()

    def close(self) -> None:
        """Wait for nothing any more."""
        for channel in self._channels.values():
            if channel.ahead is not None:
                _, request = channel.ahead
                request.Cancel()
                request.Wait()
                channel.ahead = None
