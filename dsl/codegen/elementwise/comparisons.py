"""Comparisons, logic, selection and classification, for all dtypes.

A comparison with a NaN is false, `not_equal` true. Complex numbers compare by real part, then imaginary part; a NaN in
either part of either makes them unordered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.arrays import Scalar
from dsl.codegen.elementwise.casts import truth, widen
from dsl.codegen.llvm import Function, Value
from dsl.ir.types import is_float

__all__ = ["COMPARISONS", "compare", "is_nan", "select"]

_PREDICATES = {
    "equal": ("eq", "oeq"), "not_equal": ("ne", "une"), "less": ("lt", "olt"),
    "less_equal": ("le", "ole"), "greater": ("gt", "ogt"), "greater_equal": ("ge", "oge"),
}  # fmt: skip
_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_TRUE, _FALSE = Value("true", "i1"), Value("false", "i1")


def compare(fn: Function, name: str, dtypes: tuple[np.dtype, ...], x: Scalar, y: Scalar) -> Value:
    """Emit the comparison that an op names."""
    if isinstance(x, tuple):
        assert isinstance(y, tuple)
        return _compare_complex(fn, name, x, y)
    assert isinstance(y, Value)
    if is_float(dtypes[0]):
        return fn.fcompare(_PREDICATES[name][1], widen(fn, dtypes[0], x), widen(fn, dtypes[1], y))
    if dtypes[0] != dtypes[1]:
        return _compare_mixed(fn, name, dtypes[0].kind == "i", x, y)
    return fn.compare(_integer_predicate(name, signed=dtypes[0].kind == "i"), x, y)


def _integer_predicate(name: str, *, signed: bool) -> str:
    word = _PREDICATES[name][0]
    return word if word in ("eq", "ne") else ("s" if signed else "u") + word


def _compare_mixed(fn: Function, name: str, signed_first: bool, x: Value, y: Value) -> Value:
    """Compare int64 with uint64: a negative number is less than any unsigned one."""
    if not signed_first:
        return _compare_mixed(fn, _MIRRORED.get(name, name), True, y, x)
    plain = fn.compare(_integer_predicate(name, signed=False), x, y)
    if name in ("less", "less_equal", "not_equal"):
        return fn.either(fn.compare("slt", x, 0), plain)
    return fn.both(fn.compare("sge", x, 0), plain)


def _compare_complex(
    fn: Function, name: str, x: tuple[Value, Value], y: tuple[Value, Value]
) -> Value:
    (a, b), (c, d) = x, y
    predicate = _PREDICATES[name][1]
    if name == "equal":
        return fn.both(fn.fcompare("oeq", a, c), fn.fcompare("oeq", b, d))
    if name == "not_equal":
        return fn.either(fn.fcompare("une", a, c), fn.fcompare("une", b, d))
    strict = predicate[:2] + "t"
    first = fn.both(fn.fcompare(strict, a, c), fn.fcompare("ord", b, d))
    tied = fn.both(fn.fcompare("oeq", a, c), fn.fcompare(predicate, b, d))
    return fn.either(first, tied)


def is_nan(fn: Function, dtype: np.dtype, x: Scalar) -> Value:
    """Whether a scalar is NaN, in either part."""
    if isinstance(x, tuple):
        return fn.fcompare("uno", *x)
    if not is_float(dtype):
        return _FALSE
    wide = widen(fn, dtype, x)
    return fn.fcompare("uno", wide, wide)


def _is_infinite(fn: Function, dtype: np.dtype, x: Scalar) -> Value:
    if isinstance(x, tuple):
        return fn.either(*(_against_infinity(fn, "oeq", part) for part in x))
    return _against_infinity(fn, "oeq", widen(fn, dtype, x)) if is_float(dtype) else _FALSE


def _is_finite(fn: Function, dtype: np.dtype, x: Scalar) -> Value:
    if isinstance(x, tuple):
        return fn.both(*(_against_infinity(fn, "olt", part) for part in x))
    return _against_infinity(fn, "olt", widen(fn, dtype, x)) if is_float(dtype) else _TRUE


def _against_infinity(fn: Function, predicate: str, x: Value) -> Value:
    return fn.fcompare(predicate, fn.intrinsic("llvm.fabs", x), fn.constant(float("inf"), x.type))


def select(fn: Function, condition: Value, x: Scalar, y: Scalar) -> Scalar:
    """Emit `x if condition else y`."""
    if isinstance(x, tuple):
        assert isinstance(y, tuple)
        return fn.select(condition, x[0], y[0]), fn.select(condition, x[1], y[1])
    assert isinstance(y, Value)
    return fn.select(condition, x, y)


def _extremum(comparison: str, intrinsic: str, *, nan_wins: bool) -> Callable[..., Scalar]:
    """Return the emitter of maximum, minimum, fmax or fmin of floats and complex numbers.

    LLVM 22 aborts when it vectorises a loop that combines elements by `maxnum` or `minnum`: they are for GPUs.
    """

    def emit(fn: Function, dtypes: tuple[np.dtype, ...], x: Scalar, y: Scalar) -> Scalar:
        direct = nan_wins or fn.module.device
        if (
            direct
            and isinstance(x, Value)
            and isinstance(y, Value)
            and x.type in ("float", "double")
        ):
            # Which zero wins is open: nsz saves telling them apart. The intrinsic becomes `select(isnan(first), first,
            # ...)`. With x there, whose place the result often takes, LLVM would store under a mask, which makes a
            # maximum along axis 0 four times as slow on Zen 3.
            return fn.intrinsic(intrinsic, y, x, flags="nsz")
        nan = is_nan(fn, dtypes[0], x if nan_wins else y)
        return select(fn, fn.either(compare(fn, comparison, dtypes, x, y), nan), x, y)

    return emit


def _comparison(name: str) -> Callable[..., Value]:
    return lambda fn, dtypes, x, y: compare(fn, name, dtypes, x, y)


def _logical(instruction: str) -> Callable[..., Value]:
    return lambda fn, dtypes, x, y: fn.binary(
        instruction, truth(fn, dtypes[0], x), truth(fn, dtypes[1], y)
    )


COMPARISONS: dict[str, Callable[..., Any]] = {
    **{name: _comparison(name) for name in _PREDICATES},
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": lambda fn, dtypes, x: fn.invert(truth(fn, dtypes[0], x)),
    "where": lambda fn, dtypes, condition, x, y: select(fn, condition, x, y),
    "isnan": lambda fn, dtypes, x: is_nan(fn, dtypes[0], x),
    "isinf": lambda fn, dtypes, x: _is_infinite(fn, dtypes[0], x),
    "isfinite": lambda fn, dtypes, x: _is_finite(fn, dtypes[0], x),
}

EXTREMA: dict[str, Callable[..., Scalar]] = {
    "maximum": _extremum("greater_equal", "llvm.maximum", nan_wins=True),
    "minimum": _extremum("less_equal", "llvm.minimum", nan_wins=True),
    "fmax": _extremum("greater_equal", "llvm.maxnum", nan_wins=False),
    "fmin": _extremum("less_equal", "llvm.minnum", nan_wins=False),
}
