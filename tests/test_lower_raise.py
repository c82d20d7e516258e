"""`lower_control` and `raise_control`: two spellings of one meaning, each recoverable from the other."""

from __future__ import annotations

import contextlib
import io
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_graphs import COUNT, NESTED, loop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from dsl.errors import DslError, VerifyError
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import interpret
from dsl.ir.registry import Trait
from dsl.ir.text import parse, print_graph
from dsl.ir.token_machine import run_tokens
from dsl.ir.types import BOOL, I64, scalar
from dsl.ir.verify import verify
from dsl.passes.lower_control import lower_control
from dsl.passes.raise_control import raise_control

FLAT = {"switch", "merge", "enter", "exit", "loop_merge", "loop_cond", "next_iteration"}


def op_names(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.walk()}


def outcome(run: Callable[..., list[Any]], *args: Any, **options: Any) -> tuple[str, Any]:
    """Run something; return what it printed, and its results or the error that it raised."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            found: Any = [(x.dtype, x.tolist()) for x in run(*args, **options)]
        except (ValueError, AssertionError) as error:
            found = repr(error)
    return printed.getvalue(), repr(found)


def check_round_trip(graph: Graph, *argument_lists: list[Any]) -> None:
    """Check that a graph survives the round trip and that both spellings do the same in any order."""
    flat = lower_control(graph)
    verify(flat)
    assert op_names(flat).isdisjoint({"cond", "while", "scan"})
    assert parse(print_graph(flat)) == flat
    assert raise_control(flat).text == graph.text
    for args in argument_lists:
        arrays = [np.asarray(arg) for arg in args]
        expected = outcome(interpret, graph, arrays)
        for seed, parallel in ((0, 10), (1, 1), (2, 2), (3, 3)):
            order = random.Random(seed) if seed else None
            options = {"order": order, "parallel_iterations": parallel}
            assert outcome(run_tokens, flat, arrays, **options) == expected


# -- structured graphs -----------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, list[list[Any]]]] = {}


def case(name: str, *argument_lists: list[Any]) -> Callable[[str], None]:
    def add(text: str) -> None:
        CASES[name] = (text, list(argument_lists))

    return add


case("a cond that computes", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[]) {
  %0 = cond(%p, %x) : i64[] {
    @then(%a: i64[]) -> (i64[]) { %0 = add(%a, %a) : i64[] return %0 }
    @else(%b: i64[]) -> (i64[]) { %0 = negative(%b) : i64[] return %0 }
  }
  return %0
}""")

case("a cond that returns params and constants", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[], i64[]) {
  %0, %1 = cond(%p, %x) : i64[], i64[] {
    @then(%a: i64[]) -> (i64[], i64[]) { %0 = const() {value=7} : i64[] return %a, %0 }
    @else(%a: i64[]) -> (i64[], i64[]) { return %a, %a }
  }
  return %0, %1
}""")

case("a cond without operands", [True], [False])("""
graph @main(%p: bool[]) -> (i64[]) {
  %0 = cond(%p) : i64[] {
    @then() -> (i64[]) { %0 = const() {value=1} : i64[] return %0 }
    @else() -> (i64[]) { %0 = const() {value=2} : i64[] return %0 }
  }
  return %0
}""")

case("a cond on its own operand", [True], [False])("""
graph @main(%p: bool[]) -> (bool[]) {
  %0 = cond(%p, %p) : bool[] {
    @then(%a: bool[]) -> (bool[]) { %0 = logical_not(%a) : bool[] return %0 }
    @else(%a: bool[]) -> (bool[]) { return %a }
  }
  return %0
}""")

case("unused and repeated operands and an unused result", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[]) {
  %0 = less(%x, %x) : bool[]
  %1, %2, %3 = cond(%p, %0, %x, %x) : i64[], i64[], i64[] {
    @then(%u: bool[], %a: i64[], %b: i64[]) -> (i64[], i64[], i64[]) { return %a, %b, %a }
    @else(%u: bool[], %a: i64[], %b: i64[]) -> (i64[], i64[], i64[]) { return %b, %b, %b }
  }
  return %2
}""")

case("two conds on one predicate", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[], i64[]) {
  %0 = cond(%p, %x) : i64[] {
    @then(%a: i64[]) -> (i64[]) { %0 = add(%a, %a) : i64[] return %0 }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  %1 = cond(%p, %0) : i64[] {
    @then(%a: i64[]) -> (i64[]) { %0 = add(%a, %a) : i64[] return %0 }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  %2 = cond(%p, %x) : i64[] {
    @then(%a: i64[]) -> (i64[]) { %0 = add(%a, %a) : i64[] return %0 }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  return %1, %2
}""")

case("an effect in one branch and one after it", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[]) {
  !0 = print(%x) {end=" ", template="before {}"}
  %0 = cond(%p, %x) after !0 : i64[] {
    @then(%a: i64[]) -> (i64[]) {
      !0 = print(%a) {end=" ", template="then {}"}
      !1 = print() {end=" ", template="too"} after !0
      return %a after !1
    }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  !1 = print(%x) {end="", template="after {}"} after %0
  return %x after !1
}""")

case("a cond for its effects alone", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> () {
  !0 = cond(%p, %x) {
    @then(%a: i64[]) -> () { !0 = print(%a) {end="", template="then {}"} return after !0 }
    @else(%a: i64[]) -> () {
      %0 = const() {value=false} : bool[]
      !0 = assert(%0) {error="ValueError", message="else"}
      return after !0
    }
  }
  return after !0
}""")

case("an effect that only a result keeps", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[]) {
  %0 = cond(%p, %x) : i64[] {
    @then(%a: i64[]) -> (i64[]) { !0 = print(%a) {end="", template="{}"} return %a after !0 }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  return %0
}""")

case("a while that counts", [0, 5], [5, 0], [0, 25])("""
graph @main(%x: i64[], %n: i64[]) -> (i64[]) {
  %0 = while(%x, %n) {carried=1} : i64[] {
    @test(%i: i64[], %n: i64[]) -> (bool[]) { %0 = less(%i, %n) : bool[] return %0 }
    @body(%j: i64[], %m: i64[]) -> (i64[]) {
      %0 = const() {value=1} : i64[]
      %1 = add(%j, %0) : i64[]
      return %1
    }
  }
  return %0
}""")

case("a while whose next values are invariants or constants", [0, 9], [3, 9])("""
graph @main(%x: i64[], %n: i64[]) -> (i64[], i64[], i64[]) {
  %0, %1, %2 = while(%x, %x, %x, %n) {carried=3} : i64[], i64[], i64[] {
    @test(%i: i64[], %j: i64[], %k: i64[], %n: i64[]) -> (bool[]) {
      %0 = const() {value=2} : i64[]
      %1 = less(%i, %0) : bool[]
      return %1
    }
    @body(%i: i64[], %j: i64[], %k: i64[], %n: i64[]) -> (i64[], i64[], i64[]) {
      %0 = add(%n, %n) : i64[]
      %1 = const() {value=5} : i64[]
      return %n, %0, %1
    }
  }
  return %0, %1, %2
}""")

case("a while that swaps and passes through", [1, 2], [1, 1])("""
graph @main(%x: i64[], %y: i64[]) -> (i64[], i64[], i64[]) {
  %0, %1, %2 = while(%x, %y, %x, %y) {carried=3} : i64[], i64[], i64[] {
    @test(%a: i64[], %b: i64[], %c: i64[], %l: i64[]) -> (bool[]) {
      %0 = less(%a, %l) : bool[]
      return %0
    }
    @body(%a: i64[], %b: i64[], %c: i64[], %l: i64[]) -> (i64[], i64[], i64[]) {
      return %b, %a, %c
    }
  }
  return %0, %1, %2
}""")

case("a while with variables that nothing needs", [3])("""
graph @main(%x: i64[]) -> (i64[]) {
  %0, %1, %2 = while(%x, %x, %x, %x) {carried=3} : i64[], i64[], i64[] {
    @test(%a: i64[], %b: i64[], %c: i64[], %u: i64[]) -> (bool[]) {
      %0 = const() {value=9} : i64[]
      %1 = less(%b, %0) : bool[]
      return %1
    }
    @body(%a: i64[], %b: i64[], %c: i64[], %u: i64[]) -> (i64[], i64[], i64[]) {
      %0 = add(%a, %c) : i64[]
      %1 = add(%b, %b) : i64[]
      return %0, %1, %0
    }
  }
  return %1
}""")

case("a while that only prints", [True], [False])("""
graph @main(%p: bool[]) -> () {
  !0 = while(%p) {carried=0} {
    @test(%p: bool[]) -> (bool[]) {
      !0 = print(%p) {end=" ", template="test {}"}
      %0 = const() {value=false} : bool[]
      return %0 after !0
    }
    @body(%p: bool[]) -> () {
      !0 = print(%p) {end=" ", template="body"}
      return after !0
    }
  }
  !1 = print(%p) {end="", template="after"} after !0
  return after !1
}""")

case("effects in test and body", [0], [3], [12])("""
graph @main(%n: i64[]) -> (i64[]) {
  %0 = const() {value=0} : i64[]
  !0 = print() {end=" ", template="go"}
  %1 = while(%0, %n) {carried=1} after !0 : i64[] {
    @test(%i: i64[], %n: i64[]) -> (bool[]) {
      %0 = less(%i, %n) : bool[]
      !0 = print(%i) {end=" ", template="test {}"}
      return %0 after !0
    }
    @body(%i: i64[], %n: i64[]) -> (i64[]) {
      %0 = const() {value=1} : i64[]
      %1 = add(%i, %0) : i64[]
      %2 = const() {value=7} : i64[]
      %3 = not_equal(%i, %2) : bool[]
      !0 = assert(%3, %i) {error="ValueError", message="no {}"}
      !1 = print(%i) {end=" ", template="body {}"} after !0
      return %1 after !0, !1
    }
  }
  !1 = print(%1) {end="", template="end {}"} after %1
  return %1 after !1
}""")

case("a scan", [0, 1], [4, 1], [-3, 1], [15, 1])("""
graph @main(%n: i64[], %x: i64[]) -> (i64[]) {
  %0, %1 = scan(%n, %x, %x, %x, %n) {carried=2} : i64[], i64[] {
    @step(%k: i64[], %a: i64[], %b: i64[], %x: i64[], %u: i64[]) -> (i64[], i64[]) {
      %0 = multiply(%k, %x) : i64[]
      %1 = add(%a, %0) : i64[]
      return %1, %a
    }
  }
  return %1
}""")

case("a scan that ignores its counter and prints", [0], [3])("""
graph @main(%n: i64[]) -> () {
  !0 = scan(%n) {carried=0} {
    @body(%k: i64[]) -> () { !0 = print() {end="", template="x"} return after !0 }
  }
  return after !0
}""")

case("loops of invariants inside a loop", [0, 2], [3, 2])("""
graph @main(%n: i64[], %m: i64[]) -> (i64[]) {
  %0 = scan(%n, %m, %m) {carried=1} : i64[] {
    @body(%k: i64[], %a: i64[], %m: i64[]) -> (i64[]) {
      %0 = scan(%m, %m, %m) {carried=1} : i64[] {
        @body(%k: i64[], %a: i64[], %m: i64[]) -> (i64[]) { %0 = add(%a, %m) : i64[] return %0 }
      }
      %1 = less(%m, %m) : bool[]
      %2 = cond(%1, %m) : i64[] {
        @then(%m: i64[]) -> (i64[]) { return %m }
        @else(%m: i64[]) -> (i64[]) { %0 = negative(%m) : i64[] return %0 }
      }
      %3 = add(%0, %2) : i64[]
      %4 = add(%3, %a) : i64[]
      return %4
    }
  }
  return %0
}""")

case("a while in a cond in a scan, with effects", [4, 3], [0, 3])("""
graph @main(%n: i64[], %x: i64[]) -> (i64[]) {
  %0 = scan(%n, %x) {carried=1} : i64[] {
    @body(%k: i64[], %a: i64[]) -> (i64[]) {
      %0 = less(%k, %a) : bool[]
      %1 = cond(%0, %a, %k) : i64[] {
        @then(%a: i64[], %k: i64[]) -> (i64[]) {
          %0 = while(%k, %a) {carried=1} : i64[] {
            @test(%i: i64[], %a: i64[]) -> (bool[]) { %0 = less(%i, %a) : bool[] return %0 }
            @body(%i: i64[], %a: i64[]) -> (i64[]) {
              %0 = const() {value=1} : i64[]
              %1 = add(%i, %0) : i64[]
              !0 = print(%i) {end=" ", template="{}"}
              return %1 after !0
            }
          }
          return %0 after %0
        }
        @else(%a: i64[], %k: i64[]) -> (i64[]) {
          !0 = print(%k) {end=" ", template="else {}"}
          return %a after !0
        }
      }
      %2 = add(%1, %k) : i64[]
      return %2 after %1
    }
  }
  return %0 after %0
}""")

case("pure nodes that wait for control flow, and the reverse", [True, 3], [False, 3])("""
graph @main(%p: bool[], %x: i64[]) -> (i64[], i64[]) {
  %0 = negative(%x) : i64[]
  %1 = cond(%p, %x) after %0 : i64[] {
    @then(%a: i64[]) -> (i64[]) {
      %0 = identity(%a) : i64[]
      %1 = add(%a, %a) after %0 : i64[]
      return %1
    }
    @else(%a: i64[]) -> (i64[]) { return %a }
  }
  %2 = const() {value=4} after %1 : i64[]
  return %2, %1
}""")

case("attributes of one's own", [2])("""
graph @main(%x: i64[]) -> (i64[], i64[]) {
  %0 = scan(%x, %x) {carried=1, hint="fast", parallel_iterations=4} : i64[] {
    @body(%k: i64[], %a: i64[]) -> (i64[]) { return %k }
  }
  %1 = less(%x, %0) : bool[]
  %2 = cond(%1, %x) {likely} : i64[] {
    @yes(%a: i64[]) -> (i64[]) { return %a }
    @no(%a: i64[]) -> (i64[]) { return %a }
  }
  return %0, %2
}""")

case("symbolic sizes", [2, [1.0, 2.0, 3.0]], [0, []])("""
graph @main(%n: i64[], %x: f64[m]) -> (f64[m]) {
  %0 = scan(%n, %x) {carried=1} : f64[m] {
    @body(%k: i64[], %a: f64[m]) -> (f64[m]) {
      %0 = const() {value=1.5} : f64[]
      %1 = dim_size(%a) {axis=0} : i64[]
      %2 = full(%0; m=%1) {shape=(m,)} : f64[m]
      %3 = add(%a, %2) : f64[m]
      return %3
    }
  }
  return %0
}""")

case("sizes of values that nothing needs", [3, [1.0, 2.0]], [0, [1.0]])("""
graph @main(%n: i64[], %x: f64[m]) -> (i64[]) {
  %0, %1, %2 = while(%x, %n, %x, %x) {carried=3} : f64[q], i64[], f64[r] {
    @test(%a: f64[s], %i: i64[], %b: f64[t], %c: f64[u]) -> (bool[]) {
      %0 = const() {value=9} : i64[]
      %1 = less(%i, %0) : bool[]
      return %1
    }
    @body(%a: f64[v], %i: i64[], %b: f64[w], %c: f64[z]) -> (f64[z], i64[], f64[w]) {
      %0 = const() {value=4} : i64[]
      %1 = add(%i, %0) : i64[]
      return %c, %1, %b
    }
  }
  %3 = less(%1, %n) : bool[]
  %4 = cond(%3, %1, %x) : i64[] {
    @then(%a: i64[], %b: f64[f]) -> (i64[]) { return %a }
    @else(%a: i64[], %b: f64[g]) -> (i64[]) { %0 = dim_size(%b) {axis=0} : i64[] return %0 }
  }
  return %4
}""")

case("sizes that each region names for itself", [[1.0, 2.0], [0.5]])("""
graph @main(%x: f64[m], %y: f64[n]) -> (f64[r]) {
  %0 = while(%x, %y) {carried=1} : f64[r] {
    @test(%a: f64[p], %b: f64[q]) -> (bool[]) {
      %0 = dim_size(%a) {axis=0} : i64[]
      %1 = const() {value=5} : i64[]
      %2 = less(%0, %1) : bool[]
      return %2
    }
    @body(%a: f64[s], %b: f64[t]) -> (f64[s + t]) {
      %0 = concatenate(%a, %b) {axis=0} : f64[s + t]
      return %0
    }
  }
  return %0
}""")


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name):
    text, argument_lists = CASES[name]
    graph = parse(text)
    verify(graph)
    check_round_trip(graph, *argument_lists)


def test_a_graph_without_control_flow_stays_the_same_object():
    graph = parse("graph @g(%x: i64[]) -> (i64[]) { %0 = add(%x, %x) : i64[] return %0 }")
    assert lower_control(graph) is graph
    assert raise_control(graph) is graph


def test_a_structured_graph_stays_the_same_object_when_raised():
    graph = parse(CASES["a scan"][0])
    assert raise_control(graph) is graph


def test_a_flat_graph_stays_the_same_object_when_lowered():
    flat = lower_control(parse(CASES["a scan"][0]))
    assert lower_control(flat) is flat


def test_new_frames_do_not_take_the_names_of_old_ones():
    flat = lower_control(parse(CASES["a while that counts"][0]))
    body = parse(CASES["a scan"][0]).nodes[0].regions[0]
    inputs = (flat.results[0],) * 5
    types = (scalar(I64), scalar(I64))
    scan = Node(parse(CASES["a scan"][0]).nodes[0].op, inputs, {"carried": 2}, types, (body,))
    both = Graph("both", flat.params, scan.outputs, (), flat.back)
    lowered = lower_control(both)
    args = [np.int64(0), np.int64(4)]
    raised = raise_control(both)
    assert outcome(run_tokens, lowered, args) == outcome(interpret, raised, args)
    assert raise_control(lowered) == raised


def test_locations_survive():
    graph = parse(CASES["a while that counts"][0], "there.ir")
    raised = raise_control(lower_control(graph))
    found = [(node.op.name, node.loc) for node in raised.walk()]
    assert found == [(node.op.name, node.loc) for node in graph.walk()]


def test_the_spelling_of_a_cond():
    flat = lower_control(parse(CASES["a cond that computes"][0]))
    assert flat.text == textwrap.dedent("""\
        graph @main(%p: bool[], %x: i64[]) -> (i64[]) {
          %0, %1 = switch(%x, %p) {index=0, names=("b", "a"), scope="cond0"} : i64[], i64[]
          %2 = negative(%0) : i64[]
          %3 = add(%1, %1) : i64[]
          %4 = merge(%2, %3) {index=0, regions=("then", "else"), scope="cond0"} : i64[]
          return %4
        }""")


def test_the_spelling_of_a_while():
    flat = lower_control(parse(CASES["a while that counts"][0]))
    assert flat.text == textwrap.dedent("""\
        graph @main(%x: i64[], %n: i64[]) -> (i64[]) {
          %0 = enter(%x) {frame="while0", index=0, names=("i", "j")} : i64[]
          %1 = loop_merge(%0, %13) {index=0} : i64[]
          %2 = enter(%n) {frame="while0", index=1, invariant, names=("n", "m")} : i64[]
          %3 = less(%1, %2) : bool[]
          %4 = loop_cond(%3) {frame="while0", regions=("test", "body")} : bool[]
          %5, %6 = switch(%1, %4) {index=0} : i64[], i64[]
          %7 = exit(%5) : i64[]
          %8, %9 = switch(%4, %4) {pivot} : bool[], bool[]
          %10 = identity(%9) : bool[]
          %11 = const() {value=1} after %10 : i64[]
          %12 = add(%6, %11) : i64[]
          %13 = next_iteration(%12) : i64[]
          return %7
        }""")


# -- hand-written flat graphs ----------------------------------------------------------------------------------------


def check_raised(text: str, *argument_lists: list[Any]) -> Graph:
    """Raise a flat graph; check that it means the same and survives the round trip."""
    flat = parse(text)
    raised = raise_control(flat)
    verify(raised)
    assert op_names(raised).isdisjoint(FLAT)
    for args in argument_lists:
        arrays = [np.asarray(arg) for arg in args]
        assert outcome(interpret, raised, arrays) == outcome(run_tokens, flat, arrays)
    check_round_trip(raised, *argument_lists)
    return raised


def test_raises_a_hand_written_loop():
    raised = check_raised(COUNT, [0], [1], [12])
    assert raised.text == textwrap.dedent("""\
        graph @count(%n: i64[]) -> (i64[]) {
          %0 = const() {value=0} : i64[]
          %1 = const() {value=1} : i64[]
          %2 = while(%0, %n, %1) {carried=1} : i64[] {
            @test(%a0: i64[], %a1: i64[], %a2: i64[]) -> (bool[]) {
              %0 = less(%a0, %a1) : bool[]
              return %0
            }
            @body(%a0: i64[], %a1: i64[], %a2: i64[]) -> (i64[]) {
              %0 = add(%a0, %a2) : i64[]
              return %0
            }
          }
          return %2
        }""")


def test_raises_a_constant_that_a_pivot_puts_into_the_body():
    text = COUNT.replace('%s = enter(%one) {frame="w", invariant} : i64[]', "").replace(
        "%y = add(%in, %s) : i64[]",
        "%pivot = identity(%in) : i64[] %s = const() {value=1} after %pivot : i64[]"
        " %y = add(%in, %s) : i64[]",
    )
    (loop,) = (node for node in check_raised(text, [0], [3]).nodes if node.op.name == "while")
    assert [node.op.name for node in loop.regions[1].nodes] == ["const", "add"]
    assert not loop.regions[1].nodes[0].controls


def test_the_body_may_use_what_the_test_computed():
    text = COUNT.replace("%p = less(%x, %m)", "%t = add(%x, %s) : i64[] %p = less(%t, %m)")
    check_raised(text.replace("add(%in, %s)", "add(%in, %t)"), [0], [9])
    switched = text.replace(
        "%y = add(%in, %s)", "%a, %b = switch(%t, %c) : i64[], i64[] %y = add(%in, %b)"
    )
    check_raised(switched, [0], [9])


def test_a_loop_may_send_out_what_its_test_computed():
    text = COUNT.replace("%p = less(%x, %m)", "%t = add(%x, %x) : i64[] %p = less(%t, %m)")
    text = text.replace("%r = exit(%out)", "%a, %b = switch(%t, %c) : i64[], i64[] %r = exit(%a)")
    assert "add" in {node.op.name for node in check_raised(text, [0], [9]).nodes}


def test_the_body_may_use_the_predicate():
    text = COUNT.replace("%y = add(%in, %s)", "%k = cast(%c) {dtype=i64} : i64[] %y = add(%in, %k)")
    check_raised(text, [0], [4])


def test_raises_a_branch_that_reads_around_its_switch():
    raised = check_raised(
        """graph @g(%p: bool[], %x: i64[], %y: i64[]) -> (i64[]) {
          %no, %yes = switch(%x, %p) : i64[], i64[]
          %a = add(%yes, %y) : i64[]
          %r = merge(%a, %no) : i64[]
          return %r
        }""",
        [True, 1, 2],
        [False, 1, 2],
    )
    assert [len(node.inputs) for node in raised.nodes] == [3]


def test_merges_on_one_predicate_become_one_cond():
    raised = check_raised(
        """graph @g(%p: bool[], %x: i64[], %y: i64[]) -> (i64[], i64[]) {
          %xn, %xy = switch(%x, %p) : i64[], i64[]
          %a = add(%xy, %xy) : i64[]
          %q = merge(%xn, %a) : i64[]
          %yn, %yy = switch(%y, %p) : i64[], i64[]
          %b = negative(%yn) : i64[]
          %r = merge(%b, %yy) : i64[]
          return %q, %r
        }""",
        [True, 1, 2],
        [False, 1, 2],
    )
    assert [node.op.name for node in raised.nodes] == ["cond"]


def test_a_merge_that_needs_another_on_the_same_predicate_becomes_a_second_cond():
    raised = check_raised(
        """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
          %xn, %xy = switch(%x, %p) : i64[], i64[]
          %a = add(%xy, %xy) : i64[]
          %q = merge(%xn, %a) : i64[]
          %qn, %qy = switch(%q, %p) : i64[], i64[]
          %b = add(%qy, %a) : i64[]
          %r = merge(%qn, %b) : i64[]
          return %r
        }""",
        [True, 1],
        [False, 1],
    )
    assert [node.op.name for node in raised.nodes] == ["cond", "cond"]


def test_two_predicates_that_need_one_another_in_turn():
    raised = check_raised(
        """graph @g(%p: bool[], %q: bool[], %x: i64[], %y: i64[]) -> (i64[], i64[]) {
          %xn, %xy = switch(%x, %p) : i64[], i64[]
          %a = negative(%xy) : i64[]
          %m = merge(%xn, %a) : i64[]
          %mn, %my = switch(%m, %q) : i64[], i64[]
          %b = add(%my, %my) : i64[]
          %r = merge(%mn, %b) : i64[]
          %yn, %yy = switch(%y, %q) : i64[], i64[]
          %c = negative(%yy) : i64[]
          %k = merge(%yn, %c) : i64[]
          %kn, %ky = switch(%k, %p) : i64[], i64[]
          %d = add(%ky, %ky) : i64[]
          %s = merge(%kn, %d) : i64[]
          return %r, %s
        }""",
        *([p, q, 3, 5] for p in (True, False) for q in (True, False)),
    )
    assert [node.op.name for node in raised.nodes] == ["cond"] * 3


def test_a_merge_of_three_branches():
    check_raised(
        """graph @g(%p: bool[], %q: bool[], %x: i64[]) -> (i64[]) {
          %a, %b = switch(%x, %p) : i64[], i64[]
          %c, %d = switch(%b, %q) : i64[], i64[]
          %e = negative(%c) : i64[]
          %f = add(%d, %d) : i64[]
          %r = merge(%e, %a, %f) : i64[]
          return %r
        }""",
        *([p, q, 3] for p in (True, False) for q in (True, False)),
    )


def test_an_effect_in_a_branch_that_nothing_joins():
    raised = check_raised(
        """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
          %no, %yes = switch(%x, %p) : i64[], i64[]
          !0 = print(%yes) {template="{}", end=""}
          return %x after !0
        }""",
        [True, 1],
        [False, 1],
    )
    assert [node.op.name for node in raised.effects] == ["cond"]


def test_effects_that_loop_nodes_wait_for():
    text = COUNT.replace(
        "%next = next_iteration(%y)",
        '!0 = print(%in) {template="body {}", end=" "} %next = next_iteration(%y) after !0',
    )
    check_raised(text, [0], [3])
    text = COUNT.replace(
        "%c = loop_cond(%p)",
        '!0 = print(%x) {template="test {}", end=" "} %c = loop_cond(%p) after !0',
    )
    check_raised(text, [0], [3])


def test_an_effect_of_the_test_that_only_the_body_waits_for():
    text = COUNT.replace("%c =", '!0 = print(%x) {template="{}", end=" "} %c =')
    text = text.replace("%y = add(%in, %s)", "%y = add(%in, %s) after !0")
    assert check_raised(text, [0], [3]).nodes[-1].regions[0].effects


def test_an_effect_in_a_branch_of_a_body():
    text = COUNT.replace(
        "%next = next_iteration(%y)",
        """%q = equal(%in, %s) : bool[]
        %bn, %by = switch(%in, %q) : i64[], i64[]
        !0 = print(%by) {template="{}", end=" "}
        %next = next_iteration(%y)""",
    ).replace("return %r", "return %r after !0")
    check_raised(text, [0], [1], [4])


def test_a_loop_in_a_branch_is_entered_from_around_it_too():
    """Numbers of the outer loop enter the inner one as they are, without a switch; and text may have them in any order."""
    check_raised(NESTED, [0], [1], [2], [6])
    line = '  %ss = enter(%s) {frame="inner", invariant} : i64[]\n'
    late = NESTED.replace(line, "").replace("  %j1 = add", f"{line}  %j1 = add")
    check_raised(late, [0], [1], [2], [6])
    assert raise_control(parse(late)) == raise_control(parse(NESTED))
    text = """graph @g(%p: bool[], %n: i64[]) -> (i64[]) {
      %zero = const() {value=0} : i64[]
      %one = const() {value=1} : i64[]
      %no, %yes = switch(%n, %p) : i64[], i64[]
    LOOP
      %r = merge(%no, %w) : i64[]
      return %r
    }"""
    check_raised(
        text.replace("LOOP", loop("w", "%zero", "%yes", "%one")), [True, 3], [False, 3], [True, 0]
    )


def test_a_loop_that_runs_whether_its_branch_does_or_not_is_refused():
    """Its predicate reads nothing of the branch, so the tokens of the loop go round where the branch is dead."""
    text = COUNT.replace("(%n: i64[])", "(%n: i64[], %q: bool[])")
    text = text.replace(
        "%s = enter(%one)", "%no, %yes = switch(%one, %q) : i64[], i64[] %s = enter(%yes)"
    )
    text = text.replace("return %r", "%t = merge(%no, %r) : i64[] return %t")
    with pytest.raises(
        VerifyError, match=r"(?s)from around its branch does not decide alone.*loop_cond"
    ):
        raise_control(parse(text))


def test_flat_regions_of_structured_nodes_are_raised_too():
    graph = parse("""graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
      %0 = cond(%p, %x) : i64[] {
        @then(%a: i64[]) -> (i64[]) {
          %0 = const() {value=4} : i64[]
          %1 = less(%a, %0) : bool[]
          %2, %3 = switch(%a, %1) : i64[], i64[]
          %4 = add(%3, %3) : i64[]
          %5 = merge(%2, %4) : i64[]
          return %5
        }
        @else(%a: i64[]) -> (i64[]) { return %a }
      }
      return %0
    }""")
    raised = raise_control(graph)
    assert op_names(raised).isdisjoint(FLAT)
    for args in ([True, 3], [True, 5], [False, 3]):
        arrays = [np.asarray(arg) for arg in args]
        flat = lower_control(graph)
        assert outcome(interpret, raised, arrays) == outcome(run_tokens, flat, arrays)


def test_hints_that_a_pass_has_made_untrue_are_ignored():
    """The switch of the third cond is replaced by that of the first, as a pass that knows they agree would do."""
    graph = parse(CASES["two conds on one predicate"][0])
    lines = lower_control(graph).text.splitlines()
    first, third = (
        next(line for line in lines if f'scope="{scope}"' in line and "switch" in line)
        for scope in ("cond0", "cond2")
    )
    names = [line.split(" = ")[0].strip().split(", ") for line in (third, first)]
    renamed = dict(zip(*names, strict=True))
    lines.remove(third)
    text = re.sub(r"%\d+", lambda match: renamed.get(match[0], match[0]), "\n".join(lines))
    raised = raise_control(parse(text))
    assert op_names(raised).isdisjoint(FLAT)
    for args in ([np.bool_(True), np.int64(3)], [np.bool_(False), np.int64(3)]):
        assert outcome(interpret, raised, args) == outcome(interpret, graph, args)


def test_a_counted_loop_that_was_changed_becomes_a_while():
    flat = lower_control(parse(CASES["a scan"][0]))
    changed = parse(flat.text.replace("{value=1} : i64[]", "{value=2} : i64[]"))
    raised = raise_control(changed)
    assert "while" in op_names(raised)
    args = [np.int64(5), np.int64(1)]
    assert outcome(interpret, raised, args) == outcome(run_tokens, changed, args)


# -- graphs that are not well formed -----------------------------------------------------------------------------------

MALFORMED = {
    "bring": (
        COUNT.replace("add(%in, %s)", "add(%in, %one)"),
        r"(?s)values of one frame.*add\(",
    ),
    "two loop_conds": (
        COUNT.replace(
            "%r = exit", "%c2 = loop_cond(%p) : bool[] %a, %b = switch(%x, %c2) : i64[], i64[] %r = exit"
        ).replace("exit(%out)", "exit(%a)"),
        r"(?s)has two loop_conds.*loop_cond\(",
    ),
    "no loop_cond": (
        COUNT.replace("%c = loop_cond(%p)", "%c = identity(%p)"),
        r"(?s)an exit reads output 0 of a switch on the loop_cond.*exit\(",
    ),
    "exit on side 1": (COUNT.replace("exit(%out)", "exit(%in)"), "an exit reads output 0"),
    "ungated next_iteration": (
        COUNT.replace("add(%in, %s)", "add(%x, %s)"),
        r"(?s)a next_iteration is live only on side 1.*next_iteration\(",
    ),
    "no next_iteration": (
        COUNT.replace("%next = next_iteration(%y)", "%next = identity(%y)"),
        r"(?s)the back edge of a loop_merge comes from a next_iteration.*loop_merge\(",
    ),
    "invariant variable": (
        COUNT.replace('%i = enter(%zero) {frame="w"}', '%i = enter(%zero) {frame="w", invariant}'),
        "a loop_merge reads an enter that is not invariant",
    ),
    "reader of next_iteration": (
        COUNT.replace("%r = exit(%out)", "%z = negative(%next) : i64[] %r = exit(%out) after %z"),
        "only the back edge of a loop_merge reads a next_iteration",
    ),
    "result inside a loop": (COUNT.replace("return %r", "return %x"), "a result is outside all frames"),
    "two live inputs": (
        """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
          %no, %yes = switch(%x, %p) : i64[], i64[]
          %a = negative(%yes) : i64[]
          %r = merge(%a, %yes) : i64[]
          return %r
        }""",
        r"(?s)two inputs that are live at once.*merge\(",
    ),
    "a merge of two predicates": (
        """graph @g(%p: bool[], %q: bool[], %x: i64[]) -> (i64[]) {
          %a, %b = switch(%x, %p) : i64[], i64[]
          %c, %d = switch(%x, %q) : i64[], i64[]
          %r = merge(%a, %d) : i64[]
          return %r
        }""",
        r"(?s)the two sides of one switch.*merge\(",
    ),
    "branches mixed": (
        """graph @g(%p: bool[], %q: bool[], %x: i64[]) -> (i64[]) {
          %a, %b = switch(%x, %p) : i64[], i64[]
          %c, %d = switch(%x, %q) : i64[], i64[]
          %e = add(%b, %d) : i64[]
          %r = merge(%a, %e) : i64[]
          return %r
        }""",
        r"(?s)mixes values of branches.*add\(",
    ),
    "result in a branch": (
        """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
          %a, %b = switch(%x, %p) : i64[], i64[]
          return %a
        }""",
        r"(?s)a result is outside all frames.*switch\(",
    ),
    "a frame entered with what left it": (
        COUNT.replace('%s = enter(%one) {frame="w", invariant} : i64[]', "")
        .replace("%y = add(%in, %s)", "%y = add(%in, %in)")
        .replace("return %r", 'return %z')
        .replace("%r = exit(%out) : i64[]", """%r = exit(%out) : i64[]
          %k = enter(%r) {frame="w", invariant} : i64[]
          %t, %u = switch(%k, %c) : i64[], i64[]
          %z = exit(%t) : i64[]"""),
        "a frame is not entered with what has left it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_graphs_are_refused(name):
    text, message = MALFORMED[name]
    with pytest.raises(VerifyError, match=message):
        raise_control(parse(text))


def test_structured_nodes_cannot_take_sizes():
    graph = parse(CASES["a scan"][0])
    (node,) = (node for node in graph.nodes if node.regions)
    symbol = parse("graph @g(%x: f64[n]) -> (f64[n]) { return %x }").params[0].shape[0]
    sized = Node(node.op, node.inputs, node.attrs, node.types, node.regions, (), (symbol,))
    with pytest.raises(DslError, match="pass them as operands"):
        lower_control(Graph("g", graph.params, sized.outputs[:1]))


# -- random programs ---------------------------------------------------------------------------------------------------

RANDOM = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@RANDOM
@given(graphs(), st.randoms(use_true_random=False), st.sampled_from([1, 2, 10]))
def test_random_programs_mean_the_same_in_both_spellings(program, order, parallel):
    graph, args = program
    flat = lower_control(graph)
    verify(flat)
    options = {"order": order, "parallel_iterations": parallel}
    assert outcome(run_tokens, flat, args, **options) == outcome(interpret, graph, args)


@RANDOM
@given(graphs())
def test_random_programs_survive_the_round_trip(program):
    graph, _ = program
    flat = lower_control(graph)
    assert parse(print_graph(flat)) == flat
    assert raise_control(flat).text == graph.text


# What a frame is, what is invariant, and which names sizes have, is not a hint.
NEEDED = {"frame", "invariant", "leaving", "region"}


def without_hints(graph: Graph, kept: set[str]) -> Graph:
    """Return a flat graph without the attributes that only help to raise it."""
    values: dict[Value, Value] = {param: param for param in graph.params}
    nodes: dict[Node, Node] = {}
    for node in graph.nodes:
        is_flat = node.op.has(Trait.FLAT)
        attrs = {k: v for k, v in node.attrs.items() if k in kept} if is_flat else node.attrs
        inputs = tuple(values[value] for value in node.inputs)
        controls = tuple(nodes[control] for control in node.controls)
        nodes[node] = Node(node.op, inputs, attrs, node.types, (), controls, node.dims)
        values.update(zip(node.outputs, nodes[node].outputs, strict=True))
    results = tuple(values[value] for value in graph.results)
    effects = tuple(nodes[node] for node in graph.effects)
    back = {nodes[merge]: values[value] for merge, value in graph.back.items()}
    return Graph(graph.name, graph.params, results, effects, back)


@RANDOM
@given(graphs(), st.sampled_from([NEEDED, NEEDED | {"scope"}]))
def test_random_programs_are_raised_without_hints(program, kept):
    graph, args = program
    flat = without_hints(lower_control(graph), kept)
    raised = raise_control(flat)
    verify(raised)
    assert op_names(raised).isdisjoint(FLAT)
    assert outcome(interpret, raised, args) == outcome(interpret, graph, args)
    assert raise_control(lower_control(raised)).text == raised.text


# -- size ------------------------------------------------------------------------------------------------------------


def region(name: str, types: list[Any], body: Callable[..., list[Value]]) -> Graph:
    builder = Builder(name)
    params = [builder.param(type) for type in types]
    return builder.finish(body(builder, *params))


def test_a_long_branch_needs_no_recursion():
    def chain(builder: Builder, x: Value) -> list[Value]:
        for _ in range(20_000):
            x = builder.emit("negative", x)
        return [x]

    integer = scalar(I64)
    main = Builder("main")
    pred, x = main.param(scalar(BOOL)), main.param(integer)
    regions = [region("then", [integer], chain), region("else", [integer], lambda b, x: [x])]
    node = main.node("cond", [pred, x], {}, regions=regions, types=[integer])
    graph = main.finish([chain(main, node.output)[0]])
    flat = lower_control(graph)
    assert raise_control(flat).text == graph.text
    assert run_tokens(flat, [np.bool_(True), np.int64(3)]) == [3]
