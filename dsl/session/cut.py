"""The part of a graph that a step needs: what its fetches and targets reach, without going past what is fed.

Out comes a graph of its own, in which what autodiff made is spelled out. Effects on one resource are in it in the order in
which the user wrote them; an effect that nothing asked for is not in it at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsl.autodiff.recording import spell_out_and_follow
from dsl.errors import FeedError
from dsl.ir.build import Builder
from dsl.ir.facts import is_flat
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.rewrite import with_params

if TYPE_CHECKING:
    from dsl.session import graph as building

__all__ = ["Cut", "cut"]


@dataclass(frozen=True)
class Cut:
    """A graph whose params are the feeds and then the constant inputs `bound`, and whose results are the fetches."""

    graph: Graph
    bound: tuple[Any, ...]
    nodes: Mapping[Node, tuple[Node, ...]]  # what each node of the whole graph became


def cut(
    graph: building.Graph, feeds: Sequence[Value], fetches: Sequence[Value], targets: Sequence[Node]
) -> Cut:
    """Cut out what a step needs; raise FeedError for a placeholder that it needs and that is not fed."""
    back = graph.flat.back if graph.flat is not None else {}
    nodes = _reached(set(feeds), [*(v for v in fetches)], targets, back)
    bound = _inputs(graph, nodes, feeds, fetches)
    arrays = tuple(graph.bound[value] for value in bound)
    if graph.flat is not None and is_flat(graph.flat):
        return Cut(_flat(graph, feeds, fetches, targets, bound, nodes), arrays, {})
    ordered = sorted(nodes, key=graph.root.order.__getitem__)
    made, copies = _copied(graph.name, ordered, [*feeds, *bound], fetches, targets)
    spelled, became = spell_out_and_follow(made)
    return Cut(spelled, arrays, {node: became(copy) for node, copy in copies.items()})


def _reached(
    fed: set[Value], fetches: Sequence[Value], targets: Sequence[Node], back: Any
) -> set[Node]:
    found: set[Node] = set()
    stack = [v.node for v in fetches if v not in fed] + list(targets)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        inputs = (*node.inputs, back[node]) if node in back else node.inputs
        stack.extend(v.node for v in inputs if v not in fed)
        stack.extend(node.controls)
    return found


def _inputs(
    graph: building.Graph, nodes: set[Node], feeds: Sequence[Value], fetches: Sequence[Value]
) -> list[Value]:
    """Return the constant inputs that are needed; take the params out of the nodes."""
    params = [node for node in nodes if node.op.name == "param"]
    nodes.difference_update(params)
    bound = []
    for node in params:
        value = node.output
        if value in graph.bound:
            bound.append(value)
        elif value not in feeds:
            name = graph.placeholders.get(value, "?")
            raise FeedError(
                f"the placeholder {name!r} ({value.type}) is needed and is not fed",
                location=node.loc, remedy=f"add it to the feeds: {{{name}: array}}",
            )  # fmt: skip
    return sorted(bound, key=list(graph.bound).index)


def _copied(
    name: str, nodes: Sequence[Node], params: Sequence[Value], fetches: Sequence[Value], targets: Sequence[Node]
) -> tuple[Graph, dict[Node, Node]]:  # fmt: skip
    """Build the nodes again, in the order in which they were made, so that their effects are chained in that order."""
    builder = Builder(name)
    values: dict[Value, Value] = {}
    made: dict[Node, Node] = {}
    for value in params:
        builder.loc = value.node.loc
        label = str(value.node.attrs.get("name", value.node.op.name))
        values[value] = builder.param(value.type, label)
    for node in nodes:
        controls = [made[c] for c in node.controls if c in made]
        inputs = [values[v] for v in node.inputs]
        new = made[node] = builder.node(
            node.op, inputs, node.attrs, regions=node.regions, types=node.types, controls=controls,
            dims=node.dims, loc=node.loc,
        )  # fmt: skip
        for old, value in zip(node.outputs, new.outputs, strict=True):
            values.setdefault(old, value)
    finished = builder.finish([values[v] for v in fetches])
    effects = dict.fromkeys((*finished.effects, *(made[t] for t in targets if t in made)))
    return Graph(name, finished.params, finished.results, tuple(effects)), made


def _flat(
    graph: building.Graph, feeds: Sequence[Value], fetches: Sequence[Value], targets: Sequence[Node],
    bound: Sequence[Value], nodes: set[Node],
) -> Graph:  # fmt: skip
    """Cut a hand-written flat graph: its order is what its edges say."""
    assert graph.flat is not None
    back = {merge: value for merge, value in graph.flat.back.items() if merge in nodes}
    effects = [n for n in graph.flat.effects if n in nodes]
    effects += [t for t in targets if t not in effects]
    part = Graph(graph.name, graph.flat.params, tuple(fetches), tuple(effects), back)
    return with_params(part, [*feeds, *bound], part.results)
