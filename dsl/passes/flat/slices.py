"""What a region of a flat graph has to contain.

In: the scopes of a flat graph. Out: for the bounds of a region and what it is to return and to do, the nodes inside
it and the values that these read from outside. A loop counts as one node, its `loop_cond`; its exits come after
that.

Control edges that only say where a node is live, as those from pivots do, and the tokens that order effects are not
part of a structured graph; they are recognised here and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dsl.ir.graph import Node, Value
from dsl.passes.flat.scopes import Scope, Scopes, is_rename

__all__ = [
    "Bounds",
    "Done",
    "Part",
    "Slice",
    "Slices",
    "gates",
    "kept_switches",
    "own_waits",
    "unwrap_token",
]

_SILENT = ("switch", "enter", "loop_merge", "loop_cond", "next_iteration")


def own_waits(node: Node) -> list[Node]:
    """Return the controls of a node without those that only say where it is live."""
    controls = [_unwrap_rename(control) for control in node.controls]
    return [c for c in controls if c.op.name not in _SILENT and not _is_pivot(c)]


def kept_switches(node: Node) -> list[Node]:
    """Return the switches that a control edge from a merge keeps alive."""
    controls = [_unwrap_rename(control) for control in node.controls]
    return [control for control in controls if control.op.name == "switch"]


def _unwrap_rename(node: Node) -> Node:
    return node.inputs[0].node if is_rename(node) else node


def _is_pivot(node: Node) -> bool:
    if node.op.name != "identity":
        return False
    source = node.inputs[0].node
    plain = source.op.name == "switch" and not source.attrs
    return bool(plain or source.attrs.get("pivot") or source.attrs.get("token"))


def gates(node: Node) -> list[Node]:
    """Return the switches of branches that a node is put into by control edges alone."""
    sources = [control.inputs[0].node for control in node.controls if _is_pivot(control)]
    return [s for s in sources if s.op.name == "switch" and s.inputs[1].node.op.name != "loop_cond"]


def unwrap_token(value: Value) -> tuple[list[Node], Value]:
    """Return the effects that the token at the end of a region waits for, and what it was at the region's start."""
    effects = list(value.node.controls) if value.node.op.name == "identity" else []
    for _ in range(2):
        if value.node.op.name == "identity":
            value = value.node.inputs[0]
    return effects, value


class Bounds(NamedTuple):
    """The extent of a region: all inside `scope`, of which the nodes in `levels` are the region's own.

    The body of a loop extends over its whole frame, so that it may compute again what the test has computed. What
    is in the frame but not in the body has then happened already, and so it has after the loop: such bounds are
    `late`.
    """

    scope: Scope
    levels: tuple[Scope, ...]
    late: bool = False

    def is_past(self, place: Scope) -> bool:
        return self.late and not any(place.is_in(level) for level in self.levels[1:])


@dataclass(frozen=True, eq=False)
class Part:
    """What a region returns and does, and its extent."""

    bounds: Bounds
    results: list[Value]
    effects: list[Node]


class Slice(NamedTuple):
    """Nodes inside a region, and the values from outside that these read."""

    nodes: list[Node]
    outside: list[Value]


class Done(NamedTuple):
    """The switch that the tokens of a `cond` come from, and the effects that they wait for on sides 0 and 1."""

    fork: Node
    effects: tuple[list[Node], list[Node]]


class Slices:
    """The edges of a flat graph as a structured one sees them."""

    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self._found: dict[Part, Slice] = {}

    def complete(self, part: Part, effects: Iterable[Node]) -> Part:
        """Add to a part those of its effects that nothing in it needs."""
        reached = set(self.find(part).nodes)
        lost = [e for e in effects if self.event(part.bounds, e) not in reached]
        if not lost:
            return part
        earlier = {wait for effect in lost for wait in own_waits(effect)}
        last = [effect for effect in lost if effect not in earlier]
        return replace(part, effects=list(dict.fromkeys(part.effects + last)))

    def find(self, part: Part) -> Slice:
        """Return what a region has to contain."""
        if part not in self._found:
            self._found[part] = self._find(part)
        return self._found[part]

    def _find(self, part: Part) -> Slice:
        bounds, effects = part.bounds, part.effects
        outside: dict[Value, None] = {}
        found: dict[Node, None] = {}
        preds = [branch.predicate for effect in effects for branch in self.branches(bounds, effect)]
        stack = [self.event(bounds, effect) for effect in effects]
        stack += self._inner(bounds, map(self.scopes.through, part.results + preds), outside)
        while stack:
            node = stack.pop()
            if node not in found and self._is_inside(node, bounds):
                found[node] = None
                stack += self._inner(bounds, self.reads(node), outside)
                stack += self.waits(bounds, node)
        return Slice(list(found), list(outside))

    def _inner(
        self, bounds: Bounds, values: Iterable[Value], outside: dict[Value, None]
    ) -> list[Node]:
        inner = []
        for value in values:
            if self._is_inside(value.node, bounds):
                inner.append(value.node)
            else:
                outside[value] = None
        return inner

    def _is_inside(self, node: Node, bounds: Bounds) -> bool:
        if node.op.name in ("param", "enter", "loop_merge"):
            return False
        return self.place(node).is_in(bounds.scope)

    # -- places ------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> Scope:
        """Return the scope that a node is a part of; a `loop_cond` stands for its loop."""
        home = self.scopes.home[node]
        outer = home.parent if node.op.name == "loop_cond" else None
        return outer or home

    def event(self, bounds: Bounds, node: Node) -> Node:
        """Return what a node counts as in a region: the outermost loop that it is in, or itself."""
        for scope in self.scopes.home[node].below(bounds.levels):
            if scope.frame is scope:
                return self.scopes.frames[scope].cond
        return node

    def branches(self, bounds: Bounds, node: Node) -> Iterator[Scope]:
        """Yield the branch of a region's own level that a node is in, if it is in one."""
        for outermost in self.scopes.home[node].below(bounds.levels)[:1]:
            if outermost.frame is not outermost:
                yield outermost

    # -- edges -------------------------------------------------------------------------------------------------

    def reads(self, node: Node) -> list[Value]:
        """Return the values that a node needs, a loop standing for all that enters it."""
        scopes = self.scopes
        values: Iterable[Value] = node.inputs
        if node.op.name == "exit":
            return []
        if node.op.name == "loop_cond":
            values = [enter.inputs[0] for enter in scopes.frames[scopes.home[node]].enters]
        elif node.op.name == "merge":
            arms = scopes.arms[node]
            values = [scopes.scope[arms[0]].predicate, *(() if self.done(node) else arms)]
        return [scopes.through(value) for value in values]

    def waits(self, bounds: Bounds, node: Node) -> list[Node]:
        """Return the nodes that a node comes after, beside those that it reads."""
        scopes = self.scopes
        if node.op.name == "exit":
            return [self.loop_of(node)]
        if node.op.name == "loop_cond":
            enters = scopes.frames[scopes.home[node]].enters
            return [wait for enter in enters for wait in self._control_waits(bounds, enter)]
        found = self._control_waits(bounds, node)
        if node.op.name == "merge":
            found += kept_switches(node)
            done = self.done(node)
            found += [] if done is None else [done.fork, *done.effects[0], *done.effects[1]]
        return found

    def _control_waits(self, bounds: Bounds, node: Node) -> list[Node]:
        return self.kept(bounds, own_waits(node)) + gates(node)

    def kept(self, bounds: Bounds, waits: Iterable[Node]) -> list[Node]:
        """Leave out what has happened before the region."""
        return [wait for wait in waits if not bounds.is_past(self.place(wait))]

    def loop_of(self, exit: Node) -> Node:
        return self.scopes.frames[self.scopes.scope[exit.inputs[0]].frame].cond

    def done(self, merge: Node) -> Done | None:
        """Take apart the merge of tokens that says that a `cond` is done."""
        if merge.op.name != "merge" or not merge.attrs.get("done"):
            return None
        (no, first), (yes, last) = map(unwrap_token, self.scopes.arms[merge])
        is_token = first.node is last.node and first.node.attrs.get("pivot")
        return Done(first.node, (no, yes)) if is_token else None
