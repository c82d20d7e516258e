"""Triangular factors with row exchanges, and triangular systems, as in SciPy: `lu`, `lu_factor`, `lu_solve`,
`solve_triangular`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import ShapeError
from dsl.frontend.functions.matrices import (
    number,
    of_matrix,
    operands,
    real_dtype,
    require_square,
)
from dsl.frontend.functions.values import Array, broadcast_run_time, drop_axis, insert_axis, iota
from dsl.frontend.library import implements
from dsl.frontend.scopes import Storage, current_scope, current_trace, here
from dsl.frontend.traced import Traced, fresh, lift, read, wrap
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.types import BY_NAME

__all__: list[str] = []

I32 = BY_NAME["i32"]


@implements("lu_factor", namespace="linalg")
def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Triangular factors in one array, and the row that each step swapped, as `scipy.linalg.lu_factor`."""
    return of_matrix("lu", a)


@implements("lu", namespace="linalg")
def lu(
    a: Any,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
) -> Any:
    """Permutation, lower and upper triangular factors with `a = p @ l @ u`, as `scipy.linalg.lu`."""
    packed, pivots = of_matrix("lu", a)
    *_, m, n = packed.type.shape
    k = number(dim_min(m, n))
    lower = np.tril(packed[..., :, :k], -1) + (iota(m)[:, None] == iota(n)[:k]).astype(packed.dtype)
    upper = np.triu(packed[..., :k, :])
    rows = _permutation(pivots, m)
    if p_indices and not permute_l:
        return np.argsort(rows, axis=-1).astype(I32), lower, upper
    matrix = iota(m)[:, None] == rows[..., None, :]
    if permute_l:
        return matrix.astype(packed.dtype) @ lower, upper
    return matrix.astype(real_dtype(packed.dtype)), lower, upper


def _permutation(pivots: Array, m: DimLike) -> Array:
    """Return which row each row came from after swapping row k with row `pivots[k]` for each k in turn."""
    trace, outer = current_trace(), current_scope()
    assert trace is not None
    *batch, steps = pivots.type.shape
    rows = outer.emit("broadcast_to", read(iota(m)), shape=(*batch, m))
    swaps = read(pivots.astype(np.int64))
    trips = outer.size(steps)
    with trace.region("swap rows") as scope:
        given = [scope.param(v.type) for v in (trips, rows, swaps)]
        step, now, table = (Traced(Storage(v, scope)) for v in given)
        body = scope.finish([read(_swap(step, now, table, m))])
        scope.closed = True
    inputs = (trips, rows, swaps, *scope.captured)
    return fresh(
        outer.node("scan", inputs, {"carried": 1}, regions=(body,), types=(rows.type,)).output
    )


def _swap(step: Array, rows: Array, pivots: Array, m: DimLike) -> Array:
    places = iota(m)
    here_, there = places == step, places == pivots[..., step][..., None]
    first = rows[..., step][..., None]
    second = np.sum(np.where(there, rows, 0), axis=-1, keepdims=True)
    return np.where(here_, second, np.where(there, first, rows))


@implements("lu_solve", namespace="linalg")
def lu_solve(
    lu_and_piv: Any, b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """Solve with the result of `lu_factor`; `trans` 1 is for the transpose, 2 for the adjoint."""
    packed, pivots = lu_and_piv
    packed, rhs = operands(packed, b)
    require_square(packed)
    if trans == 2:
        packed = np.conjugate(packed)
    vector = rhs.ndim == 1
    rhs = rhs[:, None] if vector else rhs
    rows = _permutation(lift(pivots), packed.type.shape[-1])
    order = rows if trans == 0 else np.argsort(rows, axis=-1)
    if trans == 0:
        half = _triangular(packed, _reorder(rhs, order), lower=True, unit=True)
        found = _triangular(packed, half, lower=False)
    else:
        half = _triangular(packed, rhs, lower=False, transpose=True)
        found = _reorder(_triangular(packed, half, lower=True, transpose=True, unit=True), order)
    return found[..., 0] if vector else found


def _reorder(x: Array, rows: Array) -> Array:
    """Return `x` with its rows in the order of `rows`."""
    if rows.ndim == 1:
        return np.take(x, rows, axis=-2)
    return np.take_along_axis(x, rows[..., None], -2)


def _triangular(
    a: Array, b: Array, *, lower: bool, transpose: bool = False, unit: bool = False
) -> Array:
    left, right = broadcast_run_time(a, b)
    scope = current_scope()
    return wrap(
        scope.emit("triangular_solve", left, right, lower=lower, transpose=transpose, unit=unit)
    )


@implements("solve_triangular", namespace="linalg")
def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Solve with a triangle of `a`, its transpose (`trans` 1) or its adjoint (2), as SciPy's."""
    kinds = {0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2}
    if trans not in kinds:
        raise ShapeError(
            f"trans must be one of 0, 1, 2, 'N', 'T', 'C', got {trans!r}", location=here()
        )
    x, y = operands(a, b)
    if kinds[trans] == 2:
        x = np.conjugate(x)
    vector = y.ndim == 1
    right = fresh(insert_axis(read(y), -1)) if vector else y
    found = _triangular(
        x, right, lower=bool(lower), transpose=kinds[trans] > 0, unit=bool(unit_diagonal)
    )
    return wrap(drop_axis(read(found), -1)) if vector else found
