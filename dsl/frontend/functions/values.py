"""Small steps on values that the functions of several namespaces share: dtypes, shapes, products, sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Traced, cast, fresh, lift, read, supported_dtype
from dsl.frontend.ufuncs import _common_shape
from dsl.ir.graph import Value
from dsl.ir.types import Shape

Array = Any  # a Traced, typed loosely so that NumPy's own functions accept it

__all__ = [
    "Array", "broadcast_batches", "broadcast_run_time", "broadcast_value", "common_dtype", "conjugate",
    "drop_axis", "insert_axis", "iota", "multiply_matrices", "of_dtype", "promoted", "reshape_value",
    "stack_last", "sum_axes", "transpose_value",
]  # fmt: skip


def common_dtype(*operands: Traced) -> np.dtype:
    """Return the dtype that arrays promote to."""
    try:
        return supported_dtype(np.result_type(*(x.dtype for x in operands)))
    except TypeError as error:
        raise TypeRuleError(str(error), location=here()) from None


def of_dtype(x: Array, dtype: np.dtype) -> Array:
    """Return `x` itself if it has the dtype, else a converted copy."""
    return x if x.dtype == dtype else fresh(cast(read(x), dtype), x.kind)


def promoted(*operands: Any) -> tuple[Value, ...]:
    """Return operands as values of the dtype that they promote to."""
    arrays = [lift(x) for x in operands]
    dtype = common_dtype(*arrays)
    return tuple(cast(read(x), dtype) for x in arrays)


def reshape_value(x: Value, shape: Shape) -> Value:
    """Return the elements of `x` in another shape."""
    return x if x.shape == shape else current_scope().emit("reshape", x, shape=shape)


def transpose_value(x: Value, axes: Iterable[int]) -> Value:
    """Return `x` with axis k being its axis `axes[k]`."""
    order = tuple(axes)
    return (
        x if order == tuple(range(len(order))) else current_scope().emit("transpose", x, axes=order)
    )


def insert_axis(x: Value, axis: int) -> Value:
    """Return `x` with an axis of size 1 at `axis`, counted in the result."""
    at = axis % (len(x.shape) + 1)
    return reshape_value(x, (*x.shape[:at], 1, *x.shape[at:]))


def drop_axis(x: Value, axis: int) -> Value:
    """Return `x` without an axis of size 1."""
    at = axis % len(x.shape)
    return reshape_value(x, (*x.shape[:at], *x.shape[at + 1 :]))


def broadcast_value(x: Value, shape: Shape) -> Value:
    """Return `x` broadcast to `shape`."""
    return x if x.shape == shape else current_scope().emit("broadcast_to", x, shape=shape)


def conjugate(x: Value) -> Value:
    """Return the complex conjugate; reals as they are."""
    return current_scope().emit("conjugate", x) if x.dtype.kind == "c" else x


def sum_axes(x: Value, axes: Iterable[int]) -> Value:
    """Return the sum over axes in the dtype of `x`."""
    chosen = tuple(sorted(axes))
    return current_scope().emit("sum", x, axes=chosen) if chosen else x


def iota(size: Any, dtype: Any = np.int64) -> Array:
    """Return the vector 0, 1, 2, … of `size` elements."""
    return fresh(current_scope().emit("iota", size=size, dtype=np.dtype(dtype)))


def multiply_matrices(x: Value, y: Value) -> Value:
    """Multiply stacks of matrices of one dtype; batch sizes known only at run time are made to agree."""
    static = x.tensor.is_static() and y.tensor.is_static()
    if len(x.shape) > 2 and len(y.shape) > 2 and not static:
        x, y = broadcast_batches(x, y)
    return current_scope().emit("matmul", x, y)


def broadcast_batches(x: Value, y: Value) -> tuple[Value, Value]:
    """Broadcast the dims in front of the last two."""
    batch = _common_shape([x.shape[:-2], y.shape[:-2]])
    first, second = (broadcast_value(v, (*batch, *v.shape[-2:])) for v in (x, y))
    return first, second


def broadcast_run_time(a: Array, b: Array) -> tuple[Value, Value]:
    """Return two stacks of matrices whose batches the type rules can broadcast."""
    x, y = read(a), read(b)
    static = x.tensor.is_static() and y.tensor.is_static()
    if static or min(len(x.shape), len(y.shape)) < 3:
        return x, y
    return broadcast_batches(x, y)


def stack_last(parts: Sequence[Array]) -> Array:
    """Join arrays of one type along a new last axis."""
    columns = [insert_axis(read(part), -1) for part in parts]
    return fresh(current_scope().emit("concatenate", *columns, axis=len(columns[0].shape) - 1))
