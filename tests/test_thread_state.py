"""Variables as values: what the pass makes of reads and writes, and that it keeps their meaning.

Random programs read and write three variables in nested branches and loops. Plain Python, the interpreter on the graph with
its effects, the threaded graph, the token executors and a session's native program must agree on every result and variable.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsl
from dsl.errors import UnsupportedError
from dsl.executor import Executor
from dsl.ir.environment import Environment
from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.parser import parse
from dsl.ir.printer import print_graph
from dsl.ir.token_machine import run_tokens
from dsl.ir.verify import verify
from dsl.passes.thread_state import hoist_reads, thread_state, variables_in
from dsl.session.cut import cut


def threaded(text: str) -> str:
    """Return the text of a graph after the pass, with the names of the variables."""
    found = thread_state(parse(textwrap.dedent(text)))
    verify(found.graph)
    names = f"variables {', '.join(found.variables)}; written {', '.join(found.written)}"
    return f"{names}\n{print_graph(found.graph, locations=False)}".strip()


def expected(text: str) -> str:
    return textwrap.dedent(text).strip()


# --- What it makes -------------------------------------------------------------------------------------------------------


def test_reads_are_params_and_writes_are_results() -> None:
    made = threaded("""
        graph @step(%x: f64[3]) -> (f64[3]) {
          %w = read_variable() {variable="w"} : f64[3]
          %y = multiply(%w, %x) : f64[3]
          %z = update_variable(%y) {how="add", variable="w"} : f64[3]
          %b = read_variable() {variable="b"} : f64[3]
          %r = add(%z, %b) : f64[3]
          return %r
        }
        """)
    assert made == expected("""
        variables w, b; written w
        graph @step(%x: f64[3], %w: f64[3], %b: f64[3]) -> (f64[3], f64[3]) {
          %0 = multiply(%w, %x) : f64[3]
          %1 = add(%w, %0) : f64[3]
          %2 = add(%1, %b) : f64[3]
          return %2, %1
        }
        """)


def test_rows_are_written_by_scatter() -> None:
    made = threaded("""
        graph @step(%i: i64[2], %x: f64[2]) -> () {
          %z = scatter_variable(%i, %x) {how="subtract", variable="w"} : f64[3]
          return after %z
        }
        """)
    assert made == expected("""
        variables w; written w
        graph @step(%i: i64[2], %x: f64[2], %w: f64[3]) -> (f64[3]) {
          %0 = negative(%x) : f64[2]
          %1 = scatter(%w, %0, %i) {axes=(0,), mode="add"} : f64[3]
          return %1
        }
        """)


def test_a_branch_returns_what_it_writes() -> None:
    made = threaded("""
        graph @step(%p: bool[]) -> () {
          !c = cond(%p) {
            @then() -> () {
              %a = read_variable() {variable="a"} : f64[]
              %z = update_variable(%a) {how="add", variable="w"} : f64[]
              return after %z
            }
            @else() -> () {
              return
            }
          }
          return after !c
        }
        """)
    assert made == expected("""
        variables a, w; written w
        graph @step(%p: bool[], %a: f64[], %w: f64[]) -> (f64[]) {
          %0 = cond(%p, %a, %w) : f64[] {
            @then(%a: f64[], %w: f64[]) -> (f64[]) {
              %0 = add(%w, %a) : f64[]
              return %0
            }
            @else(%a: f64[], %w: f64[]) -> (f64[]) {
              return %w
            }
          }
          return %0
        }
        """)


def test_a_loop_carries_what_it_writes() -> None:
    made = threaded("""
        graph @step(%n: i64[], %one: i64[]) -> (i64[]) {
          %0 = while(%n, %one) {carried=1} : i64[] {
            @cond(%i: i64[], %one: i64[]) -> (bool[]) {
              %limit = read_variable() {variable="limit"} : i64[]
              %p = less(%i, %limit) : bool[]
              return %p
            }
            @body(%i: i64[], %one: i64[]) -> (i64[]) {
              %z = update_variable(%one) {how="add", variable="count"} : i64[]
              %j = add(%i, %one) : i64[]
              return %j after %z
            }
          }
          return %0
        }
        """)
    assert made == expected("""
        variables limit, count; written count
        graph @step(%n: i64[], %one: i64[], %limit: i64[], %count: i64[]) -> (i64[], i64[]) {
          %0, %1 = while(%n, %count, %one, %limit) {carried=2} : i64[], i64[] {
            @cond(%i: i64[], %count: i64[], %one: i64[], %limit: i64[]) -> (bool[]) {
              %0 = less(%i, %limit) : bool[]
              return %0
            }
            @body(%i: i64[], %count: i64[], %one: i64[], %limit: i64[]) -> (i64[], i64[]) {
              %0 = add(%i, %one) : i64[]
              %1 = add(%count, %one) : i64[]
              return %0, %1
            }
          }
          return %0, %1
        }
        """)


def test_a_graph_without_variables_is_the_same_object() -> None:
    graph = parse("graph @f(%x: f64[]) -> (f64[]) {\n  %y = sin(%x) : f64[]\n  return %y\n}")
    found = thread_state(graph)
    assert found.graph is graph
    assert found.variables == found.written == ()


def test_the_pass_leaves_nothing_to_do() -> None:
    with dsl.Graph() as graph:
        v = dsl.Variable(1.0)
        n = dsl.placeholder(np.int64)
        y = dsl.fori_loop(0, n, lambda i, y: y + v.assign_add(y), v * 1.0)
    made = thread_state(part(graph, [n], [y])).graph
    assert not variables_in([made]).types
    assert thread_state(made).graph is made


def test_a_condition_that_writes_is_refused() -> None:
    text = """
        graph @step(%n: i64[]) -> (i64[]) {
          %0 = while(%n) {carried=1} : i64[] {
            @cond(%i: i64[]) -> (bool[]) {
              %z = update_variable(%i) {how="set", variable="v"} : i64[]
              %p = less(%z, %i) : bool[]
              return %p
            }
            @body(%i: i64[]) -> (i64[]) {
              return %i
            }
          }
          return %0
        }
        """
    with pytest.raises(UnsupportedError, match="the condition of a loop writes a variable"):
        thread_state(parse(textwrap.dedent(text)))


def test_only_what_a_loop_does_not_write_is_read_before_it() -> None:
    read = 'read_variable() {variable="%s"} : f64[]'
    region = parse(
        "graph @body(%x: f64[]) -> (f64[]) {\n"
        f"  %a = {read % 'a'}\n  %b = {read % 'b'}\n"
        '  %z = update_variable(%a) {how="add", variable="b"} : f64[]\n'
        "  %r = add(%z, %b) : f64[]\n  return %r\n}"
    )
    (made,), types = hoist_reads("scan", (region,))
    assert list(types) == ["a"]
    assert [str(p.node.attrs["name"]) for p in made.params] == ["x", "a"]
    assert list(variables_in([made]).types) == ["b"]
    assert hoist_reads("call", (region,)) == ((region,), {})


# --- What it means ---------------------------------------------------------------------------------------------------------


class Held:
    """A variable of an environment."""

    def __init__(self, array: Any) -> None:
        self.array = np.array(array)

    def snapshot(self) -> np.ndarray:
        return self.array.copy()

    def update(self, how: str, value: Any) -> np.ndarray:
        old = self.array
        self.array = np.array({"set": value, "add": old + value, "subtract": old - value}[how])
        return self.snapshot()

    def scatter(self, how: str, indices: Any, updates: Any) -> np.ndarray:
        if how == "set":
            self.array[indices] = updates
        else:
            {"add": np.add, "subtract": np.subtract}[how].at(self.array, indices, updates)
        return self.snapshot()


def part(graph: dsl.Graph, feeds: Sequence[Any], fetches: Sequence[Any]) -> Graph:
    """Return the graph of a step."""
    values = [graph.value_of(x) for x in fetches]
    return cut(graph, [graph.value_of(x) for x in feeds], values, []).graph


Outcome = list[Any]
Runner = Callable[[Graph, Sequence[Any], Environment], Sequence[Any]]
RUNNERS: dict[str, Runner] = {
    "interpreter": interpret,
    "oracle": lambda graph, args, environment: run_tokens(graph, args, environment=environment),
    "executor": lambda graph, args, environment: Executor(graph).run(args, environment),
}


def with_effects(
    runner: Runner, graph: Graph, args: Sequence[Any], start: dict[str, Any]
) -> Outcome:
    held = {name: Held(array) for name, array in start.items()}
    results = runner(graph, args, Environment(held))
    return [*results, *(held[name].array for name in sorted(held))]


def as_values(graph: Graph, args: Sequence[Any], start: dict[str, Any]) -> Outcome:
    found = thread_state(graph)
    verify(found.graph)
    results = interpret(found.graph, [*args, *(start[name] for name in found.variables)])
    count = len(results) - len(found.written)
    end = {**start, **dict(zip(found.written, results[count:], strict=True))}
    return [*results[:count], *(end[name] for name in sorted(end))]


def assert_same(one: Outcome, other: Outcome) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# --- Random programs -----------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "rows")
START = {"a": np.float64(0.5), "b": np.float64(-0.25), "rows": np.array([0.1, 0.2, 0.3])}

_scalars = st.sampled_from(["y", "a", "b", "a * b", "y + b", "rows.sum()", "rows[1]", "-y", "0.5"])
_writes = st.one_of(
    st.tuples(st.just("assign"), st.sampled_from("ab"), _scalars),
    st.tuples(st.just("assign_add"), st.sampled_from("ab"), _scalars),
    st.tuples(st.just("assign_sub"), st.sampled_from("ab"), _scalars),
    st.tuples(st.just("rows"), st.sampled_from(["scatter_add", "scatter_update", "scatter_sub"]), _scalars),
    st.tuples(st.just("y"), _scalars),
)  # fmt: skip


def _blocks(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("cond"), _scalars, body, body),
        st.tuples(st.just("for"), st.integers(0, 3), body),
        st.tuples(st.just("while"), _scalars, body),
        st.tuples(st.just("scan"), body),
    )


_programs = st.lists(st.recursive(_writes, _blocks, max_leaves=6), min_size=1, max_size=4)


class Meaning:
    """What a program does, by the verbs of dsl; the variables are those of a graph, or stand-ins run by plain Python."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.variables = variables

    def number(self, text: str, y: Any) -> Any:
        """Return an expression's value, kept small."""
        return dsl.numpy.tanh(eval(text, {}, {**self.variables, "y": y}) * 1.0)

    def run(self, program: Sequence[Any], y: Any) -> Any:
        for statement in program:
            y = getattr(self, f"_{statement[0]}")(y, *statement[1:])
        return y

    def _assign(self, y: Any, name: str, text: str, how: str = "assign") -> Any:
        return y + 0.5 * getattr(self.variables[name], how)(self.number(text, y))

    def _assign_add(self, y: Any, name: str, text: str) -> Any:
        return self._assign(y, name, text, "assign_add")

    def _assign_sub(self, y: Any, name: str, text: str) -> Any:
        return self._assign(y, name, text, "assign_sub")

    def _rows(self, y: Any, how: str, text: str) -> Any:
        number = self.number(text, y)
        getattr(self.variables["rows"], how)(np.array([2, 0]), dsl.numpy.stack([number, y]))
        return y

    def _y(self, y: Any, text: str) -> Any:
        return self.number(text, y)

    def _cond(self, y: Any, text: str, then: Any, otherwise: Any) -> Any:
        test = self.number(text, y) > 0.1
        return dsl.cond(test, lambda y: self.run(then, y), lambda y: self.run(otherwise, y), y)

    def _for(self, y: Any, trips: int, body: Any) -> Any:
        return dsl.fori_loop(0, trips, lambda i, y: self.run(body, y) + 0.1 * i, y)

    def _while(self, y: Any, text: str, body: Any) -> Any:
        def test(i: Any, y: Any) -> Any:
            return (i < 4) & (self.number(text, y) < 0.6)

        return dsl.while_loop(test, lambda i, y: (i + 1, self.run(body, y)), (0, y))[1]

    def _scan(self, y: Any, body: Any) -> Any:
        def step(y: Any, x: Any) -> Any:
            y = self.run(body, y * x)
            return y, y + self.variables["a"]

        y, found = dsl.scan(step, y, np.array([1.0, -0.5]))
        return y + found.sum()


def outcomes(program: Any, y: float) -> dict[str, Outcome]:
    """Return the result and the variables afterwards, by each way to run a program."""
    plain = {name: dsl.Variable(START[name], name=name) for name in NAMES}
    end = Meaning(plain).run(program, np.float64(y))
    found = {"Python": [end, *(v.read() for v in plain.values())]}
    with dsl.Graph() as graph:
        held = {name: dsl.Variable(START[name], name=name) for name in NAMES}
        x = dsl.placeholder(np.float64)
        end = dsl.numpy.asarray(Meaning(held).run(program, x * 1.0))
    effects = tuple(node for node in graph.root.order if has_effect(node))
    step = cut(graph, [graph.value_of(x)], [graph.value_of(end)], effects).graph
    verify(step)
    for name, runner in RUNNERS.items():
        found[name] = with_effects(runner, step, [np.float64(y)], START)
    found["threaded"] = as_values(step, [np.float64(y)], START)
    result, _ = dsl.Session(graph).run([end, dsl.Operation(graph, effects, "all")], {x: y})
    found["session"] = [result, *(v.read() for v in held.values())]
    return found


def assert_agree(program: Any, y: float) -> None:
    found = outcomes(program, y)
    for outcome in found.values():
        assert_same(outcome, found["Python"])


BODY = [("assign_add", "a", "y"), ("rows", "scatter_add", "a"), ("y", "a * b")]
PROGRAMS: dict[str, list[Any]] = {
    "no control flow": BODY,
    "a branch that writes": [("cond", "y", BODY, [("assign", "b", "y")])],
    "a branch that only reads": [("cond", "y", [("y", "a")], [("y", "rows.sum()")])],
    "a loop that writes": [("for", 3, BODY)],
    "a loop of no trips": [("for", 0, BODY), ("y", "a")],
    "a while that reads what it writes": [("while", "a", BODY)],
    "a scan that writes": [("scan", BODY)],
    "a branch in a loop": [("for", 3, [("cond", "a", BODY, [("assign_sub", "b", "a")])])],
    "a loop in a branch": [("cond", "y", [("while", "b", BODY)], [("scan", BODY)])],
    "three deep": [("scan", [("for", 2, [("while", "a", [("cond", "y", BODY, [("y", "b")])])])])],
    "reads after a loop": [("for", 2, BODY), ("y", "a * b"), ("assign", "a", "rows[1]")],
    "a read between two writes": [("assign", "a", "y"), ("y", "a"), ("assign", "a", "b"), ("assign", "b", "y")],
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("y", [0.7, -0.7])
def test_all_ways_to_run_a_program_agree(program: Any, y: float) -> None:
    assert_agree(program, y)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=_programs, y=st.sampled_from([0.7, -0.7, 0.0]))
def test_random_programs_agree(program: Any, y: float) -> None:
    assert_agree(program, y)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=_programs)
def test_gradients_of_random_programs_with_respect_to_variables(program: Any) -> None:
    """The reads of a graph stand for its variables, in loops too: moving one moves the result as the gradient says."""
    program = [("for", 2, without_writes(program)), *without_writes(program)]

    def end(shift: float) -> float:
        held = {name: dsl.Variable(START[name] + shift * (name == "a")) for name in NAMES}
        return float(Meaning(held).run(program, np.float64(0.7)))

    with dsl.Graph() as graph:
        held = {name: dsl.Variable(START[name], name=name) for name in NAMES}
        x = dsl.placeholder(np.float64)
        result = dsl.numpy.asarray(Meaning(held).run(program, x * 1.0))
        (slope,) = dsl.gradients(result, [held["a"]])
    step = 1e-6
    numeric = (end(step) - end(-step)) / (2 * step)
    np.testing.assert_allclose(
        dsl.Session(graph).run(slope, {x: 0.7}), numeric, rtol=1e-4, atol=1e-6
    )


def without_writes(program: Sequence[Any]) -> list[Any]:
    """Return a program with assignments to `y` in place of writes; one that branches on values stays as smooth as it was."""
    found: list[Any] = []
    for kind, *rest in program:
        if kind in ("assign", "assign_add", "assign_sub", "rows"):
            found.append(("y", rest[1]))
        elif kind in ("cond", "while"):
            found += [part for body in rest[1:] for part in without_writes(body)]
        else:
            found.append((kind, *(without_writes(r) if isinstance(r, list) else r for r in rest)))
    return found
