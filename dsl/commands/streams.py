"""What ranks print, line by line, each line with the number of its rank: `[2] loss 0.31`.

Each rank has two named pipes, `rank-2.out` and `rank-2.err`, whose lines go to the launcher's stdout and stderr and, if asked
for, to a log of the rank. What `mpirun` itself says is kept, for when nobody else says what went wrong.
"""

from __future__ import annotations

import collections
import os
import selectors
import sys
from pathlib import Path
from typing import IO, BinaryIO

__all__ = ["Streams"]

_AT_ONCE = 1 << 16
_KEPT = 200  # lines of mpirun


class _Stream:
    """A pipe, and the beginning of a line that has not ended yet."""

    def __init__(self, descriptor: int, prefix: str, target: IO[str] | None, log: BinaryIO | None) -> None:  # fmt: skip
        self.descriptor, self.prefix, self.target, self.log = descriptor, prefix, target, log
        self.begun = b""
        self.last = ""  # the last line that was not empty

    def take(self) -> bytes:
        """Show the lines that have come; return what was read, nothing at the end or if there is nothing now."""
        try:
            data = os.read(self.descriptor, _AT_ONCE)
        except BlockingIOError:
            return b""
        *lines, self.begun = (self.begun + data).split(b"\n")
        for line in lines:
            self._show(line)
        return data

    def finish(self) -> None:
        """Show what is left, a line without its end."""
        while self.take():
            pass
        if self.begun:
            self._show(self.begun)
            self.begun = b""

    def _show(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self.last = text.strip() or self.last
        if self.target is not None:
            self.target.write(f"{self.prefix}{text}\n")
            self.target.flush()
        if self.log is not None:
            self.log.write(line + b"\n")
            self.log.flush()


class _Kept(_Stream):
    """What mpirun says: shown to nobody, yet."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "", None, None)
        self.lines: collections.deque[str] = collections.deque(maxlen=_KEPT)

    def _show(self, line: bytes) -> None:
        self.lines.append(line.decode(errors="replace"))


class Streams:
    """The pipes of all ranks, and their logs in a directory if one is named."""

    def __init__(self, directory: Path, ranks: int, logs: Path | None, shown: bool = True) -> None:
        self._selector = selectors.DefaultSelector()
        self._logs = [_opened(logs, rank) for rank in range(ranks)]
        self._held: list[int] = []
        self.errors: list[_Stream] = []
        self._streams: list[_Stream] = []
        for rank, log in enumerate(self._logs):
            for name, target in ((".out", sys.stdout), (".err", sys.stderr)):
                pipe = self._pipe(directory / f"rank-{rank}{name}")
                self._add(_Stream(pipe, f"[{rank}] ", target if shown else None, log))
            self.errors.append(self._streams[-1])
        self.mpirun: _Kept | None = None

    def _pipe(self, path: Path) -> int:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._held.append(os.open(path, os.O_WRONLY))  # so that it has no end between two writers
        return reader

    def _add(self, stream: _Stream) -> None:
        self._streams.append(stream)
        self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)

    def listen_to(self, pipe: IO[bytes]) -> None:
        """Keep what mpirun says."""
        os.set_blocking(pipe.fileno(), False)
        self.mpirun = _Kept(os.dup(pipe.fileno()))
        self._add(self.mpirun)

    def move(self, seconds: float) -> None:
        """Show what comes, for at most so long; return as soon as something came."""
        for key, _ in self._selector.select(seconds):
            if not key.data.take() and key.data is self.mpirun:
                self._selector.unregister(key.fd)

    def close(self) -> None:
        """Show what is left, and forget the pipes."""
        for stream in self._streams:
            stream.finish()
            os.close(stream.descriptor)
        for descriptor in self._held:
            os.close(descriptor)
        for log in self._logs:
            if log is not None:
                log.close()
        self._selector.close()


def _opened(logs: Path | None, rank: int) -> BinaryIO | None:
    if logs is None:
        return None
    logs.mkdir(parents=True, exist_ok=True)
    return open(logs / f"rank-{rank}.log", "ab")
