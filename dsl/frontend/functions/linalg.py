"""`dsl.linalg`: NumPy's linear algebra, and from SciPy `lu`, `lu_factor`, `lu_solve` and `solve_triangular`.

As in NumPy, whole numbers and bools are computed as float64, single precision stays single, half precision is refused,
and axes in front of the last two are batches. What differs, because dtypes and ranks are settled before data are seen:

- `eig` and `eigvals` always return complex arrays, where NumPy returns real ones if all imaginary parts are zero;
- `lstsq` works by the singular value decomposition; its residuals have a size that is known only at run time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.linalg import _linalg

import dsl.frontend.functions.triangular  # noqa: F401 - registers its functions
from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.functions import contract
from dsl.frontend.functions.matrices import (
    adjoint,
    emit_linalg,
    eye,
    matrix_error,
    number,
    of_matrix,
    operands,
    real_dtype,
    require_matrices,
    require_square,
)
from dsl.frontend.functions.norms import norm
from dsl.frontend.functions.values import (
    Array,
    broadcast_run_time,
    drop_axis,
    insert_axis,
    of_dtype,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    constant,
    fresh,
    lift,
    read,
    transpose_view,
    wrap,
)
from dsl.ir.dims import DimLike, dim_max
from dsl.ir.ops.rules import differ, shape_text
from dsl.ir.types import BY_NAME, size_of

__all__: list[str] = []

# NumPy's own classes of results; their fields are annotated as arrays.
_results: Any = _linalg
F64, C128, I32 = (BY_NAME[name] for name in ("f64", "c128", "i32"))


# -- factorisations ----------------------------------------------------------------------------------------------


@implements("cholesky", namespace="linalg")
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Cholesky factor of a positive definite matrix."""
    return of_matrix("cholesky", a, upper=bool(upper))


@implements("qr", namespace="linalg")
def qr(a: Any, mode: str = "reduced") -> Any:
    """Orthogonal and upper triangular factors."""
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ShapeError(f"Unrecognized mode '{mode}'", location=here())
    if mode == "raw":
        raise UnsupportedError(
            "qr with mode='raw'", location=here(), remedy="use 'reduced' or 'complete'"
        )
    found = of_matrix("qr", a, mode=mode)
    return found if mode == "r" else _results.QRResult(*found)


@implements("svd", namespace="linalg")
def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Singular value decomposition."""
    if hermitian:
        return _hermitian_svd(a, compute_uv)
    if not compute_uv:
        return svdvals(a)
    return _results.SVDResult(*of_matrix("svd", a, full_matrices=bool(full_matrices)))


def _hermitian_svd(a: Any, compute_uv: bool) -> Any:
    """The decomposition from eigenvalues; their signs go into `vh`."""
    if not compute_uv:
        return np.sort(np.abs(eigvalsh(a)))[..., ::-1]
    s, u = eigh(a)
    order = np.argsort(np.abs(s))[..., ::-1]
    s, u = np.take_along_axis(s, order, -1), np.take_along_axis(u, order[..., None, :], -1)
    signs = np.copysign(s.dtype.type(1.0), s)
    return _results.SVDResult(u, np.abs(s), adjoint(u * signs[..., None, :]))


@implements("svdvals", namespace="linalg")
def svdvals(x: Any, /) -> Any:
    """Singular values, falling."""
    return of_matrix("svdvals", x)


def _is_lower(uplo: str) -> bool:
    if uplo.upper() not in ("L", "U"):
        raise ShapeError("UPLO argument must be 'L' or 'U'", location=here())
    return uplo.upper() == "L"


@implements("eigh", namespace="linalg")
def eigh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues, rising, and eigenvectors of a Hermitian matrix."""
    return _results.EighResult(*of_matrix("eigh", a, lower=_is_lower(UPLO)))


@implements("eigvalsh", namespace="linalg")
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of a Hermitian matrix, rising."""
    return of_matrix("eigvalsh", a, lower=_is_lower(UPLO))


@implements("eig", namespace="linalg")
def eig(a: Any) -> Any:
    """Eigenvalues and right eigenvectors, always complex."""
    return _results.EigResult(*of_matrix("eig", a))


@implements("eigvals", namespace="linalg")
def eigvals(a: Any) -> Any:
    """Eigenvalues, always complex."""
    return of_matrix("eigvals", a)


# -- solving -----------------------------------------------------------------------------------------------------


@implements("solve", namespace="linalg")
def solve(a: Any, b: Any) -> Any:
    """The solution of `a @ x = b`; a `b` of rank 1 is a vector, else a stack of matrices."""
    x, y = operands(a, b)
    require_square(x)
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
    return of_matrix("inv", a)


@implements("det", namespace="linalg")
def det(a: Any) -> Any:
    """Determinant."""
    return of_matrix("det", a)


@implements("slogdet", namespace="linalg")
def slogdet(a: Any) -> Any:
    """Sign and logarithm of the determinant."""
    return _results.SlogdetResult(*of_matrix("slogdet", a))


def _as_array(x: Any) -> Array:
    """Return a tolerance as an array with a dtype of its own."""
    return fresh(read(x)) if isinstance(x, Traced) else constant(x)


_NO_VALUE: Any = np._NoValue


@implements("pinv", namespace="linalg")
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _NO_VALUE) -> Any:
    """Moore-Penrose inverse; singular values up to a fraction of the largest count as zero."""
    (x,) = operands(a)
    require_matrices(x)
    *batch, m, n = x.type.shape
    if 0 in (m, n):
        return np.zeros_like(x).reshape((*batch, n, m))
    u, s, vh = svd(np.conjugate(x), full_matrices=False, hermitian=hermitian)
    cutoff = _pinv_cutoff(rcond, rtol, lift(a))[..., None] * np.max(s, axis=-1, keepdims=True)
    scale = np.where(s > cutoff, s.dtype.type(1) / s, s.dtype.type(0))
    return vh.mT @ (scale[..., None] * u.mT)


def _pinv_cutoff(rcond: Any, rtol: Any, a: Array) -> Array:
    if rcond is not None:
        if rtol is not _NO_VALUE:
            raise ShapeError("`rtol` and `rcond` can't be both set.", location=here())
        return _as_array(rcond)
    if rtol is None:
        return _as_array(number(dim_max(*a.type.shape[-2:])) * np.finfo(a.dtype).eps)
    return _as_array(1e-15 if rtol is _NO_VALUE else rtol)


@implements("matrix_rank", namespace="linalg")
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Number of singular values above a tolerance."""
    if rtol is not None and tol is not None:
        raise ShapeError("`tol` and `rtol` can't be both set.", location=here())
    x: Array = lift(A)
    if x.ndim < 2:
        some: Array = np.any(x != 0)
        return fresh(read(some.astype(np.int64)), Kind.PYTHON)
    s = svd(x, compute_uv=False, hermitian=hermitian)
    if tol is None:
        fraction = number(dim_max(*x.type.shape[-2:])) * np.finfo(s.dtype).eps
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
        raise matrix_error("cond is not defined on empty arrays")
    if p is None or p in (2, -2):
        s = svd(a, compute_uv=False)
        ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        singular = False
    else:
        ratio, singular = _cond_by_inverse(a, p)
    undefined = np.any(np.isnan(a), axis=(-2, -1))
    return np.where((np.isnan(ratio) | singular) & ~undefined, ratio.dtype.type(np.inf), ratio)[()]


def _cond_by_inverse(a: Array, p: Any) -> tuple[Any, Any]:
    """Return the product of two norms, and for which matrices it stands for infinity."""
    (x,) = operands(a)
    require_square(x)
    packed, _ = emit_linalg("lu", x)
    singular = np.any(np.diagonal(packed, 0, -2, -1) == 0, axis=-1)
    safe = np.where(singular[..., None, None], eye(x.type.shape[-1], x.dtype), x)
    ratio = norm(a, p, (-2, -1)) * norm(inv(safe), p, (-2, -1))
    return ratio.astype(real_dtype(x.dtype)), singular


@implements("lstsq", namespace="linalg")
def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Least-squares solution, residuals, rank and singular values."""
    x, y = operands(a, b)
    vector = y.ndim == 1
    y = fresh(insert_axis(read(y), -1)) if vector else y
    require_matrices(x, y, stacked=False)
    m, n = x.type.shape
    if differ(m, y.type.shape[0]):
        raise matrix_error("Incompatible dimensions")
    dtype, double = x.dtype, C128 if x.dtype.kind == "c" else F64
    wide, right = of_dtype(x, double), of_dtype(y, double)
    solution, rank, s = _least_squares(wide, right, _lstsq_cutoff(rcond, dim_max(m, n)))
    rest = _residuals(wide, right, solution, rank)
    real = real_dtype(dtype)
    solution = of_dtype(solution[..., 0] if vector else solution, dtype)
    return solution, of_dtype(rest, real), rank, of_dtype(s, real)


def _lstsq_cutoff(rcond: Any, size: DimLike) -> Any:
    eps = float(np.finfo(F64).eps)
    if rcond is None:
        return eps * number(size)
    if isinstance(rcond, Traced):
        given: Array = rcond
        return np.where(given < 0, eps, given)
    return eps if rcond < 0 else rcond


def _least_squares(a: Array, b: Array, cutoff: Any) -> tuple[Array, Array, Array]:
    u, s, vh = svd(a, full_matrices=False)
    kept = s > cutoff * np.max(s, axis=-1, initial=0)
    scale = np.where(kept, 1.0 / s, 0.0)
    solution = adjoint(vh) @ (scale[:, None] * (adjoint(u) @ b))
    return solution, np.sum(kept, axis=-1).astype(I32), s


def _residuals(a: Array, b: Array, solution: Array, rank: Array) -> Array:
    """Return squared distances, one per column of `b`, or none of them unless `a` is tall and of full rank."""
    (m, n), columns = a.shape, b.shape[1]
    gap = b - a @ solution
    squares = np.sum((np.conjugate(gap) * gap).real, axis=0)
    if isinstance(m, int) and isinstance(n, int) and m <= n:
        return squares[:0]
    full = (rank == n) & (m > n)
    return squares[: fresh(read(full.astype(np.int64) * columns), Kind.PYTHON)]


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
        raise matrix_error(
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


# -- products and diagonals --------------------------------------------------------------------------------------


@implements("matrix_power", namespace="linalg")
def matrix_power(a: Any, n: Any) -> Any:
    """A square matrix times itself, `n` times; a negative `n` is for the inverse."""
    x = lift(a)
    require_square(x)
    try:
        count = n.__index__()
    except AttributeError:
        raise TypeRuleError("exponent must be an integer", location=here()) from None
    if count == 0:
        one = read(eye(x.type.shape[-1], x.dtype))
        return fresh(current_scope().emit("broadcast_to", one, shape=x.type.shape))
    return _power(inv(x) if count < 0 else x, abs(count))


def _power(x: Array, n: int) -> Array:
    """Multiply by squares, from the lowest bit of `n` up."""
    result: Any = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else result @ square
        n >>= 1
        square = square @ square if n else square
    return result


@implements("multi_dot", namespace="linalg")
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Product of several matrices in the cheapest order."""
    matrices = [lift(x) for x in arrays]
    if len(matrices) < 2:
        raise ShapeError("Expecting at least two arrays.", location=here())
    if len(matrices) == 2:
        return contract.dot(matrices[0], matrices[1], out)
    ends = (matrices[0].ndim == 1, matrices[-1].ndim == 1)
    require_matrices(*matrices[ends[0] : len(matrices) - ends[1]], stacked=False)
    for left, right in pairwise(matrices):
        _require_aligned(left, right)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    names = [letters[k : k + 2] for k in range(len(matrices))]
    names[0] = names[0][1:] if ends[0] else names[0]
    names[-1] = names[-1][:1] if ends[1] else names[-1]
    result = ("" if ends[0] else names[0][0]) + ("" if ends[1] else names[-1][-1])
    return _FUNCTIONS["einsum"](f"{','.join(names)}->{result}", *matrices, out=out)


def _require_aligned(x: Array, y: Array) -> None:
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
