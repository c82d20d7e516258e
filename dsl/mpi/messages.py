"""Messages between ranks: a few numbers, and an array or the news that a token is dead.

A record is a header and, if the array is small, its bytes. Records for one rank travel together; the bytes of a large array
follow as a message of their own, straight from its memory into new memory.

| bytes | field |
| --- | --- |
| 4 | length of the record |
| 1 | kind: who takes it |
| 1 | flags: dead, large, no array |
| 1 | dtype |
| 1 | rank of the array |
| 4 | count of numbers |
| 4 | tag of the message with the bytes, if large |
| 8 each | the numbers, then the dims |
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.ir.types import DTYPES

__all__ = ["DEAD", "LARGE", "NOTHING", "Record", "flat", "pack", "unpack"]

_HEAD = struct.Struct("<IBBBBII")
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_GAPS = tuple(bytes(-size % 8) for size in range(8))
DEAD, LARGE, NOTHING = 1, 2, 4


@dataclass(slots=True)
class Record:
    """One message as it arrived; a large array is memory for bytes that come separately."""

    kind: int
    flags: int
    numbers: tuple[int, ...]
    array: Any
    tag: int


@functools.cache
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q")


@functools.cache
def _head(count: int) -> struct.Struct:
    """Return the layout of a header with so many numbers and dims."""
    return struct.Struct(f"{_HEAD.format}{count}q")


def pack(
    kind: int, numbers: Sequence[int], array: np.ndarray | None, *, dead: bool = False, tag: int = 0
) -> bytes:
    """Return a record; with a `tag`, the bytes of the array come separately."""
    count = len(numbers)
    if array is None:
        head, flags = _head(count), DEAD | NOTHING if dead else NOTHING
        return head.pack(head.size, kind, flags, 0, 0, count, 0, *numbers)
    shape, code = array.shape, _CODES[array.dtype]
    head = _head(count + len(shape))
    if tag:
        return head.pack(head.size, kind, LARGE, code, len(shape), count, tag, *numbers, *shape)
    data = array.tobytes()
    gap = _GAPS[len(data) % 8]  # so that the next record's array is aligned too
    size = head.size + len(data) + len(gap)
    return head.pack(size, kind, 0, code, len(shape), count, 0, *numbers, *shape) + data + gap


def unpack(buffer: bytearray, empty: Callable[..., np.ndarray]) -> Iterator[Record]:
    """Yield the records of a message; small arrays are parts of its memory, `empty(shape, dtype)` makes that of large ones."""
    at = 0
    while at < len(buffer):
        length, kind, flags, code, rank, count, tag = _HEAD.unpack_from(buffer, at)
        start = at + _HEAD.size
        numbers = _numbers(count + rank).unpack_from(buffer, start)
        if flags & NOTHING:
            yield Record(kind, flags, numbers, None, 0)
        elif flags & LARGE:
            yield Record(kind, flags, numbers[:count], empty(numbers[count:], DTYPES[code]), tag)
        else:
            data = start + 8 * (count + rank)
            array: Any = np.ndarray(numbers[count:], DTYPES[code], buffer, data)
            yield Record(kind, flags, numbers[:count], array, 0)
        at += length


def flat(array: np.ndarray) -> np.ndarray:
    """Return the bytes of a contiguous array, which MPI takes whatever the dtype is."""
    return array.reshape(-1).view(np.uint8)
