"""The profile that the option `trace` asks for: of the whole process, or for as long as the option is set.

`DSL_TRACE=out.json` writes one file; any other path is a directory, which receives a file of each process, named by its
rank under `mpirun`, else by its number.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from dsl.config import config
from dsl.profiler.profiles import Profile

__all__ = ["follow", "target"]

_lock = threading.Lock()
_running: tuple[str, Profile, int] | None = None


def follow() -> None:
    """Start or end the profile, as the option says now."""
    global _running
    with _lock:
        wanted = config.trace
        if _running is not None and _running[0] == wanted:
            return
        _finish()
        if wanted is not None:
            _running = wanted, Profile(target(wanted)).start(), os.getpid()


def target(path: str) -> Path:
    """Return the file to write, whose directory exists afterwards."""
    named = Path(path)
    is_file = named.name.endswith((".json", ".json.gz", ".svg"))
    folder = named.parent if is_file else named
    folder.mkdir(parents=True, exist_ok=True)
    return named if is_file else named / f"trace-{_process()}.json"


def _process() -> str:
    """Return a name for this process. It comes from the environment: MPI is not started for the sake of it."""
    ranks = (os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"))
    rank = next(filter(None, ranks), None)
    return str(os.getpid()) if rank is None else f"rank-{rank}"


def _finish() -> None:
    global _running
    if _running is None:
        return
    (_, profile, owner), _running = _running, None
    if owner != os.getpid():  # a child of whoever is profiled
        return
    try:
        profile.stop()
    except OSError as error:
        print(f"dsl: the profile was not written: {error}", file=sys.stderr)


atexit.register(_finish)
