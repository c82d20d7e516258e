"""Where the nodes of a flat graph run: the static frame of each, and what has to be alive for it to be.

In: a flat graph. Out: for each node the frame that it runs in, for each value the frame that its tokens are in, and for
each value its *conditions*: a set such that tokens of values with equal sets come, and are dead, together. Graphs that
could never run are refused here, with the words of `dsl.ir.token_machine`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NoReturn

from dsl.errors import DslError
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.printer import node_lines
from dsl.ir.registry import Trait
from dsl.ir.types import BOOL, scalar

__all__ = ["Conditions", "Frames", "StaticFrame", "fail", "in_order", "sources_of", "waits_of"]


def fail(graph: Graph, message: str, node: Node) -> NoReturn:
    """Raise what went wrong with a node, with its line."""
    line = node_lines(graph).get(node, node.op.name)
    raise DslError(f"{message}\n  {line}", location=node.loc)


@dataclass(eq=False)
class StaticFrame:
    """A frame of the graph; the graph itself is the outermost, without a name and parent."""

    name: str
    parent: StaticFrame | None
    enters: list[Node] = field(default_factory=list)


class Frames:
    """The frames of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = StaticFrame("", None)
        self.all: dict[str, StaticFrame] = {"": self.root}
        self.of: dict[Node, StaticFrame] = {}  # where a node runs
        self._after: dict[Node, StaticFrame] = {value.node: self.root for value in graph.params}
        for node in graph.nodes:
            self.of[node] = frame = self._reading(node)
            self._after[node] = self._leading(node, frame)
        for merge, value in graph.back.items():
            if merge in self.of and self.where(value) is not self.of[merge]:
                self._refuse(merge)

    def where(self, value: Value) -> StaticFrame:
        """Return the frame in which a value's tokens are."""
        return self._after[value.node]

    def after(self, node: Node) -> StaticFrame:
        """Return the frame in which others are told that a node is over."""
        return self._after[node]

    def _reading(self, node: Node) -> StaticFrame:
        sources = [value.node for value in node.inputs] + list(node.controls)
        frames = {self._after[source] for source in sources}
        if len(frames) > 1:
            self._refuse(node)
        return frames.pop() if frames else self.root

    def _leading(self, node: Node, frame: StaticFrame) -> StaticFrame:
        name = node.op.name
        if name == "switch" and node.inputs[1].type != scalar(BOOL):
            found = node.inputs[1].type
            fail(self.graph, f"the predicate of a switch must be bool[], got {found}", node)
        if name == "enter":
            return self._entered(node, frame)
        if name == "exit":
            if frame.parent is None:
                fail(self.graph, "an exit outside any frame", node)
            return frame.parent
        return frame

    def _entered(self, node: Node, frame: StaticFrame) -> StaticFrame:
        name = node.attrs["frame"]
        found = self.all.setdefault(name, StaticFrame(name, frame))
        if found.parent is not frame:
            fail(self.graph, f"frame {name!r} waits for an enter that never comes", node)
        found.enters.append(node)
        return found

    def _refuse(self, node: Node) -> NoReturn:
        fail(self.graph, "waits for a token that never comes", node)


Condition = frozenset[Hashable]
NOTHING: Condition = frozenset()


class Conditions:
    """What values depend on: `running` and `of` are the conditions of nodes and of values.

    A condition is (predicate, side) of a switch, or a name for something else that decides. A frame is *regular* if it is
    entered under one condition, goes round under one, and is left under the opposite one: then all that goes round
    does so together, and its exits come wherever it was entered. Frames are taken for regular until they prove not to be.
    """

    def __init__(self, graph: Graph, frames: Frames) -> None:
        self.graph, self.frames = graph, frames
        self.regular = {frame for frame in frames.all.values() if frame.parent is not None}
        self.turning: dict[StaticFrame, list[Node]] = {frame: [] for frame in frames.all.values()}
        self.exits: dict[StaticFrame, list[Node]] = {frame: [] for frame in frames.all.values()}
        for merge, value in graph.back.items():
            if merge in frames.of:
                self.turning[frames.of[merge]].append(value.node)
        for node in graph.nodes:
            if node.op.name == "exit":
                self.exits[frames.of[node]].append(node)
        wrong = self._visit()
        while wrong:
            self.regular -= wrong
            wrong = self._visit()

    def _visit(self) -> set[StaticFrame]:
        """Compute everything and return the frames that are not regular after all."""
        self.of: dict[Value, Condition] = dict.fromkeys(self.graph.params, NOTHING)
        self.running: dict[Node, Condition] = {v.node: NOTHING for v in self.graph.params}
        for node in self.graph.nodes:
            self.running[node] = self._union(node)
            for value in node.outputs:
                self.of[value] = self._condition(node, value)
        return {frame for frame in self.regular if not self._is_regular(frame)}

    def _is_regular(self, frame: StaticFrame) -> bool:
        entered = {self.running[node] for node in frame.enters}
        turning = {self.running[node] for node in self.turning[frame]}
        if len(entered) != 1 or len(turning) != 1:
            return False
        (again,) = turning
        return all(_opposite(self.running[node], again) for node in self.exits[frame])

    def _union(self, node: Node) -> Condition:
        """What decides whether a node that needs all its inputs is alive."""
        parts = [self.of[value] for value in node.inputs]
        return NOTHING.union(*parts, *(self._after(control) for control in node.controls))

    def _after(self, node: Node) -> Condition:
        """What decides whether the nodes that wait for this one are alive."""
        if node.op.name == "send":
            return frozenset([node])
        is_ordinary = node.op.name not in _MOVING
        return self.running[node] if is_ordinary else self.of[node.outputs[0]]

    def _condition(self, node: Node, value: Value) -> Condition:
        name, decided = node.op.name, self.running[node]
        if name == "switch":
            return decided | {(node.inputs[1], value.index)}
        if name == "merge":
            return self._merged(node)
        if name == "enter" and node.attrs.get("invariant"):
            return frozenset([("entered", decided)]) if decided else NOTHING
        if name in ("loop_merge", "exit"):
            return self._looping(node)
        if name in ("enter", "next_iteration"):
            return frozenset([(name, decided)])
        return frozenset([node]) if name == "recv" else decided

    def _looping(self, node: Node) -> Condition:
        frame = self.frames.of[node]
        if frame not in self.regular:
            return frozenset([node])
        if node.op.name == "exit":
            return self.running[frame.enters[0]]
        return frozenset([("round", self.running[node])])

    def _merged(self, node: Node) -> Condition:
        """Both sides of one switch make a value that is alive wherever the switch is."""
        if len(node.inputs) == 1:
            return self.of[node.inputs[0]]
        if len(node.inputs) == 2:
            a, b = (self.of[value] for value in node.inputs)
            if _opposite(a, b):
                return a & b
        return frozenset([node])


_MOVING = ("enter", "exit", "merge", "loop_merge", "next_iteration", "recv")


def _opposite(a: Condition, b: Condition) -> bool:
    """Tell whether two sets differ in nothing but the side of one switch."""
    one, other = a - b, b - a
    if len(one) != 1 or len(other) != 1:
        return False
    (x,), (y,) = one, other
    sides = isinstance(x, tuple) and isinstance(y, tuple) and isinstance(x[0], Value)
    return sides and x[0] is y[0] and x[1] != y[1]  # type: ignore[index]


def sources_of(node: Node, frames: Frames) -> list[Node]:
    """Return what must be over before a node runs: whatever goes into a frame may decide about what comes out."""
    found = [*(value.node for value in node.inputs), *node.controls]
    return found + frames.of[node].enters if node.op.name == "exit" else found


def in_order(graph: Graph, frames: Frames) -> list[Node] | None:
    """Return the nodes with the sources of each before it; None if a frame is entered with what has left it."""
    missing = {node: set(sources_of(node, frames)) & frames.of.keys() for node in graph.nodes}
    readers: dict[Node, list[Node]] = {}
    for node, sources in missing.items():
        for source in sources:
            readers.setdefault(source, []).append(node)
    found = [node for node, sources in missing.items() if not sources]
    for node in found:  # grows meanwhile
        for reader in readers.get(node, ()):
            missing[reader].discard(node)
            if not missing[reader]:
                found.append(reader)
    return found if len(found) == len(missing) else None


Waits = tuple[int, int]


def waits_of(order: list[Node], frames: Frames) -> dict[Node, Waits]:
    """Map each node to the nodes that may wait for something outside and that it comes after, as bits of two numbers.

    The first has those of the same iteration. The second has those of earlier iterations, which are all that the frame
    and its inner frames hold: an iteration may have to wait until an earlier one is over. What does not wait for
    the same must not be made one: the other side may be waiting for one of the two before it goes on.
    """
    blocking = {n: 1 << k for k, n in enumerate(order) if n.op.has(Trait.BLOCKING)}
    inside = _inside(blocking, frames)
    found: dict[Node, Waits] = {}
    for node in order:
        now, before = blocking.get(node, 0), 0
        for source in sources_of(node, frames):
            waits = found.get(source, (0, 0))  # params wait for nothing
            now, before = now | waits[0], before | waits[1]
        if node.op.name == "loop_merge":
            before |= inside[frames.of[node]]
        found[node] = (now | before, before) if node.op.name == "exit" else (now, before)
    return found


def _inside(blocking: dict[Node, int], frames: Frames) -> dict[StaticFrame, int]:
    """Map each frame to the bits of the nodes in it and in its inner frames."""
    found = dict.fromkeys(frames.all.values(), 0)
    for node, bit in blocking.items():
        frame: StaticFrame | None = frames.of[node]
        while frame is not None:
            found[frame] |= bit
            frame = frame.parent
    return found
