"""What is known of traced integers while tracing: between which sizes they lie, and how far apart two of them are.

The number of a loop's trip lies between 0 and the last trip, and what is computed from it by sums, products with constants,
minima and maxima lies accordingly. So `x[i : i + 3]` in `for i in range(len(x) - 2)` is known to have three elements, none of
them clamped away.
"""

from __future__ import annotations

from typing import NamedTuple

from dsl.frontend.scopes import Scope
from dsl.ir.dims import DimLike, dim_max, dim_min
from dsl.ir.graph import Value
from dsl.ir.types import I64

__all__ = ["Range", "distance", "is_at_most", "note_trips", "range_of"]

_DEPTH = 16  # of a computation that is looked through


class Range(NamedTuple):
    """The least and the greatest value, both included."""

    low: DimLike
    high: DimLike


def note_trips(scope: Scope, trip: Value, trips: Value) -> None:
    """Say that a param of a loop's body is the number of its trip; `trips` is a value of the scope around."""
    assert scope.parent is not None
    count = scope.parent.known_dim(_without_limit(trips))
    if count is not None:
        scope.ranges[trip] = Range(0, count - 1)


def _without_limit(trips: Value) -> Value:
    """A body runs only if there are trips, so that a count which is kept from being negative is not."""
    node = trips.node
    if node.op.name == "maximum" and _constant(node.inputs[1]) == 0:
        return node.inputs[0]
    return trips


def range_of(scope: Scope, value: Value, depth: int = _DEPTH) -> Range | None:
    """Return between what an integer of a scope lies, if that is known."""
    if value.dtype != I64 or value.shape:
        return None
    known = scope.known_dim(value)
    if known is not None:
        return Range(known, known)
    own: Range | None = scope.ranges.get(value)
    if own is not None:
        return own
    outer = scope.captured_from(value)
    if outer is not None and scope.parent is not None:
        return range_of(scope.parent, outer, depth)
    if depth == 0 or len(value.node.inputs) != 2:
        return None
    a, b = (range_of(scope, operand, depth - 1) for operand in value.node.inputs)
    return None if a is None or b is None else _combined(value.node.op.name, a, b)


def _combined(op: str, a: Range, b: Range) -> Range | None:
    if op == "add":
        return Range(a.low + b.low, a.high + b.high)
    if op == "subtract":
        return Range(a.low - b.high, a.high - b.low)
    if op in ("minimum", "maximum"):
        of = dim_min if op == "minimum" else dim_max
        return Range(of(a.low, b.low), of(a.high, b.high))
    if op == "multiply":
        number, other = (a, b) if isinstance(a.low, int) and a.low == a.high else (b, a)
        factor = number.low
        if isinstance(factor, int) and factor == number.high:
            ends = other.low * factor, other.high * factor
            return Range(*ends) if factor >= 0 else Range(*ends[::-1])
    return None


def is_at_most(scope: Scope, a: DimLike, b: DimLike) -> bool:
    """Tell whether one size is surely not greater than another where a scope is run."""
    return scope.is_natural(b - a)


def distance(scope: Scope, a: Value, b: Value) -> DimLike | None:
    """Return b - a, if that is the same however the program runs."""
    terms, constant = _affine(scope, a, _DEPTH)
    others, other = _affine(scope, b, _DEPTH)
    same = all(terms.get(value, 0) == others.get(value, 0) for value in {**terms, **others})
    return other - constant if same else None


def _affine(scope: Scope, value: Value, depth: int) -> tuple[dict[Value, int], DimLike]:
    """Return an integer as multiples of others, of the outermost scope that has them, and a size."""
    known = scope.known_dim(value) if value.dtype == I64 and not value.shape else None
    if known is not None:
        return {}, known
    outer = scope.captured_from(value)
    if outer is not None and scope.parent is not None:
        return _affine(scope.parent, outer, depth)
    node, is_number = value.node, value.dtype == I64 and not value.shape
    if depth and is_number and node.op.name in ("add", "subtract"):
        (terms, constant), (others, other) = (_affine(scope, v, depth - 1) for v in node.inputs)
        sign = 1 if node.op.name == "add" else -1
        both = dict(terms)
        for term, factor in others.items():
            both[term] = both.get(term, 0) + sign * factor
        return both, constant + other * sign
    if depth and is_number and node.op.name == "multiply":
        for one, other_one in (node.inputs, node.inputs[::-1]):
            times = scope.known_dim(other_one)
            if isinstance(times, int):
                terms, constant = _affine(scope, one, depth - 1)
                return {term: own * times for term, own in terms.items()}, constant * times
    return {value: 1}, 0


def _constant(value: Value) -> int | None:
    if value.node.op.name != "const" or value.shape:
        return None
    return int(value.node.attrs["value"].array)
