"""Attempts to put elements into a queue, to take some, and to close it: what waits in a queue's two lines.

A ticket is stepped by the core under its lock until it is complete; then, outside the lock, whoever waits for it is woken
and its callback is called, once, with an error or None and the value. Only the first ticket of a line is ever stepped,
so only that one may hold elements that it has taken, or have put in a part of its own.
"""

from __future__ import annotations

import sys
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsl import events
from dsl.errors import CancelledError, DeadlineError, DslError, InternalError, OutOfRangeError

if TYPE_CHECKING:
    from dsl.runtime.core import Core

__all__ = [
    "COMPLETE",
    "NOTHING",
    "PROGRESS",
    "Callback",
    "Put",
    "Shut",
    "Take",
    "Ticket",
    "deliver",
]

Callback = Callable[[DslError | None, Any], None]
NOTHING, PROGRESS, COMPLETE = range(3)  # what a step brought


class Ticket:
    """One attempt on a queue. `done` once it is over; it may then have an `error`."""

    __slots__ = ("_callback", "_core", "_gates", "done", "error", "verb")

    def __init__(self, core: Core, verb: str, callback: Callback | None = None) -> None:
        self._core, self.verb, self._callback = core, verb, callback
        self._gates: list[Any] = []  # one locked lock for each thread that waits
        self.done = False
        self.error: DslError | None = None

    def cancel(self) -> bool:
        """Give up the attempt, and tell whether it was still waiting.

        Elements that it had taken go back to the front of the queue; elements that it had put in stay. Its callback gets
        a `CancelledError`. A close cannot be cancelled.
        """
        return self._core.withdraw(self, lambda: self.cancelled("was cancelled"))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the attempt and return its value, or raise its error.

        After `timeout` seconds a `DeadlineError` is raised and the attempt goes on.
        """
        if not self.wait(timeout):
            raise self.late(timeout)
        if self.error is None:
            return self.value()
        try:
            raise self.error
        finally:
            del self  # the error's traceback refers to this frame: a cycle otherwise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the attempt is over, for at most `timeout` seconds, and tell whether it is."""
        if self.done:
            return True
        if timeout is not None and timeout <= 0:
            return False
        gate = self._core.gate(self)
        limit = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        if gate is None:
            return True
        told = None if events.LOG is None else {"queue": self._core.label}
        with events.span("wait", self.verb, data=told):
            return gate.acquire(timeout=limit) or self.done

    # --- For the core ----------------------------------------------------------------------------

    def step(self, core: Core) -> int:
        """Go as far as the queue lets; called under the lock, at the head of a line."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Return whether there is nothing to do, and so nothing to wait for."""
        return False

    def undo(self, core: Core) -> None:
        """Give back what was taken; called under the lock."""

    def pop_error(self) -> DslError:
        """Return the error and forget it, so that it does not refer to itself by the frame that raises it."""
        error, self.error = self.error, None
        return error or InternalError(f"{self.verb}: an attempt without an error")

    def value(self) -> Any:
        """Return what the callback and `result` get."""
        return None

    def moved(self) -> int:
        """Return how many elements went in or came out for good."""
        return 0

    def add_gate(self) -> Any:
        gate = allocate_lock()
        gate.acquire()
        self._gates.append(gate)
        return gate

    def wake(self) -> None:
        for gate in self._gates:
            gate.release()

    def has_callback(self) -> bool:
        return self._callback is not None

    def call_back(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self.error, None if self.error else self.value())

    def cancelled(self, why: str) -> CancelledError:
        error = CancelledError(
            f"{self.verb}: the attempt {why}; {self._core.state()}{self.tally()}"
        )
        error.completed = self.moved()
        return error

    def late(self, timeout: float | None) -> DeadlineError:
        seconds = f"{timeout or 0:g} s"
        error = DeadlineError(
            f"{self.verb} waited for {seconds}; {self._core.state()}{self.tally()}"
        )
        error.completed = self.moved()
        return error

    def tally(self) -> str:
        return ""


class Put(Ticket):
    """Put elements in, one after the other, as room appears."""

    __slots__ = ("_count", "_items")

    def __init__(
        self, core: Core, verb: str, items: Sequence[Any], callback: Callback | None = None
    ) -> None:
        super().__init__(core, verb, callback)
        self._items, self._count = items, 0

    def step(self, core: Core) -> int:
        room = core.capacity - len(core.store.items)
        if room <= 0:
            return NOTHING
        part = self._items[self._count : self._count + room]
        core.store.extend(part)
        self._count += len(part)
        return COMPLETE if self._count == len(self._items) else PROGRESS

    def is_empty(self) -> bool:
        return not self._items

    def moved(self) -> int:
        return self._count

    def tally(self) -> str:
        total = len(self._items)
        return f"; {self._count} of {total} went in" if total > 1 else ""


class Take(Ticket):
    """Take `count` elements; `smaller` is content with what a closed queue has left, if that is anything."""

    __slots__ = ("_count", "_finish", "_smaller", "items")

    def __init__(
        self, core: Core, verb: str, count: int, smaller: bool = False,
        finish: Callable[[list[Any]], Any] = list, callback: Callback | None = None,
    ) -> None:  # fmt: skip
        super().__init__(core, verb, callback)
        self._count, self._smaller, self._finish = count, smaller, finish
        self.items: list[Any] = []

    def step(self, core: Core) -> int:
        missing, ready = self._count - len(self.items), core.available()
        if core.closed and ready < missing:
            if not self._shrink(core):
                return COMPLETE
            missing = ready = self._count
        if not ready:
            return NOTHING
        self.items += core.store.take(min(ready, missing))
        return COMPLETE if len(self.items) == self._count else PROGRESS

    def _shrink(self, core: Core) -> bool:
        """Give up on a full batch, and tell whether a smaller one will do."""
        self.undo(core)
        left = len(core.store.items)
        if self._smaller and left:
            self._count = left
            return True
        self.error = OutOfRangeError(
            f"{self.verb} asked for {self._count}; {core.state()}",
            remedy=f"`dequeue_up_to({self._count})` takes what is left" if left else "",
        )
        return False

    def undo(self, core: Core) -> None:
        core.store.put_back(self.items)
        self.items = []

    def is_empty(self) -> bool:
        return self._count == 0

    def value(self) -> Any:
        return self._finish(self.items)


class Shut(Ticket):
    """Close the queue, once everything that was to be put in before is in."""

    __slots__ = ()

    def step(self, core: Core) -> int:
        core.mark_closed()
        return COMPLETE


# --- Telling those who wait ----------------------------------------------------------------------


class _Outbox(threading.local):
    """The tickets whose callbacks a thread has still to call, while it is calling some."""

    waiting: deque[Ticket] | None = None


_OUTBOX = _Outbox()


def deliver(done: Sequence[Ticket]) -> None:
    """Wake those who wait for completed tickets, and call the callbacks, in order.

    A callback that completes further tickets does not call theirs: they follow when it returns. So a callback that asks
    for the next element uses no more stack for a million elements than for one.
    """
    for ticket in done:
        ticket.wake()
    called = [ticket for ticket in done if ticket.has_callback()]
    if called and _OUTBOX.waiting is not None:
        _OUTBOX.waiting.extend(called)
    elif called:
        _call_all(deque(called))


def _call_all(waiting: deque[Ticket]) -> None:
    _OUTBOX.waiting = waiting
    try:
        while waiting:
            _call(waiting.popleft())
    finally:
        _OUTBOX.waiting = None
        if waiting:  # an interrupt: the others are called all the same
            _call_all(waiting)


def _call(ticket: Ticket) -> None:
    """Call back; what a callback raises is shown, and is no concern of the thread that happened to complete it."""
    try:
        ticket.call_back()
    except Exception:
        sys.excepthook(*sys.exc_info())
