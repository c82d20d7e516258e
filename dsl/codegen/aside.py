"""Finds parts of arrays to keep aside: those that are read when their array has been overwritten.

`t = a[i].copy(); a[i] = a[j]; a[j] = t` reads row i after it was written. Either the first assignment goes into a copy of
all of a, or row i is kept aside before it: a part that is much smaller than its array is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import size_of

__all__ = ["parts_read_later"]

_SHARE = 4  # a part is small if the array is so many times as large

Uses = Mapping[Value, list[Node]]


def parts_read_later(
    graph: Graph, uses: Uses, is_update: Callable[[Node], bool], is_lazy: Callable[[Value], bool]
) -> Iterator[Value]:
    """Yield values that are small parts of updated arrays, or computed from such, and are read after the update.

    `is_lazy` tells which values are computed anew wherever they are read.
    """
    order = {node: k for k, node in enumerate(graph.nodes)}
    for node in filter(is_update, graph.nodes):
        at = order[node]
        late = [
            part
            for part in _parts(node.inputs[0], uses, is_lazy)
            if any(order[reader] > at for reader in uses.get(part, ()))
        ]
        after = _dependents(node, uses) if late else set()
        for part in late:
            if part.node not in after and any(reader in after for reader in uses[part]):
                yield part


def _parts(x: Value, uses: Uses, is_lazy: Callable[[Value], bool]) -> Iterator[Value]:
    """Yield the small values that are computed from `x` wherever they are read."""
    pending, seen = [x], {x}
    while pending:
        for reader in uses.get(pending.pop(), ()):
            for value in reader.outputs:
                if value not in seen and is_lazy(value):
                    seen.add(value)
                    pending.append(value)
                    if _is_small(value, x):
                        yield value


def _is_small(part: Value, x: Value) -> bool:
    size, whole = size_of(part.shape), size_of(x.shape)
    if isinstance(size, int) and isinstance(whole, int):
        return 0 < size * _SHARE <= whole
    return 0 < len(part.shape) < len(x.shape)


def _dependents(node: Node, uses: Uses) -> set[Node]:
    pending, seen = [node], {node}
    while pending:
        for value in pending.pop().outputs:
            fresh = [reader for reader in uses.get(value, ()) if reader not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return seen
