"""Who may touch variables now: steps that read share one, a step that writes has it alone.

A `Claim` names what a step reads and writes. It is taken whole or not at all, so that no two steps wait for each other;
who waits, waits in order with those whose claims conflict. Taking a claim that nobody contests costs well under a
microsecond. Only code that never waits for other steps runs under a claim.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any

__all__ = ["Claim", "Claimable"]


class Claimable:
    """Something that steps share. `readers` counts those that read it now."""

    __slots__ = ("readers", "written")

    def __init__(self) -> None:
        self.readers = 0
        self.written = False


class _Turns:
    """The lock around all claims, and those that wait, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.waiting: list[tuple[object, Claim]] = []


_turns = _Turns()


def _start_child() -> None:
    """After `fork`: threads that held claims are gone."""
    global _turns
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)


class Claim:
    """A context manager that may be entered by many threads, each for itself."""

    __slots__ = ("reads", "writes")

    def __init__(self, reads: Iterable[Claimable] = (), writes: Iterable[Claimable] = ()) -> None:
        alone = {id(x): x for x in writes}  # by id: a variable compares element by element
        shared = {id(x): x for x in reads if id(x) not in alone}
        self.writes, self.reads = tuple(alone.values()), tuple(shared.values())

    def __enter__(self) -> Claim:
        turns = _turns
        with turns.changed:
            if turns.waiting or not self._is_free():
                self._wait(turns)
            for x in self.reads:
                x.readers += 1
            for x in self.writes:
                x.written = True
        return self

    def __exit__(self, *error: Any) -> None:
        turns = _turns
        with turns.changed:
            for x in self.reads:
                x.readers -= 1
            for x in self.writes:
                x.written = False
            if turns.waiting:
                turns.changed.notify_all()

    def _is_free(self) -> bool:
        for x in self.writes:
            if x.written or x.readers:
                return False
        return not any(x.written for x in self.reads)

    def _wait(self, turns: _Turns) -> None:
        ticket = (object(), self)
        turns.waiting.append(ticket)
        try:
            while not self._is_free() or self._is_behind(turns, ticket):
                turns.changed.wait()
        finally:
            turns.waiting.remove(ticket)

    def _is_behind(self, turns: _Turns, ticket: tuple[object, Claim]) -> bool:
        """Tell whether someone who came earlier waits for the same."""
        for other in turns.waiting:
            if other is ticket:
                return False
            if self._conflicts(other[1]):
                return True
        return False

    def _conflicts(self, other: Claim) -> bool:
        own, others = set(map(id, self.writes)), set(map(id, other.writes))
        return not own.isdisjoint(map(id, (*other.reads, *other.writes))) or not others.isdisjoint(
            map(id, self.reads)
        )
