"""What a loop carries from trip to trip, as known so far.

A loop carries the variables that its body rebinds, leaf by leaf, and the contents of the arrays that it writes. `Carried` has
the state before the loop and the plan; the modules that trace a loop, widen its plan and build its node share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dsl.errors import LoopTypeError
from dsl.frontend.holders import Replaced, replace_changed
from dsl.frontend.leaves import (
    Block,
    Info,
    info_of,
    is_array,
    is_traced_array,
    is_visible,
    join,
    the_trace,
)
from dsl.frontend.loops import trip_value
from dsl.frontend.scopes import Scope, Storage
from dsl.frontend.state import Snapshot, State, Undefined, is_numeric
from dsl.frontend.traced import Kind, Traced
from dsl.frontend.trees import Structure
from dsl.ir.dims import DimLike
from dsl.ir.graph import Value
from dsl.ir.location import Location

__all__ = ["Carried", "Key", "Moves", "Pass", "Plan", "code_of"]


def code_of(body: Block) -> Any:
    """Return what tells the body of one loop from those of others."""
    return getattr(body, "dsl_code", body.__code__)


Key = tuple[int, int]
"""A leaf of a variable: the numbers of the cell and of the leaf in it."""


Moves = dict[Key, Key]
"""How arrays change places in a trip: each leaf, and the one whose array it has next."""


@dataclass
class Plan:
    """What a loop carries, as known so far: rebound leaves by (cell, leaf), and storages that the body writes.

    `shared` are pairs of a leaf, and another or a storage, that stand for the same arrays when a trip starts, as items of a list.
    """

    rebound: dict[Key, Info] = field(default_factory=dict)
    structures: dict[int, Structure] = field(default_factory=dict)
    maybe: dict[int, str] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    lost: dict[int, Undefined] = field(default_factory=dict)
    shared: list[tuple[Key, Key | Storage]] = field(default_factory=list)

    def key(self, outer: Scope) -> Any:
        """What must not change any more: of sizes that only the loop knows, which of them are one."""
        hidden: dict[DimLike, int] = {}

        def told(dim: DimLike) -> Any:
            return (
                dim if is_visible(dim, outer) else ("hidden", hidden.setdefault(dim, len(hidden)))
            )

        infos = tuple(
            (k, i.dtype, i.kind, tuple(map(told, i.shape))) for k, i in self.rebound.items()
        )
        return infos, tuple(self.maybe), len(self.storages), tuple(self.lost), len(self.shared)


@dataclass
class Pass:
    """One traced region of a loop: its scope and the params of what is carried."""

    scope: Scope
    trip: Value | None
    params: list[Value]
    leaves: dict[Key, Traced]
    installed: list[list[Any]]
    objects: list[Any]

    def arrays(self) -> dict[Key, Traced]:
        """Return the leaves that are arrays."""
        return {key: leaf for key, leaf in self.leaves.items() if leaf.kind is Kind.ARRAY}


class Carried:
    """A `while` or `for` statement, the state before it, and what it carries."""

    def __init__(
        self, state: State, body: Block, test: Block | None, counted: Any, items: tuple[str, ...]
    ) -> None:
        self.state, self.body, self.test = state, body, test
        self.counted, self.items = counted, items
        self.trips: Value | None = None
        self.static_trips: int | None = None
        if counted is not None:
            count = counted.trips()
            self.static_trips = count if isinstance(count, int) else None
            self.trips = trip_value(count)
        self.statics: dict[Key, Any] = {}
        self.reads: dict[Storage, Location | None] = {}  # of what is carried, and where, in a trip
        self.before = state.snapshot()
        self.plan = self.first_plan()

    def first_plan(self) -> Plan:
        """Return what is carried as far as it is known before a trip is traced."""
        plan = Plan()
        for cell, leaves in enumerate(self.before.leaves):
            for k, leaf in enumerate(leaves):
                if self.state.is_assigned(cell) and is_numeric(leaf) and not is_array(leaf):
                    plan.rebound[cell, k] = info_of(leaf)
        for name, cell_leaves in zip(self.state.names, self.before.leaves, strict=True):
            if name in self.items:
                for leaf in cell_leaves:
                    if (
                        isinstance(leaf, Traced)
                        and leaf.kind is Kind.ARRAY
                        and leaf.storage not in plan.storages
                    ):
                        plan.storages.append(leaf.storage)
        self._use_hint(plan)
        return plan

    def hint_key(self) -> Any:
        """Return what tells this loop and the types of its variables from others."""
        types = tuple(
            (leaf.dtype, leaf.kind) if isinstance(leaf, Traced) else type(leaf)
            for leaves in self.before.leaves
            for leaf in leaves
        )
        return id(code_of(self.body)), tuple(str(s) for s in self.before.structures), types

    def _use_hint(self, plan: Plan) -> None:
        """Start from what an earlier trace of the same loop found."""
        hint = the_trace().hints.get(self.hint_key())
        if hint is None:
            return
        for (cell, k), info in hint.items():
            leaves = self.before.leaves[cell]
            if k < len(leaves) and is_numeric(leaves[k]):
                own = plan.rebound.get((cell, k), info_of(leaves[k]))
                if len(own.shape) == len(info.shape) and own.shape == info.shape:
                    plan.rebound[cell, k] = join(own, info, "", LoopTypeError, "")

    def name_of(self, storage: Storage) -> str:
        """Return the user's name for an array, if there is one."""
        for name, leaves in zip(self.state.names, self.before.leaves, strict=True):
            if any(
                isinstance(leaf, Traced) and leaf.storage is storage for leaf in leaves
            ) and not name.startswith("dsl__"):
                return name
        return ""

    def static_leaf(self, cell: int, k: int) -> Any:
        """Return what a trip leaves in a variable that had no value before, and is not carried."""
        return self.statics.get((cell, k))

    def leaf_before(self, key: Key) -> Traced | None:
        """Return the traced array, or the view of one, that a variable had before the loop."""
        if key[0] in self.plan.structures:
            return None
        leaf = self.before.leaves[key[0]][key[1]]
        return leaf if is_traced_array(leaf) else None

    def array_before(self, key: Key) -> Traced | None:
        """Return the traced array that a variable had before the loop, unless it was a view."""
        leaf = self.leaf_before(key)
        return None if leaf is None or leaf.views else leaf

    def replaced(self, run: Pass, after: Snapshot) -> list[Replaced]:
        """Put new containers where a trip leaves others than it found."""
        cells = [k for k, item in enumerate(run.objects) if after.objects[k] is item]
        pairs = ((self.before.holders[k], after.holders[k]) for k in cells)
        return [place for before, end in pairs for place in replace_changed(before, [end])]

    def rebound_cells(self, run: Pass, after: Snapshot) -> list[int]:
        """Return the variables that hold another container after a trip."""
        return [
            cell
            for cell, item in enumerate(run.objects)
            if self.before.holders[cell] is not None and after.objects[cell] is not item
        ]

    def rebound_names(self, run: Pass, after: Snapshot) -> set[str]:
        """Return the names of the variables that hold another container after a trip."""
        return {self.state.names[cell] for cell in self.rebound_cells(run, after)}
