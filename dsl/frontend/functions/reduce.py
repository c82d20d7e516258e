"""Reductions over axes and along one: sums, products, extrema, truth, running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import (
    NoValue,
    array_of,
    convert,
    dims_of,
    into,
    is_half,
    keep_dims,
    normal_axis,
    reduced_axes,
    splat,
    with_dims,
)
from dsl.frontend.functions.elementwise import where as choose
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    cast,
    emit,
    fresh,
    read,
    wrap,
)
from dsl.ir.dims import lower_bound
from dsl.ir.types import BOOL, I64, size_of

Array = Any
U64, F32, F64 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.float64)


# -- sums and products ---------------------------------------------------------------------------------------------


def _widened(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which NumPy adds: integers in at least 64 bits."""
    if dtype.kind == "u":
        return U64
    return I64 if dtype.kind in "bi" else dtype


def _masked(x: Array, where: Any, fill: Any) -> Array:
    if where is NoValue or where is True:
        return x
    mask = array_of(where)
    if mask.dtype != BOOL:
        text = f"Cannot cast array data from {mask.dtype!r} to dtype('bool') according to the rule 'safe'"
        raise TypeRuleError(text, location=here())
    return choose(mask, x, convert(fill, x.dtype))


def _total(op: str, ufunc: np.ufunc, identity: int) -> Callable[..., Any]:
    def total(
        a: Any, axis: Any, dtype: Any, out: Any, keepdims: Any, initial: Any, where: Any
    ) -> Any:
        x = array_of(a)
        x = convert(x, _widened(x.dtype) if dtype is None else dtype)
        axes = reduced_axes(axis, x.ndim)
        result = _accumulated(op, _masked(x, where, identity), axes)
        if initial is not NoValue and initial is not None:
            result = ufunc(result, convert(initial, x.dtype))
        return into(keep_dims(result, dims_of(x), axes, keepdims), out)

    return total


def _accumulated(op: str, x: Array, axes: tuple[int, ...]) -> Array:
    """Reduce; halves are combined in float32 and rounded once: sums as NumPy's along contiguous axes, and few CPUs compare halves."""
    if not is_half(x.dtype):
        return emit(op, x, axes=axes)
    return wrap(cast(read(emit(op, convert(x, F32), axes=axes)), x.dtype))


_sum, _prod = _total("sum", np.add, 0), _total("prod", np.multiply, 1)


@implements("sum")
def sum_(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Add the elements over axes."""
    return _sum(a, axis, dtype, out, keepdims, initial, where)


@implements("prod")
def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Multiply the elements over axes."""
    return _prod(a, axis, dtype, out, keepdims, initial, where)


@implements("trace")
def trace(
    a: Any, offset: Any = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    """Add the elements of a diagonal."""
    return sum_(np.diagonal(array_of(a), offset, axis1, axis2), axis=-1, dtype=dtype, out=out)


@implements("count_nonzero")
def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Count the elements that are not zero."""
    x = array_of(a)
    return sum_(x if x.dtype == BOOL else x != 0, axis, I64, None, keepdims)


# -- extrema -------------------------------------------------------------------------------------------------------


def _extremum(op: str, ufunc: np.ufunc) -> Callable[..., Any]:
    def extremum(a: Any, axis: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
        x = array_of(a)
        axes = reduced_axes(axis, x.ndim)
        given = initial is not NoValue and initial is not None
        if not given and where is not NoValue and where is not True:
            text = (
                f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has "
                "to specify 'initial'"
            )
            raise ShapeError(text, location=here())
        result = _extreme(op, ufunc, _masked(x, where, initial), axes, initial if given else None)
        return into(keep_dims(result, dims_of(x), axes, keepdims), out)

    return extremum


def _extreme(op: str, ufunc: np.ufunc, x: Array, axes: tuple[int, ...], initial: Any) -> Array:
    if initial is None:
        return _accumulated(op, x, axes)
    start = convert(initial, x.dtype)
    shape = dims_of(x)
    if all((lower_bound(shape[k]) or 0) > 0 for k in axes):
        return ufunc(_accumulated(op, x, axes), start)
    high = tuple(1 if k in axes else 0 for k in range(len(shape)))
    padded = current_scope().emit("pad", read(x), read(start), low=(0,) * len(shape), high=high)
    return _accumulated(op, fresh(padded), axes)


_max, _min = _extremum("max", np.maximum), _extremum("min", np.minimum)


@implements("max", "amax")
def max_(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Return the largest element over axes; NaN if there is one."""
    return _max(a, axis, out, keepdims, initial, where)


@implements("min", "amin")
def min_(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NoValue,
    initial: Any = NoValue,
    where: Any = NoValue,
) -> Any:
    """Return the smallest element over axes; NaN if there is one."""
    return _min(a, axis, out, keepdims, initial, where)


@implements("ptp")
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue) -> Any:
    """Return the range of values: largest minus smallest."""
    return into(max_(a, axis, None, keepdims) - min_(a, axis, None, keepdims), out)


def _arg(op: str, a: Any, axis: Any, out: Any, keepdims: Any) -> Any:
    x = array_of(a)
    if axis is None:
        found = emit(op, with_dims(x, (size_of(dims_of(x)),)), axis=0)
        axes = tuple(range(x.ndim))
    else:
        axes = (normal_axis(axis, max(x.ndim, 1)),)
        found = emit(op, x if x.ndim else with_dims(x, (1,)), axis=axes[0])
    result = into(keep_dims(found, dims_of(x), axes, keepdims), out)
    if out is not None and not np.can_cast(result.dtype, I64, "safe"):
        raise TypeRuleError(
            f"Cannot cast array data from {result.dtype!r} to {I64!r} according to the rule 'safe'",
            location=here(), remedy="give `out` the dtype int64",
        )  # fmt: skip
    return result


@implements("argmax")
def argmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first largest element."""
    return _arg("argmax", a, axis, out, keepdims)


@implements("argmin")
def argmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NoValue) -> Any:
    """Return the index of the first smallest element."""
    return _arg("argmin", a, axis, out, keepdims)


# -- truth and bits ------------------------------------------------------------------------------------------------


def _truth(op: str, a: Any, axis: Any, out: Any, keepdims: Any, where: Any) -> Any:
    x = array_of(a)
    axes = reduced_axes(axis, x.ndim)
    flags = _masked(convert(x, BOOL), where, op == "all")
    return into(keep_dims(emit(op, flags, axes=axes), dims_of(x), axes, keepdims), out, "unsafe")


@implements("any")
def any_(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue
) -> Any:
    """Tell whether any element over axes is true."""
    return _truth("any", a, axis, out, keepdims, where)


@implements("all")
def all_(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = NoValue, *, where: Any = NoValue
) -> Any:
    """Tell whether all elements over axes are true."""
    return _truth("all", a, axis, out, keepdims, where)


def _bits(op: str) -> Callable[..., Any]:
    def bits(a: Any, axis: Any = 0, out: Any = None, keepdims: Any = False, **kwargs: Any) -> Any:
        x = array_of(a)
        axes = reduced_axes(axis, x.ndim)
        return into(keep_dims(emit(op, x, axes=axes), dims_of(x), axes, keepdims), out)

    return bits


# Not functions of NumPy's: what `np.bitwise_and.reduce` and its like call.
_FUNCTIONS.update({name: _bits(name) for name in ("reduce_and", "reduce_or", "reduce_xor")})


# -- running -------------------------------------------------------------------------------------------------------


def running(op: str, a: Any, axis: Any, dtype: Any, out: Any) -> Any:
    x = array_of(a)
    x = convert(x, _widened(x.dtype) if dtype is None else dtype)
    if axis is None or x.ndim == 0:
        x, axis = with_dims(x, (size_of(dims_of(x)),)), 0 if axis is None else axis
    return into(emit(op, x, axis=normal_axis(axis, x.ndim)), out)


@implements("cumsum")
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running sums."""
    return running("cumsum", a, axis, dtype, out)


@implements("cumprod")
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return running products."""
    return running("cumprod", a, axis, dtype, out)


def _cumulative(
    op: str, identity: int, x: Any, axis: Any, dtype: Any, out: Any, include_initial: bool
) -> Any:
    values = array_of(x)
    if values.ndim == 0:
        text = f"For array of dimension 0, the input must be at least one-dimensional: cumulative_{op[3:]}"
        raise ShapeError(text, location=here())
    if axis is None:
        if values.ndim > 1:
            raise ShapeError(
                "For arrays which have more than one dimension ``axis`` argument is required.",
                location=here(),
            )
        axis = 0
    axis = normal_axis(axis, values.ndim)
    result = running(op, values, axis, dtype, None)
    if include_initial:
        low = tuple(1 if k == axis else 0 for k in range(result.ndim))
        start = splat(identity, (), result.dtype)
        result = fresh(
            current_scope().emit("pad", read(result), start, low=low, high=(0,) * result.ndim)
        )
    return into(result, out)


@implements("cumulative_sum")
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    """Return running sums, from 0 on if asked."""
    return _cumulative("cumsum", 0, x, axis, dtype, out, include_initial)


@implements("cumulative_prod")
def cumulative_prod(
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    """Return running products, from 1 on if asked."""
    return _cumulative("cumprod", 1, x, axis, dtype, out, include_initial)
