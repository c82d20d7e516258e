"""Graphs and sessions: the dataflow machine of the papers."""

from __future__ import annotations

from dsl.session.graph import (
    Graph,
    Operation,
    colocate_with,
    control_dependencies,
    device,
    group,
    placeholder,
)
from dsl.session.session import Session

__all__ = [
    "Graph",
    "Operation",
    "Session",
    "colocate_with",
    "control_dependencies",
    "device",
    "group",
    "placeholder",
]
