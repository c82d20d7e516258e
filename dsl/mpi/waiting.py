"""Waiting for other ranks: until they come, fail, end, or turn out to wait for something else.

Who waits looks again and again, moving messages in between. After a grace period it tells all others what it waits for,
again and again. If every rank waits, and not all for the same, none will ever go on: all raise a `MismatchError` that says
what each waits for. A rank whose script ends says so, and who waits for it raises as well. After the deadline
(`config.mpi_timeout`) who waits gives up, and says what is known.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

__all__ = ["Call", "Waits"]

WAITING, ENDED, STUCK = range(30, 33)  # kinds of records
GRACE = 2.0
"""Seconds before a rank that waits says so."""
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
    """What another rank waits for: the number of its wait, and how often it said so, last when."""

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
        self.last: Call | None = None
        self._count = 0
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
        self._count += 1
        needed = self.others if ranks is None else ranks
        patience, start = Patience(self.transport.size), time.monotonic()
        due = start + GRACE
        while not done():
            self._move()
            now = time.monotonic()
            if soon(done):
                return
            self._check_ended(call, needed)
            if now < due:
                patience.rest()
                continue
            due = now + GRACE
            self._tell(call, now)
            if now - start > config.mpi_timeout:
                raise DeadlineError(
                    f"rank {self.transport.rank} gave up after {now - start:.0f} s\n{self._all(call)}",
                    location=call.where,
                    remedy="every rank must make the same calls in the same order; DSL_MPI_TIMEOUT sets how long they wait",
                )

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

    def _tell(self, call: Call, now: float) -> None:
        """Say what this rank waits for; if all wait for ever, say that."""
        self._send(WAITING, self._count, str(call))
        if self._nobody_moves(call, now):
            self.fail("the ranks wait for different things, and will for ever", call)

    def _nobody_moves(self, call: Call, now: float) -> bool:
        fresh = [
            r for rank, r in self.reports.items()
            if rank not in self.ended and r.times >= 2 and now - r.last < 2 * GRACE
        ]  # fmt: skip
        texts = {r.text.partition(" at ")[0] for r in fresh}
        everybody = len(fresh) + len(self.ended) == len(self.others)
        return everybody and texts != {call.what}

    def _check_ended(self, call: Call, needed: Sequence[int]) -> None:
        for rank in needed:
            if rank in self.ended:
                self.fail(f"rank {rank} has ended", call)

    def fail(self, why: str, call: Call) -> NoReturn:
        """Raise a MismatchError here and on all ranks that wait."""
        text = f"{why}\n{self._all(call)}"
        self._send(STUCK, 0, text)
        raise _mismatch(text, call.where)

    def _all(self, call: Call) -> str:
        """Say what each rank waits for, as far as is known."""
        lines = {self.transport.rank: str(call)}
        lines |= {rank: report.text for rank, report in self.reports.items()}
        lines |= {rank: f"has ended, after {text}" for rank, text in self.ended.items()}
        for rank in self.others:
            lines.setdefault(rank, "waits for nobody; it computes, or is stuck elsewhere")
        return "\n".join(f"  rank {rank}: {lines[rank]}" for rank in sorted(lines))

    # -- what others say ------------------------------------------------------------------------------------------------

    def _send(self, kind: int, number: int, text: str) -> None:
        data = np.frombuffer(text.encode(), np.uint8)
        for rank in self.others:
            self.transport.send(rank, kind, (number,), data)
        self.transport.flush()

    def _waiting(self, source: int, record: Record) -> None:
        before, number = self.reports.get(source), record.numbers[0]
        times = before.times + 1 if before is not None and before.number == number else 1
        self.reports[source] = _Report(number, _text(record), times, time.monotonic())

    def note(self, rank: int, text: str) -> None:
        """Remember what another rank does."""
        self.reports[rank] = _Report(0, text, 0, 0.0)

    def _over(self, source: int, record: Record) -> None:
        self.ended[source] = _text(record)

    def _stuck(self, source: int, record: Record) -> None:
        self.news = self.news or _mismatch(_text(record), None)

    def _end(self) -> None:
        """Tell the others that this rank does nothing more; it may be too late for that."""
        try:
            self._send(ENDED, 0, "no call" if self.last is None else str(self.last))
            self.transport.drain(1.0)
        except Exception:
            return


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
