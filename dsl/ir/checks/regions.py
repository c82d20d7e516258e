"""Checks of structured control flow: what its regions take and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsl.ir.checks.facts import Facts, Finding
from dsl.ir.checks.matching import Sizes, apply_sizes, bind, symbols_in, types_text
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import BOOL, I64, ValueType, scalar

_REGIONS = {"cond": 2, "while": 2, "scan": 1}


def _structured(facts: Facts, *names: str) -> Iterator[Node]:
    return (node for node in facts.sound() if node.regions and node.op.name in (names or _REGIONS))


def owned(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        wanted = _REGIONS.get(node.op.name, 0)
        if len(node.regions) != wanted and (
            not node.op.has(Trait.CONTROL) or node.op.name in _REGIONS
        ):
            yield node, f"{node.op.name} owns {wanted} regions, got {len(node.regions)}"


def carried(facts: Facts) -> Iterator[Finding]:
    for node in _structured(facts, "while", "scan"):
        count, most = node.attrs["carried"], len(node.inputs) - (node.op.name == "scan")
        if not 0 <= count <= most:
            yield node, f"carried is {count}, the operands are {most}"
        elif count != len(node.types):
            yield node, f"carried is {count}, the results are {len(node.types)}"


def scalars(facts: Facts) -> Iterator[Finding]:
    """The predicate of `cond`, what the first region of `while` returns, and the trips of `scan`."""
    for node in _structured(facts):
        if node.op.name == "cond" and node.inputs[0].type != scalar(BOOL):
            yield node, f"the predicate is {node.inputs[0].type}, not bool[]"
        if node.op.name == "scan" and node.inputs[0].type != scalar(I64):
            yield node, f"the number of trips is {node.inputs[0].type}, not i64[]"
        if node.op.name == "while" and (got := _results(node.regions[0])) != [scalar(BOOL)]:
            yield node, f"the condition returns {types_text(got)}, not bool[]"


def arguments(facts: Facts) -> Iterator[Finding]:
    for node in _structured(facts):
        for region in node.regions:
            given = _given(node)
            if bind(_types(region.params), given) is None:
                takes = types_text(_types(region.params))
                yield node, f"@{region.name} takes {takes}, got {types_text(given)}"


def results(facts: Facts) -> Iterator[Finding]:
    """A result is as general as what each region returns and, for loops, as what a loop without trips passes on."""
    for node in _structured(facts):
        fixed = symbols_in(value.type for value in node.inputs)
        for name, types in _outcomes(node):
            if bind(node.types, types, fixed) is None:
                yield node, f"{name} {types_text(types)}, the results are {types_text(node.types)}"


def next_trips(facts: Facts) -> Iterator[Finding]:
    """What a body returns must fit its own params, beside the invariants that every trip gets."""
    for node in _structured(facts, "while", "scan"):
        body = node.regions[-1]
        takes = _types(body.params)
        start = node.op.name == "scan"
        rest = takes[start + node.attrs["carried"] :]
        again = takes[:start] + _results(body) + rest
        if bind(takes, again) is None:
            carried = types_text(takes[start : len(takes) - len(rest)])
            yield node, f"@{body.name} takes {carried} and returns {types_text(_results(body))}"


def _given(node: Node) -> list[ValueType]:
    """What the regions of a node are called with."""
    types = _types(node.inputs)
    return types[1:] if node.op.name == "cond" else types


def _outcomes(node: Node) -> Iterator[tuple[str, list[ValueType]]]:
    if node.op.name != "cond":
        start = node.op.name == "scan"
        yield (
            "without a trip it returns",
            _types(node.inputs)[start : start + node.attrs["carried"]],
        )
    for region in node.regions[node.op.name == "while" :]:
        yield f"@{region.name} returns", apply_sizes(_results(region), _outer_sizes(node, region))


def _outer_sizes(node: Node, region: Graph) -> Sizes:
    return bind(_types(region.params), _given(node)) or {}


def _types(values: Sequence[Value]) -> list[ValueType]:
    return [value.type for value in values]


def _results(region: Graph) -> list[ValueType]:
    return _types(region.results)
