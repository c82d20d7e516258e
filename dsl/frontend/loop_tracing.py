"""Trace the body of a loop until what it carries is stable.

Each attempt runs the test and the body once, in regions with params for all that is carried. What the trip shows widens the plan;
then the state is put back and the next attempt begins. If tracing fails, the state is as before the loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from dsl.config import config
from dsl.errors import LoopTypeError
from dsl.frontend.carried import Carried, Key, Pass
from dsl.frontend.choices import holds_any, named_items, note_held, with_other_names
from dsl.frontend.first_trips import UNROLLED
from dsl.frontend.holders import put_back_containers
from dsl.frontend.leaves import Block, BranchRaise, count_leaves, predicate, the_trace
from dsl.frontend.loop_aliases import watched
from dsl.frontend.loop_building import build
from dsl.frontend.loops import Items, lists_in, refuse_growing
from dsl.frontend.objects import as_trees
from dsl.frontend.ranges import note_trips
from dsl.frontend.regions import discard, emit_raise, grow_lists, installed, with_types
from dsl.frontend.scopes import Scope, Storage, Trace, current_scope, here
from dsl.frontend.sharing import Sharing, carry, share
from dsl.frontend.state import Snapshot, State
from dsl.frontend.traced import Kind, Traced, fresh
from dsl.frontend.trees import Structure, unflatten
from dsl.frontend.widening import allow_none, widen
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64, scalar

__all__ = ["ChangingTest", "Growing", "Loop", "StaticTest"]

_ATTEMPTS = 12


class Loop(Carried):
    """A `while` or `for` statement being traced."""

    def __init__(
        self, state: State, body: Block, test: Block | None, counted: Any, items: tuple[str, ...]
    ) -> None:
        super().__init__(state, body, test, counted, items)
        self._left: dict[int, Any] = {}  # containers with other names that a trip leaves for others
        self._named = named_items(self.before.objects)

    def trace(self) -> None:
        """Trace until the plan is stable, then build the loop; raises with the state as before if that fails."""
        trace, first, chosen = the_trace(), self.before, set(the_trace().chosen)
        held, outdated = dict(trace.held), len(trace.outdated)
        try:
            for _ in range(_ATTEMPTS):
                found = self._attempt(trace)
                if found is not None:
                    trace.hints[self.hint_key()] = dict(self.plan.rebound)
                    return build(self, *found)
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
        self.reads.clear()
        test, chosen = self._trace_test(trace) if self.test is not None else (None, None)
        with trace.region("body") as scope:
            try:
                run = self._enter(scope)
                if run.trip is not None and self.trips is not None:
                    note_trips(scope, run.trip, self.trips)
                with self._watched(run):
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
            or grow_lists(self.state, self.before, [after], self._named, self._unrollable(scope))
            or allow_none(self, after)
        ):
            self.before = self.state.snapshot()
            self.plan = self.first_plan()
            return None
        new = trace.outdated[outdated:]
        if self._holds_more(run, after, held) or any(not scope.encloses(s.scope) for s in new):
            return None
        if self._leaves_others(run, after) or widen(self, run, after, contents, replaced, trace):
            discard(scope, *([test.scope] if test else []))
            return None
        return test, chosen, run, after, contents

    def _watched(self, run: Pass) -> AbstractContextManager[None]:
        """Note what is read of the arrays that a trip finds in variables, and of those that these had before the loop."""
        starts = [
            start.storage for key in run.leaves if (start := self.leaf_before(key)) is not None
        ]
        return watched(self, {*starts, *(leaf.storage for leaf in run.arrays().values())})

    def _holds_more(self, run: Pass, after: Snapshot, held: set[int]) -> bool:
        """Tell whether a trip has put containers into a traced list that the next one finds in variables, or gets in their place."""
        found = [note_held(end, item) for end, item in zip(after.objects, run.objects, strict=True)]
        new = the_trace().held.keys() - held
        return any(found) or bool(new and holds_any(self.before.objects, new))

    def _leaves_others(self, run: Pass, after: Snapshot) -> bool:
        """Refuse changes of containers that only the first trip would change, and other variables know; tell whether there are more."""
        left = [place.sources[0] for place in self.replaced(run, after)]
        left += [self.before.objects[cell] for cell in self.rebound_cells(run, after)]
        found = with_other_names(left, self.rebound_names(run, after))
        for holder in self.before.holders:
            put_back_containers(holder)
        new = {id(part): part for part in found if id(part) not in self._left}
        self._left.update(new)
        the_trace().chosen.update(new)
        return bool(new)

    def _refuse_growth(self) -> None:
        """Stop if the body makes a list longer or shorter that the loop goes over."""
        if not any(part.has_changed() for part in lists_in(self.counted)):
            return
        known = isinstance(self.counted, Items) and any(
            item is self.counted.items for item in self.before.objects
        )
        if not known:
            refuse_growing()
        raise Growing

    def _unrollable(self, body: Scope) -> bool:
        """Tell whether the loop is to be unrolled rather than to make lists traced: few trips of a short body.

        Traced lists can do less, but what unrolling makes of a long body compiles for long: a Kalman filter of 40 trips took 5 s, and its
        gradient 23 s, not 0.3 s, to run no sooner. If what follows needs Python's lists, the function is traced again.
        """
        if self.static_trips is None or self.static_trips > config.unroll_limit:
            return False
        trace = the_trace()
        if trace.unrolls or self.static_trips * body.extent <= UNROLLED:
            return True
        trace.looped = max(trace.looped, self.static_trips)
        return False

    def _trace_test(self, trace: Trace) -> tuple[Pass, Value]:
        with trace.region("cond") as scope:
            try:
                run = self._enter(scope)
                began = self.state.snapshot()
                with self._watched(run):
                    chosen = self._evaluate_test(run)
                written = [s for s in scope.replaced if s not in self.plan.storages]
                changed = bool(scope.attributes) or not self.state.is_as(began)
            finally:
                scope.suspend()
        self.state.restore(self.before)
        self.state.put_back_others(scope)
        if written or changed:
            raise ChangingTest
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
            raise StaticTest
        return chosen

    def _enter(self, scope: Scope) -> Pass:
        """Give a region params for all that is carried, and install them in the cells and storages."""
        scope.loc = here()
        counting = self.counted is not None
        trip = scope.param(scalar(I64), "trip") if counting else None
        leaves, params = {}, []
        for (cell, k), info in self.plan.rebound.items():
            name = self.state.names[cell]
            param = scope.param(info.type, name if not name.startswith("dsl__") else "")
            params.append(param)
            leaves[cell, k] = Traced(Storage(param, scope), (), info.kind)
            start = self.array_before((cell, k))
            leaves[cell, k].storage.outside = start is not None and start.storage.outside
        for cell, name in self.plan.maybe.items():
            flag = scope.param(scalar(BOOL), f"{name}_defined")
            params.append(flag)
            for (own, _), traced in leaves.items():
                if own == cell and not name.startswith("dsl__"):
                    traced.storage.defined = (flag, scope, name)
        for storage in self.plan.storages:
            params.append(self._carry(storage, scope))
        self._note_shared(leaves, scope)
        installed, objects = self._install(leaves)
        return Pass(scope, trip, params, leaves, installed, objects)

    def _note_shared(self, leaves: dict[Key, Traced], scope: Scope) -> None:
        """Let params stand for items of lists as what they stand for does."""
        starts = {key: start for key in leaves if (start := self.leaf_before(key)) is not None}
        carry([(starts[key].storage, leaves[key].storage) for key in starts], scope, {})
        for key, start in starts.items():
            if start.storage.viewers is not None:
                share(leaves[key].storage, start.storage, Sharing.EARLIER)
        for key, other in self.plan.shared:
            if key in leaves and (isinstance(other, Storage) or other in leaves):
                two = other if isinstance(other, Storage) else leaves[other].storage
                share(leaves[key].storage, two)

    def _carry(self, storage: Storage, scope: Scope) -> Value:
        param = scope.param(storage.value.tensor, self.name_of(storage))
        scope.replaced[storage] = (storage.value, storage.scope)
        storage.put(param, scope)
        return param

    def _install(self, leaves: dict[Key, Traced]) -> tuple[list[list[Any]], list[Any]]:
        objects, installed = [], []
        for cell, own in enumerate(self.before.leaves):
            structure = self.plan.structures.get(cell, self.before.structures[cell])
            count = len(own) if cell not in self.plan.structures else count_leaves(structure)
            new = [leaves.get((cell, k), own[k] if k < len(own) else None) for k in range(count)]
            if cell in self.plan.structures:
                new = [leaves.get((cell, k), self.static_leaf(cell, k)) for k in range(count)]
            installed.append(new)
            objects.append(self._object(cell, structure, new))
        self.state.put(objects)
        return installed, objects

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


class ChangingTest(Exception):
    """The condition of a `while` changes what a variable or an array holds, so that it must be asked once for each trip."""


class Growing(Exception):
    """The body of a `for` changes the length of the list that it goes over."""


class StaticTest(Exception):
    """The condition of a `while` does not depend on anything traced."""
