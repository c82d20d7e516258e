"""Many elements that are moved to or from where an index array tells, in the order of the points.

What limits them is how far away the indices and values are: a processor that meets scattered places all the time no longer foresees
that these lie in a row. They are asked for some way ahead, which halves the time; so are elements that a gather reads from an array
that no near cache holds. To divide the array that a scatter writes among threads, each of which looks for the points of its own
part, gained nothing on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.elementwise import combine
from dsl.codegen.library.routines import at, parallel, pieces, routine
from dsl.codegen.library.vectors import compare, constant, reduce, splat, vector
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["MERGES"]

MERGES = {"add": "sum", "multiply": "prod", "min": "min", "max": "max"}
"""What combines old and new elements, by a scatter's mode; there is none for `update`."""

_TOGETHER = 16  # points of a round
_FURTHER = 512  # points: how far ahead indices and values are asked for
_AHEAD = 64  # points: how far ahead elements are
_NOT_NEAR = 3 << 22  # bytes of an array that no near cache holds
_GRAIN = 1 << 14  # points of a gather that are worth a thread
_LINE = 64
_ONCE, _AGAIN = 0, 3  # how long to keep what is fetched
_FEW = 1 << 15  # indices that one thread looks at as quickly as two
_PIECES = 64
_WIDE = vector("i64")
_LANES = 8


# --- Scatters --------------------------------------------------------------------------------------


def _put(f: Function, mode: str, dtype: np.dtype, target: Value, new: Scalar) -> None:
    """Write an element."""
    if mode in MERGES:
        old = load_scalar(f, dtype, target)
        new = combine(f, MERGES[mode], dtype, old, new, reassociate=False)
    store_scalar(f, dtype, new, target)


def _build(mode: str, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`scatter(x, index, v, n, count, step)`: the number of the first point whose index is wrong, where it stopped, or -1.

    `v` has an element for each point, or with a step of 0 one for all.
    """
    names = ("n", "count", "step")
    params = [("ptr", "x"), ("ptr", "index"), ("ptr", "v"), *(("i64", k) for k in names)]
    f = module.function(symbol, "i64", params)
    x, index, v, n, count, step = f.params
    place = f.variable("i64")

    def put(point: Operand, value: Callable[[Operand], Scalar]) -> None:
        place.set(f.load("i64", f.gep(index, point, "i64")))
        with f.if_(f.compare("uge", place.get(), n), unlikely=True):
            place.set(f.add(place.get(), n))
            with f.if_(f.compare("uge", place.get(), n)):
                f.ret(point)
        _put(f, mode, dtype, at(f, dtype, x, place.get()), value(point))

    def write(value: Callable[[Operand], Scalar], far: bool) -> None:
        whole = f.binary("and", count, -_TOGETHER)
        with f.loop(0, whole, _TOGETHER, as_written=True) as point:
            ahead = f.add(point, _FURTHER)
            _ask_for(f, f.gep(index, ahead, "i64"), 8)
            if far:
                _ask_for(f, at(f, dtype, v, ahead), dtype.itemsize)
            for k in range(_TOGETHER):
                put(f.add(point, k), value)
        with f.loop(whole, count, as_written=True) as point:
            put(point, value)

    def one_for_all() -> None:
        only = load_scalar(f, dtype, v)
        write(lambda point: only, far=False)

    def one_for_each() -> None:
        write(lambda point: load_scalar(f, dtype, at(f, dtype, v, point)), far=True)

    f.if_else(f.compare("eq", step, 0), one_for_all, one_for_each)
    f.ret(-1)


def _ask_for(f: Function, address: Value, size: int) -> None:
    """Fetch what a round needs."""
    for offset in range(0, _TOGETHER * size, _LINE):
        _fetch(f, f.gep(address, offset), _ONCE)


def _fetch(f: Function, address: Value, keep: int) -> None:
    told = [Value(str(number), "i32") for number in (0, keep, 1)]  # to read, to keep, data
    f.call("void", "llvm.prefetch.p0", address, *told)


for _mode in ("update", *MERGES):
    routine(f"scatter_{_mode}")(partial(_build, _mode))


# --- Gathers ---------------------------------------------------------------------------------------


@routine("gather")
def _build_gather(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`gather(x, index, y, n, count, flag)`: sets the flag and stops where an index is wrong."""
    params = [
        *(("ptr", name) for name in ("x", "index", "y")),
        ("i64", "n"),
        ("i64", "count"),
        ("ptr", "flag"),
    ]
    f = module.function(symbol, "void", params)
    x, index, y, n, count, flag = f.params
    far = f.compare("sgt", f.mul(n, dtype.itemsize), _NOT_NEAR)
    with parallel(f, count, _GRAIN) as (part, lo, hi):
        place = part.variable("i64")

        def take(point: Operand) -> None:
            place.set(part.load("i64", part.gep(index, point, "i64")))
            with part.if_(part.compare("uge", place.get(), n), unlikely=True):
                place.set(part.add(place.get(), n))
                with part.if_(part.compare("uge", place.get(), n)):
                    part.store(part.as_value(1, "i64"), part.use(flag))
                    part.ret()
            found = load_scalar(part, dtype, at(part, dtype, x, place.get()))
            store_scalar(part, dtype, found, at(part, dtype, y, point))

        def rounds(start: Operand, stop: Operand, ahead: bool) -> None:
            with part.loop(start, stop, _TOGETHER, as_written=True) as point:
                _ask_for(part, part.gep(index, part.add(point, _FURTHER), "i64"), 8)
                for k in range(_TOGETHER):
                    if ahead:
                        later = part.load(
                            "i64", part.gep(index, part.add(point, k + _AHEAD), "i64")
                        )
                        _fetch(part, at(part, dtype, x, later), _AGAIN)
                    take(part.add(point, k))

        whole = part.add(lo, part.binary("and", part.sub(hi, lo), -_TOGETHER))
        middle = part.select(far, part.maximum(part.sub(whole, _AHEAD), lo), lo)
        rounds(lo, middle, ahead=True)
        rounds(middle, whole, ahead=False)
        with part.loop(whole, hi, as_written=True) as point:
            take(point)
    f.ret()


# --- Indices -------------------------------------------------------------------------------------


@routine("wrong_index")
def _build_wrong(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`wrong(index, count, n)`: the number of the first index that is none of an axis of n, or -1."""
    f = module.function(symbol, "i64", [("ptr", "index"), ("i64", "count"), ("i64", "n")])
    index, count, n = f.params
    length, number = pieces(f, count, _PIECES)
    found = f.alloca(8 * (_PIECES + 1))
    grain = f.maximum(f.binary("sdiv", _FEW, length), 1)
    with parallel(f, number, grain) as (part, lo, hi), part.loop(lo, hi) as piece:
        start = part.mul(piece, length)
        stop = part.minimum(part.add(start, length), count)
        part.store(_first_wrong(part, index, n, start, stop), part.gep(found, piece, "i64"))
    with f.loop(0, number) as piece:
        first = f.load("i64", f.gep(found, piece, "i64"))
        with f.if_(f.compare("sge", first, 0)):
            f.ret(first)
    f.ret(-1)


def _first_wrong(f: Function, index: Value, n: Value, start: Operand, stop: Operand) -> Value:
    """Look at all, and for which it is only if one is wrong."""
    whole = f.add(start, f.binary("and", f.sub(stop, start), -4 * _LANES))
    size, twice = f.use(n), f.mul(n, 2)
    sizes, limits = (splat(f, f.as_value(k, "i64"), _WIDE) for k in (size, twice))
    bad, first = f.variable(_WIDE, constant(0, _WIDE)), f.variable("i64", -1)
    with f.loop(start, whole, 4 * _LANES) as i:
        for k in range(4):
            seen = f.load(_WIDE, f.gep(index, f.add(i, k * _LANES), "i64"), align=8)
            wrong = compare(f, "uge", f.binary("add", seen, sizes), limits)
            bad.set(f.binary("or", bad.get(), f.convert("sext", wrong, _WIDE)))

    def look(begin: Operand) -> None:
        with f.loop(begin, stop) as i:
            seen = f.load("i64", f.gep(index, i, "i64"))
            wrong = f.compare("uge", f.add(seen, size), twice)
            with f.if_(f.both(wrong, f.compare("slt", first.get(), 0)), unlikely=True):
                first.set(i)

    any_wrong = f.compare("ne", reduce(f, "or", bad.get()), 0)
    f.if_else(any_wrong, partial(look, start), partial(look, whole))
    return first.get()
