"""Calls in threads and in a forked child, for tests: errors are raised again, and none waits for ever."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["LIMIT", "SECONDS", "Call", "exit_code_of_child", "in_threads"]

SECONDS = float(os.environ.get("DSL_THREADS_SECONDS", "2"))  # that a test of many threads runs
LIMIT = 20.0 + SECONDS  # long enough for a busy machine; only a failing test waits so long


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: function(*args, **options)
        self.error: BaseException | None = None
        self.value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        self.join(LIMIT)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.value


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(k)` in threads that start together; raise what one of them raises."""
    start = threading.Barrier(count)

    def go(k: int) -> None:
        start.wait(LIMIT)
        work(k)

    calls = [Call(go, k) for k in range(count)]
    for call in calls:
        call.join(LIMIT)
    for call in calls:
        call.result()


def exit_code_of_child(work: Callable[[], object]) -> int:
    """Fork and do `work` in the child; return 0 if it returned something true, 2 if not, 1 after an error."""
    with warnings.catch_warnings():
        # From Python 3.12 on, fork warns in a process with threads, such as those of pytest-xdist.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
