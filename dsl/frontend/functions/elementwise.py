"""Elementwise functions: every ufunc under its NumPy names, selection, rounding, comparison with tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.calls import call as call_user
from dsl.frontend.exact_comparisons import saturated
from dsl.frontend.functions.arguments import (
    NoValue,
    agree,
    array_of,
    broadcast,
    convert,
    convert_array,
    counter,
    dims_of,
    into,
    is_inexact,
    is_symbolic,
    normal_axis,
    result_dtype,
    vector_of,
    weak,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import Kind, Traced, cast, emit, fresh, lift, read, wrap
from dsl.frontend.ufuncs import apply, dispatch
from dsl.ir.ops.elementwise import UFUNC_OPS
from dsl.ir.types import BOOL, I64, broadcast_shapes

Array = Any
PI = float(np.pi)


# -- ufuncs --------------------------------------------------------------------------------------------------------


def _ufunc(ufunc: np.ufunc, name: str) -> Callable[..., Any]:
    def call(
        *inputs: Any,
        out: Any = None,
        where: Any = True,
        casting: str = "same_kind",
        order: str = "K",
        dtype: Any = None,
        subok: bool = True,
    ) -> Any:
        if len(inputs) < ufunc.nin:
            text = f"{name}() takes from {ufunc.nin} to {ufunc.nargs} positional arguments but {len(inputs)} were given"
            raise TypeRuleError(text, location=here())
        target = inputs[ufunc.nin :] if len(inputs) > ufunc.nin else out
        return apply(
            ufunc,
            *inputs[: ufunc.nin],
            out=target,
            where=where,
            dtype=dtype,
            casting=casting,
            order=order,
        )

    call.__name__ = call.__qualname__ = name
    call.__doc__ = UFUNC_OPS[ufunc].doc
    for method in ("reduce", "accumulate", "outer", "at"):
        setattr(call, method, _ufunc_method(ufunc, method))
    return call


def _ufunc_method(ufunc: np.ufunc, method: str) -> Callable[..., Any]:
    def call(*inputs: Any, **kwargs: Any) -> Any:
        if current_trace() is None:
            return getattr(ufunc, method)(*inputs, **kwargs)
        return dispatch(ufunc, method, inputs, kwargs)

    call.__name__ = call.__qualname__ = method
    return call


_NAMES: dict[np.ufunc, list[str]] = {}
for _name, _found in sorted(vars(np).items()):
    if isinstance(_found, np.ufunc) and _found in UFUNC_OPS:
        _NAMES.setdefault(_found, []).append(_name)
for _found, _aliases in _NAMES.items():
    implements(*_aliases)(_ufunc(_found, _found.__name__))


# -- selection -----------------------------------------------------------------------------------------------------


@implements("where")
def where(condition: Any, x: Any = NoValue, y: Any = NoValue, /) -> Any:
    """Choose from `x` or `y` by a condition, or return the indices where it holds."""
    if x is NoValue and y is NoValue:
        return np.nonzero(array_of(condition))
    if x is NoValue or y is NoValue:
        raise ShapeError("either both or neither of x and y should be given", location=here())
    dtype = result_dtype(x, y)
    flags, lhs, rhs = broadcast(
        convert(condition, BOOL), convert_array(x, dtype), convert_array(y, dtype)
    )
    return fresh(current_scope().emit("where", read(flags), read(lhs), read(rhs)))


@implements("select")
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Choose from the first choice whose condition holds."""
    if len(condlist) != len(choicelist):
        raise ShapeError("list of cases must be same length as list of conditions", location=here())
    if len(condlist) == 0:
        raise ShapeError("select with an empty condition list is not possible", location=here())
    for k, condition in enumerate(condlist):
        if array_of(condition).dtype != BOOL:
            text = f"invalid entry {k} in condlist: should be boolean ndarray"
            raise TypeRuleError(text, location=here())
    dtype = result_dtype(*choicelist, default)
    result: Any = convert_array(default, dtype)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        result = where(condition, convert_array(choice, dtype), result)
    return result


@implements("piecewise")
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Evaluate functions or numbers where their conditions hold; where several do, the last counts."""
    x = array_of(x)
    conditions = _conditions(condlist, x)
    functions = list(funclist)
    if len(functions) == len(conditions) + 1:
        any_of = conditions[0]
        for condition in conditions[1:]:
            any_of = any_of | condition
        conditions = [*conditions, ~any_of]
    elif len(functions) != len(conditions):
        count = len(conditions)
        text = f"with {count} condition(s), either {count} or {count + 1} functions are expected"
        raise ShapeError(text, location=here())
    result: Any = np.zeros_like(x)
    for condition, function in zip(conditions, functions, strict=True):
        piece = call_user(function, x, *args, **kw) if callable(function) else function
        result = where(condition, convert(piece, x.dtype), result)
    return result


def _conditions(condlist: Any, x: Array) -> list[Array]:
    if isinstance(condlist, (list, tuple)) and not _is_flat(condlist, x):
        return [convert(c, BOOL) for c in condlist]
    flags = convert(condlist, BOOL)
    return [flags] if flags.ndim <= x.ndim else list(flags)


def _is_flat(condlist: Any, x: Array) -> bool:
    return bool(x.ndim) and not isinstance(condlist[0], (list, tuple, np.ndarray, Traced))


@implements("clip")
def clip(
    a: Any,
    a_min: Any = NoValue,
    a_max: Any = NoValue,
    out: Any = None,
    *,
    min: Any = NoValue,
    max: Any = NoValue,
    **kwargs: Any,
) -> Any:
    """Limit values to an interval; a NaN anywhere gives NaN."""
    low = _bound(min if a_min is NoValue else a_min)
    high = _bound(max if a_max is NoValue else a_max)
    x = lift(a)
    if x.dtype.kind in "iu":
        low, high = _held(low, x.dtype), _held(high, x.dtype)
        low = None if type(low) is int and low <= np.iinfo(x.dtype).min else low
        high = None if type(high) is int and high >= np.iinfo(x.dtype).max else high
    if low is None and high is None:
        return apply(np.positive, x, out=out, **kwargs)
    if low is None or high is None:
        chosen, limit = (np.minimum, high) if low is None else (np.maximum, low)
        return apply(chosen, x, limit, out=out, **kwargs)
    dtype = result_dtype(a, low, high)
    raised = apply(np.maximum, convert(x, dtype), convert(low, dtype))
    return apply(np.minimum, raised, convert(high, dtype), out=out, **kwargs)


def _bound(x: Any) -> Any:
    return None if x is NoValue else x


def _held(limit: Any, dtype: np.dtype) -> Any:
    """Return a limit that is a Python int of the run as the nearest number that a dtype holds."""
    if not (isinstance(limit, Traced) and limit.kind is Kind.PYTHON and limit.dtype == I64):
        return limit
    return fresh(saturated(read(limit), dtype), Kind.PYTHON)


@implements("astype")
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Convert to another dtype."""
    return array_of(x).astype(dtype, copy=copy)


# -- rounding and parts --------------------------------------------------------------------------------------------


@implements("round", "around")
def round_(a: Any, decimals: Any = 0, out: Any = None) -> Any:
    """Round to the given number of decimals, ties to even."""
    x = array_of(a)
    digits = int(decimals)
    if x.dtype.kind in "iu":
        return into(_round_integers(x, digits), out)
    if digits == 0:
        return apply(np.rint, x, out=out)
    if x.dtype.kind == "c":
        parts = [read(round_(part, digits)) for part in (x.real, x.imag)]
        return into(wrap(current_scope().emit("complex", *parts)), out)
    scale = 10.0 ** abs(digits)
    if digits > 0:
        return into(np.rint(x * scale) / scale, out)
    return into(np.rint(x / scale) * scale, out)


def _round_integers(x: Array, digits: int) -> Any:
    if digits >= 0:
        return wrap(read(x))
    scale = 10.0**-digits
    return wrap(cast(read(np.rint(x / scale) * scale), x.dtype))


@implements("fix")
def fix(x: Any, out: Any = None) -> Any:
    """Round towards zero."""
    return apply(np.trunc, x, out=out)


@implements("real")
def real(val: Any) -> Any:
    """Return the real part, a view of a complex array."""
    return lift(val).real


@implements("imag")
def imag(val: Any) -> Any:
    """Return the imaginary part, a view of a complex array."""
    x = lift(val)
    return x.imag if x.dtype.kind == "c" or x.kind is Kind.ARRAY else wrap(read(x.imag))


@implements("angle")
def angle(z: Any, deg: bool = False) -> Any:
    """Return the angle of complex numbers."""
    x = array_of(z)
    result = np.arctan2(x.imag, x.real) if x.dtype.kind == "c" else np.arctan2(0, x)
    return result * (180 / PI) if deg else result


@implements("nan_to_num")
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """Replace NaN and infinities by numbers."""
    given = array_of(x)
    result = _finite(given, nan, posinf, neginf)
    if copy or given.ndim == 0:
        return result
    given[...] = result
    return given


def _finite(x: Array, nan: Any, posinf: Any, neginf: Any) -> Any:
    if not np.issubdtype(x.dtype, np.inexact):  # nor is bfloat16, of which NumPy knows no limits
        return wrap(read(x))
    if x.dtype.kind == "c":
        parts = [_finite(part, nan, posinf, neginf) for part in (x.real, x.imag)]
        return emit("complex", *parts)
    limits = np.finfo(x.dtype)
    result = where(np.isnan(x), convert(nan, x.dtype), x)
    result = where(isposinf(x), convert(limits.max if posinf is None else posinf, x.dtype), result)
    result = where(isneginf(x), convert(limits.min if neginf is None else neginf, x.dtype), result)
    return wrap(read(result))


# -- tests ---------------------------------------------------------------------------------------------------------


@implements("isposinf")
def isposinf(x: Any, out: Any = None) -> Any:
    """Tell which elements are +inf."""
    return _signed_infinity(x, False, out, "isposinf")


@implements("isneginf")
def isneginf(x: Any, out: Any = None) -> Any:
    """Tell which elements are -inf."""
    return _signed_infinity(x, True, out, "isneginf")


def _signed_infinity(x: Any, negative: bool, out: Any, name: str) -> Any:
    if lift(x).dtype.kind == "c":
        text = f"This operation is not supported for {lift(x).dtype} values because it would be ambiguous."
        raise TypeRuleError(text, location=here())
    sign = np.signbit(lift(x)) if lift(x).dtype != BOOL else False
    return apply(
        np.logical_and, np.isinf(lift(x)), sign if negative else np.logical_not(sign), out=out
    )


@implements("isreal")
def isreal(x: Any) -> Any:
    """Tell which elements have no imaginary part."""
    return np.equal(lift(x).imag, 0)


@implements("iscomplex")
def iscomplex(x: Any) -> Any:
    """Tell which elements have an imaginary part."""
    return np.not_equal(lift(x).imag, 0)


@implements("iscomplexobj")
def iscomplexobj(x: Any) -> bool:
    """Tell whether an array is of complex dtype."""
    return lift(x).dtype.kind == "c"


@implements("isrealobj")
def isrealobj(x: Any) -> bool:
    """Tell whether an array is not of complex dtype."""
    return not iscomplexobj(x)


@implements("isscalar")
def isscalar(element: Any) -> bool:
    """Tell whether a value is a NumPy scalar or a Python number."""
    return (
        element.kind is not Kind.ARRAY
        if isinstance(element, Traced)
        else bool(np.isscalar(element))
    )


@implements("isclose")
def isclose(a: Any, b: Any, rtol: Any = 1.0e-5, atol: Any = 1.0e-8, equal_nan: bool = False) -> Any:
    """Tell which elements are equal within a tolerance."""
    x = lift(a)
    y: Any = lift(b)
    y = y * 1.0 if y.kind is Kind.PYTHON else convert(y, result_dtype(y, 1.0))
    near = np.less_equal(abs(x - y), atol + rtol * abs(y))
    result: Any = near & np.isfinite(y) | np.equal(x, y)
    return result | (np.isnan(x) & np.isnan(y)) if equal_nan else result


@implements("allclose")
def allclose(
    a: Any, b: Any, rtol: Any = 1.0e-5, atol: Any = 1.0e-8, equal_nan: bool = False
) -> Any:
    """Tell whether all elements are equal within a tolerance."""
    return _truth(np.all(isclose(a, b, rtol, atol, equal_nan)))


def _truth(x: Array) -> Array:
    return fresh(read(x), Kind.PYTHON)


@implements("array_equal")
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Tell whether two arrays have the same shape and elements."""
    x, y = array_of(a1), array_of(a2)
    if x.ndim != y.ndim or any(_differ(a, b) for a, b in zip(dims_of(x), dims_of(y), strict=True)):
        return False
    if is_symbolic(*dims_of(x), *dims_of(y)) and dims_of(x) != dims_of(y):
        return _equal_at_run_time(x, y, equal_nan)
    return _truth(np.all(_same(x, y, equal_nan)))


def _differ(a: Any, b: Any) -> bool:
    gap = a - b
    return isinstance(gap, int) and gap != 0


def _same(x: Array, y: Array, equal_nan: bool) -> Array:
    same: Any = np.equal(x, y)
    floats = is_inexact(x.dtype) and is_inexact(y.dtype)
    return same | (np.isnan(x) & np.isnan(y)) if equal_nan and floats else same


def _equal_at_run_time(x: Array, y: Array, equal_nan: bool) -> Array:
    """Compare arrays whose sizes may differ: look at `y` where `x` has elements, and at the sizes."""
    fits: Any = lift(True)
    picked = y
    for axis in range(x.ndim):
        wanted, own = x.shape[axis], y.shape[axis]
        fits = fits & (wanted == own)
        positions = np.minimum(counter(dims_of(x)[axis]), np.maximum(own - 1, 0))
        grown = np.concatenate(
            [picked, np.zeros_like(picked.sum(axis=axis, keepdims=True))], axis=axis
        )
        picked = np.take(grown, positions, axis=axis)
    return _truth(fits & np.all(_same(x, picked, equal_nan)))


@implements("array_equiv")
def array_equiv(a1: Any, a2: Any) -> Any:
    """Tell whether two arrays are equal after broadcasting."""
    x, y = array_of(a1), array_of(a2)
    try:
        broadcast_shapes(dims_of(x), dims_of(y))
    except ShapeError:
        if not is_symbolic(*dims_of(x), *dims_of(y)):
            return False
    return _truth(np.all(np.equal(x, y)))


# -- formulas ------------------------------------------------------------------------------------------------------


@implements("sinc")
def sinc(x: Any) -> Any:
    """Return sin(pi x) / (pi x), 1 at 0; there, its series has the derivatives."""
    y = PI * array_of(x)
    eps = np.finfo(y.dtype).eps if y.dtype.kind == "f" else 1e-20
    apart = where(y, y, convert(eps, y.dtype))
    series = 1 - y * y * (1 / 6 - y * y * (1 / 120))
    return wrap(read(where(y, np.sin(apart) / apart, series)))


@implements("i0")
def i0(x: Any) -> Any:
    """Return the modified Bessel function of the first kind, order 0."""
    y = array_of(x)
    if y.dtype.kind == "c":
        raise TypeRuleError("i0 not supported for complex values", location=here())
    y = y if is_inexact(y.dtype) else y.astype(np.float64)
    y = where(y < 0, -y, y)  # unlike that of `abs`, the second derivative of this is right at 0
    from numpy.lib import _function_base_impl as tables

    small = np.exp(y) * _chebyshev(y / 2.0 - 2, tables._i0A)  # type: ignore[attr-defined]
    safe = np.maximum(y, 1.0)
    large = np.exp(y) * _chebyshev(32.0 / safe - 2.0, tables._i0B) / np.sqrt(safe)  # type: ignore[attr-defined]
    return where(y <= 8.0, small, large)


def _chebyshev(x: Array, coefficients: list[float]) -> Array:
    b0: Any = coefficients[0]
    b1: Any = 0.0
    b2: Any = 0.0
    for c in coefficients[1:]:
        b2, b1 = b1, b0
        b0 = x * b1 - b2 + c
    return 0.5 * (b0 - b2)


@implements("unwrap")
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * PI) -> Any:
    """Add multiples of the period so that neighbours are close."""
    x = array_of(p)
    axis = normal_axis(axis, x.ndim)
    steps = np.diff(x, axis=axis)
    jump = period / 2 if discont is None else discont
    dtype = result_dtype(steps, period)
    high, ambiguous = (period // 2, period % 2 == 0) if dtype.kind in "iu" else (period / 2, True)
    wrapped = np.mod(steps + high, period) - high
    if ambiguous:
        wrapped = where((wrapped == -high) & (steps > 0), convert(high, wrapped.dtype), wrapped)
    shift = where(abs(steps) < jump, 0, wrapped - steps)
    first = (slice(None),) * axis + (slice(0, 1),)
    rest = (slice(None),) * axis + (slice(1, None),)
    moved = x[rest] + np.cumsum(shift, axis=axis)
    return np.concatenate([convert(x[first], dtype), convert(moved, dtype)], axis=axis)


@implements("interp")
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Interpolate linearly between data points with increasing abscissas."""
    values = array_of(fp)
    values = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    at = array_of(x)
    if at.dtype.kind == "c":
        text = f"Cannot cast array data from {at.dtype!r} to dtype('float64') according to the rule 'safe'"
        raise TypeRuleError(text, location=here())
    points, at = convert(xp, np.float64), convert(at, np.float64)
    _check_points(points, values)
    if period is not None:
        left = right = None
        at, points, values = _periodic(at, points, values, period)
    return _interpolate(at, points, values, left, right)


def _check_points(points: Array, values: Array) -> None:
    vector_of(points), vector_of(values)
    agree(dims_of(points)[0], dims_of(values)[0], "fp and xp are not of the same length.")
    if dims_of(points)[0] == 0:
        raise ShapeError("array of sample points is empty", location=here())


def _periodic(at: Array, points: Array, values: Array, period: Any) -> tuple[Array, Array, Array]:
    if not isinstance(period, Traced) and period == 0:
        raise ShapeError("period must be a non-zero value", location=here())
    period = abs(period)
    points = points % period
    order = np.argsort(points)
    points, values = points[order], values[order]
    points = np.concatenate([points[-1:] - period, points, points[:1] + period])
    return at % period, points, np.concatenate([values[-1:], values, values[:1]])


def _interpolate(at: Array, points: Array, values: Array, left: Any, right: Any) -> Any:
    last = points.shape[0] - 1
    after = np.searchsorted(points, at, side="right")
    low = np.clip(after - 1, 0, last)
    high = np.minimum(low + 1, last)
    x0, y0 = points[low], values[low]
    x1, y1 = points[high], values[high]
    slope = (y1 - y0) / where(high == low, 1.0, x1 - x0)
    result = slope * (at - x0) + y0
    result = where(np.isnan(result), slope * (at - x1) + y1, result)
    result = where(np.isnan(result) & (y0 == y1), y0, result)
    result = where((at == x0) | (low == last), y0, result)
    result = where(
        at < points[0], values[0] if left is None else convert(left, values.dtype), result
    )
    result = where(
        at > points[-1], values[-1] if right is None else convert(right, values.dtype), result
    )
    return wrap(read(where(np.isnan(at), convert(np.nan, values.dtype), result)))


# -- dtypes --------------------------------------------------------------------------------------------------------


@implements("result_type")
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Return the dtype that arrays, numbers and dtypes promote to."""
    return np.result_type(*map(weak, arrays_and_dtypes))


@implements("can_cast")
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    """Tell whether a conversion is allowed by a casting rule."""
    source = from_.dtype if isinstance(from_, Traced) else from_
    return bool(np.can_cast(source, to, casting))


@implements("promote_types")
def promote_types(type1: Any, type2: Any) -> np.dtype:
    """Return the smallest dtype that both dtypes convert to safely."""
    return np.promote_types(type1, type2)


@implements("common_type")
def common_type(*arrays: Any) -> Any:
    """Return the inexact scalar type common to arrays."""
    return np.common_type(*(np.empty(0, lift(a).dtype) for a in arrays))


@implements("isdtype")
def isdtype(dtype: Any, kind: Any) -> bool:
    """Tell whether a dtype is of a kind."""
    return bool(np.isdtype(dtype, kind))


@implements("issubdtype")
def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Tell whether a dtype is below another in the type hierarchy."""
    return bool(np.issubdtype(arg1, arg2))


@implements("min_scalar_type")
def min_scalar_type(a: Any) -> np.dtype:
    """Return the dtype of an array."""
    return lift(a).dtype if isinstance(a, Traced) else np.min_scalar_type(a)


@implements("isfortran")
def isfortran(a: Any) -> bool:
    """Tell whether an array is Fortran contiguous but not C contiguous."""
    return bool(lift(a).flags.fnc)
