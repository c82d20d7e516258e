"""One run of a plan: feeds the core, does what it hands out, waits, and collects the results.

A `Step` holds the memory of one run at a time and can be used again, whatever became of the last one. The first error ends
a run: nothing else starts, what waits is cancelled, and its tokens go.
"""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from dsl import events
from dsl.codegen.cpu import token_layout as layout
from dsl.codegen.cpu.token_layout import Error, Status
from dsl.codegen.cpu.tokens import core
from dsl.codegen.cpu.watch import Watched
from dsl.errors import CancelledError, DeadlineError, DslError, InternalError
from dsl.executor.frames import fail
from dsl.executor.tables import Handed, Plan
from dsl.executor.units import Unit
from dsl.executor.words import peek, read_token, write_feed, write_result
from dsl.ir.environment import Cancel, Environment
from dsl.ir.graph import Node
from dsl.ir.interpret import apply_node, interpret
from dsl.ir.token_machine import DEAD, Tag, Trace, with_place

__all__ = ["Step"]

BUDGET = 10_000_000  # ns that the core runs before Python has a look: signals, deadline, cancelling
_WAIT = 0.02  # s between two looks while the step waits


class Step:
    """The state of one run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.words = np.zeros(layout.Run.SIZE, np.int64)
        self.pools = np.zeros(2 * len(plan.frames), np.int64)
        self.feeds = plan.feeds.copy()
        self.fetched = np.zeros(plan.fetch_words, np.int64)
        self.address: int = self.words.ctypes.data
        self.words[layout.Run.PLAN] = plan.address
        self.words[layout.Run.POOLS] = self.pools.ctypes.data
        self.feeds_at = self.words[layout.Run.FEEDS] = self.feeds.ctypes.data
        self.fetched_at = self.words[layout.Run.FETCHED] = self.fetched.ctypes.data
        self.core = core()
        keep = (self.words, self.pools, plan)
        weakref.finalize(self, _end, self.core.end, self.address, keep)

    def run(
        self, args: Sequence[np.ndarray], environment: Environment, cancelled: Callable[[], bool] | None,
        trace: Trace | None,
    ) -> list[np.ndarray]:  # fmt: skip
        """Run once on checked arguments."""
        self.environment, self.trace = environment, trace
        self.waiting = _Waiting(
            environment.timeout,
            cancelled or environment.cancelled,
            getattr(environment.rendezvous, "poll", None),
        )
        for slot, array in zip(self.plan.params, args, strict=True):
            write_feed(self.feeds_at + 8 * slot.word, array)
        self.fetched[:] = 0
        self.words[layout.Run.TRACE] = trace is not None
        try:
            self.core.begin(self.address)
            with Watched(self.waiting.check):
                self._go_on()
            return self._results()
        except BaseException:
            self.waiting.drain()
            raise
        finally:
            self._clear()

    def _go_on(self) -> None:
        while True:
            status = self.core.run(self.address, BUDGET)
            if status == Status.FAILED:
                self._raise()
            if status == Status.TRACED:
                self._tell_trace()
                continue
            self.waiting.check()
            handed = self._take_handed() if self.plan.handed else []
            for unit, iteration in handed:
                self._do(self.plan.handed[unit], unit, iteration)
            if status == Status.DONE:
                return
            self._receive(block=status == Status.WAITING and not handed)

    def _clear(self) -> None:
        """Release every token; on the way out of a run."""
        self.core.clear(self.address)
        for slot in self.plan.fetches.values():
            if slot.type.rank:
                self.core.release(peek(self.fetched_at + 8 * slot.word, 1 + slot.type.rank))

    # -- what is handed out ----------------------------------------------------------------------------------------

    def _take_handed(self) -> list[tuple[int, int]]:
        count, start = int(self.words[layout.Run.HANDED_COUNT]), int(self.words[layout.Run.HANDED])
        self.words[layout.Run.HANDED_COUNT] = 0
        return [(peek(start, 2 * k), peek(start, 2 * k + 1)) for k in range(count)]

    def _do(self, handed: Handed, unit: int, iteration: int) -> None:
        """Run or begin one unit that is Python's."""
        node = handed.unit.node
        if node.op.name == "send":
            self._leave(handed, unit, iteration)
        elif node.op.name == "recv":
            key = (node.attrs["key"], self._tag(iteration))
            rendezvous = self._rendezvous(node)
            told = {"received": (_meeting(rendezvous), key)}
            self.waiting.add(
                handed, unit, iteration, lambda done: rendezvous.receive(key, done), told
            )
        else:
            inputs = [read_token(iteration + 8 * slot.word, slot.type) for slot in handed.inputs]
            begin = node.op.begin
            if begin is not None and handed.program is None:
                environment = self.environment
                self.waiting.add(
                    handed,
                    unit,
                    iteration,
                    lambda done: begin(environment, node.attrs, inputs, done),
                )
            else:
                self._give(handed, unit, iteration, self._apply(handed, inputs))

    def _apply(self, handed: Handed, inputs: list[Any]) -> list[Any]:
        node = handed.unit.node
        with events.span("python", str(node.attrs.get("name", node.op.name)), node.loc):
            if handed.program is not None and handed.program.device is not None:
                return handed.program.device(inputs)
            if handed.program is not None:
                return interpret(handed.program.graph, inputs, self.environment)
            return apply_node(node, inputs, self.environment)

    def _leave(self, handed: Handed, unit: int, iteration: int) -> None:
        node, slot = handed.unit.node, handed.inputs[0]
        dead = peek(iteration, peek(unit, layout.Unit.STATE)) & layout.DEAD
        token = DEAD if dead else read_token(iteration + 8 * slot.word, slot.type)
        rendezvous, key = self._rendezvous(node), (node.attrs["key"], self._tag(iteration))
        with events.span("send", "send", node.loc, {"sent": (_meeting(rendezvous), key)}):
            rendezvous.send(key, token)
        self.core.given(self.address, unit, iteration, 0)

    def _rendezvous(self, node: Node) -> Any:
        if self.environment.rendezvous is None:
            fail(self.plan.graph, "there is no rendezvous to other devices", node)
        return self.environment.rendezvous

    def _give(self, handed: Handed, unit: int, iteration: int, outputs: Sequence[Any]) -> None:
        """Deliver what came of a unit."""
        dead = any(output is DEAD for output in outputs)
        if not dead:
            for slot, output in zip(handed.outputs, outputs, strict=True):
                write_result(iteration + 8 * slot.word, output, slot.type)
        self.core.given(self.address, unit, iteration, int(dead))

    def _receive(self, block: bool) -> None:
        """Deliver what is over by now, waiting for something if nothing else is to be done."""
        while (found := self.waiting.next(block)) is not None:
            self._give(*found)
            block = False

    # -- the end ---------------------------------------------------------------------------------------------------

    def _results(self) -> list[np.ndarray]:
        """Return the results; of one that is asked for twice, the second is a copy."""
        found = []
        for value in self.plan.graph.results:
            slot = self.plan.fetches.get(value)
            flag = 0 if slot is None else peek(self.fetched_at, slot.word - 1)
            if slot is None or not flag:
                message = "a result is never produced: it, or what it reads, is inside a loop"
                fail(self.plan.graph, message, value.node)
            if flag == layout.DEAD:
                message = "a result is dead: it lies in a branch that was not taken"
                fail(self.plan.graph, message, value.node)
            found.append(read_token(self.fetched_at + 8 * slot.word, slot.type))
        return found

    def _raise(self) -> NoReturn:
        """Raise what the core noted."""
        error = int(self.words[layout.Run.ERROR])
        unit = self.plan.by_address.get(int(self.words[layout.Run.ERROR_UNIT]))
        if error == Error.PROGRAM and unit is not None:
            self._raise_status(unit)
        if error == Error.MEMORY:
            raise MemoryError("there is not enough memory for the tokens of a graph")
        if error == Error.NEVER_ENTERED:
            instance = int(self.words[layout.Run.ERROR_ITERATION])
            name = self._frame_name(instance)
            raise DslError(f"frame {name!r} waits for an enter that never comes")
        if unit is None:
            raise InternalError(f"the executor's core failed with {error}")
        fail(self.plan.graph, _MESSAGES[error], unit.node)

    def _raise_status(self, unit: Unit) -> NoReturn:
        native = self.plan.programs[unit].native
        assert native is not None
        on_error = native.spec.on_error
        assert on_error is not None
        status = int(self.words[layout.Run.ERROR_STATUS])
        on_error(status, *map(int, self.words[:7]))
        raise InternalError("a program failed and nothing says how")

    # -- places ----------------------------------------------------------------------------------------------------

    def _tell_trace(self) -> None:
        """Tell of the unit that runs next; of a group, of each node."""
        top = int(self.words[layout.Run.READY_COUNT]) - 1
        ready = int(self.words[layout.Run.READY])
        address, iteration = peek(ready, 2 * top), peek(ready, 2 * top + 1)
        unit = self.plan.by_address[address]
        state = peek(iteration, peek(address, layout.Unit.STATE))
        is_merge = peek(address, layout.Unit.KIND) == layout.Kind.MERGE
        dead = not state & layout.LIVE if is_merge else bool(state & layout.DEAD)
        tag = self._tag(iteration)
        assert self.trace is not None
        for node in unit.nodes:
            self.trace(node, tag, dead)

    def _tag(self, iteration: int) -> Tag:
        instance = peek(iteration, layout.Iteration.INSTANCE)
        parent = peek(instance, layout.Instance.PARENT)
        if not parent:
            return ()
        number = peek(iteration, layout.Iteration.NUMBER)
        return (*self._tag(parent), (self._frame_name(instance), number))

    def _frame_name(self, instance: int) -> str:
        frame = peek(instance, layout.Instance.FRAME)
        return self.plan.frames[peek(frame, layout.Frame.NUMBER)].name


_MESSAGES = {
    Error.TWO_TOKENS: "an input gets two tokens in one iteration",
    Error.TWO_LIVE: "a merge got two live inputs",
    Error.NEVER_COMES: "waits for a token that never comes",
}


def _end(end: Callable[[int], int], address: int, keep: Any) -> None:
    end(address)


def _meeting(rendezvous: Any) -> Any:
    """Return what tells a rendezvous from others: over ranks, on all of them, the number of its step."""
    return getattr(rendezvous, "number", id(rendezvous))


class _Waiting:
    """What has begun and is not over."""

    def __init__(
        self,
        timeout: float | None,
        cancelled: Callable[[], bool] | None,
        poll: Callable[[int], object] | None = None,
    ) -> None:
        self.over: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self.open: dict[int, tuple[Handed, int, int, Cancel]] = {}
        self.begun = 0
        self.poll = poll  # moves messages between processes, which nobody else does
        self.timeout, self.cancelled = timeout, cancelled
        self.deadline = None if timeout is None else time.monotonic() + timeout

    def add(
        self, handed: Handed, unit: int, iteration: int, begin: Callable[..., Cancel],
        told: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Begin something; `told` is for profiles."""
        self.begun += 1
        number, node = self.begun, handed.unit.node
        self.open[number] = (handed, unit, iteration, lambda: None)

        def done(error: BaseException | None, outputs: Sequence[Any]) -> None:
            self.over.put((number, error, outputs))

        try:
            cancel = begin(events.waiting(node.op.name, node.loc, done, told))
        except BaseException as error:
            del self.open[number]
            raise with_place(error, node) from error.__cause__
        self.open[number] = (handed, unit, iteration, cancel)

    def check(self) -> None:
        """Raise if the step must not go on."""
        if self.cancelled is not None and self.cancelled():
            raise CancelledError("the step was cancelled")
        if self.deadline is not None and time.monotonic() > self.deadline:
            names = ", ".join(
                sorted({handed.unit.node.op.name for handed, *_ in self.open.values()})
            )
            waits = f"; it waits for {names}" if names else ""
            raise DeadlineError(f"the step is not done after {self.timeout:g} s{waits}")

    def next(self, block: bool) -> tuple[Handed, int, int, Sequence[Any]] | None:
        """Return something that is over; if nothing is, wait for it or return None."""
        while self.open:
            found = self._take(block and self.poll is None)
            if found is None and not block:
                return None
            if found is None:
                if self.poll is not None:
                    self.poll(len(self.open))
                self.check()
                continue
            number, error, outputs = found
            handed, unit, iteration, _ = self.open.pop(number)
            if error is not None:
                raise with_place(error, handed.unit.node)
            return handed, unit, iteration, outputs
        return None

    def _take(self, block: bool) -> tuple[int, Any, Any] | None:
        try:
            return self.over.get(block, timeout=_WAIT)
        except queue.Empty:
            return None

    def drain(self) -> None:
        """Cancel everything, and wait until it is over."""
        for *_, cancel in list(self.open.values()):
            cancel()
        while self.open:
            number, _, _ = self.over.get()
            self.open.pop(number, None)
