"""Training with parameter servers: workers send gradients, one rank applies them and sends parameters back.

`ParameterServer` is asynchronous: every gradient is applied when it comes. `BackupWorkers` is synchronous: a step takes the
first `needed` gradients that were computed with its parameters; those that come later were computed with old parameters and
are dropped, and whoever sent them gets the new ones at once. There is one decision for all parameters of a step.

All ranks call `train`. The last value of the parameters, the same on all ranks, is what it returns. Another call goes on from
there. A step that too few workers have batches for does not happen: `train` then ends early.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import ConfigError
from dsl.frontend.scopes import here
from dsl.frontend.traced import supported_dtype
from dsl.frontend.trees import flatten, unflatten
from dsl.ir.location import Location
from dsl.mpi.messages import Record
from dsl.mpi.once import once
from dsl.mpi.shared import transport, waits
from dsl.mpi.waiting import Call
from dsl.mpi.world import world
from dsl.optim.optimizer import Optimizer
from dsl.parallel.checks import check_loss, check_optimizer, checked_count
from dsl.transforms.gradients import value_and_grad

__all__ = ["BackupWorkers", "Counts", "ParameterServer"]

GRADIENT, PARAMETERS, STOP = range(20, 23)  # kinds of records
_serial = itertools.count(1)


@dataclass
class Counts:
    """What a server has done: gradients applied and dropped, in all and by worker."""

    steps: int = 0
    applied: int = 0
    dropped: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)


class ParameterServer:
    """Asynchronous training: rank `server` holds the parameters, every other rank is a worker."""

    needed = 1
    """How many workers must have batches for a step to happen."""

    def __init__(
        self, loss: Callable[..., Any], optimizer: Optimizer, params: Any, *, server: int = 0
    ) -> None:
        check_loss(type(self).__name__, loss)
        check_optimizer(type(self).__name__, optimizer)
        self.world = world()
        if not 0 <= server < self.world.size:
            raise ConfigError(f"there is no rank {server} to be the server")
        self.optimizer, self.server = optimizer, server
        self.leaves, self.structure = flatten(params)
        for leaf in self.leaves:
            supported_dtype(np.asarray(leaf).dtype)
        self.leaves = [np.array(leaf) for leaf in self.leaves]
        self.counts = Counts()
        self.losses: list[float] = []
        self.state = optimizer.init(self.params)
        self._step = 0  # of the parameters that this rank has
        self._compute = value_and_grad(loss)
        self._number = 0
        self._where: Location | None = None
        self._partners: list[int] = []  # who has not ended before this rank has its last message
        if self.world.size > 1:
            self._box = _mailbox()

    @property
    def params(self) -> Any:
        """The parameters as this rank has them."""
        return unflatten(self.structure, self.leaves)

    def train(self, batches: Iterable[tuple[Any, ...]], steps: int) -> Any:
        """Run until the server has done `steps` more updates; workers take batches, the server none."""
        steps = checked_count(f"{type(self).__name__}.train", "steps", steps, least=0)
        self._where, self._number = here(), next(_serial)  # of this call, on all ranks
        if self.world.size == 1:
            return self._train_alone(batches, steps)
        if self.world.rank == self.server:
            self._serve(steps)
        else:
            self._work(batches)
        return self.params

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _work(self, batches: Iterable[tuple[Any, ...]]) -> None:
        self._partners = [self.server]
        for batch in batches:
            value, grads = self._compute(self.params, *batch)
            self.losses.append(float(value))
            self._send(self.server, GRADIENT, self._step, flatten(grads)[0])
            if not self._await_parameters():
                return
        self._send(self.server, STOP, self._step, [])
        while (found := self._next(PARAMETERS, STOP)).kind != STOP:
            self._take(found)
        self._take_last(found)

    def _await_parameters(self) -> bool:
        """Take in the parameters of the next step, and tell whether there is one."""
        found = self._next(PARAMETERS, STOP)
        if found.kind == STOP:
            self._take_last(found)
            return False
        self._take(found)
        return True

    def _take(self, first: Record) -> None:
        """Take in the parameters that a record begins."""
        self._step = first.numbers[1]
        if not self.leaves:
            return
        self.leaves[first.numbers[2]] = first.array
        for _ in range(len(self.leaves) - 1):
            record = self._next(PARAMETERS)
            self.leaves[record.numbers[2]] = record.array

    def _take_last(self, stop: Record) -> None:
        if stop.numbers[1] >= 0:
            self._take(self._next(PARAMETERS))

    # -- the server ---------------------------------------------------------------------------------------------------

    def _serve(self, steps: int) -> None:
        end = self.counts.steps + steps
        waiting: set[int] = set()
        gone: set[int] = set()
        workers = {r for r in range(self.world.size) if r != self.server}
        self._partners = sorted(workers)
        while self.counts.steps < end and len(workers - gone) >= self.needed:
            found = self._gradients()
            if found is None:
                gone.add(self._left)
                continue
            worker, local, grads = found
            waiting.add(worker)
            self._decide(worker, local, grads, waiting)
        self._finish(workers, waiting | gone)

    def _decide(self, worker: int, local: int, grads: list[Any], waiting: set[int]) -> None:
        """Apply a gradient at once, and answer who sent it."""
        self._apply(grads)
        self._count(worker)
        self._publish({worker})
        waiting.discard(worker)

    def _apply(self, grads: list[Any]) -> None:
        tree = unflatten(self.structure, grads)
        params, self.state = self.optimizer.update(tree, self.state, self.params)
        self.leaves = [np.asarray(leaf) for leaf in flatten(params)[0]]
        self.counts.steps += 1

    def _count(self, worker: int) -> None:
        self.counts.applied += 1
        self.counts.by_worker[worker] = self.counts.by_worker.get(worker, 0) + 1

    def _publish(self, workers: set[int]) -> None:
        for worker in workers:
            self._send(worker, PARAMETERS, self.counts.steps, self.leaves)

    def _gradients(self) -> tuple[int, int, list[Any]] | None:
        """Wait for a worker's gradients; None if one has no more batches."""
        first = self._next(GRADIENT, STOP)
        source = first.numbers[3]
        if first.kind == STOP:
            self._left = source
            return None
        found: dict[int, Any] = {first.numbers[2]: first.array}
        while len(found) < len(self.leaves):
            record = self._next(GRADIENT, source=source)
            found[record.numbers[2]] = record.array
        return source, first.numbers[1], [found[k] for k in range(len(self.leaves))]

    def _finish(self, workers: set[int], waiting: set[int]) -> None:
        """Send every worker the last parameters; those at work get them when they report."""
        left = set(workers)
        for worker in waiting:
            self._stop(worker)
            left.discard(worker)
        while left:
            self._partners = sorted(left)
            found = self._gradients()
            worker = self._left if found is None else found[0]
            if found is not None:
                self.counts.dropped += 1
            self._stop(worker)
            left.discard(worker)
        transport().drain(5.0)

    def _stop(self, worker: int) -> None:
        transport().send(worker, STOP, (self._number, self.counts.steps, 0, self.world.rank))
        self._publish({worker})

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, rank: int, kind: int, step: int, leaves: list[Any]) -> None:
        send, here = transport().send, self.world.rank
        if not leaves:
            send(rank, kind, (self._number, step, 0, here))
        for k, leaf in enumerate(leaves):
            send(rank, kind, (self._number, step, k, here), np.asarray(leaf))
        transport().flush()

    def _next(self, *kinds: int, source: int | None = None) -> Record:
        who = "the server" if self.world.rank != self.server else "workers"
        call = Call(
            f"{type(self).__name__}.train, for a message of {who}", self._where, self._number
        )
        found: list[Record] = []

        def has_come() -> bool:
            record = None if found else self._box.take(self._number, kinds, source)
            found.extend([] if record is None else [record])
            return bool(found)

        waits().until(call, has_come, self._partners, moving=True)
        return found[0]

    def _train_alone(self, batches: Iterable[tuple[Any, ...]], steps: int) -> Any:
        for batch in itertools.islice(batches, steps):
            value, grads = self._compute(self.params, *batch)
            self.losses.append(float(value))
            self._apply(flatten(grads)[0])
            self._count(0)
        return self.params


class BackupWorkers(ParameterServer):
    """Synchronous training with spare workers: of each step the first `needed` gradients count, by default all but one."""

    def __init__(
        self, loss: Callable[..., Any], optimizer: Optimizer, params: Any, *, needed: int | None = None,
        server: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(loss, optimizer, params, server=server)
        workers = max(1, self.world.size - 1)
        self.needed = max(1, workers - 1) if needed is None else needed
        if not 1 <= self.needed <= workers:
            raise ConfigError(f"needed must be from 1 to {workers} workers, got {self.needed}")
        self._sums: list[Any] = []
        self._got = 0

    def _serve(self, steps: int) -> None:
        self._got = 0  # what came for a step that did not happen
        super()._serve(steps)

    def _decide(self, worker: int, local: int, grads: list[Any], waiting: set[int]) -> None:
        if local != self.counts.steps:
            self.counts.dropped += 1
            self._publish({worker})
            waiting.discard(worker)
            return
        self._sums = grads if not self._got else [a + b for a, b in zip(self._sums, grads)]
        self._got += 1
        self._count(worker)
        if self._got < self.needed:
            return
        self._apply([g / self._got for g in self._sums])
        self._got = 0
        self._publish(set(waiting))
        waiting.clear()


class _Mailbox:
    """Records that have come and that nobody has taken, in order."""

    def __init__(self) -> None:
        self.waiting: list[Record] = []
        for kind in (GRADIENT, PARAMETERS, STOP):
            transport().handle(kind, self._arrived)

    def _arrived(self, source: int, record: Record) -> None:
        self.waiting.append(record)

    def take(self, number: int, kinds: tuple[int, ...], source: int | None) -> Record | None:
        """Return the first record for a call of `train`, of one of some kinds, from a rank if one is named."""
        for k, record in enumerate(self.waiting):
            fits = record.numbers[0] == number and record.kind in kinds
            if fits and (source is None or record.numbers[3] == source):
                return self.waiting.pop(k)
        return None


@once
def _mailbox() -> _Mailbox:
    return _Mailbox()
