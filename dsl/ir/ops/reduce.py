"""Reductions over axes, and running ones along an axis.

- The reduced `axes` are gone from the result; `axes=()` copies. The dtype stays: who wants small integers summed in
  int64 casts first. Integer sums and products wrap; of bools, `sum` is "any" and `prod` is "all".
- Over no elements `sum` is 0, `prod` 1, `any` false, `all` true, `reduce_and` all bits, `reduce_or` and
  `reduce_xor` none; `max`, `min`, `argmax` and `argmin` raise ValueError in NumPy's words.
- A NaN wins in `max`, `min`, `cummax` and `cummin`; `argmax` and `argmin` return the first NaN, else the first
  extremum. Complex numbers are ordered by real part, then imaginary part.
- The order in which floats are added or multiplied is open, but depends on the shape alone. The reference adds
  pairwise, as NumPy does, and keeps float16 sums in float32; running sums go from first to last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from dsl.errors import InternalError
from dsl.ir.ops.rules import ANY, BITS, BOOLS, Attrs, Domain, Inputs, check_axis, operands
from dsl.ir.ops.samples import one_operand
from dsl.ir.registry import Op, Sample, Trait, op
from dsl.ir.types import I64, TensorType

__all__ = ["reduction", "running"]

PURE, CHECKED = Trait.PURE, Trait.CHECKED


# -- over axes ----------------------------------------------------------------------------------------------------


def _reduced_type(name: str, domain: Domain, inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands(name, inputs, x=domain)
    axes = attrs["axes"]
    if list(axes) != sorted({check_axis(name, axis, x) for axis in axes}):
        raise InternalError(f"{name}: axes {axes} are not in increasing order")
    return x.with_shape(dim for axis, dim in enumerate(x.shape) if axis not in axes)


def _reduce(ufunc: np.ufunc, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.asarray(ufunc.reduce(x, axis=axes, dtype=x.dtype))


def _reduced_samples(domain: Domain, rng: np.random.Generator) -> Iterable[Sample]:
    return one_operand(rng, domain, {"axes": (0,)}, {"axes": (1,)}, {"axes": (0, 1)}, {"axes": ()})


def reduction(name: str, ufunc: np.ufunc, domain: Domain, doc: str, *traits: Trait) -> Op:
    """Register the reduction by a ufunc over `axes`."""
    return op(
        name,
        "x -> y",
        doc=doc,
        type=partial(_reduced_type, name, domain),
        numpy=partial(_reduce, ufunc),
        traits={PURE, *traits},
        samples=partial(_reduced_samples, domain),
    )


reduction("sum", np.add, ANY, "The sum over `axes`.")
reduction("prod", np.multiply, ANY, "The product over `axes`.")
reduction("max", np.maximum, ANY, "The largest element over `axes`; NaN if there is one.", CHECKED)
reduction("min", np.minimum, ANY, "The smallest element over `axes`; NaN if there is one.", CHECKED)
reduction("any", np.logical_or, BOOLS, "Whether an element over `axes` is true.")
reduction("all", np.logical_and, BOOLS, "Whether every element over `axes` is true.")
reduction("reduce_and", np.bitwise_and, BITS, "The bits that all elements over `axes` have.")
reduction("reduce_or", np.bitwise_or, BITS, "The bits that some element over `axes` has.")
reduction("reduce_xor", np.bitwise_xor, BITS, "The bits that an odd number of elements have.")


# -- along one axis -----------------------------------------------------------------------------------------------

_AXES = ({"axis": 0}, {"axis": 1})


def _extremum_type(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands(name, inputs, x=ANY)
    axis = check_axis(name, attrs["axis"], x)
    return TensorType(I64, x.shape[:axis] + x.shape[axis + 1 :])


def _running_type(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    (x,) = operands(name, inputs, x=ANY)
    check_axis(name, attrs["axis"], x)
    return x


def _accumulate(ufunc: np.ufunc, x: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(ufunc.accumulate(x, axis=axis, dtype=x.dtype))


def running(name: str, ufunc: np.ufunc, doc: str) -> Op:
    """Register the running reduction by a ufunc along `axis`."""
    return op(
        name,
        "x -> y",
        doc=doc,
        type=partial(_running_type, name),
        numpy=partial(_accumulate, ufunc),
        samples=lambda rng: one_operand(rng, ANY, *_AXES),
    )


op("argmax", "x -> index", doc="The index of the first largest element along `axis`, as int64.",
   type=partial(_extremum_type, "argmax"), numpy=lambda x, axis: np.argmax(x, axis),
   traits={PURE, CHECKED}, samples=lambda rng: one_operand(rng, ANY, *_AXES))  # fmt: skip
op("argmin", "x -> index", doc="The index of the first smallest element along `axis`, as int64.",
   type=partial(_extremum_type, "argmin"), numpy=lambda x, axis: np.argmin(x, axis),
   traits={PURE, CHECKED}, samples=lambda rng: one_operand(rng, ANY, *_AXES))  # fmt: skip
running("cumsum", np.add, "Sums of the elements so far along `axis`.")
running("cumprod", np.multiply, "Products of the elements so far along `axis`.")
running("cummax", np.maximum, "The largest element so far along `axis`; NaN after a NaN.")
running("cummin", np.minimum, "The smallest element so far along `axis`; NaN after a NaN.")
