"""The algebra that `canonicalize` and `simplify` apply, as data: one rule a line.

Every rule is exact: it keeps each bit of the result, +0.0 and -0.0, infinities, dtype and shape included; NaNs count as
one value. What looks true but is not is left out: x + 0.0 turns -0.0 into 0.0, x * 0.0 and x - x lose a NaN, not
(x < y) differs from x >= y for NaN, sqrt(x**2) and exp(log(x)) round. Rules without a condition hold for every dtype.
tests/test_passes.py checks each rule on random and extreme data of every dtype that the ops take.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dsl.ir.dims import DimLike
from dsl.ir.facts import constant_of, fits, splat_of
from dsl.ir.graph import Value
from dsl.ir.patterns import Apply, Match, OfDtype, Patterns, Rule, Var, variables
from dsl.ir.types import BFLOAT16, is_float, is_inexact, is_integer

__all__ = ["ALGEBRA", "BINARY", "CANONICAL", "REDUCTIONS", "UNARY", "is_constant"]

p = Patterns()
c, d, v, x, y = variables("c d v x y")
When = Callable[[Match], bool]


# -- conditions, mostly on the dtype of the first operand --------------------------------------------------------------


def not_complex(m: Match) -> bool:
    return m.node.inputs[0].dtype.kind != "c"


integers = OfDtype(is_integer)
floats = OfDtype(is_float)
reals = OfDtype(lambda dtype: is_integer(dtype) or is_float(dtype))
signed = OfDtype(lambda dtype: dtype.kind == "i" or is_float(dtype))
bools = OfDtype(lambda dtype: dtype.kind == "b")
exact = OfDtype(lambda dtype: is_integer(dtype) or dtype.kind == "b")


def scalar_exponent(m: Match) -> bool:
    """NumPy computes small powers exactly only for an exponent of rank 0."""
    return not_complex(m) and m.node.inputs[1].shape == ()


def inner_fits(m: Match) -> bool:
    """Dropping the inner node loses no check of sizes."""
    return fits(m.node.inputs[0].node)


def is_constant(value: Value) -> bool:
    """Tell whether a value is known, as an array or as the one number in all its elements."""
    return constant_of(value) is not None or splat_of(value) is not None


def constant_left(m: Match) -> bool:
    return not_complex(m) and is_constant(m[x]) and not is_constant(m[y])


def variable_right(m: Match) -> bool:
    return not_complex(m) and not is_constant(m[y])


# -- casts -------------------------------------------------------------------------------------------------------------


def _digits(dtype: np.dtype) -> tuple[int, int, int]:
    """Return bits of precision, of range, and whether there is a sign, such that more of each holds more numbers."""
    if dtype == BFLOAT16:
        return 8, 128, 1
    if is_inexact(dtype):
        info = np.finfo(dtype)
        return info.nmant + 1, info.maxexp, 1
    bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize - (dtype.kind == "i")
    return bits, bits, int(dtype.kind == "i")


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Tell whether every value of `narrow` is one of `wide`."""
    if wide == narrow or narrow.kind == "b":
        return True
    if (
        wide.kind == "b"
        or (is_inexact(narrow) and not is_inexact(wide))
        or narrow.kind == "c" != wide.kind
    ):
        return False
    return all(a >= b for a, b in zip(_digits(wide), _digits(narrow), strict=True))


def cast_exact(m: Match) -> bool:
    """The inner cast loses nothing that the outer one would see."""
    first, middle, last = m[x].dtype, m.node.inputs[0].dtype, m.node.output.dtype
    if (
        is_integer(first)
        and is_integer(middle)
        and is_integer(last)
        and last.itemsize <= middle.itemsize
    ):
        return True
    # A float out of an integer's range becomes what the hardware makes of it, which differs between float widths.
    if is_inexact(middle) and is_integer(last) and not _holds(last, first):
        return False
    return _holds(middle, first)


def _outer(op: str, m: Match) -> Value:
    """Apply the outer op alone to x."""
    return m.make(op, m[x], **m.node.attrs)


# -- views -------------------------------------------------------------------------------------------------------------


def identity_axes(m: Match) -> bool:
    return tuple(m.node.attrs["axes"]) == tuple(range(len(m.type.shape)))


def _transpose_twice(m: Match) -> Value:
    inner = m.node.inputs[0].node.attrs["axes"]
    return m.make("transpose", m[x], axes=tuple(inner[axis] for axis in m.node.attrs["axes"]))


def from_zero(m: Match) -> bool:
    """A box that starts at 0 and steps by 1."""
    return all(start == 0 for start in m.node.attrs["start"]) and all(
        step == 1 for step in m.node.attrs["step"]
    )


def _slice_twice(m: Match) -> Value | None:
    inner, outer = m.node.inputs[0].node.attrs, m.node.attrs
    if 0 in outer["size"] or 0 in inner["step"]:
        return None
    start = tuple(
        _at(*span) for span in zip(inner["start"], inner["step"], outer["start"], strict=True)
    )
    step = tuple(a * b for a, b in zip(inner["step"], outer["step"], strict=True))
    return m.make("slice", m[x], start=start, size=outer["size"], step=step)


def _at(start: DimLike, step: int, k: DimLike) -> DimLike:
    return start + k * step


def same_box(m: Match) -> bool:
    """A slice reads exactly what the update below it wrote."""
    inner = m.node.inputs[0].node
    places = all(m.node.attrs[key] == inner.attrs[key] for key in ("start", "step"))
    return places and tuple(m.node.attrs["size"]) == inner.inputs[1].shape and fits(inner)


def own_box(m: Match) -> bool:
    """An update writes back what was read from the same place."""
    inner = m.node.inputs[1].node
    return all(m.node.attrs[key] == inner.attrs[key] for key in ("start", "step")) and fits(inner)


def _full(m: Match) -> Value:
    return m.make("full", m[v], shape=m.type.shape)


def rank_zero(m: Match) -> bool:
    return m[x].shape == ()


def _static_size(m: Match) -> Value | None:
    dim = m[x].shape[m.node.attrs["axis"]]
    return m.splat(dim) if isinstance(dim, int) else None


def ones(m: Match) -> bool:
    """The reduced axes have one element. Sums of floats start from 0.0, which turns -0.0 into 0.0."""
    kinds = {"sum": "biu", "prod": "biuf"}.get(m.node.op.name)
    if kinds is not None and m[x].dtype.kind not in kinds:
        return False
    return all(m[x].shape[axis] == 1 for axis in m.node.attrs["axes"])


def _reshaped(m: Match) -> Value:
    return m.make("reshape", m[x], shape=m.type.shape)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _halve(m: Match) -> Value | None:
    """x / 2**k and x * 2**-k round the same number; f16 and bf16 would go through float32 either way."""
    array = splat_of(m[c])
    if array is None or not np.isfinite(array) or array == 0:
        return None
    mantissa, exponent = np.frexp(np.float64(array))
    if abs(mantissa) != 0.5 or not -14 < exponent < 14:
        return None
    return m.make(
        "multiply", m[x], m.builder.constant(np.asarray(1.0 / float(array)).astype(array.dtype))
    )


def _regroup(ufunc: np.ufunc, m: Match) -> Value | None:
    """Combine two constants; integers wrap, so the grouping does not show."""
    lhs, rhs = constant_of(m[c]), constant_of(m[d])
    if lhs is None or rhs is None:
        return None
    with np.errstate(all="ignore"):
        return m.make(m.node.op.name, m[x], m.builder.constant(ufunc(lhs, rhs)))


# Elementwise ops whose bits do not depend on how NumPy runs them, one element at a time or many.
UNARY = (
    "negative", "absolute", "square", "sqrt", "logical_not", "invert", "floor", "ceil", "trunc", "rint", "isnan",
    "isinf", "isfinite",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign",
)  # fmt: skip
ROUNDINGS = ("floor", "ceil", "trunc", "rint")
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "reduce_and", "reduce_or", "reduce_xor")


def splatted(m: Match) -> bool:
    """An operand may be an array full of one number."""
    return any(value.node.op.name in ("full", "const") and value.shape for value in m.node.inputs)


def _spread(op: str, m: Match) -> Value | None:
    """Use the number in place of an array full of it, where another operand still gives the shape."""
    if any(value.dtype.kind == "c" for value in m.node.inputs):
        return None
    inputs = [_number(m, value) for value in m.node.inputs]
    if all(value.shape == () for value in inputs):
        return m.make("full", m.make(op, *inputs), shape=m.type.shape) if m.type.shape else None
    for k, (old, new) in enumerate(zip(m.node.inputs, inputs, strict=True)):
        others = [value.shape for j, value in enumerate(m.node.inputs) if j != k]
        if new is not old and m.type.shape in others:
            return m.make(op, *(new if j == k else value for j, value in enumerate(m.node.inputs)))
    return None


def _number(m: Match, value: Value) -> Value:
    if value.node.op.name == "full" and not value.node.controls:
        return value.node.inputs[0]
    array = splat_of(value) if value.shape and value.node.op.name == "const" else None
    return value if array is None else m.builder.constant(array)


def _spread_rule(op: str, *args: Var) -> Rule:
    names = ", ".join(f"full({arg.name})" for arg in args)
    plain = ", ".join(arg.name for arg in args)
    return Rule(
        f"{op}({names}) -> full({op}({plain}))", Apply(op, args), partial(_spread, op), splatted
    )


# -- the tables --------------------------------------------------------------------------------------------------------

# fmt: off
CANONICAL: list[Rule] = [
    Rule("identity(x) -> x", p.identity(x), x),
    Rule("+x -> x", p.positive(x), x),
    Rule("not not x -> x", p.logical_not(p.logical_not(x)), x, bools),
    Rule("~~x -> x", p.invert(p.invert(x)), x),

    Rule("cast(x) to its own dtype -> x", p.cast(x), x),
    Rule("cast(cast(x)) -> cast(x)", p.cast(p.cast(x)), partial(_outer, "cast"), cast_exact),
    Rule("bitcast(x) to its own dtype -> x", p.bitcast(x), x),
    Rule("bitcast(bitcast(x)) -> bitcast(x)", p.bitcast(p.bitcast(x)), partial(_outer, "bitcast")),

    Rule("c < x -> x > c", p.less(x, y), p.greater(y, x), constant_left),
    Rule("c <= x -> x >= c", p.less_equal(x, y), p.greater_equal(y, x), constant_left),
    Rule("x > y -> y < x", p.greater(x, y), p.less(y, x), variable_right),
    Rule("x >= y -> y <= x", p.greater_equal(x, y), p.less_equal(y, x), variable_right),

    Rule("reshape(x) to its own shape -> x", p.reshape(x), x),
    Rule("reshape(reshape(x)) -> reshape(x)", p.reshape(p.reshape(x)), partial(_outer, "reshape"), inner_fits),
    Rule("broadcast_to(x) of its own shape -> x", p.broadcast_to(x), x),
    Rule("broadcast_to(broadcast_to(x)) -> broadcast_to(x)", p.broadcast_to(p.broadcast_to(x)),
         partial(_outer, "broadcast_to"), inner_fits),
    Rule("broadcast_to(number) -> full(number)", p.broadcast_to(x), partial(_outer, "full"), rank_zero),
    Rule("full(x){()} -> x", p.full(x), x),
    Rule("transpose(x){0, 1, …} -> x", p.transpose(x), x, identity_axes),
    Rule("transpose(transpose(x)) -> transpose(x)", p.transpose(p.transpose(x)), _transpose_twice),
    Rule("x[:] -> x", p.slice(x), x, from_zero),
    Rule("x[a][b] -> x[a[b]]", p.slice(p.slice(x)), _slice_twice, inner_fits),
    Rule("concatenate(x) -> x", p.concatenate(x), x),
    Rule("pad(x) by nothing -> x", p.pad(x, v), x),
    Rule("dim_size(x) of a known size -> number", p.dim_size(x), _static_size),
]

ALGEBRA: list[Rule] = [
    Rule("x + 0 -> x", p.add(x, 0), x, integers),
    Rule("x + -0.0 -> x", p.add(x, -0.0), x, floats),
    Rule("x + -y -> x - y", p.add(x, p.negative(y)), p.subtract(x, y), reals),
    Rule("(x + c) + d -> x + (c + d)", p.add(p.add(x, c), d), partial(_regroup, np.add), integers),
    Rule("x - 0 -> x", p.subtract(x, 0), x, reals),
    Rule("x - x -> 0", p.subtract(x, x), 0, integers),
    Rule("x - -y -> x + y", p.subtract(x, p.negative(y)), p.add(x, y), reals),
    Rule("0 - x -> -x", p.subtract(0, x), p.negative(x), integers),
    Rule("x * 1 -> x", p.multiply(x, 1), x, reals),
    Rule("x * 0 -> 0", p.multiply(x, 0), 0, integers),
    Rule("x * -1 -> -x", p.multiply(x, -1), p.negative(x), reals),
    Rule("-x * -y -> x * y", p.multiply(p.negative(x), p.negative(y)), p.multiply(x, y), reals),
    Rule("(x * c) * d -> x * (c * d)", p.multiply(p.multiply(x, c), d), partial(_regroup, np.multiply), integers),
    Rule("x * x -> square(x)", p.multiply(x, x), p.square(x), reals),
    Rule("x / 1 -> x", p.divide(x, 1), x, floats),
    Rule("x / -1 -> -x", p.divide(x, -1), p.negative(x), floats),
    Rule("-x / -y -> x / y", p.divide(p.negative(x), p.negative(y)), p.divide(x, y), floats),
    Rule("x / 2**k -> x * 2**-k", p.divide(x, c), _halve, floats),
    Rule("x // 1 -> x", p.floor_divide(x, 1), x, integers),
    Rule("x % 1 -> 0", p.remainder(x, 1), 0, integers),
    Rule("x ** 0 -> 1", p.power(x, 0), 1, scalar_exponent),
    Rule("x ** 1 -> x", p.power(x, 1), x, scalar_exponent),
    Rule("x ** 2 -> square(x)", p.power(x, 2), p.square(x), scalar_exponent),

    Rule("--x -> x", p.negative(p.negative(x)), x),
    Rule("-(x - y) -> y - x", p.negative(p.subtract(x, y)), p.subtract(y, x), integers),
    Rule("||x|| -> |x|", p.absolute(p.absolute(x)), p.absolute(x), reals),
    Rule("|-x| -> |x|", p.absolute(p.negative(x)), p.absolute(x), signed),
    Rule("|x| of unsigned x -> x", p.absolute(x), x, lambda m: m[x].dtype.kind in "bu"),
    Rule("(-x)**2 -> x**2", p.square(p.negative(x)), p.square(x), reals),
    Rule("|x|**2 -> x**2", p.square(p.absolute(x)), p.square(x), reals),
    Rule("sign(sign(x)) -> sign(x)", p.sign(p.sign(x)), p.sign(x), reals),
    Rule("conj(conj(x)) -> x", p.conjugate(p.conjugate(x)), x),
    Rule("conj(x) of real x -> x", p.conjugate(x), x, reals),
    Rule("real(complex(x, y)) -> x", p.real(p.complex(x, y)), x),
    Rule("imag(complex(x, y)) -> y", p.imag(p.complex(x, y)), y),
    Rule("complex(real(x), imag(x)) -> x", p.complex(p.real(x), p.imag(x)), x),
    *(Rule(f"{f}(x) of integers -> x", Apply(f, (x,)), x, exact) for f in ROUNDINGS if f != "rint"),
    *(Rule(f"{f}({g}(x)) -> {g}(x)", Apply(f, (Apply(g, (x,)),)), Apply(g, (x,)), floats)
      for f in ROUNDINGS for g in ROUNDINGS),
    Rule("isnan(x) of integers -> false", p.isnan(x), False, exact),
    Rule("isinf(x) of integers -> false", p.isinf(x), False, exact),
    Rule("isfinite(x) of integers -> true", p.isfinite(x), True, exact),

    Rule("x & x -> x", p.bitwise_and(x, x), x),
    Rule("x | x -> x", p.bitwise_or(x, x), x),
    Rule("x ^ x -> 0", p.bitwise_xor(x, x), 0),
    Rule("x & 0 -> 0", p.bitwise_and(x, 0), 0),
    Rule("x | 0 -> x", p.bitwise_or(x, 0), x),
    Rule("x ^ 0 -> x", p.bitwise_xor(x, 0), x),
    Rule("x & -1 -> x", p.bitwise_and(x, -1), x),
    Rule("x | -1 -> -1", p.bitwise_or(x, -1), -1),
    Rule("x ^ -1 -> ~x", p.bitwise_xor(x, -1), p.invert(x)),
    Rule("x << 0 -> x", p.left_shift(x, 0), x),
    Rule("x >> 0 -> x", p.right_shift(x, 0), x),

    Rule("x and true -> x", p.logical_and(x, True), x, bools),
    Rule("x and false -> false", p.logical_and(x, False), False, bools),
    Rule("x and x -> x", p.logical_and(x, x), x, bools),
    Rule("x or true -> true", p.logical_or(x, True), True, bools),
    Rule("x or false -> x", p.logical_or(x, False), x, bools),
    Rule("x or x -> x", p.logical_or(x, x), x, bools),
    Rule("x xor false -> x", p.logical_xor(x, False), x, bools),
    Rule("x xor true -> not x", p.logical_xor(x, True), p.logical_not(x), bools),

    Rule("x == x -> true", p.equal(x, x), True, exact),
    Rule("x != x -> false", p.not_equal(x, x), False, exact),
    Rule("x < x -> false", p.less(x, x), False),
    Rule("x > x -> false", p.greater(x, x), False),
    Rule("x <= x -> true", p.less_equal(x, x), True, exact),
    Rule("x >= x -> true", p.greater_equal(x, x), True, exact),
    Rule("x == true -> x", p.equal(x, True), x),
    Rule("x == false -> not x", p.equal(x, False), p.logical_not(x)),
    Rule("x != true -> not x", p.not_equal(x, True), p.logical_not(x)),
    Rule("x != false -> x", p.not_equal(x, False), x),
    Rule("not (x == y) -> x != y", p.logical_not(p.equal(x, y)), p.not_equal(x, y)),
    Rule("not (x != y) -> x == y", p.logical_not(p.not_equal(x, y)), p.equal(x, y)),
    Rule("not (x < y) -> y <= x", p.logical_not(p.less(x, y)), p.less_equal(y, x),
         lambda m: not is_inexact(m[x].dtype)),
    Rule("not (x <= y) -> y < x", p.logical_not(p.less_equal(x, y)), p.less(y, x),
         lambda m: not is_inexact(m[x].dtype)),
    Rule("not (x > y) -> x <= y", p.logical_not(p.greater(x, y)), p.less_equal(x, y),
         lambda m: not is_inexact(m[x].dtype)),
    Rule("not (x >= y) -> x < y", p.logical_not(p.greater_equal(x, y)), p.less(x, y),
         lambda m: not is_inexact(m[x].dtype)),

    Rule("max(x, x) -> x", p.maximum(x, x), x),
    Rule("min(x, x) -> x", p.minimum(x, x), x),
    Rule("fmax(x, x) -> x", p.fmax(x, x), x),
    Rule("fmin(x, x) -> x", p.fmin(x, x), x),
    Rule("where(c, x, x) -> x", p.where(c, x, x), x),
    Rule("where(true, x, y) -> x", p.where(True, x, y), x),
    Rule("where(false, x, y) -> y", p.where(False, x, y), y),
    Rule("where(not c, x, y) -> where(c, y, x)", p.where(p.logical_not(c), x, y), p.where(c, y, x),
         lambda m: m[c].dtype.kind == "b"),
    Rule("where(c, true, false) -> c", p.where(c, True, False), c),
    Rule("where(c, false, true) -> not c", p.where(c, False, True), p.logical_not(c)),

    Rule("full(v)[a] -> full(v)", p.slice(p.full(v)), _full, inner_fits),
    Rule("reshape(full(v)) -> full(v)", p.reshape(p.full(v)), _full, inner_fits),
    Rule("transpose(full(v)) -> full(v)", p.transpose(p.full(v)), _full, inner_fits),
    Rule("broadcast_to(full(v)) -> full(v)", p.broadcast_to(p.full(v)), _full, inner_fits),
    Rule("(x with x[a] = v)[a] -> v", p.slice(p.update_slice(x, v)), v, same_box),
    Rule("x with x[:] = v -> v", p.update_slice(x, v), v, from_zero),
    Rule("x with x[a] = x[a] -> x", p.update_slice(x, p.slice(x)), x, own_box),
    *(Rule(f"{f}(x) over axes of size 1 -> reshape(x)", Apply(f, (x,)), _reshaped, ones) for f in REDUCTIONS),
    *(_spread_rule(op, x) for op in UNARY),
    *(_spread_rule(op, x, y) for op in BINARY),
    _spread_rule("where", x, y, v),
]
# fmt: on
