"""`dsl.random`: random numbers as pure functions of explicit keys.

A key is an array u32[2]; a stack of keys gives a stack of results. Numbers are made from `random_bits`, a counter-based
generator: element `i` of a result depends on the key and on `i` alone (for `integers` of a span over 2**32 also on that
span), so a longer result begins with the shorter one, and every executor and rank makes the same numbers. A key is used
once, to draw from or to `split`; drawing twice with one key gives the same numbers twice.

`shape=None` is the shape that the parameters of the distribution broadcast to: `()` if they are numbers.

Methods: floats are the top bits of a word times a power of two, so uniform ones lie on an even grid and below `high`;
normal ones are `sqrt(2) * erfinv(u)` with `u` symmetric in (-1, 1); exponential, Laplace and Gumbel ones inverse
distribution functions. float16 and bfloat16 are computed in float32 and rounded, except uniform ones. `permutation`
sorts 64-bit words. Integers are `floor(word * span / 2**bits)` with 64 bits for spans up to 2**32 and 128 for larger
ones: no value is likelier than another by more than 2**-32 of its probability.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import not_negative, shape_of_new
from dsl.frontend.functions.values import Array, iota, stack_last
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    Kind,
    Traced,
    as_dim,
    cast,
    concrete,
    constant,
    fresh,
    lift,
    normalise_axis,
    read,
    shape_of,
    supported_dtype,
    wrap,
)
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.types import BY_NAME, Shape, broadcast_shapes, is_float, size_of

__all__: list[str] = []

U16, U32, U64, I64 = (BY_NAME[name] for name in ("u16", "u32", "u64", "i64"))
F16, BF16, F32, F64 = (BY_NAME[name] for name in ("f16", "bf16", "f32", "f64"))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Float dtype -> word drawn, bits of its precision.
_WORDS = {F16: (U16, 11), BF16: (U16, 8), F32: (U32, 24), F64: (U64, 53)}


# -- keys and bits -----------------------------------------------------------------------------------------------


@implements("key", "PRNGKey", namespace="random", creates=True)
def key(seed: Any) -> Any:
    """Return the key for a whole number, of which the low 64 bits count."""
    if isinstance(seed, (int, np.integer)):
        number = int(seed) % 2**64
        return constant(np.array([number >> 32, number & 0xFFFFFFFF], np.uint32))
    word: Array = lift(seed)
    if word.dtype.kind not in "iu":
        raise TypeRuleError(f"a seed must be a whole number, got {word.type}", location=here())
    word = _cast(word, U64)
    return stack_last([_cast(word >> _HALF, U32), _cast(word & _LOW, U32)])


def _cast(x: Array, dtype: np.dtype) -> Array:
    return fresh(cast(read(x), dtype))


def _key(key: Any) -> Traced:
    handle = lift(key)
    if handle.dtype != U32 or not handle.ndim or handle.type.shape[-1] != 2:
        raise TypeRuleError(
            f"a key must be u32[2], got {handle.type}",
            location=here(),
            remedy="make one with dsl.random.key(seed) and pass it first",
        )
    return handle


@implements("fold_in", namespace="random")
def fold_in(key: Any, data: Any) -> Any:
    """Return a new key from a key and a whole number, or a key for each of an array of them."""
    number = constant(np.uint64(data % 2**64)) if isinstance(data, int) else lift(data)
    return fresh(current_scope().emit("fold_in", read(_key(key)), read(number)))


@implements("split", namespace="random")
def split(key: Any, n: Any = 2) -> Any:
    """Return `n` new keys, one per row; `n` may be a shape."""
    handle, shape = _key(key), shape_of_new(n)
    places = iota(size_of(shape)).reshape(shape)
    if handle.ndim > 1:
        handle = handle.reshape((*handle.type.shape[:-1], *(1,) * len(shape), 2))
    return fold_in(handle, places)


@implements("bits", namespace="random")
def bits(key: Any, shape: Any = (), dtype: Any = np.uint32) -> Any:
    """Return random bits as unsigned integers."""
    return _bits(key, shape_of_new(shape), supported_dtype(dtype))


def _bits(key: Any, shape: Shape, dtype: np.dtype) -> Array:
    return wrap(current_scope().emit("random_bits", read(_key(key)), shape=shape, dtype=dtype))


# -- parameters --------------------------------------------------------------------------------------------------


def _float_dtype(dtype: Any) -> np.dtype:
    found = supported_dtype(dtype)
    if not is_float(found):
        raise TypeRuleError(
            f"random floats cannot have dtype {found}", location=here(), remedy="use a float dtype"
        )
    return found


def _computed_in(dtype: np.dtype) -> np.dtype:
    return F32 if dtype.itemsize == 2 else dtype


def _full_shape(shape: Any, *parameters: Any) -> Shape:
    if shape is not None:
        return shape_of_new(shape)
    return broadcast_shapes(*(lift(p).type.shape for p in parameters))


def _parameter(x: Any, dtype: np.dtype) -> Array:
    """Return a parameter of a distribution as an array of `dtype`."""
    return fresh(cast(read(lift(x)), dtype))


def _is_number(x: Any, number: float) -> bool:
    return isinstance(x, (int, float)) and x == number


def _placed(z: Array, loc: Any, scale: Any) -> Array:
    """Return `loc + scale * z` in the dtype of `z`."""
    if not _is_number(scale, 1):
        z = z * _parameter(scale, z.dtype)
    return z if _is_number(loc, 0) else z + _parameter(loc, z.dtype)


# -- uniform -----------------------------------------------------------------------------------------------------


def _grid(key: Any, shape: Shape, dtype: np.dtype) -> Array:
    """Uniform floats in [0, 1), multiples of a power of two."""
    word, precision = _WORDS[dtype]
    top = _bits(key, shape, word) >> word.type(8 * word.itemsize - precision)
    return _cast(top, dtype) * dtype.type(2.0**-precision)


def _open(key: Any, shape: Shape, dtype: np.dtype, low: float = 0.0) -> Array:
    """Uniform floats in (low, 1) without the ends: the middles of the cells of a grid; `low` is 0 or -1."""
    word, precision = _WORDS[dtype]
    top = _bits(key, shape, word) >> word.type(8 * word.itemsize - precision + 1)
    unit = dtype.type(2.0 ** (1 - precision) * (1 - low))
    return (_cast(top, dtype) + dtype.type(0.5)) * unit + dtype.type(low)


@implements("uniform", namespace="random")
def uniform(
    key: Any, shape: Any = None, dtype: Any = np.float64, low: Any = 0.0, high: Any = 1.0
) -> Any:
    """Return floats spread evenly over [low, high)."""
    kind = _float_dtype(dtype)
    unit = _grid(key, _full_shape(shape, low, high), kind)
    if _is_number(low, 0) and _is_number(high, 1):
        return unit
    bottom, top = _parameter(low, kind), _parameter(high, kind)
    return np.minimum(unit * (top - bottom) + bottom, np.maximum(np.nextafter(top, bottom), bottom))


@implements("bernoulli", namespace="random")
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None) -> Any:
    """Return bools that are true with probability `p`."""
    return _grid(key, _full_shape(shape, p), F64) < _parameter(p, F64)


# -- other floats ------------------------------------------------------------------------------------------------


@implements("normal", namespace="random")
def normal(
    key: Any, shape: Any = None, dtype: Any = np.float64, loc: Any = 0.0, scale: Any = 1.0
) -> Any:
    """Return normally distributed floats with mean `loc` and standard deviation `scale`."""
    kind = _float_dtype(dtype)
    u = _open(key, _full_shape(shape, loc, scale), _computed_in(kind), -1.0)
    z = _special("erfinv", u) * u.dtype.type(np.sqrt(2.0))
    return _finish(_placed(z, loc, scale), kind)


def _special(name: str, x: Array) -> Array:
    return wrap(current_scope().emit(name, read(x)))


def _finish(z: Array, dtype: np.dtype) -> Array:
    return wrap(cast(read(z), dtype))


@implements("truncated_normal", namespace="random")
def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = np.float64
) -> Any:
    """Return standard normal floats that lie between `lower` and `upper`."""
    kind = _float_dtype(dtype)
    wide = _computed_in(kind)
    low, high = _parameter(lower, wide), _parameter(upper, wide)
    root = wide.type(np.sqrt(2.0))
    a, b = (_special("erf", x / root) for x in (low, high))
    u = _open(key, _full_shape(shape, lower, upper), wide) * (b - a) + a
    return _finish(np.clip(_special("erfinv", u) * root, low, high), kind)


@implements("exponential", namespace="random")
def exponential(key: Any, shape: Any = None, dtype: Any = np.float64, scale: Any = 1.0) -> Any:
    """Return exponentially distributed floats with mean `scale`."""
    kind = _float_dtype(dtype)
    u = _grid(key, _full_shape(shape, scale), _computed_in(kind))
    return _finish(_placed(-np.log1p(-u), 0, scale), kind)


@implements("laplace", namespace="random")
def laplace(
    key: Any, shape: Any = None, dtype: Any = np.float64, loc: Any = 0.0, scale: Any = 1.0
) -> Any:
    """Return Laplace distributed floats around `loc`."""
    kind = _float_dtype(dtype)
    u = _open(key, _full_shape(shape, loc, scale), _computed_in(kind), -1.0)
    return _finish(_placed(-np.sign(u) * np.log1p(-np.abs(u)), loc, scale), kind)


@implements("gumbel", namespace="random")
def gumbel(
    key: Any, shape: Any = None, dtype: Any = np.float64, loc: Any = 0.0, scale: Any = 1.0
) -> Any:
    """Return Gumbel distributed floats."""
    kind = _float_dtype(dtype)
    u = _open(key, _full_shape(shape, loc, scale), _computed_in(kind))
    return _finish(_placed(-np.log(-np.log(u)), loc, scale), kind)


@implements("multivariate_normal", namespace="random")
def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = (), dtype: Any = np.float64
) -> Any:
    """Return normally distributed vectors, by the Cholesky factor of a positive definite covariance."""
    kind = _float_dtype(dtype)
    wide = _computed_in(kind)
    centre, spread = _parameter(mean, wide), _parameter(cov, wide)
    if centre.ndim != 1 or spread.ndim != 2:
        raise ShapeError(
            "mean must be 1 dimensional and cov must be 2 dimensional", location=here()
        )
    z = normal(key, (*shape_of_new(shape), centre.type.shape[0]), wide)
    return _finish(centre + z @ np.linalg.cholesky(spread).T, kind)


# -- integers ----------------------------------------------------------------------------------------------------


@implements("integers", "randint", namespace="random")
def integers(
    key: Any,
    low: Any,
    high: Any = None,
    shape: Any = None,
    dtype: Any = np.int64,
    endpoint: bool = False,
) -> Any:
    """Return integers from `low` (0 if `high` is None) up to `high`, which is included if `endpoint`."""
    low, high = (0, low) if high is None else (low, high)
    kind = supported_dtype(dtype)
    if kind.kind not in "iu":
        raise TypeRuleError(f"Unsupported dtype {kind!r} for integers", location=here())
    _check_bounds(low, high, kind, endpoint)
    first, last = _word(low), _word(high)
    span = last - first + np.uint64(1 if endpoint else 0)
    return _finish(first + _below(key, span, _full_shape(shape, low, high)), kind)


def _check_bounds(low: Any, high: Any, dtype: np.dtype, endpoint: bool) -> None:
    limits = np.iinfo(dtype)
    for name, bound, extra in (("low", low, 0), ("high", high, 0 if endpoint else 1)):
        known = _known_int(bound)
        if known is not None and not limits.min <= known <= limits.max + extra:
            raise ShapeError(f"{name} is out of bounds for {dtype.name}", location=here())
    first, last = _known_int(low), _known_int(high)
    if (
        first is not None
        and last is not None
        and (first > last or (first == last and not endpoint))
    ):
        raise ShapeError("low > high" if endpoint else "low >= high", location=here())


def _known_int(x: Any) -> int | None:
    if isinstance(x, Traced):
        x = concrete(x) if x.ndim == 0 else None
    return int(x) if isinstance(x, (int, np.integer, np.ndarray)) and np.ndim(x) == 0 else None


def _word(x: Any) -> Array:
    """Return integers as 64-bit words, wrapping."""
    if isinstance(x, (int, np.integer)):
        return constant(np.uint64(int(x) % 2**64))
    number: Array = lift(x)
    if number.dtype.kind not in "iub":
        number = _cast(number, I64)
    return _cast(number, U64)


def _below(key: Any, span: Array, shape: Shape) -> Array:
    """Return words below `span`, which counts as 2**64 if it is 0."""
    known = _known_int(span)
    if known is not None:
        return (
            _below_small(key, span, shape) if 0 < known <= 2**32 else _below_large(key, span, shape)
        )
    small = (span <= np.uint64(2**32)) & (span != np.uint64(0))
    return np.where(small, _below_small(key, span, shape), _below_large(key, span, shape))


def _below_small(key: Any, span: Array, shape: Shape) -> Array:
    """`floor(word * span / 2**64)` for spans up to 2**32."""
    word = _bits(key, shape, U64)
    return ((word >> _HALF) * span + (((word & _LOW) * span) >> _HALF)) >> _HALF


def _below_large(key: Any, span: Array, shape: Shape) -> Array:
    """`floor(word * span / 2**128)` with words of 128 bits."""
    words = _bits(key, (*shape, 2), U64)
    high, low = words[..., 0], words[..., 1]
    rest = high * span
    carry = _cast(rest + _high_word(low, span) < rest, U64)
    return np.where(span == np.uint64(0), high, _high_word(high, span) + carry)


def _high_word(a: Array, b: Array) -> Array:
    """Return the upper 64 of the 128 bits of a product."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    cross, other = a0 * b1, a1 * b0
    middle = ((a0 * b0) >> _HALF) + (cross & _LOW) + (other & _LOW)
    return a1 * b1 + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)


# -- choices -----------------------------------------------------------------------------------------------------


def _is_count(x: Any) -> bool:
    if isinstance(x, Traced):
        return x.ndim == 0 and x.dtype.kind in "iu"
    return isinstance(x, (int, np.integer))


def _shuffled(key: Any, n: DimLike) -> Array:
    """Return the numbers below `n` in random order."""
    words: Array = _bits(key, (n,), U64)
    return fresh(current_scope().emit("argsort", read(words), axis=words.ndim - 1, stable=True))


@implements("permutation", namespace="random")
def permutation(key: Any, x: Any, axis: int = 0) -> Any:
    """Return `x` with its parts along `axis` in random order; a number stands for `arange(x)`."""
    if _is_count(x):
        return _shuffled(key, not_negative(as_dim(x)))
    array: Array = lift(x)
    at = normalise_axis(axis, array.ndim)
    return np.take(array, _shuffled(key, array.type.shape[at]), axis=at)


@implements("choice", namespace="random")
def choice(
    key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0
) -> Any:
    """Return parts of `a` (or numbers below it) chosen at random, with probabilities `p` if given."""
    dims = shape_of_new(shape)
    count = (
        shape_of_new(a)[0]
        if _is_count(a)
        else shape_of(lift(a))[normalise_axis(axis, lift(a).ndim)]
    )
    weights = None if p is None else _weights(p, count)
    _check_population(count, size_of(dims), replace)
    chosen = (
        _with_replacement(key, count, dims, weights)
        if replace
        else _distinct(key, count, dims, weights)
    )
    return chosen if _is_count(a) else np.take(lift(a), chosen, axis=axis)


def _weights(p: Any, count: DimLike) -> Array:
    weights = _parameter(p, F64)
    if weights.ndim != 1:
        raise ShapeError("p must be 1-dimensional", location=here())
    size = weights.type.shape[0]
    if isinstance(size, int) and isinstance(count, int) and size != count:
        raise ShapeError("a and p must have same size", location=here())
    return weights


def _check_population(count: DimLike, size: DimLike, replace: bool) -> None:
    if count == 0 and size != 0:
        raise ShapeError("a cannot be empty unless no samples are taken", location=here())
    gap = lower_bound(size - count)
    if not replace and gap is not None and gap > 0:
        raise ShapeError(
            "Cannot take a larger sample than population when replace is False", location=here()
        )


def _with_replacement(key: Any, count: DimLike, shape: Shape, weights: Array | None) -> Array:
    if weights is None:
        return integers(key, 0, fresh(current_scope().size(count)), shape)
    totals = np.cumsum(weights)
    return np.searchsorted(totals, _grid(key, shape, F64) * totals[-1], side="right")


def _distinct(key: Any, count: DimLike, shape: Shape, weights: Array | None) -> Array:
    """Return different numbers below `count`; with weights, in the order of logarithms plus Gumbel noise."""
    if weights is None:
        order = _shuffled(key, count)
    else:
        order = np.argsort(-(np.log(weights) + gumbel(key, (count,))), stable=True)
    size = size_of(shape)
    first = order[
        : size if isinstance(size, int) else fresh(current_scope().size(size), Kind.PYTHON)
    ]
    return first.reshape(shape)


@implements("categorical", namespace="random")
def categorical(key: Any, logits: Any, axis: int = -1, shape: Any = None) -> Any:
    """Return indices along `axis` with probabilities proportional to `exp(logits)`."""
    array: Array = lift(logits)
    array = array if is_float(array.dtype) else _cast(array, F64)
    at = normalise_axis(axis, array.ndim)
    dims = array.type.shape
    batch = (*dims[:at], *dims[at + 1 :])
    wanted = batch if shape is None else shape_of_new(shape)
    if wanted[len(wanted) - len(batch) :] != batch:
        raise ShapeError(
            f"shape {wanted} must end with the shape of the batch, {batch}", location=here()
        )
    front = wanted[: len(wanted) - len(batch)]
    noise = gumbel(key, (*front, *dims), array.dtype)
    return np.argmax(array + noise, axis=at + len(front))
