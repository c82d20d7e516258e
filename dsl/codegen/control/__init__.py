"""Emits structured control flow: branches, loops, and how arrays pass in and out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.control.branches import emit_cond
from dsl.codegen.control.loops import emit_scan, emit_while
from dsl.ir import graph as ir

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_control"]

_EMITTERS = {"cond": emit_cond, "while": emit_while, "scan": emit_scan}


def emit_control(region: Region, node: ir.Node) -> None:
    """Emit a `cond`, `while` or `scan`."""
    region.program.module.is_long = True
    _EMITTERS[node.op.name](region, node)
