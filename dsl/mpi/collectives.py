"""The ranks of `mpirun` as the communicator of ops.

Before a collective the ranks meet: each says in a few bytes what it is about to do, without blocking, so that one that has
failed, ended or does something else is noticed (`waiting`). When all say the same, MPI's blocking call does it, at full speed;
nobody can be late for it any more. Arrays go straight from and to their memory; noncontiguous ones are copied before.

Messages of two ranks are records of the transport, which takes them in whether somebody asks for them yet or not: so ranks may
send to each other before they receive. Threads that send and receive do not wait for one another, nor for one in a collective.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsl import events
from dsl.errors import MismatchError
from dsl.ir.communicator import NOBODY, UFUNCS, at_location, current_location, wanted_place
from dsl.ir.location import Location
from dsl.ir.types import TensorType
from dsl.mpi import pulse
from dsl.mpi.behind import Behind
from dsl.mpi.board import PIECE, Board, Ways
from dsl.mpi.buffers import Buffers
from dsl.mpi.messages import Record
from dsl.mpi.once import once
from dsl.mpi.reducing import finished, operator, prepared
from dsl.mpi.shared import transport, waits
from dsl.mpi.waiting import Call, Waits
from dsl.mpi.world import world

__all__ = ["Meeting", "Ranks", "ranks"]

MESSAGE = 33  # the kind of record with an array for somebody who asks
_DIGEST = 16


@once
def ranks() -> Ranks:
    """Return the communicator of this process."""
    return Ranks()


class Meeting:
    """Where all ranks say what they are about to do, on a communicator for that alone, or a board."""

    def __init__(self, comm: Any, waits: Waits, board: Board | None) -> None:
        self.comm, self.waits = comm, waits
        self.size = comm.Get_size()
        self._board = board
        self._marks: Board | _Gather = board or _Gather(comm)
        self.reduces = board is not None and board.reduces
        self.reducer = None if board is None else board.reducer
        self._ways = Ways()
        self.left: Call | None = None

    @property
    def count(self) -> int:
        """How many times this rank has come."""
        return self._marks.number

    def meet(self, what: str) -> Any:
        """Wait until all ranks are here; raise on all of them if not all are here for the same. Return MPI's communicator."""
        self._meet(self._call(what), _digest(what))
        return self.comm

    def reduce(self, what: str, x: np.ndarray, out: np.ndarray, how: str) -> None:
        """Meet, and combine all ranks' arrays, contiguous ones, over the board: the first piece is there when all ranks are."""
        board, call, digest, ufunc = self._board, self._call(what), _digest(what), UFUNCS[how]
        assert board is not None
        x, out = x.reshape(-1), out.reshape(-1)
        step, begun = PIECE // x.itemsize, time.perf_counter()
        large = x.size > step
        past = large and self._ways.past_caches()
        for start in range(0, max(x.size, 1), step):
            board.bring(x[start : start + step], past)
            self._meet(call, digest)
            board.reduce(ufunc, out[start : start + step], x[start : start + step])
        if large:
            self._ways.note(past, time.perf_counter() - begun, x.nbytes)

    def finish(self, what: str, out: np.ndarray, how: str) -> None:
        """Wait for the others after a reducer has brought this rank's array, and combine all."""
        board, call = self._board, Call(what, current_location(), self.count)
        assert board is not None
        self._wait(call, _digest(what), board.here())
        board.reduce(UFUNCS[how], out.reshape(-1))

    def _call(self, what: str) -> Call:
        call = Call(what, current_location(), self.count + 1)
        if self.left is not None:
            raise self._broken(call)
        return call

    def _meet(self, call: Call, digest: bytes) -> None:
        self._wait(call, digest, self._marks.come(digest))

    def _wait(self, call: Call, digest: bytes, here: Callable[[], bool]) -> None:
        try:
            self.waits.until(call, here)
        except BaseException:
            self.left = call
            raise
        if not self._marks.agree(digest):
            raise self._difference(call)

    def _broken(self, call: Call) -> MismatchError:
        return MismatchError(
            f"rank {self.waits.transport.rank} comes for {call}, after it left {self.left} before all ranks were there",
            location=call.where, remedy="ranks cannot meet any more after that: let the script end",
        )  # fmt: skip

    def _difference(self, call: Call) -> MismatchError:
        """Say what each rank is here for. All ranks are, so this may block."""
        data = np.frombuffer(str(call).encode(), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([data.size], np.int64), sizes)
        rows = np.zeros((self.size, int(sizes.max())), np.uint8)
        padded = np.zeros(rows.shape[1], np.uint8)
        padded[: data.size] = data
        self.comm.Allgather(padded, rows)
        texts = [bytes(row[:n]).decode() for row, n in zip(rows, sizes)]
        lines = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
        return MismatchError(
            f"the ranks are in different collectives\n{lines}", location=call.where,
            remedy="every rank must make the same calls in the same order, on arrays of the same dtype and shape",
        )  # fmt: skip


class _Gather:
    """What a board does, by messages."""

    def __init__(self, comm: Any) -> None:
        self._size, self.number = comm.Get_size(), 0
        self._own, self._all = bytearray(_DIGEST), bytearray(_DIGEST * self._size)
        self._start = _repeated_gather(comm, self._own, self._all)

    def come(self, digest: bytes) -> Callable[[], bool]:
        self.number += 1
        self._own[:] = digest
        return self._start()

    def agree(self, digest: bytes) -> bool:
        return bool(self._all == digest * self._size)


def _repeated_gather(comm: Any, own: bytearray, all: bytearray) -> Callable[[], Callable[[], bool]]:
    """Return what begins to gather all ranks' bytes, again and again, and returns what tells whether they are there."""
    from mpi4py import MPI

    places = [own, MPI.BYTE], [all, MPI.BYTE]
    try:
        request = comm.Allgather_init(*places)
    except NotImplementedError:  # before MPI 4; to begin anew costs a microsecond more
        return lambda: comm.Iallgather(*places).Test

    def start() -> Callable[[], bool]:
        request.Start()
        return request.Test  # type: ignore[no-any-return]

    return start


@functools.lru_cache(4096)
def _digest(what: str) -> bytes:
    return hashlib.blake2b(what.encode(), digest_size=_DIGEST).digest()


@functools.lru_cache(4096)
def _words(op: str, dtype: np.dtype, shape: tuple[int, ...], more: str) -> str:
    return f"{op}{more and f'({more})'} of {TensorType(dtype, shape)}"


def _bytes(x: np.ndarray) -> list[Any]:
    """Return a contiguous array as a buffer of bytes, for MPI."""
    from mpi4py import MPI

    return [x.reshape(-1).view(np.uint8), MPI.BYTE]


def _shown(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a profile see a collective or a message."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if events.LOG is None:
            return method(self, *args, **kwargs)
        with events.span("collective", method.__name__, current_location()):
            return method(self, *args, **kwargs)

    return run


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let one thread at a time be in a collective, and a profile see it."""
    shown = _shown(method)

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return shown(self, *args, **kwargs)

    return run


def _said(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let many threads be in messages, if MPI allows them, and a profile see each."""
    shown = _shown(method)

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.talking:
            return shown(self, *args, **kwargs)

    return run


class _Message(NamedTuple):
    """An array that arrived, and who sent it, in words."""

    array: np.ndarray
    text: str


class _Recent:
    """The last reduction that machine code did, for messages."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def __str__(self) -> str:
        assert self._meeting.reducer is not None
        dtype, shape, how = self._meeting.reducer.last()
        what = _words("all_reduce", dtype, shape, how)
        return str(Call(what, None, self._meeting.count))


class Ranks:
    """All ranks of the world. One thread at a time is in a collective, any number in messages."""

    def __init__(self) -> None:
        here = world()
        self.rank: int = here.rank
        self.size: int = here.size
        self.lock = threading.RLock()
        multiple = here.threads >= 3  # MPI_THREAD_MULTIPLE
        self.talking: Any = contextlib.nullcontext() if multiple else self.lock
        self.buffers = Buffers()
        self.waits = waits()
        collective, behind, _ = here.boards
        self.meeting = Meeting(here.collective, self.waits, collective)
        reducer = None if pulse.is_on() else self.meeting.reducer  # which gives no sign of life
        self._reducer, self._reduce = reducer, None if reducer is None else reducer.reduce
        self._recent = _Recent(self.meeting)
        self.behind = Behind(Meeting(here.behind, self.waits, behind), here.threads)
        self._serial = itertools.count(1)
        self._counting = threading.Lock()
        self._sent: dict[tuple[int, int], int] = {}  # how many to a rank with a tag
        self._wanted: dict[tuple[int, int], int] = {}  # how many from a rank with a tag
        self._given_up: dict[
            tuple[int, int], list[int]
        ] = {}  # of those, which nobody waits for any more
        self._arrived: dict[tuple[int, int, int], _Message] = {}
        transport().handle(MESSAGE, self._came)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return memory for a result: where it is wanted, or a buffer."""
        wanted = wanted_place(shape, dtype)
        return self.buffers.empty(shape, dtype) if wanted is None else wanted

    def _at(self, root: int) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
        """Return what makes memory for a result of the root, and zeros elsewhere."""
        return self._empty if root == self.rank else np.zeros

    def _meet(self, op: str, x: np.ndarray, more: str = "") -> Any:
        return self.meeting.meet(_words(op, x.dtype, x.shape, more))

    # -- reductions -----------------------------------------------------------------------------------------------------

    @_told
    def all_reduce(self, x: np.ndarray, how: str) -> np.ndarray:
        work = prepared(x)
        found = self._empty(work.shape, work.dtype)
        if self.meeting.reduces:
            what = _words("all_reduce", x.dtype, x.shape, how)
            self.meeting.reduce(what, work, found, how)
            if self._reducer is not None and work.dtype is x.dtype:
                self._reducer.learn(work, how, _digest(what))
        else:
            comm = self._meet("all_reduce", x, how)
            if work.size:
                comm.Allreduce(work, found, operator(how, work.dtype))
        return finished(found, how, self.size, x.dtype)

    def all_reduce_now(self, x: np.ndarray, how: str, where: Callable[[], Location | None]) -> Any:
        """Reduce as machine code does, if arrays like this one were reduced before; else do nothing, and say NotImplemented."""
        if self._reduce is None or events.LOG is not None or self.meeting.left is not None:
            return NotImplemented
        if not self.lock.acquire(blocking=False):
            return NotImplemented
        try:
            found = self._reduce(x, how)
            if found is None:
                with at_location(where()):
                    found = self._reduce_late(x, how)
            if found is not NotImplemented:
                self.waits.last = self._recent
            return found
        finally:
            self.lock.release()

    def _reduce_late(self, x: np.ndarray, how: str) -> np.ndarray:
        found = np.empty(x.shape, x.dtype)
        self.meeting.finish(_words("all_reduce", x.dtype, x.shape, how), found, how)
        return finished(found, how, self.size, x.dtype)

    @_told
    def reduce_to(self, x: np.ndarray, how: str, root: int) -> np.ndarray:
        comm = self._meet("reduce", x, f"{how}, root={root}")
        work = prepared(x)
        found = self._at(root)(work.shape, work.dtype)
        if work.size:
            target = found if root == self.rank else None
            comm.Reduce(work, target, operator(how, work.dtype), root)
        return finished(found, how, self.size, x.dtype)

    @_told
    def reduce_scatter(self, x: np.ndarray, how: str) -> np.ndarray:
        comm = self._meet("reduce_scatter", x, how)
        work = prepared(x)
        found = self._empty(work.shape[1:], work.dtype)
        if work.size:
            comm.Reduce_scatter_block(work, found, operator(how, work.dtype))
        return finished(found, how, self.size, x.dtype)

    # -- moves ----------------------------------------------------------------------------------------------------------

    @_told
    def broadcast_from(self, x: np.ndarray, root: int) -> np.ndarray:
        comm = self._meet("broadcast", x, f"root={root}")
        found = self._empty(x.shape, x.dtype)
        if root == self.rank:
            found[...] = x
        if x.size:
            comm.Bcast(_bytes(found), root)
        return found

    @_told
    def gather_to(self, x: np.ndarray, root: int) -> np.ndarray:
        comm = self._meet("gather", x, f"root={root}")
        found = self._at(root)((self.size, *x.shape), x.dtype)
        if x.size:
            target = _bytes(found) if root == self.rank else None
            comm.Gather(_bytes(np.ascontiguousarray(x)), target, root)
        return found

    @_told
    def all_gather(self, x: np.ndarray) -> np.ndarray:
        comm = self._meet("allgather", x)
        found = self._empty((self.size, *x.shape), x.dtype)
        if x.size:
            comm.Allgather(_bytes(np.ascontiguousarray(x)), _bytes(found))
        return found

    @_told
    def scatter_from(self, x: np.ndarray, root: int) -> np.ndarray:
        comm = self._meet("scatter", x, f"root={root}")
        found = self._empty(x.shape[1:], x.dtype)
        if x.size:
            source = _bytes(np.ascontiguousarray(x)) if root == self.rank else None
            comm.Scatter(source, _bytes(found), root)
        return found

    @_told
    def all_to_all(self, x: np.ndarray) -> np.ndarray:
        comm = self._meet("alltoall", x)
        found = self._empty(x.shape, x.dtype)
        if x.size:
            comm.Alltoall(_bytes(np.ascontiguousarray(x)), _bytes(found))
        return found

    @_told
    def barrier(self) -> None:
        self.meeting.meet("barrier")

    # -- messages -------------------------------------------------------------------------------------------------------

    @_said
    def send_to(self, x: np.ndarray, dest: int, tag: int) -> None:
        if dest != NOBODY:
            call = self._call("send", x, f"dest={dest}, tag={tag}")
            request = self._post(np.ascontiguousarray(x).reshape(x.shape), dest, tag, call)
            self.waits.until(call, request, [dest])

    @_said
    def recv_from(self, like: np.ndarray, source: int, tag: int) -> np.ndarray:
        if source == NOBODY:
            return np.zeros(like.shape, like.dtype)
        return self._take(
            like, source, tag, self._call("recv", like, f"source={source}, tag={tag}")
        )

    @_said
    def exchange(self, x: np.ndarray, dest: int, source: int, tag: int) -> np.ndarray:
        call = self._call("sendrecv", x, f"dest={dest}, source={source}, tag={tag}")
        if dest == source == self.rank:
            return np.array(x)
        kept = np.ascontiguousarray(x).reshape(x.shape)
        sent = None if dest == NOBODY else self._post(kept, dest, tag, call)
        nothing = source == NOBODY
        found = np.zeros(x.shape, x.dtype) if nothing else self._take(x, source, tag, call)
        if sent is not None:
            self.waits.until(call, sent, [dest])
        return found

    def _call(self, op: str, x: np.ndarray, more: str) -> Call:
        return Call(_words(op, x.dtype, x.shape, more), current_location(), next(self._serial))

    def _post(self, x: np.ndarray, dest: int, tag: int, call: Call) -> Callable[[], bool]:
        """Send an array, and return what tells whether its memory is free again."""
        with self._counting:
            number = self._sent.get((dest, tag), 0)
            self._sent[dest, tag] = number + 1
        send = transport()
        request = send.send(dest, MESSAGE, (tag, number, *_as_numbers(str(call))), x)
        send.flush()
        return lambda: send.is_free(request)

    def _take(self, like: np.ndarray, source: int, tag: int, call: Call) -> np.ndarray:
        number = self._next_wanted((source, tag))
        key = (source, tag, number)
        try:
            self.waits.until(call, lambda: key in self._arrived, [source], moving=True)
        except BaseException:  # who asks again gets it
            with self._counting:
                heapq.heappush(self._given_up.setdefault((source, tag), []), number)
            raise
        array, text = self._arrived.pop(key)
        if (array.dtype, array.shape) != (like.dtype, like.shape):
            sent, wanted = (TensorType(a.dtype, a.shape) for a in (array, like))
            why = f"rank {source} sends {sent}, and rank {self.rank} expects {wanted}"
            self.waits.fail(why, call, {source: text})
        return array

    def _next_wanted(self, where: tuple[int, int]) -> int:
        """Return the number of the next message from a rank with a tag: who asks first has the one that was sent first."""
        with self._counting:
            if given_up := self._given_up.get(where):
                return heapq.heappop(given_up)
            number = self._wanted.get(where, 0)
            self._wanted[where] = number + 1
            return number

    def _came(self, source: int, record: Record) -> None:
        tag, number, *words = record.numbers
        self._arrived[source, tag, number] = _Message(record.array, _as_text(words))

    # -- while the program computes -------------------------------------------------------------------------------------

    def start(self, xs: Sequence[np.ndarray], how: str) -> int:
        return self.behind.start(xs, how)

    def wait(self, number: int) -> list[np.ndarray]:
        return self.behind.wait(number)


@functools.lru_cache(4096)
def _as_numbers(text: str) -> tuple[int, ...]:
    data = text.encode()
    return tuple(np.frombuffer(data + b" " * (-len(data) % 8), np.int64).tolist())


def _as_text(numbers: Sequence[int]) -> str:
    return np.array(numbers, np.int64).tobytes().decode(errors="replace").strip()
