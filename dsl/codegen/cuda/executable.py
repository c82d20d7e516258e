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

from dsl.codegen.cuda.device import Gpu, Told
from dsl.codegen.cuda.frame import Context, Frame, Placed, Wrong, contiguous
from dsl.codegen.cuda.program import DeviceProgram
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
            context.check()
        except Wrong as error:
            raise program.explained(frame, passed) from error.__cause__
        return self._given(frame, arrays, passed, found, any(own))

    def _taken(self, frame: Frame, array: Any) -> Placed:
        """Return an array of the device as a program has it; one that is not in C order is copied."""
        told = self.gpu.take(array)
        placed = _placed(told)
        if placed.strides is None and placed.pointer % 16 == 0:
            return placed
        return frame.upload(frame.download(placed, told.dtype))

    def _given(
        self, frame: Frame, arrays: list[Any], passed: list[Any], found: list[Any], stay: bool
    ) -> list[Any]:
        """Return the results as the caller gets them, and write the arguments that are written."""
        outputs: list[Any] = [None] * len(found)
        seen = {id(p.buffer) for p in passed if isinstance(p, Placed)}
        hosted = {}
        for _, k in self.written:
            if k not in hosted:
                hosted[k] = self._host(frame, found[k], k)
        for k, thing in enumerate(found):
            if k not in self.needed:
                continue
            if not stay or not isinstance(thing, Placed):
                outputs[k] = np.array(hosted[k]) if k in hosted else self._host(frame, thing, k)
                continue
            if id(thing.buffer) in seen or thing.strides is not None or thing.offset:
                thing = frame.upload(self._host(frame, thing, k))
            seen.add(id(thing.buffer))
            dtype = self.graph.results[k].dtype
            outputs[k] = self.gpu.give(thing.buffer, thing.offset, dtype, thing.shape)
        for source, k in self.written:
            self._write(arrays[source], hosted[k])
        return outputs

    def _host(self, frame: Frame, thing: Any, k: int) -> Any:
        if isinstance(thing, Placed):
            return frame.download(thing, self.graph.results[k].dtype)
        return np.array(thing)

    def _write(self, target: Any, array: np.ndarray) -> None:
        """Write an argument: an array of the host, or of the device."""
        if isinstance(target, np.ndarray):
            target[...] = array
            return
        told = self.gpu.take(target)
        if _placed(told).strides is None:
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


def _placed(told: Told) -> Placed:
    size = told.dtype.itemsize
    strides = tuple(s // size for s in told.strides)
    plain = strides == contiguous(told.shape) or math.prod(told.shape) <= 1
    return Placed(told.buffer, told.shape, told.offset, None if plain else strides)
