"""A graph as a program on a GPU: its kernels as PTX, and the steps that launch them.

In: a structured graph and what its params are. Out: a `DeviceProgram`; called with arrays of the host or of the device, it
returns arrays on the device, or on the host if that is asked for. An error in the data (an index out of bounds) is noticed
when the results are there; the interpreter then says what it is, in NumPy's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dsl.codegen.cuda.compile import compile_ptx, optimized_text
from dsl.codegen.cuda.device import Gpu, Target
from dsl.codegen.cuda.frame import Context, Frame, Placed, Wrong
from dsl.codegen.cuda.lower import Lowering
from dsl.codegen.cuda.recording import Recordings, record_loops, why_not
from dsl.codegen.unroll import unroll
from dsl.config import config
from dsl.errors import InternalError
from dsl.ir.graph import Graph, Value
from dsl.ir.interpret import interpret
from dsl.ir.types import TensorType

__all__ = ["DeviceProgram"]


class DeviceProgram:
    """A program for GPUs; `on_host` tells which params are numbers that the host has."""

    def __init__(self, graph: Graph, on_host: Sequence[bool] | None = None) -> None:
        self.graph = graph
        given = [not p.shape for p in graph.params] if on_host is None else list(on_host)
        self.lowering = Lowering(unroll(graph), given, [False] * len(graph.params))
        body, modes = self.lowering.body, self.lowering.modes
        refused = why_not(graph, body, modes)
        self.recordings = Recordings(body.run, body.params, body.results, modes, refused)
        self.loops = record_loops(body, modes) if refused else 0  # that are recorded by themselves
        self._constants: dict[Gpu, dict[Value, Placed]] = {}
        self._ptx: dict[Target, str] = {}

    @cached_property
    def text(self) -> str:
        """The kernels as LLVM IR."""
        return self.lowering.module.text()

    @property
    def link(self) -> tuple[str, ...]:
        """Modules that the kernels call: those of users."""
        return tuple(self.lowering.module.links.values())

    def ptx(self, target: Target = Target()) -> str:  # noqa: B008
        """Return the kernels as PTX; empty if there are none."""
        if not self.lowering.kernels:
            return ""
        if target not in self._ptx:
            self._ptx[target] = compile_ptx(self.text, target, link=self.link)
        return self._ptx[target]

    def optimized(self, target: Target = Target()) -> str:  # noqa: B008
        """Return the kernels as LLVM IR after its passes."""
        return optimized_text(self.text, target, link=self.link)

    def listing(self) -> str:
        """Return the kernels, a line each: their blocks and threads, and what they compute."""
        lines = [f"program @{self.graph.name} for a GPU"]
        for name, (geometry, what) in self.lowering.kernels.items():
            blocks = " x ".join(str(n) for n in geometry.grid if n != 1) or "1"
            lines.append(f"  {name}: {blocks} blocks of {geometry.block} threads: {what}")
        lines += [f"  on the host: {op}" for op, _ in self.lowering.fallbacks]
        lines.append(f"  {self.recorded()}")
        return "\n".join(lines) + "\n"

    def recorded(self) -> str:
        """Say whether calls are recorded as a CUDA graph, or why not."""
        if config.cuda_graphs != "on":
            return "not recorded as a CUDA graph: the option `cuda_graphs` is off"
        if not self.recordings.refused:
            return "recorded as a CUDA graph at the second call with the same shapes and numbers"
        loops = f"; loops that are, by themselves: {self.loops}" if self.loops else ""
        return f"not recorded as a CUDA graph: {self.recordings.refused}{loops}"

    def constants(self, gpu: Gpu) -> dict[Value, Placed]:
        """The constant arrays that are on a device already."""
        return self._constants.setdefault(gpu, {})

    def __call__(self, gpu: Gpu, args: Sequence[Any]) -> list[Any]:
        """Run on a device and return what the graph returns: arrays on the host."""
        context = Context(gpu, self.constants(gpu), self.ptx(gpu.target))
        frame = Frame(context, {}, {})
        try:
            found = self.run(frame, args)
            there = [k for k, thing in enumerate(found) if isinstance(thing, Placed)]
            arrays = frame.fetch([(found[k], self.graph.results[k].dtype) for k in there])
        except Wrong as error:
            raise self.explained(frame, args) from error.__cause__
        for k, array in zip(there, arrays, strict=True):
            found[k] = array
        return found

    def run(self, frame: Frame, args: Sequence[Any]) -> list[Any]:
        """Run and return arrays on the device, or numbers and objects of the host."""
        recording = self.recordings.find(frame, args)
        if recording is not None:
            return recording.run(frame, args)
        passed = [self.taken(frame, p, a) for p, a in zip(self.graph.params, args, strict=True)]
        for thing in passed:
            if isinstance(thing, Placed):
                thing.buffer.users += 1  # the caller's: never overwritten
        return self.lowering.body.run(frame, passed)

    def taken(self, frame: Frame, param: Value, arg: Any) -> Any:
        """Return an argument as the program has it."""
        if isinstance(arg, Placed) or not isinstance(param.type, TensorType):
            return arg
        if not param.shape and self.lowering.modes(param):
            return np.asarray(arg)
        return frame.upload(np.asarray(arg, param.dtype))

    def explained(self, frame: Frame, args: Sequence[Any]) -> Exception:
        """Return the error that a run has met, as the interpreter raises it."""
        hosted = [
            frame.download(a, p.dtype) if isinstance(a, Placed) else a
            for p, a in zip(self.graph.params, args, strict=True)
        ]
        try:
            interpret(self.graph, hosted)
        except Exception as error:
            return error
        return InternalError("a kernel has reported an error that the interpreter does not meet")
