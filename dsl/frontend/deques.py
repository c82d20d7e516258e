"""`deque(maxlen=n)` in traced code: a tree of its items, so that branches and loops follow it while its length stays.

What has no `maxlen` is a list in traced code, which may also grow.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

__all__ = ["BoundedDeque", "bounded"]


class BoundedDeque(collections.deque[Any]):
    """A deque with a limit, which is one of its class, so that it is part of a tree's structure."""

    limit: int

    def dsl_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(range(len(self))), tuple(self)

    @classmethod
    def dsl_unflatten(cls, keys: tuple[Any, ...], children: list[Any]) -> BoundedDeque:
        return cls(children, cls.limit)

    def dsl_refill(self, other: BoundedDeque) -> None:
        from dsl.frontend.state import keep

        items = list(other)
        if len(items) == len(self):
            items = [keep(old, new) for old, new in zip(self, items, strict=True)]
        self.clear()
        self.extend(items)


@functools.cache
def _class_of(limit: int) -> type[BoundedDeque]:
    return type("deque", (BoundedDeque,), {"limit": limit})


def bounded(items: Any, limit: int) -> BoundedDeque:
    """Return a deque of items that holds the last `limit` of them."""
    return _class_of(limit)(items, limit)
