"""The token machine on hand-written flat graphs: the rules of tokens, frames and deadness one by one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dsl.errors import DslError
from dsl.ir.graph import Node
from dsl.ir.text import parse
from dsl.ir.token_machine import Tag, run_tokens

COUNT = """graph @count(%n: i64[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="w"} : i64[]
  %m = enter(%n) {frame="w", invariant} : i64[]
  %s = enter(%one) {frame="w", invariant} : i64[]
  %x = loop_merge(%i, %next) : i64[]
  %p = less(%x, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%x, %c) : i64[], i64[]
  %y = add(%in, %s) : i64[]
  %next = next_iteration(%y) : i64[]
  %r = exit(%out) : i64[]
  return %r
}"""


def run(text: str, *args: Any, **options: Any) -> list[Any]:
    """Run a graph in the usual order and in some others, and return what all agree on."""
    graph = parse(text)
    arrays = [np.asarray(arg) for arg in args]
    found = run_tokens(graph, arrays, **options)
    for seed in range(5):
        others = run_tokens(graph, arrays, order=random.Random(seed), **options)
        for one, other in zip(found, others, strict=True):
            np.testing.assert_array_equal(one, other)
    return [result.tolist() for result in found]


class Log:
    """Notes what runs where."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Tag, bool]] = []

    def __call__(self, node: Node, tag: Tag, dead: bool) -> None:
        self.entries.append((node.op.name, tag, dead))

    def where(self, name: str, dead: bool = False) -> list[Tag]:
        return [tag for op, tag, is_dead in self.entries if op == name and is_dead == dead]


# -- without loops -------------------------------------------------------------------------------------------------


def test_runs_a_graph_without_control_flow():
    text = "graph @g(%x: f64[2]) -> (f64[2]) { %0 = add(%x, %x) : f64[2] return %0 }"
    assert run(text, [1.0, 2.0]) == [[2.0, 4.0]]


def test_a_param_can_be_a_result():
    assert run("graph @g(%x: i64[]) -> (i64[]) { return %x }", 3) == [3]


def test_runs_structured_nodes_inside_a_flat_graph():
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %y = cond(%p, %yes) : i64[] {
        @then(%a: i64[]) -> (i64[]) { %0 = add(%a, %a) : i64[] return %0 }
        @else(%a: i64[]) -> (i64[]) { return %a }
      }
      %r = merge(%no, %y) : i64[]
      return %r
    }"""
    assert run(text, True, 3) == [6]
    assert run(text, False, 3) == [3]


SELECT = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
  %no, %yes = switch(%x, %p) : i64[], i64[]
  %y = add(%yes, %yes) : i64[]
  %r = merge(%no, %y) : i64[]
  return %r
}"""


def test_a_switch_sends_its_data_one_way():
    assert run(SELECT, True, 4) == [8]
    assert run(SELECT, False, 4) == [4]


def test_a_dead_node_does_not_run():
    log = Log()
    run_tokens(parse(SELECT), [np.bool_(False), np.int64(4)], trace=log)
    assert log.where("add") == []
    assert log.where("add", dead=True) == [()]


def test_a_switch_with_a_dead_predicate_is_dead_on_both_sides():
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %pno, %pyes = switch(%p, %p) : bool[], bool[]
      %no, %yes = switch(%x, %pyes) : i64[], i64[]
      %inner = merge(%no, %yes) : i64[]
      %xno, %xyes = switch(%x, %p) : i64[], i64[]
      %neg = negative(%xno) : i64[]
      %r = merge(%neg, %inner) : i64[]
      return %r
    }"""
    assert run(text, False, 4) == [-4]
    assert run(text, True, 4) == [4]


def test_a_merge_of_two_dead_inputs_is_dead():
    text = """graph @g(%p: bool[], %q: bool[], %x: i64[]) -> (i64[]) {
      %a, %b = switch(%x, %p) : i64[], i64[]
      %c, %d = switch(%b, %q) : i64[], i64[]
      %inner = merge(%c, %d) : i64[]
      %twice = add(%inner, %inner) : i64[]
      %r = merge(%a, %twice) : i64[]
      return %r
    }"""
    assert run(text, False, True, 5) == [5]
    assert run(text, True, False, 5) == [10]


def test_a_dead_control_does_not_kill_a_merge():
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %gone = identity(%yes) : i64[]
      %kept = identity(%no) : i64[]
      %r = merge(%no, %yes) after %gone, %kept : i64[]
      return %r
    }"""
    assert run(text, False, 7) == [7]
    assert run(text, True, 7) == [7]


def test_a_dead_control_kills_another_node(capsys):
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %pivot = identity(%yes) : i64[]
      !0 = print(%x) {template="{}", end=""} after %pivot
      return %x after !0
    }"""
    run_tokens(parse(text), [np.bool_(False), np.int64(7)])
    assert capsys.readouterr().out == ""
    run_tokens(parse(text), [np.bool_(True), np.int64(7)])
    assert capsys.readouterr().out == "7"


def test_a_merge_with_two_live_inputs_is_refused():
    text = "graph @g(%x: i64[]) -> (i64[]) { %r = merge(%x, %x) : i64[] return %r }"
    with pytest.raises(DslError, match="two live inputs"):
        run(text, 1)


def test_fetching_a_dead_result_is_refused():
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      return %yes
    }"""
    with pytest.raises(DslError, match=r"(?s)a result is dead.*switch\(%x, %p\)"):
        run(text, False, 1)
    assert run(text, True, 1) == [1]


def test_a_predicate_must_be_a_bool_scalar():
    text = """graph @g(%p: bool[2], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      return %yes
    }"""
    with pytest.raises(DslError, match="the predicate of a switch must be"):
        run(text, [True, False], 1)


# -- loops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [1, 2, 10, 100])
@pytest.mark.parametrize("trips", [0, 1, 2, 10, 11, 12, 100])
def test_a_loop_of_any_length(trips, parallel):
    assert run(COUNT, trips, parallel_iterations=parallel) == [trips]


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_iterations_are_alive_than_allowed(parallel):
    """The variable %x runs ahead of the slow %y as far as the bound lets it."""
    text = """graph @g(%n: i64[], %v: f64[]) -> (i64[], f64[]) {
      %zero = const() {value=0} : i64[]
      %one = const() {value=1} : i64[]
      %i = enter(%zero) {frame="w"} : i64[]
      %j = enter(%v) {frame="w"} : f64[]
      %m = enter(%n) {frame="w", invariant} : i64[]
      %s = enter(%one) {frame="w", invariant} : i64[]
      %x = loop_merge(%i, %xn) : i64[]
      %y = loop_merge(%j, %yn) : f64[]
      %p = less(%x, %m) : bool[]
      %c = loop_cond(%p) : bool[]
      %xo, %xi = switch(%x, %c) : i64[], i64[]
      %yo, %yi = switch(%y, %c) : f64[], f64[]
      %x1 = add(%xi, %s) : i64[]
      %xn = next_iteration(%x1) : i64[]
      %y1 = sin(%yi) : f64[]
      %y2 = cos(%y1) : f64[]
      %y3 = exp(%y2) : f64[]
      %yn = next_iteration(%y3) : f64[]
      %xr = exit(%xo) : i64[]
      %yr = exit(%yo) : f64[]
      return %xr, %yr
    }"""
    graph, args = parse(text), [np.int64(20), np.float64(0.5)]
    reference = run_tokens(graph, args)
    widest = 0
    for seed in range(20):
        log = Log()
        found = run_tokens(
            graph, args, parallel_iterations=parallel, trace=log, order=random.Random(seed)
        )
        assert found == reference
        newest = 0
        for iteration in [tag[0][1] for _, tag, _ in log.entries if tag]:
            newest = max(newest, iteration)
            widest = max(widest, newest - iteration + 1)
    assert widest == parallel


def test_parallel_iterations_must_be_positive():
    with pytest.raises(DslError, match="at least 1, got 0"):
        run(COUNT, 3, parallel_iterations=0)


LATE = """graph @late(%n: i64[]) -> (i64[], i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="slow"} : i64[]
  %m = enter(%n) {frame="slow", invariant} : i64[]
  %s = enter(%one) {frame="slow", invariant} : i64[]
  %x = loop_merge(%i, %next) : i64[]
  %p = less(%x, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%x, %c) : i64[], i64[]
  %y = add(%in, %s) : i64[]
  %next = next_iteration(%y) : i64[]
  %w = exit(%out) : i64[]
  %i2 = enter(%zero) {frame="fast"} : i64[]
  %t2 = enter(%zero) {frame="fast"} : i64[]
  %m2 = enter(%n) {frame="fast", invariant} : i64[]
  %s2 = enter(%one) {frame="fast", invariant} : i64[]
  %w2 = enter(%w) {frame="fast", invariant} : i64[]
  %x2 = loop_merge(%i2, %next2) : i64[]
  %u2 = loop_merge(%t2, %nextu) : i64[]
  %p2 = less(%x2, %m2) : bool[]
  %c2 = loop_cond(%p2) : bool[]
  %out2, %in2 = switch(%x2, %c2) : i64[], i64[]
  %uout, %uin = switch(%u2, %c2) : i64[], i64[]
  %y2 = add(%in2, %s2) : i64[]
  %next2 = next_iteration(%y2) : i64[]
  %v2 = add(%uin, %w2) : i64[]
  %nextu = next_iteration(%v2) : i64[]
  %r = exit(%out2) : i64[]
  %q = exit(%uout) : i64[]
  return %r, %q
}"""


class Reluctant(random.Random):
    """Runs what is ready first come, first served."""

    def randrange(self, *args: int) -> int:
        return 0


def test_an_invariant_that_comes_late_reaches_iterations_that_have_begun():
    log = Log()
    args = [np.int64(6)]
    found = run_tokens(parse(LATE), args, trace=log, order=Reluctant())
    assert [int(x) for x in found] == [6, 36]
    begun = [tag for op, tag, _ in log.entries[: _last(log, "enter")] if op == "loop_merge"]
    assert max(number for tag in begun for name, number in tag if name == "fast") >= 3
    assert run(LATE, 6) == [6, 36]
    assert run(LATE, 30, parallel_iterations=2) == [30, 900]
    assert run(LATE, 0) == [0, 0]


def _last(log: Log, name: str) -> int:
    return max(index for index, (op, _, _) in enumerate(log.entries) if op == name)


PAIR = """graph @pair(%n: i64[], %a: i64[], %b: i64[]) -> (i64[], i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %ei = enter(%zero) {frame="w"} : i64[]
  %ea = enter(%a) {frame="w"} : i64[]
  %eb = enter(%b) {frame="w"} : i64[]
  %m = enter(%n) {frame="w", invariant} : i64[]
  %s = enter(%one) {frame="w", invariant} : i64[]
  %i = loop_merge(%ei, %ni) : i64[]
  %x = loop_merge(%ea, %nx) : i64[]
  %y = loop_merge(%eb, %ny) : i64[]
  %p = less(%i, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %io, %ii = switch(%i, %c) : i64[], i64[]
  %xo, %xi = switch(%x, %c) : i64[], i64[]
  %yo, %yi = switch(%y, %c) : i64[], i64[]
  %i1 = add(%ii, %s) : i64[]
  %ni = next_iteration(%i1) : i64[]
  BODY
  %rx = exit(%xo) : i64[]
  %ry = exit(%yo) : i64[]
  return RESULTS
}"""


def pair(body: str, results: str = "%rx, %ry") -> str:
    """The text of a loop of %n trips over %x and %y."""
    count = results.count("%")
    text = PAIR.replace("BODY", body).replace("RESULTS", results)
    return text.replace("-> (i64[], i64[])", f"-> ({', '.join(['i64[]'] * count)})", 1)


def test_tokens_for_one_iteration_may_be_parked_at_different_times():
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %y1 = negative(%yi) : i64[]
      %y2 = negative(%y1) : i64[]
      %y3 = add(%y2, %xi) : i64[]
      %ny = next_iteration(%y3) : i64[]"""
    assert run(pair(body), 5, 0, 0, parallel_iterations=1) == [5, 10]
    assert run(pair(body), 5, 0, 0, parallel_iterations=2) == [5, 10]


def test_variables_can_be_swapped():
    body = "%nx = next_iteration(%yi) : i64[] %ny = next_iteration(%xi) : i64[]"
    assert run(pair(body), 3, 10, 20) == [20, 10]
    assert run(pair(body), 4, 10, 20) == [10, 20]


def test_a_variable_can_be_passed_through():
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    assert run(pair(body), 4, 10, 20) == [10, 20]


def test_an_exit_can_be_unused():
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    assert run(pair(body, "%ry"), 4, 10, 20) == [20]


def test_one_value_can_be_two_variables():
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    text = pair(body).replace("enter(%b)", "enter(%a)")
    assert run(text, 4, 10, 99) == [14, 10]


def test_a_node_with_only_control_inputs_runs_in_every_iteration():
    body = """%pivot = identity(%xi) : i64[]
      %two = const() {value=2} after %pivot : i64[]
      %x1 = add(%xi, %two) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    assert run(pair(body), 4, 10, 0) == [18, 0]
    log = Log()
    run_tokens(parse(pair(body)), [np.int64(4), np.int64(0), np.int64(0)], trace=log)
    assert [tag for tag in log.where("const") if tag] == [(("w", k),) for k in range(4)]
    assert [tag for tag in log.where("const", dead=True) if tag] == [(("w", 4),)]


def test_the_first_error_ends_the_run():
    body = """%fine = not_equal(%xi, %yi) : bool[]
      !0 = assert(%fine, %xi) {error="ValueError", message="at {}"}
      %x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) after !0 : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    args = [np.int64(20), np.int64(0), np.int64(7)]
    for seed in range(10):
        log = Log()
        with pytest.raises(ValueError, match="at 7"):
            run_tokens(parse(pair(body)), args, trace=log, order=random.Random(seed))
        assert log.entries[-1] == ("assert", (("w", 7),), False)


def test_fetching_from_inside_a_loop_is_refused():
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    with pytest.raises(DslError, match="never produced"):
        run(pair(body, "%xi"), 3, 1, 2)


def test_reading_from_outside_a_frame_without_enter_is_refused():
    with pytest.raises(DslError, match="never comes"):
        run(COUNT.replace("add(%in, %s)", "add(%in, %one)"), 3)


NESTED = """graph @nested(%n: i64[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %two = const() {value=2} : i64[]
  %ei = enter(%zero) {frame="outer"} : i64[]
  %et = enter(%zero) {frame="outer"} : i64[]
  %m = enter(%n) {frame="outer", invariant} : i64[]
  %s = enter(%one) {frame="outer", invariant} : i64[]
  %d = enter(%two) {frame="outer", invariant} : i64[]
  %z = enter(%zero) {frame="outer", invariant} : i64[]
  %i = loop_merge(%ei, %ni) : i64[]
  %t = loop_merge(%et, %nt) : i64[]
  %p = less(%i, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %io, %ii = switch(%i, %c) : i64[], i64[]
  %to, %ti = switch(%t, %c) : i64[], i64[]
  %rest = remainder(%ii, %d) : i64[]
  %trips = multiply(%ii, %rest) : i64[]
  %zp = identity(%z) after %ii : i64[]
  %ej = enter(%zp) {frame="inner"} : i64[]
  %eu = enter(%ti) {frame="inner"} : i64[]
  %mm = enter(%trips) {frame="inner", invariant} : i64[]
  %ss = enter(%s) {frame="inner", invariant} : i64[]
  %j = loop_merge(%ej, %nj) : i64[]
  %u = loop_merge(%eu, %nu) : i64[]
  %q = less(%j, %mm) : bool[]
  %cc = loop_cond(%q) : bool[]
  %jo, %ji = switch(%j, %cc) : i64[], i64[]
  %uo, %ui = switch(%u, %cc) : i64[], i64[]
  %j1 = add(%ji, %ss) : i64[]
  %nj = next_iteration(%j1) : i64[]
  %u1 = add(%ui, %ss) : i64[]
  %nu = next_iteration(%u1) : i64[]
  %sum = exit(%uo) : i64[]
  %i1 = add(%ii, %s) : i64[]
  %ni = next_iteration(%i1) : i64[]
  %nt = next_iteration(%sum) : i64[]
  %r = exit(%to) : i64[]
  return %r
}"""


@pytest.mark.parametrize("parallel", [1, 3, 10])
def test_inner_loops_whose_length_depends_on_data(parallel):
    """The inner loop makes i trips for odd i and none for even i."""
    for n in (0, 1, 2, 7):
        expected = [sum(i for i in range(n) if i % 2)]
        assert run(NESTED, n, parallel_iterations=parallel) == expected


def test_each_inner_frame_belongs_to_its_outer_iteration():
    log = Log()
    run_tokens(parse(NESTED), [np.int64(4)], trace=log)
    inner = [tag for tag in log.where("multiply") + log.where("next_iteration") if len(tag) == 2]
    trips = {i: sum(tag[0] == ("outer", i) for tag in inner) // 2 for i in range(4)}
    assert trips == {0: 0, 1: 1, 2: 0, 3: 3}


# -- loops and branches ------------------------------------------------------------------------------------------------


def loop(frame: str, start: str, limit: str, step: str) -> str:
    """The text of a loop that counts from a value; its result is named after the frame."""
    f = frame
    return f"""%{f}1 = enter({start}) {{frame="{f}"}} : i64[]
      %{f}2 = enter({limit}) {{frame="{f}", invariant}} : i64[]
      %{f}3 = enter({step}) {{frame="{f}", invariant}} : i64[]
      %{f}4 = loop_merge(%{f}1, %{f}9) : i64[]
      %{f}5 = less(%{f}4, %{f}2) : bool[]
      %{f}6 = loop_cond(%{f}5) : bool[]
      %{f}o, %{f}7 = switch(%{f}4, %{f}6) : i64[], i64[]
      %{f}8 = add(%{f}7, %{f}3) : i64[]
      %{f}9 = next_iteration(%{f}8) : i64[]
      %{f} = exit(%{f}o) : i64[]"""


BRANCHES = f"""graph @g(%p: bool[], %x: i64[], %n: i64[], %s: i64[]) -> (i64[]) {{
  %xn, %xy = switch(%x, %p) : i64[], i64[]
  %nn, %ny = switch(%n, %p) : i64[], i64[]
  %sn, %sy = switch(%s, %p) : i64[], i64[]
  {loop("a", "%xy", "%ny", "%sy")}
  BRANCH
  return %r
}}"""


def test_a_loop_in_a_branch_that_is_not_taken_sends_dead_exits():
    text = BRANCHES.replace("BRANCH", "%r = merge(%xn, %a) : i64[]")
    for parallel in (1, 10):
        assert run(text, True, 0, 7, 2, parallel_iterations=parallel) == [8]
        assert run(text, False, 0, 7, 2, parallel_iterations=parallel) == [0]


def test_loops_in_both_branches():
    text = loop("b", "%xn", "%nn", "%sn") + "\n  %r = merge(%b, %a) : i64[]"
    text = BRANCHES.replace("BRANCH", text)
    assert run(text, True, 0, 7, 2) == [8]
    assert run(text, False, 1, 7, 3) == [7]


def test_a_loop_entered_by_dead_and_live_tokens():
    """Only the start is dead: the invariants are live, and the exits dead all the same."""
    text = f"""graph @g(%p: bool[], %x: i64[], %n: i64[], %s: i64[]) -> (i64[]) {{
      %xn, %xy = switch(%x, %p) : i64[], i64[]
      {loop("a", "%xy", "%n", "%s")}
      %r = merge(%xn, %a) : i64[]
      return %r
    }}"""
    assert run(text, True, 0, 7, 2) == [8]
    assert run(text, False, 0, 7, 2) == [0]


def test_a_branch_inside_a_loop():
    body = """%even = equal(%xi, %yi) : bool[]
      %no, %yes = switch(%xi, %even) : i64[], i64[]
      %big = add(%yes, %yi) : i64[]
      %small = add(%no, %s) : i64[]
      %x1 = merge(%small, %big) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    assert run(pair(body), 5, 1, 3) == [8, 3]


# -- effects ---------------------------------------------------------------------------------------------------------


def test_effects_happen_in_the_order_of_control_edges(capsys):
    text = """graph @g(%x: i64[]) -> (i64[]) {
      !0 = print(%x) {template="a", end=""}
      !1 = print(%x) {template="b", end=""} after !0
      %y = add(%x, %x) after !1 : i64[]
      !2 = print(%y) {template="{}", end=""} after !1
      return %y after !2
    }"""
    for seed in range(10):
        run_tokens(parse(text), [np.int64(2)], order=random.Random(seed))
        assert capsys.readouterr().out == "ab4"


def test_a_graph_takes_as_many_arguments_as_it_has_params():
    with pytest.raises(DslError, match="takes 1 arguments, got 0"):
        run_tokens(parse(COUNT), [])
