"""NumPy's ufuncs on traced values: dtype resolution by NumPy itself, casts, broadcasting, `out=` and `where=`, methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.exact_comparisons import compare
from dsl.frontend.numbers import is_plain_number, made
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import (
    _FUNCTIONS,
    _UFUNCS,
    Kind,
    Traced,
    cast,
    emit,
    fresh,
    lift,
    normalise_axis,
    python_type,
    read,
    wrap,
    write,
)
from dsl.ir.dims import Dim, DimLike, dim_min, lower_bound, symbols_of
from dsl.ir.graph import Value
from dsl.ir.ops.elementwise import UFUNC_OPS
from dsl.ir.signs import Sign, sign_of
from dsl.ir.types import BOOL, I64, Shape, broadcast_shapes

__all__ = [
    "COMPOSED",
    "SPECIAL",
    "apply",
    "broadcast_values",
    "logistic",
    "operator",
    "special_function",
]

_REDUCTIONS = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min", np.logical_and: "all", np.logical_or: "any",
    np.bitwise_and: "reduce_and", np.bitwise_or: "reduce_or", np.bitwise_xor: "reduce_xor",
}  # fmt: skip
_ACCUMULATIONS = {
    np.add: "cumsum",
    np.multiply: "cumprod",
    np.maximum: "cummax",
    np.minimum: "cummin",
}
_SCATTER_MODES: dict[np.ufunc, str] = {
    np.add: "add", np.multiply: "multiply", np.maximum: "max", np.minimum: "min",
}  # fmt: skip
SPECIAL = {
    "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "gamma": "gamma", "gammaln": "lgamma", "psi": "digamma",
    "digamma": "digamma", "expit": "expit",
}  # fmt: skip
"""SciPy's ufuncs with a traced meaning, and the names that `special_function` knows them by."""
COMPOSED: dict[str, Callable[..., Any]] = {}
"""SciPy's ufuncs that are made of several ops; set by `functions.scipy`."""


def operand_type(x: Any) -> Any:
    """Return what NumPy's dtype resolution should see: a dtype, or a Python type for weak numbers."""
    if isinstance(x, Traced):
        return (BOOL if x.dtype == BOOL else python_type(x)) if x.kind is Kind.PYTHON else x.dtype
    if isinstance(x, bool):
        return BOOL
    if is_plain_number(x):
        return type(x)
    return np.asarray(x).dtype


def _is_weak(x: Any) -> bool:
    return x.kind is Kind.PYTHON if isinstance(x, Traced) else is_plain_number(x)


def _strong(type_: Any) -> np.dtype:
    return (
        type_
        if isinstance(type_, np.dtype)
        else {int: I64, float: np.dtype(float), complex: np.dtype(complex)}[type_]
    )


def resolve(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: Any = None) -> tuple[np.dtype, ...]:
    """Return the dtypes of the loop that NumPy would run."""
    types = tuple(map(operand_type, inputs))
    if all(map(_is_weak, inputs)):
        types = tuple(map(_strong, types))
    if ufunc in (np.left_shift, np.right_shift) and set(types) == {BOOL}:
        types = (np.dtype(np.int8),) * 2
    try:
        return _loop(ufunc, types, None if dtype is None else np.dtype(dtype))
    except TypeError as error:
        names = ", ".join(str(t) if isinstance(t, np.dtype) else t.__name__ for t in types)
        raise TypeRuleError(
            f"ufunc '{ufunc.__name__}' not supported for the input types ({names}): {error}",
            location=here(),
        ) from None


@functools.cache
def _loop(ufunc: np.ufunc, types: tuple[Any, ...], wanted: np.dtype | None) -> tuple[np.dtype, ...]:
    signature = (None,) * ufunc.nin + (wanted,) * ufunc.nout
    return ufunc.resolve_dtypes((*types, *[None] * ufunc.nout), signature=signature)


def apply(
    ufunc: np.ufunc,
    *inputs: Any,
    out: Any = None,
    where: Any = True,
    dtype: Any = None,
    casting: str = "same_kind",
    **kwargs: Any,
) -> Any:
    """Call a ufunc on operands of which at least one is traced, as NumPy would."""
    if ufunc.signature is not None and ufunc.__name__ in _FUNCTIONS:
        target = out[0] if isinstance(out, tuple) else out
        return _FUNCTIONS[ufunc.__name__](
            *inputs, out=target, casting=casting, dtype=dtype, **kwargs
        )
    kwargs.pop("subok", None)
    order = kwargs.pop("order", "K")
    if kwargs:
        raise UnsupportedError(f"{ufunc.__name__} with {', '.join(kwargs)}=", location=here())
    if ufunc not in UFUNC_OPS:
        raise UnsupportedError(
            f"the ufunc {ufunc.__name__} is not supported",
            location=here(),
            remedy=_nearest(ufunc.__name__),
        )
    outputs = _outputs(ufunc, inputs, dtype)
    results = tuple(_laid_out(value, order) for value in outputs)
    stored = tuple(
        _store(r, o, where, casting) for r, o in zip(results, _outs(out, len(results)), strict=True)
    )
    return stored[0] if len(stored) == 1 else stored


def _outputs(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: Any = None) -> tuple[Value, ...]:
    """Return what a ufunc gives for operands, as values."""
    inputs = tuple([x if type(x) is Traced else _as_operand(x) for x in inputs])
    loop = resolve(ufunc, inputs, dtype)
    compared = compare(ufunc, inputs)
    if compared is not None:
        return (compared,)
    values = broadcast_values([operand(x, t) for x, t in zip(inputs, loop, strict=False)])
    return current_scope().node(UFUNC_OPS[ufunc], values, {}).outputs


def _as_operand(x: Any) -> Any:
    """Return an operand as an array or a number.

    One of a subclass of Python's numbers, such as a member of an `IntEnum`, is what NumPy takes it for: a scalar of its own.
    """
    if isinstance(x, (list, tuple)) and not _has_traced(x):
        x = np.asarray(x)
    if isinstance(x, (list, tuple, range)):
        return lift(x)
    of_python = isinstance(x, (int, float, complex)) and not isinstance(x, np.generic)
    return np.asarray(x)[()] if of_python and type(x) not in _PYTHON_NUMBERS else x


_PYTHON_NUMBERS = (bool, int, float, complex)


def _laid_out(value: Value, order: str) -> Traced:
    """Return the result of a ufunc, which lies in memory as its operands do unless an order is told."""
    result = wrap(value)
    if order in ("C", "F"):
        return result.copy(order)
    result.storage.follows = True
    return result


def _has_traced(items: Any) -> bool:
    return any(
        _has_traced(x) if isinstance(x, (list, tuple)) else isinstance(x, Traced) for x in items
    )


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [u.__name__ for u in UFUNC_OPS], 1)
    return (
        f"the nearest supported function is np.{close[0]}"
        if close
        else "write it with supported functions"
    )


def operand(x: Any, dtype: np.dtype) -> Value:
    """Return an operand as a value of `dtype`."""
    if isinstance(x, Traced):
        return cast(read(x), dtype)
    if is_plain_number(x):
        return current_scope().constant(made(x, dtype))
    return cast(read(lift(x)), dtype)


def broadcast_values(values: list[Value]) -> list[Value]:
    """Make sizes that are known only at run time agree, so that the type rules can broadcast the rest."""
    if all(v.tensor.is_static() for v in values):
        return values
    shapes = [v.shape for v in values]
    target = _common_shape(shapes)
    return [v if _joins(v.shape, target) else _stretched(v, target) for v in values]


def _stretched(value: Value, target: Shape) -> Value:
    """Return a value with the dims of `target`: a slice, which kernels look through, where none of its own may be 1 of many."""
    scope, own = current_scope(), value.shape
    tail = target[len(target) - len(own) :]
    trace = current_trace()
    equated = trace.equated if trace is not None else ()
    if all(d in (1, t) or (d, t) in equated for d, t in zip(own, tail, strict=True)):
        size = tuple(d if d == 1 else t for d, t in zip(own, tail, strict=True))
        rank = len(own)
        return scope.emit("slice", value, start=(0,) * rank, size=size, step=(1,) * rank)
    return scope.emit("broadcast_to", value, shape=target)


def _joins(shape: Shape, target: Shape) -> bool:
    tail = target[len(target) - len(shape) :]
    return all(d == t or d == 1 for d, t in zip(shape, tail, strict=True))


def _common_shape(shapes: list[Shape]) -> Shape:
    result = shapes[0]
    for shape in shapes[1:]:
        try:
            result = broadcast_shapes(result, shape)
        except ShapeError as error:
            if not any(isinstance(d, Dim) for d in (*result, *shape)):
                error.location = here()
                raise
            result = _run_time_shape(result, shape)
    return result


def _run_time_shape(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(_run_time_dim(x, y) for x, y in zip(a, b, strict=True))


def _run_time_dim(a: Any, b: Any) -> Any:
    if (
        not (isinstance(a, Dim) and isinstance(b, Dim))
        or a == b
        or max(lower_bound(a) or 0, lower_bound(b) or 0) >= 2
    ):
        return broadcast_shapes((a,), (b,))[0]
    scope = current_scope()
    if _may_equate(a, b):
        return _equated(a, b)
    return scope.as_dim(scope.emit("broadcast_dim", scope.size(a), scope.size(b)))


def _equated(a: Dim, b: Dim) -> DimLike:
    """Have the program ask whether two sizes are equal, and return the lesser, which slices of both may have."""
    scope, trace = current_scope(), current_trace()
    assert trace is not None
    equal = scope.emit("equal", scope.size(a), scope.size(b))
    message = "operands could not be broadcast together"
    scope.node("assert", [equal], {"message": message, "error": "ValueError"})
    lesser = dim_min(a, b)
    trace.equated |= {(a, lesser), (b, lesser)}
    return lesser


def _may_equate(a: Dim, b: Dim) -> bool:
    """Tell whether two sizes are taken to be equal, such as (n + 1)//2 and n//2, which only tiny arrays broadcast otherwise.

    The program asks whether they are, and a call in which they are not is compiled for its sizes alone: of arguments, that is.
    """
    trace, apart = current_trace(), a - b
    of_arguments = all((lower_bound(symbol) or 0) > 1 for symbol in symbols_of(a, b))
    allowed = trace is not None and trace.trial and not trace.cautious
    return allowed and of_arguments and isinstance(apart, Dim)


def _outs(out: Any, count: int) -> tuple[Any, ...]:
    if out is None:
        return (None,) * count
    return out if isinstance(out, tuple) else (out,)


def _store(result: Traced, out: Any, where: Any, casting: str = "same_kind") -> Any:
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        return (
            result
            if where is True
            else _FUNCTIONS["where"](where, result, _FUNCTIONS["zeros_like"](result))
        )
    target = lift(out)
    if target.kind is not Kind.ARRAY:
        raise TypeRuleError("return arrays must be of ArrayType", location=here())
    if not np.can_cast(result.dtype, target.dtype, casting=casting):  # type: ignore[arg-type]
        raise _cast_error("output", result.dtype, target.dtype, casting)
    if where is not True:
        result = _FUNCTIONS["where"](where, result.astype(target.dtype), target)
    store(target, result)
    return target


def _cast_error(what: str, source: np.dtype, target: np.dtype, casting: str) -> TypeRuleError:
    return TypeRuleError(
        f"Cannot cast ufunc {what} from {source!r} to {target!r} with casting rule {casting!r}",
        location=here(),
        remedy="give the target a dtype that can hold the result, or assign with `x[...] = `, which converts",
    )


def store(target: Traced, result: Traced) -> None:
    """Write a ufunc's result into `out`, which it must fit without growing."""
    value = cast(read(result), target.dtype)
    shape = target.type.shape
    if value.shape != shape:
        try:
            fits = _common_shape([value.shape, shape])
        except ShapeError as error:
            error.location = here()
            raise
        if fits != shape and all(isinstance(d, int) for d in (*fits, *shape)):
            raise ShapeError(
                f"non-broadcastable output operand with shape {_text(shape)} doesn't match the broadcast shape {_text(fits)}",
                location=here(),
            )
        value = current_scope().emit("broadcast_to", value, shape=shape)
    write(target, value)


def _text(shape: Shape) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def operator(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
    """Apply an operator; between Python numbers the result is a Python number."""
    if all(map(_is_weak, inputs)) and ufunc is not np.matmul:
        return _python_operator(ufunc, inputs)
    if ufunc is np.power and len(inputs) == 2:
        quick = _power(*inputs)
        if quick is not None:
            return quick
    return apply(ufunc, *inputs)


def _power(base: Any, exponent: Any) -> Any:
    """NumPy's shortcuts for `x ** 2` and the like with a Python number."""
    if (
        not isinstance(exponent, (int, float))
        or isinstance(exponent, (bool, np.generic))
        or not isinstance(base, Traced)
    ):
        return None
    if base.kind is not Kind.ARRAY or base.dtype.kind not in "fc":
        return None
    shortcuts = {2: np.square, 1: np.positive, -1: np.reciprocal, 0.5: np.sqrt}
    return apply(shortcuts[exponent], base) if exponent in shortcuts else None


def _python_operator(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
    numbers = [lift(x) for x in inputs]
    if ufunc not in (np.bitwise_and, np.bitwise_or, np.bitwise_xor):
        numbers = [
            fresh(cast(read(x), I64), Kind.PYTHON) if x.dtype == BOOL else x for x in numbers
        ]
    if ufunc in (np.divide, np.floor_divide, np.remainder, np.divmod):
        _check_divisor(numbers[1], ufunc)
    if ufunc is np.power and _is_negative(numbers[1]):
        numbers = [fresh(cast(read(numbers[0]), np.dtype(float)), Kind.PYTHON), numbers[1]]
    made = tuple([fresh(value, Kind.PYTHON) for value in _outputs(ufunc, tuple(numbers))])
    return made[0] if len(made) == 1 else made


def _is_negative(exponent: Traced) -> bool:
    """Tell whether a Python int is negative for certain: then Python's power of ints is a float."""
    dim = current_scope().known_dim(read(exponent)) if exponent.dtype == I64 else None
    return dim is not None and (lower_bound(-dim) or 0) > 0


def _check_divisor(divisor: Traced, ufunc: np.ufunc) -> None:
    """Python numbers raise where NumPy's give inf, nan or 0."""
    value = read(divisor)
    known = value.node.op.name == "const" and value.node.attrs["value"].array != 0
    if known or sign_of(value) == Sign.POSITIVE:
        return
    whole = value.dtype.kind in "iu"
    what = (
        "integer modulo"
        if ufunc is np.remainder and whole
        else "float modulo"
        if ufunc is np.remainder
        else (
            "integer division or modulo"
            if whole and ufunc is not np.divide
            else "division"
            if whole
            else "float division"
        )
    )
    b = current_scope()
    nonzero = b.emit("not_equal", value, b.constant(0, value.dtype))
    b.node("assert", (nonzero,), {"message": f"{what} by zero", "error": "ZeroDivisionError"})


def inplace(ufunc: np.ufunc, target: Traced, other: Any) -> Traced:
    """`x op= y` on an array: NumPy's `op(x, y, out=x)`."""
    is_product = ufunc is np.matmul
    result = apply(ufunc, target, other) if is_product else operator(ufunc, (target, other))
    if not np.can_cast(result.dtype, target.dtype, casting="same_kind"):
        raise TypeRuleError(
            f"Cannot cast ufunc '{ufunc.__name__}' output from {result.dtype!r} to {target.dtype!r} with casting rule 'same_kind'",
            location=here(),
            remedy="write `x = x op y`, which makes a new array, or convert the right-hand side",
        )
    store(target, result)
    return target


# -- methods: reduce, accumulate, outer, at ------------------------------------------------------------------------


def dispatch(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__array_ufunc__`."""
    if method == "__call__":
        return apply(ufunc, *inputs, **kwargs)
    handler = _METHODS.get(method)
    if handler is None:
        raise UnsupportedError(f"np.{ufunc.__name__}.{method} is not supported", location=here())
    return handler(ufunc, *inputs, **kwargs)


def _reduce(
    ufunc: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    **kwargs: Any,
) -> Any:
    if ufunc not in _REDUCTIONS:
        from dsl.frontend import folds

        return folds.reduce(ufunc, x, axis, dtype, out, keepdims, **kwargs)
    function = _FUNCTIONS[_REDUCTIONS[ufunc]]
    options = {"dtype": dtype} if dtype is not None else {}
    return function(x, axis=axis, out=out, keepdims=keepdims, **options, **kwargs)


def _accumulate(ufunc: np.ufunc, x: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
    if ufunc not in _ACCUMULATIONS:
        from dsl.frontend import folds

        return folds.accumulate(ufunc, x, axis, dtype, out)
    if ufunc in (np.add, np.multiply):
        return _FUNCTIONS[_ACCUMULATIONS[ufunc]](x, axis=axis, dtype=dtype, out=out)
    traced = lift(x)
    kind = traced.dtype if dtype is None else np.dtype(dtype)
    value = cast(read(traced), kind)
    axis = normalise_axis(axis, traced.ndim)
    return _store(wrap(current_scope().emit(_ACCUMULATIONS[ufunc], value, axis=axis)), out, True)


def _outer(ufunc: np.ufunc, x: Any, y: Any, **kwargs: Any) -> Any:
    lhs, rhs = (fresh(read(lift(operand))) for operand in (x, y))
    column = lhs.reshape((*lhs.shape, *([1] * rhs.ndim)))
    return apply(ufunc, column, rhs, **kwargs)


def _at(ufunc: np.ufunc, target: Any, indices: Any, values: Any = None) -> None:
    handle = lift(target)
    if not _scatters(ufunc, handle, values):
        from dsl.frontend import folds

        folds.change_at(ufunc, handle, indices, values)
        return
    if ufunc is np.subtract:
        ufunc, values = np.add, -lift(values)
    _UFUNCS["scatter"](handle, indices, values, _SCATTER_MODES[ufunc])


def _scatters(ufunc: np.ufunc, target: Traced, values: Any) -> bool:
    """Tell whether `ufunc.at` may take values as numbers of the target's dtype.

    NumPy computes in the common dtype, and rounds to that of the target at each step: 2 - 1.5 stored as an integer is 0, not 1.
    """
    if ufunc is not np.subtract and ufunc not in _SCATTER_MODES:
        return False
    loop, own = resolve(ufunc, (target, values))[-1], target.dtype
    wraps = ufunc in (np.add, np.subtract, np.multiply) and loop.kind in "iu" and own.kind in "iu"
    return loop == own or wraps or (own.kind in "fcV" and loop.kind == own.kind)


def _reduceat(ufunc: np.ufunc, *args: Any, **kwargs: Any) -> Any:
    return _UFUNCS["reduceat"](ufunc, *args, **kwargs)


_METHODS: dict[str, Any] = {
    "reduce": _reduce,
    "accumulate": _accumulate,
    "outer": _outer,
    "at": _at,
    "reduceat": _reduceat,
}
_UFUNCS.update(
    dispatch=dispatch, operator=operator, inplace=inplace, broadcast_values=broadcast_values
)


def special_function(name: str, x: Any) -> Any:
    """Apply a function that NumPy does not have, in floating point: an op, or the logistic function."""
    traced = lift(x)
    operand = traced if traced.dtype.kind == "f" else traced.astype(float)
    return logistic(operand) if name == "expit" else emit(name, operand)


def logistic(x: Any) -> Any:
    """Return `1 / (1 + exp(-x))` by an exponent that is never positive: nothing overflows, derivatives included."""
    below = x.real < 0
    power = np.exp(np.where(below, x, -x))
    return np.where(below, power, power.dtype.type(1)) / (1 + power)
