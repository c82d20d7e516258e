"""What compiled code knows of a value: scalars in registers, arrays in memory.

A scalar of a dtype is one LLVM value, or a pair (real part, imaginary part) for complex dtypes:

| dtype | in a register | in memory |
| --- | --- | --- |
| bool | i1 | i8, 0 or 1 |
| i8 … u64 | i8 … i64 | the same |
| f16 | half | half |
| bf16 | i16, its bits | i16 |
| f32, f64 | float, double | the same |
| c64, c128 | two floats, two doubles | the two parts, one after the other |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsl.codegen.llvm import Function, Operand, Value
from dsl.ir.types import BFLOAT16

__all__ = [
    "Array",
    "Scalar",
    "load_scalar",
    "memory_type",
    "register_type",
    "store_scalar",
    "zero",
]

Scalar = Value | tuple[Value, Value]

_REGISTER = {"b": "i1", "f2": "half", "f4": "float", "f8": "double", "c8": "float", "c16": "double"}


def register_type(dtype: np.dtype) -> str:
    """Return the LLVM type of a scalar in a register; of one part for complex dtypes."""
    if dtype == BFLOAT16:
        return "i16"
    if dtype.kind in "iu":
        return f"i{8 * dtype.itemsize}"
    return _REGISTER["b" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"]


def memory_type(dtype: np.dtype) -> str:
    """Return the LLVM type of an element in memory; of one part for complex dtypes."""
    return "i8" if dtype.kind == "b" else register_type(dtype)


def load_scalar(fn: Function, dtype: np.dtype, address: Value, metadata: str = "") -> Scalar:
    """Load an element; elements are as aligned as their size, or their part's, unless `metadata` brings its own."""
    if dtype.kind == "c":
        part, size = register_type(dtype), dtype.itemsize // 2
        return (
            fn.load(part, address, align=size, metadata=metadata),
            fn.load(part, fn.gep(address, 1, part), align=size, metadata=metadata),
        )
    found = fn.load(memory_type(dtype), address, align=dtype.itemsize, metadata=metadata)
    return fn.convert("trunc", found, "i1") if dtype.kind == "b" else found


def store_scalar(
    fn: Function, dtype: np.dtype, value: Scalar, address: Value, metadata: str = ""
) -> None:
    """Store an element."""
    if isinstance(value, tuple):
        part, size = register_type(dtype), dtype.itemsize // 2
        fn.store(value[0], address, align=size, metadata=metadata)
        fn.store(value[1], fn.gep(address, 1, part), align=size, metadata=metadata)
        return
    stored = fn.convert("zext", value, "i8") if dtype.kind == "b" else value
    fn.store(stored, address, align=dtype.itemsize, metadata=metadata)


def zero(fn: Function, dtype: np.dtype) -> Scalar:
    """Return the zero of a dtype."""
    part = fn.as_value(0, register_type(dtype))
    return (part, part) if dtype.kind == "c" else part


@dataclass(frozen=True)
class Array:
    """An array in memory: the address of its first element, its dims, and its strides in elements."""

    dtype: np.dtype
    pointer: Value
    dims: tuple[Operand, ...]
    strides: tuple[Operand, ...]

    def address(self, fn: Function, index: tuple[Operand, ...]) -> Value:
        """Emit the address of an element."""
        place: Operand = 0
        for i, stride in zip(index, self.strides, strict=True):
            place = fn.add(place, fn.mul(i, stride))
        if self.dtype.kind == "c":
            return fn.gep(self.pointer, fn.mul(place, 2), memory_type(self.dtype))
        return fn.gep(self.pointer, place, memory_type(self.dtype))
