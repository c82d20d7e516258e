"""Lanes that are at the same place: their numbers and their registers.

A register value is an array with one element for each lane of the group, or with one element when all lanes hold the
same. Values are never changed in place, so groups share them freely. Lanes are in increasing order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dsl.codegen.cuda.emulator.chunk import Chunk

__all__ = ["Group", "join"]

Array = np.ndarray[Any, Any]
Values = list[Any]


class Group:
    """Lanes with their registers (None: never written)."""

    __slots__ = ("chunk", "counters", "full", "lanes", "memory", "n", "registers", "symbols")

    def __init__(self, chunk: Chunk, lanes: Array, registers: Values) -> None:
        self.chunk, self.lanes, self.registers = chunk, lanes, registers
        self.n = lanes.shape[0]
        self.full = self.n == chunk.geometry.lanes
        self.memory, self.symbols, self.counters = chunk.memory, chunk.symbols, chunk.counters

    def special(self, name: str) -> Array:
        """A special register of these lanes."""
        return self.of_lanes(self.chunk.geometry.special(name))

    def of_lanes(self, values: Array) -> Array:
        """The part of a per-lane table of the chunk that belongs to this group."""
        return values if self.full or values.shape[0] == 1 else values[self.lanes]

    def spread(self, values: Array) -> Array:
        """A value as one element for each lane."""
        if values.shape[0] == self.n:
            return values
        return np.broadcast_to(values, (self.n, *values.shape[1:]))

    def select(self, positions: Array, live: list[int]) -> Group:
        """The lanes at these positions, with the registers that are still needed."""
        registers: Values = [None] * len(self.registers)
        for i in live:
            value = self.registers[i]
            if value is not None and value.shape[0] != 1:
                value = value.take(positions, 0)
            registers[i] = value
        return Group(self.chunk, self.lanes.take(positions), registers)


def join(groups: list[Group], live: list[int]) -> Group:
    """One group of all their lanes."""
    if len(groups) == 1:
        return groups[0]
    lanes = np.concatenate([group.lanes for group in groups])
    order = np.argsort(lanes, kind="stable")
    registers: Values = [None] * len(groups[0].registers)
    for i in live:
        registers[i] = _joined([group.registers[i] for group in groups], groups, order)
    return Group(groups[0].chunk, lanes[order], registers)


def _joined(values: Values, groups: list[Group], order: Array) -> Array | None:
    first = next((value for value in values if value is not None), None)
    if first is None:
        return None
    if all(value is not None and _same(value, first) for value in values):
        return first  # type: ignore[no-any-return]
    blank = np.zeros((1, *first.shape[1:]), first.dtype)
    whole = [group.spread(blank if v is None else v) for group, v in zip(groups, values)]
    return np.concatenate(whole).take(order, 0)


def _same(x: Array, y: Array) -> bool:
    return (x is y and x.shape[0] == 1) or (
        x.shape[0] == y.shape[0] == 1 and x.tobytes() == y.tobytes()
    )
