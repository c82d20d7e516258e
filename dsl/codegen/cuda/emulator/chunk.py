"""What a chunk of blocks has while it runs: shared and local memory, the clock that orders accesses, its errors.

The generic address space has windows for shared and local memory, below the addresses that `Memory` hands out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dsl.codegen.cuda.emulator import access
from dsl.codegen.cuda.emulator.counters import Counters
from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.geometry import Geometry
from dsl.codegen.cuda.emulator.memory import Memory, Region
from dsl.codegen.cuda.emulator.syntax import Instruction

if TYPE_CHECKING:
    from dsl.codegen.cuda.emulator.parse import Source

__all__ = [
    "LOCAL_START", "LOCAL_WINDOW", "PARAM_WINDOW", "SHARED_START", "SHARED_WINDOW", "Chunk", "Layout",
]  # fmt: skip

Array = np.ndarray[Any, Any]

SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7C00_0000_0000
# The first addresses of shared and local memory are left out, so that a null pointer is caught there too.
SHARED_START = 1024
LOCAL_START = 256


@dataclass(slots=True)
class Layout:
    """The memory of a kernel: `variables` are (start, bytes) in shared space, `granule` the smallest shared access."""

    shared_end: int
    local_end: int
    variables: list[tuple[int, int]]
    granule: int


class Chunk:
    """The state that all lanes of some blocks share."""

    def __init__(
        self, geometry: Geometry, memory: Memory, source: Source, kernel: str, layout: Layout,
        params: Array, symbols: list[Array], counters: Counters | None, check: bool,
    ) -> None:  # fmt: skip
        self.geometry, self.memory, self.source, self.kernel = geometry, memory, source, kernel
        self.symbols, self.counters, self.checked = symbols, counters, check
        self.clock = 1
        self.shuffles: dict[Any, Any] = {}
        self.finished = np.zeros(geometry.lanes, bool)
        self.params = Region(PARAM_WINDOW, params.size, params, "param")
        self._keep: list[Array] = []
        self.block_since = np.ones(geometry.lanes, np.uint64)
        self.warp_since = np.ones(geometry.lanes, np.uint64)
        self.shared, self.shared_generic = self._shared(layout)
        self.local, self.local_generic = self._local(layout)

    def _kept(self, array: Array) -> int:
        self._keep.append(array)
        return array.ctypes.data

    def _shared(self, layout: Layout) -> tuple[Region, Region]:
        g, size = self.geometry, layout.shared_end - SHARED_START
        stride = -(-size // 16) * 16
        buffer = np.full(max(stride * g.blocks, 16), 0xFF, np.uint8)
        facts = {access.OFFSETS: self._kept((g.block_of * stride).astype(np.uint64))}
        if self.checked:
            shift = layout.granule.bit_length() - 1
            facts |= self._shadow(layout, stride, shift)
        regions = []
        for window in (0, SHARED_WINDOW):
            region = Region(window + SHARED_START, size, buffer, "shared")
            for cell, value in facts.items():
                region.row[cell] = value
            regions.append(region)
        return regions[0], regions[1]

    def _shadow(self, layout: Layout, stride: int, shift: int) -> dict[int, int]:
        g = self.geometry
        one = np.full(stride >> shift, 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
        for start, size in layout.variables:
            first = start - SHARED_START
            one[first >> shift : -(-(first + size) >> shift)] = 0
        writes = np.tile(one, g.blocks)
        return {
            access.WRITES: self._kept(writes),
            access.READS: self._kept(np.zeros_like(writes)),
            access.BLOCK_SINCE: self._kept(self.block_since),
            access.WARP_SINCE: self._kept(self.warp_since),
            access.WARPS: self._kept(g.warp_of.astype(np.uint64)),
            access.CLOCK: self.clock,
            access.SHIFT: shift,
        }

    def _local(self, layout: Layout) -> tuple[Region, Region]:
        g, size = self.geometry, layout.local_end - LOCAL_START
        stride = -(-size // 16) * 16
        buffer = np.full(max(stride * g.lanes, 16), 0xFF, np.uint8)
        offsets = self._kept((g.lane * stride).astype(np.uint64))
        regions = []
        for window in (0, LOCAL_WINDOW):
            region = Region(window + LOCAL_START, size, buffer, "local")
            region.row[access.OFFSETS] = offsets
            regions.append(region)
        return regions[0], regions[1]

    def tick(self, lanes: Array, full: bool, blocks: bool) -> None:
        """Lanes met: what they did before is ordered before what they do now."""
        self.clock += 1
        self.shared.cells[access.CLOCK] = self.clock
        self.shared_generic.cells[access.CLOCK] = self.clock
        place = slice(None) if full else lanes
        self.warp_since[place] = self.clock
        if blocks:
            self.block_since[place] = self.clock

    def fail(self, instruction: Instruction | int, what: str, lane: int | None = None) -> NoReturn:
        """Raise the error of an instruction (or line) for a lane."""
        line = instruction if isinstance(instruction, int) else instruction.line
        g = self.geometry
        block = None if lane is None else g.block_index(lane)
        thread = None if lane is None else g.thread_index(lane)
        raise PtxError(
            what, line=line, text=self.source.text(line), kernel=self.kernel, block=block, thread=thread
        )  # fmt: skip
