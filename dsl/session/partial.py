"""Partial runs: one step whose feeds and fetches come in several calls, what is computed between them being kept.

The step's graph waits for its feeds and hands out its fetches at a rendezvous; it runs in a thread until all have come.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.errors import CancelledError, FeedError, UnsupportedError
from dsl.ir.environment import wait_for
from dsl.ir.facts import is_flat
from dsl.ir.graph import Graph, Literal, Node, Value
from dsl.ir.registry import get_op
from dsl.ir.token_machine import DEAD
from dsl.runtime.rendezvous import LocalRendezvous
from dsl.session.cut import cut
from dsl.session.graph import Operation
from dsl.session.step import TokenStep

if TYPE_CHECKING:
    from dsl.session.session import Session

__all__ = ["Partial"]

_TOKEN = Literal(np.zeros((), bool))


class Partial:
    """A step under way: the handle that `partial_run_setup` returns."""

    def __init__(self, session: Session, fetches: Sequence[Any], feeds: Sequence[Value]) -> None:
        self.session = session
        self.feeds = {value: f"feed:{k}" for k, value in enumerate(feeds)}
        self.fetches = {item: f"fetch:{k}" for k, item in enumerate(fetches)}
        self.needs = {item: _needed(item, set(feeds)) for item in fetches}
        self.fed: set[Value] = set()
        self.open = set(self.fetches)
        self.rendezvous = LocalRendezvous()
        self.error: BaseException | None = None
        self._takes = {v: session.feed_of(v) for v in feeds}
        step = self._step(list(feeds), list(fetches))
        self.thread = threading.Thread(
            target=self._go, args=(step,), name="dsl partial run", daemon=True
        )
        self.thread.start()

    def _step(self, feeds: list[Value], fetches: list[Any]) -> TokenStep:
        values = [item for item in fetches if isinstance(item, Value)]
        targets = [n for item in fetches if isinstance(item, Operation) for n in item.nodes]
        found = cut(self.session.graph, feeds, values, targets)
        if is_flat(found.graph):
            raise UnsupportedError(
                "a partial run of a graph in the flat form",
                remedy="run it whole, or write branches and loops with `dsl.cond` and `dsl.while_loop`",
            )
        if self.session.spans_ranks(found.graph):
            raise UnsupportedError(
                "a partial run of a step over several ranks",
                remedy="run the step whole, or leave devices of other ranks out of what it needs",
            )
        after = {
            i: tuple(new for node in i.nodes for new in found.nodes[node])
            for i in fetches
            if isinstance(i, Operation)
        }
        graph = _meeting(found.graph, self._keys(feeds, fetches), after)
        return self.session.token_step(graph, found.bound)

    def _keys(self, feeds: list[Value], fetches: list[Any]) -> tuple[list[str], list[Any]]:
        outs = [(self.fetches[i], i) for i in fetches]
        return [self.feeds[v] for v in feeds], outs

    def _go(self, step: TokenStep) -> None:
        session = self.session
        environment = session.environment(None, self.rendezvous)
        environment.cancelled = lambda: session.closed or not self.open
        try:
            step.run([], environment)
        except BaseException as error:
            self.error = error
            self.rendezvous.abort(error)

    # -- one call -----------------------------------------------------------------------------------------------------

    def run(self, fetches: Sequence[Any], given: Mapping[Value, Any]) -> list[Any]:
        """Feed some values and return some results."""
        if self.error is not None:
            raise self.error
        self._check(fetches, given)
        arrays = {value: self._takes[value](x) for value, x in given.items()}
        for value, array in arrays.items():
            self.fed.add(value)
            self.rendezvous.send((self.feeds[value], ()), array)
        found = [self._receive(item) for item in fetches]
        self.open.difference_update(fetches)
        return found

    def _check(self, fetches: Sequence[Any], given: Mapping[Value, Any]) -> None:
        name = self.session.name_of
        for value in given:
            if value not in self.feeds:
                raise FeedError(f"{name(value)!r} is not among the feeds of this partial run")
            if value in self.fed:
                raise FeedError(f"{name(value)!r} has been fed in this partial run")
        for item in fetches:
            if item not in self.fetches:
                raise FeedError(f"{name(item)!r} is not among the fetches of this partial run")
            if item not in self.open:
                raise FeedError(f"{name(item)!r} has been fetched in this partial run")
            missing = [v for v in self.needs[item] if v not in self.fed and v not in given]
            if missing:
                raise FeedError(
                    f"{name(item)!r} depends on {name(missing[0])!r}, which has not been fed yet",
                    remedy="feed it in this call or an earlier one",
                )

    def _receive(self, item: Any) -> Any:
        key = (self.fetches[item], ())
        try:
            outputs = wait_for(
                lambda done: self.rendezvous.receive(key, done), self.session.timeout
            )
        except CancelledError as error:
            raise self.error or error from None
        if outputs[0] is DEAD:
            raise FeedError("a fetch is dead: it lies in a branch that was not taken")
        array = np.asarray(outputs[0])
        if isinstance(item, Operation):
            return None
        return array if array.ndim else array[()]


def _needed(item: Any, feeds: set[Value]) -> set[Value]:
    """Return the feeds that a fetch depends on."""
    found: set[Value] = set()
    seen: set[Node] = set()
    values = [item] if isinstance(item, Value) else []
    stack = list(item.nodes) if isinstance(item, Operation) else []
    for value in values:
        if value in feeds:
            return {value}
        stack.append(value.node)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        found.update(v for v in node.inputs if v in feeds)
        stack.extend(v.node for v in node.inputs if v not in feeds)
        stack.extend(node.controls)
    return found


def _meeting(
    graph: Graph, keys: tuple[list[str], list[Any]], after: Mapping[Operation, tuple[Node, ...]]
) -> Graph:
    """Return a graph that receives its first params and sends its results; operations send a token when they are done."""
    ins, outs = keys
    values: dict[Value, Value] = {}
    for key, param in zip(ins, graph.params):
        node = Node(get_op("recv"), (), {"key": key}, (param.type,), loc=param.node.loc)
        values[param] = node.output
    moved = _Moved(values)
    for node in graph.nodes:
        moved.add(node)
    results = iter(graph.results)
    sends = []
    for key, item in outs:
        if isinstance(item, Operation):
            waits = tuple(moved.after[n] for n in after[item])
            const = Node(get_op("const"), (), {"value": _TOKEN}, (_token_type(),))
            token = Node(get_op("identity"), (const.output,), {}, const.types, (), waits)
            sent = token.output
        else:
            old = next(results)
            sent = moved.values.get(old, old)
        sends.append(Node(get_op("send"), (sent,), {"key": key}, ()))
    effects = (*(moved.after[n] for n in graph.effects), *sends)
    return Graph(graph.name, graph.params[len(ins) :], (), effects)


def _token_type() -> Any:
    from dsl.ir.types import BOOL, scalar

    return scalar(BOOL)


class _Moved:
    """Nodes with what they refer to replaced."""

    def __init__(self, values: dict[Value, Value]) -> None:
        self.values = values
        self.after: dict[Node, Node] = {}

    def add(self, node: Node) -> None:
        inputs = tuple(self.values.get(v, v) for v in node.inputs)
        controls = tuple(self.after[c] for c in node.controls)
        made = node
        if inputs != node.inputs or controls != node.controls:
            made = Node(
                node.op, inputs, node.attrs, node.types, node.regions, controls, node.dims, node.loc
            )
        self.after[node] = made
        self.values.update(zip(node.outputs, made.outputs, strict=True))
