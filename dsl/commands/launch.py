"""`python -m dsl launch -n 4 --restarts 3 train.py ARG...`: a script on all ranks, started again when a rank dies.

Runs mpirun, shows what each rank prints behind its number, and watches. When a rank dies, raises or falls silent for longer than the
deadline, everything is ended, the rank and the reason are shown, and the script is started again. It goes on from its
newest checkpoint, if it has one (`dsl.parallel.ShardedCheckpoints`). The exit code is 0 only if a run finished.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from dsl.commands.job import Failure, Job, Plan
from dsl.config import config, launched_rank
from dsl.errors import ConfigError
from dsl.mpi.mpirun import INSTALL, find_mpirun
from dsl.profiler import automatic

__all__ = ["environment", "parse", "run"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """The launcher itself is to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(words: Sequence[str]) -> int:
    """Run a script on all ranks, again after failures, and return the exit code."""
    given = parse(words)
    plan = _plan(given)
    if config.trace is not None:
        automatic.abandon()
    folder = Path(tempfile.mkdtemp(prefix="dsl-launch-"))
    try:
        with _signals_raise():
            return _run_again_and_again(plan, folder, given.restarts)
    except _Stopped as stopped:
        _say(f"ended by {signal.Signals(stopped.number).name}; no rank is left")
        return 128 + stopped.number
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m dsl launch", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("-n", type=_count, required=True, metavar="RANKS", help="how many ranks")
    parser.add_argument(
        "--restarts", type=_number, default=0, metavar="TIMES", help="how often to start again (0)"
    )
    parser.add_argument(
        "--deadline", type=_seconds, default=300.0, metavar="SECONDS",
        help="how long a rank may do nothing that shows (300); 0 is for ever",
    )  # fmt: skip
    parser.add_argument("--logs", type=Path, metavar="DIR", help="write DIR/rank-0.log, ...")
    parser.add_argument("--mpirun", metavar="PATH", help="the launcher of MPI to use")
    parser.add_argument("--mpi", default="", metavar="OPTIONS", help="more options for mpirun")
    parser.add_argument("-m", action="store_true", dest="module", help="SCRIPT is a module")
    parser.add_argument("script", help="what each rank runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")
    return parser.parse_args(list(words))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number


def _plan(given: argparse.Namespace) -> Plan:
    if launched_rank() is not None:
        raise ConfigError("launch starts mpirun itself, and runs under one", remedy="run it alone")
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError("mpi4py is not installed", remedy=INSTALL)
    if not given.module and not Path(given.script).is_file():
        raise ConfigError(f"there is no script {given.script}")
    target = ["-m", given.script] if given.module else [given.script]
    return Plan(
        find_mpirun(given.mpirun), given.n, [sys.executable, *target, *given.arguments],
        given.deadline, options=shlex.split(given.mpi), logs=given.logs,
    )  # fmt: skip


def _run_again_and_again(plan: Plan, folder: Path, restarts: int) -> int:
    for attempt in range(restarts + 1):
        if attempt:
            _say(f"restart {attempt} of {restarts}")
        began = time.monotonic()
        failure = _run_once(plan, folder, attempt)
        spent = time.monotonic() - began
        if failure is None:
            if attempt:
                _say(f"finished, after {attempt} restart{'s' * (attempt > 1)}")
            return 0
        _say(f"after {spent:.1f} s: {failure}")
    _say(f"given up after {restarts} restart{'s' * (restarts != 1)}; the run did not finish")
    return 1


def _run_once(plan: Plan, folder: Path, attempt: int) -> Failure | None:
    directory = folder / str(attempt)
    directory.mkdir()
    job = Job(plan, directory, environment(plan.ranks) | {"DSL_LAUNCH_ATTEMPT": str(attempt)})
    return job.run()


def environment(ranks: int) -> dict[str, str]:
    """Return the environment of ranks: unless the user says otherwise, they share the cores of this machine evenly."""
    found = {
        "OMPI_MCA_btl": "^ofi",
        **os.environ,
    }  # not used here, and it sleeps for a second when it is closed
    if "OMP_NUM_THREADS" not in found:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        found.setdefault("DSL_NUM_THREADS", str(max(1, (cores or 1) // ranks)))
    return found


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Have Ctrl-C and its kin raise, once, so that what cleans up is not interrupted."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    sys.stdout.flush()
    print("\n".join(f"launch: {line}" for line in text.splitlines()), file=sys.stderr, flush=True)
