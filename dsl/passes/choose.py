"""Updates through masks: choose between old and new elements in place of listing the places of the new ones.

What is written where a mask is true often is computed, element by element, from what arrays have at the same places:
`z[m] = z[m] ** 2 + c[m]`. To compute it everywhere takes less time than to list the places, to fetch and to put back; and the
loops around are then loops of elementwise ops. Nothing else has the places afterwards, as a rule, and `nonzero` is dropped.

    %i = nonzero(%m) : i64[d]
    %0 = gather(%x, %i) {axes=(0,)} : f64[d]
    %1 = exp(%0) : f64[d]                                 ->     %0 = exp(%x) : f64[n]
    %2 = scatter(%y, %1, %i) {axes=(0,)} : f64[n]                %1 = where(%m, %0, %y) : f64[n]

Ops that may raise stay, since they would see elements that the program does not show them; so do updates with values that
come from elsewhere, and those of a few rows.
"""

from __future__ import annotations

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["choose"]

_MOST = 64  # ops that are computed everywhere


def choose(graph: Graph) -> Graph:
    """Return the graph with updates through masks as choices."""
    return rebuild(graph, _rewrite, frozenset(("scatter",)))


def _rewrite(builder: Rewriter, node: Node) -> list[Value] | None:
    if node.op.name != "scatter" or node.attrs["mode"] not in ("update", "add") or builder.flat:
        return None
    x, v, *indices = node.inputs
    places = _places(node, x, indices)
    if places is None:
        return None
    (mask,) = places.inputs
    new = _Everywhere(builder, places).of(v)
    if new is None:
        return None
    if node.attrs["mode"] == "add":
        new = builder.emit("add", x, new)
    return [builder.emit("where", mask, new, x)]


def _places(node: Node, x: Value, indices: list[Value]) -> Node | None:
    """Return the `nonzero` that tells where all elements of an array are that a node reads or writes, else None."""
    found = indices[0].node if indices else node
    if found.op.name != "nonzero" or found.outputs != tuple(indices):
        return None
    whole = node.attrs["axes"] == tuple(range(len(x.shape))) and found.inputs[0].shape == x.shape
    return found if whole else None


class _Everywhere:
    """Computes for all elements what is computed for those at some places."""

    def __init__(self, builder: Rewriter, places: Node) -> None:
        self.builder, self.places = builder, places
        self.made: dict[Value, Value | None] = {}

    def of(self, value: Value) -> Value | None:
        """Return the value everywhere, or None if it has none there; a number is its own."""
        if not value.shape:
            return value
        if value not in self.made:
            self.made[value] = self._make(value) if len(self.made) < _MOST else None
        return self.made[value]

    def _make(self, value: Value) -> Value | None:
        node = value.node
        if node.op.name == "gather":
            x, *indices = node.inputs
            return x if _places(node, x, indices) is self.places else None
        if node.op.name in ("broadcast_to", "full"):
            return node.inputs[0] if not node.inputs[0].shape else None
        if not _is_plain(node):
            return None
        inputs = [self.of(x) for x in node.inputs]
        known = [x for x in inputs if x is not None]
        if len(known) < len(inputs) or not any(x.shape for x in known):
            return None
        made = self.builder.node(node.op, known, node.attrs)
        return made.outputs[node.outputs.index(value)]


def _is_plain(node: Node) -> bool:
    """Tell whether a node works element by element, for whatever elements."""
    op = node.op
    return op.has(Trait.PURE) and op.has(Trait.ELEMENTWISE) and not op.has(Trait.CHECKED)
