"""Discrete Fourier transforms along one axis.

With `w = exp(-2j * pi / n)`, `fft` is `y[k] = sum(x[j] * w**(j*k))` and, with `inverse`, `sum(x[j] * w**(-j*k))`:
neither direction divides by `n`; callers scale as their `norm` asks. `rfft` takes reals and returns the first
`n//2 + 1` terms, of which the others are conjugates. `irfft` takes such a half and returns `n` reals, again without
dividing; it ignores the imaginary part of term 0 and, for even `n`, of the last term.

`n` is the length of the transform and agrees with the input: size `n` along `axis`, or `n//2 + 1` for `irfft`. Callers
crop and pad; sizes that cannot be compared, because they are symbolic, are compared when the program runs. `axis`
counts from the front. Single precision stays single, as in NumPy 2. NaNs and infs spread over the whole axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dsl.errors import ShapeError
from dsl.ir.dims import DimLike
from dsl.ir.ops.rules import Attrs, Domain, Inputs, check_axis, differ, operands
from dsl.ir.registry import Sample, TypeRule, op
from dsl.ir.types import BY_NAME, TensorType, dtype_name

__all__: list[str] = []

_REAL = (BY_NAME["f32"], BY_NAME["f64"])
_COMPLEX = (BY_NAME["c64"], BY_NAME["c128"])


def _transform(name: str, takes: tuple[np.dtype, ...], gives: tuple[np.dtype, ...]) -> TypeRule:
    """Return the type rule of a transform between dtypes of equal precision."""
    result_dtype = dict(zip(takes, gives))
    domain = Domain(" or ".join(dtype_name(dtype) for dtype in takes), frozenset(takes))

    def rule(inputs: Inputs, attrs: Attrs) -> TensorType:
        (x,), n = operands(name, inputs, x=domain), attrs["n"]
        axis = check_axis(name, attrs["axis"], x)
        _check_size(name, x.shape[axis], n, axis)
        size = _half(n) if name == "rfft" else n
        return TensorType(result_dtype[x.dtype], x.shape[:axis] + (size,) + x.shape[axis + 1 :])

    return rule


def _half(n: DimLike) -> DimLike:
    return n // 2 + 1


def _check_size(name: str, size: DimLike, n: DimLike, axis: int) -> None:
    """Refuse an input that is not cropped and padded to the length; NumPy itself would do that silently."""
    if isinstance(n, int) and n < 1:
        raise ShapeError(f"Invalid number of FFT data points ({n}) specified.")
    expected = _half(n) if name == "irfft" else n
    if differ(size, expected):
        raise ShapeError(f"{name}: length {n} takes size {expected} on axis {axis}, got {size}")


def _fft(x: np.ndarray, axis: int, n: int, inverse: bool) -> np.ndarray:
    _check_size("fft", x.shape[axis], n, axis)
    return np.fft.ifft(x, n, axis, norm="forward") if inverse else np.fft.fft(x, n, axis)


def _rfft(x: np.ndarray, axis: int, n: int) -> np.ndarray:
    _check_size("rfft", x.shape[axis], n, axis)
    return np.fft.rfft(x, n, axis)


def _irfft(x: np.ndarray, axis: int, n: int) -> np.ndarray:
    _check_size("irfft", x.shape[axis], n, axis)
    return np.fft.irfft(x, n, axis, norm="forward")


# -- samples -----------------------------------------------------------------------------------------------------

# Shape and axis: powers of two, products of small primes, a prime that needs Bluestein's method, batches, empties.
_CASES = (((8,), 0), ((1,), 0), ((15,), 0), ((2, 7, 3), 1), ((4, 6), 0), ((4, 6), 1), ((0, 4), 1),
          ((101,), 0))  # fmt: skip
_ULPS = 256.0


def _complex(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)


def _fft_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in _COMPLEX:
        for shape, axis in _CASES:
            for inverse in (False, True):
                attrs = {"axis": axis, "n": shape[axis], "inverse": inverse}
                yield Sample((_complex(rng, shape).astype(dtype),), attrs, _ULPS)


def _rfft_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in _REAL:
        for shape, axis in _CASES:
            attrs = {"axis": axis, "n": shape[axis]}
            yield Sample((rng.uniform(-1, 1, shape).astype(dtype),), attrs, _ULPS)


def _irfft_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in _COMPLEX:
        for shape, axis in _CASES:
            n = shape[axis]
            half = shape[:axis] + (n // 2 + 1,) + shape[axis + 1 :]
            yield Sample((_complex(rng, half).astype(dtype),), {"axis": axis, "n": n}, _ULPS)


op("fft", "x -> y", doc="Complex Fourier transform of length `n` along `axis`, not scaled in either direction.",
   type=_transform("fft", _COMPLEX, _COMPLEX), numpy=_fft, samples=_fft_samples)  # fmt: skip
op("rfft", "x -> y", doc="The first `n//2 + 1` terms of the Fourier transform of reals.",
   type=_transform("rfft", _REAL, _COMPLEX), numpy=_rfft, samples=_rfft_samples)  # fmt: skip
op("irfft", "x -> y", doc="The `n` reals that `rfft` takes to `x`, times `n`.",
   type=_transform("irfft", _COMPLEX, _REAL), numpy=_irfft, samples=_irfft_samples)  # fmt: skip
