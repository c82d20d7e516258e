"""What NVIDIA's assembler makes of PTX: registers, spills, memory; and how many threads of it fit on a GPU.

In: PTX text and an architecture. Out: an `Assembled`, by kernel, from what `ptxas -v` reports. No GPU is needed, so this
is how kernels are judged on machines without one. The same text is assembled once per process.

PTX for `.target sm_75` assembles for every newer architecture, never for an older one. What a ptxas knows depends on
its version: that of CUDA 13 begins with sm_75.
"""

from __future__ import annotations

import functools
import math
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dsl.codegen.cuda import toolkit
from dsl.errors import DeviceError, InternalError

__all__ = ["LIMITS", "Assembled", "AssemblyError", "Limits", "Usage", "architectures", "assemble", "occupancy"]  # fmt: skip

_SECONDS = 300
_AROUND = 2  # lines of PTX shown before and after one that is refused


@dataclass(frozen=True)
class Usage:
    """What one kernel needs: registers per thread; bytes of stack and spills per thread; the rest per block."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0
    constant: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Assembled:
    """What assembling a module told: the usage of each kernel by name, and ptxas's own words."""

    arch: str
    kernels: dict[str, Usage]
    log: str


class AssemblyError(InternalError):
    """PTX that ptxas refuses: the message has its words and the lines of PTX."""


def assemble(ptx: str, arch: str) -> Assembled:
    """Assemble PTX for an architecture, `sm_80`, and return what ptxas tells of it.

    Raises `DeviceError` if there is no ptxas or it does not know the architecture, `AssemblyError` if it refuses the text.
    """
    path = _path()
    known = architectures()
    if known and arch not in known:
        raise DeviceError(
            f"ptxas {_version()} does not know {arch!r}",
            remedy=f"it knows {', '.join(known)}; another version of CUDA may know it",
        )
    return _assemble(path, ptx, arch)


def architectures() -> tuple[str, ...]:
    """Return the architectures that the ptxas found here assembles for, oldest first; nothing if it does not tell."""
    return _architectures(_path())


# --- Running ptxas -------------------------------------------------------------------------------


def _path() -> Path:
    if (path := toolkit.ptxas()) is None:
        raise DeviceError("there is no ptxas on this machine", remedy=toolkit.INSTALL)
    return path


def _version() -> str:
    found = toolkit.find_ptxas()
    return found.version if found else ""


def _run(path: Path, options: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, *options], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


@functools.cache
def _architectures(path: Path) -> tuple[str, ...]:
    names = set(re.findall(r"'(sm_\d+[a-z]?)'", _run(path, ["--help"]).stdout))
    return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


@functools.lru_cache(maxsize=512)
def _assemble(path: Path, ptx: str, arch: str) -> Assembled:
    done = _run(path, ["-v", f"-arch={arch}", "-", "-o", os.devnull], ptx)
    log = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise AssemblyError(_refusal(ptx, arch, log), remedy="please report it with this message")
    return Assembled(arch, _usages(log.splitlines()), log)


# --- Reading what it says ------------------------------------------------------------------------

_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared": re.compile(r"(\d+) bytes smem"),
    "constant": re.compile(r"(\d+) bytes cmem\[\d+\]"),
}


def _usages(lines: Iterable[str]) -> dict[str, Usage]:
    """Return what is said of each kernel. Functions that are called have properties too, which are not a kernel's."""
    usages: dict[str, Usage] = {}
    kernel = function = ""
    for line in lines:
        if found := _KERNEL.search(line):
            kernel = function = found[1]
            usages[kernel] = Usage()
        elif found := _FUNCTION.search(line):
            function = found[1]
        elif (found := _FRAME.search(line)) and kernel and function == kernel:
            stack, stores, loads = map(int, found.groups())
            usages[kernel] = replace(
                usages[kernel], stack=stack, spill_stores=stores, spill_loads=loads
            )
        elif kernel and _USED["registers"].search(line):
            sums = {name: sum(map(int, form.findall(line))) for name, form in _USED.items()}
            usages[kernel] = replace(usages[kernel], **sums)
    return usages


def _refusal(ptx: str, arch: str, log: str) -> str:
    """The message: each complaint, and the lines around the places that it names."""
    complaints = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    lines = ptx.splitlines()
    parts = [f"ptxas refuses the PTX for {arch}"]
    for complaint in complaints or [log]:
        parts.append(f"  {complaint}")
        if found := re.search(r"line (\d+)", complaint):
            parts += _excerpt(lines, int(found[1]))
    return "\n".join(parts)


def _excerpt(lines: list[str], number: int) -> list[str]:
    shown = range(max(1, number - _AROUND), min(len(lines), number + _AROUND) + 1)
    return [f"  {'>' if n == number else ' '}{n:>6} | {lines[n - 1]}" for n in shown]


# --- Occupancy -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at a time: warps, blocks, bytes of shared memory."""

    warps: int
    blocks: int
    shared: int
    unit: int = 128  # bytes in which shared memory is handed out
    reserved: int = 1024  # bytes of shared memory that CUDA takes of every block


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; units and what is reserved: cuda_occupancy.h
# of CUDA 13.4. All have 65536 registers in 4 parts and blocks of at most 1024 threads.
LIMITS = {
    75: Limits(32, 16, 64 << 10, unit=256, reserved=0),
    80: Limits(64, 32, 164 << 10),
    86: Limits(48, 16, 100 << 10),
    87: Limits(48, 16, 164 << 10),
    89: Limits(48, 24, 100 << 10),
    90: Limits(64, 32, 228 << 10),
    100: Limits(64, 32, 228 << 10),
    103: Limits(64, 32, 228 << 10),
    120: Limits(48, 24, 100 << 10),
    121: Limits(48, 24, 100 << 10),
}
_REGISTERS, _REGISTER_UNIT, _PARTS = 65536, 256, 4
_MOST_THREADS, _MOST_REGISTERS = 1024, 255


def occupancy(registers: int, shared: int, threads: int, sm: int) -> float:
    """Return which part of a multiprocessor's warps can be resident at a time; 0 if one block does not fit.

    `registers` are per thread, `shared` bytes and `threads` per block.

    >>> occupancy(registers=32, shared=0, threads=256, sm=80), occupancy(64, 0, 256, 80)
    (1.0, 0.5)
    """
    if (limits := LIMITS.get(sm)) is None:
        raise DeviceError(
            f"the limits of sm_{sm} are not known",
            remedy=f"known are {', '.join(map(str, LIMITS))}",
        )
    warps = math.ceil(threads / 32)
    return warps * _blocks(limits, registers, shared, threads) / limits.warps


def _blocks(limits: Limits, registers: int, shared: int, threads: int) -> int:
    """How many blocks are resident at a time, as cuda_occupancy.h counts them."""
    if not 0 < threads <= _MOST_THREADS or registers > _MOST_REGISTERS:
        return 0
    warps = math.ceil(threads / 32)
    per_warp = max(_round_up(32 * registers, _REGISTER_UNIT), _REGISTER_UNIT)
    if per_warp * _round_up(warps, _PARTS) > _REGISTERS:
        return 0
    by_registers = _REGISTERS // _PARTS // per_warp * _PARTS // warps
    bytes_ = _round_up(shared + limits.reserved, limits.unit)
    by_shared = limits.shared // bytes_ if bytes_ else limits.blocks
    return min(limits.warps // warps, limits.blocks, by_registers, by_shared)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
