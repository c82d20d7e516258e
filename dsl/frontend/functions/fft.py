"""`dsl.fft`: NumPy's discrete Fourier transforms.

Precision is NumPy 2's: half and single precision are computed in single, everything else in double. An input is cropped
or padded with zeros to the length of its transform; lengths may be known only at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import IndexTypeError, ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import not_negative
from dsl.frontend.functions.values import Array, iota
from dsl.frontend.library import implements
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import (
    Traced,
    as_dim,
    cast,
    fresh,
    lift,
    normalise_axis,
    read,
    size_number,
)
from dsl.frontend.ufuncs import _store
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.graph import Value
from dsl.ir.types import BFLOAT16, BY_NAME

__all__: list[str] = []

Transform = Callable[..., Any]
F16, F32, F64, C64, C128 = (BY_NAME[name] for name in ("f16", "f32", "f64", "c64", "c128"))
_SWAPPED = {"backward": "forward", None: "forward", "ortho": "ortho", "forward": "backward"}


# -- one axis ----------------------------------------------------------------------------------------------------


def _real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the real dtype in which a transform is computed."""
    return F32 if dtype in (F16, BFLOAT16, F32, C64) else F64


def _complex_dtype(dtype: np.dtype) -> np.dtype:
    return C64 if _real_dtype(dtype) == F32 else C128


def _length(x: Traced, n: Any, axis: Any) -> DimLike:
    """Return the length asked for, by default the size of the axis."""
    if n is not None:
        return as_dim(n)
    try:
        return x.type.shape[int(axis)]
    except IndexError:
        raise IndexTypeError("tuple index out of range", location=here()) from None


def _resize(x: Value, axis: int, size: DimLike) -> Value:
    """Crop an axis, or pad it with zeros."""
    scope, old = current_scope(), x.shape[axis]
    if old == size:
        return x
    kept = dim_min(old, size)
    if kept != old:
        shape = tuple(kept if k == axis else d for k, d in enumerate(x.shape))
        rank = len(shape)
        x = scope.emit("slice", x, start=(0,) * rank, size=shape, step=(1,) * rank)
    if kept == size:
        return x
    high = tuple(size - kept if k == axis else 0 for k in range(len(x.shape)))
    return scope.emit("pad", x, scope.constant(0, x.dtype), low=(0,) * len(high), high=high)


def _scale(y: Value, n: DimLike, norm: Any, inverse: bool, dtype: np.dtype) -> Value:
    """Multiply as `norm` asks; neither direction of the primitives does."""
    if norm not in _SWAPPED:
        raise ShapeError(
            f'Invalid norm value {norm}; should be "backward","ortho" or "forward".',
            location=here(),
        )
    kind = _SWAPPED[norm] if inverse else norm or "backward"
    if kind == "backward":
        return y
    size: Array = np.asarray(n, dtype) if isinstance(n, int) else size_number(n).astype(dtype)
    factor = np.reciprocal(np.sqrt(size) if kind == "ortho" else size)
    return current_scope().emit("multiply", y, cast(read(lift(factor)), y.dtype))


def _check_length(n: DimLike) -> None:
    if isinstance(n, int) and n < 1:
        raise ShapeError(f"Invalid number of FFT data points ({n}) specified.", location=here())


def _run(op: str, a: Any, n: DimLike, axis: Any, norm: Any, out: Any, inverse: bool) -> Any:
    """Transform one axis: convert, crop or pad, transform, scale."""
    x = lift(a)
    _check_length(n)
    axis = normalise_axis(axis, x.ndim)
    real, whole = _real_dtype(x.dtype), _complex_dtype(x.dtype)
    factor = F16 if x.dtype == F16 else real  # NumPy rounds the factor of `norm` to float16
    takes = real if op == "rfft" else whole
    value = _resize(cast(read(x), takes), axis, n // 2 + 1 if op == "irfft" else n)
    attrs: dict[str, Any] = {"axis": axis, "n": n} | ({"inverse": inverse} if op == "fft" else {})
    result = _scale(current_scope().emit(op, value, **attrs), n, norm, inverse, factor)
    if op == "irfft" and x.dtype == F16:
        result = cast(result, F16)
    return _stored(fresh(result), out, axis)


def _stored(result: Traced, out: Any, axis: int) -> Any:
    if out is None:
        return result
    shape, wanted = lift(out).type.shape, result.type.shape
    if len(shape) != len(wanted) or shape[axis] != wanted[axis]:
        raise ShapeError("output array has wrong shape.", location=here())
    return _store(result, out, True, "same_kind")


@implements("fft", namespace="fft")
def fft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform."""
    return _run("fft", a, _length(lift(a), n, axis), axis, norm, out, False)


@implements("ifft", namespace="fft")
def ifft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Inverse discrete Fourier transform."""
    return _run("fft", a, _length(lift(a), n, axis), axis, norm, out, True)


@implements("rfft", namespace="fft")
def rfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform of reals, without the terms that are conjugates of others."""
    x = lift(a)
    length = _length(x, n, axis)
    if x.dtype.kind == "c":
        name = "rfft_n_even" if length % 2 == 0 else "rfft_n_odd"
        raise TypeRuleError(
            f"ufunc '{name}' not supported for the input types, and the inputs could not be safely coerced to any "
            "supported types according to the casting rule ''safe''",
            location=here(),
            remedy="use np.fft.fft for complex arrays, or take the real part",
        )
    return _run("rfft", x, length, axis, norm, out, False)


def _real_length(a: Any, n: Any, axis: Any) -> DimLike:
    return (_length(lift(a), None, axis) - 1) * 2 if n is None else as_dim(n)


@implements("irfft", namespace="fft")
def irfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Inverse of `rfft`."""
    return _run("irfft", a, _real_length(a, n, axis), axis, norm, out, True)


def _swap(norm: Any) -> Any:
    if norm not in _SWAPPED:
        raise ShapeError(
            f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".',
            location=here(),
        )
    return _SWAPPED[norm]


@implements("hfft", namespace="fft")
def hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform of a signal whose other half is conjugate: a real spectrum."""
    x: Array = lift(a)
    return irfft(np.conjugate(x), _real_length(x, n, axis), axis, _swap(norm))


@implements("ihfft", namespace="fft")
def ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
    """Inverse of `hfft`."""
    found: Array = rfft(a, n, axis, _swap(norm))
    return _stored(np.conjugate(found), out, normalise_axis(axis, found.ndim))


# -- several axes ------------------------------------------------------------------------------------------------


def _lengths(x: Traced, s: Any, axes: Any, halved: bool = False) -> tuple[list[Any], list[int]]:
    """Return a length for each axis to be transformed."""
    shape = x.type.shape
    if axes is None:
        axes = range(-(x.ndim if s is None else len(s)), 0)
    axes = [int(axis) for axis in axes]
    if any(not -x.ndim <= axis < x.ndim for axis in axes):
        wrong = next(axis for axis in axes if not -x.ndim <= axis < x.ndim)
        raise IndexTypeError(
            f"index {wrong} is out of bounds for axis 0 with size {x.ndim}", location=here()
        )
    if s is None:
        lengths: list[Any] = [shape[axis] for axis in axes]
        if halved:
            lengths[-1] = (shape[axes[-1]] - 1) * 2
        return lengths, axes
    if len(s) != len(axes):
        raise ShapeError("Shape and axes have different lengths.", location=here())
    return [shape[axis] if _is_whole(n) else n for n, axis in zip(s, axes)], axes


def _is_whole(n: Any) -> bool:
    """Tell whether a length stands for the whole axis."""
    return n is None or (isinstance(n, int) and n == -1)


def _each(
    transform: Transform, a: Any, lengths: Sequence[Any], axes: Sequence[int], norm: Any, out: Any
) -> Any:
    """Transform axes from the last to the first; `out` gets the last result."""
    result = lift(a)
    for k, (n, axis) in enumerate(reversed(list(zip(lengths, axes)))):
        result = transform(result, n, axis, norm, out if k == len(axes) - 1 else None)
    return result


@implements("fftn", namespace="fft")
def fftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform over several axes."""
    return _each(fft, a, *_lengths(lift(a), s, axes), norm, out)


@implements("ifftn", namespace="fft")
def ifftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    """Inverse discrete Fourier transform over several axes."""
    return _each(ifft, a, *_lengths(lift(a), s, axes), norm, out)


@implements("rfftn", namespace="fft")
def rfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform of reals over several axes."""
    lengths, chosen = _lengths(lift(a), s, axes)
    only = len(chosen) == 1
    first = rfft(a, lengths[-1], chosen[-1], norm, out if only else None)
    return _each(fft, first, lengths[:-1], chosen[:-1], norm, out)


@implements("irfftn", namespace="fft")
def irfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    """Inverse of `rfftn`."""
    lengths, chosen = _lengths(lift(a), s, axes, halved=True)
    first = _each(ifft, a, lengths[:-1], chosen[:-1], norm, None)
    return irfft(first, lengths[-1], chosen[-1], norm, out)


@implements("fft2", namespace="fft")
def fft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform over two axes."""
    return fftn(a, s, axes, norm, out)


@implements("ifft2", namespace="fft")
def ifft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None, out: Any = None) -> Any:
    """Inverse discrete Fourier transform over two axes."""
    return ifftn(a, s, axes, norm, out)


@implements("rfft2", namespace="fft")
def rfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None, out: Any = None) -> Any:
    """Discrete Fourier transform of reals over two axes."""
    return rfftn(a, s, axes, norm, out)


@implements("irfft2", namespace="fft")
def irfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None, out: Any = None) -> Any:
    """Inverse of `rfft2`."""
    return irfftn(a, s, axes, norm)


# -- frequencies and shifts --------------------------------------------------------------------------------------


def _size_argument(n: Any) -> DimLike:
    whole = n.dtype.kind in "iu" if isinstance(n, Traced) else isinstance(n, (int, np.integer))
    if not whole:
        raise ShapeError("n should be an integer", location=here())
    return not_negative(as_dim(n))


@implements("fftfreq", namespace="fft", creates=True)
def fftfreq(n: Any, d: Any = 1.0, device: Any = None) -> Any:
    """Frequencies of the terms of `fft` for samples `d` apart."""
    size = _size_argument(n)
    places = iota(size)
    signed: Array = np.where(places * 2 < n, places, places - n)
    return signed * (1.0 / (n * d))


@implements("rfftfreq", namespace="fft", creates=True)
def rfftfreq(n: Any, d: Any = 1.0, device: Any = None) -> Any:
    """Frequencies of the terms of `rfft` for samples `d` apart."""
    size = _size_argument(n)
    places: Array = iota(size // 2 + 1)
    return places * (1.0 / (n * d))


def _rotate(x: Value, axis: int, left: DimLike) -> Value:
    """Move the first `left` elements of an axis to its end."""
    scope, size = current_scope(), x.shape[axis]
    ones, zeros = (1,) * len(x.shape), (0,) * len(x.shape)

    def part(start: DimLike, length: DimLike) -> Value:
        at = tuple(start if k == axis else z for k, z in enumerate(zeros))
        shape = tuple(length if k == axis else d for k, d in enumerate(x.shape))
        return scope.emit("slice", x, start=at, size=shape, step=ones)

    return scope.emit("concatenate", part(left, size - left), part(0, left), axis=axis)


def _shifted(x: Any, axes: Any, inverse: bool) -> Traced:
    array = lift(x)
    chosen = (
        range(array.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    )
    value = read(array)
    for axis in chosen:
        at = normalise_axis(axis, array.ndim)
        half = value.shape[at] // 2
        value = _rotate(value, at, half if inverse else value.shape[at] - half)
    return fresh(value)


@implements("fftshift", namespace="fft")
def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency to the middle."""
    return _shifted(x, axes, inverse=False)


@implements("ifftshift", namespace="fft")
def ifftshift(x: Any, axes: Any = None) -> Any:
    """Inverse of `fftshift`."""
    return _shifted(x, axes, inverse=True)
