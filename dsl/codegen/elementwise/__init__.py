"""Scalar LLVM IR for every elementwise op and dtype combination; the meaning is that of the op's NumPy function.

In: an op's name, the dtypes of its operands and results, and its operands for one element, as `dsl.codegen.arrays`
has scalars. Out: its results for that element. Code is free of branches wherever that is possible, so that LLVM can
turn the loop around it into vector code; the few loops (`gcd`, powers of integers) are functions of the module.

Tables go by what the operands are: `COMPARISONS` take any dtype, `BOOLS` and `INTEGERS` the whole numbers, `BITS` floats
as they are stored, `REALS` float and double, to which half precisions are widened and from which results are rounded
once, `COMPLEXES` pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.codegen import math
from dsl.codegen.arrays import Scalar
from dsl.codegen.elementwise.casts import bitcast, cast, is_half, narrow, widen
from dsl.codegen.elementwise.comparisons import COMPARISONS, EXTREMA
from dsl.codegen.elementwise.complex_functions import FUNCTIONS
from dsl.codegen.elementwise.complexes import COMPLEXES
from dsl.codegen.elementwise.integer_division import SCALAR_DIVISIONS
from dsl.codegen.elementwise.integers import BOOLS, INTEGERS
from dsl.codegen.elementwise.powers import power
from dsl.codegen.elementwise.reals import MATH, REALS
from dsl.codegen.elementwise.reductions import combine, identity
from dsl.codegen.elementwise.representation import BITS
from dsl.codegen.llvm import Function, Value
from dsl.errors import InternalError
from dsl.ir.registry import OPS
from dsl.ir.types import is_float

__all__ = ["combine", "cost", "emit", "expensive", "identity", "needs_cpu", "supported"]

Check = Callable[..., None]
Emitter = Callable[[Function, Sequence[np.dtype], Sequence[np.dtype], Sequence[Any]], Any]

_EXPENSIVE = frozenset(MATH) | {
    "divide", "floor_divide", "remainder", "fmod", "divmod", "sqrt", "reciprocal", "hypot", "gcd", "lcm",
}  # fmt: skip
_EXPENSIVE_COMPLEX = {"absolute", "sign"}
_OF_C = frozenset(("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"))
"""Functions whose complex form is C's, which GPUs do not have."""


def emit(
    fn: Function, op: str, attrs: Mapping[str, Any], inputs: Sequence[np.dtype],
    outputs: Sequence[np.dtype], args: Sequence[Scalar], check: Check, *, scalar: bool = False,
) -> tuple[Scalar, ...]:  # fmt: skip
    """Emit an op for one element and return its results.

    `check(wrong, kind)` is called with what must not be true: `negative_power` for `power` of signed integers. An op
    that brings code of its own calls it with the kind `raised` and, third, a number that says what.
    `scalar` says that the code is for a single number rather than in a loop that LLVM should vectorise.
    """
    own = _own(op)
    if own is not None:
        return own(fn, inputs, outputs, args, check)  # type: ignore[no-any-return]
    emitter = _emitter(op, inputs)
    if scalar and inputs[0].kind in "iu" and op in SCALAR_DIVISIONS:
        emitter = _with_dtype(SCALAR_DIVISIONS[op])
    if emitter is None:
        raise InternalError(f"no native code for {op} of {', '.join(map(str, inputs))}")
    if op == "power" and inputs[1].kind == "i":
        assert isinstance(args[1], Value)
        check(fn.compare("slt", args[1], 0), "negative_power")
    found = emitter(fn, inputs, outputs, args)
    return found if len(outputs) > 1 else (found,)


def supported(op: str, inputs: Sequence[np.dtype]) -> bool:
    """Whether `emit` knows an op for operands of these dtypes."""
    return _own(op) is not None or _emitter(op, inputs) is not None


def needs_cpu(op: str, inputs: Sequence[np.dtype]) -> bool:
    """Whether what `emit` makes of an op for operands of these dtypes is for CPUs alone."""
    if op in _OF_C and inputs[0].kind == "c":
        return True
    portable = OPS[op].portable if op in OPS else None
    return portable is not None and not portable(inputs)


def expensive(op: str, inputs: Sequence[np.dtype]) -> bool:
    """Whether an op costs so much more than a load that a fused loop should not compute it twice."""
    if op in _EXPENSIVE or _own(op) is not None:
        return True
    return inputs[0].kind == "c" and op in _EXPENSIVE_COMPLEX


def cost(op: str, inputs: Sequence[np.dtype]) -> float:
    """Return a rough number of nanoseconds that an op takes for one element, beyond a plain instruction."""
    own = OPS[op].cost if op in OPS else None
    return own(inputs) if own is not None else float(expensive(op, inputs))


def _own(op: str) -> Callable[..., Any] | None:
    """Return what emits an op that is not in the tables but brings its own code."""
    return OPS[op].emit if op in OPS else None


def _emitter(op: str, inputs: Sequence[np.dtype]) -> Emitter | None:
    """Return what emits an op for these dtypes, or None."""
    if op in _CONVERSIONS:
        return _CONVERSIONS[op]
    if op in COMPARISONS:
        return _with_dtypes(COMPARISONS[op])
    if not inputs:
        return None
    dtype = inputs[0]
    if dtype.kind == "c":
        return _complex_emitter(op)
    if is_float(dtype):
        return _float_emitter(op)
    table = BOOLS if dtype.kind == "b" else INTEGERS
    return _with_dtype(table[op]) if op in table else None


def _float_emitter(op: str) -> Emitter | None:
    if op in EXTREMA:
        return _with_dtypes(EXTREMA[op])
    if op in BITS:
        return _with_dtype(BITS[op])
    if op in REALS:
        return _widened(REALS[op])
    if MATH.get(op) == "pow":
        return _widened(power)
    if op in MATH:
        return _widened(lambda fn, *args: math.call(fn, MATH[op], *args))
    return None


def _complex_emitter(op: str) -> Emitter | None:
    if op in EXTREMA:
        return _with_dtypes(EXTREMA[op])
    if op in COMPLEXES:
        return _plain(COMPLEXES[op])
    return _plain(FUNCTIONS[op]) if op in FUNCTIONS else None


def _plain(emitter: Callable[..., Any]) -> Emitter:
    return lambda fn, inputs, outputs, args: emitter(fn, *args)


def _with_dtype(emitter: Callable[..., Any]) -> Emitter:
    return lambda fn, inputs, outputs, args: emitter(fn, inputs[0], *args)


def _with_dtypes(emitter: Callable[..., Any]) -> Emitter:
    return lambda fn, inputs, outputs, args: emitter(fn, tuple(inputs), *args)


def _widened(emitter: Callable[..., Any]) -> Emitter:
    """Let an emitter for float and double take half precisions."""

    def emit_widened(
        fn: Function, inputs: Sequence[np.dtype], outputs: Sequence[np.dtype], args: Sequence[Any]
    ) -> Any:
        wide = (widen(fn, dtype, arg) for dtype, arg in zip(inputs, args))
        found = emitter(fn, *wide)
        if isinstance(found, tuple):
            return tuple(_rounded(fn, x, dtype) for x, dtype in zip(found, outputs))
        return _rounded(fn, found, outputs[0])

    return emit_widened


def _rounded(fn: Function, value: Value, dtype: np.dtype) -> Value:
    return narrow(fn, value, dtype) if is_half(dtype) else value


_CONVERSIONS: dict[str, Emitter] = {
    "cast": lambda fn, inputs, outputs, args: cast(fn, inputs[0], outputs[0], args[0]),
    "bitcast": lambda fn, inputs, outputs, args: bitcast(fn, inputs[0], outputs[0], args[0]),
    "complex": lambda fn, inputs, outputs, args: (args[0], args[1]),
}
