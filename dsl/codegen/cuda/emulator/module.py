"""PTX that is ready to run: `PtxModule(text).launch(memory, "kernel", grid, block, args)`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.chunk import SHARED_START, Chunk, Layout
from dsl.codegen.cuda.emulator.counters import Counters
from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.geometry import Geometry
from dsl.codegen.cuda.emulator.memory import Memory
from dsl.codegen.cuda.emulator.parse import Source, parse
from dsl.codegen.cuda.emulator.program import Program
from dsl.codegen.cuda.emulator.run import run_chunk
from dsl.codegen.cuda.emulator.syntax import Variable

__all__ = ["Kernel", "PtxModule"]

Array = np.ndarray[Any, Any]
Index = tuple[int, int, int]

# Lanes that run together. More amortise Python's cost per instruction, but leave the caches at some point.
_LANES = 32768
_SHARED_BYTES = 1 << 23
_MAX_THREADS = 1024
_FORMATS = {"f16": "f2", "f32": "f4", "f64": "f8"}


@dataclass(slots=True)
class Kernel:
    """An entry: `params` are (name, PTX type, bytes), `shared` its static bytes, `max_threads` its declared limit."""

    name: str
    params: list[tuple[str, str, int]]
    shared: int
    local: int
    registers: int
    required_block: Index | None
    max_threads: int
    program: Program


class PtxModule:
    """A module of PTX, translated for emulation; raises `PtxError` for what it does not know."""

    def __init__(self, text: str) -> None:
        self.source: Source = parse(text)
        self._globals = [
            v for v in self.source.variables.values() if v.space in ("global", "const")
        ]
        symbols = {v.name: i for i, v in enumerate(self._globals)}
        self.kernels: dict[str, Kernel] = {}
        for function in self.source.functions.values():
            if function.entry and function.body is not None:
                self.kernels[function.name] = _kernel(Program(self.source, function, symbols))
        self._placed: weakref.WeakKeyDictionary[Memory, list[int]] = weakref.WeakKeyDictionary()

    def launch(
        self,
        memory: Memory,
        kernel: str,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (1, 1, 1),
        args: Sequence[Any] = (),
        shared: int = 0,
        *,
        count: bool = False,
        check: bool = True,
        limit: int = 10_000_000,
        lanes: int = _LANES,
    ) -> Counters:
        """Run a kernel over a grid and return what it did.

        `shared` are the bytes of dynamic shared memory. `count` fills the counters, `check` looks for races and
        uninitialised shared memory, `limit` bounds the blocks that run before a loop is taken for endless, `lanes` is
        how many threads run at once.
        """
        entry = self._entry(kernel)
        extent, threads = _index(grid, "grid"), _index(block, "block")
        self._check_block(entry, threads)
        layout = entry.program.layout_with(int(shared))
        params = _pack(entry, args)
        symbols = [np.array([a], np.uint64) for a in self._addresses(memory)]
        counters = Counters()
        total, size = extent[0] * extent[1] * extent[2], threads[0] * threads[1] * threads[2]
        step = _blocks_at_once(layout, size, lanes)
        with memory.lock, np.errstate(all="ignore"):
            for first in range(0, total, step):
                geometry = Geometry(extent, threads, first, min(step, total - first), int(shared))
                chunk = Chunk(
                    geometry, memory, self.source, kernel, layout, params, symbols, counters if count else None, check
                )  # fmt: skip
                run_chunk(entry.program, chunk, limit)
        return counters

    def address_of(self, memory: Memory, name: str) -> int:
        """The address of a `.global` or `.const` variable in a memory."""
        names = [v.name for v in self._globals]
        return self._addresses(memory)[names.index(name)]

    def _entry(self, name: str) -> Kernel:
        if name not in self.kernels:
            known = ", ".join(self.kernels) or "none"
            raise PtxError(f"no kernel {name!r}; the module has {known}")
        return self.kernels[name]

    def _check_block(self, kernel: Kernel, block: Index) -> None:
        threads = block[0] * block[1] * block[2]
        required, line = kernel.required_block, kernel.program.kernel.line
        if required is not None and block != required:
            raise kernel.program.error(f"block {block}, but .reqntid is {required}", line)
        if threads > kernel.max_threads:
            raise kernel.program.error(f"{threads} threads in a block, at most {kernel.max_threads} allowed", line)  # fmt: skip

    def _addresses(self, memory: Memory) -> list[int]:
        """Where the module's variables lie in a memory; placed and filled when first needed."""
        if memory not in self._placed:
            places = [memory.place(v.bytes, v.space) for v in self._globals]
            self._placed[memory] = places
            by_name = {v.name: place for v, place in zip(self._globals, places)}
            for variable, place in zip(self._globals, places):
                memory.write(place, np.frombuffer(_initial(variable, by_name), np.uint8))
        return self._placed[memory]


def _initial(variable: Variable, places: dict[str, int]) -> bytes:
    data = bytearray(variable.data.ljust(variable.bytes, b"\0"))
    for r in variable.relocations:
        if r.symbol not in places:
            what = f"{variable.name} is initialised with the address of {r.symbol}, which is not a variable"
            raise PtxError(what, line=variable.line)
        value = places[r.symbol] + r.addend >> r.shift & (1 << 8 * r.bytes) - 1
        data[r.offset : r.offset + r.bytes] = value.to_bytes(r.bytes, "little")
    return bytes(data)


def _kernel(program: Program) -> Kernel:
    function = program.kernel
    directives = function.directives
    required = directives.get("reqntid")
    maximum = directives.get("maxntid")
    threads = int(np.prod(maximum)) if maximum else _MAX_THREADS
    params = [(v.name, v.type, v.bytes) for v in function.params]
    local = program.layout.local_end - 256
    return Kernel(
        function.name, params, program.static_shared, local, program.registers,
        _index(required, "reqntid") if required else None, threads, program,
    )  # fmt: skip


def _index(values: Sequence[int] | int, name: str) -> Index:
    given = (values,) if isinstance(values, int | np.integer) else tuple(int(v) for v in values)
    if not 1 <= len(given) <= 3 or any(v < 1 for v in given):
        raise PtxError(f"{name} {given}: expected one to three positive numbers")
    x, y, z = (*given, 1, 1)[:3]
    return int(x), int(y), int(z)


def _blocks_at_once(layout: Layout, threads: int, lanes: int) -> int:
    by_lanes = lanes // threads
    by_shared = _SHARED_BYTES // max(layout.shared_end - SHARED_START, 1)
    return max(1, min(by_lanes, by_shared))


def _pack(kernel: Kernel, args: Sequence[Any]) -> Array:
    """The parameter memory of a launch."""
    program, params = kernel.program, kernel.program.kernel.params
    if len(args) != len(params):
        raise program.error(f"{kernel.name} takes {len(params)} arguments, got {len(args)}", program.kernel.line)  # fmt: skip
    data = np.zeros(max(program.param_bytes, 16), np.uint8)
    for variable, offset, value in zip(params, program.param_offsets, args):
        raw = _encode(variable, value)
        if len(raw) != variable.bytes:
            raise program.error(f"argument {variable.name} has {variable.bytes} bytes, got {len(raw)}", variable.line)  # fmt: skip
        data[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
    return data


def _encode(variable: Variable, value: Any) -> bytes:
    """An argument's bytes: NumPy values and bytes as they are (converted for scalars), Python numbers by the type.

    LLVM declares half-precision parameters as two bytes; a Python float for one becomes a float16.
    """
    size = variable.bytes
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if variable.array:
        if isinstance(value, float) and size == 2:
            value = np.float16(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        return np.ascontiguousarray(value).tobytes()
    if variable.type in _FORMATS:
        return np.array(value).astype(_FORMATS[variable.type]).tobytes()
    if isinstance(value, float | np.floating):
        # An untyped (.b32) parameter may well be a float.
        return np.array(value).astype(f"f{size}").tobytes()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "iub":
        return value.tobytes()
    return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
