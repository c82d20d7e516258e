"""Rows: places for parts of different sizes that are joined by arrows, each part below what points to it.

In: the width and height of every part, and arrows as pairs of part numbers. Out: the left and top of every part, and
for every arrow the points at which it passes the rows between. The steps are those of Sugiyama, Tagawa and Toda (1981):
rows by longest path, order within a row by the mean place of neighbours, then places by least squares with a smallest
distance. All arrows from one part share one chain of bends, so the work grows with parts and arrows, not crossings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Part", "Rows", "spread"]

BESIDE, BELOW, BEND = 14.0, 28.0, 8.0
# Rows; a longer arrow has no bends, or a graph with many long arrows would take quadratic time.
LONGEST_CHAIN = 80
SWEEPS = 8


@dataclass(eq=False)
class Part:
    """Something in a row: a part of the picture or, without a height, a bend of arrows that pass the row."""

    order: float
    width: float
    height: float = 0.0
    place: str = ""
    row: int = 0
    middle: float = 0.0
    weight: float = 1.0
    above: list[Part] = field(default_factory=list, repr=False)
    below: list[Part] = field(default_factory=list, repr=False)


class Rows:
    """Parts in rows. `place` of a part is `top` or `bottom` if it belongs to the first or the last row."""

    def __init__(
        self, sizes: Sequence[tuple[float, float, str]], arrows: Iterable[tuple[int, int]]
    ) -> None:
        self.parts = [Part(k, w, h, place) for k, (w, h, place) in enumerate(sizes)]
        self._chains: dict[int, list[Part]] = {}
        pairs = sorted(set(arrows))
        self._assign_rows(pairs)
        self._add_bends(pairs)
        self._order()
        self._spread()
        self._measure()

    def left(self, part: int) -> float:
        return self.parts[part].middle - self.parts[part].width / 2

    def top(self, part: int) -> float:
        return self.tops[self.parts[part].row]

    def row(self, part: int) -> tuple[float, float]:
        """The top and bottom of a part's row: between them arrows run straight down, past the parts beside them."""
        row = self.parts[part].row
        return self.tops[row], self.tops[row] + self.heights[row]

    def bends(self, source: int, target: int) -> list[tuple[float, float]]:
        """The points between the source's row and the target's."""
        first, last = self.parts[source].row, self.parts[target].row
        passed = self._chains.get(source, [])[: max(last - first - 1, 0)]
        if last - first > LONGEST_CHAIN:
            return []
        ends = [(part, self.tops[part.row]) for part in passed]
        return [(p.middle, y) for p, top in ends for y in (top, top + self.heights[p.row])]

    # -- the steps ---------------------------------------------------------------------------------------------

    def _assign_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        before, after = _neighbours(len(self.parts), pairs)
        for k in _sorted(before, after):
            self.parts[k].row = max((self.parts[b].row + 1 for b in before[k]), default=0)
        last = max((part.row for part in self.parts), default=0)
        for k, part in enumerate(self.parts):
            if part.place == "bottom" and not after[k]:
                part.row = last
            elif not part.place and not before[k] and after[k]:
                # Constants stand right above their first reader.
                part.row = max(min(self.parts[a].row for a in after[k]) - 1, 0)

    def _add_bends(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            part, reader = self.parts[source], self.parts[target]
            if not 0 < reader.row - part.row <= LONGEST_CHAIN:
                continue
            chain = self._chains.setdefault(source, [])
            while len(chain) < reader.row - part.row - 1:
                bend = Part(part.order, BEND, row=part.row + 1 + len(chain), weight=4.0)
                _join(chain[-1] if chain else part, bend)
                chain.append(bend)
            last = reader.row - part.row - 2
            _join(chain[last] if last >= 0 else part, reader)

    def _order(self) -> None:
        everything = [*self.parts, *(bend for chain in self._chains.values() for bend in chain)]
        count = max((part.row for part in everything), default=-1) + 1
        self.rows: list[list[Part]] = [[] for _ in range(count)]
        for part in everything:
            self.rows[part.row].append(part)
        for row in self.rows:
            _number(row)
        for sweep in range(SWEEPS):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                for part in row:
                    near = part.above if sweep % 2 == 0 else part.below
                    part.order = sum(n.order for n in near) / len(near) if near else part.order
                _number(row)

    def _spread(self) -> None:
        for row in self.rows:
            _place(row, [0.0] * len(row))
        for sweep in range(SWEEPS + 1):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                near = [
                    (p.above if sweep % 2 == 0 else p.below) or p.above or p.below or [p]
                    for p in row
                ]
                if sweep == SWEEPS:
                    near = [p.above + p.below or [p] for p in row]
                _place(row, [sum(n.middle for n in group) / len(group) for group in near])
        everything = [part for row in self.rows for part in row]
        first = min((part.middle - part.width / 2 for part in everything), default=0.0)
        for part in everything:
            part.middle -= first

    def _measure(self) -> None:
        self.heights = [max((part.height for part in row), default=0.0) for row in self.rows]
        self.tops, y = [], 0.0
        for height in self.heights:
            self.tops.append(y)
            y += height + BELOW
        self.height = max(y - BELOW, 0.0)
        self.width = max((p.middle + p.width / 2 for row in self.rows for p in row), default=0.0)


def _join(upper: Part, lower: Part) -> None:
    if lower not in upper.below[-1:]:
        upper.below.append(lower)
        lower.above.append(upper)


def _number(row: list[Part]) -> None:
    """Sort a row and give its parts places from 0 to 1, which compare between rows of different lengths."""
    row.sort(key=lambda part: part.order)
    for k, part in enumerate(row):
        part.order = (k + 0.5) / len(row)


def _neighbours(
    count: int, pairs: Iterable[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        before[target].append(source)
        after[source].append(target)
    return before, after


def _sorted(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """Topological order. Around a cycle, which only a broken graph has, the first part goes first."""
    waiting = [len(sources) for sources in before]
    found: list[int] = []
    ready = [k for k, count in enumerate(waiting) if count == 0]
    seen, spare = set(ready), iter(range(len(before)))
    while len(found) < len(before):
        if not ready:
            ready = [next(k for k in spare if k not in seen)]
            seen.update(ready)
        part = ready.pop()
        found.append(part)
        for reader in after[part]:
            waiting[reader] -= 1
            if waiting[reader] == 0 and reader not in seen:
                seen.add(reader)
                ready.append(reader)
    return found


def _place(row: Sequence[Part], wanted: Sequence[float]) -> None:
    """Move the parts of a row as near to where they are wanted as their widths allow, keeping their order."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + BESIDE)
    weights = [part.weight for part in row]
    for part, middle in zip(row, spread(wanted, weights, offsets[: len(row)])):
        part.middle = middle


def spread(
    wanted: Sequence[float], weights: Sequence[float], offsets: Sequence[float]
) -> list[float]:
    """Return places p nearest to `wanted` (weighted least squares) with p[k+1] - p[k] >= offsets[k+1] - offsets[k].

    Less their offsets the places must not fall, which pooling of adjacent violators solves in linear time.

    >>> spread([0.0, 0.0], [1.0, 1.0], [0.0, 10.0])
    [-5.0, 5.0]
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for middle, weight, offset in zip(wanted, weights, offsets):
        mean, length = middle - offset, 1
        while blocks and blocks[-1][0] >= mean:
            other, more, count = blocks.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, length = weight + more, length + count
        blocks.append((mean, weight, length))
    means = [mean for mean, _, length in blocks for _ in range(length)]
    return [mean + offset for mean, offset in zip(means, offsets)]
