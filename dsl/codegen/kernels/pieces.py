"""Cuts kernels whose expressions ask where they are: what is padded, joined or rolled, and derivatives of slices.

`select(1 <= i < n, x[i - 1], 0)` reads an element that may not be there, so it tests each index and replaces those outside. Cut at
1, the kernel is two: one with the border, and one that reads `x[i]` in a row, which is nearly all of it. Pieces of a few points
keep their tests, and are not vectorised: that costs time to compile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dsl.codegen.expressions import Affine, Expression, Pool, Var, walk
from dsl.codegen.statements import Kernel, Root, Stage
from dsl.ir.dims import DimLike, dim_max, dim_min, lower_bound

__all__ = ["pieces"]

_LARGE = 64  # points along an axis that are worth a piece of their own
_MOST = 3  # large pieces along an axis
_POINTS = 1024  # of a kernel that is cut
_SHARE = 40  # borders in which there are fewer points, one in so many, are done point by point

Facts = dict[Expression, bool]


def pieces(kernel: Kernel) -> list[Kernel]:
    """Return kernels that together do what one does that has no reduction; itself, if there is nothing to cut."""
    points = 1
    for extent in kernel.space:
        points *= extent if isinstance(extent, int) else _POINTS
    if points < _POINTS:
        return [kernel]
    for axis, var in enumerate(kernel.variables):
        cuts = _cuts(kernel, var)
        if cuts:
            return [small for part in _cut(kernel, axis, cuts) for small in part]
    return [kernel]


@dataclass(frozen=True)
class _Piece:
    """A stretch of an axis, and the tests whose outcome is known there."""

    start: DimLike
    extent: DimLike
    facts: Facts | None  # None: all tests stay


def _cut(kernel: Kernel, axis: int, cuts: list[_Piece]) -> Iterator[list[Kernel]]:
    for piece in cuts:
        made = _restricted(kernel, axis, piece)
        if piece.facts is None and not _is_share(piece.extent, kernel.space[axis]):
            made.plain = True
        yield [made] if made.plain else pieces(made)


def _is_share(part: DimLike, whole: DimLike) -> bool:
    """Tell whether a border has so many points that it matters how quick it is."""
    return isinstance(part, int) and isinstance(whole, int) and part * _SHARE >= whole


# -- where to cut -----------------------------------------------------------------------------------------------------


def _cuts(kernel: Kernel, var: Var) -> list[_Piece]:
    """Return the pieces of an axis; none if it is better left whole."""
    tests = _tests(kernel, var)
    ranges = {e: _range(e, var) for e in tests}
    places = _sorted(
        {p for found in ranges.values() if found is not None for p in found}, var.extent
    )
    if places is None:
        return []
    edges = [0, *places, var.extent]
    if not _is_long_enough(edges):
        return _around_the_middle(ranges, edges)
    stretches = [
        _Piece(a, b - a, _facts(ranges, a, edges)) for a, b in itertools.pairwise(edges) if a != b
    ]
    large = [p for p in stretches if _is_large(p.extent)]
    if not 1 <= len(large) <= _MOST or (len(stretches) == 1 and not large[0].facts):
        return []
    return _joined(stretches)


def _tests(kernel: Kernel, var: Var) -> list[Expression]:
    found = dict.fromkeys(e for root in kernel.roots for e in walk(root.expression))
    return [e for e in found if e.kind == "inside" and e.vars == {var}]


def _range(e: Expression, var: Var) -> tuple[DimLike, DimLike] | None:
    """Return from where to where a test of a variable is true, the end exclusive; None if that is not known."""
    (index,), (low, high) = e.index, e.constant
    if index.extra or index.terms != ((var, 1),):
        return None
    return low - index.offset, high - index.offset


def _sorted(places: set[DimLike], extent: DimLike) -> list[DimLike] | None:
    """Return the places within an axis in the order that they have in a long one; None if other sizes decide about it."""
    near = [p for p in places if isinstance(p, int)]
    if isinstance(extent, int):
        return [*sorted(p for p in near if 0 < p < extent)] if len(near) == len(places) else None
    back = [extent - p for p in places if not isinstance(p, int)]
    if not all(isinstance(k, int) for k in back):
        return None
    starts = sorted(p for p in near if p > 0)
    ends = sorted((k for k in back if isinstance(k, int) and k > 0), reverse=True)
    return [*starts, *(extent - k for k in ends)]


def _is_long_enough(edges: Sequence[DimLike]) -> bool:
    """Tell whether an axis is surely as long as its edges need it to be for their order."""
    gaps = [lower_bound(b - a) for a, b in itertools.pairwise(edges)]
    return all(gap is not None and gap >= 0 for gap in gaps)


def _around_the_middle(
    ranges: dict[Expression, tuple[DimLike, DimLike] | None], edges: list[DimLike]
) -> list[_Piece]:
    """Return the middle of an axis that may be short, where it then has no points, and both borders, which keep their tests."""
    extent = edges[-1]
    first = max(place for place in edges if isinstance(place, int))
    after = next(place for place in edges if not isinstance(place, int))
    if max(first, lower_bound(extent - after) or 0) >= _LARGE:
        return []
    stop = dim_max(after, first)
    pieces = [
        _Piece(0, dim_min(extent, first), None),
        _Piece(first, stop - first, _facts(ranges, first, edges)),
        _Piece(stop, dim_max(extent - stop, 0), None),
    ]
    return [piece for piece in pieces if piece.extent != 0]


def _facts(
    ranges: dict[Expression, tuple[DimLike, DimLike] | None], start: DimLike, edges: list[DimLike]
) -> Facts:
    """Return the outcome of each test between an edge and the next one."""
    order = {place: k for k, place in enumerate(edges)}

    def position(place: DimLike) -> int:
        if place in order:
            return order[place]
        return -1 if isinstance(place, int) and place <= 0 else len(edges)

    here = order[start]
    known = {e: found for e, found in ranges.items() if found is not None}
    return {e: position(a) <= here < position(b) for e, (a, b) in known.items()}


def _is_large(extent: DimLike) -> bool:
    return not isinstance(extent, int) or extent >= _LARGE


def _joined(stretches: Sequence[_Piece]) -> list[_Piece]:
    """Join neighbouring small pieces; they keep their tests."""
    found: list[_Piece] = []
    for piece in stretches:
        if _is_large(piece.extent):
            found.append(piece)
        elif found and found[-1].facts is None:
            found[-1] = replace(found[-1], extent=found[-1].extent + piece.extent)
        else:
            found.append(replace(piece, facts=None))
    return found


# -- the pieces -------------------------------------------------------------------------------------------------------


def _restricted(kernel: Kernel, axis: int, piece: _Piece) -> Kernel:
    """Return a kernel over a stretch of an axis."""
    old = kernel.variables[axis]
    new = Var(piece.extent, old.name)
    change = _Change(kernel.pool, old, Affine(((new, 1),), piece.start), piece.facts or {})
    stages = [
        Stage(stage.per_row, [change.root(root) for root in stage.roots]) for stage in kernel.stages
    ]
    variables = (*kernel.variables[:axis], new, *kernel.variables[axis + 1 :])
    return replace(kernel, variables=variables, stages=stages)


class _Change:
    """Rewrites expressions: one variable is an index of another, and some tests are decided."""

    def __init__(self, pool: Pool, old: Var, place: Affine, facts: Facts) -> None:
        self.pool, self.old, self.place, self.facts = pool, old, place, facts
        self.made: dict[Expression, Expression] = {}

    def root(self, root: Root) -> Root:
        index = tuple(map(self.affine, root.index))
        return replace(root, expression=self.expression(root.expression), index=index)

    def affine(self, a: Affine) -> Affine:
        found = Affine((), a.offset)
        for var, scale in a.terms:
            found = found.plus(
                self.place.scaled(scale) if var is self.old else Affine(((var, scale),))
            )
        for item, scale in a.extra:
            found = found.plus(self.extra(item).scaled(scale))
        return found

    def extra(self, item: Expression) -> Affine:
        """Return a part of an index that was known at run time: an index that was tested, perhaps not any more."""
        if item.kind != "guarded":
            return Affine((), 0, ((self.expression(item), 1),))
        (test,) = item.args
        plain = self.affine(item.index[0])
        if test not in self.facts:
            return self.pool.guarded(plain, self.expression(test))
        return plain if self.facts[test] else Affine()

    def expression(self, e: Expression) -> Expression:
        if e not in self.made:
            self.made[e] = self.rewritten(e)
        return self.made[e]

    def rewritten(self, e: Expression) -> Expression:
        pool = self.pool
        if e in self.facts:
            return pool.const(self.facts[e])
        match e.kind:
            case "load":
                assert e.value is not None
                return pool.load(e.value, tuple(map(self.affine, e.index)))
            case "index":
                return pool.index(self.affine(e.index[0]))
            case "inside":
                return pool.inside(self.affine(e.index[0]), *e.constant)
            case "select":
                return self.select(*e.args)
            case "op":
                assert e.node is not None
                return pool.apply(e.node, e.output, tuple(map(self.expression, e.args)))
        return e

    def select(self, test: Expression, yes: Expression, no: Expression) -> Expression:
        if test in self.facts:
            return self.expression(yes if self.facts[test] else no)
        return self.pool.select(*map(self.expression, (test, yes, no)))
