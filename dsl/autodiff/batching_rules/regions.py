"""Regions on their way from one item to all: what the rules of control flow share.

`half` batches a region of a node; `emit` makes a node of the same kind of such regions. In between, rules look at which
results became batched and change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.items import one_by_one
from dsl.autodiff.batching_rules.table import Flags, Outputs, Rule, Values, refusal
from dsl.autodiff.region import Region
from dsl.errors import UnsupportedError
from dsl.ir.build import UnknownSizeError
from dsl.ir.dims import DimLike
from dsl.ir.facts import is_total
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import ValueType

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching

__all__ = ["Half", "emit", "half", "or_one_by_one", "runs_for_all", "select", "stack_types"]


@dataclass
class Half:
    """A region that is not finished: `params` and, after what it captures, `more`; results, and which are batched."""

    a: Batching
    params: list[Value]
    results: list[Value]
    flags: list[bool]
    more: list[Value] = field(default_factory=list)

    @property
    def region(self) -> Region:
        assert isinstance(self.a.builder, Region)
        return self.a.builder

    def repeat(self, wanted: Flags) -> None:
        """Give results the batch axis where it is wanted."""
        found = zip(self.results, self.flags, wanted, strict=True)
        self.results = [self.a.repeated(v, on or not want) for v, on, want in found]
        self.flags = list(wanted)

    def finish(self, captured: Values) -> Graph:
        done = self.region.finish(map(self.region.local, self.results))
        params = (*self.params, *map(self.region.capture, captured), *self.more)
        return Graph(done.name, params, done.results, done.effects)


def half(a: Batching, graph: Graph, types: Sequence[ValueType], batched: Flags) -> Half:
    """Batch a region whose params get these types."""
    inner = a.inside(Region(graph.name, a.builder))
    names = [param.node.attrs["name"] for param in graph.params]
    params = [inner.builder.param(type, name) for type, name in zip(types, names, strict=True)]
    results, flags = inner.run(graph, params, batched)
    return Half(inner, params, [inner.builder.local(v) for v in results], flags)  # type: ignore[attr-defined]


def emit(
    a: Batching, node: Node, inputs: Values, halves: Sequence[Half], types: Sequence[ValueType], **attrs: int
) -> Values:  # fmt: skip
    """Emit control flow of the same kind; all regions take what any of them captures."""
    captured = tuple(dict.fromkeys(value for each in halves for value in each.region.captured))
    regions = [each.finish(captured) for each in halves]
    given, attributes = (*inputs, *captured), {**node.attrs, **attrs}
    a.builder.loc = node.loc
    return a.builder.node(node.op, given, attributes, regions=regions, types=types).outputs


def stack_types(a: Batching, types: Sequence[ValueType], batched: Flags) -> list[ValueType]:
    """Return the types of values some of which are batched."""
    return [a.stacked(type) if on else type for type, on in zip(types, batched, strict=True)]


def select(a: Batching, node: Node, chosen: Value, yes: Value, no: Value) -> Value:
    """Choose between the items of two batches."""
    if yes is no:
        return yes
    if yes.type != no.type:
        raise refusal(node, "the size of a value would differ from item to item")
    return a.where(a.of_rank(chosen, len(yes.shape) - 1), yes, no)


def runs_for_all(node: Node) -> bool:
    """Tell whether the regions may run for items that would not have run them: they end, in silence, on any data."""
    inner = [each for region in node.regions for each in region.walk()]
    return all(map(is_total, inner)) and not any(each.op.has(Trait.DYNAMIC) for each in inner)


def or_one_by_one(rule: Rule) -> Rule:
    """Let one item after the other run what cannot be batched, sizes that depend on data above all.

    For that, the results must have sizes that are known; if they do not, the first reason is what is told.
    """

    def attempt(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
        try:
            return rule(a, node, inputs, batched, size)
        except (UnsupportedError, UnknownSizeError) as reason:
            try:
                return one_by_one(a, node, inputs, batched, size)
            except (UnsupportedError, UnknownSizeError):
                raise reason from None

    return attempt
