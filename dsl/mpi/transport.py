"""The transport: sends records to ranks, and takes what arrives to whoever handles its kind.

Nothing here waits, and no thread of its own runs: who waits for a message calls `poll`, which moves everything that can
be moved, and then sleeps for a moment, longer the longer nothing comes. Small records for one rank wait in its outbox until
`flush` or `poll`, and go as one message. Arrays that are sent stay alive until MPI is done with them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import PeerError
from dsl.mpi.messages import LARGE, Record, pack, unpack
from dsl.mpi.pulse import tick
from dsl.mpi.world import World

__all__ = ["Transport"]

EAGER = 16 << 10  # bytes of an array that travels inside its record
_FULL = 64 << 10  # bytes in an outbox that go at once
_RECORDS = 1  # the tag of messages with records; larger ones are those of arrays
_TAGS = 30_000  # the smallest upper bound that MPI promises is 32,767
_AT_ONCE = 400e-6, 30e-6  # seconds of looking again at once, if each rank can have a core or not
_SPIN = 1e-3  # seconds of letting others run in between, before sleeping
_LONGEST = 1e-3  # seconds of sleep

Handler = Callable[[int, Record], None]


class Transport:
    """Messages to and from the other ranks of a world. Any thread may call any method."""

    def __init__(self, world: World) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self.handlers: dict[int, Handler] = {}
        self.failure: PeerError | None = None
        self.sent = self.received = 0
        self._outbox: dict[int, list[bytes]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self._sending: list[tuple[Any, Any]] = []
        self._arriving: list[tuple[Any, int, Record]] = []
        self._tag = 0
        self._lock = threading.RLock()
        self._inbox: deque[tuple[int, Record]] = deque()
        self._early: dict[int, list[tuple[int, Record]]] = {}  # by kind, until there is a handler
        self._dispatching = threading.RLock()
        self._idle_since = 0.0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._at_once = _AT_ONCE[self.size > (cores or 1)]
        self._mpi = _mpi()
        self._status = self._mpi.Status()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray | None = None, *,
        dead: bool = False,
    ) -> None:  # fmt: skip
        """Send a record; it goes with the next `flush` or `poll`."""
        if self.failure is not None:
            raise self.failure
        with self._lock:
            if array is not None and array.nbytes > EAGER:
                self._send_large(rank, kind, numbers, np.ascontiguousarray(array))
                return
            record = pack(kind, numbers, array, dead=dead)
            self._outbox.setdefault(rank, []).append(record)
            size = self._waiting_bytes.get(rank, 0) + len(record)
            self._waiting_bytes[rank] = size
            if size > _FULL:
                self._flush(rank)

    def _send_large(self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray) -> None:
        self._tag = self._tag % _TAGS + 1
        tag = _RECORDS + self._tag
        record = pack(kind, numbers, array, tag=tag)
        self._outbox.setdefault(rank, []).append(record)
        self._flush(rank)
        self._start(
            self.world.comm.Isend([array.reshape(-1).view(np.uint8), self._mpi.BYTE], rank, tag),
            array,
        )

    def flush(self) -> None:
        """Let what is in the outboxes go."""
        if self._outbox:
            with self._lock:
                for rank in list(self._outbox):
                    self._flush(rank)

    def _flush(self, rank: int) -> None:
        records = self._outbox.pop(rank, None)
        self._waiting_bytes.pop(rank, None)
        if records:
            data = records[0] if len(records) == 1 else b"".join(records)
            self.sent += 1
            self._start(self.world.comm.Isend([data, self._mpi.BYTE], rank, _RECORDS), data)

    def _start(self, request: Any, held: Any) -> None:
        if not request.Test():
            self._sending.append((request, held))

    # -- progress -----------------------------------------------------------------------------------------------------

    def poll(self, sleep: bool = True) -> bool:
        """Move what can be moved, and tell whether anything arrived; if nothing did, sleep for a moment."""
        if not self._lock.acquire(blocking=False):
            time.sleep(0)
            return False
        try:
            self.flush()
            found = self._receive()
            if self._sending:
                self._sending = [pair for pair in self._sending if not pair[0].Test()]
            self._inbox.extend(found)
        finally:
            self._lock.release()
        self._dispatch()
        if self.failure is not None:
            raise self.failure
        if found:
            self._idle_since = 0.0
            tick()
        elif sleep:
            self._rest()
        return bool(found)

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

    def _rest(self) -> None:
        now = time.perf_counter()
        self._idle_since = self._idle_since or now
        idle = now - self._idle_since
        if idle > self._at_once:
            time.sleep(0 if idle < _SPIN else min(_LONGEST, idle / 10))

    def _receive(self) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        mpi, probe, status = self._mpi, self.world.comm.Improbe, self._status
        while (message := probe(mpi.ANY_SOURCE, _RECORDS, status)) is not None:
            data = bytearray(status.Get_count(mpi.BYTE))
            source = status.Get_source()
            message.Recv([data, mpi.BYTE])
            self.received += 1
            for record in unpack(data):
                if record.flags & LARGE:
                    self._expect(source, record)
                else:
                    found.append((source, record))
        if self._arriving:
            found += self._arrived()
        return found

    def _expect(self, source: int, record: Record) -> None:
        flat = record.array.reshape(-1).view(np.uint8)
        request = self.world.comm.Irecv([flat, self._mpi.BYTE], source, record.tag)
        self._arriving.append((request, source, record))

    def _arrived(self) -> list[tuple[int, Record]]:
        found, waiting = [], []
        for request, source, record in self._arriving:
            if request.Test():
                found.append((source, record))
            else:
                waiting.append((request, source, record))
        self._arriving = waiting
        return found

    def fail(self, error: PeerError) -> None:
        """Make every later call raise, and every wait end."""
        self.failure = self.failure or error

    def drain(self, seconds: float) -> None:
        """Let what is being sent go out, for at most so long."""
        end = time.monotonic() + seconds
        self.flush()
        while self._sending and time.monotonic() < end:
            with self._lock:
                self._sending = [pair for pair in self._sending if not pair[0].Test()]
            time.sleep(0)


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI
