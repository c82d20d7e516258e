"""Turns the branches of innermost loops into choices between numbers, where the loops can then be written by vectors.

What a branch writes is written in each trip: the new element, or the old one again.

    %c = cond(%p, %y, %x, %i) {                            %a = gather(%x, %i)
      @then {                                              %b = multiply(%a, %a)
        %0 = gather(%x, %i)                                %o = gather(%y, %i)
        %1 = multiply(%0, %0)                       ->     %n = where(%p, %b, %o)
        %2 = scatter(%y, %1, %i)                           %c = scatter(%y, %n, %i)
        return %2
      }
      @else { return %y }
    }

So are those of loops within such a loop, whose trips all lanes then make together: see `control.across`.

It is done where all of that may be computed in every trip: it cannot raise, takes little time, and its places surely are in the
arrays. Loops of which trips meet all the same keep their branches. Loops that carry numbers alone are left to LLVM then, which makes
many trips at once where `tallies` finds no chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsl.codegen.control.apart import is_dense, is_simple, trips_apart
from dsl.codegen.kept_elements import are_apart, keep_elements
from dsl.codegen.ranges import Linear, Ranges
from dsl.codegen.tallies import chosen, has_no_chain, with_switches
from dsl.ir.dims import DimLike
from dsl.ir.facts import is_array, may_raise
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import TensorType

__all__ = ["without_branches"]

_ACCESSES = frozenset(("gather", "scatter", "slice"))
_BY_VECTORS = frozenset(("divide", "sqrt"))  # which take long for single numbers

Costly = Callable[[Node], bool]


def without_branches(graph: Graph, expensive: Costly) -> Graph:
    """Return the graph without branches in loops that vectors can make then."""
    found: dict[Node, Graph] = {}
    _look(graph, Ranges(), expensive, found)
    return (
        rebuild(graph, lambda builder, node: _with_body(builder, node, found)) if found else graph
    )


def _look(graph: Graph, ranges: Ranges, expensive: Costly, found: dict[Node, Graph]) -> None:
    """Find loops, and what their bodies become."""
    for node in graph.nodes:
        for region in node.regions:
            inner = ranges.inside(node, region)
            body = _straight(node, region, inner, expensive) if node.op.name == "scan" else None
            if body is None:
                _look(region, inner, expensive, found)
            else:
                found[node] = body


def _with_body(
    builder: Rewriter, node: Node, found: dict[Node, Graph]
) -> Sequence[Value | None] | None:
    body = found.get(builder.origin)
    if body is None:
        return None
    made = Node(
        node.op, node.inputs, node.attrs, node.types, (body,), node.controls, node.dims, node.loc
    )
    return builder.adopt(made).outputs


def _straight(node: Node, body: Graph, ranges: Ranges, expensive: Costly) -> Graph | None:
    """Return a loop's body without branches, or None if it has none or has to keep them."""
    branches = [inner for inner in body.walk() if inner.op.name == "cond"]
    arrays = {is_array(value) for value in body.results}
    tensors = all(isinstance(value.type, TensorType) for value in body.results)
    if not branches or body.effects or len(arrays) > 1 or not tensors:
        return None
    if not all(_is_plain(branch, expensive) for branch in branches):
        return None
    made, carried = rebuild(body, _choose), node.attrs["carried"]
    made = with_switches(made, node.inputs[1 : 1 + carried])
    looked = _looked_at(body)
    nested = any(inner.regions for inner in made.nodes)
    if nested:
        made = keep_elements(made, ranges)
    if any(inner.op.name == "cond" for inner in made.walk()):
        return None
    if not _is_inside(made, ranges, looked) or (nested and not is_dense(made, ranges)):
        return None
    together = trips_apart(made, carried, ranges, {number for number, _ in looked}) is not None
    alone = arrays == {False} and not nested
    return made if together or (alone and has_no_chain(made, carried)) else None


def _is_plain(branch: Node, expensive: Costly) -> bool:
    """Tell whether a branch may be taken in every trip, as far as it computes numbers; and writes to arrays at its end alone."""
    return branch.op.name == "cond" and all(_is_side(side, expensive) for side in branch.regions)


def _is_side(side: Graph, expensive: Costly) -> bool:
    arrays = {value for node in side.nodes for value in node.outputs if is_array(value)}
    read = [value for node in side.nodes for value in node.inputs if value in arrays]
    changed = [node.inputs[0] for node in side.nodes if node.op.name == "scatter"]
    once = len(set(read)) == len(read) and set(read) <= set(changed)
    if side.effects or not once or set(side.results) & arrays != arrays - set(read):
        return False
    return all(_is_quick(node, expensive) or _is_plain(node, expensive) for node in side.nodes)


def _is_quick(node: Node, expensive: Costly) -> bool:
    """Tell whether a node may be computed in every trip; places are looked at when all is put together."""
    if node.op.name in _ACCESSES:
        return node.op.name == "scatter" or is_simple(node)
    quick = node.op.name in _BY_VECTORS or not expensive(node)
    return is_simple(node) and not may_raise(node) and quick


def _is_inside(body: Graph, ranges: Ranges, looked: set[tuple[Value, DimLike]]) -> bool:
    """Tell whether all places that are read or written surely are in the arrays, or have been looked at before a branch."""
    for node in body.nodes:
        if not all(_is_inside(g, ranges.inside(node, g), looked) for g in node.regions):
            return False
        for number, size in _places(node):
            form = Linear() if is_array(number) else ranges.form(number)
            natural = all(map(ranges.is_natural, (form, ranges.size(size) - form + -1)))
            if is_array(number) or not (natural or (number, size) in looked):
                return False
    return True


def _places(node: Node) -> list[tuple[Value, DimLike]]:
    """Return the indices that a node reads or writes at, and the sizes of the axes they are for."""
    if node.op.name not in ("gather", "scatter"):
        return []
    shape, first = node.inputs[0].shape, 1 if node.op.name == "gather" else 2
    return [(i, shape[axis]) for axis, i in zip(node.attrs["axes"], node.inputs[first:])]


def _looked_at(body: Graph) -> set[tuple[Value, DimLike]]:
    """Return where each trip reads or writes before its first branch."""
    before = itertools.takewhile(lambda node: not node.regions, body.nodes)
    return {place for node in before for place in _places(node)}


# --- Choices -------------------------------------------------------------------------------------


class _Write(NamedTuple):
    """An element that one side of a branch writes."""

    scatter: Node
    number: Value
    indices: tuple[Value, ...]


class _Written(NamedTuple):
    """An array in which one side of a branch writes elements, one after the other."""

    array: Value
    writes: tuple[_Write, ...]


def _choose(builder: Rewriter, node: Node) -> Sequence[Value | None] | None:
    if node.op.name == "gather":  # made anew, so that what a branch reads again is found
        return builder.copy(node, {v: v for v in node.inputs}).outputs
    if node.op.name != "cond":
        return None
    sides = [_inlined(builder, node, k) for k in range(2)]
    predicate = node.inputs[0]
    pairs = list(zip(*sides, strict=True))
    if not all(_fit(one, other) for one, other in pairs):
        return None
    return [_chosen(builder, predicate, one, other) for one, other in pairs]


def _inlined(builder: Rewriter, branch: Node, k: int) -> list[Value | _Written]:
    """Compute the numbers of a side here; return its results, writes that are not made among them."""
    side, (predicate, *operands) = branch.regions[k], branch.inputs
    known = {predicate: k == 0}
    if predicate.node.op.name == "logical_not":
        known[predicate.node.inputs[0]] = k == 1
    values = {
        param: builder.constant(np.bool_(known[operand])) if operand in known else operand
        for param, operand in zip(side.params, operands, strict=True)
    }
    writes: dict[Value, _Written] = {}
    for node in side.nodes:
        if node.op.name == "scatter":
            changed = node.inputs[0]
            before = writes.get(changed) or _Written(values[changed], ())
            number, *indices = (values[v] for v in node.inputs[1:])
            more = (*before.writes, _Write(node, number, tuple(indices)))
            writes[node.output] = _Written(before.array, more)
        else:
            values.update(zip(node.outputs, builder.copy(node, values).outputs, strict=True))
    return [writes[v] if v in writes else values[v] for v in side.results]


def _fit(one: Value | _Written, other: Value | _Written) -> bool:
    """Tell whether two sides leave numbers, or one array with elements of it written at the same places."""
    match one, other:
        case _Written(), _Written():
            places = [[(w.scatter.attrs, w.indices) for w in side.writes] for side in (one, other)]
            return one.array is other.array and places[0] == places[1] and _are_told(one)
        case (_Written() as written, left) | (left, _Written() as written):
            return written.array is left and _are_told(written)
        case _:
            return one is other or not is_array(one)


def _are_told(written: _Written) -> bool:
    """Tell whether it is known of all places that are written whether they are one."""
    pairs = itertools.combinations(written.writes, 2)
    alike = len({w.scatter.attrs["axes"] for w in written.writes}) == 1
    return alike and all(
        a.indices == b.indices or are_apart(a.indices, b.indices) for a, b in pairs
    )


def _chosen(
    builder: Rewriter, predicate: Value, one: Value | _Written, other: Value | _Written
) -> Value:
    written = one if isinstance(one, _Written) else other if isinstance(other, _Written) else None
    if written is None:
        assert isinstance(one, Value)
        assert isinstance(other, Value)
        return chosen(builder, predicate, one, other)
    array = written.array
    there: dict[tuple[Value, ...], Value] = {}  # what was written in places
    for k, (scatter, _, indices) in enumerate(written.writes):
        numbers = [_number(builder, side, k, written, there) for side in (one, other)]
        there[indices] = builder.emit("where", predicate, *numbers)
        array = builder.emit("scatter", array, there[indices], *indices, **scatter.attrs)
    return array


def _number(
    builder: Rewriter, side: Value | _Written, k: int, written: _Written, there: dict[tuple[Value, ...], Value]
) -> Value:  # fmt: skip
    """Return what a side leaves at the place of a write: its own number, or what is there already."""
    scatter, _, indices = written.writes[k]
    if isinstance(side, _Written):
        return side.writes[k].number
    if indices in there:
        return there[indices]
    return builder.emit("gather", written.array, *indices, axes=scatter.attrs["axes"])
