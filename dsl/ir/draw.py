"""Pictures of graphs: Graphviz text, and SVG that needs nothing but a browser.

In: a graph, structured or flat. Out: text. Regions and frames are labelled boxes, control edges are dashed, back edges
are marked, and hovering over a node shows its line of IR and the user's line that it comes from. File names are shown
without their directory, so a picture may be published.

>>> from dsl.ir.text import parse
>>> graph = parse("graph @f(%x: f64[]) -> (f64[]) { %0 = sin(%x) : f64[] return %0 }")
>>> print(dot(graph).splitlines()[0])
digraph "f" {
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from dsl.ir.diagram import Box, Item, Line, diagram, leaves
from dsl.ir.graph import Graph
from dsl.ir.layout import Layout, Place, Point, lay_out

__all__ = ["Picture", "dot"]


# --- Graphviz ------------------------------------------------------------------------------------

_DOT_STYLES = {
    "param": 'fillcolor="#dbeafe"', "const": 'fillcolor="#f1f5f9"', "elementwise": 'fillcolor="#ffffff"',
    "op": 'fillcolor="#ecfdf5"', "flat": 'fillcolor="#fef3c7"', "effect": 'fillcolor="#fee2e2"',
    "end": 'fillcolor="#dbeafe"',
}  # fmt: skip
_DOT_LINES = {
    "data": "",
    "control": " [style=dashed]",
    "back": ' [constraint=false, color="#b45309", label=back]',
}


def dot(graph: Graph) -> str:
    """Return a graph in Graphviz's language; regions and frames are clusters."""
    box, lines = diagram(graph)
    style = 'node [shape=box, style="rounded,filled", fontname=monospace, fontsize=10]; edge [fontsize=9];'
    body = [
        f"digraph {json.dumps(graph.name)} {{",
        f"  compound=true; {style}",
        *_dot_box(box, "  "),
    ]
    return "\n".join([*body, *(f"  {_dot_line(line)}" for line in lines), "}"])


def _dot_box(box: Box, indent: str) -> Iterator[str]:
    yield f"{indent}subgraph cluster_{box.key} {{"
    yield f"{indent}  label={_quote(box.title)}; tooltip={_quote(box.hover or box.title)}; style=rounded;"
    for part in box.parts:
        if isinstance(part, Box):
            yield from _dot_box(part, indent + "  ")
        else:
            label = _quote(f"{part.title}\n{part.detail}" if part.detail else part.title)
            yield f"{indent}  {part.key} [label={label}, tooltip={_quote(part.hover)}, {_DOT_STYLES[part.kind]}];"
    yield indent + "}"


def _dot_line(line: Line) -> str:
    """Graphviz joins nodes only, so an edge of a box is one of a node in it, cut off at the box."""
    ends = [
        p if isinstance(p, Item) else _anchor(p, k)
        for k, p in enumerate((line.source, line.target))
    ]
    cuts = [
        f"l{side}=cluster_{p.key}"
        for side, p in (("tail", line.source), ("head", line.target))
        if isinstance(p, Box)
    ]
    style = _DOT_LINES[line.kind] or (" []" if cuts else "")
    if cuts:
        style = style[:-1] + (", " if style[-2] != "[" else "") + ", ".join(cuts) + "]"
    return f"{ends[0].key} -> {ends[1].key}{style};"


def _anchor(box: Box, end: int) -> Item:
    """The last item in a box, for what leaves it, or the first."""
    items = list(leaves(box))
    return items[-1 if end == 0 else 0]


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- SVG -----------------------------------------------------------------------------------------

_STYLE = """\
.dsl-graph{background:#fff;color:#0f172a;overflow:auto;max-height:90vh}
.dsl-graph svg{display:block}
.dsl-graph rect{stroke:#94a3b8;fill:#fff}
.dsl-graph text{font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#0f172a;text-anchor:middle}
.dsl-graph .t{font-weight:bold}
.dsl-graph .d{fill:#475569}
.dsl-graph .l{text-anchor:start;fill:#334155;font-weight:bold}
.dsl-graph path{fill:none;stroke:#64748b;stroke-linejoin:round}
.dsl-graph path.h{fill:#64748b;stroke:none}
.dsl-graph .control path{stroke-dasharray:4 3}
.dsl-graph .back path{stroke:#d97706;stroke-width:1.6}
.dsl-graph .back path.h{fill:#d97706;stroke:none}
.dsl-graph g:hover>rect{stroke:#2563eb;stroke-width:2}
.dsl-graph g:hover>path{stroke:#2563eb;stroke-width:2}
.dsl-graph .param rect,.dsl-graph .end rect{fill:#dbeafe}
.dsl-graph .const rect{fill:#f1f5f9}
.dsl-graph .op rect{fill:#ecfdf5}
.dsl-graph .flat rect{fill:#fef3c7}
.dsl-graph .effect rect{fill:#fee2e2}
.dsl-graph .box.graph>rect{fill:#fff;stroke:#cbd5e1}
.dsl-graph .box.control>rect{fill:#fffbeb;stroke:#d97706}
.dsl-graph .box.region>rect{fill:#fff;stroke:#94a3b8;stroke-dasharray:5 3}
.dsl-graph .box.frame>rect{fill:#fffbeb;stroke:#d97706;stroke-width:1.4}
"""


class Picture:
    """A drawing of a graph. A notebook shows it; `html` is the text, `save` writes it to a file.

    Every node is a box with its op and its types, every region and frame a labelled box around its nodes. Nothing is
    loaded from elsewhere.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.svg = _svg(graph)
        self.html = f'<div class="dsl-graph"><style>{_STYLE}</style>{self.svg}</div>'

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<picture of @{self.graph.name}, {len(self.graph.nodes)} nodes>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture: SVG alone if the name ends in `.svg`, else a page of HTML."""
        target = Path(path)
        title = _xml(self.graph.name)
        head = f'<head><meta charset="utf-8"/><title>{title}</title></head>'
        page = f'<!DOCTYPE html>\n<html lang="en">{head}<body>{self.html}</body></html>\n'
        style = f'class="dsl-graph"><style>{_STYLE}</style>'
        alone = self.svg.replace(">", f" {style}", 1)
        target.write_text(alone if target.suffix == ".svg" else page, encoding="utf-8")


def _svg(graph: Graph) -> str:
    box, lines = diagram(graph)
    layout = lay_out(box, lines)
    width, height = layout.places[box].width + 2, layout.places[box].height + 2
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="-1 -1 {width:.0f} {height:.0f}"'
    parts = [*_svg_boxes(box, layout), *_svg_lines(layout), *_svg_items(box, layout)]
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>' + "\n".join(parts) + "</svg>"


def _svg_boxes(box: Box, layout: Layout) -> Iterator[str]:
    """Outer boxes first, so that inner ones lie on top of them."""
    place = layout.places[box]
    label = (
        f'<text class="l" x="{place.x + 10:.1f}" y="{place.y + 16:.1f}">{_xml(box.title)}</text>'
    )
    content = _title(box.hover) + _rect(place, 8) + label
    yield f'<g class="box {box.kind}" data-key="{box.key}">{content}</g>'
    for part in box.parts:
        if isinstance(part, Box):
            yield from _svg_boxes(part, layout)


def _svg_items(box: Box, layout: Layout) -> Iterator[str]:
    for item in leaves(box):
        place = layout.places[item]
        rows = [("t", item.title), ("d", item.detail)] if item.detail else [("t", item.title)]
        first = place.y + place.height / 2 + (4 if len(rows) == 1 else -3)
        middle = place.x + place.width / 2
        texts = [
            f'<text class="{c}" x="{middle:.1f}" y="{first + 14 * k:.1f}">{_xml(t)}</text>'
            for k, (c, t) in enumerate(rows)
        ]
        content = _title(item.hover) + _rect(place, 6) + "".join(texts)
        yield f'<g class="{item.kind}" data-key="{item.key}">{content}</g>'


def _svg_lines(layout: Layout) -> Iterator[str]:
    for line, points in layout.paths:
        curve = _polyline(points) if line.kind == "back" else _curve(points)
        x, y = points[-1]
        head = f'<path class="h" d="M{x:.1f} {y:.1f}l-3.2 -6.5h6.4z"/>'
        yield f'<g class="{line.kind}">{_title(line.hover)}<path d="{curve}"/>{head}</g>'


def _curve(points: Sequence[Point]) -> str:
    """Vertical at every point; straight where a point is right below the one before."""
    (x, y), *rest = points
    text = f"M{x:.1f} {y:.1f}"
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.5:
            text += f"V{next_y:.1f}"
        else:
            middle = (y + next_y) / 2
            text += f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
        x, y = next_x, next_y
    return text


def _polyline(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _rect(place: Place, radius: int) -> str:
    size = f'width="{place.width:.1f}" height="{place.height:.1f}"'
    return f'<rect x="{place.x:.1f}" y="{place.y:.1f}" {size} rx="{radius}"/>'


def _title(text: str) -> str:
    return f"<title>{_xml(text)}</title>" if text else ""


def _xml(text: str) -> str:
    """Escape a text, leaving out the control characters that XML cannot hold."""
    return escape("".join(c for c in text if c >= " " or c in "\t\n"))
