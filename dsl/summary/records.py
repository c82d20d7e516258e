"""Files of records, as TensorFlow writes them: length, checksum of the length, data, checksum of the data.

Numbers are little-endian. Checksums are CRC-32C, rotated and shifted, so that a checksum of data that holds checksums
is not degenerate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from dsl.errors import DslError
from dsl.summary.checksums import crc32c

__all__ = ["frame", "masked_crc", "records"]

_HEADER = 12
_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Return the checksum of some bytes as records hold it."""
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + _DELTA & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Return a record that holds `data`."""
    length = struct.pack("<Q", len(data))
    return length + _sum(length) + data + _sum(data)


def _sum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))


def records(path: Path) -> Iterator[bytes]:
    """Yield the data of each record; one that is not written to its end yet is left out."""
    with path.open("rb") as file:
        while len(header := file.read(_HEADER)) == _HEADER:
            at = file.tell() - _HEADER
            _check(path, at, header[:8], header[8:])
            size = struct.unpack("<Q", header[:8])[0]
            data, checksum = file.read(size), file.read(4)
            if len(checksum) < 4:
                return
            _check(path, at, data, checksum)
            yield data


def _check(path: Path, at: int, data: bytes, checksum: bytes) -> None:
    if _sum(data) != checksum:
        raise DslError(f"{path}: the record at byte {at} is damaged: its checksum is wrong")
