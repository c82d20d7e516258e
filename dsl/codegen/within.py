"""Finds updates of a part of an array whose result is only put back to where the part is: together they are one write.

In goes a graph; out comes, for each update that puts such a part back, the update of the part. What a subscript of
several views becomes, or a view of a view, has this form: `a[i, 1:-1] = v` is

    %0 = gather(%a, %i) {axes=(0,)}
    %1 = update_slice(%0, %v) {start=(1,)}                 the update of a part
    %2 = scatter(%a, %1, %i) {axes=(0,), mode="update"}    the update that puts it back

and writes v into row i of a. Between the two the part may be reshaped and transposed, if it was before in the opposite
way.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from dsl.codegen.elements import reshaped_index
from dsl.codegen.expressions import Affine
from dsl.ir.dims import Dim
from dsl.ir.graph import Graph, Node, Value

__all__ = ["UPDATES", "Within", "grows", "updates_within"]

UPDATES = frozenset(("update_slice", "update_dynamic_slice", "scatter"))
_PART = {"update_slice": "slice", "update_dynamic_slice": "dynamic_slice", "scatter": "gather"}


def grows(node: Node) -> bool:
    """Tell whether a node puts something behind the rows of an array of which a run alone knows how many there are."""
    if node.op.name != "concatenate" or node.attrs["axis"] != 0:
        return False
    x, *more = node.inputs
    return isinstance(x.shape[0], Dim) and x not in more


@dataclass(frozen=True)
class Within:
    """The update of a part, and the nodes that bring it into the form in which it is put back, in order."""

    node: Node
    moves: tuple[Node, ...]

    def moved(self, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Return where an element of the part is in the form in which it is put back."""
        for move in self.moves:
            found = _moved(move, index)
            assert found is not None
            index = found
        return index


def updates_within(graph: Graph, uses: Mapping[Value, list[Node]]) -> dict[Node, Within]:
    """Return the updates of parts, by the updates that put them back."""
    results = set(graph.results)
    once = {v for v, readers in uses.items() if len(readers) == 1 and v not in results}
    pairs = ((node, _within(node, once)) for node in graph.nodes if node.op.name in UPDATES)
    return {node: found for node, found in pairs if found is not None}


def _within(outer: Node, once: Container[Value]) -> Within | None:
    """Return the update of a part that `outer` puts back, and nobody else reads."""
    value, moves = outer.inputs[1], []
    while value in once and value.node.op.name in ("reshape", "transpose"):
        moves.append(value.node)
        value = value.node.inputs[0]
    inner = value.node
    if value not in once or inner.op.name not in UPDATES or not value.shape:
        return None
    part = inner.inputs[0]
    for move in reversed(moves):
        if not _is_opposite(part.node, move) or _moved(move, (Affine(),) * len(part.shape)) is None:
            return None
        part = part.node.inputs[0]
    return Within(inner, tuple(reversed(moves))) if _is_put_back(outer, part) else None


def _is_put_back(outer: Node, part: Value) -> bool:
    """Tell whether a value is the part of an array that an update of it replaces."""
    x, v, *where = outer.data_inputs
    name, got = outer.op.name, part.node
    if got.op.name != _PART[name] or got.data_inputs != (x, *where) or part.shape != v.shape:
        return False
    if name == "scatter" and (outer.attrs["mode"] != "update" or any(i.shape for i in where)):
        return False
    return _place(outer) == _place(got)


def _place(node: Node) -> tuple[Any, ...]:
    """Return the attributes that say where a part is."""
    return tuple(node.attrs.get(name, 1) for name in ("start", "step", "axis", "axes"))


def _is_opposite(node: Node, move: Node) -> bool:
    if node.op is not move.op or node.inputs[0].shape != move.outputs[0].shape:
        return False
    if node.outputs[0].shape != move.inputs[0].shape:
        return False
    if move.op.name == "reshape":
        return True
    there, back = node.attrs["axes"], move.attrs["axes"]
    return all(there[axis] == k for k, axis in enumerate(back))


def _moved(move: Node, index: tuple[Affine, ...]) -> tuple[Affine, ...] | None:
    """Return where an element of a reshape's or transpose's operand is in its result; None if that is not affine."""
    if move.op.name == "transpose":
        return tuple(index[axis] for axis in move.attrs["axes"])
    return reshaped_index(index, move.inputs[0].shape, move.outputs[0].shape)
