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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.build import resources_of
from dsl.ir.graph import Graph, Literal, Node, Value
from dsl.ir.location import Location
from dsl.ir.registry import Trait, get_op
from dsl.ir.types import BOOL, I64, ValueType, scalar

__all__ = ["lower_control"]

TOKEN = scalar(BOOL)


def lower_control(graph: Graph) -> Graph:
    """Return the flat spelling of a graph."""
    if not any(node.op.has(Trait.CONTROL) for node in graph.nodes):
        return graph
    return _Lowering(graph).run()


class _Block:
    """A graph being written out in place: what its values became, and which node to wait for in place of each of its own.

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


def _has_effect(node: Node) -> bool:
    return bool(resources_of(node.op, node.regions)) or any(r.effects for r in node.regions)


def _is_first_effect(node: Node) -> bool:
    return _has_effect(node) and not any(map(_has_effect, node.controls))


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.back: dict[Node, Value] = {}
        self.used: set[Value] = set()
        self.loc: Location | None = None
        self._constants: dict[tuple[Literal, tuple[Node, ...]], Node] = {}
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
            if node.op.has(Trait.CONTROL):
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
        if inputs != node.inputs or controls != node.controls:
            parts = (node.attrs, node.types, node.regions)
            node = Node(node.op, inputs, *parts, controls, node.dims, node.loc)
        if node.op.name == "const":
            return self._constants.setdefault((node.attrs["value"], controls), node)
        return node

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
        waits = tuple(dict.fromkeys(controls))
        return Node(get_op(op), tuple(inputs), attrs, tuple(types), (), waits, (), self.loc)

    def constant(self, value: Any, controls: tuple[Node, ...]) -> Value:
        literal = Literal(value)
        key = (literal, controls)
        if key not in self._constants:
            type = scalar(literal.array.dtype)
            self._constants[key] = self.emit("const", (), (type,), controls, value=literal)
        return self._constants[key].output

    def pivot(self, value: Value) -> Node:
        return self.emit("identity", (value,), (value.type,))

    def join(self, pivot: Callable[[], Node], effects: list[Node]) -> Value:
        """Return the token that has waited for a region's effects."""
        value = pivot().output
        return self.emit("identity", (value,), (TOKEN,), effects).output if effects else value


def _lower(lowering: _Lowering, node: Node, block: _Block) -> None:
    if node.dims:
        raise InternalError(
            f"{node.op.name} cannot take the sizes of symbols; pass them as operands"
        )
    _SPELLINGS[node.op.name](lowering, node, block)


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

    def switch(x: Value, waits: tuple[Node, ...], types: Sequence[ValueType], **attrs: Any) -> Node:
        return lowering.emit("switch", (x, pred), types, waits, scope=scope, **attrs)

    switches = []
    for index, x in enumerate(operands):
        no, yes = otherwise.params[index], then.params[index]
        attrs = {"index": index, "names": (_name(no), _name(yes))}
        switches.append(switch(x, block.gate((x, pred)), (no.type, yes.type), **attrs))
    fork = cache(lambda: switch(pred, block.waits(node, (pred,)), (TOKEN, TOKEN), pivot=True))
    arms = []
    for side, region in enumerate((otherwise, then)):
        pivot = cache(lambda side=side: lowering.pivot(fork().outputs[side]))
        arms.append(lowering.inline(_Block(region, [s.outputs[side] for s in switches], pivot)))
    lowering.loc = node.loc
    _join_arms(lowering, node, block, scope, switches, arms)


def _join_arms(
    lowering: _Lowering,
    node: Node,
    block: _Block,
    scope: str,
    switches: list[Node],
    arms: list[_Block],
) -> None:
    """Merge the results of both branches. The merge that is surely used is made last and keeps the rest alive."""
    merging: list[tuple[Sequence[Value], ValueType, dict[str, Any], bool]] = [
        (pair, out.type, {"index": index}, out in block.needed)
        for index, (*pair, out) in enumerate(
            zip(arms[0].results, arms[1].results, node.outputs, strict=True)
        )
    ]
    if block.wants_token(node):
        tokens = [lowering.join(arm.pivot, arm.effects) for arm in arms if arm.pivot is not None]
        merging.append((tokens, TOKEN, {"done": True}, node in block.awaited))
    lowering.used.update(value for pair, *_ in merging for value in pair)
    anchor = next(entry for entry in merging if entry[3])
    made: dict[int, Node] = {}
    for entry in (*(e for e in merging if e is not anchor), anchor):
        pair, type, attrs, _ = entry
        kept: list[Node] = []
        if entry is anchor:
            kept = [made[id(e)] for e in merging if not e[3]]
            kept += [s for s in switches if lowering.used.isdisjoint(s.outputs)]
            attrs = attrs | _own_attrs(node)
        made[id(entry)] = lowering.emit("merge", pair, (type,), kept, scope=scope, **attrs)
    merges = [made[id(entry)] for entry in merging]
    block.nodes[node] = merges[-1]
    block.values.update(zip(node.outputs, [merge.output for merge in merges], strict=False))


# -- loops ---------------------------------------------------------------------------------------------------------


@dataclass
class _Variable:
    """A value on its way round a loop: what the switch reads, the types of its outputs, and whether it needs an exit."""

    merge: Node
    data: Value
    types: tuple[ValueType, ValueType]
    wanted: bool
    mark: dict[str, Any]
    switch: Node | None = None

    @property
    def inside(self) -> Value:
        assert self.switch is not None
        return self.switch.outputs[1]

    @property
    def outside(self) -> Value:
        assert self.switch is not None
        return self.switch.outputs[0]


@dataclass
class _Loop:
    """A frame being made, for the structured `node` of `block`."""

    lowering: _Lowering
    node: Node
    block: _Block
    frame: str
    variables: list[_Variable] = field(default_factory=list)
    invariants: list[Node] = field(default_factory=list)
    predicate: Value | None = None
    token: _Variable | None = None

    def enter(self, value: Value, type: ValueType, **attrs: Any) -> Node:
        gate = self.block.gate((value,))
        return self.lowering.emit("enter", (value,), (type,), gate, frame=self.frame, **attrs)

    def carry(
        self, enter: Node, types: tuple[ValueType, ValueType], wanted: bool, **mark: Any
    ) -> _Variable:
        merge = self.lowering.emit("loop_merge", enter.outputs, enter.types, **mark)
        variable = _Variable(merge, merge.output, types, wanted, mark)
        self.variables.append(variable)
        return variable

    def carry_operands(self, values: list[Value], *regions: Graph, skip: int = 0) -> list[Value]:
        """Bring in the carried values: the params `skip` and on of the regions."""
        for index, value in enumerate(values):
            params = [region.params[skip + index] for region in regions]
            names = tuple(map(_name, params))
            enter = self.enter(value, params[0].type, index=index, names=names)
            output = self.node.outputs[index]
            wanted = output in self.block.needed
            self.carry(enter, (output.type, params[-1].type), wanted, index=index)
        return [variable.merge.output for variable in self.variables]

    def hold(self, value: Value, params: Sequence[Value], index: int) -> tuple[Value, Value]:
        """Bring in an invariant; return it as the first and as the last region know it, types included."""
        attrs = {"invariant": True, "index": index}
        first = self.enter(value, params[0].type, names=tuple(map(_name, params)), **attrs)
        self.invariants.append(first)
        if params[0].type == params[-1].type:
            return first.output, first.output
        twin = self.enter(value, params[-1].type, twin=True, **attrs)
        self.invariants.append(twin)
        return first.output, twin.output

    def carry_token(self) -> None:
        """Bring in the token, which orders effects, if anything depends on the order."""
        if not self.block.wants_token(self.node):
            return
        start = self.lowering.constant(True, self.block.waits(self.node, ()))
        enter = self.enter(start, TOKEN, token=True)
        wanted = self.node in self.block.awaited
        self.token = self.carry(enter, (TOKEN, TOKEN), wanted, token=True)

    def test_pivot(self) -> Node:
        if self.token is not None:
            return self.lowering.pivot(self.token.merge.output)
        value = self.block.values[self.node.inputs[0]]
        return self.enter(value, value.type, invariant=True, pivot=True)

    def turn(self, pred: Value, **attrs: Any) -> None:
        """Decide on another trip."""
        attrs |= {"frame": self.frame, **_own_attrs(self.node)}
        predicate = self.lowering.emit("loop_cond", (pred,), (TOKEN,), **attrs).output
        for variable in self.variables:
            inputs = (variable.data, predicate)
            mark = variable.mark
            variable.switch = self.lowering.emit("switch", inputs, variable.types, **mark)
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
        if self.token is not None and body.pivot is not None:
            results = [*results, self.lowering.join(body.pivot, body.effects)]
        self.lowering.loc = self.node.loc
        for variable, value in zip(self.variables, results, strict=True):
            gate = body.gate((value,))
            again = self.lowering.emit("next_iteration", (value,), (value.type,), gate)
            self.lowering.back[variable.merge] = again.output
        self._leave([v for v in self.variables if "counter" not in v.mark])

    def _leave(self, variables: list[_Variable]) -> None:
        """Make the exits; the first keeps variables without one alive, whose next values may need nothing but them."""
        controls = [variable.outside.node for variable in variables if not variable.wanted]
        controls += [e for e in self.invariants if e.output not in self.lowering.used]
        for index, variable in enumerate(variables):
            if not variable.wanted:
                continue
            value = variable.outside
            exit = self.lowering.emit("exit", (value,), (value.type,), controls)
            controls = []
            self.block.nodes[self.node] = exit
            if variable is not self.token:
                self.block.values[self.node.outputs[index]] = exit.output


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
    if loop.token is not None and tested.pivot is not None:
        loop.token.data = lowering.join(tested.pivot, tested.effects)
    loop.turn(pred)
    fixed = [last for _, last in held]
    moving = [variable.inside for variable in loop.variables[:count]]
    ran = lowering.inline(_Block(body, moving + fixed, cache(loop.body_pivot), fixed))
    loop.close(ran, ran.results)


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
    ran = lowering.inline(_Block(body, moving + held, cache(loop.body_pivot), held))
    following = lowering.emit("add", (moving[0], step), (scalar(I64),)).output
    loop.close(ran, [following, *ran.results])


def _count_trips(loop: _Loop, zero: Value, one: Value, trips: Value) -> tuple[Value, Value, Value]:
    """Carry the trip number; return it, the number of trips and the step."""
    param = loop.node.regions[0].params[0]
    counter = loop.enter(zero, scalar(I64), counter=True, names=(_name(param),))
    loop.carry(counter, (scalar(I64), param.type), False, counter=True)
    limit = loop.enter(trips, trips.type, invariant=True, limit=True)
    step = loop.enter(one, scalar(I64), invariant=True, step=True)
    return loop.variables[0].merge.output, limit.output, step.output


_SPELLINGS: dict[str, Callable[[_Lowering, Node, _Block], None]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
