"""In which order of its axes NumPy would lay out a new array: that of the arrays it is computed from, element by element.

In: a value and the strides of the graph's params. Out: its axes, the outermost first. `x.T + 1` is laid out as x is, so that
both are gone through from the first byte to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsl.frontend.scopes import Trace
from dsl.ir.graph import Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import Shape

__all__ = ["argument_strides", "memory_order"]

Order = tuple[int, ...]


def argument_strides(trace: Trace) -> dict[Value, Shape]:
    """Return how far apart in memory the elements of those arguments are that are not in C order."""
    stores = [handle.storage for handle in trace.by_array.values()]
    params = trace.root.params
    return {
        params[s.origin]: s.strides
        for s in stores
        if s.strides is not None and s.origin is not None
    }


def memory_order(value: Value, strides: Mapping[Value, Shape]) -> Order:
    """Return the axes of a new array as they lie in memory; C order where its operands differ."""
    orders: dict[Value, Order | None] = {}
    pending = [value]
    while pending:
        current = pending[-1]
        missing = [v for v in _sources(current) if v not in orders]
        if missing:
            pending += missing
        else:
            orders[pending.pop()] = _order(current, orders, strides)
    return orders[value] or tuple(range(len(value.shape)))


def _sources(value: Value) -> Sequence[Value]:
    """Return the arrays that a value takes its order from."""
    node = value.node
    if node.op.name == "transpose":
        return node.inputs
    if not node.op.has(Trait.ELEMENTWISE) or node.regions:
        return ()
    return [v for v in _data(node) if v.shape == value.shape]


def _data(node: Node) -> tuple[Value, ...]:
    return node.inputs[: len(node.inputs) - len(node.dims)]


def _order(
    value: Value, orders: Mapping[Value, Order | None], strides: Mapping[Value, Shape]
) -> Order | None:
    """Return the order of a value whose sources have theirs; None if anything will do."""
    node, rank = value.node, len(value.shape)
    if node.op.name == "transpose":
        axes, inner = node.attrs["axes"], orders[node.inputs[0]]
        return None if inner is None else tuple(axes.index(k) for k in inner)
    if value in strides:
        return _by_strides(strides[value])
    if node.op.name == "broadcast_to":
        return None
    found = {orders[v] for v in _sources(value)} - {None}
    return found.pop() if len(found) == 1 else tuple(range(rank))


def _by_strides(strides: Shape) -> Order:
    rank = range(len(strides))
    known = [s for s in strides if isinstance(s, int) and s > 0]
    return tuple(sorted(rank, key=lambda k: -known[k])) if len(known) == len(strides) else (*rank,)
