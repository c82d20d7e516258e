"""Places for the boxes and lines of a diagram.

In: a box of `dsl.ir.diagram` and the lines in it. Out: a rectangle for every part and points for every line, in pixels.
Boxes are laid out from the inside out, each as one big part of the box around it; `dsl.ir.rows` does the work within
one box. A back edge runs up in a lane of its own at the right edge of its frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsl.ir.diagram import Box, Item, Line, Part
from dsl.ir.rows import Rows

__all__ = ["Layout", "Place", "Point", "lay_out"]

CHARACTER = 6.7  # width of a character of the 11 px monospace font
ITEM_HEIGHT = 36.0
PADDING, HEADER, LANE = 12.0, 24.0, 8.0

Point = tuple[float, float]


@dataclass
class Place:
    """A rectangle; `x` and `y` are its left and top."""

    x: float
    y: float
    width: float
    height: float


@dataclass
class Layout:
    """Where everything is: parts on the page, and the points that each line passes, from source to target."""

    places: dict[Part, Place]
    paths: list[tuple[Line, list[Point]]]


@dataclass
class _Local:
    """The lines between two parts of one box, or parts inside those."""

    source: int
    target: int
    line: Line


def lay_out(box: Box, lines: Sequence[Line]) -> Layout:
    """Return places for a box, all parts in it and all lines."""
    local = _sort_lines(box, lines)
    sizes: dict[Part, Place] = {}
    rows: dict[Box, Rows] = {}
    _size(box, local, sizes, rows)
    sizes[box].x = sizes[box].y = 0.0
    for inner in _boxes(box):
        _settle(inner, sizes, rows[inner])
    return Layout(sizes, list(_paths(local, sizes, rows)))


def _boxes(box: Box) -> Iterator[Box]:
    """Yield a box and the boxes inside it, outer ones first."""
    yield box
    for part in box.parts:
        if isinstance(part, Box):
            yield from _boxes(part)


def _sort_lines(box: Box, lines: Sequence[Line]) -> dict[Box, list[_Local]]:
    """Give each line to the innermost box that holds both of its ends."""
    chains: dict[Part, tuple[tuple[Box, int], ...]] = {}
    for outer in _boxes(box):
        for number, part in enumerate(outer.parts):
            chains[part] = (*chains.get(outer, ()), (outer, number))
    found: dict[Box, list[_Local]] = {inner: [] for inner in _boxes(box)}
    for line in lines:
        for (home, source), (other, target) in zip(chains[line.source], chains[line.target]):
            if home is other and source != target:
                found[home].append(_Local(source, target, line))
                break
    return found


# --- Sizes and places ----------------------------------------------------------------------------


def _size(
    part: Part,
    local: Mapping[Box, Sequence[_Local]],
    sizes: dict[Part, Place],
    rows: dict[Box, Rows],
) -> None:
    if isinstance(part, Item):
        letters = max(len(part.title) * 1.06, len(part.detail))
        sizes[part] = Place(0, 0, max(CHARACTER * letters + 20, 44), ITEM_HEIGHT)
        return
    for inner in part.parts:
        _size(inner, local, sizes, rows)
    measures = [(sizes[p].width, sizes[p].height, p.place) for p in part.parts]
    forward = [(x.source, x.target) for x in local[part] if x.line.kind != "back"]
    rows[part] = Rows(measures, forward)
    lanes = LANE * sum(x.line.kind == "back" for x in local[part])
    width = max(rows[part].width + lanes, CHARACTER * 1.1 * len(part.title))
    height = rows[part].height + HEADER + (PADDING if lanes else 0)
    sizes[part] = Place(0, 0, width + 2 * PADDING, height + 2 * PADDING)


def _settle(box: Box, places: Mapping[Part, Place], rows: Rows) -> None:
    """Move the parts of a box to where the box is."""
    x, y = _corner(places[box])
    for number, part in enumerate(box.parts):
        places[part].x, places[part].y = x + rows.left(number), y + rows.top(number)


def _corner(place: Place) -> Point:
    return place.x + PADDING, place.y + HEADER + PADDING


# --- Paths ---------------------------------------------------------------------------------------


def _paths(
    local: Mapping[Box, Sequence[_Local]], places: Mapping[Part, Place], rows: Mapping[Box, Rows]
) -> Iterator[tuple[Line, list[Point]]]:
    ports = _ports(local, places)
    for box, found in local.items():
        x, y = _corner(places[box])
        lane = 0
        for one in found:
            start, end = places[one.line.source], ports[one.line]
            if one.line.kind == "back":
                lane += 1
                yield one.line, _around(start, end, x + rows[box].width + LANE * (lane - 0.5), lane)
                continue
            bends = [(x + a, y + b) for a, b in rows[box].bends(one.source, one.target)]
            first = (start.x + start.width / 2, start.y + start.height)
            leave, arrive = rows[box].row(one.source)[1] + y, rows[box].row(one.target)[0] + y
            yield one.line, [first, (first[0], leave), *bends, (end[0], arrive), end]


def _around(start: Place, end: Point, lane: float, number: int) -> list[Point]:
    """Down from the source, right to the lane, up, left to the target, and down into it."""
    x, bottom = start.x + start.width / 2, start.y + start.height
    low, high = bottom + 5 + number % 4 * 3, end[1] - 10 - number % 4 * 3
    return [(x, bottom), (x, low), (lane, low), (lane, high), (end[0], high), end]


def _ports(
    local: Mapping[Box, Sequence[_Local]], places: Mapping[Part, Place]
) -> dict[Line, Point]:
    """Where lines end: side by side on the top edge of the target, in the order of where they come from."""
    arriving: dict[Part, list[Line]] = {}
    for line in (one.line for found in local.values() for one in found):
        arriving.setdefault(line.target, []).append(line)
    ports: dict[Line, Point] = {}
    for target, lines in arriving.items():
        lines.sort(key=lambda line: (line.kind == "back", _middle(places[line.source])))
        place = places[target]
        step = min(14.0, place.width * 0.7 / len(lines))
        for number, line in enumerate(lines):
            ports[line] = (_middle(place) + step * (number - (len(lines) - 1) / 2), place.y)
    return ports


def _middle(place: Place) -> float:
    return place.x + place.width / 2
