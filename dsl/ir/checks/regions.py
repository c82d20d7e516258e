"""Checks of structured control flow: what its regions take and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsl.ir.checks.facts import Facts, Finding
from dsl.ir.checks.matching import Sizes, apply_sizes, bind, symbols_in, types_text
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import BOOL, I64, ValueType, scalar

_REGIONS = {
    "cond": 2,
    "while": 2,
    "scan": 1,
    "recording_while": 2,
    "recording_scan": 1,
    "checkpoint": 1,
}
_LOOPS = {"while": 0, "scan": 1, "recording_while": 0, "recording_scan": 1}
"""The loops, and whether their first operand is the number of trips."""


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
    for node in _structured(facts, *_LOOPS):
        count, most = node.attrs["carried"], len(node.inputs) - _LOOPS[node.op.name]
        recording = node.op.name.startswith("recording")
        if not 0 <= count <= most:
            yield node, f"carried is {count}, the operands are {most}"
        elif count > len(node.types) or (count != len(node.types) and not recording):
            yield node, f"carried is {count}, the results are {len(node.types)}"


def scalars(facts: Facts) -> Iterator[Finding]:
    """The predicate of `cond`, what the first region of `while` returns, and the trips of `scan`."""
    for node in _structured(facts):
        if node.op.name == "cond" and node.inputs[0].type != scalar(BOOL):
            yield node, f"the predicate is {node.inputs[0].type}, not bool[]"
        if _LOOPS.get(node.op.name) and node.inputs[0].type != scalar(I64):
            yield node, f"the number of trips is {node.inputs[0].type}, not i64[]"
        if _LOOPS.get(node.op.name) == 0 and (got := _results(node.regions[0])) != [scalar(BOOL)]:
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
    for node in _structured(facts, *_LOOPS):
        body = node.regions[-1]
        takes = _types(body.params)
        start = _LOOPS[node.op.name]
        rest = takes[start + node.attrs["carried"] :]
        again = takes[:start] + _returned(node, body)[0] + rest
        if bind(takes, again) is None:
            carried = types_text(takes[start : len(takes) - len(rest)])
            yield node, f"@{body.name} takes {carried} and returns {types_text(_results(body))}"


def _returned(node: Node, body: Graph) -> tuple[list[ValueType], list[ValueType]]:
    """What a body hands on to the next trip, and what a recording loop stacks."""
    found = _results(body)
    count = node.attrs["carried"] if node.op.name.startswith("recording") else len(found)
    return found[:count], found[count:]


def _given(node: Node) -> list[ValueType]:
    """What the regions of a node are called with."""
    types = _types(node.inputs)
    return types[1:] if node.op.name == "cond" else types


def _outcomes(node: Node) -> Iterator[tuple[str, list[ValueType]]]:
    stacks = list(node.types[node.attrs["carried"] :]) if node.op.name in _LOOPS else []
    if node.op.name in _LOOPS:
        start = _LOOPS[node.op.name]
        yield (
            "without a trip it returns",
            _types(node.inputs)[start : start + node.attrs["carried"]] + stacks,
        )
    for region in node.regions[_LOOPS.get(node.op.name) == 0 :]:
        returned = apply_sizes(_results(region), _outer_sizes(node, region))
        yield f"@{region.name} returns", returned[: len(returned) - len(stacks)] + stacks


def _outer_sizes(node: Node, region: Graph) -> Sizes:
    return bind(_types(region.params), _given(node)) or {}


def _types(values: Sequence[Value]) -> list[ValueType]:
    return [value.type for value in values]


def _results(region: Graph) -> list[ValueType]:
    return _types(region.results)
