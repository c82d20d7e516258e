"""Run the parts of a step, all at the same time, each on its device.

In: a `Partition` whose devices are all in this process, arguments, the devices, and `run_one(graph, args, environment)`,
which runs one part: `dsl.ir.token_machine.run_tokens` or a compiled executor. Out: the results of the whole graph.

The caller's thread runs the first part, threads of the devices the others. The parts meet at a rendezvous of the step's
own. The first error wins: it aborts the rendezvous and cancels the other parts, and it is raised when all of them are over;
what they then raise is not reported. The same happens when the time is over or the step is cancelled. `run_one` must honour
the `timeout` and the `cancelled` of its environment; one that has not ended `GRACE` seconds after it should have is left
behind, and the error says so.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsl import events
from dsl.errors import CancelledError, DeadlineError, DeviceError, DslError
from dsl.ir.devices import DeviceName, listing
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.ir.parts import Part, Partition
from dsl.runtime.devices import Cpu, Job
from dsl.runtime.rendezvous import LocalRendezvous

__all__ = ["GRACE", "RunOne", "run_parts"]

RunOne = Callable[[Graph, Sequence[Any], Environment], Sequence[Any]]

GRACE = 5.0
"""Seconds that a part has to end in after the step is over."""
POLL = 0.02  # how often, in seconds, the end of a step is looked for


def run_parts(
    partition: Partition,
    args: Sequence[Any],
    devices: Mapping[str, Cpu],
    run_one: RunOne,
    environment: Environment | None = None,
    rendezvous: Any = None,
) -> Any:
    """Run a step and return its results in the order of the graph's.

    The environment's `timeout` and `cancelled` hold for the step as a whole; its rendezvous is not used. With a `rendezvous`, to
    other processes say, the parts need not send all that they wait for, and what each returned comes back by device.
    """
    _check_devices(partition, devices)
    if rendezvous is None:
        partition.check_complete()
    return _Step(partition, args, devices, run_one, environment or Environment(), rendezvous).run()


def _check_devices(partition: Partition, devices: Mapping[str, Cpu]) -> None:
    for name in partition.parts:
        if name not in devices:
            there = listing(map(DeviceName.parse, devices))
            raise DeviceError(f"a part runs on {name}, which is not here; the devices are {there}")


class _Step:
    def __init__(
        self,
        partition: Partition,
        args: Sequence[Any],
        devices: Mapping[str, Cpu],
        run_one: RunOne,
        environment: Environment,
        rendezvous: Any,
    ) -> None:
        self.partition, self.args, self.devices = partition, args, devices
        self.run_one, self.environment = run_one, environment
        self.outside, self.rendezvous = rendezvous is not None, rendezvous or LocalRendezvous()
        self.found: dict[str, Sequence[Any]] = {}
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        timeout = environment.timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout

    def run(self) -> Any:
        parts = list(self.partition.parts.values())
        jobs = {part.device: self._start(part) for part in parts[1:]}
        if parts:
            with self.devices[parts[0].device].limits():
                self._run(parts[0])
        try:
            self._wait(jobs)
        except BaseException as error:  # Ctrl-C while waiting
            self._fail(error)
            self._wait(jobs)
        if self.error is not None:
            raise self.error
        return self.found if self.outside else self.partition.gather(self.args, self.found)

    def _start(self, part: Part) -> Job:
        return self.devices[part.device].start(lambda: self._run(part))

    def _run(self, part: Part) -> None:
        """Run one part; its error is the step's if it is the first."""
        try:
            with events.on_device(part.device), events.span("part", part.graph.name):
                found = self.run_one(part.graph, part.arguments(self.args), self._environment())
        except BaseException as error:
            self._fail(error)
            return
        self.devices[part.device].track(found)
        self.found[part.device] = found

    def _environment(self) -> Environment:
        """Return the environment of one part."""
        made = copy.copy(self.environment)
        made.rendezvous, made.cancelled = self.rendezvous, self._is_cancelled
        return made

    def _is_cancelled(self) -> bool:
        asked = self.environment.cancelled
        return self.error is not None or (asked is not None and asked())

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self.rendezvous.abort(error)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _wait(self, jobs: Mapping[str, Job]) -> None:
        """Wait until all parts are over; look now and then whether the step should be."""
        left = None  # when parts are given up
        for device, job in jobs.items():
            while not job.wait(POLL):
                self._look_at_the_clock()
                if self.error is not None:
                    left = left or time.monotonic() + GRACE
                    if time.monotonic() > left:
                        self._leave_behind(device)
                        return

    def _look_at_the_clock(self) -> None:
        asked = self.environment.cancelled
        if self.error is None and asked is not None and asked():
            self._fail(CancelledError("the step was cancelled"))
        if self.error is None and self.deadline is not None and time.monotonic() > self.deadline:
            timeout = self.environment.timeout
            self._fail(DeadlineError(f"the step is not done after {timeout:g} s"))

    def _leave_behind(self, device: str) -> None:
        note = (
            f"the part on {device} did not end within {GRACE:g} s after this error and still runs"
        )
        assert self.error is not None
        if isinstance(self.error, DslError):
            self.error.message += f"\n{note}"
        self.error.add_note(note)
