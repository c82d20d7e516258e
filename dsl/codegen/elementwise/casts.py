"""Conversions between dtypes, as NumPy's astype on x86-64 does them.

A float outside an integer's range gives what the processor's truncation gives, the smallest integer, computed with 32
bits for integers up to 32 bits and with 64 for the others, then cut. LLVM leaves such a conversion undefined, so its
result is only selected where it is defined. uint64 wraps for numbers of its range above int64's, and so does uint32,
for which NumPy's own answer outside the range depends on the element's place in the array: this is what most elements
get. From float16 and complex numbers, NumPy takes uint32 from int64.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Scalar, register_type
from dsl.codegen.llvm import Function, Value
from dsl.ir.types import BFLOAT16, is_float

__all__ = [
    "bitcast",
    "bits",
    "cast",
    "from_bits",
    "is_half",
    "narrow",
    "sign_bit",
    "truth",
    "widen",
]

_INTEGER = {"half": "i16", "float": "i32", "double": "i64"}


def is_half(dtype: np.dtype) -> bool:
    """Whether a dtype is a float of 16 bits, which is computed in float32."""
    return dtype == BFLOAT16 or dtype == np.float16


def widen(fn: Function, dtype: np.dtype, value: Value) -> Value:
    """Return a float as LLVM computes with it: float or double."""
    if dtype == BFLOAT16:
        return fn.convert(
            "bitcast", fn.binary("shl", fn.convert("zext", value, "i32"), 16), "float"
        )
    return fn.convert("fpext", value, "float") if dtype == np.float16 else value


def narrow(fn: Function, value: Value, dtype: np.dtype) -> Value:
    """Round a float or double once to a float dtype that is not wider, ties to even."""
    if dtype == BFLOAT16:
        return _to_bfloat(fn, fn.convert("fptrunc", value, "float"))
    if dtype == np.float16 and value.type == "double":
        value = _round_to_odd(fn, value)
    return fn.convert("fptrunc", value, register_type(dtype))


def bits(fn: Function, value: Value) -> Value:
    """Return the bits of a float as an integer; those of bfloat16 are its value here."""
    return fn.convert("bitcast", value, _INTEGER.get(value.type, value.type))


def from_bits(fn: Function, value: Value, type: str) -> Value:
    """Return the float of an LLVM type that has these bits."""
    return fn.convert("bitcast", value, type)


def sign_bit(type: str) -> int:
    """Return the sign bit of an integer type as a (negative) constant of it."""
    return -(1 << int(type[1:]) - 1)


def cast(fn: Function, source: np.dtype, target: np.dtype, value: Scalar) -> Scalar:
    """Convert a scalar."""
    if source == target:
        return value
    if target.kind == "b":
        return truth(fn, source, value)
    if target.kind == "c":
        return _to_complex(fn, source, target, value)
    if isinstance(value, tuple):
        value = value[0]
    if is_float(source) or source.kind == "c":
        wide = widen(fn, source, value)
        if is_float(target):
            return narrow_or_extend(fn, wide, target)
        return _to_integer(fn, source, target, wide)
    if is_float(target):
        return _integer_to_float(fn, source, target, value)
    return _resize(fn, value, register_type(target), signed=source.kind == "i")


def narrow_or_extend(fn: Function, value: Value, dtype: np.dtype) -> Value:
    """Convert a float or double to any float dtype."""
    if dtype == np.float64:
        return fn.convert("fpext", value, "double")
    return narrow(fn, value, dtype)


def truth(fn: Function, dtype: np.dtype, value: Scalar) -> Value:
    """Whether a scalar is not zero; NaN is not."""
    if isinstance(value, tuple):
        re, im = (truth(fn, _part(dtype), part) for part in value)
        return fn.either(re, im)
    if is_half(dtype):
        return fn.compare("ne", fn.binary("and", bits(fn, value), 0x7FFF), 0)
    if is_float(dtype):
        return fn.fcompare("une", value, fn.constant(0.0, value.type))
    return value if dtype.kind == "b" else fn.compare("ne", value, 0)


def bitcast(fn: Function, source: np.dtype, target: np.dtype, value: Scalar) -> Scalar:
    """Read the bits of a scalar as another dtype of the same width."""
    if source.kind == target.kind == "c":
        return value
    if isinstance(value, tuple):
        low, high = (fn.convert("zext", bits(fn, part), "i64") for part in value)
        joined = fn.binary("or", low, fn.binary("shl", high, 32))
        return fn.convert("bitcast", joined, register_type(target))
    if source.kind == "b":
        return fn.convert("zext", value, "i8")
    whole = bits(fn, value)
    if target.kind != "c":
        return fn.convert("bitcast", whole, register_type(target))
    high = fn.convert("trunc", fn.binary("lshr", whole, 32), "i32")
    low = fn.convert("trunc", whole, "i32")
    return fn.convert("bitcast", low, "float"), fn.convert("bitcast", high, "float")


def _part(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}")


def _to_complex(fn: Function, source: np.dtype, target: np.dtype, value: Scalar) -> Scalar:
    part = _part(target)
    if isinstance(value, tuple):
        re, im = (narrow_or_extend(fn, item, part) for item in value)
        return re, im
    re_only = cast(fn, source, part, value)
    assert isinstance(re_only, Value)
    return re_only, fn.constant(0.0, re_only.type)


def _to_bfloat(fn: Function, value: Value) -> Value:
    whole = bits(fn, value)
    upper = fn.binary("lshr", whole, 16)
    bias = fn.binary("add", fn.binary("and", upper, 1), 0x7FFF)
    rounded = fn.binary("lshr", fn.binary("add", whole, bias), 16)
    quiet = fn.binary("or", upper, 0x40)
    nan = fn.fcompare("uno", value, value)
    return fn.convert("trunc", fn.select(nan, quiet, rounded), "i16")


def _round_to_odd(fn: Function, value: Value) -> Value:
    """Cut a double to the precision of a float, with the last bit set if anything was lost.

    Rounding that to half gives what rounding the double gives; there is no instruction for it, and LLVM calls a function.
    """
    low = (1 << 29) - 1
    whole = bits(fn, value)
    sticky = fn.binary("add", fn.binary("and", whole, low), low)
    cut = fn.binary("and", fn.binary("or", whole, sticky), ~low)
    return fn.convert("fptrunc", from_bits(fn, cut, "double"), "float")


def _integer_to_float(fn: Function, source: np.dtype, target: np.dtype, value: Value) -> Value:
    type = "double" if target == np.float64 else "float"
    number = fn.convert("sitofp" if source.kind == "i" else "uitofp", value, type)
    return narrow(fn, number, target)


def _to_integer(fn: Function, source: np.dtype, target: np.dtype, value: Value) -> Value:
    contiguous = source.kind != "c" and source != np.float16
    if target == np.uint64 or (target == np.uint32 and contiguous):
        return _to_large_unsigned(fn, value, register_type(target))
    type = "i32" if target.itemsize < 4 or target == np.int32 else "i64"
    return fn.convert("trunc", _truncate(fn, value, type), register_type(target))


def _truncate(fn: Function, value: Value, type: str) -> Value:
    """Truncate towards zero; out of range and NaN give the smallest integer, as cvttss2si and its kin do."""
    limit = fn.constant(-float(sign_bit(type)), value.type)
    inside = fn.fcompare("olt", fn.intrinsic("llvm.fabs", value), limit)
    return fn.select(inside, fn.convert("fptosi", value, type), sign_bit(type))


def _to_large_unsigned(fn: Function, value: Value, type: str) -> Value:
    half = fn.constant(-float(sign_bit(type)), value.type)
    large = fn.fcompare("oge", value, half)
    reduced = fn.select(large, fn.fsub(value, half), value)
    top = fn.select(large, sign_bit(type), 0, type)
    return fn.binary("xor", _truncate(fn, reduced, type), top)


def _resize(fn: Function, value: Value, type: str, *, signed: bool) -> Value:
    size, wanted = int(value.type[1:]), int(type[1:])
    if size == wanted:
        return value
    return fn.convert("trunc" if wanted < size else "sext" if signed else "zext", value, type)
