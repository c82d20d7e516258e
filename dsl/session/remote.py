"""Sessions over ranks: one rank asks for steps, the others serve.

The client cuts a step's graph into parts, sends each rank its parts once, as text, and then one small message for each
step, with the feeds that the rank needs. Tokens between parts go straight from rank to rank. Results come to the client; a step is
over when every rank has said that its parts are. A rank serves with `dsl.parallel.serve(graph)`: the variables and queues
of that graph are what the parts refer to by name. Any number of ranks may be clients of the same servers.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import CancelledError, DeadlineError, MismatchError, PeerError
from dsl.executor.placed import runner_of
from dsl.executor.ranks import asked_by, devices_of, exchange, names_over, refuse_collectives
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph, Node
from dsl.ir.parts import Part, Partition
from dsl.ir.registry import Trait, get_op
from dsl.ir.text import parse
from dsl.mpi import pulse
from dsl.mpi.messages import Record
from dsl.mpi.once import once
from dsl.mpi.rendezvous import Edges, RankRendezvous
from dsl.mpi.shared import transport, waits
from dsl.mpi.waiting import Call, Watch
from dsl.mpi.world import world
from dsl.passes.lower_spanning import lower_spanning
from dsl.passes.partition import partition
from dsl.passes.place import place
from dsl.runtime.devices import Cpu, cpus
from dsl.runtime.parts import run_parts

__all__ = ["RankStep", "say_bye", "serve"]

REGISTER, BOUND, FEED, STEP, DONE, FAILED_STEP, ABORT, BYE = range(2, 10)  # kinds of records
_REMEDY = "where one rank has a session, the others call `dsl.parallel.serve(graph)` meanwhile"
_serial = itertools.count(1)


def _rank(device: str) -> int:
    return DeviceName.parse(device).rank or 0


def _edges(whole: Partition) -> list[str]:
    nodes = (node for part in whole.parts.values() for node in part.graph.nodes)
    return [node.attrs["key"] for node in nodes if node.op.name == "send"]


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _text(record: Record) -> str:
    return bytes(np.asarray(record.array)).decode()


# -- the client ------------------------------------------------------------------------------------------------------


class RankStep:
    """A step whose parts are on several ranks, seen from the one that asks for it."""

    stage = "ranks"

    def __init__(
        self, graph: Graph, bound: Sequence[np.ndarray], places: Mapping[str, str],
        devices: Sequence[Cpu], soft: bool, parallel: int,
    ) -> None:  # fmt: skip
        refuse_collectives(graph)
        here = world()
        self.graph, self.bound, self.me = graph, tuple(bound), here.rank
        names = names_over(here.size, devices, asked_by(graph))
        brought = lower_spanning(_brought(graph, here.rank), resources=places)
        placed = place(
            brought, names, soft=soft, default=str(DeviceName(here.rank)), resources=places
        )
        self.whole = partition(placed)
        self.whole.check_complete()
        self.edges = Edges(_edges(self.whole))
        self.number = here.rank << 32 | next(_serial)
        self.parallel = parallel
        own = {d: p for d, p in self.whole.parts.items() if _rank(d) == here.rank}
        self.local = Partition(own, ())
        self.devices = devices_of(here.rank, devices, own)
        self.runners = {p.graph: runner_of(p.graph, parallel, d) for d, p in own.items()}
        self.others = _by_rank(self.whole, here.rank)
        first = len(graph.params) - len(bound)
        self.fed = {
            rank: sorted({k for part in parts for k in part.params if k < first})
            for rank, parts in self.others.items()
        }
        self._steps = itertools.count(1)
        self._lock = threading.Lock()
        self._register()

    def _register(self) -> None:
        first = len(self.graph.params) - len(self.bound)
        for rank, parts in self.others.items():
            what = [
                {"device": p.device, "text": p.graph.text, "params": p.params, "results": p.results}
                for p in parts
            ]
            told = {"parts": what, "edges": list(self.edges.numbers), "parallel": self.parallel}
            transport().send(rank, REGISTER, (self.number,), _bytes(json.dumps(told)))
            for k in sorted({k for p in parts for k in p.params if k >= first}):
                transport().send(rank, BOUND, (self.number, k), self.bound[k - first])
        transport().flush()

    def run(self, feeds: Sequence[np.ndarray], environment: Environment) -> list[Any]:
        """Run one step; many may run at once."""
        with self._lock:
            step = next(self._steps)
        client, args = _client(), [*feeds, *self.bound]
        waiting = client.expect(self.number, step, set(self.others))
        here = copy.copy(environment)
        if here.timeout is None:
            here.timeout = config.mpi_timeout
        asked = here.cancelled
        here.cancelled = lambda: waiting.error is not None or (asked is not None and asked())
        meeting = RankRendezvous(
            exchange(), self.number, step, self.edges, what=_words(self.graph, self.me),
            parts=len(self.local.parts),
        )  # fmt: skip
        try:
            self._ask(step, args)
            found = self._run_here(args, here, meeting, waiting)
            self._wait(waiting, here, meeting)
        except BaseException as error:
            self._abort(step, waiting)
            meeting.explain(error)
            if isinstance(error, MismatchError):
                error.remedy = _REMEDY
            raise
        finally:
            meeting.close()
            client.forget(self.number, step)
        return [
            args[index] if device is None else found[device][index]
            for device, index in self.whole.sources
        ]

    def _ask(self, step: int, args: Sequence[Any]) -> None:
        """Send each rank the feeds that its parts need, and word to start."""
        send = transport().send
        for rank, needed in self.fed.items():
            for k in needed:
                send(rank, FEED, (self.number, step, k), args[k])
            send(rank, STEP, (self.number, step, len(needed)))
        transport().flush()

    def _run_here(
        self, args: Sequence[Any], here: Environment, meeting: RankRendezvous, waiting: _Expected
    ) -> Mapping[str, Sequence[Any]]:
        if not self.local.parts:
            return {}
        try:
            return run_parts(  # type: ignore[no-any-return]
                self.local, args, self.devices, self._run_one, here, rendezvous=meeting
            )
        except CancelledError:
            if waiting.error is not None:
                raise waiting.error from None
            raise

    def _run_one(self, graph: Graph, args: Sequence[Any], environment: Environment) -> Any:
        return self.runners[graph](args, environment)

    def _wait(self, waiting: _Expected, here: Environment, meeting: RankRendezvous) -> None:
        end = time.monotonic() + (here.timeout or config.mpi_timeout)
        pulse.waits("servers to be done with a step")
        watch = waits().watch(meeting.call, math.inf)
        while waiting.ranks and waiting.error is None:
            transport().poll()
            watch.look(list(waiting.ranks), surely=meeting.is_alone())
            if here.cancelled is not None and here.cancelled() and waiting.error is None:
                raise CancelledError("the step was cancelled")
            if time.monotonic() > end:
                ranks = ", ".join(map(str, sorted(waiting.ranks)))
                raise DeadlineError(f"ranks {ranks} are not done after {here.timeout:g} s")
        if waiting.error is not None:
            raise waiting.error
        pulse.beat("a step on several ranks")

    def _abort(self, step: int, waiting: _Expected) -> None:
        try:
            for rank in waiting.ranks:
                transport().send(rank, ABORT, (self.number, step))
            transport().flush()
        except PeerError:
            pass  # nobody is there to be told

    def close(self) -> None:
        """Nothing to give back: servers keep parts until their clients leave."""


def _words(graph: Graph, client: int) -> str:
    return f"`{graph.name}` for rank {client}"


def _brought(graph: Graph, rank: int) -> Graph:
    """Return a graph whose results are on this rank."""
    device = {"device": str(DeviceName(rank, "cpu", 0))}
    results = tuple(
        Node(get_op("identity"), (v,), device, (v.type,), loc=v.node.loc).output
        for v in graph.results
    )
    return Graph(graph.name, graph.params, results, graph.effects, graph.back)


def _by_rank(whole: Partition, me: int) -> dict[int, list[Part]]:
    found: dict[int, list[Part]] = {}
    for device, part in whole.parts.items():
        if _rank(device) != me:
            found.setdefault(_rank(device), []).append(part)
    return found


class _Expected:
    """The ranks that have not said that they are done with a step, and what one of them said instead."""

    def __init__(self, ranks: set[int]) -> None:
        self.ranks = ranks
        self.error: BaseException | None = None


class _Client:
    """What answers of servers belong to."""

    def __init__(self) -> None:
        self.expected: dict[tuple[int, int], _Expected] = {}
        transport().handle(DONE, self._done)
        transport().handle(FAILED_STEP, self._failed)

    def expect(self, number: int, step: int, ranks: set[int]) -> _Expected:
        found = self.expected[number, step] = _Expected(ranks)
        return found

    def forget(self, number: int, step: int) -> None:
        self.expected.pop((number, step), None)

    def _done(self, source: int, record: Record) -> None:
        found = self.expected.get((record.numbers[0], record.numbers[1]))
        if found is not None:
            found.ranks.discard(source)

    def _failed(self, source: int, record: Record) -> None:
        found = self.expected.get((record.numbers[0], record.numbers[1]))
        if found is not None:
            found.ranks.discard(source)
            found.error = found.error or PeerError(f"rank {source}: {_text(record)}")


@once
def _client() -> _Client:
    return _Client()


class _Byes:
    """Which sessions of which graphs have ended: their clients say so to all ranks, and each rank serves each once."""

    def __init__(self) -> None:
        self._ended: dict[tuple[int, str], int] = {}
        self._own: dict[str, int] = {}
        self._served: dict[tuple[int, str], int] = {}
        transport().handle(BYE, self._heard)

    def _heard(self, source: int, record: Record) -> None:
        self._ended[source, _text(record)] = record.numbers[0]

    def last(self, client: int, name: str) -> int:
        """Return how many sessions a client has ended."""
        return self._ended.get((client, name), 0)

    def served(self, client: int, name: str) -> int:
        """Return the number of the session that this rank serves for a client from now on."""
        number = self._served[client, name] = self._served.get((client, name), 0) + 1
        return number

    def say(self, name: str) -> None:
        """Tell all ranks that a session of this one has ended."""
        number = self._own[name] = self._own.get(name, 0) + 1
        for rank in range(world().size):
            if rank != world().rank:
                transport().send(rank, BYE, (number,), _bytes(name))
        transport().drain(1.0)


@once
def _byes() -> _Byes:
    return _Byes()


def say_bye(name: str) -> None:
    """Tell the servers of a graph that a session of it has ended."""
    with contextlib.suppress(PeerError):  # then they have ended too
        _byes().say(name)


# -- the server ------------------------------------------------------------------------------------------------------


class _Registered:
    """The parts of one step's graph that this rank runs."""

    def __init__(self, told: Mapping[str, Any], devices: Mapping[str, Cpu]) -> None:
        self.edges = Edges(told["edges"])
        parts = [
            Part(p["device"], parse(p["text"]), tuple(p["params"]), tuple(p["results"]))
            for p in told["parts"]
        ]
        self.local = Partition({p.device: p for p in parts}, ())
        self.devices = {**devices, **devices_of(world().rank, [], self.local.parts)}
        self.bound: dict[int, Any] = {}
        self.runners = {p.graph: runner_of(p.graph, told["parallel"], p.device) for p in parts}
        self.waits = any(
            node.op.name != "send" and node.op.has(Trait.BLOCKING)
            for p in parts
            for node in p.graph.walk()
        )

    def run_one(self, graph: Graph, args: Sequence[Any], environment: Environment) -> Any:
        return self.runners[graph](args, environment)


class _Server:
    """Runs parts for clients until they have all left."""

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self.resources = resources
        self.devices = {str(DeviceName(world().rank, "cpu", k)): d for k, d in enumerate(cpus())}
        self.known: dict[int, _Registered] = {}
        self.fed: dict[tuple[int, int], dict[int, Any]] = {}
        self.running: dict[tuple[int, int], threading.Event] = {}
        self._watch: Watch | None = None
        for kind, handler in {
            REGISTER: self._register, BOUND: self._bound, FEED: self._feed, STEP: self._step,
            ABORT: self._abort,
        }.items():  # fmt: skip
            transport().handle(kind, handler)

    def run(self, name: str, clients: Sequence[int]) -> None:
        pulse.waits("clients")
        call = Call(f"the clients of `{name}`", None, 1)
        wanted = {client: _byes().served(client, name) for client in clients}
        while self.running or any(_is_there(c, name, n) for c, n in wanted.items()):
            transport().poll()
            if (
                not self.running
            ):  # clients may compute for any time, but not wait for something else
                self._watch = self._watch or waits().watch(call, math.inf)
                self._watch.look(())
        transport().drain(1.0)

    def _register(self, source: int, record: Record) -> None:
        try:
            self.known[record.numbers[0]] = _Registered(json.loads(_text(record)), self.devices)
        except Exception as error:
            self.known[record.numbers[0]] = error  # type: ignore[assignment]

    def _bound(self, source: int, record: Record) -> None:
        self.known[record.numbers[0]].bound[record.numbers[1]] = record.array

    def _feed(self, source: int, record: Record) -> None:
        number, step, k = record.numbers
        self.fed.setdefault((number, step), {})[k] = record.array
        self._start_if_fed(source, number, step)

    def _step(self, source: int, record: Record) -> None:
        number, step, count = record.numbers
        self.fed.setdefault((number, step), {})[-1] = count
        self._start_if_fed(source, number, step)

    def _start_if_fed(self, source: int, number: int, step: int) -> None:
        """A large feed may come after the word to start."""
        fed = self.fed[number, step]
        if fed.get(-1) != len(fed) - 1:
            return
        del self.fed[number, step]
        fed.pop(-1)
        stopped = self.running[number, step] = threading.Event()
        self._watch = None
        known = self.known[number]
        if isinstance(known, Exception):
            self._answer(source, number, step, known)
        elif known.waits:
            device = self.devices[next(iter(known.local.parts))]
            device.start(lambda: self._run(source, number, step, fed, stopped))
        else:
            self._run(source, number, step, fed, stopped)

    def _run(
        self, source: int, number: int, step: int, fed: dict[int, Any], stopped: threading.Event
    ) -> None:
        known = self.known[number]
        held = {**known.bound, **fed}
        args = [held.get(k) for k in range(1 + max(held, default=-1))]
        what = _words(next(iter(known.local.parts.values())).graph, source)
        meeting = RankRendezvous(
            exchange(), number, step, known.edges, what=what, parts=len(known.local.parts)
        )
        environment = Environment(
            self.resources, meeting, self._services(), config.mpi_timeout, stopped.is_set
        )
        problem: BaseException | None = None
        pulse.beat("a part of a client's step")
        try:
            run_parts(
                known.local, args, known.devices, known.run_one, environment, rendezvous=meeting
            )
        except BaseException as error:
            problem = error
        meeting.close()
        pulse.waits("clients")
        self._answer(source, number, step, problem)

    def _services(self) -> dict[str, Any]:
        from dsl.checkpoints.service import Checkpoints

        return {"checkpoints": Checkpoints()}

    def _answer(self, source: int, number: int, step: int, problem: BaseException | None) -> None:
        self.running.pop((number, step), None)
        if problem is None:
            transport().send(source, DONE, (number, step))
        else:
            text = f"{type(problem).__name__}: {problem}"
            transport().send(source, FAILED_STEP, (number, step), _bytes(text))
        transport().flush()

    def _abort(self, source: int, record: Record) -> None:
        stopped = self.running.get((record.numbers[0], record.numbers[1]))
        if stopped is not None:
            stopped.set()


def _is_there(client: int, name: str, number: int) -> bool:
    """Tell whether a client may still ask for steps: its session is not closed, and its script has not ended."""
    return _byes().last(client, name) < number and client not in waits().ended


def serve(graph: Any, *, clients: Sequence[int] | None = None) -> None:
    """Run parts of steps of a graph for the sessions of other ranks, one of each client, until those are closed.

    The variables and queues of `graph` are those that steps refer to by name; sessions are of a graph of the same name. The clients
    are, by default, rank 0, or on rank 0 all others.
    """
    if world().size == 1:
        return
    others = [r for r in range(world().size) if r != world().rank]
    chosen = list(clients) if clients is not None else others if world().rank == 0 else [0]
    _Server(graph.resources).run(graph.name, chosen)
