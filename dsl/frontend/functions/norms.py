"""Norms of vectors and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.matrices import of_matrix
from dsl.frontend.functions.values import Array, of_dtype
from dsl.frontend.library import implements
from dsl.frontend.scopes import here
from dsl.frontend.traced import lift, normalise_axis, transpose_view
from dsl.ir.types import BY_NAME, size_of

__all__ = ["norm"]

F64 = BY_NAME["f64"]


@implements("norm", namespace="linalg")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norm of vectors or matrices."""
    a = lift(x)
    a = a if a.dtype.kind in "fc" else of_dtype(a, F64)
    simple = ord is None or (ord in ("f", "fro") and a.ndim == 2) or (ord == 2 and a.ndim == 1)
    if axis is None and simple:
        return _frobenius(a, keepdims)
    axes = tuple(range(a.ndim)) if axis is None else _axis_tuple(axis)
    if len(axes) == 1:
        return _vector_norm(a, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(a, ord, axes, keepdims)
    raise ShapeError("Improper number of dimensions to norm.", location=here())


def _axis_tuple(axis: Any) -> tuple[int, ...]:
    if isinstance(axis, tuple):
        return axis
    try:
        return (int(axis),)
    except Exception:
        message = "'axis' must be None, an integer or a tuple of integers"
        raise TypeRuleError(message, location=here()) from None


def _frobenius(x: Array, keepdims: bool) -> Any:
    flat = x.reshape(-1)
    parts = (flat.real, flat.imag) if x.dtype.kind == "c" else (flat,)
    found = np.sqrt(sum(part @ part for part in parts))
    return found.reshape((1,) * x.ndim) if keepdims else found


def _squares(x: Array) -> Any:
    return (np.conjugate(x) * x).real if x.dtype.kind == "c" else x * x


def _vector_norm(x: Array, ord: Any, axis: int, keepdims: bool) -> Any:
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    if isinstance(ord, str):
        raise ShapeError(f"Invalid norm order '{ord}' for vectors", location=here())
    if ord is None or ord == 2:
        return np.sqrt(np.sum(_squares(x), **options))
    if ord == 0:
        return np.sum((x != 0).astype(x.real.dtype), **options)
    sizes: Any = np.abs(x)
    if ord == np.inf:
        return np.max(sizes, **options, initial=0)
    if ord == -np.inf:
        return np.min(sizes, **options)
    if ord == 1:
        return np.sum(sizes, **options)
    return np.sum(sizes**ord, **options) ** sizes.dtype.type(1 / ord)


def _matrix_norm(x: Array, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    row, column = (normalise_axis(a, x.ndim) for a in axes)
    if row == column:
        raise ShapeError("Duplicate axes given.", location=here())
    last = transpose_view(x, (*(k for k in range(x.ndim) if k not in (row, column)), row, column))
    found = _norm_of_matrices(last, ord)
    if not keepdims:
        return found
    return found.reshape(tuple(1 if k in (row, column) else d for k, d in enumerate(x.type.shape)))


def _norm_of_matrices(x: Array, ord: Any) -> Any:
    if ord in (None, "fro", "f"):
        return np.sqrt(np.sum(_squares(x), axis=(-2, -1)))
    if ord in (2, -2, "nuc"):
        s = of_matrix("svdvals", x)
        return (
            np.max(s, -1, initial=0) if ord == 2 else np.min(s, -1) if ord == -2 else np.sum(s, -1)
        )
    if ord not in (1, -1, np.inf, -np.inf):
        raise ShapeError("Invalid norm order for matrices.", location=here())
    sums = np.sum(np.abs(x), axis=-2 if abs(ord) == 1 else -1)
    return np.max(sums, -1, initial=0) if ord > 0 else np.min(sums, -1)


@implements("matrix_norm", namespace="linalg")
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norm of matrices, the last two axes."""
    return norm(x, ord, (-2, -1), keepdims)


@implements("vector_norm", namespace="linalg")
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Norm over any axes, taken as one vector."""
    a = lift(x)
    chosen = tuple(range(a.ndim)) if axis is None else _axis_tuple(axis)
    axes = [normalise_axis(k, a.ndim) for k in chosen]
    rest = [k for k in range(a.ndim) if k not in axes]
    shape = a.type.shape
    length = size_of(tuple(shape[k] for k in axes))
    flat = transpose_view(a, (*axes, *rest)).reshape((length, *(shape[k] for k in rest)))
    found = norm(flat, ord, 0)
    if not keepdims:
        return found
    return found.reshape(tuple(1 if k in axes else d for k, d in enumerate(shape)))
