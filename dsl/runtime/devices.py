"""The devices of this process: `cpu:0`, `cpu:1` and on, and the GPUs that a graph names.

A device has threads of its own, on which parts of a graph run: an idle one takes the next part, and if there is none a
new one is made, so that a part never waits behind another one that waits for it. `threads` bounds how many threads the
kernels of one part use. It counts the bytes that are in use on it.

All devices share the memory of the process, so nothing is copied between them. How many there are is the option
`cpu_devices`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from dsl.config import config
from dsl.ir.devices import DeviceName

__all__ = ["Cpu", "Job", "Memory", "cpus", "with_gpus"]


@dataclass(frozen=True)
class Memory:
    """Bytes in use on a device, and the most there have been."""

    in_use: int
    peak: int


class Job:
    """Work that was given to a device; it catches its own exceptions."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._over = work, threading.Event()

    def run(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work is over, and tell whether it is."""
        return self._over.wait(timeout)


class Cpu:
    """A CPU device, or the threads of the host that issue the work of a GPU.

    `threads` bounds those that kernels on it use; None leaves that to `config.num_threads`.
    """

    def __init__(
        self, index: int = 0, *, rank: int = 0, threads: int | None = None, kind: str = "cpu"
    ) -> None:
        self.name = DeviceName(rank, kind, index)
        self.threads = threads
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False
        self._in_use = self._peak = 0
        self._freed: deque[int] = deque()  # sizes of arrays that are gone and still counted
        self._tracked: dict[int, weakref.ref[np.ndarray]] = {}
        _devices.add(self)

    def __repr__(self) -> str:
        return f"<device {self.name}>"

    # -- work ----------------------------------------------------------------------------------------------------

    def start(self, work: Callable[[], None]) -> Job:
        """Have something done on a thread of this device."""
        job = Job(work)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            name = f"dsl {self.name}"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put(job)
        return job

    def _serve(self, inbox: SimpleQueue[Job | None]) -> None:
        while (job := inbox.get()) is not None:
            with self.limits():
                job.run()
            del job  # what it refers to must not live until the next one
            with self._lock:
                if self._closed:
                    return
                self._idle.append(inbox)

    @contextlib.contextmanager
    def limits(self) -> Generator[None]:
        """Let kernels that this thread calls in a `with` block use as many threads as the device has."""
        if self.threads is None:
            yield
            return
        with config.override(num_threads=self.threads):
            yield

    def close(self) -> None:
        """End the threads: the idle ones now, the others when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _forget_threads(self) -> None:
        """After a fork: the threads are not in the child."""
        self._lock = threading.Lock()
        self._idle = []

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """The bytes in use: of arrays that parts here have returned and that are alive, and what executors report."""
        self.allocated(0)
        with self._lock:
            return Memory(self._in_use, self._peak)

    def allocated(self, size: int) -> None:
        """Count bytes, or with a negative size give them back."""
        with self._lock:
            while self._freed:
                self._in_use -= self._freed.popleft()
            self._in_use += size
            self._peak = max(self._peak, self._in_use)

    def track(self, arrays: Iterable[Any]) -> None:
        """Count the bytes of arrays for as long as they live, each once."""
        for array in arrays:
            if isinstance(array, np.ndarray) and id(array) not in self._tracked:
                self._track(array)

    def _track(self, array: np.ndarray) -> None:
        key, size = id(array), array.nbytes

        def forget(_: object) -> None:
            self._tracked.pop(key, None)
            self._freed.append(
                size
            )  # not under the lock: the collector may run this in a thread that holds it

        self._tracked[key] = weakref.ref(array, forget)
        self.allocated(size)


# -- the devices of the process ------------------------------------------------------------------------------------

_devices: weakref.WeakSet[Cpu] = weakref.WeakSet()
_cpus: list[Cpu] = []
_lock = threading.Lock()


def cpus(count: int | None = None) -> list[Cpu]:
    """Return the first `count` CPU devices of this process, by default as many as the option `cpu_devices` says."""
    wanted = config.cpu_devices if count is None else count
    with _lock:
        while len(_cpus) < wanted:
            _cpus.append(Cpu(len(_cpus)))
        return _cpus[:wanted]


_gpus: dict[DeviceName, Cpu] = {}


def with_gpus(
    devices: Iterable[Cpu], asked: Iterable[str], rank: int, own_index: Callable[[str], int]
) -> list[Cpu]:
    """Return devices and, after them, the GPUs among the names that nodes ask for.

    A name without an index means the GPU of this process among those of its machine, which `own_index` tells for a kind.
    """
    found = list(devices)
    for text in asked:
        name = DeviceName.parse(text)
        if name.kind in (None, "cpu") or name.rank not in (None, rank):
            continue
        index = own_index(name.kind or "cuda") if name.index is None else name.index
        full = DeviceName(rank, name.kind, index)
        with _lock:
            if full not in _gpus:
                _gpus[full] = Cpu(full.index or 0, rank=rank, kind=full.kind or "cuda")
        if _gpus[full] not in found:
            found.append(_gpus[full])
    return found


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for device in _devices:
        device._forget_threads()


os.register_at_fork(after_in_child=_after_fork)
