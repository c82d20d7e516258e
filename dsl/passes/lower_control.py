"""Spell structured control flow as tokens: `cond`, `while` and `scan` become switch, merge, enter, exit and so on.

In: a graph, structured at any depth. Out: a flat graph of the same meaning, which `raise_control` turns back into
an equal of the first one; the same object when there is nothing to lower. docs/control-flow.md explains the
spelling. Before and after:

    %0 = while(%n) {carried=1} : i64[] { @test ... less(%a, %limit) ... @body ... add(%a, %b) ... }

    %0 = enter(%n) {frame="while0", index=0, names=("a", "a")} : i64[]
    %1 = loop_merge(%0, %7) {index=0} : i64[]
    %2 = less(%1, %limit) : bool[]                            # the region @test, in place
    %3 = loop_cond(%2) {frame="while0", regions=("test", "body")} : bool[]
    %4, %5 = switch(%1, %3) {index=0} : i64[], i64[]
    %6 = add(%5, ...) : i64[]                                 # the region @body, in place
    %7 = next_iteration(%6) : i64[]
    %8 = exit(%4) : i64[]

What the spelling has to add to the region's own nodes:

- A *pivot*: an identity that is live exactly where the region runs. What would be live elsewhere too (nodes without
  inputs, and in a loop's body those that read invariants alone) gets a control edge from it.
- A *token*, where effects are about: a bool that travels with the control flow. The first effects of a region wait
  for it, it waits for the last ones, and what follows the structured node waits for the token that leaves it.
- Control edges that keep unused operands and results alive, on the node through which the structured node is
  reached.
- *Renames*, merges of one input, where a region has its own names for the sizes of what comes in or goes out.

A node keeps its `device`; what it leaves open of it, a node of a region takes from the structured node, and so do the
nodes that the spelling adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.checks.matching import apply_sizes, bind
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Attrs, Graph, Literal, Node, Value
from dsl.ir.location import Location
from dsl.ir.registry import get_op
from dsl.ir.types import BOOL, I64, ValueType, scalar
from dsl.passes.flat.scopes import has_effect, is_rename

__all__ = ["lower_control"]

TOKEN = scalar(BOOL)


def lower_control(graph: Graph, which: Callable[[Node], bool] | None = None) -> Graph:
    """Return the flat spelling of a graph, or of the structured nodes in it for which `which` is true.

    Those for which it is not stay as they are, with all that is inside them.
    """
    if which is None:
        which = has_spelling
    if not any(which(node) for node in graph.nodes):
        return graph
    return _Lowering(graph, which).run()


def has_spelling(node: Node) -> bool:
    """Tell whether there is a flat spelling of a structured node."""
    return node.op.name in _SPELLINGS


class _Block:
    """A graph being written out in place: what its values became, and which node to wait for in place of each node.

    `pivot` makes or finds the pivot of the region; the outermost graph has none. `loose` values are live even where the
    region is not.
    """

    def __init__(
        self,
        graph: Graph,
        args: Iterable[Value],
        pivot: Callable[[], Node] | None,
        loose: Iterable[Value] = (),
    ) -> None:
        self.graph, self.pivot, self.loose = graph, pivot, frozenset(loose)
        self.values: dict[Value, Value] = dict(zip(graph.params, args, strict=True))
        self.nodes: dict[Node, Node] = {}
        self.needed = {v for node in graph.nodes for v in node.inputs} | set(graph.results)
        self.awaited = {c for node in graph.nodes for c in node.controls} | set(graph.effects)

    @property
    def results(self) -> list[Value]:
        return [self.values[value] for value in self.graph.results]

    @property
    def effects(self) -> list[Node]:
        return [self.nodes[node] for node in self.graph.effects]

    def inputs(self, node: Node) -> list[Value]:
        return [self.values[value] for value in node.inputs]

    def gate(self, inputs: Iterable[Value]) -> tuple[Node, ...]:
        """Return the control edges that make a node with these inputs live only where the region is."""
        if self.pivot is None or any(value not in self.loose for value in inputs):
            return ()
        return (self.pivot(),)

    def waits(self, node: Node, inputs: Iterable[Value]) -> tuple[Node, ...]:
        """Return the control edges of a node: its own, and the pivot where it needs that."""
        own = tuple(self.nodes[control] for control in node.controls)
        if self.pivot is not None and _is_first_effect(node):
            return (*own, self.pivot())
        return own + self.gate(inputs)

    def wants_token(self, node: Node) -> bool:
        """Tell whether other nodes' order depends on when a structured node starts or ends."""
        return bool(node.controls) or node in self.awaited or any(r.effects for r in node.regions)


def _is_first_effect(node: Node) -> bool:
    return has_effect(node) and not any(map(has_effect, node.controls))


class _Lowering:
    def __init__(self, graph: Graph, which: Callable[[Node], bool]) -> None:
        self.graph, self.which = graph, which
        self.device = ""  # of the structured node whose spelling is being written
        self.back: dict[Node, Value] = {}
        self.used: set[Value] = set()
        self.loc: Location | None = None
        self._constants: dict[tuple[Literal, str, tuple[Node, ...]], Node] = {}
        self._taken = {node.attrs.get(key) for node in graph.walk() for key in ("frame", "scope")}
        self._count: dict[str, int] = {}

    def run(self) -> Graph:
        block = self.inline(_Block(self.graph, self.graph.params, None))
        graph = self.graph
        return Graph(
            graph.name, graph.params, tuple(block.results), tuple(block.effects), self.back
        )

    def inline(self, block: _Block) -> _Block:
        """Write a graph out in place."""
        for node in block.graph.nodes:
            self.loc = node.loc
            if self.which(node):
                _lower(self, node, block)
            else:
                self._copy(node, block)
        for merge, value in block.graph.back.items():
            if merge in block.nodes:
                self.back[block.nodes[merge]] = block.values[value]
        return block

    def _copy(self, node: Node, block: _Block) -> None:
        inputs = tuple(block.inputs(node))
        made = self._rebuilt(node, inputs, block.waits(node, inputs))
        self.used.update(inputs)
        block.nodes[node] = made
        block.values.update(zip(node.outputs, made.outputs, strict=True))

    def _rebuilt(self, node: Node, inputs: tuple[Value, ...], controls: tuple[Node, ...]) -> Node:
        attrs = self._placed(node.attrs)
        if inputs != node.inputs or controls != node.controls or attrs is not node.attrs:
            parts = (attrs, node.types, node.regions)
            node = Node(node.op, inputs, *parts, controls, node.dims, node.loc)
        if node.op.name == "const":
            key = (node.attrs["value"], attrs.get("device", ""), controls)
            return self._constants.setdefault(key, node)
        return node

    def _placed(self, attrs: Attrs) -> Attrs:
        """Add to the attributes of a node what it takes over from the structured node around it."""
        if not self.device:
            return attrs
        return {**attrs, "device": self.within(attrs)}

    def within(self, attrs: Attrs) -> str:
        """Return the device that attributes ask for, with what they leave open taken from around."""
        if not self.device:
            return str(attrs.get("device", ""))
        own = DeviceName.parse(attrs.get("device", ""))
        return str(own.within(DeviceName.parse(self.device)))

    # -- new nodes ---------------------------------------------------------------------------------------------

    def fresh(self, kind: str) -> str:
        """Return a name for a frame or scope that no other in the graph has."""
        while True:
            number = self._count.get(kind, 0)
            self._count[kind] = number + 1
            if f"{kind}{number}" not in self._taken:
                return f"{kind}{number}"

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[ValueType],
        controls: Iterable[Node] = (),
        **attrs: Any,
    ) -> Node:
        self.used.update(inputs)
        waits, placed = tuple(dict.fromkeys(controls)), self._placed(attrs)
        return Node(get_op(op), tuple(inputs), placed, tuple(types), (), waits, (), self.loc)

    def constant(self, value: Any, controls: tuple[Node, ...]) -> Value:
        literal = Literal(value)
        key = (literal, self.device, controls)
        if key not in self._constants:
            type = scalar(literal.array.dtype)
            self._constants[key] = self.emit("const", (), (type,), controls, value=literal)
        return self._constants[key].output

    def retype(self, value: Value, type: ValueType, **attrs: Any) -> Value:
        """Return a value under another type, which may differ in the names of sizes."""
        return (
            value if value.type == type else self.emit("merge", (value,), (type,), **attrs).output
        )

    def results(self, block: _Block, given: Sequence[Value]) -> list[Value]:
        """Return the results of a region with the names that sizes have where its arguments, `given`, come from."""
        params = [param.type for param in block.graph.params]
        sizes = bind(params, [value.type for value in given]) or {}
        types = apply_sizes([value.type for value in block.graph.results], sizes)
        pairs = zip(block.results, types, strict=True)
        return [self.retype(value, type, leaving=True) for value, type in pairs]

    def pivot(self, value: Value) -> Node:
        return self.emit("identity", (value,), (value.type,))

    def join(self, block: _Block) -> Value:
        """Return the token that has waited for the effects of a region."""
        assert block.pivot is not None
        value = block.pivot().output
        if not block.effects:
            return value
        return self.emit("identity", (value,), (TOKEN,), block.effects).output


def _lower(lowering: _Lowering, node: Node, block: _Block) -> None:
    if node.dims:
        raise InternalError(
            f"{node.op.name} cannot take the sizes of symbols; pass them as operands"
        )
    outer, lowering.device = lowering.device, lowering.within(node.attrs)
    _SPELLINGS[node.op.name](lowering, node, block)
    lowering.device = outer


def _own_attrs(node: Node) -> dict[str, Any]:
    """Return what a flat node has to record of a structured one: its regions' names and its attributes."""
    own = {f"own_{name}": attr for name, attr in node.attrs.items() if name != "carried"}
    return {"regions": tuple(region.name for region in node.regions), **own}


def _name(param: Value) -> str:
    return str(param.node.attrs.get("name", "a"))


# -- cond ----------------------------------------------------------------------------------------------------------


def _cond(lowering: _Lowering, node: Node, block: _Block) -> None:
    scope = lowering.fresh("cond")
    then, otherwise = node.regions
    pred, *operands = block.inputs(node)

    def switch(x: Value, waits: tuple[Node, ...], **attrs: Any) -> Node:
        return lowering.emit("switch", (x, pred), (x.type, x.type), waits, scope=scope, **attrs)

    switches = []
    for index, x in enumerate(operands):
        names = _name(otherwise.params[index]), _name(then.params[index])
        switches.append(switch(x, block.gate((x, pred)), index=index, names=names))
    fork = cache(lambda: switch(pred, block.waits(node, (pred,)), pivot=True))
    arms = []
    for side, region in enumerate((otherwise, then)):
        pivot = cache(lambda side=side: lowering.pivot(fork().outputs[side]))
        outputs = [switch.outputs[side] for switch in switches]
        args = [lowering.retype(x, p.type) for x, p in zip(outputs, region.params, strict=True)]
        arms.append(lowering.inline(_Block(region, args, pivot)))
    lowering.loc = node.loc
    _join_arms(lowering, node, block, scope, switches, arms)


@dataclass
class _Join:
    """A merge to be made, of values from both arms; `wanted` if something needs it."""

    pair: Sequence[Value]
    type: ValueType
    attrs: dict[str, Any]
    wanted: bool
    merge: Node | None = None


def _join_arms(
    lowering: _Lowering,
    node: Node,
    block: _Block,
    scope: str,
    switches: list[Node],
    arms: list[_Block],
) -> None:
    """Merge the results of both branches. A merge that is wanted is made last and keeps the rest alive."""
    joins = []
    no, yes = (
        lowering.results(arm, [switch.outputs[side] for switch in switches])
        for side, arm in enumerate(arms)
    )
    for index, out in enumerate(node.outputs):
        pair = [no[index], yes[index]]
        joins.append(_Join(pair, out.type, {"index": index}, out in block.needed))
    if block.wants_token(node):
        pair = [lowering.join(arm) for arm in arms]
        joins.append(_Join(pair, TOKEN, {"done": True}, node in block.awaited))
    anchor = next(join for join in joins if join.wanted)
    anchor.attrs |= _own_attrs(node)
    lowering.used.update(value for join in joins for value in join.pair)
    for join in sorted(joins, key=lambda join: join is anchor):
        others = [j.merge for j in joins if j.merge is not None and not j.wanted]
        kept = others + _unused(lowering, switches, arms) if join is anchor else []
        join.merge = lowering.emit(
            "merge", join.pair, (join.type,), kept, scope=scope, **join.attrs
        )
    merges = [join.merge for join in joins if join.merge is not None]
    block.nodes[node] = merges[-1]
    block.values.update(zip(node.outputs, [merge.output for merge in merges], strict=False))


def _unused(lowering: _Lowering, switches: list[Node], arms: list[_Block]) -> list[Node]:
    """Return the switches, and the renames of their outputs, that nothing reads."""
    found = [switch for switch in switches if lowering.used.isdisjoint(switch.outputs)]
    args = [arm.values[param] for arm in arms for param in arm.graph.params]
    return found + [x.node for x in args if x.node not in switches and x not in lowering.used]


# -- loops ---------------------------------------------------------------------------------------------------------


@dataclass
class _Variable:
    """A value on its way round a loop: what the switch reads, its types in the body and after, if it needs an exit."""

    merge: Node
    data: Value
    body: ValueType
    after: ValueType
    wanted: bool
    mark: dict[str, Any]
    inside: Value
    outside: Value


@dataclass
class _Loop:
    """A frame being made, for the structured `node` of `block`."""

    lowering: _Lowering
    node: Node
    block: _Block
    frame: str
    variables: list[_Variable] = field(default_factory=list)
    invariants: list[Value] = field(default_factory=list)
    predicate: Value | None = None
    token: _Variable | None = None

    def enter(self, value: Value, **attrs: Any) -> Value:
        gate, type = self.block.gate((value,)), value.type
        enter = self.lowering.emit("enter", (value,), (type,), gate, frame=self.frame, **attrs)
        return enter.output

    def carry(
        self, enter: Value, types: Sequence[ValueType], wanted: bool, **mark: Any
    ) -> _Variable:
        """Carry a value on; `types` are those in the first region, in the body and after the loop."""
        first, body, after = types
        merge = self.lowering.emit("loop_merge", (enter,), (first,), **mark)
        head = merge.output
        variable = _Variable(merge, head, body, after, wanted, mark, head, head)
        self.variables.append(variable)
        return variable

    def carry_operands(self, values: list[Value], *regions: Graph, skip: int = 0) -> list[Value]:
        """Bring in the carried values: the params `skip` and on of the regions."""
        for index, value in enumerate(values):
            params = [region.params[skip + index] for region in regions]
            enter = self.enter(value, index=index, names=tuple(map(_name, params)))
            output = self.node.outputs[index]
            types = params[0].type, params[-1].type, output.type
            self.carry(enter, types, output in self.block.needed, index=index)
        return [variable.merge.output for variable in self.variables]

    def hold(self, value: Value, params: Sequence[Value], index: int) -> tuple[Value, Value]:
        """Bring in an invariant; return it as the first and as the last region know it, types included."""
        names, types = tuple(map(_name, params)), [param.type for param in params]
        enter = self.enter(value, invariant=True, index=index, names=names)
        marks = [{}, {}] if types[0] == types[-1] else [{"region": "test"}, {"region": "body"}]
        first = last = self.lowering.retype(enter, types[0], **marks[0])
        if types[0] != types[-1]:
            last = self.lowering.retype(enter, types[-1], **marks[1])
        self.invariants += [enter, first, last]
        return first, last

    def carry_token(self) -> None:
        """Bring in the token, which orders effects, if anything depends on the order."""
        if self.block.wants_token(self.node):
            start = self.lowering.constant(True, self.block.waits(self.node, ()))
            wanted = self.node in self.block.awaited
            self.token = self.carry(self.enter(start, token=True), [TOKEN] * 3, wanted, token=True)

    def test_pivot(self) -> Node:
        if self.token is not None:
            return self.lowering.pivot(self.token.merge.output)
        value = self.block.values[self.node.inputs[0]]
        return self.enter(value, invariant=True, pivot=True).node

    def turn(self, pred: Value, **attrs: Any) -> None:
        """Decide on another trip."""
        attrs |= {"frame": self.frame, **_own_attrs(self.node)}
        predicate = self.lowering.emit("loop_cond", (pred,), (TOKEN,), **attrs).output
        for variable in self.variables:
            inputs, types = (variable.data, predicate), [variable.data.type] * 2
            switch = self.lowering.emit("switch", inputs, types, **variable.mark)
            variable.outside = switch.outputs[0]
            variable.inside = self.lowering.retype(switch.outputs[1], variable.body)
        self.predicate = predicate

    def body_pivot(self) -> Node:
        if self.token is not None:
            return self.lowering.pivot(self.token.inside)
        assert self.predicate is not None
        inputs = (self.predicate, self.predicate)
        fork = self.lowering.emit("switch", inputs, (TOKEN, TOKEN), pivot=True)
        return self.lowering.pivot(fork.outputs[1])

    def close(self, body: _Block, results: list[Value]) -> None:
        """Send the variables round again, or out."""
        if self.token is not None:
            results = [*results, self.lowering.join(body)]
        self.lowering.loc = self.node.loc
        self.lowering.used.update(results)
        renames = [v.inside.node for v in self.variables if is_rename(v.inside.node)]
        kept = [node for node in renames if node.output not in self.lowering.used]
        for variable, value in zip(self.variables, results, strict=True):
            waits = (*body.gate((_unnamed(value),)), *kept)
            again = self.lowering.emit("next_iteration", (value,), (value.type,), waits)
            self.lowering.back[variable.merge] = again.output
            kept = []
        self._leave([v for v in self.variables if "counter" not in v.mark])

    def _leave(self, variables: list[_Variable]) -> None:
        """Make the exits; the first keeps variables without one alive, whose next values may need nothing but them."""
        retype = self.lowering.retype
        controls = [retype(v.outside, v.after).node for v in variables if not v.wanted]
        controls += [x.node for x in self.invariants if x not in self.lowering.used]
        for index, variable in enumerate(variables):
            if variable.wanted:
                value = variable.outside
                exit = self.lowering.emit("exit", (value,), (value.type,), controls)
                self.block.nodes[self.node] = exit
                controls = []
                if variable is not self.token:
                    result = retype(exit.output, variable.after)
                    self.block.values[self.node.outputs[index]] = result


def _unnamed(value: Value) -> Value:
    """Return a value as it was before it got another type."""
    return value.node.inputs[0] if is_rename(value.node) else value


def _while(lowering: _Lowering, node: Node, block: _Block) -> None:
    test, body = node.regions
    count = node.attrs["carried"]
    inputs = block.inputs(node)
    loop = _Loop(lowering, node, block, lowering.fresh("while"))
    heads = loop.carry_operands(inputs[:count], test, body)
    held = [
        loop.hold(inputs[k], (test.params[k], body.params[k]), k) for k in range(count, len(inputs))
    ]
    loop.carry_token()
    tested = _Block(test, heads + [first for first, _ in held], cache(loop.test_pivot))
    (pred,) = lowering.inline(tested).results
    lowering.loc = node.loc
    if loop.token is not None:
        loop.token.data = lowering.join(tested)
    loop.turn(pred)
    fixed = [last for _, last in held]
    moving = [variable.inside for variable in loop.variables[:count]]
    ran = lowering.inline(_Block(body, moving + fixed, cache(loop.body_pivot), loop.invariants))
    given = [variable.data for variable in loop.variables[:count]] + inputs[count:]
    loop.close(ran, lowering.results(ran, given))


def _scan(lowering: _Lowering, node: Node, block: _Block) -> None:
    (body,) = node.regions
    count = node.attrs["carried"]
    trips, *inputs = block.inputs(node)
    loop = _Loop(lowering, node, block, lowering.fresh("scan"))
    zero, one = (lowering.constant(np.int64(k), block.gate(())) for k in (0, 1))
    trip, limit, step = _count_trips(loop, zero, one, trips)
    loop.carry_operands(inputs[:count], body, skip=1)
    held = [loop.hold(inputs[k], (body.params[k + 1],), k)[0] for k in range(count, len(inputs))]
    loop.carry_token()
    if loop.token is not None:
        loop.token.data = loop.test_pivot().output
    loop.turn(lowering.emit("less", (trip, limit), (TOKEN,)).output, counted=True)
    moving = [variable.inside for variable in loop.variables[: count + 1]]
    ran = lowering.inline(_Block(body, moving + held, cache(loop.body_pivot), loop.invariants))
    following = lowering.emit("add", (moving[0], step), (scalar(I64),)).output
    given = [variable.data for variable in loop.variables[: count + 1]] + inputs[count:]
    loop.close(ran, [following, *lowering.results(ran, given)])


def _count_trips(loop: _Loop, zero: Value, one: Value, trips: Value) -> tuple[Value, Value, Value]:
    """Carry the trip number; return it, the number of trips and the step."""
    param = loop.node.regions[0].params[0]
    counter = loop.enter(zero, counter=True, names=(_name(param),))
    variable = loop.carry(counter, [scalar(I64)] * 3, False, counter=True)
    limit = loop.enter(trips, invariant=True, limit=True)
    step = loop.enter(one, invariant=True, step=True)
    return variable.merge.output, limit, step


_SPELLINGS: dict[str, Callable[[_Lowering, Node, _Block], None]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
