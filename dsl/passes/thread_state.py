"""Variables as values: reads and writes of a graph become a param, and a result with what it holds afterwards.

    %w = read_variable() {variable="w"}          graph @step(%x, %w) -> (..., %y) {
    %y = multiply(%w, %x)                 ->       %y = multiply(%w, %x)
    %z = update_variable(%y) {variable="w"}        return ..., %y

So a step that touches variables compiles like any other function, and writes them in place. Regions of control flow take
and return the variables that they touch: a `while` or `scan` carries those that its body writes, a `cond` returns them.
The order of reads and writes is that of the control edges; afterwards data edges say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsl.errors import UnsupportedError
from dsl.ir.build import Builder
from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import get_op
from dsl.ir.types import ValueType

__all__ = ["Threaded", "hoist_reads", "thread_state", "variables_in"]

_WRITES = ("update_variable", "scatter_variable")
_OPS = ("read_variable", *_WRITES)
_OFFSET = {"while": 0, "scan": 1}  # of the carried values among the inputs
_MODES = {"set": "update", "add": "add"}


@dataclass(frozen=True)
class Threaded:
    """A graph whose last params are the variables it touches and whose last results those it writes, in these orders."""

    graph: Graph
    variables: tuple[str, ...]
    written: tuple[str, ...]


@dataclass
class _Touched:
    """The variables that a graph touches, in order, with their types, and those that it writes."""

    types: dict[str, ValueType]
    written: set[str]


def variables_in(graphs: Iterable[Graph]) -> _Touched:
    """Return what graphs and the regions in them touch."""
    found = _Touched({}, set())
    for graph in graphs:
        for node in graph.walk():
            if node.op.name in _OPS:
                found.types.setdefault(node.attrs["variable"], node.types[0])
                if node.op.name in _WRITES:
                    found.written.add(node.attrs["variable"])
    return found


def thread_state(graph: Graph) -> Threaded:
    """Return the graph with variables as params and results; raise UnsupportedError where that cannot be said."""
    touched = variables_in([graph])
    written = [name for name in touched.types if name in touched.written]
    made = _Walk(graph, touched.types, written).run() if touched.types else graph
    return Threaded(made, tuple(touched.types), tuple(written))


def hoist_reads(
    op: str, regions: tuple[Graph, ...]
) -> tuple[tuple[Graph, ...], dict[str, ValueType]]:
    """Take reads of variables that control flow, or a `function` that is traced by itself, only reads out of its regions.

    Return the regions with a param for each such variable after the others, and the variables with their types.
    """
    touched = variables_in(regions)
    types = {name: type for name, type in touched.types.items() if name not in touched.written}
    if not types or op not in (*_OFFSET, "cond", "function"):
        return regions, {}
    return tuple(_Walk(region, types, []).run() for region in regions), types


class _Walk:
    """Rebuilds one graph with some variables as params, after its own, and those in `written` as results, after its own."""

    def __init__(self, graph: Graph, types: Mapping[str, ValueType], written: list[str]) -> None:
        self.graph, self.written = graph, written
        self.builder = Builder(graph.name)
        self.params = {name: self.builder.param(type, name) for name, type in types.items()}
        self.current = dict(self.params)
        self.values: dict[Value, Value] = {}
        self.after: dict[Node, tuple[Node, ...]] = {}

    def run(self) -> Graph:
        for param in self.graph.params:
            self.builder.note_sizes(param)
        for node in self.graph.nodes:
            self._visit(node)
        results = [self.values.get(v, v) for v in self.graph.results]
        results += [self.current[name] for name in self.written]
        # A loop or branch that only touched variables has no effect any more.
        effects = tuple(node for node in self._moved(self.graph.effects) if has_effect(node))
        return Graph(
            self.graph.name, (*self.graph.params, *self.params.values()), tuple(results), effects
        )

    def _moved(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(new for old in nodes for new in self.after[old]))

    def _visit(self, node: Node) -> None:
        inputs = tuple(self.values.get(v, v) for v in node.inputs)
        controls = self._moved(node.controls)
        self.builder.loc = node.loc
        if node.op.name in _OPS and node.attrs["variable"] in self.current:
            self.after[node] = controls
            self.values[node.output] = self._touch(node, inputs)
            return
        touched = variables_in(node.regions)
        if not touched.types.keys().isdisjoint(self.current):
            self._thread(node, inputs, controls, touched)
            return
        made = node
        if inputs != node.inputs or controls != node.controls:
            made = _remade(node, inputs, node.types, node.regions, controls)
        self.after[node] = (made,)
        self.values.update(zip(node.outputs, made.outputs, strict=True))

    def _touch(self, node: Node, inputs: tuple[Value, ...]) -> Value:
        name, emit = node.attrs["variable"], self.builder.emit
        old = self.current[name]
        if node.op.name == "read_variable":
            return old
        how = node.attrs["how"]
        if node.op.name == "update_variable":
            new = inputs[0] if how == "set" else emit(how, old, inputs[0])
        else:
            indices, updates = inputs
            updates = emit("negative", updates) if how == "subtract" else updates
            new = emit("scatter", old, updates, indices, axes=(0,), mode=_MODES.get(how, "add"))
        self.current[name] = new
        return new

    # -- control flow -----------------------------------------------------------------------------------------------

    def _thread(
        self, node: Node, inputs: tuple[Value, ...], controls: tuple[Node, ...], touched: _Touched
    ) -> None:
        """Give a structured node the variables that its regions touch, and take back those that they write."""
        names = [name for name in touched.types if name in self.current]
        written = [name for name in names if name in touched.written]
        self._check(node, written)
        types = {name: touched.types[name] for name in names}
        test = {0} if node.op.name == "while" else set()
        regions = [
            _Walk(region, types, [] if k in test else written).run()
            for k, region in enumerate(node.regions)
        ]
        out = tuple(types[name] for name in written)
        if node.op.name == "cond":
            given = (*inputs, *(self.current[name] for name in names))
            made = _remade(node, given, (*node.types, *out), tuple(regions), controls)
        else:
            made = self._loop(node, inputs, controls, regions, names, written, out)
        count = len(node.outputs)
        self.after[node] = (made,)
        self.values.update(zip(node.outputs, made.outputs[:count], strict=True))
        self.current.update(zip(written, made.outputs[count:], strict=True))

    def _loop(
        self, node: Node, inputs: tuple[Value, ...], controls: tuple[Node, ...], regions: list[Graph],
        names: list[str], written: list[str], out: tuple[ValueType, ...],
    ) -> Node:  # fmt: skip
        """What the body writes is carried: it stands after the other carried values, what it reads at the end."""
        split = _OFFSET[node.op.name] + node.attrs["carried"]
        only_read = [name for name in names if name not in written]
        given = (
            *inputs[:split], *(self.current[name] for name in written),
            *inputs[split:], *(self.current[name] for name in only_read),
        )  # fmt: skip
        order = [names.index(name) for name in written], [names.index(name) for name in only_read]
        attrs = {**node.attrs, "carried": node.attrs["carried"] + len(written)}
        placed = tuple(_reordered(region, split, len(names), order) for region in regions)
        return _remade(node, given, (*node.types, *out), placed, controls, attrs)

    @staticmethod
    def _check(node: Node, written: list[str]) -> None:
        if node.op.name not in (*_OFFSET, "cond"):
            raise UnsupportedError(
                f"a variable is used inside `{node.op.name}`", location=node.loc,
                remedy="read it before, and assign it afterwards",
            )  # fmt: skip
        if node.op.name == "while" and not variables_in(node.regions[:1]).written.isdisjoint(
            written
        ):
            raise UnsupportedError("the condition of a loop writes a variable", location=node.loc)


def _reordered(region: Graph, split: int, count: int, order: tuple[list[int], list[int]]) -> Graph:
    own, added = region.params[: len(region.params) - count], region.params[-count:]
    params = (
        *own[:split], *(added[k] for k in order[0]), *own[split:], *(added[k] for k in order[1])
    )  # fmt: skip
    return Graph(region.name, params, region.results, region.effects)


def _remade(
    node: Node, inputs: tuple[Value, ...], types: tuple[ValueType, ...], regions: tuple[Graph, ...],
    controls: tuple[Node, ...], attrs: Mapping[str, object] | None = None,
) -> Node:  # fmt: skip
    return Node(
        get_op(node.op.name), inputs, attrs or node.attrs, types, regions, controls, node.dims, node.loc
    )  # fmt: skip
