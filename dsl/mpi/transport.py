"""The transport: sends records to ranks, and takes what arrives to whoever handles its kind.

Nothing here waits, and no thread of its own runs: who waits for a message calls `poll`, which moves everything that can
be moved, and then sleeps for a moment, longer the longer nothing comes. Small records for one rank wait in its outbox until
`flush` or `poll`, and go as one message. MPI knows beforehand where the next one goes. The bytes of a large array go before
the record that says whose they are. Arrays that are sent stay alive until MPI is done with them.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import InternalError, PeerError
from dsl.mpi.large import Incoming, Outgoing, as_bytes
from dsl.mpi.messages import LARGE, Record, pack, unpack
from dsl.mpi.patience import Patience, give_way
from dsl.mpi.pulse import tick
from dsl.mpi.world import World

__all__ = ["Transport"]

EAGER = 16 << 10  # bytes of an array that travels inside its record
_ROOM = 64 << 10  # bytes of records that go as one message, at most
_RECORDS = 1  # the tag of messages with records
_LOOKS = 16  # for messages, in one poll: they cost less than to come back
_SENDING = 64  # messages under way that are looked at even where there is no time for it

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
        self._lock = threading.RLock()
        self._inbox: deque[tuple[int, Record]] = deque()
        self._early: dict[int, list[tuple[int, Record]]] = {}  # by kind, until there is a handler
        self._dispatching = threading.RLock()
        self._patience = Patience(self.size)
        self._status, self._bytes = _mpi().Status(), _mpi().BYTE
        self._outgoing, self._incoming = Outgoing(), Incoming(self._into)
        self._room = bytearray(_ROOM)
        self._next: Any = None
        if world.comm is not None:
            self._isend, self._irecv = world.comm.Isend, world.comm.Irecv
            source = _mpi().ANY_SOURCE
            self._next = world.comm.Recv_init([self._room, self._bytes], source, _RECORDS)
            self._next.Start()
            atexit.register(self._close)

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray | None = None, *,
        dead: bool = False,
    ) -> Any:  # fmt: skip
        """Send a record; it goes with the next `flush` or `poll`. Return what `is_free` asks about a large array's memory."""
        if self.failure is not None:
            raise self.failure
        if array is not None and array.nbytes > EAGER:
            return self._send_large(rank, kind, numbers, np.ascontiguousarray(array))
        record = pack(kind, numbers, array, dead=dead)
        with self._lock:
            self._put(rank, record)
        return None

    def _put(self, rank: int, record: bytes) -> None:
        size = self._waiting_bytes.get(rank, 0) + len(record)
        if size > _ROOM:
            self._flush(rank)
            size = len(record)
            if size > _ROOM:
                raise InternalError(f"a record of {size} bytes is more than goes as one message")
        self._outbox.setdefault(rank, []).append(record)
        self._waiting_bytes[rank] = size

    def _send_large(self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray) -> Any:
        with self._lock:
            tag = self._outgoing.tag(rank, array.nbytes)
            request = self._isend([as_bytes(array), self._bytes], rank, tag)
            self._sending.append((request, array))
            record = pack(kind, numbers, array, tag=tag)
            if self._outbox:
                self._put(rank, record)
                self._flush(rank)
            else:
                self._post(rank, record)
        return request

    def is_free(self, sent: Any) -> bool:
        """Tell whether the memory of an array that was sent may be written again."""
        with self._lock:
            return sent is None or bool(sent.Test())

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
            self._post(rank, records[0] if len(records) == 1 else b"".join(records))

    def _post(self, rank: int, data: bytes) -> None:
        self.sent += 1
        request = self._isend([data, self._bytes], rank, _RECORDS)
        if not request.Test():
            self._sending.append((request, data))

    # -- progress -----------------------------------------------------------------------------------------------------

    def poll(self, sleep: bool = True) -> bool:
        """Move what can be moved, and tell whether anything arrived; if nothing did, sleep for a moment."""
        if not self._lock.acquire(blocking=False):
            give_way()
            return False
        try:
            if self._outbox:
                self.flush()
            found = self._receive(_LOOKS if sleep else 1)
            if not found or len(self._sending) > _SENDING:
                self._tidy()
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

    def _tidy(self) -> None:
        """Let go what has been sent, and tell MPI where the next large arrays go: while there is time."""
        if self._sending:
            self._sending = [pair for pair in self._sending if not pair[0].Test()]
        self._incoming.expect()

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

    def _receive(self, looks: int) -> bool:
        """Take in what has arrived, and tell whether anything has; look so many times."""
        if self._next is None:
            return False
        found = False
        is_there, status = self._next.Test, self._status
        while looks:
            if is_there(status):
                self._take()
                found = True
            elif self._arriving:
                found |= self._take_large()
                looks -= 1
            elif found:
                return True
            else:
                looks -= 1
        return found

    def _take(self) -> None:
        data, source = self._room[: self._status.count], self._status.source
        self._next.Start()
        self.received += 1
        for record in unpack(data):
            if record.flags & LARGE:
                request, record.array = self._incoming.take(source, record.tag, *record.array)
                if self._arriving or not request.Test():
                    self._arriving.append((request, source, record))
                    continue
            self._inbox.append((source, record))

    def _into(self, memory: np.ndarray, source: int, tag: int) -> Any:
        return self._irecv([memory, self._bytes], source, tag)

    def _take_large(self) -> bool:
        """Take in the large arrays whose bytes are all there, and tell whether there are any."""
        waiting = []
        for request, source, record in self._arriving:
            if request.Test():
                self._inbox.append((source, record))
            else:
                waiting.append((request, source, record))
        before, self._arriving = len(self._arriving), waiting
        return len(waiting) < before

    def _close(self) -> None:
        """Take nothing in any more: MPI must not end while it waits for messages."""
        with self._lock:
            self._next.Cancel()
            self._next.Wait()
            self._next = None
            self._incoming.close()

    def fail(self, error: PeerError) -> None:
        """Make every later call raise, and every wait end."""
        self.failure = self.failure or error

    def is_receiving(self) -> bool:
        """Tell whether the bytes of a large array are on their way here."""
        return bool(self._arriving)

    def drain(self, seconds: float) -> None:
        """Let what is being sent go out, for at most so long."""
        end = time.monotonic() + seconds
        self.flush()
        while self._sending and time.monotonic() < end:
            with self._lock:
                self._tidy()
            give_way()


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI
