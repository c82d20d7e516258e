"""Waiting for other ranks: until they come, fail, end, or turn out to wait for something else.

Who waits looks again and again, moving messages in between. After a grace period it tells all others what it waits for,
again and again. If every rank waits, and not all for the same, none will ever go on: all raise a `MismatchError` that says
what each waits for. A rank whose script ends says so, and who still waits for it a while later raises as well: what it did last may
take longer to arrive than that it has ended. After the deadline
(`config.mpi_timeout`) who waits gives up, and says what is known.

Several threads of a rank may wait, each for messages of its own. A rank is said to wait for ever only if none of its other threads
could still bring what another rank waits for; where one could, the deadline is what ends the wait.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from dsl.config import config
from dsl.errors import DeadlineError, MismatchError, PeerError
from dsl.mpi import pulse
from dsl.mpi.patience import Patience

if TYPE_CHECKING:
    from dsl.ir.location import Location
    from dsl.mpi.messages import Record
    from dsl.mpi.transport import Transport

__all__ = ["Call", "Waits", "Watch"]

WAITING, ENDED, STUCK = range(30, 33)  # kinds of records
GRACE = 2.0
"""Seconds before a rank that waits says so."""
_LATE = 1.0
"""Seconds that what a rank did may arrive after it has ended."""
_LOOKS = 50  # at once, before anything else is looked at; about 10 µs
_MOVES = 8  # of messages, likewise


class Call(NamedTuple):
    """What a rank does with others: in words, the user's line, and how many calls it made before."""

    what: str
    where: Location | None
    number: int

    def __str__(self) -> str:
        place = "" if self.where is None else f" at {self.where}"
        return f"{self.what}{place} (call {self.number})"


@dataclass
class _Report:
    """What another rank waits for: the number of its wait, and how often it said so, last when; 0 times if it may do more."""

    number: int
    text: str
    times: int
    last: float


class Waits:
    """The waits of this rank, and what it knows of those of the others."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.others = [rank for rank in range(transport.size) if rank != transport.rank]
        self.reports: dict[int, _Report] = {}
        self.ended: dict[int, str] = {}
        self.news: MismatchError | None = None
        self.last: object = None
        self._numbers = itertools.count(1)
        self._asleep: set[int] = set()  # threads that wait, here or for another thread of dsl
        self._known: set[int] = set()  # threads that have waited
        for kind, handle in ((WAITING, self._waiting), (ENDED, self._over), (STUCK, self._stuck)):
            transport.handle(kind, handle)
        atexit.register(self._end)

    # -- waiting --------------------------------------------------------------------------------------------------------

    def until(
        self, call: Call, done: Callable[[], bool], ranks: Sequence[int] | None = None, *,
        moving: bool = False,
    ) -> None:  # fmt: skip
        """Wait until `done()`, which needs the other `ranks`, by default all, and `moving` messages if that is said."""
        self.last = call
        soon = self._soon_moving if moving else _soon
        if not soon(done):
            pulse.waits(call)
            self._until(call, soon, done, ranks)
        pulse.beat(call.what)

    def _until(
        self, call: Call, soon: Callable[[Callable[[], bool]], bool], done: Callable[[], bool],
        ranks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        watch, patience = self.watch(call), Patience(self.transport.size)
        watch.is_idle = self._is_idle
        with self.asleep():
            while not done():
                self._move()
                if soon(done):
                    return
                if not watch.look(self.others if ranks is None else ranks):
                    patience.rest()

    def watch(self, call: Call, seconds: float | None = None) -> Watch:
        """Begin to wait for others, for those who look for messages themselves; by default as long as the option says."""
        self.last = call
        seconds = config.mpi_timeout if seconds is None else seconds
        return Watch(self, call, next(self._numbers), seconds)

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """Note that this thread does nothing but wait, for another rank or for a thread that waits for one."""
        here = threading.get_ident()
        self._known.add(here)
        self._asleep.add(here)
        try:
            yield
        finally:
            self._asleep.discard(here)

    def _is_idle(self) -> bool:
        """Tell whether no thread of this rank but this one could bring what another rank waits for."""
        others = [t for t in threading.enumerate() if t.ident != threading.get_ident()]
        return not any(self._may_move(thread) for thread in others)

    def _may_move(self, thread: threading.Thread) -> bool:
        if thread.name.startswith("dsl") or thread.ident in self._asleep:
            return False
        return not thread.daemon or thread.ident in self._known

    def _soon_moving(self, done: Callable[[], bool]) -> bool:
        """Look some times, as `_soon` does, for what messages bring."""
        moves = _MOVES
        while moves and not done():
            self._move()
            moves -= 1
        return moves > 0

    def _move(self) -> None:
        try:
            self.transport.poll(sleep=False)
        except PeerError:
            if self.news is None:
                raise
        if self.news is not None:
            raise self.news from None

    def tell(self, call: Call, number: int, now: float, idle: bool) -> None:
        """Say what this rank waits for, and whether it is `idle` meanwhile; if all wait for ever, say that."""
        self._send(WAITING, (number, idle), str(call))
        if idle and self._nobody_moves(call, now):
            self.fail("the ranks wait for different things, and will for ever", call)

    def _nobody_moves(self, call: Call, now: float) -> bool:
        fresh = [
            r for rank, r in self.reports.items()
            if rank not in self.ended and r.times >= 2 and now - r.last < 2 * GRACE
        ]  # fmt: skip
        texts = {r.text.partition(" at ")[0].partition(" (call ")[0] for r in fresh}
        everybody = len(fresh) + len(self.ended) == len(self.others)
        return everybody and texts != {call.what}

    def check_ended(self, call: Call, needed: Iterable[int]) -> None:
        """Raise if one of some ranks has ended, here and on all ranks that wait."""
        for rank in needed:
            if rank in self.ended:
                self.fail(f"rank {rank} has ended", call)

    def fail(
        self, why: str, call: Call, told: Mapping[int, str] = MappingProxyType({})
    ) -> NoReturn:
        """Raise a MismatchError here and on all ranks that wait; `told` says what some ranks did that this is about."""
        text = f"{why}\n{self.describe(call, told)}"
        self._send(STUCK, (), text)
        raise _mismatch(text, call.where)

    def describe(self, call: Call, told: Mapping[int, str] = MappingProxyType({})) -> str:
        """Say what each rank waits for, as far as is known, or was told."""
        lines = {self.transport.rank: str(call)}
        lines |= {rank: report.text for rank, report in self.reports.items()}
        lines |= {rank: f"has ended, after {text}" for rank, text in self.ended.items()}
        lines |= told
        for rank in self.others:
            lines.setdefault(rank, "waits for nobody; it computes, or is stuck elsewhere")
        return "\n".join(f"  rank {rank}: {lines[rank]}" for rank in sorted(lines))

    # -- what others say ------------------------------------------------------------------------------------------------

    def _send(self, kind: int, numbers: tuple[int, ...], text: str) -> None:
        data = np.frombuffer(text.encode(), np.uint8)
        for rank in self.others:
            self.transport.send(rank, kind, numbers, data)
        self.transport.flush()

    def _waiting(self, source: int, record: Record) -> None:
        before, (number, idle) = self.reports.get(source), record.numbers
        times = before.times + 1 if before is not None and before.number == number else 1
        times = times if idle else 0
        self.reports[source] = _Report(number, _text(record), times, time.monotonic())

    def _over(self, source: int, record: Record) -> None:
        self.ended[source] = _text(record)

    def _stuck(self, source: int, record: Record) -> None:
        self.news = self.news or _mismatch(_text(record), None)

    def _end(self) -> None:
        """Tell the others that this rank does nothing more; it may be too late for that."""
        try:
            self._send(ENDED, (), "no call" if self.last is None else str(self.last))
            self.transport.drain(1.0)
        except Exception:
            return


class Watch:
    """One wait: says now and then what it is for, and raises when it is in vain."""

    def __init__(self, waits: Waits, call: Call, number: int, seconds: float) -> None:
        self.waits, self.call, self.number, self.seconds = waits, call, number, seconds
        self.is_idle: Callable[[], bool] = lambda: True  # apart from what `surely` says
        self.start = time.monotonic()
        self.due = self.start + GRACE
        self.alarm = math.inf  # when one of those that are needed was first seen to have ended

    def look(self, ranks: Iterable[int], *, surely: bool = True) -> bool:
        """Raise if one of the `ranks` that are needed has ended, if all ranks wait, or if the time is over.

        Tell whether anything was said to others. Nothing is unless this rank `surely` does nothing else meanwhile.
        """
        if self.waits.news is not None:
            raise self.waits.news
        now = time.monotonic()
        if self.waits.transport.is_receiving():  # what comes may be what is waited for
            self.alarm = math.inf
        elif not self.waits.ended.keys().isdisjoint(ranks):
            self.alarm = min(self.alarm, now)
            if now - self.alarm >= _LATE:
                self.waits.check_ended(self.call, ranks)
        if now < self.due:
            return False
        self.due = now + GRACE
        if surely and not self.waits.transport.is_receiving():
            self.waits.tell(self.call, self.number, now, self.is_idle())
        if now - self.start > self.seconds:
            self._give_up(now - self.start)
        return True

    def _give_up(self, seconds: float) -> NoReturn:
        raise DeadlineError(
            f"rank {self.waits.transport.rank} gave up after {seconds:.0f} s\n{self.waits.describe(self.call)}",
            location=self.call.where,
            remedy="every rank must make the same calls in the same order; DSL_MPI_TIMEOUT sets how long they wait",
        )


def _soon(done: Callable[[], bool]) -> bool:
    """Look some times whether a wait is over: who comes is mostly there already, or just behind."""
    looks = _LOOKS
    while looks and not done():
        looks -= 1
    return looks > 0


def _text(record: Record) -> str:
    return bytes(np.asarray(record.array)).decode(errors="replace")


def _mismatch(text: str, where: Location | None) -> MismatchError:
    return MismatchError(
        text, location=where, remedy="every rank must make the same calls in the same order"
    )
