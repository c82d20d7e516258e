"""Copies parts of matrices into the order in which the micro-kernels of `gemm_tiles` read them.

A panel of A (the rows of a tile) becomes strips: one for each row, or one for each column if columns are what lies together
in A. Either way elements move as vectors, and the kernels read both, by strides. Strips are padded so that they do not
compete for the same lines of the cache.

A block of B becomes panels as wide as a full tile, one after the other, each row by row, with zeros after the last column.
"""

from __future__ import annotations

from dsl.codegen.cpu.gemm_lanes import first_lanes, load, masked_load, zeros
from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["columns_together", "pack_a", "pack_b", "panel_bytes", "strip"]

ATTRIBUTES = 'nounwind "prefer-vector-width"="512"'


def strip(t: Tiling) -> int:
    """Return the elements from one row's strip to the next."""
    return t.depth + t.lanes


def panel_bytes(t: Tiling) -> int:
    """Return the size of a packed panel of A; the last vector of a column's strip may reach over its end."""
    return (t.heights[0] * strip(t) + t.lanes) * t.size


def columns_together(fn: Function, row_stride: Value, column_stride: Value) -> Value:
    """Emit whether A is packed by columns."""
    return fn.both(fn.compare("eq", row_stride, 1), fn.compare("ne", column_stride, 1))


def pack_a(module: Module, t: Tiling, name: str) -> None:
    """Define `void name(ptr to, ptr a, i64 row_stride, i64 column_stride, i64 rows, i64 depth)`.

    Row strips are `strip` elements apart, column strips the full height of a tile. Rows past `rows` become zeros.
    """
    fn = _function(module, name, ["row_stride", "column_stride", "rows", "depth"])
    to, a, row_stride, column_stride, rows, depth = fn.params
    full = t.heights[0]

    def by_rows() -> None:
        with fn.loop(0, rows) as i:
            source, target = (
                _at(fn, t, a, fn.mul(i, row_stride)),
                _at(fn, t, to, fn.mul(i, strip(t))),
            )
            _copy(fn, t, target, source, column_stride, depth)
        with fn.loop(rows, full) as i, fn.loop(0, depth, t.lanes) as k:
            fn.store(zeros(t), _at(fn, t, to, fn.add(fn.mul(i, strip(t)), k)), align=t.size)

    def by_columns() -> None:
        with fn.loop(0, depth) as k:
            source, target = (
                _at(fn, t, a, fn.mul(k, column_stride)),
                _at(fn, t, to, fn.mul(k, full)),
            )
            _row_of_panel(fn, t, target, source, rows, full)

    fn.if_else(columns_together(fn, row_stride, column_stride), by_columns, by_rows)
    fn.ret()


def pack_b(module: Module, t: Tiling, name: str) -> None:
    """Define `void name(ptr to, ptr b, i64 row_stride, i64 column_stride, i64 depth, i64 columns)`."""
    fn = _function(module, name, ["row_stride", "column_stride", "depth", "columns"])
    to, b, row_stride, column_stride, depth, columns = fn.params
    start = fn.variable("i64", 0)
    with fn.if_(fn.compare("eq", column_stride, 1)):
        stop = fn.binary("and", columns, -t.columns)
        _copy_panels(fn, t, to, b, row_stride, depth, stop)
        start.set(stop)
    with fn.loop(start.get(), columns, t.columns) as j:
        source, target = _at(fn, t, b, fn.mul(j, column_stride)), _at(fn, t, to, fn.mul(j, depth))
        here = fn.minimum(fn.sub(columns, j), t.columns)
        turn = fn.both(fn.compare("eq", row_stride, 1), fn.compare("eq", here, t.columns))
        done = fn.variable("i64", 0)
        with fn.if_(turn):
            stop = fn.binary("and", depth, -t.lanes)
            with fn.loop(0, stop, t.lanes) as k, fn.loop(0, t.columns, t.lanes) as c:
                block = _at(fn, t, source, fn.add(fn.mul(c, column_stride), k))
                place = fn.add(fn.mul(k, t.columns), c)
                _transpose(fn, t, _at(fn, t, target, place), block, column_stride)
            done.set(stop)
        together = fn.compare("eq", column_stride, 1)
        with fn.loop(done.get(), depth) as k:
            row = _at(fn, t, source, fn.mul(k, row_stride))
            place = _at(fn, t, target, fn.mul(k, t.columns))
            fn.if_else(
                together,
                lambda: _row_of_panel(fn, t, place, row, here, t.columns),
                lambda: _slowly(fn, t, place, row, column_stride, here, t.columns),
            )
    fn.ret()


def _copy_panels(
    fn: Function, t: Tiling, to: Value, b: Value, row_stride: Value, depth: Value, columns: Value
) -> None:
    """Copy full panels whose rows lie together; a row of all of them at a time, as they were stored."""
    with fn.loop(0, depth) as k, fn.loop(0, columns, t.columns) as j:
        source = _at(fn, t, b, fn.add(fn.mul(k, row_stride), j))
        target = _at(fn, t, to, fn.add(fn.mul(j, depth), fn.mul(k, t.columns)))
        for c in range(0, t.columns, t.lanes):
            fn.store(load(fn, t, source, c), _at(fn, t, target, c), align=t.size)


def _function(module: Module, name: str, numbers: list[str]) -> Function:
    params = [("ptr noalias", "to"), ("ptr noalias", "from"), *(("i64", n) for n in numbers)]
    return module.function(name, "void", params, internal=True, attributes="noinline " + ATTRIBUTES)


def _at(fn: Function, t: Tiling, base: Value, index: Operand) -> Value:
    return fn.gep(base, index, t.type)


def _copy(fn: Function, t: Tiling, to: Value, source: Value, stride: Value, count: Value) -> None:
    """Copy `count` elements that are `stride` apart; vectors where they lie together."""
    done = fn.variable("i64", 0)
    with fn.if_(fn.compare("eq", stride, 1)):
        stop = fn.binary("and", count, -t.lanes)
        with fn.loop(0, stop, t.lanes) as k:
            vector = load(fn, t, source, k)
            fn.store(vector, _at(fn, t, to, k), align=t.size)
        done.set(stop)
    with fn.loop(done.get(), count) as k:
        element = fn.load(t.type, _at(fn, t, source, fn.mul(k, stride)))
        fn.store(element, _at(fn, t, to, k))


def _row_of_panel(
    fn: Function, t: Tiling, to: Value, source: Value, count: Operand, full: int
) -> None:
    """Copy `count` elements that lie together, then zeros up to `full`; may write up to a vector's end past that.

    Whoever comes next in the panel overwrites what is past the end.
    """
    if not t.masks:
        _slowly(fn, t, to, source, Value("1", "i64"), count, full)
        return
    for first in range(0, full, t.lanes):
        mask = first_lanes(fn, t, fn.sub(count, first))
        vector = masked_load(fn, t, _at(fn, t, source, first), mask)
        fn.store(vector, _at(fn, t, to, first), align=t.size)


def _slowly(
    fn: Function, t: Tiling, to: Value, source: Value, stride: Value, count: Operand, full: int
) -> None:
    """Copy `count` elements that are `stride` apart, then zeros up to `full`."""
    with fn.loop(0, count) as j:
        element = fn.load(t.type, _at(fn, t, source, fn.mul(j, stride)))
        fn.store(element, _at(fn, t, to, j))
    with fn.loop(count, full) as j:
        fn.store(fn.as_value(0, t.type), _at(fn, t, to, j))


def _transpose(fn: Function, t: Tiling, to: Value, source: Value, stride: Value) -> None:
    """Copy a square of as many rows as a vector has lanes, to rows that are a full tile's width apart, transposed.

    Each round interleaves row i with row i + lanes / 2; as many rounds as lanes has bits turn rows into columns.
    """
    n, half = t.lanes, t.lanes // 2
    rows = [
        fn.load(t.vector, _at(fn, t, source, fn.mul(i, stride)), align=t.size) for i in range(n)
    ]
    low = ", ".join(f"i32 {i // 2 + n * (i % 2)}" for i in range(n))
    high = ", ".join(f"i32 {half + i // 2 + n * (i % 2)}" for i in range(n))
    for _ in range(n.bit_length() - 1):
        rows = [
            fn.define(t.vector, f"shufflevector {rows[i]}, {rows[i + half]}, <{n} x i32> <{order}>")
            for i in range(half)
            for order in (low, high)
        ]
    for i, row in enumerate(rows):
        fn.store(row, _at(fn, t, to, i * t.columns), align=t.size)
