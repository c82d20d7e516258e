"""Rules of effects. A batched `print` has none: it runs for one item after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.items import item
from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches
from dsl.autodiff.region import Region
from dsl.ir.algebra import Algebra
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


@batches("assert")
def assert_(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Assert that all items pass; if the message tells of an item, it is the first that does not."""
    passed = a.repeated(inputs[0], batched[0])
    everywhere = a.all(passed, axes=(0,))
    if not any(batched[1:]):
        a.builder.node(node.op, (everywhere, *inputs[1:]), node.attrs)
        return (), ()
    if size == 0:
        return (), ()
    failing = Region("failing", a.builder)
    _assert_first(failing, node, (passed, *inputs[1:]), (True, *batched[1:]))
    return _unless(a, everywhere, failing)


@batches("keep")
def keep(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    a.builder.node(node.op, inputs, node.attrs)
    return (), ()


def _assert_first(region: Region, node: Node, values: Values, batched: Flags) -> None:
    inner = Algebra(region)
    region.loc = node.loc
    number = inner.argmin(values[0], axis=0)
    given = [item(inner, x, number) if on else x for x, on in zip(values, batched, strict=True)]
    region.node(node.op, given, node.attrs)


def _unless(a: Batching, passed: Value, failing: Region) -> Outputs:
    """Run a region that returns nothing only if a predicate is false."""
    otherwise = failing.graph((), ())
    fine = Region("passing", a.builder)
    for value in failing.captured:
        fine.capture(value)
    regions: tuple[Graph, ...] = (fine.graph((), ()), otherwise)
    a.builder.node("cond", (passed, *failing.captured), {}, regions=regions, types=())
    return (), ()
