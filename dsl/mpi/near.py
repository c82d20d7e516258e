"""Records to and from ranks of the same machine, over mailboxes in memory that they share.

A record is there at once for who looks. What a full mailbox has no room for waits here, in order. Who receives a large array
copies it out of this process, which keeps it meanwhile.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.errors import InternalError, PeerError
from dsl.ir.shared_memory import EAGER, LOST, Mail, code
from dsl.ir.types import DTYPES
from dsl.mpi.messages import Inbox, Record
from dsl.mpi.shared_memory import shared_memory

__all__ = ["Near", "Neighbours", "make_neighbours"]

_LOOKS = 40  # for records, before one comes back: a microsecond or two
_NUMBERS = 2_000  # that a record has at most
_TICK = 1e-4  # seconds between looks at what others have taken, at the end


class Neighbours:
    """The ranks of this machine, by their number in the world, and the mailboxes between them."""

    def __init__(self, mail: Mail, ranks: Sequence[int]) -> None:
        self.mail, self.places = mail, {rank: k for k, rank in enumerate(ranks)}


class Parcel:
    """A record that was sent, or waits for room; what the mailbox numbered it, if its array is large."""

    __slots__ = ("array", "dead", "kind", "numbers", "place", "ticket")

    def __init__(
        self, place: int, kind: int, numbers: tuple[int, ...], array: np.ndarray | None, dead: bool
    ) -> None:
        self.place, self.kind, self.numbers = place, kind, numbers
        self.array, self.dead, self.ticket = array, dead, -1


class Near:
    """One rank's mailboxes. One thread at a time calls this."""

    def __init__(self, neighbours: Neighbours) -> None:
        self.places = neighbours.places
        self._mail = neighbours.mail
        self._post, self._take, self._taken = self._mail.post, self._mail.take, self._mail.taken
        self.held: dict[int, collections.deque[Parcel]] = {}  # for those whose mailbox was full
        self._kept: dict[int, collections.deque[Parcel]] = {
            k: collections.deque() for k in self.places.values()
        }

    def send(
        self, rank: int, kind: int, numbers: Sequence[int], array: np.ndarray | None, dead: bool
    ) -> Parcel | None:
        """Send a record; return what `is_free` asks about, if the array is large."""
        place, numbers = self.places[rank], tuple(numbers)
        if place not in self.held:
            ticket = self._post(place, kind, numbers, array, dead)
            if ticket == 0:
                return None
            if ticket is NotImplemented:
                return self.send(rank, kind, numbers, _plain(array), dead)
            if ticket > 0:
                return self._keep(place, ticket, array)
        return self._hold(Parcel(place, kind, numbers, array, dead))

    def _keep(self, place: int, ticket: int, array: np.ndarray | None) -> Parcel:
        """Keep an array until it was taken."""
        parcel = Parcel(place, 0, (), array, False)
        parcel.ticket = ticket
        self._kept[place].append(parcel)
        return parcel

    def _hold(self, parcel: Parcel) -> Parcel | None:
        if len(parcel.numbers) > _NUMBERS:
            raise InternalError(f"a record of {len(parcel.numbers)} numbers")
        large = parcel.array is not None and parcel.array.nbytes > EAGER
        if parcel.array is not None:
            parcel.array = _plain(parcel.array) if large else np.array(parcel.array)
        self.held.setdefault(parcel.place, collections.deque()).append(parcel)
        return parcel if large else None

    def flush(self) -> None:
        """Let go what there is room for now."""
        for place, parcels in list(self.held.items()):
            while parcels:
                parcel = parcels[0]
                ticket = self._post(place, parcel.kind, parcel.numbers, parcel.array, parcel.dead)
                if ticket < 0:
                    break
                parcel.ticket = ticket
                if ticket:
                    self._kept[place].append(parcel)
                parcels.popleft()
            else:
                del self.held[place]

    def is_free(self, parcel: Parcel) -> bool:
        """Tell whether the memory of an array that was sent may be written again."""
        taken = self._taken(parcel.place)
        return taken < 0 or 0 <= parcel.ticket <= taken

    def tidy(self) -> bool:
        """Forget what was taken; tell whether all was."""
        left = bool(self.held)
        for place, parcels in self._kept.items():
            if parcels:
                taken = self._taken(place)
                while parcels and (taken < 0 or parcels[0].ticket <= taken):
                    parcels.popleft()
                left |= bool(parcels)
        return not left

    def receive(self, inbox: Inbox, looks: int) -> bool:
        """Take in what has arrived, and tell whether anything has."""
        found = self._take(_LOOKS if looks > 1 else 0)
        if found is None:
            return False
        while found is not None:
            source, kind, flags, numbers, array = found
            if flags & LOST:
                raise PeerError(f"rank {source} has ended, and an array that it sent with it")
            inbox.append((source, Record(kind, flags, numbers, array, 0)))
            found = self._take(0)
        return True

    def close(self, seconds: float) -> None:
        """Take nothing any more, and wait until others have what was sent, or want nothing more."""
        self._mail.close()
        end = time.monotonic() + seconds
        while not self.tidy() and time.monotonic() < end:
            self.held = {k: v for k, v in self.held.items() if self._taken(k) >= 0}
            self.flush()
            time.sleep(_TICK)


_USUAL = {dtype: dtype for dtype in DTYPES}


def _plain(array: Any) -> np.ndarray:
    """Return an array that lies in one piece, with the dtype object that all arrays of its dtype usually have."""
    return np.ascontiguousarray(array, _USUAL[array.dtype]).reshape(array.shape).view(np.ndarray)


# -- at the start -----------------------------------------------------------------------------------------------------


def make_neighbours(comm: Any, rank: int) -> Neighbours | None:
    """Return the ranks of a communicator, all on one machine, by their number in the world; None for all if they cannot be.

    All of them call this, and wait for one another.
    """
    native = code()
    if not all(comm.allgather(native is not None)) or native is None:
        return None
    own, count = comm.Get_rank(), comm.Get_size()
    memory = shared_memory(comm, native.mail_bytes(count))
    if memory is None:
        return None
    others = comm.allgather((rank, os.getpid()))
    ranks, pids = zip(*others)
    mail = native.mail(memoryview(memory), own, ranks, pids)
    return Neighbours(mail, ranks) if _try(comm, mail, own, count) else None


def _try(comm: Any, mail: Mail, own: int, count: int) -> bool:
    """Tell whether all ranks can read one another's memory, which a system may forbid: send each a large array."""
    sent = np.full(EAGER + 8, own, np.uint8)
    for place in range(count):
        mail.post(place, 0, (), sent, False)
    comm.Barrier()
    found = [mail.take(0) for _ in range(count)]
    good = all(r is not None and not r[2] & LOST and (r[4] == r[4][0]).all() for r in found)
    return all(comm.allgather(good))
