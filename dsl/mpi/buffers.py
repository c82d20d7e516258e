"""Memory for what arrives: used again when nobody has it any more.

Fresh memory of some megabytes costs about as much as the transfer that fills it, since the system clears it page by page. A
buffer is free when its only references are those of this module; arrays over it hold it. It begins on a page: a copy to a
little behind where its source is in a page takes four times as long on some processors.
"""

from __future__ import annotations

import math
import sys
import threading

import numpy as np

__all__ = ["Buffers"]

_LEAST = 1 << 18  # bytes; smaller arrays are NumPy's business
_KEPT = 1 << 26  # bytes of all buffers that are kept
_PAGE = 4096
_FREE = 3  # references: the pair's, the loop's, and that of the call which counts


class Buffers:
    """Arrays of any dtype and shape, over memory that is kept."""

    def __init__(self) -> None:
        self._buffers: list[tuple[np.ndarray, int]] = []  # and where their first page begins
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array whose contents are open."""
        size = math.prod(shape) * dtype.itemsize
        if size < _LEAST:
            return np.empty(shape, dtype)
        with self._lock:
            return np.ndarray(shape, dtype, *self._buffer(size + _PAGE))

    def _buffer(self, size: int) -> tuple[np.ndarray, int]:
        for found, start in self._buffers:
            if found.size == size and sys.getrefcount(found) <= _FREE:
                return found, start
        made = np.empty(size, np.uint8)
        pair = made, -made.ctypes.data % _PAGE
        if size <= _KEPT:
            self._buffers.append(pair)
            self._trim()
        return pair

    def _trim(self) -> None:
        """Forget the oldest; arrays over them live on."""
        while sum(buffer.size for buffer, _ in self._buffers) > _KEPT:
            del self._buffers[0]
