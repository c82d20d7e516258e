"""The table of batching rules.

A rule emits what a node means for all items:

    rule(a, node, inputs, batched, size) -> outputs, flags

`node` is the op as it stands for one item, with its attributes and types in the builder's sizes; `inputs` are what its
data inputs became, and `batched` tells which of them have the batch axis, of `size`, in front: one at least. The flags say
the same of the outputs. `a` writes into the builder and knows what became of the graph's sizes.

Elementwise ops share one rule. An op that is not in the table runs for one item after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsl.errors import InternalError, UnsupportedError
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.registry import Op, Trait

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching

__all__ = ["RULES", "Flags", "Outputs", "Rule", "Values", "batches", "refusal", "rule_of", "whole"]

Values = Sequence[Value]
Flags = Sequence[bool]
Outputs = tuple[Sequence[Value], Sequence[bool]]
Rule = Callable[["Batching", Node, Values, Flags, DimLike], Outputs]
RULES: dict[str, Rule] = {}


def batches(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function into the table as the rule of some ops."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise InternalError(f"the batching rule of {name} is given twice")
            RULES[name] = rule
        return rule

    return enter


def whole(*outputs: Value) -> Outputs:
    """Return outputs that are all batched."""
    return outputs, [True] * len(outputs)


def rule_of(op: Op) -> Rule:
    """Return the rule of an op, made to measure or general."""
    from dsl.autodiff.batching_rules import (
        branches,
        comm,
        effects,
        general,
        index,
        items,
        linalg,
        loops,
        shape,
    )

    del branches, comm, effects, index, linalg, loops, shape  # they enter their rules
    if op.name in RULES:
        return RULES[op.name]
    if op.has(Trait.ELEMENTWISE):
        return general.elementwise
    if op.has(Trait.FLAT):
        raise InternalError(f"{op.name}: batching takes structured control flow")
    return general.dynamic if op.has(Trait.DYNAMIC) else items.one_by_one


def _asked_for(node: Node) -> str:
    """Tell which function of the user's line a node is a part of, if it has another name."""
    named = node.loc.callee() if node.loc else ""
    return f", which `{named}` needs," if named and named.split(".")[-1] != node.op.name else ""


def refusal(node: Node, reason: str, remedy: str = "") -> UnsupportedError:
    """Return the error for a node that cannot be batched."""
    return UnsupportedError(
        f"`{node.op.name}`{_asked_for(node)} cannot be batched: {reason}",
        location=node.loc,
        remedy=remedy
        or "keep sizes the same for all items and mask what is not needed, or loop over the items",
    )
