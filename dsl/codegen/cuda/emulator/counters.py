"""What a launch did, for tests of coalescing and for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dsl.codegen.cuda.emulator.groups import Group

__all__ = ["Counters"]

Array = np.ndarray[Any, Any]
_SECTOR = 32


@dataclass(slots=True)
class Counters:
    """Counts of one launch; all zero unless it ran with `count=True`.

    Bytes are those of active lanes. A sector is 32 aligned bytes of global memory that a warp touches in one access;
    `ideal` is the number of sectors that the bytes would fill if they lay together, so equal numbers mean perfectly
    coalesced. `instructions` counts once for each warp with an active lane.
    """

    instructions: int = 0
    global_loaded: int = 0
    global_stored: int = 0
    load_sectors: int = 0
    store_sectors: int = 0
    load_sectors_ideal: int = 0
    store_sectors_ideal: int = 0
    shared_loaded: int = 0
    shared_stored: int = 0
    local_accesses: int = 0
    barriers: int = 0
    shuffles: int = 0
    votes: int = 0
    atomics: int = 0
    opcodes: dict[str, int] = field(default_factory=dict)

    def ran(self, group: Group, names: list[str]) -> None:
        """A block of instructions ran for a group."""
        warps = active_warps(group)
        self.instructions += warps * len(names)
        for name in names:
            self.opcodes[name] = self.opcodes.get(name, 0) + warps

    def accessed(self, group: Group, space: str, address: Array, nbytes: int, stores: bool) -> None:
        """A load or store ran for a group, `nbytes` per lane."""
        if space in ("global", "const"):
            sectors, ideal = _sectors(group, group.spread(address), nbytes)
            if stores:
                self.global_stored += nbytes * group.n
                self.store_sectors += sectors
                self.store_sectors_ideal += ideal
            else:
                self.global_loaded += nbytes * group.n
                self.load_sectors += sectors
                self.load_sectors_ideal += ideal
        elif space == "shared" and stores:
            self.shared_stored += nbytes * group.n
        elif space == "shared":
            self.shared_loaded += nbytes * group.n
        elif space == "local":
            self.local_accesses += group.n


def active_warps(group: Group) -> int:
    """How many warps have a lane in the group."""
    geometry = group.chunk.geometry
    if group.full:
        return geometry.warps
    return int(np.unique(geometry.warp_of[group.lanes]).size)


def _sectors(group: Group, address: Array, nbytes: int) -> tuple[int, int]:
    """Sectors touched, and the fewest that could hold the distinct bytes of each warp's access."""
    warp = group.of_lanes(group.chunk.geometry.warp_of).astype(np.uint64)
    first = address // np.uint64(_SECTOR)
    count = -(-nbytes // _SECTOR)
    pieces = [first + np.uint64(i) for i in range(count)]
    sectors = sum(_distinct(warp, piece)[0] for piece in pieces)
    _, sizes = _distinct(warp, address)
    return sectors, int((-(-(sizes * nbytes) // _SECTOR)).sum())


def _distinct(warp: Array, keys: Array) -> tuple[int, Array]:
    """The number of distinct (warp, key) pairs, and that of keys for each warp."""
    order = np.lexsort((keys, warp))
    w, k = warp[order], keys[order]
    new = np.ones(w.size, bool)
    new[1:] = (w[1:] != w[:-1]) | (k[1:] != k[:-1])
    return int(new.sum()), np.unique(w[new], return_counts=True)[1]
