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

from dsl import events

__all__ = ["Claim", "Claimable"]


class _Turns:
    """The lock around all claims, and those that wait, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.waiting: list[tuple[object, Claim]] = []


_turns = _Turns()


class Claimable:
    """Something that steps share. `readers` counts those that read it now, `turns` says in which process."""

    __slots__ = ("readers", "turns", "written")

    def __init__(self) -> None:
        self.readers = 0
        self.written = False
        self.turns = _turns


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
            if turns.waiting or not self._is_free(turns):
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
                x.readers -= x.turns is turns
            for x in self.writes:
                x.written = False
            if turns.waiting:
                turns.changed.notify_all()

    def _is_free(self, turns: _Turns) -> bool:
        for x in self.writes:
            if x.turns is not turns:
                _forget(x, turns)
            elif x.written or x.readers:
                return False
        for x in self.reads:
            if x.turns is not turns:
                _forget(x, turns)
            elif x.written:
                return False
        return True

    def _wait(self, turns: _Turns) -> None:
        ticket = (object(), self)
        turns.waiting.append(ticket)
        try:
            while not self._is_free(turns) or self._is_behind(turns, ticket):
                with events.span("wait", "variables"):
                    turns.changed.wait()
        except BaseException:  # those behind need not wait for who gives up
            turns.changed.notify_all()
            raise
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


def _forget(x: Claimable, turns: _Turns) -> None:
    """Free what threads of the parent process held when this one was forked."""
    x.readers, x.written, x.turns = 0, False, turns
