"""Vector instructions that matrix multiplication uses, for the vectors of a `Tiling`."""

from __future__ import annotations

from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.llvm import Function, Operand, Value

__all__ = [
    "first_lanes", "load", "masked_load", "masked_store", "multiply_add", "prefetch", "splat", "sum_of_lanes",
    "zeros",
]  # fmt: skip


def zeros(t: Tiling) -> Value:
    return Value("zeroinitializer", t.vector)


def load(fn: Function, t: Tiling, base: Value, index: Operand) -> Value:
    return fn.load(t.vector, fn.gep(base, index, t.type), align=t.size)


def splat(fn: Function, t: Tiling, element: Value) -> Value:
    """Return a vector of one element."""
    first = fn.define(t.vector, f"insertelement {t.vector} poison, {element!r}, i32 0")
    every = f"<{t.lanes} x i32> zeroinitializer"
    return fn.define(t.vector, f"shufflevector {first!r}, {t.vector} poison, {every}")


def multiply_add(fn: Function, t: Tiling, x: Value, y: Value, sum: Value) -> Value:
    """Return x * y + sum, of vectors or of elements."""
    name = t.overload if x.type == t.vector else f"f{8 * t.size}"
    return fn.call(x.type, f"llvm.fmuladd.{name}", x, y, sum)


def sum_of_lanes(fn: Function, t: Tiling, vector: Value) -> Value:
    """Return the sum of a vector: the upper half is added to the lower until one lane is left."""
    half = t.lanes // 2
    while half:
        order = ", ".join(f"i32 {i ^ half}" for i in range(t.lanes))
        other = fn.define(
            t.vector, f"shufflevector {vector!r}, {t.vector} poison, <{t.lanes} x i32> <{order}>"
        )
        vector = fn.fadd(vector, other)
        half //= 2
    return fn.define(t.type, f"extractelement {vector!r}, i32 0")


def first_lanes(fn: Function, t: Tiling, count: Operand) -> Value:
    """Return the mask of the first `count` lanes: of none below 1, of all from the number of lanes on."""
    within = fn.minimum(fn.maximum(count, 0), t.lanes)
    bits = fn.as_value(fn.sub(fn.binary("shl", 1, within), 1), "i64")
    return fn.convert("bitcast", fn.convert("trunc", bits, f"i{t.lanes}"), f"<{t.lanes} x i1>")


def masked_load(fn: Function, t: Tiling, address: Value, mask: Value) -> Value:
    """Return a vector with zeros for the lanes that are masked out, which are not read."""
    place = f"ptr align {t.size} {fn.use(address).text}"
    name = f"llvm.masked.load.{t.overload}.p0"
    fn.module.declare(name, t.vector, ["ptr", mask.type, t.vector])
    return fn.define(t.vector, f"call {t.vector} @{name}({place}, {mask!r}, {zeros(t)!r})")


def masked_store(fn: Function, t: Tiling, value: Value, address: Value, mask: Value) -> None:
    place = f"ptr align {t.size} {fn.use(address).text}"
    name = f"llvm.masked.store.{t.overload}.p0"
    fn.module.declare(name, "void", [t.vector, "ptr", mask.type])
    fn.emit(f"call void @{name}({value!r}, {place}, {mask!r})")


def prefetch(fn: Function, address: Value, *, write: bool, near: bool) -> None:
    """Start to fetch a line: into the first cache, or only into the second."""
    options = [Value(str(x), "i32") for x in (int(write), 3 if near else 2, 1)]
    fn.call("void", "llvm.prefetch.p0", address, *options)
