"""Tells which gathers read at places that counting tells, as views do: windows, `x[np.arange(n)[:, None] + np.arange(m)]`."""

from __future__ import annotations

import numpy as np

from dsl.ir.graph import Node, Value
from dsl.ir.types import TensorType

__all__ = ["counts", "moves", "steps"]

_COUNTS = frozenset(("iota", "add", "subtract", "broadcast_to", "transpose", "slice", "reshape"))
_MOST_NUMBERS = 2**16  # of a constant that is looked at


def counts(value: Value) -> bool:
    """Tell whether an array holds sums of counters, constants and numbers."""
    if not isinstance(value.type, TensorType) or not value.shape:
        return True
    if value.dtype != np.int64:
        return False
    if value.node.op.name == "const":
        return steps(value.node.attrs["value"].array) is not None
    return value.node.op.name in _COUNTS and all(map(counts, value.node.data_inputs))


def moves(node: Node) -> bool:
    """Tell whether a node is such a gather."""
    return node.op.name == "gather" and all(map(counts, node.data_inputs[1:]))


def steps(numbers: np.ndarray) -> list[int] | None:
    """Return the distance of neighbours along each axis of a constant, if it is the same everywhere."""
    if not 0 < numbers.size <= _MOST_NUMBERS:
        return None
    found, expected = [], numbers.flat[0]
    for axis, count in enumerate(numbers.shape):
        rows = np.moveaxis(numbers, axis, 0)
        step = rows[1].flat[0] - rows[0].flat[0] if count > 1 else 0
        found.append(int(step))
        places = np.arange(count).reshape((-1,) + (1,) * (numbers.ndim - axis - 1))
        expected = expected + step * places
    return found if np.array_equal(numbers, expected) else None
