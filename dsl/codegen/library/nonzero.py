"""The indices of elements that are not zero.

Elements are tested by 64 at a time. Counting adds up the bits of the tests; a second pass writes the positions of set
bits. Positions in an array of several axes are then taken apart into an index for each axis.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import load_scalar, memory_type
from dsl.codegen.elementwise.casts import truth
from dsl.codegen.library.call import Call, as_i64, product
from dsl.codegen.library.routines import at, call_routine, routine
from dsl.codegen.library.vectors import compare, constant, int_type, mask_bits, vector
from dsl.codegen.llvm import Function, Module, Value
from dsl.ir.types import is_float

__all__ = ["LOWERINGS"]

TRUE = Value("true", "i1")


def _nonzero(call: Call) -> None:
    fn, x = call.fn, call.contiguous(0)
    size = product(fn, x.dims)
    count = call_routine(fn, "count_nonzero", x.dtype, x.pointer, size, result="i64")
    outputs = [call.output(k, [count]).pointer for k in range(len(x.dims))]
    call_routine(fn, "flat_nonzero", x.dtype, x.pointer, size, outputs[-1])
    if len(outputs) > 1:
        dims = [as_i64(fn, dim) for dim in x.dims]
        with fn.loop(0, count) as i:
            place = fn.load("i64", fn.gep(outputs[-1], i, "i64"))
            for dim, output in zip(dims[:0:-1], outputs[:0:-1]):
                above = fn.binary("udiv", place, dim)
                own = fn.binary("sub", place, fn.binary("mul", above, dim))
                fn.store(own, fn.gep(output, i, "i64"))
                place = above
            fn.store(place, fn.gep(outputs[0], i, "i64"))


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


@routine("count_nonzero")
def _build_count(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`count(x, n)`."""
    f = module.function(symbol, "i64", [("ptr", "x"), ("i64", "n")])
    x, n = f.params
    total, whole = f.variable("i64", 0), f.binary("and", n, -64)
    with f.loop(0, whole, 64) as i:
        count = f.call("i64", "llvm.ctpop.i64", _tests(f, dtype, x, i))
        total.set(f.add(total.get(), count))
    with f.loop(whole, n) as i:
        set_ = truth(f, dtype, load_scalar(f, dtype, at(f, dtype, x, i)))
        total.set(f.add(total.get(), f.convert("zext", set_, "i64")))
    f.ret(total.get())


@routine("flat_nonzero")
def _build_flat(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`flat(x, n, y)` writes the positions."""
    f = module.function(symbol, "void", [("ptr", "x"), ("i64", "n"), ("ptr", "y")])
    x, n, y = f.params
    found, whole = f.variable("i64", 0), f.binary("and", n, -64)
    with f.loop(0, whole, 64) as i:
        bits = f.variable("i64", _tests(f, dtype, x, i))
        with f.while_(lambda bits=bits: f.compare("ne", bits.get(), 0)):  # type: ignore[misc]
            word = bits.get()
            place = f.call("i64", "llvm.cttz.i64", word, TRUE)
            f.store(f.binary("add", i, place), f.gep(y, found.get(), "i64"))
            found.set(f.add(found.get(), 1))
            bits.set(f.binary("and", word, f.binary("sub", word, 1)))
    with f.loop(whole, n) as i:
        set_ = truth(f, dtype, load_scalar(f, dtype, at(f, dtype, x, i)))
        with f.if_(set_):
            f.store(i, f.gep(y, found.get(), "i64"))
            found.set(f.add(found.get(), 1))
    f.ret()
