"""A graph as boxes and lines: what a picture shows, before anything has a place on the page.

In: a graph. Out: a tree of `Box`es with `Item`s as leaves, and the `Line`s between them. Every node is there once: as
an item or, if it owns regions, as a box that holds a box for each region. A frame of the flat form is a box too, with
its `enter` and `exit` nodes inside. Each graph ends in one more item, its `return`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from dsl.ir.checks.frames import ROOT, Frames
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.printer import node_lines
from dsl.ir.registry import Trait

__all__ = ["Box", "Item", "Line", "Part", "diagram", "leaves"]

LONGEST = 34  # characters of a label; the hover text has the rest


@dataclass(eq=False)
class Item:
    """One node, param or return. `kind` is how it looks; `place` is `top` or `bottom` for what stands at an edge."""

    key: str
    title: str
    detail: str
    hover: str
    kind: str
    place: str = ""


@dataclass(eq=False)
class Box:
    """A labelled group. `kind` is `graph`, `control` (a node with regions), `region` or `frame`."""

    key: str
    title: str
    hover: str
    kind: str
    parts: list[Part] = field(default_factory=list)
    place: str = ""


Part = Item | Box


@dataclass(frozen=True, eq=False)
class Line:
    """An edge: `kind` is `data`, `control` or `back`."""

    source: Part
    target: Part
    kind: str
    hover: str = ""


def diagram(graph: Graph) -> tuple[Box, list[Line]]:
    """Return the outermost box of a graph and every line in it."""
    drawing = _Drawing(node_lines(graph))
    return drawing.graph(graph, "graph"), drawing.lines


def leaves(box: Box) -> Iterator[Item]:
    """Yield the items in a box and in the boxes inside it."""
    for part in box.parts:
        if isinstance(part, Item):
            yield part
        else:
            yield from leaves(part)


class _Drawing:
    """The lines found so far and the text of every node, for an outermost graph and its regions."""

    def __init__(self, heads: Mapping[Node, str]) -> None:
        self.lines: list[Line] = []
        self._heads = heads
        self._count = 0

    def graph(self, graph: Graph, kind: str) -> Box:
        """Return the box of one graph, adding its lines."""
        box = Box(self._key("box"), f"@{graph.name}", "", kind)
        parts: dict[Node, Part] = {value.node: self._param(value) for value in graph.params}
        box.parts += parts.values()
        frames = Frames(graph)
        boxes = self._frames(frames, box)
        for node in graph.nodes:
            frame = frames.of(node.output) if node.op.name == "enter" else frames.inside(node)
            parts[node] = self._node(node)
            boxes[frame].parts.append(parts[node])
        self._connect(graph, parts)
        self._end(graph, parts, box)
        return box

    def _frames(self, frames: Frames, outermost: Box) -> dict[str, Box]:
        """Make the boxes of all frames; a frame is listed after its parent."""
        boxes = {ROOT: outermost}
        for name, parent in frames.parents.items():
            boxes[name] = Box(self._key("box"), f"frame {name}", f"the loop {name}", "frame")
            boxes.get(parent, outermost).parts.append(boxes[name])
        return boxes

    # -- parts -------------------------------------------------------------------------------------------------

    def _param(self, value: Value) -> Item:
        name, type = f"%{value.node.attrs.get('name', '')}", str(value.type)
        hover = f"param {name} : {type}{_source(value.node)}"
        return Item(self._key("node"), _short(name), _short(type), hover, "param", "top")

    def _node(self, node: Node) -> Part:
        head = self._heads[node]
        hover = head + _source(node)
        if node.regions:
            regions = [self.graph(region, "region") for region in node.regions]
            names, _, types = _result(node, head).partition(" : ")
            title = _short(f"{names} = {node.op.name} : {types}", 2 * LONGEST)
            return Box(self._key("node"), title, hover, "control", [*regions])
        place = {"enter": "top", "exit": "bottom"}.get(node.op.name, "")
        detail = _short(_result(node, head))
        return Item(self._key("node"), _title(node, head), detail, hover, _kind(node), place)

    def _end(self, graph: Graph, parts: Mapping[Node, Part], box: Box) -> None:
        types = ", ".join(str(value.type) for value in graph.results)
        hover = f"return : {types}" if types else "return"
        end = Item(self._key("end"), "return", _short(types), hover, "end", "bottom")
        box.parts.append(end)
        for value in graph.results:
            self._line(parts.get(value.node), end, "data", str(value.type))
        for node in graph.effects:
            self._line(parts.get(node), end, "control")

    def _key(self, word: str) -> str:
        self._count += 1
        return f"{word}{self._count}"

    # -- lines -------------------------------------------------------------------------------------------------

    def _connect(self, graph: Graph, parts: Mapping[Node, Part]) -> None:
        for node in graph.nodes:
            for value in node.inputs:
                self._line(parts.get(value.node), parts[node], "data", str(value.type))
            for before in node.controls:
                self._line(parts.get(before), parts[node], "control")
        for merge, value in graph.back.items():
            if merge in parts:
                self._line(parts.get(value.node), parts[merge], "back", str(value.type))

    def _line(self, source: Part | None, target: Part, kind: str, hover: str = "") -> None:
        if source is not None:  # a broken graph may read what is not in it
            self.lines.append(Line(source, target, kind, hover))


def _kind(node: Node) -> str:
    kinds = {Trait.EFFECT: "effect", Trait.FLAT: "flat", Trait.ELEMENTWISE: "elementwise"}
    if node.op.name == "const":
        return "const"
    return next((kind for trait, kind in kinds.items() if node.op.has(trait)), "op")


def _title(node: Node, head: str) -> str:
    """The op and, of a constant, the value."""
    if node.op.name != "const":
        return node.op.name
    return _short(head.partition("{value=")[2].rpartition("} ")[0] or "const", 20)


def _result(node: Node, head: str) -> str:
    """What a node makes: names and types, cut from its line of text."""
    names = head.partition(" = ")[0]
    return f"{names} : {head.rpartition(' : ')[2]}" if node.types else names


def _source(node: Node) -> str:
    """The user's line, below the line of IR; the file without its directory, or that it is a notebook's cell."""
    if node.loc is None:
        return ""
    path = PurePath(node.loc.file)
    name = "cell" if path.parent.name.startswith("ipykernel_") else path.name
    place = f"\n{name}:{node.loc.line}"
    text = node.loc.source().strip()
    return f"{place}: {text}" if text else place


def _short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
