"""Things of which a process has one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["once"]

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes something when it is first called, and returns that ever after.

    Threads that call it at the same time get the same; `functools.cache` would make two, and what is sent to one of them is lost.
    """
    lock = threading.RLock()
    found: list[T] = []

    @functools.wraps(make)
    def get() -> T:
        if not found:
            with lock:
                if not found:
                    found.append(make())
        return found[0]

    return get
