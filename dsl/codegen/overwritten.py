"""Finds arrays whose first elements nobody reads, since loops overwrite each of them: they need memory, and no filling.

    out = np.zeros((n, m))
    for i in range(n):
        for j in range(m):
            out[i, j] = …

The array enters a counted loop, or counted loops one in the other, in which nothing happens to it but that one element, or one part, is
written in each trip: each axis at the number of the trip of a loop that makes as many trips as the axis is long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsl.ir.dims import DimLike
from dsl.ir.facts import is_array
from dsl.ir.graph import Node, Value

__all__ = ["is_overwritten"]

Trips = dict[Value, DimLike]  # numbers of trips, and how many there are


def is_overwritten(value: Value, readers: Sequence[Node]) -> bool:
    """Tell whether the reader of a value overwrites all of its elements before any is read."""
    node = value.node
    symbols = dict(zip(node.inputs[len(node.inputs) - len(node.dims) :], node.dims))
    found = _readers(readers)
    return len(found) == 1 and _fills(found[0], value, {}, symbols)


def _readers(nodes: Sequence[Node]) -> list[Node]:
    """Return those that look at elements."""
    return [node for node in nodes if node.op.name != "dim_size"]


def _fills(node: Node, value: Value, trips: Trips, known: Mapping[Value, DimLike]) -> bool:
    """Tell whether a node overwrites all elements of a value; trips are those of the loops around it."""
    if node.op.name == "scatter":
        return node.inputs[0] is value and _is_everywhere(node, trips)
    if node.op.name != "scan" or node.inputs.count(value) != 1:
        return False
    carried = node.inputs.index(value) - 1
    count = _dim_of(node.inputs[0], known)
    if not 0 <= carried < node.attrs["carried"] or count is None:
        return False
    (body,) = node.regions
    param, result, uses = body.params[1 + carried], body.results[carried], body.uses()
    readers = _readers(uses.get(param, ()))
    if len(readers) != 1 or result.node is not readers[0] or param in body.results:
        return False
    if _readers(uses.get(result, ())) or body.results.count(result) > 1:
        return False  # what has not been written yet may be read
    fixed = 1 + node.attrs["carried"]
    same = list(zip(node.inputs[fixed:], body.params[fixed:]))
    around: Trips = {inner: trips[v] for v, inner in same if v in trips}
    sizes = {inner: size for v, inner in same if (size := _dim_of(v, known)) is not None}
    return _fills(readers[0], param, {**around, body.params[0]: count}, sizes)


def _is_everywhere(node: Node, trips: Trips) -> bool:
    """Tell whether an update writes to all places as the loops around it go on."""
    x, _, *indices = node.inputs
    if node.attrs["mode"] != "update" or len({*indices}) != len(indices):
        return False
    sizes = (x.shape[axis] for axis in node.attrs["axes"])
    return len(indices) == len(trips) and all(
        index in trips and trips[index] == size for index, size in zip(indices, sizes)
    )


def _dim_of(value: Value, known: Mapping[Value, DimLike]) -> DimLike | None:
    """Return a number as a size if it surely is one, else None."""
    node = value.node
    if value in known:
        return known[value]
    if is_array(value) or value.dtype.kind != "i":
        return None
    if node.op.name == "const":
        return int(node.attrs["value"].array)
    if node.op.name == "dim_size":
        return node.inputs[0].shape[node.attrs["axis"]]
    if node.op.name not in ("maximum", "add", "subtract"):
        return None
    a, b = (_dim_of(v, known) for v in node.inputs)
    if a is None or b is None:
        return None
    if (
        node.op.name == "maximum"
    ):  # with 0: what it is compared with is not below that, or there is no such array
        return a if b == 0 else b if a == 0 else None
    return a + b if node.op.name == "add" else a - b
