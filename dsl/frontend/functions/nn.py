"""`dsl.nn`: activations, normalisation, losses and convolutions for neural networks.

Functions return the floating dtype that they are given; float16 and bfloat16 are computed in float32 and rounded once,
and whole numbers count as float64. Formulas are chosen so that neither values nor gradients overflow on the way. Images
are laid out (batch, channels, *space), kernels (outputs, channels // groups, *space).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions import random
from dsl.frontend.functions.arguments import not_negative
from dsl.frontend.functions.values import (
    Array,
    common_dtype,
    insert_axis,
    iota,
    multiply_matrices,
    of_dtype,
    reshape_value,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    Traced,
    as_dim,
    fresh,
    lift,
    normalise_axis,
    read,
    supported_dtype,
    transpose_view,
    wrap,
)
from dsl.frontend.ufuncs import logistic
from dsl.ir.graph import Value
from dsl.ir.ops.rules import differ
from dsl.ir.types import BY_NAME, Shape, is_inexact, size_of

__all__: list[str] = []

F = TypeVar("F", bound=Callable[..., Any])
F32, F64 = BY_NAME["f32"], BY_NAME["f64"]


def _floating(function: F) -> F:
    """Give a function of `x` a floating operand, wide enough to compute with, and its result the operand's dtype."""

    @functools.wraps(function)
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        array = lift(x)
        kind = array.dtype if is_inexact(array.dtype) else F64
        result = function(of_dtype(array, F32 if kind.itemsize == 2 else kind), *args, **kwargs)
        return of_dtype(result, kind)

    return call  # type: ignore[return-value]


# -- activations -------------------------------------------------------------------------------------------------


@implements("relu", namespace="nn")
def relu(x: Any) -> Any:
    """`max(x, 0)`, of whole numbers too; its derivative at 0 is 0."""
    array: Array = lift(x)
    zero = array.dtype.type(0)
    return np.where(array <= zero, zero, array)


@implements("sigmoid", namespace="nn")
@_floating
def sigmoid(x: Array) -> Any:
    """`1 / (1 + exp(-x))`."""
    return logistic(x)


@implements("tanh", namespace="nn")
@_floating
def tanh(x: Array) -> Any:
    """The hyperbolic tangent."""
    return np.tanh(x)


@implements("softplus", namespace="nn")
@_floating
def softplus(x: Array) -> Any:
    """`log(1 + exp(x))`."""
    return np.logaddexp(x, x.dtype.type(0))


@implements("silu", "swish", namespace="nn")
@_floating
def silu(x: Array) -> Any:
    """`x * sigmoid(x)`."""
    return x * sigmoid(x)


@implements("gelu", namespace="nn")
@_floating
def gelu(x: Array, approximate: bool = False) -> Any:
    """`x` times the normal distribution function of `x`, or its approximation by `tanh`."""
    if approximate:
        return x * (0.5 * (1 + np.tanh(np.sqrt(2 / np.pi).item() * (x + 0.044715 * x**3))))
    return x * (0.5 * _special("erfc", x * -np.sqrt(0.5).item()))


def _special(name: str, x: Array) -> Array:
    return wrap(current_scope().emit(name, read(x)))


@implements("elu", namespace="nn")
@_floating
def elu(x: Array, alpha: Any = 1.0) -> Any:
    """`x` above 0, `alpha * (exp(x) - 1)` below."""
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, x.dtype.type(0), x)))


@implements("selu", namespace="nn")
@_floating
def selu(x: Array) -> Any:
    """`elu` scaled so that mean 0 and variance 1 are kept."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


@implements("leaky_relu", namespace="nn")
@_floating
def leaky_relu(x: Array, negative_slope: Any = 0.01) -> Any:
    """`x` above 0, a fraction of it below."""
    return np.where(x >= 0, x, negative_slope * x)


@implements("hard_tanh", namespace="nn")
@_floating
def hard_tanh(x: Array) -> Any:
    """`x` limited to [-1, 1]."""
    return np.minimum(np.maximum(x, x.dtype.type(-1)), x.dtype.type(1))


# -- softmax and losses ------------------------------------------------------------------------------------------


def _finite_max(x: Array, axis: Any) -> Array:
    """Return the maximum with `keepdims`, or 0 where that is infinite or NaN."""
    top = np.max(x, axis=axis, keepdims=True)
    return np.where(np.isfinite(top), top, top.dtype.type(0))


@implements("softmax", namespace="nn")
@_floating
def softmax(x: Array, axis: Any = -1) -> Any:
    """Exponentials divided by their sum."""
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@implements("log_softmax", namespace="nn")
@_floating
def log_softmax(x: Array, axis: Any = -1) -> Any:
    """The logarithm of `softmax`."""
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@implements("logsumexp", namespace="nn")
@_floating
def logsumexp(x: Array, axis: Any = None, b: Any = None, keepdims: bool = False) -> Any:
    """`log(sum(b * exp(x)))`; of nothing but -inf it is -inf."""
    if b is not None:  # what weighs nothing does not decide the scale either
        x = np.where(lift(b) == 0, lift(np.asarray(-np.inf, x.dtype)), x)
    top = _finite_max(x, axis)
    powers = np.exp(x - top) if b is None else lift(b) * np.exp(x - top)
    found = np.log(np.sum(powers, axis=axis, keepdims=True)) + top
    return found if keepdims else _squeeze(found, axis)


def _squeeze(x: Array, axis: Any) -> Array:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    gone = {normalise_axis(a, x.ndim) for a in axes}
    return wrap(
        reshape_value(read(x), tuple(d for k, d in enumerate(x.type.shape) if k not in gone))
    )


@implements("one_hot", namespace="nn")
def one_hot(x: Any, num_classes: Any, dtype: Any = np.float64, axis: int = -1) -> Any:
    """Whole numbers as vectors with a one at that place, and no one for numbers out of range."""
    labels: Array = lift(x)
    if labels.dtype.kind not in "iu":
        raise TypeRuleError(f"one_hot takes whole numbers, got {labels.dtype}", location=here())
    flags: Array = labels[..., None] == iota(not_negative(as_dim(num_classes)), labels.dtype)
    rank = flags.ndim
    at = normalise_axis(axis, rank)
    order = (*range(at), rank - 1, *range(at, rank - 1))
    return transpose_view(flags.astype(supported_dtype(dtype)), order)


@implements("cross_entropy", namespace="nn")
@_floating
def cross_entropy(logits: Array, labels: Any, axis: int = -1) -> Any:
    """Cross entropy of `softmax(logits)` for each example; labels are classes or probabilities."""
    target: Array = lift(labels)
    at = normalise_axis(axis, logits.ndim)
    if target.dtype.kind in "iu" and target.ndim == logits.ndim - 1:
        target = one_hot(target, logits.type.shape[at], logits.dtype, at)
        chosen = np.where(target != 0, log_softmax(logits, at), logits.dtype.type(0))
        return -np.sum(chosen, axis=at)
    return -np.sum(of_dtype(target, logits.dtype) * log_softmax(logits, at), axis=at)


# -- normalisation -----------------------------------------------------------------------------------------------


@implements("standardize", namespace="nn")
@_floating
def standardize(
    x: Array, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5
) -> Any:
    """`x` less its mean, divided by its standard deviation."""
    centre = np.mean(x, axis=axis, keepdims=True) if mean is None else lift(mean)
    shifted = x - centre
    if variance is None:
        variance = np.mean(np.square(shifted), axis=axis, keepdims=True)
    return shifted / np.sqrt(variance + epsilon)


@implements("layer_norm", namespace="nn")
@_floating
def layer_norm(
    x: Array, weight: Any = None, bias: Any = None, axis: Any = -1, epsilon: Any = 1e-5
) -> Any:
    """`standardize`, then scaled by `weight` and shifted by `bias`."""
    return _affine(standardize(x, axis, epsilon=epsilon), weight, bias)


def _affine(x: Array, weight: Any, bias: Any) -> Array:
    scaled = x if weight is None else x * of_dtype(lift(weight), x.dtype)
    return scaled if bias is None else scaled + of_dtype(lift(bias), x.dtype)


@implements("rms_norm", namespace="nn")
@_floating
def rms_norm(x: Array, weight: Any = None, axis: Any = -1, epsilon: Any = 1e-6) -> Any:
    """`x` divided by its root mean square."""
    scale = np.sqrt(np.mean(np.square(x), axis=axis, keepdims=True) + epsilon)
    return _affine(x / scale, weight, None)


@implements("dropout", namespace="nn")
def dropout(key: Any, x: Any, rate: Any = 0.5) -> Any:
    """Zero elements with probability `rate` and scale the others up."""
    array: Array = lift(x)
    array = array if is_inexact(array.dtype) else of_dtype(array, F64)
    if not isinstance(rate, Traced) and rate == 0:
        return array
    kept = random.bernoulli(key, 1.0 - rate, array.type.shape)
    return np.where(kept, of_dtype(array / (1.0 - rate), array.dtype), array.dtype.type(0))


# -- convolution and pooling -------------------------------------------------------------------------------------


def _per_axis(x: Any, rank: int, what: str) -> tuple[int, ...]:
    items = tuple(x) if isinstance(x, (tuple, list)) else (x,) * rank
    if len(items) != rank:
        raise ShapeError(
            f"{what} must be a number or have {rank} entries, got {x}", location=here()
        )
    return tuple(int(item) for item in items)


def _padding(padding: Any, window: Sequence[int]) -> list[tuple[int, int]]:
    """Return what to add before and after each axis; "same" keeps the size at stride 1."""
    if isinstance(padding, str):
        if padding.lower() not in ("same", "valid"):
            raise ShapeError(
                f"padding must be 'same', 'valid' or numbers, got {padding!r}", location=here()
            )
        total = [w - 1 if padding.lower() == "same" else 0 for w in window]
        return [(t // 2, t - t // 2) for t in total]
    items = padding if isinstance(padding, (tuple, list)) else (padding,) * len(window)
    if len(items) != len(window):
        raise ShapeError(f"padding must have {len(window)} entries, got {padding}", location=here())
    return [
        (int(p[0]), int(p[1])) if isinstance(p, (tuple, list)) else (int(p), int(p)) for p in items
    ]


def _pad(x: Value, pads: Sequence[tuple[int, int]], fill: Any) -> Value:
    """Pad the last axes."""
    if not any(map(any, pads)):
        return x
    front = (0,) * (len(x.shape) - len(pads))
    low, high = front + tuple(a for a, _ in pads), front + tuple(b for _, b in pads)
    scope = current_scope()
    return scope.emit("pad", x, scope.constant(fill, x.dtype), low=low, high=high)


def _windows(
    x: Value, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[Value]:
    """Return for each place in a window the elements that stand there as the window moves."""
    front = x.shape[: len(x.shape) - len(window)]
    space = x.shape[len(front) :]
    sizes = tuple(
        (n - d * (w - 1) - 1) // s + 1 for n, w, s, d in zip(space, window, stride, dilation)
    )
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise ShapeError(f"a window of {tuple(window)} does not fit into {space}", location=here())
    step, lead = (1,) * len(front) + tuple(stride), (0,) * len(front)
    offsets = product(*(range(0, d * w, d) for w, d in zip(window, dilation)))
    return [
        current_scope().emit("slice", x, start=lead + at, size=front + sizes, step=step)
        for at in offsets
    ]


def _kernel_windows(
    x: Value, w: Value, padding: Any, stride: Any, dilation: Any, groups: int
) -> Value:
    """Return the windows of an image as (batch, groups, channels per group times window, *space)."""
    rank = len(w.shape) - 2
    window = _per_axis(w.shape[2:], rank, "kernel")
    steps, gaps = _per_axis(stride, rank, "stride"), _per_axis(dilation, rank, "dilation")
    reach = [d * (k - 1) + 1 for k, d in zip(window, gaps)]
    parts = _windows(_pad(x, _padding(padding, reach), 0), window, steps, gaps)
    columns = [insert_axis(part, 2) for part in parts]
    joined = current_scope().emit("concatenate", *columns, axis=2)
    batch, channels, count, *space = joined.shape
    return reshape_value(joined, (batch, groups, channels // groups * count, *space))


def _convolve(
    x: Any, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, rank: int
) -> Array:
    image, weights = lift(x), lift(kernel)
    dtype = common_dtype(image, weights)
    image, weights = of_dtype(image, dtype), of_dtype(weights, dtype)
    _check_convolution(image.type.shape, weights.type.shape, groups, rank)
    w = read(weights)
    patches = _kernel_windows(read(image), w, padding, stride, dilation, groups)
    batch, _, depth, *space = patches.shape
    columns = reshape_value(patches, (batch, groups, depth, size_of(tuple(space))))
    rows = reshape_value(w, (groups, w.shape[0] // groups, depth))
    found = fresh(reshape_value(multiply_matrices(rows, columns), (batch, w.shape[0], *space)))
    if bias is None:
        return found
    return found + of_dtype(lift(bias), dtype).reshape((-1, *(1,) * rank))


def _check_convolution(image: Shape, kernel: Shape, groups: int, rank: int) -> None:
    if len(image) != rank + 2 or len(kernel) != rank + 2:
        raise ShapeError(
            f"conv{rank}d takes an image (batch, channels, *space) and a kernel (outputs, channels, *space) of rank "
            f"{rank + 2}, got ranks {len(image)} and {len(kernel)}",
            location=here(),
        )
    if differ(image[1], kernel[1] * groups):
        raise ShapeError(
            f"conv{rank}d: the kernel takes {kernel[1]} channels in {groups} groups, the image has {image[1]}",
            location=here(),
        )


@implements("conv1d", namespace="nn")
def conv1d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlate signals (batch, channels, time) with kernels (outputs, channels // groups, time)."""
    return _convolve(x, kernel, bias, stride, padding, dilation, groups, 1)


@implements("conv2d", namespace="nn")
def conv2d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlate images (batch, channels, h, w) with kernels (outputs, channels // groups, h, w)."""
    return _convolve(x, kernel, bias, stride, padding, dilation, groups, 2)


def _pool(x: Array, window: Any, stride: Any, padding: Any, fill: Any) -> list[Array]:
    sizes = tuple(window) if isinstance(window, (tuple, list)) else (window,)
    steps = _per_axis(sizes if stride is None else stride, len(sizes), "stride")
    image = _pad(read(x), _padding(padding, sizes), fill)
    return [fresh(part) for part in _windows(image, sizes, steps, (1,) * len(sizes))]


@implements("max_pool", namespace="nn")
@_floating
def max_pool(x: Array, window: Any, stride: Any = None, padding: Any = 0) -> Any:
    """The largest element of each window over the last axes, as many as `window` has; `stride` is the window's size."""
    return functools.reduce(np.maximum, _pool(x, window, stride, padding, -np.inf))


@implements("avg_pool", namespace="nn")
@_floating
def avg_pool(x: Array, window: Any, stride: Any = None, padding: Any = 0) -> Any:
    """The mean of each window over the last axes; zeros of the padding count."""
    parts = _pool(x, window, stride, padding, 0)
    return functools.reduce(np.add, parts) / x.dtype.type(len(parts))
