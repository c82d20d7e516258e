"""How reductions and running reductions combine two elements, and what they start from."""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Scalar, register_type, zero
from dsl.codegen.elementwise.casts import cast, narrow, widen
from dsl.codegen.elementwise.comparisons import EXTREMA
from dsl.codegen.elementwise.complexes import multiply
from dsl.codegen.elementwise.integers import BOOLS, INTEGERS
from dsl.codegen.elementwise.reals import flags
from dsl.codegen.llvm import Function, Value
from dsl.ir.types import BOOL, is_float

__all__ = ["combine", "identity"]

# Reductions and running reductions -> the elementwise op that combines.
_COMBINERS = {
    "sum": "add", "cumsum": "add", "prod": "multiply", "cumprod": "multiply", "max": "maximum",
    "cummax": "maximum", "min": "minimum", "cummin": "minimum", "any": "bitwise_or", "all": "bitwise_and",
    "reduce_and": "bitwise_and", "reduce_or": "bitwise_or", "reduce_xor": "bitwise_xor",
}  # fmt: skip
_FLOAT = {"add": "fadd", "multiply": "fmul"}


def combine(
    fn: Function, op: str, dtype: np.dtype, a: Scalar, b: Scalar, *, reassociate: bool
) -> Scalar:
    """Combine two elements, or two partial results, of a reduction that an op names.

    With `reassociate`, LLVM may change the order of float additions and multiplications, which it must to use vectors.
    Half precisions are rounded each time: who sums many of them keeps the sum in float32.
    """
    name = _COMBINERS[op]
    if isinstance(a, tuple):
        assert isinstance(b, tuple)
        return _combine_complex(fn, name, dtype, a, b, reassociate)
    assert isinstance(b, Value)
    if not is_float(dtype):
        return _discrete(fn, name, dtype, a, b)
    if name in EXTREMA:
        return EXTREMA[name](fn, (dtype, dtype), a, b)
    x, y = widen(fn, dtype, a), widen(fn, dtype, b)
    return narrow(fn, fn.binary(_FLOAT[name] + _marks(fn, reassociate), x, y), dtype)


def identity(fn: Function, op: str, dtype: np.dtype) -> Scalar | None:
    """Return what a reduction starts from; None for `max` and `min`, which start from an element."""
    name = _COMBINERS[op]
    if name in EXTREMA:
        return None
    if name == "multiply":
        return cast(fn, BOOL, dtype, Value("true", "i1"))
    if name == "bitwise_and":
        return Value("true", "i1") if dtype.kind == "b" else fn.as_value(-1, register_type(dtype))
    return zero(fn, dtype)


def _marks(fn: Function, reassociate: bool) -> str:
    return flags(fn) or (" reassoc" if reassociate else "")


def _discrete(fn: Function, name: str, dtype: np.dtype, a: Value, b: Value) -> Value:
    table = BOOLS if dtype.kind == "b" else INTEGERS
    found: Value = table[name](fn, dtype, a, b)
    return found


def _combine_complex(
    fn: Function, name: str, dtype: np.dtype, a: tuple[Value, Value], b: tuple[Value, Value],
    reassociate: bool,
) -> Scalar:  # fmt: skip
    if name in EXTREMA:
        return EXTREMA[name](fn, (dtype, dtype), a, b)
    if name == "multiply":
        return multiply(fn, a, b)
    marks = _marks(fn, reassociate)
    return fn.binary("fadd" + marks, a[0], b[0]), fn.binary("fadd" + marks, a[1], b[1])
