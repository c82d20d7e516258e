"""Telling the launcher that a rank which computes for long, without other ranks, is not stuck."""

from __future__ import annotations

from dsl.mpi.pulse import beat

__all__ = ["alive"]


def alive(what: str = "alive()") -> None:
    """Say that this rank makes progress: where `python -m dsl launch` watches, its deadline starts again; elsewhere, nothing.

    Collectives, steps of sessions and checkpoints do so by themselves. Call it where the work is done, not in a thread of its
    own, which would go on when the work does not. `what` is shown if nothing follows.

    >>> for epoch in range(2):
    ...     alive(f"epoch {epoch}")
    """
    beat(what)
