"""The verifier: one bad graph per rule. `tests/verify/*.ir` mark the guilty lines with `# error: <rules>`."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dsl.errors import VerifyError
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.parser import parse
from dsl.ir.printer import print_graph
from dsl.ir.registry import OPS, get_op
from dsl.ir.types import BY_NAME, TensorType, scalar
from dsl.ir.verify import RULES, find_breaches, verify

FILES = sorted((Path(__file__).parent / "verify").glob("*.ir"))
F64 = scalar(BY_NAME["f64"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_exactly_the_marked_lines_break_exactly_the_marked_rules(path: Path) -> None:
    text = path.read_text()
    found = find_breaches(parse(text, str(path)))
    got = Counter((b.node.loc.line, b.rule.number) for b in found if b.node.loc)
    assert got == marked(text)
    assert {number for _, number in got} == {int(path.stem[:2])}


def marked(text: str) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for line, content in enumerate(text.splitlines(), 1):
        if match := re.search(r"# error: ([\d, ]+)$", content):
            found.update((line, int(number)) for number in match[1].split(","))
    return found


# Rules that no text can break, since the parser would refuse it; the tests below break them in Python.
IN_PYTHON = {1, 2, 3, 16}


def test_every_rule_has_a_bad_graph() -> None:
    assert [rule.number for rule in RULES] == list(range(1, len(RULES) + 1))
    assert {int(path.stem[:2]) for path in FILES} | IN_PYTHON == {rule.number for rule in RULES}


def breaches(graph: Graph) -> list[tuple[int, str]]:
    return [(breach.rule.number, breach.node.op.name) for breach in find_breaches(graph)]


def param(name: str = "x", type: TensorType = F64) -> Value:
    return Node(get_op("param"), (), {"name": name}, (type,)).output


def sin(x: Value, controls: tuple[Node, ...] = ()) -> Value:
    return Node(get_op("sin"), (x,), {}, (x.type,), controls=controls).output


def test_rule_1_a_region_reads_its_own_params_only() -> None:
    x, y, n = param("x"), param("y"), param("n", scalar(BY_NAME["i64"]))
    body = Graph("body", (param("i", n.tensor), y), (sin(x),))
    loop = Node(get_op("scan"), (n, x), {"carried": 1}, (F64,), regions=(body,))
    assert breaches(Graph("f", (x, n), loop.outputs)) == [(1, "sin")]


def test_rule_1_results_and_control_edges_stay_in_the_graph() -> None:
    x, y = param("x"), param("y")
    assert breaches(Graph("f", (x,), (y,))) == [(1, "param")]
    assert breaches(Graph("f", (x,), (sin(x, (y.node,)),))) == [(1, "sin")]


def test_rule_1_a_value_is_an_output_of_its_node() -> None:
    x = param()
    stray = Value(sin(x).node, 0, F64)
    assert breaches(Graph("f", (x,), (sin(stray),))) == [(1, "sin")]


def test_rule_2_params_stand_once_and_are_params() -> None:
    x = param()
    assert breaches(Graph("f", (x, x), (x,))) == [(2, "param")]
    assert breaches(Graph("f", (x, sin(x)), (x,))) == [(2, "sin")]


def test_rule_3_only_back_edges_make_cycles() -> None:
    x = param()
    first = sin(x)
    second = sin(first)
    object.__setattr__(first.node, "controls", (second.node,))
    assert breaches(Graph("f", (x,), (second,))) == [(3, "sin")]


def test_rule_4_sizes_are_operands() -> None:
    x = param()
    node = Node(get_op("sin"), (), {}, (F64,), dims=(BY_NAME,))
    assert breaches(Graph("f", (x,), node.outputs)) == [(4, "sin")]


def test_rule_6_dtypes_are_supported() -> None:
    x = param(type=TensorType(np.dtype("S3")))
    assert breaches(Graph("f", (x,), (x,))) == [(6, "param")]


def test_rule_16_an_effect_is_in_one_graph() -> None:
    x, p = param(), param("p", scalar(BY_NAME["bool"]))
    say = Node(get_op("print"), (), {"template": "", "end": ""}, ())
    yes, no = (Graph(name, (param(),), (), (say,)) for name in ("yes", "no"))
    cond = Node(get_op("cond"), (p, x), {}, (), regions=(yes, no))
    assert breaches(Graph("f", (x, p), (), (cond,))) == [(16, "print"), (16, "print")]


def test_rule_22_only_headers_have_back_edges() -> None:
    x = param()
    y = sin(x)
    assert breaches(Graph("f", (x,), (y,), back={y.node: x})) == [(22, "sin")]


# -- good graphs ------------------------------------------------------------------------------------------------------


def test_a_pure_node_may_be_in_several_graphs() -> None:
    p, one = param("p", scalar(BY_NAME["bool"])), Builder().constant(1.0)
    yes, no = Graph("yes", (), (one,)), Graph("no", (), (sin(one),))
    cond = Node(get_op("cond"), (p,), {}, (F64,), regions=(yes, no))
    verify(Graph("f", (p,), cond.outputs))


def test_nested_loops_and_branches_in_the_flat_form_are_good() -> None:
    verify(parse(NESTED))


def test_every_sample_of_every_op_is_good_and_comes_back() -> None:
    rng = np.random.default_rng(0)
    get_op("param")
    for op in OPS.values():
        for sample in op.samples(rng):
            builder = Builder(op.name)
            inputs = [
                builder.param(TensorType(x.dtype, x.shape)) for x in map(np.asarray, sample.inputs)
            ]
            graph = builder.finish(builder.node(op, inputs, sample.attrs).outputs)
            verify(graph)
            assert parse(print_graph(graph)) == graph


NESTED = """
graph @nested(%n: i64[], %q: bool[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i0 = enter(%zero) {frame="outer"} : i64[]
  %s0 = enter(%zero) {frame="outer"} : i64[]
  %m = enter(%n) {frame="outer", invariant} : i64[]
  %o = enter(%one) {frame="outer", invariant} : i64[]
  %b = enter(%q) {frame="outer", invariant} : bool[]
  %i = loop_merge(%i0, %inext) : i64[]
  %s = loop_merge(%s0, %snext) : i64[]
  %p = less(%i, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %iout, %iin = switch(%i, %c) : i64[], i64[]
  %sout, %sin = switch(%s, %c) : i64[], i64[]
  %j0 = enter(%sin) {frame="inner"} : i64[]
  %jm = enter(%iin) {frame="inner", invariant} : i64[]
  %jo = enter(%o) {frame="inner", invariant} : i64[]
  %j = loop_merge(%j0, %jnext) : i64[]
  %jp = less(%j, %jm) : bool[]
  %jc = loop_cond(%jp) : bool[]
  %jout, %jin = switch(%j, %jc) : i64[], i64[]
  %jadd = add(%jin, %jo) : i64[]
  %jnext = next_iteration(%jadd) : i64[]
  %t = exit(%jout) : i64[]
  %no, %yes = switch(%t, %b) : i64[], i64[]
  %neg = negative(%yes) : i64[]
  %u = merge(%no, %neg) : i64[]
  %k = add(%iin, %o) : i64[]
  %inext = next_iteration(%k) : i64[]
  %snext = next_iteration(%u) : i64[]
  %r = exit(%sout) : i64[]
  return %r
}
"""


# -- messages ---------------------------------------------------------------------------------------------------------


def test_the_error_lists_every_breach_with_its_node_and_line() -> None:
    text = """graph @f(%x: f64[3]) -> (f64[4], f32[3]) {
      %a = sin(%x) : f64[4]
      %b = cos(%x) : f32[3]
      return %a, %b
    }"""
    with pytest.raises(VerifyError) as caught:
        verify(parse(text, "bad.ir"))
    assert str(caught.value) == """\
graph @f breaks rules 2 times
rule 9: The types of a node's results follow from its op's type rule.
  %0 = sin(%x) : f64[4]
  the rule of sin gives f64[3]
  File "bad.ir", line 2
rule 9: The types of a node's results follow from its op's type rule.
  %1 = cos(%x) : f32[3]
  the rule of cos gives f64[3]
  File "bad.ir", line 3"""  # fmt: skip


def test_broken_graphs_can_be_reported() -> None:
    x = param()
    node = Node(get_op("sin"), (param("stranger"),), {}, (TensorType(np.dtype("S3")),))
    with pytest.raises(VerifyError, match=r"rule 1: .*\n  %1 = sin\(%0\) : <\|S3>\[\]"):
        verify(Graph("f", (x,), node.outputs))


def test_twenty_thousand_nodes_take_linear_time() -> None:
    """0.3 s where this was written; the limit leaves room."""
    builder = Builder("chain")
    value = builder.param(TensorType(BY_NAME["f64"], (3,)), "x")
    for number in range(10_000):
        value = builder.emit("add", value, builder.constant(np.full(3, float(number))))
    graph = builder.finish([value])
    start = time.perf_counter()
    verify(graph)
    assert time.perf_counter() - start < 5


# -- documentation ----------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent / "docs"


def test_the_documentation_states_every_rule() -> None:
    text = (DOCS / "verifier.md").read_text()
    listed = re.findall(r"^\| (\d+) \| (.*?) \|", text, re.M)
    assert listed == [(str(rule.number), rule.sentence) for rule in RULES]


def test_the_graphs_in_the_documentation_are_good() -> None:
    blocks = re.findall(r"^```ir\n(.*?)^```", (DOCS / "reading-the-ir.md").read_text(), re.M | re.S)
    assert len(blocks) == 5
    for block in blocks:
        verify(parse(block))
