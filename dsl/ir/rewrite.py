"""Rewriting graphs: the walk that all passes share, and algebraic rules as data.

`rebuild(graph, rewrite)` visits the nodes of a graph, producers first, and lets `rewrite(builder, node)` replace each.
The node comes with its inputs, controls and regions already rewritten. What `rewrite` returns stands for the outputs:
one value for each, of the same type, or None for an output that nothing reads. Returning None keeps the node. Nodes
whose inputs did not change stay the same objects, and so does a graph in which nothing was replaced.

A node that has control edges, or that one points to, is pinned: only structured control flow is offered for
replacement then, and `Rewriter.stand_in` says which nodes take its place in the ordering.

Rules are data, titled by their algebra:

    Rule("x + 0 -> x", p.add(x, 0), x, when=integers)

The left side is a pattern of ops, variables and numbers; a number matches a constant of exactly that value, -0.0 and
0.0 being different, in any splatted form. The right side is a variable, a number, a pattern to build, or a function of
the `Match`. `apply_rules` indexes rules by op and applies them bottom-up to a fixpoint. A rule applies only if the
result keeps the type of what it replaces and no run-time check of sizes is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dsl.errors import InternalError, ShapeError
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, lower_bound, substitute, symbols_of
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.registry import Op, Trait, placement_of
from dsl.ir.types import TensorType, is_inexact, is_integer

__all__ = [
    "Apply", "Match", "Patterns", "Rewrite", "Rewriter", "Rule", "Var", "apply_rules", "commutes", "constant_of",
    "fits", "has_effect", "is_flat", "is_total", "rebuild", "splat_of", "variables", "with_params",
]  # fmt: skip

Rewrite = Callable[["Rewriter", Node], Sequence[Value | None] | None]


class UnknownSize(Exception):
    """A size that nothing in the graph gives."""


# -- the walk -----------------------------------------------------------------------------------------------------


class Rewriter(Builder):
    """Builds what replaces the nodes of one graph. `memo` is for the pass; `origin` is the old node being visited."""

    def __init__(
        self,
        graph: Graph,
        rewrite: Rewrite,
        values: Mapping[Value, Value] | None = None,
        nested: bool = True,
    ) -> None:
        super().__init__(graph.name)
        self.memo: dict[Any, Any] = {}
        self.nested = nested
        self.flat = is_flat(graph)
        self.origin: Node
        self.graph, self._rewrite = graph, rewrite
        self._values: dict[Value, Value] = dict(values or {})
        self._after: dict[Node, tuple[Node, ...]] = {}
        self._stand_ins: dict[Node, tuple[Node, ...]] = {}
        self._adopted: list[Node] = []
        self._pinned = _pinned(graph)
        for param in graph.params:
            self.note_sizes(self._values.get(param, param))

    def run(self, results: Iterable[Value], params: tuple[Value, ...]) -> Graph:
        """Return the graph from `params` to what became of `results`; the same object if nothing changed."""
        for node in self.graph.nodes:
            self._visit(node)
        old, ended = self.graph, tuple(results)
        found = tuple(self._values.get(value, value) for value in ended)
        effects = self._moved_nodes(old.effects)
        back = {
            self._after[merge][0]: self._values.get(value, value)
            for merge, value in old.back.items()
        }
        same = (
            params == old.params
            and found == old.results
            and effects == old.effects
            and back == old.back
        )
        return old if same else Graph(old.name, params, found, effects, back)

    def _visit(self, node: Node) -> None:
        self.origin, self.loc, self.placement = node, node.loc, placement_of(node)
        moved = self._moved(node)
        outputs = None if node in self._pinned and not node.regions else self._rewrite(self, moved)
        if self.placement and outputs is not None and not self._stays(outputs):
            outputs = None
        if outputs is None:
            self.adopt(moved)
        after = (moved,) if outputs is None else _makers(outputs, moved)
        self._after[node] = self._stand_ins.pop(moved, after)
        for old, new in zip(
            node.outputs, moved.outputs if outputs is None else outputs, strict=True
        ):
            self._replace(old, new)

    def _stays(self, outputs: Sequence[Value | None]) -> bool:
        """Tell whether what replaces a node with a place is in that place."""
        device = self.placement.get("device")
        return all(
            v is None or v.node.op.name == "const" or v.node.attrs.get("device") == device
            for v in outputs
        )

    def _replace(self, old: Value, new: Value | None) -> None:
        if new is None or new is old:
            return
        if new.type != old.type:
            raise InternalError(
                f"a rewrite of {old.node.op.name} turned {old.type} into {new.type}"
            )
        self._values[old] = new

    def _moved(self, node: Node) -> Node:
        """Return the node with what it refers to replaced; the same node if that changes nothing."""
        inputs = tuple([self._values.get(value, value) for value in node.inputs])
        controls = self._moved_nodes(node.controls)
        regions = node.regions
        if regions and self.nested:
            regions = tuple([rebuild(region, self._rewrite) for region in regions])
        same = regions is node.regions or _all_same(regions, node.regions)
        if inputs == node.inputs and controls == node.controls and same:
            return node
        return _with(node, inputs, regions, controls)

    def _moved_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if not nodes:
            return ()
        return tuple(dict.fromkeys(new for old in nodes for new in self._after[old]))

    def became(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that are in the place of one of the old graph, after `run`."""
        return self._after[node]

    # -- for rewrites ----------------------------------------------------------------------------------------------

    def adopt(self, node: Node) -> Node:
        """Take in a finished node: later nodes may share it and read sizes from it. Return it."""
        if not self.flat:
            if node.dims:
                sizes = node.inputs[len(node.inputs) - len(node.dims) :]
                for symbol, value in zip(node.dims, sizes, strict=True):
                    self.bind(symbol, value)
            for value in node.outputs:
                self.note_sizes(value)
            if not node.regions and node.op.has(Trait.PURE):
                self._adopted.append(node)
        return node

    def node(self, op: Op | str, inputs: Iterable[Value], attrs: Attrs, **options: Any) -> Node:
        """Add a node, or return one that was taken in. Those are made known only here: most rewrites add none."""
        for old in self._adopted:
            key = tuple(sorted(old.attrs.items(), key=lambda kv: kv[0]))
            self._interned.setdefault((old.op.name, old.inputs, key, old.controls), old)
        self._adopted.clear()
        return super().node(op, inputs, attrs, **options)

    @cached_property
    def read(self) -> set[Value]:
        """The values of the old graph that a node in it reads."""
        return {value for node in self.graph.nodes for value in node.inputs}

    def stand_in(self, node: Node, nodes: Iterable[Node]) -> None:
        """Say which nodes take the place of `node` in control edges and among the effects."""
        self._stand_ins[node] = tuple(nodes)

    def make(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """Emit a node and rewrite it at once."""
        node = self.node(op, inputs, attrs)
        found = self._rewrite(self, node)
        return node.output if found is None or found[0] is None else found[0]

    def inline(
        self, graph: Graph, args: Sequence[Value], controls: tuple[Node, ...]
    ) -> tuple[list[Value], list[Node]]:
        """Copy a region's nodes here; return its results and effects. Its first effects come after `controls`."""
        values, copies = dict(zip(graph.params, args, strict=True)), dict[Node, Node]()
        pinned = _pinned(graph)
        for node in graph.nodes:
            before = tuple(copies[control] for control in node.controls)
            copies[node] = self.copy(node, values, before or (controls if node in pinned else ()))
            values.update(zip(node.outputs, copies[node].outputs, strict=True))
        return [values[value] for value in graph.results], [copies[node] for node in graph.effects]

    def copy(
        self, node: Node, values: Mapping[Value, Value], controls: tuple[Node, ...] = ()
    ) -> Node:
        """Add a node of another graph here, its inputs replaced by `values`."""
        inputs = tuple(values[value] for value in node.inputs)
        if node.op.has(Trait.PURE) and not node.regions:
            made = self.node(
                node.op, inputs, node.attrs,
                types=node.types, controls=controls, dims=node.dims, loc=node.loc,
            )  # fmt: skip
            if made.types == node.types:
                return made
        return self.adopt(_with(node, inputs, node.regions, controls))

    def outer_size(self, symbol: Dim) -> Value:
        raise UnknownSize(symbol)


def rebuild(graph: Graph, rewrite: Rewrite) -> Graph:
    """Return the graph with nodes replaced by what `rewrite` says, in its regions too; the same if nothing changed."""
    return Rewriter(graph, rewrite).run(graph.results, graph.params)


def with_params(
    region: Graph,
    params: Sequence[Value],
    results: Iterable[Value],
    values: Mapping[Value, Value] | None = None,
) -> Graph:
    """Return a region with fresh params in place of the values `params`, and other results.

    `params` may name inner values, which are then given from outside, and values of other graphs, which nothing here
    reads. `values` maps other values of the region to those that replace them.
    """
    builder = Builder(region.name)
    mapping: dict[Value, Value] = {}
    for value in params:
        builder.loc = value.node.loc
        mapping.setdefault(value, builder.param(value.type, _hint(value)))
    for old, new in (values or {}).items():
        mapping[old] = mapping.get(new, new)
    rewriter = Rewriter(region, lambda b, node: _given(b, mapping), mapping, nested=False)
    return rewriter.run(results, tuple(builder.params))


def _given(builder: Rewriter, mapping: Mapping[Value, Value]) -> list[Value | None] | None:
    """Replace a node whose outputs are given from outside."""
    outputs = builder.origin.outputs
    return [mapping.get(v) for v in outputs] if any(v in mapping for v in outputs) else None


def _hint(value: Value) -> str:
    return str(value.node.attrs.get("name", value.node.op.name))


def _with(
    node: Node, inputs: tuple[Value, ...], regions: tuple[Graph, ...], controls: tuple[Node, ...]
) -> Node:
    return Node(node.op, inputs, node.attrs, node.types, regions, controls, node.dims, node.loc)


def _pinned(graph: Graph) -> set[Node]:
    found = set(graph.effects)
    for node in graph.nodes:
        if node.controls:
            found.update(node.controls)
            found.add(node)
    return found


def _makers(outputs: Sequence[Value | None], node: Node) -> tuple[Node, ...]:
    made = [v.node for v in outputs if v is not None and v.node.op.name != "param"]
    return tuple(dict.fromkeys([*made, *node.controls]))


def _all_same(some: tuple[Graph, ...], others: tuple[Graph, ...]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


# -- facts about nodes --------------------------------------------------------------------------------------------


def is_flat(graph: Graph) -> bool:
    """Tell whether a graph spells control flow with tokens, some of which may be dead."""
    return any(node.op.has(Trait.FLAT) for node in graph.nodes)


def has_effect(node: Node) -> bool:
    """Tell whether a node or one in its regions has an effect."""
    return node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions)


def constant_of(value: Value) -> np.ndarray | None:
    """Return the array of a constant."""
    node = value.node
    return node.attrs["value"].array if node.op.name == "const" and not node.controls else None


def splat_of(value: Value) -> np.ndarray | None:
    """Return, as a rank-0 array, the one value that all elements are known to have."""
    while value.node.op.name in ("full", "broadcast_to") and not value.node.controls:
        value = value.node.inputs[0]
    array = constant_of(value)
    if array is None or array.ndim == 0:
        return array
    if not 0 < array.size <= 4096:
        return None
    first = array.reshape(-1)[:1]
    return first.reshape(()) if array.tobytes() == first.tobytes() * array.size else None


# Ops whose float results do not depend on the order of the operands. Maxima and minima of +0.0 and -0.0 do, and so do
# the roundings of complex products and of the transcendental functions.
_SYMMETRIC = frozenset(
    {"add", "multiply", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
)


def commutes(node: Node) -> bool:
    """Tell whether swapping the first two inputs leaves every bit of the result as it is."""
    if not node.op.has(Trait.COMMUTATIVE):
        return False
    dtype = node.inputs[0].dtype
    if dtype.kind == "c" and node.op.name == "multiply":
        return False
    return not is_inexact(dtype) or node.op.name in _SYMMETRIC


def is_total(node: Node) -> bool:
    """Tell whether a node, run on any data of its input types, ends without an exception or effect."""
    if not node.op.has(Trait.PURE) or node.op.has(Trait.FLAT):
        return False
    if node.regions:
        return node.op.name != "while" and all(
            is_total(inner) for region in node.regions for inner in region.nodes
        )
    return fits(node) and (not node.op.has(Trait.CHECKED) or _is_safe(node))


def _is_safe(node: Node) -> bool:
    """Tell whether a CHECKED node cannot raise."""
    safe = _SAFE.get(node.op.name)
    return safe is not None and safe(node)


def _safe_power(node: Node) -> bool:
    exponent = node.inputs[1]
    if not is_integer(exponent.dtype):
        return True
    array = constant_of(exponent)
    return exponent.dtype.kind == "u" or (array is not None and bool(np.all(array >= 0)))


def _safe_extremum(node: Node) -> bool:
    """The maximum of nothing raises."""
    axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    return all((lower_bound(node.inputs[0].shape[axis]) or 0) > 0 for axis in axes)


# CHECKED ops -> when they cannot raise.
_SAFE: dict[str, Callable[[Node], bool]] = {
    "power": _safe_power,
    **dict.fromkeys(("max", "min", "argmax", "argmin"), _safe_extremum),
}


def fits(node: Node) -> bool:
    """Tell whether the shapes fit whatever the symbolic sizes are, so that no check is left for run time."""
    if "start" in node.attrs and "step" in node.attrs and not _box_fits(node):
        return False
    shapes = [v.type.shape for v in node.data_inputs if isinstance(v.type, TensorType)]
    symbols = symbols_of(
        *(dim for shape in shapes for dim in shape), *_attr_dims(node.attrs.values())
    )
    if not symbols:
        return True
    # Sizes that have nothing in common: what the type rule accepts of these it accepts of all.
    sizes: dict[Dim, DimLike] = {symbol: 10007 + 2 * k * k for k, symbol in enumerate(symbols)}
    try:
        types = tuple(_sized(value.type, sizes) for value in node.data_inputs)
        node.op.type(types, {name: _sized(attr, sizes) for name, attr in node.attrs.items()})
    except ShapeError:
        return False
    return all(_at_least_zero(dim) for dim in _attr_dims(node.attrs.values()))


def _at_least_zero(dim: DimLike) -> bool:
    bound = lower_bound(dim)
    return bound is not None and bound >= 0


def _attr_dims(attrs: Iterable[Any]) -> list[Dim]:
    found: list[Dim] = []
    for attr in attrs:
        found.extend(
            [attr] if isinstance(attr, Dim) else _attr_dims(attr) if isinstance(attr, tuple) else []
        )
    return found


def _sized(item: Any, sizes: Mapping[Dim, DimLike]) -> Any:
    if isinstance(item, TensorType):
        return item.with_shape(substitute(dim, sizes) for dim in item.shape)
    if isinstance(item, Dim):
        return substitute(item, sizes)
    return tuple(_sized(part, sizes) for part in item) if isinstance(item, tuple) else item


def _box_fits(node: Node) -> bool:
    """Tell whether the box of a `slice` or `update_slice` lies inside x."""
    if not isinstance(node.attrs["start"], tuple):
        return True
    size = node.attrs.get("size") or node.inputs[1].shape
    spans = zip(node.inputs[0].shape, node.attrs["start"], size, node.attrs["step"], strict=True)
    return all(_span_fits(*span) for span in spans)


def _span_fits(dim: DimLike, start: DimLike, size: DimLike, step: int) -> bool:
    if size == 0:
        return True
    if step == 1 and _at_least_zero(size):
        return _at_least_zero(start) and _at_least_zero(dim - start - size)
    last = start + (size - 1) * step
    return all(map(_at_least_zero, (start, last, dim - 1 - start, dim - 1 - last)))


# -- rules as data ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Var:
    """Matches any value; twice the same variable, the same value."""

    name: str


@dataclass(frozen=True)
class Apply:
    """Matches an op applied to what the arguments match; commutative ops match in either order."""

    op: str
    args: tuple[Pattern, ...]


Pattern = Var | Apply | int | float | bool


class Patterns:
    """`p.add(x, 0)` is the pattern of `add`; a Python keyword takes an underscore."""

    def __getattr__(self, name: str) -> Callable[..., Apply]:
        return lambda *args: Apply(name.rstrip("_"), args)


def variables(names: str) -> tuple[Var, ...]:
    """Return variables with the given names, separated by spaces."""
    return tuple(map(Var, names.split()))


@dataclass(frozen=True)
class Match:
    """A node that the left side of a rule fits, and what its variables stand for."""

    builder: Rewriter
    node: Node
    bound: Mapping[str, Value]

    def __getitem__(self, var: Var) -> Value:
        return self.bound[var.name]

    @property
    def type(self) -> TensorType:
        return self.node.output.tensor

    def splat(self, number: Any) -> Value:
        """Return a value of the node's type all of whose elements are `number`."""
        value = self.builder.constant(np.asarray(number, dtype=self.type.dtype))
        return (
            value
            if not self.type.shape
            else self.builder.make("full", value, shape=self.type.shape)
        )

    def make(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return self.builder.make(op, *inputs, **attrs)


@dataclass(frozen=True)
class Rule:
    """`left -> right` where `when` holds. See the head of this file."""

    title: str
    left: Apply
    right: Pattern | Callable[[Match], Value | None]
    when: Callable[[Match], bool] = lambda match: True

    def apply(self, builder: Rewriter, node: Node) -> Value | None:
        """Return what replaces the output of a node, or None."""
        if builder.flat and not self.keeps_deadness():
            return None
        for bound in _matches(self.left, node, {}):
            match = Match(builder, node, bound)
            if self.when(match) and fits(node):
                found = self._build(match)
                if found is not None and found.type == node.types[0] and found is not node.output:
                    return found
        return None

    def _build(self, match: Match) -> Value | None:
        try:
            return self.right(match) if callable(self.right) else _build(self.right, match)
        except UnknownSize:
            return None

    def keeps_deadness(self) -> bool:
        """Tell whether both sides are dead for the same tokens, which only the same variables on both assure."""
        if callable(self.right):
            return False
        left, right = _leaves(self.left), _leaves(self.right)
        return {v for v in left if isinstance(v, Var)} == set(right)


def _leaves(pattern: Pattern) -> list[Any]:
    return (
        [leaf for arg in pattern.args for leaf in _leaves(arg)]
        if isinstance(pattern, Apply)
        else [pattern]
    )


def _build(pattern: Pattern, match: Match) -> Value:
    if isinstance(pattern, Var):
        return match[pattern]
    if isinstance(pattern, Apply):
        return match.make(pattern.op, *(_build(arg, match) for arg in pattern.args))
    return match.splat(pattern)


def _matches(pattern: Apply, node: Node, bound: dict[str, Value]) -> list[dict[str, Value]]:
    """Return the ways in which a node fits a pattern."""
    data = node.data_inputs
    if (
        node.op.name != pattern.op
        or node.controls
        or len(node.types) != 1
        or len(data) != len(pattern.args)
    ):
        return []
    orders = [data, (data[1], data[0], *data[2:])] if len(data) > 1 and commutes(node) else [data]
    return [ways for order in orders for ways in _match_all(pattern.args, order, bound)]


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[Value], bound: dict[str, Value]
) -> list[dict[str, Value]]:
    ways = [bound]
    for pattern, value in zip(patterns, values, strict=True):
        ways = [more for way in ways for more in _match(pattern, value, way)]
    return ways


def _match(pattern: Pattern, value: Value, bound: dict[str, Value]) -> list[dict[str, Value]]:
    if isinstance(pattern, Var):
        known = bound.get(pattern.name, value)
        return [{**bound, pattern.name: value}] if known is value else []
    if isinstance(pattern, Apply):
        return _matches(pattern, value.node, bound)
    return [bound] if _is_number(value, pattern) else []


def _is_number(value: Value, number: float) -> bool:
    if value.node.op.name not in _NUMBERS:
        return False
    array = splat_of(value)
    if array is None or (array.dtype.kind == "b") != isinstance(number, bool):
        return False
    if is_integer(array.dtype):
        return isinstance(number, int) and int(array) == number
    return array.tobytes() == np.asarray(number, dtype=array.dtype).tobytes()


_NUMBERS = frozenset({"const", "full", "broadcast_to"})


def _needed(pattern: Apply) -> list[frozenset[str]]:
    """Return sets of ops one of each of which must be among the producers of the inputs: a quick first test."""
    found = [
        frozenset({arg.op}) if isinstance(arg, Apply) else _NUMBERS
        for arg in pattern.args
        if not isinstance(arg, Var)
    ]
    return list(dict.fromkeys(found))


def apply_rules(rules: Iterable[Rule]) -> Rewrite:
    """Return the rewrite that applies the first rule that fits, and those that fit its result."""
    index: dict[str, list[tuple[Rule, list[frozenset[str]]]]] = {}
    for rule in rules:
        index.setdefault(rule.left.op, []).append((rule, _needed(rule.left)))

    def rewrite(builder: Rewriter, node: Node) -> list[Value] | None:
        rules = index.get(node.op.name)
        if rules is None:
            return None
        below = {value.node.op.name for value in node.inputs}
        for rule, needed in rules:
            if all(not below.isdisjoint(names) for names in needed):
                found = rule.apply(builder, node)
                if found is not None:
                    return [found]
        return None

    return rewrite
