"""Turns LLVM IR as text into PTX, through the disk cache.

In: the text of a module whose kernels have the calling convention `ptx_kernel`. Out: PTX for a `Target`. Functions of
libdevice that it calls are linked and inlined; where libdevice is not installed, code is emitted that needs none of it
(`dsl.codegen.cuda.source`).
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsl.codegen.cpu import cache
from dsl.codegen.cpu.jit import machine_and_compiler
from dsl.codegen.cuda.device import Target
from dsl.codegen.cuda.toolkit import libdevice
from dsl.errors import InternalError

__all__ = ["TRIPLE", "compile_ptx", "optimized_text"]

TRIPLE = "nvptx64-nvidia-cuda"
_SETTINGS = "1"
"""Names the way this file uses LLVM. Change it with anything below that changes the PTX made from the same text."""

_lock = threading.Lock()


def compile_ptx(text: str, target: Target, *, link: tuple[str, ...] = ()) -> str:
    """Return the PTX of a module, with others that become part of it: found on disk, or compiled and stored."""
    bitcode = _library((text, *link))
    key = _key((text, *link), target, bitcode)
    found = cache.store().get(key)
    if found is not None:
        return found.decode()
    with _lock:
        made = _tidy(_machine(target).emit_assembly(_optimized(text, target, bitcode, link)))
    cache.store().put(key, made.encode())
    return made


def optimized_text(text: str, target: Target, *, link: tuple[str, ...] = ()) -> str:
    """Return a module as text after LLVM's passes."""
    with _lock:
        return str(_optimized(text, target, _library((text, *link)), link))


def _library(texts: tuple[str, ...]) -> Path | None:
    """Return libdevice if one of the texts calls it."""
    return libdevice() if any("@__nv_" in text for text in texts) else None


def _key(texts: tuple[str, ...], target: Target, bitcode: Path | None) -> str:
    linked = "" if bitcode is None else f"{bitcode} {bitcode.stat().st_size}"
    _, *llvm = machine_and_compiler()
    return cache.digest("ptx", _SETTINGS, *llvm, repr(target), linked, *texts)


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@functools.cache
def _machine(target: Target) -> Any:
    llvm = _llvm()
    found = llvm.Target.from_triple(TRIPLE)
    return found.create_target_machine(opt=3, cpu=target.arch, features=f"+ptx{target.ptx}")


def _optimized(text: str, target: Target, bitcode: Path | None, link: tuple[str, ...] = ()) -> Any:
    llvm, machine = _llvm(), _machine(target)
    module = _parsed(text, machine)
    _join(module, [_parsed(other, machine) for other in link])
    if bitcode is not None:
        _link(llvm, module, bitcode, machine)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _parsed(text: str, machine: Any) -> Any:
    llvm = _llvm()
    head = f'target datalayout = "{machine.target_data}"\ntarget triple = "{TRIPLE}"\n'
    try:
        module = llvm.parse_assembly(head + text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(
            f"malformed LLVM IR for CUDA: {error}\n{_around(text, str(error))}"
        ) from None
    return module


def _join(module: Any, others: Sequence[Any]) -> None:
    """Make other modules part of one: hidden, since names with dots are not for PTX."""
    own = {f.name for f in module.functions if not f.is_declaration}
    for other in others:
        module.link_in(other)
    _hide(module, own)


def _link(llvm: Any, module: Any, bitcode: Path, machine: Any) -> None:
    """Make libdevice part of a module: hidden, so that what is not called goes."""
    own = {f.name for f in module.functions if not f.is_declaration}
    library = llvm.parse_bitcode(bitcode.read_bytes())
    library.triple, library.data_layout = TRIPLE, str(machine.target_data)
    module.link_in(library)
    _hide(module, own)
    for variable in module.global_variables:
        if variable.name.startswith("__") and not variable.is_declaration:
            variable.linkage = "internal"
    first = llvm.create_new_module_pass_manager()
    first.add_global_dead_code_eliminate_pass()  # or the passes work on all of libdevice
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    first.run(module, builder)


def _hide(module: Any, own: set[str]) -> None:
    """Make the functions of a module internal, but its own."""
    for function in module.functions:
        if not function.is_declaration and function.name not in own:
            function.linkage = "internal"


def _around(text: str, message: str) -> str:
    """Return the lines around the one that an error names."""
    found = re.search(r":(\d+):\d+:", message)
    if found is None:
        return ""
    line = int(found[1]) - 3  # the two lines of the head, and counting from 1
    lines = text.splitlines()
    return "\n".join(lines[max(0, line - 3) : line + 3])


def _tidy(ptx: str) -> str:
    """Return PTX without what only makes it longer: trailing blanks and empty comments."""
    lines = (line.rstrip() for line in ptx.replace("\0", "").splitlines())
    return "\n".join(line for line in lines if line not in ("//", "")) + "\n"
