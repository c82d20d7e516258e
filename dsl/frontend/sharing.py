"""Arrays, lists and objects that were put into a list that grows in traced code: the list keeps copies of them.

In Python `rows.append(row)` puts the very array into the list, and a later change of `row` shows in `rows`, as one of `rows[0]` shows
in `row`. Here they are storages of their own, so each of them knows the others that stand for the same array. A change of one that
would have to show in another is refused, as long as the other can still be read. Containers are known by their identity instead.
"""

from __future__ import annotations

import enum
import functools
import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsl.errors import AliasError
from dsl.frontend.scopes import Scope, Storage, Trace, current_trace, here
from dsl.ir.location import Location

__all__ = [
    "Sharing",
    "carry",
    "follow",
    "hold",
    "others",
    "put_in",
    "refuse_change",
    "refuse_shared",
    "share",
]

_REMEDY = "put a copy into the list (`rows.append(row.copy())`), or change it before it is put in"


class Sharing(enum.Enum):
    """What another storage is: it has the same arrays, or is that of the same list before it changed, or after."""

    ITEM = "item"
    EARLIER = "earlier"
    LATER = "later"


@dataclass(frozen=True)
class Share:
    """Another storage that stands for the same arrays, and where that came about.

    An earlier one of a list can be read only by items that were taken from it.
    """

    other: weakref.ref[Storage]
    kind: Sharing
    loc: Location | None


_BACK = {Sharing.ITEM: Sharing.ITEM, Sharing.EARLIER: Sharing.LATER, Sharing.LATER: Sharing.EARLIER}


def share(
    one: Storage, two: Storage, kind: Sharing = Sharing.ITEM, loc: Location | None = None
) -> None:
    """Record that two storages stand for the same arrays, and what the second is."""
    loc = loc or here()
    _add(one, two, kind, loc)
    if one is not two:
        _add(two, one, _BACK[kind], loc)


def _add(one: Storage, two: Storage, kind: Sharing, loc: Location | None) -> None:
    known = [each for other, each in others(one) if other is two]
    if any(each.kind is Sharing.ITEM for each in known):
        return
    kept = [each for other, each in others(one) if other is not two]
    one.shares = [*kept, Share(weakref.ref(two), kind, loc)]


def others(storage: Storage) -> Iterator[tuple[Storage, Share]]:
    """Yield the storages for the same arrays that are left."""
    for each in storage.shares:
        other = each.other()
        if other is not None:
            yield other, each


def follow(new: Storage, old: Storage, kind: Sharing = Sharing.EARLIER) -> None:
    """Let a list's new storage stand for what the old one does."""
    for other, each in list(others(old)):
        if each.kind is not Sharing.LATER:
            share(new, new if other is old else other, each.kind, each.loc)
    share(new, old, kind)


def put_in(new: Storage, old: Storage, item: Storage) -> None:
    """Record that a list, with an old and a new storage, has got an array."""
    if item is old or any(other is old for other, _ in others(item)):
        share(new, new)
    if item is old:
        return
    for other, each in list(others(item)):
        if other is not new:
            share(new, other, each.kind, each.loc)
    share(new, item)


def carry(
    pairs: list[tuple[Storage, Storage]], scope: Scope, known: Mapping[Storage, Storage]
) -> None:
    """Let what a block leaves share as it did inside: with one another, and with what is seen from a scope.

    `pairs` are storages inside and outside, `known` those outside that storages inside stand for.
    """
    for old, new in pairs:
        if not old.shares and old.viewers is None:
            continue
        for other, each in list(others(old)):
            for outside in _outside(old, new, other, pairs, scope, known):
                share(new, outside, each.kind, each.loc)
        for twin in [n for o, n in pairs if o is old and n is not new and o.viewers is not None]:
            share(new, twin)


def _outside(
    old: Storage,
    new: Storage,
    other: Storage,
    pairs: list[tuple[Storage, Storage]],
    scope: Scope,
    known: Mapping[Storage, Storage],
) -> list[Storage]:
    """Return what a storage that shares with an old one is outside."""
    if other is old:
        return [new]
    found = [n for o, n in pairs if o is other]
    found += [known[other]] if other in known else []
    return [*found, other] if other.scope.encloses(scope) else found


def refuse_shared(storage: Storage, path: Iterable[Storage] = ()) -> None:
    """Refuse to change an array of which a list, or a variable, has a copy that would have to change too.

    If only this function can read the copy, and no loop around carries it, it is enough to refuse to read it afterwards.
    """
    trace = current_trace()
    if trace is None:
        return
    if any(_must_change(other, storage, trace.root) for other, _ in _seen(storage, path, trace)):
        gc.collect()  # what no variable holds any more may be in a cycle
    for other, each in _seen(storage, path, trace):
        if _must_change(other, storage, trace.root):
            _refuse(each, here())
        if other.stale is None:
            other.stale = functools.partial(_refuse, each, here())
            trace.outdated.append(other)


def _seen(
    storage: Storage, path: Iterable[Storage], trace: Trace
) -> Iterator[tuple[Storage, Share]]:
    """Yield the storages for the same arrays, apart from some, that the program can still read."""
    for other, each in others(storage):
        if not any(other is s for s in path) and _is_seen(other, each, trace.scopes[-1]):
            yield other, each


def _must_change(other: Storage, storage: Storage, root: Scope) -> bool:
    """Tell whether it is not enough to refuse reads of a storage after another for the same arrays has changed."""
    return other is storage or other.outside or other.scope is not root


def _refuse(each: Share, where: Location | None) -> None:
    """Say that what is changed somewhere is in a list too."""
    remedy = "copy the item (`row = rows[k].copy()`), or take it from the list again"
    text = "which was taken from a list that has got or lost items since"
    if each.kind is Sharing.ITEM:
        text, remedy = f"which was put into a list at {each.loc}", _REMEDY
    raise AliasError(
        f"this changes an array, {text}: a list that grows in traced code keeps copies, so that the change does not show everywhere",
        location=where, remedy=remedy,
    )  # fmt: skip


def _is_seen(storage: Storage, each: Share, scope: Scope) -> bool:
    """Tell whether the program can still read a storage."""
    known = storage.scope.encloses(scope)
    return known and (each.kind is not Sharing.EARLIER or _is_viewed(storage, scope))


def _is_viewed(storage: Storage, scope: Scope) -> bool:
    """Tell whether something that can be read here is a part of a storage."""
    viewers = storage.viewers or []
    return any(view() is not None and made.encloses(scope) for view, made in viewers)


# -- containers --------------------------------------------------------------------------------------------------------


def hold(part: Any) -> None:
    """Record that a list, dict or object is an item of a traced list."""
    trace = current_trace()
    if trace is not None:
        trace.held[id(part)] = (part, here())


def note_doubled(structure: Any) -> None:
    """Record that a traced list has items of a structure more than once."""
    trace = current_trace()
    if trace is not None and structure not in trace.doubled:
        trace.doubled.append(structure)


def refuse_change(item: Any) -> None:
    """Refuse to change a container of which a traced list has a copy."""
    trace = current_trace()
    if trace is None or id(item) not in trace.held:
        return
    raise AliasError(
        f"this changes a list, dict or object that is an item of a list, put in at {trace.held[id(item)][1]}: a list that grows in "
        "traced code keeps copies, so that the change would not show there",
        location=here(), remedy=_REMEDY,
    )  # fmt: skip
