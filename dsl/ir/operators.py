"""The names of Python's binary operators that also have a reflected form and one in place; `divmod` has no latter."""

from __future__ import annotations

__all__ = ["BINARY"]

BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
