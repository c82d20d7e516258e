"""Indices out of bounds that no op of the program would find.

Ops that read at places which the data tells check them, element by element. Nothing does so where a read is not used, and so is not
part of the graph, or has a result without elements: there the program gets checks of their own. Reads that are used cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsl.ir.build import Builder
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.location import Location
from dsl.ir.types import I64, Shape, broadcast_shapes, size_of

__all__ = ["Place", "check_unused", "note_read", "require_inside"]


@dataclass(frozen=True)
class Place:
    """An index along an axis: the op that reads there takes it as `given`."""

    index: Value
    given: Value
    axis: int
    size: int | Value
    loc: Location | None


def note_read(
    b: Builder, noted: list[Place], shape: Shape, axes: Sequence[int], indices: Sequence[Value],
    given: Sequence[Value] | None = None, *, is_empty: bool = False,
) -> None:  # fmt: skip
    """Remember a read of an array at indices, to be checked if nothing uses it; check it now if there is nothing to read.

    NumPy looks into indices with axes only if they have elements together. `given` are those that the op takes, broadcast.
    """
    spread = broadcast_shapes(*(index.shape for index in indices))
    rest = [dim for axis, dim in enumerate(shape) if axis not in axes]
    for axis, index, value in zip(axes, indices, given or indices, strict=True):
        if index.node.op.name == "nonzero" or (index.shape and 0 in spread):
            continue
        place = Place(index, value, axis, _size(b, shape[axis]), b.loc)
        if is_empty or 0 in spread or any(map(_may_be_zero, rest)):
            _check(b, place)
        else:
            noted.append(place)


def _may_be_zero(dim: DimLike) -> bool:
    return (lower_bound(dim) or 0) < 1


def _size(b: Builder, dim: DimLike) -> int | Value:
    """Return a size; one that is a symbol is asked for now, while its array is at hand."""
    return dim if isinstance(dim, int) else b.size(dim)


def check_unused(b: Builder, noted: list[Place], graph: Graph) -> bool:
    """Make the program check the places that the graph has no reads at; tell whether there are any."""
    if not noted:
        return False
    read = {value for node in graph.nodes for value in _read_at(node)}
    unused = [place for place in noted if place.given not in read and place.index not in read]
    noted.clear()
    for place in dict.fromkeys(unused):
        _check(b, place)
    return bool(unused)


def _read_at(node: Node) -> tuple[Value, ...]:
    """Return the indices that a node checks; those that its regions get are taken for checked, as views are read in there."""
    if node.regions:
        return node.inputs
    return node.inputs[1:] if node.op.name in ("gather", "scatter") else ()


def _check(b: Builder, place: Place) -> None:
    around, b.loc = b.loc, place.loc
    size = b.constant(place.size, I64) if isinstance(place.size, int) else place.size
    message = f"index {{}} is out of bounds for axis {place.axis} with size {{}}"
    require_inside(b, place.index, b.emit("negative", size), size, message)
    b.loc = around


def require_inside(b: Builder, index: Value, low: Value, size: Value, message: str) -> None:
    """Make the program raise unless integers are at least `low` and less than `size`; the message shows the first that is not."""
    if index.dtype != I64:
        index = b.emit("cast", index, dtype=I64)
    if index.shape:
        index, inside = _first_outside(b, _as_vector(b, index), low, size)
    else:
        inside = _is_inside(b, index, low, size)
    b.node("assert", (inside, index, size), {"message": message, "error": "IndexError"})


def _as_vector(b: Builder, index: Value) -> Value:
    return (
        index if len(index.shape) == 1 else b.emit("reshape", index, shape=(size_of(index.shape),))
    )


def _is_inside(b: Builder, index: Value, low: Value, size: Value) -> Value:
    return b.emit("logical_and", b.emit("less_equal", low, index), b.emit("less", index, size))


def _first_outside(b: Builder, indices: Value, low: Value, size: Value) -> tuple[Value, Value]:
    """Return the first of a vector of indices that is outside, which the message names, and whether all are inside."""
    low, high = (b.emit("broadcast_to", bound, shape=indices.shape) for bound in (low, size))
    inside = _is_inside(b, indices, low, high)
    outside = b.emit("cast", b.emit("logical_not", inside), dtype=I64)
    one = b.emit("broadcast_to", b.constant(1, I64), shape=indices.shape)
    is_first = b.emit("equal", b.emit("cumsum", outside, axis=0), one)
    first = b.emit(
        "cast", b.emit("logical_and", is_first, b.emit("logical_not", inside)), dtype=I64
    )
    found = b.emit("sum", b.emit("multiply", first, indices), axes=(0,))
    return found, b.emit("all", inside, axes=(0,))
