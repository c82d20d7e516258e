"""Checks of effects: each is in one graph, and those on one resource have one order."""

from __future__ import annotations

from collections.abc import Iterator

from dsl.ir.build import resources_of
from dsl.ir.checks.facts import Facts, Finding
from dsl.ir.graph import Node
from dsl.ir.registry import Trait


def belongs_once(node: Node) -> bool:
    """Tell whether a node may be in one graph only: pure nodes mean the same wherever they are."""
    return node.op.has(Trait.EFFECT) or node.op.has(Trait.FLAT)


def in_one_graph(facts: Facts) -> Iterator[Finding]:
    for node in filter(belongs_once, facts.nodes):
        if len(facts.homes[node]) > 1:
            names = ", ".join(f"@{graph.name}" for graph in facts.homes[node])
            yield node, f"it is in {names}"


def ordered(facts: Facts) -> Iterator[Finding]:
    """In the flat form the order comes from tokens: effects of two branches, say, have none and need none."""
    if facts.is_flat:
        return
    chains: dict[str, list[Node]] = {}
    for node in facts.nodes:
        for resource in resources_of(node.op, node.regions, node.attrs):
            chains.setdefault(resource, []).append(node)
    for resource, chain in chains.items():
        if len(chain) > 1:
            yield from _unordered(facts, resource, chain)


def _unordered(facts: Facts, resource: str, chain: list[Node]) -> Iterator[Finding]:
    """Carry along the edges the number of the last effect passed: each effect must have passed the one before it."""
    number = {node: index for index, node in enumerate(chain)}
    passed: dict[Node, int] = {}
    for node in facts.nodes:
        before = _last_passed(node, passed)
        own = number.get(node)
        if own is not None and before != own - 1:
            yield (
                node,
                f"its order with {chain[own - 1].op.name} on the resource {resource!r} is open",
            )
        passed[node] = before if own is None else own


def _last_passed(node: Node, passed: dict[Node, int]) -> int:
    sources = [passed.get(value.node, -1) for value in node.inputs]
    sources += [passed.get(before, -1) for before in node.controls]
    return max(sources, default=-1)
