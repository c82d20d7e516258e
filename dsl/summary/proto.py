"""Protocol buffers, as much as TensorFlow's events and graphs need: a table of messages, written and read by one walk.

A message is a dict from field names to values: ints, floats, strings, bytes, dicts for messages inside, and lists for
repeated fields. Fields that are not in the dict are not written. `encode` gives the wire form, `decode` reads it and
skips what the table does not have, `text` is the form of `.pbtxt` files.

>>> encode("Dim", {"size": 3}).hex()
'0803'
>>> decode("Dim", bytes.fromhex("0803"))
{'size': 3}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["DATA_TYPES", "Message", "decode", "encode", "text"]

Message = Mapping[str, Any]

# Message -> field -> number and type; `*` is for repeated fields, numbers of which are packed.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Event": {"wall_time": (1, "double"), "step": (2, "int"), "file_version": (3, "string"), "graph_def": (4, "bytes"),
              "summary": (5, "Summary")},
    "Summary": {"value": (1, "*Value")},
    "Value": {"tag": (1, "string"), "simple_value": (2, "float"), "histo": (5, "Histogram"), "tensor": (8, "Tensor"),
              "metadata": (9, "Metadata")},
    "Metadata": {"plugin_data": (1, "Plugin"), "data_class": (4, "int")},
    "Plugin": {"plugin_name": (1, "string"), "content": (2, "bytes")},
    "Histogram": {"min": (1, "double"), "max": (2, "double"), "num": (3, "double"), "sum": (4, "double"),
                  "sum_squares": (5, "double"), "bucket_limit": (6, "*double"), "bucket": (7, "*double")},
    "Tensor": {"dtype": (1, "DataType"), "tensor_shape": (2, "Shape"), "tensor_content": (4, "bytes"),
               "float_val": (5, "*float"), "double_val": (6, "*double"), "string_val": (8, "*bytes")},
    "Shape": {"dim": (2, "*Dim"), "unknown_rank": (3, "bool")},
    "Dim": {"size": (1, "int"), "name": (2, "string")},
    "GraphDef": {"node": (1, "*NodeDef"), "versions": (4, "Versions")},
    "Versions": {"producer": (1, "int"), "min_consumer": (2, "int")},
    "NodeDef": {"name": (1, "string"), "op": (2, "string"), "input": (3, "*string"), "device": (4, "string"),
                "attr": (5, "*Attr")},
    "Attr": {"key": (1, "string"), "value": (2, "AttrValue")},
    "AttrValue": {"list": (1, "AttrList"), "s": (2, "bytes"), "i": (3, "int"), "f": (4, "float"), "b": (5, "bool"),
                  "type": (6, "DataType"), "shape": (7, "Shape"), "tensor": (8, "Tensor")},
    "AttrList": {"s": (2, "*bytes"), "i": (3, "*int"), "f": (4, "*float"), "b": (5, "*bool"), "type": (6, "*DataType"),
                 "shape": (7, "*Shape"), "tensor": (8, "*Tensor")},
}  # fmt: skip

DATA_TYPES = {
    "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_INT8": 6, "DT_STRING": 7,
    "DT_COMPLEX64": 8, "DT_INT64": 9, "DT_BOOL": 10, "DT_BFLOAT16": 14, "DT_UINT16": 17, "DT_COMPLEX128": 18,
    "DT_HALF": 19, "DT_RESOURCE": 20, "DT_UINT32": 22, "DT_UINT64": 23,
}  # fmt: skip
_TYPE_NAMES = {number: name for name, number in DATA_TYPES.items()}

_FIXED = {"double": (1, "<d"), "float": (5, "<f")}
_VARINTS = ("int", "bool", "DataType")
_WIDTHS = {1: 8, 5: 4}
_BYTES = 2


# -- writing -------------------------------------------------------------------------------------------------------


def encode(type: str, message: Message) -> bytes:
    """Return a message on the wire, fields in the order of the table."""
    parts: list[bytes] = []
    for name, (number, kind) in MESSAGES[type].items():
        if name in message:
            parts += _encode_field(number, kind, message[name])
    return b"".join(parts)


def _encode_field(number: int, kind: str, value: Any) -> Iterator[bytes]:
    single = kind.removeprefix("*")
    if single == kind:
        yield _encode_one(number, kind, value)
    elif single in _FIXED or single in _VARINTS:
        yield _framed(number, b"".join(_scalar(single, item) for item in value))
    else:
        yield from (_encode_one(number, single, item) for item in value)


def _encode_one(number: int, kind: str, value: Any) -> bytes:
    if kind in _FIXED:
        return _varint(number << 3 | _FIXED[kind][0]) + _scalar(kind, value)
    if kind in _VARINTS:
        return _varint(number << 3) + _scalar(kind, value)
    if kind in MESSAGES:
        return _framed(number, encode(kind, value))
    return _framed(number, value.encode() if kind == "string" else value)


def _scalar(kind: str, value: Any) -> bytes:
    return struct.pack(_FIXED[kind][1], value) if kind in _FIXED else _varint(int(value))


def _framed(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers in two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- reading -------------------------------------------------------------------------------------------------------


def decode(type: str, data: bytes) -> dict[str, Any]:
    """Read a message; of a field that is not repeated the last one counts."""
    names = {number: (name, kind) for name, (number, kind) in MESSAGES[type].items()}
    found: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        if number not in names:
            continue
        name, kind = names[number]
        if kind.startswith("*"):
            found.setdefault(name, []).extend(_decode_many(kind[1:], wire, value))
        else:
            found[name] = _decode_one(kind, value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, wire, value
            continue
        size, at = (_WIDTHS[wire], at) if wire in _WIDTHS else _read_varint(data, at)
        yield key >> 3, wire, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _decode_many(kind: str, wire: int, value: Any) -> list[Any]:
    if wire != _BYTES or kind in MESSAGES or kind in ("string", "bytes"):
        return [_decode_one(kind, value)]
    if kind in _FIXED:
        return [item for (item,) in struct.iter_unpack(_FIXED[kind][1], value)]
    found, at = [], 0
    while at < len(value):
        item, at = _read_varint(value, at)
        found.append(_decode_one(kind, item))
    return found


def _decode_one(kind: str, value: Any) -> Any:
    if kind in MESSAGES:
        return decode(kind, value)
    if kind in _FIXED:
        return struct.unpack(_FIXED[kind][1], value)[0]
    if kind == "bool":
        return bool(value)
    if kind in _VARINTS:
        return value - (1 << 64) if value >> 63 else value
    return value.decode() if kind == "string" else bytes(value)


# -- text ----------------------------------------------------------------------------------------------------------


def text(type: str, message: Message) -> str:
    """Return a message as `.pbtxt`."""
    return "".join(f"{line}\n" for line in _lines(type, message))


def _lines(type: str, message: Message) -> Iterator[str]:
    for name, (_, kind) in MESSAGES[type].items():
        single, value = kind.removeprefix("*"), message.get(name)
        items = [] if value is None else value if kind != single else [value]
        for item in items:
            if single in MESSAGES:
                yield from (f"{name} {{", *(f"  {line}" for line in _lines(single, item)), "}")
            else:
                yield f"{name}: {_literal(single, item)}"


def _literal(kind: str, value: Any) -> str:
    if kind == "bool":
        return "true" if value else "false"
    if kind == "DataType":
        return _TYPE_NAMES[value]
    if kind == "string" or kind == "bytes":
        return f'"{_escaped(value.encode() if kind == "string" else value)}"'
    return repr(value)


def _escaped(data: bytes) -> str:
    """Escape as C does, in octal."""
    special = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
    return "".join(
        special.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
        for byte in data
    )
