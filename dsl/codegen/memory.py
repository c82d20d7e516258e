"""Where arrays live: slots, their owners, and who still reads them.

A slot is memory for one array at a time; its address is a variable, because loops may exchange the memory of two slots
instead of copying. `users` are the values that are still to be read from it; a value may be overwritten in place when it
is the only user and dies. Kinds: `block` (allocated before the program starts, size known then), `dynamic` (allocated
where its size becomes known, grown as needed), `param` (the caller's array) and `const`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsl.codegen.arrays import Array
from dsl.codegen.llvm import Function, Operand, Variable
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import Shape

__all__ = ["Placed", "Slot", "contiguous_strides", "nbytes", "note_exchange"]


@dataclass(eq=False)
class Slot:
    """Memory for one array at a time."""

    number: int
    variable: Variable
    kind: str
    size: DimLike | None = None  # bytes, of a block
    owned: bool = True
    capacity: Variable | None = None  # of a dynamic slot
    users: set[ir.Value] = field(default_factory=set)
    note: str = ""
    exchanged: bool = False  # whether a loop may have given it another slot's memory
    lent: bool = False  # whether that may be the memory of a caller's array
    taken: int = 0  # how often it was given to a value


@dataclass(frozen=True)
class Placed:
    """A value in a slot."""

    slot: Slot
    array: Array
    contiguous: bool = True


def note_exchange(exchange: Mapping[Slot, Slot]) -> None:
    """Note that slots may have one another's memory, and which of them a caller's."""
    for slot in exchange:
        turn, other = [slot], exchange[slot]
        while other is not slot:
            turn.append(other)
            other = exchange[other]
        slot.exchanged = True
        slot.lent |= any(s.kind == "param" or s.lent for s in turn)


def contiguous_strides(fn: Function, shape: Shape, dim: object) -> tuple[Operand, ...]:
    """Return the strides, in elements, of an array of this shape in C order; `dim` turns sizes into operands."""
    strides: list[Operand] = []
    total: DimLike = 1
    for extent in reversed(shape):
        strides.append(dim(total))  # type: ignore[operator]
        total = total * extent
    return tuple(reversed(strides))


def nbytes(shape: Shape, itemsize: int) -> DimLike:
    """Return the bytes of an array in C order."""
    total: DimLike = itemsize
    for extent in shape:
        total = total * extent
    return total
