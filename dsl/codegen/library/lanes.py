"""Brings the lanes along an axis together and back: `outer x n x inner` to `outer x inner x n`."""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.library.call import Call
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, routine
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.types import BY_NAME

__all__ = ["copy_bytes", "join_lanes", "part_lanes", "word_dtype"]

_WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "c128"}
_BLOCK = 32  # lanes at a time


def word_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that stands for all those as wide, where elements are only moved."""
    return BY_NAME[_WORDS[dtype.itemsize]]


def copy_bytes(fn: Function, target: Value, source: Value, count: Operand) -> None:
    """Copy memory that does not overlap."""
    size = fn.as_value(count, "i64")
    fn.call("void", "llvm.memcpy.p0.p0.i64", target, source, size, Value("false", "i1"))


def part_lanes(
    call: Call, dtype: np.dtype, x: Value, y: Value, outer: Value, n: Value, inner: Value
) -> None:
    """Emit the copy of `outer x n x inner` at x to `outer x inner x n` at y."""
    call_routine(call.fn, "part_lanes", word_dtype(dtype), x, y, outer, n, inner)


def join_lanes(
    call: Call, dtype: np.dtype, x: Value, y: Value, outer: Value, n: Value, inner: Value
) -> None:
    """Emit the copy of `outer x inner x n` at x to `outer x n x inner` at y."""
    call_routine(call.fn, "join_lanes", word_dtype(dtype), x, y, outer, n, inner)


def _build(parting: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "outer"), ("i64", "n"), ("i64", "inner")]
    f = module.function(symbol, "void", params)
    x, y, outer, n, inner = f.params
    blocks = f.binary("sdiv", f.add(inner, _BLOCK - 1), _BLOCK)
    grain = per_thread(f, 1 << 15, f.mul(n, _BLOCK))
    with parallel(f, f.mul(outer, blocks), grain) as (part, lo, hi), part.loop(lo, hi) as block:
        base = part.mul(part.binary("sdiv", block, blocks), part.mul(n, inner))
        start = part.mul(part.binary("srem", block, blocks), _BLOCK)
        many = part.minimum(_BLOCK, part.sub(part.use(inner), start))
        crowd, alone = part.add(base, start), part.add(base, part.mul(start, n))
        row, lane = (part.mul(extent, dtype.itemsize) for extent in (inner, n))
        ends: tuple[Operand, ...]
        if parting:
            ends = at(part, dtype, x, crowd), row, at(part, dtype, y, alone), lane, many, n
        else:
            ends = at(part, dtype, x, alone), lane, at(part, dtype, y, crowd), row, n, many
        call_routine(part, "turn", dtype, *ends)
    f.ret()


routine("part_lanes")(partial(_build, True))
routine("join_lanes")(partial(_build, False))
