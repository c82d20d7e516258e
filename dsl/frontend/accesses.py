"""Where the user's code reads and writes arrays at places that the data tells, for `bounds` to check what nothing uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dsl.frontend.bounds import Place, check
from dsl.frontend.ranges import is_at_most, range_of
from dsl.frontend.scopes import Scope, current_scope, current_trace
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.graph import Value
from dsl.ir.types import Shape, broadcast_shapes

__all__ = ["note_read", "note_write", "noting", "together", "unnoted"]


def note_read(
    b: Scope, shape: Shape, axes: Sequence[int], indices: Sequence[Value],
    given: Sequence[Value] | None = None, *, is_empty: bool = False,
) -> None:  # fmt: skip
    """Remember that an array is read at indices, to be checked if nothing uses that; check now if there may be no elements to read.

    `given` are the indices that the op takes, broadcast.
    """
    spread = broadcast_shapes(*(index.shape for index in indices))
    rest = [dim for axis, dim in enumerate(shape) if axis not in axes]
    for place in _places(b, shape, axes, indices, given):
        if is_empty or 0 in spread or any(map(_may_be_zero, rest)):
            check(b, place)
        else:
            _note(b, place)


def note_write(
    b: Scope, shape: Shape, axes: Sequence[int], indices: Sequence[Value],
    given: Sequence[Value] | None = None,
) -> None:  # fmt: skip
    """Remember that an array is written at indices, to be checked if nothing uses what it then holds.

    Index arrays are checked now if there may be no elements to write.
    """
    spread = broadcast_shapes(*(index.shape for index in indices))
    rest = [dim for axis, dim in enumerate(shape) if axis not in axes]
    for place in _places(b, shape, axes, indices, given):
        if spread and any(map(_may_be_zero, rest)):
            check(b, place)
        else:
            _note(b, place)


def _places(
    b: Scope, shape: Shape, axes: Sequence[int], indices: Sequence[Value],
    given: Sequence[Value] | None,
) -> Iterator[Place]:  # fmt: skip
    """Yield the places that may be outside; NumPy looks into indices with axes only if they have elements together."""
    is_empty = 0 in broadcast_shapes(*(index.shape for index in indices))
    for axis, index, value in zip(axes, indices, given or indices, strict=True):
        surely = index.node.op.name == "nonzero" or (index.shape and is_empty)
        if not surely and not _is_inside(b, index, shape[axis]):
            yield Place(index, value, axis, (shape[axis],), _size(b, shape[axis]), b.loc)


def _note(b: Scope, place: Place) -> None:
    trace = current_trace()
    if trace is not None and trace.noting:
        b.noted.append(place)


@contextmanager
def noting(wanted: bool) -> Iterator[None]:
    """Run code of which reads and writes are not noted unless that is wanted: the library's own."""
    trace = current_trace()
    if trace is None:
        yield
        return
    around, trace.noting = trace.noting, trace.noting and wanted
    try:
        yield
    finally:
        trace.noting = around


@contextmanager
def unnoted() -> Iterator[None]:
    """Run code of which nothing is noted, ops that may raise included: what runs once more elsewhere, or is no code of the user's."""
    trace = current_trace()
    if trace is None:
        yield
        return
    around, trace.muted = trace.muted, True
    try:
        with noting(False):
            yield
    finally:
        trace.muted = around


@contextmanager
def together() -> Iterator[None]:
    """Take the accesses in the block, to columns of one list at one index, for one: an op that checks any of them checks all."""
    noted = current_scope().noted
    before = len(noted)
    yield
    if places := [item for item in noted[before:] if isinstance(item, Place)]:
        rest = [item for item in noted[before:] if not isinstance(item, Place)]
        dims = tuple(dim for place in places for dim in place.dims)
        noted[before:] = [replace(places[0], dims=dims), *rest]


def _is_inside(b: Scope, index: Value, dim: DimLike) -> bool:
    """Tell whether an index surely lies in an axis, as the number of a trip in `for i in range(len(x))` does."""
    known = range_of(b, index)
    if known is None:
        return False
    inside = is_at_most(b, 0, known.low) and is_at_most(b, known.high, dim - 1)
    return inside or (is_at_most(b, -dim, known.low) and is_at_most(b, known.high, -1))


def _may_be_zero(dim: DimLike) -> bool:
    return (lower_bound(dim) or 0) < 1


def _size(b: Scope, dim: DimLike) -> int | Value:
    """Return a size; one that is a symbol is asked for now, while its array is at hand."""
    return dim if isinstance(dim, int) else b.size(dim)
