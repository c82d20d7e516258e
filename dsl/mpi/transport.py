"""The transport: sends records to ranks, and takes what arrives to whoever handles its kind.

Nothing here waits, and no thread of its own runs: who waits for a message calls `poll`, which moves everything that can
be moved, and then sleeps for a moment, longer the longer nothing comes. Ranks of this machine are reached over memory that
they share (`near`), others by messages of MPI (`far`).
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import PeerError
from dsl.mpi.far import Far
from dsl.mpi.messages import Inbox, Record
from dsl.mpi.near import Near, Parcel
from dsl.mpi.patience import Patience, give_way
from dsl.mpi.pulse import tick
from dsl.mpi.world import World

__all__ = ["Transport"]

_LOOKS = 16  # for messages, in one poll: they cost less than to come back
_SENDING = 64  # messages under way that are looked at even where there is no time for it

Handler = Callable[[int, Record], None]


class Transport:
    """Messages to and from the other ranks of a world. Any thread may call any method."""

    def __init__(self, world: World) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self.handlers: dict[int, Handler] = {}
        self.failure: PeerError | None = None
        self._near = None if world.neighbours is None else Near(world.neighbours)
        self._places = {} if self._near is None else self._near.places
        apart = world.comm is not None and len(self._places) < self.size
        self._far = Far(world.comm) if apart else None
        self._lock = threading.RLock()
        self._inbox: Inbox = deque()
        self._early: dict[int, list[tuple[int, Record]]] = {}  # by kind, until there is a handler
        self._dispatching = threading.RLock()
        self._patience = Patience(self.size)
        if world.comm is not None:
            atexit.register(self._close)

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray | None = None, *,
        dead: bool = False,
    ) -> Any:  # fmt: skip
        """Send a record; it goes with the next `flush` or `poll`. Return what `is_free` asks about a large array's memory."""
        if self.failure is not None:
            raise self.failure
        with self._lock:
            way: Any = self._near if rank in self._places else self._far
            return way.send(rank, kind, numbers, array, dead)

    def is_free(self, sent: Any) -> bool:
        """Tell whether the memory of an array that was sent may be written again."""
        if sent is None:
            return True
        with self._lock:
            way: Any = self._near if isinstance(sent, Parcel) else self._far
            return bool(way.is_free(sent))

    def flush(self) -> None:
        """Let go what waits to."""
        if self._is_full():
            with self._lock:
                self._flush()

    def _is_full(self) -> bool:
        near, far = self._near, self._far
        return bool((near is not None and near.held) or (far is not None and far.outbox))

    def _flush(self) -> None:
        if self._near is not None and self._near.held:
            self._near.flush()
        if self._far is not None and self._far.outbox:
            self._far.flush()

    # -- progress -----------------------------------------------------------------------------------------------------

    def poll(self, sleep: bool = True) -> bool:
        """Move what can be moved, and tell whether anything arrived; if nothing did, sleep for a moment."""
        if not self._lock.acquire(blocking=False):
            give_way()
            return False
        try:
            found = self._move(_LOOKS if sleep else 1)
        finally:
            self._lock.release()
        if self._inbox:
            self._dispatch()
        if self.failure is not None:
            raise self.failure
        if found:
            self._patience.reset()
            tick()
        elif sleep:
            self._patience.rest()
        return found

    def _move(self, looks: int) -> bool:
        near, far = self._near, self._far
        found = False
        if near is not None:
            found = self._from_near(near, looks)
        if far is not None:
            self._flush()
            found |= far.receive(self._inbox, 1 if found else looks)
            if not found or len(far.sending) > _SENDING:
                far.tidy()
        return found

    def _from_near(self, near: Near, looks: int) -> bool:
        if near.held:
            near.flush()
        try:
            found = near.receive(self._inbox, looks)
        except PeerError as error:
            self.fail(error)
            return False
        if not found:
            near.tidy()
        return found

    def _dispatch(self) -> None:
        """Take what has arrived to its handlers, in order; another thread that does so already does it for this one."""
        while self._inbox and self._dispatching.acquire(blocking=False):
            try:
                while self._inbox:
                    source, record = self._inbox.popleft()
                    handler = self.handlers.get(record.kind)
                    if handler is None:
                        self._early.setdefault(record.kind, []).append((source, record))
                    else:
                        handler(source, record)
            finally:
                self._dispatching.release()

    def handle(self, kind: int, handler: Handler) -> None:
        """Have records of a kind taken to a handler, those that have come already too."""
        with self._lock:
            self.handlers[kind] = handler
            self._inbox.extendleft(reversed(self._early.pop(kind, [])))

    def fail(self, error: PeerError) -> None:
        """Make every later call raise, and every wait end."""
        self.failure = self.failure or error

    def is_receiving(self) -> bool:
        """Tell whether the bytes of a large array are on their way here."""
        return self._far is not None and bool(self._far.arriving)

    def drain(self, seconds: float) -> None:
        """Let what is being sent go out, for at most so long."""
        end = time.monotonic() + seconds
        while not self._is_out() and time.monotonic() < end:
            give_way()

    def _is_out(self) -> bool:
        """Tell whether everything has gone out."""
        with self._lock:
            self._flush()
            near = self._near is None or self._near.tidy()
            return (self._far is None or self._far.tidy()) and near

    def _close(self) -> None:
        with self._lock:
            if self._far is not None:
                self._far.close()
                self._far = None
            if self._near is not None:
                self._near.close(config.mpi_timeout)
