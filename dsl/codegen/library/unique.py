"""The distinct values of a vector: a stable argsort, a count of groups, then a pass that writes all four results."""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.library.argsort import emit_argsort
from dsl.codegen.library.call import Call
from dsl.codegen.library.keys import load_key
from dsl.codegen.library.routines import at, call_routine, routine
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["LOWERINGS"]


def _unique(call: Call) -> None:
    fn, x = call.fn, call.contiguous(0)
    n = x.dims[0]
    order = call.scratch(fn.mul(n, 8))
    emit_argsort(call, x.dtype, x.pointer, order, 1, n)
    count = call_routine(fn, "count_groups", x.dtype, x.pointer, order, n, result="i64")
    values, index = call.output(0, [count]), call.output(1, [count])
    inverse, counts = call.output(2), call.output(3, [count])
    outputs = [output.pointer for output in (values, index, inverse, counts)]
    call_routine(fn, "write_groups", x.dtype, x.pointer, order, n, *outputs)


LOWERINGS = {"unique": _unique}


def _load(f: Function, dtype: np.dtype, x: Value, index: Value) -> Scalar:
    place = at(f, dtype, x, index)
    return load_scalar(f, dtype, place) if dtype.kind == "c" else load_key(f, dtype, place)


def _differ(f: Function, a: Scalar, b: Scalar) -> Value:
    """Return whether two elements are of different groups; numbers with a NaN are all of one."""
    if isinstance(a, tuple):
        assert isinstance(b, tuple)
        same = f.both(f.fcompare("oeq", a[0], b[0]), f.fcompare("oeq", a[1], b[1]))
        nans = f.both(f.fcompare("uno", *a), f.fcompare("uno", *b))
        return f.invert(f.either(same, nans))
    assert isinstance(b, Value)
    return f.compare("ne", a, b)


@routine("count_groups")
def _build_count(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`count(x, order, n)`."""
    f = module.function(symbol, "i64", [("ptr", "x"), ("ptr", "order"), ("i64", "n")])
    x, order, n = f.params
    groups = f.variable("i64", f.convert("zext", f.compare("sgt", n, 0), "i64"))
    with f.loop(1, n) as i:
        before, here = (f.load("i64", f.gep(order, place, "i64")) for place in (f.sub(i, 1), i))
        new = _differ(f, _load(f, dtype, x, before), _load(f, dtype, x, here))
        groups.set(f.add(groups.get(), f.convert("zext", new, "i64")))
    f.ret(groups.get())


@routine("write_groups")
def _build_write(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`write(x, order, n, values, index, inverse, counts)`."""
    outputs = [("ptr", name) for name in ("values", "index", "inverse", "counts")]
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "order"), ("i64", "n"), *outputs])
    x, order, n, values, index, inverse, counts = f.params
    group, start = f.variable("i64", -1), f.variable("i64", 0)
    with f.loop(0, n) as i:
        here = f.load("i64", f.gep(order, i, "i64"))
        new = f.variable("i1", Value("true", "i1"))
        with f.if_(f.compare("sgt", i, 0)):
            before = f.load("i64", f.gep(order, f.sub(i, 1), "i64"))
            new.set(_differ(f, _load(f, dtype, x, before), _load(f, dtype, x, here)))
        with f.if_(new.get()):
            group.set(f.add(group.get(), 1))
            start.set(i)
            found = load_scalar(f, dtype, at(f, dtype, x, here))
            store_scalar(f, dtype, found, at(f, dtype, values, group.get()))
            f.store(here, f.gep(index, group.get(), "i64"))
        f.store(group.get(), f.gep(inverse, here, "i64"))
        size = f.binary("sub", f.add(i, 1), start.get())
        f.store(size, f.gep(counts, group.get(), "i64"))
    f.ret()
