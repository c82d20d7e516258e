"""The parent of one rank's script: gives it its streams, and writes down how it ended.

Run by `mpirun` as a program, without dsl: `rank_process.py DIRECTORY COMMAND...`. It stays while the script runs, because only a
parent learns which signal ended a process. A script whose parent or whose `mpirun` is gone is ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from types import FrameType

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
GRACE = 2  # seconds that a script has to end in after it was asked to
_asked = False


def main() -> int:
    """Run the command and return its exit code, as shells give it."""
    directory, *command = sys.argv[1:]
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
    base = os.path.join(directory, f"rank-{rank}")
    _end_with_parent(signal.SIGTERM)
    child = os.fork()
    if child == 0:
        _be(command, base)
    _pass_on_signals(child)
    code = _wait(child)
    _write_end(base, code)
    return code if code >= 0 else 128 - code


def _end_with_parent(number: int) -> None:
    """Have this process get a signal when its parent ends, where the system can do that."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number, 0, 0, 0)


def _be(command: list[str], base: str) -> None:
    """Become the script."""
    try:
        _end_with_parent(signal.SIGKILL)
        for stream, name in ((1, ".out"), (2, ".err")):
            if os.path.exists(base + name):  # else this is another machine than the launcher's
                os.dup2(os.open(base + name, os.O_WRONLY), stream)
        os.execvpe(command[0], command, {**os.environ, "DSL_LAUNCH_PID": str(os.getpid())})
    except BaseException as error:
        os.write(2, f"{command[0]} was not started: {error}\n".encode())
    os._exit(127)


def _pass_on_signals(child: int) -> None:
    def hand(number: int, frame: FrameType | None) -> None:
        global _asked
        last, _asked = _asked, True
        signal.alarm(GRACE)
        _send(child, signal.SIGKILL if last and number == signal.SIGALRM else signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, hand)


def _send(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


def _wait(child: int) -> int:
    """Return the exit code, or the signal as a negative number."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _write_end(base: str, code: int) -> None:
    told = {"code": code, "time": time.time(), "asked": _asked}
    try:
        with open(base + ".end.new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(base + ".end.new", base + ".end")
    except OSError:
        return  # the launcher is gone


if __name__ == "__main__":
    sys.exit(main())
