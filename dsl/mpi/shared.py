"""What one process has one of: the transport to the other ranks."""

from __future__ import annotations

import functools

from dsl.mpi.failure import listen
from dsl.mpi.transport import Transport
from dsl.mpi.world import world

__all__ = ["transport"]


@functools.cache
def transport() -> Transport:
    """Return the transport of this process."""
    made = Transport(world())
    listen(made)
    return made
