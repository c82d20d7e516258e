"""`python -m dsl bench cuda --static`: what can be known of kernels without a GPU.

Bytes, sectors, barriers and instructions are counted by the emulator while it runs each program at a small size; registers,
spills and occupancy are ptxas's, of the kernels at full size. Times are estimates by data sheets (`roofline`). Results are
compared with NumPy's; the exit code is 1 if one differs.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.device import Buffer
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.emulator import Counters
from dsl.codegen.cuda.program import DeviceProgram
from dsl.codegen.cuda.ptxas import architectures, assemble
from dsl.commands.bench.cuda_report import SECTOR, Described, Kernel, ratio, record, tables
from dsl.commands.bench.flops import count_flops
from dsl.commands.bench.gpu_case import GpuCase
from dsl.commands.bench.measure import disagreement
from dsl.commands.bench.report import save
from dsl.commands.bench.roofline import GPUS, Work
from dsl.commands.progress import progress
from dsl.ir.types import size_of

__all__ = ["Watched", "describe_case", "run_static"]


def run_static(cases: Sequence[GpuCase], file: Path | None) -> int:
    """Print what is known of the cases, write it to a file if asked to, and return the exit code."""
    found: list[Described] = []
    for case in progress(cases, "kernels"):
        found.append(_tried(case))
        if file:
            save(file, record(found))
    print(tables(found))
    return 1 if any(it.error for it in found) else 0


def _tried(case: GpuCase) -> Described:
    try:
        return describe_case(case)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        return Described(case, error=f"failed: {type(error).__name__}: {reason}")


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
        # An array that is both read and written is passed twice, and counts so.
        self.arrays.append(sum(self.memory.at(a).nbytes for a in args if isinstance(a, int)))
        self.blocks.append(grid[0] * grid[1] * grid[2])

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        super().move(source, start, target, offset, nbytes)
        self.copied += nbytes


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
    made = sum(np.asarray(result).nbytes for result in results)
    found.least = case.passes * (case.input_bytes(inputs) + made)
    least = case.passes * (case.input_bytes(large) + _result_bytes(full))
    flops = count_flops(full.graph, case.passes)
    found.flops = dict(flops)
    found.work = _scaled(found, least, flops, count_flops(small.graph, case.passes))
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
        asked = SECTOR * (counters.load_sectors + counters.store_sectors)
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


def _scaled(found: Described, least: int, flops: Counter[str], fewer: Counter[str]) -> Work:
    """Return the work at full size: bytes grow with the least bytes, instructions with the arithmetic."""
    growth = ratio(least, found.least)
    more = ratio(flops.total(), fewer.total()) or growth
    instructions = sum(k.counters.instructions for k in found.kernels.values())
    double = flops["float64"]
    return Work(least, found.touched * growth, flops.total() - double, double, instructions * more)


def _assemble(found: Described, program: DeviceProgram) -> None:
    """Ask ptxas, for each architecture that it knows, of the PTX that a GPU of that architecture gets."""
    if toolkit.ptxas() is None or not found.kernels:
        return
    for target in (gpu.target for gpu in GPUS):
        if target.arch not in (architectures() or (target.arch,)):
            continue
        for name, usage in assemble(program.ptx(target), target.arch).kernels.items():
            found.kernels[name].usage[target.sm] = usage
