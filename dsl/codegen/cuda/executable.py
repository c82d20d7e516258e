"""Joins a traced function to its program on a GPU: what a call passes, and what comes back.

Arrays of the device are taken as they are, and the results are then arrays of the device; a call with NumPy arrays alone
gets NumPy arrays. Arguments that the function writes are written when nothing can fail any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dsl.codegen.cuda.device import Gpu
from dsl.codegen.cuda.frame import Context, Frame, Placed, Wrong, placed_at
from dsl.codegen.cuda.program import DeviceProgram
from dsl.codegen.cuda.steps import copied
from dsl.ir.graph import Graph
from dsl.logs import warn

__all__ = ["DeviceExecutable"]


class DeviceExecutable:
    """A program on a GPU, called with the list of arrays that the graph takes; outputs nobody asked for are None."""

    in_place = True

    def __init__(
        self, graph: Graph, gpu: Gpu, on_host: Sequence[bool], written: Sequence[tuple[int, int]],
        needed: Sequence[int],
    ) -> None:  # fmt: skip
        self.gpu, self.graph, self.written, self.needed = gpu, graph, list(written), set(needed)
        self.program = DeviceProgram(graph, on_host)
        self.context_of: dict[Any, Any] = {}

    def __call__(self, arrays: list[Any]) -> list[Any]:
        gpu, program = self.gpu, self.program
        context = Context(gpu, program.constants(gpu), program.ptx(gpu.target))
        frame = Frame(context, {}, {})
        own = [gpu.is_own(array) for array in arrays]
        if not any(own) and any(isinstance(a, np.ndarray) and a.nbytes > 1 << 20 for a in arrays):
            _note_copies(str(gpu.name))
        passed = [self._taken(frame, a) if mine else a for a, mine in zip(arrays, own, strict=True)]
        try:
            found = program.run(frame, passed)
            hosted = self._hosted(frame, arrays, found, any(own))
        except Wrong as error:
            raise program.explained(frame, passed) from error.__cause__
        outputs = self._given(frame, passed, found, hosted, any(own))
        for source, k in self.written:
            self._write(arrays[source], found[k], hosted.get(k))
        return outputs

    def _hosted(
        self, frame: Frame, arrays: list[Any], found: list[Any], stay: bool
    ) -> dict[int, np.ndarray]:
        """Return the results that the host needs, by number, when it is known that nothing is wrong."""
        needed = set() if stay else set(self.needed)
        needed |= {k for source, k in self.written if not self._moves(arrays[source], found[k])}
        hosted = {k: np.array(found[k]) for k in needed if not isinstance(found[k], Placed)}
        there = sorted(k for k in needed if isinstance(found[k], Placed))
        fetched = frame.fetch([(found[k], self.graph.results[k].dtype) for k in there])
        return hosted | dict(zip(there, fetched, strict=True))

    def _moves(self, target: Any, thing: Any) -> bool:
        """Tell whether an argument is written by copying within the device: from memory that is nobody's yet."""
        if not isinstance(thing, Placed) or thing.strides is not None or thing.buffer.users:
            return False
        return self.gpu.is_own(target) and placed_at(self.gpu.take(target)).strides is None

    def _taken(self, frame: Frame, array: Any) -> Placed:
        """Return an array of the device as a program has it; one that is not in C order is copied."""
        told = self.gpu.take(array)
        placed = placed_at(told)
        if placed.strides is None and placed.pointer % 16 == 0:
            return placed
        return frame.upload(frame.download(placed, told.dtype))

    def _given(
        self, frame: Frame, passed: list[Any], found: list[Any], hosted: dict[int, np.ndarray],
        stay: bool,
    ) -> list[Any]:  # fmt: skip
        """Return the results as the caller gets them: no two share memory, with each other, arguments or constants."""
        outputs: list[Any] = [None] * len(found)
        written = {k for _, k in self.written}
        seen = {id(p.buffer) for p in passed if isinstance(p, Placed)}
        for k in sorted(self.needed):
            thing = found[k]
            if not isinstance(thing, Placed):
                outputs[k] = np.array(thing)
            elif not stay:
                outputs[k] = np.array(hosted[k]) if k in written else hosted[k]
            else:
                value = self.graph.results[k]
                if id(thing.buffer) in seen or thing.strides is not None or thing.buffer.users:
                    thing = copied(frame, thing, value)
                seen.add(id(thing.buffer))
                outputs[k] = self.gpu.give(thing.buffer, thing.offset, value.dtype, thing.shape)
        return outputs

    def _write(self, target: Any, thing: Any, array: np.ndarray | None) -> None:
        """Write an argument: an array of the host, or of the device."""
        if isinstance(target, np.ndarray):
            target[...] = array
            return
        told = self.gpu.take(target)
        if array is None:
            nbytes = math.prod(told.shape) * told.dtype.itemsize
            if nbytes:
                self.gpu.move(thing.buffer, thing.offset, told.buffer, told.offset, nbytes)
        elif placed_at(told).strides is None:
            self.gpu.upload(np.ascontiguousarray(array), told.buffer, told.offset)
        else:
            target[...] = array


@cache
def _note_copies(device: str) -> None:
    """Say once that arrays are copied."""
    warn(
        "placement",
        "arrays of the host are copied to %s and back on each call; pass arrays of the device to avoid it",
        device,
    )
