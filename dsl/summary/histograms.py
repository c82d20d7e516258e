"""Histograms as TensorBoard shows them: counts between limits, and the moments of the data.

Bucket k counts the values from limit k-1 up to, and without, limit k; a run of empty buckets is kept as one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dsl.errors import NanError, ShapeError, TypeRuleError

__all__ = ["Histogram", "default_limits", "histogram"]

Bins = int | Sequence[float] | np.ndarray | None
_LARGEST = sys.float_info.max


@dataclass(frozen=True, eq=False)
class Histogram:
    """A summary of numbers: `counts[k]` of them lie below `limits[k]` and not below the limit before."""

    min: float
    max: float
    num: float
    sum: float
    sum_squares: float
    limits: np.ndarray
    counts: np.ndarray


@cache
def default_limits() -> np.ndarray:
    """Return TensorFlow's limits: they grow by a tenth from 1e-12 to 1e20, on both sides of 0."""
    limits, v = [], 1.0e-12
    while v < 1.0e20:
        limits.append(v)
        v *= 1.1
    limits.append(_LARGEST)
    return np.array([*(-v for v in reversed(limits)), 0.0, *limits])


def histogram(tag: str, values: Any, bins: Bins = None) -> Histogram:
    """Count values: in TensorFlow's buckets, in a number of equally wide ones, or between given limits."""
    x = _finite(tag, values)
    inner, last = _limits(x, bins)
    counts = np.bincount(np.searchsorted(inner, x, side="right"), minlength=len(inner) + 1)
    limits, counts = _without_runs(np.append(inner, last), counts.astype(np.float64))
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    squares = float(np.dot(x, x))
    return Histogram(low, high, float(x.size), float(x.sum()), squares, limits, counts)


def _finite(tag: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind in "cOSU":
        raise TypeRuleError(f"the histogram {tag!r} wants real numbers, got {array.dtype}")
    x = array.astype(np.float64).ravel()
    if not np.isfinite(x).all():
        bad = int(np.count_nonzero(~np.isfinite(x)))
        raise NanError(
            f"the histogram {tag!r} has no bucket for NaN and infinity, of which there are {bad}",
            remedy="pass `x[np.isfinite(x)]`, or turn on `debug_nans` to find where they come from",
        )
    return x


def _limits(x: np.ndarray, bins: Bins) -> tuple[np.ndarray, float]:
    """Return all limits but the last, and the last."""
    if bins is None:
        return default_limits()[:-1], _LARGEST
    if isinstance(bins, int):
        if bins < 1:
            raise ShapeError(f"a histogram has at least one bin, got bins={bins}")
        low, high = (x.min(), x.max()) if x.size else (0.0, 0.0)
        return np.linspace(low, high, bins + 1)[1:-1], float(high)
    edges = np.asarray(bins, np.float64)
    if edges.ndim != 1 or not (np.diff(edges) > 0).all():
        raise ShapeError("the limits of a histogram's bins are a list of growing numbers")
    return edges, _LARGEST


def _without_runs(limits: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the last bucket of each run of empty ones."""
    empty = counts == 0
    kept = ~(empty & np.append(empty[1:], False))
    return limits[kept], counts[kept]
