"""Read files of events back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dsl.errors import DslError
from dsl.summary.histograms import Histogram
from dsl.summary.proto import DATA_TYPES, Message, decode
from dsl.summary.records import records

__all__ = ["read"]

_MOMENTS = ("min", "max", "num", "sum", "sum_squares")
_NUMBERS = {
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
}
_BY_NUMBER = {DATA_TYPES[name]: dtype for name, dtype in _NUMBERS.items()}  # fmt: skip


def read(path: str | os.PathLike[str]) -> Iterator[tuple[int, str, Any]]:
    """Yield `(step, tag, value)` for everything in a file of events, or in all that a directory holds, oldest first.

    The value is a float, a `Histogram`, a string, an array for other tensors, or for a graph, whose tag is "graph", the
    bytes of a `GraphDef`. What a writer has not finished is left out; a wrong checksum raises `DslError`.
    """
    for file in _files(Path(path)):
        for data in records(file):
            yield from _values(decode("Event", data))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*tfevents*"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not found:
        raise DslError(f"{path} has no file of events, which would have tfevents in its name")
    return found


def _values(event: Message) -> Iterator[tuple[int, str, Any]]:
    step = event.get("step", 0)
    if "graph_def" in event:
        yield step, "graph", event["graph_def"]
    for value in event.get("summary", {}).get("value", ()):
        yield step, value.get("tag", ""), _value(value)


def _value(value: Message) -> Any:
    if "simple_value" in value:
        return value["simple_value"]
    if "histo" in value:
        return _histogram(value["histo"])
    return _tensor(value["tensor"]) if "tensor" in value else None


def _histogram(found: Message) -> Histogram:
    limits, counts = (np.array(found.get(name, ())) for name in ("bucket_limit", "bucket"))
    moments = {name: found.get(name, 0.0) for name in _MOMENTS}
    return Histogram(**moments, limits=limits, counts=counts)


def _tensor(found: Message) -> Any:
    """Return a string or float for one of rank 0, else an array; None for a dtype that summaries do not have."""
    shape = [dim.get("size", 0) for dim in found.get("tensor_shape", {}).get("dim", ())]
    if found.get("dtype") == DATA_TYPES["DT_STRING"]:
        texts = [item.decode() for item in found.get("string_val", ())]
        return np.array(texts, object).reshape(shape) if shape else texts[0]
    if found.get("dtype") not in _BY_NUMBER:
        return None
    dtype = np.dtype(_BY_NUMBER[found["dtype"]])
    given = found.get("float_val") or found.get("double_val")
    array = np.array(given, dtype) if given else np.frombuffer(found["tensor_content"], dtype)
    return np.broadcast_to(array, shape) if shape else float(array[0])
