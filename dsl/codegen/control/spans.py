"""Looks at places that a loop touches in even steps for many trips at once, where nothing is known of them before the program runs.

    for j in range(k, n):        k + trip: if the first trip and the last one are in x, all are
        total += x[j]

Trips of which all places are in their arrays are made without a look at each; all of an index, where it is of an array that no trip
changes, may count from the end. Where that does not hold for what is left of the loop, one trip is made by itself: it fails, or some
of its places count from the end and others do not, and then it is tried again. So there is one loop in the program, and a place in it
is what the index says and a distance: 0, or the array's size.

Only places count that each trip surely touches before anything else in it can fail: a trip fails where it did before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.ranges import Ranges
from dsl.codegen.scalars import placed
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.facts import has_effect, is_array, may_raise
from dsl.ir.types import I64

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Loop
    from dsl.codegen.region import Region

__all__ = ["Span", "Spans", "accesses", "is_inside", "may_fail", "spans_of"]

_SHORT = 1 << 31  # a step; as many trips with such steps do not get around 64 bits


class Span(NamedTuple):
    """An index that goes on in even steps, and the axis it is for."""

    node: ir.Node
    axis: int
    number: ir.Value
    size: DimLike
    may_wrap: bool  # whether it may be negative, in an array that no trip changes


def spans_of(loop: Loop) -> tuple[list[Span], bool]:
    """Return what is to be looked at before trips are made, and whether nothing else in them can fail."""
    body, ranges = loop.body, loop.known(loop.body)
    if not loop.region.checks:
        return [], False
    ranges.count(body.params[0], loop.node.inputs[0], loop.region.ranges)
    steady = set(body.params[1 + len(loop.carried) :])
    found: list[Span] = []
    for node in body.nodes:
        spans = accesses(node, ranges, steady)
        for span in spans:
            if is_inside(span, ranges):
                continue
            if _degree(span.number, body.params[0], steady) is None:
                return found, False
            found.append(span)
        if has_effect(node) or (not spans and may_fail(node)):
            return found, False
    return found, True


def accesses(node: ir.Node, ranges: Ranges, steady: set[ir.Value]) -> list[Span]:
    """Return the indices of one element that a node reads or writes."""
    if node.op.name not in ("gather", "scatter"):
        return []
    first, axes, shape = 1 + (node.op.name == "scatter"), node.attrs["axes"], node.inputs[0].shape
    indices = node.inputs[first : first + len(axes)]
    if len(axes) != len(shape) or any(map(is_array, (*indices, *node.inputs[1:first]))):
        return []
    kept = node.inputs[0] in steady
    return [
        Span(node, axis, i, shape[axis], kept and not ranges.is_natural(ranges.form(i)))
        for axis, i in zip(axes, indices)
    ]


def may_fail(node: ir.Node) -> bool:
    return may_raise(node) or any(map(may_raise, (n for g in node.regions for n in g.walk())))


def is_inside(span: Span, ranges: Ranges) -> bool:
    form = ranges.form(span.number)
    return all(map(ranges.is_natural, (form, ranges.size(span.size) - form + -1)))


def _degree(value: ir.Value, trip: ir.Value, steady: set[ir.Value]) -> int | None:
    """Return 1 for what moves in even steps with the trip's number, 0 for what stays, None for what is neither."""
    node = value.node
    if value.dtype != I64:
        return None
    if value is trip or value in steady or node.op.name == "const":
        return int(value is trip)
    if node.op.name not in _LINEAR:
        return None
    degrees = [_degree(v, trip, steady) for v in node.inputs]
    known = [d for d in degrees if d is not None]
    if len(known) < len(degrees):
        return None
    degree = sum(known) if node.op.name == "multiply" else max(known)
    return degree if degree < 2 else None


_LINEAR = {
    "add": ("add", int.__add__),
    "subtract": ("sub", int.__sub__),
    "multiply": ("mul", int.__mul__),
}
"""Ops, LLVM's instructions and Python's functions for them."""


class Spans:
    """The spans of a loop that is emitted."""

    def __init__(self, loop: Loop, spans: list[Span]) -> None:
        self.loop, self.region, self.fn = loop, loop.region, loop.region.fn
        first: dict[tuple[ir.Value, DimLike], Span] = {}
        for span in spans:  # in order: a trip fails where it would first
            first.setdefault((span.number, span.size), span)
        self.spans = list(first.values())
        # Where trips change an array, what is known of places is known of indices, so those must not count from the end.
        fixed = {(s.number, s.size) for s in spans if not s.may_wrap}
        self.wraps = [(s.number, s.size) not in fixed for s in self.spans]
        self.offsets: dict[tuple[ir.Value, DimLike], Value] = {}

    @property
    def indices(self) -> set[ir.Value]:
        """Indices that say where places are in all trips, unless one is made by itself."""
        return {span.number for span, wraps in zip(self.spans, self.wraps) if not wraps}

    def fail(self, trips: Value) -> None:
        """Stop before the loop, if one of its trips fails: where both ends of an index are in an array, or before it, all places are."""
        fn, last = self.fn, self.fn.sub(trips, 1)
        with fn.if_(fn.compare("slt", 0, trips)):
            inside = [
                fn.compare("ult", fn.binary("add", self.at(s.number, trip), size), fn.mul(size, 2))
                for s in self.spans
                for size in (self.region.dim(s.size),)
                for trip in (0, last)
            ]
            fits = reduce(fn.both, [*inside, *self.straight(0, last)])
            with fn.if_(fn.invert(fits), unlikely=True), fn.loop(0, trips, as_written=True) as trip:
                for span in self.spans:
                    self.place(self.region, span, self.at(span.number, trip))

    @staticmethod
    def place(region: Region, span: Span, given: Value) -> Value:
        """Return an index counted from the start, or stop."""
        return placed(region, span.node, span.axis, given, region.dim(span.size))

    @contextlib.contextmanager
    def parts(self, low: Operand, high: Operand) -> Iterator[tuple[Operand, Operand]]:
        """Run the block for some trips after the others, until all are made."""
        if not self.spans:
            yield low, high
            return
        fn = self.fn
        done = fn.variable("i64", low)
        with fn.again(lambda: fn.compare("slt", done.get(), high)):
            start = done.get()
            stop = self.checked(start, high)
            yield start, stop
            done.set(stop)

    def checked(self, start: Value, high: Operand) -> Value:
        """Return up to where trips can be made, and set how far places are from what indices say."""
        fn = self.fn
        last = fn.sub(high, 1)
        first = [self.at(span.number, start) for span in self.spans]
        ends = [first, [self.at(span.number, last) for span in self.spans]]
        sizes = [self.region.dim(span.size) for span in self.spans]
        offsets = [
            fn.variable("i64", fn.select(fn.compare("slt", given, 0), size, 0) if wraps else 0)
            for wraps, given, size in zip(self.wraps, first, sizes, strict=True)
        ]
        inside = [
            fn.compare("ult", fn.binary("add", given, offset.get()) if wraps else given, size)
            for end in ends
            for wraps, given, offset, size in zip(self.wraps, end, offsets, sizes, strict=True)
        ]
        stop = fn.variable("i64", high)
        fits = reduce(fn.both, [*inside, *self.straight(start, last)])
        with fn.if_(fn.invert(fits), unlikely=True):
            stop.set(fn.add(start, 1))
            for span, given, offset in zip(self.spans, first, offsets, strict=True):
                offset.set(fn.binary("sub", self.place(self.region, span, given), given))
        for span, offset in zip(self.spans, offsets, strict=True):
            self.offsets[span.number, span.size] = offset.get()
        return stop.get()

    def straight(self, start: Operand, last: Operand) -> Iterator[Value]:
        """Yield whether indices go from one end to the other without going around 64 bits."""
        fn = self.fn
        steps = [self.step(span.number) for span in self.spans]
        if all(isinstance(step, int) and abs(step) < 2 for step in steps):
            return
        yield fn.compare("ult", fn.sub(last, start), _SHORT)
        for step in steps:
            if not isinstance(step, int) or abs(step) >= _SHORT:
                yield fn.compare("ult", fn.binary("add", step, _SHORT), 2 * _SHORT)

    def at(self, value: ir.Value, trip: Operand) -> Value:
        """Return what an index is in a trip."""
        return self.fn.as_value(self.computed(value, trip), "i64")

    def computed(self, value: ir.Value, trip: Operand) -> Operand:
        body, node = self.loop.body, value.node
        if value is body.params[0]:
            return trip
        if value in body.params:
            return self.loop.number_of(value, 0)
        if node.op.name == "const":
            return int(node.attrs["value"].array)
        a, b = (self.computed(v, trip) for v in node.inputs)
        return _computed(self.fn, node.op.name, a, b)

    def step(self, value: ir.Value) -> Operand:
        """Return by how much an index moves from trip to trip."""
        body, node = self.loop.body, value.node
        if value in body.params or node.op.name == "const":
            return int(value is body.params[0])
        steps = [self.step(v) for v in node.inputs]
        if node.op.name != "multiply":
            return _computed(self.fn, node.op.name, *steps)
        moving = next((k for k, step in enumerate(steps) if step != 0), 0)
        factor = self.computed(node.inputs[1 - moving], 0)
        return _computed(self.fn, "multiply", steps[moving], factor)


def _computed(fn: Function, name: str, a: Operand, b: Operand) -> Operand:
    """Compute with integers that go around 64 bits."""
    if isinstance(a, int) and isinstance(b, int):
        return _wrapped(_LINEAR[name][1](a, b))
    nothing = int(name == "multiply")  # which changes no number
    if isinstance(b, int) and b == nothing:
        return a
    if isinstance(a, int) and a == nothing and name != "subtract":
        return b
    return fn.binary(_LINEAR[name][0], a, b)


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
