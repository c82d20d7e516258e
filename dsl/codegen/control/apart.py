"""Tells whether the trips of a loop touch places of their own, so that several can be made at once.

That is so if each array that the loop writes to is written to once in a trip, at a place that moves with the trip's number, and
read nowhere that another trip writes to: along some axis, a read is always where its own trip writes, or always beside all writes.

    for j in range(k + 1, n):
        a[i, j] -= a[i, k] * a[k, j]    # a[i, j], a[k, j]: of this column; a[i, k]: k is no j
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.ranges import Atom, Linear, Ranges
from dsl.ir import graph as ir
from dsl.ir.facts import is_array
from dsl.ir.registry import Trait

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Carried, Loop

__all__ = ["are_apart"]

_SIMPLE = frozenset(("const", "dim_size", "gather", "reshape"))


def are_apart(loop: Loop, ranges: Ranges) -> bool:
    """Tell whether trips touch places of their own; the ranges are those of the loop's body."""
    arrays = [item for item in loop.carried if is_array(item.param)]
    written = {item.result.node for item in arrays}
    if not arrays or not all(node in written or _is_simple(node) for node in loop.body.nodes):
        return False
    return all(_is_apart(loop, ranges, item) for item in arrays)


def _is_simple(node: ir.Node) -> bool:
    """Tell whether a node computes a number, or reads one."""
    if node.op.name == "slice":
        return _is_element(node)
    simple = node.op.has(Trait.ELEMENTWISE) or node.op.name in _SIMPLE
    return simple and not any(map(is_array, node.outputs))


def _is_element(node: ir.Node) -> bool:
    """Tell whether a slice is one element, in a place that is known."""
    return all(size == 1 for size in node.attrs["size"])


def _is_apart(loop: Loop, ranges: Ranges, item: Carried) -> bool:
    """Tell whether no trip reads or writes what another one writes to an array."""
    node = item.result.node
    if node.op.name != "scatter" or node.inputs[0] is not item.param or not item.in_place:
        return False
    if node.attrs["mode"] != "update" or is_array(node.inputs[1]):
        return False
    ((trip, _),) = ranges.form(loop.body.params[0]).terms
    write = _place(ranges, node, trip)
    if write is None or not any(_moves(index, trip) for index in write.values()):
        return False
    for user in loop.body.nodes:
        if user is node or (item.param not in user.inputs and item.result not in user.inputs):
            continue
        read = _place(ranges, user, trip) if user.inputs[0] is item.param else None
        if read is None or not _beside(ranges, trip, write, read):
            return False
    return True


def _place(ranges: Ranges, node: ir.Node, trip: Atom) -> dict[int, Linear] | None:
    """Return where a node reads or writes one element, by axis, made of the trip's number and of what stays in all trips."""
    if node.op.name == "slice":
        starts = enumerate(node.attrs["start"])
        return {axis: Linear((), k) for axis, k in starts if isinstance(k, int)}
    if node.op.name not in ("gather", "scatter"):
        return None
    indices = node.inputs[1 if node.op.name == "gather" else 2 :]
    found = {axis: ranges.form(index) for axis, index in zip(node.attrs["axes"], indices)}
    steady = all(atom.number <= trip.number for form in found.values() for atom, _ in form.terms)
    return found if steady and all(map(ranges.is_natural, found.values())) else None


def _beside(ranges: Ranges, trip: Atom, write: dict[int, Linear], read: dict[int, Linear]) -> bool:
    """Tell whether a place that is read is never one to which another trip writes."""
    for axis in write.keys() & read.keys():
        one, other = write[axis], read[axis]
        between = one - other
        moving = _moves(one, trip) + _moves(other, trip)
        if between == Linear() and moving:
            return True
        either = between + -1, between.times(-1) + -1
        if moving < 2 and any(map(ranges.is_natural, either)):
            return True
    return False


def _moves(index: Linear, trip: Atom) -> bool:
    return any(atom is trip for atom, _ in index.terms)
