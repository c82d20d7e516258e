"""Rules of branches and calls.

If all items go the same way, both regions of a `cond` are batched. Otherwise both run for all items, and each item takes
the results of its own; unless a region could raise, have an effect or not end for items that would not have run it. Then
one item after the other takes its way.

The derivative that comes with a function is batched together with it. All its results are batched if one is, so the
cotangent of an operand that items share is the sum of what it is for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.items import one_by_one
from dsl.autodiff.batching_rules.regions import (
    Half,
    emit,
    half,
    or_one_by_one,
    runs_for_all,
    select,
    stack_types,
)
from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


@batches("cond")
@or_one_by_one
def cond(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    if not batched[0]:
        return _same_way(a, node, inputs[:1], inputs[1:], batched[1:])
    if not runs_for_all(node):
        return one_by_one(a, node, inputs, batched, size)
    found = [zip(*a.run(region, inputs[1:], batched[1:]), strict=True) for region in node.regions]
    chosen = [_chosen(a, node, inputs[0], *pair) for pair in zip(*found, strict=True)]
    return [value for value, _ in chosen], [on for _, on in chosen]


@batches("checkpoint")
@or_one_by_one
def checkpoint(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return _same_way(a, node, (), inputs, batched)


def _same_way(a: Batching, node: Node, first: Values, operands: Values, batched: Flags) -> Outputs:
    types = [value.type for value in operands]
    halves = [half(a, region, types, batched) for region in node.regions]
    flags = [any(pair) for pair in zip(*(each.flags for each in halves))]
    for each in halves:
        each.repeat(flags)
    return emit(a, node, (*first, *operands), halves, stack_types(a, node.types, flags)), flags


def _chosen(
    a: Batching, node: Node, chosen: Value, yes: tuple[Value, bool], no: tuple[Value, bool]
) -> tuple[Value, bool]:
    if yes[0] is no[0]:
        return yes
    return select(a, node, chosen, a.repeated(*yes), a.repeated(*no)), True


# -- functions with derivatives of their own ----------------------------------------------------------------------


@batches("custom_vjp", "custom_jvp")
def custom(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    function = half(a, node.regions[0], [value.type for value in inputs], batched)
    every = [True] * len(node.types)
    function.repeat(every)
    rest = (_vjp if node.op.name == "custom_vjp" else _jvp)(a, node, inputs, batched)
    types = stack_types(a, node.types, every)
    return whole(*emit(a, node, inputs, [function, *rest], types))


def _vjp(a: Batching, node: Node, inputs: Values, batched: Flags) -> list[Half]:
    operands, results = node.attrs["operands"], len(node.types)
    types, every = [value.type for value in inputs], [True] * results
    forward = half(a, node.regions[1], types, batched)
    kept = forward.flags[results:]
    forward.repeat([*every, *kept])
    residuals = [value.type for value in forward.results[results:]]
    takes = [*types[operands:], *residuals, *stack_types(a, node.types, every)]
    backward = half(a, node.regions[2], takes, [*batched[operands:], *kept, *every])
    _add_up(backward, [batched[k] for k in node.attrs["given"]])
    return [forward, _split(backward, len(inputs) - operands)]


def _jvp(a: Batching, node: Node, inputs: Values, batched: Flags) -> list[Half]:
    moving = [*range(len(inputs)), *node.attrs["given"]]
    rule = half(a, node.regions[1], [inputs[k].type for k in moving], [batched[k] for k in moving])
    rule.repeat([True] * len(rule.results))
    return [_split(rule, len(inputs))]


def _add_up(backward: Half, batched: Flags) -> None:
    """Make the cotangents those of the operands, batched or shared."""
    backward.repeat([True] * len(backward.results))
    pairs = zip(backward.results, batched, strict=True)
    backward.results = [g if on else backward.a.sum(g, axes=(0,)) for g, on in pairs]


def _split(region: Half, count: int) -> Half:
    """Let captured values come after the first params, which are operands as they are."""
    region.params, region.more = region.params[:count], region.params[count:]
    return region
