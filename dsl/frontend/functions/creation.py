"""Functions that make arrays: from nested lists, from a shape, by counting, and from a formula of the indices."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    along,
    array_of,
    ask,
    convert,
    counter,
    dims_of,
    drop_view,
    is_half,
    is_inexact,
    normal_axis,
    number,
    plain,
    result_dtype,
    splat,
    with_dims,
)
from dsl.frontend.functions.elementwise import i0, where
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    as_dim,
    as_shape,
    cast,
    concrete,
    constant,
    fresh,
    lift,
    read,
    supported_dtype,
    wrap,
)
from dsl.ir.dims import Dim, DimLike, dim_max
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64

Array = Any
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
_FUNCTIONS["_splat"] = splat


# -- from other arrays ---------------------------------------------------------------------------------------------


@implements("array", creates=True)
def array(
    object: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    ndmax: int = 0,
    like: Any = None,
) -> Any:
    """Make an array of numbers, arrays or nested lists of them."""
    made = _assemble(object, dtype)
    if dtype is not None and made.dtype != np.dtype(dtype):
        made = fresh(cast(read(made), supported_dtype(dtype)))
    elif copy and made is object:
        made = made.copy()
    if made.kind is not Kind.ARRAY:
        made = fresh(read(made))
    missing = int(ndmin) - made.ndim
    return drop_view(made, (1,) * missing + dims_of(made)) if missing > 0 else made


def _assemble(x: Any, dtype: Any) -> Array:
    if not isinstance(x, (list, tuple)):
        return lift(x)
    if _only_numbers(x):
        return _from_numbers(x, dtype)
    parts = [_assemble(item, None) for item in x]
    _check_same_shape(parts)
    target = result_dtype(*(part.dtype for part in parts)) if dtype is None else supported_dtype(dtype)
    scope = current_scope()
    rows = [scope.emit("reshape", cast(read(p), target), shape=(1, *dims_of(p))) for p in parts]
    return fresh(scope.emit("concatenate", *rows, axis=0) if len(rows) > 1 else rows[0])


def _only_numbers(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(map(_only_numbers, x))
    return not isinstance(x, (Traced, np.ndarray))


def _from_numbers(x: Any, dtype: Any) -> Array:
    try:
        made = np.array(x, dtype=dtype)
    except ValueError as error:
        raise ShapeError(str(error), location=here()) from None
    return constant(made)


def _check_same_shape(parts: list[Array]) -> None:
    ranks = {part.ndim for part in parts}
    static = {dims_of(part) for part in parts if part.type.is_static()}
    if len(ranks) > 1 or len(static) > 1:
        text = (
            "setting an array element with a sequence. The requested array has an inhomogeneous shape after 1 "
            f"dimensions. The detected shape was ({len(parts)},) + inhomogeneous part."
        )
        raise ShapeError(text, location=here())


@implements("asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "asarray_chkfinite", creates=True)
def asarray(a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: Any = None, like: Any = None) -> Any:
    """Return an array, the same one if it already has the dtype."""
    return array(a, dtype, copy=bool(copy))


@implements("copy")
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """Return a copy of an array."""
    return array(a, copy=True)


@implements("require")
def require(a: Any, dtype: Any = None, requirements: Any = None, *, like: Any = None) -> Any:
    """Return an array; layout requirements mean nothing to traced values."""
    return asarray(a, dtype)


# -- from a shape --------------------------------------------------------------------------------------------------


def _full(shape: Any, value: Any, dtype: Any) -> Array:
    return fresh(splat(value, as_shape(shape), dtype))


@implements("zeros", "empty", creates=True)
def zeros(shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None) -> Any:
    """Return an array of zeros."""
    return _full(shape, 0, F64 if dtype is None else dtype)


@implements("ones", creates=True)
def ones(shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None) -> Any:
    """Return an array of ones."""
    return _full(shape, 1, F64 if dtype is None else dtype)


@implements("full", creates=True)
def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None
) -> Any:
    """Return an array full of one value, which broadcasts to the shape."""
    value = lift(fill_value)
    target = value.dtype if dtype is None else supported_dtype(dtype)
    if value.ndim == 0:
        return _full(shape, fill_value if plain(fill_value) else value, target)
    spread = current_scope().emit("broadcast_to", cast(read(value), target), shape=as_shape(shape))
    return fresh(spread)


def _like(prototype: Any, value: Any, dtype: Any, shape: Any) -> Array:
    x = array_of(prototype)
    dims = dims_of(x) if shape is None else as_shape(shape)
    return fresh(splat(value, dims, x.dtype if dtype is None else dtype))


@implements("zeros_like", "empty_like", creates=True)
def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> Any:
    """Return zeros of the shape and dtype of another array."""
    return _like(a, 0, dtype, shape)


@implements("ones_like", creates=True)
def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> Any:
    """Return ones of the shape and dtype of another array."""
    return _like(a, 1, dtype, shape)


@implements("full_like", creates=True)
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return an array full of one value, of the shape and dtype of another."""
    x = array_of(a)
    dims = tuple(map(number, dims_of(x))) if shape is None else shape
    return full(dims, fill_value, x.dtype if dtype is None else dtype)


# -- counting ------------------------------------------------------------------------------------------------------


@implements("arange", creates=True)
def arange(start: Any = None, /, *args: Any, dtype: Any = None, device: Any = None, like: Any = None, **named: Any) -> Any:
    """Return evenly spaced values in a half-open interval."""
    start, stop, step, dtype = _arange_bounds(start, args, dtype, named)
    numbers = [lift(x) for x in (start, stop, step)]
    loop = result_dtype(I64, *(x.dtype for x in numbers))
    target = loop if dtype is None else supported_dtype(dtype)
    count = _arange_length(*numbers, loop)
    return _progression(start, step, count, target)


def _arange_bounds(start: Any, args: tuple[Any, ...], dtype: Any, named: dict[str, Any]) -> tuple[Any, ...]:
    given = dict(zip(("stop", "step", "dtype"), args, strict=False)) | named
    stop, step = given.get("stop"), given.get("step")
    first = given.get("start", start)
    if first is None and stop is None:
        raise TypeRuleError("arange() requires stop to be specified.", location=here())
    if stop is None:
        first, stop = 0, first
    return 0 if first is None else first, stop, 1 if step is None else step, given.get("dtype", dtype)


def _arange_length(start: Array, stop: Array, step: Array, loop: np.dtype) -> DimLike:
    stride = concrete(step)
    if stride is not None and stride == 0:
        raise ZeroDivisionError("division by zero")
    if loop.kind not in "iub":
        return _float_length(start, stop, step)
    if stride is None:
        gap = -((start - stop) // step)
        return as_dim(np.maximum(gap, 0))
    if _is_size(read(start)) and _is_size(read(stop)):
        return dim_max(-((as_dim(start) - as_dim(stop)) // int(stride)), 0)
    return as_dim(_as_int(np.maximum(-((start - stop) // int(stride)), 0)))


def _as_int(x: Array) -> Array:
    return fresh(cast(read(x), I64), Kind.PYTHON)


def _is_size(value: Value) -> bool:
    """Tell whether a number is made of sizes and constants, so that its sign is what the dims say."""
    if value.node.op.name in ("const", "dim_size"):
        return True
    if value.node.op.name in ("add", "subtract", "multiply", "cast"):
        return all(map(_is_size, value.node.inputs))
    return False


def _float_length(start: Array, stop: Array, step: Array) -> DimLike:
    ends = [concrete(x) for x in (start, stop, step)]
    if all(x is not None for x in ends):
        first, last, stride = map(float, ends)
        return max(int(np.ceil((last - first) / stride)), 0)
    count = np.maximum(np.ceil((stop - start) / step), 0)
    return as_dim(_as_int(count))


def _progression(start: Any, step: Any, count: DimLike, dtype: np.dtype) -> Array:
    """Return `start + k * step`, computed as NumPy's fill does: from the first two elements."""
    if dtype == BOOL:
        return _progression(start, step, count, I64).astype(BOOL)
    wide = F32 if is_half(dtype) else dtype
    index = counter(count, wide)
    first, delta = convert(start, dtype), convert(step, dtype)
    if dtype.kind not in "iu":
        second = convert(lift(start) + step, dtype)
        first, delta = convert(first, wide), convert(second, wide) - convert(first, wide)
    if not _is_one(delta):
        index = index * delta
    if not _is_zero(first):
        index = index + first
    return fresh(cast(read(index), dtype))


def _is_one(x: Array) -> bool:
    known = concrete(x)
    return known is not None and known == 1


def _is_zero(x: Array) -> bool:
    known = concrete(x)
    return known is not None and known == 0


@implements("linspace", creates=True)
def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """Return evenly spaced numbers over an interval."""
    count = as_dim(num)
    if isinstance(count, int) and count < 0:
        raise ShapeError(f"Number of samples, {count}, must be non-negative.", location=here())
    first, last = array_of(start), array_of(stop)
    loop = _inexact(result_dtype(first, last))
    target = loop if dtype is None else supported_dtype(dtype)
    y, step = _spaced(first.astype(loop), last.astype(loop), count, endpoint)
    if axis != 0:
        y = np.moveaxis(y, 0, axis)
    if target.kind in "iu":
        y = np.floor(y)
    y = fresh(cast(read(y), target))
    return (y, step) if retstep else y


def _inexact(dtype: np.dtype) -> np.dtype:
    return dtype if is_inexact(dtype) else np.result_type(dtype, np.float64)


def _spaced(first: Array, last: Array, count: DimLike, endpoint: bool) -> tuple[Array, Any]:
    div = count - 1 if endpoint else count
    delta = last - first
    rank = delta.ndim + 1
    index = along(counter(count, first.dtype), 0, rank)
    if isinstance(div, int) and div <= 0:
        return index * delta + first, float("nan")
    steps = number(div)
    step = delta / steps
    denormal = np.any(step == 0)
    y = where(denormal, index / steps * delta, index * step) + first
    if not endpoint:
        return y, step
    is_last = along(counter(count), 0, rank) == steps
    return where(is_last & (steps > 0) if isinstance(div, Dim) else is_last, last, y), step


@implements("logspace", creates=True)
def logspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Return numbers evenly spaced on a log scale."""
    if np.ndim(base) > 0:
        rank = max(np.ndim(start), np.ndim(stop), np.ndim(base))
        base = np.expand_dims(array(base, ndmin=rank), axis=axis)
    y = np.power(lift(base), linspace(start, stop, num, endpoint, axis=axis))
    return y if dtype is None else y.astype(dtype)


@implements("geomspace", creates=True)
def geomspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """Return numbers in geometric progression, both ends exact."""
    first, last = array_of(start), array_of(stop)
    loop = _inexact(result_dtype(first, last, *([np.dtype(dtype)] if dtype is not None else [])))
    first, last = convert(first, loop), convert(last, loop)
    _refuse_zero(first, last)
    sign = np.sign(first)
    first, last = first / sign, last / sign
    y = logspace(np.log10(first), np.log10(last), num, endpoint, base=10.0, dtype=loop)
    index = along(counter(dims_of(y)[0]), 0, y.ndim)
    y = where(index == 0, first, y)
    if endpoint:
        y = where((index == y.shape[0] - 1) & (index > 0), last, y)
    y = y * sign
    y = np.moveaxis(y, 0, axis) if axis != 0 else y
    return y if dtype is None else y.astype(dtype)


def _refuse_zero(*xs: Array) -> None:
    for x in xs:
        known = concrete(x)
        if known is None:
            ask(np.all(x != 0), "Geometric sequence cannot include zero")
        elif np.any(known == 0):
            raise ShapeError("Geometric sequence cannot include zero", location=here())


# -- diagonals and triangles ---------------------------------------------------------------------------------------


def _grid(rows: DimLike, columns: DimLike) -> tuple[Array, Array]:
    return along(counter(rows), 0, 2), along(counter(columns), 1, 2)


@implements("eye", creates=True)
def eye(
    N: Any, M: Any = None, k: Any = 0, dtype: Any = float, order: str = "C", *, device: Any = None, like: Any = None
) -> Any:
    """Return ones on a diagonal and zeros elsewhere."""
    (rows,) = as_shape(N)
    columns = rows if M is None else as_shape(M)[0]
    i, j = _grid(rows, columns)
    return (i + k == j).astype(dtype)


@implements("identity", creates=True)
def identity(n: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return the identity matrix."""
    return eye(n, dtype=F64 if dtype is None else dtype)


@implements("tri", creates=True)
def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = float, *, like: Any = None) -> Any:
    """Return ones on and below a diagonal and zeros above."""
    (rows,) = as_shape(N)
    columns = rows if M is None else as_shape(M)[0]
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
        raise TypeRuleError("len() of unsized object", location=here())
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
    columns = rows if N is None else as_shape(N)[0]
    dtype = result_dtype(x, np.dtype(np.int64))
    j = along(counter(columns), 1, 2)
    factors = where(j == 0, convert(1, dtype), along(convert(x, dtype), 0, 2))
    powers = fresh(current_scope().emit("cumprod", read(factors), axis=1))
    return powers if increasing else powers[:, ::-1].copy()


# -- grids ---------------------------------------------------------------------------------------------------------


@implements("meshgrid", creates=True)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    """Return coordinate matrices from coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ShapeError("Valid values for `indexing` are 'xy' and 'ij'.", location=here())
    vectors = [np.ravel(array_of(x)) for x in xi]
    rank = len(vectors)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    grids = [along(x, axis, rank) for x, axis in zip(vectors, places, strict=True)]
    if sparse:
        return tuple(grids)
    shape: list[Any] = [0] * rank
    for x, axis in zip(vectors, places, strict=True):
        shape[axis] = dims_of(x)[0]
    scope = current_scope()
    return tuple(fresh(scope.emit("broadcast_to", read(g), shape=tuple(shape))) for g in grids)


@implements("indices", creates=True)
def indices(dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    """Return the index of each element, per axis."""
    shape = as_shape(dimensions) if dimensions != () else ()
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
def fromfunction(function: Any, shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any) -> Any:
    """Call a function on the index arrays of a shape."""
    return function(*indices(shape, dtype), **kwargs)


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
    return tril_indices(*_matrix_shape(arr), k=k)


@implements("triu_indices_from")
def triu_indices_from(arr: Any, k: Any = 0) -> Any:
    """Return the indices of the upper triangle of a matrix."""
    return triu_indices(*_matrix_shape(arr), k=k)


def _matrix_shape(arr: Any) -> tuple[Any, ...]:
    x = array_of(arr)
    if x.ndim != 2:
        raise ShapeError("input array must be 2-d", location=here())
    return x.shape[0], *()


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
    if any(isinstance(d, int) and d != dims_of(x)[0] for d in dims_of(x)):
        raise ShapeError("All dimensions of input must be of equal length", location=here())
    return diag_indices(x.shape[0], x.ndim)


# -- windows -------------------------------------------------------------------------------------------------------


def _window_index(M: Any) -> tuple[Array, Any]:
    """Return 1-M, 3-M, …, M-1 as floats and M - 1, at least 1."""
    (count,) = as_shape(M) if isinstance(M, Traced) else (max(operator.index(M), 0),)
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
    beta = lift(beta) * 1.0
    inside = np.maximum(1 - ((index - alpha) / alpha) ** 2.0, 0.0) if _spans(M) else 1.0 + 0.0 * n
    return i0(beta * np.sqrt(inside)) / i0(beta)


def _spans(M: Any) -> bool:
    return isinstance(M, Traced) or operator.index(M) > 1


_ = (itertools, normal_axis, wrap, with_dims)
