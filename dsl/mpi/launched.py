"""What a rank does because `python -m dsl launch` started it: it shows signs of life, and writes down what it ends with.

`import dsl` calls `begin` in such a process, and only there: programs that a rank starts have the same environment, but
another process number than the one that the launcher gave.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from dsl.config import launched_rank
from dsl.errors import PeerError
from dsl.mpi import pulse

__all__ = ["PROCESS", "begin", "write_error"]

PROCESS = "DSL_LAUNCH_PID"
"""The environment variable with the number of the process that is the rank."""


def begin() -> None:
    """Show signs of life, and write down the exception that ends the script, if the launcher started this process."""
    directory, rank = os.environ.get(pulse.DIRECTORY), launched_rank()
    if not directory or rank is None or os.environ.get(PROCESS) != str(os.getpid()):
        return
    folder = Path(directory)
    if not folder.is_dir():  # another machine
        return
    pulse.begin(folder / f"rank-{rank}.pulse")
    _watch(folder / f"rank-{rank}.error")
    atexit.register(pulse.waits, "the other ranks to end, as it did")


def _watch(path: Path) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        write_error(path, error)
        before(kind, error, trace)

    sys.excepthook = hook


def write_error(path: Path, error: BaseException) -> None:
    """Write an exception down, with the user's line; `peer` is that it is only the echo of another rank's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(os.path.dirname(__file__))
    frame = next((f for f in reversed(frames) if not f.filename.startswith(own)), None)
    told = {
        "text": "".join(traceback.format_exception_only(error)).strip(),
        "where": "" if frame is None else f"{os.path.basename(frame.filename)}:{frame.lineno}",
        "peer": isinstance(error, PeerError),
        "time": time.time(),
    }
    try:
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps(told), encoding="utf-8")
        draft.replace(path)
    except OSError:
        return  # the launcher is gone; the script's own traceback follows
