"""The graphs of every program: text and flat form round-trip, and the flat form means the same by the token rules."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from test_programs import arguments, rows

import dsl
from dsl.ir.interpret import interpret
from dsl.ir.text import parse, print_graph
from dsl.ir.token_machine import run_tokens
from dsl.ir.verify import verify
from dsl.passes.lower_control import lower_control
from dsl.passes.raise_control import raise_control


def outcome(run: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            return "returned", run(), printed.getvalue()
        except Exception as error:
            return "raised", type(error), printed.getvalue()


def graph_and_inputs(function: Any, make: Any) -> Any:
    args = arguments(function, make)
    compiled = dsl.jit(function)
    try:
        lowered = compiled.lower(*args)
    except Exception:
        pytest.skip("refused or raised while tracing; test_programs.py checks that")
    taken = compiled._signature.take_apart(args, {}, compiled._needs)
    return lowered, lowered.traced.arrays(taken)


@pytest.mark.parametrize(("function", "make"), rows())
def test_graph_of_program(function: Any, make: Any) -> None:
    lowered, inputs = graph_and_inputs(function, make)
    for stage in ("traced", "optimized"):
        graph = lowered.graph(stage)
        assert parse(print_graph(graph)) == graph
    flat = lowered.graph("lowered")
    verify(flat)
    assert parse(print_graph(flat)) == flat
    assert raise_control(flat) == lowered.optimized
    expected = outcome(lambda: interpret(lowered.graph("traced"), inputs))
    check(outcome(lambda: interpret(lowered.optimized, inputs)), expected)
    if sum(1 for _ in flat.nodes) < 400:
        check(outcome(lambda: run_tokens(flat, inputs)), expected, any_error=True)


def check(found: Any, expected: Any, any_error: bool = False) -> None:
    """With `any_error`, nodes that no edge orders may run in another order, and another one of them fail first."""
    assert found[0] == expected[0], (found, expected)
    if expected[0] == "raised":
        assert any_error or found[1] == expected[1]
        return
    for f, e in zip(found[1], expected[1], strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        assert np.array_equal(f, e, equal_nan=f.dtype.kind in "fc")
    assert found[2] == expected[2]


_ = lower_control
