"""The profile that the option `trace` asks for: of the whole process, or for as long as the option is set.

`DSL_TRACE=out.json` writes one file; any other path is a directory, which receives a file of each process, named by its
rank under `mpirun`, else by its number. Under `mpirun` a file has all ranks, and a directory has `trace.json` with all of them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from dsl.config import config, launched_rank, launched_ranks
from dsl.profiler.profiles import Profile

__all__ = ["abandon", "follow", "target"]

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
            _running = wanted, _start(wanted), os.getpid()


def _start(wanted: str) -> Profile:
    path = target(wanted)
    if not _is_shared(path):
        return Profile(path).start()
    _part(path, launched_rank() or 0).unlink(missing_ok=True)  # that of an earlier run
    return Profile().start()


def target(path: str) -> Path:
    """Return the file to write, whose directory exists afterwards; a trace of many ranks is one file."""
    named = Path(path)
    is_file = named.name.endswith((".json", ".json.gz", ".svg"))
    folder = named.parent if is_file else named
    folder.mkdir(parents=True, exist_ok=True)
    if launched_ranks() == 1:
        return named if is_file else named / f"trace-{_process()}.json"
    if named.suffix == ".svg":
        return named.with_name(f"{named.stem}-{_process()}.svg")
    return named if is_file else named / "trace.json"


def _process() -> str:
    """Return a name for this process."""
    rank = launched_rank()
    return str(os.getpid()) if rank is None else f"rank-{rank}"


def _is_shared(path: Path) -> bool:
    return launched_ranks() > 1 and path.suffix != ".svg"


def _part(path: Path, rank: int) -> Path:
    """Return the file of one rank; one that stays has a name that is seen."""
    name, dot, ending = path.name.partition(".json")
    return path.with_name(f"{name}-rank-{rank}{dot}{ending}")


def _finish() -> None:
    global _running
    if _running is None:
        return
    (wanted, profile, owner), _running = _running, None
    if owner != os.getpid():  # a child of whoever is profiled
        return
    try:
        profile.stop()
        path = target(wanted)
        if _is_shared(path):
            _write_with_others(path, profile, keep=not wanted.endswith((".json", ".json.gz")))
    except OSError as error:
        print(f"dsl: the profile was not written: {error}", file=sys.stderr)


def abandon() -> None:
    """End the profile of this process and write nothing: it only starts those that the user means."""
    global _running
    with _lock:
        if _running is not None:
            (_, profile, _), _running = _running, None
            profile.path = None
            profile.stop()


def _write_with_others(path: Path, profile: Profile, keep: bool) -> None:
    """Write this rank's part; rank 0 puts all of them together."""
    from dsl.profiler.merge import merge_when_there, write_part

    rank = launched_rank() or 0
    write_part(_part(path, rank), profile.events, profile.began, rank)
    if rank == 0:
        merge_when_there([_part(path, k) for k in range(launched_ranks())], path, keep)


atexit.register(_finish)
