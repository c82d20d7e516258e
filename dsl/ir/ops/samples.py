"""Random operands for the samples of op records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dsl.ir.ops.rules import Domain
from dsl.ir.registry import Sample
from dsl.ir.types import DTYPES

__all__ = ["draw", "dtypes_of", "one_operand"]


def draw(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    """Return an array of ordinary values: small whole numbers, and floats of both signs around 1."""
    if dtype.kind in "biu":
        low, high = {"b": (0, 2), "i": (-5, 9), "u": (0, 9)}[dtype.kind]
        return np.asarray(rng.integers(low, high, shape)).astype(dtype)
    values = np.asarray(rng.normal(0.0, 2.0, shape))
    if dtype.kind == "c":
        values = values + 1j * rng.normal(0.0, 2.0, shape)
    return np.asarray(values.astype(dtype))


def dtypes_of(domain: Domain) -> Iterator[np.dtype]:
    """Yield the dtypes of a domain in their usual order."""
    return (dtype for dtype in DTYPES if dtype in domain.dtypes)


def one_operand(
    rng: np.random.Generator, domain: Domain, *attrs: Mapping[str, Any]
) -> Iterable[Sample]:
    """Yield a 2x3 operand of each dtype with each of the given attributes."""
    for dtype in dtypes_of(domain):
        for chosen in attrs or ({},):
            yield Sample((draw(rng, dtype),), chosen)
