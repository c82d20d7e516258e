"""The token machine on hand-written flat graphs: what holds in every order of running nodes.

The rules of tokens, frames and deadness are tried one by one in test_executor.py, of which this machine is the oracle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flat_graphs import LATE, PRINTING, STOPPING, Log

from dsl.ir.graph import Graph
from dsl.ir.text import parse
from dsl.ir.token_machine import run_tokens


def run_in_orders(graph: Graph, args: Sequence[Any], **options: Any) -> list[Any]:
    """Run a graph in the usual order and in some others, and return what all agree on."""
    found = run_tokens(graph, args, **options)
    for seed in range(5):
        others = run_tokens(graph, args, order=random.Random(seed), **options)
        for one, other in zip(found, others, strict=True):
            np.testing.assert_array_equal(one, other)
    return found


def run(text: str, *args: Any, **options: Any) -> list[Any]:
    found = run_in_orders(parse(text), [np.asarray(arg) for arg in args], **options)
    return [result.tolist() for result in found]


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


# -- loops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [False, True], ids=["given", "stated"])
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_iterations_are_alive_than_allowed(parallel, stated):
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
    if stated:
        text = text.replace(
            '(%zero) {frame="w"', f'(%zero) {{frame="w", parallel_iterations={parallel}'
        )
    options = {} if stated else {"parallel_iterations": parallel}
    graph, args = parse(text), [np.int64(20), np.float64(0.5)]
    reference = run_tokens(graph, args)
    widest = 0
    for seed in range(20):
        log = Log()
        found = run_tokens(graph, args, trace=log, order=random.Random(seed), **options)
        assert found == reference
        widest = max(widest, log.width())
    assert widest == parallel


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


def test_the_first_error_ends_the_run_in_every_order():
    args = [np.int64(20), np.int64(0), np.int64(7)]
    for seed in range(10):
        log = Log()
        with pytest.raises(ValueError, match="at 7"):
            run_tokens(parse(STOPPING), args, trace=log, order=random.Random(seed))
        assert log.entries[-1] == ("assert", (("w", 7),), False)


# -- loops and branches ------------------------------------------------------------------------------------------------


# -- effects ---------------------------------------------------------------------------------------------------------


def test_effects_happen_in_the_order_of_control_edges_alone(capsys):
    for seed in range(10):
        run_tokens(parse(PRINTING), [np.int64(2)], order=random.Random(seed))
        assert capsys.readouterr().out == "ab4"
