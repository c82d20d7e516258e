"""Calls of BLAS and LAPACK by Fortran's conventions: every argument by address, 32-bit integers."""

from __future__ import annotations

from dsl.codegen.llvm import Function, Operand, Value

__all__ = ["Argument", "call_fortran"]

Argument = Operand | bytes | tuple[Value, ...]
"""An integer, an address, one letter, or numbers that lie one after another."""


def call_fortran(fn: Function, symbol: str, *args: Argument) -> None:
    """Emit a call; pointers are passed as they are, everything else by address."""
    fn.call("void", symbol, *(_by_address(fn, arg) for arg in args))


def _by_address(fn: Function, arg: Argument) -> Value:
    if isinstance(arg, Value) and arg.type == "ptr":
        return arg
    space = fn.alloca(16)
    if isinstance(arg, tuple):
        for k, part in enumerate(arg):
            fn.store(part, fn.gep(space, k, part.type))
    elif isinstance(arg, bytes):
        fn.store(fn.as_value(arg[0], "i8"), space)
    else:
        fn.store(fn.convert("trunc", fn.as_value(arg, "i64"), "i32"), space)
    return space
