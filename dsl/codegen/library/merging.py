"""Merges two sorted rows of integers, float32 or float64, in parts for several threads.

Which elements are the first d of the result is found by a binary search along a diagonal ("merge path", Odeh and
others, 2012). From there a part takes one element at a time without branches; the chain from one choice to the next
is long, so four parts take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsl.codegen.arrays import memory_type
from dsl.codegen.library.routines import at, call_routine, inner_function, parallel, routine
from dsl.codegen.library.vectors import toss
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["emit_merge"]

_GROUPS = 16
_TOGETHER = 4


def emit_merge(
    fn: Function, dtype: np.dtype, a: Value, m: Value, b: Value, n: Value, y: Value
) -> None:
    """Emit the merge of m sorted elements at a and n at b, at least one each, into y, which overlaps neither."""
    call_routine(fn, "merge", dtype, a, m, b, n, y)


@routine("merge")
def _build_merge(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`merge(a, m, b, n, y)`."""
    params = [("ptr", "a"), ("i64", "m"), ("ptr", "b"), ("i64", "n"), ("ptr", "y")]
    f = module.function(symbol, "void", params)
    a, m, b, n, y = f.params
    path = _path_function(module, dtype)
    total, parts = f.binary("add", m, n), _GROUPS * _TOGETHER
    length = f.binary("sdiv", f.binary("add", total, parts - 1), parts)
    with parallel(f, _GROUPS, 1) as (part, lo, hi), part.loop(lo, hi) as group:
        number = part.binary("mul", group, _TOGETHER)
        borders = [
            part.call(
                "i64",
                "llvm.smin.i64",
                part.binary("mul", part.binary("add", number, k), length),
                total,
            )
            for k in range(_TOGETHER + 1)
        ]
        starts = [part.call("i64", path, a, m, b, n, border) for border in borders]
        work = Work(part, dtype, a, m, b, n, y)
        left, right = starts[-1], part.binary("sub", borders[-1], starts[-1])
        inside = part.both(part.compare("slt", left, m), part.compare("slt", right, n))
        part.if_else(
            inside,
            lambda: work.take(borders[:-1], starts[:-1], part.use(length)),
            lambda: work.take_one_by_one(borders, starts),
        )
    f.ret()


@dataclass(frozen=True)
class Work:
    """Two sorted rows to be merged into y."""

    f: Function
    dtype: np.dtype
    a: Value
    m: Value
    b: Value
    n: Value
    y: Value

    def take(self, borders: list[Value], starts: list[Value], count: Value) -> None:
        """Write `count` elements from each of the borders on; neither row ends there. `starts` are places in a."""
        f, rest = self.f, range(len(borders))
        places = [f.variable("i64", start) for start in starts]
        bases = [at(f, self.dtype, self.b, border) for border in borders]
        targets = [at(f, self.dtype, self.y, border) for border in borders]
        with f.loop(0, count) as k:
            for part in rest:
                i = places[part].get()
                j = f.binary("sub", k, i)
                left = f.load(memory_type(self.dtype), at(f, self.dtype, self.a, i))
                right = f.load(memory_type(self.dtype), at(f, self.dtype, bases[part], j))
                second = _before(f, self.dtype, right, left)
                f.store(toss(f, second, right, left), at(f, self.dtype, targets[part], k))
                first = f.convert("zext", f.invert(second), "i64")
                places[part].set(f.binary("add", i, first))

    def take_one_by_one(self, borders: list[Value], starts: list[Value]) -> None:
        """Write the elements between borders, looking out for the ends of the rows."""
        f, kind = self.f, memory_type(self.dtype)
        i = f.variable("i64", starts[0])
        with f.loop(borders[0], borders[-1]) as k:
            j = f.binary("sub", k, i.get())
            none_left, some_right = f.compare("sge", i.get(), self.m), f.compare("slt", j, self.n)
            left = f.load(kind, at(f, self.dtype, self.a, _clamped(f, i.get(), self.m)))
            right = f.load(kind, at(f, self.dtype, self.b, _clamped(f, j, self.n)))
            smaller = f.either(none_left, _before(f, self.dtype, right, left))
            second = f.both(some_right, smaller)
            f.store(toss(f, second, right, left), at(f, self.dtype, self.y, k))
            i.set(f.binary("add", i.get(), f.convert("zext", f.invert(second), "i64")))


def _before(f: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    """Return whether x is smaller than y; a NaN may be smaller than another."""
    if dtype.kind == "f":
        return f.either(f.fcompare("olt", x, y), f.fcompare("uno", y, y))
    return f.compare("slt" if dtype.kind == "i" else "ult", x, y)


def _strictly_before(f: Function, dtype: np.dtype, x: Value, y: Value) -> Value:
    """The same, but no NaN is smaller than another: what a binary search needs."""
    if dtype.kind == "f":
        last = f.both(f.fcompare("uno", y, y), f.fcompare("ord", x, x))
        return f.either(f.fcompare("olt", x, y), last)
    return _before(f, dtype, x, y)


def _clamped(f: Function, place: Value, size: Value) -> Value:
    return f.call("i64", "llvm.smin.i64", place, f.binary("sub", size, 1))


def _path_function(module: Module, dtype: np.dtype) -> str:
    """Define `path(a, m, b, n, d)`: how many of the first d elements of the result are a's."""
    params = [("ptr", "a"), ("i64", "m"), ("ptr", "b"), ("i64", "n"), ("i64", "d")]
    f = inner_function(module, "path", "i64", params)
    a, m, b, n, d = f.params
    low = f.variable("i64", f.maximum(f.binary("sub", d, n), 0))
    high = f.variable("i64", f.minimum(d, m))
    kind = memory_type(dtype)
    with f.while_(lambda: f.compare("slt", low.get(), high.get())):
        middle = f.binary("lshr", f.binary("add", low.get(), high.get()), 1)
        left = f.load(kind, at(f, dtype, a, middle))
        place = f.binary("sub", f.binary("sub", d, middle), 1)
        right = f.load(kind, at(f, dtype, b, place))
        later = _strictly_before(f, dtype, right, left)
        high.set(f.select(later, middle, high.get()))
        low.set(f.select(later, low.get(), f.binary("add", middle, 1)))
    f.ret(low.get())
    return f.name
