"""Which thread a lane is: the lanes of a chunk of blocks, their warps, and the special registers they read.

Lanes are numbered block by block and in a block by linear thread index; a warp is 32 consecutive threads of a block.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Geometry"]

Array = np.ndarray[Any, Any]
Index = tuple[int, int, int]


def _one(value: int, dtype: str = "u4") -> Array:
    return np.array([value & 0xFFFFFFFFFFFFFFFF]).astype(dtype)


class Geometry:
    """Blocks `first` to `first + blocks` of a launch."""

    def __init__(self, grid: Index, block: Index, first: int, blocks: int, shared: int) -> None:
        self.grid, self.block, self.first, self.blocks, self.shared = (
            grid,
            block,
            first,
            blocks,
            shared,
        )
        self.threads = block[0] * block[1] * block[2]
        self.lanes = self.threads * blocks
        self.warps_per_block = -(-self.threads // 32)
        self.warps = self.warps_per_block * blocks
        self.whole_warps = self.threads % 32 == 0
        self._special: dict[str, Array] = {}

    @cached_property
    def lane(self) -> Array:
        return np.arange(self.lanes, dtype=np.int64)

    @cached_property
    def thread(self) -> Array:
        """The linear index in its block, per lane."""
        return np.tile(np.arange(self.threads, dtype=np.int64), self.blocks)

    @cached_property
    def block_of(self) -> Array:
        """The block in this chunk, per lane."""
        return np.repeat(np.arange(self.blocks, dtype=np.int64), self.threads)

    @cached_property
    def warp_of(self) -> Array:
        """The warp in this chunk, per lane."""
        warps: Array = self.block_of * self.warps_per_block + self.thread // 32
        return warps

    @cached_property
    def warp_members(self) -> Array:
        """Per warp, one bit for each thread that exists."""
        bits = np.uint64(1) << (self.thread % 32).astype(np.uint64)
        total = np.bincount(self.warp_of, weights=bits.astype(np.float64), minlength=self.warps)
        return total.astype(np.uint64).astype(np.uint32)

    def thread_index(self, lane: int) -> Index:
        """%tid of a lane."""
        x, y, _ = self.block
        thread = lane % self.threads
        return thread % x, thread // x % y, thread // (x * y)

    def block_index(self, lane: int) -> Index:
        """%ctaid of a lane."""
        x, y, _ = self.grid
        block = self.first + lane // self.threads
        return block % x, block // x % y, block // (x * y)

    def special(self, name: str) -> Array:
        """A special register, as one value when all lanes read the same."""
        if name not in self._special:
            self._special[name] = self._make(name)
        return self._special[name]

    def _make(self, name: str) -> Array:
        base, _, axis = name.partition(".")
        if axis:
            return self._coordinate(base, "xyz".index(axis))
        if base.startswith("lanemask_"):
            return self._lane_mask(base[9:])
        if base == "laneid":
            return (self.thread % 32).astype(np.uint32)
        if base == "warpid":
            return (self.thread // 32).astype(np.uint32)
        if base == "nwarpid":
            return _one(self.warps_per_block)
        if base in ("dynamic_smem_size", "total_smem_size", "aggr_smem_size"):
            return _one(self.shared)
        if base in ("cluster_nctarank", "nsmid"):
            return _one(1)
        if base in ("gridid", "globaltimer", "current_graph_exec"):
            return _one(0, "u8")
        return _one(0)

    def _coordinate(self, base: str, axis: int) -> Array:
        if base in ("ntid", "nctaid"):
            return _one((self.block if base == "ntid" else self.grid)[axis])
        if base in ("cluster_nctaid", "nclusterid"):
            return _one(1 if base == "cluster_nctaid" else self.grid[axis])
        if base == "cluster_ctaid":
            return _one(0)
        if base == "tid":
            index, extent = self.thread, self.block
        else:
            index, extent = self.first + self.block_of, self.grid
        stride = (1, extent[0], extent[0] * extent[1])[axis]
        values = (index // stride % extent[axis]).astype(np.uint32)
        return values[:1] if extent[axis] == 1 or (values == values[0]).all() else values

    def _lane_mask(self, relation: str) -> Array:
        bit = np.uint64(1) << (self.thread % 32).astype(np.uint64)
        below = bit - np.uint64(1)
        every = np.uint64(0xFFFFFFFF)
        masks = {"eq": bit, "lt": below, "le": below | bit, "gt": every & ~(below | bit), "ge": every & ~below}  # fmt: skip
        return masks[relation].astype(np.uint32)
