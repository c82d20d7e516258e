"""Matrix products, factorisations and solvers.

All work on the last two axes; axes in front are batches, broadcast where an op has two inputs. Results are NumPy's.
`matmul` takes any dtype, the same for both operands: integers wrap, bools are or-of-ands, float16 and bfloat16 are
computed in float32 and rounded once. The others take float32, float64, complex64 and complex128 and keep the
precision; singular values, eigenvalues of Hermitian matrices and logarithms are real.

Ops that are CHECKED raise `np.linalg.LinAlgError` in NumPy's words for data they cannot handle: singular (`solve`,
`inv`, `triangular_solve`), not positive definite (`cholesky`), not finite (`eig`, `eigvals`), not converging (`svd`,
`svdvals`, `eig`, `eigvals`, `eigh`, `eigvalsh`; NaNs may be the cause). One bad matrix of a batch is enough. `det`,
`slogdet` and `lu` of a singular matrix are well defined. Sizes that the type rules cannot compare, because they are
symbolic, are compared when the program runs.

The ops in `NOT_UNIQUE` have several right answers: columns of `q`, singular vectors and eigenvectors have a free sign
(phase, when complex), and `eig` and `eigvals` a free order. Executors agree on them only up to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.ops.rules import (
    ANY,
    Attrs,
    differ,
    merge_dims,
    operands,
    require_same_dtype,
    shape_text,
)
from dsl.ir.registry import Sample, Trait, TypeRule, op
from dsl.ir.types import BFLOAT16, BY_NAME, DTYPES, Shape, TensorType, broadcast_shapes

__all__ = ["NOT_UNIQUE", "MatrixError"]

NOT_UNIQUE = frozenset({"qr", "svd", "eigh", "eig", "eigvals"})

Types = tuple[TensorType, ...]
F16, F32, I32 = BY_NAME["f16"], BY_NAME["f32"], BY_NAME["i32"]
LAPACK_DTYPES = tuple(BY_NAME[name] for name in ("f32", "f64", "c64", "c128"))
_REAL = {BY_NAME["c64"]: F32, BY_NAME["c128"]: BY_NAME["f64"]}
_COMPLEX = {real: dtype for dtype, real in _REAL.items()}
CHECKED = frozenset({Trait.PURE, Trait.CHECKED})


class MatrixError(ShapeError, np.linalg.LinAlgError):
    """An array of the wrong rank or shape for linear algebra; NumPy raises `LinAlgError` here."""


# -- type rules --------------------------------------------------------------------------------------------------


def _real(dtype: np.dtype) -> np.dtype:
    return _REAL.get(dtype, dtype)


def _complex(dtype: np.dtype) -> np.dtype:
    return _COMPLEX.get(dtype, dtype)


def _matrix(x: TensorType) -> tuple[Shape, DimLike, DimLike]:
    """Check that `x` is a stack of matrices that LAPACK takes; return the batch shape, rows and columns."""
    if x.dtype not in LAPACK_DTYPES:
        raise TypeRuleError(f"array type {x.dtype.name} is unsupported in linalg")
    if x.rank < 2:
        raise MatrixError(
            f"{x.rank}-dimensional array given. Array must be at least two-dimensional"
        )
    return x.shape[:-2], x.shape[-2], x.shape[-1]


def _square(x: TensorType) -> tuple[Shape, DimLike]:
    batch, rows, columns = _matrix(x)
    if differ(rows, columns):
        raise MatrixError("Last 2 dimensions of the array must be square")
    return batch, merge_dims(rows, columns)


def _of_matrix(name: str, rule: TypeRule) -> TypeRule:
    """Return a rule that first makes sure of one operand, an array."""
    return lambda inputs, attrs: rule(operands(name, inputs, x=ANY), attrs)


def _core_mismatch(name: str, signature: str, found: DimLike, expected: DimLike) -> ShapeError:
    return ShapeError(
        f"{name}: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
        f"{signature} (size {found} is different from {expected})"
    )


def _batch(x: Shape, y: Shape) -> Shape:
    """Broadcast the batch dims of two stacks of matrices."""
    try:
        return broadcast_shapes(x[:-2], y[:-2])
    except ShapeError:
        pairs = [
            f"{shape_text(s)}->({''.join(f'{d},' for d in s[:-2])}newaxis,newaxis)" for s in (x, y)
        ]
        raise ShapeError(
            "operands could not be broadcast together with remapped shapes "
            f"[original->remapped]: {' '.join(pairs)}  and requested shape {shape_text((x[-2], y[-1]))}"
        ) from None


_MATMUL = "(n?,k),(k,m?)->(n?,m?)"


def _matmul_type(inputs: Types, attrs: Attrs) -> TensorType:
    x, y = operands("matmul", inputs, x=ANY, y=ANY)
    require_same_dtype("matmul", x=x, y=y)
    for index, operand in enumerate(inputs):
        if operand.rank == 0:
            raise ShapeError(
                f"matmul: Input operand {index} does not have enough dimensions "
                f"(has 0, gufunc core with signature {_MATMUL} requires 1)"
            )
    inner = y.shape[-2] if y.rank > 1 else y.shape[0]
    if differ(x.shape[-1], inner):
        raise _core_mismatch("matmul", _MATMUL, inner, x.shape[-1])
    rows = x.shape[-2:-1] if x.rank > 1 else ()
    columns = y.shape[-1:] if y.rank > 1 else ()
    return x.with_shape(_batch(x.shape, y.shape) + rows + columns)


def _square_type(inputs: Types, attrs: Attrs) -> TensorType:
    batch, n = _square(inputs[0])
    return inputs[0].with_shape(batch + (n, n))


def _lu_type(inputs: Types, attrs: Attrs) -> Types:
    batch, rows, columns = _matrix(inputs[0])
    return inputs[0], TensorType(I32, batch + (dim_min(rows, columns),))


def _qr_type(inputs: Types, attrs: Attrs) -> TensorType | Types:
    (x,), mode = inputs, attrs["mode"]
    batch, rows, columns = _matrix(x)
    if mode not in ("reduced", "complete", "r"):
        raise TypeRuleError(f"Unrecognized mode '{mode}'")
    inner = rows if mode == "complete" else dim_min(rows, columns)
    r = x.with_shape(batch + (inner, columns))
    return r if mode == "r" else (x.with_shape(batch + (rows, inner)), r)


def _svd_type(inputs: Types, attrs: Attrs) -> Types:
    (x,), full = inputs, attrs["full_matrices"]
    batch, rows, columns = _matrix(x)
    inner = dim_min(rows, columns)
    u = x.with_shape(batch + (rows, rows if full else inner))
    vh = x.with_shape(batch + (columns if full else inner, columns))
    return u, _svdvals_type(inputs, attrs), vh


def _svdvals_type(inputs: Types, attrs: Attrs) -> TensorType:
    batch, rows, columns = _matrix(inputs[0])
    return TensorType(_real(inputs[0].dtype), batch + (dim_min(rows, columns),))


def _eigvalsh_type(inputs: Types, attrs: Attrs) -> TensorType:
    batch, n = _square(inputs[0])
    return TensorType(_real(inputs[0].dtype), batch + (n,))


def _eigh_type(inputs: Types, attrs: Attrs) -> Types:
    return _eigvalsh_type(inputs, attrs), _square_type(inputs, attrs)


def _eigvals_type(inputs: Types, attrs: Attrs) -> TensorType:
    batch, n = _square(inputs[0])
    return TensorType(_complex(inputs[0].dtype), batch + (n,))


def _eig_type(inputs: Types, attrs: Attrs) -> Types:
    vectors = _square_type(inputs, attrs)
    return _eigvals_type(inputs, attrs), vectors.with_dtype(_complex(vectors.dtype))


def _det_type(inputs: Types, attrs: Attrs) -> TensorType:
    return inputs[0].with_shape(_square(inputs[0])[0])


def _slogdet_type(inputs: Types, attrs: Attrs) -> Types:
    sign = _det_type(inputs, attrs)
    return sign, sign.with_dtype(_real(sign.dtype))


def _solver_type(name: str) -> TypeRule:
    def rule(inputs: Types, attrs: Attrs) -> TensorType:
        a, b = operands(name, inputs, a=ANY, b=ANY)
        require_same_dtype(name, a=a, b=b)
        _, n = _square(a)
        _, rows, columns = _matrix(b)
        if differ(rows, n):
            raise _core_mismatch(name, "(m,m),(m,n)->(m,n)", rows, n)
        return b.with_shape(_batch(a.shape, b.shape) + (merge_dims(n, rows), columns))

    return rule


# -- meanings ----------------------------------------------------------------------------------------------------


def _matmul(x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype in (F16, BFLOAT16):
        return np.matmul(x.astype(F32), y.astype(F32)).astype(x.dtype)
    return np.matmul(x, y)


def _eig(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, v = np.linalg.eig(x)
    dtype = _complex(x.dtype)
    return w.astype(dtype, copy=False), v.astype(dtype, copy=False)


def _eigvals(x: np.ndarray) -> np.ndarray:
    return np.linalg.eigvals(x).astype(_complex(x.dtype), copy=False)


def _uplo(lower: bool) -> Any:
    return "L" if lower else "U"


def _lapack(name: str, dtype: np.dtype) -> Callable[..., Any]:
    from scipy.linalg import get_lapack_funcs

    (found,) = get_lapack_funcs((name,), dtype=dtype)
    return found  # type: ignore[no-any-return]


def _lu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    packed = np.array(x, order="C")
    pivots = np.zeros(x.shape[:-2] + (min(x.shape[-2:]),), I32)
    if x.size:
        getrf = _lapack("getrf", x.dtype)
        for at in np.ndindex(x.shape[:-2]):
            packed[at], pivots[at], _ = getrf(x[at])
    return packed, pivots


def _triangular_solve(
    a: np.ndarray, b: np.ndarray, lower: bool, transpose: bool, unit: bool
) -> np.ndarray:
    _solver_type("triangular_solve")((_type_of(a), _type_of(b)), {})
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    result = np.array(b, order="C")
    if result.size:
        trtrs = _lapack("trtrs", b.dtype)
        for at in np.ndindex(batch):
            result[at], info = trtrs(a[at], b[at], lower=lower, trans=transpose, unitdiag=unit)
            if info > 0:
                raise np.linalg.LinAlgError("Singular matrix")
    return result


def _type_of(x: np.ndarray) -> TensorType:
    return TensorType(x.dtype, x.shape)


# -- samples -----------------------------------------------------------------------------------------------------

Rng = np.random.Generator
LAPACK_ULPS = 256.0


def _random(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    x: np.ndarray = rng.uniform(-1, 1, shape)
    return (
        (x + 1j * rng.uniform(-1, 1, shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)
    )


def _well_conditioned(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Random, with a dominant diagonal of distinct entries."""
    diagonal = np.eye(shape[-1]) * np.arange(1, shape[-1] + 1) * 3
    return (_random(rng, shape, dtype) + diagonal).astype(dtype)


def _hermitian(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Positive definite, with eigenvalues well apart."""
    x = _well_conditioned(rng, shape, dtype)
    adjoint: np.ndarray = x.swapaxes(-1, -2).conj()
    return np.asarray(x + adjoint)


def _triangular(rng: Rng, shape: tuple[int, ...], dtype: np.dtype, lower: bool) -> np.ndarray:
    x = _well_conditioned(rng, shape, dtype)
    return np.tril(x) if lower else np.triu(x)


SQUARE = ((3, 3), (1, 1), (0, 0), (2, 4, 4), (2, 0, 3, 3))
OBLONG = (*SQUARE, (4, 2), (2, 4), (0, 3), (3, 0), (2, 3, 5))
Maker = Callable[[Rng, tuple[int, ...], np.dtype], np.ndarray]


def _matrices(
    make: Maker, shapes: Iterable[tuple[int, ...]], *attrs: Attrs
) -> Callable[[Rng], Iterator[Sample]]:
    """Return a sampler over LAPACK's dtypes, `shapes`, and attributes."""

    def samples(rng: Rng) -> Iterator[Sample]:
        for dtype in LAPACK_DTYPES:
            for shape in shapes:
                for chosen in attrs or ({},):
                    yield Sample((make(rng, shape, dtype),), chosen, LAPACK_ULPS)

    return samples


_PRODUCTS = (
    ((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (2, 3, 2)), ((2, 2, 3), (3,)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((17, 33), (33, 9)),
)  # fmt: skip


def _matmul_samples(rng: Rng) -> Iterator[Sample]:
    """Small whole numbers, exact in every dtype and order of summation; then fractions."""
    for dtype in DTYPES:
        low, high = (0, 2) if dtype.kind in "bu" else (-2, 3)
        for shapes in _PRODUCTS:
            x, y = (rng.integers(low, high, shape).astype(dtype) for shape in shapes)
            yield Sample((x, y))
        if dtype in LAPACK_DTYPES:
            x, y = (rng.uniform(0.5, 1, shape).astype(dtype) for shape in ((5, 7), (7, 3)))
            yield Sample((x, y), tolerance=16)


_SYSTEMS = (((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((3, 3), (2, 3, 2)), ((0, 0), (0, 2)),
            ((3, 3), (3, 0)))  # fmt: skip


def _solve_samples(rng: Rng) -> Iterator[Sample]:
    for dtype in LAPACK_DTYPES:
        for left, right in _SYSTEMS:
            a, b = _well_conditioned(rng, left, dtype), _random(rng, right, dtype)
            yield Sample((a, b), tolerance=LAPACK_ULPS)


def _triangular_samples(rng: Rng) -> Iterator[Sample]:
    choices = [(bool(c & 1), bool(c & 2), bool(c & 4)) for c in range(8)]
    for dtype in LAPACK_DTYPES:
        for lower, transpose, unit in choices:
            for left, right in _SYSTEMS:
                inputs = (_triangular(rng, left, dtype, lower), _random(rng, right, dtype))
                attrs = {"lower": lower, "transpose": transpose, "unit": unit}
                yield Sample(inputs, attrs, LAPACK_ULPS)


# -- records -----------------------------------------------------------------------------------------------------

op("matmul", "x, y -> z",
   doc="Matrix product; a rank-1 operand is a row on the left, a column on the right.",
   type=_matmul_type, numpy=_matmul, samples=_matmul_samples)  # fmt: skip
op("cholesky", "x -> l",
   doc="The lower `l` with `l @ l^H = x`, or the `upper` one with `l^H @ l = x`; reads that triangle.",
   type=_of_matrix("cholesky", _square_type), traits=CHECKED,
   numpy=lambda x, upper: np.linalg.cholesky(x, upper=upper),
   samples=_matrices(_hermitian, SQUARE, {"upper": False}, {"upper": True}))  # fmt: skip
op("lu", "x -> lu, pivots",
   doc="Triangular factors in one array; step i swapped row i with row `pivots[i]`.",
   type=_of_matrix("lu", _lu_type), numpy=_lu, samples=_matrices(_random, OBLONG))  # fmt: skip
op("qr", "x -> *qr",
   doc="Orthogonal times upper triangular; `mode` is reduced, complete, or r for the second alone.",
   type=_of_matrix("qr", _qr_type), numpy=lambda x, mode: np.linalg.qr(x, mode=mode),
   samples=_matrices(_random, OBLONG, {"mode": "reduced"}, {"mode": "complete"}, {"mode": "r"}))  # fmt: skip
op("svd", "x -> u, s, vh",
   doc="Singular value decomposition `(u * s) @ vh`, singular values falling.",
   type=_of_matrix("svd", _svd_type), traits=CHECKED,
   numpy=lambda x, full_matrices: np.linalg.svd(x, full_matrices=full_matrices),
   samples=_matrices(_random, OBLONG, {"full_matrices": False}, {"full_matrices": True}))  # fmt: skip
op("svdvals", "x -> s",
   doc="Singular values, falling.",
   type=_of_matrix("svdvals", _svdvals_type), numpy=lambda x: np.linalg.svdvals(x), traits=CHECKED,
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("eigh", "x -> w, v",
   doc="Eigenvalues, rising, and eigenvectors; reads only the `lower` or the upper triangle.",
   type=_of_matrix("eigh", _eigh_type), traits=CHECKED,
   numpy=lambda x, lower: np.linalg.eigh(x, _uplo(lower)),
   samples=_matrices(_hermitian, SQUARE, {"lower": True}, {"lower": False}))  # fmt: skip
op("eigvalsh", "x -> w",
   doc="Eigenvalues, rising; reads only the `lower` or the upper triangle.",
   type=_of_matrix("eigvalsh", _eigvalsh_type), traits=CHECKED,
   numpy=lambda x, lower: np.linalg.eigvalsh(x, _uplo(lower)),
   samples=_matrices(_hermitian, SQUARE, {"lower": True}, {"lower": False}))  # fmt: skip
op("eig", "x -> w, v",
   doc="Eigenvalues and right eigenvectors, always complex.",
   type=_of_matrix("eig", _eig_type), numpy=_eig, traits=CHECKED,
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("eigvals", "x -> w",
   doc="Eigenvalues, always complex.",
   type=_of_matrix("eigvals", _eigvals_type), numpy=_eigvals, traits=CHECKED,
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("solve", "a, b -> x",
   doc="The matrix `x` with `a @ x = b`.",
   type=_solver_type("solve"), numpy=lambda a, b: np.linalg.solve(a, b), traits=CHECKED,
   samples=_solve_samples)  # fmt: skip
op("inv", "x -> y",
   doc="Inverse.",
   type=_of_matrix("inv", _square_type), numpy=lambda x: np.linalg.inv(x), traits=CHECKED,
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("det", "x -> d",
   doc="Determinant.",
   type=_of_matrix("det", _det_type), numpy=lambda x: np.linalg.det(x),
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("slogdet", "x -> sign, logdet",
   doc="Sign or phase of the determinant and logarithm of its size; 0 and -inf when singular.",
   type=_of_matrix("slogdet", _slogdet_type), numpy=lambda x: np.linalg.slogdet(x),
   samples=_matrices(_well_conditioned, SQUARE))  # fmt: skip
op("triangular_solve", "a, b -> x",
   doc="Solve with a triangle of `a`, or its unconjugated `transpose`; `unit`: its diagonal is ones.",
   type=_solver_type("triangular_solve"), numpy=_triangular_solve, traits=CHECKED,
   samples=_triangular_samples)  # fmt: skip
