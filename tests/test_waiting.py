"""Waits for other ranks, one of which has ended: in vain or not, as what it did last may arrive after that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsl.errors import MismatchError
from dsl.mpi.messages import Record
from dsl.mpi.waiting import ENDED, Call, Waits


class Alone:
    """The transport of a rank whose messages go nowhere."""

    rank, size = 0, 3

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[..., None]] = {}

    def handle(self, kind: int, handler: Callable[..., None]) -> None:
        self.handlers[kind] = handler

    def send(self, *args: Any) -> None: ...

    def flush(self) -> None: ...

    def poll(self, sleep: bool) -> None: ...

    def drain(self, seconds: float) -> None: ...

    def is_receiving(self) -> bool:
        return False


def ended(rank: int) -> Waits:
    transport: Any = Alone()
    waits = Waits(transport)
    text = np.frombuffer(b"barrier (call 7)", np.uint8)
    transport.handlers[ENDED](rank, Record(ENDED, 0, (), text, 0))
    return waits


def test_what_a_rank_did_last_may_arrive_after_it_has_ended() -> None:
    start = time.monotonic()
    ended(1).until(Call("barrier", None, 7), lambda: time.monotonic() > start + 0.2)


def test_who_waits_for_a_rank_that_has_ended_is_told_so() -> None:
    with pytest.raises(
        MismatchError, match=r"rank 1 has ended\n.*\n.*rank 1: has ended, after barrier"
    ):
        ended(1).until(Call("barrier", None, 8), lambda: False, [1])


def test_other_ranks_may_have_ended() -> None:
    start = time.monotonic()
    ended(1).until(Call("a message", None, 8), lambda: time.monotonic() > start + 1.3, [2])
