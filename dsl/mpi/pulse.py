"""Signs of life: what a rank did last, where `python -m dsl launch` sees it.

A rank that `launch` started has a small file, mapped into memory, with the number of things it has done, what the last one was,
and whether it waits for other ranks. Collectives, steps, messages that arrive and `dsl.parallel.alive()` write it, which
takes less than a microsecond; no thread does so by itself, so a rank that hangs falls silent. Elsewhere all this does nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

__all__ = ["DIRECTORY", "Sign", "beat", "begin", "is_on", "read", "tick", "waits"]

DIRECTORY = "DSL_LAUNCH_DIR"
"""The environment variable that names the directory in which ranks and their launcher meet."""

_HEAD = struct.Struct("<qqq")  # things done, whether it waits, bytes of text
_SIZE = 4096
_ROOM = _SIZE - _HEAD.size


class Sign(NamedTuple):
    """What a rank says of itself: how many things it has done, the last one, and whether it waits for other ranks."""

    number: int
    what: str
    waits: bool


class _Pulse:
    """The file of this process."""

    def __init__(self, path: Path) -> None:
        with open(path, "w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.count = 0
        self.awaited: object = None

    def write(self, what: str, waits: bool) -> None:
        self.count += 1
        text = what.encode(errors="replace")[:_ROOM]
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._map, 0, self.count, waits, len(text))

    def tick(self) -> None:
        self.count += 1
        struct.pack_into("<q", self._map, 0, self.count)


_pulse: _Pulse | None = None


def begin(path: Path) -> None:
    """Show what this process does, from now on, in a file."""
    global _pulse
    _pulse = _Pulse(path)
    os.register_at_fork(after_in_child=_stop)  # what children do says nothing about the rank
    _pulse.write("import dsl", False)


def _stop() -> None:
    global _pulse
    _pulse = None


def is_on() -> bool:
    """Tell whether somebody watches this rank."""
    return _pulse is not None


def beat(what: str = "") -> None:
    """Say that this rank has done something."""
    if _pulse is not None:
        _pulse.awaited = None
        _pulse.write(what, False)


def tick() -> None:
    """Say that something has moved; the rank does, or waits for, the same as before."""
    if _pulse is not None:
        _pulse.tick()


def waits(what: object) -> None:
    """Say that this rank waits for others, until the next `beat`; to say the same again is no sign of life."""
    if _pulse is not None and _pulse.awaited is not what:
        _pulse.awaited = what
        _pulse.write(str(what), True)


def read(path: Path) -> Sign | None:
    """Return what a file of another process says, or None if there is none yet."""
    try:
        data = path.read_bytes()
        count, waiting, size = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return None
    text = data[_HEAD.size : _HEAD.size + size].decode(errors="replace")
    return Sign(count, text, bool(waiting))
