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

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.ir.types import DTYPES

__all__ = ["DEAD", "LARGE", "NOTHING", "Record", "pack", "unpack"]

_HEAD = struct.Struct("<IBBBBII")
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
DEAD, LARGE, NOTHING = 1, 2, 4


@dataclass(slots=True)
class Record:
    """One message as it arrived; the array is None until its bytes are there."""

    kind: int
    flags: int
    numbers: tuple[int, ...]
    array: Any
    tag: int


def pack(
    kind: int, numbers: Sequence[int], array: np.ndarray | None, *, dead: bool = False, tag: int = 0
) -> bytes:
    """Return a record; with a `tag`, the bytes of the array come separately."""
    if array is None:
        flags = (DEAD if dead else 0) | NOTHING
        body = struct.pack(f"<{len(numbers)}q", *numbers)
        return _HEAD.pack(_HEAD.size + len(body), kind, flags, 0, 0, len(numbers), 0) + body
    shape = array.shape
    body = struct.pack(f"<{len(numbers) + len(shape)}q", *numbers, *shape)
    data = b"" if tag else array.tobytes()
    gap = -len(data) % 8  # so that the next record's array is aligned too
    head = _HEAD.pack(
        _HEAD.size + len(body) + len(data) + gap, kind, LARGE if tag else 0, _CODES[array.dtype],
        len(shape), len(numbers), tag,
    )  # fmt: skip
    return b"".join((head, body, data, bytes(gap)))


def unpack(buffer: bytearray) -> Iterator[Record]:
    """Yield the records of a message; small arrays are parts of its memory, a large one is memory for what is to come."""
    at = 0
    while at < len(buffer):
        length, kind, flags, code, rank, count, tag = _HEAD.unpack_from(buffer, at)
        start = at + _HEAD.size
        numbers = struct.unpack_from(f"<{count + rank}q", buffer, start)
        data = start + 8 * (count + rank)
        array = None
        if flags & LARGE:
            array = np.empty(numbers[count:], DTYPES[code])
        elif not flags & NOTHING:
            shape = numbers[count:]
            array = np.frombuffer(buffer, DTYPES[code], math.prod(shape), data).reshape(shape)
        yield Record(kind, flags, numbers[:count], array, tag)
        at += length
