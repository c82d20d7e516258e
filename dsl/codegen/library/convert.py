"""Copies between single and double precision, in which NumPy computes linear algebra of either."""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.library.routines import call_routine, parallel, routine
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.types import BY_NAME

__all__ = ["copy_as", "wide_dtype"]

_WIDE = {"f32": "f64", "c64": "c128"}


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of double precision of the same kind."""
    return {BY_NAME[a]: BY_NAME[b] for a, b in _WIDE.items()}.get(dtype, dtype)


def copy_as(
    fn: Function, x: Value, source: np.dtype, y: Value, target: np.dtype, count: Operand
) -> None:
    """Emit a copy of `count` elements that lie one after another, of one precision to the other."""
    parts = fn.mul(count, 2 if source.kind == "c" else 1)
    stem = "to_double" if target.itemsize > source.itemsize else "to_single"
    call_routine(fn, stem, BY_NAME["f32"], x, y, parts)


def _build(doubling: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), ("i64", "n")])
    x, y, n = f.params
    source, target = ("float", "double") if doubling else ("double", "float")
    with parallel(f, n, 1 << 15) as (part, lo, hi), part.loop(lo, hi) as i:
        found = part.load(source, part.gep(x, i, source))
        converted = part.convert("fpext" if doubling else "fptrunc", found, target)
        part.store(converted, part.gep(y, i, target))
    f.ret()


routine("to_double", vectorize=True)(partial(_build, True))
routine("to_single", vectorize=True)(partial(_build, False))
