"""The indices that sort values along an axis; the sort is stable.

Indices are sorted as values too: a word has a key (less the smallest) in its upper bits and the index in its lower
ones, so words are all different, in order of key, then index: the sort is stable. A key of 64 bits may be cut short by
the index. Then runs of words with the same upper bits are put right afterwards: short runs by insertion, long ones,
which are rare unless they are in order already, by NumPy's stable argsort.
Long rows of bytes, and of integers that are near each other, are counted instead.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.library.call import Call, around, bytes_of, constant_of
from dsl.codegen.library.foreign import argsort_symbol, sort_symbol
from dsl.codegen.library.keys import load_key
from dsl.codegen.library.lanes import join_lanes, part_lanes
from dsl.codegen.library.routines import (
    at,
    call_routine,
    inner_function,
    parallel,
    per_thread,
    routine,
)
from dsl.codegen.library.sorting import ignore, is_long, sort_space
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.types import BY_NAME, I64, dtype_name

__all__ = ["LOWERINGS", "emit_argsort"]

_GRAIN = 1 << 12
_COUNTED = 96  # rows of bytes from here on are counted
_SPAN = 4096  # integers that are no farther apart are counted, of rows that are no shorter
_SHORT = 24  # runs up to this long are sorted by insertion
U64 = BY_NAME["u64"]
NULL, FALSE, TRUE = Value("null", "ptr"), Value("false", "i1"), Value("true", "i1")


def _argsort(call: Call) -> None:
    fn, x = call.fn, call.contiguous(0)
    outer, n, inner = around(fn, x.dims, call.node.attrs["axis"])
    y, rows = call.output(), fn.mul(outer, inner)
    if constant_of(inner) == 1:
        emit_argsort(call, x.dtype, x.pointer, y.pointer, rows, n)
        return
    count = fn.mul(rows, n)
    lanes, order = call.scratch(bytes_of(fn, count, x.dtype)), call.scratch(fn.mul(count, 8))
    part_lanes(call, x.dtype, x.pointer, lanes, outer, n, inner)
    emit_argsort(call, x.dtype, lanes, order, rows, n)
    join_lanes(call, I64, order, y.pointer, outer, n, inner)


LOWERINGS = {"argsort": _argsort}


def emit_argsort(
    call: Call, dtype: np.dtype, x: Value, y: Value, rows: Operand, n: Operand
) -> None:
    """Emit a call that stores the indices that sort each row of x."""
    call_routine(call.fn, "argsort", dtype, x, y, rows, n, sort_space(call, I64, rows, n))


@routine("argsort")
def _build_argsort(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`argsort(x, y, rows, n, space)`; `space` has room for the words of a single long row."""
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "rows"), ("i64", "n"), ("ptr", "space")]
    f = module.function(symbol, "void", params)
    x, y, rows, n, space = f.params
    row_function = _argsort_row(module, dtype)
    with f.if_(is_long(f, rows, n)):
        f.call("void", row_function, x, y, n, space)
        f.ret()
    with parallel(f, rows, per_thread(f, _GRAIN, n)) as (part, lo, hi), part.loop(lo, hi) as row:
        start = part.mul(row, n)
        part.call("void", row_function, at(part, dtype, x, start), at(part, I64, y, start), n, NULL)
    f.ret()


def _argsort_row(module: Module, dtype: np.dtype) -> str:
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "n"), ("ptr", "space")]
    f = inner_function(module, "row", "void", params)
    x, y, n, space = f.params
    with f.if_(f.compare("slt", n, 2)):
        with f.if_(f.compare("eq", n, 1)):
            f.store(f.as_value(0, "i64"), y)
        f.ret()
    if dtype.kind == "c":
        with f.loop(0, n) as i:
            f.store(i, f.gep(y, i, "i64"))
        f.call("i32", argsort_symbol(dtype_name(dtype)), x, y, n, NULL)
    else:
        if dtype.itemsize == 1:
            with f.if_(f.compare("sge", n, _COUNTED)):
                _count_and_place(f, dtype, x, y, n, f.as_value(-128, "i64"), 256)
                f.ret()
        _sort_words(f, dtype, x, y, n, space)
    f.ret()
    return f.name


def _count_and_place(
    f: Function, dtype: np.dtype, x: Value, y: Value, n: Value, low: Value, span: int
) -> None:
    """Count the elements of each of some values, which tells where the first of them goes."""
    places, size = f.alloca(span * 8), Value(str(span * 8), "i64")
    f.call("void", "llvm.memset.p0.i64", places, Value("0", "i8"), size, FALSE)

    def place_of(i: Value) -> Value:
        key = f.convert("sext", load_key(f, dtype, at(f, dtype, x, i)), "i64")
        return f.gep(places, f.binary("sub", key, low), "i64")

    with f.loop(0, n) as i:
        place = place_of(i)
        f.store(f.binary("add", f.load("i64", place), 1), place)
    start = f.variable("i64", 0)
    with f.loop(0, span) as k:
        place, first = f.gep(places, k, "i64"), start.get()
        start.set(f.binary("add", first, f.load("i64", place)))
        f.store(first, place)
    with f.loop(0, n) as i:
        place = place_of(i)
        target = f.load("i64", place)
        f.store(f.binary("add", target, 1), place)
        f.store(i, f.gep(y, target, "i64"))


def _sort_words(f: Function, dtype: np.dtype, x: Value, y: Value, n: Value, space: Value) -> None:
    low, span = _range(f, dtype, x, n)
    if dtype.kind in "iu":
        near = f.both(f.compare("ult", span, _SPAN), f.compare("sge", n, _SPAN))
        with f.if_(near):
            _count_and_place(f, dtype, x, y, n, low, _SPAN)
            f.ret()
    index_bits = _bit_length(f, f.binary("sub", n, 1))
    room = f.binary("sub", 64, index_bits)
    cut = f.as_value(f.maximum(f.binary("sub", _bit_length(f, span), room), 0), "i64")
    mask = f.binary("sub", f.binary("shl", 1, index_bits), 1)
    with f.loop(0, n) as i:
        key = f.convert("sext", load_key(f, dtype, at(f, dtype, x, i)), "i64")
        upper = f.binary("lshr", f.binary("sub", key, low), cut)
        f.store(f.binary("or", f.binary("shl", upper, index_bits), i), f.gep(y, i, "i64"))
    f.if_else(
        f.compare("eq", space, NULL),
        lambda: ignore(f.call("i32", sort_symbol("u64"), y, n, NULL)),
        lambda: ignore(call_routine(f, "sort", U64, y, 1, n, space)),
    )
    if dtype.itemsize >= 4:  # shorter keys always have room
        with f.if_(f.compare("ne", cut, 0)):
            _mend(f, dtype, x, y, n, index_bits, mask)
            f.ret()
    with f.loop(0, n) as i:
        place = f.gep(y, i, "i64")
        f.store(f.binary("and", f.load("i64", place), mask), place)


def _bit_length(f: Function, x: Value) -> Value:
    return f.binary("sub", 64, f.call("i64", "llvm.ctlz.i64", x, FALSE))


def _range(f: Function, dtype: np.dtype, x: Value, n: Value) -> tuple[Value, Value]:
    """Return the smallest key and how far the largest is from it, unsigned."""
    first = f.convert("sext", load_key(f, dtype, x), "i64")
    low, high = f.variable("i64", first), f.variable("i64", first)
    with f.loop(1, n) as i:
        key = f.convert("sext", load_key(f, dtype, at(f, dtype, x, i)), "i64")
        low.set(f.call("i64", "llvm.smin.i64", low.get(), key))
        high.set(f.call("i64", "llvm.smax.i64", high.get(), key))
    return low.get(), f.binary("sub", high.get(), low.get())


def _mend(
    f: Function, dtype: np.dtype, x: Value, y: Value, n: Value, index_bits: Value, mask: Value
) -> None:
    """Take the indices out of sorted words, and order each run of words whose keys were cut to the same."""
    start = f.variable("i64", 0)
    before = f.variable("i64", f.binary("lshr", f.load("i64", y), index_bits))
    f.store(f.binary("and", f.load("i64", y), mask), y)
    mend_run = _mend_function(f.module, dtype)
    with f.loop(1, n) as i:
        place = f.gep(y, i, "i64")
        word = f.load("i64", place)
        upper = f.binary("lshr", word, index_bits)
        f.store(f.binary("and", word, mask), place)
        with f.if_(f.compare("ne", upper, before.get())):
            size = f.binary("sub", i, start.get())
            with f.if_(f.compare("sgt", size, 1)):
                f.call("void", mend_run, x, f.gep(y, start.get(), "i64"), size)
            start.set(i)
            before.set(upper)
    f.call("void", mend_run, x, f.gep(y, start.get(), "i64"), f.binary("sub", n, start.get()))


def _mend_function(module: Module, dtype: np.dtype) -> str:
    """Define `mend(x, y, n)`: a stable sort of rising indices by the elements they mean, often in order already."""
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "n")]
    f = inner_function(module, "mend", "void", params)
    x, y, n = f.params
    with f.if_(f.compare("sgt", n, _SHORT)):
        f.call("i32", argsort_symbol(dtype_name(dtype)), x, y, n, NULL)
        f.ret()
    with f.loop(1, n) as i:
        index = f.load("i64", f.gep(y, i, "i64"))
        key = load_key(f, dtype, at(f, dtype, x, index))
        hole, going = f.variable("i64", i), f.variable("i1", TRUE)
        with f.while_(lambda: f.both(going.get(), f.compare("sgt", hole.get(), 0))):
            before = f.load("i64", f.gep(y, f.sub(hole.get(), 1), "i64"))
            larger = f.compare("sgt", load_key(f, dtype, at(f, dtype, x, before)), key)
            going.set(larger)
            with f.if_(larger):
                f.store(before, f.gep(y, hole.get(), "i64"))
                hole.set(f.sub(hole.get(), 1))
        f.store(index, f.gep(y, hole.get(), "i64"))
    f.ret()
    return f.name
