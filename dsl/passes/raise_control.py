"""Recover structured control flow: the inverse of `lower_control`, for hand-written flat graphs too.

In: a graph with switch, merge, enter and so on. Out: a structured graph of the same meaning, with `cond`, `while` and `scan`;
the same object when there is nothing to raise, and an equal of `g` for `lower_control(g)`. A graph that is not well formed
raises `VerifyError` with the node and the rule it breaks. Before and after: see `lower_control`.

`dsl.passes.scopes` says which frames and branches each node is in. Regions are then built from the outside in. Inside one, nodes
are taken in the order of their edges; a frame is taken whole, as a loop; merges on one predicate are held back until all of
them, or no more, can come, and become one `cond`. What a region reads from outside becomes its operands.

The attributes that `lower_control` leaves tell which merges were one `cond`, and the order and names of operands. They are
optional: without them the order is that of the text. Where they contradict the graph, after a pass has moved things from one
branch into another say, the grouping is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from dsl.errors import VerifyError
from dsl.ir.build import resources_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait, get_op
from dsl.ir.types import ValueType
from dsl.passes.scopes import Frame, Scope, Scopes

__all__ = ["raise_control"]


def raise_control(graph: Graph) -> Graph:
    """Return the structured spelling of a graph."""
    if not any(node.op.has(Trait.FLAT) for node in graph.walk()):
        return graph
    try:
        return _Raising(Scopes(graph)).run()
    except VerifyError:
        return _Raising(Scopes(graph, hints=False)).run()


# -- what only the flat spelling needs -----------------------------------------------------------------------------

_SILENT = ("switch", "enter", "loop_merge", "loop_cond", "next_iteration")


def _waits(node: Node) -> list[Node]:
    """Return the controls of a node without those that only say where it is live."""
    return [c for c in node.controls if c.op.name not in _SILENT and not _is_pivot(c)]


def _is_pivot(node: Node) -> bool:
    if node.op.name != "identity" or node.inputs[0].node.op.name not in ("switch", "loop_merge"):
        return False
    source = node.inputs[0].node
    plain = source.op.name == "switch" and not source.attrs
    return bool(plain or source.attrs.get("pivot") or source.attrs.get("token"))


def _unwrap_token(value: Value) -> tuple[list[Node], Value]:
    """Return the effects that the token at the end of a region waits for, and what it was at the region's start."""
    effects = list(value.node.controls) if value.node.op.name == "identity" else []
    for _ in range(2):
        if value.node.op.name == "identity":
            value = value.node.inputs[0]
    return effects, value


def _skip_identities(value: Value) -> Value:
    while value.node.op.name == "identity":
        value = value.node.inputs[0]
    return value


def _has_effect(node: Node) -> bool:
    return bool(resources_of(node.op, node.regions)) or any(r.effects for r in node.regions)


def _own_attrs(node: Node | None) -> dict[str, Any]:
    """Return the attributes of a structured node that a flat one has recorded."""
    attrs = {} if node is None else node.attrs
    return {name[4:]: attr for name, attr in attrs.items() if name.startswith("own_")}


def _region_names(node: Node | None, *default: str) -> Sequence[str]:
    names = () if node is None else node.attrs.get("regions", ())
    return names if len(names) == len(default) else default


def _predicate(branch: Scope) -> Value:
    found: Value = branch.key[0][0]
    return found


def _new_params(types: Iterable[ValueType], names: Iterable[str]) -> tuple[Value, ...]:
    made = []
    for index, (type, name) in enumerate(zip(types, names, strict=True)):
        attrs = {"index": index, "name": name or f"a{index}"}
        made.append(Node(get_op("param"), (), attrs, (type,)).output)
    return tuple(made)


# -- regions -------------------------------------------------------------------------------------------------------


class _Slice(NamedTuple):
    """The nodes inside a region that some values and effects need, and the values from outside that these read."""

    nodes: list[Node]
    outside: list[Value]


@dataclass(eq=False)
class _Region:
    """A region being built: `scope` bounds it, nodes in `levels` are its own; what flat values and nodes became."""

    scope: Scope
    levels: tuple[Scope, ...]
    values: dict[Value, Value]
    nodes: dict[Node, Node] = field(default_factory=dict)


class _Group(NamedTuple):
    """What may become one `cond`: the branches on a predicate (and hint) in a scope."""

    scope: Scope
    key: Any

    def side(self, side: int) -> Scope:
        return self.scope.branch(self.key, side)


class _Raising:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes, self.graph = scopes, scopes.graph
        self.placed: set[Node] = set()
        self.deep_effects = [n for n in self.graph.effects if scopes.home[n] is not scopes.root]

    def run(self) -> Graph:
        graph, root = self.graph, self.scopes.root
        for value in graph.results:
            if self.scopes.scope[value] is not root:
                self.scopes.fail(value.node, "a result is outside all frames and branches")
        region = _Region(root, (root,), {param: param for param in graph.params})
        found = self.slice(region.scope, region.levels, graph.results, graph.effects)
        return self.build(region, found, graph.name, graph.params, graph.results, graph.effects)

    def build(
        self,
        region: _Region,
        found: _Slice,
        name: str,
        params: tuple[Value, ...],
        results: Iterable[Value],
        effects: Sequence[Node],
    ) -> Graph:
        """Build a region that is to return `results` and have `effects`, of which `found` is the slice."""
        _Order(self, region, found.nodes, effects).run()
        out = tuple(region.values[self.scopes.through(value)] for value in results)
        last = dict.fromkeys(self._unit(region, node) for node in effects)
        return Graph(name, params, out, tuple(last))

    def _unit(self, region: _Region, effect: Node) -> Node:
        """Return the structured node that has an effect."""
        return region.nodes.get(effect) or region.nodes[self.event(effect, region.levels)]

    # -- edges -------------------------------------------------------------------------------------------------

    def event(self, node: Node, levels: tuple[Scope, ...]) -> Node:
        """Return what a node counts as between `levels` and its home: the `loop_cond` of the outermost frame, or itself."""
        for scope in self.scopes.home[node].below(levels):
            if scope.frame is scope:
                return self.scopes.frames[scope].cond
        return node

    def branch(self, levels: tuple[Scope, ...], node: Node) -> Scope | None:
        """Return the branch at `levels` that a node is in, if it is in one."""
        outermost = next(self.scopes.home[node].below(levels), None)
        return None if outermost is None or outermost.frame is outermost else outermost

    def reads(self, node: Node) -> list[Value]:
        """Return the values that a node reads, a loop standing for all that enters it."""
        scopes = self.scopes
        if node.op.name == "exit":
            return []
        values: Iterable[Value] = node.inputs
        if node.op.name == "loop_cond":
            values = [enter.inputs[0] for enter in scopes.frames[scopes.home[node]].enters]
        elif node.op.name == "merge":
            arms = scopes.arms[node]
            values = [_predicate(scopes.scope[arms[0]]), *(arms if self.done(node) is None else ())]
        return [scopes.through(value) for value in values]

    def waits(self, node: Node) -> list[Node]:
        """Return the nodes that a node waits for, beside those that it reads."""
        scopes = self.scopes
        if node.op.name == "exit":
            return [scopes.frames[scopes.scope[node.inputs[0]].frame].cond]
        if node.op.name == "loop_cond":
            frame = scopes.frames[scopes.home[node]]
            return [wait for enter in frame.enters for wait in _waits(enter)]
        kept = [c for c in node.controls if node.op.name == "merge" and c.op.name == "switch"]
        return _waits(node) + kept + self._done_waits(node)

    def _done_waits(self, node: Node) -> list[Node]:
        done = self.done(node)
        return [] if done is None else [done.fork, *done.effects[0], *done.effects[1]]

    def done(self, node: Node) -> _Done | None:
        """Take apart the merge of tokens that says that a `cond` is done."""
        if node.op.name != "merge" or not node.attrs.get("done"):
            return None
        (no, first), (yes, last) = map(_unwrap_token, self.scopes.arms[node])
        fork = first.node
        if fork is not last.node or not fork.attrs.get("pivot"):
            return None
        return _Done(fork, (no, yes))

    def is_inside(self, node: Node, scope: Scope) -> bool:
        if node.op.name in ("param", "enter", "loop_merge"):
            return False
        return self.place(node).is_in(scope)

    def place(self, node: Node) -> Scope:
        """Return the scope that a node is a part of; a `loop_cond` stands for its loop."""
        home = self.scopes.home[node]
        outer = home.parent if node.op.name == "loop_cond" else None
        return outer or home

    def slice(
        self,
        scope: Scope,
        levels: tuple[Scope, ...],
        values: Iterable[Value],
        nodes: Sequence[Node],
    ) -> _Slice:
        """Find what a region has to contain to give `values` and to run `nodes`."""
        outside: dict[Value, None] = {}
        found: dict[Node, None] = {}
        stack = [self.event(node, levels) for node in nodes]
        preds = [_predicate(branch) for branch in map(partial(self.branch, levels), nodes) if branch]
        stack += self._inner(map(self.scopes.through, [*values, *preds]), scope, outside)
        while stack:
            node = stack.pop()
            if node in found or not self.is_inside(node, scope):
                continue
            found[node] = None
            stack += self._inner(self.reads(node), scope, outside)
            stack += self.waits(node)
        return _Slice(list(found), list(outside))

    def _inner(
        self, values: Iterable[Value], scope: Scope, outside: dict[Value, None]
    ) -> list[Node]:
        inner = []
        for value in values:
            if self.is_inside(value.node, scope):
                inner.append(value.node)
            else:
                outside[value] = None
        return inner

    # -- nodes -------------------------------------------------------------------------------------------------

    def make(self, node: Node, region: _Region) -> None:
        """Make what a node of the region's own level becomes."""
        if node.op.name == "loop_cond":
            _Loop(self, region, self.scopes.frames[self.scopes.home[node]]).make()
        elif node.op.name == "exit":
            region.nodes[node] = region.nodes[self.waits(node)[0]]
        elif node.op.name != "switch":
            self._rebuild(node, region)

    def _rebuild(self, node: Node, region: _Region) -> None:
        if _has_effect(node) and node in self.placed:
            self.scopes.fail(node, "an effect is needed in two regions; one of them must not depend on it")
        self.placed.add(node)
        inputs = tuple(region.values[self.scopes.through(value)] for value in node.inputs)
        controls = self.controls(region, _waits(node))
        regions = tuple(map(raise_control, node.regions))
        made = node
        if (inputs, controls, regions) != (node.inputs, node.controls, node.regions):
            parts = (regions, controls, node.dims, node.loc)
            made = Node(node.op, inputs, node.attrs, node.types, *parts)
        region.nodes[node] = made
        region.values.update(zip(node.outputs, made.outputs, strict=True))

    def controls(self, region: _Region, waits: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(self._unit(region, wait) for wait in waits))

    def rank(self, node: Node) -> tuple[int, int, int]:
        """Order flat nodes by their recorded index, then by their place in the text."""
        hint, position = node.attrs.get("index"), self.scopes.position[node]
        return (0, hint, position) if isinstance(hint, int) else (1, position, 0)

    def rank_capture(self, value: Value) -> tuple[int, int, int]:
        """Order values that have no flat node of their own after those that have one with an index."""
        is_param = value.node.op.name == "param"
        index = self.graph.params.index(value) if is_param else value.index
        return (1, self.scopes.position[value.node], index)


class _Done(NamedTuple):
    """The switch that the tokens of a `cond` come from, and the effects that they wait for on sides 0 and 1."""

    fork: Node
    effects: tuple[list[Node], list[Node]]


# -- order ---------------------------------------------------------------------------------------------------------


class _Order:
    """Takes the nodes of a region in the order of their edges and gathers merges into conds."""

    def __init__(
        self, raising: _Raising, region: _Region, nodes: list[Node], effects: Iterable[Node]
    ) -> None:
        self.raising, self.region = raising, region
        self.readers: dict[Node, list[Node]] = {node: [] for node in nodes}
        self.missing = dict.fromkeys(nodes, 0)
        self.coming: dict[_Group, int] = {}
        self.pending: dict[_Group, list[Node]] = {}
        self.group: dict[Node, _Group] = {}
        self.deep: dict[Node, list[Node]] = {}
        for node in filter(self._is_own_merge, nodes):
            self._expect(node, raising.scopes.scope[raising.scopes.arms[node][0]])
        for node in nodes:
            self._note_edges(node)
        for effect in dict.fromkeys(effects):
            self._note_effect(effect)

    def _is_own_merge(self, node: Node) -> bool:
        return node.op.name == "merge" and self.raising.scopes.home[node] in self.region.levels

    def _note_edges(self, node: Node) -> None:
        raising = self.raising
        sources = [value.node for value in raising.reads(node)] + raising.waits(node)
        for source in sources:
            self._note_edge(source, node)

    def _note_edge(self, source: Node, node: Node) -> None:
        """Note that a node comes after another; merges of one group come together."""
        together = source in self.group and self.group[source] == self.group.get(node)
        if source in self.missing and not together:
            self.readers[source].append(node)
            self.missing[node] += 1

    def _note_effect(self, effect: Node) -> None:
        """See to it that an effect inside a branch that nothing waits for is part of a cond."""
        levels = self.region.levels
        branch = self.raising.branch(levels, effect)
        if branch is not None:
            self._expect(effect, branch)
            event = self.raising.event(effect, levels)
            self.deep.setdefault(event, []).append(effect)
            self._note_edge(self.raising.scopes.through(_predicate(branch)).node, event)

    def _expect(self, node: Node, branch: Scope) -> None:
        assert branch.parent is not None
        group = self.group[node] = _Group(branch.parent, branch.key[0])
        self.coming[group] = self.coming.get(group, 0) + 1

    def run(self) -> None:
        ready = deque(node for node, count in self.missing.items() if count == 0)
        left = len(self.missing)
        while ready or self.pending:
            if not ready:
                ready += self._close(next(iter(self.pending)))
                continue
            node = ready.popleft()
            left -= 1
            ready += self._take(node)
        if left:
            self._stuck()

    def _stuck(self) -> None:
        node = next(node for node, count in self.missing.items() if count)
        self.raising.scopes.fail(node, "a frame is not entered with what has left it")

    def _take(self, node: Node) -> list[Node]:
        """Take a node that is ready; return those that now are."""
        if self._is_own_merge(node):
            return self._hold(node)
        if self.raising.place(node) in self.region.levels:
            self.raising.make(node, self.region)
        found = self._release(node)
        for effect in self.deep.get(node, ()):
            found += self._hold(effect)
        return found

    def _hold(self, node: Node) -> list[Node]:
        group = self.group[node]
        self.pending.setdefault(group, []).append(node)
        self.coming[group] -= 1
        return [] if self.coming[group] else self._close(group)

    def _close(self, group: _Group) -> list[Node]:
        """Make a cond of what has come for one."""
        nodes = self.pending.pop(group)
        merges = [node for node in nodes if self._is_own_merge(node)]
        effects = [node for node in nodes if node not in merges]
        _Cond(self.raising, self.region, group, merges, effects).make()
        return [reader for merge in merges for reader in self._release(merge)]

    def _release(self, node: Node) -> list[Node]:
        found = []
        for reader in self.readers[node]:
            self.missing[reader] -= 1
            if self.missing[reader] == 0:
                found.append(reader)
        return found


# -- cond ----------------------------------------------------------------------------------------------------------


class _Cond:
    """Makes a `cond` of merges and of effects that happen in one branch."""

    def __init__(
        self,
        raising: _Raising,
        region: _Region,
        group: _Group,
        merges: list[Node],
        effects: list[Node],
    ) -> None:
        self.raising, self.scopes, self.region, self.group = raising, raising.scopes, region, group
        merges.sort(key=raising.rank)
        self.merges, self.effects = merges, effects
        self.tokens = [done for done in map(raising.done, merges) if done is not None]
        self.plain = [merge for merge in merges if raising.done(merge) is None]

    def make(self) -> None:
        group, raising, region = self.group, self.raising, self.region
        anchor = next((merge for merge in self.merges if "regions" in merge.attrs), None)
        effects = [self._effects(side) for side in (0, 1)]
        slices = [self._slice(side, effects[side]) for side in (0, 1)]
        operands = self._operands(slices)
        names = reversed(_region_names(anchor, "then", "else"))
        otherwise, then = (
            self._branch(side, name, operands, slices[side], effects[side])
            for side, name in enumerate(names)
        )
        inputs = [group.key[0], *(x.inputs[0] if isinstance(x, Node) else x for x in operands)]
        values = tuple(region.values[self.scopes.through(value)] for value in inputs)
        types = tuple(merge.types[0] for merge in self.plain)
        loc = next((node.loc for node in (*self.merges, *self.effects)), None)
        controls = raising.controls(region, self._waits(operands))
        own = _own_attrs(anchor)
        made = Node(get_op("cond"), values, own, types, (then, otherwise), controls, (), loc)
        region.nodes.update(dict.fromkeys((*self.merges, *self.effects), made))
        region.values.update(zip([m.output for m in self.plain], made.outputs, strict=True))

    def _effects(self, side: int) -> list[Node]:
        scope = self.group.side(side)
        found = [node for done in self.tokens for node in done.effects[side]]
        found += [n for n in self._held() + self.effects if self.scopes.home[n].is_in(scope)]
        return list(dict.fromkeys(found))

    def _held(self) -> list[Node]:
        """Return what the merges wait for, themselves excepted."""
        return [wait for merge in self.merges for wait in _waits(merge) if wait not in self.merges]

    def _slice(self, side: int, effects: list[Node]) -> _Slice:
        scope = self.group.side(side)
        results = [self.scopes.arms[merge][side] for merge in self.plain]
        return self.raising.slice(scope, (scope,), results, effects)

    def _operands(self, slices: list[_Slice]) -> list[Node | Value]:
        """Return the operands: switches, and values that the branches read without one."""
        switches: dict[Node, None] = {}
        captured: dict[Value, None] = {}
        for side, found in enumerate(slices):
            for value in found.outside:
                if self.scopes.scope[value] is self.group.side(side):
                    switches[value.node] = None
                else:
                    captured[value] = None
        for merge in self.merges:
            kept = [control for control in merge.controls if control.op.name == "switch"]
            switches.update(dict.fromkeys(kept))
        order: dict[Node | Value, Any] = {node: self.raising.rank(node) for node in switches}
        order |= {value: self.raising.rank_capture(value) for value in captured}
        return sorted(order, key=order.__getitem__)

    def _branch(
        self, side: int, name: str, operands: list[Node | Value], found: _Slice, effects: list[Node]
    ) -> Graph:
        scope = self.group.side(side)
        reads = [x.outputs[side] if isinstance(x, Node) else x for x in operands]
        names = [_param_name(x, side) for x in operands]
        params = _new_params([value.type for value in reads], names)
        region = _Region(scope, (scope,), dict(zip(reads, params, strict=True)))
        results = [self.scopes.arms[merge][side] for merge in self.plain]
        return self.raising.build(region, found, name, params, results, effects)

    def _waits(self, operands: list[Node | Value]) -> list[Node]:
        """Return what the cond has to wait for: all that its switches do, and its merges do outside its branches."""
        switches = [done.fork for done in self.tokens]
        switches += [operand for operand in operands if isinstance(operand, Node)]
        inner = [self.group.side(side) for side in (0, 1)]
        held = [n for n in self._held() if not any(map(self.scopes.home[n].is_in, inner))]
        return [wait for switch in switches for wait in _waits(switch)] + held


def _param_name(operand: Node | Value, place: int) -> str:
    names = operand.attrs.get("names", ()) if isinstance(operand, Node) else ()
    return str(names[place]) if names else ""


# -- loops ---------------------------------------------------------------------------------------------------------


class _Counter(NamedTuple):
    merge: Node
    limit: Node
    step: Node


class _Token(NamedTuple):
    """The variable that orders a loop's effects, and the effects that it waits for in the test and in the body."""

    merge: Node
    switch: Node
    test: list[Node]
    body: list[Node]


class _Loop:
    """Makes a `while` or a `scan` of a frame."""

    def __init__(self, raising: _Raising, region: _Region, frame: Frame) -> None:
        self.raising, self.scopes, self.region, self.frame = raising, raising.scopes, region, frame
        self.switches: dict[Node, Node] = {}
        for switch in frame.switches:
            self.switches.setdefault(self.scopes.through(switch.inputs[0]).node, switch)
        self.token = self._find_token()
        self.counter = self._find_counter()
        hidden = {part.merge for part in (self.token, self.counter) if part is not None}
        merges = [merge for merge in frame.merges if merge not in hidden]
        self.variables = sorted(merges, key=lambda merge: raising.rank(merge.inputs[0].node))
        effects = self._effects()
        self.test = self._part([frame.cond.inputs[0]], effects[0], (frame.scope,))
        self.body = self._part(
            [self._next(merge) for merge in self.variables], effects[1], (frame.scope, frame.body)
        )
        self.invariants = self._invariants()

    # -- recognising -------------------------------------------------------------------------------------------

    def _next(self, merge: Node) -> Value:
        return self.raising.graph.back[merge].node.inputs[0]

    def _find_token(self) -> _Token | None:
        for merge in self.frame.merges:
            switch = self._token_switch(merge)
            if switch is None:
                continue
            test, head = _unwrap_token(switch.inputs[0])
            body, inside = _unwrap_token(self._next(merge))
            if head.node is merge and inside.node is switch:
                return _Token(merge, switch, test, body)
        return None

    def _token_switch(self, merge: Node) -> Node | None:
        marked = [switch for switch in self.frame.switches if switch.attrs.get("token")]
        return marked[0] if marked and merge.attrs.get("token") else None

    def _find_counter(self) -> _Counter | None:
        """Find the trip number, if the loop is a scan that nothing has changed."""
        pred = self.frame.cond.inputs[0].node
        is_test = self.frame.cond.attrs.get("counted") and pred.op.name == "less"
        if not is_test or (self.token is not None and self.token.test):
            return None
        merge, limit = (value.node for value in pred.inputs)
        if merge not in self.frame.merges or not limit.attrs.get("limit"):
            return None
        following = self._next(merge).node
        if following.op.name != "add":
            return None
        trip, step = (self.scopes.through(value).node for value in following.inputs)
        by_one = step.op.name == "enter" and _is_const(step.inputs[0], 1)
        from_zero = _is_const(merge.inputs[0].node.inputs[0], 0)
        leaves = any(e.inputs[0].node.inputs[0].node is merge for e in self.frame.exits)
        ok = trip is merge and by_one and from_zero and not leaves
        return _Counter(merge, limit, step) if ok else None

    def _effects(self) -> tuple[list[Node], list[Node]]:
        """Return the effects of the test and of the body."""
        frame, graph = self.frame, self.raising.graph
        ending = [frame.cond, *frame.switches, *frame.exits]
        for switch in frame.switches:
            node = switch.inputs[0].node
            while node.op.name == "identity":
                ending.append(node)
                node = node.inputs[0].node
        tests = [w for node in ending for w in _waits(node) if _has_effect(w)]
        again = [graph.back[merge].node for merge in frame.merges]
        bodies = [w for node in again for w in _waits(node) if _has_effect(w)]
        for effect in self.raising.deep_effects:
            home = self.scopes.home[effect]
            if home.is_in(frame.scope):
                (bodies if home.is_in(frame.body) else tests).append(effect)
        if self.token is not None:
            tests, bodies = self.token.test + tests, self.token.body + bodies
        return list(dict.fromkeys(tests)), list(dict.fromkeys(bodies))

    def _part(
        self, results: list[Value], effects: list[Node], levels: tuple[Scope, ...]
    ) -> tuple[list[Value], list[Node], tuple[Scope, ...], _Slice]:
        found = self.raising.slice(self.frame.scope, levels, results, effects)
        return results, effects, levels, found

    def _invariants(self) -> list[Node]:
        """Return the invariants: those with a recorded place, and others that are read."""
        read = {value.node for value in self.body[3].outside}
        if self.counter is None:
            read |= {value.node for value in self.test[3].outside}
        twins = set(self._twins().values())
        found = [
            enter
            for enter in self.frame.enters
            if enter.attrs.get("invariant") and (enter in read or "index" in enter.attrs)
        ]
        return sorted((e for e in found if e not in twins), key=self.raising.rank)

    def _twins(self) -> dict[Node, Node]:
        """Map each invariant to the enter that gives it to the body, where its type there differs."""
        marked = {e.attrs.get("index"): e for e in self.frame.enters if e.attrs.get("twin")}
        enters = [e for e in self.frame.enters if e.attrs.get("invariant") and not e.attrs.get("twin")]
        return {e: marked[e.attrs["index"]] for e in enters if e.attrs.get("index") in marked}

    # -- making ------------------------------------------------------------------------------------------------

    def make(self) -> None:
        frame, region = self.frame, self.region
        carried = [merge.inputs[0].node for merge in self.variables]
        operands = carried + self.invariants
        if self.counter is not None:
            kind, regions = "scan", [self._counted_body()]
            operands = [self.counter.limit, *operands]
        else:
            kind, regions = "while", self._test_and_body()
        inputs = tuple(region.values[self.scopes.through(e.inputs[0])] for e in operands)
        attrs = {"carried": len(carried), **_own_attrs(frame.cond)}
        parts = (tuple(regions), self._controls(), (), frame.cond.loc)
        made = Node(get_op(kind), inputs, attrs, self._types(), *parts)
        region.nodes[frame.cond] = made
        self._bind_exits(made)

    def _test_and_body(self) -> list[Graph]:
        names = _region_names(self.frame.cond, "test", "body")
        enters = [merge.inputs[0].node for merge in self.variables] + self.invariants
        types = [merge.types[0] for merge in self.variables] + [e.types[0] for e in self.invariants]
        params = _new_params(types, [_param_name(enter, 0) for enter in enters])
        test = self._region(names[0], self.test, params, params)
        params = self._body_params(enters)
        return [test, self._region(names[1], self.body, params, params)]

    def _counted_body(self) -> Graph:
        assert self.counter is not None
        (name,) = _region_names(self.frame.cond, "body")
        enters = [merge.inputs[0].node for merge in (self.counter.merge, *self.variables)]
        params = self._body_params(enters + self.invariants)
        return self._region(name, self.body, params, params[1:], params[0])

    def _body_params(self, enters: list[Node]) -> tuple[Value, ...]:
        merges = {merge.inputs[0].node: merge for merge in self.frame.merges}
        twins = self._twins()
        types: list[ValueType] = []
        for enter in enters:
            merge = merges.get(enter)
            switch = None if merge is None else self.switches.get(merge)
            known = twins.get(enter, enter).types[0] if merge is None else merge.types[0]
            types.append(known if switch is None else switch.types[1])
        return _new_params(types, [_param_name(enter, -1) for enter in enters])

    def _region(
        self,
        name: str,
        part: tuple[list[Value], list[Node], tuple[Scope, ...], _Slice],
        params: tuple[Value, ...],
        operands: tuple[Value, ...],
        trip: Value | None = None,
    ) -> Graph:
        results, effects, levels, found = part
        twins = self._twins()
        heads = self.variables + self.invariants
        bound = {node.output: value for node, value in zip(heads, operands, strict=True)}
        bound |= {twins[e].output: bound[e.output] for e in self.invariants if e in twins}
        if trip is not None and self.counter is not None:
            bound[self.counter.merge.output] = trip
        region = _Region(self.frame.scope, levels, bound)
        return self.raising.build(region, found, name, params, results, effects)

    def _types(self) -> tuple[ValueType, ...]:
        leaving = {exit.inputs[0].node.inputs[0].node: exit.types[0] for exit in self.frame.exits}
        found = []
        for merge in self.variables:
            switch = self.switches.get(merge)
            inner = merge.types[0] if switch is None else switch.types[0]
            found.append(leaving.get(merge, inner))
        return tuple(found)

    def _controls(self) -> tuple[Node, ...]:
        starts = []
        if self.token is not None:
            start = self.token.merge.inputs[0].node.inputs[0].node
            starts = [start] if start.op.name == "const" else []
        waits = [wait for node in starts + self.frame.enters for wait in _waits(node)]
        return self.raising.controls(self.region, waits)

    def _bind_exits(self, made: Node) -> None:
        places = {merge: index for index, merge in enumerate(self.variables)}
        for exit in self.frame.exits:
            switch = exit.inputs[0].node
            if self.token is not None and switch is self.token.switch:
                continue
            value = _skip_identities(self.scopes.through(switch.inputs[0]))
            if value.node in places:
                self.region.values[exit.output] = made.outputs[places[value.node]]
            else:
                self.region.values[exit.output] = self._recomputed(value, made)

    def _recomputed(self, value: Value, made: Node) -> Value:
        """Compute once more, after the loop, what the test of the last trip has computed."""
        levels = (self.frame.scope,)
        bound = {m.output: out for m, out in zip(self.variables, made.outputs, strict=True)}
        for enter in self.frame.enters:
            if enter.attrs.get("invariant"):
                bound[enter.output] = self.region.values[self.scopes.through(enter.inputs[0])]
        after = _Region(self.frame.scope, levels, bound)
        found = self.raising.slice(self.frame.scope, levels, [value], ())
        _Order(self.raising, after, found.nodes, ()).run()
        return after.values[value]


def _is_const(value: Value, number: int) -> bool:
    return value.node.op.name == "const" and bool(value.node.attrs["value"].array == number)
