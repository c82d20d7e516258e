"""The text form of graphs: every graph survives print and parse, and malformed text is refused at its place."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
from flat_graphs import COUNT
from hypothesis import given, settings
from hypothesis import strategies as st

from dsl.errors import ParseError
from dsl.ir.build import Builder
from dsl.ir.dims import Symbol, dim_max, dim_min
from dsl.ir.graph import Graph, Literal, Node
from dsl.ir.interpret import interpret
from dsl.ir.literals import decode, encode
from dsl.ir.location import Location
from dsl.ir.registry import get_op
from dsl.ir.text import parse, print_graph
from dsl.ir.types import BY_NAME, DTYPES, I64, HandleType, TensorType, scalar

F64 = BY_NAME["f64"]

POWER = """\
graph @power(%x: i64[], %n: i64[]) -> (i64[]) {
  %0 = const() {value=0} : i64[]
  %1 = const() {value=1} : i64[]
  %2, %3 = while(%0, %1, %x, %n) {carried=2} : i64[], i64[] {
    @cond(%i: i64[], %r: i64[], %x: i64[], %n: i64[]) -> (bool[]) {
      %0 = less(%i, %n) : bool[]
      return %0
    }
    @body(%i: i64[], %r: i64[], %x: i64[], %n: i64[]) -> (i64[], i64[]) {
      %0 = const() {value=1} : i64[]
      %1 = add(%i, %0) : i64[]
      %2 = multiply(%r, %x) : i64[]
      return %1, %2
    }
  }
  return %3
}"""

TEXTS = {
    "structured loop": POWER,
    "effects": """\
graph @say(%x: f64[3]) -> () {
  !0 = print(%x) {end="", template="{}"}
  !1 = print(%x) {end="\\n", template="\\u2028\\"{}\\""} after !0
  return after !1
}""",
    "control edge to a value": """\
graph @f(%x: f64[], %y: f64[]) -> (f64[]) {
  !0 = print(%y) {end="", template="{}"}
  %0 = sin(%x) after !0 : f64[]
  %1 = cos(%y) after %0, !0 : f64[]
  return %1
}""",
    "sizes as operands": """\
graph @f(%v: f64[], %k: i64[]) -> (f64[d, 4]) {
  %0 = full(%v; d=%k) {shape=(d, 4)} : f64[d, 4]
  return %0
}""",
    "sizes alone": """\
graph @f(%k: i64[]) -> (i64[d]) {
  %0 = iota(; d=%k) {dtype=i64, size=d} : i64[d]
  return %0
}""",
    "bounded symbols": """\
graph @f[k >= 1, n >= 2](%x: f64[n, m], %y: f64[k]) -> (f64[n, m]) {
  return %x
}""",
    "dims": """\
graph @f(%x: f64[n, m, max(n - 2, 0), 2*(n//2), -n + 3, n*mod(n, 3), (m*n)//(m + n), -(n//2)]) -> () {
  return
}""",
    "literals": """\
graph @f() -> (i64[2, 2], f32[3], bool[2], c128[], f64[0, 3], bf16[2], f16[], u64[], f64[2]) {
  %0 = const() {value=[[1, 2], [3, -4]]} : i64[2, 2]
  %1 = const() {value=[0.1, inf, -0.0]} : f32[3]
  %2 = const() {value=[true, false]} : bool[2]
  %3 = const() {value=(1.0-2.5j)} : c128[]
  %4 = const() {value=[]} : f64[0, 3]
  %5 = const() {value=[nan, -inf]} : bf16[2]
  %6 = const() {value=1e-07} : f16[]
  %7 = const() {value=18446744073709551615} : u64[]
  %8 = const() {value=base64"AQAAAAAA+H8AAAAAAADwPw=="} : f64[2]
  return %0, %1, %2, %3, %4, %5, %6, %7, %8
}""",
    "attributes": """\
graph @f(%x: f64[n]) -> (f64[n]) {
  %0 = identity(%x) {a=-0.0, b=nan, c=(1,), d=(), e=(1.0+2.0j), f=f32, g=f32[2, n], h=f32[2]:[0.1, 2.0]} : f64[n]
  %1 = identity(%0) {a=(n - 2)//2, b=((1, None), "a\\"b", false), c=-inf, d, e=!queue, f=i8[]:5} : f64[n]
  return %1
}""",
    "handles": """\
graph @f(%v: !variable) -> (!variable) {
  %0 = identity(%v) : !variable
  return %0
}""",
    "odd graph name": 'graph @"<lambda>"(%x: f64[]) -> (f64[]) {\n  return %x\n}',
    "dotted graph name": "graph @a.b.c(%x: f64[]) -> (f64[]) {\n  return %x\n}",
    "regions without results": """\
graph @f(%p: bool[], %x: f64[]) -> () {
  !0 = cond(%p, %x) {
    @yes(%x: f64[]) -> () {
      !0 = print(%x) {end="", template="{}"}
      return after !0
    }
    @no(%x: f64[]) -> () {
      return
    }
  }
  return after !0
}""",
    "symbols shared with regions": """\
graph @f(%p: bool[], %x: f64[n]) -> (f64[m]) {
  %0 = cond(%p, %x) : f64[m] {
    @yes(%x: f64[n]) -> (f64[n]) {
      return %x
    }
    @no(%x: f64[n]) -> (f64[2*n]) {
      %0 = concatenate(%x, %x) {axis=0} : f64[2*n]
      return %0
    }
  }
  return %0
}""",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_canonical_text_comes_back_unchanged(text: str) -> None:
    assert print_graph(parse(text)) == text


def test_a_hand_written_loop_prints_canonically_with_its_back_edge() -> None:
    graph = parse(COUNT.replace("{", "{  # counts to n", 1))
    (merge,) = graph.back
    assert (len(merge.inputs), graph.back[merge].node.op.name) == (1, "next_iteration")
    text = print_graph(graph)
    assert "%2 = loop_merge(%1, %12) : i64[]" in text
    assert parse(text) == graph


def test_a_parsed_loop_computes() -> None:
    assert interpret(parse(POWER), [3, 4]) == [81]


def test_equal_pure_nodes_are_one() -> None:
    graph = parse("""graph @f(%x: f64[]) -> (f64[]) {
      %a = sin(%x) : f64[]
      %b = sin(%x) : f64[]
      %c = add(%a, %b) : f64[]
      return %c
    }""")
    assert [node.op.name for node in graph.nodes] == ["sin", "add"]


def test_attributes_that_python_calls_equal_stay_apart() -> None:
    lines = [
        f"%{k} = identity(%x) {{a={v}}} : f64[]"
        for k, v in enumerate(["1", "1.0", "true", "0.0", "-0.0"])
    ]
    results = ", ".join(f"%{k}" for k in range(5))
    header = "graph @f(%x: f64[]) -> (f64[], f64[], f64[], f64[], f64[])"
    assert len(parse(f"{header} {{ {' '.join(lines)} return {results} }}").nodes) == 5


# -- graphs made in Python -------------------------------------------------------------------------------------------


def graph_of(*types: TensorType | HandleType, name: str = "f") -> Graph:
    builder = Builder(name)
    params = [builder.param(type) for type in types]
    return builder.finish(params)


def test_params_keep_their_names_cleaned_and_made_unique() -> None:
    builder = Builder("f")
    for name in ("x", "x", "x_1", "2y", "a.b"):
        builder.param(scalar(F64), name)
    header = print_graph(builder.finish([])).splitlines()[0]
    assert (
        header
        == "graph @f(%x: f64[], %x_1: f64[], %x_1_1: f64[], %_2y: f64[], %a_b: f64[]) -> () {"
    )


def test_symbols_are_named_in_order_of_appearance() -> None:
    second, first = Symbol("n"), Symbol("n")
    word = Symbol("f32")
    graph = graph_of(TensorType(F64, (first, second)), TensorType(F64, (word, second + first)))
    assert "%a0: f64[n, n_1], %a1: f64[f32_1, n + n_1]" in print_graph(graph)
    assert parse(print_graph(graph)) == graph


def test_dims_do_not_show_the_order_in_which_symbols_were_made() -> None:
    m, n = Symbol("m"), Symbol("n")
    made = graph_of(TensorType(F64, (n, m, m + n, m * n + m // n)))
    late_n, late_m = Symbol("n"), Symbol("m")
    again = graph_of(
        TensorType(F64, (late_n, late_m, late_m + late_n, late_m * late_n + late_m // late_n))
    )
    assert made == again == parse(print_graph(made))


def test_bounds_of_symbols_come_back() -> None:
    graph = graph_of(TensorType(F64, (Symbol("n", 2), Symbol("m"))))
    text = print_graph(parse(print_graph(graph)))
    assert text.startswith("graph @f[n >= 2](%a0: f64[n, m])")


def test_a_constant_whose_type_is_wrong_says_its_own() -> None:
    made = Node(get_op("const"), (), {"value": Literal(np.int32(3))}, (scalar(F64),))
    graph = Graph("f", (), made.outputs)
    assert "%0 = const() {value=i32[]:3} : f64[]" in print_graph(graph)
    assert parse(print_graph(graph)) == graph


def test_locations_are_comments() -> None:
    builder = Builder("f")
    x = builder.param(scalar(F64), "x")
    builder.loc = Location(__file__, 1)
    graph = builder.finish([builder.emit("sin", x)])
    line = print_graph(graph, locations=True).splitlines()[1]
    assert line == f"  %0 = sin(%x) : f64[]  # test_text.py:1: {Location(__file__, 1).source()}"
    assert parse(print_graph(graph, locations=True)) == graph


def test_parsed_nodes_know_their_lines() -> None:
    graph = parse(POWER, "power.ir")
    assert [(node.loc.file, node.loc.line) for node in graph.walk() if node.loc] == [
        ("power.ir", line) for line in (2, 3, 4, 6, 10, 11, 12)
    ]


def test_an_attribute_without_text_is_opaque() -> None:
    made = Node(get_op("identity"), graph_of(scalar(F64)).params, {"f": len}, (scalar(F64),))
    text = print_graph(Graph("f", made.inputs, made.outputs))
    assert '{f=opaque"len"}' in text
    with pytest.raises(ParseError, match="cannot be read back"):
        parse(text)


# -- anything that an attribute can hold ------------------------------------------------------------------------------

NAMES = st.sampled_from(["n", "m", "k"])
SYMBOLS = {name: Symbol(name) for name in ("n", "m", "k")}


def combine(children):
    def apply(kind, a, b):
        table = {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "max": lambda: dim_max(a, b),
        }
        table |= {"min": lambda: dim_min(a, b), "//": lambda: a // b, "%": lambda: a % b}
        return a if kind in ("//", "%") and b == 0 else table[kind]()

    return st.builds(
        apply, st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), children, children
    )


DIMS = st.recursive(st.integers(-9, 9) | NAMES.map(SYMBOLS.get), combine, max_leaves=6)


@st.composite
def literals(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    return Literal(np.frombuffer(raw, dtype).reshape(shape))


ATTRS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text()
    | st.sampled_from(DTYPES) | DIMS | literals() | st.builds(TensorType, st.sampled_from(DTYPES), st.tuples(DIMS)),
    lambda items: st.lists(items, max_size=3).map(tuple), max_leaves=5,
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), ATTRS, max_size=3))
def test_every_attribute_comes_back(attrs: dict[str, object]) -> None:
    (x,) = graph_of(scalar(F64)).params
    made = Node(get_op("identity"), (x,), attrs, (scalar(F64),))
    text = print_graph(Graph("f", (x,), made.outputs))
    again = parse(text)
    assert print_graph(again) == text
    (node,) = again.nodes
    plain = {
        k: v for k, v in attrs.items() if isinstance(v, (str, int, Literal, np.dtype, type(None)))
    }
    for name, attr in plain.items():
        assert node.attrs[name] == attr
        assert type(node.attrs[name]) is type(attr)


@settings(deadline=None)
@given(literals())
def test_every_constant_comes_back_with_its_bytes(literal: Literal) -> None:
    builder = Builder("f")
    graph = builder.finish([builder.constant(literal.array)])
    (node,) = parse(print_graph(graph)).nodes
    assert node.attrs["value"] == literal


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_every_half_precision_number_comes_back(dtype: type) -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(dtype)
    for start in range(0, 2**16, 64):
        chunk = numbers[start : start + 64]
        if not np.isnan(chunk.astype(np.float32)).any():
            assert encode(chunk).startswith("[")
    spelled = [
        float(encode(x[None])[1:-1]) for x in numbers[np.isfinite(numbers.astype(np.float32))][::7]
    ]
    assert len(spelled) > 9000


def test_long_arrays_are_base64() -> None:
    array = np.arange(65.0)
    text = encode(array)
    assert text.startswith('base64"')
    builder = Builder("f")
    graph = builder.finish([builder.constant(array)])
    assert parse(print_graph(graph)).nodes[0].attrs["value"] == Literal(array)
    assert decode(array.tobytes(), TensorType(F64, (65,))) == Literal(array)


# -- errors -----------------------------------------------------------------------------------------------------------


def wrapped(line: str) -> str:
    return f"graph @f(%x: f64[n], %i: i64[]) -> () {{\n  {line}\n  return\n}}"


ERRORS = [
    ("%a = sinn(%x) : f64[n]", 6, r"unknown op sinn; did you mean sin\?"),
    ("%a = zzzzzz(%x) : f64[n]", 6, "unknown op zzzzzz$"),
    ("%a = sin(%y) : f64[n]", 10, "%y is not defined before this line"),
    ("%a = enter(%x) {frame=w 0} : f64[n]", 25, "expected ',' or '}', got '0'"),
    ("%x = sin(%x) : f64[n]", 1, "%x is defined twice"),
    ('%a = identity(%x) {a="b} : f64[n]', 22, "unterminated string"),
    ('%a = identity(%x) {a="\\q"} : f64[n]', 22, "malformed string"),
    ("%a = identity(%x) {a=} : f64[n]", 22, "expected a value of an attribute, got '}'"),
    ("%a = identity(%x) {a=1, a=2} : f64[n]", 25, "attribute a is given twice"),
    ("%a = identity(%x) {a=1.5 + n} : f64[n]", 22, "expected a size"),
    ("%a = identity(%x) {a=n//0} : f64[n]", 25, "division by zero"),
    ("%a = identity(%x) {a=max(n)} : f64[n]", 26, "max takes two sizes"),
    ("%a = identity(%x)", 1, "1 names for 0 results"),
    ("%a, %b = identity(%x) : f64[n]", 1, "2 names for 1 results"),
    ("%a = identity(%x) : f63[n]", 21, "unknown dtype f63; expected one of bool, i8"),
    ("%a = identity(%x) : f64[1.5]", 25, "expected a size"),
    ("%a = identity(%x) ? f64[n]", 19, r"unexpected character '\?'"),
    ("%a identity(%x) : f64[n]", 4, "expected '=', got 'identity'"),
    ("%a = sin(%x after %i) : f64[n]", 13, r"expected ',' or '\)', got 'after'"),
    ("%a = sin(%x) after !0 : f64[n]", 20, "!0 is not defined before this line"),
    ("%a = loop_merge(%i, %b) : i64[]", 21, "%b is not defined before this line"),
    ("%a = const() {value=1.5} : i64[]", 6, "1.5 is not a constant of i64"),
    ("%a = const() {value=300} : i8[]", 6, "a number does not fit i8"),
    ("%a = const() {value=[1, 2]} : i8[3]", 6, r"expected an array of shape \(3,\), got \(2,\)"),
    ("%a = const() {value=[1, [2]]} : i8[2]", 6, "shape"),
    ('%a = const() {value=base64"AAA="} : i8[3]', 6, "expected 3 bytes, got 2"),
    ('%a = const() {value=base64"?"} : i8[3]', 27, "not base64"),
    ("%a = const() {value=1} : i8[n]", 6, "a constant has a known shape"),
    ('!0 = print(%x) {end="", template="{}"}', 1, "nothing needs the effect print; add 'after !0'"),
    ("} ", 1, "graph @f has no return"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "column", "message"), ERRORS, ids=[line for line, _, _ in ERRORS])
def test_errors_tell_line_and_column(line: str, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message.rstrip("$")) as caught:
        parse(wrapped(line))
    assert (caught.value.line, caught.value.column) == (2, column + 2)
    text = str(caught.value).splitlines()
    assert text[1:] == [f"    {line}", "  " + " " * (column + 1) + "^"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'graph', got the end of the text"),
        ("graph @f() -> () {\n  return\n}\ngraph", "line 4, column 1: expected the end of the text, got 'graph'"),
        ("graph @f() -> () {\n", "line 2, column 1: graph @f has no return"),
        ("graph @f(%x: f64[]) -> () { return %x }", "the header declares 0 results, got 1"),
        ("graph @f(%x: f64[]) -> (i64[]) { return %x }", r"declares result 0 as i64\[\], got f64\[\]"),
        ("graph @f(%x: f64[], %x: f64[]) -> () { return }", "column 21: %x is defined twice"),
        ("graph f() -> () { return }", "expected '@' and the graph's name, got 'f'"),
        ("graph @f() -> () { return\n", "expected '}' after the return, got the end of the text"),
    ],
)  # fmt: skip
def test_malformed_graphs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_an_error_in_an_empty_line_has_no_caret() -> None:
    with pytest.raises(ParseError) as caught:
        parse("")
    assert "^" not in str(caught.value)


# -- size -------------------------------------------------------------------------------------------------------------


def test_large_graphs_take_linear_time() -> None:
    """20,000 nodes in one chain: 0.2 s to print and 1 s to parse where this was written; the limits leave room."""
    builder = Builder("chain")
    value = builder.param(TensorType(F64, (3,)), "x")
    for number in range(10_000):
        value = builder.emit("add", value, builder.constant(np.full(3, float(number))))
    graph = builder.finish([value])
    start = time.perf_counter()
    text = print_graph(graph)
    printed = time.perf_counter()
    assert parse(text) == graph
    assert (printed - start < 5, time.perf_counter() - printed < 10) == (True, True)


def test_symbols_with_one_hint_take_linear_time() -> None:
    builder = Builder("f")
    for _ in range(5000):
        builder.param(TensorType(I64, (Symbol("d"),)), "x")
    graph = builder.finish([])
    assert parse(print_graph(graph)) == graph
