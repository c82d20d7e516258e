"""Triangular systems of few rows, for float32 and float64, by substitution: many columns at a time, without LAPACK.

BLAS spreads such systems over threads however small they are, and waits for them longer than the work takes. Each
unknown is one sum, from the first row solved to the last, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, routine
from dsl.codegen.library.vectors import (
    first_lanes,
    intrinsic,
    lanes,
    load_some,
    splat,
    store_some,
    vector,
)
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = ["emit_substitution", "has_few_rows"]

_ROWS = 192  # of a matrix that stays near; LAPACK is as fast for more
_ROWS_OF_ONE = 32  # for one column, which has nothing to do side by side
_REGISTERS = 4  # of columns side by side: sums that hide how long an addition takes
_GRAIN = 1 << 16


def has_few_rows(fn: Function, dtype: np.dtype, m: Operand, n: Operand) -> bool | Value:
    """Tell whether m x m and m x n are for the routine here, if need be when the program runs."""
    if dtype.kind != "f":
        return False
    if isinstance(m, int) and (m <= _ROWS_OF_ONE or m > _ROWS):
        return m <= _ROWS_OF_ONE
    if isinstance(m, int) and isinstance(n, int):
        return n > 1
    most = fn.select(fn.compare("eq", n, 1), _ROWS_OF_ONE, _ROWS)
    return fn.compare("sle", m, most)


def emit_substitution(
    fn: Function, dtype: np.dtype, a: Value, b: Value, x: Value, m: Operand, n: Operand, *, lower: bool, transpose: bool,
    unit: bool,
) -> Value:  # fmt: skip
    """Emit `x = a^-1 b`, all in C order; return whether the matrix is singular."""
    row, column = (1, m) if transpose else (m, 1)
    step = n
    if lower == transpose:  # from the last row to the first
        last = fn.sub(m, 1)
        a = at(fn, dtype, a, fn.mul(last, fn.add(m, 1)))
        b, x = (at(fn, dtype, base, fn.mul(last, n)) for base in (b, x))
        row, column, step = (fn.mul(stride, -1) for stride in (row, column, step))
    args = (a, row, column, b, x, step, m, n, int(unit))
    return call_routine(fn, "substitute", dtype, *args, result="i1")


@routine("substitute")
def _build_substitute(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`substitute(a, row, column, b, x, step, m, n, unit)`: the first row is the one that is solved first."""
    names = ("a", "row", "column", "b", "x", "step", "m", "n", "unit")
    params = [("ptr" if name in ("a", "b", "x") else "i64", name) for name in names]
    f = module.function(symbol, "i1", params)
    a, row, column, _b, _x, _step, m, n, unit = f.params
    singular = f.variable("i1", 0)
    with f.if_(f.compare("eq", unit, 0)), f.loop(0, m) as i:
        pivot = f.load(register_type(dtype), at(f, dtype, a, f.mul(i, f.add(row, column))))
        zero = f.fcompare("oeq", pivot, f.constant(0.0, pivot.type))
        singular.set(f.either(singular.get(), zero))
    with f.if_(f.invert(singular.get())):
        each = register_bytes() // dtype.itemsize
        tile = _REGISTERS * each
        tiles = f.binary("sdiv", f.add(n, tile - 1), tile)
        grain = per_thread(f, _GRAIN, f.mul(f.mul(m, m), tile))
        with parallel(f, tiles, grain) as (part, lo, hi), part.loop(lo, hi) as index:
            start = part.mul(index, tile)
            left = part.minimum(part.sub(n, start), tile)
            for count in range(1, _REGISTERS + 1):
                more = part.compare("sgt", left, (count - 1) * each)
                fits = part.both(more, part.compare("sle", left, count * each))
                with part.if_(fits):
                    _columns(part, dtype, f.params, start, left, count)
    f.ret(singular.get())


def _columns(
    f: Function, dtype: np.dtype, params: list[Value], start: Operand, size: Operand, count: int
) -> None:
    """Solve for as many columns as fit in some registers; the last of them may be filled in part."""
    a, row, column, b, x, step, m, _n, unit = params
    kind = register_type(dtype)
    wide = vector(kind, register_bytes() // dtype.itemsize)
    each = lanes(wide)
    mask = first_lanes(f, wide, f.sub(size, (count - 1) * each))

    def load(base: Value, place: Operand, register: int) -> Value:
        address = at(f, dtype, base, f.add(place, register * each))
        if register < count - 1:
            return f.load(wide, address, align=dtype.itemsize)
        return load_some(f, wide, address, mask, dtype.itemsize)

    def store(value: Value, place: Operand, register: int) -> None:
        address = at(f, dtype, x, f.add(place, register * each))
        if register < count - 1:
            f.store(value, address, align=dtype.itemsize)
        else:
            store_some(f, value, address, mask, dtype.itemsize)

    sums = [f.variable(wide) for _ in range(count)]
    with f.loop(0, m) as i:
        own, line = f.add(start, f.mul(i, step)), f.mul(i, row)
        for k, total in enumerate(sums):
            total.set(load(b, own, k))
        with f.loop(0, i) as j:
            factor = f.load(kind, at(f, dtype, a, f.add(line, f.mul(j, column))))
            spread = splat(f, f.fneg(factor), wide)
            solved = f.add(start, f.mul(j, step))
            for k, total in enumerate(sums):
                total.set(intrinsic(f, "llvm.fma", spread, load(x, solved, k), total.get()))
        with f.if_(f.compare("eq", unit, 0)):
            pivot = f.load(kind, at(f, dtype, a, f.add(line, f.mul(i, column))))
            spread = splat(f, pivot, wide)
            for total in sums:
                total.set(f.fdiv(total.get(), spread))
        for k, total in enumerate(sums):
            store(total.get(), own, k)
