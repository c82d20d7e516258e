"""The ranks that run a program together, as ops see them.

Ops of `dsl.ir.ops.comm` ask `communicator()`, which is a world of one until somebody provides another: under `mpirun`
that is `dsl.mpi.collectives`. Arrays that come in are only read, during the call; those that go out are new.

Whoever runs an op may say where its result is wanted (`place_for`), and then finds it there, or elsewhere.
`current_location()` is the user's line of the op that is running, for messages about ranks that do different things.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from dsl.errors import InternalError
from dsl.ir.location import Location

__all__ = [
    "NOBODY", "REDUCTIONS", "UFUNCS", "Alone", "Communicator", "at_location", "communicator", "current_location", "place_for",
    "provide", "wanted_place",
]  # fmt: skip

UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip
"""How two ranks' elements are combined, by the reduction."""

REDUCTIONS = tuple(UFUNCS)
NOBODY = -1
"""The partner of a rank at an edge: nothing is sent there, and zeros come from there."""


class Communicator(Protocol):
    """What ranks do together. All of them call the same methods in the same order; those for one pair, that pair."""

    def __hash__(self) -> int:
        """Be a key, of what is known about calls."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_reduce(self, x: np.ndarray, how: str) -> np.ndarray:
        """Return the `sum`, `mean`, `max`, `min` or `prod` over the ranks."""

    def all_reduce_now(self, x: np.ndarray, how: str, where: Callable[[], Location | None]) -> Any:
        """Return the same, quicker; or NotImplemented, with nothing done. `where` tells the user's line if ranks must wait."""

    def reduce_to(self, x: np.ndarray, how: str, root: int) -> np.ndarray:
        """Return that on the root, and zeros elsewhere."""

    def broadcast_from(self, x: np.ndarray, root: int) -> np.ndarray:
        """Return the root's array."""

    def gather_to(self, x: np.ndarray, root: int) -> np.ndarray:
        """Return all arrays in a stack on the root, and zeros elsewhere."""

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """Return all arrays in a stack."""

    def scatter_from(self, x: np.ndarray, root: int) -> np.ndarray:
        """Return the root's row for this rank."""

    def reduce_scatter(self, x: np.ndarray, how: str) -> np.ndarray:
        """Return this rank's row of the reduction over the ranks."""

    def all_to_all(self, x: np.ndarray) -> np.ndarray:
        """Return, in a stack, every rank's row for this rank."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def send_to(self, x: np.ndarray, dest: int, tag: int) -> None:
        """Send an array; return when it may be written again."""

    def recv_from(self, like: np.ndarray, source: int, tag: int) -> np.ndarray:
        """Return the array that was sent, which must be `like` this one in dtype and shape."""

    def exchange(self, x: np.ndarray, dest: int, source: int, tag: int) -> np.ndarray:
        """Send to one rank and receive from another at the same time; either may be NOBODY."""

    def start(self, xs: Sequence[np.ndarray], how: str) -> int:
        """Begin to reduce arrays of one dtype over the ranks; return the number of what is under way."""

    def wait(self, number: int) -> list[np.ndarray]:
        """Return what was started."""


class Alone:
    """A world of one rank: everything comes back."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self._sent: dict[int, list[np.ndarray]] = {}
        self._started: dict[int, list[np.ndarray]] = {}
        self._count = 0

    def all_reduce(self, x: np.ndarray, how: str) -> np.ndarray:
        return np.array(x)

    def all_reduce_now(self, x: np.ndarray, how: str, where: Callable[[], Location | None]) -> Any:
        return NotImplemented

    def reduce_to(self, x: np.ndarray, how: str, root: int) -> np.ndarray:
        return np.array(x)

    def broadcast_from(self, x: np.ndarray, root: int) -> np.ndarray:
        return np.array(x)

    def gather_to(self, x: np.ndarray, root: int) -> np.ndarray:
        return np.array(x)[None]

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        return np.array(x)[None]

    def scatter_from(self, x: np.ndarray, root: int) -> np.ndarray:
        return np.array(x[0])

    def reduce_scatter(self, x: np.ndarray, how: str) -> np.ndarray:
        return np.array(x[0])

    def all_to_all(self, x: np.ndarray) -> np.ndarray:
        return np.array(x)

    def barrier(self) -> None:
        return

    def send_to(self, x: np.ndarray, dest: int, tag: int) -> None:
        self._sent.setdefault(tag, []).append(np.array(x))

    def recv_from(self, like: np.ndarray, source: int, tag: int) -> np.ndarray:
        found = self._sent.get(tag)
        if not found:
            raise InternalError(f"rank 0 waits for itself to send with tag {tag}")
        return found.pop(0)

    def exchange(self, x: np.ndarray, dest: int, source: int, tag: int) -> np.ndarray:
        return np.zeros_like(x) if NOBODY in (dest, source) else np.array(x)

    def start(self, xs: Sequence[np.ndarray], how: str) -> int:
        self._count += 1
        self._started[self._count] = [np.array(x) for x in xs]
        return self._count

    def wait(self, number: int) -> list[np.ndarray]:
        return self._started.pop(number)


_made: list[Communicator] = [Alone()]
_makers: list[Callable[[], Communicator]] = []


def communicator() -> Communicator:
    """Return the ranks that this process is one of."""
    if _makers:
        _made.append(
            _makers[-1]()
        )  # if that fails, the next call tries again: a rank is never taken for one alone
        _makers.clear()
    return _made[-1]


def provide(make: Callable[[], Communicator]) -> None:
    """Say what `communicator()` is from its next call on."""
    _makers.append(make)


class _Place(threading.local):
    def __init__(self) -> None:
        self.location: Location | None = None
        self.result: np.ndarray | None = None


_place = _Place()


def current_location() -> Location | None:
    """Return the user's line of the op that runs in this thread."""
    return _place.location


def wanted_place(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """Return the memory in which a result of this shape and dtype is wanted, once, or None."""
    wanted = _place.result
    if wanted is None:
        return None
    _place.result = None
    fits = (wanted.shape, wanted.dtype) == (shape, dtype)
    return wanted if fits else None


@contextmanager
def place_for(result: np.ndarray) -> Iterator[None]:
    """Say where the result of the op that runs is wanted."""
    _place.result = result
    try:
        yield
    finally:
        _place.result = None


class at_location:
    """Say whose line it is that runs. A class, since a generator costs more than what it is put around."""

    __slots__ = ("_before", "_location")

    def __init__(self, location: Location | None) -> None:
        self._location = location

    def __enter__(self) -> None:
        self._before, _place.location = _place.location, self._location

    def __exit__(self, *error: object) -> None:
        _place.location = self._before
