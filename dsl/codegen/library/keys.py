"""Order as integers: signed integers of the same width that compare as the elements do.

All NaNs are one, beyond everything else, and -0.0 is 0.0. bfloat16 is ordered as any float.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import memory_type
from dsl.codegen.library.vectors import compare, constant, int_type, select
from dsl.codegen.llvm import Function, Value

__all__ = ["from_order", "key_type", "load_key", "sort_key", "to_order"]


def key_type(dtype: np.dtype) -> str:
    return int_type(memory_type(dtype))


def load_key(
    fn: Function, dtype: np.dtype, address: Value, type: str = "", *, nan_last: bool = True
) -> Value:
    """Load an element, or a vector `type` of them, as keys."""
    found = fn.load(type or memory_type(dtype), address, align=dtype.itemsize)
    return sort_key(fn, dtype, found, nan_last=nan_last)


def sort_key(fn: Function, dtype: np.dtype, x: Value, *, nan_last: bool = True) -> Value:
    """Return the key of an element as it is in memory, or a vector of keys."""
    kind, low = int_type(x.type), -(2 ** (8 * dtype.itemsize - 1))
    word = fn.convert("bitcast", x, kind)
    if dtype.kind in "bi":
        return word
    if dtype.kind == "u":
        return fn.binary("xor", word, constant(low, kind))
    size = fn.binary("and", word, constant(~low, kind))
    opposite = fn.binary("sub", constant(0, kind), size)
    key = select(fn, compare(fn, "slt", word, constant(0, kind)), opposite, size)
    nan = compare(fn, "ugt", size, constant(_infinity(dtype), kind))
    return select(fn, nan, constant(~low if nan_last else low, kind), key)


def to_order(fn: Function, dtype: np.dtype, word: Value) -> Value:
    """Return the key of a float's bits, or of a vector of them, with NaNs last and -0.0 before 0.0."""
    kind, low = word.type, -(2 ** (8 * dtype.itemsize - 1))
    nan = compare(
        fn, "ugt", fn.binary("and", word, constant(~low, kind)), constant(_infinity(dtype), kind)
    )
    return select(fn, nan, constant(~low, kind), from_order(fn, dtype, word))


def from_order(fn: Function, dtype: np.dtype, key: Value) -> Value:
    """Return the bits of a float that has a key of `to_order`: negative numbers have all bits but the sign inverted."""
    kind, low = key.type, -(2 ** (8 * dtype.itemsize - 1))
    sign = fn.binary("ashr", key, constant(8 * dtype.itemsize - 1, kind))
    return fn.binary("xor", key, fn.binary("and", sign, constant(~low, kind)))


def _infinity(dtype: np.dtype) -> int:
    return int(np.array(np.inf, dtype).view(f"u{dtype.itemsize}"))
