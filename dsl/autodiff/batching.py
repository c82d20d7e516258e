"""Batching: a graph for one item becomes a graph for all items along a leading axis, which is what `vmap` is.

`batch(graph, builder, args, batched, size)` emits the nodes of a closed structured graph into a builder. An argument that
is batched has one axis more than the graph's param, in front and of `size`; the others are shared by all items. So it is
with everything computed from them: a value that depends on no batched one is computed once, without the axis.

    graph @f(%x: f64[3], %w: f64[3]) { %y = multiply(%x, %w); %z = sum(%y) {axes=(0,)}; return %z }

batched over `x` alone, with size 8:

    %y = multiply(%x, %w) : f64[8, 3];  %z = sum(%y) {axes=(1,)} : f64[8]

Each op has a rule in `dsl.autodiff.batching_rules`; one that has none runs for one item after the other, in a `scan`.

Effects: what depends on no batched value happens once. A batched `print` writes for all items in order before the next
effect happens; a batched `assert` raises for the first item that fails it.

Sizes: the symbols of the graph are its own. Each becomes a size of the builder: that of the argument, that of the value
which the graph says it has, or one that a node finds out. Sizes that differ from item to item are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsl.autodiff.batching_rules.comm import sends
from dsl.autodiff.batching_rules.table import refusal, rule_of
from dsl.autodiff.region import is_known
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, Symbol, lower_bound, substitute, symbols_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait, given_type
from dsl.ir.types import I64, Shape, TensorType, ValueType

__all__ = ["Batching", "batch", "batch_one_by_one"]

Batch = tuple[list[Value], list[bool]]
Sizes = dict[Dim, DimLike]


def batch(
    graph: Graph, builder: Builder, args: Sequence[Value], batched: Sequence[bool], size: DimLike
) -> Batch:
    """Emit a graph for all items; return its results and which of them have the batch axis in front."""
    before = builder.loc
    results = Batching(builder, size).run(graph, args, batched)
    builder.loc = before
    return results


def batch_one_by_one(
    graph: Graph, builder: Builder, args: Sequence[Value], batched: Sequence[bool], size: DimLike
) -> Batch:
    """Do the same in one loop over the items, which takes whatever `batch` refuses inside a graph.

    Only the results must be of one size for all items. What is the same for all of them is computed once, before the loop.
    """
    from dsl.autodiff.batching_rules.items import loop_over

    a = Batching(builder, size, sizes_of(graph.params, args, batched))
    found = dict(zip(graph.params, zip(args, batched, strict=True), strict=True))
    own = _items_own(graph, batched)
    a.emit((node for node in graph.nodes if node not in own), found)
    wanted = [value for value in dict.fromkeys(graph.results) if value not in found]
    types = [a.sized(value.type) for value in wanted]
    for value, type in zip(wanted, types, strict=True):
        if not is_known(builder, type):
            raise refusal(value.node, "the size of a result would differ from item to item")
    shared = list(found)

    def run(inner: Batching, given: Sequence[Value]) -> list[Value]:
        here = {value: (x, False) for value, x in zip(shared, given, strict=True)}
        inner.emit(own, here)
        return [here[value][0] for value in wanted]

    found.update(zip(wanted, zip(*loop_over(a, types, *_columns(found.values()), run))))
    return _columns(found[value] for value in graph.results)


def _items_own(graph: Graph, batched: Sequence[bool]) -> list[Node]:
    """Return the nodes that depend on the item, and those whose effects come after an effect that does."""
    moved = {param for param, on in zip(graph.params, batched, strict=True) if on}
    own: dict[Node, bool] = {}
    for node in graph.nodes:
        effect = node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions)
        late = effect and any(own.values())
        if late or sends(node) or not moved.isdisjoint(node.inputs):
            own[node] = effect
            moved.update(node.outputs)
    return list(own)


class Batching(Algebra):
    """Emits graphs into one builder, for `size` items. `sizes` says what became of the symbols met so far."""

    def __init__(
        self, builder: Builder, size: DimLike, sizes: Mapping[Dim, DimLike] | None = None
    ) -> None:
        super().__init__(builder)
        self.size, self.sizes = size, dict(sizes or {})

    def inside(self, builder: Builder) -> Batching:
        """Return the same for a region, or for a graph of its own symbols in the same builder."""
        return Batching(builder, self.size, self.sizes)

    def run(self, graph: Graph, args: Sequence[Value], batched: Sequence[bool]) -> Batch:
        """Emit a graph; return its results and which of them are batched."""
        walk = self.inside(self.builder)
        walk.sizes.update(sizes_of(graph.params, args, batched))
        found = dict(zip(graph.params, zip(args, batched, strict=True), strict=True))
        walk.emit(graph.nodes, found)
        return _columns(found[value] for value in graph.results)

    def emit(self, nodes: Iterable[Node], found: dict[Value, tuple[Value, bool]]) -> None:
        """Emit nodes, in order; `found` says what became of the values that they read, and then of theirs."""
        for node in nodes:
            outputs = self._node(node, *_columns(found[value] for value in node.inputs))
            found.update(zip(node.outputs, zip(*outputs, strict=True), strict=True))

    def _node(self, node: Node, inputs: list[Value], batched: list[bool]) -> Batch:
        self.builder.loc = node.loc
        count = len(node.data_inputs)
        self._learn_dims(node, inputs[count:], batched[count:])
        resized = self._resized(node)
        if any(batched) or sends(node):
            rule = rule_of(node.op)
            outputs, flags = rule(self, resized, inputs[:count], batched[:count], self.size)
        else:
            outputs, flags = self.copied(resized, inputs[:count]), [False] * len(node.outputs)
        found = sizes_of(node.outputs, outputs, flags)
        self.sizes.update(found if node.op.has(Trait.DYNAMIC) else {**found, **self.sizes})
        return list(outputs), list(flags)

    def copied(self, node: Node, inputs: Sequence[Value]) -> Sequence[Value]:
        """Emit a node as it is, for one item or for what all items share."""
        if any(self._renames(region) for region in node.regions):
            return rule_of(node.op)(self, node, inputs, [False] * len(inputs), self.size)[0]
        given = node.regions or node.op.has(Trait.DYNAMIC) or node.op.type is given_type
        types = node.types if given else None
        return self.builder.node(
            node.op, inputs, node.attrs, regions=node.regions, types=types, loc=node.loc
        ).outputs

    # -- the batch axis --------------------------------------------------------------------------------------------

    def repeated(self, x: Value, batched: bool) -> Value:
        """Give a value the batch axis if it has none."""
        return x if batched else self.to_shape(x, (self.size, *x.shape))

    def all_repeated(self, xs: Sequence[Value], batched: Sequence[bool]) -> list[Value]:
        return [self.repeated(x, on) for x, on in zip(xs, batched, strict=True)]

    def of_rank(self, x: Value, rank: int, batched: bool = True) -> Value:
        """Give the items of a batched value axes of size 1 in front, up to a rank; others broadcast as they are."""
        return self.expanded(x, range(1, rank + 2 - len(x.shape))) if batched else x

    def aligned(self, xs: Sequence[Value], batched: Sequence[bool]) -> list[Value]:
        """Make values broadcast together item by item."""
        rank = max(len(x.shape) - on for x, on in zip(xs, batched))
        return [self.of_rank(x, rank, on) for x, on in zip(xs, batched)]

    def stacked(self, type: ValueType) -> TensorType:
        """Return the type of a batch of items of a type."""
        assert isinstance(type, TensorType)
        return type.with_shape((self.size, *type.shape))

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _learn_dims(self, node: Node, values: list[Value], batched: list[bool]) -> None:
        """Find out the symbols whose sizes are among a node's inputs."""
        if any(batched):
            raise refusal(node, "a size in it would differ from item to item")
        for symbol, value in zip(node.dims, values, strict=True):
            if symbol not in self.sizes:
                self.sizes[symbol] = self._name(symbol, value)

    def _name(self, symbol: Dim, value: Value) -> DimLike:
        """Return what to call a size that the graph calls `symbol`; its own name, unless that is taken."""
        if knows(self.builder, symbol):
            return self.builder.as_dim(value)
        self.builder.bind(symbol, value)
        return symbol

    def _renames(self, graph: Graph) -> bool:
        """Tell whether something in a region has a size that has another name here."""
        moved = {symbol for symbol, dim in self.sizes.items() if symbol != dim}
        if not moved:
            return False
        types = [v.type for node in graph.walk() for v in (*node.inputs, *node.outputs)]
        found = symbols_of(*(d for t in types if isinstance(t, TensorType) for d in t.shape))
        return not moved.isdisjoint(found)

    def _resized(self, node: Node) -> Node:
        """Return a node whose attributes and types speak of the builder's sizes."""
        if node.regions or node.op.has(Trait.DYNAMIC):
            self.invent(node.types)
        attrs = {name: self.sized(attr) for name, attr in node.attrs.items()}
        types = tuple(map(self.sized, node.types))
        return Node(node.op, node.inputs, attrs, types, node.regions, loc=node.loc)

    def invent(self, types: Iterable[ValueType]) -> None:
        """Name the sizes that nothing before has given."""
        for type in types:
            for symbol in symbols_of(*type.shape) if isinstance(type, TensorType) else ():
                if symbol not in self.sizes:
                    taken = knows(self.builder, symbol)
                    fresh = Symbol(str(symbol), lower_bound(symbol) or 0)
                    self.sizes[symbol] = fresh if taken else symbol

    def sized(self, item: Any) -> Any:
        """Return an attribute or type of the graph with the builder's sizes."""
        if isinstance(item, TensorType):
            return item.with_shape(self.sized(item.shape))
        if isinstance(item, tuple):
            return tuple(map(self.sized, item))
        return substitute(item, self.sizes) if isinstance(item, Dim) else item


def knows(builder: Builder, symbol: Dim) -> bool:
    """Tell whether a builder, or one around it, knows a size by a symbol."""
    return is_known(builder, TensorType(I64, (symbol,)))


def _columns(pairs: Iterable[tuple[Value, bool]]) -> Batch:
    listed = list(pairs)
    return [value for value, _ in listed], [on for _, on in listed]


def sizes_of(general: Sequence[Value], special: Sequence[Value], batched: Sequence[bool]) -> Sizes:
    """Return the sizes that the symbols of old values have in the values that took their place."""
    sizes: Sizes = {}
    for old, new, on in zip(general, special, batched, strict=True):
        if isinstance(old.type, TensorType) and not old.type.is_static():
            _match(old.shape, new.shape[int(on) :], sizes)
    return sizes


def _match(general: Shape, special: Shape, sizes: Sizes) -> None:
    for dim, size in zip(general, special, strict=True):
        if isinstance(dim, Dim) and symbols_of(dim) == [dim]:
            sizes.setdefault(dim, size)
