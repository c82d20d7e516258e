"""What is known about integers in registers: enough to leave out bounds checks that cannot fail.

Every integer is a sum of whole multiples of atoms and a constant (`Linear`). An atom is a loop's trip number, a size, or a
number that nothing more is known of; it may have bounds, which are linear in atoms made before it. Facts come from
loops (a trip number is below the trips), from the conditions of `while` and `cond`, and from `maximum`, `minimum` and
`remainder`. To prove that a number is not negative, atoms are replaced by their bounds, the newest first.

Bounds are proved for whole numbers without a width. A number proved to lie in an array's range is what the machine
computes too, since both agree modulo 2**64. Sums of narrower integers are numbers of their own, and a comparison tells
something only about numbers that surely did not wrap round: a single atom, or a sum of small ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dsl.codegen.llvm import Value
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, DimLike, lower_bound
from dsl.ir.types import I64, TensorType

__all__ = ["Linear", "Ranges"]

_serial = itertools.count()
_DEPTH = 24
_SMALL = 1 << 48
_WRAPPING = frozenset(("add", "subtract", "multiply"))


@dataclass(eq=False)
class Atom:
    """A number of its own; bounds are linear in older atoms."""

    low: list[Linear] = field(default_factory=list)
    high: list[Linear] = field(default_factory=list)
    small: bool = False  # a size, a trip number or the like: no program gets it near 2**63
    number: int = field(default_factory=lambda: next(_serial))


@dataclass(frozen=True)
class Linear:
    """`sum(scale * atom) + constant`."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        sums = dict(self.terms)
        for atom, scale in other.terms:
            sums[atom] = sums.get(atom, 0) + scale
        return Linear(tuple((a, s) for a, s in sums.items() if s), self.constant + other.constant)

    def times(self, factor: int) -> Linear:
        if not factor:
            return Linear()
        return Linear(tuple((a, s * factor) for a, s in self.terms), self.constant * factor)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.times(-1)


class Ranges:
    """The facts that hold in one region."""

    def __init__(self, outer: Ranges | None = None) -> None:
        self.forms: dict[ir.Value, Linear] = {}
        self.dims: dict[Dim, Linear] = outer.dims if outer is not None else {}
        # Indices and sizes that have been compared, with the places that were found: counted from the start.
        self.checked: dict[tuple[Linear, Linear], Value] = (
            dict(outer.checked) if outer is not None else {}
        )
        self.facts: dict[Atom, tuple[list[Linear], list[Linear]]] = (
            dict(outer.facts) if outer is not None else {}
        )

    # -- forms -----------------------------------------------------------------------------------------------------

    def form(self, value: ir.Value) -> Linear:
        """Return an integer as a sum of atoms."""
        found = self.forms.get(value)
        if found is None:
            found = self.forms[value] = self._derive(value)
        return found

    def _derive(self, value: ir.Value) -> Linear:
        node = value.node
        if not isinstance(value.type, TensorType) or value.shape or value.dtype.kind not in "iu":
            return Linear(((Atom(), 1),))
        if node.op.name == "const":
            return Linear((), int(node.attrs["value"].array))
        if node.op.name in _WRAPPING and value.dtype != I64:
            return Linear(((Atom(), 1),))
        if node.op.name == "cond":
            return self._choice(node, node.outputs.index(value))
        rule = _RULES.get(node.op.name)
        found = rule(self, node) if rule is not None else None
        return found if found is not None else Linear(((Atom(), 1),))

    def _choice(self, node: ir.Node, k: int) -> Linear:
        """Return what one or the other branch gives; no branch is taken, so no more is known in it than outside."""
        forms = []
        for branch in node.regions:
            for param, operand in zip(branch.params, node.inputs[1:], strict=True):
                if isinstance(operand.type, TensorType) and operand.dtype.kind in "iu":
                    self.forms.setdefault(param, self.form(operand))
            forms.append(self.form(branch.results[k]))
        return self.between(*forms)

    def between(self, a: Linear, b: Linear) -> Linear:
        """Return a number that is one of two."""
        if a == b:
            return a
        small = self.is_small(a, b)
        if self.is_natural(a - b):
            return self.new([b], [a], small=small)
        if self.is_natural(b - a):
            return self.new([a], [b], small=small)
        natural = self.is_natural(a) and self.is_natural(b)
        return self.new([Linear()] if natural else [], [], small=small)

    def size(self, dim: DimLike) -> Linear:
        """Return a size as a sum of atoms."""
        if isinstance(dim, int):
            return Linear((), dim)
        total = Linear()
        for factors, scale in dim.terms:
            if not factors:
                total = total + scale
                continue
            key = Dim(((factors, 1),))
            if key not in self.dims:
                self.dims[key] = self.new([Linear((), lower_bound(key) or 0)], [], small=True)
            total = total + self.dims[key].times(scale)
        return total

    def new(self, low: list[Linear], high: list[Linear], *, small: bool = False) -> Linear:
        return Linear(((Atom(low, high, small), 1),))

    @staticmethod
    def is_small(*numbers: Linear) -> bool:
        """Tell whether numbers, and sums of some of them, are surely far from the ends of int64."""
        return all(
            abs(number.constant) < _SMALL and all(a.small and abs(s) < 256 for a, s in number.terms)
            for number in numbers
        )

    def is_exact(self, number: Linear) -> bool:
        """Tell whether the machine surely has this very number, not one that wrapped round."""
        alone = len(number.terms) == 1 and number.terms[0][1] == 1 and number.constant == 0
        return not number.terms or alone or self.is_small(number)

    def count(self, number: ir.Value, trips: ir.Value, outer: Ranges) -> None:
        """Note that a trip's number is at least 0 and below the trips; `maximum(n, 0)` trips are n if there are any."""
        node = trips.node
        if node.op.name == "maximum" and any(map(_is_zero, node.inputs)):
            trips = next(v for v in node.inputs if not _is_zero(v))
        form = outer.form(trips)
        high = []
        if self.is_exact(form):
            self.assume(form + -1)
            high = [form + -1]
        self.forms[number] = self.new([Linear()], high, small=True)

    def inside(self, node: ir.Node, region: ir.Graph) -> Ranges:
        """Return what is known in a region: what is given to it stays what it is, and a trip's number is below the trips."""
        ranges, params = Ranges(self), region.params
        if node.op.name == "scan":
            ranges.count(params[0], node.inputs[0], self)
            params = params[1:]
        given = params[node.attrs.get("carried", 0) :]
        for param, operand in zip(given, node.inputs[len(node.inputs) - len(given) :], strict=True):
            ranges.forms[param] = self.form(operand)
        return ranges

    # -- facts -----------------------------------------------------------------------------------------------------

    def assume(self, number: Linear) -> None:
        """Note that a number is not negative."""
        for atom, scale in number.terms:
            if scale not in (1, -1):
                continue
            rest = number - Linear(((atom, scale),))
            if any(other.number > atom.number for other, _ in rest.terms):
                continue
            lows, highs = self.facts.get(atom, ([], []))
            if scale == 1:
                self.facts[atom] = (lows + [rest.times(-1)], highs)
            else:
                self.facts[atom] = (lows, highs + [rest])

    def assume_condition(self, value: ir.Value, holds: bool = True) -> None:
        """Note what a condition that holds, or does not, says about integers."""
        node = value.node
        name = node.op.name
        if name == "logical_not" and node.inputs:
            self.assume_condition(node.inputs[0], not holds)
        elif name in ("logical_and", "bitwise_and") and holds:
            for operand in node.inputs:
                self.assume_condition(operand)
        elif name in ("logical_or", "bitwise_or") and not holds:
            for operand in node.inputs:
                self.assume_condition(operand, False)
        elif name == "cond":
            self._assume_choice(node, node.outputs.index(value), holds)
        elif name in _COMPARISONS and all(
            v.dtype.kind in "iu" and not v.shape for v in node.inputs
        ):
            a, b = (self.form(v) for v in node.inputs)
            if not (self.is_exact(a) and self.is_exact(b)):
                return
            for number in _COMPARISONS[name](a, b, holds):
                self.assume(number)
            if (name == "not_equal") is holds and name in ("equal", "not_equal"):
                self._assume_apart(a - b)

    def _assume_apart(self, difference: Linear) -> None:
        """Note that two numbers differ: one that is not below the other is above it."""
        for number in (difference, difference.times(-1)):
            if self.is_natural(number):
                self.assume(number + -1)

    def holds(self, value: ir.Value) -> bool:
        """Tell whether a comparison of integers, or each of several, surely holds."""
        name, operands = value.node.op.name, value.node.inputs
        if name == "logical_and":
            return all(map(self.holds, operands))
        if name not in _COMPARISONS or any(v.dtype.kind not in "iu" or v.shape for v in operands):
            return False
        a, b = (self.form(v) for v in operands)
        if not (self.is_exact(a) and self.is_exact(b)):
            return False
        if name == "not_equal":
            return self.is_natural(a - b + -1) or self.is_natural(b - a + -1)
        return all(self.is_natural(number) for number in _COMPARISONS[name](a, b, True))

    def _assume_choice(self, node: ir.Node, k: int, holds: bool) -> None:
        """Python's `a and b`, where `b` must not be computed unless `a` holds, is a branch: if it holds, both do."""
        predicate, *operands = node.inputs
        for side, other in ((0, 1), (1, 0)):
            taken, left = node.regions[side], node.regions[other]
            if _truth(left, left.results[k], node, taken_if=other == 0) is not (not holds):
                continue
            for param, operand in zip(taken.params, operands, strict=True):
                if isinstance(operand.type, TensorType) and operand.dtype.kind in "iu":
                    self.forms.setdefault(param, self.form(operand))
            self.assume_condition(predicate, side == 0)
            self.assume_condition(taken.results[k], holds)

    def bounds(self, atom: Atom, low: bool) -> Iterator[Linear]:
        extra = self.facts.get(atom, ([], []))
        yield from (extra[0] if low else extra[1])
        yield from (atom.low if low else atom.high)

    def is_natural(self, number: Linear, depth: int = 0) -> bool:
        """Tell whether a number is surely not negative."""
        if not number.terms:
            return number.constant >= 0
        if depth > _DEPTH:
            return False
        atom, scale = max(number.terms, key=lambda term: term[0].number)
        rest = number - Linear(((atom, scale),))
        return any(
            self.is_natural(rest + bound.times(scale), depth + 1)
            for bound in itertools.islice(self.bounds(atom, scale > 0), 4)
        )


def _is_zero(value: ir.Value) -> bool:
    return value.node.op.name == "const" and int(value.node.attrs["value"].array) == 0


def _truth(graph: ir.Graph, value: ir.Value, node: ir.Node, taken_if: bool) -> bool | None:
    """Return what a result of a branch is if that is known: a constant, or the number that decided for the branch."""
    if value in graph.params:
        decides = node.inputs[1 + graph.params.index(value)] is node.inputs[0]
        return taken_if if decides else None
    return bool(value.node.attrs["value"].array) if value.node.op.name == "const" else None


def _add(r: Ranges, node: ir.Node) -> Linear:
    return r.form(node.inputs[0]) + r.form(node.inputs[1])


def _subtract(r: Ranges, node: ir.Node) -> Linear:
    return r.form(node.inputs[0]) - r.form(node.inputs[1])


def _multiply(r: Ranges, node: ir.Node) -> Linear | None:
    a, b = (r.form(v) for v in node.inputs)
    if not a.terms:
        return b.times(a.constant)
    return a.times(b.constant) if not b.terms else None


def _maximum(r: Ranges, node: ir.Node) -> Linear:
    a, b = (r.form(v) for v in node.inputs)
    if r.is_natural(a - b):
        return a
    if r.is_natural(b - a):
        return b
    return r.new([a, b], [], small=r.is_small(a, b))


def _minimum(r: Ranges, node: ir.Node) -> Linear:
    a, b = (r.form(v) for v in node.inputs)
    if r.is_natural(a - b):
        return b
    if r.is_natural(b - a):
        return a
    low = [Linear()] if r.is_natural(a) and r.is_natural(b) else []
    return r.new(low, [a, b], small=r.is_small(a, b))


def _remainder(r: Ranges, node: ir.Node) -> Linear | None:
    divisor = r.form(node.inputs[1])
    if r.is_natural(divisor + -1):
        return r.new([Linear()], [divisor + -1], small=r.is_small(divisor))
    return None


def _floor_divide(r: Ranges, node: ir.Node) -> Linear | None:
    a, divisor = (r.form(v) for v in node.inputs)
    if r.is_natural(divisor + -1) and r.is_natural(a):
        return r.new([Linear()], [a], small=r.is_small(a))
    return None


def _cast(r: Ranges, node: ir.Node) -> Linear | None:
    source, target = node.inputs[0].dtype, node.outputs[0].dtype
    wider = target.itemsize > source.itemsize and (target.kind == "i" or source.kind == "u")
    return r.form(node.inputs[0]) if source.kind in "iu" and (wider or target == source) else None


def _dim_size(r: Ranges, node: ir.Node) -> Linear:
    return r.size(node.inputs[0].shape[node.attrs["axis"]])


_RULES: dict[str, Callable[[Ranges, ir.Node], Linear | None]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "maximum": _maximum,
    "minimum": _minimum,
    "remainder": _remainder,
    "floor_divide": _floor_divide,
    "cast": _cast,
    "dim_size": _dim_size,
    "identity": lambda r, node: r.form(node.inputs[0]),
    "where": lambda r, node: r.between(*(r.form(v) for v in node.inputs[1:])),
    "bitwise_and": lambda r, node: (
        r.new([Linear()], [r.form(node.inputs[1])], small=r.is_small(r.form(node.inputs[1])))
        if r.is_natural(r.form(node.inputs[1]))
        else None
    ),
}


def _less(a: Linear, b: Linear, holds: bool) -> list[Linear]:
    return [b - a + -1] if holds else [a - b]


def _equal(a: Linear, b: Linear, holds: bool) -> list[Linear]:
    return [a - b, b - a] if holds else []


_COMPARISONS: dict[str, Callable[[Linear, Linear, bool], list[Linear]]] = {
    "less": _less,
    "greater": lambda a, b, holds: _less(b, a, holds),
    "less_equal": lambda a, b, holds: _less(b, a, not holds),
    "greater_equal": lambda a, b, holds: _less(a, b, not holds),
    "equal": _equal,
    "not_equal": lambda a, b, holds: _equal(a, b, not holds),
}
