"""Sizes of arrays in a graph that is cut out of another: symbols that no param has for a dim of its own.

A program reads the size `n` from a param of shape `[n]`, not from one of shape `[n + 1]`. `with_known_sizes` gives such a
dim a new name, `m`, and says `m - 1` for `n` everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsl.ir.dims import Dim, DimLike, Symbol, lower_bound, substitute, symbols_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import TensorType

__all__ = ["with_known_sizes"]

Sizes = dict[Dim, DimLike]


def with_known_sizes(graph: Graph) -> Graph:
    """Return the graph with its sizes in terms of symbols that are dims of params, as far as that can be."""
    sizes = _solve(graph)
    return _substituted(graph, sizes) if sizes else graph


def _solve(graph: Graph) -> Sizes:
    """Express symbols that are no param's dim by new ones that are."""
    dims = [dim for param in graph.params for dim in param.shape if isinstance(dim, Dim)]
    known = {dim for dim in dims if symbols_of(dim) == [dim]}
    sizes: Sizes = {}
    changed = True
    while changed:
        changed = False
        for dim in dims:
            unknown = [s for s in symbols_of(dim) if s not in known and s not in sizes]
            if len(unknown) == 1 and _express(dim, unknown[0], sizes):
                changed = True
    return sizes


def _express(dim: Dim, symbol: Dim, sizes: Sizes) -> bool:
    """Solve a dim for a symbol, which it has once and with a factor of 1 or -1."""
    scale = next((scale for factors, scale in dim.terms if Dim(((factors, 1),)) == symbol), 0)
    rest = dim - scale * symbol
    if abs(scale) != 1 or symbol in symbols_of(rest):
        return False
    made = Symbol(str(symbol), max(0, lower_bound(dim) or 0))
    sizes[symbol] = (made - substitute(rest, sizes)) * scale
    return True


def _substituted(graph: Graph, sizes: Mapping[Dim, DimLike]) -> Graph:
    """Replace symbols in all types and attributes."""
    values: dict[Value, Value] = {}
    nodes: dict[Node, Node] = {}
    for node in [*(param.node for param in graph.params), *graph.nodes]:
        made = nodes[node] = _node(node, sizes, values, nodes)
        values.update(zip(node.outputs, made.outputs, strict=True))
    params, results = ([values[v] for v in part] for part in (graph.params, graph.results))
    effects = tuple(nodes[node] for node in graph.effects)
    return Graph(graph.name, tuple(params), tuple(results), effects)


def _node(
    node: Node, sizes: Mapping[Dim, DimLike], values: dict[Value, Value], nodes: dict[Node, Node]
) -> Node:
    inputs = [values[value] for value in node.data_inputs]
    given = node.inputs[len(node.data_inputs) :]
    kept = [(dim, values[v]) for dim, v in zip(node.dims, given, strict=True) if dim not in sizes]
    return Node(
        node.op, (*inputs, *(value for _, value in kept)), _sized(node.attrs, sizes), _sized(node.types, sizes),
        tuple(_substituted(region, sizes) for region in node.regions), tuple(nodes[c] for c in node.controls),
        tuple(dim for dim, _ in kept), node.loc,
    )  # fmt: skip


def _sized(item: Any, sizes: Mapping[Dim, DimLike]) -> Any:
    if isinstance(item, TensorType):
        return item.with_shape(substitute(dim, sizes) for dim in item.shape)
    if isinstance(item, Dim):
        return substitute(item, sizes)
    if isinstance(item, Mapping):
        return {name: _sized(part, sizes) for name, part in item.items()}
    return tuple(_sized(part, sizes) for part in item) if isinstance(item, tuple) else item
