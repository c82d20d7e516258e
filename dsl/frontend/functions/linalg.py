"""`dsl.linalg`: NumPy's linear algebra, and from SciPy `lu`, `lu_factor`, `lu_solve` and `solve_triangular`.

As in NumPy, whole numbers and bools are computed as float64, single precision stays single, half precision is refused,
and axes in front of the last two are batches. What differs, because dtypes and ranks are settled before data are seen:

- `eig` and `eigvals` always return complex arrays, where NumPy returns real ones if all imaginary parts are zero;
- `lstsq` works by the singular value decomposition; its residuals have a size that is known only at run time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import _linalg

from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.functions import contract
from dsl.frontend.functions.values import (
    broadcast_batches,
    common_dtype,
    drop_axis,
    insert_axis,
    iota,
    of_dtype,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    constant,
    fresh,
    lift,
    normalise_axis,
    read,
    size_number,
    transpose_view,
    wrap,
)
from dsl.ir.dims import DimLike, dim_max, dim_min
from dsl.ir.graph import Value
from dsl.ir.ops.linalg import MatrixError
from dsl.ir.ops.rules import differ, shape_text
from dsl.ir.types import BY_NAME, size_of

__all__: list[str] = []

# NumPy's own classes of results; their fields are annotated as arrays.
_results: Any = _linalg
F32, F64, C64, C128 = (BY_NAME[name] for name in ("f32", "f64", "c64", "c128"))
I32 = BY_NAME["i32"]


# -- operands ----------------------------------------------------------------------------------------------------


def _linalg_dtype(*arrays: Traced) -> np.dtype:
    """Return the dtype that LAPACK computes with: anything that is not floating counts as float64."""
    single = is_complex = False
    for x in arrays:
        if x.dtype.kind not in "biu" and x.dtype not in (F32, F64, C64, C128):
            raise TypeRuleError(f"array type {x.dtype.name} is unsupported in linalg", location=here())
        is_complex |= x.dtype.kind == "c"
    single = all(x.dtype in (F32, C64) for x in arrays)
    return (C64 if single else C128) if is_complex else (F32 if single else F64)


def _real_dtype(dtype: np.dtype) -> np.dtype:
    return {C64: F32, C128: F64}.get(dtype, dtype)


def _operands(*operands: Any) -> tuple[Traced, ...]:
    """Return operands as arrays of the dtype that LAPACK computes with."""
    arrays = tuple(lift(x) for x in operands)
    dtype = _linalg_dtype(*arrays)
    return tuple(of_dtype(x, dtype) for x in arrays)


def _emit(op: str, *operands: Traced, **attrs: Any) -> Any:
    """Apply a primitive; several outputs come as a tuple."""
    values = [read(x) for x in operands]
    found = tuple(wrap(v) for v in current_scope().node(op, values, attrs).outputs)
    return found[0] if len(found) == 1 else found


def _of_matrix(op: str, a: Any, **attrs: Any) -> Any:
    return _emit(op, *_operands(a), **attrs)


def _fail(message: str) -> MatrixError:
    return MatrixError(message, location=here())


def _require_matrices(*arrays: Traced, stacked: bool = True) -> None:
    for x in arrays:
        if x.ndim < 2 or (x.ndim > 2 and not stacked):
            least = "at least " if stacked else ""
            raise _fail(f"{x.ndim}-dimensional array given. Array must be {least}two-dimensional")


def _require_square(x: Traced) -> None:
    _require_matrices(x)
    if differ(*x.type.shape[-2:]):
        raise _fail("Last 2 dimensions of the array must be square")


def _number(dim: DimLike) -> Any:
    return dim if isinstance(dim, int) else size_number(dim)


def _adjoint(x: Traced) -> Traced:
    return np.conjugate(x.mT) if x.dtype.kind == "c" else x.mT  # type: ignore[return-value, call-overload]


def _eye(n: DimLike, dtype: np.dtype) -> Traced:
    places = iota(n)
    return (places[:, None] == places).astype(dtype)  # type: ignore[no-any-return]


# -- factorisations ----------------------------------------------------------------------------------------------


@implements("cholesky", namespace="linalg")
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Cholesky factor of a positive definite matrix."""
    return _of_matrix("cholesky", a, upper=bool(upper))


@implements("qr", namespace="linalg")
def qr(a: Any, mode: str = "reduced") -> Any:
    """Orthogonal and upper triangular factors."""
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ShapeError(f"Unrecognized mode '{mode}'", location=here())
    if mode == "raw":
        raise UnsupportedError("qr with mode='raw'", location=here(), remedy="use 'reduced' or 'complete'")
    found = _of_matrix("qr", a, mode=mode)
    return found if mode == "r" else _results.QRResult(*found)


@implements("svd", namespace="linalg")
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular value decomposition."""
    if hermitian:
        return _hermitian_svd(a, compute_uv)
    if not compute_uv:
        return svdvals(a)
    return _results.SVDResult(*_of_matrix("svd", a, full_matrices=bool(full_matrices)))


def _hermitian_svd(a: Any, compute_uv: bool) -> Any:
    """The decomposition from eigenvalues; their signs go into `vh`."""
    if not compute_uv:
        return np.sort(np.abs(eigvalsh(a)))[..., ::-1]
    s, u = eigh(a)
    order = np.argsort(np.abs(s))[..., ::-1]
    s, u = np.take_along_axis(s, order, -1), np.take_along_axis(u, order[..., None, :], -1)
    signs = np.copysign(s.dtype.type(1.0), s)
    return _results.SVDResult(u, np.abs(s), _adjoint(u * signs[..., None, :]))


@implements("svdvals", namespace="linalg")
def svdvals(x: Any, /) -> Any:
    """Singular values, falling."""
    return _of_matrix("svdvals", x)


def _is_lower(uplo: str) -> bool:
    if uplo.upper() not in ("L", "U"):
        raise ShapeError("UPLO argument must be 'L' or 'U'", location=here())
    return uplo.upper() == "L"


@implements("eigh", namespace="linalg")
def eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - NumPy's name
    """Eigenvalues, rising, and eigenvectors of a Hermitian matrix."""
    return _results.EighResult(*_of_matrix("eigh", a, lower=_is_lower(UPLO)))


@implements("eigvalsh", namespace="linalg")
def eigvalsh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - NumPy's name
    """Eigenvalues of a Hermitian matrix, rising."""
    return _of_matrix("eigvalsh", a, lower=_is_lower(UPLO))


@implements("eig", namespace="linalg")
def eig(a: Any) -> Any:
    """Eigenvalues and right eigenvectors, always complex."""
    return _results.EigResult(*_of_matrix("eig", a))


@implements("eigvals", namespace="linalg")
def eigvals(a: Any) -> Any:
    """Eigenvalues, always complex."""
    return _of_matrix("eigvals", a)


# -- triangular factors with row exchanges -----------------------------------------------------------------------


@implements("lu_factor", namespace="linalg")
def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Triangular factors in one array, and the row that each step swapped, as `scipy.linalg.lu_factor`."""
    return _of_matrix("lu", a)


@implements("lu", namespace="linalg")
def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False
) -> Any:
    """Permutation, lower and upper triangular factors with `a = p @ l @ u`, as `scipy.linalg.lu`."""
    packed, pivots = _of_matrix("lu", a)
    *_, m, n = packed.type.shape
    k = _number(dim_min(m, n))
    lower = np.tril(packed[..., :, :k], -1) + (iota(m)[:, None] == iota(n)[:k]).astype(packed.dtype)
    upper = np.triu(packed[..., :k, :])
    rows = _permutation(pivots, m)
    if p_indices and not permute_l:
        return np.argsort(rows, axis=-1).astype(I32), lower, upper
    matrix = iota(m)[:, None] == rows[..., None, :]
    if permute_l:
        return matrix.astype(packed.dtype) @ lower, upper
    return matrix.astype(_real_dtype(packed.dtype)), lower, upper


def _permutation(pivots: Traced, m: DimLike) -> Traced:
    """Return which row each row came from after swapping row k with row `pivots[k]` for each k in turn."""
    trace, outer = current_trace(), current_scope()
    assert trace is not None
    *batch, steps = pivots.type.shape
    rows = outer.emit("broadcast_to", read(iota(m)), shape=(*batch, m))
    swaps = read(pivots.astype(np.int64))
    trips = outer.size(steps)
    with trace.region("swap rows") as scope:
        given = [scope.param(v.type) for v in (trips, rows, swaps)]
        step, now, table = (Traced(_storage(v)) for v in given)
        swapped = read(_swap(step, now, table, m))
        body = scope.finish([swapped])
        scope.close()
    inputs = (trips, rows, swaps, *scope.captured)
    return fresh(outer.node("scan", inputs, {"carried": 1}, regions=(body,), types=(rows.type,)).output)


def _storage(value: Value) -> Any:
    from dsl.frontend.scopes import Storage

    return Storage(value, current_scope())


def _swap(step: Traced, rows: Traced, pivots: Traced, m: DimLike) -> Traced:
    places = iota(m)
    here_, there = places == step, places == pivots[..., step][..., None]
    first = rows[..., step][..., None]
    second = np.sum(np.where(there, rows, 0), axis=-1, keepdims=True)
    return np.where(here_, second, np.where(there, first, rows))  # type: ignore[return-value]


@implements("lu_solve", namespace="linalg")
def lu_solve(lu_and_piv: Any, b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """Solve with the result of `lu_factor`; `trans` 1 is for the transpose, 2 for the adjoint."""
    packed, pivots = lu_and_piv
    packed, rhs = _operands(packed, b)
    _require_square(packed)
    if trans == 2:
        packed = np.conjugate(packed)  # type: ignore[call-overload]
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


def _reorder(x: Traced, rows: Traced) -> Traced:
    """Return `x` with its rows in the order of `rows`."""
    if rows.ndim == 1:
        return np.take(x, rows, axis=-2)  # type: ignore[return-value, call-overload]
    return np.take_along_axis(x, rows[..., None], -2)  # type: ignore[return-value, arg-type]


def _triangular(
    a: Traced, b: Traced, *, lower: bool, transpose: bool = False, unit: bool = False
) -> Traced:
    attrs = {"lower": lower, "transpose": transpose, "unit": unit}
    left, right = broadcast_run_time(a, b)
    return wrap(current_scope().emit("triangular_solve", left, right, **attrs))


def broadcast_run_time(a: Traced, b: Traced) -> tuple[Value, Value]:
    """Return two stacks of matrices whose batches the type rules can broadcast."""
    x, y = read(a), read(b)
    if x.tensor.is_static() and y.tensor.is_static() or min(len(x.shape), len(y.shape)) < 3:
        return x, y
    return broadcast_batches(x, y)


@implements("solve_triangular", namespace="linalg")
def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Solve with a triangle of `a`, its transpose (`trans` 1) or its adjoint (2), as SciPy's."""
    kinds = {0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2}
    if trans not in kinds:
        raise ShapeError(f"trans must be one of 0, 1, 2, 'N', 'T', 'C', got {trans!r}", location=here())
    x, y = _operands(a, b)
    if kinds[trans] == 2:
        x = np.conjugate(x)  # type: ignore[call-overload]
    vector = y.ndim == 1
    right = fresh(insert_axis(read(y), -1)) if vector else y
    found = _triangular(x, right, lower=bool(lower), transpose=kinds[trans] > 0, unit=bool(unit_diagonal))
    return wrap(drop_axis(read(found), -1)) if vector else found


# -- solving -----------------------------------------------------------------------------------------------------


@implements("solve", namespace="linalg")
def solve(a: Any, b: Any) -> Any:
    """The solution of `a @ x = b`; a `b` of rank 1 is a vector, else a stack of matrices."""
    x, y = _operands(a, b)
    _require_square(x)
    if y.ndim != 1:
        return wrap(current_scope().emit("solve", *broadcast_run_time(x, y)))
    if differ(y.type.shape[0], x.type.shape[-1]):
        raise ShapeError(
            "solve1: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (m,m),(m)->(m) "
            f"(size {y.type.shape[0]} is different from {x.type.shape[-1]})",
            location=here(),
        )
    return wrap(drop_axis(current_scope().emit("solve", read(x), insert_axis(read(y), -1)), -1))


@implements("inv", namespace="linalg")
def inv(a: Any) -> Any:
    """Inverse of a matrix."""
    return _of_matrix("inv", a)


@implements("det", namespace="linalg")
def det(a: Any) -> Any:
    """Determinant."""
    return _of_matrix("det", a)


@implements("slogdet", namespace="linalg")
def slogdet(a: Any) -> Any:
    """Sign and logarithm of the determinant."""
    return _results.SlogdetResult(*_of_matrix("slogdet", a))


def _as_array(x: Any) -> Traced:
    """Return a tolerance as an array with a dtype of its own."""
    return fresh(read(x)) if isinstance(x, Traced) else constant(x)


_NO_VALUE: Any = np._NoValue


@implements("pinv", namespace="linalg")
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _NO_VALUE) -> Any:
    """Moore-Penrose inverse; singular values up to a fraction of the largest count as zero."""
    (x,) = _operands(a)
    _require_matrices(x)
    *batch, m, n = x.type.shape
    if 0 in (m, n):
        return np.zeros_like(x).reshape((*batch, n, m))
    u, s, vh = svd(np.conjugate(x), full_matrices=False, hermitian=hermitian)  # type: ignore[call-overload]
    cutoff = _pinv_cutoff(rcond, rtol, lift(a))[..., None] * np.max(s, axis=-1, keepdims=True)
    scale = np.where(s > cutoff, s.dtype.type(1) / s, s.dtype.type(0))
    return vh.mT @ (scale[..., None] * u.mT)


def _pinv_cutoff(rcond: Any, rtol: Any, a: Traced) -> Traced:
    if rcond is not None:
        if rtol is not _NO_VALUE:
            raise ShapeError("`rtol` and `rcond` can't be both set.", location=here())
        return _as_array(rcond)
    if rtol is None:
        return _as_array(_number(dim_max(*a.type.shape[-2:])) * np.finfo(a.dtype).eps)
    return _as_array(1e-15 if rtol is _NO_VALUE else rtol)


@implements("matrix_rank", namespace="linalg")
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:  # noqa: N803
    """Number of singular values above a tolerance."""
    if rtol is not None and tol is not None:
        raise ShapeError("`tol` and `rtol` can't be both set.", location=here())
    x = lift(A)
    if x.ndim < 2:
        return fresh(read(np.any(x != 0).astype(np.int64)), Kind.PYTHON)  # type: ignore[arg-type]
    s = svd(x, compute_uv=False, hermitian=hermitian)
    if tol is None:
        fraction = _number(dim_max(*x.type.shape[-2:])) * np.finfo(s.dtype).eps
        fraction = fraction if rtol is None else _as_array(rtol)[..., None]
        limit = np.max(s, axis=-1, keepdims=True, initial=0) * fraction
    else:
        limit = _as_array(tol)[..., None]
    return np.sum(s > limit, axis=-1)


@implements("cond", namespace="linalg")
def cond(x: Any, p: Any = None) -> Any:
    """Condition number; that of a singular matrix is infinite."""
    a = lift(x)
    if 0 in a.type.shape[-2:]:
        raise _fail("cond is not defined on empty arrays")
    if p is None or p in (2, -2):
        s = svd(a, compute_uv=False)
        ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        singular = False
    else:
        ratio, singular = _cond_by_inverse(a, p)
    undefined = np.any(np.isnan(a), axis=(-2, -1))
    return np.where((np.isnan(ratio) | singular) & ~undefined, ratio.dtype.type(np.inf), ratio)[()]


def _cond_by_inverse(a: Traced, p: Any) -> tuple[Any, Any]:
    """Return the product of two norms, and for which matrices it stands for infinity."""
    (x,) = _operands(a)
    _require_square(x)
    packed, _ = _emit("lu", x)
    singular = np.any(np.diagonal(packed, 0, -2, -1) == 0, axis=-1)
    safe = np.where(singular[..., None, None], _eye(x.type.shape[-1], x.dtype), x)
    ratio = norm(a, p, (-2, -1)) * norm(inv(safe), p, (-2, -1))
    return ratio.astype(_real_dtype(x.dtype)), singular


@implements("lstsq", namespace="linalg")
def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Least-squares solution, residuals, rank and singular values."""
    x, y = _operands(a, b)
    vector = y.ndim == 1
    y = fresh(insert_axis(read(y), -1)) if vector else y
    _require_matrices(x, y, stacked=False)
    m, n = x.type.shape
    if differ(m, y.type.shape[0]):
        raise _fail("Incompatible dimensions")
    dtype, double = x.dtype, C128 if x.dtype.kind == "c" else F64
    wide, right = of_dtype(x, double), of_dtype(y, double)
    solution, rank, s = _least_squares(wide, right, _lstsq_cutoff(rcond, dim_max(m, n)))
    rest = _residuals(wide, right, solution, rank)
    real = _real_dtype(dtype)
    solution = of_dtype(solution[..., 0] if vector else solution, dtype)
    return solution, of_dtype(rest, real), rank, of_dtype(s, real)


def _lstsq_cutoff(rcond: Any, size: DimLike) -> Any:
    eps = float(np.finfo(F64).eps)
    if rcond is None:
        return eps * _number(size)
    return np.where(rcond < 0, eps, rcond) if isinstance(rcond, Traced) else eps if rcond < 0 else rcond


def _least_squares(a: Traced, b: Traced, cutoff: Any) -> tuple[Traced, Traced, Traced]:
    u, s, vh = svd(a, full_matrices=False)
    kept = s > cutoff * np.max(s, axis=-1, initial=0)
    scale = np.where(kept, 1.0 / s, 0.0)
    solution = _adjoint(vh) @ (scale[:, None] * (_adjoint(u) @ b))
    return solution, np.sum(kept, axis=-1).astype(I32), s


def _residuals(a: Traced, b: Traced, solution: Traced, rank: Traced) -> Traced:
    """Return squared distances, one per column of `b`, or none of them unless `a` is tall and of full rank."""
    (m, n), columns = a.shape, b.shape[1]
    gap = b - a @ solution
    squares = np.sum((np.conjugate(gap) * gap).real, axis=0)  # type: ignore[attr-defined]
    if isinstance(m, int) and isinstance(n, int) and m <= n:
        return squares[:0]  # type: ignore[no-any-return]
    full = (rank == n) & (m > n)
    return squares[: fresh(read(full.astype(np.int64) * columns), Kind.PYTHON)]  # type: ignore[no-any-return]


@implements("tensorsolve", namespace="linalg")
def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """The solution `x` of `tensordot(a, x, x.ndim) = b`."""
    x, y = lift(a), lift(b)
    order = list(range(x.ndim))
    for k in axes or ():
        order.remove(k)
        order.append(k)
    x = transpose_view(x, tuple(order))
    shape = x.type.shape[-(x.ndim - y.ndim) :]
    size = size_of(shape)
    if differ(size_of(x.type.shape), size * size):
        raise _fail(
            "Input arrays must satisfy the requirement             "
            "prod(a.shape[b.ndim:]) == prod(a.shape[:b.ndim])"
        )
    return solve(x.reshape((size, size)), y.ravel()).reshape(shape)


@implements("tensorinv", namespace="linalg")
def tensorinv(a: Any, ind: int = 2) -> Any:
    """Inverse of a tensor as a map from its last axes to its first `ind`."""
    if ind <= 0:
        raise ShapeError("Invalid ind argument.", location=here())
    x = lift(a)
    shape = x.type.shape
    rows = size_of(shape[ind:])
    return inv(x.reshape((rows, size_of(shape[:ind])))).reshape((*shape[ind:], *shape[:ind]))


# -- norms -------------------------------------------------------------------------------------------------------


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


def _frobenius(x: Traced, keepdims: bool) -> Any:
    flat = x.reshape(-1)
    parts = (flat.real, flat.imag) if x.dtype.kind == "c" else (flat,)
    found = np.sqrt(sum(part @ part for part in parts))  # type: ignore[call-overload]
    return found.reshape((1,) * x.ndim) if keepdims else found


def _squares(x: Traced) -> Any:
    return (np.conjugate(x) * x).real if x.dtype.kind == "c" else x * x  # type: ignore[call-overload]


def _vector_norm(x: Traced, ord: Any, axis: int, keepdims: bool) -> Any:
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    if isinstance(ord, str):
        raise ShapeError(f"Invalid norm order '{ord}' for vectors", location=here())
    if ord is None or ord == 2:
        return np.sqrt(np.sum(_squares(x), **options))
    if ord == 0:
        return np.sum((x != 0).astype(x.real.dtype), **options)
    sizes: Any = np.abs(x)  # type: ignore[call-overload]
    if ord == np.inf:
        return np.max(sizes, **options, initial=0)
    if ord == -np.inf:
        return np.min(sizes, **options)
    if ord == 1:
        return np.sum(sizes, **options)
    return np.sum(sizes**ord, **options) ** sizes.dtype.type(1 / ord)


def _matrix_norm(x: Traced, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    row, column = (normalise_axis(a, x.ndim) for a in axes)
    if row == column:
        raise ShapeError("Duplicate axes given.", location=here())
    last = transpose_view(x, (*(k for k in range(x.ndim) if k not in (row, column)), row, column))
    found = _norm_of_matrices(last, ord)
    if not keepdims:
        return found
    return found.reshape(tuple(1 if k in (row, column) else d for k, d in enumerate(x.type.shape)))


def _norm_of_matrices(x: Traced, ord: Any) -> Any:
    if ord in (None, "fro", "f"):
        return np.sqrt(np.sum(_squares(x), axis=(-2, -1)))
    if ord in (2, -2, "nuc"):
        s = svdvals(x)
        return np.max(s, -1, initial=0) if ord == 2 else np.min(s, -1) if ord == -2 else np.sum(s, -1)
    if ord not in (1, -1, np.inf, -np.inf):
        raise ShapeError("Invalid norm order for matrices.", location=here())
    sums = np.sum(np.abs(x), axis=-2 if abs(ord) == 1 else -1)  # type: ignore[call-overload]
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


# -- products and diagonals --------------------------------------------------------------------------------------


@implements("matrix_power", namespace="linalg")
def matrix_power(a: Any, n: Any) -> Any:
    """A square matrix times itself, `n` times; a negative `n` is for the inverse."""
    x = lift(a)
    _require_square(x)
    try:
        count = n.__index__()
    except AttributeError:
        raise TypeRuleError("exponent must be an integer", location=here()) from None
    if count == 0:
        eye = _eye(x.type.shape[-1], x.dtype)
        return fresh(current_scope().emit("broadcast_to", read(eye), shape=x.type.shape))
    return _power(inv(x) if count < 0 else x, abs(count))


def _power(x: Traced, n: int) -> Traced:
    """Multiply by squares, from the lowest bit of `n` up."""
    result: Any = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else result @ square
        n >>= 1
        square = square @ square if n else square  # type: ignore[operator]
    return result  # type: ignore[no-any-return]


@implements("multi_dot", namespace="linalg")
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Product of several matrices in the cheapest order."""
    operands = [lift(x) for x in arrays]
    if len(operands) < 2:
        raise ShapeError("Expecting at least two arrays.", location=here())
    if len(operands) == 2:
        return contract.dot(*operands, out=out)
    ends = (operands[0].ndim == 1, operands[-1].ndim == 1)
    _require_matrices(*operands[ends[0] : len(operands) - ends[1]], stacked=False)
    for left, right in zip(operands, operands[1:]):
        _require_aligned(left, right)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    names = [letters[k : k + 2] for k in range(len(operands))]
    names[0] = names[0][1:] if ends[0] else names[0]
    names[-1] = names[-1][:1] if ends[1] else names[-1]
    result = ("" if ends[0] else names[0][0]) + ("" if ends[1] else names[-1][-1])
    return _FUNCTIONS["einsum"](f"{','.join(names)}->{result}", *operands, out=out)


def _require_aligned(x: Traced, y: Traced) -> None:
    a, b = x.type.shape, y.type.shape
    if differ(a[-1], b[0]):
        raise ShapeError(
            f"shapes {shape_text(a)} and {shape_text(b)} not aligned: {a[-1]} (dim {len(a) - 1}) != {b[0]} (dim 0)",
            location=here(),
        )


@implements("matmul", namespace="linalg")
def matmul(x1: Any, x2: Any, /) -> Any:
    """Matrix product."""
    return contract.matmul(x1, x2)


@implements("tensordot", namespace="linalg")
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """Sum of products over given axes."""
    return contract.tensordot(x1, x2, axes=axes)


@implements("vecdot", namespace="linalg")
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Dot products along an axis, the first operand conjugated."""
    return contract.vecdot(x1, x2, axis=axis)


@implements("outer", namespace="linalg")
def outer(x1: Any, x2: Any, /) -> Any:
    """Outer product of two vectors."""
    x, y = lift(x1), lift(x2)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(
            f"Input arrays must be one-dimensional, but they are x1.ndim={x.ndim} and x2.ndim={y.ndim}.",
            location=here(),
        )
    return contract.outer(x, y)


@implements("cross", namespace="linalg")
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross product of vectors of 3 components."""
    x, y = lift(x1), lift(x2)
    sizes = x.type.shape[axis], y.type.shape[axis]
    if any(differ(size, 3) for size in sizes):
        raise ShapeError(
            "Both input arrays must be (arrays of) 3-dimensional vectors, "
            f"but they are {sizes[0]} and {sizes[1]} dimensional instead.",
            location=here(),
        )
    return contract.cross(x, y, axis=axis)


@implements("trace", namespace="linalg")
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sum along a diagonal of matrices, the last two axes."""
    return _FUNCTIONS["trace"](x, offset, axis1=-2, axis2=-1, dtype=dtype)


@implements("diagonal", namespace="linalg")
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """A diagonal of matrices, the last two axes."""
    return _FUNCTIONS["diagonal"](x, offset, axis1=-2, axis2=-1)


@implements("matrix_transpose", namespace="linalg")
def matrix_transpose(x: Any, /) -> Any:
    """Matrices transposed; a view."""
    a = lift(x)
    if a.ndim < 2:
        raise ShapeError(
            f"Input array must be at least 2-dimensional, but it is {a.ndim}", location=here()
        )
    return a.mT
