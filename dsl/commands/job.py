"""One run of a script on all ranks: started, watched until it ends or must be ended, and ended without a trace.

Every rank's process writes how it ended, every rank's exception is written down, and every rank shows signs of life; all
this meets in a directory (`dsl.mpi.pulse`). A run has failed when a rank ends with anything but 0, when a rank that does not wait for
others is silent for longer than the deadline, or when all ranks wait. Whatever happens, no process is left behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl.commands import rank_process
from dsl.commands.streams import Streams
from dsl.mpi import pulse
from dsl.mpi.mpirun import Mpirun

__all__ = ["Failure", "Job", "Plan", "alive_in_session"]

_TICK = 0.1  # seconds between looks
_NEWS = 1.0  # seconds after the first end in which others may still say more
_ECHO = 4.0  # the same, while all that is known are echoes of another rank's end
_POLITE = 3.0  # seconds that mpirun has to end the ranks in
_LAST = 10.0  # seconds in which everything is gone, or something is very wrong


@dataclass(frozen=True)
class Plan:
    """What to run: the launcher, how many ranks, the command; how long a rank may be silent, and how long all of it may take.

    Times are in seconds; 0 is as long as it likes.
    """

    mpirun: Mpirun
    ranks: int
    command: Sequence[str]
    deadline: float = 0.0
    limit: float = 0.0
    options: Sequence[str] = ()
    logs: Path | None = None
    shown: bool = True


@dataclass(frozen=True)
class Failure:
    """Why a run did not finish: one line for each rank at fault."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


class Job:
    """A run in a directory of its own, which must be empty."""

    def __init__(self, plan: Plan, directory: Path, environment: Mapping[str, str]) -> None:
        self.plan, self.directory = plan, directory
        self.streams = Streams(directory, plan.ranks, plan.logs, plan.shown)
        self.clock = (
            0.0  # seconds that this process has watched; it may itself be stopped for a while
        )
        self._looked = time.monotonic()
        self._signs: dict[int, tuple[int, float]] = dict.fromkeys(range(plan.ranks), (0, 0.0))
        self.process = self._start(environment)

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", rank_process.__file__, str(self.directory)]
        command = self.plan.mpirun.command(
            self.plan.ranks, [*words, *self.plan.command], self.plan.options
        )
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**environment, pulse.DIRECTORY: str(self.directory), "PYTHONUNBUFFERED": "1"},
            start_new_session=True, preexec_fn=None if prctl is None else lambda: prctl(1, signal.SIGTERM, 0, 0, 0),
        )  # fmt: skip
        assert process.stdout is not None
        self.streams.listen_to(process.stdout)
        return process

    # -- watching -------------------------------------------------------------------------------------

    def run(self) -> Failure | None:
        """Watch until the run has finished, which is None, or failed. Afterwards no process of it is left."""
        try:
            return self._watch()
        finally:
            self._end()

    def _watch(self) -> Failure | None:
        while True:
            self._look()
            ends = self._ends()
            if any(end["code"] for end in ends.values()):
                return self._failed()
            if len(ends) == self.plan.ranks:
                return self._finished()
            if self.process.poll() is not None:
                return self._without_mpirun()
            if failure := self._silence(ends) or self._lateness(ends):
                return failure

    def _look(self) -> None:
        self.streams.move(_TICK)
        now = time.monotonic()
        self.clock += min(now - self._looked, 1.0)
        self._looked = now

    def _look_for(self, seconds: float, until: Any) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self._look()

    def _ends(self) -> dict[int, dict[str, Any]]:
        return self._records("end")

    def _records(self, kind: str) -> dict[int, dict[str, Any]]:
        found = {}
        for rank in range(self.plan.ranks):
            path = self.directory / f"rank-{rank}.{kind}"
            if path.exists():
                found[rank] = json.loads(path.read_text(encoding="utf-8"))
        return found

    # -- how it ended ---------------------------------------------------------------------------------

    def _finished(self) -> Failure | None:
        """All ranks ended well; so should mpirun, and if it does not, that changes nothing."""
        self._look_for(_POLITE, lambda: self.process.poll() is not None)
        return None

    def _failed(self) -> Failure:
        """Wait for what else there is to know, and name the rank that was first."""
        self._look_for(_NEWS, lambda: len(self._ends()) == self.plan.ranks)
        self._look_for(_ECHO, lambda: any(self._is_cause(rank) for rank in self._bad()))
        bad = self._bad()
        causes = [rank for rank in bad if self._is_cause(rank)]
        lost = [rank for rank in self._signs if rank not in self._ends()]
        if not causes and (self.process.poll() or 0) < 0:
            return self._mpirun_ended()
        if not causes and lost:
            return Failure(tuple(f"rank {rank} is gone without a word" for rank in lost))
        causes = causes or list(bad)
        first = min(causes, key=lambda rank: self._when(rank, bad[rank]))
        return Failure((self._said(first, bad[first]),))

    def _bad(self) -> dict[int, dict[str, Any]]:
        return {rank: end for rank, end in self._ends().items() if end["code"]}

    def _is_cause(self, rank: int) -> bool:
        """Tell whether a rank ended by itself, not because another one did or because it was asked to."""
        error = self._records("error").get(rank)
        if error is not None:
            return not error["peer"]
        end = self._ends()[rank]
        return not end["asked"] and end["code"] != -signal.SIGTERM  # which mpirun sends

    def _when(self, rank: int, end: Mapping[str, Any]) -> float:
        error = self._records("error").get(rank)
        return float(end["time"] if error is None else error["time"])

    def _said(self, rank: int, end: Mapping[str, Any]) -> str:
        error, code = self._records("error").get(rank), end["code"]
        if error is not None:
            where = f" ({error['where']})" if error["where"] else ""
            return f"rank {rank} raised {error['text']}{where}"
        if code < 0:
            return f"rank {rank} was ended by {_signal_name(-code)}{self._did_last(rank)}"
        self._look_for(_TICK, lambda: False)
        last = self.streams.errors[rank].last
        return f"rank {rank} ended with exit code {code}{f': {last}' if last else ''}"

    def _did_last(self, rank: int) -> str:
        sign = pulse.read(self._pulse(rank))
        if sign is None or not sign.what:
            return ""
        return f"; {'it waited for' if sign.waits else 'last it did'} {sign.what}"

    def _without_mpirun(self) -> Failure | None:
        """mpirun ended before all ranks said how they did."""
        self._look_for(_NEWS, lambda: len(self._ends()) == self.plan.ranks)
        if self._bad():
            return self._failed()
        if len(self._ends()) == self.plan.ranks:
            return None
        return self._mpirun_ended()

    def _mpirun_ended(self) -> Failure:
        code = self.process.returncode
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        kept = self.streams.mpirun.lines if self.streams.mpirun is not None else ()
        said = [f"  {line}" for line in kept if line.strip(" -")]
        return Failure((f"{os.path.basename(self.plan.mpirun.path)} {how}", *said))

    # -- silence --------------------------------------------------------------------------------------

    def _pulse(self, rank: int) -> Path:
        return self.directory / f"rank-{rank}.pulse"

    def _silence(self, ends: Mapping[int, Any]) -> Failure | None:
        """Return the ranks that are silent for too long, unless they wait for one that is not."""
        signs = {rank: pulse.read(self._pulse(rank)) for rank in self._signs if rank not in ends}
        for rank, sign in signs.items():
            if sign is not None and sign.number != self._signs[rank][0]:
                self._signs[rank] = sign.number, self.clock
        if not self.plan.deadline:
            return None
        silent = [r for r in signs if self.clock - self._signs[r][1] > self.plan.deadline]
        guilty = [rank for rank in silent if not _waits(signs[rank])]
        if not guilty and len(silent) < len(signs):
            return None
        return Failure(tuple(self._silent(rank, signs[rank]) for rank in guilty or silent))

    def _lateness(self, ends: Mapping[int, Any]) -> Failure | None:
        if not 0 < self.plan.limit < self.clock:
            return None
        left = [rank for rank in self._signs if rank not in ends]
        said = [self._silent(rank, pulse.read(self._pulse(rank))) for rank in left]
        return Failure((f"not done after {self.clock:.0f} s", *said))

    def _silent(self, rank: int, sign: pulse.Sign | None) -> str:
        quiet = f"rank {rank} is silent for {self.clock - self._signs[rank][1]:.0f} s"
        if sign is None:
            return f"{quiet}: it has not come as far as `import dsl`"
        return f"{quiet}: {'it waits for' if sign.waits else 'last it did'} {sign.what or 'nothing that is known'}"

    # -- the end --------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End every process of the run: mpirun is asked to, and what is left is killed."""
        if self.process.poll() is None:
            self.process.terminate()
            self._look_for(_POLITE, lambda: self.process.poll() is not None)
        end = time.monotonic() + _LAST
        while (left := list(alive_in_session(self.process.pid))) and time.monotonic() < end:
            for pid in left:
                _kill(pid)
            self.streams.move(0.02)
            self.process.poll()
        self.process.wait()
        self.streams.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _waits(sign: pulse.Sign | None) -> bool:
    return sign is not None and sign.waits


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def alive_in_session(session: int) -> Iterator[int]:
    """Yield the processes of a session that have not ended, as far as the system tells.

    mpirun gives each rank a process group of its own; the session is what they and all that they start have in common.
    """
    if not os.path.isdir("/proc/self"):
        yield from _by_ps(session)
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and _is_alive_in(int(name), session):
            yield int(name)


def _is_alive_in(pid: int, session: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] not in "ZX"


def _by_ps(session: int) -> Iterator[int]:
    listed = subprocess.run(
        ["ps", "-axo", "pid=,sess=,stat="], capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        pid, found, state, *_ = line.split()
        if found == str(session) and not state.startswith("Z"):
            yield int(pid)
