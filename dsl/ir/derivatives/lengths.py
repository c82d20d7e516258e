"""Which values are made of squares, so that their derivative is 0 wherever they are.

A root is steeper than any number at 0. Of a sum of squares, as in the length of a vector, it has a kink there instead,
and gets derivative 0, the mean of all sides. So do the roots of whatever is never negative and flat at its zeros: of
powers and products of such values, of their sums and means, of the larger of two.
"""

from __future__ import annotations

import numpy as np

from dsl.ir.graph import Node, Value
from dsl.ir.types import is_complex, is_inexact

__all__ = ["constant_of", "is_flat_at_zero"]

_MOVES = frozenset(
    {"reshape", "transpose", "broadcast_to", "slice", "dynamic_slice", "gather", "identity", "full"}
)
_KEEPS = _MOVES | {"cast", "real", "sum", "max", "min", "cumsum"}
_JOINS = frozenset({"add", "multiply", "maximum", "minimum", "where"})
_NODES = 200


def is_flat_at_zero(x: Value) -> bool:
    """Tell whether a value is never negative, with derivative 0 where it is 0; it may be one and not be recognised."""
    left = [x]
    for _ in range(_NODES):
        if not left:
            return True
        parts = _parts(left.pop())
        if parts is None:
            return False
        left.extend(parts)
    return False


def _parts(x: Value) -> list[Value] | None:
    """Return the values that must be flat at zero for `x` to be: none, if it is by itself. None stands for never."""
    node, op, inputs = x.node, x.node.op.name, x.node.data_inputs
    if op in ("absolute", "fabs", "hypot") or _is_square(node):
        return []
    if op in _KEEPS and is_inexact(inputs[0].dtype):
        return [inputs[0]]
    if op in _JOINS:
        joined = inputs[1:] if op == "where" else inputs
        return [v for v in joined if _is_below(constant_of(v), 0)] or None
    if op == "divide" and (_is_count(inputs[1]) or not _is_below(constant_of(inputs[1]), 0)):
        return [inputs[0]]
    if op == "power" and not _is_below(constant_of(inputs[1]), 0):
        return [inputs[0]]
    return None


def constant_of(x: Value) -> np.ndarray | None:
    """Return the numbers that a value is known to have, in some shape."""
    while x.node.op.name in _MOVES:
        x = x.node.inputs[0]
    return x.node.attrs["value"].array if x.node.op.name == "const" else None


def _is_below(numbers: np.ndarray | None, limit: float) -> bool:
    """Tell whether numbers are unknown, complex, or some below a limit; NaN is not below."""
    return numbers is None or numbers.dtype.kind == "c" or bool((numbers < limit).any())


def _is_count(x: Value) -> bool:
    while x.node.op.name in _MOVES:
        x = x.node.inputs[0]
    return x.node.op.name == "cast" and not is_inexact(x.node.inputs[0].dtype)


def _is_square(node: Node) -> bool:
    """Tell whether a node multiplies numbers by themselves; complex ones, by their conjugates."""
    op, inputs = node.op.name, node.data_inputs
    if op == "square":
        return not is_complex(inputs[0].dtype)
    if op == "power":
        exponent = constant_of(inputs[1])
        return (
            exponent is not None
            and exponent.dtype.kind == "f"
            and bool(((exponent >= 2) & (exponent % 2 == 0)).all())
        )
    if op == "multiply":
        return _root(inputs[0], "conjugate") == _root(
            inputs[1], "conjugate", flipped=is_complex(inputs[0].dtype)
        )
    return op == "matmul" and _is_row_times_column(*inputs)


def _is_row_times_column(x: Value, y: Value) -> bool:
    """Tell whether rows are multiplied by columns of the same elements."""
    shapes = [[dim for dim in v.shape if dim != 1] for v in (x, y)]
    many = len(x.shape) > 1 and (x.shape[-2] != 1 or y.shape[-1] != 1)
    if many or len(x.shape) != len(y.shape) or shapes[0] != shapes[1]:
        return False
    moves = ("reshape", "conjugate")
    return _root(x, *moves) == _root(y, *moves, flipped=is_complex(x.dtype))


def _root(x: Value, *ops: str, flipped: bool = False) -> tuple[Value, bool]:
    """Return what a value is made from by these ops, and whether it is conjugated; `flipped`, whether it is not."""
    conjugated = flipped
    while x.node.op.name in ops:
        conjugated ^= x.node.op.name == "conjugate"
        x = x.node.inputs[0]
    return x, conjugated
