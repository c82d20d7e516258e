"""What is undone when a loop cannot be built after all, so that it can be traced in another way, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dsl.frontend.scopes import Alias, Scope, Storage

__all__ = ["all_or_nothing", "linked", "same_memory"]


def linked(storage: Storage) -> set[Storage]:
    """Return the storages that may be the same memory as one, through branches that chose between arrays."""
    found: set[Storage] = set()
    pending = [storage]
    while pending:
        here = pending.pop()
        others = [edge.other_than(here) for edge in here.aliases]
        others += [other for ref in here.ambiguous if (other := ref()) is not None]
        pending += [other for other in others if other not in found and other is not storage]
        found.update(others)
    return found


def same_memory(storage: Storage) -> set[Storage]:
    """Return the storages of `linked`, but for those to which only links lead that cannot hold together."""
    found: set[Storage] = set()
    pending: list[tuple[Storage, Alias | None]] = [(storage, None)]
    seen: set[tuple[Storage, object]] = set()
    while pending:
        here, last = pending.pop()
        edges = [edge for edge in here.aliases if edge.follows(last, edge.scope)]
        others: list[tuple[Storage, Alias | None]] = [(e.other_than(here), e) for e in edges]
        others += [(other, None) for ref in here.ambiguous if (other := ref()) is not None]
        for other, edge in others:
            key = (other, edge.exchange if edge is not None else None)
            if key not in seen and other is not storage:
                seen.add(key)
                pending.append((other, edge))
                found.add(other)
    return found


@contextmanager
def all_or_nothing(scope: Scope, storages: Iterable[Storage]) -> Iterator[None]:
    """If an exception leaves the block, put back the effects of a scope, and storages with those that are linked to them.

    Nodes without effects stay in the scope, where nothing reads them.
    """
    roots = set(storages)
    contents = [_Contents(s) for s in roots.union(*map(linked, roots))]
    effects, replaced = dict(scope._last_effect), dict(scope.replaced)
    try:
        yield
    except BaseException:
        for kept in contents:
            kept.put_back()
            if kept.storage not in replaced:
                scope.replaced.pop(kept.storage, None)
        scope._last_effect = effects
        raise


class _Contents:
    """What a storage holds, and which others are its memory, at some point of a trace."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.value, self.scope, self.written = storage.value, storage.scope, storage.written
        self.outside = storage.outside
        self.aliases, self.ambiguous = list(storage.aliases), list(storage.ambiguous)
        self.shares = storage.shares

    def put_back(self) -> None:
        storage = self.storage
        if storage.value is not self.value:
            storage.put(self.value, self.scope)
        storage.written, storage.outside = self.written, self.outside
        storage.aliases, storage.ambiguous = self.aliases, self.ambiguous
        storage.shares = self.shares
