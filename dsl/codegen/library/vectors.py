"""Vectors of 64 bytes, and the few instructions on them that the text builder writes for scalars only.

A type is a scalar's (`i32`) or a vector's (`<16 x i32>`); these functions take both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.codegen.llvm import Function, Operand, Value, float_constant

__all__ = [
    "BYTES", "compare", "constant", "fcompare", "first_lanes", "int_type", "intrinsic", "lanes", "last", "load_some", "mask_bits",
    "mask_type", "merge", "merge_all", "reduce", "reduce_add", "select", "shift_in", "splat", "store_some", "toss",
    "vector",
]  # fmt: skip

BYTES = 64
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def vector(element: str, count: int | None = None) -> str:
    """Return the type of a vector, of 64 bytes if no count is given."""
    return f"<{count or BYTES * 8 // _BITS[element]} x {element}>"


def lanes(type: str) -> int:
    """Return the number of elements; 0 for a scalar."""
    return int(type[1:].split(" x ")[0]) if type.startswith("<") else 0


def element(type: str) -> str:
    return type[1:-1].split(" x ")[1] if type.startswith("<") else type


def _like(type: str, scalar: str) -> str:
    return vector(scalar, lanes(type)) if lanes(type) else scalar


def mask_type(type: str) -> str:
    return _like(type, "i1")


def int_type(type: str) -> str:
    """Return the type of the bits of a float type."""
    return _like(type, f"i{_BITS[element(type)]}")


def constant(number: float, type: str) -> Value:
    """Return a number, in each element of a vector."""
    scalar = element(type)
    text = float_constant(number, scalar).text if scalar in _SUFFIX else str(int(number))
    return Value(f"splat ({scalar} {text})" if lanes(type) else text, type)


def compare(fn: Function, predicate: str, a: Value, b: Value) -> Value:
    a, b = fn.use(a), fn.use(b)
    return fn.define(mask_type(a.type), f"icmp {predicate} {a.type} {a.text}, {b.text}")


def fcompare(fn: Function, predicate: str, a: Value, b: Value) -> Value:
    a, b = fn.use(a), fn.use(b)
    return fn.define(mask_type(a.type), f"fcmp {predicate} {a.type} {a.text}, {b.text}")


def select(fn: Function, condition: Value, a: Value, b: Value) -> Value:
    condition, a, b = fn.use(condition), fn.use(a), fn.use(b)
    return fn.define(
        a.type, f"select {condition.type} {condition.text}, {a.type} {a.text}, {b.type} {b.text}"
    )


def toss(fn: Function, condition: Value, a: Operand, b: Operand) -> Value:
    """Select without a branch, for conditions that are as good as random."""
    marks = fn.module.__dict__.setdefault("_unpredictable", None) or fn.module.metadata("!{}")
    fn.module.__dict__["_unpredictable"] = marks
    kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else "i64"
    x, y, test = fn.as_value(a, kind), fn.as_value(b, kind), fn.use(condition)
    operands = f"i1 {test.text}, {kind} {x.text}, {kind} {y.text}"
    return fn.define(kind, f"select {operands}, !unpredictable {marks}")


def first_lanes(fn: Function, type: str, count: Operand) -> Value:
    """Return the mask of the first `count` elements, at most all."""
    numbers = vector("i64", lanes(type))
    every = Value("<" + ", ".join(f"i64 {k}" for k in range(lanes(type))) + ">", numbers)
    return compare(fn, "slt", every, splat(fn, fn.as_value(count, "i64"), numbers))


def load_some(fn: Function, type: str, address: Value, mask: Value, align: int) -> Value:
    """Load the elements of a mask; the others are zero, and are not read.

    The call has the form that `widen` writes: a module has one declaration of it.
    """
    name = f"llvm.masked.load.v{lanes(type)}{_SUFFIX.get(element(type), element(type))}.p0"
    fn.module.declare(name, type, ["ptr", "i32", mask.type, type])
    place, mask = fn.use(address), fn.use(mask)
    operands = f"ptr {place.text}, i32 {align}, {mask.type} {mask.text}, {type} zeroinitializer"
    return fn.define(type, f"call {type} @{name}({operands})")


def store_some(fn: Function, value: Value, address: Value, mask: Value, align: int) -> None:
    """Store the elements of a mask; the others are not written."""
    type = value.type
    name = f"llvm.masked.store.v{lanes(type)}{_SUFFIX.get(element(type), element(type))}.p0"
    fn.module.declare(name, "void", [type, "ptr", "i32", mask.type])
    value, place, mask = fn.use(value), fn.use(address), fn.use(mask)
    operands = f"{type} {value.text}, ptr {place.text}, i32 {align}, {mask.type} {mask.text}"
    fn.emit(f"call void @{name}({operands})")


def intrinsic(fn: Function, name: str, *args: Value, result: str = "") -> Value:
    """Call an intrinsic overloaded on the type of its first argument."""
    type = args[0].type
    scalar = _SUFFIX.get(element(type), element(type))
    suffix = f"v{lanes(type)}{scalar}" if lanes(type) else scalar
    return fn.call(result or type, f"{name}.{suffix}", *args)


def reduce(fn: Function, name: str, a: Value) -> Value:
    """Reduce a vector to a scalar: add smax smin umax umin or and fmax fmaximum …"""
    return intrinsic(fn, f"llvm.vector.reduce.{name}", a, result=element(a.type))


def reduce_add(fn: Function, a: Value) -> Value:
    """Return the sum of the elements of a vector of floats, in any order."""
    kind = element(a.type)
    name = f"llvm.vector.reduce.fadd.v{lanes(a.type)}{_SUFFIX[kind]}"
    return fn.call(kind, name, constant(0.0, kind), a, flags="reassoc")


def splat(fn: Function, scalar: Value, type: str) -> Value:
    """Return a vector with a scalar in each element."""
    if not lanes(type):
        return scalar
    scalar = fn.use(scalar)
    one = fn.define(type, f"insertelement {type} poison, {scalar.type} {scalar.text}, i64 0")
    return shuffle(fn, one, one, [0] * lanes(type))


def shuffle(fn: Function, a: Value, b: Value, places: Sequence[int]) -> Value:
    a, b = fn.use(a), fn.use(b)
    mask = ", ".join(f"i32 {place}" for place in places)
    return fn.define(
        a.type,
        f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{len(places)} x i32> <{mask}>",
    )


def shift_in(fn: Function, a: Value, filler: Value, distance: int) -> Value:
    """Move elements up by a distance; the first ones come from `filler`."""
    count = lanes(a.type)
    return shuffle(
        fn, filler, a, [i if i < distance else count + i - distance for i in range(count)]
    )


def last(fn: Function, a: Value) -> Value:
    """Return the last element."""
    a = fn.use(a)
    return fn.define(element(a.type), f"extractelement {a.type} {a.text}, i64 {lanes(a.type) - 1}")


def mask_bits(fn: Function, mask: Value) -> Value:
    """Return a vector of i1 as an integer of as many bits."""
    return fn.convert("bitcast", mask, f"i{lanes(mask.type)}")


_PLAIN = {"i": {"add": "add", "multiply": "mul"}, "f": {"add": "fadd", "multiply": "fmul"}}
_PLAIN["u"] = _PLAIN["i"]
_PREFIX = {"i": "s", "u": "u", "f": ""}


def merge(fn: Function, op: str, dtype: np.dtype, a: Value, b: Value) -> Value:
    """Return the add, multiply, maximum or minimum of vectors of integers, float32 or float64; a NaN wins."""
    if op in _PLAIN[dtype.kind]:
        return fn.binary(_PLAIN[dtype.kind][op], a, b)
    name = op if dtype.kind == "f" else op[:3]
    return intrinsic(fn, f"llvm.{_PREFIX[dtype.kind]}{name}", a, b)


def merge_all(fn: Function, op: str, dtype: np.dtype, a: Value) -> Value:
    """Return the add, maximum or minimum of the elements of a vector; not the add of floats."""
    if op == "add":
        return reduce(fn, "add", a)
    return reduce(fn, f"f{op}" if dtype.kind == "f" else f"{_PREFIX[dtype.kind]}{op[:3]}", a)
