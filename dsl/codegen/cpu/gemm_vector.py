"""Products of a matrix and a vector, at the speed of memory.

Two forms, by what lies together in the matrix. Rows: an element of the result is the product of a row and the vector, in
`4 * lanes` interleaved sums that are added in a fixed order; a few vectors take turns with each row. Columns: rows of the
matrix, times an element of the vector each, are added to the result, eight at a time. Either way threads divide the result,
not the sums.
"""

from __future__ import annotations

from typing import NamedTuple

from dsl.codegen.cpu.gemm_lanes import (
    first_lanes,
    load,
    masked_load,
    masked_store,
    multiply_add,
    splat,
    sum_of_lanes,
    zeros,
)
from dsl.codegen.cpu.gemm_pack import ATTRIBUTES
from dsl.codegen.cpu.gemm_tasks import Call, finish
from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["Product", "by_columns", "by_rows"]

_SUMS = 4
"""Vectors of sums of a row: as many as additions are under way at once."""

_ROWS = 8
"""Rows that are added to the result at a time: it is read and written once for all of them."""


class Product(NamedTuple):
    """A matrix, `stride` elements from row to row; `vectors` vectors of `k` elements, `vector_row` apart; and the results, with
    elements `result_step` and rows `result_row` apart. That of one vector may be a column of C."""

    matrix: Value
    stride: Value
    vector: Value
    vector_row: Value
    vectors: Value
    k: Value
    result: Value
    result_step: Value
    result_row: Value
    column: Value


def by_rows(module: Module, t: Tiling, parent: Function, call: Call, of: Product) -> Function:
    """Define the function that makes elements `lo` to `hi` of the results: products of rows and vectors."""
    fn, call, of = _function(module, "gemm.rows", parent, call, of)
    _, lo, hi = fn.params
    with fn.loop(lo, hi) as j, fn.loop(0, of.vectors) as i:
        row = fn.gep(of.matrix, fn.mul(j, of.stride), t.type)
        vector = fn.gep(of.vector, fn.mul(i, of.vector_row), t.type)
        place = fn.add(fn.mul(i, of.result_row), fn.mul(j, of.result_step))
        fn.store(_product(fn, t, row, vector, of.k), fn.gep(of.result, place, t.type))
    _finish(fn, call, of, lo, hi)
    fn.ret()
    return fn


def _product(fn: Function, t: Tiling, x: Value, y: Value, count: Value) -> Value:
    """Return the sum of the products of two vectors' elements."""
    stop = fn.binary("and", count, -_SUMS * t.lanes)
    sums = [fn.variable(t.vector, zeros(t)) for _ in range(_SUMS)]
    with fn.loop(0, stop, _SUMS * t.lanes) as k:
        for s, sum in enumerate(sums):
            place = fn.add(k, s * t.lanes)
            product = load(fn, t, x, place), load(fn, t, y, place)
            sum.set(multiply_add(fn, t, *product, sum.get()))
    low, high = (fn.fadd(sums[s].get(), sums[s + 1].get()) for s in (0, 2))
    total = fn.variable(t.type, sum_of_lanes(fn, t, fn.fadd(low, high)))
    with fn.loop(stop, count) as k:
        element = fn.load(t.type, fn.gep(x, k, t.type)), fn.load(t.type, fn.gep(y, k, t.type))
        total.set(multiply_add(fn, t, *element, total.get()))
    return total.get()


def by_columns(module: Module, t: Tiling, parent: Function, call: Call, of: Product) -> Function:
    """Define the function that makes elements `lo` to `hi` of the result of one vector: sums of rows. For CPUs with masks."""
    fn, call, of = _function(module, "gemm.columns", parent, call, of)
    _, lo, hi = fn.params
    stop = fn.binary("and", of.k, -_ROWS)
    for rows, first, last in ((_ROWS, 0, stop), (1, stop, of.k)):
        with fn.loop(first, last, rows) as k:
            step = _Step(fn, t, of, rows, k)
            whole = fn.binary("and", fn.sub(hi, lo), -t.lanes if rows > 1 else 0)
            end = fn.add(lo, whole)
            with fn.loop(lo, end, t.lanes) as j:
                step.add(j, None)
            with fn.loop(end, hi, t.lanes) as j:
                step.add(j, first_lanes(fn, t, fn.sub(hi, j)))
    _finish(fn, call, of, lo, hi)
    fn.ret()
    return fn


class _Step:
    """Adds rows of a matrix from row `k` on, times an element of a vector each, to the result."""

    def __init__(self, fn: Function, t: Tiling, of: Product, rows: int, k: Value) -> None:
        self.fn, self.t, self.result = fn, t, of.result
        self.first = fn.compare("eq", k, 0)
        start = fn.gep(of.matrix, fn.mul(k, of.stride), t.type)
        self.rows = [fn.gep(start, fn.mul(r, of.stride), t.type) for r in range(rows)]
        places = [fn.gep(of.vector, fn.add(k, r), t.type) for r in range(rows)]
        self.factors = [splat(fn, t, fn.load(t.type, place)) for place in places]

    def add(self, j: Value, mask: Value | None) -> None:
        """Add what a vector holds from column `j` on."""
        fn, t = self.fn, self.t
        everywhere = Value("splat (i1 true)", f"<{t.lanes} x i1>")
        place = fn.gep(self.result, j, t.type)
        old = fn.select(self.first, Value("zeroinitializer", everywhere.type), mask or everywhere)
        sum = masked_load(fn, t, place, old)
        for row, factor in zip(self.rows, self.factors):
            address = fn.gep(row, j, t.type)
            x = masked_load(fn, t, address, mask) if mask else load(fn, t, address, 0)
            sum = multiply_add(fn, t, factor, x, sum)
        if mask:
            masked_store(fn, t, sum, place, mask)
        else:
            fn.store(sum, place, align=t.size)


def _function(
    module: Module, name: str, parent: Function, call: Call, of: Product
) -> tuple[Function, Call, Product]:
    params = [("ptr", "env"), ("i64", "lo"), ("i64", "hi")]
    fn = module.function(name, "void", params, internal=True, attributes=ATTRIBUTES, parent=parent)
    return fn, Call(*map(fn.use, call)), Product(*map(fn.use, of))


def _finish(fn: Function, call: Call, of: Product, lo: Value, hi: Value) -> None:
    i0, i1 = fn.select(of.column, lo, 0), fn.select(of.column, hi, of.vectors)
    j0, j1 = fn.select(of.column, 0, lo), fn.select(of.column, 1, hi)
    finish(fn, call, i0, i1, j0, j1)
