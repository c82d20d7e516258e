"""The programs of units: each group of nodes as a graph of its own, compiled; equal graphs share one program.

What cannot be compiled, because nothing that it reads tells a size it needs, is left to the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsl.codegen import frame
from dsl.codegen.cpu.native import Native, ParamKind, compile_graph
from dsl.executor.sizes import with_known_sizes
from dsl.executor.units import Unit
from dsl.ir.devices import DeviceName
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.facts import is_total
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import PLACEMENT, Trait, get_op
from dsl.ir.types import TensorType

__all__ = ["Program", "Programs", "layout", "unit_graph"]


@dataclass(frozen=True)
class Program:
    """A graph that a unit runs, and its machine code, if it has that."""

    graph: Graph
    native: Native | None
    device: Callable[[list[Any]], list[Any]] | None = None  # runs it on a GPU

    @property
    def callback(self) -> Any:
        """What the program calls in Python, or None."""
        return None if self.native is None else self.native.spec.callback


@dataclass
class Programs:
    """Makes programs; those with equal text, and equal lines of the user where they can fail or are timed, are one."""

    known: dict[Any, Native] = field(default_factory=dict)
    timed: bool = False
    gpu: DeviceName | None = None

    def make(self, unit: Unit) -> Program:
        graph = with_known_sizes(unit_graph(unit))
        if self.gpu is not None:
            return Program(graph, None, _on_gpu(graph, self.gpu))
        if not _is_closed(graph):
            return Program(graph, None)
        alike = not self.timed and all(map(is_total, graph.nodes))
        places = () if alike else tuple(n.loc for n in graph.walk())
        key = graph.text, places
        if key not in self.known:
            kinds = [ParamKind(_kind(param)) for param in graph.params]
            self.known[key] = compile_graph(graph, kinds, timed=self.timed)
        return Program(graph, self.known[key])


def _on_gpu(graph: Graph, name: DeviceName) -> Callable[[list[Any]], list[Any]]:
    from dsl.codegen.cuda.devices import gpu
    from dsl.codegen.cuda.program import DeviceProgram

    device, program = gpu(name), DeviceProgram(graph)
    return lambda inputs: program(device, inputs)


def _kind(value: Value) -> str:
    return "array" if value.shape else "scalar"


def layout(graph: Graph) -> frame.Frame:
    """Return where a unit's program has its params and results."""
    scalars = [not param.shape for param in graph.params]
    return frame.layout(graph, scalars, [None] * len(scalars), list(range(len(graph.results))))


def unit_graph(unit: Unit) -> Graph:
    """Return the graph of a unit: its inputs are params, small constants are within it."""
    values: dict[Value, Value] = {}
    for k, value in enumerate(unit.inputs):
        made = Node(get_op("param"), (), {"name": f"a{k}"}, (value.type,), loc=value.node.loc)
        values[value] = made.output
    params = tuple(values.values())
    effects = []
    for node in unit.nodes:
        for value in node.inputs:
            values.setdefault(value, value)  # a constant that has no inputs or controls
        copy = _copy(node, values)
        values.update(zip(node.outputs, copy.outputs, strict=True))
        if node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions):
            effects.append(copy)
    results = tuple(values[value] for value in unit.outputs)
    return Graph("unit", params, results, tuple(effects))


def _copy(node: Node, values: dict[Value, Value]) -> Node:
    inputs = tuple(values[value] for value in node.inputs)
    attrs = {name: attr for name, attr in node.attrs.items() if name not in PLACEMENT}
    return Node(node.op, inputs, attrs, node.types, node.regions, (), node.dims, node.loc)


def _is_closed(graph: Graph) -> bool:
    """Tell whether the sizes of all arrays follow from the params: from their dims, or as numbers."""
    known: set[Dim] = set()
    for param in graph.params:
        known.update(d for d in param.shape if isinstance(d, Dim) and symbols_of(d) == [d])
    if not all(set(symbols_of(*param.shape)) <= known for param in graph.params):
        return False
    for node in graph.nodes:
        known.update(node.dims)
        dynamic = node.op.has(Trait.DYNAMIC) or node.op.has(Trait.CONTROL)
        for type in node.types:
            if isinstance(type, TensorType):
                bare = [d for d in type.shape if isinstance(d, Dim) and symbols_of(d) == [d]]
                known.update(bare if dynamic else ())
                if not set(symbols_of(*type.shape)) <= known:
                    return False
    return True
