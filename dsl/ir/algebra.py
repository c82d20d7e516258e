"""Ops as functions of values, for whoever writes formulas: derivative rules, batching rules, whole transformations.

`Algebra(builder)` has a method for each op of one result: `a.sin(x)`, `a.sum(x, axes=(0,))`; ops of several are applied by
`a.several("svd", x)`. Operands are values or Python numbers, which take the dtype of the values beside them. Operands
broadcast; those whose sizes cannot be compared, because both are symbolic, are taken to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import ShapeError
from dsl.ir.build import Builder
from dsl.ir.dims import DimLike
from dsl.ir.graph import Value
from dsl.ir.registry import Op, Trait, get_op
from dsl.ir.types import Shape, TensorType, broadcast_shapes, is_complex

__all__ = ["Algebra", "Operand"]

Operand = Value | int | float | complex


class Algebra:
    """Emits ops into one builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __getattr__(self, name: str) -> Callable[..., Value]:
        record = get_op(name)

        def apply(*operands: Operand, **attrs: Any) -> Value:
            (output,) = self._apply(record, operands, attrs)
            return output

        self.__dict__[name] = apply
        return apply

    def several(self, name: str, *operands: Operand, **attrs: Any) -> tuple[Value, ...]:
        """Apply an op of any number of results."""
        return self._apply(get_op(name), operands, attrs)

    def _apply(
        self, op: Op, operands: Sequence[Operand], attrs: dict[str, Any]
    ) -> tuple[Value, ...]:
        values = self.values(*operands)
        if op.has(Trait.ELEMENTWISE) and len(values) > 1:
            values = self._fitting(values)
        return self.builder.node(op, values, attrs).outputs

    def values(self, *operands: Operand) -> list[Value]:
        """Return numbers as constants of the dtype of the last value among the operands."""
        dtype = next((x.dtype for x in reversed(operands) if isinstance(x, Value)), None)
        return [x if isinstance(x, Value) else self.builder.constant(x, dtype) for x in operands]

    def _fitting(self, values: list[Value]) -> list[Value]:
        """Spell broadcasts out where the shapes alone do not tell how the operands fit."""
        shapes = [value.shape for value in values]
        try:
            broadcast_shapes(*shapes)
            return values
        except ShapeError:
            rank = max(map(len, shapes))
            padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
            whole = tuple(
                next((d for d in dims if not _is_one(d)), 1) for dims in zip(*padded, strict=True)
            )
            return [self.to_shape(value, whole) for value in values]

    # -- shapes ----------------------------------------------------------------------------------------------------

    def to_shape(self, x: Value, shape: Shape) -> Value:
        """Broadcast to a shape, which may be the own one."""
        return x if x.shape == shape else self.broadcast_to(x, shape=tuple(shape))

    def reshaped(self, x: Value, shape: Sequence[DimLike]) -> Value:
        """Reshape to a shape, which may be the own one."""
        return x if x.shape == tuple(shape) else self.reshape(x, shape=tuple(shape))

    def expanded(self, x: Value, axes: Sequence[int]) -> Value:
        """Give a value axes of size 1 at places of the result."""
        left = iter(x.shape)
        rank = len(x.shape) + len(axes)
        return self.reshaped(x, [1 if axis in axes else next(left) for axis in range(rank)])

    def zeros(self, type: TensorType) -> Value:
        """Return zeros of a type."""
        zero = self.builder.constant(0, type.dtype)
        return self.builder.emit("full", zero, shape=type.shape) if type.shape else zero

    def spread(self, number: Operand, type: TensorType) -> Value:
        """Return an array of a type full of one number."""
        one = number if isinstance(number, Value) else self.builder.constant(number, type.dtype)
        return self.to_shape(one, type.shape)

    def unbroadcast(self, x: Value, shape: Shape) -> Value:
        """Sum over the axes along which a value of `shape` was repeated to become like `x`."""
        if x.shape == shape:
            return x
        extra = len(x.shape) - len(shape)
        kept = x.shape[extra:]
        ones = [k for k, dim in enumerate(shape) if _is_one(dim) and not _is_one(kept[k])]
        axes = (*range(extra), *(extra + k for k in ones))
        found = self.sum(x, axes=axes) if axes else x
        found = self.reshaped(found, [1 if k in ones else dim for k, dim in enumerate(kept)])
        for axis, (have, want) in enumerate(zip(found.shape, shape)):
            if have != want and not (isinstance(have, int) and isinstance(want, int)):
                found = self._folded(found, axis, want)
        return self.reshaped(found, shape)

    def _folded(self, x: Value, axis: int, size: DimLike) -> Value:
        """Sum along an axis to a size that turns out to be 1 or that of the axis."""
        target = self.zeros(TensorType(x.dtype, (size, *x.shape[:axis], *x.shape[axis + 1 :])))
        many = self.not_equal(self.builder.size(size), 1)
        index = self.multiply(
            self.iota(size=x.shape[axis], dtype=np.dtype(np.int64)),
            self.cast(many, dtype=np.dtype(np.int64)),
        )
        moved = self.moved(x, axis, 0)
        return self.moved(self.scatter(target, moved, index, axes=(0,), mode="add"), 0, axis)

    def moved(self, x: Value, source: int, target: int) -> Value:
        """Move one axis to another place."""
        order = [axis for axis in range(len(x.shape)) if axis != source]
        order.insert(target, source)
        return self.permuted(x, order)

    def permuted(self, x: Value, axes: Sequence[int]) -> Value:
        """Transpose, which may change nothing."""
        return x if list(axes) == list(range(len(axes))) else self.transpose(x, axes=tuple(axes))

    # -- numbers ---------------------------------------------------------------------------------------------------

    def as_dtype(self, x: Value, dtype: np.dtype) -> Value:
        """Convert to a dtype, which may be the own one; of complex numbers to real, the real part."""
        return x if x.dtype == dtype else self.cast(x, dtype=dtype)

    def scaled(self, g: Value, factor: Operand) -> Value:
        """Return `g * factor`; a factor that is the number 1 or -1 costs no product."""
        if not isinstance(factor, Value):
            if factor == 1:
                return g
            if factor == -1:
                return self.negative(g)
        elif is_complex(factor.dtype) and not is_complex(g.dtype):
            g = self.as_dtype(g, factor.dtype)
        elif is_complex(g.dtype) and not is_complex(factor.dtype):
            factor = self.as_dtype(factor, g.dtype)
        return self.multiply(g, factor)

    def adjoint(self, x: Value) -> Value:
        """Swap the last two axes."""
        rank = len(x.shape)
        return self.permuted(x, [*range(rank - 2), rank - 1, rank - 2])

    def conjugated(self, x: Value) -> Value:
        """Conjugate complex numbers; others stay as they are."""
        return self.conjugate(x) if is_complex(x.dtype) else x


def _is_one(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim == 1
