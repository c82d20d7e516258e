"""What happened when: the log that profiles read, written by every layer while somebody profiles.

`LOG` is None while nobody does, so that whoever has something to tell pays for one look at it. Otherwise it is a list of
records in the order in which they ended, appended to by any thread. Times are nanoseconds of the system's monotonic
clock, in Python and in compiled programs. A *row* is a thread, or a thread while it works for a device.

What goes in is described by `Record`; `begin` and `end` are for `dsl.profiler`, the others for those who tell.

>>> mark = begin()
>>> with span("call", "f"):
...     pass
>>> [(record.kind, record.name) for record in end(mark)]
[('call', 'f')]
>>> LOG is None
True
"""

from __future__ import annotations

import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

__all__ = [
    "LIMIT", "LISTENERS", "ROWS", "WORDS", "Record", "Row", "Site", "add", "begin", "dropped", "end", "now", "on_device", "program",
    "row", "span", "waiting",
]  # fmt: skip

LIMIT = 1_000_000
"""Records that are kept; later ones are counted only, so that a profile of a long run does not fill the memory."""


class Record(NamedTuple):
    """Something that took time.

    `kind` is call, step, part, compile, python, send, wait (a thread waits) or pending (something waits that no thread
    waits for); or it is program, and `data` has the sites and what each measured. `where` is a place in the user's source.
    """

    kind: str
    name: str
    start: int
    end: int
    row: int
    where: Any = None
    data: Any = None


class Site(NamedTuple):
    """A kernel, library call, copy or loop of a program, which measures it.

    Of a site that runs once, a program tells start, end and bytes; of one inside a loop (`repeats`), how often it ran,
    nanoseconds and bytes in all. `parent` is the number of the site around it, or -1. `bytes` is what it reads and writes
    if that is known beforehand.
    """

    name: str
    kind: str
    places: tuple[Any, ...]
    parent: int
    repeats: bool
    bytes: int | None


WORDS = 3
"""What a program tells of each site, in words of 64 bits."""


class Row(NamedTuple):
    """A thread, and the device that it works for, if it is one of several."""

    thread: str
    device: str


LOG: list[Record] | None = None
ROWS: list[Row] = []
LISTENERS: list[Callable[[], None]] = []
"""Called when `LOG` begins or ends."""

_lock = threading.Lock()
_users = 0
_dropped = 0


if hasattr(time, "clock_gettime_ns"):
    now: Callable[[], int] = functools.partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
else:
    now = time.perf_counter_ns


# --- For profiles --------------------------------------------------------------------------------


def begin() -> int:
    """Start a log if there is none, and return the place in it at which a profile begins."""
    global LOG, _users
    with _lock:
        _users += 1
        if LOG is None:
            LOG = []
            _tell()
        return len(LOG)


def end(mark: int) -> list[Record]:
    """Return what was logged since a mark, and end the log if no other profile reads it."""
    global LOG, _users, _dropped
    with _lock:
        found = [] if LOG is None else LOG[mark:]
        _users -= 1
        if _users == 0:
            LOG, _dropped = None, 0
            _tell()
        return found


def dropped() -> int:
    """Return how many records the log had no room for."""
    return _dropped


def _tell() -> None:
    for listener in LISTENERS:
        listener()


# --- Rows ----------------------------------------------------------------------------------------


class _Here(threading.local):
    row = -1


_here = _Here()


def row() -> int:
    """Return the number of this thread's row."""
    if _here.row < 0:
        _here.row = _new_row("")
    return _here.row


def _new_row(device: str) -> int:
    with _lock:
        ROWS.append(Row(threading.current_thread().name, device))
        return len(ROWS) - 1


def on_device(device: str) -> AbstractContextManager[None]:
    """Put what this thread tells in a `with` block into a row of its own, that of a device."""
    return nullcontext() if LOG is None else _on_device(device)


@contextmanager
def _on_device(device: str) -> Generator[None]:
    outer = row()
    _here.row = _device_row(device)
    try:
        yield
    finally:
        _here.row = outer


def _device_row(device: str) -> int:
    known = _here.__dict__.setdefault("devices", {})
    if device not in known:
        known[device] = _new_row(device)
    return known[device]  # type: ignore[no-any-return]


# --- For those who tell --------------------------------------------------------------------------


def add(
    kind: str, name: str, start: int, where: Any = None, data: Any = None, stop: int | None = None
) -> None:
    """Tell of something that began at `start` and is over, in this thread's row."""
    _append(kind, name, start, now() if stop is None else stop, row(), where, data)


def _append(*fields: Any) -> None:
    global _dropped
    log = LOG
    if log is None:
        return
    if len(log) < LIMIT:
        log.append(_new(Record, fields))
    else:
        _dropped += 1


_new = tuple.__new__  # half the time of calling `Record`


def span(kind: str, name: str, where: Any = None, data: Any = None) -> AbstractContextManager[None]:
    """Tell of a `with` block, one that raises included."""
    return _NOTHING if LOG is None else _Span(kind, name, where, data)


_NOTHING = nullcontext()


class _Span:
    """A class, since a generator takes three times as long."""

    __slots__ = ("about", "start")

    def __init__(self, kind: str, name: str, where: Any, data: Any) -> None:
        self.about = kind, name, where, data

    def __enter__(self) -> None:
        self.start = now()

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        end = now()
        kind, name, where, data = self.about
        if error is not None:
            data = {**(data or {}), "raised": error.__name__}
        _append(kind, name, self.start, end, row(), where, data)


def waiting(
    name: str, where: Any, done: Callable[..., None], data: Any = None
) -> Callable[..., None]:
    """Return `done`, a callback, such that the time until it is called is told as that of something that waits.

    Whichever thread calls it, the row is that of the thread that asks now.
    """
    if LOG is None:
        return done
    start, home = now(), row()

    def over(*args: Any) -> None:
        _append("pending", name, start, now(), home, where, data)
        done(*args)

    return over


_ENDS = struct.Struct("=qq")


def program(name: str, sites: Sequence[Site], words: bytes) -> None:
    """Tell what a program measured: `WORDS` for each site, then its own start and end."""
    start, stop = _ENDS.unpack_from(words, len(words) - _ENDS.size)
    _append("program", name, start, stop, row(), None, (sites, words))


# --- Forks ---------------------------------------------------------------------------------------


def _start_child() -> None:
    """After `fork`: profiles are the parent's."""
    global LOG, _lock, _users
    _lock, LOG, _users = threading.Lock(), None, 0
    _tell()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)
