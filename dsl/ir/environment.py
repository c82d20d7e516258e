"""What a step reaches outside its graph: variables and queues by name, other devices through a rendezvous.

A graph names what it touches; an `Environment` says what the names stand for, for one step. The protocols here are what
ops ask of those things, so that ops import none of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsl.errors import CancelledError, DeadlineError, DslError

__all__ = ["Cancel", "Done", "Environment", "QueueLike", "Rendezvous", "VariableLike", "wait_for"]

Done = Callable[[BaseException | None, Sequence[Any]], None]
"""Called once when what may wait is over: with an error, or with None and the outputs."""
Cancel = Callable[[], object]
"""Makes what waits give up; its `Done` is then called with a CancelledError, if it has not been called."""


class VariableLike(Protocol):
    """A variable. Each call is atomic."""

    def snapshot(self) -> np.ndarray:
        """Return a copy of the value."""

    def update(self, how: str, value: Any) -> np.ndarray:
        """Set the value, or `add` to it or `subtract` from it, and return a copy of it afterwards."""

    def scatter(self, how: str, indices: Any, updates: Any) -> np.ndarray:
        """Do the same to some rows, in order of the indices, and return a copy of the whole value afterwards."""


class QueueLike(Protocol):
    """A queue, as graphs use it."""

    def begin(self, verb: str, components: Sequence[Any], done: Done) -> Cancel:
        """Start `enqueue`, `enqueue_many`, `dequeue`, `dequeue_many`, `dequeue_up_to` or `close`.

        The components are those of an element or batch; of the dequeues of many, the number of elements.
        """

    def size(self) -> int:
        """Return how many elements there are."""


class Rendezvous(Protocol):
    """Where tokens that go from device to device meet whoever waits for them. A key is met once.

    One that reaches other processes has a method `poll(begun)` too, which who waits, for so many things, calls again and again: it
    moves messages, and rests for a moment if there are none.
    """

    def send(self, key: Any, token: Any) -> None:
        """Leave a token, dead ones included."""

    def receive(self, key: Any, done: Done) -> Cancel:
        """Have `done` called with the token."""


class Environment:
    """What the names in a graph stand for, for one step.

    The step ends with an error after `timeout` seconds, or when `cancelled`, which is asked now and then, says so.
    """

    def __init__(
        self,
        resources: Mapping[str, Any] | None = None,
        rendezvous: Rendezvous | None = None,
        services: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.resources, self.rendezvous = resources or {}, rendezvous
        self.services, self.timeout, self.cancelled = services or {}, timeout, cancelled

    def checker(self) -> Callable[[], None]:
        """Return what raises if the step, which begins now, must end."""
        end = None if self.timeout is None else time.monotonic() + self.timeout

        def check() -> None:
            if self.cancelled is not None and self.cancelled():
                raise CancelledError("the step was cancelled")
            if end is not None and time.monotonic() > end:
                raise DeadlineError(f"the step is not done after {self.timeout:g} s")

        return check

    def find(self, name: str) -> Any:
        """Return the variable or queue of a name."""
        try:
            return self.resources[name]
        except KeyError:
            known = ", ".join(sorted(self.resources)) or "none"
            raise DslError(
                f"the graph uses {name!r}, and there is no such variable or queue (known: {known})",
                remedy="make it with that name before the graph runs",
            ) from None

    def service(self, name: str) -> Any:
        """Return what does something for ops that this layer cannot do."""
        try:
            return self.services[name]
        except KeyError:
            raise DslError(
                f"this run has no {name}", remedy="run the graph in a `dsl.Session`"
            ) from None

    def wait(self, begin: Callable[..., Cancel], attrs: Mapping[str, Any], inputs: Any) -> Any:
        """Begin something, wait until it is done, and return its outputs."""
        return wait_for(lambda done: begin(self, attrs, inputs, done), self.timeout)


def wait_for(start: Callable[[Done], Cancel], timeout: float | None) -> Sequence[Any]:
    """Start something, wait in this thread until it is done, and return its outputs or raise its error."""
    over = threading.Event()
    found: list[Any] = []

    def done(error: BaseException | None, outputs: Sequence[Any]) -> None:
        found[:] = [error, outputs]
        over.set()

    cancel = start(done)
    if not over.wait(timeout):
        cancel()
        raise DeadlineError(f"the step waited for {timeout:g} s")
    error, outputs = found
    if error is not None:
        raise error
    return outputs  # type: ignore[no-any-return]
