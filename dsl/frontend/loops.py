"""What `for` can loop over in the graph: ranges, traced arrays, and `enumerate`, `zip` and `reversed` of those.

Each is a `Counted`: a trip count, and the item of a given trip. They are also plain Python iterables, for loops that are
unrolled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dsl.errors import LoopTypeError, NonConcreteError, UnsupportedError
from dsl.frontend.accesses import noting
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import Scope, current_scope, here, move
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    as_dim,
    cast,
    concrete,
    fresh,
    lift,
    read,
)
from dsl.frontend.trees import forwarded
from dsl.ir.dims import DimLike
from dsl.ir.graph import Value
from dsl.ir.types import I64

__all__ = [
    "ENDLESS",
    "Counted",
    "Grown",
    "Items",
    "NdIndex",
    "Rows",
    "Span",
    "Unrolled",
    "as_counted",
    "count_",
    "cycle_",
    "enumerate_",
    "finish",
    "range_",
    "reversed_",
    "unroll",
    "zip_",
]


@runtime_checkable
class Counted(Protocol):
    """Something with a known number of items."""

    def trips(self) -> DimLike | Traced: ...
    def item(self, trip: Any) -> Any: ...
    def rest(self, count: int) -> Any: ...


class Unrolled:
    """An iterable that the user wants unrolled."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def unroll(items: Any) -> Any:
    """Loop over `items` in Python while tracing, so that the loop variable is a Python value.

    >>> for k in unroll(range(3)):
    ...     pass
    """
    return Unrolled(items)


class Span:
    """`range(start, stop, step)`, any of them traced."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step

    def trips(self) -> DimLike | Traced:
        if all(isinstance(x, int) for x in (self.start, self.stop, self.step)):
            return len(range(self.start, self.stop, self.step))
        step = self.step
        if not isinstance(step, int):
            count = -((self.start - self.stop) // step)
        else:
            way, size = self.stop - self.start if step > 0 else self.start - self.stop, abs(step)
            count = way if size == 1 else (way + (size - 1)) // size
        return _at_least_zero(lift(count))

    def item(self, trip: Traced) -> Any:
        scaled = trip if isinstance(self.step, int) and self.step == 1 else trip * self.step
        return scaled if isinstance(self.start, int) and self.start == 0 else scaled + self.start

    def __iter__(self) -> Iterator[Any]:
        bounds = [_number(x) for x in (self.start, self.stop, self.step)]
        return iter(range(*bounds))

    def __len__(self) -> int:
        return len(range(*[_number(x) for x in (self.start, self.stop, self.step)]))

    def __getitem__(self, k: Any) -> Any:
        b = current_scope()
        count, given = read(lift(self.trips())), cast(read(lift(k)), I64)
        zero = b.constant(0, I64)
        place = b.emit("where", b.emit("less", given, zero), b.emit("add", given, count), given)
        above, below = b.emit("less_equal", zero, place), b.emit("less", place, count)
        values = (b.emit("logical_and", above, below),)
        message = "range object index out of range"
        b.node("assert", values, {"message": message, "error": "IndexError"})
        return self.start + fresh(place, Kind.PYTHON) * self.step

    def dsl_traced(self) -> Traced:
        """The array that NumPy makes of it."""
        return _FUNCTIONS["arange"](self.start, self.stop, self.step)  # type: ignore[no-any-return]

    def has(self, item: Any) -> Any:
        """`item in range(...)`, of a step that is known."""
        low, high = (self.start, self.stop) if self.step > 0 else (self.stop + 1, self.start + 1)
        inside = (item >= low) & (item < high)
        if abs(self.step) == 1 and lift(item).dtype.kind in "biu":
            return inside
        return inside & ((item - self.start) % self.step == 0)

    def rest(self, count: int) -> Span:
        return Span(self.start + count * self.step, self.stop, self.step)

    def reverse(self) -> Span:
        last = (
            self.start
            + (lift(self.trips()) - 1 if isinstance(self.trips(), Traced) else self.trips() - 1)
            * self.step
        )
        return Span(last, last - self.trips() * self.step, -self.step)


class Counting(Span):
    """`itertools.count(start, step)` of whole numbers: a loop over it ends by a `break`, a `return` or an error."""

    dsl_cursor = True

    def __init__(self, start: Any = 0, step: Any = 1) -> None:
        super().__init__(start, None, step)
        self.dsl_scope: Scope | None = current_scope()
        self._taken = False

    def trips(self) -> int:
        self._refuse_again()
        return ENDLESS

    def finish(self) -> None:
        """Say that a loop of the program has taken numbers from it, nobody knows how many."""
        self._taken = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._refuse_again()
        found = self.start
        move(self, "start", found + self.step)
        return found

    def _refuse_again(self) -> None:
        if self._taken:
            raise UnsupportedError(
                "this goes on counting after a loop, whose number of trips the data decides",
                location=here(), remedy="make another `itertools.count` or `cycle`, from where the loop ended on",
            )  # fmt: skip


class Cycling(Counting):
    """`itertools.cycle(items)` of numbers, tuples of numbers or the rows of an array, as many as `count`."""

    def __init__(self, items: Any, count: int, start: Any = 0) -> None:
        super().__init__(start)
        self.items, self.count = items, count

    def item(self, trip: Any) -> Any:
        return self._at(super().item(trip))

    def __next__(self) -> Any:
        return self._at(super().__next__())

    def rest(self, count: int) -> Cycling:
        return Cycling(self.items, self.count, self.start + count)

    def _at(self, place: Any) -> Any:
        """Return the item at a place, which perhaps only the program knows."""
        from dsl.frontend.sequences import of_numbers

        place = place % self.count
        listed = isinstance(self.items, list) and isinstance(place, Traced)
        items: Any = of_numbers(self.items) if listed else self.items
        return items[place]


def cycle_(items: Any) -> Any:
    """`itertools.cycle`; Python itself goes over items that are not alike, or whose number is not known."""
    from dsl.frontend.sequences import of_numbers

    items = forwarded(items)
    if isinstance(items, Traced) and items.ndim and isinstance(items.type.shape[0], int):
        count = items.type.shape[0]
        return Cycling(items, count) if count else itertools.cycle([])
    known = isinstance(items, (list, tuple, range)) and of_numbers(items) is not None
    return Cycling(list(items), len(items)) if known else itertools.cycle(items)


# More trips than any loop makes.
ENDLESS = 2**62


def count_(start: Any = 0, step: Any = 1) -> Any:
    """`itertools.count`; Python itself counts by floats."""
    whole = all(isinstance(x, int) or lift(x).dtype.kind in "iu" for x in (start, step))
    return Counting(start, step) if whole else itertools.count(start, step)


def _at_least_zero(count: Traced) -> Traced:
    b = current_scope()
    value = cast(read(count), I64)
    return fresh(b.emit("maximum", value, b.constant(0, I64)), Kind.PYTHON)


def _number(x: Any) -> int:
    if isinstance(x, Traced):
        known = concrete(x)
        if known is None:
            raise NonConcreteError(
                "this range has a length that is known only when the compiled function runs, so it cannot be iterated here",
                location=here(),
                remedy="write it as a `for` statement of its own, not inside a comprehension or a call",
            )
        return int(known)
    return int(x)


def range_(*args: Any) -> Any:
    """`range`, also of traced integers."""
    args = tuple(_plain(a) for a in args)
    if not any(isinstance(a, Traced) for a in args):
        return range(*args)
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    for bound in (start, stop, step):
        if isinstance(bound, Traced) and bound.dtype.kind not in "iu":
            raise TypeError(f"'{bound.dtype}' object cannot be interpreted as an integer")
    if isinstance(step, Traced):
        error = {"message": "range() arg 3 must not be zero", "error": "ValueError"}
        current_scope().node("assert", (read(lift(step != 0)),), error)
    return Span(_python_int(start), _python_int(stop), _python_int(step))


def _plain(a: Any) -> Any:
    if isinstance(a, Traced):
        known = concrete(a)
        return a if known is None or a.dtype.kind not in "iu" else int(known)
    return a


def _python_int(x: Any) -> Any:
    return fresh(cast(read(x), I64), Kind.PYTHON) if isinstance(x, Traced) else x


class Rows:
    """The items of a traced array along its first axis."""

    def __init__(self, array: Traced) -> None:
        self.array = array

    def trips(self) -> DimLike:
        return self.array.type.shape[0]

    def item(self, trip: Traced) -> Any:
        with noting(False):
            return self.array[trip]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def rest(self, count: int) -> Rows:
        return Rows(self.array[count:])

    def reverse(self) -> Rows:
        return Rows(self.array[::-1])


class Items:
    """The items of a list whose length the data decides."""

    def __init__(self, items: TracedList) -> None:
        self.items, self._trips = items, items.columns[0].type.shape[0]

    def trips(self) -> DimLike:
        return self._trips  # type: ignore[no-any-return]

    def item(self, trip: Traced) -> Any:
        with noting(False):
            return self.items[trip]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def rest(self, count: int) -> Items:
        return Items(self.items[count:])

    def reverse(self) -> Items:
        return Items(self.items[::-1])

    def has_changed(self) -> bool:
        """Tell whether the list is of another length now."""
        return self.items.columns[0].type.shape[0] != self._trips  # type: ignore[no-any-return]


def refuse_growing() -> None:
    """Refuse a loop that makes a list longer or shorter: Python would loop over what it is then."""
    raise LoopTypeError(
        "a list whose length the data decides grows or shrinks while a loop goes over it",
        location=here(), remedy="loop over a copy of it (`for item in items.copy():`), or with `while`",
    )  # fmt: skip


def lists_in(counted: Any) -> list[Items]:
    """Return the traced lists that a loop goes over, also those that are zipped."""
    return [part for part in _parts_of(counted) if isinstance(part, Items)]


def finish(counted: Any) -> None:
    """Say that a loop of the program has gone over something."""
    for part in _parts_of(counted):
        if isinstance(part, Counting):
            part.finish()


def _parts_of(counted: Any) -> list[Any]:
    """Return what is zipped, however deep, or the thing itself."""
    if isinstance(counted, Zipped):
        return [found for part in counted.parts for found in _parts_of(part)]
    return [counted]


class Grown:
    """Stands for the rest of a list that has become a traced one while a loop went over it."""


def items_now(items: Any) -> Iterator[Any]:
    """Go over items, those of a list as it is at each step; if the data decides its length by then, end with `Grown`."""
    if type(items) is not list:
        yield from items
        return
    k = 0
    while type(forwarded(items)) is list and k < len(items):
        yield items[k]
        k += 1
    if forwarded(items) is not items:
        yield Grown()


def _steady(items: Any) -> Iterator[Any]:
    """Go over the items of a list that does not become a traced one meanwhile."""
    for item in items_now(items):
        if isinstance(item, Grown):
            refuse_growing()
        yield item


class Zipped:
    """Several counted iterables side by side, as long as the shortest."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def trips(self) -> DimLike | Traced:
        counts = [part.trips() for part in self.parts]
        if all(isinstance(c, int) for c in counts):
            return min(counts)  # type: ignore[no-any-return]
        least = trip_value(counts[0])
        for count in counts[1:]:
            least = current_scope().emit("minimum", least, trip_value(count))
        return fresh(least, Kind.PYTHON)

    def item(self, trip: Traced) -> tuple[Any, ...]:
        return tuple(part.item(trip) for part in self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*self.parts, strict=False))

    def rest(self, count: int) -> Zipped:
        return Zipped([part.rest(count) for part in self.parts])

    def reverse(self) -> Any:
        return list(self)[::-1]


class NdIndex:
    """`np.ndindex` of a static shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def trips(self) -> DimLike:
        return int(np.prod(self.shape, dtype=np.int64))

    def item(self, trip: Traced) -> tuple[Any, ...]:
        indices: list[Any] = []
        for size in reversed(self.shape):
            indices.append(trip % size)
            trip = trip // size
        return tuple(reversed(indices))

    def rest(self, count: int) -> list[Any]:
        return list(self)[count:]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.ndindex(*self.shape))


def trip_value(count: Any) -> Value:
    """Return a trip count as a rank-0 int64 value."""
    if isinstance(count, Traced):
        return cast(read(count), I64)
    return current_scope().size(count)


def fresh_count(counted: Any) -> Any:
    """Return how many items there are as a number of Python's."""
    return fresh(trip_value(counted.trips()), Kind.PYTHON)


def as_counted(items: Any) -> Any:
    """Return `items` as something to loop over in the graph, or None if only Python can."""
    if isinstance(items, range):
        return Span(items.start, items.stop, items.step)
    if isinstance(items, Traced):
        return Rows(items) if items.ndim else None
    if isinstance(items, TracedList):
        return Items(items)
    return items if isinstance(items, (Span, Rows, Items, Zipped, NdIndex)) else None


def enumerate_(items: Any, start: Any = 0) -> Any:
    """`enumerate`, also of traced arrays."""
    counted = as_counted(items)
    if counted is None:
        return enumerate(_steady(items) if type(items) is list else items, start)
    count = counted.trips()
    return Zipped(
        [
            Span(
                start,
                start
                + (
                    count
                    if isinstance(count, (int, Traced))
                    else fresh(current_scope().size(count), Kind.PYTHON)
                ),
                1,
            ),
            counted,
        ]
    )


def zip_(*items: Any, strict: bool = False) -> Any:
    """`zip`, also of traced arrays."""
    counted = [as_counted(i) for i in items]
    if not items or any(c is None for c in counted):
        steady = (_steady(part) if type(part) is list else part for part in items)
        return zip(*steady, strict=strict)
    if strict:
        _require_equal([c.trips() for c in counted])
    return Zipped(counted)


def _require_equal(counts: list[Any]) -> None:
    """Raise what a strict `zip` raises for iterables of different lengths, now or when the program runs."""
    first, scope = counts[0], current_scope()
    for k, count in enumerate(counts[1:], 2):
        for words, test in (("shorter", "greater_equal"), ("longer", "less_equal")):
            message = (
                f"zip() argument {k} is {words} than argument{' 1' if k == 2 else f's 1-{k - 1}'}"
            )
            if isinstance(count, int) and isinstance(first, int):
                if not getattr(np, test)(count, first):
                    raise ValueError(message)
                continue
            flag = scope.emit(test, trip_value(count), trip_value(first))
            scope.node("assert", (flag,), {"message": message, "error": "ValueError"})


def reversed_(items: Any) -> Any:
    """`reversed`, also of traced arrays and ranges."""
    counted = as_counted(items)
    return reversed(items) if counted is None else counted.reverse()


def dim_of(x: Any) -> DimLike:
    return as_dim(x)
