"""What Linux's control groups, as containers and batch systems use them, grant this process: CPU time and memory.

Both versions are read, for the group of the process and those above it, since a limit of any of them holds. Where there
is no such thing, the answer is infinity. `root` is the file system's, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpus", "memory"]


def cpus(root: Path = Path("/")) -> float:
    """Return how many CPUs' worth of time the process may use."""
    return min(map(_cpus_of, _folders(root, "cpu")), default=math.inf)


def memory(root: Path = Path("/")) -> float:
    """Return how many bytes of memory the process may use."""
    files = ("memory.max", "memory.limit_in_bytes")  # of version 2, of version 1
    limits = [_number(folder / file) for folder in _folders(root, "memory") for file in files]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _cpus_of(group: Path) -> float:
    """Return the limit of one group: of version 2, then of version 1."""
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    time, span = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return time / span if time and span and time > 0 else math.inf


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that govern the process, innermost first.

    In a container the group that the process is told may not exist: what is mounted is the group itself.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" or controller in controllers.split(","):
            yield from _with_parents(root / "sys/fs/cgroup", controllers, controller, path)


def _with_parents(mount: Path, controllers: str, controller: str, path: str) -> Iterator[Path]:
    named = [mount / controllers, mount / controller] if controllers else []
    top = next((folder for folder in named if folder.is_dir()), mount)
    group = top / path.strip("/")
    return (folder for folder in (group, *group.parents) if folder.is_relative_to(top))
