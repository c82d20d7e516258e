"""Elementwise ops: every elementwise NumPy ufunc under its own name, selection, casts and special functions.

Operands broadcast together by NumPy's rules. Their dtypes are exactly those of one of the ufunc's loops;
conversions are `cast` nodes that the frontend inserts.

- Integers wrap around. Division, remainder and `gcd` by zero give what NumPy gives, 0. A shift by a negative count
  or by the width or more gives 0, or -1 for a right shift of a negative number.
- Nothing warns. Floats follow IEEE 754: division by zero gives an infinity or NaN. `maximum` and `minimum` return
  NaN when either operand is NaN, `fmax` and `fmin` only when both are; between +0.0 and -0.0 they may return
  either, and which NaN results from two is open too.
- `power` on signed integers raises `ValueError` for a negative exponent: it is the one op here that depends on its
  data so.
- Complex numbers compare and order by real part, then imaginary part. A product of complex numbers may round
  differently when its operands are swapped; the results are taken as equal.
- `cast` is NumPy's `astype`: floats truncate towards zero, and one outside the integer's range gives what this
  platform's NumPy gives; complex to real drops the imaginary part; to bool is "not zero", so NaN is true.
- float16 and bfloat16 are computed in float32 and rounded once, except for what NumPy itself does otherwise.
- Elements are independent: no order of evaluation shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError
from dsl.ir.ops.rules import (
    ANY,
    BOOLS,
    COMPLEXES,
    FLOATS,
    Attrs,
    Domain,
    Inputs,
    check_dtype,
    operands,
    refuse,
    require_same_dtype,
    same_as,
)
from dsl.ir.ops.samples import draw, dtypes_of, one_operand
from dsl.ir.registry import Op, Sample, Trait, op
from dsl.ir.types import BOOL, BY_NAME, DTYPES, TensorType, broadcast_shapes, dtype_name

__all__ = ["UFUNC_OPS", "binary", "loop_dtypes", "unary"]

PURE, ELEMENTWISE, COMMUTATIVE = Trait.PURE, Trait.ELEMENTWISE, Trait.COMMUTATIVE
UFUNC_OPS: dict[np.ufunc, Op] = {}


# -- ufuncs ------------------------------------------------------------------------------------------------------


@cache
def loop_dtypes(ufunc: np.ufunc, dtypes: tuple[np.dtype, ...]) -> tuple[np.dtype, ...] | None:
    """Return the dtypes of operands and results that NumPy computes with for these operands, or None if it refuses.

    >>> [str(d) for d in loop_dtypes(np.add, (np.dtype("i4"), np.dtype("f4")))]
    ['float64', 'float64', 'float64']
    """
    try:
        found = ufunc.resolve_dtypes(dtypes + (None,) * ufunc.nout)
    except TypeError:
        return None
    return found if all(dtype in ANY.dtypes for dtype in found) else None


def _ufunc_type(ufunc: np.ufunc, inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
    return _ufunc_results(ufunc, inputs)


@lru_cache(
    maxsize=1024
)  # who builds a graph and who checks it ask for the same types again and again
def _ufunc_results(ufunc: np.ufunc, inputs: Inputs) -> tuple[TensorType, ...]:
    name = ufunc.__name__
    types = operands(name, inputs, **dict.fromkeys(_operand_names(ufunc), ANY))
    given = tuple(type.dtype for type in types)
    loop = loop_dtypes(ufunc, given)
    if loop is None:
        raise TypeRuleError(f"{name}: not defined for operands {', '.join(map(str, types))}")
    for operand, type, wanted in zip(_operand_names(ufunc), types, loop):
        if type.dtype != wanted:
            refuse(name, operand, dtype_name(wanted), type)
    shape = broadcast_shapes(*(type.shape for type in types))
    return tuple(TensorType(dtype, shape) for dtype in loop[ufunc.nin :])


def _operand_names(ufunc: np.ufunc) -> tuple[str, ...]:
    return ("x", "y")[: ufunc.nin]


def _ufunc_samples(ufunc: np.ufunc, rng: np.random.Generator) -> Iterable[Sample]:
    for dtypes in itertools.product(DTYPES, repeat=ufunc.nin):
        loop = loop_dtypes(ufunc, dtypes)
        if loop is not None and loop[: ufunc.nin] == dtypes:
            yield Sample(_ufunc_operands(ufunc, rng, dtypes))


def _ufunc_operands(
    ufunc: np.ufunc, rng: np.random.Generator, dtypes: tuple[np.dtype, ...]
) -> tuple[np.ndarray, ...]:
    x, *others = (draw(rng, dtype, shape) for dtype, shape in zip(dtypes, ((2, 3), (3,))))
    if ufunc is np.power and dtypes[1].kind == "i":
        others = [np.abs(others[0])]
    return (x, *others)


def _ufunc_op(ufunc: np.ufunc, signature: str, doc: str, *traits: Trait) -> Op:
    record = op(
        ufunc.__name__,
        signature,
        doc=doc,
        type=partial(_ufunc_type, ufunc),
        numpy=ufunc,
        traits={PURE, ELEMENTWISE, *traits},
        samples=partial(_ufunc_samples, ufunc),
    )
    UFUNC_OPS[ufunc] = record
    return record


def unary(ufunc: np.ufunc, doc: str, *traits: Trait, results: str = "y") -> Op:
    """Register a ufunc of one operand."""
    return _ufunc_op(ufunc, f"x -> {results}", doc, *traits)


def binary(ufunc: np.ufunc, doc: str, *traits: Trait, results: str = "z") -> Op:
    """Register a ufunc of two operands."""
    return _ufunc_op(ufunc, f"x, y -> {results}", doc, *traits)


binary(np.add, "x + y; `or` of bools.", COMMUTATIVE)
binary(np.subtract, "x - y.")
binary(np.multiply, "x * y; `and` of bools.", COMMUTATIVE)
binary(np.divide, "x / y of floats.")
binary(np.floor_divide, "The largest whole number not above x / y.")
binary(np.remainder, "x - y * floor(x / y), with the sign of y.")
binary(np.fmod, "The remainder of C, with the sign of x.")
binary(np.divmod, "Floor division and remainder.", results="quotient, remainder")
binary(np.power, "x to the power y; whole numbers refuse y < 0.", Trait.CHECKED)
binary(np.float_power, "x to the power y in double precision.")
binary(np.maximum, "The larger; NaN if either is.", COMMUTATIVE)
binary(np.minimum, "The smaller; NaN if either is.", COMMUTATIVE)
binary(np.fmax, "The larger; a NaN loses.", COMMUTATIVE)
binary(np.fmin, "The smaller; a NaN loses.", COMMUTATIVE)
binary(np.logaddexp, "log(exp(x) + exp(y)).", COMMUTATIVE)
binary(np.logaddexp2, "log2(2**x + 2**y).", COMMUTATIVE)
binary(np.arctan2, "The angle of the point (y, x), operands in that order.")
binary(np.hypot, "sqrt(x**2 + y**2) without overflow on the way.", COMMUTATIVE)
binary(np.copysign, "x with the sign of y.")
binary(np.nextafter, "The next float after x in the direction of y.")
binary(np.ldexp, "x * 2**y for an integer y.")
binary(np.gcd, "The greatest common divisor, not negative.", COMMUTATIVE)
binary(np.lcm, "The least common multiple, not negative.", COMMUTATIVE)
binary(np.heaviside, "0 for x < 0, y for x == 0, 1 for x > 0.")
binary(np.bitwise_and, "Bits set in both.", COMMUTATIVE)
binary(np.bitwise_or, "Bits set in either.", COMMUTATIVE)
binary(np.bitwise_xor, "Bits set in exactly one.", COMMUTATIVE)
binary(np.left_shift, "x * 2**y, wrapping.")
binary(np.right_shift, "x // 2**y.")
binary(np.equal, "x == y; false for NaN.", COMMUTATIVE)
binary(np.not_equal, "x != y; true for NaN.", COMMUTATIVE)
binary(np.less, "x < y; false for NaN.")
binary(np.less_equal, "x <= y; false for NaN.")
binary(np.greater, "x > y; false for NaN.")
binary(np.greater_equal, "x >= y; false for NaN.")
binary(np.logical_and, "Both are not zero.", COMMUTATIVE)
binary(np.logical_or, "Either is not zero.", COMMUTATIVE)
binary(np.logical_xor, "Exactly one is not zero.", COMMUTATIVE)

unary(np.logical_not, "x is zero.")
unary(np.invert, "Every bit flipped; `not` of bools.")
unary(np.negative, "-x; wraps for the smallest integer.")
unary(np.positive, "x itself.")
unary(np.absolute, "|x|; wraps for the smallest integer; the modulus of complex numbers, a real.")
unary(np.fabs, "|x| of floats.")
unary(np.sign, "-1, 0 or 1; x / |x| of complex numbers; NaN of NaN.")
unary(np.rint, "The nearest whole number, ties to even.")
unary(np.floor, "The largest whole number not above x.")
unary(np.ceil, "The smallest whole number not below x.")
unary(np.trunc, "x without its fraction.")
unary(np.sqrt, "The square root; NaN for x < 0.")
unary(np.square, "x * x.")
unary(np.cbrt, "The cube root.")
unary(np.reciprocal, "1 / x; whole numbers truncate.")
unary(np.exp, "e to the power x.")
unary(np.exp2, "2 to the power x.")
unary(np.expm1, "exp(x) - 1, accurate near 0.")
unary(np.log, "The natural logarithm.")
unary(np.log2, "The logarithm to base 2.")
unary(np.log10, "The logarithm to base 10.")
unary(np.log1p, "log(1 + x), accurate near 0.")
unary(np.sin, "The sine of x radians.")
unary(np.cos, "The cosine of x radians.")
unary(np.tan, "The tangent of x radians.")
unary(np.arcsin, "The angle in [-pi/2, pi/2] whose sine is x.")
unary(np.arccos, "The angle in [0, pi] whose cosine is x.")
unary(np.arctan, "The angle in [-pi/2, pi/2] whose tangent is x.")
unary(np.sinh, "The hyperbolic sine.")
unary(np.cosh, "The hyperbolic cosine.")
unary(np.tanh, "The hyperbolic tangent.")
unary(np.arcsinh, "The inverse hyperbolic sine.")
unary(np.arccosh, "The inverse hyperbolic cosine; NaN for x < 1.")
unary(np.arctanh, "The inverse hyperbolic tangent; NaN for |x| > 1.")
unary(np.deg2rad, "Degrees to radians.")
unary(np.radians, "Degrees to radians.")
unary(np.rad2deg, "Radians to degrees.")
unary(np.degrees, "Radians to degrees.")
unary(np.isfinite, "Neither infinite nor NaN.")
unary(np.isinf, "Infinite, in either part of a complex number.")
unary(np.isnan, "NaN, in either part of a complex number.")
unary(np.signbit, "The sign bit, also of -0.0 and NaN.")
unary(np.spacing, "The distance from x to the next float away from 0.")
unary(np.conjugate, "The complex conjugate.")
unary(np.bitwise_count, "The number of bits set in |x|, as uint8.")
unary(np.modf, "The fraction and the whole part, both with x's sign.", results="fraction, whole")
unary(np.frexp, "x = mantissa * 2**exponent, 0.5 <= |mantissa| < 1.", results="mantissa, exponent")


# -- selection, casts, parts of complex numbers -------------------------------------------------------------------


def _where_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    condition, x, y = operands("where", inputs, condition=BOOLS, x=ANY, y=ANY)
    require_same_dtype("where", x=x, y=y)
    return x.with_shape(broadcast_shapes(condition.shape, x.shape, y.shape))


def _where_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in DTYPES:
        yield Sample((draw(rng, BOOL), draw(rng, dtype, (3,)), draw(rng, dtype, (2, 1))))


def _cast_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("cast", inputs, x=ANY)
    return x.with_dtype(check_dtype("cast", attrs["dtype"]))


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    real = x.dtype.kind == "c" and dtype.kind not in "bc"
    return (x.real if real else x).astype(dtype)


def _cast_samples(rng: np.random.Generator) -> Iterable[Sample]:
    return one_operand(rng, ANY, *({"dtype": dtype} for dtype in DTYPES))


def _bitcast_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands("bitcast", inputs, x=ANY)
    dtype = check_dtype("bitcast", attrs["dtype"])
    if x.dtype.itemsize != dtype.itemsize:
        refuse("bitcast", "dtype", f"as wide as {dtype_name(x.dtype)}", dtype_name(dtype))
    if dtype == BOOL != x.dtype:
        refuse("bitcast", "dtype", "other than bool, which has only two bit patterns", "bool")
    return x.with_dtype(dtype)


def _bitcast_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for source, target in itertools.product(DTYPES, repeat=2):
        if source.itemsize == target.itemsize and target != BOOL:
            yield Sample((draw(rng, source),), {"dtype": target})


_PARTS = {BY_NAME["c64"]: BY_NAME["f32"], BY_NAME["c128"]: BY_NAME["f64"]}
_WHOLES = {part: whole for whole, part in _PARTS.items()}
_PAIRABLE = Domain("f32 or f64", frozenset(_WHOLES))


def _part_type(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands(name, inputs, x=COMPLEXES)
    return x.with_dtype(_PARTS[x.dtype])


def _complex_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    re, im = operands("complex", inputs, re=_PAIRABLE, im=_PAIRABLE)
    require_same_dtype("complex", re=re, im=im)
    return TensorType(_WHOLES[re.dtype], broadcast_shapes(re.shape, im.shape))


def _complex(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(re.shape, im.shape), _WHOLES[re.dtype])
    out.real, out.imag = re, im
    return out


def _complex_samples(rng: np.random.Generator) -> Iterable[Sample]:
    return (Sample((draw(rng, dtype), draw(rng, dtype, (3,)))) for dtype in _WHOLES)


POINTWISE = {PURE, ELEMENTWISE}
op("where", "condition, x, y -> z", doc="x where the condition is true, y elsewhere.",
   type=_where_type, numpy=np.where, traits=POINTWISE, samples=_where_samples)  # fmt: skip
op("cast", "x -> y", doc="x converted to `dtype` as NumPy's astype does.",
   type=_cast_type, numpy=_cast, traits=POINTWISE, samples=_cast_samples)  # fmt: skip
op("bitcast", "x -> y", doc="The bits of x read as `dtype`, which is as wide.",
   type=_bitcast_type, numpy=lambda x, dtype: x.view(dtype), traits=POINTWISE,
   samples=_bitcast_samples)  # fmt: skip
op("real", "x -> y", doc="The real part of complex numbers.", type=partial(_part_type, "real"),
   numpy=np.real, traits=POINTWISE, samples=lambda rng: one_operand(rng, COMPLEXES))  # fmt: skip
op("imag", "x -> y", doc="The imaginary part of complex numbers.",
   type=partial(_part_type, "imag"), numpy=np.imag, traits=POINTWISE,
   samples=lambda rng: one_operand(rng, COMPLEXES))  # fmt: skip
op("complex", "re, im -> z", doc="The complex number re + im*i, parts kept bit for bit.",
   type=_complex_type, numpy=_complex, traits=POINTWISE, samples=_complex_samples)  # fmt: skip


# -- special functions --------------------------------------------------------------------------------------------


def _special(name: str) -> Callable[[np.ndarray], Any]:
    """Return SciPy's function, computed in float32 for the half precisions."""

    def compute(x: np.ndarray) -> Any:
        import scipy.special

        function = getattr(scipy.special, name)
        if x.dtype.itemsize == 2:
            return np.asarray(function(x.astype(np.float32))).astype(x.dtype)
        return function(x)

    return compute


def _special_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in dtypes_of(FLOATS):
        yield Sample((draw(rng, dtype),))
        yield Sample((rng.uniform(-1.0, 1.0, (2, 3)).astype(dtype),))


_SPECIAL = [
    ("erf", "erf", "The error function."),
    ("erfc", "erfc", "1 - erf(x), accurate for large x."),
    ("erfinv", "erfinv", "The inverse of erf on [-1, 1]; NaN outside."),
    ("gamma", "gamma", "The gamma function."),
    ("lgamma", "gammaln", "The logarithm of |gamma(x)|."),
    ("digamma", "digamma", "The derivative of the logarithm of gamma."),
]
for _name, _scipy_name, _doc in _SPECIAL:
    op(_name, "x -> y", doc=_doc, type=same_as(_name, FLOATS), numpy=_special(_scipy_name),
       traits=POINTWISE, samples=_special_samples)  # fmt: skip


def _polygamma_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    order = attrs["order"]
    if not isinstance(order, int) or order < 1:
        refuse("polygamma", "order", "a whole number from 1 on", order)
    return operands("polygamma", inputs, x=FLOATS)[0]


def _polygamma(x: np.ndarray, order: int) -> Any:
    import scipy.special

    return np.asarray(scipy.special.polygamma(order, x.astype(np.float64))).astype(x.dtype)


def _polygamma_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in dtypes_of(FLOATS):
        for order in (1, 3):
            yield Sample((rng.uniform(0.5, 4.0, (2, 3)).astype(dtype),), {"order": order}, 4)


op("polygamma", "x -> y", doc="The derivative of digamma of an `order` from 1 on.", type=_polygamma_type,
   numpy=_polygamma, samples=_polygamma_samples)  # fmt: skip
