"""Where tokens meet that go from rank to rank.

A token's key is the key of its edge and the iterations that it belongs to. Ranks have cut the same graph in the same way, so
both ends number its edges alike; a record says the graph, the step, the edge and the iterations. What arrives for a step
that has not begun here is kept until it does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsl.errors import CancelledError, DeadlineError, InternalError, PeerError
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Cancel, Done
from dsl.ir.shared_memory import DEAD as DEAD_RECORD
from dsl.ir.token_machine import DEAD
from dsl.mpi import pulse
from dsl.mpi.messages import Record
from dsl.mpi.shared import waits
from dsl.mpi.transport import Transport
from dsl.mpi.waiting import Call, Watch

__all__ = ["TOKEN", "Edges", "Exchange", "RankRendezvous"]

TOKEN, ENDED = 1, 19  # kinds of records: a token; a step that has failed
_TOKENS = "tokens of other ranks"


class Exchange:
    """The tokens of one transport: those that came early, and the steps that are under way."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.steps: dict[tuple[int, ...], RankRendezvous] = {}  # by graph and step
        self.early: dict[tuple[int, ...], list[tuple[Any, Any]]] = {}
        self.failed: dict[tuple[int, ...], PeerError] = {}  # steps that have not begun here
        self.lock = threading.Lock()
        transport.handle(TOKEN, self._arrived)
        transport.handle(ENDED, self._ended)

    def begin(self, step: RankRendezvous) -> None:
        """Let a step have its tokens."""
        with self.lock:
            self.steps[step.number] = step
            early = self.early.pop(step.number, [])
            failure = self.failed.pop(step.number, None)
        for key, token in early:
            step.arrived(key, token)
        if failure is not None:
            step.abort(failure)

    def end(self, step: RankRendezvous) -> None:
        """Forget a step."""
        with self.lock:
            self.steps.pop(step.number, None)

    def tell(self, step: RankRendezvous, error: BaseException) -> None:
        """Tell all other ranks that a step has failed here."""
        text = np.frombuffer(f"{type(error).__name__}: {error}".encode(), np.uint8)
        for rank in range(self.transport.size):
            if rank != self.transport.rank:
                self.transport.send(rank, ENDED, step.number, text)
        self.transport.flush()

    def _ended(self, source: int, record: Record) -> None:
        text = bytes(np.asarray(record.array)).decode(errors="replace")
        error = PeerError(f"rank {source}: {text}")
        number = record.numbers[:2]
        with self.lock:
            step = self.steps.get(number)
            if step is None:
                self.failed[number] = error
        if step is not None:
            step.abort(error)

    def _arrived(self, source: int, record: Record) -> None:
        number, place = record.numbers[:2], record.numbers[2:]
        token = DEAD if record.flags & DEAD_RECORD else record.array
        with self.lock:
            step = self.steps.get(number)
            if step is None:
                self.early.setdefault(number, []).append((place, token))
                return
        step.arrived(place, token)


class Edges:
    """The edges of one graph: their numbers, which are the same on all ranks, and the ranks that they lead to, by key."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.numbers = {key: k for k, key in enumerate(sorted(keys))}
        self.targets = {key: _rank(key.split(";")[1]) for key in self.numbers}
        self.sources = [_rank(key.split(";")[0]) for key in self.numbers]  # by number


def _rank(device: str) -> int:
    return DeviceName.parse(device).rank or 0


class RankRendezvous:
    """The rendezvous of one step of a graph."""

    def __init__(
        self, exchange: Exchange, graph: int, step: int, edges: Edges, *, what: str = "a graph",
        parts: int = 1,
    ) -> None:  # fmt: skip
        self.exchange, self.number = exchange, (graph, step)
        self.call, self.parts = Call(f"a step of {what}", None, step), parts
        self._watch: Watch | None = None
        self.transport, self.edges = exchange.transport, edges
        self._tokens: dict[Any, Any] = {}
        self._waiting: dict[Any, Done] = {}
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        exchange.begin(self)

    # -- for executors --------------------------------------------------------------------------------------------------

    def send(self, key: Any, token: Any) -> None:
        """Leave a token for a device, of this rank or another."""
        edge, tag = key
        rank = self.edges.targets[edge]
        place = (self.edges.numbers[edge], *[iteration for _, iteration in tag])
        if rank == self.transport.rank:
            self.arrived(place, token)
        elif token is DEAD:
            self.transport.send(rank, TOKEN, (*self.number, *place), dead=True)
        else:
            self.transport.send(rank, TOKEN, (*self.number, *place), np.asarray(token))

    def receive(self, key: Any, done: Done) -> Cancel:
        """Have `done` called with a token."""
        edge, tag = key
        place = (self.edges.numbers[edge], *[iteration for _, iteration in tag])
        with self._lock:
            error = self._error
            there = place in self._tokens
            token = self._tokens.pop(place, None)
            if error is None and not there:
                if place in self._waiting:
                    raise InternalError(f"two nodes wait for {key}")
                self._waiting[place] = done
        if error is not None:
            done(_reason(error), ())
        elif there:
            done(None, [token])
        return lambda: self._cancel(place)

    def poll(self, begun: int = 0) -> None:
        """Move messages; rest for a moment if there are none. Who waits says for how many things."""
        pulse.waits(_TOKENS)
        if not self.transport.poll():
            self._look(begun)

    def _look(self, begun: int) -> None:
        """Raise if the ranks that tokens must come from have ended, or wait for something else.

        What else this rank does, on other devices, with queues or in other steps, may still bring tokens; then nobody is told
        that it waits.
        """
        with self._lock:
            if not self._waiting:
                return
            edges, surely = {place[0] for place in self._waiting}, begun <= len(self._waiting)
            self._watch = self._watch or waits().watch(self.call)
            watch = self._watch
        ranks = {self.edges.sources[edge] for edge in edges}
        surely = surely and self.parts == 1 and self.is_alone()
        watch.look(ranks - {self.transport.rank}, surely=surely)

    def is_alone(self) -> bool:
        """Tell whether this is the only step under way in this process."""
        return len(self.exchange.steps) == 1

    def explain(self, error: BaseException) -> None:
        """Have an error say what each rank does, if it is that tokens did not come in time."""
        if isinstance(error, DeadlineError) and self._watch is not None:
            error.message += f"\n{waits().describe(self.call)}"

    def flush(self) -> None:
        """Let what was sent go."""
        self.transport.flush()

    # -- the other side -------------------------------------------------------------------------------------------------

    def arrived(self, place: Any, token: Any) -> None:
        """Take a token in."""
        with self._lock:
            self._watch = None
            done = self._waiting.pop(place, None)
            if done is None:
                self._tokens[place] = token
        if done is not None:
            done(None, [token])

    def abort(self, error: BaseException) -> None:
        """Fail what waits and what comes later."""
        with self._lock:
            self._error = self._error or error
            waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(_reason(error), ())

    def close(self) -> None:
        """Forget the step; what was sent goes out."""
        self.transport.flush()
        self.exchange.end(self)

    def _cancel(self, place: Any) -> None:
        with self._lock:
            done = self._waiting.pop(place, None)
        if done is not None:
            done(CancelledError("the wait for a token was cancelled"), ())


def _reason(error: BaseException) -> BaseException:
    return error if isinstance(error, PeerError) else CancelledError(f"the step ended: {error}")
