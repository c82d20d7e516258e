"""Values that stand for memory which no node of the graph made."""

from __future__ import annotations

from typing import Any

from dsl.ir import graph as ir
from dsl.ir.types import ValueType

__all__ = ["StandIn"]


class _Nowhere:
    """The node of a stand-in: looks like a param's."""

    class op:
        name = "param"

        @staticmethod
        def has(trait: Any) -> bool:
            return False

    loc = None
    inputs = ()
    attrs: dict[str, Any] = {}


_NOWHERE = _Nowhere()


class StandIn(ir.Value):
    """A stand-in for a value: the key of a kernel's store, or a name for an array in memory."""

    __slots__ = ()

    def __init__(self, like: ir.Value | None, type: ValueType | None = None) -> None:
        node: Any = like.node if like is not None else _NOWHERE
        known = like.type if like is not None else type
        assert known is not None
        super().__init__(node, 0, known)
