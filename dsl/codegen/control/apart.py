"""Tells whether the trips of a loop touch places of their own, so that several can be made at once.

That is so if each array that the loop writes to is written to at places that move with the trip's number, where no other trip writes,
and read nowhere that another trip writes to: along some axis, a read is always where its own trip writes, or always beside all writes.

    for j in range(k + 1, n):
        a[i, j] -= a[i, k] * a[k, j]    # a[i, j], a[k, j]: of this column; a[i, k]: k is no j

Loops in it may read what no trip writes. One trip may write what all others read. It is made alone, between those before and those
after it.

    for j in range(n):
        d[i, j] = min(d[i, j], d[i, k] + d[k, j])    # d[i, k]: trip k writes it
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from dsl.codegen.control.passing import home_of
from dsl.codegen.ranges import Atom, Linear, Ranges
from dsl.ir import graph as ir
from dsl.ir.facts import is_array
from dsl.ir.registry import Trait
from dsl.ir.types import I64

__all__ = ["Trip", "is_dense", "is_nest", "is_simple", "trips_apart"]

_SIMPLE = frozenset(("const", "dim_size", "gather", "reshape"))

Place = dict[int, Linear]  # of one element, by axis


class Trip(NamedTuple):
    """A trip by its number: that of a value in the loop's body, if there is one, and a constant."""

    value: ir.Value | None
    plus: int


def trips_apart(
    body: ir.Graph, carried: int, ranges: Ranges, inside: Container[ir.Value] = ()
) -> list[Trip] | None:
    """Return the trips that are to be made alone, one at most, or None if trips meet; the ranges are those of the loop's body.

    Indices that are `inside` are no less than 0, as others must be known to be.
    """
    pairs = zip(body.params[1 : 1 + carried], body.results, strict=True)
    arrays = [(param, result) for param, result in pairs if is_array(param)]
    written = {node for param, result in arrays for node in _writes(param, result)}
    nodes = [node for node in body.nodes if node not in written]
    if not arrays or not all(is_simple(node) or is_nest(node) for node in nodes):
        return None
    ((number, _),) = ranges.form(body.params[0]).terms
    steady = set(body.params[1 + carried :])
    alone: dict[Linear, Trip] = {}
    for param, result in arrays:
        met = _meetings(body, ranges, number, steady, param, result, inside)
        if met is None:
            return None
        alone |= met
    return list(alone.values()) if len(alone) < 2 else None


def is_simple(node: ir.Node) -> bool:
    """Tell whether a node computes a number, or reads one."""
    if node.op.name == "slice":
        return _is_element(node)
    simple = node.op.has(Trait.ELEMENTWISE) or node.op.name in _SIMPLE
    return simple and not any(map(is_array, node.outputs))


def is_nest(node: ir.Node) -> bool:
    """Tell whether a node is a loop that computes numbers from what it reads, as a sum over a row."""
    if node.op.name != "scan" or node.regions[0].effects or any(map(is_array, node.outputs)):
        return False
    return all(is_simple(inner) or is_nest(inner) for inner in node.regions[0].nodes)


def is_dense(body: ir.Graph, ranges: Ranges) -> bool:
    """Tell whether each place that a loop touches stays in all trips or goes on in even steps: in loops within, from element to element."""
    ((number, _),) = ranges.form(body.params[0]).terms
    return _is_dense(body, ranges, number, within=False)


def _is_dense(graph: ir.Graph, ranges: Ranges, number: Atom, within: bool) -> bool:
    for node in graph.nodes:
        if node.op.name in ("gather", "scatter"):
            shape = node.inputs[0].shape
            moves = {
                axis: dict(ranges.form(i).terms).get(number, 0)
                for axis, i in _indices(node).items()
            }
            for axis, step in moves.items():
                rest = shape[axis + 1 :]
                dense = step == 1 and not rest
                even = not within and all(isinstance(size, int) for size in rest)
                if step and not (dense or even):
                    return False
        for region in node.regions:
            if not _is_dense(region, ranges.inside(node, region), number, within=True):
                return False
    return True


def _is_element(node: ir.Node) -> bool:
    """Tell whether a slice is one element, in a place that is known."""
    return all(size == 1 for size in node.attrs["size"])


def _meetings(
    body: ir.Graph, ranges: Ranges, number: Atom, steady: set[ir.Value], param: ir.Value, result: ir.Value,
    inside: Container[ir.Value],
) -> dict[Linear, Trip] | None:  # fmt: skip
    """Return the trips that write what others read of an array, each by its number; None if that cannot be told."""
    writes = _writes(param, result)
    if not writes or home_of(body, result) != body.params.index(param):
        return None
    known = [_place_of(ranges, node, number, inside) for node in writes]
    places = [place for place in known if place is not None]
    beside = all(_beside(ranges, number, one, other) for one in places for other in places)
    if len(places) < len(writes) or not beside:
        return None
    found = {}
    arrays = {param, *(node.output for node in writes)}
    for user in body.nodes:
        if user in writes or arrays.isdisjoint(user.inputs):
            continue
        read = _place_of(ranges, user, number, inside) if user.inputs[0] in arrays else None
        if read is None or user.inputs[0] is result:
            return None
        if not all(_beside(ranges, number, write, read) for write in places):
            trip = _meeting(number, steady, places[0], user) if len(writes) == 1 else None
            if trip is None:
                return None
            found[_form(ranges, trip)] = trip
    return found


def _writes(param: ir.Value, result: ir.Value) -> list[ir.Node]:
    """Return what writes to an array in a trip, one element each, the last one first; nothing if it is changed otherwise."""
    found = []
    while result is not param:
        node = result.node
        one = node.op.name == "scatter" and node.attrs["mode"] == "update"
        if not one or is_array(node.inputs[1]):
            return []
        found.append(node)
        result = node.inputs[0]
    return found


def _place_of(
    ranges: Ranges, node: ir.Node, number: Atom, inside: Container[ir.Value]
) -> Place | None:
    """Return where a node reads or writes one element, by axis, made of the trip's number and of what stays in all trips."""
    if node.op.name == "slice":
        starts = enumerate(node.attrs["start"])
        return {axis: Linear((), k) for axis, k in starts if isinstance(k, int)}
    if node.op.name not in ("gather", "scatter"):
        return None
    indices = _indices(node)
    found = {axis: ranges.form(index) for axis, index in indices.items()}
    natural = all(i in inside or ranges.is_natural(ranges.form(i)) for i in indices.values())
    steady = all(atom.number <= number.number for form in found.values() for atom, _ in form.terms)
    return found if steady and natural else None


def _indices(node: ir.Node) -> dict[int, ir.Value]:
    """Return the indices of a gather or scatter, by axis."""
    first = 1 if node.op.name == "gather" else 2
    return dict(zip(node.attrs["axes"], node.inputs[first:]))


def _beside(ranges: Ranges, number: Atom, write: Place, read: Place) -> bool:
    """Tell whether a place that is read is never one to which another trip writes."""
    for axis in write.keys() & read.keys():
        one, other = write[axis], read[axis]
        between = one - other
        moving = _moves(one, number) + _moves(other, number)
        if between == Linear() and moving:
            return True
        either = between + -1, between.times(-1) + -1
        if moving < 2 and any(map(ranges.is_natural, either)):
            return True
    return False


def _meeting(number: Atom, steady: set[ir.Value], write: Place, reader: ir.Node) -> Trip | None:
    """Return the one trip that writes to a place that stays: a trip writes as far along some axis as its number tells."""
    own = Linear(((number, 1),))
    steps = {axis: index - own for axis, index in write.items()}
    if reader.op.name == "slice":
        stays: dict[int, ir.Value | int] = dict(enumerate(reader.attrs["start"]))
    else:
        stays = dict(_indices(reader))
    for axis, step in steps.items():
        at = stays.get(axis)
        if step.terms or at is None:
            continue
        if isinstance(at, ir.Value) and at.node.op.name == "const":
            at = int(at.node.attrs["value"].array)
        if isinstance(at, int):
            return Trip(None, at - step.constant)
        if at in steady and at.dtype == I64:
            return Trip(at, -step.constant)
    return None


def _form(ranges: Ranges, trip: Trip) -> Linear:
    start = Linear() if trip.value is None else ranges.form(trip.value)
    return start + trip.plus


def _moves(index: Linear, number: Atom) -> bool:
    return any(atom is number for atom, _ in index.terms)
