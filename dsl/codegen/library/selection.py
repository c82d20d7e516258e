"""Elements by their places in order, without sorting the others.

Elements are compared by keys, integers in the same order (`keys.to_order`), with -0.0 before 0.0 and NaNs last. A sample
of a row is sorted, and two of its keys are chosen that very likely have the wanted place between them ("Floyd-Rivest").
One pass over the row counts what lies below, and collects what lies between, a few in a hundred; that is sorted. If
the place is not there after all, the keys are chosen further apart. Places near one another share what was collected.
Short rows, and those of which many places are wanted, are sorted as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsl.codegen.library.call import Call, around, bytes_of, constant_of
from dsl.codegen.library.foreign import sort_symbol
from dsl.codegen.library.keys import from_order, key_type, sort_key, to_order
from dsl.codegen.library.lanes import copy_bytes, join_lanes, part_lanes
from dsl.codegen.library.routines import (
    at,
    call_routine,
    inner_function,
    parallel,
    per_thread,
    routine,
)
from dsl.codegen.library.vectors import compare, lanes, mask_bits, splat, vector
from dsl.codegen.llvm import Function, Module, Value, Variable
from dsl.ir.types import dtype_name

__all__ = ["LOWERINGS"]

_GRAIN = 1 << 13
_SHORT = 96  # rows up to here are sorted
_MANY = 64  # so are rows with more places wanted
_ODD = 0x9E3779B97F4A7C15  # spreads the numbers of a sample over the bits of a word
NULL, FALSE, TRUE = Value("null", "ptr"), Value("false", "i1"), Value("true", "i1")


def _nth_element(call: Call) -> None:
    fn, x, places = call.fn, call.contiguous(0), call.contiguous(1)
    outer, n, inner = around(fn, x.dims, call.node.attrs["axis"])
    y, rows, count = call.output(), fn.mul(outer, inner), fn.as_value(places.dims[0], "i64")
    size = bytes_of(fn, fn.mul(rows, n), x.dtype)
    source, target = x.pointer, y.pointer
    alone = constant_of(inner) == 1
    if not alone:
        source = call.scratch(size)
        target = call.scratch(bytes_of(fn, fn.mul(rows, count), x.dtype))
        part_lanes(call, x.dtype, x.pointer, source, outer, n, inner)
    space = call.scratch(size)
    call_routine(fn, "nth_element", x.dtype, source, rows, n, places.pointer, count, target, space)
    if not alone:
        join_lanes(call, x.dtype, target, y.pointer, outer, count, inner)


LOWERINGS = {"nth_element": _nth_element}


@routine("nth_element")
def _build(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`nth(x, rows, n, places, count, y, space)`; `space` has room for all rows, of which a thread needs one."""
    params = [("ptr", "x"), ("i64", "rows"), ("i64", "n"), ("ptr", "places"), ("i64", "count"), ("ptr", "y"),
              ("ptr", "space")]  # fmt: skip
    f = module.function(symbol, "void", params)
    x, rows, n, places, count, y, space = f.params
    with f.if_(f.compare("eq", n, 0)):
        _fill(f, dtype, y, f.binary("mul", rows, count))
        f.ret()
    row_function = (_complex_row if dtype.kind == "c" else _row)(module, dtype)
    with parallel(f, rows, per_thread(f, _GRAIN, n)) as (part, lo, hi):
        own = at(part, dtype, space, part.mul(lo, n))
        with part.loop(lo, hi) as row:
            source = at(part, dtype, x, part.mul(row, n))
            target = at(part, dtype, y, part.mul(row, count))
            part.call("void", row_function, source, n, places, count, target, own)
    f.ret()


_ROW = [
    ("ptr", "x"),
    ("i64", "n"),
    ("ptr", "places"),
    ("i64", "count"),
    ("ptr", "y"),
    ("ptr", "space"),
]


def _fill(f: Function, dtype: np.dtype, y: Value, count: Value) -> None:
    """Write what elements are of which there are none: NaN, or zero."""
    bits = np.zeros(1, dtype) if dtype.kind in "biu" else np.full(1, np.nan, dtype)
    word = f"i{8 * dtype.itemsize}"
    value = Value(str(int.from_bytes(bits.tobytes(), "little")), word)
    with f.loop(0, count) as i:
        f.store(value, at(f, dtype, y, i), align=1)


def _place(f: Function, n: Value, places: Value, j: Value) -> Value:
    """Return wanted place j, or the first or last one if it is beyond them."""
    wanted = f.load("i64", f.gep(places, j, "i64"))
    low = f.call("i64", "llvm.smax.i64", wanted, Value("0", "i64"))
    return f.call("i64", "llvm.smin.i64", low, f.binary("sub", n, 1))


def _complex_row(module: Module, dtype: np.dtype) -> str:
    f = inner_function(module, "row", "void", _ROW)
    x, n, places, count, y, space = f.params
    copy_bytes(f, space, x, bytes_of(f, n, dtype))
    f.call("i32", sort_symbol(dtype_name(dtype)), space, n, NULL)
    with f.loop(0, count) as j:
        found = at(f, dtype, space, _place(f, n, places, j))
        copy_bytes(f, at(f, dtype, y, j), found, dtype.itemsize)
    f.ret()
    return f.name


# -- keys -------------------------------------------------------------------------------------------------------------


def _key(f: Function, dtype: np.dtype, address: Value, type: str) -> Value:
    bits = f.load(type, address, align=dtype.itemsize)
    return sort_key(f, dtype, bits) if dtype.kind in "biu" else to_order(f, dtype, bits)


def _element(f: Function, dtype: np.dtype, key: Value) -> Value:
    """Return the bits of an element that has a key."""
    return sort_key(f, dtype, key) if dtype.kind in "biu" else from_order(f, dtype, key)


# -- one row ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Keys with known places: those equal to `low` or `high`, and the sorted ones between them."""

    low: Variable
    high: Variable
    below: Variable  # how many are smaller than low
    start: Variable  # how many are smaller than what is between
    stop: Variable
    end: Variable  # how many are not larger than high


def _row(module: Module, dtype: np.dtype) -> str:
    f = inner_function(module, "row", "void", _ROW)
    x, n, places, count, y, space = f.params
    word = key_type(dtype)
    kinds = [word, word, "i64", "i64", "i64", "i64"]
    window = Window(*(f.variable(kind, Value("0", kind)) for kind in kinds))
    whole = f.either(f.compare("sle", n, _SHORT), f.compare("sgt", count, _MANY))
    with f.if_(whole):
        _sort_all(f, dtype, x, n, space)
        window.stop.set(n)
        window.end.set(n)
    narrow = _narrow(module, dtype)
    state = [
        getattr(window, name).address for name in ("low", "high", "below", "start", "stop", "end")
    ]
    with f.loop(0, count) as j:
        place, margin = _place(f, n, places, j), f.variable("i64", 2)
        with f.while_(lambda: f.invert(_known(f, window, place))):
            f.call("void", narrow, x, n, space, place, margin.get(), *state)
            margin.set(f.binary("shl", margin.get(), 2))
        f.store(_element(f, dtype, _found(f, dtype, window, space, place)), at(f, dtype, y, j))
    f.ret()
    return f.name


def _sort_all(f: Function, dtype: np.dtype, x: Value, n: Value, space: Value) -> None:
    word = key_type(dtype)
    with f.loop(0, n) as i:
        f.store(_key(f, dtype, at(f, dtype, x, i), word), at(f, dtype, space, i))
    _sort(f, dtype, space, n)


def _sort(f: Function, dtype: np.dtype, keys: Value, n: Value) -> None:
    f.call("i32", sort_symbol(key_type(dtype)), keys, n, NULL)


def _known(f: Function, window: Window, place: Value) -> Value:
    return f.both(
        f.compare("sge", place, window.below.get()), f.compare("slt", place, window.end.get())
    )


def _found(f: Function, dtype: np.dtype, window: Window, space: Value, place: Value) -> Value:
    """Return the key at a place that is known."""
    start, stop, word = window.start.get(), window.stop.get(), key_type(dtype)
    found = f.variable(word, window.low.get())
    with f.if_(f.compare("sge", place, start)):
        found.set(window.high.get())
        with f.if_(f.compare("slt", place, stop)):
            found.set(f.load(word, at(f, dtype, space, f.binary("sub", place, start))))
    return found.get()


def _narrow(module: Module, dtype: np.dtype) -> str:
    """Define `narrow(x, n, space, place, margin, …)`, which finds a window that very likely has the place."""
    word = key_type(dtype)
    names = ("low", "high", "below", "start", "stop", "end")
    params = [("ptr", "x"), ("i64", "n"), ("ptr", "space"), ("i64", "place"), ("i64", "margin")]
    f = inner_function(module, "narrow", "void", [*params, *(("ptr", name) for name in names)])
    x, n, space, place, margin, *state = f.params
    kinds = [word, word, "i64", "i64", "i64", "i64"]
    window = Window(*(Variable(f, kind, address) for kind, address in zip(kinds, state)))
    _choose(f, dtype, window, x, n, space, place, margin)
    _collect(f, dtype, window, x, n, space)
    _sort(f, dtype, space, f.binary("sub", window.stop.get(), window.start.get()))
    f.ret()
    return f.name


def _choose(
    f: Function, dtype: np.dtype, window: Window, x: Value, n: Value, space: Value, place: Value, margin: Value
) -> None:  # fmt: skip
    """Choose two keys of a sorted sample, each as far as `margin` deviations from where the place should be."""
    word, lowest = key_type(dtype), -(2 ** (8 * dtype.itemsize - 1))
    bits = f.binary("sub", 64, f.call("i64", "llvm.ctlz.i64", n, FALSE))
    root = f.binary("shl", 1, f.binary("udiv", bits, 3))
    size = f.binary("mul", f.binary("mul", root, root), 2)  # below n, as rows are not short
    stride = f.binary("udiv", n, size)
    with f.loop(0, size) as i:  # somewhere in each stride, lest data repeat with it
        spread = f.binary("lshr", f.binary("mul", i, _ODD - 2**64), 32)
        offset = f.binary("lshr", f.binary("mul", spread, stride), 32)
        source = at(f, dtype, x, f.binary("add", f.binary("mul", i, stride), offset))
        f.store(_key(f, dtype, source, word), at(f, dtype, space, i))
    _sort(f, dtype, space, size)
    middle = f.binary("udiv", place, stride)
    reach = f.binary("mul", margin, root)
    left, right = f.binary("sub", middle, reach), f.binary("add", middle, reach)
    window.low.set(Value(str(lowest), word))
    window.high.set(Value(str(~lowest), word))
    with f.if_(f.compare("sge", left, 0)):
        window.low.set(
            f.load(
                word,
                at(f, dtype, space, f.call("i64", "llvm.smin.i64", left, f.binary("sub", size, 1))),
            )
        )
    with f.if_(f.compare("slt", right, size)):
        window.high.set(f.load(word, at(f, dtype, space, right)))


def _collect(
    f: Function, dtype: np.dtype, window: Window, x: Value, n: Value, space: Value
) -> None:
    """Count what is below the window and up to its ends, and write the keys between them to `space`."""
    word = key_type(dtype)
    wide = vector(word)
    low, high = window.low.get(), window.high.get()
    below, upto, end, found = (f.variable("i64", 0) for _ in range(4))
    middle = f.binary("and", n, -lanes(wide))
    for type, start, stop, step in (
        (wide, Value("0", "i64"), middle, lanes(wide)),
        (word, middle, n, 1),
    ):
        one, two = splat(f, low, type), splat(f, high, type)
        with f.loop(start, stop, step) as i:
            key = _key(f, dtype, at(f, dtype, x, i), type)
            less, same, last = (
                _bits(f, compare(f, how, key, limit))
                for how, limit in (("slt", one), ("sle", one), ("sle", two))
            )
            for total, marks in ((below, less), (upto, same), (end, last)):
                total.set(f.binary("add", total.get(), f.call("i64", "llvm.ctpop.i64", marks)))
            inner = _bits(f, compare(f, "slt", key, two))
            inside = f.variable("i64", f.binary("and", inner, f.binary("xor", same, -1)))
            with f.while_(lambda inside=inside: f.compare("ne", inside.get(), 0)):  # type: ignore[misc]
                marks = inside.get()
                chosen = f.binary("add", i, f.call("i64", "llvm.cttz.i64", marks, TRUE))
                f.store(
                    _key(f, dtype, at(f, dtype, x, chosen), word), at(f, dtype, space, found.get())
                )
                found.set(f.binary("add", found.get(), 1))
                inside.set(f.binary("and", marks, f.binary("sub", marks, 1)))
    window.below.set(below.get())
    window.start.set(upto.get())
    window.stop.set(f.binary("add", upto.get(), found.get()))
    window.end.set(end.get())


def _bits(f: Function, mask: Value) -> Value:
    """Return the truth of each element as a bit of a word."""
    return f.convert("zext", mask_bits(f, mask) if lanes(mask.type) else mask, "i64")
