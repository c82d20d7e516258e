"""The runtime library: routines that do not depend on the program, compiled once per process, one module for each.

A routine is a function of C conventions, named `dsl_lib_<stem>_<dtype>`. Programs call it by name; `provide` looks
through a module's text for such names, those of `elementary`, `foreign` and `cpu.gemm`, and makes them known to the
linker. It loads the routines it finds (through the disk cache, as programs, by their notes in `cpu.recipes`), and what they need in
turn.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dsl.codegen.cpu import jit, recipes
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.codegen.vector_unit import vector_unit
from dsl.ir.types import BY_NAME, dtype_name

__all__ = [
    "at",
    "call_routine",
    "needs",
    "parallel",
    "per_thread",
    "pieces",
    "provide",
    "routine",
    "routine_text",
]

Build = Callable[[Module, str, np.dtype], None]

_PREFIX = "dsl_lib_"
_SYMBOL = re.compile(r"@(dsl_(?:lib|math|gemm|ufunc|ufuncdata|sort|argsort|blas|lapack)_\w+)")
_BUILDERS: dict[str, Build] = {}
_FLAGS: dict[str, tuple[str, ...]] = {}
_loaded: dict[str, jit.Code | None] = {}
_lock = threading.RLock()


def routine(stem: str, *, vectorize: bool = False) -> Callable[[Build], Build]:
    """Register what emits a routine: `build(module, symbol, dtype)` defines the function `symbol`.

    Routines write out their vectors and unrolled loops, which spares LLVM the time to find them; `vectorize` asks it
    to vectorise loops all the same.
    """

    def register(build: Build) -> Build:
        _BUILDERS[stem] = build
        _FLAGS[stem] = ("no-unroll", "no-slp") if vectorize else (jit.AS_WRITTEN,)
        return build

    return register


def _stem_and_dtype(symbol: str) -> tuple[str, np.dtype]:
    stem, dtype = symbol.removeprefix(_PREFIX).rsplit("_", 1)
    return stem, BY_NAME[dtype]


def routine_text(symbol: str) -> str:
    """Return the module that defines a routine."""
    stem, dtype = _stem_and_dtype(symbol)
    module = Module(symbol)
    importlib.import_module("dsl.codegen.library.table")  # which imports all that register here
    _BUILDERS[stem](module, symbol, dtype)
    return module.text()


def inner_function(
    module: Module, name: str, result: str, params: Sequence[tuple[str, str]]
) -> Function:
    """Start a function that only this module sees, and that is compiled once however often it is called."""
    attributes = "nounwind noinline"
    return module.function(
        f"{module.name}.{name}", result, params, internal=True, attributes=attributes
    )


def call_routine(
    fn: Function, stem: str, dtype: np.dtype, *args: Operand, result: str = "void"
) -> Value:
    """Emit a call of a routine; Python ints are passed as i64."""
    values = [fn.as_value(arg, "i64") for arg in args]
    return fn.call(result, f"{_PREFIX}{stem}_{dtype_name(dtype)}", *values)


def provide(text: str) -> None:
    """Make known to the linker what a module refers to in this library, NumPy and SciPy; call it before `jit.load`."""
    for symbol in needs(text):
        if symbol not in _loaded:
            with _lock:
                _provide_one(symbol)


def needs(text: str) -> list[str]:
    """Return the symbols that `provide` makes known."""
    return list(dict.fromkeys(_SYMBOL.findall(text)))


def _provide_one(symbol: str) -> None:
    """Load what a symbol means, unless another thread did, and only then list it as loaded."""
    if symbol in _loaded:
        return
    if recipes.provide([symbol]):
        _loaded[symbol] = None
        return
    text, level, flags = _module_of(symbol)
    rest = text.replace(symbol, "")
    provide(rest)
    key = recipes.routine(symbol)
    code = recipes.load(key, text, level=level, flags=flags, needs=needs(rest))
    jit.define(symbol, code.address(symbol))
    _loaded[symbol] = code


def _module_of(symbol: str) -> tuple[str, int, tuple[str, ...]]:
    """Return the module that defines a symbol, and the level and flags to compile it with."""
    stem, dtype = _stem_and_dtype(symbol)
    if symbol.startswith("dsl_math_"):
        from dsl.codegen.library import elementary

        return elementary.module_text(symbol), elementary.LEVEL, elementary.FLAGS
    if not symbol.startswith(_PREFIX):
        from dsl.codegen.cpu import gemm

        return gemm.library_text(dtype, vector_unit()), gemm.LEVEL, gemm.FLAGS
    return routine_text(symbol), 2, _FLAGS[stem]


def at(fn: Function, dtype: np.dtype, base: Value, index: Operand) -> Value:
    """Return the address of element `index` of elements that lie one after another."""
    return fn.gep(base, fn.mul(index, dtype.itemsize))


def per_thread(fn: Function, work: int, size: Operand) -> Value:
    """Return how many items of a size are about as much as `work`, but at least one."""
    return fn.as_value(fn.maximum(fn.binary("sdiv", work, fn.maximum(size, 1)), 1), "i64")


def pieces(fn: Function, n: Operand, most: int = 64) -> tuple[Value, Value]:
    """Split a long row: return the length of a piece, a multiple of 64, and the number of pieces, at most `most`."""
    length = fn.binary("and", fn.add(fn.binary("sdiv", n, most), 64), -64)
    return length, fn.binary("sdiv", fn.add(fn.add(n, length), -1), length)


@contextlib.contextmanager
def parallel(
    fn: Function, count: Operand, grain: Operand
) -> Iterator[tuple[Function, Value, Value]]:
    """Emit a function that does the work for lo <= i < hi, and run it over all of `count`, `grain` at least at a time.

    The block emits into the function it is given; values of `fn` that it uses are captured.
    """
    params = [("ptr", "env"), ("i64", "lo"), ("i64", "hi")]
    name = fn.module.fresh(f"{fn.name}.part")
    part = fn.module.function(name, "void", params, internal=True, parent=fn)
    yield part, part.params[1], part.params[2]
    part.ret()
    args = [fn.as_value(operand, "i64") for operand in (count, grain)]
    fn.call("void", "dsl_parallel", Value(f"@{name}", "ptr"), fn.environment(part), *args)
