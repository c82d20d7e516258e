"""Where the nodes of a flat graph live: in which frames and branches.

In: a flat graph. Out: for each node the *scope* in which it reads its inputs, for each value the scope it lives in,
and for each frame the nodes that make it a loop. A switch leads from its scope into the two branches of its
predicate, an enter into a frame; a merge leads out of the branches again and an exit out of the frame. A loop's own
switches lead into branches too: what is live on side 1 of the switches on the `loop_cond` is the loop's body, and
the rest of the frame decides whether to go on.

A graph that breaks a rule raises `VerifyError` with the node and the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dsl.errors import VerifyError
from dsl.ir.build import resources_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.printer import node_lines

__all__ = ["Frame", "Scope", "Scopes", "has_effect", "is_rename"]


class Scope:
    """The outermost scope, a frame or a branch. `key` is the frame's name, or a group, which both branches share, and a
    side.

        `path` leads from the outermost scope to this one; `frame` is the innermost frame on it.
    """

    __slots__ = ("children", "frame", "key", "parent", "path")

    def __init__(self, parent: Scope | None, key: Any, frame: Scope | None = None) -> None:
        self.parent, self.key, self.frame = parent, key, frame
        self.path: tuple[Scope, ...] = (self,) if parent is None else (*parent.path, self)
        self.children: dict[Any, Scope] = {}

    @property
    def depth(self) -> int:
        return len(self.path)

    def branch(self, group: Any, side: int) -> Scope:
        return self._child((group, side), self.frame)

    def inner_frame(self, name: str) -> Scope:
        found = self._child(name, None)
        found.frame = found
        return found

    def _child(self, key: Any, frame: Scope | None) -> Scope:
        if key not in self.children:
            self.children[key] = Scope(self, key, frame)
        return self.children[key]

    def sibling(self) -> Scope | None:
        """The other branch, if this is one."""
        if self.parent is None or self.frame is self:
            return None
        group, side = self.key
        return self.parent.branch(group, 1 - side)

    @property
    def predicate(self) -> Value:
        """What decides whether this branch runs."""
        found: Value = self.key[0][0]
        return found

    def is_in(self, other: Scope) -> bool:
        return self.depth >= other.depth and self.path[other.depth - 1] is other

    def below(self, levels: Sequence[Scope]) -> Sequence[Scope]:
        """Return the scopes from below `levels`, of which at least one is on the path, down to this one."""
        last = max(level.depth for level in levels if self.is_in(level))
        return self.path[last:]


@dataclass(eq=False)
class Frame:
    """The nodes that make a loop; `switches` are those on its `loop_cond`, `inmost` the enters that are dead if the loop does not run."""

    scope: Scope
    enters: list[Node]
    inmost: set[Node] = field(default_factory=set)
    merges: list[Node] = field(default_factory=list)
    switches: list[Node] = field(default_factory=list)
    exits: list[Node] = field(default_factory=list)
    predicate: Node | None = None

    @property
    def cond(self) -> Node:
        assert self.predicate is not None
        return self.predicate

    @property
    def body(self) -> Scope:
        """The scope of what runs when the loop goes on."""
        return self.scope.branch((self.cond.output, None), 1)


class Scopes:
    """The scopes of one graph. `home` says where a node reads, `scope` where a value lives.

    `renames` lists the merges of a single input by that input. `arms` gives the inputs of the others, side 0 first;
    merges of more than two inputs are split into new ones of two. `effects` lists what has an effect in a scope or
    below. With `hints`, the attribute `scope` of switches tells apart what shares a predicate.
    """

    def __init__(self, graph: Graph, *, hints: bool = True) -> None:
        self.graph, self.hints = graph, hints
        self.root = Scope(None, None)
        self.home: dict[Node, Scope] = {}
        self.scope: dict[Value, Scope] = dict.fromkeys(graph.params, self.root)
        self.frames: dict[Scope | None, Frame] = {}
        self.arms: dict[Node, tuple[Value, Value]] = {}
        self.renames: dict[Value, list[Node]] = {}
        self.position: dict[Node, int] = {value.node: -1 for value in graph.params}
        self.effects: dict[Scope, list[Node]] = {}
        self._entering: dict[
            str, list[Node]
        ] = {}  # the enters of frames, until all of a frame are there
        self._to_come = Counter(n.attrs.get("frame") for n in graph.nodes if n.op.name == "enter")
        self.position.update((node, position) for position, node in enumerate(graph.nodes))
        self._place_all()
        for node in filter(has_effect, graph.nodes):
            for scope in (self.root, *self.home[node].below((self.root,))):
                self.effects.setdefault(scope, []).append(node)
        for frame in self.frames.values():
            self._check_loop(frame)

    def fail(self, node: Node, rule: str) -> NoReturn:
        """Say which rule a node breaks."""
        line = node_lines(self.graph).get(node, node.op.name)
        raise VerifyError(f"{rule}\n  {line}\nin graph @{self.graph.name}", location=node.loc)

    def through(self, value: Value) -> Value:
        """Follow a value back through nodes that change nothing: those of its own loop's predicate, and renames."""
        while True:
            node = value.node
            passes = is_rename(node) or node.op.name == "loop_cond"
            if not passes and not (node.op.name == "switch" and _on_loop_cond(node)):
                return value
            value = node.inputs[0]

    def _place_all(self) -> None:
        """Place the nodes in order; what reads an enter comes after all enters of its frame, which tell where the frame is."""
        todo = list(self.graph.nodes)
        while todo:
            left = [node for node in todo if not self._is_placed(node)]
            if len(left) == len(todo):
                self.fail(left[0], "a frame is not entered with what has left it")
            todo = left
        lists = list(self.renames.values())
        for frame in self.frames.values():
            lists += [frame.enters, frame.merges, frame.switches, frame.exits]
        for nodes in lists:
            nodes.sort(key=self.position.__getitem__)

    def _is_placed(self, node: Node) -> bool:
        """Place a node if what it reads and waits for is placed."""
        known = self.scope
        if not all(value in known for value in node.inputs):
            return False
        if not all(c in self.home and all(v in known for v in c.outputs) for c in node.controls):
            return False
        _PLACE.get(node.op.name, Scopes._ordinary)(self, node)
        return True

    # -- one rule per op -----------------------------------------------------------------------------------------

    def _place(self, node: Node, home: Scope, *scopes: Scope) -> None:
        self.home[node] = home
        self.scope.update(zip(node.outputs, scopes or [home] * len(node.outputs), strict=True))

    def _reading(self, node: Node) -> Scope:
        """Return the innermost scope of all that a node reads and waits for."""
        scopes = [self.scope[v] for v in node.inputs] + [self._after(c) for c in node.controls]
        found = scopes[0] if scopes else self.root
        for scope in scopes:
            found = self._deeper(node, found, scope)
        if any(value.node.op.name == "next_iteration" for value in node.inputs):
            self.fail(node, "only the back edge of a loop_merge reads a next_iteration")
        return found

    def _after(self, control: Node) -> Scope:
        """Return where a node's completion is felt."""
        moving = control.op.name in ("enter", "exit", "merge")
        return self.scope[control.output] if moving else self.home[control]

    def _deeper(self, node: Node, a: Scope, b: Scope) -> Scope:
        inner, outer = (a, b) if a.depth >= b.depth else (b, a)
        if inner.frame is not outer.frame:
            self.fail(
                node, "a node reads and waits for values of one frame; others come in by enter"
            )
        if not inner.is_in(outer):
            self.fail(node, "a node mixes values of branches neither of which is inside the other")
        return inner

    def _ordinary(self, node: Node) -> None:
        for value in node.inputs:
            if _renames_result(value.node) and node.op.name != "next_iteration":
                rule = "a merge of one input renames sizes only on the way into or out of a region"
                self.fail(value.node, rule)
        self._place(node, self._reading(node))

    def _switch(self, node: Node) -> None:
        home, pred = self._reading(node), node.inputs[1]
        group = (pred, node.attrs.get("scope") if self.hints else None)
        self._place(node, home, home.branch(group, 0), home.branch(group, 1))
        if _on_loop_cond(node):
            self.frames[home.frame].switches.append(node)

    def _merge(self, node: Node) -> None:
        """Pair the inputs, those of the innermost branches first."""
        if is_rename(node):
            self._rename(node)
            return
        live: dict[Scope, Value] = {}
        for value in node.inputs:
            self._add_arm(node, live, self.scope[value], value)
        while node not in self.home:
            inner = max(live, key=lambda scope: scope.depth, default=self.root)
            other = inner.sibling()
            if inner.parent is None or other is None or other not in live:
                self.fail(node, "the inputs of a merge are the two sides of one switch")
            if inner.key[0][0].node.op.name == "loop_cond":
                self.fail(node, "a merge does not join the two sides of a loop_cond")
            self._pair(node, live, *((inner, other) if inner.key[1] == 0 else (other, inner)))

    def _rename(self, node: Node) -> None:
        self._place(node, self._reading(node))
        if not node.attrs.get("leaving"):
            self.renames.setdefault(node.inputs[0], []).append(node)

    def _pair(self, node: Node, live: dict[Scope, Value], no: Scope, yes: Scope) -> None:
        arms, outer = (live.pop(no), live.pop(yes)), no.parent
        assert outer is not None
        last = Node(node.op, arms, {}, node.types, loc=node.loc) if live else node
        self.arms[last] = arms
        self.position[last] = self.position[node]
        self._place(last, outer)
        if last is not node:
            self._add_arm(node, live, outer, last.output)

    def _add_arm(self, node: Node, live: dict[Scope, Value], scope: Scope, value: Value) -> None:
        if scope in live:
            self.fail(node, "a merge has two inputs that are live at once")
        live[scope] = value

    def _enter(self, node: Node) -> None:
        home, name = self._reading(node), node.attrs.get("frame")
        if not isinstance(name, str) or not name:
            self.fail(node, "an enter names its frame")
        self.home[node] = home
        entering = self._entering.setdefault(name, [])
        entering.append(node)
        if len(entering) == self._to_come[name]:
            self._place_frame(name, entering)

    def _place_frame(self, name: str, enters: list[Node]) -> None:
        """Put a loop into the innermost of the scopes that its enters read; the others are around it."""
        deepest = max((self.home[node] for node in enters), key=lambda scope: scope.depth)
        frame = Frame(deepest.inner_frame(name), enters)
        for node in enters:
            home = self.home[node]
            if home.frame is not deepest.frame or not deepest.is_in(home):
                self.fail(
                    node,
                    f"all that enters the frame {name!r} comes from one scope, or from around it",
                )
            if home is deepest:
                frame.inmost.add(node)
            self._place(node, deepest, frame.scope)
        self.frames[frame.scope] = frame

    def _loop_merge(self, node: Node) -> None:
        home, enter, back = self._reading(node), node.inputs[0].node, self.graph.back.get(node)
        if enter.op.name != "enter" or enter.attrs.get("invariant") or home not in self.frames:
            self.fail(node, "a loop_merge reads an enter that is not invariant")
        if back is None or back.node.op.name != "next_iteration":
            self.fail(node, "the back edge of a loop_merge comes from a next_iteration")
        self._place(node, home)
        self.frames[home].merges.append(node)

    def _loop_cond(self, node: Node) -> None:
        home = self._reading(node)
        frame = self.frames.get(home)
        if frame is None:
            self.fail(node, "a loop_cond is in a frame and in no branch of it")
        if frame.predicate is not None:
            self.fail(node, f"the frame {home.key!r} has two loop_conds")
        frame.predicate = node
        self._place(node, home)

    def _exit(self, node: Node) -> None:
        value, frame = node.inputs[0], self.frames.get(self._reading(node).frame)
        on_switch = value.node.op.name == "switch" and _on_loop_cond(value.node)
        if frame is None or not on_switch or value.index != 0:
            self.fail(node, "an exit reads output 0 of a switch on the loop_cond of its frame")
        outer = frame.scope.parent
        assert outer is not None
        self._place(node, outer)
        frame.exits.append(node)

    def _check_loop(self, frame: Frame) -> None:
        if frame.predicate is None:
            self.fail(frame.enters[0], f"the frame {frame.scope.key!r} has no loop_cond")
        for merge in frame.merges:
            again = self.graph.back[merge].node
            if self.home[again] is not frame.body:
                rule = "a next_iteration is live only on side 1 of the switches on the loop_cond"
                self.fail(again, rule)
        if len(frame.inmost) == len(frame.enters):
            return
        for node in (frame.predicate, *self.effects.get(frame.scope, ())):
            if not _depends(node, frame.inmost):
                rule = f"what enters the frame {frame.scope.key!r} from around its branch does not decide alone what runs"
                self.fail(node, rule)


def _depends(node: Node, sources: set[Node]) -> bool:
    """Tell whether a node is surely dead if some others are. A merge may be live though one of its inputs is dead."""
    seen, todo = {node}, [node]
    while todo:
        found = todo.pop()
        if found in sources:
            return True
        before = [value.node for value in found.inputs] + list(found.controls)
        new = [n for n in before if n not in seen and (n.op.name != "merge" or is_rename(n))]
        seen.update(new)
        todo += new
    return False


def has_effect(node: Node) -> bool:
    """Tell whether a node, or a region that it owns, has an effect."""
    return bool(resources_of(node.op, node.regions, node.attrs)) or any(
        r.effects for r in node.regions
    )


def is_rename(node: Node) -> bool:
    """Tell whether a node passes a value on under another type: what changes is the names of sizes."""
    return node.op.name == "merge" and len(node.inputs) == 1


def _renames_result(node: Node) -> bool:
    """Tell whether a node gives a value other names of sizes than those its own region has for it."""
    if not is_rename(node):
        return False
    moves = node.inputs[0].node.op.name in ("switch", "enter", "exit", "loop_merge")
    return not moves and node.inputs[0].type != node.types[0]


def _on_loop_cond(switch: Node) -> bool:
    return switch.inputs[1].node.op.name == "loop_cond"


_PLACE = {
    "switch": Scopes._switch,
    "merge": Scopes._merge,
    "enter": Scopes._enter,
    "loop_merge": Scopes._loop_merge,
    "loop_cond": Scopes._loop_cond,
    "exit": Scopes._exit,
}
