"""Ops that are neither kernels nor control flow, in forms of their own for the device.

`LOWERINGS` has, by op, whether a node can be lowered, and what lowers it (`dsl.codegen.cuda.library`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsl.codegen.cuda.ops import extremum, matmul, nonzero, random, running, search, sorting, unique
from dsl.codegen.cuda.steps import Step
from dsl.ir.graph import Node

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]

LOWERINGS: dict[str, tuple[Callable[[Node], bool], Callable[[Lowering, Node], Step]]] = {
    **extremum.LOWERINGS,
    **running.LOWERINGS,
    **sorting.LOWERINGS,
    **search.LOWERINGS,
    **nonzero.LOWERINGS,
    **unique.LOWERINGS,
    **random.LOWERINGS,
    **matmul.LOWERINGS,
}
