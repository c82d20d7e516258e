"""Derivatives of elementwise ops.

Where a function has a kink, the derivative is the mean of both sides (`maximum` of equal numbers: half to each; `|x|`
at 0: 0). Where it is steeper than any number or undefined at one point only, that point has the value that keeps
composed functions right: `x**0` has derivative 0 at 0 as elsewhere, `hypot` and `arctan2` have 0 at the origin, and
so has `sqrt` of a sum of squares, the length of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Derivative, constant, derive, elementwise, through
from dsl.ir.derivatives.lengths import constant_of, is_flat_at_zero
from dsl.ir.graph import Node, Value
from dsl.ir.types import is_complex, is_inexact

A = Algebra


def _chosen(a: A, condition: Value, x: Any, dtype: np.dtype) -> Value:
    """Return 1 where a condition holds, a number elsewhere."""
    one = a.builder.constant(1, dtype)
    other = x if isinstance(x, Value) else a.builder.constant(x, dtype)
    return a.where(condition, one, other)


def _wins(a: A, ahead: Value, tie: Value, dtype: np.dtype) -> Value:
    return _chosen(a, ahead, _half(a, tie, dtype), dtype)


def _half(a: A, tie: Value, dtype: np.dtype) -> Value:
    half, zero = a.builder.constant(0.5, dtype), a.builder.constant(0, dtype)
    return a.where(tie, half, zero)


def _larger(a: A, z: Value, x: Value, y: Value) -> tuple[Value, Value]:
    tie = a.equal(x, y)
    return _wins(a, a.greater(x, y), tie, z.dtype), _wins(a, a.greater(y, x), tie, z.dtype)


def _smaller(a: A, z: Value, x: Value, y: Value) -> tuple[Value, Value]:
    tie = a.equal(x, y)
    return _wins(a, a.less(x, y), tie, z.dtype), _wins(a, a.less(y, x), tie, z.dtype)


def _larger_number(a: A, z: Value, x: Value, y: Value) -> tuple[Value, Value]:
    """Of `fmax`: a NaN loses."""
    dx, dy = _larger(a, z, x, y)
    return _chosen(a, a.isnan(y), dx, z.dtype), _chosen(a, a.isnan(x), dy, z.dtype)


def _smaller_number(a: A, z: Value, x: Value, y: Value) -> tuple[Value, Value]:
    dx, dy = _smaller(a, z, x, y)
    return _chosen(a, a.isnan(y), dx, z.dtype), _chosen(a, a.isnan(x), dy, z.dtype)


def _power(a: A, z: Value, x: Value, y: Value) -> tuple[Value, Value]:
    """y x**(y - 1), and 0 at 0 where that is not a number: of x**0, and of the root of a sum of squares."""
    known = constant_of(y)
    flat, none = a.equal(y, 0), a.equal(x, 0)
    if known is None:
        flat = a.logical_and(flat, none)
    if is_flat_at_zero(x):
        flat = a.logical_or(flat, a.logical_and(none, a.less(y, 1)))
    zero, one = a.builder.constant(0, x.dtype), a.builder.constant(1, x.dtype)
    less = a.subtract(y, 1)  # of an exponent that is known, so that the power remains one
    lower = a.power(x, less if known is not None and known.all() else a.where(flat, one, less))
    return a.where(flat, zero, a.multiply(y, lower)), a.multiply(z, a.log(a.where(none, one, x)))


def _share(a: A, z: Value, x: Value, y: Value, base: str) -> Value:
    """exp(x) / (exp(x) + exp(y)), also of infinities."""
    full, half = a.builder.constant(1, x.dtype), a.builder.constant(0.5, x.dtype)
    endless = a.logical_and(a.equal(x, z), a.isinf(z))
    return a.where(endless, a.where(a.equal(x, y), half, full), getattr(a, base)(a.subtract(x, z)))


def _at_origin(a: A, size: Value, x: Value) -> Value:
    """x / size, 0 where the size is."""
    zero, one = a.builder.constant(0, x.dtype), a.builder.constant(1, x.dtype)
    none = a.equal(size, 0)
    return a.where(none, zero, a.divide(x, a.where(none, one, size)))


def _arctan2(a: A, z: Value, y: Value, x: Value) -> tuple[Value, Value]:
    size = a.add(a.square(x), a.square(y))
    return _at_origin(a, size, x), a.negative(_at_origin(a, size, y))


def _sqrt(a: A, y: Value, x: Value) -> Value:
    half = a.builder.constant(0.5, y.dtype)
    return _at_origin(a, y, half) if is_flat_at_zero(x) else a.divide(half, y)


def _cbrt(a: A, y: Value, x: Value) -> Value:
    third, size = a.builder.constant(1 / 3, y.dtype), a.square(y)
    return _at_origin(a, size, third) if is_flat_at_zero(x) else a.divide(third, size)


def _signs(a: A, x: Value) -> Value:
    return a.copysign(a.builder.constant(1, x.dtype), x)


def _logarithm(base: float) -> Any:
    return lambda a, y, x: a.divide(1 / math.log(base), x)


def _arc(a: A, x: Value, sign: float) -> Value:
    return a.divide(sign, a.sqrt(a.multiply(a.subtract(1, x), a.add(x, 1))))


def _constant_factor(a: A, x: Value, factor: float) -> Value:
    return a.builder.constant(factor, x.dtype)


PARTIALS: dict[str, Any] = {
    "add": lambda a, z, x, y: (1, 1),
    "subtract": lambda a, z, x, y: (1, -1),
    "multiply": lambda a, z, x, y: (y, x),
    "divide": lambda a, z, x, y: (a.reciprocal(y), a.negative(a.divide(z, y))),
    "remainder": lambda a, z, x, y: (1, a.negative(a.floor_divide(x, y))),
    "fmod": lambda a, z, x, y: (1, a.negative(a.trunc(a.divide(x, y)))),
    "divmod": lambda a, q, r, x, y: ((None, None), (1, a.negative(q))),
    "power": _power,
    "float_power": _power,
    "maximum": _larger,
    "minimum": _smaller,
    "fmax": _larger_number,
    "fmin": _smaller_number,
    "logaddexp": lambda a, z, x, y: (_share(a, z, x, y, "exp"), _share(a, z, y, x, "exp")),
    "logaddexp2": lambda a, z, x, y: (_share(a, z, x, y, "exp2"), _share(a, z, y, x, "exp2")),
    "arctan2": _arctan2,
    "hypot": lambda a, z, x, y: (_at_origin(a, z, x), _at_origin(a, z, y)),
    "copysign": lambda a, z, x, y: (a.multiply(a.sign(x), _signs(a, y)), None),
    "nextafter": lambda a, z, x, y: (1, None),
    "ldexp": lambda a, z, x, y: (a.ldexp(a.builder.constant(1, x.dtype), y), None),
    "heaviside": lambda a, z, x, y: (None, _chosen(a, a.equal(x, 0), 0, z.dtype)),
    "negative": lambda a, y, x: -1,
    "positive": lambda a, y, x: 1,
    "fabs": lambda a, y, x: a.sign(x),
    "sqrt": _sqrt,
    "square": lambda a, y, x: a.multiply(x, 2),
    "cbrt": _cbrt,
    "reciprocal": lambda a, y, x: a.negative(a.square(y)),
    "exp": lambda a, y, x: y,
    "exp2": lambda a, y, x: a.multiply(y, math.log(2)),
    "expm1": lambda a, y, x: a.add(y, 1),
    "log": lambda a, y, x: a.reciprocal(x),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "log1p": lambda a, y, x: a.reciprocal(a.add(x, 1)),
    "sin": lambda a, y, x: a.cos(x),
    "cos": lambda a, y, x: a.negative(a.sin(x)),
    "tan": lambda a, y, x: a.add(a.square(y), 1),
    "arcsin": lambda a, y, x: _arc(a, x, 1),
    "arccos": lambda a, y, x: _arc(a, x, -1),
    "arctan": lambda a, y, x: a.reciprocal(a.add(a.square(x), 1)),
    "sinh": lambda a, y, x: a.cosh(x),
    "cosh": lambda a, y, x: a.sinh(x),
    "tanh": lambda a, y, x: a.subtract(1, a.square(y)),
    "arcsinh": lambda a, y, x: a.reciprocal(a.sqrt(a.add(a.square(x), 1))),
    "arccosh": lambda a, y, x: a.reciprocal(a.multiply(a.sqrt(a.subtract(x, 1)), a.sqrt(a.add(x, 1)))),
    "arctanh": lambda a, y, x: a.reciprocal(a.multiply(a.subtract(1, x), a.add(x, 1))),
    "deg2rad": lambda a, y, x: _constant_factor(a, x, math.pi / 180),
    "radians": lambda a, y, x: _constant_factor(a, x, math.pi / 180),
    "rad2deg": lambda a, y, x: _constant_factor(a, x, 180 / math.pi),
    "degrees": lambda a, y, x: _constant_factor(a, x, 180 / math.pi),
    "modf": lambda a, fraction, whole, x: ((1,), (None,)),
    "frexp": lambda a, m, e, x: ((a.ldexp(a.builder.constant(1, x.dtype), a.negative(e)),), (None,)),
    "erf": lambda a, y, x: a.multiply(a.exp(a.negative(a.square(x))), 2 / math.sqrt(math.pi)),
    "erfc": lambda a, y, x: a.multiply(a.exp(a.negative(a.square(x))), -2 / math.sqrt(math.pi)),
    "erfinv": lambda a, y, x: a.multiply(a.exp(a.square(y)), math.sqrt(math.pi) / 2),
    "gamma": lambda a, y, x: a.multiply(y, a.digamma(x)),
    "lgamma": lambda a, y, x: a.digamma(x),
    "digamma": lambda a, y, x: a.polygamma(x, order=1),
}  # fmt: skip

for _name, _partials in PARTIALS.items():
    derive(_name, elementwise(_partials))

_STEPS = "piecewise constant"
_NONE = {
    "floor_divide": _STEPS, "rint": _STEPS, "floor": _STEPS, "ceil": _STEPS, "trunc": _STEPS,
    "spacing": "a step of one bit", "bitcast": "bits",
    "gcd": "integers", "lcm": "integers", "bitwise_count": "integers", "left_shift": "integers", "right_shift": "integers",
    "bitwise_and": "integers", "bitwise_or": "integers", "bitwise_xor": "integers", "invert": "integers",
    **dict.fromkeys(
        ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
         "logical_not", "isfinite", "isinf", "isnan", "signbit"), "true or false"),
}  # fmt: skip
for _name, _reason in _NONE.items():
    derive(_name, constant(_reason))


# -- those that need the attributes, a mask, or parts of complex numbers ------------------------------------------


def _polygamma(a: A, node: Node) -> Value:
    return a.polygamma(node.inputs[0], order=node.attrs["order"] + 1)


derive(
    "polygamma",
    Derivative(
        lambda a, node, gs: [through(a, gs[0], _polygamma(a, node))],
        lambda a, node, ts: [through(a, ts[0], _polygamma(a, node))],
    ),
)


def _where_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value | None]:
    (condition, x, y), (g,) = node.inputs, gs
    if not is_inexact(x.dtype):
        return [None, None, None]
    zero = a.builder.constant(0, g.dtype)
    return [
        None,
        a.unbroadcast(a.where(condition, g, zero), x.shape),
        a.unbroadcast(a.where(condition, zero, g), y.shape),
    ]


def _where_jvp(a: A, node: Node, ts: Sequence[Value | None]) -> list[Value]:
    condition, x, _ = node.inputs
    zero = a.builder.constant(0, x.dtype)
    tx, ty = (zero if t is None else t for t in ts[1:])
    return [a.to_shape(a.where(condition, tx, ty), node.output.shape)]


derive("where", Derivative(_where_vjp, _where_jvp))


def _cast_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value | None]:
    (x,), (g,) = node.inputs, gs
    if not is_inexact(x.dtype):
        return [None]
    if is_complex(g.dtype) and not is_complex(x.dtype):
        g = a.real(g)
    return [a.as_dtype(g, x.dtype)]


def _cast_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value | None]:
    dtype = node.output.dtype
    return [a.as_dtype(ts[0], dtype) if is_inexact(dtype) else None]


derive("cast", Derivative(_cast_vjp, _cast_jvp))


def _absolute_factor(a: A, node: Node) -> Value:
    """The direction of x, conjugated; 0 at 0."""
    (x,), y = node.inputs, node.output
    if not is_complex(x.dtype):
        return a.sign(x)
    none = a.equal(y, 0)
    size = a.as_dtype(a.where(none, a.builder.constant(1, y.dtype), y), x.dtype)
    return a.divide(a.conjugate(x), size)


def _absolute_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [through(a, gs[0], _absolute_factor(a, node))]


def _absolute_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    moved = through(a, ts[0], _absolute_factor(a, node))
    return [a.real(moved) if is_complex(moved.dtype) else moved]


derive("absolute", Derivative(_absolute_vjp, _absolute_jvp))


def _turned(a: A, x: Value, change: Value, along: Value) -> Value:
    """Of x / |x|, which turns and does not grow: what is left of a change without its part along it, over |x|; 0 at 0."""
    grown = a.as_dtype(a.real(a.multiply(change, a.conjugate(along))), x.dtype)
    rest = a.subtract(change, a.multiply(along, grown))
    return _at_origin(a, a.as_dtype(a.absolute(x), x.dtype), rest)


def _sign_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value | None]:
    (x,), y = node.inputs, node.output
    return [_turned(a, x, gs[0], a.conjugate(y)) if is_complex(x.dtype) else None]


def _sign_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value | None]:
    (x,), y = node.inputs, node.output
    return [_turned(a, x, ts[0], y) if is_complex(x.dtype) else None]


derive("sign", Derivative(_sign_vjp, _sign_jvp))
derive(
    "conjugate",
    Derivative(lambda a, node, gs: [a.conjugate(gs[0])], lambda a, node, ts: [a.conjugate(ts[0])]),
)
derive("real", Derivative(
    lambda a, node, gs: [a.as_dtype(gs[0], node.inputs[0].dtype)],
    lambda a, node, ts: [a.real(ts[0])],
))  # fmt: skip
derive("imag", Derivative(
    lambda a, node, gs: [a.complex(a.builder.constant(0, gs[0].dtype), a.negative(gs[0]))],
    lambda a, node, ts: [a.imag(ts[0])],
))  # fmt: skip


def _complex_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    re, im = node.inputs
    return [
        a.unbroadcast(a.real(gs[0]), re.shape),
        a.unbroadcast(a.negative(a.imag(gs[0])), im.shape),
    ]


def _complex_jvp(a: A, node: Node, ts: Sequence[Value | None]) -> list[Value]:
    zero = a.builder.constant(0, node.inputs[0].dtype)
    re, im = (zero if t is None else t for t in ts)
    return [a.to_shape(a.complex(re, im), node.output.shape)]


derive("complex", Derivative(_complex_vjp, _complex_jvp))
