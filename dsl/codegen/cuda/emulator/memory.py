"""A device's global memory: allocations in an address space of its own.

Addresses never are host addresses, and gaps lie between allocations, so that a wrong pointer is caught. Fresh memory
is filled with 0xFF bytes (NaN, or -1), as a GPU's is with anything but zeros.

>>> memory = Memory()
>>> p = memory.allocate(16)
>>> memory.write(p, np.arange(4, dtype="f4"))
>>> memory.read(p, "f4", 4).tolist()
[0.0, 1.0, 2.0, 3.0]
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dsl.codegen.cuda.emulator.access import HOST, OFFSETS, REGION_CELLS, SIZE, START

__all__ = ["Allocation", "Memory", "Region"]

Array = np.ndarray[Any, Any]

_FIRST = 0x7F00_0000_0000
_ALIGN = 256
_GAP = 4096
_NO_OFFSET = np.zeros(1, np.uint64)


class Region:
    """A piece of device memory as the access ufuncs see it: `handle` is what they take, `cells` its facts."""

    __slots__ = ("buffer", "cells", "end", "handle", "row", "space", "start")

    def __init__(self, start: int, size: int, buffer: Array, space: str, cells: int = 0) -> None:
        self.start, self.end, self.buffer, self.space = start, start + size, buffer, space
        self.row: Array = np.zeros(REGION_CELLS + cells, np.uint64)
        self.row[START], self.row[SIZE] = start, size
        self.row[HOST], self.row[OFFSETS] = buffer.ctypes.data, _NO_OFFSET.ctypes.data
        self.cells = memoryview(self.row.data)
        self.handle: Array = np.array([self.row.ctypes.data], np.uint64)


class Allocation(Region):
    """One allocation; `nbytes` of it are valid."""

    __slots__ = ("nbytes",)

    def __init__(self, start: int, nbytes: int, space: str) -> None:
        super().__init__(start, nbytes, np.full(max(nbytes, 1), 0xFF, np.uint8), space)
        self.nbytes = nbytes


class Memory:
    """The global memory of one emulated device; `limit` bounds the bytes in use."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.in_use = limit, 0
        # A launch holds the lock: regions have one error cell each.
        self.lock = threading.RLock()
        self._next = _FIRST
        self._starts: list[int] = []
        self._allocations: dict[int, Allocation] = {}
        self._freed: dict[int, int] = {}
        self._last = self.nowhere = Allocation(1, 0, "nowhere")

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` new bytes, a multiple of 256; MemoryError over the limit."""
        nbytes = int(nbytes)
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        if self.limit is not None and self.in_use + nbytes > self.limit:
            raise MemoryError(f"{nbytes} bytes more than fit: {self.in_use} of {self.limit} in use")
        self.in_use += nbytes
        return self.place(nbytes, "global")

    def place(self, nbytes: int, space: str) -> int:
        """Like `allocate`, for a module's own variables: in a state space, and not counted."""
        start = self._next
        self._next += -(-(nbytes + _GAP) // _ALIGN) * _ALIGN
        self._allocations[start] = Allocation(start, nbytes, space)
        insort(self._starts, start)
        return start

    def free(self, address: int) -> None:
        """Give back what `allocate` returned."""
        allocation = self._owned(address)
        self.in_use -= allocation.nbytes
        self._starts.remove(allocation.start)
        del self._allocations[allocation.start]
        self._freed[allocation.start] = allocation.nbytes
        self._last = self.nowhere

    def write(self, address: int, array: Array) -> None:
        """Copy the bytes of an array, in C order, to the device."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.view(address, np.uint8, data.size)[...] = data

    def read(self, address: int, dtype: DTypeLike, count: int) -> Array:
        """Copy `count` elements to a fresh array."""
        return self.view(address, dtype, count).copy()

    def view(self, address: int, dtype: DTypeLike, count: int) -> Array:
        """`count` elements of device memory as an array onto it."""
        nbytes = np.dtype(dtype).itemsize * int(count)
        allocation = self.at(int(address))
        offset = int(address) - allocation.start
        if allocation is self.nowhere or offset + nbytes > allocation.nbytes:
            raise IndexError(f"{nbytes} bytes at {address:#x}: {self.describe(address, nbytes)}")
        return allocation.buffer[offset : offset + nbytes].view(dtype)

    def size_of(self, address: int) -> int:
        """The bytes of the allocation that starts here."""
        return self._owned(address).nbytes

    def at(self, address: int) -> Allocation:
        """The allocation that holds an address or ends at it, `nowhere` when there is none."""
        last = self._last
        if last.start <= address < last.end:
            return last
        i = bisect_right(self._starts, address) - 1
        if i < 0:
            return self.nowhere
        found = self._allocations[self._starts[i]]
        if address > found.end:
            return self.nowhere
        self._last = found
        return found

    def ranges(self) -> tuple[Array, Array]:
        """The starts and ends of all allocations, in order."""
        ends = [self._allocations[start].end for start in self._starts]
        return np.array(self._starts, np.uint64), np.array(ends, np.uint64)

    def describe(self, address: int, nbytes: int) -> str:
        """What is wrong with an access: null, freed, or by how much it misses the nearest allocation."""
        if address < _GAP:
            return f"address {address:#x} is null"
        for start, size in self._freed.items():
            if start <= address < start + max(size, 1):
                return (
                    f"address {address:#x} is in memory that was freed ({size} bytes at {start:#x})"
                )
        near = self._nearest(address)
        if near is None:
            return f"address {address:#x}, where nothing is allocated"
        name = f"allocation of {near.nbytes} bytes at {near.start:#x}"
        if address < near.start:
            return f"address {address:#x} is {near.start - address} bytes before the {name}"
        over = address + nbytes - near.end
        if over > 0:
            return f"address {address:#x} ends {over} bytes past the {name}"
        return f"address {address:#x} in the {name}"

    def _nearest(self, address: int) -> Allocation | None:
        distance = lambda a: max(a.start - address, address - a.end, 0)
        return min(self._allocations.values(), key=distance, default=None)

    def _owned(self, address: int) -> Allocation:
        if int(address) not in self._allocations:
            freed = " (already freed)" if int(address) in self._freed else ""
            raise ValueError(f"{int(address):#x} is not the start of an allocation{freed}")
        return self._allocations[int(address)]
