"""Partitioning: what is sent, loops and branches that span devices, and that parts do what the graph does."""

from __future__ import annotations

import contextlib
import io
import random
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flat_graphs import BRANCHES, COUNT, LATE, NESTED, Log, loop, pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_graphs import (
    CPUS,
    DEVICES,
    cut,
    device,
    kinds,
    run,
    run_everywhere,
    transfers,
    with_devices,
)
from random_graphs import graphs
from test_program_graphs import graph_and_inputs
from test_programs import rows

from dsl.errors import CancelledError, DeadlineError, DeviceError, DslError, VerifyError
from dsl.executor import Executor
from dsl.ir.checks.frames import Frames
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph, Node
from dsl.ir.interpret import interpret
from dsl.ir.parts import Partition, Source
from dsl.ir.text import parse
from dsl.ir.token_machine import run_tokens
from dsl.ir.verify import verify
from dsl.passes.lower_control import lower_control
from dsl.passes.partition import partition
from dsl.runtime.parts import run_parts


def placed(text: str, default: int = 0) -> Graph:
    """Read a graph in which `@1` after an op's name puts the node on cpu:1; others are on the default device."""
    lines, wanted = [], {}  # devices by the number of the line
    for line in text.splitlines():
        found = re.search(r"= (\w+)@(\d)\(", line)
        if found:
            line = line.replace(f"{found[1]}@{found[2]}(", f"{found[1]}(")
            wanted[len(lines) + 1] = int(found[2])
        lines.append(line)
    graph = parse("\n".join(lines))
    return with_devices(
        graph, lambda node: device(wanted.get(node.loc.line if node.loc else 0, default))
    )


def on(graph: Graph, index: int, *names: str, default: int = 0) -> Graph:
    """Put the nodes of some ops on one device and all others on another."""
    return with_devices(graph, lambda node: device(index if node.op.name in names else default))


def expected(graph: Graph, args: Sequence[Any]) -> list[Any]:
    return [x.tolist() for x in run_tokens(graph, [np.asarray(arg) for arg in args])]


def check(graph: Graph, *argument_lists: Sequence[Any], **options: Any) -> Partition:
    """Check that parts do what the graph does."""
    for args in argument_lists:
        assert run_everywhere(graph, args, **options) == expected(graph, args)
    return cut(graph, **options)


# -- transfers ---------------------------------------------------------------------------------------------------------


def test_one_device_is_one_part_and_sends_nothing() -> None:
    graph = on(parse(COUNT), 0)
    found = check(graph, [5])
    assert list(found.parts) == DEVICES[:1]
    assert found.parts[DEVICES[0]].graph == graph
    assert transfers(found) == []


TWICE = """graph @g(%x: f64[]) -> (f64[], f64[]) {
  %y = add(%x, %x) : f64[]
  %a = sin@1(%y) : f64[]
  %b = cos@1(%y) : f64[]
  return %a, %b
}"""


def test_a_value_goes_to_a_device_once() -> None:
    found = check(placed(TWICE), [0.5])
    assert transfers(found) == [f"{device(0)};{device(1)};add_0:0"]
    assert kinds(found, 0) == ["add", "send"]
    assert kinds(found, 1) == ["cos", "recv", "sin"]


def test_a_value_goes_to_each_device_that_reads_it() -> None:
    found = check(placed(TWICE.replace("cos@1", "cos@2")), [0.5])
    assert transfers(found) == [f"{device(0)};{device(k)};add_0:0" for k in (1, 2)]


def test_the_parts_as_text() -> None:
    found = cut(placed(TWICE))
    assert found.parts[DEVICES[0]].graph == parse("""graph @g(%x: f64[]) -> () {
      %0 = add(%x, %x) {device="/rank:0/cpu:0"} : f64[]
      !0 = send(%0) {device="/rank:0/cpu:0", key="/rank:0/cpu:0;/rank:0/cpu:1;add_0:0"}
      return after !0
    }""")
    assert found.parts[DEVICES[1]].graph == parse("""graph @g() -> (f64[], f64[]) {
      %0 = recv() {device="/rank:0/cpu:1", key="/rank:0/cpu:0;/rank:0/cpu:1;add_0:0"} : f64[]
      %1 = sin(%0) {device="/rank:0/cpu:1"} : f64[]
      %2 = cos(%0) {device="/rank:0/cpu:1"} : f64[]
      return %1, %2
    }""")


def test_arguments_are_at_hand_everywhere() -> None:
    found = check(
        placed("""graph @g(%x: f64[], %y: f64[], %z: f64[]) -> (f64[], f64[], f64[], f64[]) {
          %a = sin(%y) : f64[]
          %b = add@1(%z, %y) : f64[]
          %c = const() {value=3.0} : f64[]
          return %b, %x, %a, %c
        }"""),
        [1.0, 2.0, 3.0],
    )
    assert transfers(found) == []
    assert {name: (part.params, part.results) for name, part in found.parts.items()} == {
        DEVICES[0]: ((1,), (2, 3)),
        DEVICES[1]: ((1, 2), (0,)),
    }
    one, other = DEVICES[:2]
    assert found.sources == (Source(other, 0), Source(None, 0), Source(one, 0), Source(one, 1))


def test_a_graph_without_nodes_has_no_parts() -> None:
    graph = parse("graph @g(%x: i64[]) -> (i64[], i64[]) { return %x, %x }")
    assert partition(graph).parts == {}
    assert check(graph, [3]).sources == (Source(None, 0), Source(None, 0))


CONTROLS = """graph @g(%x: f64[]) -> (f64[]) {
  !0 = print(%x) {template="first", end=" "}
  !1 = print@1(%x) {template="second", end=" "} after !0
  %y = sin@1(%x) after !0 : f64[]
  !2 = print(%x) {template="third", end=" "} after !1
  return %y after !2
}"""


def printed(found: Partition, args: Sequence[Any], **options: Any) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run(found, args, **options)
    return text.getvalue()


def test_a_control_edge_goes_to_a_device_once() -> None:
    found = cut(placed(CONTROLS))
    assert transfers(found) == [
        "/rank:0/cpu:0;/rank:0/cpu:1;print_0:^",
        "/rank:0/cpu:1;/rank:0/cpu:0;print_1:^",
    ]
    for seed in range(20):
        assert printed(found, [1.0], seed=seed) == "first second third "


def test_a_control_edge_comes_with_a_value_of_the_same_node() -> None:
    found = check(
        placed("""graph @g(%x: f64[]) -> (f64[], f64[]) {
          %y = sin(%x) : f64[]
          %a = cos@1(%x) after %y : f64[]
          %b = exp@1(%y) : f64[]
          return %a, %b
        }"""),
        [0.5],
    )
    assert transfers(found) == ["/rank:0/cpu:0;/rank:0/cpu:1;sin_0:0"]


SWITCHED = """graph @g(%p: bool[], %x: f64[]) -> (f64[], f64[]) {
  %no, %yes = switch(%x, %p) : f64[], f64[]
  %a = cos@1(%x) after %no : f64[]
  %b = exp@1(%yes) : f64[]
  %c = sin@1(%x) : f64[]
  %d = merge@1(%b, %no) : f64[]
  return %a, %d
}"""


def test_a_control_edge_from_a_switch_is_not_one_of_its_values() -> None:
    """The switch has run whichever way it sent its data."""
    found = check(placed(SWITCHED), [True, 0.5], [False, 0.5])
    assert [key.rpartition(";")[2] for key in transfers(found)] == [
        "switch_0:0",
        "switch_0:1",
        "switch_0:^",
    ]


def test_a_dead_control_edge_crosses() -> None:
    graph = placed("""graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %pivot = identity(%yes) : i64[]
      !0 = print@1(%x) {template="{}", end=""} after %pivot
      return %x after !0
    }""")
    found = cut(graph)
    assert [printed(found, [p, 7]) for p in (False, True)] == ["", "7"]


def test_small_constants_are_made_where_they_are_read_and_big_ones_are_sent() -> None:
    text = """graph @g(%x: f64[600]) -> (f64[600]) {
      %c = const() {value=CONSTANT} : f64[600]
      %a = add(%x, %c) : f64[600]
      %b = multiply@1(%a, %c) : f64[600]
      return %b
    }"""
    graph = placed(text.replace("CONSTANT", str([1.0] * 600)))
    args = [np.arange(600.0)]
    keys = transfers(check(graph, args))
    assert [key.rpartition(";")[2] for key in keys] == ["add_1:0", "const_0:0"]
    assert len(transfers(check(graph, args, small=4800))) == 1


def test_keys_differ_from_those_that_the_graph_has() -> None:
    graph = placed("""graph @g(%x: f64[]) -> (f64[], f64[]) {
      !0 = send(%x) {key="/rank:0/cpu:0;/rank:0/cpu:1;add_1:0"}
      %y = add(%x, %x) after !0 : f64[]
      %a = sin@1(%y) : f64[]
      %b = recv@1() {key="/rank:0/cpu:0;/rank:0/cpu:1;add_1:0"} after %a : f64[]
      return %a, %b
    }""")
    found = cut(graph)
    assert len(transfers(found)) == 2
    assert run(found, [2.0]) == [np.sin(4.0), 2.0]


def test_sizes_cross() -> None:
    graph = placed(
        """graph @g(%x: f64[n], %m: i64[]) -> (f64[n]) {
      %k = dim_size(%x) {axis=0} : i64[]
      %y = full@1(%s; n=%k) {shape=(n,)} : f64[n]
      return %y
    }""".replace("%s;", "%c;").replace("%k =", "%c = const() {value=2.0} : f64[]\n %k =")
    )
    check(graph, [np.zeros(3), 0])


def test_a_structured_node_runs_whole_where_it_is() -> None:
    graph = placed("""graph @g(%n: i64[]) -> (i64[]) {
      %y = add(%n, %n) : i64[]
      %z = scan@1(%y, %n) {carried=1} : i64[] {
        @body(%k: i64[], %c: i64[]) -> (i64[]) { %0 = add(%c, %k) : i64[] return %0 }
      }
      return %z
    }""")
    assert kinds(check(graph, [4]), 1) == ["recv", "scan"]


# -- branches ----------------------------------------------------------------------------------------------------------

BY_DEVICE = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
  %no, %yes = switch(%x, %p) : i64[], i64[]
  %a = negative@1(%yes) : i64[]
  %b = add@2(%no, %no) : i64[]
  %r = merge(%b, %a) : i64[]
  return %r
}"""


def test_a_branch_on_each_device() -> None:
    found = check(placed(BY_DEVICE), [True, 3], [False, 3])
    assert kinds(found, 1) == ["negative", "recv", "send"]
    assert kinds(found, 2) == ["add", "recv", "send"]


def test_a_dead_result_from_another_device_is_refused() -> None:
    graph = placed("""graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %no, %yes = switch(%x, %p) : i64[], i64[]
      %a = negative@1(%yes) : i64[]
      return %a
    }""")
    assert run(cut(graph), [True, 3]) == [-3]
    with pytest.raises(DslError, match="a result is dead"):
        run(cut(graph), [False, 3])


def test_a_switch_runs_where_its_data_is() -> None:
    graph = placed("""graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %y = negative@1(%x) : i64[]
      %no, %yes = switch(%y, %p) : i64[], i64[]
      %a = negative@1(%yes) : i64[]
      %r = merge@1(%no, %a) : i64[]
      return %r
    }""")
    assert list(check(graph, [True, 3], [False, 3]).parts) == DEVICES[1:2]


def test_a_loop_in_a_branch_not_taken_spans_devices() -> None:
    text = BRANCHES.replace("BRANCH", "%r = merge(%xn, %a) : i64[]")
    for names in (["add"], ["less"], ["loop_cond"], ["loop_merge"], ["merge"]):
        check(on(parse(text), 1, *names), [True, 0, 7, 2], [False, 0, 7, 2], [True, 9, 7, 2])


def test_loops_in_both_branches_on_different_devices() -> None:
    text = loop("b", "%xn", "%nn", "%sn") + "\n  %r = merge(%b, %a) : i64[]"
    graph = parse(BRANCHES.replace("BRANCH", text))
    frame: dict[str, int] = {"a": 1, "b": 2}

    def pick(node: Node) -> str:
        return device(frame.get(str(node.attrs.get("frame")), 0))

    check(with_devices(graph, pick), [True, 0, 7, 2], [False, 1, 7, 3])
    rng = random.Random(0)
    for _ in range(5):
        check(
            with_devices(graph, lambda node: rng.choice(DEVICES)), [True, 0, 7, 2], [False, 1, 7, 3]
        )


# -- loops -------------------------------------------------------------------------------------------------------------


def test_a_body_on_another_device() -> None:
    """The body's device gets a driver and the predicate; so does the loop's own, since the next value comes to it."""
    found = check(on(parse(COUNT), 1, "add"), [0], [1], [5], [25])
    assert transfers(found) == [
        "/rank:0/cpu:0;/rank:0/cpu:1;loop_cond_5:0",
        "/rank:0/cpu:0;/rank:0/cpu:1;switch_6:1",
        "/rank:0/cpu:1;/rank:0/cpu:0;add_10:0",
    ]
    assert found.parts[DEVICES[1]].graph == parse(BODY_PART)


BODY_PART = """graph @count() -> () {
  %0 = const() {device="/rank:0/cpu:1", value=true} : bool[]
  %1 = enter(%0) {device="/rank:0/cpu:1", frame="w"} : bool[]
  %2 = loop_merge(%1, %11) {device="/rank:0/cpu:1"} : bool[]
  %3 = recv() {device="/rank:0/cpu:1", key="/rank:0/cpu:0;/rank:0/cpu:1;switch_6:1"} after %2 : i64[]
  %4 = const() {device="/rank:0/cpu:1", value=1} : i64[]
  %5 = enter(%4) {device="/rank:0/cpu:1", frame="w", invariant} : i64[]
  %6 = add(%3, %5) {device="/rank:0/cpu:1"} : i64[]
  !0 = send(%6) {device="/rank:0/cpu:1", key="/rank:0/cpu:1;/rank:0/cpu:0;add_10:0"}
  %7 = recv() {device="/rank:0/cpu:1", key="/rank:0/cpu:0;/rank:0/cpu:1;loop_cond_5:0"} after %2 : bool[]
  %8 = loop_cond(%7) {device="/rank:0/cpu:1"} : bool[]
  %9, %10 = switch(%2, %8) {device="/rank:0/cpu:1"} : bool[], bool[]
  %11 = next_iteration(%10) {device="/rank:0/cpu:1"} : bool[]
  return after %2, !0
}"""


def test_a_frame_on_one_device_gets_nothing() -> None:
    """The loop is on cpu:0 and what reads its result on cpu:1."""
    text = COUNT.replace("return %r", "%q = negative@1(%r) : i64[]\n return %q")
    found = check(placed(text), [5])
    assert [key.rpartition(";")[2] for key in transfers(found)] == ["exit_7:0"]
    assert kinds(found, 1) == ["negative", "recv"]
    assert kinds(found, 0).count("loop_merge") == 1


@pytest.mark.parametrize("name", ["enter", "next_iteration", "exit", "switch"])
def test_the_moves_of_a_loop_run_where_the_loop_is(name: str) -> None:
    """Whatever device they have."""
    found = check(on(parse(COUNT), 1, name), [0], [1], [5])
    assert list(found.parts) == DEVICES[:1]


@pytest.mark.parametrize("name", ["less", "loop_cond", "loop_merge", "add"])
def test_any_node_of_a_loop_can_be_elsewhere(name: str) -> None:
    check(on(parse(COUNT), 1, name), [0], [1], [5])
    check(on(parse(COUNT), 0, name, default=1), [0], [1], [5])


def test_the_predicate_on_a_third_device() -> None:
    graph = with_devices(
        parse(COUNT),
        lambda node: device({"less": 2, "loop_cond": 2, "add": 1}.get(node.op.name, 0)),
    )
    found = check(graph, [0], [1], [5], [25])
    assert sum("loop_cond" in key for key in transfers(found)) == 2


def test_the_predicate_goes_to_a_device_once_an_iteration() -> None:
    found = cut(on(parse(COUNT), 1, "add"))
    log = Log()
    run(found, [5], trace=log)
    keys = [tag for op, tag, _ in log.entries if op == "loop_cond"]
    assert sorted(keys) == sorted([(("w", k),) for k in range(6)] * 2)


def test_a_constant_in_a_body_elsewhere_takes_no_word_from_the_predicate() -> None:
    """It is live where the body runs, which the predicate tells that comes there anyway."""
    found = check(
        placed(
            """graph @f(%n: i64[]) -> (i64[], i64[]) {
              %zero = const() {value=0} : i64[]
              %i = enter(%zero) {frame="w"} : i64[]
              %j = enter@1(%zero) {frame="w"} : i64[]
              %m = enter(%n) {frame="w", invariant} : i64[]
              %x = loop_merge(%i, %xnext) : i64[]
              %y = loop_merge@1(%j, %ynext) : i64[]
              %p = less(%x, %m) : bool[]
              %c = loop_cond(%p) : bool[]
              %xout, %xin = switch(%x, %c) : i64[], i64[]
              %yout, %yin = switch@1(%y, %c) : i64[], i64[]
              %stop, %go = switch(%c, %c) {pivot} : bool[], bool[]
              %runs = identity(%go) : bool[]
              %one = const() {value=1} after %runs : i64[]
              %two = const@1() {value=2} after %runs : i64[]
              %xmore = add(%xin, %one) : i64[]
              %ymore = add@1(%yin, %two) : i64[]
              %xnext = next_iteration(%xmore) : i64[]
              %ynext = next_iteration@1(%ymore) : i64[]
              %r = exit(%xout) : i64[]
              %s = exit@1(%yout) : i64[]
              return %r, %s
            }"""
        ),
        [0],
        [1],
        [7],
    )
    assert [key.split(";")[2].split("_")[0] for key in transfers(found)] == ["loop"]


def test_an_invariant_crosses_once() -> None:
    """What enters crosses before it enters: one token outside the loop, three in each iteration."""
    body = """%y1 = add@1(%yi, %s) : i64[]
      %nx = next_iteration(%xi) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    text = pair(body).replace("enter(%one)", "enter(%two)")
    text = text.replace("%ei = ", "%two = add(%one, %one) : i64[]\n %ei = ", 1)
    found = check(placed(text), [4, 1, 2])
    log = Log()
    run(found, [4, 1, 2], trace=log)
    sent = log.where("send") + log.where("send", dead=True)
    assert sorted(sent) == [(), *sorted([(("w", k),) for k in range(3)] * 3)]


INVARIANTS = """graph @g(%n: i64[], %k: i64[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="w"} : i64[]
  %m = enter(%n) {frame="w", invariant} : i64[]
  %s = enter(%one) {frame="w", invariant} : i64[]
  %t = enter(%k) {frame="w", invariant} : i64[]
  %x = loop_merge(%i, %next) : i64[]
  %limit = add@1(%m, %t) : i64[]
  %p = less(%x, %limit) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%x, %c) : i64[], i64[]
  %y = add(%in, %s) : i64[]
  %next = next_iteration(%y) : i64[]
  %r = exit(%out) : i64[]
  return %r
}"""


def test_a_device_that_only_reads_invariants_is_driven() -> None:
    """Nothing of the frame but the predicate comes to cpu:1, which has to compute in every iteration all the same."""
    found = check(placed(INVARIANTS), [0, 0], [2, 3])
    assert kinds(found, 1).count("loop_merge") == 1


def test_a_variable_on_each_device() -> None:
    body = """%x1 = add(%xi, %yi) : i64[]
      %y1 = negative@1(%xi) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    text = pair(body).replace("%y = loop_merge(", "%y = loop_merge@1(")
    check(placed(text), [0, 1, 2], [1, 1, 2], [6, 1, 2])


def test_swapped_variables_on_two_devices() -> None:
    body = "%nx = next_iteration(%yi) : i64[]\n %ny = next_iteration(%xi) : i64[]"
    text = pair(body).replace("%y = loop_merge(", "%y = loop_merge@1(")
    check(placed(text), [0, 1, 2], [3, 10, 20], [4, 10, 20])


def test_one_enter_and_one_next_iteration_for_variables_on_two_devices() -> None:
    """They are made on both."""
    graph = placed("""graph @g(%n: i64[]) -> (i64[], i64[]) {
      %zero = const() {value=0} : i64[]
      %one = const() {value=1} : i64[]
      %i = enter(%zero) {frame="w"} : i64[]
      %m = enter(%n) {frame="w", invariant} : i64[]
      %s = enter(%one) {frame="w", invariant} : i64[]
      %x = loop_merge(%i, %next) : i64[]
      %z = loop_merge@1(%i, %next) : i64[]
      %p = less(%x, %m) : bool[]
      %c = loop_cond(%p) : bool[]
      %out, %in = switch(%x, %c) : i64[], i64[]
      %zout, %zin = switch(%z, %c) : i64[], i64[]
      %y = add(%zin, %s) : i64[]
      %next = next_iteration(%y) : i64[]
      %r = exit(%out) : i64[]
      %q = exit(%zout) : i64[]
      return %r, %q
    }""")
    check(graph, [0], [4])


def test_invariants_that_come_late() -> None:
    rng = random.Random(1)
    for _ in range(5):
        check(with_devices(parse(LATE), lambda node: rng.choice(DEVICES)), [0], [6], [30])


def test_a_control_edge_inside_a_loop() -> None:
    body = """%pivot = identity(%xi) : i64[]
      %two = const@1() {value=2} after %pivot : i64[]
      %x1 = add@1(%xi, %two) after %pivot : i64[]
      %y1 = negative@1(%s) after %c : i64[]
      %y2 = add(%y1, %yi) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%y2) : i64[]"""
    found = check(placed(pair(body)), [0, 1, 2], [4, 1, 2])
    assert sum(key.endswith(":^") for key in transfers(found)) == 1


# -- nested loops ------------------------------------------------------------------------------------------------------


def test_only_the_inner_loop_touches_another_device() -> None:
    graph = parse(NESTED)
    frames = Frames(graph)
    add = next(n for n in graph.nodes if n.op.name == "add" and frames.after(n) == "inner")
    found = check(
        with_devices(graph, lambda node: device(1 if node is add else 0)), [0], [1], [2], [7]
    )
    part = found.parts[DEVICES[1]].graph
    entered = {node.attrs["frame"] for node in part.nodes if node.op.name == "enter"}
    assert entered == {"inner", "outer"}


def test_an_inner_loop_on_another_device() -> None:
    graph = parse(NESTED)
    found = [node for node in graph.nodes if node.op.name in ("less", "loop_cond")]

    def pick(node: Node) -> str:
        return device(1 if node in found[2:] or node.op.name in ("remainder", "multiply") else 0)

    check(with_devices(graph, pick), [0], [1], [2], [7])


def test_nested_loops_on_random_devices() -> None:
    rng = random.Random(2)
    for count in (2, 2, 3, 3, 3):
        graph = with_devices(parse(NESTED), lambda node, n=count: rng.choice(DEVICES[:n]))
        check(graph, [0], [1], [4])


# -- bounds, time, errors ------------------------------------------------------------------------------------------------


def slow(index: int, seconds: float, **options: Any) -> Any:
    """Run parts, one device taking its time over each node."""

    def run_one(graph: Graph, args: Sequence[Any], environment: Environment) -> list[Any]:
        late = threading.current_thread().name.endswith(f"cpu:{index}")

        def trace(node: Node, tag: Any, dead: bool) -> None:
            if late:
                time.sleep(seconds)

        return run_tokens(graph, args, environment=environment, trace=trace, **options)

    return run_one


@pytest.mark.parametrize("parallel", [1, 10])
def test_a_slow_device(parallel: int) -> None:
    found = cut(on(parse(COUNT), 1, "add"))
    run_one = slow(1, 0.001, parallel_iterations=parallel)
    assert run_parts(found, [np.int64(20)], CPUS, run_one, Environment(timeout=20)) == [20]


def test_a_device_is_ahead_no_further_than_its_bound() -> None:
    """cpu:0 counts by itself; the slow cpu:1 sums what it gets."""
    body = """%x1 = add(%xi, %s) : i64[]
      %y1 = add@1(%yi, %xi) : i64[]
      %nx = next_iteration(%x1) : i64[]
      %ny = next_iteration(%y1) : i64[]"""
    text = pair(body).replace("%y = loop_merge(", "%y = loop_merge@1(")
    found = cut(placed(text))
    alive: dict[str, set[int]] = {name: set() for name in found.parts}
    widest = dict.fromkeys(found.parts, 0)

    def run_one(graph: Graph, args: Sequence[Any], environment: Environment) -> list[Any]:
        name = graph.nodes[0].attrs["device"]

        def trace(node: Node, tag: Any, dead: bool) -> None:
            if tag:
                alive[name].add(tag[0][1])
                widest[name] = max(widest[name], max(alive[name]) - tag[0][1] + 1)
            if name == DEVICES[1]:
                time.sleep(0.0005)

        return run_tokens(graph, args, environment=environment, trace=trace, parallel_iterations=3)

    assert run_parts(
        found, [np.int64(9), np.int64(1), np.int64(0)], CPUS, run_one, Environment(timeout=20)
    ) == [10, 45]
    assert max(widest.values()) <= 3


FAILING = """%fine = not_equal@1(%xi, %yi) : bool[]
  !0 = assert@1(%fine, %xi) {error="ValueError", message="at {}"}
  %x1 = add(%xi, %s) : i64[]
  %nx = next_iteration(%x1) after !0 : i64[]
  %ny = next_iteration(%yi) : i64[]"""


@pytest.mark.parametrize("swap", [False, True])
def test_a_sender_that_fails_mid_step_ends_the_step(swap: bool) -> None:
    text = pair(FAILING)
    graph = placed(text.replace("@1", "@0") if swap else text, default=1 if swap else 0)
    found = cut(graph)
    start = time.monotonic()
    for seed in range(5):
        with pytest.raises(ValueError, match="at 7"):
            run(found, [20, 0, 7], seed=seed)
    assert time.monotonic() - start < 10
    assert [x.tolist() for x in run(found, [5, 0, 7])] == [5, 7]


FOREVER = COUNT.replace("%p = less(%x, %m)", "%p = not_equal(%x, %m)")


def test_a_loop_over_devices_can_be_cancelled_and_has_a_deadline() -> None:
    found = cut(on(parse(FOREVER), 1, "add"))
    end = time.monotonic() + 0.1

    def run_one(graph: Graph, args: Sequence[Any], environment: Environment) -> list[Any]:
        return run_tokens(graph, args, environment=environment)

    args = [np.int64(-1)]
    stopping = Environment(timeout=20, cancelled=lambda: time.monotonic() > end)
    with pytest.raises(CancelledError):
        run_parts(found, args, CPUS, run_one, stopping)
    with pytest.raises(DeadlineError):
        run_parts(found, args, CPUS, run_one, Environment(timeout=0.1))
    assert time.monotonic() - end < 10


def test_a_node_without_a_device_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"`add` has no device(?s:.*)place"):
        partition(parse("graph @g(%x: i64[]) -> (i64[]) { %y = add(%x, %x) : i64[] return %y }"))


def test_a_frame_that_spans_devices_needs_a_predicate() -> None:
    graph = placed("""graph @g(%x: i64[]) -> (i64[]) {
      %e = enter(%x) {frame="w"} : i64[]
      %y = add(%e, %e) : i64[]
      !0 = print@1(%y) {template="{}", end=""}
      return %x after !0
    }""")
    with pytest.raises(
        VerifyError, match="frame 'w' has no loop_cond, so it cannot run on several devices"
    ):
        partition(graph)


# -- state -------------------------------------------------------------------------------------------------------------


class Cell:
    """A variable."""

    def __init__(self, value: float) -> None:
        self.value = np.float64(value)

    def snapshot(self) -> Any:
        return self.value

    def update(self, how: str, value: Any) -> Any:
        self.value = {"set": value, "add": self.value + value, "subtract": self.value - value}[how]
        return self.value


def test_variables_on_two_devices() -> None:
    graph = placed("""graph @g(%x: f64[]) -> (f64[], f64[]) {
      %v = read_variable() {variable="v"} : f64[]
      %w = read_variable@1() {variable="w"} : f64[]
      %g = multiply@1(%v, %w) : f64[]
      %v1 = update_variable(%g) {variable="v", how="subtract"} after %v : f64[]
      %w1 = update_variable@1(%v1) {variable="w", how="add"} after %w : f64[]
      return %v1, %w1
    }""")
    verify(graph)
    found = cut(graph)
    for seed in range(5):
        cells = {"v": Cell(3.0), "w": Cell(2.0)}
        assert run(found, [0.0], seed=seed, resources=cells) == [-3.0, -1.0]
        assert (cells["v"].value, cells["w"].value) == (-3.0, -1.0)


# -- random graphs and whole programs ------------------------------------------------------------------------------------


def outcome(run: Any) -> tuple[str, Any]:
    """Return what was printed, and the results or that it raised: which error comes first may depend on the order."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            found: Any = [(x.dtype, x.shape, x.tolist()) for x in run()]
        except (DeadlineError, CancelledError):
            raise
        except Exception:
            found = "raised"
    return text.getvalue(), repr(found)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1 << 30), st.sampled_from([0, 4096]))
def test_random_graphs_on_random_devices(
    drawn: tuple[Graph, list[Any]], seed: int, small: int
) -> None:
    structured, args = drawn
    flat = lower_control(structured)
    arrays = [np.asarray(arg) for arg in args]
    wanted = outcome(lambda: run_tokens(flat, arrays))
    rng = random.Random(seed)
    for count in (1, 2, 3):
        assigned = with_devices(flat, lambda node, n=count: rng.choice(DEVICES[:n]))
        found = cut(assigned, small=small)
        for parallel in (1, 10):
            number = rng.randrange(1 << 30)
            got = outcome(
                lambda f=found, n=number, p=parallel: run(f, arrays, seed=n, parallel_iterations=p)
            )
            assert got == wanted


@pytest.mark.parametrize(("function", "make"), rows()[::12])
def test_programs_on_random_devices(function: Any, make: Any) -> None:
    lowered, inputs = graph_and_inputs(function, make)
    flat = lowered.graph("lowered")
    if len(flat.nodes) > 300:
        pytest.skip("too long for the token machine")
    arrays = [np.asarray(x) for x in inputs]
    start = time.monotonic()
    wanted = outcome(lambda: run_tokens(flat, arrays))
    if time.monotonic() - start > 2:
        pytest.skip("too long for the token machine")
    rng = random.Random(function.__name__)
    assigned = with_devices(flat, lambda node: rng.choice(DEVICES))
    _, results = outcome(lambda: run(cut(assigned), arrays, seed=1, timeout=60))
    assert results == wanted[1]


def arrays_or_error(run: Any) -> list[np.ndarray] | None:
    """Return the results of a run, or None if it raises."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return [np.asarray(x) for x in run()]
        except (DeadlineError, CancelledError):
            raise
        except Exception:
            return None


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1 << 30))
def test_compiled_executors_on_random_devices(drawn: tuple[Graph, list[Any]], seed: int) -> None:
    structured, args = drawn
    flat = lower_control(structured)
    arrays = [np.asarray(arg) for arg in args]
    wanted = arrays_or_error(lambda: interpret(structured, arrays))
    rng = random.Random(seed)
    assigned = with_devices(flat, lambda node: rng.choice(DEVICES))

    def run_one(graph: Graph, given: Sequence[Any], environment: Environment) -> Any:
        return Executor(graph).run(given, environment)

    found = arrays_or_error(
        lambda: run_parts(cut(assigned), arrays, CPUS, run_one, Environment(timeout=60))
    )
    assert (found is None) == (wanted is None)
    for got, expected in zip(found or (), wanted or (), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
