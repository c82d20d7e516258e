"""The token machine: says what a flat graph means, one token at a time.

In: a graph and its arguments. Out: its results. Ordinary nodes, structured ones included, run as in the
interpreter; the order in which ready nodes run does not matter. The rules:

- A token is a value or DEAD. It lives in one iteration of one frame; the outermost frame has one iteration. A node
  runs at most once in an iteration.
- An ordinary node runs when all its inputs and controls are there. One dead among them makes all it sends dead.
- `switch` sends its data to one output and DEAD to the other. `merge` waits for its controls, dead or not, and for
  a live input, or for all inputs when all are dead. `loop_merge` reads its first input in iteration 0 and the back
  edge later.
- `enter` delivers to iteration 0 of a frame, which belongs to the iteration that enters it; an invariant one, to
  every iteration, to those that have already begun when it comes late too. `next_iteration` delivers to the next
  iteration; a dead one delivers nothing, which is how loops end. `exit` delivers to the iteration that the frame
  belongs to; dead exits wait until the frame is done and count only if its last iteration sent them.
- At most `parallel_iterations` iterations of a frame are alive; a token for one more is parked. An iteration is
  done when it has nothing to run, its inner frames are done and the iteration before it is done, for iteration 0:
  when every `enter` of the frame has come. A frame is done when its iterations are.

Ops that may wait are begun and go on by themselves; the machine runs what else is ready, and waits when nothing is.
`send` leaves its token at the rendezvous of the step, a dead one too; `recv` waits for it there and passes it on, dead or
alive; the key names the edge and the iteration. One machine runs one device's part of a graph.

The first error ends the run: nothing else starts, what waits is cancelled, and the run ends when that is over.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dsl.errors import CancelledError, DeadlineError, DslError, InternalError
from dsl.ir.checks.frames import most_iterations
from dsl.ir.environment import Cancel, Environment
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import apply_node
from dsl.ir.types import BOOL

__all__ = ["DEAD", "Tag", "Trace", "run_tokens", "with_place"]


class _Dead:
    def __repr__(self) -> str:
        return "DEAD"


DEAD = _Dead()
Tag = tuple[
    tuple[str, int], ...
]  # the frames around a token, outermost first, each with its iteration
Trace = Callable[
    [Node, Tag, bool], None
]  # told of each node that runs, where, and whether it is dead


def run_tokens(
    graph: Graph,
    args: Sequence[Any],
    *,
    parallel_iterations: int = 10,
    trace: Trace | None = None,
    order: random.Random | None = None,
    environment: Environment | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> list[Any]:
    """Run a graph and return its results; `order` picks which of the ready nodes runs next.

    `cancelled` is asked now and then whether to give up.
    """
    if len(args) != len(graph.params):
        raise InternalError(f"{graph.name} takes {len(graph.params)} arguments, got {len(args)}")
    if parallel_iterations < 1:
        raise DslError(f"parallel_iterations must be at least 1, got {parallel_iterations}")
    machine = _Machine(_Plan(graph), parallel_iterations, trace, order, environment, cancelled)
    return machine.run([np.asarray(arg) for arg in args])


# -- state ---------------------------------------------------------------------------------------------------------


class _Plan:
    """What does not change during a run: who reads and waits for whom, and which nodes enter each frame."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers: dict[Value, list[tuple[Node, int]]] = {}
        self.waiters: dict[Node, list[Node]] = {}
        self.enters: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for slot, value in enumerate(node.inputs):
                self.readers.setdefault(value, []).append((node, slot))
            for control in node.controls:
                self.waiters.setdefault(control, []).append(node)
            if node.op.name == "enter":
                self.enters.setdefault(node.attrs["frame"], []).append(node)
        for merge, value in graph.back.items():
            self.readers.setdefault(value, []).append((merge, 0))


class _Slots:
    """What has come for one node in one iteration, and how much has not."""

    __slots__ = ("controls", "data", "dead", "fired", "live", "tokens")

    def __init__(self, node: Node) -> None:
        self.tokens: list[Any] = [DEAD] * len(node.inputs)
        self.data, self.controls = len(node.inputs), len(node.controls)
        self.live = 0  # how many live tokens have come on data edges
        self.dead = False  # whether any dead one has come
        self.fired = False


@dataclass(eq=False)
class _Iteration:
    """`running` counts the nodes that are ready."""

    frame: _Frame
    number: int
    slots: dict[Node, _Slots] = field(default_factory=dict)
    running: int = 0
    children: dict[str, _Frame] = field(default_factory=dict)

    def is_busy(self) -> bool:
        waiting = self.number == 0 and self.frame.entering > 0
        return bool(self.running or self.children or waiting)


@dataclass(eq=False)
class _Frame:
    """One run of a loop. `entering` counts the enters still to come; `iterations` are those alive, oldest first."""

    name: str
    parent: _Iteration | None
    entering: int
    most: int
    iterations: dict[int, _Iteration] = field(default_factory=dict)
    newest: int = -1
    invariants: list[tuple[Node, Any]] = field(default_factory=list)
    parked: list[tuple[Node, Any]] = field(default_factory=list)
    dead_exits: list[Node] = field(default_factory=list)


# -- the machine -------------------------------------------------------------------------------------------------------


class _Machine:
    def __init__(
        self, plan: _Plan, parallel: int, trace: Trace | None, order: random.Random | None,
        environment: Environment | None, cancelled: Callable[[], bool] | None,
    ) -> None:  # fmt: skip
        self.plan, self.parallel, self.trace, self.order = plan, parallel, trace, order
        self.environment = environment or Environment()
        self.waiting = _Waiting(self.environment, cancelled or self.environment.cancelled)
        self.ready: list[tuple[Node, _Iteration]] = []
        self.wanted = set(plan.graph.results)
        self.fetched: dict[Value, Any] = {}
        self.root = self._start(_Frame("", None, 0, 1))

    def run(self, args: list[Any]) -> list[Any]:
        for value, array in zip(self.plan.graph.params, args, strict=True):
            self._send(value.node, [array], self.root)
        for node in self.plan.graph.nodes:
            if not node.inputs and not node.controls:
                self._schedule(node, _Slots(node), self.root)
        try:
            self._go_on()
        except BaseException:
            self.waiting.drain()
            raise
        self._check_finished(self.root)
        return [self._fetch(value) for value in self.plan.graph.results]

    def _go_on(self) -> None:
        while self.ready or self.waiting:
            while self.ready:
                self.waiting.check()
                self._step(*self._pick())
            if self.waiting:
                self._arrived(*self.waiting.next())

    def _arrived(self, node: Node, iteration: _Iteration, outputs: Sequence[Any]) -> None:
        """Deliver what came of an op that waited."""
        tokens = [token if token is DEAD else np.asarray(token) for token in outputs]
        self._send(node, tokens, iteration, dead=any(token is DEAD for token in tokens))
        self._finish(iteration)

    def _pick(self) -> tuple[Node, _Iteration]:
        if self.order is not None:
            index = self.order.randrange(len(self.ready))
            self.ready[index], self.ready[-1] = self.ready[-1], self.ready[index]
        return self.ready.pop()

    def _step(self, node: Node, iteration: _Iteration) -> None:
        """Run one node and look whether that was the last thing its iteration waited for."""
        slots = iteration.slots[node]
        is_dead = slots.live == 0 if node.op.name == "merge" else slots.dead
        if self.trace is not None:
            self.trace(node, _tag(iteration), is_dead)
        rule = _RULES.get(node.op.name, _Machine._ordinary)
        goes_on = rule(
            self, node, [DEAD] * len(slots.tokens) if is_dead else slots.tokens, iteration
        )
        slots.tokens = []
        if not goes_on:
            self._finish(iteration)

    def _finish(self, iteration: _Iteration) -> None:
        iteration.running -= 1
        self._settle(iteration)

    # -- tokens ------------------------------------------------------------------------------------------------

    def _send(
        self, node: Node, tokens: list[Any], iteration: _Iteration, dead: bool = False
    ) -> None:
        """Deliver a node's outputs, and word to the nodes that wait for it, in one iteration."""
        for value, token in zip(node.outputs, tokens, strict=True):
            if iteration is self.root and value in self.wanted:
                self.fetched[value] = token
            for reader, slot in self.plan.readers.get(value, ()):
                self._arrive(reader, slot, token, iteration)
        for waiter in self.plan.waiters.get(node, ()):
            slots = self._slots(waiter, iteration)
            slots.controls -= 1
            slots.dead |= dead and waiter.op.name != "merge"
            self._schedule_if_ready(waiter, slots, iteration)

    def _arrive(self, node: Node, slot: int, token: Any, iteration: _Iteration) -> None:
        slots = self._slots(node, iteration)
        slots.data -= 1
        if slots.data < 0:
            self._fail("an input gets two tokens in one iteration", node)
        if token is DEAD:
            slots.dead = True
        elif node.op.name == "merge":
            self._merge_arrival(node, slots, token)
        else:
            slots.tokens[slot] = token
            slots.live += 1
        self._schedule_if_ready(node, slots, iteration)

    def _merge_arrival(self, node: Node, slots: _Slots, token: Any) -> None:
        if slots.live:
            self._fail("a merge got two live inputs", node)
        slots.tokens = [token]
        slots.live = 1

    def _slots(self, node: Node, iteration: _Iteration) -> _Slots:
        found = iteration.slots.get(node)
        if found is None:
            found = iteration.slots[node] = _Slots(node)
        return found

    def _schedule_if_ready(self, node: Node, slots: _Slots, iteration: _Iteration) -> None:
        enough = slots.data == 0 or (node.op.name == "merge" and slots.live)
        if enough and slots.controls == 0 and not slots.fired:
            self._schedule(node, slots, iteration)

    def _schedule(self, node: Node, slots: _Slots, iteration: _Iteration) -> None:
        iteration.slots[node] = slots
        slots.fired = True
        iteration.running += 1
        self.ready.append((node, iteration))

    # -- what each op does ---------------------------------------------------------------------------------------

    def _ordinary(self, node: Node, tokens: list[Any], iteration: _Iteration) -> bool | None:
        if iteration.slots[node].dead:
            self._send(node, [DEAD] * len(node.outputs), iteration, dead=True)
        elif node.op.begin is not None:
            begin, environment = node.op.begin, self.environment
            self.waiting.add(
                node, iteration, lambda done: begin(environment, node.attrs, tokens, done)
            )
            return True
        else:
            self._send(node, apply_node(node, tokens, self.environment), iteration)
        return None

    def _leave(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        key = (node.attrs["key"], _tag(iteration))
        dead = iteration.slots[node].dead
        self._rendezvous(node).send(key, DEAD if dead else tokens[0])
        self._send(node, [], iteration)

    def _receive(self, node: Node, tokens: list[Any], iteration: _Iteration) -> bool:
        key, rendezvous = (node.attrs["key"], _tag(iteration)), self._rendezvous(node)
        self.waiting.add(node, iteration, lambda done: rendezvous.receive(key, done))
        return True

    def _rendezvous(self, node: Node) -> Any:
        if self.environment.rendezvous is None:
            self._fail("there is no rendezvous to other devices", node)
        return self.environment.rendezvous

    def _switch(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        data, pred = tokens
        if pred is DEAD:
            self._send(node, [DEAD, DEAD], iteration, dead=True)
            return
        if np.shape(pred) != () or np.asarray(pred).dtype != BOOL:
            self._fail(f"the predicate of a switch must be bool[], got {np.asarray(pred)!r}", node)
        self._send(node, [DEAD, data] if pred else [data, DEAD], iteration)

    def _pass(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        self._send(node, tokens[:1], iteration, dead=tokens[0] is DEAD)

    def _enter(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        frame = self._frame(node.attrs["frame"], iteration)
        frame.entering -= 1
        reached = [frame.iterations[0]]
        if node.attrs.get("invariant"):
            frame.invariants.append((node, tokens[0]))
            reached = list(frame.iterations.values())
        for inner in reached:
            self._send(node, tokens, inner, dead=tokens[0] is DEAD)
        self._settle(frame.iterations[0])

    def _next_iteration(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        frame, number = iteration.frame, iteration.number + 1
        if tokens[0] is DEAD:
            return
        if number > frame.newest and len(frame.iterations) >= frame.most:
            frame.parked.append((node, tokens[0]))
            return
        target = self._start(frame) if number > frame.newest else frame.iterations[number]
        self._send(node, tokens, target)

    def _exit(self, node: Node, tokens: list[Any], iteration: _Iteration) -> None:
        frame = iteration.frame
        if frame.parent is None:
            self._fail("an exit outside any frame", node)
        elif tokens[0] is not DEAD:
            self._send(node, tokens, frame.parent)
        elif iteration.number == frame.newest:
            frame.dead_exits.append(node)

    # -- frames and iterations -----------------------------------------------------------------------------------

    def _frame(self, name: str, iteration: _Iteration) -> _Frame:
        """Find the frame that `iteration` enters under this name, or begin it."""
        if name not in iteration.children:
            enters = self.plan.enters[name]
            most = most_iterations(enters, self.parallel)
            frame = iteration.children[name] = _Frame(name, iteration, len(enters), most)
            self._start(frame)
        return iteration.children[name]

    def _start(self, frame: _Frame) -> _Iteration:
        """Begin the next iteration of a frame."""
        frame.newest += 1
        frame.dead_exits.clear()
        iteration = frame.iterations[frame.newest] = _Iteration(frame, frame.newest)
        for node, token in frame.invariants:
            self._send(node, [token], iteration, dead=token is DEAD)
        return iteration

    def _settle(self, iteration: _Iteration) -> None:
        """Retire the iterations of a frame that are done, oldest first, and the frame with the last of them."""
        frame = iteration.frame
        if frame.parent is None:
            return
        while frame.iterations:
            oldest = next(iter(frame.iterations.values()))
            if oldest.is_busy():
                return
            self._check_finished(oldest)
            del frame.iterations[oldest.number]
            if frame.parked:
                self._unpark(frame)
        for node in frame.dead_exits:
            self._send(node, [DEAD], frame.parent, dead=True)
        frame.dead_exits.clear()
        if frame.parent.children.pop(frame.name, None) is not None:
            self._settle(frame.parent)

    def _unpark(self, frame: _Frame) -> None:
        parked, frame.parked = frame.parked, []
        iteration = self._start(frame)
        for node, token in parked:
            self._send(node, [token], iteration)

    # -- the end -----------------------------------------------------------------------------------------------

    def _check_finished(self, iteration: _Iteration) -> None:
        for node, slots in iteration.slots.items():
            if not slots.fired:
                self._fail("waits for a token that never comes", node)
        for name in iteration.children:
            raise DslError(f"frame {name!r} waits for an enter that never comes")

    def _fetch(self, value: Value) -> Any:
        if value not in self.fetched:
            self._fail(
                "a result is never produced: it, or what it reads, is inside a loop", value.node
            )
        if self.fetched[value] is DEAD:
            self._fail("a result is dead: it lies in a branch that was not taken", value.node)
        return self.fetched[value]

    def _fail(self, message: str, node: Node) -> NoReturn:
        from dsl.ir.printer import node_lines

        line = node_lines(self.plan.graph).get(node, node.op.name)
        raise DslError(f"{message}\n  {line}", location=node.loc)


class _Waiting:
    """What has begun and is not over. Falsy when there is nothing."""

    def __init__(self, environment: Environment, cancelled: Callable[[], bool] | None) -> None:
        timeout = environment.timeout
        self.poll = getattr(environment.rendezvous, "poll", None)
        self.over: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self.open: dict[int, tuple[Node, _Iteration, Cancel]] = {}
        self.begun = 0
        self.timeout, self.cancelled = timeout, cancelled
        self.deadline = None if timeout is None else time.monotonic() + timeout

    def __bool__(self) -> bool:
        return bool(self.open)

    def add(self, node: Node, iteration: _Iteration, begin: Callable[..., Cancel]) -> None:
        self.begun += 1
        number = self.begun
        self.open[number] = (node, iteration, lambda: None)
        cancel = begin(lambda error, outputs: self.over.put((number, error, outputs)))
        self.open[number] = (node, iteration, cancel)

    def check(self) -> None:
        """Raise if the step must not go on."""
        if self.cancelled is not None and self.cancelled():
            raise CancelledError("the step was cancelled")
        if self.deadline is not None and time.monotonic() > self.deadline:
            names = ", ".join(sorted({node.op.name for node, _, _ in self.open.values()}))
            waits = f"; it waits for {names}" if names else ""
            raise DeadlineError(f"the step is not done after {self.timeout:g} s{waits}")

    def next(self) -> tuple[Node, _Iteration, Sequence[Any]]:
        """Wait for something to be over, and return it."""
        while True:
            found = self._take()
            if found is None:
                if self.poll is not None:
                    self.poll(len(self.open))
                self.check()
                continue
            number, error, outputs = found
            node, iteration, _ = self.open.pop(number)
            if error is not None:
                raise with_place(error, node)
            return node, iteration, outputs

    def _take(self) -> tuple[int, Any, Any] | None:
        try:
            return self.over.get(self.poll is None, timeout=0.02)
        except queue.Empty:
            return None

    def drain(self) -> None:
        """Cancel everything, and wait until it is over."""
        for _, _, cancel in list(self.open.values()):
            cancel()
        while self.open:
            number, _, _ = self.over.get()
            self.open.pop(number)


def with_place(error: BaseException, node: Node) -> BaseException:
    """Return an error that says at which line of the user's it happened."""
    if isinstance(error, DslError):
        error.location = error.location or node.loc
    elif node.loc is not None:
        error.add_note(node.loc.excerpt())
    return error


def _tag(iteration: _Iteration | None) -> Tag:
    if iteration is None or iteration.frame.parent is None:
        return ()
    return (*_tag(iteration.frame.parent), (iteration.frame.name, iteration.number))


# A rule returns true if the node goes on by itself and is over later.
_RULES: dict[str, Callable[[_Machine, Node, list[Any], _Iteration], bool | None]] = {
    "send": _Machine._leave,
    "recv": _Machine._receive,
    "switch": _Machine._switch,
    "merge": _Machine._pass,
    "loop_merge": _Machine._pass,
    "loop_cond": _Machine._pass,
    "enter": _Machine._enter,
    "next_iteration": _Machine._next_iteration,
    "exit": _Machine._exit,
}
