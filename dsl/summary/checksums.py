"""The checksum CRC-32C (Castagnoli), by a library if one is installed, else by tables.

>>> hex(crc32c(b"123456789"))
'0xe3069283'
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache, reduce
from math import isqrt
from operator import xor
from typing import Any

import numpy as np

__all__ = ["crc32c", "crc32c_by_tables"]

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LIBRARIES = (("google_crc32c", "value"), ("crc32c", "crc32c"))
_LONG = 2048  # bytes from which lanes are faster than one byte after the other
_BLOCK = 1 << 22  # bytes whose lanes fit the caches


def crc32c(data: bytes) -> int:
    """Return the checksum of some bytes."""
    return _fastest()(data)


@cache
def _fastest() -> Callable[[bytes], int]:
    for module, name in _LIBRARIES:
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            continue
    return crc32c_by_tables


def crc32c_by_tables(data: bytes) -> int:
    """Return the checksum, computed here: about 10 ms for a megabyte."""
    state = _ONES
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        state = _follow(state, block) if len(block) < _LONG else _follow_lanes(state, block)
    return state ^ _ONES


def _table(bits: int) -> np.ndarray:
    """Return what each number of so many bits makes of an empty register."""
    table = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


@cache
def _bytes_table() -> list[int]:
    return [int(entry) for entry in _table(8)]


@cache
def _words_table() -> np.ndarray:
    return _table(16)


def _follow(state: int, data: bytes) -> int:
    """Return the register after some bytes."""
    table = _bytes_table()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state


def _follow_lanes(state: int, data: bytes) -> int:
    """The same, for many bytes, by lanes of equal length side by side; what is left over follows byte by byte."""
    count = isqrt(len(data) // 2)
    words = len(data) // 2 // count
    lanes = np.frombuffer(data, "<u2", count * words).reshape(count, words)
    *remainders, moves = _run(lanes)
    for own in remainders:
        state = reduce(xor, (move for k, move in enumerate(moves) if state >> k & 1), own)
    return _follow(state, data[2 * count * words :])


def _run(lanes: np.ndarray) -> Iterator[Any]:
    """Yield the register after each lane, starting empty, and then after a lane of zeros for each single bit at the start.

    The register is linear over bits: after a lane it is what the lane alone gives xor what a lane of zeros makes of the
    register before.
    """
    count, words = lanes.shape
    table, columns = _words_table(), np.zeros((words, count + 32), np.uint16)
    columns[:, :count] = lanes.T
    states = np.zeros(count + 32, np.uint32)
    states[count:] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for column in columns:
        states = table[(states ^ column) & 0xFFFF] ^ states >> 16
    found = [int(state) for state in states]
    yield from found[:count]
    yield found[count:]
