"""Sorting values along an axis.

Values are sorted by NumPy's own function, which uses vector instructions; those of 8 bits, and integers that are near each other, are
counted unless they are few. A long row is
sorted in two halves by two threads, which then are merged. Floats of 16 bits are sorted as integers in the same order,
which is faster. Whether a sort of values is stable cannot be seen, but for zeros of both signs and NaNs, whose order
is open. In long rows they are put in order too, so that the number of threads cannot be seen either.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsl.codegen.elementwise.casts import is_half
from dsl.codegen.library.call import Call, around, bytes_of, constant_of
from dsl.codegen.library.foreign import sort_symbol
from dsl.codegen.library.keys import from_order, key_type, load_key, sort_key, to_order
from dsl.codegen.library.lanes import copy_bytes, join_lanes, part_lanes
from dsl.codegen.library.merging import emit_merge
from dsl.codegen.library.routines import (
    at,
    call_routine,
    inner_function,
    parallel,
    per_thread,
    routine,
)
from dsl.codegen.library.vectors import lanes, vector
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.types import BY_NAME, dtype_name

__all__ = ["LOWERINGS", "ignore", "is_long", "sort_space"]

_GRAIN = 1 << 12
_COUNTED = 64  # rows of bytes from here on are counted
_SPAN = 4096  # integers that are no farther apart are counted, of rows that are no shorter
_LONG = 1 << 17  # rows from here on are worth two threads
NULL, FALSE = Value("null", "ptr"), Value("false", "i1")


def _sort(call: Call) -> None:
    fn, attrs, x = call.fn, call.node.attrs, call.contiguous(0)
    outer, n, inner = around(fn, x.dims, attrs["axis"])
    y, rows = call.output(), fn.mul(outer, inner)
    size = bytes_of(fn, fn.mul(rows, n), x.dtype)
    alone = constant_of(inner) == 1
    lanes = y.pointer if alone else call.scratch(size)
    if alone:
        copy_bytes(fn, lanes, x.pointer, size)
    else:
        part_lanes(call, x.dtype, x.pointer, lanes, outer, n, inner)
    call_routine(fn, "sort", x.dtype, lanes, rows, n, sort_space(call, x.dtype, rows, n))
    if attrs.get("descending"):
        call_routine(fn, "reverse", x.dtype, lanes, rows, n)
    if not alone:
        join_lanes(call, x.dtype, lanes, y.pointer, outer, n, inner)


LOWERINGS = {"sort": _sort}


def sort_space(call: Call, dtype: np.dtype, rows: Operand, n: Operand) -> Value:
    """Return memory for a copy of a single long row; of no size otherwise."""
    fn = call.fn
    size = constant_of(n)
    if size is not None and size < _LONG:
        return NULL
    return call.scratch(fn.select(is_long(fn, rows, n), bytes_of(fn, n, dtype), 0))


def is_long(f: Function, rows: Operand, n: Operand) -> Value:
    """Return whether there is but one row, which is worth two threads."""
    return f.both(f.compare("sge", n, _LONG), f.compare("eq", rows, 1))


@routine("sort")
def _build_sort(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`sort(x, rows, n, space)`, in place; `space` has room for a single long row."""
    params = [("ptr", "x"), ("i64", "rows"), ("i64", "n"), ("ptr", "space")]
    f = module.function(symbol, "void", params)
    if is_half(dtype):
        _sort_as_integers(f, dtype)
    else:
        _sort_rows(f, dtype)
    f.ret()


def _sort_as_integers(f: Function, dtype: np.dtype) -> None:
    x, rows, n, space = f.params
    count = f.mul(rows, n)
    for emit in (to_order, from_order):
        with parallel(f, count, 1 << 15) as (part, lo, hi):
            _replace(part, dtype, emit, x, lo, hi)
        if emit is to_order:
            call_routine(f, "sort", BY_NAME["i16"], x, rows, n, space)


def _replace(
    f: Function, dtype: np.dtype, emit: Callable[..., Value], x: Value, lo: Value, hi: Value
) -> None:
    """Replace the bits of elements lo to hi by what `emit` makes of them."""
    word = key_type(dtype)
    wide = vector(word)
    middle = f.binary("add", lo, f.binary("and", f.binary("sub", hi, lo), -lanes(wide)))
    for type, start, stop, step in ((wide, lo, middle, lanes(wide)), (word, middle, hi, 1)):
        with f.loop(start, stop, step) as i:
            place = at(f, dtype, x, i)
            found = emit(f, dtype, f.load(type, place, align=dtype.itemsize))
            f.store(found, place, align=dtype.itemsize)


def _sort_rows(f: Function, dtype: np.dtype) -> None:
    x, rows, n, space = f.params
    sort_row = _sort_row(f.module, dtype)
    if dtype.kind in "iuf" and dtype.itemsize > 1:
        with f.if_(is_long(f, rows, n)):
            zeros = _count_negative_zeros(f, dtype, x, n) if dtype.kind == "f" else None
            f.if_else(
                f.compare("sgt", f.call("i64", "dsl_threads"), 1),
                lambda: _sort_halves(f, sort_row, dtype, x, n, space),
                lambda: ignore(f.call("void", sort_row, x, n)),
            )
            if zeros is not None:
                _settle(f, dtype, x, n, zeros)
            f.ret()
    with parallel(f, rows, per_thread(f, _GRAIN, n)) as (part, lo, hi), part.loop(lo, hi) as row:
        part.call("void", sort_row, at(part, dtype, x, part.mul(row, n)), n)


def ignore(result: Value) -> None:
    """Take no notice of a result."""


def _sort_halves(
    f: Function, sort_row: str, dtype: np.dtype, x: Value, n: Value, space: Value
) -> None:
    half = f.binary("sdiv", n, 2)
    rest = f.binary("sub", n, half)
    with parallel(f, 2, 1) as (part, lo, hi), part.loop(lo, hi) as index:
        start = part.binary("mul", index, half)
        size = part.select(part.compare("eq", index, 0), half, rest)
        own = at(part, dtype, space, start)
        copy_bytes(part, own, at(part, dtype, x, start), bytes_of(part, size, dtype))
        part.call("void", sort_row, own, size)
    emit_merge(f, dtype, space, half, at(f, dtype, space, half), rest, x)


def _sort_row(module: Module, dtype: np.dtype) -> str:
    f = inner_function(module, "row", "void", [("ptr", "x"), ("i64", "n")])
    x, n = f.params
    if dtype.itemsize == 1:
        with f.if_(f.compare("sge", n, _COUNTED)):
            _count_and_fill(f, dtype, x, n)
            f.ret()
    if dtype.kind in "iu" and dtype.itemsize > 1:
        with f.if_(f.compare("sge", n, _SPAN)):
            _count_near(f, dtype, x, n)
    f.call("i32", sort_symbol(dtype_name(dtype)), x, n, NULL)
    f.ret()
    return f.name


def _count_and_fill(f: Function, dtype: np.dtype, x: Value, n: Value) -> None:
    counts = f.alloca(256 * 8)
    f.call("void", "llvm.memset.p0.i64", counts, Value("0", "i8"), Value("2048", "i64"), FALSE)
    with f.loop(0, n) as i:
        key = f.convert("sext", load_key(f, dtype, f.gep(x, i)), "i64")
        place = f.gep(counts, f.add(key, 128), "i64")
        f.store(f.binary("add", f.load("i64", place), 1), place)
    start = f.variable("i64", 0)
    with f.loop(0, 256) as k:
        count = f.load("i64", f.gep(counts, k, "i64"))
        value = f.convert("trunc", f.binary("xor", k, 0 if dtype.kind == "u" else 128), "i8")
        f.call("void", "llvm.memset.p0.i64", f.gep(x, start.get()), value, count, FALSE)
        start.set(f.add(start.get(), count))


def _count_near(f: Function, dtype: np.dtype, x: Value, n: Value) -> None:
    """Sort by counting, and return, if all integers of a row are near each other."""
    word = key_type(dtype)
    first = load_key(f, dtype, x)
    low, high = f.variable(word, first), f.variable(word, first)
    with f.loop(1, n) as i:
        key = load_key(f, dtype, at(f, dtype, x, i))
        low.set(f.select(f.compare("slt", key, low.get()), key, low.get()))
        high.set(f.select(f.compare("sgt", key, high.get()), key, high.get()))
    base = low.get()
    span = f.binary("sub", high.get(), base)
    with f.if_(f.compare("ult", span, f.as_value(_SPAN, word))):
        counts, size = f.alloca(_SPAN * 8), Value(str(_SPAN * 8), "i64")
        f.call("void", "llvm.memset.p0.i64", counts, Value("0", "i8"), size, FALSE)
        with f.loop(0, n) as i:
            key = f.binary("sub", load_key(f, dtype, at(f, dtype, x, i)), base)
            place = f.gep(counts, _as_count(f, key), "i64")
            f.store(f.binary("add", f.load("i64", place), 1), place)
        start = f.variable("i64", 0)
        with f.loop(0, f.add(_as_count(f, span), 1)) as k:
            end = f.add(start.get(), f.load("i64", f.gep(counts, k, "i64")))
            near = k if word == "i64" else f.convert("trunc", k, word)
            value = sort_key(f, dtype, f.binary("add", base, near))  # its own inverse of integers
            with f.loop(start.get(), end) as i:
                f.store(value, at(f, dtype, x, i))
            start.set(end)
        f.ret()


def _as_count(f: Function, key: Value) -> Value:
    return key if key.type == "i64" else f.convert("zext", key, "i64")


# -- what order leaves open ---------------------------------------------------------------------------------------


def _count_negative_zeros(f: Function, dtype: np.dtype, x: Value, n: Value) -> Value:
    """Count before sorting: NumPy's sort by vectors may make 0.0 of -0.0 and the other way round."""
    word, low = key_type(dtype), -(2 ** (8 * dtype.itemsize - 1))
    count = f.variable("i64", 0)
    with f.loop(0, n) as i:
        minus = f.compare("eq", f.load(word, at(f, dtype, x, i)), low)
        count.set(f.add(count.get(), f.convert("zext", minus, "i64")))
    return count.get()


def _settle(f: Function, dtype: np.dtype, x: Value, n: Value, negative: Value) -> None:
    """Put equal floats with different bits in order, so many -0.0 before the 0.0 and NaNs by their bits."""
    bound = _bound_function(f.module, dtype)
    word, low = key_type(dtype), -(2 ** (8 * dtype.itemsize - 1))
    zeros, positive, nans = (
        f.call("i64", bound, x, n, Value(str(key), word)) for key in (0, 1, ~low)
    )
    middle = f.binary("add", zeros, negative)
    with f.loop(zeros, positive) as i:
        minus = f.compare("slt", i, middle)
        f.store(f.select(minus, low, f.as_value(0, word)), at(f, dtype, x, i))
    with f.if_(f.compare("slt", nans, n)):
        rest = f.binary("sub", n, nans)
        f.call("i32", sort_symbol(word), at(f, dtype, x, nans), rest, NULL)


def _bound_function(module: Module, dtype: np.dtype) -> str:
    """Define `bound(x, n, key)`: how many elements of a sorted row have smaller keys."""
    word = key_type(dtype)
    f = inner_function(module, "bound", "i64", [("ptr", "x"), ("i64", "n"), (word, "key")])
    x, n, key = f.params
    low, high = f.variable("i64", 0), f.variable("i64", n)
    with f.while_(lambda: f.compare("slt", low.get(), high.get())):
        middle = f.binary("lshr", f.binary("add", low.get(), high.get()), 1)
        less = f.compare("slt", load_key(f, dtype, at(f, dtype, x, middle)), key)
        high.set(f.select(less, high.get(), middle))
        low.set(f.select(less, f.binary("add", middle, 1), low.get()))
    f.ret(low.get())
    return f.name


# -- the other way round --------------------------------------------------------------------------------------------


@routine("reverse")
def _build_reverse(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`reverse(x, rows, n)`, in place."""
    f = module.function(symbol, "void", [("ptr", "x"), ("i64", "rows"), ("i64", "n")])
    x, rows, n = f.params
    word = f"i{8 * dtype.itemsize}"
    half = f.binary("sdiv", n, 2)
    with f.loop(0, rows) as row:
        start = at(f, dtype, x, f.mul(row, n))
        end = at(f, dtype, start, f.sub(n, 1))
        with f.loop(0, half) as i:
            left, right = at(f, dtype, start, i), at(f, dtype, end, f.sub(0, i))
            a, b = f.load(word, left, align=1), f.load(word, right, align=1)
            f.store(b, left, align=1)
            f.store(a, right, align=1)
    f.ret()
