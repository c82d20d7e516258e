"""Builders: make the nodes of one graph.

A `Builder` interns pure nodes (equal op, inputs, attributes and controls are one node), types every node by its op's
rule, and supplies the sizes of symbolic dims that a node's attributes mention. Effectful nodes are chained by control
edges in program order, one chain per resource.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.errors import DslError, InternalError
from dsl.ir.dims import Dim, DimLike, Symbol, dim_max, dim_min, symbols_of
from dsl.ir.graph import Attrs, Graph, Literal, Node, Value
from dsl.ir.location import Location
from dsl.ir.registry import Op, Trait, get_op
from dsl.ir.types import I64, TensorType, ValueType

__all__ = ["Builder", "UnknownSizeError", "attr_symbols"]


_COMBINED: dict[str, Callable[..., DimLike]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "floor_divide": operator.floordiv,
    "remainder": operator.mod, "maximum": dim_max, "minimum": dim_min,
}  # fmt: skip
_DIVIDED = ("floor_divide", "remainder")
# Characters; sizes that a recursion makes from sizes grow without end.
_LONGEST_DIM = 80


def _is_positive(dim: DimLike | None) -> bool:
    return isinstance(dim, int) and dim > 0


class UnknownSizeError(InternalError):
    """A size that nothing in a graph gives. Who builds on trial takes it for a refusal."""


class Builder:
    """Makes one graph. `loc` is given to every node made until it is changed."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.params: list[Value] = []
        self.loc: Location | None = None
        self.placement: Attrs = {}  # attributes of PLACEMENT that nodes get, constants apart
        self._interned: dict[Any, Node] = {}
        self._last_effect: dict[str, Node] = {}
        self._sizes: dict[Dim, Value] = {}
        self._dims: dict[Value, DimLike] = {}
        self._known: dict[Value, DimLike | None] = {}
        self._shaped: dict[Dim, tuple[Value, int]] = {}
        self.extent = 0  # the nodes that were made, those in their regions included

    # -- nodes -------------------------------------------------------------------------------------------------

    def param(self, type: ValueType, name: str = "") -> Value:
        """Add a parameter."""
        attrs = {"name": name or f"a{len(self.params)}"}
        value = Node(get_op("param"), (), attrs, (type,), loc=self.loc).output
        self.params.append(value)
        self.note_sizes(value)
        return value

    def constant(self, array: Any, dtype: np.dtype | None = None) -> Value:
        """Return a constant; equal constants are one node."""
        return self.emit("const", value=Literal(np.asarray(array, dtype=dtype)))

    def emit(
        self,
        op: Op | str,
        *inputs: Value,
        regions: Sequence[Graph] = (),
        types: Sequence[ValueType] | None = None,
        **attrs: Any,
    ) -> Value:
        """Add a node with one output and return that."""
        return self.node(op, inputs, attrs, regions=regions, types=types).output

    def node(
        self,
        op: Op | str,
        inputs: Iterable[Value],
        attrs: Attrs,
        *,
        regions: Sequence[Graph] = (),
        types: Sequence[ValueType] | None = None,
        controls: Iterable[Node] = (),
        dims: Sequence[Dim] | None = None,
        loc: Location | None = None,
    ) -> Node:
        """Add a node, or return the equal pure one. `types` overrides the type rule; `dims` says that the sizes are among the inputs."""
        record = get_op(op) if isinstance(op, str) else op
        if self.placement and record.name != "const":
            attrs = {**self.placement, **attrs}
        given = tuple(inputs)
        if dims is None:
            dims = self._missing_dims(given, attrs)
            given += tuple(self.size(dim) for dim in dims)
        effect = self._is_effect(record, regions)
        touched = resources_of(record, regions, attrs) if effect else []
        before = tuple(dict.fromkeys((*controls, *self._chain(touched))))
        key = (record.name, given, tuple((k, attr_key(attrs[k])) for k in sorted(attrs)), before)
        interning = record.has(Trait.PURE) and not regions
        found = self._interned.get(key) if interning else None
        if found is not None and (types is None or found.types == tuple(types)):
            return (
                found  # given other types it is another node: what follows has sizes named by them
            )
        data = given[: len(given) - len(dims)]
        out = self._types(record, data, attrs) if types is None else tuple(types)
        made = Node(
            record, given, dict(attrs), out, tuple(regions), before, tuple(dims), loc or self.loc
        )
        self.extent += _extent(made)
        if interning:
            self._interned[key] = made
        if effect:
            self._last_effect.update(dict.fromkeys(touched, made))
        for value in made.outputs:
            self.note_sizes(value)
        return made

    def _types(self, record: Op, data: tuple[Value, ...], attrs: Attrs) -> tuple[ValueType, ...]:
        try:
            found = record.type(tuple(v.type for v in data), attrs)
        except DslError as error:
            if error.location is None:
                error.location = self.loc
            raise
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)  # type: ignore[return-value]

    # -- effects -----------------------------------------------------------------------------------------------

    @staticmethod
    def _is_effect(record: Op, regions: Sequence[Graph]) -> bool:
        return record.has(Trait.EFFECT) or any(region.effects for region in regions)

    def _chain(self, resources: Iterable[str]) -> tuple[Node, ...]:
        before = [self._last_effect[r] for r in resources if r in self._last_effect]
        return tuple(dict.fromkeys(before))

    # -- symbolic sizes ----------------------------------------------------------------------------------------

    def note_sizes(self, value: Value) -> None:
        """Remember where the symbols in a value's shape can be read from."""
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape):
                if isinstance(dim, Dim) and symbols_of(dim) == [dim]:
                    self._shaped.setdefault(dim, (value, axis))

    def knows(self, symbol: Dim) -> bool:
        """Tell whether this graph has a value that gives the size of `symbol`."""
        return symbol in self._sizes or symbol in self._shaped

    def bind(self, symbol: Dim, value: Value) -> None:
        """Say that the rank-0 int64 `value` is the size of `symbol`."""
        self._sizes.setdefault(symbol, value)
        self._dims.setdefault(value, symbol)

    def size(self, dim: DimLike) -> Value:
        """Return a rank-0 int64 value equal to `dim`."""
        if isinstance(dim, int):
            return self.constant(dim, I64)
        if dim not in self._sizes:
            self._sizes[dim] = self._compute_size(dim)
            self._dims.setdefault(self._sizes[dim], dim)
        return self._sizes[dim]

    def _compute_size(self, dim: Dim) -> Value:
        if dim in self._shaped:
            source, axis = self._shaped[dim]
            return self.emit("dim_size", source, axis=axis)
        if symbols_of(dim) == [dim]:
            return self.outer_size(dim)
        total: Value | None = None
        for factors, scale in dim.terms:
            term = self.constant(scale, I64) if scale != 1 or not factors else None
            for factor in factors:
                part = self._factor_size(factor)
                term = part if term is None else self.emit("multiply", term, part)
            assert term is not None
            total = term if total is None else self.emit("add", total, term)
        assert total is not None
        return total

    def _factor_size(self, factor: Any) -> Value:
        bare = Dim((((factor,), 1),))
        if symbols_of(bare) == [bare]:
            return self.size(bare)
        names = {"floordiv": "floor_divide", "mod": "remainder", "max": "maximum", "min": "minimum"}
        return self.emit(names[factor.kind], self.size(factor.lhs), self.size(factor.rhs))

    def outer_size(self, symbol: Dim) -> Value:
        """Return the size of a symbol that this graph has not seen; builders of regions ask their parent."""
        raise UnknownSizeError(f"nothing in graph {self.name} gives the size {symbol}")

    def as_dim(self, value: Value) -> DimLike:
        """Return a rank-0 integer value as a dim: an int, an expression of known sizes, or a symbol bound to it."""
        if value not in self._dims:
            self._dims[value] = self._recognise(value)
        return self._dims[value]

    def _recognise(self, value: Value) -> DimLike:
        name, inputs = value.node.op.name, value.node.inputs
        if name == "const":
            return int(value.node.attrs["value"].array)
        if name == "dim_size":
            return inputs[0].shape[value.node.attrs["axis"]]
        if name in ("add", "subtract", "multiply") and value.dtype == I64:
            return _COMBINED[name](*map(self.as_dim, inputs))
        known = self.known_dim(value)
        if known is not None:
            return known
        symbol = Symbol("d")
        self._sizes.setdefault(symbol, value)
        return symbol

    def known_dim(self, value: Value, depth: int = 16) -> DimLike | None:
        """Return a rank-0 int64 value that is computed from sizes and constants alone as a dim, else None."""
        if value not in self._known and depth:
            self._known[value] = self._known_dim(value, depth - 1)
        return self._known.get(value)

    def _known_dim(self, value: Value, depth: int) -> DimLike | None:
        name, inputs = value.node.op.name, value.node.inputs
        if name == "const":
            return int(value.node.attrs["value"].array)
        if name == "dim_size":
            return inputs[0].shape[value.node.attrs["axis"]]
        if name not in _COMBINED or value.dtype != I64 or value.shape:
            return None
        dims = [self.known_dim(part, depth) for part in inputs]
        if any(dim is None for dim in dims) or (name in _DIVIDED and not _is_positive(dims[1])):
            return None
        found = _COMBINED[name](*dims)
        return found if isinstance(found, int) or len(str(found)) < _LONGEST_DIM else None

    def _missing_dims(self, inputs: tuple[Value, ...], attrs: Attrs) -> list[Dim]:
        wanted = attr_symbols(attrs)
        if not wanted:
            return []
        given: set[Dim] = set()
        for value in inputs:
            if isinstance(value.type, TensorType):
                given.update(dim for dim in value.type.shape if isinstance(dim, Dim))
        return [symbol for symbol in wanted if symbol not in given]

    # -- finishing ---------------------------------------------------------------------------------------------

    def finish(self, results: Iterable[Value], back: Mapping[Node, Value] | None = None) -> Graph:
        """Return the graph; the last effects on each resource are kept alive."""
        effects = tuple(dict.fromkeys(self._last_effect.values()))
        return Graph(self.name, tuple(self.params), tuple(results), effects, dict(back or {}))


def resources_of(record: Op, regions: Sequence[Graph], attrs: Attrs) -> list[str]:
    """Return the resources that a node of this op with these regions and attributes touches."""
    own = [record.resource.format(**attrs)] if record.has(Trait.EFFECT) else []
    inner = [
        r
        for region in regions
        for node in region.effects
        for r in resources_of(node.op, node.regions, node.attrs)
    ]
    return list(dict.fromkeys(own + inner))


def _extent(node: Node) -> int:
    return 1 + sum(_extent(inner) for region in node.regions for inner in region.nodes)


def attr_symbols(attrs: Attrs) -> list[Dim]:
    """Return the symbols that attributes mention, in order."""
    found: dict[Dim, None] = {}
    for name in sorted(attrs):
        _collect(attrs[name], found)
    return list(found)


def attr_key(attr: Any) -> Any:
    """Return a key that tells apart what Python calls equal: 1, 1.0 and True, and the two zeros."""
    if isinstance(attr, tuple):
        return tuple(map(attr_key, attr))
    return (type(attr), repr(attr)) if isinstance(attr, (bool, int, float, complex)) else attr


def _collect(attr: Any, found: dict[Dim, None]) -> None:
    if isinstance(attr, Dim):
        found.update(dict.fromkeys(symbols_of(attr)))
    elif isinstance(attr, tuple):
        for item in attr:
            _collect(item, found)
