"""The end of a run in which a rank raises: the others are told which one and what, and end too.

A rank whose script ends with an exception sends it to all others, which raise a `PeerError` at their next message or
while they wait for one. A rank that is told is not told again.
"""

from __future__ import annotations

import sys
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from dsl.errors import PeerError

if TYPE_CHECKING:
    from dsl.mpi.messages import Record
    from dsl.mpi.transport import Transport
    from dsl.mpi.world import World

__all__ = ["FAILED", "listen", "watch"]

FAILED = 0  # the kind of record that says so
_GRACE = 2.0  # seconds for the news to go out
_LINGER = (
    1.0  # seconds for the others to say so, before mpirun sees that a rank has failed and ends them
)


def watch(world: World) -> None:
    """Tell the other ranks if the script of this one ends with an exception."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        sys.stderr.flush()
        if not isinstance(error, PeerError) and kind is not SystemExit:
            tell(world, error)
        _leave(world)

    sys.excepthook = hook


def tell(world: World, error: BaseException) -> None:
    """Send an exception to all other ranks."""
    from dsl.mpi.shared import transport

    try:
        text = "".join(traceback.format_exception_only(error)).strip()
        data = np.frombuffer(text.encode(), np.uint8)
        for rank in range(world.size):
            if rank != world.rank:
                transport().send(rank, FAILED, (world.rank,), data)
        transport().drain(_GRACE)
        time.sleep(_LINGER)
    except Exception as problem:
        print(f"rank {world.rank}: the other ranks could not be told: {problem}", file=sys.stderr)


def _leave(world: World) -> None:
    """End without waiting for the other ranks to finish MPI, which they may never do."""
    import os

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def listen(transport: Transport) -> None:
    """Have news of other ranks' ends reach whoever waits on a transport."""

    def handle(source: int, record: Record) -> None:
        text = bytes(np.asarray(record.array)).decode(errors="replace")
        transport.fail(PeerError(f"rank {record.numbers[0]} ended with an exception: {text}"))

    transport.handle(FAILED, handle)
