"""What ends a program that runs: a deadline that has passed, a session that was closed.

Loops of programs call `dsl_poll` now and then. In a thread that is `Watched` it calls back here, every 50 ms at most, and
what the thread's check raises ends the program as Ctrl-C would: what it was given is as before.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["Watched", "look"]


class _Mine(threading.local):
    check: Callable[[], object] | None = None


_mine = _Mine()
_lock = threading.Lock()


def look() -> None:
    """Raise if the program that runs in this thread must end."""
    if _mine.check is not None:
        _mine.check()


class Watched:
    """While it is entered, programs of this thread end when `check` raises; it is asked now and then."""

    __slots__ = ("check", "outer")

    def __init__(self, check: Callable[[], object]) -> None:
        self.check = check

    def __enter__(self) -> None:
        self.outer, _mine.check = _mine.check, self.check
        _count(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _mine.check = self.outer
        _count(-1)


def _count(more: int) -> None:
    """Tell the runtime how many threads are watched: where none is, programs need not ask."""
    with _lock:
        _word().value += more


@functools.cache
def _word() -> ctypes.c_int64:
    from dsl.codegen.cpu.runtime import word

    return word("watched")
