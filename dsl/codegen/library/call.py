"""What a lowering is given: one application of an op, and the places where its operands and results are.

A lowering emits code into `call.fn`, the function of the compiled program. Most take their operands in C order, see
them as `outer x n x inner` around one axis, and call a routine of the runtime library (see `routines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dsl.codegen.arrays import Array, Scalar
from dsl.codegen.llvm import Function, Operand, Value
from dsl.errors import InternalError
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node

__all__ = ["Call", "around", "array", "as_i64", "bytes_of", "constant_of", "product"]


class Call(Protocol):
    """One op to lower. Inputs of rank 0 are scalars in registers, the others arrays with any strides."""

    @property
    def fn(self) -> Function: ...

    @property
    def node(self) -> Node: ...

    @property
    def inputs(self) -> Sequence[Array | Scalar]: ...

    def output(self, k: int = 0, dims: Sequence[Operand] | None = None) -> Array:
        """Return the memory of result k, in C order; `dims` only for a result whose size depends on data."""

    def set_output(self, k: int, scalar: Scalar) -> None:
        """Give a result of rank 0."""

    def size(self, dim: DimLike) -> Operand:
        """Return a size that an attribute or type names."""

    def scratch(self, bytes: Operand) -> Value:
        """Return memory, aligned to 64 bytes, that lives until the op ends."""

    def contiguous(self, k: int) -> Array:
        """Return input k in C order: itself or a copy."""

    def fail(self, condition: Value, kind: str, *payload: Operand) -> None:
        """Stop the program with an error if the condition is true when it runs.

        Kinds: `linalg:<message>`, `index`, `value:<message>`.
        """


def array(call: Call, k: int) -> Array:
    """Return input k, which has rank 1 or more, with the strides it has."""
    found = call.inputs[k]
    if not isinstance(found, Array):
        raise InternalError(f"{call.node.op.name}: operand {k} is a scalar")
    return found


def product(fn: Function, dims: Sequence[Operand]) -> Operand:
    """Return the number of elements of an array with these dims."""
    total: Operand = 1
    for dim in dims:
        total = fn.mul(total, dim)
    return total


def around(fn: Function, dims: Sequence[Operand], axis: int) -> tuple[Value, Value, Value]:
    """Return the elements before, along and after an axis: the array seen as `outer x n x inner`."""
    outer, inner = product(fn, dims[:axis]), product(fn, dims[axis + 1 :])
    return as_i64(fn, outer), as_i64(fn, dims[axis]), as_i64(fn, inner)


def as_i64(fn: Function, operand: Operand) -> Value:
    return fn.as_value(operand, "i64")


def constant_of(operand: Operand) -> int | None:
    """Return an integer that is known already."""
    if isinstance(operand, int):
        return operand
    return int(operand.text) if operand.text.lstrip("-").isdigit() else None


def bytes_of(fn: Function, count: Operand, dtype: np.dtype) -> Operand:
    return fn.mul(count, dtype.itemsize)
