"""Sums of cotangents. Parts of arrays are kept as parts until something needs the whole."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Cotangent, Part, total
from dsl.ir.graph import Value

__all__ = ["combine"]


def combine(a: Algebra, found: Sequence[Cotangent], *, in_place: bool = False) -> Value:
    """Return the sum of cotangents as one value. With `in_place`, parts are written into the sum so far."""
    whole = [g for g in found if isinstance(g, Value)]
    parts = [g for g in found if isinstance(g, Part)]
    if not whole and len(parts) == 1:
        return _alone(a, parts[0])
    result = whole[0] if whole else _alone(a, parts.pop(0))
    for g in whole[1:]:
        result = total(a, result, g)
    for part in parts:
        result = _added(a, result, part, in_place)
    return result


def _alone(a: Algebra, part: Part) -> Value:
    """Return a part in an array of zeros."""
    if part.place == "slice" and _is_plain(part):
        return _padded(a, part)
    return _added(a, a.zeros(part.type), part, True, fresh=True)


def _is_plain(part: Part) -> bool:
    return all(step == 1 for step in part.attrs["step"])


def _padded(a: Algebra, part: Part) -> Value:
    low = part.attrs["start"]
    high = tuple(n - s - m for n, s, m in zip(part.type.shape, low, part.value.shape, strict=True))
    if all(isinstance(d, int) and d == 0 for d in (*low, *high)):
        return part.value
    return a.pad(part.value, a.builder.constant(0, part.type.dtype), low=low, high=high)


def _added(a: Algebra, result: Value, part: Part, in_place: bool, fresh: bool = False) -> Value:
    value, attrs = part.value, part.attrs
    if part.place == "gather":
        if not attrs["axes"]:
            return total(a, result, value)
        return a.scatter(result, value, *part.inputs, axes=attrs["axes"], mode="add")
    if part.place == "slice":
        if not in_place and _is_plain(part):
            return total(a, result, _padded(a, part))
        if not fresh:
            value = a.add(
                a.slice(result, start=attrs["start"], size=value.shape, step=attrs["step"]), value
            )
        return a.update_slice(result, value, start=attrs["start"], step=attrs["step"])
    axis, step = attrs["axis"], attrs["step"]
    if not fresh:
        there = a.dynamic_slice(result, *part.inputs, axis=axis, size=value.shape[axis], step=step)
        value = a.add(there, value)
    return a.update_dynamic_slice(result, value, *part.inputs, axis=axis, step=step)
