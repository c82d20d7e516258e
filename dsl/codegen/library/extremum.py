"""The index of the first largest or smallest element along an axis.

Elements are compared by their keys (see `keys`), NaNs being beyond all others. A row is read by blocks: the extreme key
of a block first, without indices, then only in the winning block its place. Long rows are split among threads; ties go
to the earlier piece. Complex numbers are compared one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dsl.codegen.arrays import load_scalar, memory_type, register_type
from dsl.codegen.library.call import Call, around, constant_of
from dsl.codegen.library.keys import key_type, load_key, sort_key
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
    compare,
    constant,
    int_type,
    intrinsic,
    lanes,
    mask_bits,
    mask_type,
    reduce,
    select,
    splat,
    vector,
)
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable

__all__ = ["LOWERINGS"]

_BLOCK = 1024  # bytes whose extremes are found before looking at the best so far
_GRAIN = 1 << 15
_COLUMNS = 512
TRUE, FALSE = Value("true", "i1"), Value("false", "i1")


def _lower(call: Call) -> None:
    fn, name = call.fn, call.node.op.name
    x = call.contiguous(0)
    outer, n, inner = around(fn, x.dims, call.node.attrs["axis"])
    if not constant_of(n):
        call.fail(fn.compare("eq", n, 0), f"value:attempt to get {name} of an empty sequence")
    rank_0 = len(x.dims) == 1
    place = fn.alloca(8) if rank_0 else call.output().pointer
    if constant_of(inner) == 1 and x.dtype.kind != "c":
        call_routine(fn, name, x.dtype, x.pointer, place, outer, n)
    else:
        call_routine(fn, f"{name}_columns", x.dtype, x.pointer, place, outer, n, inner)
    if rank_0:
        call.set_output(0, fn.load("i64", place))


LOWERINGS = dict.fromkeys(("argmax", "argmin"), _lower)


def _wins(largest: bool) -> str:
    return "sgt" if largest else "slt"


# -- along the last axis ------------------------------------------------------------------------------------------


def _build_rows(largest: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), ("i64", "rows"), ("i64", "n")])
    x, y, rows, n = f.params
    span = _span_function(module, largest, dtype)
    long = f.both(f.compare("sge", n, 4 * _GRAIN), f.compare("slt", rows, 8))

    def by_pieces() -> None:
        with f.loop(0, rows) as row:
            found = _by_pieces(f, span, largest, dtype, at(f, dtype, x, f.mul(row, n)), n)
            f.store(found, f.gep(y, row, "i64"))

    def by_rows() -> None:
        with parallel(f, rows, per_thread(f, _GRAIN, n)) as (part, lo, hi):
            best = part.alloca(8)
            with part.loop(lo, hi) as row:
                found = part.call("i64", span, at(part, dtype, x, part.mul(row, n)), n, best)
                part.store(found, part.gep(y, row, "i64"))

    f.if_else(long, by_pieces, by_rows)
    f.ret()


def _by_pieces(f: Function, span: str, largest: bool, dtype: np.dtype, x: Value, n: Value) -> Value:
    kind = key_type(dtype)
    length, count = pieces(f, n)
    keys, places = f.alloca(8 * 64), f.alloca(8 * 64)
    with parallel(f, count, 1) as (part, lo, hi), part.loop(lo, hi) as piece:
        start = part.mul(piece, length)
        size = part.as_value(part.minimum(length, part.sub(n, start)), "i64")
        best = part.gep(keys, piece, "i64")
        found = part.call("i64", span, at(part, dtype, x, start), size, best)
        part.store(part.binary("add", found, start), part.gep(places, piece, "i64"))
    best_key, where = f.variable(kind, f.load(kind, keys)), f.variable("i64", f.load("i64", places))
    with f.loop(1, count) as piece:
        key = f.load(kind, f.gep(keys, piece, "i64"))
        wins = f.compare(_wins(largest), key, best_key.get())
        best_key.set(f.select(wins, key, best_key.get()))
        place = f.load("i64", f.gep(places, piece, "i64"))
        where.set(f.select(wins, place, where.get()))
    return where.get()


def _span_function(module: Module, largest: bool, dtype: np.dtype) -> str:
    """Define `span(x, n, best)`, which returns the place of the extreme of n > 0 elements and stores its key.

    The last vector of a row may overlap the one before. Of truths, the first one that is wanted is looked for, and no further.
    """
    f = inner_function(module, "span", "i64", [("ptr", "x"), ("i64", "n"), ("ptr", "best")])
    x, n, out = f.params
    block = (Floats if _is_wide_float(dtype) else Keys)(f, largest, dtype, x)
    count = lanes(block.wide)
    best = f.variable(key_type(dtype), load_key(f, dtype, x, nan_last=largest))
    where, scan = f.variable("i64", 0), _first_truth if dtype.kind == "b" else _extreme_of

    def one_by_one() -> None:
        with f.loop(0, n) as i:
            key = load_key(f, dtype, at(f, dtype, x, i), nan_last=largest)
            wins = f.compare(_wins(largest), key, best.get())
            best.set(f.select(wins, key, best.get()))
            where.set(f.select(wins, i, where.get()))

    def by_vectors() -> None:
        where.set(scan(f, block, n, best))

    f.if_else(f.compare("sge", n, count), by_vectors, one_by_one)
    f.store(best.get(), out)
    f.ret(where.get())
    return f.name


def _extreme_of(f: Function, block: Keys, n: Value, best: Variable) -> Value:
    """Set the key of the extreme of at least one vector of elements, and return its place."""
    first, count = f.variable("i64", 0), lanes(block.wide)
    whole = f.binary("and", n, -count)

    def look(start: Value, stop: Value) -> None:
        found = block.extreme(start, stop)
        with f.if_(block.may_win(found)):
            key = block.reduced(found)
            with f.if_(f.compare(_wins(block.largest), key, best.get())):
                best.set(key)
                first.set(start)
                block.remember(found)

    size = _BLOCK // block.dtype.itemsize
    with f.loop(0, whole, size) as start:
        look(start, f.as_value(f.minimum(f.add(start, size), whole), "i64"))
    with f.if_(f.compare("ne", whole, n)):
        look(f.binary("sub", n, count), n)
    return block.locate(first.get(), n, best.get())


def _first_truth(f: Function, block: Keys, n: Value, best: Variable) -> Value:
    """The same of truths: the first one that is as wanted, or the first of all."""
    wanted, where = f.as_value(int(block.largest), best.get().type), f.variable("i64")
    whole = f.binary("and", n, -lanes(block.wide))
    where.set(block.locate(f.as_value(0, "i64"), whole, wanted))

    def hit() -> Value:
        best.set(f.load(best.get().type, f.gep(block.x, where.get())))
        return f.compare("eq", best.get(), wanted)

    with f.if_(f.invert(hit())):
        where.set(block.locate(f.binary("sub", n, lanes(block.wide)), n, wanted))
        with f.if_(f.invert(hit())):
            where.set(f.as_value(0, "i64"))
    return where.get()


def _is_wide_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" and dtype.itemsize >= 4


class Keys:
    """How blocks of a row are searched by keys."""

    def __init__(self, f: Function, largest: bool, dtype: np.dtype, x: Value) -> None:
        self.f, self.largest, self.dtype, self.x = f, largest, dtype, x
        self.wide = vector(memory_type(dtype))
        self.count = lanes(self.wide)
        self.best = self.first_best()

    def extreme(self, start: Value, stop: Value) -> Value:
        """Return the extremes, lane by lane, from start to stop, a whole number of vectors apart and at least one."""
        f, first = self.f, self.load(start)
        bests = [f.variable(first.type, first) for _ in range(4)]
        self.for_each_four(start, stop, lambda vectors: self.take(bests, vectors))
        a, b, c, d = (best.get() for best in bests)
        return self.better(self.better(a, b), self.better(c, d))

    def may_win(self, found: Value) -> Value:
        """Return whether an extreme of a block is beyond the best so far: rare after the first blocks."""
        bits = mask_bits(self.f, self.beyond(found, self.best.get()))
        return self.f.compare("ne", bits, 0)

    def for_each_four(self, start: Value, stop: Value, emit: Callable[[list[Value]], None]) -> None:
        """Emit a loop over four vectors at a time, and one over the rest."""
        f, count = self.f, self.count
        size = f.binary("and", f.binary("sub", stop, start), -4 * count)
        many = f.binary("add", start, size)
        with f.loop(start, many, 4 * count) as i:
            emit([self.load(f.add(i, k * count)) for k in range(4)])
        with f.loop(many, stop, count) as i:
            emit([self.load(i)])

    def take(self, bests: list[Variable], vectors: list[Value]) -> None:
        for best, found in zip(bests, vectors):
            best.set(self.better(best.get(), found))

    def locate(self, start: Value, stop: Value, best: Value) -> Value:
        """Return the first place with a key from start to stop, whole vectors apart; 0 if there is none."""
        f, wanted = self.f, splat(self.f, best, int_type(self.wide))
        i, found, going = f.variable("i64", start), f.variable("i64", 0), f.variable("i1", TRUE)
        with f.while_(lambda: f.both(going.get(), f.compare("slt", i.get(), stop))):
            place = at(f, self.dtype, self.x, i.get())
            key = load_key(f, self.dtype, place, self.wide, nan_last=self.largest)
            bits = mask_bits(f, compare(f, "eq", key, wanted))
            with f.if_(f.compare("ne", bits, 0)):
                first = f.call(bits.type, f"llvm.cttz.{bits.type}", bits, TRUE)
                found.set(f.add(i.get(), f.convert("zext", first, "i64")))
                going.set(FALSE)
            i.set(f.add(i.get(), self.count))
        return found.get()

    # What `Floats` does otherwise:

    def first_best(self) -> Variable:
        """Return the variable for the best so far, in every lane."""
        kind = int_type(self.wide)
        key = load_key(self.f, self.dtype, self.x, nan_last=self.largest)
        return self.f.variable(kind, splat(self.f, key, kind))

    def remember(self, found: Value) -> None:
        self.best.set(splat(self.f, self.reduced(found), self.best.type))

    def beyond(self, a: Value, b: Value) -> Value:
        return compare(self.f, _wins(self.largest), a, b)

    def load(self, i: Operand) -> Value:
        place = at(self.f, self.dtype, self.x, i)
        return load_key(self.f, self.dtype, place, self.wide, nan_last=self.largest)

    def better(self, a: Value, b: Value) -> Value:
        return intrinsic(self.f, "llvm.smax" if self.largest else "llvm.smin", a, b)

    def reduced(self, best: Value) -> Value:
        return reduce(self.f, "smax" if self.largest else "smin", best)


class Floats(Keys):
    """The same with float instructions, which pass over NaNs; those are looked for on the side."""

    def __init__(self, f: Function, largest: bool, dtype: np.dtype, x: Value) -> None:
        super().__init__(f, largest, dtype, x)
        self.nans = f.variable(mask_type(self.wide))

    def extreme(self, start: Value, stop: Value) -> Value:
        self.nans.set(Value("zeroinitializer", self.nans.type))
        return super().extreme(start, stop)

    def may_win(self, found: Value) -> Value:
        return self.f.either(super().may_win(found), self.some_nan())

    def some_nan(self) -> Value:
        return self.f.compare("ne", mask_bits(self.f, self.nans.get()), 0)

    def first_best(self) -> Variable:
        f = self.f
        found = f.load(memory_type(self.dtype), self.x, align=self.dtype.itemsize)
        return f.variable(self.wide, splat(f, found, self.wide))

    def remember(self, found: Value) -> None:
        """Nothing is beyond a NaN."""
        f, nan = self.f, constant(float("nan"), memory_type(self.dtype))
        best = f.select(self.some_nan(), nan, self.reduced_float(found))
        self.best.set(splat(f, best, self.wide))

    def load(self, i: Operand) -> Value:
        place = at(self.f, self.dtype, self.x, i)
        return self.f.load(self.wide, place, align=self.dtype.itemsize)

    def take(self, bests: list[Variable], vectors: list[Value]) -> None:
        super().take(bests, vectors)
        for a, b in zip(vectors[::2], vectors[1::2] or vectors):
            self.nans.set(self.f.either(self.nans.get(), self.compare("uno", a, b)))

    def better(self, a: Value, b: Value) -> Value:
        return select(self.f, self.beyond(b, a), b, a)

    def beyond(self, a: Value, b: Value) -> Value:
        return self.compare("ogt" if self.largest else "olt", a, b)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        mask = mask_type(a.type)
        return self.f.define(mask, f"fcmp {predicate} {a.type} {a.text}, {b.text}")

    def reduced_float(self, found: Value) -> Value:
        return reduce(self.f, "fmax" if self.largest else "fmin", found)

    def reduced(self, found: Value) -> Value:
        """Return the key: a NaN's if there is one."""
        f, low = self.f, -(2 ** (8 * self.dtype.itemsize - 1))
        key = sort_key(f, self.dtype, self.reduced_float(found), nan_last=self.largest)
        return f.select(self.some_nan(), ~low if self.largest else low, key)


# -- along other axes ---------------------------------------------------------------------------------------------


def _build_columns(largest: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    params = [("ptr", "x"), ("ptr", "y"), ("i64", "outer"), ("i64", "n"), ("i64", "inner")]
    f = module.function(symbol, "void", params)
    x, y, outer, n, inner = f.params
    if dtype.kind == "c":
        _complex(f, largest, dtype)
    else:
        blocks = f.binary("sdiv", f.add(inner, _COLUMNS - 1), _COLUMNS)
        grain = per_thread(f, _GRAIN, f.mul(n, f.minimum(inner, _COLUMNS)))
        with parallel(f, f.mul(outer, blocks), grain) as (part, lo, hi):
            best = part.alloca(_COLUMNS * dtype.itemsize, 64)
            with part.loop(lo, hi) as block:
                outside = part.binary("sdiv", block, blocks)
                start = part.mul(part.binary("srem", block, blocks), _COLUMNS)
                base = part.add(part.mul(part.mul(outside, n), inner), start)
                width = part.as_value(part.minimum(part.sub(inner, start), _COLUMNS), "i64")
                out = part.gep(y, part.add(part.mul(outside, inner), start), "i64")
                _down(part, largest, dtype, at(part, dtype, x, base), n, inner, width, best, out)
    f.ret()


def _down(
    f: Function, largest: bool, dtype: np.dtype, x: Value, n: Value, inner: Value, width: Value,
    best: Value, out: Value,
) -> None:  # fmt: skip
    """Go down a block of columns with the best keys so far on the stack and their places in the result."""
    kind = key_type(dtype)
    with f.loop(0, width) as column:
        key = load_key(f, dtype, at(f, dtype, x, column), nan_last=largest)
        f.store(key, f.gep(best, column, kind))
        f.store(f.as_value(0, "i64"), f.gep(out, column, "i64"))
    with f.loop(1, n) as j:
        row = at(f, dtype, x, f.mul(j, inner))
        with f.loop(0, width) as column:
            key = load_key(f, dtype, at(f, dtype, row, column), nan_last=largest)
            place, index = f.gep(best, column, kind), f.gep(out, column, "i64")
            before, where = f.load(kind, place), f.load("i64", index)
            wins = f.compare(_wins(largest), key, before)
            f.store(f.select(wins, key, before), place)
            f.store(f.select(wins, j, where), index)


for _name, _largest in (("argmax", True), ("argmin", False)):
    routine(_name)(partial(_build_rows, _largest))
    routine(f"{_name}_columns", vectorize=True)(partial(_build_columns, _largest))


# -- complex ------------------------------------------------------------------------------------------------------


def _complex(f: Function, largest: bool, dtype: np.dtype) -> None:
    x, y, outer, n, inner = f.params
    kind, strict = register_type(dtype), "ogt" if largest else "olt"
    with (
        parallel(f, f.mul(outer, inner), per_thread(f, _GRAIN, n)) as (part, lo, hi),
        part.loop(lo, hi) as lane,
    ):
        re, im = part.variable(kind, 0), part.variable(kind, 0)
        where, going = part.variable("i64", 0), part.variable("i1", TRUE)
        outside, column = part.binary("sdiv", lane, inner), part.binary("srem", lane, inner)
        base = part.add(part.mul(outside, part.mul(n, inner)), column)
        with part.loop(0, n) as j:
            place = part.add(base, part.mul(j, inner))
            found = load_scalar(part, dtype, at(part, dtype, x, place))
            assert isinstance(found, tuple)
            same = part.fcompare("oeq", found[0], re.get())
            ties = part.both(same, part.fcompare(strict, found[1], im.get()))
            wins = part.either(part.fcompare(strict, found[0], re.get()), ties)
            nan = part.fcompare("uno", *found)
            wins = part.either(wins, part.either(nan, part.compare("eq", j, 0)))
            wins = part.both(wins, going.get())
            re.set(part.select(wins, found[0], re.get()))
            im.set(part.select(wins, found[1], im.get()))
            where.set(part.select(wins, j, where.get()))
            going.set(part.both(going.get(), part.invert(nan)))
        part.store(where.get(), part.gep(y, lane, "i64"))
