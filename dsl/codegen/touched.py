"""Remembers which elements of arrays loops read and write, one at a time, to tell whether a trip reads what another has just written.

LLVM reads neighbours in one go where it can. Where one of them has just been written and the other before that, such a read cannot be
served by the writes that are under way: it waits until they are in the cache, which takes longer than the arithmetic of most filters.
"""

from __future__ import annotations

from collections import defaultdict

from dsl.codegen.memory import Slot
from dsl.codegen.ranges import Linear

__all__ = ["Touched"]

Index = tuple[Linear, ...]


class Touched:
    """The elements that loops of a program touch, by the outermost loop and the memory they are in."""

    def __init__(self) -> None:
        self.reads: dict[tuple[int, Slot], set[Index]] = defaultdict(set)
        self.writes: dict[tuple[int, Slot], set[Index]] = defaultdict(set)
        self.nest = 0

    def enter(self) -> None:
        """Start an outermost loop."""
        self.nest += 1

    def note(self, slot: Slot, index: Index, *, writes: bool) -> None:
        (self.writes if writes else self.reads)[self.nest, slot].add(index)

    @property
    def recurs(self) -> bool:
        """Whether an array is read near where it is written."""
        return any(
            _may_meet(read, written)
            for where, places in self.writes.items()
            for written in places
            for read in self.reads.get(where, ())
        )


def _may_meet(read: Index, written: Index) -> bool:
    """Tell whether different places may be the same one in another trip."""
    gaps = [a - b for a, b in zip(read, written)]
    apart = any(gap.constant and not (a.terms or b.terms) for gap, a, b in zip(gaps, read, written))
    return not apart and any(gap.terms or gap.constant for gap in gaps)
