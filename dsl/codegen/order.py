"""The order of a plan's statements: producers first, checks before what they guard, readers before who overwrites."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from dsl.codegen.statements import Kernel, Single, Statement
from dsl.ir.facts import is_array
from dsl.ir.graph import Graph, Value

__all__ = ["in_order"]


def in_order(
    graph: Graph, statements: list[Statement], producer: Mapping[Value, Statement]
) -> list[Statement]:
    """Return the statements in an order in which they can run, and number them as they were."""
    count = len(statements)
    for k, statement in enumerate(statements):
        statement.position = k
    before: list[set[int]] = [set() for _ in range(count)]
    by_node = {s.node: s.position for s in statements if isinstance(s, Single)}
    for statement in statements:
        own = before[statement.position]
        own |= {producer[v].position for v in statement.reads if v in producer}
        if isinstance(statement, Single):
            own |= {by_node[n] for n in statement.node.controls if n in by_node}
        own.discard(statement.position)
    _checks_first(graph, statements, producer, before)
    _readers_first(statements, before)
    return [statements[k] for k in _sorted(before)]


def _checks_first(
    graph: Graph,
    statements: list[Statement],
    producer: Mapping[Value, Statement],
    before: list[set[int]],
) -> None:
    """The check of a dynamic slice comes before whatever reads the slice."""
    checks = {
        s.node.outputs[0]: s.position
        for s in statements
        if isinstance(s, Single) and s.kind == "check"
    }
    if not checks:
        return
    for statement in statements:
        nodes = (
            [statement.node] if isinstance(statement, Single) else [r.node for r in statement.roots]
        )
        pending = [v for n in nodes for v in n.inputs] + [
            r.value for r in getattr(statement, "roots", ())
        ]
        seen: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in checks and checks[value] != statement.position:
                before[statement.position].add(checks[value])
            if producer.get(value) in (None, statement) and value not in graph.params:
                pending.extend(value.node.inputs)


def _readers_first(statements: list[Statement], before: list[set[int]]) -> None:
    """Let other readers of an array run before the statement that overwrites it, where nothing forbids it."""
    readers: dict[Value, list[int]] = {}
    for statement in statements:
        for value in statement.reads:
            if is_array(value):
                readers.setdefault(value, []).append(statement.position)
    for statement in statements:
        for value in _overwritten(statement):
            for reader in readers.get(value, ()):
                if reader != statement.position and not _reaches(
                    before, reader, statement.position
                ):
                    before[statement.position].add(reader)


def _overwritten(statement: Statement) -> list[Value]:
    """The operands that a statement would like to overwrite."""
    if isinstance(statement, Kernel):
        return []
    if statement.kind == "update":
        return [statement.node.inputs[0]]
    if statement.kind == "control":
        return [v for v in statement.node.inputs if is_array(v)]
    return []


def _reaches(before: list[set[int]], start: int, goal: int) -> bool:
    """Tell whether `goal` must run before `start`."""
    pending, seen = [start], set()
    while pending:
        here = pending.pop()
        if here == goal:
            return True
        if here not in seen:
            seen.add(here)
            pending.extend(before[here])
    return False


def _sorted(before: list[set[int]]) -> list[int]:
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(b) for b in before]
    for k, sources in enumerate(before):
        for source in sources:
            after[source].append(k)
    ready = [k for k, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        k = heapq.heappop(ready)
        found.append(k)
        for follower in after[k]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    assert len(found) == len(before)
    return found
