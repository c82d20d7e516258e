"""The core of a queue: two lines of attempts, a store, one lock.

In: attempts to put, to take and to close, from any thread; none of them blocks here. Out: each is completed once, with its
value or its error, by whichever thread made it possible; callbacks run outside the lock. The rules are those of
TensorFlow's queues, with two differences: an attempt that is cancelled, or whose time is over, gives back what it had
taken; and what comes after a close is refused at once, even while the close itself waits for room.

Blocking calls (`put`, `take`, ...) are attempts with a thread that waits. When nobody else waits they touch the store
under the lock and make no ticket: about 0.2 µs.

A fork keeps the elements; the child forgets the attempts of threads that it does not have.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dsl.errors import AbortedError, CancelledError, DslError
from dsl.runtime.stores import Store
from dsl.runtime.tickets import COMPLETE, NOTHING, Callback, Put, Shut, Take, Ticket, deliver

__all__ = ["UNBOUNDED", "Core"]

UNBOUNDED = sys.maxsize


class Core:
    """Elements of any kind, in the order of `store`, at most `capacity` of them; `label` names it in messages."""

    def __init__(self, store: Store, capacity: int, label: str) -> None:
        self.store, self.capacity, self.label = store, capacity, label
        self.closed = False  # from now on nothing comes in
        self.stopped = False  # closed by `stop`
        self._closing = False  # closed, perhaps behind elements that still wait for room
        self._puts: deque[Ticket] = deque()
        self._takes: deque[Ticket] = deque()
        self._lock = allocate_lock()
        self._stops: deque[None] = deque()  # see `stop`
        self._items, self._kept = store.items, store.kept
        self._push, self._pop = store.push, store.pop
        _remember(self)

    # --- Blocking calls --------------------------------------------------------------------------
    # Each tries, under the lock, whether it can be done at once with nobody else concerned: no further calls there.

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Put one element in, waiting for room."""
        with self._lock:
            ready = len(self._items) < self.capacity
            ready = ready and not (self._takes or self._puts or self._closing)
            if ready:
                self._push(item)
        if self._stops:
            self._serve_stops()
        if not ready:
            self.run(Put(self, "enqueue", (item,)), timeout)

    def put_many(self, items: Sequence[Any], timeout: float | None = None) -> None:
        """Put elements in, one after the other, waiting for room."""
        if not items:
            return
        with self._lock:
            ready = len(self._items) + len(items) <= self.capacity
            ready = ready and not (self._takes or self._puts or self._closing)
            if ready:
                self.store.extend(items)
        if self._stops:
            self._serve_stops()
        if not ready:
            self.run(Put(self, "enqueue_many", items), timeout)

    def take(self, timeout: float | None = None) -> Any:
        """Take one element, waiting for it."""
        with self._lock:
            ready = not (self._takes or self._puts) and len(self._items) > self._kept
            if ready:
                item = self._pop()
        if self._stops:
            self._serve_stops()
        return item if ready else self.run(Take(self, "dequeue", 1), timeout)[0]

    def take_many(
        self, count: int, timeout: float | None = None, smaller: bool = False
    ) -> list[Any]:
        """Take `count` elements, waiting for them; with `smaller`, what is left of a closed queue."""
        with self._lock:
            ready = not (self._takes or self._puts) and len(self._items) - self._kept >= count
            if ready:
                items = self.store.take(count)
        if self._stops:
            self._serve_stops()
        if ready:
            return items
        verb = "dequeue_up_to" if smaller else "dequeue_many"
        found: list[Any] = self.run(Take(self, verb, count, smaller), timeout)
        return found

    def run(self, ticket: Ticket, timeout: float | None) -> Any:
        """Submit a ticket and wait for it. When the time is over, or Ctrl-C is pressed, it leaves no trace."""
        try:
            self.submit(ticket)
            if not ticket.wait(timeout):
                self.withdraw(ticket, lambda: ticket.late(timeout))
        except BaseException:
            if not self.withdraw(ticket, lambda: ticket.cancelled("was interrupted")):
                self._give_back(ticket)
            raise
        if ticket.error is not None:
            raise ticket.pop_error()
        return ticket.value()

    def _give_back(self, ticket: Ticket) -> None:
        with self._lock:
            ticket.undo(self)
            done = self._flush()
        self._tell(done)

    # --- Attempts --------------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> None:
        """Let an attempt join its line, and run whatever can run now."""
        with self._lock:
            done = self._admit(ticket)
        self._tell(done)

    def _admit(self, ticket: Ticket) -> list[Ticket]:
        if ticket.is_empty():
            return [_finished(ticket)]
        if self._closing and not isinstance(ticket, Take):
            return [_finished(ticket, self._refusal(ticket))]
        self._line(ticket).append(ticket)
        self._closing = self._closing or isinstance(ticket, Shut)
        return self._flush()

    def _refusal(self, ticket: Ticket) -> DslError:
        if isinstance(ticket, Shut):
            return AbortedError(
                f"{ticket.verb}: {self.label} is already closed",
                remedy="close a queue in one place, or ask `is_closed()` first",
            )
        return CancelledError(
            f"{ticket.verb}: {self.label} is closed",
            remedy="close a queue after the last element is in; `close()` lets those that wait for room go in first",
        )

    def withdraw(self, ticket: Ticket, error: Callable[[], DslError]) -> bool:
        """End an attempt that still waits with an error, and tell whether it did."""
        with self._lock:
            waits = ticket in self._line(ticket) and not isinstance(ticket, Shut)
            done = self._remove(ticket, error) if waits else []
        self._tell(done)
        return waits

    def _remove(self, ticket: Ticket, error: Callable[[], DslError]) -> list[Ticket]:
        self._line(ticket).remove(ticket)
        ticket.undo(self)
        return [_finished(ticket, error()), *self._flush()]

    def gate(self, ticket: Ticket) -> Any:
        """Return a lock that is released when a ticket is done; None if it is."""
        with self._lock:
            gate = None if ticket.done else ticket.add_gate()
        self._tell([])
        return gate

    def close(self, cancel: bool = False, callback: Callback | None = None) -> Ticket:
        """Close behind what waits to be put in; with `cancel`, now, cancelling that. Any number of the latter are fine."""
        ticket = Shut(self, "close", callback)
        if not cancel:
            self.submit(ticket)
            return ticket
        with self._lock:
            done = [*self._cancel_puts(), _finished(ticket)]
        self._tell(done)
        return ticket

    def stop(self) -> None:
        """Close as with `cancel`, from a finalizer or a signal handler, which may interrupt a thread that holds the lock.

        Whoever holds it then does the closing.
        """
        self.stopped = True
        self._stops.append(None)
        self._serve_stops()

    def _serve_stops(self) -> None:
        while self._stops and self._lock.acquire(blocking=False):
            try:
                self._stops.clear()
                done = self._cancel_puts()
            finally:
                self._lock.release()
            deliver(done)

    def is_closing(self) -> bool:
        return self._closing

    def size(self) -> int:
        return len(self._items)

    def available(self) -> int:
        """Return how many elements may leave now."""
        return max(0, len(self._items) - self._kept)

    def state(self) -> str:
        """Return a clause on the queue for messages."""
        limit = "" if self.capacity == UNBOUNDED else f" of {self.capacity}"
        kept = min(self._kept, self.size())
        stay = f", {kept} of which stay until it is closed" if kept else ""
        condition = "closed" if self.closed else "open"
        return f"{self.label} is {condition} and holds {self.size()}{limit}{stay}"

    # --- Under the lock --------------------------------------------------------------------------

    def mark_closed(self) -> None:
        self.closed, self._kept = True, 0

    def _line(self, ticket: Ticket) -> deque[Ticket]:
        return self._takes if isinstance(ticket, Take) else self._puts

    def _flush(self) -> list[Ticket]:
        """Run both lines until nothing moves, and return what was completed."""
        done: list[Ticket] = []
        while _advance(self, self._puts, done) | _advance(self, self._takes, done):
            pass
        return done

    def _cancel_puts(self) -> list[Ticket]:
        """Close now. A close that waited behind the cancelled elements has what it wanted."""
        self._closing = True
        self.mark_closed()
        done = [_finished(t, None if isinstance(t, Shut) else _dropped(t)) for t in self._puts]
        self._puts.clear()
        return done + self._flush()

    def _tell(self, done: list[Ticket]) -> None:
        """Every use of the lock ends here, or looks for stops itself."""
        if done:
            deliver(done)
        if self._stops:
            self._serve_stops()

    # --- Around a fork ---------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the lock over a fork, so that the child finds a whole queue."""
        return self._lock.acquire(timeout=1.0)

    def release(self) -> None:
        self._lock.release()
        self._tell([])

    def forget_attempts(self) -> None:
        """In the child: drop the attempts, whose threads stayed behind; what they had taken comes back."""
        self._lock = allocate_lock()
        for ticket in [*self._takes, *self._puts]:
            ticket.undo(self)
            _finished(ticket, ticket.cancelled("stayed in the parent process"))
        self._takes.clear()
        self._puts.clear()
        if self._closing:
            self.mark_closed()


def _advance(core: Core, line: deque[Ticket], done: list[Ticket]) -> bool:
    """Step the head of a line as long as tickets are completed, and tell whether anything moved."""
    moved = False
    while line:
        step = line[0].step(core)
        moved = moved or step != NOTHING
        if step != COMPLETE:
            break
        done.append(_finished(line.popleft()))
    return moved


def _finished(ticket: Ticket, error: DslError | None = None) -> Ticket:
    ticket.error = error or ticket.error
    ticket.done = True
    return ticket


def _dropped(ticket: Ticket) -> CancelledError:
    return ticket.cancelled("was cancelled by `close(cancel_pending_enqueues=True)`")


# --- Forks ---------------------------------------------------------------------------------------

_LIVE: weakref.WeakSet[Core] = weakref.WeakSet()
_LIVE_LOCK = allocate_lock()
_HELD: list[Core] = []


def _remember(core: Core) -> None:
    with _LIVE_LOCK:
        _LIVE.add(core)


def _before_fork() -> None:
    _LIVE_LOCK.acquire(timeout=1.0)
    _HELD[:] = [core for core in list(_LIVE) if core.hold()]


def _after_in_parent() -> None:
    _release_all(Core.release)


def _after_in_child() -> None:
    for core in list(_LIVE):
        core.forget_attempts()
    _release_all(lambda core: None)


def _release_all(release: Callable[[Core], None]) -> None:
    for core in _HELD:
        release(core)
    _HELD.clear()
    if _LIVE_LOCK.locked():
        _LIVE_LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
