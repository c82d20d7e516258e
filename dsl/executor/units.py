"""What the executor schedules: units, each a node of control flow, a node for Python, or a group of pure nodes.

In: a flat graph. Out: its units. A group holds nodes of one frame and device that are alive together and wait for the
same, so it can run as one program as soon as all of its inputs are there. No group depends on itself through others:
each node has a level, above those of what it reads outside its own kind, and a group is the nodes of a kind on a level.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from dsl.executor.frames import Conditions, Frames, StaticFrame, in_order, sources_of, waits_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType

__all__ = ["Unit", "acts", "is_preset", "make_units"]

SMALL = 256  # bytes of a constant that is copied into each program that reads it


@dataclass(eq=False)
class Unit:
    """Nodes that are scheduled as one, in topological order.

    `inputs` are the distinct values that they read from outside, except for a node of control flow, whose inputs are
    in order; `outputs` are what others read, or could be refused by. `waits` are the units that it waits for besides.
    """

    frame: StaticFrame
    nodes: list[Node]
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    waits: list[Unit] = field(default_factory=list)
    number: int = -1

    @property
    def node(self) -> Node:
        """The only node, or the first."""
        return self.nodes[0]

    @property
    def is_program(self) -> bool:
        return can_compile(self.node)


def can_compile(node: Node) -> bool:
    """Tell whether a node can be machine code: all but control flow of the flat kind, and what acts outside."""
    if node.op.has(Trait.FLAT) or _is_outside(node) or is_move(node) or acts(node):
        return False
    return all(isinstance(value.type, TensorType) for value in (*node.inputs, *node.outputs))


def _is_outside(node: Node) -> bool:
    return node.op.act is not None or node.op.begin is not None


def acts(node: Node) -> bool:
    """Tell whether a structured node holds something that needs the step's environment."""
    return any(_is_outside(inside) for region in node.regions for inside in region.walk())


def is_move(node: Node) -> bool:
    """Tell whether a node passes an array on, or is one that need not be computed: no program copies those."""
    if node.op.name in ("identity", "stop_gradient"):
        return bool(node.types and isinstance(node.types[0], TensorType) and node.types[0].rank)
    return node.op.name == "const" and node.attrs["value"].array.nbytes > SMALL


def is_preset(node: Node) -> bool:
    """Tell whether a node is a constant that is there from the beginning."""
    return node.op.name == "const" and not node.controls


def is_inlined(node: Node) -> bool:
    """Tell whether programs have this constant within themselves."""
    return is_preset(node) and node.attrs["value"].array.nbytes <= SMALL


def _can_join(node: Node) -> bool:
    has_effect = node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions)
    return can_compile(node) and not has_effect


def make_units(graph: Graph, frames: Frames, cluster: bool) -> list[Unit]:
    """Return the units of a graph, in topological order as far as there is one; presets belong to none."""
    nodes = [node for node in graph.nodes if not is_preset(node)]
    groups = _groups(graph, frames) if cluster else {}
    units: dict[Hashable, Unit] = {}
    for node in nodes:
        key = groups.get(node, node)
        units.setdefault(key, Unit(frames.of[node], [])).nodes.append(node)
    made = list(units.values())
    home = {node: unit for unit in made for node in unit.nodes}
    read = {
        value for node in nodes for value in node.inputs if home.get(value.node) is not home[node]
    }
    wanted = read | set(graph.results) | set(graph.back.values())
    for number, unit in enumerate(made):
        unit.number = number
        _connect(unit, home, wanted)
    return made


def _groups(graph: Graph, frames: Frames) -> dict[Node, Hashable]:
    """Map the nodes that may be grouped to their groups."""
    order = in_order(graph, frames)
    if order is None:
        return {}
    conditions, waits = Conditions(graph, frames), waits_of(order, frames)
    kinds: dict[Node, Hashable] = {
        node: (frames.of[node], conditions.running[node], waits[node], node.attrs.get("device"))
        for node in order
        if _can_join(node)
    }
    levels: dict[Node, int] = {}
    for node in order:
        level = 0
        for source in sources_of(node, frames):
            if source in levels and not is_preset(source):
                alike = node in kinds and source in kinds and kinds[source] == kinds[node]
                level = max(level, levels[source] + (not alike))
        levels[node] = level
    return {node: (kind, levels[node]) for node, kind in kinds.items()}


def _connect(unit: Unit, home: dict[Node, Unit], wanted: set[Value]) -> None:
    """Find what a unit reads, makes and waits for."""
    unit.waits = _waits(unit, home)
    if not unit.is_program:
        unit.inputs, unit.outputs = list(unit.node.inputs), list(unit.node.outputs)
        return
    read = [value for node in unit.nodes for value in node.inputs]
    outside = [v for v in read if home.get(v.node) is not unit and not is_inlined(v.node)]
    unit.inputs = list(dict.fromkeys(outside))
    for node in unit.nodes:
        is_checked = node.op.has(Trait.CHECKED)
        unit.outputs += [v for v in node.outputs if is_checked or v in wanted]


def _waits(unit: Unit, home: dict[Node, Unit]) -> list[Unit]:
    controls = (home.get(control) for node in unit.nodes for control in node.controls)
    return list(dict.fromkeys(u for u in controls if u is not None and u is not unit))
