"""How long who waits looks again at once, lets other processes run, and sleeps."""

from __future__ import annotations

import functools
import os
import time

__all__ = ["Patience", "cores", "give_way"]

_AT_ONCE = 400e-6, 30e-6  # seconds of looking again at once, if each rank can have a core or not
_YIELDING = 1e-3  # seconds of letting others run in between, before sleeping
_LONGEST = 1e-3  # seconds of sleep
_GAP = 3e-3  # seconds after which who comes back has done something else, and begins to wait

# `time.sleep(0)` returns at once and lets nobody run.
give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


class Patience:
    """That of one who waits, in a world of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._at_once = _AT_ONCE[ranks > cores()]
        self._since = self._last = 0.0

    def reset(self) -> None:
        """Note that the wait is over."""
        self._since = 0.0

    def rest(self) -> None:
        """Leave the processor to others, for longer the longer the wait is."""
        now = time.perf_counter()
        if not self._since or now - self._last > _GAP:
            self._since = now
        self._last, waited = now, now - self._since
        if waited > _YIELDING:
            time.sleep(min(_LONGEST, waited / 10))
        elif waited > self._at_once:
            give_way()


@functools.cache
def cores() -> int:
    """Return how many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
