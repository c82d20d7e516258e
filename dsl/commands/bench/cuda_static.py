"""`python -m dsl bench cuda --static`: what can be known of kernels without a GPU.

Bytes, sectors, barriers and instructions are counted by the emulator while it runs each program at a small size; registers,
spills and occupancy are ptxas's, of the kernels at full size. Times are estimates by data sheets (`roofline`). Results are
compared with NumPy's; the exit code is 1 if one differs.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.device import Buffer, Target
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.emulator import Counters
from dsl.codegen.cuda.program import DeviceProgram
from dsl.codegen.cuda.ptxas import Usage, assemble, occupancy
from dsl.commands.bench.flops import count_flops
from dsl.commands.bench.gpu_case import GpuCase
from dsl.commands.bench.measure import disagreement
from dsl.commands.bench.report import save, seconds, table
from dsl.commands.bench.roofline import GPUS, Work
from dsl.commands.progress import progress
from dsl.ir.types import size_of

__all__ = ["Kernel", "Watched", "describe_case", "run_static"]

SMS = tuple(gpu.sm for gpu in GPUS)
_SECTOR = 32


def run_static(cases: Sequence[GpuCase], file: Path | None) -> int:
    """Print what is known of the cases, write it to a file if asked to, and return the exit code."""
    found: list[Described] = []
    for case in progress(cases, "kernels"):
        found.append(describe_case(case))
        if file:
            save(file, _record(found))
    print(_tables(found))
    return 1 if any(it.error for it in found) else 0


# --- Measuring -----------------------------------------------------------------------------------


class Watched(EmulatedGpu):
    """An emulated GPU that keeps what was launched: the kernel, its counters, and the bytes of the arrays it was passed."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = []
        self.arrays: list[int] = []
        self.blocks: list[int] = []
        self.copied = 0

    def launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int = 0,
    ) -> None:  # fmt: skip
        super().launch(ptx, kernel, grid, block, args, shared)
        addressed = {self.memory.at(a).start: self.memory.at(a) for a in args if isinstance(a, int)}
        self.arrays.append(sum(allocation.nbytes for allocation in addressed.values()))
        self.blocks.append(grid[0] * grid[1] * grid[2])

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        super().move(source, start, target, offset, nbytes)
        self.copied += nbytes


@dataclass
class Kernel:
    """One kernel: its launch at full size, what its launches did at the small one, and what ptxas says."""

    name: str
    what: str
    grid: str
    block: int
    launches: int = 0
    blocks: int = 0  # of all launches
    counters: Counters = field(default_factory=Counters)
    usage: dict[int, Usage] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        return self.counters.global_loaded + self.counters.global_stored

    @property
    def coalescing(self) -> float:
        """Sectors that warps ask for, over those that would do."""
        c = self.counters
        return _ratio(
            c.load_sectors + c.store_sectors, c.load_sectors_ideal + c.store_sectors_ideal
        )


@dataclass
class Described:
    """All that is known of one case. Bytes are of the small size; `least` is each input read and each output written once."""

    case: GpuCase
    kernels: dict[str, Kernel] = field(default_factory=dict)
    least: int = 0
    touched: int = 0  # sectors that are asked for, of each launch at most the arrays it is passed, and copies
    copied: int = 0
    flops: dict[str, int] = field(default_factory=dict)
    work: Work = field(default_factory=Work)  # at full size
    host: list[str] = field(default_factory=list)
    error: str = ""
    other: bool = False  # whether the kernels at full size are not the same

    @property
    def moved(self) -> int:
        return sum(k.moved for k in self.kernels.values()) + 2 * self.copied

    @property
    def ratio(self) -> float:
        return _ratio(self.moved, self.least)

    @property
    def missed(self) -> bool:
        return self.case.bar is not None and self.ratio > self.case.bar


def describe_case(case: GpuCase) -> Described:
    """Lower a case at both sizes, run it at the small one, and assemble the kernels of the other."""
    inputs, large = case.small_inputs(), case.make_inputs(quick=False)
    full = _lowered(case, large)
    small, gpu = _lowered(case, inputs), Watched()
    found = Described(case, _kernels(full))
    found.host = [name for name, _ in small.lowering.fallbacks]
    found.other = _outline(small) != _outline(full)
    if found.other:
        found.kernels = _kernels(small)
    results = small(gpu, _arrays(case, inputs))
    found.error = _compared(case, inputs, results)
    _count(found, gpu)
    found.least = case.input_bytes(inputs) + sum(r.nbytes for r in map(np.asarray, results))
    least = case.input_bytes(large) + _result_bytes(full)
    flops = _flops(case, full, large)
    found.flops = dict(flops)
    found.work = _scaled(found, least, flops, _flops(case, small, inputs))
    _assemble(found, small if found.other else full)
    return found


def _lowered(case: GpuCase, inputs: tuple[Any, ...]) -> DeviceProgram:
    way = case.ways["dsl"]
    jitted = dsl.jit(device="cuda-emulator:0", **way.options)(way.function)
    made: DeviceProgram = jitted.lower(*inputs).device_program
    return made


def _arrays(case: GpuCase, inputs: tuple[Any, ...]) -> list[Any]:
    """The arguments that are no constants for dsl."""
    names = inspect.signature(case.ways["dsl"].function).parameters
    return [x for name, x in zip(names, inputs) if name not in case.static]


def _outline(program: DeviceProgram) -> list[tuple[str, str]]:
    return [(name, what) for name, (_, what) in program.lowering.kernels.items()]


def _kernels(program: DeviceProgram) -> dict[str, Kernel]:
    found = {}
    for name, (geometry, what) in program.lowering.kernels.items():
        grid = " x ".join(str(n) for n in geometry.grid if n != 1) or "1"
        found[name] = Kernel(name, what, grid, geometry.block)
    return found


def _compared(case: GpuCase, inputs: tuple[Any, ...], results: Sequence[Any]) -> str:
    expected = case.program(*inputs)
    parts = expected if isinstance(expected, tuple | list) else [expected]
    return disagreement([np.asarray(r) for r in results], [np.asarray(p) for p in parts], case)


def _count(found: Described, gpu: Watched) -> None:
    """Add up what each kernel did."""
    assert gpu.launches is not None
    launches = zip(gpu.launches, gpu.arrays, gpu.blocks, strict=True)
    for (name, counters), arrays, blocks in launches:
        kernel = found.kernels[name]
        kernel.launches += 1
        kernel.blocks += blocks
        _add(kernel.counters, counters)
        asked = _SECTOR * (counters.load_sectors + counters.store_sectors)
        found.touched += min(asked, arrays)
    found.copied = gpu.copied
    found.touched += 2 * gpu.copied


def _add(total: Counters, one: Counters) -> None:
    for name in Counters.__slots__:
        if name != "opcodes":
            setattr(total, name, getattr(total, name) + getattr(one, name))


def _result_bytes(program: DeviceProgram) -> int:
    sizes = [size_of(r.shape) * r.dtype.itemsize for r in program.graph.results]
    return sum(n for n in sizes if isinstance(n, int))


def _flops(case: GpuCase, program: DeviceProgram, inputs: tuple[Any, ...]) -> Counter[str]:
    return count_flops(program.graph, dict(zip(program.graph.params, _arrays(case, inputs))))


def _scaled(found: Described, least: int, flops: Counter[str], fewer: Counter[str]) -> Work:
    """Return the work at full size: bytes grow with the least bytes, instructions with the arithmetic."""
    growth = _ratio(least, found.least)
    more = _ratio(flops.total(), fewer.total()) or growth
    instructions = sum(k.counters.instructions for k in found.kernels.values())
    double = flops["float64"]
    return Work(least, found.touched * growth, flops.total() - double, double, instructions * more)


def _assemble(found: Described, program: DeviceProgram) -> None:
    ptx = program.ptx(Target())
    if not ptx or toolkit.ptxas() is None:
        return
    for sm in SMS:
        for name, usage in assemble(ptx, f"sm_{sm}").kernels.items():
            found.kernels[name].usage[sm] = usage


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


# --- Text ----------------------------------------------------------------------------------------

_HEAD = """\
What dsl's kernels do, counted by the emulator; nothing here was measured on a GPU.

moved/least: bytes that threads load and store, over each distinct input element read once and each output written once.
touched/least: the same for memory if a cache kept all that a launch reads again.  sectors: those of 32 bytes that warps ask
for, over the fewest that hold their bytes.  FLOP/B: arithmetic as the program is written, per least byte.  Times are
estimates, at best, at full size, by the peaks of NVIDIA's data sheets (m: of memory, a: arithmetic, i: instructions); the
time of launches is left out.  Counts are of the smaller size, which has rows of the same length, and fewer of them."""

_KERNELS = """\
Kernels at full size. Registers, spills (bytes) and shared memory (bytes of a block) by ptxas; occupancy: the part of a
multiprocessor's warps that fit at a time; barriers of a block, shuffles of a thread, and all atomic operations, at the smaller size."""


def _tables(found: Sequence[Described]) -> str:
    heads = ["function", "size", "small", "launches", "moved/least", "touched/least", "sectors", "FLOP/B"]  # fmt: skip
    heads += [gpu.name for gpu in GPUS]
    parts = [_HEAD, table([*heads, ""], map(_row, found))]
    arches = [f"sm_{sm}" for sm in SMS]
    head = ["kernel", "grid x block", "launches", "sectors", "shared", "barriers", "shuffles", "atomics"]
    head += ["registers " + "/".join(map(str, SMS)), "spills", "occupancy", "what"]
    parts += [_KERNELS, table(head, (row for it in found for row in _kernel_rows(it)))]
    if toolkit.ptxas() is None:
        parts.append(
            f"There is no ptxas, so registers of {', '.join(arches)} are unknown: {toolkit.INSTALL}"
        )
    parts.append("\n".join(_verdicts(found)))
    return "\n\n".join(parts)


def _row(it: Described) -> list[str]:
    kernels = list(it.kernels.values())
    moving = [k for k in kernels if k.moved]
    asked = sum(k.counters.load_sectors + k.counters.store_sectors for k in moving)
    ideal = sum(k.counters.load_sectors_ideal + k.counters.store_sectors_ideal for k in moving)
    return [
        it.case.name, _size(it.case.size), _size(it.case.small), str(sum(k.launches for k in kernels)),
        f"{it.ratio:.2f}", f"{_ratio(it.touched, it.least):.2f}", f"{_ratio(asked, ideal):.2f}",
        f"{it.work.intensity:.2g}", *(_time(it.work, gpu) for gpu in GPUS), _remark(it),
    ]  # fmt: skip


def _size(size: tuple[int, ...]) -> str:
    return "x".join(f"{n >> 20}M" if n >= 1 << 20 and n % (1 << 20) == 0 else str(n) for n in size)


def _time(work: Work, gpu: Any) -> str:
    return f"{seconds(work.seconds(gpu))} {work.bound(gpu)[0]}"


def _remark(it: Described) -> str:
    said = [it.error]
    if it.missed:
        said.append(f"over {it.case.bar}")
    if it.host:
        said.append(f"on the host: {', '.join(dict.fromkeys(it.host))}")
    if it.copied:
        said.append("with copies")
    if it.other:
        said.append("other kernels at full size")
    return "; ".join(filter(None, said))


def _kernel_rows(it: Described) -> Iterator[list[str]]:
    for kernel in it.kernels.values():
        usages = [kernel.usage[sm] for sm in SMS if sm in kernel.usage]
        c = kernel.counters
        yield [
            f"{it.case.name} {kernel.name}", f"{kernel.grid} x {kernel.block}", str(kernel.launches),
            f"{kernel.coalescing:.2f}", str(usages[0].shared) if usages else "",
            f"{_ratio(c.barriers, kernel.blocks):g}",
            f"{_ratio(c.shuffles, kernel.blocks * kernel.block):g}", str(c.atomics),
            "/".join(str(u.registers) for u in usages),
            str(max(u.spill_stores + u.spill_loads for u in usages)) if usages else "",
            "/".join(f"{_occupancy(kernel, sm):.2f}" for sm in SMS if sm in kernel.usage), kernel.what,
        ]  # fmt: skip


def _occupancy(kernel: Kernel, sm: int) -> float:
    usage = kernel.usage[sm]
    return occupancy(usage.registers, usage.shared, kernel.block, sm)


def _verdicts(found: Sequence[Described]) -> Iterator[str]:
    judged = [it for it in found if it.case.bar is not None]
    missed = [f"{it.case.name} {it.ratio:.2f}" for it in judged if it.missed]
    if judged:
        yield f"At most 1.05 of the least bytes: {len(judged) - len(missed)} of {len(judged)}" + (
            f"; more: {', '.join(missed)}" if missed else ""
        )
    spilled = [
        f"{it.case.name} {k.name} on sm_{sm}"
        for it in found
        for k in it.kernels.values()
        for sm, u in k.usage.items()
        if u.spill_stores or u.spill_loads
    ]
    if any(k.usage for it in found for k in it.kernels.values()):
        yield f"Spills: {', '.join(spilled) or 'none'}"
    wrong = [f"{it.case.name} {it.error}" for it in found if it.error]
    if wrong:
        yield f"Not NumPy's result: {'; '.join(wrong)}"


# --- JSON ----------------------------------------------------------------------------------------


def _record(found: Sequence[Described]) -> dict[str, Any]:
    tool = toolkit.find_ptxas()
    return {
        "static": True,
        "versions": {"dsl": dsl.__version__, "ptxas": tool.version if tool else None},
        "estimates": "lower bounds by data sheets, not measurements",
        "cases": [_as_json(it) for it in found],
    }


def _as_json(it: Described) -> dict[str, Any]:
    return {
        "name": it.case.name,
        "row": it.case.row,
        "size": list(it.case.size),
        "small": list(it.case.small),
        "least_bytes": it.least,
        "moved_bytes": it.moved,
        "touched_bytes": it.touched,
        "copied_bytes": it.copied,
        "bar": it.case.bar,
        "met": None if it.case.bar is None else not it.missed,
        "flops_at_full_size": it.flops,
        "estimated_seconds": {gpu.name: it.work.seconds(gpu) for gpu in GPUS},
        "bound_by": {gpu.name: it.work.bound(gpu) for gpu in GPUS},
        "on_host": it.host,
        "same_kernels": not it.other,
        "error": it.error,
        "kernels": [_kernel_json(kernel) for kernel in it.kernels.values()],
    }


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    counted = {n: getattr(kernel.counters, n) for n in Counters.__slots__ if n != "opcodes"}
    return {
        "name": kernel.name,
        "what": kernel.what,
        "grid": kernel.grid,
        "block": kernel.block,
        "launches": kernel.launches,
        "coalescing": kernel.coalescing,
        "counters": counted,
        "usage": {
            f"sm_{sm}": {
                "registers": u.registers,
                "spill_bytes": u.spill_stores + u.spill_loads,
                "stack": u.stack,
                "shared": u.shared,
                "occupancy": _occupancy(kernel, sm),
            }
            for sm, u in kernel.usage.items()
        },
    }
