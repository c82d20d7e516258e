"""Matrix multiplication: the text of a library that is compiled once and shared by all programs.

`library_text(dtype)` exports, for f32 and f64,

    void dsl_gemm_<f32|f64>(i64 m, i64 n, i64 k, ptr a, i64 a_row, i64 a_column, ptr b, i64 b_row, i64 b_column,
                            ptr c, i64 c_row, ptr tile, ptr env)

which sets C, m by n, to A @ B. Strides are in elements, of any sign; C's columns lie together, and C overlaps neither A
nor B. k = 0 gives zeros.

`tile` may be null. Otherwise the program's `void tile(ptr env, i64 i0, i64 i1, i64 j0, i64 j1)` is called for parts of C that
are final and still in a near cache, each element in exactly one call, from several threads at once: there the program adds
a bias, applies an activation, or stores to another array.

What holds: every element is the sum, in the order of the inner dimension, of products with fused additions, in runs of a
length that depends on sizes and layouts alone. So these give the same bits for any number of threads.

The library calls `void dsl_parallel(ptr fn, ptr env, i64 n, i64 grain)`, which calls `fn(env, lo, hi)` for parts of [0, n),
`i64 dsl_threads()`, `ptr dsl_alloc(i64 bytes)` and `void dsl_free(ptr)`.

The scheme is that of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008), with the panel of A
in the first cache and the block of B in the second. Each task packs what it needs itself: packing the same twice takes less
time than waiting for others. What is narrower than a tile is read where it lies, neighbours included, except at the end of an operand.
"""

from __future__ import annotations

import functools

import numpy as np

from dsl.codegen.cpu import jit, runtime
from dsl.codegen.cpu.gemm_entry import PARAMETERS, entry
from dsl.codegen.cpu.gemm_pack import pack_a, pack_b
from dsl.codegen.cpu.gemm_tasks import merge
from dsl.codegen.cpu.gemm_tiles import Tiling, kernel, tiling
from dsl.codegen.llvm import Module

__all__ = ["FLAGS", "LEVEL", "PARAMETERS", "cpu", "ensure_loaded", "library_text", "load", "symbol"]

LEVEL, FLAGS = 1, (jit.AS_WRITTEN,)
"""How to compile the library: level 2 with all passes takes four times as long, 380 ms, and gives code that is no faster."""


def symbol(dtype: np.dtype) -> str:
    """Return the name of the function for f32 or f64."""
    return f"dsl_gemm_f{8 * dtype.itemsize}"


@functools.cache
def ensure_loaded(dtype: np.dtype) -> int:
    """Load the library for f32 or f64, once a process, let programs call it, and return its function's address."""
    code = load(dtype, cpu())
    _kept.append(code)
    jit.define(symbol(dtype), code.address(symbol(dtype)))
    return code.address(symbol(dtype))


_kept: list[jit.Code] = []


def load(dtype: np.dtype, kind: str) -> jit.Code:
    """Return the library's code for a kind of CPU."""
    runtime.ensure_loaded()
    return jit.load(library_text(dtype, kind), level=LEVEL, flags=FLAGS)


@functools.cache
def cpu() -> str:
    """Return the kind of this CPU. Where the system tells its features, LLVM need not be loaded to know them."""
    flags = _features_by_linux() or _features_by_llvm()
    if "avx512f" in flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "plain"


def _features_by_linux() -> set[str]:
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read(1 << 14).partition("\n\n")[0]
    except OSError:
        return set()
    lines = [line for line in first.splitlines() if line.startswith(("flags", "Features"))]
    return set(" ".join(lines).split())


def _features_by_llvm() -> set[str]:
    import llvmlite.binding as llvm

    return {name for name, there in llvm.get_host_cpu_features().items() if there}


@functools.cache
def library_text(dtype: np.dtype, kind: str) -> str:
    """Return the module that multiplies matrices of f32 or f64, for a kind of CPU: avx512, avx2 or plain."""
    t = tiling(kind, {4: "float", 8: "double"}[dtype.itemsize])
    module = Module("gemm")
    _kernels(module, t)
    pack_a(module, t, "gemm.pack_a")
    pack_b(module, t, "gemm.pack_b")
    if not t.masks:
        merge(module, t)
    entry(module, t, symbol(dtype))
    return module.text()


def _kernels(module: Module, t: Tiling) -> None:
    """Define the micro-kernels, and tables of them and of their heights, by vectors - 1 and rows - 1."""
    rolled = module.metadata('!{!"llvm.loop.unroll.disable"}')
    loop = module.metadata(f"distinct !{{%self, {rolled}}}")
    mask = f"<{t.lanes} x i1>"
    module.declare(f"llvm.fmuladd.{t.overload}", t.vector, [t.vector] * 3)
    module.declare(f"llvm.masked.load.{t.overload}.p0", t.vector, ["ptr", mask, t.vector])
    module.declare(f"llvm.masked.store.{t.overload}.p0", "void", [t.vector, "ptr", mask])
    module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    for vectors, heights in ((1, t.narrow), (2, t.heights)):
        for height in heights:
            name = _kernel_name(height, vectors)
            module.include(name, kernel(t, name, height, vectors, loop))
    chosen = [(t.chosen(r, v), v) for v in (1, 2) for r in range(1, t.heights[0] + 1)]
    for name, type, entries in (
        ("gemm.kernels", "ptr", [f"ptr @{_kernel_name(*which)}" for which in chosen]),
        ("gemm.heights", "i64", [f"i64 {height}" for height, _ in chosen]),
    ):
        listing = ", ".join(entries)
        array = f"@{name} = internal constant [{len(chosen)} x {type}] [{listing}]"
        module.include(name, array)


def _kernel_name(height: int, vectors: int) -> str:
    return f"gemm.kernel.{height}.{vectors}"
