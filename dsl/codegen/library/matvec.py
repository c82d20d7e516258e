"""A matrix times a vector, for float32 and float64: reads the matrix once, in the order in which it lies.

Sums are taken in an order that depends on the sizes and strides alone.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, routine
from dsl.codegen.library.vectors import (
    constant,
    first_lanes,
    intrinsic,
    lanes,
    load_some,
    reduce_add,
    splat,
    vector,
)
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = ["emit_matvec"]

_GRAIN = 1 << 15
_BLOCK = 1024  # elements of the result that stay near while columns are added to them


def emit_matvec(
    fn: Function, dtype: np.dtype, m: Operand, k: Operand, a: Value, strides: tuple[Operand, Operand],
    x: Value, step: Operand, y: Value,
) -> None:  # fmt: skip
    """Emit `y[m] = a[m, k] @ x[k]`; strides are in elements, y is in C order."""
    call_routine(fn, "matvec", dtype, m, k, a, *strides, x, step, y)


_ROWS = 4  # rows, or columns, that are read side by side
_SUMS = 2  # vectors of sums of a row: those of all rows fit in registers, and are as many as additions are under way at once


@routine("matvec")
def _build_matvec(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`matvec(m, k, a, row, column, x, step, y)`."""
    params = [
        ("i64", "m"), ("i64", "k"), ("ptr", "a"), ("i64", "row"), ("i64", "column"), ("ptr", "x"), ("i64", "step"),
        ("ptr", "y"),
    ]  # fmt: skip
    f = module.function(symbol, "void", params)
    _m, _k, _a, row, column, _x, step, _y = f.params
    packed = f.compare("eq", step, 1)
    f.if_else(
        f.both(packed, f.compare("eq", column, 1)),
        lambda: _dots(f, dtype),
        lambda: f.if_else(
            f.compare("eq", row, 1), lambda: _columns(f, dtype), lambda: _plain(f, dtype)
        ),
    )
    f.ret()


def _plain(f: Function, dtype: np.dtype) -> None:
    m, k, a, row, column, x, step, y = f.params
    kind = register_type(dtype)
    with parallel(f, m, per_thread(f, _GRAIN, k)) as (part, lo, hi), part.loop(lo, hi) as i:
        start, total = part.mul(i, row), part.variable(kind, 0)
        with part.loop(0, k) as l:
            left = part.load(kind, at(part, dtype, a, part.add(start, part.mul(l, column))))
            right = part.load(kind, at(part, dtype, x, part.mul(l, step)))
            total.set(part.fma(left, right, total.get()))
        part.store(total.get(), at(part, dtype, y, i))


def _dots(f: Function, dtype: np.dtype) -> None:
    """Rows lie together: several rows at a time, so that x is read once for them."""
    m, k, a, row, _column, x, _step, y = f.params
    with parallel(f, m, f.maximum(per_thread(f, _GRAIN, k), _ROWS)) as (part, lo, hi):
        several = part.binary("and", part.binary("sub", hi, lo), -_ROWS)
        middle = part.binary("add", lo, several)
        for start, stop, count in ((lo, middle, _ROWS), (middle, hi, 1)):
            with part.loop(start, stop, count) as i:
                rows = [at(part, dtype, a, part.mul(part.add(i, r), row)) for r in range(count)]
                for r, total in enumerate(_dot_rows(part, dtype, rows, x, k)):
                    part.store(total, at(part, dtype, y, part.add(i, r)))


def _dot_rows(f: Function, dtype: np.dtype, rows: list[Value], x: Value, k: Value) -> list[Value]:
    """Return the products of rows with x.

    Each row has its own sums, however many rows there are: which rows go together depends on the number of threads, and
    must not show.
    """
    wide = vector(register_type(dtype), register_bytes() // dtype.itemsize)
    each = lanes(wide)
    sums = [[f.variable(wide, constant(0.0, wide)) for _ in range(_SUMS)] for _ in rows]

    def add(place: Operand, sum: int, mask: Value | None = None) -> None:
        def vector_at(base: Value) -> Value:
            address = at(f, dtype, base, place)
            if mask is not None:
                return load_some(f, wide, address, mask, dtype.itemsize)
            return f.load(wide, address, align=dtype.itemsize)

        right = vector_at(x)
        for base, parts in zip(rows, sums):
            parts[sum].set(intrinsic(f, "llvm.fma", vector_at(base), right, parts[sum].get()))

    blocks, whole = f.binary("and", k, -_SUMS * each), f.binary("and", k, -each)
    with f.loop(0, blocks, _SUMS * each) as l:
        for d in range(_SUMS):
            add(f.add(l, d * each), d)
    with f.loop(blocks, whole, each) as l:
        add(l, 0)
    rest = f.sub(k, whole)
    with f.if_(f.compare("ne", rest, 0)):
        add(whole, 1, first_lanes(f, wide, rest))
    return [_sum(f, [part.get() for part in parts]) for parts in sums]


def _sum(f: Function, parts: list[Value]) -> Value:
    """Return the sum of all elements of vectors, by halves."""
    while len(parts) > 1:
        parts = [f.fadd(a, b) for a, b in zip(parts[::2], parts[1::2])]
    return reduce_add(f, parts[0])


def _columns(f: Function, dtype: np.dtype) -> None:
    """Columns lie together: multiples of several columns at a time are added to y, in blocks that stay near."""
    m, k, a, _row, column, x, step, y = f.params
    blocks = f.binary("sdiv", f.add(m, _BLOCK - 1), _BLOCK)
    grain = per_thread(f, _GRAIN, f.mul(f.minimum(m, _BLOCK), k))
    with parallel(f, blocks, grain) as (part, lo, hi), part.loop(lo, hi) as index:
        start = part.mul(index, _BLOCK)
        stop = part.as_value(part.minimum(part.add(start, _BLOCK), m), "i64")
        kind = register_type(dtype)
        with part.loop(start, stop) as i:
            part.store(constant(0.0, kind), at(part, dtype, y, i))
        whole = part.binary("and", k, -_ROWS)
        for first, last, count in (
            (part.as_value(0, "i64"), whole, _ROWS),
            (whole, part.use(k), 1),
        ):
            with part.loop(first, last, count) as l:
                places = [part.add(l, c) for c in range(count)]
                columns = [at(part, dtype, a, part.mul(place, column)) for place in places]
                factors = [
                    part.load(kind, at(part, dtype, x, part.mul(place, step))) for place in places
                ]
                _add_columns(part, dtype, columns, factors, start, stop, y)


def _add_columns(
    f: Function, dtype: np.dtype, columns: list[Value], factors: list[Value], start: Operand, stop: Value,
    y: Value,
) -> None:  # fmt: skip
    kind, wide = register_type(dtype), vector(register_type(dtype))
    size = f.binary("sub", stop, start)
    middle = f.binary("add", start, f.binary("and", size, -lanes(wide)))
    spread = [splat(f, factor, wide) for factor in factors]
    for type, first, last, values, count in (
        (wide, start, middle, spread, lanes(wide)),
        (kind, middle, stop, factors, 1),
    ):
        with f.loop(first, last, count) as i:
            total = f.load(type, at(f, dtype, y, i), align=dtype.itemsize)
            for base, factor in zip(columns, values):
                found = f.load(type, at(f, dtype, base, i), align=dtype.itemsize)
                total = intrinsic(f, "llvm.fma", found, factor, total)
            f.store(total, at(f, dtype, y, i), align=dtype.itemsize)
