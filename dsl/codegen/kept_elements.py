"""Carries an element of an array as a number through a loop that changes no other, instead of going through memory in each trip.

    for k in range(n):                        number = c[i, j]
        c[i, j] += a[i, k] * b[k, j]    ->    for k in range(n):
                                                  number += a[i, k] * b[k, j]
                                              c[i, j] = number

So a trip of the loop around it writes once, at a place of its own, and may be made at once with others: see `control.across`. The
place is written where the loop makes no trip, too, so it must surely be in the array. Elements of arrays that stay, at places that
stay and surely are in them, are read before the loop.

    %1 = scan(%n, %c, %i, %j, ...) {carried=1}           %0 = gather(%c, %i, %j)
      @body(%k, %c, %i, %j, ...) {                       %1 = scan(%n, %0, %i, %j, ...) {carried=1}
        %0 = gather(%c, %i, %j)                            @body(%k, %0, %i, %j, ...) {
        %4 = add(%0, %3)                          ->         %4 = add(%0, %3)
        %5 = scatter(%c, %4, %i, %j)                         return %4
        return %5                                          }
      }                                                  %2 = scatter(%c, %1, %i, %j)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from dsl.codegen.ranges import Ranges
from dsl.ir.facts import constant_of, is_array
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild, with_params
from dsl.ir.types import TensorType, ValueType

__all__ = ["are_apart", "keep_elements"]


class _Element(NamedTuple):
    """An element that stays in one place of an array: what reads it in a trip, and what writes it last."""

    gathers: list[Node]
    scatter: Node


class _Kept(NamedTuple):
    """What a loop need not look up in each trip: elements of arrays that it carries, by their number, and of others."""

    carried: dict[int, list[_Element]]
    steady: list[Node]  # what reads them


def keep_elements(graph: Graph, ranges: Ranges | None = None) -> Graph:
    """Return the graph, in which the ranges hold, with such elements carried as numbers."""
    if not {"scan", "scatter"} <= graph.op_names:
        return graph
    graph = rebuild(graph, _forwarded)
    known: dict[Node, Ranges] = {}
    _note(graph, ranges or Ranges(), known)
    return rebuild(graph, lambda builder, node: _kept(builder, node, known))


def _forwarded(builder: Rewriter, node: Node) -> Sequence[Value] | None:
    """Return what was just written for what is read at its place, and one write for two to a place: `x[i] += a; x[i] *= b`."""
    name, last = node.op.name, node.inputs[0].node if node.inputs else node
    if name not in ("gather", "scatter") or last.op.name != "scatter" or not _is_one(last):
        return None
    indices = node.inputs[1 if name == "gather" else 2 :]
    if name == "gather" and _skips(node, last):
        made = builder.node("gather", (last.inputs[0], *indices), node.attrs)
        return _forwarded(builder, made) or made.outputs
    if indices != last.inputs[2:] or node.attrs["axes"] != last.attrs["axes"]:
        return None
    if name == "gather":
        return [last.inputs[1]] if last.inputs[1].type == node.output.type else None
    if not _is_one(node) or _is_read(builder.graph, builder.origin):
        return None
    return [builder.emit(name, last.inputs[0], *node.inputs[1:], **node.attrs)]


def _skips(read: Node, write: Node) -> bool:
    """Tell whether what is read was surely not written just before, at another place: `x[i, 0] += a; x[i, 1] += b`."""
    same = read.attrs["axes"] == write.attrs["axes"]
    return same and are_apart(read.inputs[1:], write.inputs[2:])


def _is_read(graph: Graph, write: Node) -> bool:
    """Tell whether anything but reads at its place comes between a write and the one before."""
    before, indices = write.inputs[0], write.inputs[2:]
    users = [n for n in graph.nodes if before in n.inputs and n is not write]
    same = all(n.op.name == "gather" and n.inputs[1:] == indices for n in users)
    return not same or before in graph.results


def _note(graph: Graph, ranges: Ranges, known: dict[Node, Ranges]) -> None:
    """Note what is known where loops are."""
    for node in graph.nodes:
        if node.op.name == "scan":
            known[node] = ranges
        for region in node.regions:
            _note(region, ranges.inside(node, region), known)


def _kept(
    builder: Rewriter, node: Node, known: dict[Node, Ranges]
) -> Sequence[Value | None] | None:
    ranges, body = known.get(builder.origin), node.regions[0] if node.regions else None
    if ranges is None or body is None or node.controls or body.effects:
        return None

    def stays(access: Node) -> bool:
        return _stays(builder.origin, body, access, ranges)

    carried = {k: _elements(body, k) for k in range(node.attrs["carried"])}
    carried = {
        k: found
        for k, found in carried.items()
        if found and all(stays(e.gathers[0]) for e in found)
    }
    given = set(body.params[1 + node.attrs["carried"] :])
    steady = [n for n in body.nodes if n.op.name == "gather" and n.inputs[0] in given and stays(n)]
    found = _Kept(carried, steady)
    return _carried(builder, node, found) if carried or steady else None


def _elements(body: Graph, k: int) -> list[_Element]:
    """Return the elements of a carried array that a loop reads and writes in each trip, if it touches nothing else of it."""
    param, result = body.params[1 + k], body.results[k]
    last: dict[tuple[Value, ...], Node] = {}
    writes, value = [], result
    while value is not param:
        node = value.node
        if (
            node.op.name != "scatter"
            or not _is_one(node)
            or body.results.count(value) != (value is result)
        ):
            return []
        last.setdefault(node.inputs[2:], node)
        writes.append(node)
        value = node.inputs[0]
    arrays = {param, *(node.output for node in writes)}
    readers = [n for n in body.nodes if not arrays.isdisjoint(n.inputs) and n not in writes]
    if any(n.op.name != "gather" or n.inputs[0] is not param for n in readers):
        return []
    places: dict[tuple[Value, ...], list[Node]] = {}
    for reader in readers:
        places.setdefault(reader.inputs[1:], []).append(reader)
    alike = {n.attrs["axes"] for n in (*readers, *writes)}
    fits = places.keys() == last.keys() and len(alike) == 1 and _all_apart(list(last))
    same_type = all(last[p].inputs[1].type == places[p][0].output.type for p in last if fits)
    if not fits or not same_type or param in body.results:
        return []
    return [_Element(places[place], node) for place, node in reversed(last.items())]


def _all_apart(places: list[tuple[Value, ...]]) -> bool:
    """Tell whether places of an array are surely different ones."""
    return all(are_apart(one, other) for one, other in itertools.combinations(places, 2))


def are_apart(one: Sequence[Value], other: Sequence[Value]) -> bool:
    """Tell whether two places of an array are surely different ones: constants of an axis tell."""
    pairs = [(constant_of(a), constant_of(b)) for a, b in zip(one, other, strict=True)]
    return any(a is not None and b is not None and 0 <= a != b >= 0 for a, b in pairs)


def _is_one(scatter: Node) -> bool:
    """Tell whether one element is written."""
    axes, numbers = scatter.attrs["axes"], scatter.inputs[1:]
    whole = len(axes) == len(scatter.inputs[0].shape)
    return whole and scatter.attrs["mode"] == "update" and not any(map(is_array, numbers))


def _stays(origin: Node, body: Graph, gather: Node, ranges: Ranges) -> bool:
    """Tell whether all trips read one element, which surely is in the array, whether the loop makes trips or not."""
    shape, indices = gather.inputs[0].shape, gather.inputs[1:]
    if len(gather.attrs["axes"]) != len(shape) or any(map(is_array, indices)):
        return False
    steady = set(body.params[1 + origin.attrs["carried"] :])
    for axis, index in zip(gather.attrs["axes"], indices, strict=True):
        if not (index in steady or index.node.op.name == "const"):
            return False
        if index in steady:
            index = origin.inputs[body.params.index(index)]
        form = ranges.form(index)
        if not all(map(ranges.is_natural, (form, ranges.size(shape[axis]) - form + -1))):
            return False
    return True


def _carried(builder: Rewriter, node: Node, kept: _Kept) -> list[Value | None]:
    (body,), carried = node.regions, node.attrs["carried"]
    params, results = [body.params[0]], list[Value]()
    inputs, types = [node.inputs[0]], list[ValueType]()
    same: dict[Value, Value] = {}  # what reads an element again
    for k in range(carried):
        elements = kept.carried.get(k)
        if elements is None:
            params.append(body.params[1 + k])
            inputs.append(node.inputs[1 + k])
            results.append(body.results[k])
            types.append(node.types[k])
            continue
        params += [e.gathers[0].output for e in elements]
        inputs += [_read(builder, node, e.gathers[0]) for e in elements]
        same |= {g.output: e.gathers[0].output for e in elements for g in e.gathers[1:]}
        results += [e.scatter.inputs[1] for e in elements]
        types += [e.scatter.inputs[1].type for e in elements]
    params += [*body.params[1 + carried :], *(n.output for n in kept.steady)]
    inputs += [*node.inputs[1 + carried :], *(_read(builder, node, n) for n in kept.steady)]
    made, attrs = with_params(body, params, results, same), {**node.attrs, "carried": len(results)}
    loop = Node(node.op, tuple(inputs), attrs, tuple(types), (made,), (), node.dims, node.loc)
    return _written(builder, node, kept, builder.adopt(loop))


def _written(builder: Rewriter, node: Node, kept: _Kept, loop: Node) -> list[Value | None]:
    """Return what a loop carried before, of which elements are written where it ends."""
    numbers, outputs = iter(loop.outputs), list[Value | None]()
    for k in range(node.attrs["carried"]):
        value = node.inputs[1 + k] if k in kept.carried else next(numbers)
        for _, scatter in kept.carried.get(k, ()):
            indices = (_outside(builder, node, i) for i in scatter.inputs[2:])
            value = builder.emit("scatter", value, next(numbers), *indices, **scatter.attrs)
        outputs.append(value)
    return outputs


def _read(builder: Rewriter, node: Node, gather: Node) -> Value:
    """Return what a gather of the body reads, read where the loop is."""
    array, *indices = (_outside(builder, node, v) for v in gather.inputs)
    return builder.emit("gather", array, *indices, **gather.attrs)


def _outside(builder: Rewriter, node: Node, value: Value) -> Value:
    """Return a param of the body or a constant where the loop is."""
    (body,) = node.regions
    if value in body.params:
        return node.inputs[body.params.index(value)]
    assert isinstance(value.type, TensorType)
    return builder.constant(value.node.attrs["value"].array, value.type.dtype)
