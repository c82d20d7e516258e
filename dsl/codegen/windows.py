"""Finds loads of one step of a loop that read neighbours of one another: `x[j - 1]`, `x[j]` and `x[j + 1]`.

Of such a window the foremost alone is read, as a vector; others are put together from it and the one that the step before has
read. A load of neighbours crosses a line of the cache in most steps and takes twice as long for that, a shuffle does not; but it
takes turns with arithmetic, so there are no more shuffles than there is time for. (A five-point stencil gains a half.)

Addresses are compared as sums: an index is a constant plus multiples of names, products of which are names too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Window", "find"]

_SIZES = {"i32": 4, "float": 4, "i64": 8, "double": 8}  # of elements that one instruction shuffles

_LONG = {
    "fdiv": 16,
    "sqrt": 20,
    "f32": 60,
    "f64": 60,
}  # operations in the time of which others are done; functions, too

Form = tuple[frozenset[tuple[object, int]], int]  # multiples of names, and a constant


class Step(Protocol):
    """An instruction."""

    @property
    def result(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def args(self) -> tuple[tuple[str, str], ...]: ...


@dataclass(frozen=True, eq=False)
class Window:
    """Loads by result, each with how many elements it is behind the foremost."""

    behind: Mapping[str, int]

    @property
    def span(self) -> int:
        return max(self.behind.values())


def find(steps: Sequence[Step], loads: set[str], lanes: int) -> list[Window]:
    """Return the windows among those loads that go from element to element."""
    left = _shuffles(steps, loads)
    found = []
    for members in _groups(steps, loads, lanes) if left > 0 else ():
        front = max(members.values())
        behind = sorted((front - place, name) for name, place in members.items())
        some = {name: distance for distance, name in behind if distance == 0}
        for distance, name in behind:
            if distance and left > 0:
                some[name] = distance
                left -= 1
        if any(some.values()):
            found.append(Window(some))
    return found


def _shuffles(steps: Sequence[Step], loads: set[str]) -> int:
    """Return how many loads to replace until arithmetic takes as long: a load takes 2 cycles, two operations 1, a shuffle 1."""
    moved = sum(
        step.op == "store" or (step.op == "load" and step.result in loads) for step in steps
    )
    work = sum(
        _LONG.get(step.op.split()[-1].rpartition(".")[2], 1)
        for step in steps
        if step.result in loads and step.op != "load"
    )
    return (4 * moved - work) // 6


def _groups(steps: Sequence[Step], loads: set[str], lanes: int) -> list[dict[str, int]]:
    """Return loads of one array that are at most a vector apart, with where they are, in elements."""
    forms = _Forms({step.result: step for step in steps if step.result})
    rows: dict[object, dict[str, int]] = {}
    for step in steps:
        if step.result not in loads or step.op != "load" or step.type not in _SIZES:
            continue
        place = forms.address(step.args[0][1])
        if place is not None:
            base, (terms, offset) = place
            size = _SIZES[step.type]
            row = rows.setdefault((step.type, base, terms, offset % size), {})
            row[step.result] = offset // size
    groups: list[dict[str, int]] = []
    for row in rows.values():
        first = None
        for name, at in sorted(row.items(), key=lambda item: item[1]):
            if first is None or at - first >= lanes:
                first = at
                groups.append({})
            groups[-1][name] = at
    return [group for group in groups if len(set(group.values())) > 1]


class _Forms:
    """What integers and addresses are sums of."""

    def __init__(self, made: Mapping[str, Step]) -> None:
        self.made = made

    def address(self, name: str) -> tuple[str, Form] | None:
        """Return where an address starts from, and how many bytes it is behind that."""
        step = self.made.get(name)
        if step is None or step.op != "getelementptr" or step.type not in _SIZES:
            return None
        (_, base), (_, index) = step.args
        form = self.form(index)
        scaled = _scaled(form, _SIZES[step.type])
        inner = self.address(base)
        if inner is None:
            return None if base in self.made else (base, scaled)
        return inner[0], _sum(inner[1], scaled)

    def form(self, name: str) -> Form:
        if not name.startswith("%"):
            return frozenset(), int(name)
        step = self.made.get(name)
        op = step.op.split()[0] if step is not None else ""
        if step is None or op not in ("add", "sub", "mul"):
            return frozenset({(name, 1)}), 0
        a, b = (self.form(arg) for _, arg in step.args)
        if op == "add":
            return _sum(a, b)
        if op == "sub":
            return _sum(a, _scaled(b, -1))
        for one, other in ((a, b), (b, a)):
            if not one[0]:
                return _scaled(other, one[1])
        return frozenset({(frozenset({a, b}), 1)}), 0


def _scaled(form: Form, factor: int) -> Form:
    return frozenset((name, times * factor) for name, times in form[0]), form[1] * factor


def _sum(a: Form, b: Form) -> Form:
    total: dict[object, int] = {}
    for name, times in (*a[0], *b[0]):
        total[name] = total.get(name, 0) + times
    return frozenset((name, times) for name, times in total.items() if times), a[1] + b[1]
