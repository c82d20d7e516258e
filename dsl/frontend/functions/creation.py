"""Functions that make arrays: from nested lists, from a shape, by counting."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import NumberError, ShapeError, TypeRuleError
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
    not_negative,
    number,
    result_dtype,
    shape_of_new,
    splat,
)
from dsl.frontend.functions.elementwise import where
from dsl.frontend.library import implements
from dsl.frontend.numbers import assigned, is_assigned, is_plain_number, made
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    as_dim,
    axes_of_new,
    cast,
    concrete,
    constant,
    fresh,
    lay_out,
    lies,
    lift,
    read,
    supported_dtype,
)
from dsl.ir.dims import Dim, DimLike, dim_max
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64, Shape

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
    found = _assemble(object, dtype)
    axes = axes_of_new(found, order or "K")
    moved = order in ("C", "F") and not lies(found, axes)
    if dtype is not None and found.dtype != np.dtype(dtype):
        found = lay_out(cast(read(found), supported_dtype(dtype)), axes)
    elif moved or (copy and found is object):
        found = found.copy(order or "K")
    if found.kind is not Kind.ARRAY:
        found = fresh(read(found))
    missing = int(ndmin) - found.ndim
    return drop_view(found, (1,) * missing + dims_of(found)) if missing > 0 else found


def _assemble(x: Any, dtype: Any) -> Array:
    if not isinstance(x, (list, tuple)):
        return constant(made(x, dtype)) if dtype is not None and is_plain_number(x) else lift(x)
    if _only_numbers(x):
        return _from_numbers(x, dtype)
    parts = [_part(item, dtype) for item in x]
    _check_same_shape(parts)
    target = (
        result_dtype(*(part.dtype for part in parts)) if dtype is None else supported_dtype(dtype)
    )
    scope = current_scope()
    rows = [scope.emit("reshape", cast(read(p), target), shape=(1, *dims_of(p))) for p in parts]
    return fresh(scope.emit("concatenate", *rows, axis=0) if len(rows) > 1 else rows[0])


def _part(x: Any, dtype: Any) -> Array:
    """Return an item of a list; what is known of it now is converted as NumPy stores it in an array."""
    if dtype is None or isinstance(x, (list, tuple)) or not is_assigned(x, np.dtype(dtype)):
        return _assemble(x, dtype)
    return constant(assigned(x, np.dtype(dtype)))


def _only_numbers(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(map(_only_numbers, x))
    return not isinstance(x, (Traced, np.ndarray))


def _from_numbers(x: Any, dtype: Any) -> Array:
    try:
        return constant(made(x, dtype))
    except NumberError as error:
        if "inhomogeneous" in error.message:
            raise ShapeError(error.message, location=here()) from None
        raise


def _check_same_shape(parts: list[Array]) -> None:
    ranks = {part.ndim for part in parts}
    static = {dims_of(part) for part in parts if part.type.is_static()}
    if len(ranks) > 1 or len(static) > 1:
        text = (
            "setting an array element with a sequence. The requested array has an inhomogeneous shape after 1 "
            f"dimensions. The detected shape was ({len(parts)},) + inhomogeneous part."
        )
        raise ShapeError(text, location=here())


@implements("asarray", "asanyarray", creates=True)
def asarray(
    a: Any,
    dtype: Any = None,
    order: Any = None,
    *,
    device: Any = None,
    copy: Any = None,
    like: Any = None,
) -> Any:
    """Return an array, the same one if it already has the dtype."""
    return array(a, dtype, copy=bool(copy), order=order)


@implements("asarray_chkfinite", creates=True)
def asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """Return an array, the same one if it already has the dtype; raise `ValueError` for infinities and NaN."""
    found = array(a, dtype, copy=False, order=order)
    if found.dtype.kind in "fc":
        ask(np.all(np.isfinite(found)), "array must not contain infs or NaNs")
    return found


@implements("ascontiguousarray", creates=True)
def ascontiguousarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return an array of at least one axis in C order: the same one if it is so."""
    found = array(a, dtype, copy=False, order="C")
    return found if found.ndim else found.reshape(1)


@implements("asfortranarray", creates=True)
def asfortranarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return an array in Fortran's order: the same one if it is so."""
    return array(a, dtype, copy=False, order="F")


@implements("copy")
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """Return a copy of an array."""
    return array(a, copy=True, order=order)


@implements("require")
def require(a: Any, dtype: Any = None, requirements: Any = None, *, like: Any = None) -> Any:
    """Return an array, in C or Fortran's order if that is required; other requirements hold anyway."""
    wanted = {str(each).upper()[0] for each in requirements or ()}
    order = {"C": ascontiguousarray, "F": asfortranarray}
    makers = [order[letter] for letter in "CF" if letter in wanted]
    return makers[0](a, dtype) if len(makers) == 1 else asarray(a, dtype)


# -- from a shape --------------------------------------------------------------------------------------------------


def _full(shape: Any, value: Any, dtype: Any, order: Any = "C") -> Array:
    dims = shape_of_new(shape)
    return lay_out(splat(value, dims, dtype), _axes(len(dims), order))


def _axes(rank: int, order: Any) -> tuple[int, ...]:
    """Return the axes of an array made from a shape, the outermost first."""
    if str(order or "C").upper() not in ("C", "F"):
        raise ValueError("only 'C' or 'F' order is permitted")
    return tuple(range(rank))[:: -1 if order in ("F", "f") else 1]


@implements("zeros", "empty", creates=True)
def zeros(
    shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None
) -> Any:
    """Return an array of zeros."""
    return _full(shape, 0, F64 if dtype is None else dtype, order)


@implements("ones", creates=True)
def ones(
    shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None
) -> Any:
    """Return an array of ones."""
    return _full(shape, 1, F64 if dtype is None else dtype, order)


@implements("full", creates=True)
def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Any:
    """Return an array full of one value, which broadcasts to the shape."""
    value = lift(fill_value)
    target = value.dtype if dtype is None else supported_dtype(dtype)
    dims = shape_of_new(shape)
    return _filled(dims, fill_value, target, _axes(len(dims), order))


def _filled(dims: Shape, fill_value: Any, dtype: Any, axes: tuple[int, ...]) -> Array:
    value = lift(fill_value)
    if value.ndim == 0:
        one = fill_value if isinstance(fill_value, int) else value
        return lay_out(splat(one, dims, dtype), axes)
    filled = lay_out(splat(0, dims, dtype), axes)
    filled[...] = value
    return filled


def _like(prototype: Any, value: Any, dtype: Any, shape: Any, order: Any) -> Array:
    x = array_of(prototype)
    dims = dims_of(x) if shape is None else shape_of_new(shape)
    return lay_out(
        splat(value, dims, x.dtype if dtype is None else dtype), _axes_like(x, dims, order)
    )


def _axes_like(x: Array, dims: Shape, order: Any) -> tuple[int, ...]:
    """Return the axes of an array made like another, the outermost first; of another rank, in C order unless told."""
    axes = axes_of_new(x, order or "K")
    if len(dims) == x.ndim:
        return axes
    is_fortran = order in ("F", "f") or (order in ("A", "a") and axes != tuple(range(x.ndim)))
    return _axes(len(dims), "F" if is_fortran else "C")


@implements("zeros_like", "empty_like", creates=True)
def zeros_like(
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return zeros of the shape and dtype of another array."""
    return _like(a, 0, dtype, shape, order)


@implements("ones_like", creates=True)
def ones_like(
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return ones of the shape and dtype of another array."""
    return _like(a, 1, dtype, shape, order)


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
    dims = dims_of(x) if shape is None else shape_of_new(shape)
    target = x.dtype if dtype is None else supported_dtype(dtype)
    return _filled(dims, fill_value, target, _axes_like(x, dims, order))


# -- counting ------------------------------------------------------------------------------------------------------


@implements("arange", creates=True)
def arange(
    start: Any = None,
    /,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    like: Any = None,
    **named: Any,
) -> Any:
    """Return evenly spaced values in a half-open interval."""
    start, stop, step, dtype = _arange_bounds(start, args, dtype, named)
    numbers = [lift(x) for x in (start, stop, step)]
    loop = result_dtype(I64, *(x.dtype for x in numbers))
    target = loop if dtype is None else supported_dtype(dtype)
    count = _arange_length(numbers, loop)
    return _progression(start, step, count, target)


def _arange_bounds(
    start: Any, args: tuple[Any, ...], dtype: Any, named: dict[str, Any]
) -> tuple[Any, ...]:
    given = dict(zip(("stop", "step", "dtype"), args, strict=False)) | named
    stop, step = given.get("stop"), given.get("step")
    first = given.get("start", start)
    if first is None and stop is None:
        raise TypeRuleError("arange() requires stop to be specified.", location=here())
    if stop is None:
        first, stop = 0, first
    return (
        0 if first is None else first,
        stop,
        1 if step is None else step,
        given.get("dtype", dtype),
    )


def _arange_length(numbers: list[Any], loop: np.dtype) -> DimLike:
    start, stop, step = numbers
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
    shown = count if isinstance(count, int) else "num"
    not_negative(count, f"Number of samples, {shown}, must be non-negative.")
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
    # Where only the program knows how many there are, that may be one, or none, without steps between.
    parts = np.maximum(steps, 1) if isinstance(div, Dim) else steps
    step = delta / parts
    known = concrete(step)
    if known is None:
        y = where(np.any(step == 0), index / parts * delta, index * step) + first
    else:
        y = (index / parts * delta if np.any(known == 0) else index * step) + first
    if isinstance(div, Dim):
        step = fresh(read(where(steps > 0, step, float("nan"))), step.kind)
    if not endpoint:
        return y, step
    is_last = along(counter(count), 0, rank) == steps
    return where(is_last & (steps > 0) if isinstance(div, Dim) else is_last, last, y), step


@implements("logspace", creates=True)
def logspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return numbers evenly spaced on a log scale."""
    if np.ndim(base) > 0:
        rank = max(np.ndim(start), np.ndim(stop), np.ndim(base))
        base = np.expand_dims(array(base, ndmin=rank), axis=axis)
    y = np.power(lift(base), linspace(start, stop, num, endpoint, axis=axis))
    return y if dtype is None else y.astype(dtype)


@implements("geomspace", creates=True)
def geomspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
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
