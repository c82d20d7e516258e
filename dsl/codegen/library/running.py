"""Running sums, products, maxima and minima along an axis.

Float sums and products go strictly from first to last, so they have the reference's bits and sums of positive numbers
never fall; several rows go side by side to hide the latency of additions. Integer sums and all extrema may be grouped
at will: they are computed by vectors of 64 bytes, and long rows in pieces by several threads: once for the totals of
the pieces, once more for the running values. Along an axis other than the last whole rows are combined.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.arrays import load_scalar, memory_type, register_type, store_scalar
from dsl.codegen.elementwise import combine
from dsl.codegen.library.call import Call, around, constant_of
from dsl.codegen.library.cells import Cell
from dsl.codegen.library.routines import (
    at,
    call_routine,
    inner_function,
    parallel,
    per_thread,
    pieces,
    routine,
)
from dsl.codegen.library.vectors import (
    constant,
    lanes,
    last,
    merge,
    merge_all,
    shift_in,
    splat,
    vector,
)
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["LOWERINGS"]

_TOGETHER = 4  # rows that go side by side
_GRAIN = 1 << 15  # elements that are worth a thread
_COLUMNS = 2048  # in a block of columns, which should stay in the first-level cache

_OPS = {"cumsum": "add", "cumprod": "multiply", "cummax": "maximum", "cummin": "minimum"}


def _lower(call: Call) -> None:
    x, fn, name = call.contiguous(0), call.fn, call.node.op.name
    outer, n, inner = around(fn, x.dims, call.node.attrs["axis"])
    y = call.output()
    if constant_of(inner) == 1:
        call_routine(fn, name, x.dtype, x.pointer, y.pointer, outer, n)
    else:
        call_routine(fn, f"{name}_columns", x.dtype, x.pointer, y.pointer, outer, n, inner)


LOWERINGS = dict.fromkeys(_OPS, _lower)


def _build_rows(name: str, module: Module, symbol: str, dtype: np.dtype) -> None:
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), ("i64", "rows"), ("i64", "n")])
    x, y, rows, n = f.params
    with f.if_(f.compare("eq", n, 0)):
        f.ret()
    if _may_group(_OPS[name], dtype):
        _grouped(f, _OPS[name], dtype, x, y, rows, n)
    else:
        _in_order(f, name, dtype, x, y, rows, n)
    f.ret()


def _may_group(op: str, dtype: np.dtype) -> bool:
    if dtype.kind in "iu":
        return op != "multiply"
    return dtype.kind == "f" and dtype.itemsize >= 4 and op in ("maximum", "minimum")


# -- one after another --------------------------------------------------------------------------------------------


def _in_order(
    f: Function, name: str, dtype: np.dtype, x: Value, y: Value, rows: Value, n: Value
) -> None:
    grain = f.maximum(per_thread(f, _GRAIN, n), _TOGETHER)
    with parallel(f, rows, grain) as (part, lo, hi):
        several = part.binary("and", part.binary("sub", hi, lo), -_TOGETHER)
        middle = part.binary("add", lo, several)
        with part.loop(lo, middle, _TOGETHER) as row:
            _side_by_side(part, name, dtype, x, y, row, n, _TOGETHER)
        with part.loop(middle, hi) as row:
            _side_by_side(part, name, dtype, x, y, row, n, 1)


def _side_by_side(
    f: Function, name: str, dtype: np.dtype, x: Value, y: Value, row: Value, n: Value, count: int
) -> None:
    """Go along `count` rows together."""
    starts = [f.mul(f.add(row, k), n) for k in range(count)]
    totals = [Cell(f, dtype) for _ in starts]
    for start, total in zip(starts, totals):
        total.set(load_scalar(f, dtype, at(f, dtype, x, start)))
        store_scalar(f, dtype, total.get(), at(f, dtype, y, start))
    with f.loop(1, n) as j:
        for start, total in zip(starts, totals):
            found = load_scalar(f, dtype, at(f, dtype, x, f.add(start, j)))
            total.set(combine(f, name, dtype, total.get(), found, reassociate=False))
            store_scalar(f, dtype, total.get(), at(f, dtype, y, f.add(start, j)))


# -- along other axes ---------------------------------------------------------------------------------------------


def _build_columns(name: str, module: Module, symbol: str, dtype: np.dtype) -> None:
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "outer"), ("i64", "n"), ("i64", "inner")]
    f = module.function(symbol, "void", params)
    x, y, outer, n, inner = f.params
    with f.if_(f.compare("eq", n, 0)):
        f.ret()
    blocks = f.binary("sdiv", f.add(inner, _COLUMNS - 1), _COLUMNS)
    grain = per_thread(f, _GRAIN, f.mul(n, f.minimum(inner, _COLUMNS)))
    with parallel(f, f.mul(outer, blocks), grain) as (part, lo, hi), part.loop(lo, hi) as block:
        start = part.mul(part.binary("srem", block, blocks), _COLUMNS)
        width = part.minimum(part.sub(part.use(inner), start), _COLUMNS)
        outside = part.binary("sdiv", block, blocks)
        base = part.add(part.mul(outside, part.mul(n, inner)), start)
        with part.loop(0, width) as column:
            found = load_scalar(part, dtype, at(part, dtype, x, part.add(base, column)))
            store_scalar(part, dtype, found, at(part, dtype, y, part.add(base, column)))
        with part.loop(1, n) as j:
            row = part.add(base, part.mul(j, inner))
            _next_row(part, name, dtype, x, y, row, part.sub(row, inner), width)
    f.ret()


def _next_row(
    f: Function, name: str, dtype: np.dtype, x: Value, y: Value, row: Operand, above: Operand,
    width: Operand,
) -> None:  # fmt: skip
    with f.loop(0, width) as column:
        so_far = load_scalar(f, dtype, at(f, dtype, y, f.add(above, column)))
        found = load_scalar(f, dtype, at(f, dtype, x, f.add(row, column)))
        total = combine(f, name, dtype, so_far, found, reassociate=False)
        store_scalar(f, dtype, total, at(f, dtype, y, f.add(row, column)))


for _name in _OPS:
    routine(_name)(partial(_build_rows, _name))
    routine(f"{_name}_columns", vectorize=True)(partial(_build_columns, _name))


# -- in any grouping ----------------------------------------------------------------------------------------------


def _grouped(
    f: Function, op: str, dtype: np.dtype, x: Value, y: Value, rows: Value, n: Value
) -> None:
    scan, total = _scan_function(f.module, op, dtype), _total_function(f.module, op, dtype)
    long = f.both(f.compare("sge", n, 4 * _GRAIN), f.compare("slt", rows, 8))

    def by_pieces() -> None:
        with f.loop(0, rows) as row:
            place = f.mul(row, n)
            _by_pieces(f, scan, total, op, dtype, at(f, dtype, x, place), at(f, dtype, y, place), n)

    def by_rows() -> None:
        with (
            parallel(f, rows, per_thread(f, _GRAIN, n)) as (part, lo, hi),
            part.loop(lo, hi) as row,
        ):
            place = part.mul(row, n)
            _scan(part, scan, dtype, x, y, place, n, _neutral(op, dtype, register_type(dtype)))

    f.if_else(long, by_pieces, by_rows)


def _scan(
    f: Function, scan: str, dtype: np.dtype, x: Value, y: Value, place: Operand, n: Operand,
    before: Value,
) -> None:  # fmt: skip
    size = f.as_value(n, "i64")
    f.call("void", scan, at(f, dtype, x, place), at(f, dtype, y, place), size, before)


def _by_pieces(
    f: Function, scan: str, total: str, op: str, dtype: np.dtype, x: Value, y: Value, n: Value
) -> None:
    kind = register_type(dtype)
    length, count = pieces(f, n)
    totals = f.alloca(8 * 64)
    with parallel(f, count, 1) as (part, lo, hi), part.loop(lo, hi) as piece:
        start = part.mul(piece, length)
        own_length = part.as_value(part.minimum(length, part.sub(n, start)), "i64")
        found = part.call(kind, total, at(part, dtype, x, start), own_length)
        part.store(found, part.gep(totals, piece, "i64"))
    before = f.variable(kind, _neutral(op, dtype, kind))
    with f.loop(0, count) as piece:
        own, so_far = f.load(kind, f.gep(totals, piece, "i64")), before.get()
        f.store(so_far, f.gep(totals, piece, "i64"))
        before.set(merge(f, op, dtype, so_far, own))
    with parallel(f, count, 1) as (part, lo, hi), part.loop(lo, hi) as piece:
        start = part.mul(piece, length)
        size = part.minimum(length, part.sub(n, start))
        _scan(part, scan, dtype, x, y, start, size, part.load(kind, part.gep(totals, piece, "i64")))


def _neutral(op: str, dtype: np.dtype, type: str) -> Value:
    """Return what changes nothing in `add`, `maximum` or `minimum`."""
    if op == "add":
        return constant(0, type)
    if dtype.kind == "f":
        return constant(float("-inf") if op == "maximum" else float("inf"), type)
    info = np.iinfo(dtype)
    return constant(int(info.min if op == "maximum" else info.max), type)


def _scan_function(module: Module, op: str, dtype: np.dtype) -> str:
    """Define `scan(x, y, n, before)` for one row, or piece of one, and return its name."""
    kind, wide = memory_type(dtype), vector(memory_type(dtype))
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "n"), (kind, "before")]
    f = inner_function(module, "scan", "void", params)
    x, y, n, initial = f.params
    before, whole = f.variable(wide, splat(f, initial, wide)), f.binary("and", n, -lanes(wide))
    with f.loop(0, whole, lanes(wide)) as i:
        v = _scan_vector(f, op, dtype, f.load(wide, at(f, dtype, x, i), align=dtype.itemsize))
        so_far = before.get()
        f.store(merge(f, op, dtype, so_far, v), at(f, dtype, y, i), align=dtype.itemsize)
        before.set(merge(f, op, dtype, so_far, splat(f, last(f, v), wide)))
    total = f.variable(kind, last(f, before.get()))
    with f.loop(whole, n) as i:
        total.set(merge(f, op, dtype, total.get(), f.load(kind, at(f, dtype, x, i))))
        f.store(total.get(), at(f, dtype, y, i))
    f.ret()
    return f.name


def _scan_vector(f: Function, op: str, dtype: np.dtype, v: Value) -> Value:
    """Return the running values of a vector: each step doubles how many elements a result covers."""
    distance = 1
    while distance < lanes(v.type):
        v = merge(f, op, dtype, shift_in(f, v, _neutral(op, dtype, v.type), distance), v)
        distance *= 2
    return v


def _total_function(module: Module, op: str, dtype: np.dtype) -> str:
    """Define `total(x, n)` and return its name."""
    kind, wide = memory_type(dtype), vector(memory_type(dtype))
    f = inner_function(module, "total", kind, [("ptr", "x"), ("i64", "n")])
    (x, n), step = f.params, 4 * lanes(wide)
    totals = [f.variable(wide, _neutral(op, dtype, wide)) for _ in range(4)]
    whole = f.binary("and", n, -step)
    with f.loop(0, whole, step) as i:
        for k, total in enumerate(totals):
            place = at(f, dtype, x, f.add(i, k * lanes(wide)))
            v = f.load(wide, place, align=dtype.itemsize)
            total.set(merge(f, op, dtype, total.get(), v))
    a, b, c, d = (total.get() for total in totals)
    all_four = merge(f, op, dtype, merge(f, op, dtype, a, b), merge(f, op, dtype, c, d))
    rest = f.variable(kind, merge_all(f, op, dtype, all_four))
    with f.loop(whole, n) as i:
        rest.set(merge(f, op, dtype, rest.get(), f.load(kind, at(f, dtype, x, i))))
    f.ret(rest.get())
    return f.name
