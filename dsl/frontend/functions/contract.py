"""Products that sum: matmul, dot and its relatives, tensordot, kron, cross.

Operands are taken as NumPy takes them: `matmul`, `vecdot`, `matvec` and `vecmat` are ufuncs, to which Python numbers
have no dtype of their own (and too low a rank); elsewhere they are arrays of rank 0. Products are `matmul` nodes
wherever an index is summed over, so sums of products may be rounded in another order than NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import dsl.frontend.functions.einsum  # noqa: F401 - registers einsum
from dsl.errors import IndexTypeError, ShapeError
from dsl.frontend.functions.arguments import agree
from dsl.frontend.functions.values import (
    Array,
    common_dtype,
    conjugate,
    drop_axis,
    insert_axis,
    multiply_matrices,
    of_dtype,
    promoted,
    reshape_value,
    stack_last,
    transpose_value,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Traced,
    fresh,
    lift,
    normalise_axis,
    read,
    transpose_view,
    wrap,
)
from dsl.frontend.ufuncs import _store, apply, operand, resolve
from dsl.ir.graph import Value
from dsl.ir.ops.rules import differ, shape_text
from dsl.ir.types import Shape, size_of

__all__ = ["cross", "matmul", "outer", "tensordot", "vecdot"]


# -- operands and results ----------------------------------------------------------------------------------------


def _stored(result: Traced, out: Any, what: str = "dot") -> Traced:
    """Write a result into `out`, which must be just like it."""
    if out is None:
        return result
    target = lift(out)
    if target.dtype != result.dtype or target.type.shape != result.type.shape:
        raise ShapeError(
            "output array is not acceptable (must have the right datatype, number of dimensions, and be a C-Array)",
            location=here(),
            remedy=f"{what} gives {result.type} here, out is {target.type}",
        )
    target[...] = result
    return target


# -- matmul ------------------------------------------------------------------------------------------------------


def _resolved(ufunc: np.ufunc, x: Any, y: Any, dtype: Any) -> tuple[Value, Value]:
    """Return operands of a gufunc as values of the dtype of its loop."""
    pair = tuple(lift(v) if isinstance(v, (list, tuple)) else v for v in (x, y))
    loop = resolve(ufunc, pair, dtype)
    first, second = (operand(v, t) for v, t in zip(pair, loop))
    return first, second


def _matmul(x: Any, y: Any, dtype: Any = None) -> Traced:
    """`x @ y`."""
    return wrap(multiply_matrices(*_resolved(np.matmul, x, y, dtype)))


_FUNCTIONS["_matmul"] = _matmul


@implements("matmul")
def matmul(
    x1: Any, x2: Any, /, out: Any = None, *, casting: str = "same_kind", order: str = "K",
    dtype: Any = None, subok: bool = True, axes: Any = None,
) -> Any:  # fmt: skip
    """Matrix product of two arrays, batches in front."""
    if axes is None:
        return _store(_matmul(x1, x2, dtype), out, True, casting)
    first, second, third = axes
    left = _cores_last(lift(x1), first)
    right = _cores_last(lift(x2), second)
    return _store(_cores_back(_matmul(left, right, dtype), third), out, True, casting)


def _axes_tuple(axes: Any) -> tuple[int, ...]:
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def _cores_last(x: Traced, axes: Any) -> Traced:
    """Move core axes to the end."""
    chosen = [normalise_axis(a, x.ndim) for a in _axes_tuple(axes)]
    return transpose_view(x, (*(a for a in range(x.ndim) if a not in chosen), *chosen))


def _cores_back(x: Traced, axes: Any) -> Traced:
    """Move core axes from the end to where they are asked for."""
    chosen = [normalise_axis(a, x.ndim) for a in _axes_tuple(axes)]
    rest = iter(range(x.ndim - len(chosen)))
    place = {a: x.ndim - len(chosen) + k for k, a in enumerate(chosen)}
    return transpose_view(x, tuple(place[a] if a in place else next(rest) for a in range(x.ndim)))


# -- vecdot, matvec, vecmat --------------------------------------------------------------------------------------


def _require_rank(ufunc: np.ufunc, values: Sequence[Value], ranks: Sequence[int]) -> None:
    for index, (value, rank) in enumerate(zip(values, ranks)):
        if len(value.shape) < rank:
            raise ShapeError(
                f"{ufunc.__name__}: Input operand {index} does not have enough dimensions (has {len(value.shape)}, "
                f"gufunc core with signature {ufunc.signature} requires {rank})",
                location=here(),
            )


def _require_core(ufunc: np.ufunc, found: Any, expected: Any) -> None:
    if differ(found, expected):
        raise ShapeError(
            f"{ufunc.__name__}: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"{ufunc.signature} (size {found} is different from {expected})",
            location=here(),
        )


@implements("vecdot")
def vecdot(
    x1: Any, x2: Any, /, out: Any = None, *, casting: str = "same_kind", order: str = "K",
    dtype: Any = None, subok: bool = True, axes: Any = None, axis: Any = None,
) -> Any:  # fmt: skip
    """Dot products of vectors along an axis; the first is conjugated."""
    if axes is not None or axis is not None:
        first, second = axes[:2] if axes is not None else (axis, axis)
        x1, x2 = _cores_last(lift(x1), first), _cores_last(lift(x2), second)
    x, y = _resolved(np.vecdot, x1, x2, dtype)
    _require_rank(np.vecdot, (x, y), (1, 1))
    _require_core(np.vecdot, y.shape[-1], x.shape[-1])
    product = multiply_matrices(insert_axis(conjugate(x), -2), insert_axis(y, -1))
    return _store(wrap(drop_axis(drop_axis(product, -1), -1)), out, True, casting)


@implements("matvec")
def matvec(
    x1: Any, x2: Any, /, out: Any = None, *, casting: str = "same_kind", order: str = "K",
    dtype: Any = None, subok: bool = True, axes: Any = None,
) -> Any:  # fmt: skip
    """Products of matrices and vectors, batches in front."""
    if axes is not None:
        x1, x2 = _cores_last(lift(x1), axes[0]), _cores_last(lift(x2), axes[1])
    x, y = _resolved(np.matvec, x1, x2, dtype)
    _require_rank(np.matvec, (x, y), (2, 1))
    _require_core(np.matvec, y.shape[-1], x.shape[-1])
    result = wrap(drop_axis(multiply_matrices(x, insert_axis(y, -1)), -1))
    if axes is not None:
        result = _cores_back(result, axes[2])
    return _store(result, out, True, casting)


@implements("vecmat")
def vecmat(
    x1: Any, x2: Any, /, out: Any = None, *, casting: str = "same_kind", order: str = "K",
    dtype: Any = None, subok: bool = True, axes: Any = None,
) -> Any:  # fmt: skip
    """Products of vectors, which are conjugated, and matrices, batches in front."""
    if axes is not None:
        x1, x2 = _cores_last(lift(x1), axes[0]), _cores_last(lift(x2), axes[1])
    x, y = _resolved(np.vecmat, x1, x2, dtype)
    _require_rank(np.vecmat, (x, y), (1, 2))
    _require_core(np.vecmat, y.shape[-2], x.shape[-1])
    result = wrap(drop_axis(multiply_matrices(insert_axis(conjugate(x), -2), y), -2))
    if axes is not None:
        result = _cores_back(result, axes[2])
    return _store(result, out, True, casting)


# -- dot and its relatives ---------------------------------------------------------------------------------------


def _not_aligned(x: Shape, y: Shape) -> ShapeError:
    i, j = len(x) - 1, max(len(y) - 2, 0)
    return ShapeError(
        f"shapes {shape_text(x)} and {shape_text(y)} not aligned: "
        f"{x[i]} (dim {i}) != {y[j]} (dim {j})",
        location=here(),
    )


def _dot_along(x: Value, y: Value, axis: int) -> Value:
    """Sum over the last axis of `x` and an axis of `y`."""
    rest = [k for k in range(len(y.shape)) if k != axis]
    if differ(x.shape[-1], y.shape[axis]):
        raise _not_aligned(x.shape, tuple(y.shape[k] for k in (*rest[:-1], axis, *rest[-1:])))
    if len(y.shape) <= 2:
        return multiply_matrices(x, transpose_value(y, (axis, *rest)))
    left = reshape_value(x, (size_of(x.shape[:-1]), x.shape[-1]))
    columns = tuple(y.shape[k] for k in rest)
    right = reshape_value(transpose_value(y, (axis, *rest)), (y.shape[axis], size_of(columns)))
    return reshape_value(multiply_matrices(left, right), (*x.shape[:-1], *columns))


@implements("dot")
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Dot product: the last axis of `a` with the second to last of `b`."""
    x, y = promoted(a, b)
    if not x.shape or not y.shape:
        return _stored(apply(np.multiply, fresh(x), fresh(y)), out)
    return _stored(wrap(_dot_along(x, y, max(len(y.shape) - 2, 0))), out)


@implements("inner")
def inner(a: Any, b: Any, /) -> Any:
    """Inner product over the last axes."""
    x, y = promoted(a, b)
    if not x.shape or not y.shape:
        return apply(np.multiply, fresh(x), fresh(y))
    return wrap(_dot_along(x, y, len(y.shape) - 1))


@implements("vdot")
def vdot(a: Any, b: Any, /) -> Any:
    """Dot product of two arrays as vectors, the first conjugated."""
    x, y = (reshape_value(v, (size_of(v.shape),)) for v in promoted(a, b))
    if differ(x.shape[0], y.shape[0]):
        message = f"cannot reshape array of size {y.shape[0]} into shape {shape_text(x.shape)}"
        raise ShapeError(message, location=here())
    return wrap(multiply_matrices(conjugate(x), y))


@implements("outer")
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Products of every element of `a` with every element of `b`."""
    x, y = (reshape_value(read(lift(v)), (size_of(lift(v).type.shape),)) for v in (a, b))
    return apply(np.multiply, fresh(insert_axis(x, 1)), fresh(insert_axis(y, 0)), out=out)


@implements("tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum of products over given axes of two arrays."""
    x, y = promoted(a, b)
    first, second = _tensordot_axes(x, y, axes)
    keep_x = [k for k in range(len(x.shape)) if k not in first]
    keep_y = [k for k in range(len(y.shape)) if k not in second]
    rows, columns = tuple(x.shape[k] for k in keep_x), tuple(y.shape[k] for k in keep_y)
    left = reshape_value(
        transpose_value(x, keep_x + first),
        (size_of(rows), size_of(tuple(x.shape[k] for k in first))),
    )
    right = transpose_value(y, second + keep_y)
    right = reshape_value(right, (size_of(tuple(y.shape[k] for k in second)), size_of(columns)))
    return fresh(reshape_value(multiply_matrices(left, right), rows + columns))


def _tensordot_axes(x: Value, y: Value, axes: Any) -> tuple[list[int], list[int]]:
    if isinstance(axes, (int, np.integer)):
        first, second = list(range(-int(axes), 0)), list(range(int(axes)))
    else:
        first, second = (list(_axes_tuple(a)) for a in axes)
    ranks = len(x.shape), len(y.shape)
    if len(first) != len(second):
        raise ShapeError("shape-mismatch for sum", location=here())
    try:
        for i, j in zip(first, second):
            agree(x.shape[i], y.shape[j], "shape-mismatch for sum")
    except IndexError:
        raise IndexTypeError("tuple index out of range", location=here()) from None
    return [i % ranks[0] for i in first], [j % ranks[1] for j in second]


@implements("kron")
def kron(a: Any, b: Any) -> Any:
    """Kronecker product."""
    x, y = read(lift(a)), read(lift(b))
    if not x.shape or not y.shape:
        return apply(np.multiply, fresh(x), fresh(y))
    rank = max(len(x.shape), len(y.shape))
    rows, columns = ((1,) * (rank - len(v.shape)) + v.shape for v in (x, y))
    left = reshape_value(x, tuple(d for row in rows for d in (row, 1)))
    right = reshape_value(y, tuple(d for column in columns for d in (1, column)))
    product = apply(np.multiply, fresh(left), fresh(right))
    return fresh(reshape_value(read(product), tuple(m * n for m, n in zip(rows, columns))))


@implements("cross")
def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """Cross product of vectors of 3 components, or of 2 with a third that is zero."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = lift(a), lift(b)
    if not x.ndim or not y.ndim:
        raise ShapeError("At least one array has zero dimension", location=here())
    x, y = _cores_last(x, axisa), _cores_last(y, axisb)
    sizes = (x.type.shape[-1], y.type.shape[-1])
    if not set(sizes) <= {2, 3}:
        raise ShapeError(
            "incompatible dimensions for cross product\n(dimension must be 2 or 3)", location=here()
        )
    dtype = common_dtype(x, y)
    parts = _cross_parts(_components(x, dtype), _components(y, dtype))
    if len(parts) == 1:
        return fresh(read(parts[0]))
    return _cores_back(stack_last(parts), axisc)


def _components(x: Traced, dtype: np.dtype) -> list[Array]:
    return [of_dtype(x[..., k], dtype) for k in range(3 if x.type.shape[-1] == 3 else 2)]


def _cross_parts(a: list[Array], b: list[Array]) -> list[Array]:
    last = a[0] * b[1] - a[1] * b[0]
    if len(a) == len(b) == 2:
        return [last]
    if len(a) == 2:
        return [a[1] * b[2], -(a[0] * b[2]), last]
    if len(b) == 2:
        return [-(a[2] * b[1]), a[2] * b[0], last]
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], last]
