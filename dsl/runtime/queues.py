"""Queues of arrays between threads: first in first out, shuffled, padded, by priority.

A queue has a capacity, and elements of one or more components, each with a dtype and, if given, a shape. `dtypes` says how an
element is held: one dtype, and an element is an array; a list of dtypes, a tuple; a list with `names`, or a dict, a dict.
Elements are copied when they go in.

What waits, waits in order, each kind of attempt in its line:
- `enqueue` waits for room; a closed queue raises CancelledError. `enqueue_many` puts its elements in one by one.
- `dequeue` waits for an element; a closed and empty queue raises OutOfRangeError. `dequeue_many(n)` gathers n elements as they
  come; if the queue is closed before there are n, those it has go back to the front and OutOfRangeError is raised, where
  `dequeue_up_to(n)` returns them. Batches need the shape of every component.
- `close()` lets those that wait for room go in first and refuses what comes later; `close(cancel_pending_enqueues=True)` cancels
  them. What is in the queue can be dequeued.

Every call that waits takes `timeout` in seconds; a DeadlineError leaves the queue as if the call had not been made, but for
elements of an `enqueue_many` that had gone in, which `error.completed` counts. The `try_..._async` forms never wait: they
return a ticket, which can be cancelled or waited for, and call `callback(error, value)` when the attempt is over, in
whichever thread ended it, outside all locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from dsl.errors import ConfigError, DslError, OutOfRangeError, ShapeError
from dsl.ir.environment import Cancel, Done
from dsl.runtime.core import UNBOUNDED, Core
from dsl.runtime.elements import Layout, PartialShape, make_layout
from dsl.runtime.stores import Fifo, Priority, Shuffle, Store
from dsl.runtime.tickets import Callback, Put, Take, Ticket

__all__ = ["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "Queue", "RandomShuffleQueue"]


class Queue:
    """What all queues do; the kinds differ in the order of elements and in what shapes they take."""

    _rows_own_memory = True  # for an order in which a row may outlive the rest of its batch

    def __init__(
        self, store: Store, capacity: int | None, layout: Layout, label: str, name: str
    ) -> None:
        self.name = name
        self._layout, self._pack = layout, layout.pack
        self._core = Core(store, _checked_capacity(label, capacity), label)
        self._put, self._take = self._core.put, self._core.take
        self._made()

    def _made(self) -> None:
        """For those who want to know that there is a queue."""

    # --- What it holds ---------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """How many elements fit; -1 for any number."""
        return -1 if self._core.capacity == UNBOUNDED else self._core.capacity

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtype of each component."""
        return tuple(component.dtype for component in self._layout.components)

    @property
    def shapes(self) -> tuple[PartialShape | None, ...]:
        """The shape of each component; None for an unknown one."""
        return tuple(component.shape for component in self._layout.components)

    @property
    def names(self) -> tuple[Any, ...] | None:
        """The keys of the components; None for a queue of single arrays."""
        return self._layout.keys

    def size(self) -> int:
        """Return how many elements are in the queue now."""
        return self._core.size()

    def is_closed(self) -> bool:
        """Return whether nothing comes in any more."""
        return self._core.closed

    def __repr__(self) -> str:
        return f"<{self._core.state()} {self._layout}>"

    # --- Waiting calls ---------------------------------------------------------------------------

    def enqueue(self, element: Any, timeout: float | None = None) -> None:
        """Put one element in, waiting for room."""
        self._put(self._pack(element), timeout)

    def enqueue_many(self, batch: Any, timeout: float | None = None) -> None:
        """Put in the elements of a batch, which are the rows of each component, one by one as there is room."""
        self._core.put_many(self._split(batch), timeout)

    def dequeue(self, timeout: float | None = None) -> Any:
        """Take one element out, waiting for it."""
        element = self._take(timeout)
        return self._layout.unpack(element) if self._layout.is_dict else element

    def dequeue_many(self, n: int, timeout: float | None = None) -> Any:
        """Take `n` elements out as one batch, waiting for them."""
        self._check_batch("dequeue_many", n)
        return self._layout.unpack_many(self._core.take_many(n, timeout) if n else [])

    def dequeue_up_to(self, n: int, timeout: float | None = None) -> Any:
        """Take `n` elements out as one batch, waiting for them; of a closed queue, what is left if that is fewer."""
        self._check_batch("dequeue_up_to", n)
        return self._layout.unpack_many(self._core.take_many(n, timeout, True) if n else [])

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Let nothing more in. Returns at once; what waits for room goes in first, or is cancelled.

        A second close raises AbortedError, unless it cancels.
        """
        ticket = self._core.close(cancel_pending_enqueues)
        if ticket.error is not None:
            raise ticket.error

    def __iter__(self) -> Iterator[Any]:
        """Dequeue until the queue is closed and empty."""
        while True:
            try:
                element = self.dequeue()
            except OutOfRangeError:
                return
            yield element

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, if nobody has; after an exception, cancelling what waits for room."""
        if kind is not None or not self._core.is_closing():
            self._core.close(cancel=kind is not None)

    # --- Calls that never wait -------------------------------------------------------------------

    def try_enqueue_async(self, element: Any, callback: Callback | None = None) -> Ticket:
        """Have one element put in when there is room."""
        return self._submit(Put(self._core, "enqueue", (self._pack(element),), callback))

    def try_enqueue_many_async(self, batch: Any, callback: Callback | None = None) -> Ticket:
        """Have the elements of a batch put in as room appears."""
        return self._submit(Put(self._core, "enqueue_many", self._split(batch), callback))

    def try_dequeue_async(self, callback: Callback | None = None) -> Ticket:
        """Have one element taken out when there is one."""
        finish = self._layout.unpack_first
        return self._submit(Take(self._core, "dequeue", 1, False, finish, callback))

    def try_dequeue_many_async(
        self, n: int, callback: Callback | None = None, *, up_to: bool = False
    ) -> Ticket:
        """Have `n` elements taken out as one batch; with `up_to`, what is left of a closed queue."""
        verb = "dequeue_up_to" if up_to else "dequeue_many"
        self._check_batch(verb, n)
        return self._submit(Take(self._core, verb, n, up_to, self._layout.unpack_many, callback))

    def try_close_async(
        self, cancel_pending_enqueues: bool = False, callback: Callback | None = None
    ) -> Ticket:
        """Have the queue closed behind what waits for room, or now. The ticket cannot be cancelled."""
        return self._core.close(cancel_pending_enqueues, callback)

    # --- For graphs ------------------------------------------------------------------------------

    def begin(self, verb: str, components: Sequence[Any], done: Done) -> Cancel:
        """Start what a node of a graph asks for; `done` gets the components of the result."""

        def callback(error: DslError | None, value: Any) -> None:
            done(error, () if error or not verb.startswith("dequeue") else self._components(value))

        return self._attempt(verb, components, callback).cancel

    def _attempt(self, verb: str, components: Sequence[Any], callback: Callback) -> Ticket:
        if verb == "dequeue":
            return self.try_dequeue_async(callback)
        if verb.startswith("dequeue"):
            up_to = verb == "dequeue_up_to"
            return self.try_dequeue_many_async(int(components[0]), callback, up_to=up_to)
        if verb == "enqueue":
            return self.try_enqueue_async(self._element(components), callback)
        if verb == "enqueue_many":
            return self.try_enqueue_many_async(self._element(components), callback)
        return self.try_close_async(verb == "cancel_and_close", callback)

    def _element(self, components: Sequence[Any]) -> Any:
        keys = self._layout.keys
        if keys is None:
            return components[0]
        return dict(zip(keys, components)) if self._layout.is_dict else tuple(components)

    def _components(self, element: Any) -> tuple[Any, ...]:
        if self._layout.keys is None:
            return (element,)
        return tuple(element.values() if self._layout.is_dict else element)

    # --- Helpers ---------------------------------------------------------------------------------

    def _submit(self, ticket: Ticket) -> Ticket:
        self._core.submit(ticket)
        return ticket

    def _split(self, batch: Any) -> list[Any]:
        return self._layout.pack_many(batch, self._rows_own_memory)

    def _check_batch(self, verb: str, n: Any) -> None:
        if not isinstance(n, int | np.integer) or n < 0:
            raise ConfigError(f"{verb}: n must be a number of elements, 0 or more, got {n!r}")
        for component in self._layout.components:
            if component.shape is None:
                raise ShapeError(
                    f"{verb} needs the shape of every component, and {component.label} has none",
                    remedy="give `shapes` when you make the queue, or dequeue one element at a time",
                )


class FIFOQueue(Queue):
    """First in, first out.

    >>> queue = FIFOQueue(10, np.float64, ())
    >>> queue.enqueue_many([1.0, 2.0, 3.0])
    >>> queue.dequeue(), queue.dequeue_many(2)
    (np.float64(1.0), array([2., 3.]))
    """

    _rows_own_memory = False

    def __init__(
        self, capacity: int | None, dtypes: Any, shapes: Any = None,
        names: Sequence[str] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        label, name = _labels("FIFOQueue", name)
        layout = make_layout(label, dtypes, shapes, names)
        _check_whole(label, layout)
        super().__init__(Fifo(), capacity, layout, label, name)


class RandomShuffleQueue(Queue):
    """A uniformly random element first. While the queue is open, `min_after_dequeue` elements stay, to be mixed with.

    With a `seed`, the same calls in the same order give the same elements.

    >>> queue = RandomShuffleQueue(10, 0, np.int64, (), seed=1)
    >>> queue.enqueue_many([1, 2, 3])
    >>> sorted(queue.dequeue_many(3).tolist())
    [1, 2, 3]
    """

    def __init__(
        self, capacity: int | None, min_after_dequeue: int, dtypes: Any, shapes: Any = None,
        names: Sequence[str] | None = None, seed: int | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        label, name = _labels("RandomShuffleQueue", name)
        layout = make_layout(label, dtypes, shapes, names)
        _check_whole(label, layout)
        super().__init__(Shuffle(min_after_dequeue, seed), capacity, layout, label, name)
        self.min_after_dequeue, self.seed = min_after_dequeue, seed
        if not 0 <= min_after_dequeue < self._core.capacity:
            raise ConfigError(
                f"{label}: min_after_dequeue must be 0 or more and less than the capacity, got {min_after_dequeue}"
            )


class PaddingFIFOQueue(Queue):
    """First in, first out, of arrays whose sizes differ: `None` in a shape is any size.

    A batch has the largest size of its elements there, and zeros where an element has none of its own.

    >>> queue = PaddingFIFOQueue(10, np.int64, (None,))
    >>> queue.enqueue([1, 2])
    >>> queue.enqueue([3])
    >>> queue.dequeue_many(2)
    array([[1, 2],
           [3, 0]])
    """

    _rows_own_memory = False

    def __init__(
        self, capacity: int | None, dtypes: Any, shapes: Any,
        names: Sequence[str] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        label, name = _labels("PaddingFIFOQueue", name)
        layout = make_layout(label, dtypes, shapes, names)
        for component in layout.components:
            if component.shape is None:
                raise ShapeError(
                    f"the number of axes of {component.label} must be known",
                    remedy="give `shapes`, with None for a size",
                )
        super().__init__(Fifo(), capacity, layout, label, name)


class PriorityQueue(Queue):
    """The smallest priority first; of equal ones, first in, first out.

    An element is the priority, an int, and then the components: `(3, x)`; with names, the entry `"priority"`.

    >>> queue = PriorityQueue(10, [np.float64], [()])
    >>> queue.enqueue((3, 0.5))
    >>> queue.enqueue((1, 1.5))
    >>> queue.dequeue()
    (np.int64(1), np.float64(1.5))
    """

    def __init__(
        self, capacity: int | None, dtypes: Any, shapes: Any = None,
        names: Sequence[str] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        label, name = _labels("PriorityQueue", name)
        layout = make_layout(label, *_with_priority(dtypes, shapes, names))
        _check_whole(label, layout)
        super().__init__(Priority(), capacity, layout, label, name)


def _with_priority(dtypes: Any, shapes: Any, names: Sequence[str] | None) -> tuple[Any, Any, Any]:
    if isinstance(dtypes, dict):
        shapes = shapes or {}
        return {"priority": np.int64, **dtypes}, {"priority": (), **shapes}, None
    if not isinstance(dtypes, tuple | list):
        dtypes, shapes = [dtypes], [shapes]
    shapes = [None] * len(dtypes) if shapes is None else shapes
    return [np.int64, *dtypes], [(), *shapes], None if names is None else ["priority", *names]


def _labels(kind: str, name: str | None) -> tuple[str, str]:
    """Return what messages call a queue, and its name."""
    return (kind if name is None else f"{kind} {name!r}"), name or kind


def _checked_capacity(label: str, capacity: Any) -> int:
    if capacity is None or capacity == -1:
        return UNBOUNDED
    if not isinstance(capacity, int | np.integer) or capacity < 1:
        raise ConfigError(
            f"{label}: capacity must be 1 or more, or -1 for no limit, got {capacity!r}"
        )
    return int(capacity)


def _check_whole(label: str, layout: Layout) -> None:
    for component in layout.components:
        if None in (component.shape or ()):
            raise ShapeError(
                f"{component.label} has a size that is not known: {component}",
                remedy="use a PaddingFIFOQueue, or leave the shape out and dequeue one element at a time",
            )
