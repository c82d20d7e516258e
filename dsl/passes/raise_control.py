"""Recover structured control flow: the inverse of `lower_control`, for hand-written flat graphs too.

In: a graph with switch, merge, enter and so on. Out: a structured graph of the same meaning, with `cond`, `while`
and `scan`; the same object when there is nothing to raise, and an equal of `g` for `lower_control(g)`. A graph that
is not well formed raises `VerifyError` with the node and the rule it breaks. Before and after: see `lower_control`.

`dsl.passes.flat` says which frames and branches each node is in, and what a region has to contain. Regions are
built from the outside in. Inside one, nodes are taken in the order of their edges; a frame is taken whole, as a
loop; merges on one predicate are held back until all of them, or no more, can come, and become one `cond`. What a
region reads from outside becomes its operands.

The attributes that `lower_control` leaves tell which merges were one `cond`, and the order and names of operands.
They are optional: without them the order is that of the text. Where they contradict the graph, after a pass has
moved things from one branch into another say, the grouping is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from dsl.errors import VerifyError
from dsl.ir.build import attr_key
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait, get_op
from dsl.ir.types import ValueType
from dsl.passes.flat.loops import Loop, rank, renamed_type
from dsl.passes.flat.scopes import Frame, Scope, Scopes, has_effect
from dsl.passes.flat.slices import Bounds, Part, Slices, gates, kept_switches, own_waits

__all__ = ["raise_control"]


def raise_control(graph: Graph) -> Graph:
    """Return the structured spelling of a graph."""
    if not any(node.op.has(Trait.FLAT) for node in graph.walk()):
        return graph
    try:
        return _Raising(Scopes(graph)).run()
    except VerifyError:
        return _Raising(Scopes(graph, hints=False)).run()


# -- what flat nodes record of structured ones -----------------------------------------------------------------------


def _own_attrs(node: Node | None) -> dict[str, Any]:
    attrs = {} if node is None else node.attrs
    return {name[4:]: attr for name, attr in attrs.items() if name.startswith("own_")}


def _region_names(node: Node | None, *default: str) -> Sequence[str]:
    names: Sequence[str] = () if node is None else node.attrs.get("regions", ())
    return names if len(names) == len(default) else default


def _param_name(node: Node, place: int) -> str:
    names = node.attrs.get("names", ())
    return str(names[place]) if names else ""


def _new_params(types: Iterable[ValueType], names: Iterable[str]) -> tuple[Value, ...]:
    made = []
    for index, (type, name) in enumerate(zip(types, names, strict=True)):
        attrs = {"index": index, "name": name or f"a{index}"}
        made.append(Node(get_op("param"), (), attrs, (type,)).output)
    return tuple(made)


# -- regions -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Region:
    """A region being built: what flat values and nodes became in it, and its pure nodes, equal ones being one."""

    bounds: Bounds
    values: dict[Value, Value]
    nodes: dict[Node, Node] = field(default_factory=dict)
    interned: dict[Any, Node] = field(default_factory=dict)

    def intern(self, node: Node) -> Node:
        if node.regions or not node.op.has(Trait.PURE):
            return node
        attrs = tuple((name, attr_key(node.attrs[name])) for name in sorted(node.attrs))
        key = (node.op, node.inputs, attrs, node.types, node.controls, node.dims)
        return self.interned.setdefault(key, node)


class _Raising:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes, self.slices = scopes, Slices(scopes)
        self._placed: set[Node] = set()

    def run(self) -> Graph:
        graph, root = self.scopes.graph, self.scopes.root
        for value in graph.results:
            if self.scopes.scope[value] is not root:
                self.scopes.fail(value.node, "a result is outside all frames and branches")
        region = _Region(Bounds(root, (root,)), {param: param for param in graph.params})
        part = Part(region.bounds, list(graph.results), list(graph.effects))
        part = self.slices.complete(part, self.scopes.effects.get(root, ()))
        return self.build(region, part, graph.name, graph.params)

    def build(self, region: _Region, part: Part, name: str, params: tuple[Value, ...]) -> Graph:
        """Build the region that returns and does what `part` says."""
        self.fill(region, part)
        results = tuple(self.value(region, value) for value in part.results)
        effects = dict.fromkeys(self._unit(region, node) for node in part.effects)
        return Graph(name, params, results, tuple(effects))

    def fill(self, region: _Region, part: Part) -> None:
        """Make the nodes of a region."""
        _Order(self, region, self.slices.find(part).nodes, part.effects).run()

    def value(self, region: _Region, value: Value) -> Value:
        return region.values[self.scopes.through(value)]

    def controls(self, region: _Region, waits: Iterable[Node]) -> tuple[Node, ...]:
        kept = self.slices.kept(region.bounds, waits)
        return tuple(dict.fromkeys(self._unit(region, wait) for wait in kept))

    def _unit(self, region: _Region, node: Node) -> Node:
        """Return what a node, or the loop or cond that it is in, became."""
        return region.nodes.get(node) or region.nodes[self.slices.event(region.bounds, node)]

    def make(self, node: Node, region: _Region) -> None:
        """Make what a node of the region's own becomes."""
        if node.op.name == "loop_cond":
            _make_loop(self, region, self.scopes.frames[self.scopes.home[node]])
        elif node.op.name == "exit":
            region.nodes[node] = region.nodes[self.slices.loop_of(node)]
        elif node.op.name != "switch":
            self._copy(node, region)

    def _copy(self, node: Node, region: _Region) -> None:
        if has_effect(node) and node in self._placed:
            self.scopes.fail(node, "what reads the result of an effect is in one region with it")
        self._placed.add(node)
        inputs = tuple(self.value(region, value) for value in node.inputs)
        controls = self.controls(region, own_waits(node))
        regions = tuple(map(raise_control, node.regions))
        made = node
        if (inputs, controls, regions) != (node.inputs, node.controls, node.regions):
            rest = (regions, controls, node.dims, node.loc)
            made = Node(node.op, inputs, node.attrs, node.types, *rest)
        made = region.intern(made)
        region.nodes[node] = made
        region.values.update(zip(node.outputs, made.outputs, strict=True))


# -- order ---------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """What may become one `cond`: the two branches on a predicate (and hint) in a scope."""

    scope: Scope
    key: Any

    def side(self, side: int) -> Scope:
        return self.scope.branch(self.key, side)


class _Order:
    """Takes the nodes of a region in the order of their edges and gathers merges into conds.

    `deep` holds effects inside branches that no merge waits for; they are gathered too, so that they are part of a
    cond.
    """

    def __init__(
        self, raising: _Raising, region: _Region, nodes: list[Node], effects: Sequence[Node]
    ) -> None:
        self.raising, self.region = raising, region
        self.scopes, self.slices = raising.scopes, raising.slices
        self.following: dict[Node, list[Node]] = {node: [] for node in nodes}
        self.missing = dict.fromkeys(nodes, 0)
        self.groups: dict[Node, _Group] = {}
        self.coming: dict[_Group, int] = {}
        self.pending: dict[_Group, list[Node]] = {}
        self.deep: dict[Node, list[Node]] = {}
        self.together: dict[Node, list[Node]] = {}
        self.closed: set[Node] = set()
        for node in filter(self._is_own_merge, nodes):
            self._expect(node, self.scopes.scope[self.scopes.arms[node][0]])
        for node in nodes:
            self._note_edges(node)
        for effect in dict.fromkeys(effects):
            self._note_effect(effect)

    def _is_own_merge(self, node: Node) -> bool:
        return node.op.name == "merge" and self.scopes.home[node] in self.region.bounds.levels

    def _expect(self, node: Node, branch: Scope) -> None:
        assert branch.parent is not None
        group = self.groups[node] = _Group(branch.parent, branch.key[0])
        self.coming[group] = self.coming.get(group, 0) + 1

    def _note_edges(self, node: Node) -> None:
        for value in self.slices.reads(node):
            self._note_edge(value.node, node)
        for source in self.slices.waits(self.region.bounds, node):
            self._note_edge(source, node)

    def _note_edge(self, source: Node, node: Node) -> None:
        """Note that a node comes after another; for merges of one group it is enough to come together."""
        if source in self.groups and self.groups[source] == self.groups.get(node):
            self.together.setdefault(node, []).append(source)
        elif source in self.missing:
            self.following[source].append(node)
            self.missing[node] += 1

    def _note_effect(self, effect: Node) -> None:
        bounds = self.region.bounds
        for branch in self.slices.branches(bounds, effect):
            event = self.slices.event(bounds, effect)
            self._expect(effect, branch)
            self.deep.setdefault(event, []).append(effect)
            self._note_edge(self.scopes.through(branch.predicate).node, event)

    def run(self) -> None:
        ready = deque(node for node, count in self.missing.items() if count == 0)
        taken = 0
        while ready or self.pending:
            if ready:
                ready += self._take(ready.popleft())
                taken += 1
            else:
                ready += self._close(self._choose())
        if taken < len(self.missing):
            self._fail_stuck()

    def _choose(self) -> _Group:
        """Choose a cond to be made although more of it is to come."""
        for group in self.pending:
            if self._settled(group):
                return group
        self._fail_stuck()

    def _fail_stuck(self) -> NoReturn:
        node = next(node for node, count in self.missing.items() if count)
        self.scopes.fail(node, "a frame is not entered with what has left it")

    def _take(self, node: Node) -> list[Node]:
        """Take a node that is ready; return those that now are."""
        if self._is_own_merge(node):
            return self._hold(node)
        if self.slices.place(node) in self.region.bounds.levels:
            self.raising.make(node, self.region)
        found = self._release(node)
        for effect in self.deep.get(node, ()):
            found += self._hold(effect)
        return found

    def _hold(self, node: Node) -> list[Node]:
        group = self.groups[node]
        self.pending.setdefault(group, []).append(node)
        self.coming[group] -= 1
        return [] if self.coming[group] else self._close(group)

    def _close(self, group: _Group) -> list[Node]:
        """Make a cond of what has come for one."""
        nodes = self._settled(group)
        self.closed.update(nodes)
        left = [node for node in self.pending.pop(group) if node not in self.closed]
        if left:
            self.pending[group] = left
        merges = [node for node in nodes if self._is_own_merge(node)]
        effects = [node for node in nodes if not self._is_own_merge(node)]
        _Cond(self.raising, self.region, group, merges, effects).make()
        return [node for merge in merges for node in self._release(merge)]

    def _settled(self, group: _Group) -> list[Node]:
        """Return what has come for a cond, without what has to come together with something that has not."""
        kept = dict.fromkeys(self.pending[group])
        while early := [node for node in kept if self._is_early(node, kept)]:
            kept = dict.fromkeys(node for node in kept if node not in early)
        return list(kept)

    def _is_early(self, node: Node, come: Container[Node]) -> bool:
        others = self.together.get(node, ())
        return any(other not in come and other not in self.closed for other in others)

    def _release(self, node: Node) -> list[Node]:
        found = []
        for follower in self.following[node]:
            self.missing[follower] -= 1
            if self.missing[follower] == 0:
                found.append(follower)
        return found


# -- cond ----------------------------------------------------------------------------------------------------------


class _Cond:
    """Makes a `cond` of merges and of effects in branches. Its operands are switches, and values read around them."""

    def __init__(
        self,
        raising: _Raising,
        region: _Region,
        group: _Group,
        merges: list[Node],
        effects: list[Node],
    ) -> None:
        self.raising, self.region, self.group, self.effects = raising, region, group, effects
        self.scopes, self.slices = raising.scopes, raising.slices
        self.merges = sorted(merges, key=lambda merge: rank(self.scopes, merge))
        self.plain = [merge for merge in self.merges if self.slices.done(merge) is None]
        self.tokens = [done for done in map(self.slices.done, self.merges) if done is not None]
        self.parts = [self._part(side) for side in (0, 1)]
        self.slice = [self.slices.find(part) for part in self.parts]
        self.operands = self._find_operands()

    def _part(self, side: int) -> Part:
        scope = self.group.side(side)
        results = [self.scopes.arms[merge][side] for merge in self.plain]
        effects = [effect for done in self.tokens for effect in done.effects[side]]
        loose = self._held_back() + self.effects
        effects += [effect for effect in loose if self.scopes.home[effect].is_in(scope)]
        return Part(Bounds(scope, (scope,)), results, list(dict.fromkeys(effects)))

    def _held_back(self) -> list[Node]:
        """Return what the merges wait for, one another excepted."""
        own = set(self.merges)
        return [wait for merge in self.merges for wait in own_waits(merge) if wait not in own]

    def _find_operands(self) -> list[Node | Value]:
        order: dict[Node | Value, tuple[int, int, int]] = {}
        for side, found in enumerate(self.slice):
            for value in found.outside:
                if self.scopes.scope[value] is self.group.side(side):
                    order[value.node] = rank(self.scopes, value.node)
                else:
                    order[value] = (1, self.scopes.position[value.node], self._column(value))
        for merge in self.merges:
            order.update({s: rank(self.scopes, s) for s in kept_switches(merge)})
        return sorted(order, key=order.__getitem__)

    def _column(self, value: Value) -> int:
        is_param = value.node.op.name == "param"
        return self.scopes.graph.params.index(value) if is_param else value.index

    def make(self) -> None:
        anchor = next((merge for merge in self.merges if "regions" in merge.attrs), None)
        then, otherwise = _region_names(anchor, "then", "else")
        regions = self._branch(1, then), self._branch(0, otherwise)
        data = [x.inputs[0] if isinstance(x, Node) else x for x in self.operands]
        pred = self.group.side(0).predicate
        inputs = tuple(self.raising.value(self.region, value) for value in (pred, *data))
        types = tuple(merge.types[0] for merge in self.plain)
        controls = self.raising.controls(self.region, self._waits())
        loc = (self.merges + self.effects)[0].loc
        made = Node(get_op("cond"), inputs, _own_attrs(anchor), types, regions, controls, (), loc)
        self.region.nodes.update(dict.fromkeys(self.merges + self.effects, made))
        results = [merge.output for merge in self.plain]
        self.region.values.update(zip(results, made.outputs, strict=True))

    def _branch(self, side: int, name: str) -> Graph:
        reads = [x.outputs[side] if isinstance(x, Node) else x for x in self.operands]
        names = [_param_name(x, side) if isinstance(x, Node) else "" for x in self.operands]
        params = _new_params([renamed_type(self.scopes, value) for value in reads], names)
        region = _Region(self.parts[side].bounds, dict(zip(reads, params, strict=True)))
        return self.raising.build(region, self.parts[side], name, params)

    def _waits(self) -> list[Node]:
        """Return what the cond comes after: all that its switches do, and what its merges do outside the branches."""
        switches = [done.fork for done in self.tokens]
        switches += [gate for found in self.slice for node in found.nodes for gate in gates(node)]
        switches += [operand for operand in self.operands if isinstance(operand, Node)]
        inner = [self.group.side(side) for side in (0, 1)]
        outer = [n for n in self._held_back() if not any(map(self.scopes.home[n].is_in, inner))]
        own = [s for s in switches if self.scopes.home[s] is self.group.scope]
        return [wait for switch in dict.fromkeys(own) for wait in own_waits(switch)] + outer


# -- loops ---------------------------------------------------------------------------------------------------------


def _make_loop(raising: _Raising, region: _Region, frame: Frame) -> None:
    """Make a `while` or a `scan` of a frame."""
    loop = Loop(raising.slices, frame)
    enters = [merge.inputs[0].node for merge in loop.variables] + loop.invariants
    regions: tuple[Graph, ...]
    if loop.counter is not None:
        kind, regions = "scan", (_counted_body(raising, loop),)
        enters = [loop.counter.limit, *enters]
    else:
        kind, regions = "while", _test_and_body(raising, loop)
    inputs = tuple(raising.value(region, enter.inputs[0]) for enter in enters)
    attrs = {"carried": len(loop.variables), **_own_attrs(frame.cond)}
    controls = raising.controls(region, _before(loop))
    rest = (regions, controls, (), frame.cond.loc)
    made = Node(get_op(kind), inputs, attrs, loop.types_after(), *rest)
    region.nodes[frame.cond] = made
    _bind_exits(raising, region, loop, made)


def _test_and_body(raising: _Raising, loop: Loop) -> tuple[Graph, ...]:
    test, body = _region_names(loop.frame.cond, "test", "body")
    heads = loop.variables + loop.invariants
    names = [_param_name(_enter(head), 0) for head in heads]
    params = _new_params(map(loop.type_in_test, heads), names)
    region = _Region(loop.test.bounds, _bound(heads, params))
    tested = raising.build(region, loop.test, test, params)
    return tested, _body(raising, loop, body, heads)


def _counted_body(raising: _Raising, loop: Loop) -> Graph:
    assert loop.counter is not None
    (name,) = _region_names(loop.frame.cond, "body")
    heads = [loop.counter.merge, *loop.variables, *loop.invariants]
    return _body(raising, loop, name, heads)


def _body(raising: _Raising, loop: Loop, name: str, heads: list[Node]) -> Graph:
    names = [_param_name(_enter(head), -1) for head in heads]
    params = _new_params(map(loop.type_in_body, heads), names)
    region = _Region(loop.body.bounds, _bound(heads, params))
    return raising.build(region, loop.body, name, params)


def _enter(head: Node) -> Node:
    return head.inputs[0].node if head.op.name == "loop_merge" else head


def _bound(heads: list[Node], values: Sequence[Value]) -> dict[Value, Value]:
    """Say what the values that come into a region of a loop are there."""
    return {head.output: value for head, value in zip(heads, values, strict=True)}


def _before(loop: Loop) -> list[Node]:
    """Return what a loop comes after: all that its enters do, and the first token does."""
    nodes = list(loop.frame.enters)
    if loop.token is not None:
        start = loop.token.merge.inputs[0].node.inputs[0].node
        nodes += [start] if start.op.name == "const" else []
    return [wait for node in nodes for wait in own_waits(node)]


def _bind_exits(raising: _Raising, region: _Region, loop: Loop, made: Node) -> None:
    results = dict(zip(loop.variables, made.outputs, strict=True))
    for exit in loop.frame.exits:
        switch = exit.inputs[0].node
        if loop.token is not None and switch is loop.token.switch:
            continue
        value = raising.scopes.through(switch.inputs[0])
        while value.node.op.name == "identity":
            value = raising.scopes.through(value.node.inputs[0])
        found = results.get(value.node) or _compute_again(raising, region, loop, value, made)
        region.values[exit.output] = found


def _compute_again(
    raising: _Raising, region: _Region, loop: Loop, value: Value, made: Node
) -> Value:
    """Compute after the loop what the last test has computed, from what it computed it from."""
    invariants = [enter for enter in loop.frame.enters if enter.attrs.get("invariant")]
    given = [raising.value(region, enter.inputs[0]) for enter in invariants]
    bound = _bound(loop.variables + invariants, (*made.outputs, *given))
    bounds = Bounds(loop.frame.scope, (loop.frame.scope,), late=True)
    after = _Region(bounds, bound)
    raising.fill(after, Part(bounds, [value], []))
    return after.values[value]
