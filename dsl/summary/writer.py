"""Write what TensorBoard shows: scalars, histograms, texts and graphs.

Events go through a buffer into one file; nothing runs in the background. The buffer is written out when it is full,
when an event comes more than `flush_secs` seconds after the last time, by `flush` and `close`, and when Python ends.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dsl.errors import DslError, ShapeError, TypeRuleError
from dsl.summary.graphdef import graph_def
from dsl.summary.histograms import Bins, Histogram, histogram
from dsl.summary.proto import DATA_TYPES, Message, encode
from dsl.summary.records import frame

__all__ = ["FileWriter"]

_BUFFER = 1 << 20
_TENSORS = 2  # the class of data, among TensorBoard's, that texts are in


class FileWriter:
    """Writes events into a new file `events.out.tfevents.<time>.<host>` in a directory. Threads may share one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as logdir, FileWriter(logdir) as writer:
    ...     writer.scalar("loss", 0.5, step=1)
    """

    def __init__(self, logdir: str | os.PathLike[str], *, flush_secs: float = 10.0) -> None:
        self._file = _create(Path(logdir))
        self.path = Path(self._file.name)
        self._lock = threading.Lock()
        self._flush_secs, self._flushed = flush_secs, time.monotonic()
        self._closing = weakref.finalize(self, self._file.close)
        self._write({"file_version": "brain.Event:2"})
        self.flush()

    def scalar(self, tag: str, value: Any, step: int) -> None:
        """Write a number; it is kept in single precision."""
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind == "c":
            got = f"{array.dtype} of shape {array.shape}"
            raise ShapeError(f"the scalar {tag!r} wants one real number, got {got}")
        with np.errstate(over="ignore"):
            number = float(np.float32(array.item()))
        self._summary(step, {"tag": tag, "simple_value": number})

    def histogram(self, tag: str, array: Any, step: int, bins: Bins = None) -> None:
        """Write how numbers are distributed.

        `bins` is None for TensorFlow's buckets, which grow by a tenth, the number of equally wide ones, or their limits.
        """
        found = histogram(tag, array, bins)
        self._summary(step, {"tag": tag, "histo": _histogram_message(found)})

    def text(self, tag: str, string: str, step: int) -> None:
        """Write a text; TensorBoard shows it as Markdown."""
        if not isinstance(string, str):
            raise TypeRuleError(f"the text {tag!r} wants a string, got {type(string).__name__}")
        tensor = {
            "dtype": DATA_TYPES["DT_STRING"],
            "tensor_shape": {},
            "string_val": [string.encode()],
        }
        metadata = {"plugin_data": {"plugin_name": "text"}, "data_class": _TENSORS}
        self._summary(step, {"tag": tag, "tensor": tensor, "metadata": metadata})

    def graph(self, source: Any, *args: Any) -> None:
        """Write a graph: of a function for these arguments, of what `.lower` returned, or a `Graph` itself."""
        self._write({"graph_def": graph_def(source, *args)})

    def flush(self) -> None:
        """Hand everything to the operating system, where TensorBoard sees it."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        """Write everything out and close the file; more events are refused."""
        with self._lock:
            self._closing()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<events in {self.path}>"

    def _summary(self, step: int, value: Message) -> None:
        self._write({"step": int(step), "summary": {"value": [value]}})

    def _write(self, event: Message) -> None:
        record = frame(encode("Event", {"wall_time": time.time(), **event}))
        with self._lock:
            if self._file.closed:
                raise DslError(f"the writer of {self.path} is closed", remedy="make another one")
            self._file.write(record)
            if time.monotonic() - self._flushed > self._flush_secs:
                self._file.flush()
                self._flushed = time.monotonic()


def _create(logdir: Path) -> BinaryIO:
    """Open a file that no other writer has; a second one in the same second gets a number."""
    logdir.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
    for number in range(1_000_000):
        try:
            return (logdir / (f"{name}.{number}" if number else name)).open("xb", _BUFFER)
        except FileExistsError:
            continue
    raise DslError(f"{logdir} has a million files called {name}")


def _histogram_message(found: Histogram) -> Message:
    moments = {name: getattr(found, name) for name in ("min", "max", "num", "sum", "sum_squares")}
    return moments | {"bucket_limit": found.limits.tolist(), "bucket": found.counts.tolist()}
