"""Reductions that go on while the program computes.

`start` copies arrays of one dtype one behind the other into a buffer, and returns. A thread takes the buffers in order, meets
the other ranks' threads, and lets MPI reduce in place, without the GIL. `wait` returns parts of the buffer, which is used
again when nobody has those any more. If MPI allows one thread only, `wait` does all of it.
"""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl import events
from dsl.ir.communicator import at_location, current_location
from dsl.ir.types import TensorType
from dsl.mpi.buffers import Buffers
from dsl.mpi.reducing import finished, operator, work_dtype

if TYPE_CHECKING:
    from dsl.ir.location import Location
    from dsl.mpi.collectives import Meeting

__all__ = ["Behind"]

_TICK = 1e-3  # seconds between looks at what else happens


@dataclass
class _Job:
    """One reduction: the buffer, and what its parts are."""

    buffer: np.ndarray
    shapes: list[tuple[int, ...]]
    dtype: np.dtype
    how: str
    where: Location | None
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Behind:
    """The reductions of one rank that are under way."""

    def __init__(self, meeting: Meeting, threads: int) -> None:
        self.meeting, self.threaded = meeting, threads >= 3  # MPI_THREAD_MULTIPLE
        self._jobs: dict[int, _Job] = {}
        self._queue: collections.deque[_Job] = collections.deque()
        self._ready = threading.Condition()
        self._buffers = Buffers()
        self._count = 0
        self._thread: threading.Thread | None = None

    def start(self, xs: Sequence[np.ndarray], how: str) -> int:
        """Begin a reduction and return its number."""
        dtype = xs[0].dtype
        buffer = self._packed(xs, work_dtype(dtype))
        job = _Job(buffer, [x.shape for x in xs], dtype, how, current_location())
        with self._ready:
            self._count += 1
            self._jobs[self._count] = job
            self._queue.append(job)
            self._ready.notify()
            number = self._count
        if self.threaded and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dsl all_reduce", daemon=True)
            self._thread.start()
        return number

    def wait(self, number: int) -> list[np.ndarray]:
        """Return the results of a reduction that was started."""
        job = self._jobs.pop(number)
        with events.span("wait", "all_reduce", job.where), self.meeting.waits.asleep():
            while not job.done.is_set():
                if not self.threaded:
                    self._run(self._queue.popleft())
                elif not job.done.wait(_TICK):
                    self.meeting.waits.transport.poll(sleep=False)
        if job.error is not None:
            raise job.error
        return _parts(job)

    def _packed(self, xs: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        buffer = self._buffers.empty((sum(x.size for x in xs),), dtype)
        at = 0
        for x in xs:
            buffer[at : at + x.size].reshape(x.shape)[...] = x
            at += x.size
        return buffer

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._queue)
                job = self._queue.popleft()
            self._run(job)
            del job  # so that its buffer is free when the results are

    def _run(self, job: _Job) -> None:
        try:
            with at_location(job.where), events.span("collective", "all_reduce", job.where):
                self._reduce(job)
        except BaseException as error:
            job.error = error
        job.done.set()

    def _reduce(self, job: _Job) -> None:
        from mpi4py import MPI

        buffer = job.buffer
        shown = TensorType(job.dtype, buffer.shape)
        comm: Any = self.meeting.meet(f"all_reduce_start({job.how}) of {shown}")
        if buffer.size:
            comm.Allreduce(MPI.IN_PLACE, buffer, operator(job.how, buffer.dtype))
        job.buffer = finished(buffer, job.how, self.meeting.size, job.dtype)


def _parts(job: _Job) -> list[np.ndarray]:
    ends = np.cumsum([math.prod(shape) for shape in job.shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(job.buffer, ends[:-1]), job.shapes)]
