"""A timeline as an SVG: a row of coloured boxes for each thread and device, what runs within something below it.

Below a loop, dashed boxes are what ran inside it, added up: their widths are times, their places mean nothing.

Nothing is loaded from elsewhere. Boxes too narrow to be seen are left out; hovering over one shows its line and times.
File names are shown without their directory, so a picture may be published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dsl.profiler.chrome import flows
from dsl.profiler.table import shown_time
from dsl.profiler.timeline import Event, Inside, parents

__all__ = ["picture"]

COLOURS = {
    "call": "#bfdbfe", "step": "#bfdbfe", "part": "#dbeafe", "program": "#e2e8f0", "compile": "#ddd6fe", "pass": "#ede9fe",
    "kernel": "#86efac", "library": "#5eead4", "loop": "#fde68a", "update": "#bef264", "copy": "#fdba74", "python": "#fca5a5",
    "send": "#f9a8d4", "wait": "#f1f5f9",
}  # fmt: skip
_MARGIN, _BOX, _GAP, _LABEL, _AXIS = 8, 17, 10, 16, 22
_LETTER = 6.1  # the width of a letter
_NARROW = 0.4  # what cannot be seen
_EDGE = 'stroke="#94a3b8" stroke-width="0.5"'


@dataclass(frozen=True)
class _Scale:
    """From seconds to pixels, and from an event to the top of its box."""

    seconds: float
    width: float
    tops: dict[str, float]
    depths: list[int]

    def x(self, time: float) -> float:
        return _MARGIN + (self.width - 2 * _MARGIN) * time / (self.seconds or 1.0)

    def y(self, number: int, event: Event) -> float:
        return self.tops[event.row] + _BOX * self.depths[number]


def picture(events: Sequence[Event], seconds: float, width: int) -> str:
    """Return the events of so many seconds as an SVG."""
    depths = _depths(events)
    tops, height = _tops(events, depths)
    scale = _Scale(max([seconds, *(event.end for event in events)]), width, tops, depths)
    bottom = height + _AXIS + _LABEL
    size = f'width="{width}" height="{bottom:.0f}" viewBox="0 0 {width} {bottom:.0f}"'
    style = 'font-family="Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="10"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_axis(scale, height),
        *_labels(tops),
        *_boxes(events, scale),
        *_arrows(events, scale),
        *_legend(events, height + _AXIS),
        "</svg>",
    ]
    return "\n".join(parts)


def _depths(events: Sequence[Event]) -> list[int]:
    depths: list[int] = []
    for parent in parents(events):
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _tops(events: Sequence[Event], depths: Sequence[int]) -> tuple[dict[str, float], float]:
    """Return where the boxes of each row begin, and where all of them end."""
    deepest: dict[str, int] = {}
    for event, depth in zip(events, depths, strict=True):
        deepest[event.row] = max(deepest.get(event.row, 0), depth + bool(event.inside))
    tops: dict[str, float] = {}
    y = float(_MARGIN)
    for row, depth in deepest.items():
        tops[row] = y + _LABEL
        y += _LABEL + _BOX * (depth + 1) + _GAP
    return tops, y


def _labels(tops: dict[str, float]) -> Iterator[str]:
    for row, top in tops.items():
        yield f'<text x="{_MARGIN}" y="{top - 5:.1f}" font-weight="bold" fill="#334155">{_xml(row)}</text>'


def _boxes(events: Sequence[Event], scale: _Scale) -> Iterator[str]:
    """Draw what can be seen: of several boxes on one spot, the first."""
    drawn: dict[float, float] = {}
    for k, event in enumerate(events):
        left, right, y = scale.x(event.start), scale.x(event.end), scale.y(k, event)
        if right - drawn.get(y, -1.0) < _NARROW:
            continue
        drawn[y] = right
        yield _box(event, left, max(right - left, _NARROW), y, _hover(event))
        yield from _insides(event, scale, y + _BOX)


def _insides(event: Event, scale: _Scale, y: float) -> Iterator[str]:
    start = event.start
    for item in event.inside:
        left, right = scale.x(start), scale.x(start + item.seconds)
        if item.parent < 0 and right - left >= _NARROW:
            yield _box(item, left, right - left, y, _counted(item), ' stroke-dasharray="3 2"')
            start += item.seconds


def _box(
    event: Event | Inside, x: float, width: float, y: float, hover: str, edge: str = ""
) -> str:
    colour = COLOURS.get(event.kind, "#ffffff")
    size = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_BOX - 1}"'
    shape = f'<rect {size} rx="2" fill="{colour}" {_EDGE}{edge}/>'
    return f"<g><title>{_xml(hover)}</title>{shape}{_caption(event, x, width, y)}</g>"


def _caption(event: Event | Inside, x: float, width: float, y: float) -> str:
    room = int((width - 6) / _LETTER)
    text = f"{event.name}  {event.line}" if event.line else event.name
    text = text if len(text) <= room else event.name
    if room < 3:
        return ""
    shown = text if len(text) <= room else text[: room - 1] + "…"
    return f'<text x="{x + 3:.1f}" y="{y + 11.5:.1f}" fill="#0f172a">{_xml(shown)}</text>'


def _hover(event: Event) -> str:
    lines = [f"{event.name} ({event.kind})", f"{shown_time(event.seconds)}  {event.line}".strip()]
    if event.bytes and event.seconds:
        lines.append(f"{1e-9 * event.bytes / event.seconds:.1f} GB/s")
    lines += map(_counted, event.inside)
    return "\n".join(lines)


def _counted(item: Inside) -> str:
    return f"{item.count:,} x {item.name}  {shown_time(item.seconds)}  {item.line}".strip()


def _arrows(events: Sequence[Event], scale: _Scale) -> Iterator[str]:
    places = {id(event): k for k, event in enumerate(events)}
    for send, receive in flows(events):
        x, y = scale.x(send.start), scale.y(places[id(send)], send) + _BOX / 2
        to_x, to_y = scale.x(receive.end), scale.y(places[id(receive)], receive) + _BOX / 2
        path = f"M{x:.1f} {y:.1f}C{x + 20:.1f} {y:.1f} {to_x - 20:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        yield f'<path d="{path}" fill="none" stroke="#db2777"/>'


def _axis(scale: _Scale, y: float) -> Iterator[str]:
    step = _step(scale.seconds)
    for k in range(int(scale.seconds / step) + 1):
        x = scale.x(k * step)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_MARGIN}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        if x < scale.width - 5 * _LETTER:
            label = shown_time(k * step) if k else "0"
            yield f'<text x="{x:.1f}" y="{y + 12:.1f}" fill="#64748b">{label}</text>'


def _step(seconds: float) -> float:
    """Return a round number of seconds of which about eight are in the whole."""
    rough = max(seconds, 1e-9) / 8
    unit = math.pow(10, math.floor(math.log10(rough)))
    return next((k * unit for k in (1, 2, 5) if k * unit >= rough), 10 * unit)


def _legend(events: Sequence[Event], y: float) -> Iterator[str]:
    x = float(_MARGIN)
    present = {event.kind for event in events}
    present |= {item.kind for event in events for item in event.inside}
    for kind, colour in COLOURS.items():
        if kind in present:
            size = f'x="{x:.1f}" y="{y:.1f}" width="10" height="10"'
            yield f'<rect {size} rx="2" fill="{colour}" {_EDGE}/>'
            yield f'<text x="{x + 14:.1f}" y="{y + 9:.1f}" fill="#334155">{kind}</text>'
            x += 26 + _LETTER * len(kind)


def _xml(text: str) -> str:
    return escape("".join(c for c in text if c >= " " or c in "\t\n"))
