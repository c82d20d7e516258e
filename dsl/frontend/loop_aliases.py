"""Which arrays the variables of a loop stand for by turns, and which from before it they may stand for after it.

Arrays that only change places are followed by slots. If it depends on the trip which array a write goes to otherwise, the loop is
refused. Afterwards each variable is linked with the arrays that it may be, so that writes to one reach the other.
"""

from __future__ import annotations

from typing import Any

from dsl.errors import AliasError
from dsl.frontend.accesses import unnoted
from dsl.frontend.carried import Carried, Key, Moves, Pass
from dsl.frontend.leaves import is_traced_array, link_when, predicate, ways_out
from dsl.frontend.scopes import Scope, Storage, here, link, may_alias
from dsl.frontend.sharing import Sharing, carry, others, share
from dsl.frontend.state import Snapshot
from dsl.frontend.traced import Traced
from dsl.frontend.undo import linked
from dsl.ir.graph import Value
from dsl.ir.types import I64

__all__ = ["find_moves", "never_runs", "note_aliases", "note_shares", "refuse_parting", "unswap"]


def find_moves(loop: Carried, run: Pass, after: Snapshot) -> Moves | None:
    """Return how rebound arrays change places, if they only do that: each variable, and whose array it has next."""
    arrays = run.arrays()
    owner = {leaf.storage: key for key, leaf in arrays.items()}
    moved = {}
    for key in arrays:
        end = after.leaves[key[0]][key[1]]
        if (
            isinstance(end, Traced)
            and not end.views
            and end.storage in owner
            and loop.array_before(key) is not None
        ):
            moved[key] = owner[end.storage]
    turns = any(k != m for k, m in moved.items()) or any(arrays[k].storage.written for k in moved)
    return moved if turns and set(moved) == set(moved.values()) else None


def refuse_parting(
    loop: Carried, run: Pass, after: Snapshot, contents: dict[Storage, Value], moves: Moves | None
) -> None:
    """Refuse loops in which it depends on the trip which array a write goes to."""
    arrays = run.arrays()
    written = any(leaf.storage.written for leaf in arrays.values())
    own = {leaf.storage for leaf in arrays.values()}
    for key, leaf in arrays.items():
        end, start = (
            after.leaves[key[0]][key[1]],
            loop.before.leaves[key[0]][key[1]] if key[0] not in loop.plan.structures else None,
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
                f"the variable `{loop.state.names[key[0]]}` is rebound in this loop and its array is also written in "
                "place, so that which array is written depends on the trip",
                location=here(),
                remedy="copy the array before the loop, or assign its elements (`x[...] = y`) instead of rebinding it",
            )


def never_runs(loop: Carried, parent: Scope) -> Value | None:
    """Return a predicate that the loop makes no trip, or None if it surely makes one."""
    if loop.static_trips is not None:
        return None
    if loop.trips is not None:
        return parent.emit("equal", loop.trips, parent.constant(0, I64))
    assert loop.test is not None
    with unnoted():  # the loop does it again
        first = predicate(loop.test())
    return (
        None
        if first is True
        else parent.constant(True)
        if first is False
        else parent.emit("logical_not", first)
    )


def note_aliases(
    loop: Carried, run: Pass, after: Snapshot, leaves: dict[Key, Traced], moves: Moves | None, never: Value | None, parent: Scope
) -> None:  # fmt: skip
    """Say which arrays from before the loop its variables may stand for after it."""
    for key in run.arrays():
        if moves and key in moves:
            continue
        start, end = loop.leaf_before(key), after.leaves[key[0]][key[1]]
        if start is not None and never is not None and _is_seen(start):
            link_when(leaves[key].storage, start.storage, start, never, parent)
        if is_traced_array(end) and not run.scope.encloses(end.storage.scope):
            ran = parent.constant(True) if never is None else parent.emit("logical_not", never)
            link_when(leaves[key].storage, end.storage, end, ran, parent)
        firsts = [loop.leaf_before(other) for other in _passed_on(run, after, key)]
        others = [first.storage for first in firsts if first is not None]
        for storage in (*others, *(outer for outer, _ in ways_out(end, run.scope))):
            leaves[key].storage.outside |= storage.outside
            may_alias(leaves[key].storage, storage)


def _passed_on(run: Pass, after: Snapshot, key: Key) -> dict[Key, None]:
    """Return the variables whose arrays, as a trip finds them, another one may have after some trips."""
    arrays = run.arrays()
    found: dict[Key, None] = {}
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


def note_shares(
    loop: Carried, run: Pass, after: Snapshot, leaves: dict[Key, Traced], parent: Scope
) -> None:
    """Say what stands for the same arrays as items of lists after the loop; what every trip put in is there twice."""
    ends = {key: end for key in leaves if is_traced_array(end := after.leaves[key[0]][key[1]])}
    starts = {
        leaf.storage: start.storage
        for key, leaf in run.leaves.items()
        if (start := loop.leaf_before(key)) is not None
    }
    carry([(end.storage, leaves[key].storage) for key, end in ends.items()], parent, starts)
    for key, end in ends.items():
        for other, each in others(end.storage):
            if each.kind is Sharing.ITEM and other.scope.encloses(parent):
                share(leaves[key].storage, leaves[key].storage, loc=each.loc)


def unswap(
    loop: Carried, slots: dict[Any, Value], leaves: dict[Any, Traced], parent: Scope
) -> None:
    """Give the arrays from before the loop what ended in their memory, and link them with their new names."""
    places = []
    for j, key in enumerate(slots):
        start = loop.array_before(key)
        assert start is not None
        places.append(
            (
                start.storage,
                [parent.emit("equal", slot, parent.constant(j, I64)) for slot in slots.values()],
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


def _is_seen(leaf: Traced) -> bool:
    """Tell whether a write to what was this array is followed: views only of the caller's arrays, which stay reachable."""
    return not leaf.views or leaf.storage.outside


def _is_changed(value: Value | None) -> bool:
    return value is not None and value.node.op.name != "param"
