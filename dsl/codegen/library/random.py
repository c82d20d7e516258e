"""Random bits and keys: Threefry-2x32, sixteen counters at a time."""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Array, memory_type
from dsl.codegen.library.call import Call, array, product
from dsl.codegen.library.lanes import copy_bytes
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, routine
from dsl.codegen.library.stacks import batch_axes, offsets
from dsl.codegen.library.vectors import constant, intrinsic, splat, vector
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.ops.random import PARITY, ROTATIONS

__all__ = ["LOWERINGS"]

_LANES = 16
_BLOCK = 1 << 12  # elements of one key that one thread makes at a time
_GRAIN = 1 << 14
_COUNT_UP = "<i32 " + ", i32 ".join(map(str, range(_LANES))) + ">"


def threefry(f: Function, k0: Value, k1: Value, c0: Value, c1: Value) -> tuple[Value, Value]:
    """Encrypt counters, i32 or vectors of it."""

    def add(a: Value, b: Value) -> Value:
        return f.binary("add", a, b)

    parity = constant(int(PARITY), k0.type)
    keys = (k0, k1, f.binary("xor", f.binary("xor", k0, k1), parity))
    x0, x1 = add(c0, k0), add(c1, k1)
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x0 = add(x0, x1)
            x1 = f.binary("xor", _rotate(f, x1, distance), x0)
        x0 = add(x0, keys[(group + 1) % 3])
        x1 = add(x1, add(keys[(group + 2) % 3], constant(group + 1, k0.type)))
    return x0, x1


def _rotate(f: Function, x: Value, distance: int) -> Value:
    return intrinsic(f, "llvm.fshl", x, x, constant(distance, x.type))


def _random_bits(call: Call) -> None:
    fn, keys = call.fn, call.contiguous(0)
    n = product(fn, [call.size(dim) for dim in call.node.attrs["shape"]])
    count = product(fn, keys.dims[:-1])
    result = call.node.outputs[0]
    place = call.output().pointer if result.shape else fn.alloca(8)
    call_routine(fn, "random_bits", result.dtype, keys.pointer, place, count, n)
    if not result.shape:
        call.set_output(0, fn.load(memory_type(result.dtype), place))


@routine("random_bits")
def _build_bits(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`bits(keys, y, count, n)`: n elements for each key."""
    params = [("ptr", "keys"), ("ptr", "y"), ("i64", "count"), ("i64", "n")]
    f = module.function(symbol, "void", params)
    keys, y, count, n = f.params
    blocks = f.binary("sdiv", f.add(n, _BLOCK - 1), _BLOCK)
    grain = per_thread(f, _GRAIN, f.minimum(n, _BLOCK))
    with parallel(f, f.mul(count, blocks), grain) as (part, lo, hi), part.loop(lo, hi) as block:
        key = part.binary("sdiv", block, blocks)
        k0, k1 = (
            part.load("i32", part.gep(keys, part.add(part.mul(key, 2), word), "i32"))
            for word in range(2)
        )
        start = part.mul(part.binary("srem", block, blocks), _BLOCK)
        stop = part.as_value(part.minimum(part.add(start, _BLOCK), n), "i64")
        base = at(part, dtype, y, part.mul(key, n))
        _fill(part, dtype, k0, k1, start, stop, base)
    f.ret()


def _fill(
    f: Function, dtype: np.dtype, k0: Value, k1: Value, start: Operand, stop: Value, y: Value
) -> None:
    wide = vector("i32", _LANES)
    keys = splat(f, k0, wide), splat(f, k1, wide)
    whole = f.binary("add", start, f.binary("and", f.binary("sub", stop, start), -_LANES))
    with f.loop(start, whole, _LANES) as i:
        bits = _bits(f, dtype, keys, i)
        f.store(bits, at(f, dtype, y, i), align=dtype.itemsize)
    with f.if_(f.compare("slt", whole, stop)):
        space = f.alloca(_LANES * 8, 64)
        f.store(_bits(f, dtype, keys, whole), space)
        size = f.mul(f.binary("sub", stop, whole), dtype.itemsize)
        copy_bytes(f, at(f, dtype, y, whole), space, size)


def _bits(f: Function, dtype: np.dtype, keys: tuple[Value, Value], i: Value) -> Value:
    """Return elements i to i + 15; i is a multiple of 16, so the high word of the counter is the same for all."""
    wide = keys[0].type
    high = splat(f, f.convert("trunc", f.binary("lshr", i, 32), "i32"), wide)
    low = splat(f, f.convert("trunc", i, "i32"), wide)
    low = f.binary("add", low, Value(_COUNT_UP, wide))
    w0, w1 = threefry(f, *keys, high, low)
    target = vector(memory_type(dtype), _LANES)
    if dtype.itemsize == 8:
        upper = f.binary("shl", f.convert("zext", w0, target), constant(32, target))
        return f.binary("or", upper, f.convert("zext", w1, target))
    return f.convert("trunc", f.binary("xor", w0, w1), target)


def _fold_in(call: Call) -> None:
    """Make a key for each element of data and each key of a stack, broadcast together."""
    fn, keys, data = call.fn, array(call, 0), call.inputs[1]
    result = call.output().pointer
    if isinstance(data, Array):
        numbers = data
    else:
        assert isinstance(data, Value)
        dtype = call.node.inputs[1].dtype
        numbers = Array(dtype, fn.alloca(8), (), ())
        fn.store(data, numbers.pointer)
    axes = batch_axes(call, keys, numbers, 1, 0)
    word = keys.strides[-1]
    with fn.loop(0, product(fn, [dim for dim, _, _ in axes])) as index:
        key, number = offsets(fn, axes, index)
        found = fn.load(memory_type(numbers.dtype), at(fn, numbers.dtype, numbers.pointer, number))
        extended = fn.convert("sext" if numbers.dtype.kind == "i" else "zext", found, "i64")
        places = [fn.gep(keys.pointer, fn.add(key, step), "i32") for step in (0, word)]
        words = [fn.load("i32", place) for place in places]
        target = fn.gep(result, fn.mul(index, 2), "i32")
        fn.call("void", "dsl_lib_fold_in_u32", *words, extended, target)


@routine("fold_in")
def _build_fold(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`fold_in(k0, k1, data, y)`."""
    f = module.function(
        symbol, "void", [("i32", "k0"), ("i32", "k1"), ("i64", "data"), ("ptr", "y")]
    )
    k0, k1, data, y = f.params
    high = f.convert("trunc", f.binary("lshr", data, 32), "i32")
    w0, w1 = threefry(f, k0, k1, high, f.convert("trunc", data, "i32"))
    f.store(w0, y)
    f.store(w1, f.gep(y, 4))
    f.ret()


LOWERINGS = {"random_bits": _random_bits, "fold_in": _fold_in}
