"""How values pass in and out of branches and loops: what may be overwritten, and which memory is whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsl.codegen.elements import splat
from dsl.codegen.memory import Placed, Slot
from dsl.codegen.within import UPDATES, grows
from dsl.ir import graph as ir
from dsl.ir.types import TensorType

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["Memory", "home_of", "is_integer", "lend", "settled"]


def is_integer(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) and not value.shape and value.dtype.kind in "iu"


def home_of(graph: ir.Graph, result: ir.Value) -> int | None:
    """Return the number of the param that a result is an updated form of, or None."""
    params = {p: k for k, p in enumerate(graph.params)}
    seen = 0
    while result not in params:
        node = result.node
        seen += 1
        if node.op.name in UPDATES or grows(node):
            result = node.inputs[0]
        elif node.op.name in ("while", "scan"):
            result = node.inputs[result.index + (node.op.name == "scan")]
        elif node.op.name == "cond":
            inner = home_of(node.regions[0], node.regions[0].results[result.index])
            if inner is None:
                inner = home_of(node.regions[1], node.regions[1].results[result.index])
            if inner is None:
                return None
            result = node.inputs[1 + inner]
        else:
            return None
        if seen > 1000:
            return None
    return params[result]


def lend(region: Region, value: ir.Value) -> Any:
    """Return an operand as a region of its own is given it: a scalar, the place of an array, or None for a handle."""
    if not isinstance(value.type, TensorType):
        return None
    if not value.shape:
        return region.register(value)
    if splat(value) is not None and value not in region.placed:
        return region.place_constant(value)
    return region.place_of(value)


def settled(inner: Region, value: ir.Value) -> Placed:
    """Return where a result is; a splat constant is written out first."""
    if value in inner.placed:
        return inner.placed[value]
    if splat(value) is not None:
        made = inner.new_place(value)
        inner.map_to(value, made.array, value.shape, lambda i: i)
        return made
    return inner.place_of(value)


class Memory:
    """The state of all slots at some point of the emission, to return to for the other side of a branch."""

    def __init__(self, region: Region) -> None:
        self.program = region.program
        self.free = list(self.program.free)
        self.users = {slot: set(slot.users) for slot in self.program.slots}
        self.held: list[Slot] = []

    def restore(self) -> None:
        """Slots made since are free."""
        made = [s for s in self.program.slots if s not in self.users]
        for slot in made:
            slot.users = set()
        for slot, users in self.users.items():
            slot.users = set(users)
        self.program.free = [
            s for s in self.free + made if s not in self.held and s.kind != "param"
        ]

    def hold(self, slot: Slot) -> None:
        """A slot that exchanges its memory on each trip belongs to the loop while it runs."""
        if slot not in self.held:
            self.held.append(slot)

    def finish(self) -> None:
        self.held.clear()
        self.restore()
