"""A scalar of any dtype that changes over time: one variable, or two for the parts of a complex number."""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Scalar, register_type, zero
from dsl.codegen.llvm import Function

__all__ = ["Cell"]


class Cell:
    """A scalar that changes over time."""

    def __init__(self, fn: Function, dtype: np.dtype) -> None:
        self._fn, self._dtype = fn, dtype
        count = 2 if dtype.kind == "c" else 1
        self._parts = [fn.variable(register_type(dtype)) for _ in range(count)]

    def get(self) -> Scalar:
        values = [part.get() for part in self._parts]
        return (values[0], values[1]) if len(values) == 2 else values[0]

    def set(self, scalar: Scalar) -> None:
        values = scalar if isinstance(scalar, tuple) else (scalar,)
        for part, value in zip(self._parts, values, strict=True):
            part.set(value)

    def set_zero(self) -> None:
        self.set(zero(self._fn, self._dtype))
