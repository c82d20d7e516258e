"""Lets what is written into an array be read from there, instead of being kept in memory of its own as well.

`b[1:-1] = f(a)` and then `b[1:-1] + …` was simplified to `f(a) + …`, which spares a read of b where f is cheap. Where it is not, f(a)
would be stored twice: for the one who reads it, and in b.

    %v = multiply(%s, %c)                              %v = multiply(%s, %c)
    %w = update_slice(%b, %v)                   ->     %w = update_slice(%b, %v)
    %r = add(%v, %x)                                   %1 = slice(%w) {the same box}
                                                       %r = add(%1, %x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dsl.codegen.within import UPDATES
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["read_back"]

_CHEAP = 4  # ops that are computed again rather than read

Chosen = dict[Node, dict[Value, Node]]  # of readers, what they read, and which update writes it


def read_back(graph: Graph, expensive: Callable[[Node], bool]) -> Graph:
    """Return the graph with what updates write, and others read too, read from the updated arrays."""
    chosen: Chosen = {}
    for part in (graph, *(region for node in graph.walk() for region in node.regions)):
        _choose(part, expensive, chosen)
    if not chosen:
        return graph
    updates = {update for pairs in chosen.values() for update in pairs.values()}
    return rebuild(graph, lambda builder, node: _read(builder, node, chosen, updates))


def _choose(graph: Graph, expensive: Callable[[Node], bool], chosen: Chosen) -> None:
    updates = [node for node in graph.nodes if node.op.name == "update_slice"]
    if not updates:
        return
    uses, order = graph.uses(), {node: k for k, node in enumerate(graph.nodes)}
    for update in updates:
        v = update.inputs[1]
        readers = [node for node in uses[v] if node is not update]
        if not readers or v in graph.results or not _is_dear(v, expensive):
            continue
        if all(
            r.op.has(Trait.ELEMENTWISE) and order[r] > order[update] for r in readers
        ) and not any(user.op.name in UPDATES for user in uses.get(update.output, ())):
            for reader in readers:
                chosen.setdefault(reader, {})[v] = update


def _is_dear(v: Value, expensive: Callable[[Node], bool]) -> bool:
    """Tell whether an element of a value takes more than a few ops, or a long one."""
    pending, seen = [v], set[Value]()
    while pending and len(seen) <= _CHEAP:
        value = pending.pop()
        if value in seen or not value.node.op.has(Trait.ELEMENTWISE):
            continue
        if expensive(value.node):
            return True
        seen.add(value)
        pending.extend(
            x.node.inputs[0] if x.node.op.has(Trait.VIEW) else x for x in value.node.inputs
        )
    return len(seen) > _CHEAP


def _read(
    builder: Rewriter, node: Node, chosen: Mapping[Node, Mapping[Value, Node]], updates: set[Node]
) -> Sequence[Value] | None:
    origin = builder.origin
    if origin in updates:
        builder.memo[origin] = node.output
    pairs = chosen.get(origin)
    if not pairs or any(update not in builder.memo for update in pairs.values()):
        return None
    inputs = [
        _part(builder, pairs[old], old) if old in pairs else new
        for old, new in zip(origin.inputs, node.inputs)
    ]
    return [builder.emit(node.op.name, *inputs, **node.attrs)]


def _part(builder: Rewriter, update: Node, v: Value) -> Value:
    return builder.emit(
        "slice", builder.memo[update], start=update.attrs["start"], size=v.shape, step=update.attrs["step"]
    )  # fmt: skip
