"""One load, store or atomic of the program: what its block's code calls, with the errors of its line.

Most accesses fall into one region for all lanes (one allocation, shared memory, local memory) and are one ufunc call.
Lanes that point into several regions take the slow way, one region after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from dsl.codegen.cuda.emulator import access
from dsl.codegen.cuda.emulator.chunk import (
    LOCAL_START,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_START,
    SHARED_WINDOW,
)
from dsl.codegen.cuda.emulator.groups import Group
from dsl.codegen.cuda.emulator.memory import Region
from dsl.codegen.cuda.emulator.syntax import Instruction

__all__ = ["Site"]

Array = np.ndarray[Any, Any]

_LANE = np.zeros(1, np.int64)
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_WINDOW = 0x00FF_0000_0000


class Site:
    """An access of `nbytes` at `[register + offset]` in `space` ("generic" for any)."""

    def __init__(self, instruction: Instruction, space: str, nbytes: int, offset: int) -> None:
        self.instruction, self.space, self.nbytes = instruction, space, nbytes
        self.number = offset
        self.offset: Array = np.array([offset & _MASK], np.uint64)
        self.checked = space in ("shared", "generic")

    # The three kinds of access --------------------------------------------------------------------------------------

    def loader(self, kind: str, width: int, strong: bool) -> Callable[[Group, Array], Any]:
        """A function (group, address) -> value, or a tuple of `width` values."""
        plain = access.load(kind, width)
        checked = access.load(kind, width, True, strong) if self.checked else plain

        def run(group: Group, address: Array) -> Any:
            region, lanes = self._region(group, int(address[0]) + self.number & _MASK)
            operation = checked if region.space == "shared" and group.chunk.checked else plain
            value = operation(address, self.offset, lanes, region.handle)
            if region.cells[access.ERROR]:
                act = lambda r, lane, where, _: (checked if self._checks(group, r) else plain)(
                    where, self.offset, lane, r.handle
                )
                value = self._scattered(group, address, [], region, value, act)
            if group.counters is not None:
                self._count(group, region, address, False)
            return value

        return run

    def storer(self, kind: str, width: int, strong: bool) -> Callable[..., None]:
        """A function (group, address, value, ...)."""
        plain = access.store(kind, width)
        checked = access.store(kind, width, True, strong) if self.checked else plain
        verify = access.verify(kind, width)

        def run(group: Group, address: Array, *values: Array) -> None:
            region, lanes = self._region(group, int(address[0]) + self.number & _MASK)
            if region.space in ("const", "param"):
                self._fail(group, 0, f"store to {region.space} memory")
            operation = checked if region.space == "shared" and group.chunk.checked else plain
            done = operation(address, self.offset, lanes, region.handle, *values)
            if region.cells[access.ERROR]:
                act = lambda r, lane, where, v: (checked if self._checks(group, r) else plain)(
                    where, self.offset, lane, r.handle, *v
                )
                self._scattered(group, address, list(values), region, done, act)
            elif region.space == "global" and group.n > 1 and not strong and group.chunk.checked:
                kept = verify(address, self.offset, lanes, region.handle, *values)
                if region.cells[access.ERROR]:
                    region.cells[access.ERROR] = 0
                    what = "race on global memory: threads store different values to one address"
                    self._fail(group, int(kept.argmin()), what)
            if group.counters is not None:
                self._count(group, region, address, True)

        return run

    def updater(self, operation: str, kind: str) -> Callable[..., Array]:
        """A function (group, address, operand, ...) -> old values, for an atomic."""
        plain = access.atomic(operation, kind)
        checked = access.atomic(operation, kind, True) if self.checked else plain

        def run(group: Group, address: Array, *values: Array) -> Array:
            region, lanes = self._region(group, int(address[0]) + self.number & _MASK)
            if region.space not in ("global", "shared", "nowhere"):
                self._fail(group, 0, f"atomic on {region.space} memory")
            update = checked if region.space == "shared" and group.chunk.checked else plain
            address = group.spread(address)
            old: Array = update(address, self.offset, lanes, region.handle, *values)
            if region.cells[access.ERROR]:
                act = lambda r, lane, where, v: (checked if self._checks(group, r) else plain)(
                    where, self.offset, lane, r.handle, *v
                )
                old = self._scattered(group, address, list(values), region, old, act)
            if group.counters is not None:
                group.counters.atomics += group.n
            return old

        return run

    # Regions --------------------------------------------------------------------------------------------------------

    def _checks(self, group: Group, region: Region) -> bool:
        return region.space == "shared" and group.chunk.checked

    def _region(self, group: Group, address: int) -> tuple[Region, Array]:
        """The region for an address and the lanes operand that goes with it."""
        space, chunk = self.space, group.chunk
        if space == "global" or space == "const":
            region = group.memory.at(address)
            return (region if region.space == space else group.memory.nowhere), _LANE
        if space == "shared":
            return chunk.shared, group.lanes
        if space == "local":
            return chunk.local, group.lanes
        if space == "param":
            return chunk.params, _LANE
        if address >= SHARED_WINDOW + _WINDOW or address < PARAM_WINDOW:
            return group.memory.at(address), _LANE
        if address >= SHARED_WINDOW:
            return chunk.shared_generic, group.lanes
        if address >= LOCAL_WINDOW:
            return chunk.local_generic, group.lanes
        return chunk.params, _LANE

    def _scattered(
        self, group: Group, address: Array, values: list[Array], region: Region, first: Any,
        act: Callable[[Region, Array, Array, list[Array]], Any],
    ) -> Any:  # fmt: skip
        """Finish an access of which some lanes lie outside the region of the first lane."""
        where = group.spread(address) + self.offset
        self._explain(group, region, where)
        several = isinstance(first, tuple)
        results = [np.array(group.spread(r)) for r in (first if several else (first,))]
        todo = ~_inside(where, region)
        while todo.any():
            position = int(todo.argmax())
            region, _ = self._region(group, int(where[position]))
            mine = todo & _inside(where, region)
            if not mine[position]:
                self._misplaced(group, position, int(where[position]), region)
            chosen = mine.nonzero()[0]
            lanes = group.lanes[chosen] if region.space in ("shared", "local") else _LANE
            parts = [v if v.shape[0] == 1 else v[chosen] for v in values]
            got = act(region, lanes, group.spread(address)[chosen], parts)
            self._explain(group, region, where)
            for result, part in zip(results, got if several else (got,)):
                result[chosen] = part
            todo &= ~mine
        return tuple(results) if several else results[0]

    # Errors ---------------------------------------------------------------------------------------------------------

    def _explain(self, group: Group, region: Region, where: Array) -> None:
        """Raise for what the region refused, except for lanes that are elsewhere altogether."""
        reason = region.cells[access.ERROR]
        region.cells[access.ERROR] = 0
        if reason > access.MISPLACED:
            self._refused(group, region, reason)
        if not reason:
            return
        size, need = np.uint64(region.end - region.start), np.uint64(self.nbytes)
        offset = where - np.uint64(region.start)
        short = _inside(where, region) & (size - offset < need)
        bad = short | (where & np.uint64(self.nbytes - 1) != 0)
        if region.end == region.start:
            bad |= True
        if bad.any():
            position = int(bad.argmax())
            self._misplaced(group, position, int(where[position]), region)

    def _misplaced(self, group: Group, position: int, address: int, region: Region) -> NoReturn:
        if address % self.nbytes and region.start <= address < region.end:
            what = f"{self.nbytes}-byte access to {address:#x}, which is not aligned to {self.nbytes} bytes"
            self._fail(group, position, what)
        self._fail(
            group,
            position,
            f"{self.nbytes}-byte access out of bounds: {self._place(group, address)}",
        )

    def _place(self, group: Group, address: int) -> str:
        if self.space in ("shared", "local", "param"):
            chunk = group.chunk
            region = {"shared": chunk.shared, "local": chunk.local, "param": chunk.params}[
                self.space
            ]
            return _outside(self.space, region, address, self.nbytes) + _window(address)
        window = address & ~_WINDOW & ~0xFFFF_FFFF
        if self.space == "generic" and window == SHARED_WINDOW:
            return _outside("shared", group.chunk.shared_generic, address, self.nbytes)
        if self.space == "generic" and window == LOCAL_WINDOW:
            return _outside("local", group.chunk.local_generic, address, self.nbytes)
        return group.memory.describe(address, self.nbytes) + _window(address)

    def _refused(self, group: Group, region: Region, reason: int) -> NoReturn:
        lane, place = region.cells[access.LANE], region.cells[access.PLACE]
        stride = region.buffer.size // group.chunk.geometry.blocks
        offset = place % stride + SHARED_START
        if reason == access.UNWRITTEN:
            what = f"shared memory at {offset:#x} is read before anything was written there"
        elif reason == access.OUTSIDE:
            what = f"shared memory at {offset:#x} lies outside every variable"
        else:
            what = f"race on shared memory at {offset:#x}: {self._other(group, region)}"
        group.chunk.fail(self.instruction, what, int(lane))

    def _other(self, group: Group, region: Region) -> str:
        who = region.cells[access.OTHER] & 0xFFFFFF
        if who == 0xFFFFFF:
            return "threads of several warps accessed it and no barrier lies between"
        index = group.chunk.geometry.thread_index(who & 0x7FFFFF)
        return f"thread {index} accessed it and no barrier lies between"

    def _fail(self, group: Group, position: int, what: str) -> NoReturn:
        group.chunk.fail(self.instruction, what, int(group.lanes[position]))

    def _count(self, group: Group, region: Region, address: Array, stores: bool) -> None:
        assert group.counters is not None
        group.counters.accessed(group, region.space, address + self.offset, self.nbytes, stores)


def _inside(where: Array, region: Region) -> Array:
    inside: Array = where - np.uint64(region.start) < np.uint64(region.end - region.start)
    return inside


def _outside(space: str, region: Region, address: int, nbytes: int) -> str:
    size = region.end - region.start
    if address < region.start:
        return f"{space} address {address:#x} is {region.start - address} bytes before the first variable"
    return f"{space} address {address:#x} ends {address + nbytes - region.end} bytes past the {size} bytes there are"


def _window(address: int) -> str:
    if LOCAL_WINDOW + LOCAL_START <= address < LOCAL_WINDOW + _WINDOW:
        return " (a generic address of local memory)"
    if SHARED_WINDOW <= address < SHARED_WINDOW + _WINDOW:
        return " (a generic address of shared memory)"
    if address >= SHARED_WINDOW + _WINDOW and address < 1 << 47:
        return " (a global address)"
    return ""
