"""Determinants of stacks of matrices of two and three rows, by elimination with pivots as in LAPACK, many matrices at a time.

A call of LAPACK for each matrix takes much longer than the elimination. Rows change places by selects, so that matrices side
by side go through the same steps. As in NumPy, single precision is computed in double precision and rounded at the end.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import load_scalar, register_type
from dsl.codegen.library.call import Call, array, product
from dsl.codegen.library.routines import at, call_routine, parallel, routine
from dsl.codegen.library.vectors import constant
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["emit_determinants", "has_few_rows"]

_GRAIN = 1 << 13  # matrices
_SIZES = (2, 3)
Rows = list[list[Value]]


def has_few_rows(call: Call) -> bool:
    """Tell whether the matrices are real, and as small as those that have a routine here."""
    x = array(call, 0)
    return x.dtype.kind == "f" and any(list(x.dims[-2:]) == [size, size] for size in _SIZES)


def emit_determinants(call: Call) -> None:
    fn, x = call.fn, call.contiguous(0)
    stacked = len(x.dims) > 2
    out = call.output().pointer if stacked else fn.alloca(x.dtype.itemsize)
    call_routine(fn, f"det{x.dims[-1]}", x.dtype, x.pointer, out, product(fn, x.dims[:-2]))
    if not stacked:
        call.set_output(0, load_scalar(fn, x.dtype, out))


def _build(module: Module, symbol: str, dtype: np.dtype, size: int) -> None:
    """`det(x, y, count)`: matrices in C order."""
    params = [("ptr noalias", "x"), ("ptr noalias", "y"), ("i64", "count")]
    f = module.function(symbol, "void", params)
    x, y, count = f.params
    with parallel(f, count, _GRAIN) as (part, lo, hi), part.loop(lo, hi) as index:
        first = at(part, dtype, x, part.mul(index, size * size))
        rows = [[_load(part, dtype, first, i * size + j) for j in range(size)] for i in range(size)]
        found = _determinant(part, rows)
        _store(part, dtype, found, at(part, dtype, y, index))
    f.ret()


@routine("det2", vectorize=True)
def _build_two(module: Module, symbol: str, dtype: np.dtype) -> None:
    _build(module, symbol, dtype, 2)


@routine("det3", vectorize=True)
def _build_three(module: Module, symbol: str, dtype: np.dtype) -> None:
    _build(module, symbol, dtype, 3)


def _load(fn: Function, dtype: np.dtype, base: Value, place: Operand) -> Value:
    kind = register_type(dtype)
    found = fn.load(kind, at(fn, dtype, base, place))
    return found if kind == "double" else fn.convert("fpext", found, "double")


def _store(fn: Function, dtype: np.dtype, value: Value, place: Value) -> None:
    kind = register_type(dtype)
    fn.store(value if kind == "double" else fn.convert("fptrunc", value, kind), place)


def _determinant(fn: Function, rows: Rows) -> Value:
    """Return the product of the pivots, negative if rows were exchanged an odd number of times; zero if one is zero."""
    one, zero = constant(1.0, "double"), constant(0.0, "double")
    sign, pivots = one, []
    while rows:
        for k in range(1, len(rows)):
            swap = fn.fcompare("ogt", _size(fn, rows[k][0]), _size(fn, rows[0][0]))
            rows[0], rows[k] = _exchanged(fn, swap, rows[0], rows[k])
            sign = fn.select(swap, fn.fneg(sign), sign)
        (pivot, *right), *below = rows
        pivots.append(pivot)
        rows = [_reduced(fn, row, pivot, right) for row in below]
    found = fn.fmul(sign, _product(fn, pivots))
    for pivot in pivots:
        found = fn.select(fn.fcompare("oeq", pivot, zero), zero, found)
    return found


def _size(fn: Function, value: Value) -> Value:
    return fn.intrinsic("llvm.fabs", value)


def _exchanged(
    fn: Function, swap: Value, a: list[Value], b: list[Value]
) -> tuple[list[Value], list[Value]]:
    first = [fn.select(swap, y, x) for x, y in zip(a, b)]
    return first, [fn.select(swap, x, y) for x, y in zip(a, b)]


def _reduced(fn: Function, row: list[Value], pivot: Value, right: list[Value]) -> list[Value]:
    """Return a row less the multiple of the pivot's row that makes its first element zero."""
    factor = fn.fneg(fn.fdiv(row[0], pivot))
    return [fn.fma(factor, above, value) for above, value in zip(right, row[1:])]


def _product(fn: Function, factors: list[Value]) -> Value:
    """Return the product of two or three factors, the largest times the smallest first: no step leaves the range needlessly."""
    if len(factors) == 2:
        return fn.fmul(factors[0], factors[1])
    for i, k in ((0, 1), (0, 2), (1, 2)):
        swap = fn.fcompare("ogt", _size(fn, factors[k]), _size(fn, factors[i]))
        a, b = factors[i], factors[k]
        factors = [*factors]
        factors[i], factors[k] = fn.select(swap, b, a), fn.select(swap, a, b)
    return fn.fmul(fn.fmul(factors[0], factors[2]), factors[1])
