"""The indices of elements that are not zero.

Elements are tested by 64 at a time, pieces of the array by all threads. Counting adds up the bits of the tests; a second pass writes
the positions of set bits, those of each piece where the counts of the pieces before it end. Positions in an array of several axes
are then taken apart into an index for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dsl.codegen.arrays import load_scalar, memory_type
from dsl.codegen.elementwise.casts import truth
from dsl.codegen.library.call import Call, as_i64, product
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, pieces, routine
from dsl.codegen.library.vectors import (
    BYTES,
    compare,
    constant,
    int_type,
    lanes,
    mask_bits,
    mask_type,
    splat,
    vector,
)
from dsl.codegen.llvm import Function, Module, Value, Variable
from dsl.codegen.vector_unit import register_bytes
from dsl.ir.types import is_float

__all__ = ["LOWERINGS"]

TRUE = Value("true", "i1")
_PIECES = 64  # that an array is cut into, at most
_PIECE = 1 << 14  # elements of one, at least
_GRAIN = 1 << 16  # elements that are worth a thread
_FEW = 6  # bits of a word that are written one by one


def _nonzero(call: Call) -> None:
    fn, x = call.fn, call.contiguous(0)
    size, starts = product(fn, x.dims), fn.alloca(8 * (_PIECES + 1))
    count = call_routine(fn, "count_nonzero", x.dtype, x.pointer, size, starts, result="i64")
    outputs = [call.output(k, [count]).pointer for k in range(len(x.dims))]
    call_routine(fn, "flat_nonzero", x.dtype, x.pointer, size, starts, outputs[-1])
    if len(outputs) > 1:
        _take_apart(fn, [as_i64(fn, dim) for dim in x.dims], outputs, count)


def _take_apart(
    fn: Function, dims: Sequence[Value], outputs: Sequence[Value], count: Value
) -> None:
    """Make an index for each axis of positions, which are where those of the last axis will be."""
    with parallel(fn, count, _GRAIN) as (part, lo, hi), part.loop(lo, hi) as i:
        place = part.load("i64", part.gep(outputs[-1], i, "i64"))
        for dim, output in zip(dims[:0:-1], outputs[:0:-1]):
            above = part.binary("udiv", place, dim)
            own = part.binary("sub", place, part.mul(above, dim))
            part.store(own, part.gep(output, i, "i64"))
            place = above
        part.store(place, part.gep(outputs[0], i, "i64"))


LOWERINGS = {"nonzero": _nonzero}


def _tests(f: Function, dtype: np.dtype, x: Value, i: Value) -> Value:
    """Return whether elements i to i + 63 are other than zero, as 64 bits."""
    if dtype.kind == "c":
        return _tests_of_pairs(f, dtype, x, i)
    wide = vector(memory_type(dtype), 64)
    found = f.load(wide, at(f, dtype, x, i), align=dtype.itemsize)
    kind = int_type(wide)
    word = f.convert("bitcast", found, kind)
    if is_float(dtype):  # without the sign: -0.0 is zero
        word = f.binary("shl", word, constant(1, kind))
    return mask_bits(f, compare(f, "ne", word, constant(0, kind)))


def _tests_of_pairs(f: Function, dtype: np.dtype, x: Value, i: Value) -> Value:
    bits = f.variable("i64", 0)
    with f.loop(0, 64) as k:
        set_ = truth(f, dtype, load_scalar(f, dtype, at(f, dtype, x, f.add(i, k))))
        bit = f.binary("shl", f.convert("zext", set_, "i64"), k)
        bits.set(f.binary("or", bits.get(), bit))
    return bits.get()


def _pieces(f: Function, n: Value) -> tuple[Value, Value]:
    """Return the length of a piece, a multiple of 64, and the number of pieces."""
    shared, _ = pieces(f, n, _PIECES)
    length = f.as_value(f.maximum(shared, _PIECE), "i64")
    return length, f.binary("sdiv", f.add(f.add(n, length), -1), length)


@contextmanager
def _each_piece(f: Function, n: Value) -> Iterator[tuple[Function, Value, Value, Value]]:
    """Emit what is done with each piece: yield its number, its first element and the end of its elements."""
    length, count = _pieces(f, n)
    with (
        parallel(f, count, per_thread(f, _GRAIN, length)) as (part, lo, hi),
        part.loop(lo, hi) as piece,
    ):
        start = part.binary("mul", piece, length)
        yield part, piece, start, part.as_value(part.minimum(part.add(start, length), n), "i64")


@routine("count_nonzero")
def _build_count(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`count(x, n, starts)` returns how many there are, and stores how many are before each piece."""
    f = module.function(symbol, "i64", [("ptr", "x"), ("i64", "n"), ("ptr", "starts")])
    x, n, starts = f.params
    with _each_piece(f, n) as (part, piece, start, stop):
        part.store(_count(part, dtype, x, start, stop), part.gep(starts, piece, "i64"))
    f.ret(_add_up(f, starts, _pieces(f, n)[1]))


def _count(f: Function, dtype: np.dtype, x: Value, start: Value, stop: Value) -> Value:
    total = f.variable("i64", 0)
    whole = f.add(start, f.binary("and", f.sub(stop, start), -64))
    with f.loop(start, whole, 64) as i:
        count = f.call("i64", "llvm.ctpop.i64", _tests(f, dtype, x, i))
        total.set(f.add(total.get(), count))
    with f.loop(whole, stop) as i:
        set_ = truth(f, dtype, load_scalar(f, dtype, at(f, dtype, x, i)))
        total.set(f.add(total.get(), f.convert("zext", set_, "i64")))
    return total.get()


def _add_up(f: Function, starts: Value, count: Value) -> Value:
    """Make numbers of elements the sums of those before; return the sum of all, which is stored behind them."""
    total = f.variable("i64", 0)
    with f.loop(0, count) as piece:
        place = f.gep(starts, piece, "i64")
        own = f.load("i64", place)
        f.store(total.get(), place)
        total.set(f.add(total.get(), own))
    f.store(total.get(), f.gep(starts, count, "i64"))
    return total.get()


@routine("flat_nonzero")
def _build_flat(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`flat(x, n, starts, y)` writes the positions."""
    params = [("ptr", "x"), ("i64", "n"), ("ptr", "starts"), ("ptr", "y")]
    f = module.function(symbol, "void", params)
    x, n, starts, y = f.params
    with _each_piece(f, n) as (part, piece, start, stop):
        found = part.variable("i64", part.load("i64", part.gep(starts, piece, "i64")))
        end = part.load("i64", part.gep(starts, part.add(piece, 1), "i64"))
        whole = part.add(start, part.binary("and", part.sub(stop, start), -64))
        with part.loop(start, whole, 64) as i:
            _write_word(part, _tests(part, dtype, x, i), i, y, found, end)
        with part.loop(whole, stop) as i:
            set_ = truth(part, dtype, load_scalar(part, dtype, at(part, dtype, x, i)))
            with part.if_(set_):
                part.store(i, part.gep(y, found.get(), "i64"))
                found.set(part.add(found.get(), 1))
    f.ret()


def _write_word(
    f: Function, word: Value, first: Value, y: Value, found: Variable, end: Value
) -> None:
    """Write where the bits of a word are set: one by one if they are few, or if a vector might reach beyond the piece's share."""
    if register_bytes() < BYTES:
        _write_bits(f, word, first, y, found)
        return
    many = f.compare("ugt", f.call("i64", "llvm.ctpop.i64", word), _FEW)
    fits = f.compare("sle", f.add(found.get(), 64), end)
    f.if_else(
        f.both(many, fits),
        lambda: _write_vectors(f, word, first, y, found),
        lambda: _write_bits(f, word, first, y, found),
    )


def _write_bits(f: Function, word: Value, first: Value, y: Value, found: Variable) -> None:
    bits = f.variable("i64", word)
    with f.while_(lambda: f.compare("ne", bits.get(), 0)):
        rest = bits.get()
        place = f.call("i64", "llvm.cttz.i64", rest, TRUE)
        f.store(f.binary("add", first, place), f.gep(y, found.get(), "i64"))
        found.set(f.add(found.get(), 1))
        bits.set(f.binary("and", rest, f.binary("sub", rest, 1)))


def _write_vectors(f: Function, word: Value, first: Value, y: Value, found: Variable) -> None:
    """Write eight places at a time, those that count in front: the next ones overwrite the others."""
    wide = vector("i64")
    numbers = Value("<" + ", ".join(f"i64 {k}" for k in range(lanes(wide))) + ">", wide)
    for k in range(0, 64, lanes(wide)):
        byte = f.convert("trunc", f.binary("lshr", word, k), "i8")
        mask = f.convert("bitcast", byte, mask_type(wide))
        places = f.binary("add", splat(f, f.binary("add", first, k), wide), numbers)
        unset = Value("zeroinitializer", wide)
        front = f.call(wide, "llvm.experimental.vector.compress.v8i64", places, mask, unset)
        f.store(front, f.gep(y, found.get(), "i64"), align=8)
        count = f.call("i8", "llvm.ctpop.i8", byte)
        found.set(f.add(found.get(), f.convert("zext", count, "i64")))
