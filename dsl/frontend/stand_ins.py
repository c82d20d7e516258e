"""Numbers in lists and dicts outside that change from call to call: what tracing sees in place of such a container.

In: a container from outside, and where numbers in it have changed since an earlier trace (`Trace.loose`). Out: a copy of it with inputs
in place of these numbers. Whatever reads it, Python itself included, finds the inputs. What is put into the copy would be lost, so
that this is refused: then the function is compiled for the numbers. A container of which an attribute is opened to be changed gets the
inputs itself, until it is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from dsl.errors import NonConcreteError

__all__ = ["StandIns"]

Capture = Callable[[Any, Any, Any], Any]


@dataclass
class StandIns:
    """The containers in one trace that others stand for."""

    loose: frozenset[Any] = frozenset()  # places of numbers
    around: frozenset[Any] = frozenset()  # places of what they are in
    copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # containers, and their copies
    originals: dict[int, Any] = field(default_factory=dict)  # by their copies
    made: list[tuple[Any, Any]] = field(default_factory=list)  # copies, and what is in them

    def watch_for(self, loose: Any) -> None:
        """Let numbers at certain places be inputs."""
        self.loose = frozenset(loose)
        self.around = frozenset(place[:k] for place in loose for k in range(1, len(place)))

    def original(self, item: Any) -> Any:
        """Return the container that a copy stands for; anything else as it is."""
        return self.originals.get(id(item), item)

    def of(self, item: Any, place: Any, capture: Capture, seen: Container[int]) -> Any:
        """Return what stands for a container from outside: itself, if tracing has `seen` it as it is or nothing in it has changed."""
        if id(item) in self.copies:
            return self.copies[id(item)][1]
        if id(item) in seen or place not in self.around or type(item) not in (list, dict):
            return item
        made = item.copy()
        self.copies[id(item)] = item, made
        self.originals[id(made)] = item
        for key, part in _items(item):
            inner = (*place, key)
            if inner in self.loose:
                made[key] = capture(item, key, part)
            else:
                made[key] = self.of(part, inner, capture, seen)
        self.made.append((made, made.copy()))
        return made

    def fill(self, item: Any, place: Any, capture: Capture) -> None:
        """Put inputs into a container itself, which the function changes."""
        if id(item) in self.copies or place not in self.around or type(item) not in (list, dict):
            return
        if any(isinstance(part, (list, tuple, dict)) for _, part in _items(item)):
            return
        self.copies[id(item)] = item, item
        for key, part in list(_items(item)):
            if (*place, key) in self.loose:
                item[key] = capture(item, key, part)

    def refuse_changes(self, is_seen: bool) -> None:
        """Refuse a trace that has changed a copy, or in which code that is not traced may have `seen` what it is of."""
        if self.made and is_seen:
            raise NonConcreteError("code that is not traced may have seen numbers that are inputs")
        for made, before in self.made:
            old, new = dict(_items(before)), dict(_items(made))
            if list(old) != list(new) or any(old[key] is not new[key] for key in old):
                self.refuse_change(made)

    def refuse_change(self, item: Any) -> None:
        """Refuse to change a copy: what it stands for would be written back as it was, with numbers that are inputs."""
        if id(item) in self.originals:
            raise NonConcreteError(
                "a list or dict from outside changes, of which numbers are inputs"
            )


def _items(held: Any) -> Iterator[tuple[Any, Any]]:
    return iter(held.items() if isinstance(held, dict) else enumerate(held))
