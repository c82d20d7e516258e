"""Where the elements of a queue lie, and which comes out next.

A store knows nothing of waiting, types or threads: the queue's core calls it under its lock. `items` is the container,
whose length is the size of the queue; `put_back` undoes a `take`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

__all__ = ["Fifo", "Priority", "Shuffle", "Store"]


class Store(Protocol):
    """What the core of a queue asks of its elements' container."""

    @property
    def items(self) -> Any: ...

    @property
    def kept(self) -> int:
        """How many elements stay while the queue is open."""

    def push(self, item: Any, /) -> None: ...

    def extend(self, items: Sequence[Any], /) -> None: ...

    def pop(self) -> Any: ...

    def take(self, count: int) -> list[Any]: ...

    def put_back(self, items: list[Any]) -> None: ...


class Fifo:
    """First in, first out."""

    kept = 0

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.push, self.extend, self.pop = self.items.append, self.items.extend, self.items.popleft

    def take(self, count: int) -> list[Any]:
        if count == len(self.items):
            found = list(self.items)
            self.items.clear()
            return found
        pop = self.pop
        return [pop() for _ in range(count)]

    def put_back(self, items: list[Any]) -> None:
        self.items.extendleft(reversed(items))


class Shuffle:
    """A uniformly random element first; while the queue is open, `kept` elements stay."""

    def __init__(self, kept: int = 0, seed: Any = None) -> None:
        self.items: list[Any] = []
        self.push, self.extend = self.items.append, self.items.extend
        self.kept, self._random = kept, random.Random(seed).random

    def pop(self) -> Any:
        return self.take(1)[0]

    def take(self, count: int) -> list[Any]:
        """Remove each by putting the last in its place."""
        items, uniform, found = self.items, self._random, []
        for size in range(len(items), len(items) - count, -1):
            chosen, last = int(uniform() * size), items.pop()
            if chosen < size - 1:
                items[chosen], last = last, items[chosen]
            found.append(last)
        return found

    def put_back(self, items: list[Any]) -> None:
        self.items.extend(reversed(items))


class Priority:
    """The smallest priority first, the first component of an element; of equal ones, the first that came."""

    kept = 0

    def __init__(self) -> None:
        self.items: list[tuple[int, int, Any]] = []
        self._first, self._last = (
            0,
            0,
        )  # ranks among equal priorities: of what came back, and of what came

    def push(self, item: Any, /) -> None:
        self._last += 1
        heappush(self.items, (int(item[0]), self._last, item))

    def extend(self, items: Sequence[Any], /) -> None:
        heap, first = self.items, self._last + 1
        for rank, item in enumerate(items, first):
            heappush(heap, (int(item[0]), rank, item))
        self._last += len(items)

    def pop(self) -> Any:
        return heappop(self.items)[2]

    def take(self, count: int) -> list[Any]:
        heap = self.items
        return [heappop(heap)[2] for _ in range(count)]

    def put_back(self, items: list[Any]) -> None:
        for item in reversed(items):
            self._first -= 1
            heappush(self.items, (int(item[0]), self._first, item))
