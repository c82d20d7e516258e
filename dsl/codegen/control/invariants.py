"""Finds bounds that hold for the integers a loop carries in all of its trips, by induction.

A bound holds if it does for the first value, and for the next one whenever it does for this one and the loop goes on:

    while top > 0:               # top is never negative
        top -= 1
        if x[top] > 0:
            top += 1
    for j in range(len(x)):      # least is in x
        if x[j] < x[least]:
            least = j

Numbers that wrap round have no such bounds. So the next one must be near this one, or near another that is carried, or small for
itself: no loop that ends gets it far enough then.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.codegen.control.passing import is_integer
from dsl.codegen.ranges import Linear, Ranges
from dsl.ir import graph as ir
from dsl.ir.facts import is_array
from dsl.ir.types import I64

__all__ = ["MOST_STEP", "Invariants"]

MOST_STEP = 1 << 20  # a counter with smaller steps than this wraps round in no loop that ends
_SIZES = 3  # of arrays that are tried as bounds
_LOOPS = ("while", "scan")

Forms = dict[int, Linear]  # of the numbers that a loop carries, by place


class Invariants:
    """Bounds of the numbers that a loop carries: those known so far, and those that induction finds."""

    def __init__(self, node: ir.Node, ranges: Ranges, known: Forms) -> None:
        self.node, self.ranges, self.forms = node, ranges, known
        self.skip = 1 if node.op.name == "scan" else 0
        self.count = node.attrs["carried"]
        self.starts = node.inputs[self.skip : self.skip + self.count]
        self.near: set[int] = set()  # numbers of the atoms that stand for what is carried
        self.limit: Linear | None = (
            None  # the upper bound that is tried; None: that nothing is negative
        )

    def find(self) -> Forms:
        """Return the forms of carried numbers with all bounds that were found."""
        chosen = [k for k in self.forms if self.is_open(k)]
        for limit in (None, *self.limits()):
            self.limit = limit
            self.tighten(chosen)
        return self.forms

    def is_open(self, k: int) -> bool:
        start = self.starts[k]
        return start.dtype == I64 and self.ranges.is_small(self.ranges.form(start))

    def limits(self) -> Sequence[Linear]:
        """Return the last places of arrays that the loop is given."""
        sizes = dict.fromkeys(d for v in self.node.inputs if is_array(v) for d in v.shape)
        return [self.ranges.size(size) + -1 for size in list(sizes)[:_SIZES]]

    def tighten(self, places: Sequence[int]) -> None:
        """Add a bound to those numbers that keep to it."""
        bounded = [k for k in places if self.keeps(self.ranges.form(self.starts[k]), self.ranges)]
        kept: list[int] = []
        while bounded and kept != bounded:
            bounded = kept or bounded
            kept = self.kept(bounded)
            if not kept:
                return
        self.forms |= {k: self.bounded(self.forms[k], small=True) for k in bounded}

    def keeps(self, number: Linear, ranges: Ranges) -> bool:
        """Tell whether a number surely keeps to the bound."""
        return ranges.is_natural(number if self.limit is None else self.limit - number)

    def bounded(self, form: Linear | None = None, *, small: bool = False) -> Linear:
        """Return a number with one bound more. Those that are tried are not small: what they are made into may not be."""
        low, high = [], []
        if form is not None:
            ((atom, _),) = form.terms
            low, high = atom.low, atom.high
        if self.limit is None:
            return self.ranges.new([*low, Linear()], high, small=small)
        return self.ranges.new(low, [*high, self.limit], small=small)

    def kept(self, places: Sequence[int]) -> list[int]:
        """Return the numbers of which a trip leaves what keeps to the bound, if all did before it."""
        body = self.node.regions[-1]
        tried = {k: self.bounded(self.forms[k]) for k in places}
        inside = self.enter(self.forms | tried)
        self.near = {atom.number for form in tried.values() for atom, _ in form.terms}
        return [k for k in places if self.holds(body.results[k], inside)]

    def enter(self, forms: Forms) -> Ranges:
        """Return what is known in a trip."""
        inside = Ranges(self.ranges)
        fixed = self.node.inputs[self.skip + self.count :]
        for graph in self.node.regions:
            params = graph.params[self.skip :]
            inside.forms |= {params[k]: form for k, form in forms.items()}
            for param, operand in zip(params[self.count :], fixed, strict=True):
                if is_integer(operand):
                    inside.forms[param] = self.ranges.form(operand)
        if self.skip:
            inside.count(self.node.regions[0].params[0], self.node.inputs[0], self.ranges)
        else:
            inside.assume_condition(self.node.regions[0].results[0])
        return inside

    def holds(self, value: ir.Value, ranges: Ranges) -> bool:
        """Tell whether a number keeps to the bound and is near one that is carried, or small."""
        node = value.node
        if node.op.name == "cond":
            k = node.outputs.index(value)
            return all(
                self.holds(side.results[k], self.inside(node, side, ranges))
                for side in node.regions
            )
        if node.op.name in _LOOPS:
            return self.holds_after(node, node.outputs.index(value), ranges)
        form = ranges.form(value)
        return self.keeps(form, ranges) and self.is_calm(form, ranges)

    def inside(self, node: ir.Node, side: ir.Graph, ranges: Ranges) -> Ranges:
        """Return what is known in a branch."""
        inside = Ranges(ranges)
        inside.forms = dict(ranges.forms)
        inside.assume_condition(node.inputs[0], side is node.regions[0])
        for param, operand in zip(side.params, node.inputs[1:]):
            if is_integer(operand):
                inside.forms[param] = self.form(operand, ranges)
        return inside

    def form(self, value: ir.Value, ranges: Ranges) -> Linear:
        """Return a number's form; one that a branch or a loop leaves within the bound is as good as a carried one."""
        if value.node.op.name not in ("cond", *_LOOPS) or value in ranges.forms:
            return ranges.form(value)
        if value.dtype != I64 or not self.holds(value, ranges):
            return ranges.form(value)
        found = ranges.forms[value] = self.another()
        return found

    def another(self) -> Linear:
        made = self.bounded()
        self.near |= {atom.number for atom, _ in made.terms}
        return made

    def holds_after(self, node: ir.Node, k: int, ranges: Ranges) -> bool:
        """Tell whether a loop within this one leaves a number within the bound."""
        skip = 1 if node.op.name == "scan" else 0
        if k >= node.attrs["carried"] or not self.holds(node.inputs[skip + k], ranges):
            return False
        inside = Ranges(ranges)
        assumed = self.another()
        for graph in node.regions:
            params = graph.params[skip if graph is node.regions[-1] else 0 :]
            inside.forms[params[k]] = assumed
        return self.holds(node.regions[-1].results[k], inside)

    def is_calm(self, form: Linear, ranges: Ranges) -> bool:
        """Tell whether a number is small, near one that is carried, or between that and 0."""
        if ranges.is_small(form):
            return True
        for atom, scale in form.terms:
            rest = form - Linear(((atom, 1),))
            if (
                atom.number in self.near
                and scale == 1
                and ranges.is_natural(rest.times(-1) + MOST_STEP)
            ):
                return ranges.is_natural(form) or ranges.is_natural(rest + MOST_STEP)
        return False
