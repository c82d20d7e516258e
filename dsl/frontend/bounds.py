"""Exceptions that no op of the program would raise: of indices out of bounds, and of ops whose result nothing uses.

Ops that read or write at places which the data tells check them, element by element. Nothing does so where what they make is not
used, and so is no part of the program, or has no elements: there the program gets checks of its own. What a loop makes may turn
out to be unused when the whole function is traced. So each region checks all such places that the user's code names, and `settle`
takes out the checks of those that the program does read or write. What is used costs nothing more. Likewise each op that may raise
is kept, and `settle` lets go those of which something is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dsl.ir.build import Builder
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.liveness import Structured, is_structured, live_values
from dsl.ir.location import Location
from dsl.ir.registry import Trait
from dsl.ir.types import I64, size_of

__all__ = ["Place", "check", "check_unused", "require_inside", "settle"]


@dataclass(frozen=True)
class Place:
    """An index along an axis: the op that reads or writes there takes it as `given`. `dims` all are the length of the axis."""

    index: Value
    given: Value
    axis: int
    dims: tuple[DimLike, ...]
    size: int | Value
    loc: Location | None

    def is_in(self, spots: Collection[Spot], values: Mapping[Value, Value]) -> bool:
        """Tell whether some op goes there; `values` says what became of values."""
        found = [values.get(v, v) for v in (self.index, self.given)]
        return any((v, dim) in spots for v in found for dim in self.dims)


Spot = tuple[Value, DimLike]
"""An index and the length of the axis that an op applies it to."""


@dataclass(frozen=True)
class _Work:
    """What a graph does: where it goes, and the values that it computes; `became` says what became of values."""

    spots: Collection[Spot]
    live: Collection[Value]
    became: Mapping[Value, Value]

    def includes(self, item: Place | Node | None) -> bool:
        if item is None:
            return True
        if isinstance(item, Place):
            return item.is_in(self.spots, self.became)
        return any(self.became.get(value, value) in self.live for value in item.outputs)


def check_unused(b: Builder, noted: list[Place | Node], graph: Graph) -> bool:
    """Make the program check the places where the graph does not go, and run the ops that are not in it; tell whether there are any."""
    computed = {value for node in graph.nodes for value in node.outputs}
    work = _Work(set(_spots(graph, None)), computed, {})
    unused = [item for item in dict.fromkeys(noted) if not work.includes(item)]
    for item in unused:
        check(b, item)
    return bool(unused)


def settle(graph: Graph, checks: dict[Node, Place | Node | None]) -> Graph:
    """Return a traced function without those checks of which an op that is used does the work; they are None from then on.

    What derivatives make unused afterwards so stays unchecked.
    """
    doubtful = {node: checks[node] for node in graph.walk() if node in checks}
    if not doubtful:
        return graph
    values: dict[Value, Value] = {}
    bare = _without(graph, doubtful, values)
    live = live_values(bare)
    work = _Work(set(_spots(bare, live)), live, values)
    done = {node for node, item in doubtful.items() if work.includes(item)}
    checks.update(dict.fromkeys(done))
    return bare if len(done) == len(doubtful) else _without(graph, done, {})


def _spots(graph: Graph, live: set[Value] | None) -> Iterator[Spot]:
    """Yield where the live ops of a graph and its regions go: a view is often made outside of the region that reads it."""
    outer: dict[Value, Value] = {}
    for node in graph.walk():
        if is_structured(node):
            view = Structured(node)
            outer.update(
                (r.params[k], view.operands[k]) for r in node.regions for k in view.invariants
            )
        if live is None or any(value in live for value in node.outputs):
            for index, dim in _own_spots(node):
                yield index, dim
                while index in outer:
                    index = outer[index]
                    yield index, dim


def _own_spots(node: Node) -> list[Spot]:
    first = {"gather": 1, "scatter": 2}.get(node.op.name)
    if first is None:
        return []
    shape, axes = node.inputs[0].shape, node.attrs["axes"]
    return [(index, shape[axis]) for index, axis in zip(node.inputs[first:], axes, strict=False)]


def _without(graph: Graph, gone: Collection[Node], values: dict[Value, Value]) -> Graph:
    """Return a graph without some checks, nor the order that they gave to loops and branches; `values` is told what values became."""
    after: dict[Node, tuple[Node, ...]] = {}

    def moved(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(new for old in nodes for new in after[old]))

    for node in graph.nodes:
        before = moved(node.controls)
        if node in gone:
            after[node] = before
            continue
        regions = tuple(_without(region, gone, values) for region in node.regions)
        idle = not node.op.has(Trait.EFFECT) and _acts(node.regions) and not _acts(regions)
        new = _changed(node, values, regions, () if idle else before)
        after[node] = before if idle else (new,)
        values.update(zip(node.outputs, new.outputs, strict=True))
    results = tuple(values.get(value, value) for value in graph.results)
    effects = moved(graph.effects)
    if (results, effects) == (graph.results, graph.effects):
        return graph
    return Graph(graph.name, graph.params, results, effects)


def _acts(regions: tuple[Graph, ...]) -> bool:
    return any(region.effects for region in regions)


def _changed(
    node: Node, values: Mapping[Value, Value], regions: tuple[Graph, ...], controls: tuple[Node, ...]
) -> Node:  # fmt: skip
    inputs = tuple(values.get(value, value) for value in node.inputs)
    same = all(a is b for a, b in zip(regions, node.regions, strict=True))
    if same and (inputs, controls) == (node.inputs, node.controls):
        return node
    return Node(node.op, inputs, node.attrs, node.types, regions, controls, node.dims, node.loc)


def check(b: Builder, item: Place | Node) -> Node:
    """Make the program raise if a place is not in its axis, or what an op raises; return the node that does."""
    around, b.loc = b.loc, item.loc
    made = b.node("keep", item.outputs, {}) if isinstance(item, Node) else _check_place(b, item)
    b.loc = around
    return made


def _check_place(b: Builder, place: Place) -> Node:
    size = b.constant(place.size, I64) if isinstance(place.size, int) else place.size
    message = f"index {{}} is out of bounds for axis {place.axis} with size {{}}"
    return require_inside(b, place.index, b.emit("negative", size), size, message)


def require_inside(b: Builder, index: Value, low: Value, size: Value, message: str) -> Node:
    """Make the program raise unless integers are at least `low` and less than `size`; the message shows the first that is not."""
    if index.dtype != I64:
        index = b.emit("cast", index, dtype=I64)
    if index.shape:
        index, inside = _first_outside(b, _as_vector(b, index), low, size)
    else:
        inside = _is_inside(b, index, low, size)
    return b.node("assert", (inside, index, size), {"message": message, "error": "IndexError"})


def _as_vector(b: Builder, index: Value) -> Value:
    return (
        index if len(index.shape) == 1 else b.emit("reshape", index, shape=(size_of(index.shape),))
    )


def _is_inside(b: Builder, index: Value, low: Value, size: Value) -> Value:
    return b.emit("logical_and", b.emit("less_equal", low, index), b.emit("less", index, size))


def _first_outside(b: Builder, indices: Value, low: Value, size: Value) -> tuple[Value, Value]:
    """Return the first of a vector of indices that is outside, which the message names, and whether all are inside."""
    low, high = (b.emit("broadcast_to", bound, shape=indices.shape) for bound in (low, size))
    inside = _is_inside(b, indices, low, high)
    outside = b.emit("cast", b.emit("logical_not", inside), dtype=I64)
    one = b.emit("broadcast_to", b.constant(1, I64), shape=indices.shape)
    is_first = b.emit("equal", b.emit("cumsum", outside, axis=0), one)
    first = b.emit(
        "cast", b.emit("logical_and", is_first, b.emit("logical_not", inside)), dtype=I64
    )
    found = b.emit("sum", b.emit("multiply", first, indices), axes=(0,))
    return found, b.emit("all", inside, axes=(0,))
