"""Messages between ranks: a few numbers, and an array or the news that a token is dead.

A record is a header and, if the array is small, its bytes. Records for one rank travel together; the bytes of a large array
come as a message of their own, straight from its memory into other memory (`large`).

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

import collections
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.ir.shared_memory import DEAD, LARGE, NOTHING
from dsl.ir.types import DTYPES

__all__ = ["Inbox", "Record", "pack", "unpack"]

_HEAD = struct.Struct("<IBBBBII")
_SIZE, _unpack_head, _array = _HEAD.size, _HEAD.unpack_from, np.ndarray
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


@dataclass(slots=True)
class Record:
    """One message as it arrived; instead of a large array, whose bytes come separately, its shape and dtype."""

    kind: int
    flags: int
    numbers: tuple[int, ...]
    array: Any
    tag: int


Inbox = collections.deque[tuple[int, Record]]
"""What has arrived, and from whom."""


@functools.cache
def _numbers(count: int) -> Callable[..., tuple[int, ...]]:
    """Return what reads so many numbers and dims."""
    return struct.Struct(f"<{count}q").unpack_from


@functools.cache
def _head(count: int) -> tuple[int, Callable[..., bytes]]:
    """Return the size of a header with so many numbers and dims, and what makes it."""
    layout = struct.Struct(f"{_HEAD.format}{count}q")
    return layout.size, layout.pack


def pack(
    kind: int, numbers: Sequence[int], array: np.ndarray | None, *, dead: bool = False, tag: int = 0
) -> bytes:
    """Return a record; with a `tag`, the bytes of the array come separately."""
    count = len(numbers)
    if array is None:
        size, head = _head(count)
        return head(size, kind, DEAD | NOTHING if dead else NOTHING, 0, 0, count, 0, *numbers)
    shape, code = array.shape, _CODES[array.dtype]
    rank = len(shape)
    size, head = _head(count + rank)
    if tag:
        return head(size, kind, LARGE, code, rank, count, tag, *numbers, *shape)
    data = array.tobytes()
    if over := len(data) % 8:  # so that the next record's array is aligned too
        data += bytes(8 - over)
    return head(size + len(data), kind, 0, code, rank, count, 0, *numbers, *shape) + data


def unpack(buffer: bytearray) -> list[Record]:
    """Return the records of a message; small arrays are parts of its memory."""
    found, at, end = [], 0, len(buffer)
    while at < end:
        length, kind, flags, code, rank, count, tag = _unpack_head(buffer, at)
        start = at + _SIZE
        numbers = _numbers(count + rank)(buffer, start)
        at += length
        array: Any = None
        if flags & LARGE:
            array = numbers[count:], DTYPES[code]
        elif not flags & NOTHING:
            array = _array(numbers[count:], DTYPES[code], buffer, start + 8 * (count + rank))
        found.append(Record(kind, flags, numbers[:count], array, tag))
    return found
