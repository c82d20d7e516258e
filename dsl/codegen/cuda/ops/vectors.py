"""Neighbouring scalars as one access to memory.

LLVM joins accesses that it knows to be aligned. Of shared memory it does not know that, so there they are written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, memory_type, store_scalar
from dsl.codegen.llvm import Function, Value

__all__ = ["load_vector", "store_vector"]

_BYTES = 16  # of one access, at most


def load_vector(fn: Function, dtype: np.dtype, address: Value, count: int) -> list[Scalar]:
    """Load neighbours; the address is a multiple of their size, or of 16 bytes if they are larger."""
    each = max(1, _BYTES // dtype.itemsize)
    if count > each:
        places = range(0, count, each)
        found = [load_vector(fn, dtype, _moved(fn, dtype, address, k), each) for k in places]
        return [scalar for several in found for scalar in several]
    parts, part = _parts(dtype, count)
    if parts == 1:
        return [load_scalar(fn, dtype, address)]
    kind = f"<{parts} x {part}>"
    whole = fn.load(kind, address, align=count * dtype.itemsize)
    numbers = [
        fn.define(part, f"extractelement {kind} {whole.text}, i32 {k}") for k in range(parts)
    ]
    if dtype.kind == "c":
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    return [fn.convert("trunc", n, "i1") for n in numbers] if dtype.kind == "b" else list(numbers)


def store_vector(fn: Function, dtype: np.dtype, address: Value, scalars: Sequence[Scalar]) -> None:
    """Store neighbours; the address is a multiple of their size, or of 16 bytes if they are larger."""
    each = max(1, _BYTES // dtype.itemsize)
    if len(scalars) > each:
        for k in range(0, len(scalars), each):
            store_vector(fn, dtype, _moved(fn, dtype, address, k), scalars[k : k + each])
        return
    parts, part = _parts(dtype, len(scalars))
    if parts == 1:
        store_scalar(fn, dtype, scalars[0], address)
        return
    numbers = [n for s in scalars for n in (s if isinstance(s, tuple) else (s,))]
    if dtype.kind == "b":
        numbers = [fn.convert("zext", n, part) for n in numbers]
    kind, whole = f"<{parts} x {part}>", "poison"
    for k, number in enumerate(numbers):
        made = fn.define(kind, f"insertelement {kind} {whole}, {part} {number.text}, i32 {k}")
        whole = made.text
    fn.store(Value(whole, kind), address, align=len(scalars) * dtype.itemsize)


def _parts(dtype: np.dtype, count: int) -> tuple[int, str]:
    """Return how many numbers of which type so many scalars have in memory."""
    return count * (2 if dtype.kind == "c" else 1), memory_type(dtype)


def _moved(fn: Function, dtype: np.dtype, address: Value, k: int) -> Value:
    return fn.gep(address, k * dtype.itemsize)
