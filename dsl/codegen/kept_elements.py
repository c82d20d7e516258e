"""Carries an element of an array as a number through a loop that changes no other, instead of going through memory in each trip.

    for k in range(n):                        number = c[i, j]
        c[i, j] += a[i, k] * b[k, j]    ->    for k in range(n):
                                                  number += a[i, k] * b[k, j]
                                              c[i, j] = number

So a trip of the loop around it writes once, at a place of its own, and may be made at once with others: see `control.across`. The
place is written where the loop makes no trip, too, so it must surely be in the array.

    %1 = scan(%n, %c, %i, %j, ...) {carried=1}           %0 = gather(%c, %i, %j)
      @body(%k, %c, %i, %j, ...) {                       %1 = scan(%n, %0, %i, %j, ...) {carried=1}
        %0 = gather(%c, %i, %j)                            @body(%k, %0, %i, %j, ...) {
        %4 = add(%0, %3)                          ->         %4 = add(%0, %3)
        %5 = scatter(%c, %4, %i, %j)                         return %4
        return %5                                          }
      }                                                  %2 = scatter(%c, %1, %i, %j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dsl.codegen.ranges import Linear, Ranges
from dsl.ir.facts import is_array
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild, with_params
from dsl.ir.types import TensorType

__all__ = ["keep_elements"]


class _Element(NamedTuple):
    """An element that stays in one place of an array: what reads it in a trip, and what writes it."""

    number: int  # of the array among what the loop carries
    gather: Node
    scatter: Node


def keep_elements(graph: Graph) -> Graph:
    """Return the graph with such elements carried as numbers."""
    if not {"scan", "scatter"} <= graph.op_names:
        return graph
    graph = rebuild(graph, _forwarded)
    known: dict[Node, Ranges] = {}
    _note(graph, Ranges(), known)
    return rebuild(graph, lambda builder, node: _kept(builder, node, known))


def _forwarded(builder: Rewriter, node: Node) -> Sequence[Value] | None:
    """Return what was just written for what is read at its place, and one write for two to a place: `x[i] += a; x[i] *= b`."""
    name, last = node.op.name, node.inputs[0].node if node.inputs else node
    if name not in ("gather", "scatter") or last.op.name != "scatter" or not _is_one(last):
        return None
    indices = node.inputs[1 if name == "gather" else 2 :]
    if indices != last.inputs[2:] or node.attrs["axes"] != last.attrs["axes"]:
        return None
    if name == "gather":
        return [last.inputs[1]] if last.inputs[1].type == node.output.type else None
    if not _is_one(node) or _is_read(builder.graph, builder.origin):
        return None
    return [builder.emit(name, last.inputs[0], *node.inputs[1:], **node.attrs)]


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
    ranges = known.get(builder.origin)
    if ranges is None or node.controls or node.regions[0].effects:
        return None
    found = [e for e in _elements(node) if _is_inside(builder.origin, node, e, ranges)]
    return _carried(builder, node, found) if found else None


def _elements(node: Node) -> list[_Element]:
    """Return the elements that a loop reads and writes in each trip, of arrays of which it touches nothing else."""
    (body,), carried = node.regions, node.attrs["carried"]
    steady = set(body.params[1 + carried :])
    found = []
    for k, (param, result) in enumerate(zip(body.params[1 : 1 + carried], body.results)):
        scatter = result.node
        if not is_array(param) or scatter.op.name != "scatter" or scatter.inputs[0] is not param:
            continue
        indices = scatter.inputs[2:]
        readers = [n for n in body.nodes if param in n.inputs and n is not scatter]
        once = len(readers) == 1 and body.results.count(result) == 1
        once = once and not any(result in n.inputs for n in body.nodes)
        if not (once and param not in body.results and _is_one(scatter)):
            continue
        gather = readers[0]
        same = gather.op.name == "gather" and gather.inputs == (param, *indices)
        same = same and gather.attrs["axes"] == scatter.attrs["axes"]
        if same and all(i in steady or i.node.op.name == "const" for i in indices):
            found.append(_Element(k, gather, scatter))
    return found


def _is_one(scatter: Node) -> bool:
    """Tell whether one element is written."""
    axes, numbers = scatter.attrs["axes"], scatter.inputs[1:]
    whole = len(axes) == len(scatter.inputs[0].shape)
    return whole and scatter.attrs["mode"] == "update" and not any(map(is_array, numbers))


def _is_inside(origin: Node, node: Node, element: _Element, ranges: Ranges) -> bool:
    """Tell whether the place of an element is in the array, whether the loop makes trips or not."""
    shape = node.inputs[1 + element.number].shape
    for axis, index in zip(element.scatter.attrs["axes"], element.scatter.inputs[2:]):
        form = _form(origin, node.regions[0], index, ranges)
        if not all(map(ranges.is_natural, (form, ranges.size(shape[axis]) - form + -1))):
            return False
    return True


def _form(node: Node, body: Graph, index: Value, ranges: Ranges) -> Linear:
    if index in body.params:
        index = node.inputs[body.params.index(index)]
    return ranges.form(index)


def _carried(builder: Rewriter, node: Node, elements: list[_Element]) -> list[Value | None]:
    (body,) = node.regions
    params, results = list(body.params), list(body.results)
    inputs, types = list(node.inputs), list(node.types)
    places = []
    for k, gather, scatter in elements:
        indices = tuple(_outside(builder, node, body, i) for i in scatter.inputs[2:])
        places.append(indices)
        params[1 + k], results[k] = gather.output, scatter.inputs[1]
        inputs[1 + k] = builder.emit("gather", node.inputs[1 + k], *indices, **gather.attrs)
        types[k] = inputs[1 + k].type
    made = with_params(body, params, results)
    loop = builder.adopt(
        Node(node.op, tuple(inputs), node.attrs, tuple(types), (made,), (), node.dims, node.loc)
    )
    outputs: list[Value | None] = list(loop.outputs)
    for (k, _, scatter), indices in zip(elements, places, strict=True):
        array, number = node.inputs[1 + k], loop.outputs[k]
        outputs[k] = builder.emit("scatter", array, number, *indices, **scatter.attrs)
    return outputs


def _outside(builder: Rewriter, node: Node, body: Graph, index: Value) -> Value:
    """Return an index of the body where the loop is."""
    if index in body.params:
        return node.inputs[body.params.index(index)]
    assert isinstance(index.type, TensorType)
    return builder.constant(index.node.attrs["value"].array, index.type.dtype)
