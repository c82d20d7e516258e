"""Compare what a trip of a loop began and ended with, and widen the plan of what is carried by what differs.

A variable joins the plan once a trip rebinds it, an array once a trip writes it; types are joined. A variable that has no value
before the loop is carried with a flag; one that cannot have one value after it is lost, which its first use says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsl.errors import LoopTypeError
from dsl.frontend.carried import Carried, Key, Pass
from dsl.frontend.leaves import (
    Info,
    are_equal,
    are_tuples,
    describe,
    info_of,
    is_traced_array,
    is_visible,
    join,
    parts_of,
    same_view,
    the_trace,
    visible_shape,
)
from dsl.frontend.optional import TracedOptional
from dsl.frontend.regions import absent_optional
from dsl.frontend.scopes import Scope, Storage, Trace, here
from dsl.frontend.sharing import Sharing, others
from dsl.frontend.state import Snapshot, Undefined, is_numeric
from dsl.frontend.trees import LEAF, Structure, unflatten
from dsl.ir.dims import Dim, DimLike, Symbol
from dsl.ir.graph import Value

__all__ = ["allow_none", "widen"]


def widen(
    loop: Carried,
    run: Pass,
    after: Snapshot,
    contents: dict[Storage, Value],
    replaced: list[Storage],
    trace: Trace,
) -> bool:
    """Extend the plan by what the trip showed; tell whether it changed."""
    outer = the_trace().scopes[-1]
    old = loop.plan.key(outer)
    _as_optionals(loop, after)
    with trace.resumed(run.scope, contents):
        sizes = _Sizes(run.scope.parent)
        for cell in range(len(after.objects)):
            _widen_cell(loop, cell, run, after, sizes)
    own = {leaf.storage for leaf in run.leaves.values()}
    loop.plan.storages += [s for s in replaced if s not in own and not run.scope.encloses(s.scope)]
    found = _shared_after(loop, run, after)
    loop.plan.shared += [pair for pair in found if pair not in loop.plan.shared]
    return loop.plan.key(outer) != old  # type: ignore[no-any-return]


class _Sizes:
    """Which sizes of what a loop carries are one: those that are equal when the loop starts, and still are after each trip."""

    def __init__(self, outer: Scope | None) -> None:
        self.outer = outer
        self._met: dict[tuple[DimLike, DimLike], Dim] = {}
        self._kept: dict[DimLike, DimLike] = {}

    def joined(self, start: DimLike, end: DimLike, *, alone: bool) -> DimLike:
        """Return the size in any trip of what has one size when a trip starts and another when it ends; `alone` is one with no other."""
        if is_visible(start, self.outer):
            if start == end:
                return start
        elif self._kept.setdefault(start, end) == end:
            return start
        return Symbol("d") if alone else self._met.setdefault((start, end), Symbol("d"))


def _widen_cell(loop: Carried, cell: int, run: Pass, after: Snapshot, sizes: _Sizes) -> None:
    name = loop.state.names[cell]
    if cell in loop.plan.lost:
        return
    start, end = run.installed[cell], after.leaves[cell]
    structure = loop.plan.structures.get(cell, loop.before.structures[cell])
    if len(start) == 1 and isinstance(start[0], Undefined) and structure.type is None:
        return _widen_undefined(loop, cell, name, after)
    if after.structures[cell] != structure:
        if cell in loop.plan.maybe:
            _lose(loop, cell, name, "changes its structure from trip to trip")
            return
        raise LoopTypeError(
            f"the variable `{name}` is {describe(structure)} when the loop starts and "
            f"{describe(after.structures[cell])} after a trip",
            location=here(),
            remedy=f"give `{name}` its final structure before the loop, or loop with `dsl.unroll(range(n))`",
        )
    for k, (s, e) in enumerate(zip(start, end, strict=True)):
        _widen_leaf(loop, cell, k, name, s, e, sizes)


def _widen_undefined(loop: Carried, cell: int, name: str, after: Snapshot) -> None:
    """A variable without a value before the loop: carry it if the body gives it one."""
    structure, leaves = after.structures[cell], after.leaves[cell]
    if structure.type is None and isinstance(leaves[0], Undefined):
        if leaves[0].defined is None:
            return
        infos: list[Any] = [leaves[0].defined]
    else:
        infos = [info_of(leaf) if is_numeric(leaf) else leaf for leaf in leaves]
    loop.plan.structures[cell], loop.plan.maybe[cell] = structure, name
    for k, info in enumerate(infos):
        if isinstance(info, Info):
            shape = visible_shape(info.shape, the_trace().scopes[-2])
            loop.plan.rebound[cell, k] = replace(info, shape=shape)
        else:
            loop.statics[cell, k] = info


def _widen_leaf(
    loop: Carried, cell: int, k: int, name: str, start: Any, end: Any, sizes: _Sizes
) -> None:
    if isinstance(end, Undefined):
        if not isinstance(start, Undefined):
            end.fail()
        return
    if (end is start or same_view(end, start)) and (cell, k) not in loop.plan.rebound:
        return
    if not is_numeric(end) or not (is_numeric(start) or (cell, k) in loop.plan.rebound):
        if type(end) is type(start) and are_equal(end, start):
            return
        if cell in loop.plan.maybe:
            return _lose(loop, cell, name, "changes from trip to trip")
        raise LoopTypeError(
            f"the variable `{name}` changes from {start!r} to {end!r} in a loop that is traced",
            location=here(),
            remedy="carry numbers or arrays, or loop with `dsl.unroll(range(n))`",
        )
    old = loop.plan.rebound.get((cell, k)) or info_of(start)
    try:
        new = join(
            old,
            info_of(end),
            name,
            LoopTypeError,
            "one type when a trip of the loop starts and another when it ends",
        )
    except LoopTypeError:
        if cell in loop.plan.maybe:
            return _lose(loop, cell, name, "changes its rank from trip to trip")
        raise
    alone = cell in loop.plan.structures  # without a value before the loop, where others have one
    shape = tuple(
        sizes.joined(o, e, alone=alone) for o, e in zip(old.shape, info_of(end).shape, strict=True)
    )
    loop.plan.rebound[cell, k] = replace(new, shape=shape)


def _lose(loop: Carried, cell: int, name: str, reason: str) -> None:
    loop.plan.lost[cell] = Undefined(
        name,
        reason + ", so it has no one value after the loop",
        f"give `{name}` a value before the loop",
    )
    loop.plan.maybe.pop(cell, None)
    loop.plan.structures.pop(cell, None)
    for key in [key for key in loop.plan.rebound if key[0] == cell]:
        del loop.plan.rebound[key]


def _as_optionals(loop: Carried, after: Snapshot) -> None:
    """A variable that is optional when a trip starts is so when it ends."""
    for cell, structure in enumerate(loop.before.structures):
        end = after.structures[cell]
        if structure.type is not TracedOptional or end.type is TracedOptional:
            continue
        if end.type is type(None):
            after.leaves[cell] = [False, *loop.before.leaves[cell][1:]]
            after.structures[cell] = structure
        elif end == structure.keys[0]:
            after.leaves[cell] = [True, *after.leaves[cell]]
            after.structures[cell] = structure


def allow_none(loop: Carried, after: Snapshot) -> bool:
    """Make optionals of variables that are None on one side of a trip and have a value on the other."""
    objects = list(loop.before.objects)
    for cell, structure in enumerate(loop.before.structures):
        end = after.structures[cell]
        if structure == end or not loop.state.is_assigned(cell):
            continue
        sides = (structure, loop.before.leaves[cell]), (end, after.leaves[cell])
        objects[cell] = _with_optionals(objects[cell], *sides)
    if all(a is b for a, b in zip(objects, loop.before.objects, strict=True)):
        return False
    loop.state.put(objects)
    return True


def _with_optionals(
    item: Any, before: tuple[Structure, list[Any]], after: tuple[Structure, list[Any]]
) -> Any:
    """Return an item, or a tuple with items, that may be None or a value: one before a trip, the other after it."""
    (structure, leaves), (end, ends) = before, after
    if structure.type is type(None) and all(map(is_numeric, ends)):
        return absent_optional(end, ends)
    if (end.type is type(None) and all(map(is_numeric, leaves))) or (
        end.type is TracedOptional and end.keys[0] == structure
    ):
        return TracedOptional(structure, True, leaves)
    if structure == end or not are_tuples(structure, end):
        return item
    sides = zip(item, parts_of(*before), parts_of(*after), strict=True)
    made = [_with_optionals(*side) for side in sides]
    same = all(a is b for a, b in zip(made, item, strict=True))
    leaf = Structure(structure.type, structure.keys, (LEAF,) * len(made))
    return item if same else unflatten(leaf, made)


def _shared_after(loop: Carried, run: Pass, after: Snapshot) -> list[tuple[Key, Key | Storage]]:
    """Return which leaves stand for the same arrays as others after a trip, where the next one would notice."""
    ends = {
        key: end.storage
        for key in loop.plan.rebound
        if is_traced_array(end := after.leaves[key[0]][key[1]])
    }
    busy = {key for key in run.leaves if _is_busy(run.leaves[key].storage)}
    moved = {leaf.storage for leaf in run.leaves.values()}
    found: list[tuple[Key, Key | Storage]] = []
    for key, end in ends.items():
        known = [other for other, each in others(end) if each.kind is Sharing.ITEM]
        found += [(key, other) for other in known if other in loop.plan.storages]
        for two, other in ends.items():
            twin = other is end and end.viewers is not None
            noticed = key in busy or two in busy or other in moved
            if two != key and noticed and (twin or any(other is s for s in known)):
                found.append((key, two))
    return found


def _is_busy(storage: Storage) -> bool:
    """Tell whether a trip changes an array, or puts it into a list."""
    return storage.written or any(each.kind is Sharing.ITEM for _, each in others(storage))
