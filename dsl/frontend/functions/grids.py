"""Arrays made from a formula of the indices: diagonals, triangles, grids, windows."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.calls import call as call_user
from dsl.frontend.functions.arguments import (
    agree,
    along,
    array_of,
    convert,
    counter,
    dims_of,
    drop_view,
    not_negative,
    number,
    result_dtype,
    shape_of_new,
    splat,
)
from dsl.frontend.functions.creation import arange, linspace
from dsl.frontend.functions.elementwise import i0, where
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Traced,
    as_dim,
    as_shape,
    fresh,
    lift,
    read,
    supported_dtype,
)
from dsl.frontend.views import Broadcasted
from dsl.ir.dims import DimLike, dim_max

Array = Any
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
_FUNCTIONS["_splat"] = splat


# -- diagonals and triangles ---------------------------------------------------------------------------------------


def _grid(rows: DimLike, columns: DimLike) -> tuple[Array, Array]:
    return along(counter(rows), 0, 2), along(counter(columns), 1, 2)


@implements("eye", creates=True)
def eye(
    N: Any,
    M: Any = None,
    k: Any = 0,
    dtype: Any = float,
    order: str = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    """Return ones on a diagonal and zeros elsewhere."""
    rows = not_negative(as_shape(N)[0])
    columns = rows if M is None else not_negative(as_shape(M)[0])
    i, j = _grid(rows, columns)
    return (i + k == j).astype(dtype)


@implements("identity", creates=True)
def identity(n: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return the identity matrix."""
    return eye(n, dtype=F64 if dtype is None else dtype)


@implements("tri", creates=True)
def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = float, *, like: Any = None) -> Any:
    """Return ones on and below a diagonal and zeros above."""
    rows = not_negative(as_shape(N)[0])
    columns = rows if M is None else not_negative(as_shape(M)[0])
    i, j = _grid(rows, columns)
    return (i + k >= j).astype(dtype)


@implements("tril")
def tril(m: Any, k: Any = 0) -> Any:
    """Return the lower triangle of the last two axes."""
    return _triangle(m, k, lower=True)


@implements("triu")
def triu(m: Any, k: Any = 0) -> Any:
    """Return the upper triangle of the last two axes."""
    return _triangle(m, k, lower=False)


def _triangle(m: Any, k: Any, lower: bool) -> Array:
    x = array_of(m)
    if x.ndim == 0:
        raise TypeRuleError("tri() missing 1 required positional argument: 'N'", location=here())
    shape = dims_of(x)
    i, j = _grid(shape[-2] if x.ndim > 1 else shape[-1], shape[-1])
    inside = i + k >= j if lower else i + k <= j
    return where(inside, x, fresh(splat(0, (), x.dtype)))


@implements("diag")
def diag(v: Any, k: Any = 0) -> Any:
    """Return a diagonal of a matrix, or the matrix with a given diagonal."""
    x = array_of(v)
    if x.ndim == 1:
        return _with_diagonal(x, int(k))
    if x.ndim == 2:
        return np.diagonal(x, int(k))
    raise ShapeError("Input must be 1- or 2-d.", location=here())


def _with_diagonal(x: Array, k: int) -> Array:
    size = dims_of(x)[0] + abs(k)
    i, j = _grid(size, size)
    zero = fresh(splat(0, (), x.dtype))
    row = along(_padded(x, zero, (k, 0) if k > 0 else (0, -k)), 1, 2)
    return where(i + k == j, row, zero)


def _padded(x: Array, zero: Array, widths: tuple[int, int]) -> Array:
    if widths == (0, 0):
        return x
    value = current_scope().emit("pad", read(x), read(zero), low=widths[:1], high=widths[1:])
    return fresh(value)


@implements("diagflat")
def diagflat(v: Any, k: Any = 0) -> Any:
    """Return the matrix with the flattened input as a diagonal."""
    return _with_diagonal(np.ravel(array_of(v)), int(k))


@implements("vander")
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    """Return the Vandermonde matrix: the powers of `x` in columns."""
    x = array_of(x)
    if x.ndim != 1:
        raise ShapeError("x must be a one-dimensional array or sequence.", location=here())
    (rows,) = dims_of(x)
    columns = rows if N is None else not_negative(as_shape(N)[0])
    dtype = result_dtype(x, np.dtype(np.int64))
    j = along(counter(columns), 1, 2)
    factors = where(j == 0, convert(1, dtype), along(convert(x, dtype), 0, 2))
    powers = fresh(current_scope().emit("cumprod", read(factors), axis=1))
    return powers if increasing else powers[:, ::-1].copy()


# -- grids ---------------------------------------------------------------------------------------------------------


@implements("meshgrid", creates=True)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    """Return coordinate matrices from coordinate vectors; without `copy`, views of them, full ones read-only."""
    if indexing not in ("xy", "ij"):
        raise ShapeError("Valid values for `indexing` are 'xy' and 'ij'.", location=here())
    vectors = [np.reshape(array_of(x), -1) for x in xi]
    rank = len(vectors)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    ones = (1,) * (rank - 1)
    grids = [
        drop_view(x, (*ones[:axis], *dims_of(x), *ones[axis:]))
        for x, axis in zip(vectors, places, strict=True)
    ]
    if not sparse:
        shape: list[Any] = [0] * rank
        for x, axis in zip(vectors, places, strict=True):
            shape[axis] = dims_of(x)[0]
        grids = [g._view(Broadcasted(tuple(shape))) for g in grids]
    return tuple(fresh(read(g)) if copy else g for g in grids)


@implements("indices", creates=True)
def indices(dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    """Return the index of each element, per axis."""
    shape = shape_of_new(dimensions) if dimensions != () else ()
    target = supported_dtype(dtype)
    grids = [along(counter(d, target), k, len(shape)) for k, d in enumerate(shape)]
    if sparse:
        return tuple(grids)
    if not grids:
        return fresh(splat(0, (0,), target))
    scope = current_scope()
    spread = [fresh(scope.emit("broadcast_to", read(g), shape=shape)) for g in grids]
    return np.stack(spread)


@implements("fromfunction", creates=True)
def fromfunction(
    function: Any, shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any
) -> Any:
    """Call a function on the index arrays of a shape."""
    return call_user(function, *indices(shape, dtype), **kwargs)


class Grid:
    """`np.mgrid` and `np.ogrid` for slices with traced bounds."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        vectors = [_span(item) for item in items]
        if not isinstance(key, tuple):
            return vectors[0]
        dtype = result_dtype(*(v.dtype for v in vectors))
        grids = meshgrid(*(convert(v, dtype) for v in vectors), sparse=self.sparse, indexing="ij")
        return grids if self.sparse else np.stack(grids)


def _span(item: slice) -> Array:
    """Return what one slice counts; an imaginary step is a number of points, ends included."""
    start = 0 if item.start is None else item.start
    step = 1 if item.step is None else item.step
    if isinstance(step, complex):
        return linspace(start, item.stop, int(abs(step)))
    return arange(start, item.stop, step)


mgrid, ogrid = Grid(sparse=False), Grid(sparse=True)
_FUNCTIONS.update(_mgrid=mgrid.__getitem__, _ogrid=ogrid.__getitem__)


# -- indices of triangles and diagonals ----------------------------------------------------------------------------


@implements("tril_indices", creates=True)
def tril_indices(n: Any, k: Any = 0, m: Any = None) -> Any:
    """Return the indices of the lower triangle."""
    return np.nonzero(tri(n, m, k, dtype=bool))


@implements("triu_indices", creates=True)
def triu_indices(n: Any, k: Any = 0, m: Any = None) -> Any:
    """Return the indices of the upper triangle."""
    return np.nonzero(~tri(n, m, k - 1, dtype=bool))


@implements("tril_indices_from")
def tril_indices_from(arr: Any, k: Any = 0) -> Any:
    """Return the indices of the lower triangle of a matrix."""
    return tril_indices(_matrix_shape(arr)[0], k, _matrix_shape(arr)[1])


@implements("triu_indices_from")
def triu_indices_from(arr: Any, k: Any = 0) -> Any:
    """Return the indices of the upper triangle of a matrix."""
    return triu_indices(_matrix_shape(arr)[0], k, _matrix_shape(arr)[1])


def _matrix_shape(arr: Any) -> tuple[Any, ...]:
    x: Traced = array_of(arr)
    if x.ndim != 2:
        raise ShapeError("input array must be 2-d", location=here())
    return x.shape


@implements("diag_indices", creates=True)
def diag_indices(n: Any, ndim: int = 2) -> Any:
    """Return the indices of the main diagonal."""
    return (arange(n),) * int(ndim)


@implements("diag_indices_from")
def diag_indices_from(arr: Any) -> Any:
    """Return the indices of the main diagonal of an array."""
    x = array_of(arr)
    if x.ndim < 2:
        raise ShapeError("input array must be at least 2-d", location=here())
    for dim in dims_of(x):
        agree(dim, dims_of(x)[0], "All dimensions of input must be of equal length")
    return diag_indices(x.shape[0], x.ndim)


# -- windows -------------------------------------------------------------------------------------------------------


def _window_index(M: Any) -> tuple[Array, Any]:
    """Return 1-M, 3-M, …, M-1 as floats and M - 1, at least 1."""
    count = dim_max(as_dim(M), 0) if isinstance(M, Traced) else max(operator.index(M), 0)
    span = number(count)
    return counter(count, F64) * 2.0 + (1.0 - span), np.maximum(span - 1.0, 1.0)


@implements("hanning", creates=True)
def hanning(M: Any) -> Any:
    """Return the Hann window."""
    n, last = _window_index(M)
    return 0.5 + 0.5 * np.cos(np.pi * n / last)


@implements("hamming", creates=True)
def hamming(M: Any) -> Any:
    """Return the Hamming window."""
    n, last = _window_index(M)
    return 0.54 + 0.46 * np.cos(np.pi * n / last)


@implements("blackman", creates=True)
def blackman(M: Any) -> Any:
    """Return the Blackman window."""
    n, last = _window_index(M)
    single = 0.42 + 0.5 * np.cos(np.pi * n / last)
    return single + 0.08 * np.cos(2.0 * np.pi * n / last)


@implements("bartlett", creates=True)
def bartlett(M: Any) -> Any:
    """Return the triangular window that ends in zeros."""
    n, last = _window_index(M)
    return fresh(read(where(np.less_equal(n, 0), 1 + n / last, 1 - n / last)))


@implements("kaiser", creates=True)
def kaiser(M: Any, beta: Any) -> Any:
    """Return the Kaiser window."""
    n, last = _window_index(M)
    index = (n + last) / 2.0 if _spans(M) else n + 0.0
    alpha = last / 2.0
    beta = np.multiply(lift(beta), 1.0)
    inside = np.maximum(1 - ((index - alpha) / alpha) ** 2.0, 0.0) if _spans(M) else 1.0 + 0.0 * n
    return i0(beta * np.sqrt(inside)) / i0(beta)


def _spans(M: Any) -> bool:
    return isinstance(M, Traced) or operator.index(M) > 1
