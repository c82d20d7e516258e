"""The test of `python -m dsl doctor`: each rank sends a number to the next one until it is back, and rank 0 writes what it found.

Run on every rank, as `python -m dsl.mpi.ring`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from dsl.config import launched_ranks
from dsl.errors import ConfigError
from dsl.mpi import pulse
from dsl.mpi.collectives import Ranks
from dsl.mpi.mpirun import INSTALL, library
from dsl.mpi.world import world

__all__ = ["RESULT", "pass_round", "run"]

RESULT = "ring.json"
"""The file, in the launcher's directory, with what was found."""


def run() -> int:
    """Pass a number round and write down how that went."""
    if world().size != launched_ranks():
        raise ConfigError(
            f"mpirun started {launched_ranks()} processes, and each sees {world().size}: "
            f"mpi4py was built for another MPI ({library()[0][1]})", remedy=INSTALL,
        )  # fmt: skip
    found, seconds = pass_round()
    if found != world().size:
        raise ConfigError(f"the number that came round was {found}, not {world().size}")
    if world().rank == 0:
        told = {"library": library(), "seconds": seconds}
        path = Path(os.environ[pulse.DIRECTORY]) / RESULT
        path.write_text(json.dumps(told), encoding="utf-8")
    return 0


def pass_round() -> tuple[int, float]:
    """Send a number round all ranks, each of which adds one, and return what comes back and the seconds it took."""
    ranks, number = Ranks(), np.zeros(1, np.int64)
    after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    ranks.barrier()
    start = time.perf_counter()
    if ranks.rank == 0:
        ranks.send_to(number + 1, after, 0)
        number = ranks.recv_from(number, before, 0)
    else:
        ranks.send_to(ranks.recv_from(number, before, 0) + 1, after, 0)
    seconds = time.perf_counter() - start
    found = ranks.broadcast_from(number, 0)
    return int(found[0]), seconds


if __name__ == "__main__":
    sys.exit(run())
