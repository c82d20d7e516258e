"""The optimising passes: each rule on extreme data, golden IR, and what every pass promises."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from dsl.errors import DslError, InternalError, TypeRuleError
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Value
from dsl.ir.interpret import interpret
from dsl.ir.location import Location
from dsl.ir.patterns import Apply, Rule, Var, apply_rules
from dsl.ir.rewrite import rebuild
from dsl.ir.text import parse
from dsl.ir.token_machine import run_tokens
from dsl.ir.types import BOOL, BY_NAME, DTYPES, TensorType, dtype_name, is_inexact
from dsl.ir.verify import verify
from dsl.passes.canonicalize import canonicalize
from dsl.passes.choose import choose
from dsl.passes.cse import cse
from dsl.passes.dce import dce
from dsl.passes.fold import fold
from dsl.passes.licm import licm
from dsl.passes.lower_control import lower_control
from dsl.passes.rules import ALGEBRA, BINARY, CANONICAL, REDUCTIONS, UNARY
from dsl.passes.simplify import simplify

F64, I64 = BY_NAME["f64"], BY_NAME["i64"]


# -- data ---------------------------------------------------------------------------------------------------------


def extremes(dtype: np.dtype) -> np.ndarray:
    """The values of a dtype at which algebra goes wrong."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.min + 1, 0, 1, 2, 3, info.max - 1, info.max], dtype)
    reals = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        np.inf,
        -np.inf,
        np.nan,
        3e4,
        1e-6,
        6e-8,
        5e-324,
        1.7e308,
    ]
    with np.errstate(all="ignore"):
        if dtype.kind == "c":
            pairs = itertools.product(reals[:12], repeat=2)
            return np.array([complex(a, b) for a, b in pairs], dtype)
        return np.array(reals).astype(dtype)


def data(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    special = rng.choice(extremes(dtype), shape)
    with np.errstate(all="ignore"):
        plain = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype)
    return np.asarray(np.where(rng.random(shape) < 0.6, special, plain), dtype)


def bits(array: Any) -> tuple[Any, ...]:
    """What two results must share: dtype, shape and every bit, all NaNs being one value."""
    array = np.asarray(array)
    if array.dtype.kind == "c":
        return ("complex", *bits(array.real.copy()), *bits(array.imag.copy()))
    found = np.array(array, order="C", copy=True)
    if is_inexact(found.dtype):
        found[np.isnan(found)] = np.nan
    return (dtype_name(array.dtype), array.shape, found.tobytes())


def run(graph: Graph, args: list[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [bits(result) for result in interpret(graph, args)]


# -- one test for each rule, made from the rule ----------------------------------------------------------------------


class Instance:
    """The left side of a rule as a graph: variables are params, numbers constants."""

    def __init__(self, rule: Rule, dtype: np.dtype, shape: tuple[int, ...], splat: bool) -> None:
        self.builder, self.dtype, self.shape, self.splat = Builder("rule"), dtype, shape, splat
        self.vars: dict[str, Value] = {}
        self.graph = self.builder.finish([self.build(rule.left, dtype)])

    def build(self, pattern: Any, dtype: np.dtype) -> Value:
        if isinstance(pattern, Var):
            if pattern.name not in self.vars:
                self.vars[pattern.name] = self.variable(pattern.name, dtype)
            return self.vars[pattern.name]
        if isinstance(pattern, Apply):
            return self.builder.emit(pattern.op, *self.arguments(pattern, dtype))
        return self.number(pattern, dtype)

    def variable(self, name: str, dtype: np.dtype) -> Value:
        if name in ("c", "d") and dtype != BOOL:  # stands for a constant
            return self.builder.constant(
                np.asarray({"c": 4, "d": -2 if dtype.kind != "u" else 2}[name], dtype)
            )
        return self.builder.param(TensorType(dtype, self.shape), name)

    def arguments(self, pattern: Apply, dtype: np.dtype) -> list[Value]:
        dtypes = [dtype] * len(pattern.args)
        if pattern.op == "where":
            dtypes[0] = BOOL
        built: dict[int, Value] = {}
        for k, arg in sorted(
            enumerate(pattern.args), key=lambda item: not isinstance(item[1], Var | Apply)
        ):
            if pattern.op != "where" and built and not isinstance(arg, Var | Apply):
                dtypes[k] = next(iter(built.values())).dtype
            built[k] = self.build(arg, dtypes[k])
        return [built[k] for k in range(len(pattern.args))]

    def number(self, number: Any, dtype: np.dtype) -> Value:
        value = self.builder.constant(np.asarray(number, dtype))
        return self.builder.emit("full", value, shape=self.shape) if self.splat else value


View = Callable[[Builder, Value], Value]
BOX = {"start": (0, 1), "size": (2, 2), "step": (1, 1)}
PLACE = {"start": (1, 0), "step": (1, 2)}


def casts(*names: str) -> View:
    def build(b: Builder, x: Value) -> Value:
        for name in names:
            x = b.emit("cast", x, dtype=BY_NAME[name])
        return x

    return build


def chain(*steps: tuple[str, dict[str, Any]]) -> View:
    def build(b: Builder, x: Value) -> Value:
        for op, attrs in steps:
            x = b.emit(op, x, **attrs)
        return x

    return build


def full(op: str, **attrs: Any) -> View:
    return lambda b, x: b.emit(op, b.emit("full", b.constant(3, x.dtype), shape=(2, 3)), **attrs)


def spread(op: str, arity: int) -> list[View]:
    def array(b: Builder, x: Value) -> Value:
        return b.emit("full", b.constant(3, x.dtype), shape=(2, 3))

    def inputs(b: Builder, x: Value, which: int) -> list[Value]:
        values = [array(b, x) if which >> k & 1 else x for k in range(arity)]
        return (
            [b.emit("equal", values[0], x), *values[1:]]
            if op == "where" and which & 1 == 0
            else values
        )

    return [
        lambda b, x, which=which: b.emit(op, *inputs(b, x, which)) for which in range(1, 2**arity)
    ]  # type: ignore[misc]


# Rules whose left side has attributes, as programs of x: [2, 3] of every dtype.
EXAMPLES: dict[str, list[View]] = {
    "cast(x) to its own dtype -> x": [lambda b, x: b.emit("cast", x, dtype=x.dtype)],
    "cast(cast(x)) -> cast(x)": [casts(*names) for names in itertools.product(BY_NAME, repeat=2)],
    "bitcast(x) to its own dtype -> x": [lambda b, x: b.emit("bitcast", x, dtype=x.dtype)],
    "bitcast(bitcast(x)) -> bitcast(x)": [chain(("bitcast", {"dtype": I64}), ("bitcast", {"dtype": BY_NAME["u64"]}))],
    "c < x -> x > c": [lambda b, x: b.emit("less", b.constant(1, x.dtype), x)],
    "c <= x -> x >= c": [lambda b, x: b.emit("less_equal", b.constant(1, x.dtype), x)],
    "reshape(x) to its own shape -> x": [chain(("reshape", {"shape": (2, 3)}))],
    "reshape(reshape(x)) -> reshape(x)": [chain(("reshape", {"shape": (6,)}), ("reshape", {"shape": (3, 2)}))],
    "broadcast_to(x) of its own shape -> x": [chain(("broadcast_to", {"shape": (2, 3)}))],
    "broadcast_to(broadcast_to(x)) -> broadcast_to(x)": [
        chain(("broadcast_to", {"shape": (2, 2, 3)}), ("broadcast_to", {"shape": (4, 2, 2, 3)}))],
    "broadcast_to(number) -> full(number)": [
        lambda b, x: b.emit("broadcast_to", b.emit("reshape", b.emit(
            "slice", x, start=(1, 1), size=(1, 1), step=(1, 1)), shape=()), shape=(4, 2))],
    "full(x){()} -> x": [lambda b, x: b.emit("full", b.constant(3, x.dtype), shape=())],
    "transpose(x){0, 1, …} -> x": [chain(("transpose", {"axes": (0, 1)}))],
    "transpose(transpose(x)) -> transpose(x)": [
        chain(("reshape", {"shape": (1, 2, 3)}), ("transpose", {"axes": (2, 0, 1)}),
              ("transpose", {"axes": (1, 0, 2)}))],
    "x[:] -> x": [chain(("slice", {"start": (0, 0), "size": (2, 3), "step": (1, 1)}))],
    "x[a][b] -> x[a[b]]": [
        chain(("slice", BOX), ("slice", {"start": (1, 1), "size": (1, 2), "step": (1, -1)})),
        chain(("slice", {"start": (1, 2), "size": (2, 3), "step": (-1, -1)}), ("slice", BOX)),
        chain(("slice", {"start": (0, 0), "size": (2, 2), "step": (1, 2)}), ("slice", {**BOX, "size": (1, 1)}))],
    "concatenate(x) -> x": [chain(("concatenate", {"axis": 0}))],
    "pad(x) by nothing -> x": [lambda b, x: b.emit("pad", x, b.constant(1, x.dtype), low=(0, 0), high=(0, 0))],
    "dim_size(x) of a known size -> number": [chain(("dim_size", {"axis": 1}))],
    "full(v)[a] -> full(v)": [full("slice", **BOX)],
    "reshape(full(v)) -> full(v)": [full("reshape", shape=(6,))],
    "transpose(full(v)) -> full(v)": [full("transpose", axes=(1, 0))],
    "broadcast_to(full(v)) -> full(v)": [full("broadcast_to", shape=(4, 2, 3))],
    "(x with x[a] = v)[a] -> v": [
        lambda b, x: b.emit("slice", b.emit(
            "update_slice", x, b.constant([[1, 0]], x.dtype), **PLACE), size=(1, 2), **PLACE)],
    "x with x[:] = v -> v": [lambda b, x: b.emit(
        "update_slice", x, b.constant(np.ones((2, 3)), x.dtype), start=(0, 0), step=(1, 1))],
    "x with x[a] = x[a] -> x": [
        lambda b, x: b.emit("update_slice", x, b.emit("slice", x, size=(1, 2), **PLACE), **PLACE)],
    **{f"{f}(x) over axes of size 1 -> reshape(x)": [
        chain(("reshape", {"shape": (2, 1, 3)}), (f, {"axes": (1,)})), chain((f, {"axes": ()}))] for f in REDUCTIONS},
    **{f"{f}(full(x), full(y)) -> full({f}(x, y))": spread(f, 2) for f in BINARY},
    "where(full(x), full(y), full(v)) -> full(where(x, y, v))": spread("where", 3),
    **{f"{f}(full(x)) -> full({f}(x))": [full(f)] for f in UNARY},
}  # fmt: skip


def instances(rule: Rule) -> Iterator[Graph]:
    """Yield graphs of the rule's left side for every dtype that its ops take."""
    for dtype in DTYPES:
        for view in EXAMPLES.get(rule.title, ()):
            b = Builder("rule")
            yield from attempt(lambda b=b, view=view, dtype=dtype: b.finish(  # type: ignore[misc]
                [view(b, b.param(TensorType(dtype, (2, 3)), "x"))]))  # fmt: skip
        if rule.title not in EXAMPLES:
            for shape, splat in itertools.product([(), (150,)], [False, True]):
                yield from attempt(lambda *a: Instance(rule, *a).graph, dtype, shape, splat)


def attempt(build: Callable[..., Graph], *args: Any) -> Iterator[Graph]:
    try:
        yield build(*args)
    except (TypeRuleError, OverflowError):
        return


@pytest.mark.parametrize("rule", CANONICAL + ALGEBRA, ids=lambda rule: rule.title)
def test_rule_is_exact(rule: Rule) -> None:
    rng, fired = np.random.default_rng(0), 0
    for graph in instances(rule):
        after = rebuild(graph, apply_rules([rule]))
        if after is graph:
            continue
        fired += 1
        for _ in range(3):
            args = [data(rng, p.dtype, p.shape) for p in graph.params]  # type: ignore[arg-type]
            assert run(graph, args) == run(after, args), f"{graph}\n{after}"
    assert fired, "the rule never applied"


def test_rule_titles_are_unique() -> None:
    titles = [rule.title for rule in CANONICAL + ALGEBRA]
    assert len(titles) == len(set(titles))
    assert not set(EXAMPLES) - set(titles)


# -- golden IR ---------------------------------------------------------------------------------------------------------

PASSES: dict[str, Callable[[Graph], Graph]] = {
    f.__name__: f for f in (canonicalize, fold, choose, simplify, cse, licm, dce)
}
GOLDEN = sorted((Path(__file__).parent / "ir").glob("*.ir"))
RULER = "# ----\n"


def passes_of(text: str) -> list[Callable[[Graph], Graph]]:
    """Read the line `# passes: canonicalize, cse`."""
    (line,) = [line for line in text.splitlines() if line.startswith("# passes:")]
    return [PASSES[name.strip()] for name in line.partition(":")[2].split(",")]


def golden(path: Path) -> tuple[Graph, Graph, str, str]:
    """Return the graph of a golden file, what the passes make of it, the file's first half and what it expects."""
    given, _, expected = path.read_text(encoding="utf-8").partition(RULER)
    graph = after = parse(given)
    for run_pass in passes_of(given):
        after = run_pass(after)
    return graph, after, given, expected


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_ir(path: Path, bless: bool) -> None:
    graph, after, given, expected = golden(path)
    verify(graph)
    verify(after)
    if bless and f"{after}\n" != expected:
        path.write_text(f"{given}{RULER}{after}\n", encoding="utf-8")
    assert bless or f"{after}\n" == expected


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", PASSES)
def test_pass_is_idempotent_on_golden_ir(path: Path, name: str) -> None:
    once = PASSES[name](golden(path)[0])
    verify(once)
    assert PASSES[name](once) is once


# -- random programs ----------------------------------------------------------------------------------------------

SPECIAL = st.sampled_from([None, np.nan, np.inf, -np.inf, -0.0, 1e308])


def outcome(graph: Graph, args: list[Any], execute: Callable[..., list[Any]] = interpret) -> Any:
    """What a program does that can be seen: its results or exception, and what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found: Any = [bits(result) for result in execute(graph, args)]
        except (DslError, ValueError, IndexError) as error:
            found = (type(error), str(error))
    return found, printed.getvalue()


@st.composite
def programs(draw: Callable[..., Any]) -> tuple[Graph, list[Any]]:
    """Random programs on arguments some of which are NaN, infinite or -0.0."""
    graph, args = draw(graphs())
    for arg in args:
        special = draw(SPECIAL)
        if arg.dtype == F64 and arg.size and special is not None:
            arg.reshape(-1)[:1] = special
    return graph, args


@settings(deadline=None)
@given(programs(), st.permutations(list(PASSES)))
def test_passes_keep_the_meaning_of_random_programs(
    program: tuple[Graph, list[Any]], names: list[str]
) -> None:
    graph, args = program
    expected = outcome(graph, args)
    for name in names:
        alone = PASSES[name](graph)
        verify(alone)
        assert outcome(alone, args) == expected, f"{name}:\n{graph}\n{alone}"
        assert PASSES[name](alone) is alone, f"{name} is not idempotent:\n{graph}\n{alone}"
        after = alone
        for other in names:
            after = PASSES[other](after)
        verify(after)
        assert outcome(after, args) == expected, f"{name}, {names}:\n{graph}\n{after}"


@settings(deadline=None)
@given(programs(), st.permutations(list(PASSES)))
def test_passes_keep_the_meaning_of_flat_programs(
    program: tuple[Graph, list[Any]], names: list[str]
) -> None:
    graph, args = program
    expected = outcome(graph, args)
    flat = lower_control(graph)
    for name in names:
        flat = PASSES[name](flat)
        verify(flat)
        assert outcome(flat, args, run_tokens) == expected, f"{name}:\n{graph}\n{flat}"
        assert PASSES[name](flat) is flat


# -- promises of every pass --------------------------------------------------------------------------------------------


def long_graph(length: int) -> Graph:
    b = Builder("long")
    x = y = b.param(TensorType(I64, (4,)), "x")
    for k in range(length // 3):
        y = b.emit("subtract", b.emit("multiply", b.constant(k + 2, I64), y), b.emit("negative", x))
    return b.finish([y])


@pytest.mark.parametrize("name", PASSES)
def test_long_graphs_need_no_recursion(name: str) -> None:
    graph = long_graph(20_000)
    after = PASSES[name](graph)
    assert PASSES[name](after) is after


@pytest.mark.parametrize("name", PASSES)
def test_nodes_keep_their_locations(name: str) -> None:
    places = {Location("user.py", line) for line in range(1, 4)}
    b = Builder("g")
    x = b.param(TensorType(I64, (4,)), "x")
    b.loc = Location("user.py", 1)
    one = b.constant(1, I64)
    b.loc = Location("user.py", 2)
    y = b.emit("add", one, b.emit("multiply", x, one))
    b.loc = Location("user.py", 3)
    graph = b.finish([b.emit("power", y, b.constant(2, I64))])
    assert all(node.loc in places for node in PASSES[name](graph).walk())


@pytest.mark.parametrize("name", PASSES)
def test_names_stay(name: str) -> None:
    graph = parse((Path(__file__).parent / "ir" / "pipeline.ir").read_text().partition(RULER)[0])
    after = PASSES[name](graph)
    assert after.name == graph.name
    assert after.params == graph.params
    names = {p.node.attrs["name"] for node in graph.walk() for r in node.regions for p in r.params}
    kept = {p.node.attrs["name"] for node in after.walk() for r in node.regions for p in r.params}
    assert kept <= names | {"multiply", "tanh", "add"}


def test_fold_leaves_what_raises_to_the_program() -> None:
    graph = parse(
        (Path(__file__).parent / "ir" / "fold_raising.ir").read_text().partition(RULER)[0]
    )
    with pytest.raises(ValueError, match="negative integer powers"):
        interpret(fold(graph), [])


def test_rewrite_that_changes_a_type_is_refused() -> None:
    b = Builder("g")
    x = b.param(TensorType(F64, (4,)), "x")
    graph = b.finish([b.emit("sin", x)])
    with pytest.raises(InternalError, match=r"a rewrite of sin turned f64\[4\] into f64\[\]"):
        rebuild(graph, lambda b, node: [b.constant(0.0, F64)])


def test_every_result_of_a_rule_has_a_cost_no_higher() -> None:
    """A rule never makes code worse: its result has no more ops than what it replaces."""
    for rule in CANONICAL + ALGEBRA:
        for graph in itertools.islice(instances(rule), 20):
            after = rebuild(graph, apply_rules([rule]))
            counted = [n for n in after.nodes if n.op.name not in ("const", "full", "dim_size")]
            assert len(counted) <= len(
                [n for n in graph.nodes if n.op.name not in ("const", "full")]
            ), rule.title
