"""How elementwise ops, reductions, effects and flat control flow are said in TensorFlow's ops."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.ir.types import BY_NAME, I64
from dsl.summary.nodes import STRING, Emitter, Ref
from dsl.summary.table import EMITTERS, Emit, Found, emits, width

__all__: list[str] = []


# -- elementwise ---------------------------------------------------------------------------------------------------

# TensorFlow's name for numbers, of the kinds after the colon: floats (F: not of half precision), integers, unsigned ones,
# complex ones.
_NUMERIC = {
    "add": "AddV2:fiuc", "subtract": "Sub:fiuc", "multiply": "Mul:fiuc", "divide": "RealDiv:fc", "floor_divide": "FloorDiv:fiu",
    "remainder": "FloorMod:fiu", "fmod": "TruncateMod:F", "power": "Pow:fic", "float_power": "Pow:fc",
    "maximum": "Maximum:fiu", "minimum": "Minimum:fiu", "arctan2": "Atan2:f", "nextafter": "NextAfter:F",
    "bitwise_and": "BitwiseAnd:iu", "bitwise_or": "BitwiseOr:iu", "bitwise_xor": "BitwiseXor:iu",
    "equal": "Equal:fiuc", "not_equal": "NotEqual:fiuc", "less": "Less:fiu", "less_equal": "LessEqual:fiu",
    "greater": "Greater:fiu", "greater_equal": "GreaterEqual:fiu",
    "negative": "Neg:fic", "positive": "Identity:fiuc", "fabs": "Abs:f", "sign": "Sign:fi",
    "rint": "Rint:F", "floor": "Floor:f", "ceil": "Ceil:f", "sqrt": "Sqrt:fc", "square": "Square:fiuc", "reciprocal": "Reciprocal:fc",
    "exp": "Exp:fc", "expm1": "Expm1:fc", "log": "Log:fc", "log1p": "Log1p:fc",
    "sin": "Sin:fc", "cos": "Cos:fc", "tan": "Tan:fc", "arcsin": "Asin:f", "arccos": "Acos:f", "arctan": "Atan:f",
    "sinh": "Sinh:fc", "cosh": "Cosh:fc", "tanh": "Tanh:fc", "arcsinh": "Asinh:fc", "arccosh": "Acosh:fc", "arctanh": "Atanh:fc",
    "isfinite": "IsFinite:f", "isinf": "IsInf:f", "isnan": "IsNan:f", "conjugate": "Conj:c", "invert": "Invert:iu",
    "erf": "Erf:f", "erfc": "Erfc:f", "erfinv": "Erfinv:F", "lgamma": "Lgamma:F", "digamma": "Digamma:F",
}  # fmt: skip
_BOOLEAN = {
    "add": "LogicalOr", "multiply": "LogicalAnd", "maximum": "LogicalOr", "minimum": "LogicalAnd", "bitwise_and": "LogicalAnd",
    "bitwise_or": "LogicalOr", "bitwise_xor": "NotEqual", "equal": "Equal", "not_equal": "NotEqual", "invert": "LogicalNot",
    "logical_and": "LogicalAnd", "logical_or": "LogicalOr", "logical_xor": "NotEqual", "logical_not": "LogicalNot",
    "sum": "Any", "prod": "All", "max": "Any", "min": "All", "any": "Any", "all": "All",
}  # fmt: skip

# The only kinds of numbers that these change.
_CHANGED = {"floor": "fc", "ceil": "fc", "rint": "fc", "conjugate": "c"}


def _elementwise(name: str) -> Emit:
    op, _, kinds = _NUMERIC.get(name, ":").partition(":")

    def emit(t: Emitter, *xs: Ref) -> Found:
        kind = xs[0].kind
        if kind == "b" and name in _BOOLEAN:
            return t(_BOOLEAN[name], *xs)
        if kind not in _CHANGED.get(name, kind):
            return t("Identity", *xs)
        same = len({x.dtype for x in xs}) == 1
        return t(op, *xs) if same and _is_one_of(kinds, xs[0]) else None

    return emit


def _is_one_of(kinds: str, x: Ref) -> bool:
    return x.kind in kinds or (x.kind == "f" and "F" in kinds and width(x) > 2)


EMITTERS |= {name: _elementwise(name) for name in _NUMERIC}


@emits("logical_and", "logical_or", "logical_xor", "logical_not")
def _logical(t: Emitter, *xs: Ref) -> Found:
    truths = [x if x.kind == "b" else t("NotEqual", x, t.like(x, 0)) for x in xs]
    return t(_BOOLEAN[t.node.op.name], *truths)


def _scaled(factor: float) -> Emit:
    return lambda t, x: t("Mul", x, t.like(x, factor))


def _trunc(t: Emitter, x: Ref) -> Found:
    if x.kind != "f":
        return t("Identity", x)
    return t("SelectV2", t("Less", x, t.like(x, 0)), t("Ceil", x), t("Floor", x))


def _logaddexp(t: Emitter, x: Ref, y: Ref) -> Ref:
    """log(exp(x) + exp(y)) from the larger one on; equal infinities stay."""
    rest = t("Log1p", t("Exp", t("Neg", t("Abs", t("Sub", x, y)))))
    apart = t("AddV2", t("Maximum", x, y), rest)
    return t("SelectV2", t("Equal", x, y), t("AddV2", x, t.like(x, math.log(2))), apart)


def _number_wins(op: str) -> Emit:
    def emit(t: Emitter, x: Ref, y: Ref) -> Found:
        if x.kind != "f":
            return _elementwise(op.lower())(t, x, y)
        either = t("SelectV2", t("IsNan", y), x, t(op, x, y))
        return t("SelectV2", t("IsNan", x), y, either)

    return emit


def _signbit(t: Emitter, x: Ref) -> Ref:
    bits = BY_NAME[f"i{8 * width(x)}"]
    return t("Less", t("Bitcast", x, gives=bits, type=bits), t.const(0, bits))


def _copysign(t: Emitter, x: Ref, y: Ref) -> Ref:
    return t("SelectV2", t("Equal", _signbit(t, x), _signbit(t, y)), x, t("Neg", x))


def _cbrt(t: Emitter, x: Ref) -> Ref:
    return t("Mul", t("Sign", x), t("Pow", t("Abs", x), t.like(x, 1 / 3)))


def _heaviside(t: Emitter, x: Ref, y: Ref) -> Ref:
    step = t("AddV2", t("Mul", t("Sign", x), t.like(x, 0.5)), t.like(x, 0.5))
    return t("SelectV2", t("Equal", x, t.like(x, 0)), y, step)


EMITTERS |= {
    "trunc": _trunc, "logaddexp": _logaddexp, "fmax": _number_wins("Maximum"), "fmin": _number_wins("Minimum"),
    "signbit": _signbit, "copysign": _copysign, "cbrt": _cbrt, "heaviside": _heaviside,
    "exp2": lambda t, x: t("Pow", t.like(x, 2), x), "log2": lambda t, x: t("RealDiv", t("Log", x), t.like(x, math.log(2))),
    "log10": lambda t, x: t("RealDiv", t("Log", x), t.like(x, math.log(10))),
    **dict.fromkeys(("deg2rad", "radians"), _scaled(math.pi / 180)),
    **dict.fromkeys(("rad2deg", "degrees"), _scaled(180 / math.pi)),
    "divmod": lambda t, x, y: (t("FloorDiv", x, y), t("FloorMod", x, y)),
    "polygamma": lambda t, x, order: t("Polygamma", t.like(x, order), x) if _is_one_of("F", x) else None,
    "where": lambda t, p, x, y: t("SelectV2", p, x, y),
    "real": lambda t, x: t("Real", x, gives=t.node.output.dtype, Tout=t.node.output.dtype),
    "imag": lambda t, x: t("Imag", x, gives=t.node.output.dtype, Tout=t.node.output.dtype),
    "complex": lambda t, x, y: t("Complex", x, y, gives=t.node.output.dtype, Tout=t.node.output.dtype),
    "bitcast": lambda t, x, dtype: t.cast(x, dtype) if x.kind == "b" else t("Bitcast", x, gives=dtype, type=dtype),
    "cast": lambda t, x, dtype: t("Cast", x, gives=dtype, DstT=dtype, Truncate=False),
    "identity": lambda t, x: t("Identity", x),
    "stop_gradient": lambda t, x: t("StopGradient", x),
    "const": lambda t, value: t.const(value.array, value.array.dtype),
}  # fmt: skip


@emits("absolute")
def _absolute(t: Emitter, x: Ref) -> Found:
    if x.kind == "c":
        out = t.node.output.dtype
        return t("ComplexAbs", x, gives=out, Tout=out)
    return t("Identity" if x.kind in "bu" else "Abs", x)


# -- reductions ----------------------------------------------------------------------------------------------------


def _reduction(name: str, op: str) -> Emit:
    def emit(t: Emitter, x: Ref, axes: tuple[int, ...]) -> Found:
        if x.kind == "c" and op in ("Max", "Min"):
            return None
        chosen = _BOOLEAN[name] if x.kind == "b" else op
        return t(chosen, x, t.const(np.array(axes, np.int64)), keep_dims=False)

    return emit


EMITTERS |= {
    name: _reduction(name, name.capitalize())
    for name in ("sum", "prod", "max", "min", "any", "all")
}
EMITTERS |= {
    name: lambda t, x, axis, op=op: t(op, x, t.const(axis), gives=I64, output_type=I64) if x.kind in "fiub" else None
    for name, op in (("argmax", "ArgMax"), ("argmin", "ArgMin"))
}  # fmt: skip
EMITTERS |= {
    name: lambda t, x, axis, op=op: None if x.kind == "b" else t(op, x, t.const(axis), exclusive=False, reverse=False)
    for name, op in (("cumsum", "Cumsum"), ("cumprod", "Cumprod"))
}  # fmt: skip


# -- effects -------------------------------------------------------------------------------------------------------


@emits("assert")
def _assert(t: Emitter, pred: Ref, *values: Ref, message: str, error: str) -> Sequence[Ref]:
    data = [t.const(message, STRING), *values]
    t("Assert", pred, *data, T=[ref.dtype for ref in data], summarize=3)
    return ()


@emits("print")
def _print(t: Emitter, *values: Ref, template: str, end: str) -> Found:
    text = _plain_template(template)
    if text is None:
        return None
    types = [ref.dtype for ref in values]
    line = t(
        "StringFormat", *values, gives=STRING, T=types, template=text, placeholder="{}", summarize=3
    )
    t("PrintV2", line, output_stream="stdout", end=end)
    return ()  # fmt: skip


def _plain_template(template: str) -> str | None:
    """Return a template with `{}` for the values, in order, if it asks for nothing else."""
    parts, count = [], 0
    for text, name, spec, how in string.Formatter().parse(template):
        parts.append(text)
        if "{" in text or spec or how or name not in (None, "", str(count)):
            return None
        if name is not None:
            parts.append("{}")
            count += 1
    return "".join(parts)


# -- flat control flow ---------------------------------------------------------------------------------------------


def _merge(t: Emitter, *xs: Ref, **hints: Any) -> Ref:
    """A merge of one input passes it on; waiting for dead nodes must not kill it."""
    return t("Identity" if len(xs) == 1 and not t.controls else "Merge", *xs)


def _enter(t: Emitter, x: Ref, frame: str, **hints: Any) -> Ref:
    parallel = hints.get("parallel_iterations", 10)
    constant = bool(hints.get("invariant"))
    return t("Enter", x, frame_name=frame, is_constant=constant, parallel_iterations=parallel)


EMITTERS |= {
    "switch": lambda t, x, pred, **hints: t.outputs(t("Switch", x, pred), x.dtype, x.dtype),
    "merge": _merge, "enter": _enter, "loop_merge": lambda t, first, **hints: t("Merge", first),
    "exit": lambda t, x, **hints: t("Exit", x), "next_iteration": lambda t, x, **hints: t("NextIteration", x),
    "loop_cond": lambda t, pred, **hints: t("LoopCond", pred),
}  # fmt: skip
