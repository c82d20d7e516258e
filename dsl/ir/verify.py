"""The verifier: what every well-formed graph obeys, as a numbered list of rules.

`verify(graph)` checks the graph and all its regions and raises one `VerifyError` that lists every breach with the text
of the guilty node. Rules are tried in order; a node that breaks one is not tried against those after it that would ask
for what is not there. docs/verifier.md shows an example of each breach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dsl.errors import VerifyError
from dsl.ir.checks import effects, frames, nodes, regions
from dsl.ir.checks.facts import Facts, Finding
from dsl.ir.facts import is_flat
from dsl.ir.graph import Graph, Node
from dsl.ir.printer import node_lines

__all__ = ["RULES", "Breach", "Rule", "find_breaches", "verify"]


@dataclass(frozen=True)
class Rule:
    """A numbered sentence and the check that finds the nodes that break it."""

    number: int
    sentence: str
    check: Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True)
class Breach:
    """A rule, the node that breaks it, and how."""

    rule: Rule
    node: Node
    detail: str


_PLAIN_RULES = [
    # Nodes
    Rule(1, "A value that a node reads or a graph returns is one of the same graph.", nodes.closed),
    Rule(2, "Each param of a graph is a `param` node and stands once.", nodes.params),
    Rule(3, "Only back edges close a cycle.", nodes.acyclic),
    Rule(4, "A node has as many operands and results as its op's signature says.", nodes.arity),
    Rule(5, "A node has the attributes that its op needs, of the right kind, and no others.", nodes.attributes),
    Rule(6, "A tensor's dtype is a supported one and its sizes are not negative.", nodes.supported),
    Rule(7, "Each symbol in an attribute is a dim of an operand or has its size given.", nodes.sizes_given),
    Rule(8, "The size of a symbol is given as i64[].", nodes.sizes_are_scalars),
    Rule(9, "The types of a node's results follow from its op's type rule.", nodes.types_follow),
    # Structured control flow
    Rule(10, "`cond` and `while` own two regions, `scan` one, and ordinary ops none.", regions.owned),
    Rule(11, "`carried` counts the first operands of a loop, and its results.", regions.carried),
    Rule(12, "Predicates are bool[] and the number of trips is i64[].", regions.scalars),
    Rule(13, "The params of a region have the types of what it is called with.", regions.arguments),
    Rule(14, "What the body of a loop returns fits its own params.", regions.next_trips),
    Rule(15, "A node's results have the types of what its regions return.", regions.results),
    # Effects
    Rule(16, "An effect, or a node of the flat form, is in one graph.", effects.in_one_graph),
    Rule(17, "Control edges order the effects on each resource.", effects.ordered),
]  # fmt: skip
_FLAT_RULES = [
    Rule(18, "An `enter` names a frame.", frames.named),
    Rule(19, "A frame has one parent frame.", frames.one_parent),
    Rule(20, "All inputs and control edges of a node come from one frame.", frames.one_frame),
    Rule(21, "`exit`, `next_iteration`, `loop_merge` and `loop_cond` are inside a frame.", frames.in_a_loop),
    Rule(22, "A `loop_merge`, and no other node, has a back edge.", frames.back_edges),
    Rule(23, "A frame with a `loop_merge` has one `loop_cond`.", frames.one_condition),
    Rule(24, "A `loop_merge` joins an `enter` and a `next_iteration` of its frame.", frames.headers),
    Rule(25, "Only the back edge of a `loop_merge` reads a `next_iteration`.", frames.trips),
    Rule(26, "An `exit` reads output 0 of a `switch` on the loop's `loop_cond`.", frames.exits),
    Rule(27, "What a graph returns is in the root frame.", frames.results),
    Rule(28, "What a merge gets has the type of its result.", frames.merged_types),
]  # fmt: skip
RULES = [*_PLAIN_RULES, *_FLAT_RULES]
"""All rules. Those of flat control flow hold for graphs that have none."""


def verify(graph: Graph) -> None:
    """Raise `VerifyError` unless the graph and its regions obey every rule."""
    if found := find_breaches(graph):
        raise VerifyError(_report(graph, found))


def find_breaches(graph: Graph) -> list[Breach]:
    """Return every breach, in the order of the rules within each graph."""
    graphs = list(_graphs(graph))
    homes = _homes(graphs)
    return [breach for each in graphs for breach in _check(Facts(each, homes))]


def _check(facts: Facts) -> Iterator[Breach]:
    tokens = bool(facts.graph.back) or is_flat(facts.graph)
    for rule in RULES if tokens else _PLAIN_RULES:
        found = [Breach(rule, node, detail) for node, detail in rule.check(facts)]
        facts.broken.update(breach.node for breach in found)
        yield from found


def _graphs(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and its regions; one that several nodes own comes once."""
    found: dict[int, Graph] = {}
    pending = [graph]
    while pending:
        current = pending.pop()
        if id(current) not in found:
            found[id(current)] = current
            pending += [
                region for node in reversed(current.nodes) for region in reversed(node.regions)
            ]
    yield from found.values()


def _homes(graphs: list[Graph]) -> Mapping[Node, list[Graph]]:
    found: dict[Node, list[Graph]] = {}
    for graph in graphs:
        for node in filter(effects.belongs_once, graph.nodes):
            found.setdefault(node, []).append(graph)
    return found


def _report(graph: Graph, found: list[Breach]) -> str:
    lines = node_lines(graph)
    count = "a rule" if len(found) == 1 else f"rules {len(found)} times"
    return "\n".join([f"graph @{graph.name} breaks {count}", *(_entry(b, lines) for b in found)])


def _entry(breach: Breach, lines: Mapping[Node, str]) -> str:
    node = breach.node
    text = lines.get(node) or f"%{node.attrs.get('name', node.op.name)}"
    parts = [
        f"rule {breach.rule.number}: {breach.rule.sentence}",
        f"  {text}",
        f"  {breach.detail}",
    ]
    return "\n".join(parts if node.loc is None else [*parts, node.loc.excerpt()])
