"""The compiled token executor: the rules of tokens, frames and deadness one by one, and agreement with the oracle.

Every rule is tried with the token machine, which is the oracle, and with the executor, nodes grouped and one by one.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_graphs import (
    BRANCHES,
    COUNT,
    LATE,
    NESTED,
    PRINTING,
    SELECT,
    STOPPING,
    Log,
    loop,
    pair,
)
from hypothesis import HealthCheck, given, settings
from random_graphs import graphs
from test_program_graphs import check, graph_and_inputs, outcome
from test_programs import check_same, narrowest, rows
from test_tokens import run_in_orders

import dsl
from dsl.codegen.cpu import memory
from dsl.errors import CancelledError, DeadlineError, DslError, VerifyError
from dsl.executor import Executor
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.text import parse
from dsl.ir.token_machine import DEAD, run_tokens
from dsl.ir.verify import verify
from dsl.passes.lower_control import lower_control

Machine = Callable[..., list[Any]]
PROGRAMS = int(os.environ.get("DSL_TEST_PROGRAMS", "12"))  # one program in so many is run


def oracle(graph: Graph, args: Any, *, parallel_iterations: int = 10, **options: Any) -> list[Any]:
    in_one_order = options or graph.effects
    machine = run_tokens if in_one_order else run_in_orders
    return machine(graph, args, parallel_iterations=parallel_iterations, **options)


def grouped(graph: Graph, args: Any, *, parallel_iterations: int = 10, **options: Any) -> list[Any]:
    return Executor(graph, parallel_iterations=parallel_iterations).run(args, **options)


def singly(graph: Graph, args: Any, *, parallel_iterations: int = 10, **options: Any) -> list[Any]:
    executor = Executor(graph, cluster=False, parallel_iterations=parallel_iterations)
    return executor.run(args, **options)


COMPILED = [grouped, singly]
each_machine = pytest.mark.parametrize("machine", [oracle, *COMPILED])
each_compiled = pytest.mark.parametrize("machine", COMPILED)


def run(machine: Machine, text: str, *args: Any, **options: Any) -> list[Any]:
    found = machine(parse(text), [np.asarray(arg) for arg in args], **options)
    return [result.tolist() for result in found]


@pytest.fixture(autouse=True)
def no_leak() -> Any:
    """No test leaves blocks of the allocator behind."""
    before = memory.stats().blocks
    yield
    if memory.stats().blocks > before:  # collecting takes long
        gc.collect()
    assert memory.stats().blocks <= before


# -- without loops -------------------------------------------------------------------------------------------------


@each_machine
def test_values_of_every_kind_pass_through(machine):
    text = """graph @g(%x: f64[2, 3], %n: i64[], %z: c128[], %e: f32[0]) -> (f64[3], c128[], f32[0], f64[2, 3], i64[]) {
      %0 = sum(%x) {axes=(0,)} : f64[3]
      %1 = add(%z, %z) : c128[]
      %2 = add(%e, %e) : f32[0]
      return %0, %1, %2, %x, %n
    }"""
    x = np.arange(6.0).reshape(2, 3)
    args = [x, np.int64(4), np.complex128(1 + 2j), np.zeros(0, np.float32)]
    found = machine(parse(text), args)
    assert [f.tolist() for f in found] == [[3.0, 5.0, 7.0], 2 + 4j, [], x.tolist(), 4]
    assert [f.dtype for f in found] == ["f8", "c16", "f4", "f8", "i8"]


@each_compiled
def test_results_are_the_callers(machine):
    text = """graph @g(%x: f64[2000]) -> (f64[2000], f64[2000], f64[2000], f64[2000]) {
      %c = const() {value=1.0} : f64[]
      %0 = add(%x, %c) : f64[2000]
      return %0, %0, %x, %x
    }"""
    x = np.zeros(2000)
    found = machine(parse(text), [x])
    for k, array in enumerate(found):
        assert array.flags.writeable
        array[0] = 10 + k
    assert x[0] == 0
    assert [array[0] for array in found] == [10, 11, 12, 13]
    assert [array[1] for array in found] == [1, 1, 0, 0]


@each_machine
def test_a_switch_sends_its_data_one_way(machine):
    assert run(machine, SELECT, True, 4) == [8]
    assert run(machine, SELECT, False, 4) == [4]


@each_machine
def test_a_dead_node_does_not_run(machine):
    log = Log()
    machine(parse(SELECT), [np.bool_(False), np.int64(4)], trace=log)
    assert log.where("add") == []
    assert log.where("add", dead=True) == [()]


@each_machine
def test_a_switch_with_a_dead_predicate_is_dead_on_both_sides(machine):
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %pno, %pyes = switch(%p, %p) : bool[], bool[]
      %no, %yes = switch(%x, %pyes) : i64[], i64[]
      %inner = merge(%no, %yes) : i64[]
      %xno, %xyes = switch(%x, %p) : i64[], i64[]
      %neg = negative(%xno) : i64[]
      %r = merge(%neg, %inner) : i64[]
      return %r
    }"""
    assert run(machine, text, False, 4) == [-4]
    assert run(machine, text, True, 4) == [4]


@each_machine
def test_a_merge_of_two_dead_inputs_is_dead(machine):
    text = """graph @g(%p: bool[], %q: bool[], %x: i64[]) -> (i64[]) {
      %a, %b = switch(%x, %p) : i64[], i64[]
      %c, %d = switch(%b, %q) : i64[], i64[]
      %inner = merge(%c, %d) : i64[]
      %twice = add(%inner, %inner) : i64[]
      %r = merge(%a, %twice) : i64[]
      return %r
    }"""
    assert run(machine, text, False, True, 5) == [5]
    assert run(machine, text, True, False, 5) == [10]


@each_machine
def test_a_dead_control_does_not_kill_a_merge(machine):
    text = """graph @g(%p: bool[], %x: i64[2]) -> (i64[2]) {
      %no, %yes = switch(%x, %p) : i64[2], i64[2]
      %gone = identity(%yes) : i64[2]
      %kept = identity(%no) : i64[2]
      %r = merge(%no, %yes) after %gone, %kept : i64[2]
      return %r
    }"""
    assert run(machine, text, False, [7, 8]) == [[7, 8]]
    assert run(machine, text, True, [7, 8]) == [[7, 8]]


@each_machine
def test_a_dead_control_kills_another_node(machine, capsys):
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %pivot = identity(%yes) : i64[]
      !0 = print(%x) {template="{}", end=""} after %pivot
      return %x after !0
    }"""
    run(machine, text, False, 7)
    assert capsys.readouterr().out == ""
    run(machine, text, True, 7)
    assert capsys.readouterr().out == "7"


@each_machine
def test_effects_happen_in_the_order_of_control_edges(machine, capsys):
    run(machine, PRINTING, 2)
    assert capsys.readouterr().out == "ab4"


# -- errors --------------------------------------------------------------------------------------------------------


@each_machine
def test_a_merge_with_two_live_inputs_is_refused(machine):
    for type, value in (("i64[]", 1), ("f64[3]", [1.0, 2.0, 3.0])):
        text = f"graph @g(%x: {type}) -> ({type}) {{ %y = add(%x, %x) : {type} %r = merge(%y, %x) : {type} return %r }}"
        with pytest.raises(DslError, match=r"(?s)two live inputs.*merge"):
            run(machine, text, value)


@each_machine
def test_fetching_a_dead_result_is_refused(machine):
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      return %yes
    }"""
    with pytest.raises(DslError, match=r"(?s)a result is dead.*switch\(%x, %p\)"):
        run(machine, text, False, 1)
    assert run(machine, text, True, 1) == [1]


@each_machine
def test_a_predicate_must_be_a_bool_scalar(machine):
    text = """graph @g(%p: bool[2], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      return %yes
    }"""
    with pytest.raises(DslError, match="the predicate of a switch must be"):
        run(machine, text, [True, False], 1)


@each_machine
def test_fetching_from_inside_a_loop_is_refused(machine):
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    with pytest.raises(DslError, match="never produced"):
        run(machine, pair(body, "%xi"), 3, 1, 2)


@each_machine
def test_reading_from_outside_a_frame_without_enter_is_refused(machine):
    with pytest.raises(DslError, match="never comes"):
        run(machine, COUNT.replace("add(%in, %s)", "add(%in, %one)"), 3)


@each_machine
def test_an_input_that_gets_two_tokens_is_refused(machine):
    text = COUNT.replace('enter(%zero) {frame="w"}', 'enter(%zero) {frame="w", invariant}')
    with pytest.raises(DslError, match="two tokens"):
        run(machine, text, 3)


@each_machine
def test_a_node_that_never_gets_all_its_tokens_is_refused(machine):
    """In iteration 0 nothing comes from %next."""
    text = COUNT.replace(
        "%r = exit(%out)", "%odd = add(%x, %next) : i64[]\n  %r = exit(%out) after %odd"
    )
    with pytest.raises(DslError, match="waits for a token that never comes"):
        run(machine, text, 3)


@each_machine
def test_a_loop_can_be_left_on_the_true_side(machine):
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %e = enter(%x) {frame="w"} : i64[]
      %m = loop_merge(%e, %n) : i64[]
      %q = enter(%p) {frame="w", invariant} : bool[]
      %c = loop_cond(%q) : bool[]
      %out, %in = switch(%m, %c) : i64[], i64[]
      %n = next_iteration(%out) : i64[]
      %r = exit(%in) : i64[]
      %late = add(%r, %x) : i64[]
      return %late
    }"""
    assert run(machine, text, True, 2) == [4]


@each_machine
def test_the_number_of_arguments_is_checked(machine):
    with pytest.raises(DslError, match="takes 1 arguments, got 0"):
        machine(parse(COUNT), [])


@each_compiled
def test_the_types_of_arguments_are_checked(machine):
    text = "graph @g(%x: f64[n], %y: f64[n]) -> (f64[n]) { %0 = add(%x, %y) : f64[n] return %0 }"
    with pytest.raises(TypeError, match=r"argument 1: expected f64\[n\], got an array of int64"):
        run(machine, text, [1.0], [1])
    with pytest.raises(
        ValueError, match=r"argument 1: expected f64\[n\], got an array of shape \(2,\)"
    ):
        run(machine, text, [1.0], [1.0, 2.0])


@each_machine
def test_the_first_error_ends_the_run(machine):
    args = [np.int64(20), np.int64(0), np.int64(7)]
    log = Log()
    with pytest.raises(ValueError, match="at 7"):
        machine(parse(STOPPING), args, trace=log)
    assert log.entries[-1] == ("assert", (("w", 7),), False)


ARRAYS = pair(
    """%xs = full(%xi) {shape=(500,)} : i64[500]
      %ys = add(%xs, %yi) : i64[500]
      %yes0, %yes1 = switch(%ys, %c) : i64[500], i64[500]
      %item = gather(%yes1, %ii) {axes=(0,)} : i64[]
      %keep = sum(%ys) {axes=(0,)} : i64[]
      %x1 = add(%item, %keep) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
)


@each_compiled
def test_an_executor_runs_again_after_an_error(machine):
    graph = parse(ARRAYS)
    executor = Executor(graph, cluster=machine is grouped)
    args = [np.int64(3), np.int64(1), np.int64(2)]
    expected = run_tokens(graph, args)
    for _ in range(3):
        assert executor.run(args) == expected
        with pytest.raises(IndexError, match="index 500 is out of bounds"):
            executor.run([np.int64(900), np.int64(1), np.int64(2)])


@each_compiled
def test_errors_have_the_users_line(machine):
    def pick(x, k):
        y = x + 1.0
        return y[k]  # the guilty line

    args = [np.zeros(3), np.int64(5)]
    graph = dsl.jit(pick).lower(np.zeros(3), np.int64(1)).graph("optimized")
    with pytest.raises(IndexError) as caught:
        machine(graph, args)
    assert "# the guilty line" in "".join(caught.value.__notes__)


# -- loops ---------------------------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize("parallel", [1, 2, 10, 100])
def test_a_loop_of_any_length(machine, parallel):
    for trips in (0, 1, 2, 10, 11, 12, 100):
        assert run(machine, COUNT, trips, parallel_iterations=parallel) == [trips]


@each_compiled
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_iterations_are_alive_than_allowed(machine, parallel):
    """%x runs ahead of %y, which waits for a token of another device, as far as the bound lets it."""
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %slow = recv() {key="k"} after %xi : i64[]
      %y1 = add(%yi, %slow) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    log, meeting = Log(), Meeting()
    meeting.later(0.02, [(("k", (("w", i),)), np.int64(i)) for i in range(20)])
    meeting.later(0.02, [(("k", (("w", 20),)), DEAD)])
    args = [np.int64(20), np.int64(0), np.int64(0)]
    environment = Environment(rendezvous=meeting)
    found = machine(
        parse(pair(body)), args, parallel_iterations=parallel, trace=log, environment=environment
    )
    assert [int(f) for f in found] == [20, 190]
    assert log.width() == parallel


@each_compiled
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_loop_may_state_its_own_bound(machine, parallel):
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %slow = recv() {key="k"} after %xi : i64[]
      %y1 = add(%yi, %slow) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    text = pair(body).replace('{frame="w"}', f'{{frame="w", parallel_iterations={parallel}}}')
    log, meeting = Log(), Meeting()
    meeting.later(0.02, [(("k", (("w", i),)), np.int64(i)) for i in range(20)])
    meeting.later(0.02, [(("k", (("w", 20),)), DEAD)])
    args = [np.int64(20), np.int64(0), np.int64(0)]
    found = machine(parse(text), args, trace=log, environment=Environment(rendezvous=meeting))
    assert [int(f) for f in found] == [20, 190]
    assert log.width() == parallel


@pytest.mark.parametrize(
    ("bound", "fault"), [("0", "is 0, not at least 1"), ('"2"', "is a str"), ("true", "is a bool")]
)
def test_a_bound_that_makes_no_sense_breaks_a_rule(bound, fault):
    text = COUNT.replace('{frame="w"}', f'{{frame="w", parallel_iterations={bound}}}', 1)
    assert text != COUNT
    with pytest.raises(VerifyError, match=f"attribute parallel_iterations {fault}"):
        verify(parse(text))


@each_machine
def test_parallel_iterations_must_be_positive(machine):
    with pytest.raises(DslError, match="at least 1, got 0"):
        run(machine, COUNT, 3, parallel_iterations=0)


@each_machine
def test_an_invariant_that_comes_late_reaches_iterations_that_have_begun(machine):
    assert run(machine, LATE, 6) == [6, 36]
    assert run(machine, LATE, 30, parallel_iterations=2) == [30, 900]
    assert run(machine, LATE, 0) == [0, 0]


@each_machine
@pytest.mark.parametrize("parallel", [1, 10])
def test_an_invariant_that_another_device_sends_late(machine, parallel):
    text = LATE.replace("%w2 = enter(%w)", '%far = recv() {key="k"} : i64[]\n %w2 = enter(%far)')
    meeting, log = Meeting(), Log()
    meeting.later(0.05, [(("k", ()), np.int64(5))])
    environment = Environment(rendezvous=meeting)
    found = run(machine, text, 6, environment=environment, parallel_iterations=parallel, trace=log)
    assert found == [6, 30]
    entered = [k for k, (op, _, _) in enumerate(log.entries) if op == "enter"]
    begun = {tag[0] for op, tag, _ in log.entries[: entered[-1]] if op == "loop_merge"}
    assert max(number for name, number in begun if name == "fast") == (0 if parallel == 1 else 6)


@each_machine
@pytest.mark.parametrize("parallel", [1, 2])
def test_tokens_for_one_iteration_may_be_parked_at_different_times(machine, parallel):
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %y1 = negative(%yi) : i64[]
      %y2 = negative(%y1) : i64[]
      %y3 = add(%y2, %xi) : i64[]
      %ny = next_iteration(%y3) : i64[]"""
    assert run(machine, pair(body), 5, 0, 0, parallel_iterations=parallel) == [5, 10]


@each_machine
def test_variables_can_be_swapped(machine):
    body = "%nx = next_iteration(%yi) : i64[] %ny = next_iteration(%xi) : i64[]"
    assert run(machine, pair(body), 3, 10, 20) == [20, 10]
    assert run(machine, pair(body), 4, 10, 20) == [10, 20]


@each_machine
def test_arrays_can_be_swapped(machine):
    body = "%nx = next_iteration(%yi) : i64[] %ny = next_iteration(%xi) : i64[]"
    text = _as_arrays(pair(body))
    assert run(machine, text, 3, [10, 11], [20, 21]) == [[20, 21], [10, 11]]


def _as_arrays(text: str) -> str:
    """The loop of `pair` over vectors."""
    for name in ("a", "b", "ea", "eb", "x", "y", "nx", "ny", "rx", "ry", "x1"):
        text = text.replace(f"%{name}: i64[]", f"%{name}: i64[2]")
        lines = [
            line.replace("i64[]", "i64[2]") if line.strip().startswith(f"%{name} =") else line
            for line in text.split("\n")
        ]
        text = "\n".join(lines)
    for one, other in (("xo", "xi"), ("yo", "yi")):
        text = text.replace(f"%{one}, %{other} = switch", f"%{one}, %{other} = SWITCH")
    lines = [
        line.replace("i64[]", "i64[2]").replace("SWITCH", "switch") if "SWITCH" in line else line
        for line in text.split("\n")
    ]
    text = "\n".join(lines).replace("(%xi) : i64[]", "(%xi) : i64[2]")
    text = text.replace("(%yi) : i64[]", "(%yi) : i64[2]")
    return text.replace("-> (i64[], i64[])", "-> (i64[2], i64[2])")


@each_machine
def test_arrays_go_round(machine):
    body = """
      %x1 = add(%xi, %yi) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%xi) : i64[]"""
    text = _as_arrays(pair(body))
    for parallel in (1, 3):
        found = run(machine, text, 6, [1, 10], [0, 0], parallel_iterations=parallel)
        assert found == [[13, 130], [8, 80]]


@each_machine
def test_a_variable_can_be_passed_through(machine):
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    assert run(machine, pair(body), 4, 10, 20) == [10, 20]


@each_machine
def test_an_exit_can_be_unused(machine):
    body = "%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]"
    assert run(machine, pair(body, "%ry"), 4, 10, 20) == [20]


@each_machine
def test_one_value_can_be_two_variables(machine):
    body = """%x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    text = pair(body).replace("enter(%b)", "enter(%a)")
    assert run(machine, text, 4, 10, 99) == [14, 10]


@each_machine
def test_a_node_with_only_control_inputs_runs_in_every_iteration(machine):
    for value in ("2", "[2, 2]"):
        body = f"""%pivot = identity(%xi) : i64[]
          %two = const() {{value={value}}} after %pivot : i64[{"" if value == "2" else "2"}]
          %four = CONSTANT : i64[]
          %x1 = add(%xi, %four) : i64[]
          %nx = next_iteration(%x1) : i64[]
          %ny = next_iteration(%yi) : i64[]"""
        made = "add(%two, %two)" if value == "2" else "sum(%two) {axes=(0,)}"
        try:
            graph = parse(pair(body.replace("CONSTANT", made)))
        except DslError:
            continue
        log = Log()
        found = machine(graph, [np.int64(4), np.int64(10), np.int64(0)], trace=log)
        assert [int(f) for f in found] == [26, 0]
        assert [tag for tag in log.where("const") if tag] == [(("w", k),) for k in range(4)]
        assert [tag for tag in log.where("const", dead=True) if tag] == [(("w", 4),)]


@each_machine
@pytest.mark.parametrize("parallel", [1, 3, 10])
def test_inner_loops_whose_length_depends_on_data(machine, parallel):
    """The inner loop makes i trips for odd i and none for even i."""
    for n in (0, 1, 2, 7):
        expected = [sum(i for i in range(n) if i % 2)]
        assert run(machine, NESTED, n, parallel_iterations=parallel) == expected


@each_machine
def test_each_inner_frame_belongs_to_its_outer_iteration(machine):
    log = Log()
    machine(parse(NESTED), [np.int64(4)], trace=log)
    inner = [tag for tag in log.where("next_iteration") if len(tag) == 2]
    trips = {i: sum(tag[0] == ("outer", i) for tag in inner) // 2 for i in range(4)}
    assert trips == {0: 0, 1: 1, 2: 0, 3: 3}


# -- loops and branches ------------------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize("parallel", [1, 10])
def test_a_loop_in_a_branch_that_is_not_taken_sends_dead_exits(machine, parallel):
    text = BRANCHES.replace("BRANCH", "%r = merge(%xn, %a) : i64[]")
    assert run(machine, text, True, 0, 7, 2, parallel_iterations=parallel) == [8]
    assert run(machine, text, False, 0, 7, 2, parallel_iterations=parallel) == [0]


@each_machine
def test_loops_in_both_branches(machine):
    text = loop("b", "%xn", "%nn", "%sn") + "\n  %r = merge(%b, %a) : i64[]"
    text = BRANCHES.replace("BRANCH", text)
    assert run(machine, text, True, 0, 7, 2) == [8]
    assert run(machine, text, False, 1, 7, 3) == [7]


@each_machine
def test_a_loop_entered_by_dead_and_live_tokens(machine):
    text = f"""graph @g(%p: bool[], %x: i64[], %n: i64[], %s: i64[]) -> (i64[]) {{
      %xn, %xy = switch(%x, %p) : i64[], i64[]
      {loop("a", "%xy", "%n", "%s")}
      %r = merge(%xn, %a) : i64[]
      return %r
    }}"""
    assert run(machine, text, True, 0, 7, 2) == [8]
    assert run(machine, text, False, 0, 7, 2) == [0]


@each_machine
def test_a_branch_inside_a_loop(machine):
    body = """%even = equal(%xi, %yi) : bool[]
      %no, %yes = switch(%xi, %even) : i64[], i64[]
      %big = add(%yes, %yi) : i64[]
      %small = add(%no, %s) : i64[]
      %x1 = merge(%small, %big) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    assert run(machine, pair(body), 5, 1, 3) == [8, 3]


# -- devices, queues, waiting -------------------------------------------------------------------------------------------


class Meeting:
    """A rendezvous; tokens may come later, from another thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tokens: dict[Any, Any] = {}
        self.waiting: dict[Any, Any] = {}

    def send(self, key: Any, token: Any) -> None:
        with self.lock:
            done = self.waiting.pop(key, None)
            if done is None:
                assert key not in self.tokens
                self.tokens[key] = token
        if done is not None:
            done(None, [token])

    def receive(self, key: Any, done: Any) -> Any:
        with self.lock:
            if key in self.tokens:
                found = self.tokens.pop(key)
            else:
                self.waiting[key] = done
                return lambda: self.cancel(key)
        done(None, [found])
        return lambda: None

    def cancel(self, key: Any) -> None:
        with self.lock:
            done = self.waiting.pop(key, None)
        if done is not None:
            done(CancelledError("given up"), [])

    def later(self, seconds: float, tokens: list[Any]) -> None:
        def send() -> None:
            for key, token in tokens:
                self.send(key, token)

        timer = threading.Timer(seconds, send)
        timer.daemon = True
        timer.start()


@each_machine
def test_branches_with_loops_on_two_devices(machine):
    """Device A decides; its loop runs on one side, device B's on the other, and tokens go both ways, dead or not."""
    a = f"""graph @a(%p: bool[], %x: i64[], %n: i64[], %s: i64[]) -> (i64[]) {{
      %xn, %xy = switch(%x, %p) : i64[], i64[]
      %nn, %ny = switch(%n, %p) : i64[], i64[]
      %sn, %sy = switch(%s, %p) : i64[], i64[]
      !0 = send(%xn) {{key="x"}}
      !1 = send(%nn) {{key="n"}}
      !2 = send(%sn) {{key="s"}}
      {loop("a", "%xy", "%ny", "%sy")}
      %b = recv() {{key="b"}} : i64[]
      %r = merge(%b, %a) : i64[]
      return %r after !0, !1, !2
    }}"""
    b = f"""graph @b(%q: i64[]) -> (i64[]) {{
      %x = recv() {{key="x"}} : i64[]
      %n = recv() {{key="n"}} : i64[]
      %s = recv() {{key="s"}} : i64[]
      {loop("b", "%x", "%n", "%s")}
      !0 = send(%b) {{key="b"}}
      return %q after !0
    }}"""
    for taken, expected in ((True, 8), (False, 9)):
        meeting = Meeting()
        environment = Environment(rendezvous=meeting, timeout=20)
        other = threading.Thread(
            target=run, args=(machine, b, 1), kwargs={"environment": environment}
        )
        other.start()
        step = 2 if taken else 3
        assert run(machine, a, taken, 0, 7, step, environment=environment) == [expected]
        other.join()
        assert not meeting.tokens
        assert not meeting.waiting


@each_machine
def test_arrays_between_devices_in_a_loop(machine):
    """Each trip sends a vector and gets it back from another thread: no group may wait for both."""
    body = """%xs = full(%xi) {shape=(700,)} : i64[700]
      !0 = send(%xs) {key="out"}
      %ys = recv() {key="in"} after %xi : i64[700]
      %t = sum(%ys) {axes=(0,)} : i64[]
      %x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) after !0 : i64[]
      %y1 = add(%yi, %t) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    meeting = Meeting()

    def echo() -> None:
        for k in range(6):
            over = threading.Event()
            found: list[Any] = []
            meeting.receive(
                ("out", (("w", k),)), lambda error, got, f=found, o=over: (f.extend(got), o.set())
            )
            assert over.wait(20)
            meeting.send(("in", (("w", k),)), found[0] if found[0] is DEAD else 2 * found[0])

    thread = threading.Thread(target=echo)
    thread.start()
    environment = Environment(rendezvous=meeting, timeout=20)
    assert run(machine, pair(body), 5, 1, 0, environment=environment) == [6, 2 * 700 * 15]
    thread.join()


class Cell:
    """A variable."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def snapshot(self) -> Any:
        return self.value.copy()

    def update(self, how: str, value: Any) -> Any:
        self.value = {"set": value, "add": self.value + value, "subtract": self.value - value}[how]
        return self.value.copy()


@each_machine
def test_variables_in_a_structured_loop(machine):
    text = """graph @g(%n: i64[], %x: f64[3]) -> (f64[3]) {
      %0 = scan(%n, %x) {carried=1} : f64[3] {
        @body(%k: i64[], %a: f64[3]) -> (f64[3]) {
          %0 = update_variable(%a) {how="add", variable="v"} : f64[3]
          %1 = read_variable() {variable="v"} after %0 : f64[3]
          %2 = add(%1, %a) : f64[3]
          return %2 after %1
        }
      }
      return %0
    }"""
    graph = parse(text)
    expected, cell = None, Cell([1.0, 2.0, 3.0])
    expected = interpret(
        graph, [np.int64(4), np.ones(3)], Environment({"v": Cell([1.0, 2.0, 3.0])})
    )
    if machine is oracle:
        graph = lower_control(graph)
    found = machine(graph, [np.int64(4), np.ones(3)], environment=Environment({"v": cell}))
    np.testing.assert_array_equal(found[0], expected[0])


FOREVER = COUNT.replace("less(%x, %m)", "less_equal(%m, %m)")


@each_machine
def test_cancelling_a_loop_from_another_thread(machine):
    flag = threading.Event()
    threading.Timer(0.1, flag.set).start()
    start = time.monotonic()
    with pytest.raises(CancelledError):
        run(machine, FOREVER, 3, cancelled=flag.is_set)
    assert time.monotonic() - start < 5


@each_machine
def test_a_loop_ends_at_its_deadline(machine):
    with pytest.raises(DeadlineError, match=r"not done after 0\.1 s"):
        run(machine, FOREVER, 3, environment=Environment(timeout=0.1))


@each_machine
def test_waiting_ends_at_its_deadline(machine):
    text = 'graph @g(%x: i64[]) -> (i64[]) { %0 = recv() {key="k"} : i64[] %1 = add(%0, %x) : i64[] return %1 }'
    meeting = Meeting()
    with pytest.raises(DeadlineError, match="waits for recv"):
        run(machine, text, 1, environment=Environment(rendezvous=meeting, timeout=0.05))
    assert not meeting.waiting


@each_machine
def test_an_error_cancels_what_waits(machine):
    text = """graph @g(%x: i64[]) -> (i64[]) {
      %0 = recv() {key="k"} : i64[]
      %zero = const() {value=0} : i64[]
      %p = equal(%x, %zero) : bool[]
      !0 = assert(%p, %x) {error="ValueError", message="got {}"}
      return %0 after !0
    }"""
    meeting = Meeting()
    with pytest.raises(ValueError, match="got 3"):
        run(machine, text, 3, environment=Environment(rendezvous=meeting, timeout=10))
    assert not meeting.waiting


@each_machine
def test_without_a_rendezvous(machine):
    text = 'graph @g(%x: i64[]) -> (i64[]) { !0 = send(%x) {key="k"} return %x after !0 }'
    with pytest.raises(DslError, match="no rendezvous"):
        run(machine, text, 1)


@each_compiled
def test_an_interrupt_leaves_the_executor_usable(machine):
    import signal

    executor = Executor(parse(FOREVER.replace("less_equal(%m, %m)", "less(%x, %m)")))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            executor.run([np.int64(1 << 50)])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert executor.run([np.int64(5)]) == [5]


# -- groups ---------------------------------------------------------------------------------------------------------


def programs(executor: Executor) -> list[list[str]]:
    """The ops of each unit that is machine code, consts aside."""
    units = [unit for unit in executor.plan.units if unit.is_program]
    return [[node.op.name for node in u.nodes if node.op.name != "const"] for u in units]


def test_the_body_of_a_loop_is_one_program():
    body = """%x1 = add(%xi, %yi) : i64[]
      %x2 = multiply(%x1, %s) : i64[]
      %nx = next_iteration(%x2) : i64[]
      %y1 = negative(%yi) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    found = programs(Executor(parse(pair(body))))
    assert sorted(map(sorted, found)) == [["add", "add", "multiply", "negative"], ["less"]]


def test_what_is_after_a_loop_is_grouped_with_what_is_beside_it():
    text = pair("%nx = next_iteration(%xi) : i64[] %ny = next_iteration(%yi) : i64[]")
    text = text.replace(
        "return %rx, %ry", "%q = add(%rx, %ry) : i64[] %t = add(%q, %n) : i64[] return %t, %q"
    )
    assert sorted(programs(Executor(parse(text)))) == [["add"], ["add", "add"], ["less"]]


def test_branches_are_programs_of_their_own():
    text = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %a = add(%x, %x) : i64[]
      %no, %yes = switch(%a, %p) : i64[], i64[]
      %y1 = add(%yes, %yes) : i64[]
      %y2 = negative(%y1) : i64[]
      %n1 = negative(%no) : i64[]
      %r = merge(%n1, %y2) : i64[]
      %b = add(%r, %a) : i64[]
      return %b
    }"""
    found = programs(Executor(parse(text)))
    assert sorted(found) == [["add"], ["add"], ["add", "negative"], ["negative"]]


@pytest.mark.parametrize("depth", range(10))
def test_what_leaves_a_loop_is_not_grouped_with_what_enters_it(depth):
    """%rx needs %a only from the second trip on, round the back edge; at some depth they are on one level else."""
    moves = "\n".join(f"%m{k + 1} = merge(%{f'm{k}' if k else 'b'}) : i64[]" for k in range(depth))
    body = """%x1 = add(%xi, %yi) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%yi) : i64[]"""
    text = pair(body).replace(
        "%ei =", f"{moves}\n %q = negative(%{f'm{depth}' if depth else 'b'}) : i64[]\n %ei ="
    )
    text = text.replace("enter(%b)", "enter(%q)")
    text = text.replace("return %rx, %ry", "%z = negative(%rx) : i64[] return %z, %ry")
    assert run(grouped, text, 3, 1, 2) == [5, -2]


def test_what_does_not_wait_is_not_held_up_by_what_does():
    """%sent and %got would be one program, which would wait for a token that comes only after %sent was sent."""
    text = """graph @g(%x: i64[]) -> (i64[]) {
      %one = recv() {key="one"} : i64[]
      %other = add(%one, %x) : i64[]
      !0 = send(%other) {key="a"}
      %two = recv() {key="two"} : i64[]
      %got = add(%two, %x) : i64[]
      %r = add(%other, %got) : i64[]
      return %r after !0
    }"""
    meeting = Meeting()
    meeting.send(("one", ()), np.int64(1))
    meeting.receive(("a", ()), lambda error, got: meeting.send(("two", ()), got[0]))
    assert run(grouped, text, 5, environment=Environment(rendezvous=meeting, timeout=5)) == [17]


@each_compiled
def test_sizes_that_only_sums_tell(machine):
    """The loop's arrays have n + 1 elements, and nothing in it has n."""

    def grow(x, n):
        y = np.concatenate([x, np.zeros(1)])
        for i in range(n):
            y = y * 2.0
            y[i] = 1.0
        return y

    grow = dsl.jit(grow, dynamic=True)
    graph = grow.lower(np.arange(4.0), 3).graph("lowered")
    args = [np.arange(4.0), np.int64(3)]
    found = machine(graph, args)
    np.testing.assert_array_equal(found[0], interpret(grow.lower(*args).graph(), args)[0])


# -- many threads ---------------------------------------------------------------------------------------------------


@each_compiled
def test_eight_threads_run_one_executor(machine):
    graph = parse(ARRAYS)
    executor = Executor(graph, cluster=machine is grouped)
    wanted = {n: run_tokens(graph, [np.int64(n), np.int64(1), np.int64(2)]) for n in range(8)}
    wrong: list[Any] = []

    def work(n: int) -> None:
        for k in range(60):
            m = (n + k) % 8
            found = executor.run([np.int64(m), np.int64(1), np.int64(2)])
            if found != wanted[m]:
                wrong.append((m, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- agreement ------------------------------------------------------------------------------------------------------


def check_close(found: Any, expected: Any, args: list[Any]) -> None:
    """The same outcome; floats to a few ulps, since compiled sums are taken in another order."""
    assert found[0] == expected[0], (found, expected)
    if expected[0] == "returned":
        check_same(found[1:], expected[1:], "results", narrowest(args, expected[1]))


def agree(graph: Graph, flat: Graph, args: list[Any], parallel: int) -> None:
    """Interpreter, oracle and executor give the same for a graph and its flat spelling, run after run."""
    expected = outcome(lambda: interpret(graph, args))
    check(outcome(lambda: run_tokens(flat, args, parallel_iterations=parallel)), expected, True)
    made = [Executor(flat, parallel_iterations=parallel), Executor(graph)]
    if len(flat.nodes) < 60:  # else there is much to compile
        made.append(Executor(flat, cluster=False, parallel_iterations=parallel))
    for executor in made:
        for _ in range(2):
            check_close(outcome(lambda e=executor: e.run(args)), expected, args)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs(drawn):
    graph, args = drawn
    agree(graph, lower_control(graph), args, 1 + len(graph.text) % 4)


@pytest.mark.parametrize(("function", "make"), rows()[::PROGRAMS])
def test_programs(function, make):
    lowered, inputs = graph_and_inputs(function, make)
    flat = lowered.graph("lowered")
    if len(flat.nodes) > 150:
        pytest.skip("long to compile")
    agree(lowered.optimized, flat, inputs, 10)
