"""Stores that go past the caches: lines that are written whole need not be read first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from dsl.codegen.accesses import walk
from dsl.codegen.expressions import identity_index
from dsl.codegen.kernels.space import Space
from dsl.codegen.kernels.vectors import WideLoops
from dsl.codegen.llvm import Function
from dsl.codegen.memory import nbytes
from dsl.codegen.plan import Root
from dsl.codegen.vector_unit import register_bytes
from dsl.ir import graph as ir

__all__ = ["LINE", "are_far", "past_caches"]

LINE = 64
"""Bytes of a line of the caches, and so elements that fill lines, whatever their size."""


def are_far(kernel: Space, roots: Iterable[Root], least: int) -> bool:
    """Tell whether all that some roots store is new memory of so many bytes at least, and is not read by the kernel."""
    if register_bytes() < 32:
        return False
    loads = [e for r in kernel.kernel.roots for e in walk(r.expression) if e.kind == "load"]
    read = [e.value for e in loads if e.value is not None]
    whole = identity_index(kernel.kernel.variables)
    return all(
        r.value in kernel.stores
        and r.value.shape == kernel.kernel.space
        and r.index == whole
        and r.value.dtype.itemsize >= 4
        and _is_large(r.value, least)
        and kernel.host.is_new(r.value, read)
        for r in roots
    )


def _is_large(value: ir.Value, least: int) -> bool:
    size = nbytes(value.shape, value.dtype.itemsize)
    return isinstance(size, int) and size >= least


@contextlib.contextmanager
def past_caches(kernel: WideLoops, fn: Function) -> Iterator[None]:
    """Let the stores that are emitted meanwhile go past the caches. They have arrived when the function goes on."""
    kernel.past = f", !nontemporal {kernel.module.metadata('!{i32 1}')}"
    yield
    kernel.past = ""
    kernel.module.declare("llvm.x86.sse.sfence", "void", [])
    fn.call("void", "llvm.x86.sse.sfence")
