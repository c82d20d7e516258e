"""Elements in even steps through an array: what NumPy's `as_strided` shows.

In: a shape and the bytes from element to element along each of its axes, as for the memory of a traced array. Out: a view that
goes by so many elements along the axes of that array. Elements outside of the array are refused; those that are there more
than once are read, not written.

>>> steps_along((16, 40, 48), (40, 8))
[(0, 2), (1, 0), (1, 1)]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend.scopes import Scope, here
from dsl.frontend.views import read_only
from dsl.ir.graph import Value
from dsl.ir.types import I64

__all__ = ["Strided", "steps_along", "strided"]

Steps = tuple[int, ...]


def strided(
    own_shape: Steps, own: Steps, shape: Steps, strides: Steps, writeable: bool
) -> Strided | None:
    """Return how an array with a shape and strides shows others; None for elements outside of it."""
    for nearest in (int, round):
        steps = steps_along(strides, own, nearest)
        view = None if steps is None else Strided(shape, tuple(steps), writeable)
        if view is not None and view.is_inside(own_shape):
            return view
    return None


def steps_along(
    strides: Sequence[int], own: Sequence[int], nearest: Callable[[float], int] = int
) -> list[Steps] | None:
    """Return how many elements of each axis, whose strides are `own`, the given strides go by; None if they go between elements.

    The longest strides are taken first, as often as they fit, or one more time if that comes `nearest`.
    """
    order = sorted(range(len(own)), key=lambda k: -abs(own[k]))
    found = []
    for stride in strides:
        steps, left = [0] * len(own), stride
        for k in order:
            if own[k]:
                steps[k] = nearest(left / own[k])
                left -= steps[k] * own[k]
        if left:
            return None
        found.append(tuple(steps))
    return found


@dataclass(frozen=True)
class Strided:
    """The elements that are `steps[j][k]` apart along axis k of the base, from one to the next along axis j."""

    shape: tuple[int, ...]
    steps: tuple[Steps, ...]
    writeable: bool = True

    def is_inside(self, shape: Sequence[int]) -> bool:
        """Tell whether all elements are in an array of a shape."""
        if 0 in self.shape:
            return True
        last = [[(n - 1) * s for n, s in zip(self.shape, along)] for along in self._by_axis(shape)]
        low, high = ([sum(each(0, way) for way in ways) for ways in last] for each in (min, max))
        return all(a >= 0 and b < n for a, b, n in zip(low, high, shape, strict=True))

    def get(self, b: Scope, base: Value) -> Value:
        indices, axes = self._indices(b, base), tuple(range(len(base.shape)))
        return b.emit("gather", base, *indices, axes=axes)

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        if not self.writeable:
            raise read_only()
        if not self._has_elements_apart(base.shape):  # type: ignore[arg-type]
            raise UnsupportedError(
                "a write into a view that has elements more than once",
                location=here(),
                remedy="write to the array that it is a view of",
            )
        indices, axes = self._indices(b, base), tuple(range(len(base.shape)))
        return b.emit("scatter", base, value, *indices, axes=axes, mode="update")

    def of(self, array: np.ndarray) -> np.ndarray | None:
        strides = [sum(s * t for s, t in zip(along, array.strides)) for along in self.steps]
        return np.lib.stride_tricks.as_strided(
            array, self.shape, strides, writeable=self.writeable and array.flags.writeable
        )

    def _by_axis(self, shape: Sequence[int]) -> list[Steps]:
        return [tuple(along[k] for along in self.steps) for k in range(len(shape))]

    def _indices(self, b: Scope, base: Value) -> list[Value]:
        """Return where each element lies along each axis of the base."""
        return [self._places(b, along) for along in self._by_axis(base.shape)]  # type: ignore[arg-type]

    def _places(self, b: Scope, along: Steps) -> Value:
        parts = []
        for j, (n, step) in enumerate(zip(self.shape, along, strict=True)):
            if step:
                places = b.emit(
                    "multiply", b.emit("iota", size=n, dtype=I64), b.constant(step, I64)
                )
                ones = (1,) * (len(self.shape) - 1)
                parts.append(b.emit("reshape", places, shape=(*ones[:j], n, *ones[j:])))
        if not parts:
            return b.emit("full", b.constant(0, I64), shape=self.shape)
        total = functools.reduce(lambda x, y: b.emit("add", x, y), parts)
        return (
            total if total.shape == self.shape else b.emit("broadcast_to", total, shape=self.shape)
        )

    def _has_elements_apart(self, shape: Sequence[int]) -> bool:
        """Tell whether no element of the base is there twice: each step goes past all that the shorter ones reach."""
        sizes = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        flat = [abs(sum(s * n for s, n in zip(along, sizes))) for along in self.steps]
        reach = 1
        for step, n in sorted(zip(flat, self.shape, strict=True)):
            if n > 1 and step < reach:
                return False
            reach += (n - 1) * step
        return True
