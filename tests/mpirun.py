"""Run programs under `mpirun`, each with a deadline.

`run(program, ranks)` starts a file of `tests/ranks/` on some ranks and returns what it wrote and how it ended. A run that does
not end fails: every rank writes the stack of each of its threads, and all are killed. As a script, `python mpirun.py
program args` is what each rank runs.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).parent / "ranks"
ROOT = Path(__file__).parent.parent
_WAIT = 40  # seconds that a rank waits for others in a test


class Run(NamedTuple):
    """How a run ended: the exit status of mpirun, what the ranks wrote, and how many seconds it took."""

    status: int
    out: str
    err: str
    seconds: float

    def check(self) -> None:
        """Fail with what the ranks wrote unless all of them ended well."""
        assert self.status == 0, f"mpirun ended with {self.status}\n{self.out}\n{self.err}"


@functools.cache
def missing() -> str:
    """Return why programs cannot be run on several ranks here, or nothing."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if _mpirun() else "there is no mpirun"


@functools.cache
def _mpirun() -> str | None:
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


@functools.cache
def _options() -> tuple[str, ...]:
    """Open MPI wants to be told that root may run it, and that there may be more ranks than cores."""
    asked = [str(_mpirun()), "--version"]
    text = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
    return ("--allow-run-as-root", "--oversubscribe") if "Open MPI" in text else ()


def run(program: str, ranks: int, *args: str, deadline: float = 120, **env: str) -> Run:
    """Run a program of `tests/ranks/` on so many ranks."""
    command = [str(_mpirun()), *_options(), "-n", str(ranks), sys.executable, __file__]
    command += [str(PROGRAMS / f"{program}.py"), *args]
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(env),
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        out, err = _ended(process)
        raise AssertionError(
            f"{program} on {ranks} ranks did not end in {deadline:g} s\n{out}\n{err}"
        ) from None
    return Run(process.returncode, out, err, time.monotonic() - start)


def _environment(more: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {
        "PYTHONPATH": path,
        "DSL_MPI_TIMEOUT": str(_WAIT),
        "OMP_NUM_THREADS": "1",
        "DSL_NUM_THREADS": "1",
        "OMPI_MCA_btl": "^ofi",  # looking for such networks takes a second at each start
    }
    return {**os.environ, **own, **more}


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a run that hangs, after its ranks have said where they are; mpirun passes the signal on."""
    process.send_signal(signal.SIGUSR1)
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
