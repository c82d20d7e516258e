"""The profile that the option `trace` asks for: of the whole process, or for as long as the option is set.

`DSL_TRACE=out.json` writes one file; any other path is a directory, which receives `trace-<pid>.json` of each process.
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
    return named if is_file else named / f"trace-{os.getpid()}.json"


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
