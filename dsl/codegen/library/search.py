"""Where values would go into a sorted vector: binary searches without branches, several side by side.

The searches of a group take the same number of steps, so their loads overlap. Real elements are compared by their keys
(see `keys`), complex ones in NumPy's order.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.library.call import Call, product
from dsl.codegen.library.keys import load_key
from dsl.codegen.library.routines import at, call_routine, parallel, routine
from dsl.codegen.library.vectors import toss
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["LOWERINGS"]

_TOGETHER = 8
_GRAIN = 1 << 10


def _searchsorted(call: Call) -> None:
    fn, a, side = call.fn, call.contiguous(0), call.node.attrs["side"]
    v = call.inputs[1]
    stem = f"searchsorted_{side}"
    if isinstance(v, Array):
        many, out = call.contiguous(1), call.output()
        count = product(fn, many.dims)
        call_routine(fn, stem, a.dtype, a.pointer, a.dims[0], many.pointer, out.pointer, count)
        return
    space, place = fn.alloca(16), fn.alloca(8)
    store_scalar(fn, a.dtype, v, space)
    call_routine(fn, stem, a.dtype, a.pointer, a.dims[0], space, place, 1)
    call.set_output(0, fn.load("i64", place))


LOWERINGS = {"searchsorted": _searchsorted}


def _build(left: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`searchsorted(a, n, v, y, count)`."""
    params = [("ptr", "a"), ("i64", "n"), ("ptr", "v"), ("ptr", "y"), ("i64", "count")]
    f = module.function(symbol, "void", params)
    a, n, v, y, count = f.params
    with parallel(f, count, _GRAIN) as (part, lo, hi):
        several = part.binary("and", part.binary("sub", hi, lo), -_TOGETHER)
        middle = part.binary("add", lo, several)
        for start, stop, size in ((lo, middle, _TOGETHER), (middle, hi, 1)):
            with part.loop(start, stop, size) as i:
                places = [part.add(i, k) for k in range(size)]
                for place, found in zip(places, _search(part, left, dtype, a, n, v, places)):
                    part.store(found, part.gep(y, place, "i64"))
    f.ret()


for _side in ("left", "right"):
    routine(f"searchsorted_{_side}")(partial(_build, _side == "left"))


def _search(
    f: Function, left: bool, dtype: np.dtype, a: Value, n: Value, v: Value, places: list[Operand]
) -> list[Value]:
    """Return how many elements of a come before each of some values."""
    wanted = [_load(f, dtype, at(f, dtype, v, place)) for place in places]
    bases = [f.variable("i64", 0) for _ in places]
    size = f.variable("i64", n)

    def skip(base: Operand, distance: Value, value: Scalar, probe: Operand) -> Operand:
        found = _load(f, dtype, at(f, dtype, a, probe))
        goes = _less(f, found, value) if left else f.invert(_less(f, value, found))
        return f.add(base, toss(f, goes, distance, 0))

    with f.while_(lambda: f.compare("sgt", size.get(), 1)):
        half = f.binary("lshr", size.get(), 1)
        for base, value in zip(bases, wanted):
            at_half = f.add(base.get(), f.sub(half, 1))
            base.set(skip(base.get(), half, value, at_half))
        size.set(f.sub(size.get(), half))
    with f.if_(f.compare("eq", size.get(), 1)):
        one = f.as_value(1, "i64")
        for base, value in zip(bases, wanted):
            base.set(skip(base.get(), one, value, base.get()))
    return [base.get() for base in bases]


def _load(f: Function, dtype: np.dtype, address: Value) -> Scalar:
    return load_scalar(f, dtype, address) if dtype.kind == "c" else load_key(f, dtype, address)


def _less(f: Function, x: Scalar, y: Scalar) -> Value:
    """Return whether x comes before y: complex numbers by real part, then imaginary part, NaNs last in each."""
    if isinstance(x, tuple):
        assert isinstance(y, tuple)
        return _less_complex(f, x, y)
    assert isinstance(y, Value)
    return f.compare("slt", x, y)


def _less_complex(f: Function, x: tuple[Value, Value], y: tuple[Value, Value]) -> Value:
    """NumPy's order: R + Rj, R + nan j, nan + Rj, nan + nan j."""
    (a, b), (c, d) = x, y
    b_nan, d_nan = f.fcompare("uno", b, b), f.fcompare("uno", d, d)
    both_nan = f.both(f.fcompare("uno", a, a), f.fcompare("uno", c, c))
    less = f.both(f.fcompare("olt", a, c), f.either(f.invert(b_nan), d_nan))
    more = f.both(f.fcompare("ogt", a, c), f.both(d_nan, f.invert(b_nan)))
    below = f.either(f.fcompare("olt", b, d), f.both(d_nan, f.invert(b_nan)))
    level = f.both(f.either(f.fcompare("oeq", a, c), both_nan), below)
    last = f.both(f.fcompare("ord", a, a), f.fcompare("uno", c, c))
    return f.either(f.either(less, more), f.either(level, last))
