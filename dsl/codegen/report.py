"""What a program tells about itself: where it can fail, and what happened while it was emitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dsl.ir import graph as ir

__all__ = ["ErrorSite", "Report"]


@dataclass(frozen=True)
class ErrorSite:
    """What a status code and its payload mean."""

    kind: str  # index, value:…, linalg:…, assert, broadcast, reshape, empty, negative_power, raised
    node: ir.Node | None
    axis: int = 0


@dataclass
class Report:
    """For `.memory_report()`, `.explain()` and the kernels stage."""

    slots: list[tuple[str, Any, str]] = field(default_factory=list)  # kind, bytes, for what
    copies: list[tuple[str, Any, Any]] = field(default_factory=list)  # why, bytes, location
    in_place: list[tuple[str, Any]] = field(default_factory=list)  # op, location
    fallbacks: list[tuple[str, Any]] = field(default_factory=list)  # op, location
    lines: list[str] = field(default_factory=list)
