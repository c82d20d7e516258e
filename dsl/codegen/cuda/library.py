"""Ops that are neither kernels nor control flow and have a form for the device of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.cuda.ops import LOWERINGS
from dsl.codegen.cuda.steps import Step
from dsl.ir.graph import Node

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS", "TAKES_TURNED", "lower", "supported"]

TAKES_TURNED = frozenset(("matmul",))
"""Ops that take an array with its axes in another order as it is (`Lowering.turned`)."""


def supported(node: Node) -> bool:
    """Tell whether a node has a form for the device."""
    found = LOWERINGS.get(node.op.name)
    return found is not None and found[0](node)


def lower(lowering: Lowering, node: Node) -> Step:
    """Emit the kernels of a node and return the step that launches them."""
    return LOWERINGS[node.op.name][1](lowering, node)
