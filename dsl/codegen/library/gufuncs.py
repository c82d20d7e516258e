"""Calls of the C loops behind NumPy's generalised ufuncs: stacks of arrays in C order, no Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsl.codegen.library.call import product
from dsl.codegen.library.foreign import data_symbol, ufunc_symbol
from dsl.codegen.llvm import Function, Operand, Value

__all__ = ["Stack", "call_loop", "call_stacks", "loop_data"]


@dataclass(frozen=True)
class Stack:
    """Arrays of one shape, one after another, each in C order."""

    dtype: np.dtype
    pointer: Value
    shape: tuple[Operand, ...]


def call_stacks(
    fn: Function,
    name: str,
    types: str,
    count: Operand,
    dims: Sequence[Operand],
    stacks: Sequence[Stack],
) -> None:
    """Emit a call of a linear algebra loop on `count` arrays of each stack; `dims` are the sizes its signature names."""
    outer = [fn.mul(product(fn, s.shape), s.dtype.itemsize) for s in stacks]
    inner = [
        fn.mul(product(fn, s.shape[k + 1 :]), s.dtype.itemsize)
        for s in stacks
        for k in range(len(s.shape))
    ]
    pointers = [stack.pointer for stack in stacks]
    call_loop(fn, ufunc_symbol("linalg", name, types), pointers, [count, *dims], [*outer, *inner])


def call_loop(
    fn: Function, symbol: str, pointers: Sequence[Value], dims: Sequence[Operand], steps: Sequence[Operand],
    data: Value | None = None,
) -> None:  # fmt: skip
    """Emit `loop(pointers, dims, steps, data)`; steps are in bytes."""
    args = fn.alloca(8 * len(pointers))
    for k, pointer in enumerate(pointers):
        fn.store(pointer, fn.gep(args, k, "ptr"))
    tables = []
    for numbers in (dims, steps):
        tables.append(fn.alloca(8 * len(numbers)))
        for k, number in enumerate(numbers):
            fn.store(fn.as_value(number, "i64"), fn.gep(tables[-1], k, "i64"))
    fn.call("void", symbol, args, *tables, data or Value("null", "ptr"))


def loop_data(fn: Function, module: str, name: str, types: str) -> Value:
    """Return the `data` that a ufunc's loop wants."""
    symbol = data_symbol(module, name, types)
    fn.module.include(symbol, f"@{symbol} = external global i8")
    return Value(f"@{symbol}", "ptr")
