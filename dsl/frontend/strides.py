"""Strides: how far apart in memory the elements of a view are, by which NumPy's `reshape` is a view or a copy.

In: shapes and strides whose numbers may be symbolic. Out: the strides after a view or a reshape, or None where they
cannot be told for all sizes. A stride that nobody knows is a symbol without a lower bound.

>>> from dsl.ir.dims import Symbol
>>> n, m = Symbol("n", 2), Symbol("m", 2)
>>> rows = contiguous((n, m), 8)
>>> reshaped((n, m), rows, (n * m,)), reshaped((m, n), rows[::-1], (n * m,))
((8,), None)
>>> is_copied((m, n), rows[::-1], (n * m,))
True
"""

from __future__ import annotations

import itertools

from dsl.frontend.strided import Strided
from dsl.frontend.views import (
    Bitcast,
    Broadcasted,
    DynamicSliced,
    Part,
    Picked,
    Reshaped,
    Sliced,
    Stepped,
    Transposed,
    View,
    Windowed,
)
from dsl.ir.dims import DimLike, Symbol, lower_bound
from dsl.ir.types import Shape, size_of

__all__ = ["contiguous", "is_contiguous", "is_copied", "offset", "reshaped", "unknown", "viewed"]

_LOWEST = -(2**63)


def contiguous(shape: Shape, itemsize: int) -> Shape:
    """Return the strides of a new array, in bytes."""
    return tuple(size_of(shape[k + 1 :]) * itemsize for k in range(len(shape)))


def unknown(shape: Shape) -> Shape:
    """Return strides of which nothing is known."""
    return tuple(Symbol("stride", _LOWEST) for _ in shape)


def viewed(shape: Shape, strides: Shape, view: View) -> tuple[Shape, Shape] | None:
    """Return shape and strides of a view."""
    if isinstance(view, (Part, Bitcast)):
        return shape, strides
    if isinstance(view, Sliced):
        return view.size, tuple(s * k for s, k in zip(strides, view.step, strict=True))
    if isinstance(view, Transposed):
        return tuple(shape[k] for k in view.axes), tuple(strides[k] for k in view.axes)
    if isinstance(view, DynamicSliced):
        k = view.axis
        dims = (*shape[:k], view.size, *shape[k + 1 :])
        return dims, (*strides[:k], strides[k] * view.step, *strides[k + 1 :])
    if isinstance(view, Picked):
        kept = [k for k in range(len(shape)) if k not in view.axes]
        return tuple(shape[k] for k in kept), tuple(strides[k] for k in kept)
    if isinstance(view, Reshaped):
        found = reshaped(shape, strides, view.shape)
        return None if found is None else (view.shape, found)
    if isinstance(view, Broadcasted):
        return _broadcast(shape, strides, view.shape)
    if isinstance(view, Strided):
        own = (sum((s * t for s, t in zip(a, strides, strict=True)), 0) for a in view.steps)
        return view.shape, tuple(own)
    if isinstance(view, Windowed):
        k = view.axis
        dims = (*shape[:k], view.count(shape), *shape[k + 1 :], view.size)
        return dims, (*strides, strides[k])
    return None


def _broadcast(shape: Shape, strides: Shape, target: Shape) -> tuple[Shape, Shape] | None:
    """Return shape and strides of an array that is repeated; None where a size may be 1 or not."""
    new = len(target) - len(shape)
    if new < 0 or any(n not in (1, wide) for n, wide in zip(shape, target[new:], strict=True)):
        return None
    own = (s if n == wide else 0 for n, s, wide in zip(shape, strides, target[new:], strict=True))
    return target, (*(0,) * new, *own)


def offset(shape: Shape, strides: Shape, view: View, itemsize: int) -> DimLike | None:
    """Return how many bytes the first element of a view lies behind that of the array; None where the run decides."""
    if isinstance(view, Sliced):
        return sum((s * k for s, k in zip(strides, view.start, strict=True)), 0)
    if isinstance(view, Picked):
        places = view.places
        if places is None:
            return None
        pairs = zip(view.axes, places, strict=True)
        return sum((strides[k] * (i if i >= 0 else shape[k] + i) for k, i in pairs), 0)
    if isinstance(view, Part):
        return itemsize // 2 if view.name == "imag" else 0
    return None if isinstance(view, (DynamicSliced, Stepped)) else 0


def reshaped(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Return the strides of a reshape that is a view whatever the sizes, else None.

    As in NumPy, runs of axes with equal products correspond, and the old axes of a run must be one run of memory.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    new = [n for n in target if n != 1]
    found: list[DimLike] = []
    for (i, j), (i_end, j_end) in itertools.pairwise(_cuts([n for n, _ in old], new)):
        run = old[i:i_end]
        if any(s != m * t for (_, s), (m, t) in itertools.pairwise(run)):
            return None
        last = run[-1][1] if run else 0
        found += [size_of(tuple(new[k + 1 : j_end])) * last for k in range(j, j_end)]
    left = iter(found)
    return tuple(0 if n == 1 else next(left) for n in target)


def _cuts(old: list[DimLike], new: list[DimLike]) -> list[tuple[int, int]]:
    """Return the places up to which as many elements lie before in both shapes, from the start to the end."""
    products = {size_of(tuple(new[:j])): j for j in range(1, len(new))}
    inner = [
        (i, products[size])
        for i in range(1, len(old))
        if (size := size_of(tuple(old[:i]))) in products
    ]
    return [(0, 0), *inner, (len(old), len(new))]


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool | None:
    """Tell whether an array is one run of memory in C order, or None where that depends on the sizes."""
    pairs = list(zip(shape, strides, contiguous(shape, itemsize), strict=True))
    if all(n == 1 or s == expected for n, s, expected in pairs):
        return True
    apart = any(_at_least(n, 2) and _differ(s, expected) for n, s, expected in pairs)
    return False if apart else None


def is_copied(shape: Shape, strides: Shape, target: Shape) -> bool:
    """Tell whether a reshape is a copy whatever the sizes: one that makes an axis of two that are never one run of memory."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    cuts = _cuts([n for n, _ in old], [n for n in target if n != 1])
    merged = (old[i:i_end] for (i, j), (i_end, j_end) in itertools.pairwise(cuts) if j_end - j == 1)
    return any(
        _at_least(n, 2) and _at_least(m, 2) and _differ(s, m * t)
        for run in merged
        for (n, s), (m, t) in itertools.pairwise(run)
    )


def _at_least(dim: DimLike, bound: int) -> bool:
    found = lower_bound(dim)
    return found is not None and found >= bound


def _differ(a: DimLike, b: DimLike) -> bool:
    return _at_least(a - b, 1) or _at_least(b - a, 1)
