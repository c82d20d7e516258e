"""Whether a write into part of an array disturbs what is computed from the array meanwhile.

Each read of the array is compared with the place that is written for the same point. A read of that very place is
harmless, and so is one of another row: where on some axis all that is read lies before, or behind, all that is written.
Indices are compared as sums of what is known about integers (`ranges`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsl.codegen.accesses import read_again
from dsl.codegen.elements import Elements
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index
from dsl.codegen.plan import reads_of
from dsl.codegen.ranges import Linear, Ranges
from dsl.ir import graph as ir

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["clashes"]

Index = tuple[Affine, ...]


def clashes(
    region: Region, v: ir.Value, x: ir.Value, offset: Callable[[Index], Index] | None
) -> bool:
    """Tell whether computing v element by element would read elements of x that are overwritten.

    `offset` is where in x an element of v goes; None if only the elements of index arrays tell.
    """
    index = identity_index(tuple(Var(d) for d in v.shape))
    e = Elements(Pool(), region.in_memory).at(v, index)
    again = set(read_again(e))
    places = _Places(region.ranges)
    written = offset(index) if offset is not None else None
    for read in reads_of(e):
        if not _shares_memory(region, read, x):
            continue
        if read.value is not x or written is None:
            return True
        if places.are_apart(read.index, written):
            continue
        if read in again or not places.are_same(read.index, written):
            return True
    return False


def _shares_memory(region: Region, read: Expression, x: ir.Value) -> bool:
    if read.kind != "load":
        return False
    assert read.value is not None
    placed = region.placed.get(read.value)
    return placed is not None and placed.slot is region.placed[x].slot


class _Places:
    """Compares places in one array."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self._wrapped: dict[Linear, Linear] = {}

    def are_same(self, read: Index, written: Index) -> bool:
        """Tell whether each point reads where it writes."""
        return all(
            a.terms == b.terms and self.gap(a, b) == Linear()
            for a, b in zip(read, written, strict=True)
        )

    def are_apart(self, read: Index, written: Index) -> bool:
        """Tell whether no point reads where some point writes: on some axis all lie before, or all after."""
        return any(
            self.is_before(a, b) or self.is_before(b, a) for a, b in zip(read, written, strict=True)
        )

    def is_before(self, a: Affine, b: Affine) -> bool:
        """Tell whether the last place of one index is surely before the first of the other."""
        last, first = self.end(a, last=True), self.end(b, last=False)
        return last is not None and first is not None and self.is_positive(first - last)

    def end(self, a: Affine, *, last: bool) -> Linear | None:
        """Return the first or the last place to which the loops take an index; None if nobody knows."""
        total = self.fixed(a)
        for var, scale in a.terms:
            if total is not None and (scale > 0) is last:
                total = total + (self.ranges.size(var.extent) + -1).times(scale)
        return total

    def is_positive(self, number: Linear | None) -> bool:
        return number is not None and self.ranges.is_natural(number + -1)

    def gap(self, a: Affine, b: Affine) -> Linear | None:
        """Return how far apart the parts of two indices are that do not move with the loops; None if nobody knows."""
        first, second = self.fixed(a), self.fixed(b)
        return None if first is None or second is None else first - second

    def fixed(self, a: Affine) -> Linear | None:
        total = self.ranges.size(a.offset)
        for item, scale in a.extra:
            number = self.number(item)
            if number is None:
                return None
            total = total + number.times(scale)
        return total

    def number(self, e: Expression) -> Linear | None:
        """Return an index that is a number in a register, or None."""
        source = e.args[0] if e.kind == "checked" else e
        if source.kind == "const":
            form = Linear((), int(source.constant))
        elif source.kind in ("register", "given") and source.value is not None:
            form = self.ranges.form(source.value)
        else:
            return None
        counts_from_end = e.kind == "checked" or (e.kind == "given" and bool(e.output))
        if not counts_from_end or self.ranges.is_natural(form):
            return form
        return self._wrapped.setdefault(form, self.ranges.new([], []))
