"""Frames of the flat form: which frame each node runs in, and the checks of loops that follow from it.

A frame is known by its name; the root frame is "". Params and nodes without inputs run in the root frame, `enter` in
the frame it names, `exit` in the parent of its input's frame, every other node in the frame of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dsl.ir.checks.matching import bind, symbols_in
from dsl.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    from dsl.ir.checks.facts import Facts, Finding

ROOT = ""


class Frames:
    """The frame of every node's outputs, and the parent of every frame; a conflict keeps what was found first."""

    def __init__(self, graph: Graph) -> None:
        self.parents: dict[str, str] = {}
        self._after: dict[Node, str] = {}
        for node in graph.nodes:
            self._after[node] = self._of(node)

    def _of(self, node: Node) -> str:
        inside = self.inside(node)
        if node.op.name == "enter":
            frame = str(node.attrs.get("frame", ROOT))
            self.parents.setdefault(frame, inside)
            return frame
        return self.parents.get(inside, ROOT) if node.op.name == "exit" else inside

    def sources(self, node: Node) -> list[str]:
        """The frames of a node's inputs and of the nodes it runs after."""
        data = [self.of(value) for value in node.inputs]
        return data + [self._after.get(before, ROOT) for before in node.controls]

    def inside(self, node: Node) -> str:
        """The frame that a node runs in: for an `enter` the parent, for an `exit` the loop."""
        return next(iter(self.sources(node)), ROOT)

    def after(self, node: Node) -> str:
        """The frame of a node's outputs, where others wait for it: for an `enter` the loop, for an `exit` the parent."""
        return self._after.get(node, ROOT)

    def of(self, value: Value) -> str:
        """The frame of a value."""
        return self._after.get(value.node, ROOT)


def most_iterations(enters: Iterable[Node], otherwise: int) -> int:
    """Return how many iterations of a frame may be alive: what its enters say or, where they do not, another bound."""
    name = "parallel_iterations"
    return min((node.attrs[name] for node in enters if name in node.attrs), default=otherwise)


def _text(frame: str) -> str:
    return repr(frame) if frame else "the root frame"


def named(facts: Facts) -> Iterator[Finding]:
    for node in facts.of("enter"):
        if not node.attrs["frame"]:
            yield node, "the frame has no name"


def one_parent(facts: Facts) -> Iterator[Finding]:
    for node in facts.of("enter"):
        frame, inside = node.attrs["frame"], facts.frames.inside(node)
        if facts.frames.parents[frame] != inside:
            first = _text(facts.frames.parents[frame])
            yield node, f"frame {frame!r} is in {first} and in {_text(inside)}"


def one_frame(facts: Facts) -> Iterator[Finding]:
    if not facts.is_flat:
        return
    for node in facts.sound():
        found = list(dict.fromkeys(facts.frames.sources(node)))
        if len(found) > 1:
            yield node, f"its inputs are in {' and '.join(map(_text, found))}"


def in_a_loop(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        inner = node.op.name in ("exit", "next_iteration", "loop_merge", "loop_cond")
        if inner and facts.frames.inside(node) == ROOT:
            yield node, "it is in the root frame"


def one_condition(facts: Facts) -> Iterator[Finding]:
    conditions: dict[str, Node] = {}
    for node in facts.of("loop_cond"):
        frame = facts.frames.of(node.output)
        if conditions.setdefault(frame, node) is not node:
            yield node, f"frame {frame!r} has another one"
    for node in facts.of("loop_merge"):
        frame = facts.frames.of(node.output)
        if frame not in conditions:
            yield node, f"frame {frame!r} has none"


def back_edges(facts: Facts) -> Iterator[Finding]:
    for node in facts.graph.back:
        if node.op.name != "loop_merge":
            yield node, f"{node.op.name} has a back edge"
    for node in facts.of("loop_merge"):
        if node not in facts.graph.back:
            yield node, "it has no back edge"


def headers(facts: Facts) -> Iterator[Finding]:
    for node in facts.of("loop_merge"):
        first, back = node.inputs[0], facts.graph.back[node]
        frame = facts.frames.of(node.output)
        if first.node.op.name != "enter" or first.node.attrs.get("invariant"):
            kind = "an invariant enter" if first.node.op.name == "enter" else first.node.op.name
            yield node, f"its first input comes from {kind}"
        if back.node.op.name != "next_iteration":
            yield node, f"its back edge comes from {back.node.op.name}"
        elif facts.frames.of(back) != frame:
            yield node, f"its back edge comes from {_text(facts.frames.of(back))}, not {frame!r}"


def trips(facts: Facts) -> Iterator[Finding]:
    """A token that moved to the next iteration has one reader there, the header."""
    results = set(facts.graph.results)
    for node in facts.of("next_iteration"):
        readers = facts.uses.get(node.output, [])
        if readers or node.output in results:
            name = readers[0].op.name if readers else "the graph's results"
            yield node, f"{name} reads it"


def exits(facts: Facts) -> Iterator[Finding]:
    for node in facts.of("exit"):
        source = node.inputs[0]
        switch = source.node
        if switch.op.name != "switch" or switch.inputs[1].node.op.name != "loop_cond":
            yield node, "its input is no output of a switch on a loop_cond"
        elif source.index != 0:
            yield node, "its input is the output that goes on looping"


def results(facts: Facts) -> Iterator[Finding]:
    """Outside its frame a value has no one iteration."""
    for value in facts.graph.results if facts.is_flat else ():
        if frame := facts.frames.of(value):
            yield value.node, f"it is in frame {frame!r}"


def merged_types(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        if node.op.name not in ("merge", "loop_merge"):
            continue
        back = [facts.graph.back[node]] if node in facts.graph.back else []
        fixed = symbols_in(value.type for value in node.inputs)
        for value in [*node.inputs, *back]:
            if bind(node.types, [value.type], fixed) is None:
                yield node, f"it gets {value.type}"
