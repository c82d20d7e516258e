"""Builders of regions, for transformations that make new loop bodies and branches from old ones.

A `Region` reads values of the builder around it by capturing them as params. Its params come in any order; `graph` puts
them into the one that its node wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsl.autodiff.flow import is_joined
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, Symbol, symbols_of
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.registry import Op, Trait
from dsl.ir.types import I64, TensorType, ValueType, scalar

__all__ = [
    "Region",
    "bind_trips",
    "copy_node",
    "inline",
    "is_dropped",
    "is_known",
    "rows_of",
    "types_after",
]


class Region(Builder):
    """A region of a node that `parent` will get. `captured` maps values of the parent to the params they come in by."""

    def __init__(self, name: str, parent: Builder) -> None:
        super().__init__(name)
        self.parent = parent
        self.captured: dict[Value, Value] = {}
        self._own: set[Value] = set()

    def param(self, type: ValueType, name: str = "") -> Value:
        value = super().param(type, name)
        self._own.add(value)
        return value

    def node(self, op: Op | str, inputs: Iterable[Value], attrs: Attrs, **options: Any) -> Node:
        made = super().node(op, tuple(map(self.local, inputs)), attrs, **options)
        self._own.update(made.outputs)
        return made

    def owns(self, value: Value) -> bool:
        return value in self._own

    def local(self, value: Value) -> Value:
        """Return a value of this region or of a builder around it as one of this region."""
        return value if value in self._own else self.capture(value)

    def capture(self, value: Value) -> Value:
        """Bring in a value from outside."""
        if value.node.op.name == "const":
            return self.node(value.node.op, (), value.node.attrs, loc=value.node.loc).output
        if value not in self.captured:
            self.captured[value] = self.param(value.type)
        return self.captured[value]

    def size(self, dim: DimLike) -> Value:
        return self.local(super().size(dim))  # it may be bound to a value from outside

    def outer_size(self, symbol: Dim) -> Value:
        return self.local(self.parent.size(symbol))

    def graph(self, params: Sequence[Value], results: Iterable[Value]) -> Graph:
        """Finish with these params and, after them, the captured values."""
        done = self.finish([self.local(value) for value in results])
        order = (*params, *self.captured.values())
        return Graph(self.name, order, done.results, done.effects)


def is_known(builder: Builder | None, type: ValueType) -> bool:
    """Tell whether a builder, or one around it, can give the sizes in a type."""
    if not isinstance(type, TensorType):
        return False
    symbols = symbols_of(*type.shape)
    return all(_knows(builder, symbol) for symbol in symbols)


def _knows(builder: Builder | None, symbol: Dim) -> bool:
    while builder is not None:
        if builder.knows(symbol):
            return True
        builder = getattr(builder, "parent", None)
    return False


def copy_node(
    builder: Builder, node: Node, values: Mapping[Value, Value], *, effects: bool = True
) -> Node:
    """Add a node of another graph, its inputs replaced; without its effects, if they must not happen again."""
    inputs = tuple(values[value] for value in node.inputs)
    regions = node.regions if effects else tuple(map(without_effects, node.regions))
    same = all(new.type == old.type for new, old in zip(inputs, node.inputs, strict=True))
    types = node.types if same or node.regions or node.op.has(Trait.DYNAMIC) else None
    made = builder.node(
        node.op, inputs, node.attrs, regions=regions, types=types, dims=node.dims, loc=node.loc
    )
    for symbol, value in zip(
        node.dims, made.inputs[len(made.inputs) - len(node.dims) :], strict=True
    ):
        builder.bind(symbol, value)
    bind_trips(builder, made)
    return made


def bind_trips(builder: Builder, node: Node) -> None:
    """Say that the stacks of a recorded loop have a row for each trip."""
    if node.op.name not in ("recording_while", "recording_scan"):
        return
    rows = rows_of(node)
    if not isinstance(rows, Dim) or symbols_of(rows) != [rows]:
        return
    for trips in _counters(node) if node.op.name == "recording_while" else node.inputs[:1]:
        builder.bind(rows, trips)


def _counters(node: Node) -> list[Value]:
    """Return what a `while` counts its trips in, the newest first: every derivative adds one, and loops over them use their own."""
    body, count = node.regions[-1], node.attrs["carried"]
    return [
        node.outputs[k]
        for k in reversed(range(count))
        if _is_constant(node.inputs[k], 0) and _is_next(body.results[k], body.params[k])
    ]


def _is_next(value: Value, before: Value) -> bool:
    if value.node.op.name != "add" or value.type != scalar(I64):
        return False
    first, second = value.node.inputs
    return first == before and _is_constant(second, 1)


def _is_constant(value: Value, number: int) -> bool:
    if value.node.op.name != "const" or value.type != scalar(I64):
        return False
    return int(value.node.attrs["value"].array) == number


def rows_of(node: Node) -> DimLike | None:
    """Return how many rows the stacks of a loop have, or None if it has no stacks."""
    count = node.attrs["carried"]
    stacks = (v for k, v in enumerate(node.outputs) if k >= count and not is_joined(node, k))
    return next((v.shape[0] for v in stacks), None)


def types_after(params: Sequence[Value], results: Sequence[ValueType]) -> list[ValueType]:
    """Return the types of carried values after some trips: sizes that the loop changes are new ones, equal ones equal."""
    new: dict[tuple[DimLike, DimLike], DimLike] = {}

    def moved(before: DimLike, after: DimLike) -> DimLike:
        return before if before == after else new.setdefault((before, after), Symbol("d"))

    return [
        param.tensor.with_shape(map(moved, param.shape, type.shape))
        if isinstance(type, TensorType)
        else type
        for param, type in zip(params, results, strict=True)
    ]


def is_dropped(node: Node) -> bool:
    """Tell whether a node does not happen again where its graph is run again; what other ranks take part in does."""
    return node.op.has(Trait.EFFECT) and not node.op.has(Trait.COLLECTIVE)


def without_effects(graph: Graph) -> Graph:
    """Return a region without what it prints and asserts."""
    if not graph.effects:
        return graph
    builder = Builder(graph.name)
    values = {param: builder.param(param.type, param.node.attrs["name"]) for param in graph.params}
    for node in graph.nodes:
        if is_dropped(node):
            continue
        made = copy_node(builder, node, values, effects=False)
        values.update(zip(node.outputs, made.outputs, strict=True))
    return builder.finish(values[value] for value in graph.results)


def inline(
    builder: Builder, graph: Graph, args: Sequence[Value], *, effects: bool = True
) -> list[Value]:
    """Copy the nodes of a graph into a builder; return its results."""
    values = dict(zip(graph.params, args, strict=True))
    for node in graph.nodes:
        if not effects and is_dropped(node):
            continue
        made = copy_node(builder, node, values, effects=effects)
        values.update(zip(node.outputs, made.outputs, strict=True))
    return [values[value] for value in graph.results]
