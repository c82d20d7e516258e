"""Which arrays the variables of a loop stand for by turns, and which from before it they may stand for after it.

Arrays that only change places are followed by slots. Others may be passed on and dropped, as long as the variables of the loop are all that
names them: an array from before the loop that some trips write must not be read under another name, which is refused where it is
read. Afterwards each variable is linked with the arrays that it may be, so that writes to one reach the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from dsl.errors import AliasError
from dsl.frontend.accesses import unnoted
from dsl.frontend.carried import Carried, Key, Moves, Pass
from dsl.frontend.leaves import is_traced_array, link_when, predicate, the_trace, ways_out
from dsl.frontend.regions import contents_if
from dsl.frontend.scopes import Scope, Storage, here, link, may_alias
from dsl.frontend.sharing import Sharing, carry, others, share
from dsl.frontend.state import Snapshot
from dsl.frontend.traced import Traced
from dsl.frontend.undo import linked, same_memory
from dsl.ir.graph import Value
from dsl.ir.location import Location
from dsl.ir.types import I64

__all__ = [
    "find_moves",
    "is_of_arrays",
    "never_runs",
    "note_aliases",
    "note_shares",
    "part",
    "parted",
    "refuse_parting",
    "unswap",
    "watched",
]

_REMEDY = (
    "copy the array before the loop, or assign its elements (`x[...] = y`) instead of rebinding it"
)


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
    """Refuse loops in which it depends on the trip which array a write goes to, if something else stands for that array.

    Where each variable has an array of its own when a trip ends, it is enough to know what is in them. The arrays from before the
    loop that some trips write must not be read under other names: see `watched` and `part`.
    """
    ends, written = _ends(run, after), _written(run, after)
    starts = {key: start for key in run.arrays() if (start := loop.leaf_before(key)) is not None}
    # No trip comes after one that returns.
    named = {k: end for k, end in ends.items() if loop.state.names[k[0]] != "dsl__result"}
    for key in run.arrays():
        twins = _twins(named, key)
        both = _twins(starts, key)
        outer = key in ends and _is_outer(ends[key], run.scope)
        parts = _are_parted(loop, run, ends, {key, *twins}, written) or (
            key in written and (outer or _is_outside(loop, key))
        )
        same = (both and written & {key, *both}) or _is_shared(loop, run, named, key, contents)
        if same or (parts and not (moves and key in moves)):
            error = AliasError(
                f"the variable `{loop.state.names[key[0]]}` is rebound in this loop and its array is also written in "
                "place, so that which array is written depends on the trip",
                location=here(),
                remedy=_REMEDY,
            )
            raise _of_arrays(error)
    for storage, name in _firsts(loop, written).items():
        if storage in loop.reads:
            _refuse_reading(name, loop.reads[storage])


def _ends(run: Pass, after: Snapshot) -> dict[Key, Traced]:
    """Return the arrays that variables have after a trip."""
    found = {key: after.leaves[key[0]][key[1]] for key in run.arrays()}
    return {key: end for key, end in found.items() if is_traced_array(end)}


def _written(run: Pass, after: Snapshot) -> set[Key]:
    """Return the variables whose arrays, as a trip finds them, are written in this or a later trip, under this or another name."""
    found = {key for key, leaf in run.arrays().items() if leaf.storage.written}
    return found.union(*(_passed_on(run, after, key) for key in found))


def _are_parted(
    loop: Carried, run: Pass, ends: dict[Key, Traced], twins: set[Key], written: set[Key]
) -> bool:
    """Tell whether the next trip writes an array under one name of several and would see that under another."""
    changed = written & twins
    return any(
        changed - {key} and _is_used(loop, run, ends, key) for key in twins if len(twins) > 1
    )


def _is_used(loop: Carried, run: Pass, ends: dict[Key, Traced], key: Key) -> bool:
    """Tell whether a trip reads, writes or passes on the array that it finds in a variable."""
    own = run.leaves[key].storage
    return own in loop.reads or own.written or any(end.storage is own for end in ends.values())


def _is_shared(
    loop: Carried, run: Pass, ends: dict[Key, Traced], key: Key, contents: dict[Storage, Value]
) -> bool:
    """Tell whether the loop writes what a variable had before it, or has after a trip, under another name, and the variable is used."""
    start = loop.leaf_before(key)
    named = [start.storage] if start is not None else []
    if key in ends:
        named += _outer_arrays(ends[key], run.scope)
    return any(_is_changed(contents.get(each)) for each in named) and _is_used(loop, run, ends, key)


def _is_outside(loop: Carried, key: Key) -> bool:
    start = loop.leaf_before(key)
    return start is not None and any(each.outside for each in _may_be(start.storage))


def _may_be(storage: Storage) -> list[Storage]:
    """Return the storages that may be the memory of one, itself included, as branches and loops chose."""
    return [storage, *same_memory(storage)]


def _is_outer(end: Traced, scope: Scope) -> bool:
    """Tell whether an array may be one from before the loop."""
    return bool(_outer_arrays(end, scope))


def _outer_arrays(end: Traced, scope: Scope) -> list[Storage]:
    """Return the arrays from before the loop that one may be."""
    if not scope.encloses(end.storage.scope):
        return [end.storage]
    return [outer for outer, _ in ways_out(end, scope)]


def _twins(arrays: dict[Key, Traced], key: Key) -> list[Key]:
    """Return the other variables that may have the same array as one, of those that variables have at some point."""
    if key not in arrays:
        return []
    near = _may_be(arrays[key].storage)
    return [other for other, end in arrays.items() if other != key and end.storage in near]


def parted(loop: Carried, run: Pass, after: Snapshot) -> dict[Storage, str]:
    """Return the arrays from before the loop that some trips write, but not all, and the variables that had them."""
    moves = find_moves(loop, run, after) or {}
    return _firsts(loop, (key for key in _written(run, after) if key not in moves))


def _firsts(loop: Carried, keys: Iterable[Key]) -> dict[Storage, str]:
    """Return the arrays that variables had before the loop, and their names."""
    starts = {key: loop.leaf_before(key) for key in sorted(keys)}
    names = loop.state.names
    return {
        each: names[key[0]]
        for key, start in starts.items()
        if start is not None
        for each in _may_be(start.storage)
    }


@contextmanager
def watched(loop: Carried, storages: Iterable[Storage]) -> Iterator[None]:
    """Note where arrays are read: those that a loop finds in its variables, under whichever names."""
    before = {storage: storage.reader for storage in storages}
    for storage, reader in before.items():
        storage.reader = partial(_note_read, loop, storage, reader)
    try:
        yield
    finally:
        for storage, reader in before.items():
            storage.reader = reader


def _note_read(loop: Carried, storage: Storage, reader: Callable[[], None] | None) -> None:
    loop.reads.setdefault(storage, here())
    if reader is not None:
        reader()


def part(storages: Mapping[Storage, str]) -> None:
    """Note that a loop has written arrays from before it, and refuse to read them from here on."""
    for storage, name in storages.items():
        storage.written = True
        if storage.stale is None:
            storage.stale = partial(_refuse_later, name)
            the_trace().outdated.append(storage)


def _refuse_later(name: str) -> None:
    _refuse_reading(name, here())


def _refuse_reading(name: str, where: Location | None) -> None:
    error = AliasError(
        f"this reads the array that the variable `{name}` had before a loop, under another name; the loop rebinds the variable and also "
        "writes to its array in place, so that which array is written depends on the trip",
        location=where,
        remedy=_REMEDY,
    )
    raise _of_arrays(error)


def _of_arrays(error: AliasError) -> AliasError:
    error.of_arrays = True  # type: ignore[attr-defined]
    return error


def is_of_arrays(error: Exception) -> bool:
    """Tell whether a loop was refused for which array a trip writes, rather than for which list, dict or object it changes."""
    return getattr(error, "of_arrays", False)


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
    """Say which arrays from before the loop its variables may stand for after it, and which of them are one array."""
    _link_twins(loop, run, after, leaves, never, parent)
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


def _link_twins(
    loop: Carried, run: Pass, after: Snapshot, leaves: dict[Key, Traced], never: Value | None, parent: Scope
) -> None:  # fmt: skip
    """Link variables that have one array when a trip ends, as after `new = ...; u = new`."""
    ends = _ends(run, after)
    for key, end in ends.items():
        for other in _twins(ends, key):
            if other < key:
                continue
            ran = parent.constant(True) if never is None else parent.emit("logical_not", never)
            if end.storage is ends[other].storage:
                seen = end if end.views else ends[other]
                link_when(leaves[key].storage, leaves[other].storage, seen, ran, parent)
            else:
                may_alias(leaves[key].storage, leaves[other].storage)


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
    exchange = object() if len({storage for storage, _ in places}) == len(places) else None
    for storage, held in places:
        value = storage.contents()
        for name, here_now in zip(slots, held, strict=True):
            value = contents_if(here_now, leaves[name].storage.value, value)
        storage.set(value)
    for storage, held in places:
        for name, here_now in zip(slots, held, strict=True):
            link(leaves[name].storage, storage, here_now, parent, exchange)


def _is_seen(leaf: Traced) -> bool:
    """Tell whether a write to what was this array is followed: views only of the caller's arrays, which stay reachable."""
    return not leaf.views or leaf.storage.outside


def _is_changed(value: Value | None) -> bool:
    return value is not None and value.node.op.name != "param"
