"""One item after the other: the rule for whatever has no other, and for what must not run when no item asks for it.

    for i in range(size): result[i] = op(x[i], shared)

as a `scan` that carries the results. Ops that may raise, loops that may not end and effects do then exactly what they do
for one item, in the order of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, refusal, whole
from dsl.autodiff.region import Region, is_known
from dsl.ir.algebra import Algebra
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, ValueType, scalar

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching

__all__ = ["item", "loop_over", "one_by_one"]

Run = Callable[["Batching", Values], Values]


def one_by_one(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Run a node in a loop over the items."""
    if not all(is_known(a.builder, type) for type in node.types):
        raise refusal(node, "the size of a result would differ from item to item")
    return loop_over(a, node.types, inputs, batched, lambda inner, given: inner.copied(node, given))


def loop_over(
    a: Batching, types: Sequence[ValueType], inputs: Values, batched: Flags, run: Run
) -> Outputs:
    """Emit a loop over the items in which `run` makes values of these types of one item's inputs."""
    stacks = [a.stacked(type) for type in types]
    empty = [a.zeros(type) for type in stacks]
    if a.size == 0:
        return whole(*empty)
    body = Region("each item", a.builder)
    body.loc = a.builder.loc
    number, *buffers = (body.param(type) for type in (scalar(I64), *stacks))
    inner = a.inside(body)
    given = [item(inner, x, number) if on else x for x, on in zip(inputs, batched, strict=True)]
    pairs = zip(buffers, run(inner, given), strict=True)
    region = body.graph([number, *buffers], [_put(inner, into, y, number) for into, y in pairs])
    values = [a.builder.size(a.size), *empty, *body.captured]
    attrs = {"carried": len(stacks)}
    return whole(*a.builder.node("scan", values, attrs, regions=(region,), types=stacks).outputs)


def item(a: Algebra, x: Value, number: Value) -> Value:
    """Return one item of a batch."""
    return a.reshaped(a.dynamic_slice(x, number, axis=0, size=1), x.shape[1:])


def _put(a: Algebra, buffer: Value, y: Value, number: Value) -> Value:
    return a.update_dynamic_slice(buffer, a.expanded(y, (0,)), number, axis=0)
