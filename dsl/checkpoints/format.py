"""The bytes of a checkpoint: a safetensors file with a checksum of every part.

    8 bytes   the length of the header, little-endian
    header    JSON: {"__metadata__": {...}, name: {"dtype": ..., "shape": ..., "data_offsets": [start, stop]}, ...} and spaces
    data      the arrays without gaps, in C order, little-endian, those with wider elements first, so that all are aligned

In: named arrays and texts. Out: a file that the safetensors package reads. The metadata holds, as strings:

    dsl.crc32      checksum of the length and the header with these eight digits as zeros; first, so that its place is known
    dsl.format     the version of all this
    dsl.checksums  JSON: the checksum of each array by name
    dsl.complex    JSON: the names of complex arrays, which are stored as pairs of floats along one more axis
    dsl.…          the texts

Afterwards a changed byte, a missing end and another kind of file are all found, and said to be so. The checksum is zlib's crc32,
which every Python has (3 GB/s here): a file must not need a library to be checked.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import numpy as np

from dsl.errors import CheckpointError, CorruptCheckpointError
from dsl.ir.types import BFLOAT16

__all__ = ["Header", "Record", "is_storable", "read_array", "read_header", "write"]

VERSION = "1"
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "I8": np.dtype("<i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"),
    "U8": np.dtype("<u1"), "U16": np.dtype("<u2"), "U32": np.dtype("<u4"), "U64": np.dtype("<u8"),
    "F16": np.dtype("<f2"), "BF16": BFLOAT16, "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
}  # fmt: skip
_CODES: dict[np.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}
_PAIRS: dict[np.dtype, np.dtype] = {
    np.dtype("<c8"): np.dtype("<f4"),
    np.dtype("<c16"): np.dtype("<f8"),
}
_COMPLEX: dict[np.dtype, np.dtype] = {pair: dtype for dtype, pair in _PAIRS.items()}

_BEGIN = b'{"__metadata__":{"dsl.crc32":"'
_DIGITS = slice(8 + len(_BEGIN), 8 + len(_BEGIN) + 8)
_ALIGNMENT = 64
_CHUNK = 1 << 20  # stays in the second-level cache between its checksum and its copy
_OLDER = "restore an older checkpoint; CheckpointManager.restore() looks for the newest whole one"


@dataclass(frozen=True)
class Record:
    """An array in a file: what it is, where its bytes are, and their checksum."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    checksum: str


@dataclass(frozen=True)
class Header:
    """What a file says before its data: the arrays by name, and the texts by key."""

    records: Mapping[str, Record]
    texts: Mapping[str, str]


def is_storable(dtype: np.dtype) -> bool:
    """Return whether arrays of a dtype have a place in a file."""
    little = dtype.newbyteorder("<")
    return little in _CODES or little in _PAIRS


# -- writing --------------------------------------------------------------------------------------


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> None:
    """Write arrays and texts to an empty file; arrays go out in pieces, without a copy of the whole."""
    ordered = dict(sorted(arrays.items(), key=lambda item: -_stored_as(item[1]).itemsize))
    sums = dict.fromkeys(ordered, "0" * 8)
    file.write(_header(ordered, sums, texts))  # room for the header, which needs the sums
    sums = {name: _write_array(file, array) for name, array in ordered.items()}
    file.seek(0)
    file.write(_header(ordered, sums, texts))


def _stored_as(array: np.ndarray) -> np.dtype:
    little = array.dtype.newbyteorder("<")
    return _PAIRS.get(little, little)


def _header(
    arrays: Mapping[str, np.ndarray], sums: Mapping[str, str], texts: Mapping[str, str]
) -> bytes:
    paired = [name for name, array in arrays.items() if array.dtype.kind == "c"]
    metadata = {"dsl.crc32": "0" * 8, "dsl.format": VERSION, **texts}
    metadata |= {"dsl.complex": _json(paired), "dsl.checksums": _json(sums)}
    text = _json({"__metadata__": metadata, **_infos(arrays)}).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    whole = bytearray(len(text).to_bytes(8, "little") + text)
    whole[_DIGITS] = _digits(zlib.crc32(whole)).encode()
    return bytes(whole)


def _infos(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    infos, start = {}, 0
    for name, array in arrays.items():
        stop = start + array.nbytes
        shape = array.shape + ((2,) if array.dtype.kind == "c" else ())
        code = _CODES[_stored_as(array)]
        infos[name] = {"dtype": code, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    return infos


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _digits(checksum: int) -> str:
    return f"{checksum:08x}"


def _write_array(file: BinaryIO, array: np.ndarray) -> str:
    """Write an array and return its checksum."""
    checksum = 0
    for piece in _pieces(array):
        checksum = zlib.crc32(piece, checksum)
        file.write(piece)
    return _digits(checksum)


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order, each piece in a buffer that the next one uses again.

    What is checked is what is written even if another thread writes into the array meanwhile.
    """
    plain = _of_numpy_dtype(array)
    buffer = np.empty(_CHUNK // plain.itemsize, plain.dtype)
    for block in _blocks(plain, len(buffer)):
        piece = buffer[: len(block)]
        np.copyto(piece, block)
        yield piece.view(np.uint8).data


def _of_numpy_dtype(array: np.ndarray) -> np.ndarray:
    """Return an array with the same bytes: little-endian, and bfloat16 as integers."""
    if array.dtype == BFLOAT16:
        return array.view(np.uint16)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _blocks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        return (flat[i : i + size] for i in range(0, flat.size, size))
    return iter(
        np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size)
    )


# -- reading --------------------------------------------------------------------------------------


def read_header(file: BinaryIO) -> Header:
    """Return what a file says of its arrays; raise if it is not whole, as far as its size and its header tell."""
    size = os.fstat(file.fileno()).st_size
    raw = _read_raw_header(file, size)
    content = _checked_content(file, raw)
    metadata = content.pop("__metadata__")
    if metadata["dsl.format"] != VERSION:
        _refuse_version(file, metadata["dsl.format"])
    records = _records(file, content, metadata, offset=len(raw))
    end = max((record.stop for record in records.values()), default=len(raw))
    if end != size:
        _refuse(file, f"it should have {end} bytes and has {size}")
    return Header(records, metadata)


def _read_raw_header(file: BinaryIO, size: int) -> bytes:
    start = file.read(8 + len(_BEGIN))
    length = int.from_bytes(start[:8], "little")
    if len(start) < 8:
        _refuse(file, f"it ends after {size} bytes")
    if length > size - 8:
        _refuse(file, f"its header should have {length} bytes, and {size - 8} are there")
    if start[8:] != _BEGIN:
        _refuse(file, "it does not begin as a checkpoint of dsl does")
    return start + file.read(8 + length - len(start))


def _checked_content(file: BinaryIO, raw: bytes) -> dict[str, Any]:
    said = raw[_DIGITS]
    zeroed = bytearray(raw)
    zeroed[_DIGITS] = b"0" * len(said)
    if _digits(zlib.crc32(zeroed)).encode() != said:
        _refuse(file, "the checksum of its header is wrong")
    content: dict[str, Any] = json.loads(raw[8:])
    return content


def _records(
    file: BinaryIO, infos: Mapping[str, Any], metadata: Mapping[str, str], offset: int
) -> dict[str, Record]:
    sums, paired = json.loads(metadata["dsl.checksums"]), json.loads(metadata["dsl.complex"])
    records = {}
    for name, info in infos.items():
        record = records[name] = _record(info, name in paired, sums[name], offset)
        if record.stop - record.start != math.prod(record.shape) * record.dtype.itemsize:
            _refuse(file, f"the size of {name!r} does not fit its shape")
    return records


def _record(info: Mapping[str, Any], paired: bool, checksum: str, offset: int) -> Record:
    dtype, shape = DTYPES[info["dtype"]], tuple(info["shape"])
    start, stop = info["data_offsets"]
    if paired:
        dtype, shape = _COMPLEX[dtype], shape[:-1]
    return Record(dtype, shape, offset + start, offset + stop, checksum)


def read_array(file: BinaryIO, name: str, record: Record) -> np.ndarray:
    """Return a new array with the data of a file; raise if they are damaged."""
    array = np.empty(record.shape, record.dtype)
    if _digits(_fill(file, record, array)) != record.checksum:
        _refuse(file, f"the checksum of the array {name!r} is wrong")
    return array


def _fill(file: BinaryIO, record: Record, array: np.ndarray) -> int:
    """Read into an array and return the checksum of what was read."""
    view = array.reshape(-1).view(np.uint8).data
    checksum = 0
    file.seek(record.start)
    for i in range(0, len(view), _CHUNK):
        piece = view[i : i + _CHUNK]
        file.readinto(piece)  # type: ignore[attr-defined]
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _refuse(file: BinaryIO, what: str) -> NoReturn:
    raise CorruptCheckpointError(
        f"{file.name} is damaged, or is no checkpoint of dsl: {what}", remedy=_OLDER
    )


def _refuse_version(file: BinaryIO, version: str) -> NoReturn:
    raise CheckpointError(
        f"{file.name} is in format {version}; this version of dsl reads format {VERSION}",
        remedy="restore it with the version of dsl that saved it, or with a newer one",
    )
