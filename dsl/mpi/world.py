"""The processes that run one script: how many there are, which one this is, and how they are reached.

`world()` is made at first use. Without `mpirun`, or without mpi4py, it is a world of one. All messages go over duplicates
of MPI's communicator, so a script's own use of MPI never meets them.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsl.config import config
from dsl.errors import ConfigError
from dsl.mpi.once import once

if TYPE_CHECKING:
    from dsl.mpi.board import Board
    from dsl.mpi.near import Neighbours

__all__ = ["World", "is_launched", "world"]

# What the launchers of Open MPI, MPICH and its kin, and Slurm leave in the environment of a process.
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS", "PMI_RANK")


class World:
    """This process among `size`; `comm` is for messages, `control` for agreements, the others for collectives.

    `behind` is for those that go on while the program computes. All are None in a world of one. `boards` are what ranks of one
    machine share: for collectives, for those behind the program, for agreements. `neighbours` are those with whom this one shares
    memory for messages.
    """

    def __init__(
        self, comm: Any, control: Any, threads: int, collective: Any = None, behind: Any = None,
        boards: Sequence[Board | None] = (None, None, None), neighbours: Neighbours | None = None,
    ) -> None:  # fmt: skip
        self.comm, self.control, self.threads = comm, control, threads
        self.collective, self.behind, self.boards = collective, behind, boards
        self.neighbours = neighbours
        self.rank = 0 if comm is None else comm.Get_rank()
        self.size = 1 if comm is None else comm.Get_size()
        self.lock = threading.RLock()  # MPI may allow one thread at a time

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"


def is_launched() -> bool:
    """Tell whether a launcher of MPI started this process."""
    return any(name in os.environ for name in _LAUNCHERS)


@once
def world() -> World:
    """Return the world of this process."""
    if not is_launched():
        return World(None, None, 0)
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError(
            "this process was started by mpirun, and mpi4py is not installed",
            remedy='pip install "dsl[mpi]"',
        )
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() == 1:
        return World(None, None, MPI.Query_thread())
    from dsl.mpi.failure import watch

    comm, control, collective, behind = (MPI.COMM_WORLD.Dup() for _ in range(4))
    shared = _shared_memory(comm) if config.mpi_shared_memory else ()
    found = World(comm, control, MPI.Query_thread(), collective, behind, *shared)
    watch(found)
    return found


def _shared_memory(comm: Any) -> tuple[Sequence[Board | None], Neighbours | None]:
    """Return what the ranks of one machine share; all ranks call this."""
    from mpi4py import MPI

    from dsl.mpi.board import make_boards
    from dsl.mpi.near import make_neighbours

    near = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    found = make_boards(comm, near, 3), make_neighbours(near, comm.Get_rank())
    near.Free()
    return found
