"""Takes slices of an array that is put together from parts as slices of the parts, so that it need not be in memory.

`np.pad` with a mode puts an array together along one axis after the other: each axis would copy what the one before
has made. If whatever reads it is a slice across, for another array that is put together, the parts are written where
they belong in the end. It is done only for parts that are views: nothing is computed twice.

    %2 = concatenate(%x, %y) {axis=0}                  %2 = slice(%x) {first columns}
    %3 = slice(%2) {first columns}              ->     %3 = slice(%y) {first columns}
    %4 = concatenate(%3, %z) {axis=1}                  %4 = concatenate(%2, %3) {axis=0}
                                                       %5 = concatenate(%4, %z) {axis=1}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["slice_parts"]

_VIEWS = frozenset(("param", "const", "slice", "transpose", "broadcast_to"))


def slice_parts(graph: Graph) -> Graph:
    """Return the graph with slices of joined arrays pushed into the parts, where that saves the array."""
    joins = [node for node in graph.nodes if node.op.name == "concatenate"]
    if len(joins) < 2:
        return graph
    uses = graph.uses()
    chosen = {
        reader
        for node in joins
        if _is_passing(node, uses, graph.results)
        for reader in uses[node.output]
    }
    if not chosen:
        return graph
    return rebuild(graph, lambda builder, node: _sliced(builder, node, builder.origin in chosen))


def _is_passing(node: Node, uses: Mapping[Value, list[Node]], results: Sequence[Value]) -> bool:
    """Tell whether a joined array of views is only sliced across, and the slices only joined."""
    readers = uses.get(node.output, [])
    if not readers or node.output in results:
        return False
    return all(
        part.node.op.name in _VIEWS and part.tensor.is_static() for part in node.inputs
    ) and all(
        reader.op.name == "slice"
        and _is_whole(reader, node.attrs["axis"])
        and reader.output not in results
        and all(user.op.name == "concatenate" for user in uses.get(reader.output, []))
        for reader in readers
    )


def _is_whole(node: Node, axis: int) -> bool:
    """Tell whether a slice takes all of an axis."""
    start, size, step = (node.attrs[name][axis] for name in ("start", "size", "step"))
    return bool((start, step) == (0, 1) and size == node.inputs[0].shape[axis])


def _sliced(builder: Rewriter, node: Node, is_chosen: bool) -> Sequence[Value] | None:
    if not is_chosen:
        return None
    whole = node.inputs[0].node
    axis = whole.attrs["axis"]
    parts = []
    for part in whole.inputs:
        size = list(node.attrs["size"])
        size[axis] = part.shape[axis]
        parts.append(builder.emit("slice", part, **{**node.attrs, "size": tuple(size)}))
    return [builder.emit("concatenate", *parts, axis=axis)]
