"""`while` and `for` on traced values: trace the body until what it carries is stable, then build a `while` or `scan`.

A loop carries the variables that its body rebinds and the contents of the arrays that it writes. The body is traced again until
both sets and their types settle. A loop over Python objects, or whose body needs Python values, is unrolled.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import (
    AliasError,
    BranchError,
    DslError,
    LoopTypeError,
    NonConcreteError,
    UndefinedError,
)
from dsl.frontend.accesses import noting
from dsl.frontend.branches import if_
from dsl.frontend.choices import holds_any, named_items, note_choice, note_held, with_other_names
from dsl.frontend.holders import Replaced, put_back_containers, replace_changed
from dsl.frontend.iterators import Cursor, rest_of
from dsl.frontend.leaves import (
    Block,
    BranchRaise,
    Info,
    are_equal,
    contents_of,
    count_leaves,
    describe,
    info_of,
    is_array,
    is_known,
    is_traced_array,
    join,
    link_when,
    predicate,
    same_view,
    the_trace,
    unchecked_value,
    visible_shape,
    ways_out,
    zeros,
)
from dsl.frontend.loops import (
    ENDLESS,
    Grown,
    Items,
    as_counted,
    finish,
    items_now,
    lists_in,
    refuse_growing,
    trip_value,
)
from dsl.frontend.objects import as_trees
from dsl.frontend.optional import TracedOptional
from dsl.frontend.ranges import note_trips
from dsl.frontend.regions import (
    absent_optional,
    discard,
    emit_raise,
    grow_lists,
    installed,
    refuse_try,
    region_of,
    with_types,
)
from dsl.frontend.scopes import (
    Scope,
    Storage,
    Trace,
    current_scope,
    here,
    link,
    may_alias,
)
from dsl.frontend.sharing import Sharing, carry, others, share
from dsl.frontend.state import Snapshot, State, Undefined, is_numeric
from dsl.frontend.tables import refuse_tables
from dsl.frontend.traced import (
    Kind,
    Traced,
    fresh,
)
from dsl.frontend.trees import Structure, forwarded, unflatten
from dsl.frontend.undo import all_or_nothing, linked
from dsl.ir.dims import Dim, DimLike, symbols_of
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64, Shape, TensorType, scalar
from dsl.logs import log

_ATTEMPTS = 12


Key = tuple[int, int]
"""A leaf of a variable: the numbers of the cell and of the leaf in it."""


@dataclass
class Plan:
    """What a loop carries, as known so far: rebound leaves by (cell, leaf), and storages that the body writes.

    `shared` are pairs of a leaf, and another or a storage, that stand for the same arrays when a trip starts, as items of a list.
    """

    rebound: dict[tuple[int, int], Info] = field(default_factory=dict)
    structures: dict[int, Structure] = field(default_factory=dict)
    maybe: dict[int, str] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    lost: dict[int, Undefined] = field(default_factory=dict)
    shared: list[tuple[Key, Key | Storage]] = field(default_factory=list)

    def key(self, outer: Scope) -> Any:
        """What must not change any more: of sizes those that are known outside the loop."""
        infos = tuple(
            (k, i.dtype, i.kind, tuple(d if _is_visible(d, outer) else None for d in i.shape))
            for k, i in self.rebound.items()
        )
        return infos, tuple(self.maybe), len(self.storages), tuple(self.lost), len(self.shared)


def _is_visible(dim: DimLike, outer: Scope) -> bool:
    return all(is_known(symbol, outer) for symbol in symbols_of(dim))


@dataclass
class Pass:
    """One traced region of a loop: its scope and the params of what is carried."""

    scope: Scope
    trip: Value | None
    params: list[Value]
    leaves: dict[tuple[int, int], Traced]
    flags: dict[int, Value]
    installed: list[list[Any]]
    objects: list[Any]


Moves = dict[tuple[int, int], tuple[int, int]]


class Loop:
    """A `while` or `for` statement being traced."""

    def __init__(
        self, state: State, body: Block, test: Block | None, counted: Any, items: tuple[str, ...]
    ) -> None:
        self.state, self.body, self.test, self.counted, self.items = (
            state,
            body,
            test,
            counted,
            items,
        )
        self.trips: Value | None = None
        self.static_trips: int | None = None
        if counted is not None:
            count = counted.trips()
            self.static_trips = count if isinstance(count, int) else None
            self.trips = trip_value(count)
        self._statics: dict[tuple[int, int], Any] = {}
        self._left: dict[int, Any] = {}  # containers with other names that a trip leaves for others
        self.before = state.snapshot()
        self._named = named_items(self.before.objects)
        self.plan = self._first_plan()

    # -- what is carried -----------------------------------------------------------------------------------------

    def _first_plan(self) -> Plan:
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

    def _hint_key(self) -> Any:
        types = tuple(
            (leaf.dtype, leaf.kind) if isinstance(leaf, Traced) else type(leaf)
            for leaves in self.before.leaves
            for leaf in leaves
        )
        return id(_code_of(self.body)), tuple(str(s) for s in self.before.structures), types

    def _use_hint(self, plan: Plan) -> None:
        """Start from what an earlier trace of the same loop found."""
        hint = the_trace().hints.get(self._hint_key())
        if hint is None:
            return
        for (cell, k), info in hint.items():
            leaves = self.before.leaves[cell]
            if k < len(leaves) and is_numeric(leaves[k]):
                own = plan.rebound.get((cell, k), info_of(leaves[k]))
                if len(own.shape) == len(info.shape) and own.shape == info.shape:
                    plan.rebound[cell, k] = join(own, info, "", LoopTypeError, "")

    # -- tracing -------------------------------------------------------------------------------------------------

    def trace(self) -> None:
        """Trace until the plan is stable, then build the loop; raises with the state as before if that fails."""
        trace, first, chosen = the_trace(), self.before, set(the_trace().chosen)
        held, outdated = dict(trace.held), len(trace.outdated)
        try:
            for _ in range(_ATTEMPTS):
                found = self._attempt(trace)
                if found is not None:
                    trace.hints[self._hint_key()] = dict(self.plan.rebound)
                    return self._build(*found)
        except BaseException:
            self.state.restore(self.before)
            self.state.restore_variables(first)
            trace.held = held
            for storage in trace.outdated[outdated:]:
                storage.stale = None
            del trace.outdated[outdated:]
            raise
        finally:
            for key in self._left.keys() - chosen:
                trace.chosen.pop(key, None)
        raise LoopTypeError(
            "the types of this loop's variables do not settle",
            location=here(),
            remedy="keep each variable's shape the same in every trip",
        )

    def _attempt(
        self, trace: Trace
    ) -> tuple[Pass | None, Value | None, Pass, Snapshot, dict[Storage, Value]] | None:
        held, outdated = set(trace.held), len(trace.outdated)
        test, chosen = self._trace_test(trace) if self.test is not None else (None, None)
        with trace.region("body") as scope:
            try:
                run = self._enter(scope)
                if run.trip is not None and self.trips is not None:
                    note_trips(scope, run.trip, self.trips)
                self._run_body(run)
                self._refuse_growth()
                after = with_types(self.state.snapshot())
            finally:
                replaced = [s for s in scope.replaced if s not in self.plan.storages]
                contents = scope.suspend()
        self.state.restore(self.before)
        self.before.refuse_changes()
        if (
            self.state.adopt_attributes(scope)
            or as_trees(self.before, [after])
            or grow_lists(self.state, self.before, [after], self._named, self._unrollable())
            or self._allow_none(after)
        ):
            self.before = self.state.snapshot()
            self.plan = self._first_plan()
            return None
        if self._holds_more(run, after, held) or len(trace.outdated) > outdated:
            return None
        if self._leaves_others(run, after) or self._widen(run, after, contents, replaced, trace):
            discard(scope, *([test.scope] if test else []))
            return None
        return test, chosen, run, after, contents

    def _holds_more(self, run: Pass, after: Snapshot, held: set[int]) -> bool:
        """Tell whether a trip has put containers into a traced list that the next one finds in variables, or gets in their place."""
        found = [note_held(end, item) for end, item in zip(after.objects, run.objects, strict=True)]
        new = the_trace().held.keys() - held
        return any(found) or bool(new and holds_any(self.before.objects, new))

    def _leaves_others(self, run: Pass, after: Snapshot) -> bool:
        """Refuse changes of containers that only the first trip would change, and other variables know; tell whether there are more."""
        left = [place.sources[0] for place in self._replaced(run, after)]
        left += [self.before.objects[cell] for cell in self._rebound_cells(run, after)]
        found = with_other_names(left, self._rebound_names(run, after))
        for holder in self.before.holders:
            put_back_containers(holder)
        new = {id(part): part for part in found if id(part) not in self._left}
        self._left.update(new)
        the_trace().chosen.update(new)
        return bool(new)

    def _replaced(self, run: Pass, after: Snapshot) -> list[Replaced]:
        """Put new containers where a trip leaves others than it found."""
        cells = [k for k, item in enumerate(run.objects) if after.objects[k] is item]
        pairs = ((self.before.holders[k], after.holders[k]) for k in cells)
        return [place for before, end in pairs for place in replace_changed(before, [end])]

    def _rebound_cells(self, run: Pass, after: Snapshot) -> list[int]:
        return [
            cell
            for cell, item in enumerate(run.objects)
            if self.before.holders[cell] is not None and after.objects[cell] is not item
        ]

    def _rebound_names(self, run: Pass, after: Snapshot) -> set[str]:
        return {self.state.names[cell] for cell in self._rebound_cells(run, after)}

    def _refuse_growth(self) -> None:
        """Stop if the body makes a list longer or shorter that the loop goes over."""
        if not any(part.has_changed() for part in lists_in(self.counted)):
            return
        known = isinstance(self.counted, Items) and any(
            item is self.counted.items for item in self.before.objects
        )
        if not known:
            refuse_growing()
        raise _Growing

    def _unrollable(self) -> bool:
        return self.static_trips is not None and self.static_trips <= config.unroll_limit

    def _allow_none(self, after: Snapshot) -> bool:
        """Make optionals of variables that are None on one side of a trip and have a value on the other."""
        objects = list(self.before.objects)
        for cell, structure in enumerate(self.before.structures):
            end = after.structures[cell]
            if structure == end or not self.state.is_assigned(cell):
                continue
            if structure.type is type(None) and all(map(is_numeric, after.leaves[cell])):
                objects[cell] = absent_optional(end, after.leaves[cell])
            elif (end.type is type(None) and all(map(is_numeric, self.before.leaves[cell]))) or (
                end.type is TracedOptional and end.keys[0] == structure
            ):
                objects[cell] = TracedOptional(structure, True, self.before.leaves[cell])
        if all(a is b for a, b in zip(objects, self.before.objects, strict=True)):
            return False
        self.state.put(objects)
        return True

    def _trace_test(self, trace: Trace) -> tuple[Pass, Value]:
        with trace.region("cond") as scope:
            try:
                run = self._enter(scope)
                began = self.state.snapshot()
                chosen = self._evaluate_test(run)
                written = [s for s in scope.replaced if s not in self.plan.storages]
                changed = bool(scope.attributes) or not self.state.is_as(began)
            finally:
                scope.suspend()
        self.state.restore(self.before)
        self.state.put_back_others(scope)
        if written or changed:
            raise _ChangingTest
        return run, chosen

    def _evaluate_test(self, run: Pass) -> Value:
        assert self.test is not None
        b = current_scope()
        if run.trip is not None:
            assert self.trips is not None
            assert b.parent is not None
            more = b.emit("less", run.trip, b.local(self.trips, b.parent))
            rest = predicate(self.test())
            return (
                b.emit("logical_and", more, rest)
                if isinstance(rest, Value)
                else more
                if rest
                else b.constant(False)
            )
        chosen = predicate(self.test())
        if isinstance(chosen, bool):
            # Python decides even with traced variables, so Python runs the loop.
            raise _StaticTest(chosen)
        return chosen

    def _enter(self, scope: Scope) -> Pass:
        """Give a region params for all that is carried, and install them in the cells and storages."""
        scope.loc = here()
        counting = self.counted is not None
        trip = scope.param(scalar(I64), "trip") if counting else None
        leaves, flags, params = {}, {}, []
        for (cell, k), info in self.plan.rebound.items():
            name = self.state.names[cell]
            param = scope.param(info.type, name if not name.startswith("dsl__") else "")
            params.append(param)
            leaves[cell, k] = Traced(Storage(param, scope), (), info.kind)
            start = self._start((cell, k))
            leaves[cell, k].storage.outside = start is not None and start.storage.outside
        for cell, name in self.plan.maybe.items():
            flags[cell] = scope.param(scalar(BOOL), f"{name}_defined")
            params.append(flags[cell])
            for (own, _), traced in leaves.items():
                if own == cell and not name.startswith("dsl__"):
                    traced.storage.defined = (flags[cell], scope, name)
        for storage in self.plan.storages:
            params.append(self._carry(storage, scope))
        self._note_shared(leaves, scope)
        installed, objects = self._install(leaves)
        return Pass(scope, trip, params, leaves, flags, installed, objects)

    def _note_shared(self, leaves: dict[Key, Traced], scope: Scope) -> None:
        """Let params stand for items of lists as what they stand for does."""
        starts = {key: start for key in leaves if (start := self._before(key)) is not None}
        carry([(starts[key].storage, leaves[key].storage) for key in starts], scope, {})
        for key, start in starts.items():
            if start.storage.viewers is not None:
                share(leaves[key].storage, start.storage, Sharing.EARLIER)
        for key, other in self.plan.shared:
            if key in leaves and (isinstance(other, Storage) or other in leaves):
                two = other if isinstance(other, Storage) else leaves[other].storage
                share(leaves[key].storage, two)

    def _carry(self, storage: Storage, scope: Scope) -> Value:
        param = scope.param(storage.value.tensor, self._name_of(storage))
        scope.replaced[storage] = (storage.value, storage.scope)
        storage.put(param, scope)
        return param

    def _name_of(self, storage: Storage) -> str:
        for name, leaves in zip(self.state.names, self.before.leaves, strict=True):
            if any(
                isinstance(leaf, Traced) and leaf.storage is storage for leaf in leaves
            ) and not name.startswith("dsl__"):
                return name
        return ""

    def _install(self, leaves: dict[tuple[int, int], Traced]) -> tuple[list[list[Any]], list[Any]]:
        objects, installed = [], []
        for cell, own in enumerate(self.before.leaves):
            structure = self.plan.structures.get(cell, self.before.structures[cell])
            count = len(own) if cell not in self.plan.structures else count_leaves(structure)
            new = [leaves.get((cell, k), own[k] if k < len(own) else None) for k in range(count)]
            if cell in self.plan.structures:
                new = [leaves.get((cell, k), self.plan_static(cell, k)) for k in range(count)]
            installed.append(new)
            objects.append(self._object(cell, structure, new))
        self.state.put(objects)
        return installed, objects

    def plan_static(self, cell: int, k: int) -> Any:
        return self._statics.get((cell, k))

    def _object(self, cell: int, structure: Structure, leaves: list[Any]) -> Any:
        if structure != self.before.structures[cell]:
            return unflatten(structure, leaves)
        return installed(self.before, cell, structure, leaves)

    def _run_body(self, run: Pass) -> None:
        try:
            if self.counted is None:
                self.body()
            else:
                assert run.trip is not None
                self.body(self.counted.item(fresh(run.trip, Kind.PYTHON)))
        except BranchRaise as signal:
            emit_raise(signal.error)

    # -- comparing what a trip began and ended with ----------------------------------------------------------------

    def _widen(
        self,
        run: Pass,
        after: Snapshot,
        contents: dict[Storage, Value],
        replaced: list[Storage],
        trace: Trace,
    ) -> bool:
        """Extend the plan by what the trip showed; tell whether it changed."""
        outer = the_trace().scopes[-1]
        old = self.plan.key(outer)
        self._as_optionals(after)
        with trace.resumed(run.scope, contents):
            for cell in range(len(after.objects)):
                self._widen_cell(cell, run, after)
        own = {leaf.storage for leaf in run.leaves.values()}
        self.plan.storages += [
            s for s in replaced if s not in own and not run.scope.encloses(s.scope)
        ]
        found = self._shared_after(run, after)
        self.plan.shared += [pair for pair in found if pair not in self.plan.shared]
        return self.plan.key(outer) != old  # type: ignore[no-any-return]

    def _shared_after(self, run: Pass, after: Snapshot) -> list[tuple[Key, Key | Storage]]:
        """Return which leaves stand for the same arrays as others after a trip, where the next one would notice."""
        ends = {
            key: end.storage
            for key in self.plan.rebound
            if is_traced_array(end := after.leaves[key[0]][key[1]])
        }
        busy = {key for key in run.leaves if self._is_busy(run.leaves[key].storage)}
        moved = {leaf.storage for leaf in run.leaves.values()}
        found: list[tuple[Key, Key | Storage]] = []
        for key, end in ends.items():
            known = [other for other, each in others(end) if each.kind is Sharing.ITEM]
            found += [(key, other) for other in known if other in self.plan.storages]
            for two, other in ends.items():
                twin = other is end and end.viewers is not None
                noticed = key in busy or two in busy or other in moved
                if two != key and noticed and (twin or any(other is s for s in known)):
                    found.append((key, two))
        return found

    def _is_busy(self, storage: Storage) -> bool:
        """Tell whether a trip changes an array, or puts it into a list."""
        return storage.written or any(each.kind is Sharing.ITEM for _, each in others(storage))

    def _as_optionals(self, after: Snapshot) -> None:
        """A variable that is optional when a trip starts is so when it ends."""
        for cell, structure in enumerate(self.before.structures):
            end = after.structures[cell]
            if structure.type is not TracedOptional or end.type is TracedOptional:
                continue
            if end.type is type(None):
                after.leaves[cell] = [False, *self.before.leaves[cell][1:]]
                after.structures[cell] = structure
            elif end == structure.keys[0]:
                after.leaves[cell] = [True, *after.leaves[cell]]
                after.structures[cell] = structure

    def _widen_cell(self, cell: int, run: Pass, after: Snapshot) -> None:
        name = self.state.names[cell]
        if cell in self.plan.lost:
            return
        start, end = run.installed[cell], after.leaves[cell]
        structure = self.plan.structures.get(cell, self.before.structures[cell])
        if len(start) == 1 and isinstance(start[0], Undefined) and structure.type is None:
            return self._widen_undefined(cell, name, after)
        if after.structures[cell] != structure:
            if cell in self.plan.maybe:
                self._lose(cell, name, "changes its structure from trip to trip")
                return
            raise LoopTypeError(
                f"the variable `{name}` is {describe(structure)} when the loop starts and "
                f"{describe(after.structures[cell])} after a trip",
                location=here(),
                remedy=f"give `{name}` its final structure before the loop, or loop with `dsl.unroll(range(n))`",
            )
        for k, (s, e) in enumerate(zip(start, end, strict=True)):
            self._widen_leaf(cell, k, name, s, e)

    def _lose(self, cell: int, name: str, reason: str) -> None:
        self.plan.lost[cell] = Undefined(
            name,
            reason + ", so it has no one value after the loop",
            f"give `{name}` a value before the loop",
        )
        self.plan.maybe.pop(cell, None)
        self.plan.structures.pop(cell, None)
        for key in [key for key in self.plan.rebound if key[0] == cell]:
            del self.plan.rebound[key]

    def _widen_undefined(self, cell: int, name: str, after: Snapshot) -> None:
        """A variable without a value before the loop: carry it if the body gives it one."""
        structure, leaves = after.structures[cell], after.leaves[cell]
        if structure.type is None and isinstance(leaves[0], Undefined):
            if leaves[0].defined is None:
                return
            infos: list[Any] = [leaves[0].defined]
        else:
            infos = [info_of(leaf) if is_numeric(leaf) else leaf for leaf in leaves]
        self.plan.structures[cell], self.plan.maybe[cell] = structure, name
        for k, info in enumerate(infos):
            if isinstance(info, Info):
                shape = visible_shape(info.shape, the_trace().scopes[-2])
                self.plan.rebound[cell, k] = Info(info.dtype, shape, info.kind)
            else:
                self._statics[cell, k] = info

    def _widen_leaf(self, cell: int, k: int, name: str, start: Any, end: Any) -> None:
        if isinstance(end, Undefined):
            if not isinstance(start, Undefined):
                end.fail()
            return
        if end is start or same_view(end, start):
            return
        if not is_numeric(end) or not (is_numeric(start) or (cell, k) in self.plan.rebound):
            if type(end) is type(start) and are_equal(end, start):
                return
            if cell in self.plan.maybe:
                return self._lose(cell, name, "changes from trip to trip")
            raise LoopTypeError(
                f"the variable `{name}` changes from {start!r} to {end!r} in a loop that is traced",
                location=here(),
                remedy="carry numbers or arrays, or loop with `dsl.unroll(range(n))`",
            )
        old = self.plan.rebound.get((cell, k)) or info_of(start)
        try:
            new = join(
                old,
                info_of(end),
                name,
                LoopTypeError,
                "one type when a trip of the loop starts and another when it ends",
            )
        except LoopTypeError:
            if cell in self.plan.maybe:
                return self._lose(cell, name, "changes its rank from trip to trip")
            raise
        shape = tuple(
            o
            if isinstance(o, Dim) and symbols_of(o) == [o] and not is_known(o, self._outer())
            else n
            for o, n in zip(old.shape, new.shape, strict=True)
        )
        self.plan.rebound[cell, k] = Info(new.dtype, shape, new.kind)

    def _outer(self) -> Scope | None:
        return the_trace().scopes[-1].parent

    # -- building --------------------------------------------------------------------------------------------------

    def _build(
        self,
        test: Pass | None,
        chosen: Value | None,
        run: Pass,
        after: Snapshot,
        contents: dict[Storage, Value],
    ) -> None:
        trace, parent = the_trace(), current_scope()
        with trace.resumed(run.scope, contents):
            results = self._results(run, after)
        moves = self._moves(run, after)
        self._refuse_parting(run, after, contents, moves)
        never = self._never_runs(parent) if self._arrays(run) else None
        inits = self._inits(parent)
        with all_or_nothing(parent, self._reached(after)):
            outputs = self._emit(parent, test, chosen, run, results, inits, moves)
            self._finish(parent, run, after, outputs, moves, never)
        discard(run.scope, *([test.scope] if test else []))

    def _reached(self, after: Snapshot) -> set[Storage]:
        """Return the storages whose contents or links the loop may change where it stands."""
        leaves = [leaf for each in (self.before, after) for own in each.leaves for leaf in own]
        return {leaf.storage for leaf in leaves if isinstance(leaf, Traced)} | set(
            self.plan.storages
        )

    def _results(self, run: Pass, after: Snapshot) -> list[Value]:
        b = current_scope()
        values = []
        for (cell, k), info in self.plan.rebound.items():
            leaf = after.leaves[cell][k]
            if isinstance(leaf, Undefined):
                leaf = run.leaves[cell, k]
            values.append(unchecked_value(leaf, info))
        for cell in self.plan.maybe:
            values.append(self._flag(cell, after, b))
        return values + [contents_of(storage) for storage in self.plan.storages]

    def _flag(self, cell: int, after: Snapshot, b: Scope) -> Value:
        leaves = [leaf for leaf in after.leaves[cell] if isinstance(leaf, Traced)]
        for leaf in leaves:
            if leaf.storage.defined is not None:
                flag, owner, _ = leaf.storage.defined
                return b.local(flag, owner)
        return b.constant(True)

    def _inits(self, parent: Scope) -> list[Value]:
        values = []
        for (cell, k), info in self.plan.rebound.items():
            leaves = self.before.leaves[cell]
            if cell in self.plan.structures:
                values.append(zeros(info, parent))
            else:
                values.append(unchecked_value(leaves[k], info))
        values += [parent.constant(False) for _ in self.plan.maybe]
        return values + [contents_of(storage) for storage in self.plan.storages]

    # -- arrays that the loop's variables stand for by turns -----------------------------------------------------

    def _moves(self, run: Pass, after: Snapshot) -> Moves | None:
        """Return how rebound arrays change places, if they only do that: each variable, and whose array it has next."""
        arrays = self._arrays(run)
        owner = {leaf.storage: key for key, leaf in arrays.items()}
        moved = {}
        for key in arrays:
            end = after.leaves[key[0]][key[1]]
            if (
                isinstance(end, Traced)
                and not end.views
                and end.storage in owner
                and self._start(key) is not None
            ):
                moved[key] = owner[end.storage]
        turns = any(k != m for k, m in moved.items()) or any(
            arrays[k].storage.written for k in moved
        )
        return moved if turns and set(moved) == set(moved.values()) else None

    def _arrays(self, run: Pass) -> dict[tuple[int, int], Traced]:
        return {key: leaf for key, leaf in run.leaves.items() if leaf.kind is Kind.ARRAY}

    def _start(self, key: tuple[int, int]) -> Traced | None:
        """Return the traced array that a variable had before the loop."""
        if key[0] in self.plan.structures:
            return None
        leaf = self.before.leaves[key[0]][key[1]]
        return leaf if is_traced_array(leaf) and not leaf.views else None

    def _refuse_parting(
        self, run: Pass, after: Snapshot, contents: dict[Storage, Value], moves: Moves | None
    ) -> None:
        """Refuse loops in which it depends on the trip which array a write goes to."""
        arrays = self._arrays(run)
        written = any(leaf.storage.written for leaf in arrays.values())
        own = {leaf.storage for leaf in arrays.values()}
        for key, leaf in arrays.items():
            end, start = (
                after.leaves[key[0]][key[1]],
                self.before.leaves[key[0]][key[1]] if key[0] not in self.plan.structures else None,
            )
            foreign = isinstance(end, Traced) and (
                end.storage in own
                or not run.scope.encloses(end.storage.scope)
                or bool(linked(end.storage) & (own - {leaf.storage}))
            )
            outside = isinstance(start, Traced) and start.storage.outside
            shared = isinstance(start, Traced) and _is_changed(contents.get(start.storage))
            parts = (written and foreign) or (leaf.storage.written and outside)
            if shared or (parts and not (moves and key in moves)):
                raise AliasError(
                    f"the variable `{self.state.names[key[0]]}` is rebound in this loop and its array is also written in "
                    "place, so that which array is written depends on the trip",
                    location=here(),
                    remedy="copy the array before the loop, or assign its elements (`x[...] = y`) instead of rebinding it",
                )

    def _never_runs(self, parent: Scope) -> Value | None:
        """Return a predicate that the loop makes no trip, or None if it surely makes one."""
        if self.static_trips is not None:
            return None
        if self.trips is not None:
            return parent.emit("equal", self.trips, parent.constant(0, I64))
        assert self.test is not None
        with noting(False):  # the loop does it again
            first = predicate(self.test())
        return (
            None
            if first is True
            else parent.constant(True)
            if first is False
            else parent.emit("logical_not", first)
        )

    def _note_aliases(
        self, run: Pass, after: Snapshot, leaves: dict[tuple[int, int], Traced], moves: Moves | None, never: Value | None, parent: Scope
    ) -> None:  # fmt: skip
        """Say which arrays from before the loop its variables may stand for after it."""
        for key in self._arrays(run):
            if moves and key in moves:
                continue
            start, end = self._before(key), after.leaves[key[0]][key[1]]
            if start is not None and never is not None and _is_seen(start):
                link_when(leaves[key].storage, start.storage, start, never, parent)
            if is_traced_array(end) and not run.scope.encloses(end.storage.scope):
                ran = parent.constant(True) if never is None else parent.emit("logical_not", never)
                link_when(leaves[key].storage, end.storage, end, ran, parent)
            firsts = [self._before(other) for other in self._passed_on(run, after, key)]
            others = [first.storage for first in firsts if first is not None]
            for storage in (*others, *(outer for outer, _ in ways_out(end, run.scope))):
                leaves[key].storage.outside |= storage.outside
                may_alias(leaves[key].storage, storage)

    def _note_shares(
        self, run: Pass, after: Snapshot, leaves: dict[Key, Traced], parent: Scope
    ) -> None:
        """Say what stands for the same arrays as items of lists after the loop; what every trip put in is there twice."""
        ends = {key: end for key in leaves if is_traced_array(end := after.leaves[key[0]][key[1]])}
        starts = {
            leaf.storage: start.storage
            for key, leaf in run.leaves.items()
            if (start := self._before(key)) is not None
        }
        carry([(end.storage, leaves[key].storage) for key, end in ends.items()], parent, starts)
        for key, end in ends.items():
            for other, each in others(end.storage):
                if each.kind is Sharing.ITEM and other.scope.encloses(parent):
                    share(leaves[key].storage, leaves[key].storage, loc=each.loc)

    def _before(self, key: tuple[int, int]) -> Traced | None:
        """Return the traced array, or the view of one, that a variable had before the loop."""
        if key[0] in self.plan.structures:
            return None
        leaf = self.before.leaves[key[0]][key[1]]
        return leaf if is_traced_array(leaf) else None

    def _passed_on(
        self, run: Pass, after: Snapshot, key: tuple[int, int]
    ) -> dict[tuple[int, int], None]:
        """Return the variables whose arrays, as a trip finds them, another one may have after some trips."""
        arrays = self._arrays(run)
        found: dict[tuple[int, int], None] = {}
        pending = [key]
        while pending:
            here = pending.pop()
            end = after.leaves[here[0]][here[1]]
            if not is_traced_array(end):
                continue
            reached = [end.storage, *linked(end.storage)]
            for other, leaf in arrays.items():
                if other not in found and any(leaf.storage is s for s in reached):
                    found[other] = None
                    pending.append(other)
        return found

    def _emit(
        self, parent: Scope, test: Pass | None, chosen: Value | None, run: Pass, results: list[Value], inits: list[Value],
        swap: Moves | None,
    ) -> list[Value]:  # fmt: skip
        body_params, results, inits = list(run.params), list(results), list(inits)
        test_params = list(test.params) if test else []
        if swap:
            slots = {key: run.scope.param(scalar(I64), "slot") for key in swap}
            body_params += slots.values()
            results += [slots[swap[key]] for key in swap]
            inits += [parent.constant(j, I64) for j in range(len(swap))]
            test_params += [test.scope.param(scalar(I64), "slot") for _ in swap] if test else []
        captures = list(
            dict.fromkeys([*run.scope.captured, *(test.scope.captured if test else ())])
        )
        types = [
            TensorType(p.dtype, self._result_shape(p, i, parent))
            for p, i in zip(body_params, inits, strict=True)
        ]
        if test is None:
            assert run.trip is not None
            assert self.trips is not None
            region = region_of(run.scope, captures, results, [run.trip, *body_params])
            inputs = [self.trips, *inits, *captures]
            return list(
                parent.node(
                    "scan", inputs, {"carried": len(inits)}, regions=[region], types=types
                ).outputs
            )
        assert chosen is not None
        if run.trip is not None:
            assert test.trip is not None
            body_params, test_params = [run.trip, *body_params], [test.trip, *test_params]
            results = [run.scope.emit("add", run.trip, run.scope.constant(1, I64)), *results]
            inits, types = [parent.constant(0, I64), *inits], [scalar(I64), *types]
        regions = [
            region_of(test.scope, captures, [chosen], test_params),
            region_of(run.scope, captures, results, body_params),
        ]
        node = parent.node(
            "while", [*inits, *captures], {"carried": len(inits)}, regions=regions, types=types
        )
        return list(node.outputs[1:] if run.trip is not None else node.outputs)

    def _result_shape(self, param: Value, init: Value, parent: Scope) -> Shape:
        return visible_shape(param.shape, parent)

    def _finish(
        self, parent: Scope, run: Pass, after: Snapshot, outputs: list[Value], moves: Moves | None, never: Value | None
    ) -> None:  # fmt: skip
        """Put the loop's results into the cells and storages."""
        values = iter(outputs)
        leaves = {
            key: Traced(Storage(next(values), parent), (), info.kind)
            for key, info in self.plan.rebound.items()
        }
        for cell, name in self.plan.maybe.items():
            flag = next(values)
            certain = name.startswith("dsl__") or (
                bool(self.static_trips) and self._always(run, after, cell)
            )
            for key, traced in leaves.items():
                if key[0] == cell and not certain:
                    traced.storage.defined = (flag, parent, name)
        for storage in self.plan.storages:
            storage.set(next(values))
        self._note_aliases(run, after, leaves, moves, never, parent)
        self._note_shares(run, after, leaves, parent)
        if moves:
            self._unswap(dict(zip(moves, values, strict=True)), leaves, parent)
        cells = range(len(self.before.objects))
        replaced = self._replaced(run, after)
        final = [self._final(cell, leaves, run, after) for cell in cells]
        self.state.commit(final, self.before)
        for end, item in zip(after.objects, final, strict=True):
            note_held(end, item)
        for place in replaced:
            place.note()
        for cell in self._rebound_cells(run, after) if not self.static_trips else ():
            names = self._rebound_names(run, after)
            note_choice(final[cell], [self.before.objects[cell]], names, False)

    def _final(
        self, cell: int, leaves: dict[tuple[int, int], Traced], run: Pass, after: Snapshot
    ) -> Any:
        """Return what a cell holds after the loop."""
        if cell in self.plan.lost:
            return self.plan.lost[cell]
        structure = self.plan.structures.get(cell)
        if structure is not None:
            new = [
                leaves.get((cell, k), self.plan_static(cell, k))
                for k in range(count_leaves(structure))
            ]
            return unflatten(structure, new)
        own = self.before.leaves[cell]
        new = [leaves.get((cell, k), leaf) for k, leaf in enumerate(own)]
        same = after.objects[cell] is run.objects[cell]
        return installed(self.before, cell, self.before.structures[cell], new, same)

    def _always(self, run: Pass, after: Snapshot, cell: int) -> bool:
        return all(
            not isinstance(e, Undefined)
            and (not isinstance(e, Traced) or e.storage.defined is None)
            for e in after.leaves[cell]
        )

    def _unswap(self, slots: dict[Any, Value], leaves: dict[Any, Traced], parent: Scope) -> None:
        """Give the arrays from before the loop what ended in their memory, and link them with their new names."""
        places = []
        for j, key in enumerate(slots):
            start = self._start(key)
            assert start is not None
            places.append(
                (
                    start.storage,
                    [
                        parent.emit("equal", slot, parent.constant(j, I64))
                        for slot in slots.values()
                    ],
                )
            )
        for storage, held in places:
            value = storage.contents()
            for name, here_now in zip(slots, held, strict=True):
                value = parent.emit("where", here_now, leaves[name].storage.value, value)
            storage.set(value)
        for storage, held in places:
            for name, here_now in zip(slots, held, strict=True):
                link(leaves[name].storage, storage, here_now, parent)


def _code_of(body: Block) -> Any:
    """Return what tells the body of one loop from those of others."""
    return getattr(body, "dsl_code", body.__code__)


def _is_seen(leaf: Traced) -> bool:
    """Tell whether a write to what was this array is followed: views only of the caller's arrays, which stay reachable."""
    return not leaf.views or leaf.storage.outside


def _is_changed(value: Value | None) -> bool:
    return value is not None and value.node.op.name != "param"


class _ChangingTest(Exception):
    """The condition of a `while` changes what a variable or an array holds, so that it must be asked once for each trip."""


class _Growing(Exception):
    """The body of a `for` changes the length of the list that it goes over."""


class _StaticTest(Exception):
    """The condition of a `while` does not depend on anything traced."""

    def __init__(self, value: bool) -> None:
        self.value = value


_RETRY = (NonConcreteError, LoopTypeError, BranchError, UndefinedError, AliasError)


def while_(
    test: Block,
    body: Block,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
    items: tuple[str, ...],
) -> None:
    """Run a `while` statement."""
    _while(State(get, put, names, assigned), test, body, items)


def _while(state: State, test: Block, body: Block, items: tuple[str, ...] = ()) -> None:
    limit = config.unroll_limit
    trips = 0
    failed: DslError | None = None
    while True:
        before = state.snapshot() if failed is None else None
        with noting(False):  # a traced loop does it again
            chosen = predicate(test())
        if chosen is False:
            return
        changes = before is not None and not state.is_as(before)
        if changes and isinstance(chosen, Value):
            return _rotated(chosen, test, body, state, items)
        if failed is None and not changes:
            loop = Loop(state.anew(), body, test, None, items)
            try:
                if not _is_plain(loop, chosen):
                    refuse_try()
                    return loop.trace()
            except _StaticTest:
                pass
            except _ChangingTest:
                return _rotated(chosen, test, body, state, items)
            except _RETRY as error:
                if chosen is not True:
                    raise
                failed = error
        if isinstance(chosen, Value):
            raise failed or DslError("a loop condition became traced", location=here())
        trips += 1
        if trips > max(limit, _PLAIN_LIMIT if failed is None else 0):
            raise failed or LoopTypeError(
                "this loop runs in Python and does not end",
                location=here(),
                remedy="carry its state in arrays",
            )
        body()


def _rotated(
    chosen: bool | Value, test: Block, body: Block, state: State, items: tuple[str, ...]
) -> None:
    """Trace a `while` whose test was asked and changes something: every trip ends with the test for the next one."""
    flag: list[Any] = [chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)]

    def trip() -> None:
        body()
        chosen = predicate(test())
        flag[0] = chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)

    trip.dsl_code = _code_of(body)  # type: ignore[attr-defined]
    refuse_try()
    Loop(state.with_cell("dsl__go_on", flag), trip, lambda: flag[0], None, items).trace()


_PLAIN_LIMIT = 100_000


def _is_plain(loop: Loop, chosen: bool | Value) -> bool:
    """Tell whether a loop computes with Python values alone, so that plain Python should run it."""
    if chosen is not True:
        return False
    touched = [leaf for leaves in loop.before.leaves for leaf in leaves]
    return not any(isinstance(leaf, (Traced, np.ndarray)) for leaf in touched)


def for_(
    iterable: Any, body: Block, guard: Block | None, get: Any, put: Any, names: tuple[str, ...], assigned: int,
    items: tuple[str, ...], targets: tuple[str, ...], tables: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Run a `for` statement."""
    if isinstance(iterable, Undefined):
        iterable.fail()
    iterable = rest_of(iterable, lost=guard is not None)
    counted = as_counted(iterable)
    state = State(get, put, names, assigned)
    if counted is not None:
        trips = counted.trips()
        if isinstance(trips, int) and trips == 0:
            return
        if tables:
            refuse_tables(tables, dict(zip(names, get(), strict=True)), trips)
        try:
            refuse_try()
            Loop(state, body, guard, counted, items).trace()
            return finish(counted)
        except _Growing:
            return _while_over(iterable, 0, body, guard, state.anew())
        except _RETRY as error:
            _refuse_unrolling(trips, error)
            log("unroll", "%s: unrolled %s times because %s", here(), trips, error.message)
    _python_for(iterable, body, guard, state.anew())


def _refuse_unrolling(trips: Any, error: DslError) -> None:
    limit = config.unroll_limit
    if isinstance(trips, int) and trips == ENDLESS:  # Python may see an end
        return
    if not isinstance(trips, int) or trips > limit:
        if isinstance(trips, int):
            error.remedy += f"; a loop of {trips} trips is longer than the limit for unrolling (DSL_UNROLL_LIMIT={limit})"
        raise error


def _python_for(iterable: Any, body: Block, guard: Block | None, state: State) -> None:
    """Loop in Python; once a traced `break` may have happened, the rest of the trips are conditional."""
    items, lost, tests = items_now(iterable), False, 0
    for k in itertools.count():
        go_on = True if guard is None else predicate(guard())
        item = next(items, _END) if go_on is not False else _END
        if item is _END:
            break
        if isinstance(item, Grown):
            return _while_over(iterable, k, body, guard, state)
        if go_on is True:
            body(item)
        else:
            assert guard is not None
            lost = True
            tests += 1
            _refuse_endless(iterable, tests)
            state.run_if(if_, guard(), functools.partial(body, item))
    if lost and isinstance(iterable, Cursor):
        iterable.finish(lost=True)


_END = object()


def _refuse_endless(iterable: Any, tests: int) -> None:
    """Refuse to unroll an iterator that may have no end, as the data ends the loop and tracing does not see that."""
    if tests > _TESTS * config.unroll_limit and not hasattr(iterable, "__len__"):
        raise LoopTypeError(
            f"this loop over a Python iterator is unrolled, and has not ended after {tests} trips that depend on data",
            location=here(), remedy="loop with `while`, or over a range, a list or `itertools.count`",
        )  # fmt: skip


# Trips of iterators are cheap to trace beside those of loops that had to be unrolled.
_TESTS = 8


def _while_over(items: Any, start: int, body: Block, guard: Block | None, state: State) -> None:
    """Go over a list whose length the data decides, and the loop changes, from an item on: Python looks at the length before each trip."""
    place: list[Any] = [start]

    def is_inside() -> Any:
        inside = predicate(place[0] < forwarded(items).length())
        go_on = True if guard is None or inside is False else predicate(guard())
        if isinstance(inside, bool) or go_on is False:
            return go_on if inside is True else False
        b = current_scope()
        both = inside if go_on is True else b.emit("logical_and", inside, go_on)
        return fresh(both, Kind.PYTHON)

    def trip() -> None:
        item = forwarded(items)[place[0]]
        place[0] = place[0] + 1
        body(item)

    trip.dsl_code = _code_of(body)  # type: ignore[attr-defined]
    _while(state.with_cell("dsl__place", place), is_inside, trip)
