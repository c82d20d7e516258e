"""What every function does with its arguments: arrays, dtypes, axes, `out=` and `keepdims=`.

The functions beside this module are written with NumPy's own functions and operators, which on traced values come back
to the library; what needs a primitive or a symbolic size goes through the helpers here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.errors import IndexTypeError, ShapeError
from dsl.frontend.accesses import note_read
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    as_shape,
    cast,
    fresh,
    lift,
    python_type,
    read,
    size_number,
    supported_dtype,
    wrap,
)
from dsl.frontend.ufuncs import _store, broadcast_values, operand
from dsl.frontend.views import Reshaped, Sliced
from dsl.ir.dims import Dim, DimLike, lower_bound, symbols_of
from dsl.ir.graph import Value
from dsl.ir.types import BFLOAT16, BOOL, I64, Shape, size_of

__all__ = [
    "NoValue", "agree", "along", "array_of", "ask", "box", "broadcast", "common", "convert", "convert_array", "counter", "dims_of",
    "drop_view", "flat_view", "gather_axis", "into", "is_half", "is_inexact", "is_symbolic", "keep_dims", "merge_axes",
    "normal_axes", "normal_axis", "number", "plain", "reduced_axes", "result_dtype", "shape_of_new", "splat", "vector_of",
    "weak", "with_dims",
]  # fmt: skip

Array = Any  # a Traced, typed loosely so that NumPy's own functions accept it
NoValue: Any = np._NoValue


# -- arrays and dtypes ---------------------------------------------------------------------------------------------


def array_of(x: Any) -> Array:
    """Return an argument as an array: NumPy's `asanyarray`."""
    handle = lift(x)
    return handle if handle.kind is Kind.ARRAY else fresh(read(handle))


def vector_of(x: Any) -> Array:
    """Return an argument as an array of rank 1, or raise NumPy's error."""
    vector = array_of(x)
    if vector.ndim != 1:
        words = "object too deep for" if vector.ndim else "object of too small depth for"
        raise ShapeError(f"{words} desired array", location=here())
    return vector


def dims_of(x: Array) -> Shape:
    """Return the shape with symbolic sizes as dims."""
    shape: Shape = x.type.shape
    return shape


def weak(x: Any) -> Any:
    """Return what NumPy's `result_type` should see of an operand."""
    if isinstance(x, (list, tuple)):
        return lift(x).dtype
    if not isinstance(x, Traced):
        return x
    return python_type(x)(0) if x.kind is Kind.PYTHON else x.dtype


def result_dtype(*xs: Any) -> np.dtype:
    """Return the dtype that operands promote to, Python numbers being weak."""
    return supported_dtype(np.result_type(*map(weak, xs)))


def convert(x: Any, dtype: Any) -> Array:
    """Return an operand as an array of `dtype`."""
    target = supported_dtype(dtype)
    if isinstance(x, (list, tuple)):
        return _FUNCTIONS["array"](x, target)
    return fresh(operand(x, target))


def convert_array(x: Any, dtype: Any) -> Array:
    """Return an operand as an array of `dtype`, numbers that do not fit wrapped, as those functions do that make arrays first."""
    return convert(lift(x), dtype)


def common(*xs: Any) -> list[Array]:
    """Return operands converted to their common dtype."""
    dtype = result_dtype(*xs)
    return [convert(x, dtype) for x in xs]


def is_inexact(dtype: np.dtype) -> bool:
    """Tell whether a dtype is a float, half or complex one."""
    return dtype.kind in "fc" or dtype == BFLOAT16


def is_half(dtype: np.dtype) -> bool:
    """Tell whether a dtype is a float of two bytes."""
    return dtype.itemsize == 2 and is_inexact(dtype)


def broadcast(*xs: Array) -> list[Array]:
    """Return arrays whose run-time sizes agree, so that primitives can broadcast them."""
    return [fresh(value) for value in broadcast_values([read(x) for x in xs])]


# -- sizes ---------------------------------------------------------------------------------------------------------


def number(dim: DimLike) -> Any:
    """Return a size as a Python number, traced if it is known only at run time."""
    return dim if isinstance(dim, int) else size_number(dim)


def counter(size: DimLike, dtype: Any = I64) -> Array:
    """Return the vector 0, 1, 2, … of `size` elements."""
    return wrap(current_scope().emit("iota", size=size, dtype=supported_dtype(dtype)))


def along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector shaped to broadcast along `axis` of an array of `rank`."""
    size = dims_of(vector)[0]
    return with_dims(vector, tuple(size if k == axis else 1 for k in range(rank)))


def splat(value: Any, shape: Shape, dtype: Any) -> Value:
    """Return an array full of one number, as a value."""
    scalar = operand(value, supported_dtype(dtype))
    return current_scope().emit("full", scalar, shape=shape) if shape else scalar


# -- axes ----------------------------------------------------------------------------------------------------------


def normal_axis(axis: Any, rank: int, prefix: str = "") -> int:
    """Return an axis as a non-negative int, or raise NumPy's error."""
    position = operator.index(axis)
    if -rank <= position < rank:
        return position % rank
    error = np.exceptions.AxisError(position, rank, *([prefix] if prefix else []))
    location = here()
    if location is not None:
        error.add_note(location.excerpt())
    raise error


def normal_axes(axis: Any, rank: int, prefix: str = "") -> tuple[int, ...]:
    """Return an `axis` argument (None, an int or a tuple) as axes in increasing order."""
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, tuple):
        return (normal_axis(axis, rank, prefix),)
    axes = tuple(sorted(normal_axis(a, rank, prefix) for a in axis))
    if len(set(axes)) != len(axes):
        raise ShapeError(
            f"{prefix}: duplicate value in 'axis'" if prefix else "duplicate value in 'axis'",
            location=here(),
        )
    return axes


def reduced_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Return the axes of a ufunc's reduction, which takes axis 0 of a rank-0 array for none."""
    if rank == 0 and not isinstance(axis, tuple) and axis is not None:
        return () if operator.index(axis) in (0, -1) else normal_axes(axis, rank)
    return normal_axes(axis, rank)


def keep_dims(result: Array, shape: Shape, axes: tuple[int, ...], keepdims: Any) -> Array:
    """Put the reduced axes back with size 1 if `keepdims` says so."""
    if keepdims is NoValue or not keepdims:
        return result
    return wrap(read(with_dims(result, tuple(1 if k in axes else d for k, d in enumerate(shape)))))


def merge_axes(x: Array, axes: tuple[int, ...]) -> Array:
    """Return `x` with `axes` merged into one in front of the others."""
    if axes == (0,):
        return x
    rest = tuple(k for k in range(x.ndim) if k not in axes)
    shape = dims_of(x)
    count = size_of(tuple(shape[k] for k in axes))
    return with_dims(
        x.transpose((*axes, *rest)) if x.ndim else x, (count, *(shape[k] for k in rest))
    )


# -- selecting -----------------------------------------------------------------------------------------------------


def with_dims(x: Array, shape: Shape) -> Array:
    """Return the elements in C order under another shape, as a value of its own."""
    return fresh(current_scope().emit("reshape", read(x), shape=shape))


def drop_view(x: Array, shape: Shape) -> Array:
    """Return a view that only adds or drops axes of size 1."""
    return x._view(Reshaped(shape)) if x.kind is Kind.ARRAY else with_dims(x, shape)


def flat_view(x: Array) -> Array:
    """Return a view of all elements in C order through which `x` can be written whatever its layout."""
    return Traced(x.storage, (*x.views, Reshaped((size_of(dims_of(x)),))))


def box(x: Array, axis: int, start: DimLike, size: DimLike, step: int = 1) -> Array:
    """Return the view of `size` elements of one axis from `start` on."""
    shape = dims_of(x)
    starts = tuple(start if k == axis else 0 for k in range(len(shape)))
    sizes = tuple(size if k == axis else d for k, d in enumerate(shape))
    steps = tuple(step if k == axis else 1 for k in range(len(shape)))
    return x._view(Sliced(starts, sizes, steps))


def gather_axis(x: Array, indices: Array, axis: int) -> Array:
    """Return `x` at integer positions along one axis; the dims of the indices take its place."""
    index = cast(read(indices), I64) if indices.dtype.kind == "b" else read(indices)
    b = current_scope()
    if 0 not in x.type.shape[:axis]:  # else `np.take` looks at no index
        note_read(b, x.type.shape, (axis,), [index])
    value = b.emit("gather", read(x), index, axes=(axis,))
    count = len(index.shape)
    if axis and count:
        order = (*range(count, count + axis), *range(count), *range(count + axis, len(value.shape)))
        value = b.emit("transpose", value, axes=order)
    return wrap(value)


# -- results -------------------------------------------------------------------------------------------------------


def into(result: Any, out: Any, casting: str = "same_kind") -> Any:
    """Return a result, or write it into `out`, which has its shape, and return that."""
    if out is None:
        return result
    got, own = dims_of(array_of(out[0] if isinstance(out, tuple) else out)), dims_of(result)
    if len(got) != len(own) or any(
        a != b and not is_symbolic(a, b) for a, b in zip(got, own, strict=True)
    ):
        text = f"output array of shape {got} does not match the result of shape {own}"
        raise ShapeError(text, location=here())
    return _store(result, out, True, casting)


def ask(
    condition: Array, message: str, error: str = "ValueError", values: Sequence[Array] = ()
) -> None:
    """Make the program raise a built-in error, its message formatted with values, when a condition is false."""
    operands = [cast(read(condition), BOOL), *map(read, values)]
    current_scope().node("assert", operands, {"message": message, "error": error})


def not_negative(dim: DimLike, message: str = "negative dimensions are not allowed") -> DimLike:
    """Return a size; the program makes sure that one which it computes is not negative.

    Symbols of numbers are at least 0 by what they are used for, which nobody has looked at yet; those of arguments at least 2.
    """
    if isinstance(dim, int) and dim < 0:
        raise ShapeError(message, location=here())
    bound = lower_bound(dim)
    if bound is None or bound < 0 or any(lower_bound(symbol) == 0 for symbol in symbols_of(dim)):
        ask(np.greater_equal(lift(number(dim)), 0), message)
    return dim


def shape_of_new(shape: Any, message: str = "negative dimensions are not allowed") -> Shape:
    """Return the shape of an array to be made; the program makes sure that sizes which it computes are not negative."""
    return tuple(not_negative(dim, message) for dim in as_shape(shape))


def agree(one: DimLike, other: DimLike, message: str, error: str = "ValueError") -> None:
    """Make the program raise unless two sizes are equal; two that are known to differ raise at once."""
    if one == other:
        return
    if isinstance(one, int) and isinstance(other, int):
        raise (IndexTypeError if error == "IndexError" else ShapeError)(message, location=here())
    template = message.replace("{", "{{").replace("}", "}}")
    ask(np.equal(lift(number(one)), number(other)), template, error)


def is_symbolic(*dims: DimLike) -> bool:
    """Tell whether a size is known only at run time."""
    return any(isinstance(dim, Dim) for dim in dims)


def plain(x: Any) -> bool:
    """Tell whether an argument holds no traced value."""
    if isinstance(x, (list, tuple)):
        return all(map(plain, x))
    return not isinstance(x, Traced)
