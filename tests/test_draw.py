"""Pictures of graphs: every node once, loops boxed, text escaped, nothing from elsewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from flat_graphs import COUNT
from hypothesis import given, settings
from random_graphs import graphs

import dsl
from dsl.ir.diagram import Box, diagram, leaves
from dsl.ir.draw import Picture, dot
from dsl.ir.graph import Graph
from dsl.ir.layout import lay_out
from dsl.ir.rows import spread
from dsl.ir.text import parse
from dsl.passes.lower_control import lower_control

SVG = "{http://www.w3.org/2000/svg}"


def collatz(seen: np.ndarray, n: int) -> int:
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1  # & <here>
        seen[steps] = n
        steps += 1
    return steps


@pytest.fixture(scope="module")
def lowered() -> dsl.compile.Lowered:
    return dsl.jit(collatz).lower(np.zeros(200), 27)


def drawn(graph: Graph) -> list[ET.Element]:
    """The groups of a picture that stand for nodes."""
    root = ET.fromstring(Picture(graph).html)
    return [g for g in root.iter(f"{SVG}g") if g.get("data-key", "").startswith("node")]


def count(graph: Graph) -> int:
    """Nodes and params, those of regions included."""
    regions = [region for node in graph.nodes for region in node.regions]
    return len(graph.nodes) + len(graph.params) + sum(map(count, regions))


@pytest.mark.parametrize("stage", ["traced", "optimized", "lowered"])
def test_a_picture_is_xml_with_every_node_once(lowered: dsl.compile.Lowered, stage: str) -> None:
    graph = lowered.graph(stage)
    keys = Counter(group.get("data-key") for group in drawn(graph))
    assert len(keys) == count(graph)
    assert set(keys.values()) == {1}


def test_hovering_shows_the_ir_and_the_source_line_without_directories(
    lowered: dsl.compile.Lowered,
) -> None:
    html = lowered.show().html
    titles = [title.text or "" for title in ET.fromstring(html).iter(f"{SVG}title")]
    (floor,) = [title for title in titles if "floor_divide" in title]
    assert re.fullmatch(
        r"%1 = floor_divide\(%n, %0\) : i64\[\]\ntest_draw\.py:\d+: n = n // 2", floor
    )
    assert str(Path(__file__).parent) not in html


def test_source_text_is_escaped(lowered: dsl.compile.Lowered) -> None:
    assert "# &amp; &lt;here&gt;" in lowered.show().html


def test_strings_in_attributes_are_escaped_everywhere() -> None:
    graph = parse(
        'graph @"a<b>&\\"c\\""(%x: f64[]) -> () {\n'
        '  !0 = print(%x) {end="\\n", template="<&\\"\\u0001{}"}\n'
        "  return after !0\n}"
    )
    titles = [title.text or "" for title in ET.fromstring(Picture(graph).html).iter(f"{SVG}title")]
    assert any('template="<&\\"' in title for title in titles)
    assert dot(graph).startswith('digraph "a<b>&\\"c\\"" {')


def test_nothing_is_loaded_from_elsewhere(lowered: dsl.compile.Lowered) -> None:
    html = lowered.show("lowered").html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<script|@import|url\(|<link", html)


def test_regions_and_frames_are_boxes(lowered: dsl.compile.Lowered) -> None:
    assert labels(lowered.graph()) >= {"@collatz", "@cond", "@body", "@then", "@else"}
    assert labels(parse(COUNT)) == {"@count", "frame w"}


def labels(graph: Graph) -> set[str]:
    root = ET.fromstring(Picture(graph).html)
    return {text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "l"}


def test_a_frame_holds_the_nodes_of_its_loop() -> None:
    box, lines = diagram(parse(COUNT))
    (frame,) = [part for part in box.parts if isinstance(part, Box)]
    inside = Counter(item.title for item in leaves(frame))
    assert inside == Counter(
        {"enter": 3, "loop_merge": 1, "less": 1, "loop_cond": 1, "switch": 1, "add": 1}
        | {"next_iteration": 1, "exit": 1}
    )
    (back,) = [line for line in lines if line.kind == "back"]
    assert (back.source.title, back.target.title) == ("next_iteration", "loop_merge")


def test_nested_frames_are_nested_boxes() -> None:
    def grid(n: int, m: int) -> int:
        total = 0
        for i in range(n):
            for j in range(m):
                total += i * j
        return total

    box, _ = diagram(dsl.jit(grid).lower(3, 4).graph("lowered"))
    (outer,) = [part for part in box.parts if isinstance(part, Box)]
    (inner,) = [part for part in outer.parts if isinstance(part, Box)]
    assert (outer.kind, inner.kind) == ("frame", "frame")


def test_parts_lie_inside_their_box_and_apart(lowered: dsl.compile.Lowered) -> None:
    for stage in ("optimized", "lowered"):
        box, lines = diagram(lowered.graph(stage))
        check_apart(box, lay_out(box, lines).places)


def check_apart(box: Box, places: dict) -> None:
    home, parts = places[box], [places[part] for part in box.parts]
    for k, one in enumerate(parts):
        assert home.x <= one.x
        assert home.y <= one.y
        assert one.x + one.width <= home.x + home.width
        assert one.y + one.height <= home.y + home.height
        for other in parts[k + 1 :]:
            assert (
                one.x + one.width <= other.x + 1e-6
                or other.x + other.width <= one.x + 1e-6
                or one.y + one.height <= other.y
                or other.y + other.height <= one.y
            )
    for part in box.parts:
        if isinstance(part, Box):
            check_apart(part, places)


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_random_graphs_can_be_drawn_in_both_spellings(case: tuple[Graph, list]) -> None:
    graph, _ = case
    for form in (graph, lower_control(graph)):
        assert len(drawn(form)) == count(form)
        assert dot(form).count("tooltip=") >= count(form)


def test_dot_marks_control_and_back_edges(lowered: dsl.compile.Lowered) -> None:
    text = lowered.dot()
    assert "style=dashed" in text
    assert "label=back" in text
    assert 'label="frame while0"' in text
    assert "subgraph cluster_" in lowered.dot("optimized")
    assert "n = n // 2" in text


def test_pictures_are_saved_as_html_or_svg(tmp_path: Path, lowered: dsl.compile.Lowered) -> None:
    picture = lowered.show()
    picture.save(tmp_path / "g.html")
    picture.save(str(tmp_path / "g.svg"))
    assert (tmp_path / "g.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert ET.parse(tmp_path / "g.svg").getroot().tag == f"{SVG}svg"
    assert picture._repr_html_() == picture.html
    assert repr(picture).startswith("<picture of @collatz")


def test_an_empty_graph_can_be_drawn() -> None:
    graph = parse("graph @nothing() -> () {\n  return\n}")
    assert "return" in Picture(graph).html


def test_spread_keeps_distances_and_moves_as_little_as_it_must() -> None:
    assert spread([0.0, 20.0], [1.0, 1.0], [0.0, 10.0]) == [0.0, 20.0]
    assert spread([3.0, 0.0], [3.0, 1.0], [0.0, 1.0]) == pytest.approx([2.0, 3.0])
