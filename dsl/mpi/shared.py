"""What one process has one of: the transport to the other ranks, and what it knows of their waits."""

from __future__ import annotations

from dsl.mpi.failure import listen
from dsl.mpi.once import once
from dsl.mpi.transport import Transport
from dsl.mpi.waiting import Waits
from dsl.mpi.world import world

__all__ = ["transport", "waits"]


@once
def transport() -> Transport:
    """Return the transport of this process."""
    return _made()[0]


@once
def waits() -> Waits:
    """Return the waits of this process. A rank that has them tells the others when its script ends."""
    return _made()[1]


@once
def _made() -> tuple[Transport, Waits]:
    made = Transport(world())
    listen(made)
    return made, Waits(made)
