"""Facts about nodes and values that passes ask for: what is constant, what has effects, what cannot fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from dsl.errors import ShapeError
from dsl.ir.dims import Dim, DimLike, lower_bound, substitute, symbols_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType, is_inexact, is_integer

__all__ = [
    "checks_of",
    "commutes",
    "constant_of",
    "depends",
    "fits",
    "has_effect",
    "is_array",
    "is_flat",
    "is_total",
    "may_raise",
    "named_axis",
    "splat_of",
]


def is_flat(graph: Graph) -> bool:
    """Tell whether a graph spells control flow with tokens, some of which may be dead."""
    return any(node.op.has(Trait.FLAT) for node in graph.nodes)


def is_array(value: Value) -> bool:
    """Tell whether a value is a tensor of rank 1 or more."""
    return isinstance(value.type, TensorType) and bool(value.type.shape)


def depends(value: Value, source: Value) -> bool:
    """Tell whether a value of a graph is computed from another one of it, or is that one."""
    seen, pending = set[Node](), [value]
    while pending:
        current = pending.pop()
        if current is source:
            return True
        if current.node not in seen:
            seen.add(current.node)
            pending += current.node.inputs
    return False


def named_axis(node: Node, axis: int) -> int:
    """Return how an error of an index names an axis: as the part has it that was indexed, where that was a part of an array."""
    named = node.attrs.get("named")
    return int(named[node.attrs["axes"].index(axis)]) if named else axis


def has_effect(node: Node) -> bool:
    """Tell whether a node or one in its regions has an effect."""
    return node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions)


def constant_of(value: Value) -> np.ndarray | None:
    """Return the array of a constant."""
    node = value.node
    return node.attrs["value"].array if node.op.name == "const" and not node.controls else None


def splat_of(value: Value) -> np.ndarray | None:
    """Return, as a rank-0 array, the one value that all elements are known to have."""
    while value.node.op.name in ("full", "broadcast_to") and not value.node.controls:
        value = value.node.inputs[0]
    array = constant_of(value)
    if array is None or array.ndim == 0:
        return array
    if not 0 < array.size <= 4096:
        return None
    first = array.reshape(-1)[:1]
    return first.reshape(()) if array.tobytes() == first.tobytes() * array.size else None


# Ops whose float results do not depend on the order of the operands. Maxima and minima of +0.0 and -0.0 do, and so do
# the roundings of complex products and of the transcendental functions.
_SYMMETRIC = frozenset(
    {"add", "multiply", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
)


def commutes(node: Node) -> bool:
    """Tell whether swapping the first two inputs leaves every bit of the result as it is."""
    if not node.op.has(Trait.COMMUTATIVE):
        return False
    dtype = node.inputs[0].dtype
    if dtype.kind == "c" and node.op.name == "multiply":
        return False
    return not is_inexact(dtype) or node.op.name in _SYMMETRIC


def is_total(node: Node) -> bool:
    """Tell whether a node, run on any data of its input types, ends without an exception or effect."""
    if not node.op.has(Trait.PURE) or node.op.has(Trait.FLAT):
        return False
    if node.regions:
        return node.op.name != "while" and all(
            is_total(inner) for region in node.regions for inner in region.nodes
        )
    return fits(node) and (not may_raise(node))


def checks_of(
    value: Value, quiet: set[Node], given: Mapping[Value, Value] = MappingProxyType({})
) -> set[Node]:
    """Return the nodes that a value is computed from and that may raise; `quiet` are some that need no look, and gets more of them.

    `given` says what params of regions stand for.
    """
    seen, found, pending = set[Node](), set[Node](), [value.node]
    while pending:
        node = pending.pop()
        if node in quiet or node in seen:
            continue
        seen.add(node)
        if any(map(may_raise, _within(node))):
            found.add(node)
        pending += [operand.node for operand in node.inputs]
        pending += [given[param].node for param in node.outputs if param in given]
    if not found:
        quiet |= seen
    return found


def _within(node: Node) -> list[Node]:
    return [node, *(inner for region in node.regions for inner in region.walk())]


def may_raise(node: Node) -> bool:
    """Tell whether a node is CHECKED and some data make it raise."""
    safe = _SAFE.get(node.op.name)
    return node.op.has(Trait.CHECKED) and (safe is None or not safe(node))


def _safe_power(node: Node) -> bool:
    exponent = node.inputs[1]
    if not is_integer(exponent.dtype):
        return True
    array = constant_of(exponent)
    return exponent.dtype.kind == "u" or (array is not None and bool(np.all(array >= 0)))


def _safe_extremum(node: Node) -> bool:
    """The maximum of nothing raises."""
    axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    return all((lower_bound(node.inputs[0].shape[axis]) or 0) > 0 for axis in axes)


# CHECKED ops -> when they cannot raise.
_SAFE: dict[str, Callable[[Node], bool]] = {
    "power": _safe_power,
    **dict.fromkeys(("max", "min", "argmax", "argmin"), _safe_extremum),
}


def fits(node: Node) -> bool:
    """Tell whether the shapes fit whatever the symbolic sizes are, so that no check is left for run time."""
    if "start" in node.attrs and "step" in node.attrs and not _box_fits(node):
        return False
    shapes = [v.type.shape for v in node.data_inputs if isinstance(v.type, TensorType)]
    symbols = symbols_of(
        *(dim for shape in shapes for dim in shape), *_attr_dims(node.attrs.values())
    )
    if not symbols:
        return True
    # Sizes that have nothing in common: what the type rule accepts of these it accepts of all.
    sizes: dict[Dim, DimLike] = {symbol: 10007 + 2 * k * k for k, symbol in enumerate(symbols)}
    try:
        types = tuple(_sized(value.type, sizes) for value in node.data_inputs)
        node.op.type(types, {name: _sized(attr, sizes) for name, attr in node.attrs.items()})
    except ShapeError:
        return False
    return all(_at_least_zero(dim) for dim in _attr_dims(node.attrs.values()))


def _at_least_zero(dim: DimLike) -> bool:
    bound = lower_bound(dim)
    return bound is not None and bound >= 0


def _attr_dims(attrs: Iterable[Any]) -> list[Dim]:
    found: list[Dim] = []
    for attr in attrs:
        found.extend(
            [attr] if isinstance(attr, Dim) else _attr_dims(attr) if isinstance(attr, tuple) else []
        )
    return found


def _sized(item: Any, sizes: Mapping[Dim, DimLike]) -> Any:
    if isinstance(item, TensorType):
        return item.with_shape(substitute(dim, sizes) for dim in item.shape)
    if isinstance(item, Dim):
        return substitute(item, sizes)
    return tuple(_sized(part, sizes) for part in item) if isinstance(item, tuple) else item


def _box_fits(node: Node) -> bool:
    """Tell whether the box of a `slice` or `update_slice` lies inside x."""
    if not isinstance(node.attrs["start"], tuple):
        return True
    size = node.attrs.get("size") or node.inputs[1].shape
    spans = zip(node.inputs[0].shape, node.attrs["start"], size, node.attrs["step"], strict=True)
    return all(_span_fits(*span) for span in spans)


def _span_fits(dim: DimLike, start: DimLike, size: DimLike, step: int) -> bool:
    if size == 0:
        return True
    if step == 1 and _at_least_zero(size):
        return _at_least_zero(start) and _at_least_zero(dim - start - size)
    last = start + (size - 1) * step
    return all(map(_at_least_zero, (start, last, dim - 1 - start, dim - 1 - last)))
