"""Records to and from other ranks by messages of MPI.

Small records for one rank wait in its outbox until `flush`, and go as one message. MPI knows beforehand where the next one goes.
The bytes of a large array go before the record that says whose they are. Arrays that are sent stay alive until MPI is done
with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.shared_memory import EAGER, LARGE
from dsl.mpi.large import Incoming, Outgoing, as_bytes
from dsl.mpi.messages import Inbox, Record, pack, unpack

__all__ = ["Far"]

_ROOM = 64 << 10  # bytes of records that go as one message, at most
_RECORDS = 1  # the tag of messages with records


class Far:
    """Messages to and from the other ranks of a communicator. One thread at a time calls this."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.outbox: dict[int, list[bytes]] = {}
        self.sending: list[tuple[Any, Any]] = []
        self.arriving: list[tuple[Any, int, Record]] = []
        self._waiting_bytes: dict[int, int] = {}
        self._status, self._bytes = MPI.Status(), MPI.BYTE
        self._outgoing, self._incoming = Outgoing(), Incoming(self._into)
        self._room = bytearray(_ROOM)
        self._isend, self._irecv = comm.Isend, comm.Irecv
        self._next = comm.Recv_init([self._room, self._bytes], MPI.ANY_SOURCE, _RECORDS)
        self._next.Start()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray | None, dead: bool
    ) -> Any:
        """Send a record; it goes with the next `flush`. Return what `is_free` asks about, if the array is large."""
        if array is not None and array.nbytes > EAGER:
            return self._send_large(rank, kind, numbers, np.ascontiguousarray(array))
        self._put(rank, pack(kind, numbers, array, dead=dead))
        return None

    def _put(self, rank: int, record: bytes) -> None:
        size = self._waiting_bytes.get(rank, 0) + len(record)
        if size > _ROOM:
            self._flush(rank)
            size = len(record)
            if size > _ROOM:
                raise InternalError(f"a record of {size} bytes is more than goes as one message")
        self.outbox.setdefault(rank, []).append(record)
        self._waiting_bytes[rank] = size

    def _send_large(self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray) -> Any:
        tag = self._outgoing.tag(rank, array.nbytes)
        request = self._isend([as_bytes(array), self._bytes], rank, tag)
        self.sending.append((request, array))
        record = pack(kind, numbers, array, tag=tag)
        if self.outbox:
            self._put(rank, record)
            self._flush(rank)
        else:
            self._post(rank, record)
        return request

    def is_free(self, sent: Any) -> bool:
        """Tell whether the memory of an array that was sent may be written again."""
        return bool(sent.Test())

    def flush(self) -> None:
        """Let what is in the outboxes go."""
        for rank in list(self.outbox):
            self._flush(rank)

    def _flush(self, rank: int) -> None:
        records = self.outbox.pop(rank, None)
        self._waiting_bytes.pop(rank, None)
        if records:
            self._post(rank, records[0] if len(records) == 1 else b"".join(records))

    def _post(self, rank: int, data: bytes) -> None:
        request = self._isend([data, self._bytes], rank, _RECORDS)
        if not request.Test():
            self.sending.append((request, data))

    def tidy(self) -> bool:
        """Let go what has been sent, and tell MPI where the next large arrays go: while there is time. Tell whether all has."""
        if self.sending:
            self.sending = [pair for pair in self.sending if not pair[0].Test()]
        self._incoming.expect()
        return not self.sending

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, inbox: Inbox, looks: int) -> bool:
        """Take in what has arrived, and tell whether anything has; look so many times."""
        found = False
        is_there, status = self._next.Test, self._status
        while looks:
            if is_there(status):
                self._take(inbox)
                found = True
            elif self.arriving:
                found |= self._take_large(inbox)
                looks -= 1
            elif found:
                return True
            else:
                looks -= 1
        return found

    def _take(self, inbox: Inbox) -> None:
        data, source = self._room[: self._status.count], self._status.source
        self._next.Start()
        for record in unpack(data):
            if record.flags & LARGE:
                request, record.array = self._incoming.take(source, record.tag, *record.array)
                if self.arriving or not request.Test():
                    self.arriving.append((request, source, record))
                    continue
            inbox.append((source, record))

    def _into(self, memory: np.ndarray, source: int, tag: int) -> Any:
        return self._irecv([memory, self._bytes], source, tag)

    def _take_large(self, inbox: Inbox) -> bool:
        """Take in the large arrays whose bytes are all there, and tell whether there are any."""
        waiting = []
        for request, source, record in self.arriving:
            if request.Test():
                inbox.append((source, record))
            else:
                waiting.append((request, source, record))
        before, self.arriving = len(self.arriving), waiting
        return len(waiting) < before

    def close(self) -> None:
        """Take nothing in any more: MPI must not end while it waits for messages."""
        self._next.Cancel()
        self._next.Wait()
        self._incoming.close()
