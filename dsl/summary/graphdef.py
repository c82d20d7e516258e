"""Export graphs as TensorFlow's `GraphDef`, which TensorBoard and Netron show and TensorFlow runs.

In: a graph, a lowered function, or a function and arguments for it. Out: the message as bytes or text. Control flow is
flat: Switch, Merge, Enter, Exit, NextIteration and LoopCond, with the back edge of a loop as the second input of its Merge.
Params are Placeholders under their own names, results are the Identity nodes `output_0`, `output_1` and so on, which
wait for all effects. Symbolic dims are -1. Ops that TensorFlow has not, for these dtypes, are called `Dsl...`; a graph
without them runs in TensorFlow.

>>> from dsl.ir.text import parse
>>> graph = parse("graph @f(%x: f64[]) -> (f64[]) { %0 = sin(%x) : f64[] return %0 }")
>>> [line for line in graph_text(graph).splitlines() if "op:" in line]
['  op: "Placeholder"', '  op: "Sin"', '  op: "Identity"']
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from dsl.ir.checks.frames import ROOT, Frames
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import PLACEMENT
from dsl.passes.lower_control import lower_control
from dsl.summary import array_ops, ops  # noqa: F401 - they fill the table
from dsl.summary.names import Names, paths
from dsl.summary.nodes import Emitter, NodeDef, Ref, Shape, Symbolic, attr_value, dtype_of, shape_of
from dsl.summary.proto import Message, encode, text
from dsl.summary.table import EMITTERS, no_equivalent

__all__ = ["graph_def", "graph_text"]

_PRODUCER = 987  # a version of TensorFlow's graphs that has all ops used here


def graph_def(source: Any, *args: Any) -> bytes:
    """Return the `GraphDef` of a function for these arguments, of what `.lower` returned, or of a `dsl.Graph`."""
    return encode("GraphDef", _message(_flat(source, args)))


def graph_text(source: Any, *args: Any) -> str:
    """Return the same as text, the content of a `.pbtxt` file."""
    return text("GraphDef", _message(_flat(source, args)))


def _flat(source: Any, args: Sequence[Any]) -> Graph:
    from dsl.compile import Compiled, jit
    from dsl.lowered import Lowered

    if hasattr(type(source), "part"):  # a `dsl.Graph`
        source = source.part()
    if isinstance(source, Graph):
        return lower_control(source)
    if isinstance(source, Lowered):
        return source.graph("lowered")
    compiled: Any = source if isinstance(source, Compiled) else jit(source)
    return _flat(compiled.lower(*args), ())


def _message(graph: Graph) -> Message:
    nodes = _Export(graph).run()
    return {"node": [_node_message(node) for node in nodes], "versions": {"producer": _PRODUCER}}


def _node_message(node: NodeDef) -> Message:
    waits = dict.fromkeys(f"^{before.name}" for before in node.controls)
    attrs = [{"key": key, "value": attr_value(node.attrs[key])} for key in sorted(node.attrs)]
    inputs = [*map(str, node.inputs), *waits]
    placed = {"device": node.device} if node.device else {}
    return {"name": node.name, "op": node.op, "input": inputs, **placed, "attr": attrs}


class _Export:
    """Makes the nodes of one flat graph, in its order."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.frames, self.path = graph, Frames(graph), paths(graph)
        self.nodes: list[NodeDef] = []
        self.refs: dict[Value, Ref] = {}
        self.done: dict[Node, NodeDef] = {}
        self.names = Names(_prefixes(map(self.path, graph.nodes)))

    def run(self) -> list[NodeDef]:
        for value in self.graph.params:
            self._param(value)
        for node in self.graph.nodes:
            self._node(node)
        for merge, value in self.graph.back.items():
            if merge in self.done:
                self.done[merge].inputs.append(self.refs[value])
                self.done[merge].attrs["N"] = 2
        self._results()
        return self.nodes

    def _param(self, value: Value) -> None:
        attrs = {"dtype": dtype_of(value.type), "shape": shape_of(value.type)}
        name = self.names.fresh(str(value.node.attrs.get("name", "param")))
        made = NodeDef("Placeholder", [], [], attrs, name)
        self.nodes.append(made)
        self.done[value.node], self.refs[value] = made, Ref(made, dtype_of(value.type))

    def _node(self, node: Node) -> None:
        inputs = [self.refs[value] for value in node.inputs]
        controls = [self.done[before] for before in node.controls]
        in_frame = self.frames.inside(node) != ROOT
        emitter, outputs = _emit(node, inputs, controls, in_frame)
        main = outputs[0].node if outputs else emitter.made[-1]
        self._name(node, main, emitter.made)
        for made in emitter.made:
            made.device = _device(str(node.attrs.get("device", "")))
        main.attrs |= _shapes(node, main) | _source(node)
        self.nodes += emitter.made
        self.done[node] = main
        self.refs.update(zip(node.outputs, outputs))

    def _name(self, node: Node, main: NodeDef, made: Iterable[NodeDef]) -> None:
        """The node that gives the result has the op's name, the others are below it."""
        main.name = self.names.fresh(self.path(node) + node.op.name)
        for other in made:
            if other is not main:
                other.name = self.names.fresh(f"{main.name}/{other.op}")

    def _results(self) -> None:
        effects = [self.done[node] for node in self.graph.effects]
        for index, value in enumerate(self.graph.results):
            ref, name = self.refs[value], self.names.fresh(f"output_{index}")
            attrs = {"T": ref.dtype, "_output_shapes": [shape_of(value.type)]}
            self.nodes.append(NodeDef("Identity", [ref], effects, attrs, name))
        if effects and not self.graph.results:
            self.nodes.append(NodeDef("NoOp", [], effects, {}, self.names.fresh("effects")))


def _device(name: str) -> str:
    """Spell a device as TensorFlow does: `/job:worker/task:1/device:CPU:0`."""
    found = DeviceName.parse(name)
    rank = "" if found.rank is None else f"/job:worker/task:{found.rank}"
    index = "" if found.index is None else f":{found.index}"
    return rank + (f"/device:{found.kind.upper()}{index}" if found.kind else "")


def _emit(
    node: Node, inputs: list[Ref], controls: list[NodeDef], in_frame: bool
) -> tuple[Emitter, Sequence[Ref]]:
    emit = EMITTERS.get(node.op.name)
    emitter = Emitter(node, inputs, controls, in_frame)
    attrs = {key: attr for key, attr in node.attrs.items() if key not in PLACEMENT}
    try:
        data = inputs[: len(node.data_inputs)]
        found = emit(emitter, *data, **attrs) if emit is not None else None
    except Symbolic:
        found = None
    if found is None:
        emitter = Emitter(node, inputs, controls, in_frame)
        found = no_equivalent(emitter, attrs)
    return emitter, [found] if isinstance(found, Ref) else found


# How many outputs ops of TensorFlow have that may stand for nodes with more or fewer.
_OUTPUTS = {"Qr": 2, "SelfAdjointEigV2": 2, "Svd": 3, "FloorDiv": 1}


def _shapes(node: Node, main: NodeDef) -> dict[str, Any]:
    """Return the shapes that TensorBoard writes on edges; TensorFlow wants one for each output or none."""
    shapes = [shape_of(type) for type in node.types]
    if main.op == "Merge":
        shapes.append(Shape())  # which input was live
    elif len(shapes) != _OUTPUTS.get(main.op, len(shapes)):
        return {}
    return {"_output_shapes": shapes} if shapes else {}


def _source(node: Node) -> dict[str, Any]:
    """Return the user's line, the file without its directory."""
    if node.loc is None:
        return {}
    place, line = f"{PurePath(node.loc.file).name}:{node.loc.line}", node.loc.source().strip()
    return {"_source": f"{place}: {line}" if line else place}


def _prefixes(found: Iterable[str]) -> set[str]:
    """Return every path and what it begins with, so that no node is called like a folder."""
    parts = [path.rstrip("/").split("/") for path in set(found) if path]
    return {"/".join(part[:count]) for part in parts for count in range(1, len(part) + 1)}
