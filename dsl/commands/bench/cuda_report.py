"""What is known of kernels without a GPU, as it is kept, as text and as JSON (`cuda_static` finds it out)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dsl
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.emulator import Counters
from dsl.codegen.cuda.ptxas import Usage, occupancy
from dsl.commands.bench.gpu_case import GpuCase
from dsl.commands.bench.report import seconds, table
from dsl.commands.bench.roofline import GPUS, Gpu, Work

__all__ = ["SECTOR", "Described", "Kernel", "ratio", "record", "tables"]

SECTOR = 32  # bytes that memory moves at least
SMS = tuple(gpu.target.sm for gpu in GPUS)


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
        """Bytes that warps load and store: what several lanes of a warp read at once counts once."""
        c = self.counters
        loaded = min(c.global_loaded, SECTOR * c.load_sectors_ideal)
        return loaded + min(c.global_stored, SECTOR * c.store_sectors_ideal)

    @property
    def coalescing(self) -> float:
        """Sectors that warps ask for, over those that would do."""
        c = self.counters
        return ratio(c.load_sectors + c.store_sectors, c.load_sectors_ideal + c.store_sectors_ideal)


@dataclass
class Described:
    """All that is known of one case. Bytes are of the small size; `least` is each input read and each output written once."""

    case: GpuCase
    kernels: dict[str, Kernel] = field(default_factory=dict)
    least: int = 0
    touched: int = (
        0  # sectors that are asked for, of each launch at most the arrays it is passed, and copies
    )
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
        return ratio(self.moved, self.least)

    @property
    def missed(self) -> bool:
        return self.case.bar is not None and self.ratio > self.case.bar


def ratio(a: float, b: float) -> float:
    """Return a / b, or 0 where there is nothing to compare with."""
    return a / b if b else 0.0


# --- Text ----------------------------------------------------------------------------------------

_HEAD = """\
What dsl's kernels do, counted by the emulator; nothing here was measured on a GPU.

moved/least: bytes that warps load and store, over each distinct input element read once and each output written once (in
each trip of a loop).  touched/least: the same for memory, if a cache kept all that a launch reads again.  sectors: those of
32 bytes that warps ask for, over the fewest that hold their bytes.  FLOP/B: arithmetic as the program is written, `exp` as
one, per least byte.  Times are estimates, not measurements: what a GPU takes at least, at full size, by the peaks of NVIDIA's
data sheets (m: of memory, a: arithmetic, i: instructions), without the launches.  Counts are those of the smaller size: rows
as long as at full size where the kernel goes along them, and fewer; columns shorter and fewer where it goes across."""

_KERNELS = """\
Kernels at full size. Registers, spills (bytes) and shared memory (bytes of a block) by ptxas; occupancy: the part of a
multiprocessor's warps that fit at a time; barriers of a block, shuffles of a thread, and all atomic operations, at the smaller size."""


def tables(found: Sequence[Described]) -> str:
    """Return the table of functions, that of kernels, and what to note."""
    heads = ["function", "size", "small", "launches", "moved/least", "touched/least", "sectors", "FLOP/B"]  # fmt: skip
    heads += [gpu.name for gpu in GPUS]
    parts = [_HEAD, table([*heads, ""], map(_row, found))]
    arches = [f"sm_{sm}" for sm in SMS]
    head = [
        "kernel",
        "grid x block",
        "launches",
        "sectors",
        "shared",
        "barriers",
        "shuffles",
        "atomics",
    ]
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
        f"{it.ratio:.2f}", f"{ratio(it.touched, it.least):.2f}", f"{ratio(asked, ideal):.2f}",
        f"{it.work.intensity:.2g}", *("." if it.host else _time(it.work, gpu) for gpu in GPUS), _remark(it),
    ]  # fmt: skip


def _size(size: tuple[int, ...]) -> str:
    return "x".join(f"{n >> 20}M" if n >= 1 << 20 and n % (1 << 20) == 0 else str(n) for n in size)


def _time(work: Work, gpu: Gpu) -> str:
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
            f"{ratio(c.barriers, kernel.blocks):g}",
            f"{ratio(c.shuffles, kernel.blocks * kernel.block):g}", str(c.atomics),
            "/".join(str(u.registers) for u in usages),
            str(max(u.spill_stores + u.spill_loads for u in usages)) if usages else "",
            "/".join(f"{_occupancy(kernel, sm):.2f}" for sm in SMS if sm in kernel.usage), kernel.what,
        ]  # fmt: skip


def _occupancy(kernel: Kernel, sm: int) -> float:
    usage = kernel.usage[sm]
    return occupancy(usage.registers, usage.shared, kernel.block, sm)


def _verdicts(found: Sequence[Described]) -> Iterator[str]:
    judged = [it for it in found if it.case.bar is not None and it.least]
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


def record(found: Sequence[Described]) -> dict[str, Any]:
    """Return all there is to know, in the types of JSON."""
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
        "estimated_seconds": {} if it.host else {g.name: it.work.seconds(g) for g in GPUS},
        "bound_by": {} if it.host else {g.name: it.work.bound(g) for g in GPUS},
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
