"""Random NumPy functions, compiled: results, dtypes and writes to arguments of the plain function, and sound graphs.

`DSL_RANDOM_PROGRAMS=5000 pytest tests/test_random_programs.py` tries that many programs, new ones each time, in place
of 60 that are always the same, and shrinks the one that fails, which takes minutes.
"""

from __future__ import annotations

import itertools
import linecache
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from random_programs import arguments, programs
from test_programs import check_same

import dsl
from dsl.errors import AliasError
from dsl.ir.interpret import interpret
from dsl.ir.text import parse, print_graph
from dsl.ir.token_machine import run_tokens
from dsl.ir.verify import verify
from dsl.passes.raise_control import raise_control

EXAMPLES = int(os.environ.get("DSL_RANDOM_PROGRAMS", "0"))
PHASES = [Phase.reuse, Phase.generate] + [Phase.shrink] * (EXAMPLES > 0)

_numbers = itertools.count()


def load(text: str) -> Any:
    """Return the function `program` of a module with this text, which is where a debugger looks for it."""
    name = f"<random program {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "random_program"}
    exec(compile(text, name, "exec", dont_inherit=True), module)
    return module["program"]


def check_graphs(compiled: Any, args: tuple[Any, ...]) -> None:
    """Check that text and flat form round-trip and that the flat form means the same by the token rules."""
    lowered = compiled.lower(*args)
    taken = compiled._signature.take_apart(args, {}, static_level=compiled._static_level)
    inputs = [taken.leaves[k] for k in lowered.traced.inputs]
    flat = lowered.graph("lowered")
    verify(flat)
    for graph in (lowered.graph("traced"), lowered.optimized, flat):
        assert parse(print_graph(graph)) == graph
    assert raise_control(flat) == lowered.optimized
    expected = interpret(lowered.optimized, inputs)
    for found, wanted in zip(run_tokens(flat, inputs), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(
    max_examples=EXAMPLES or 60,
    derandomize=EXAMPLES == 0,
    phases=PHASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_random_program_is_the_plain_one(drawn: tuple[str, int]) -> None:
    text, seed = drawn
    plain, mine = arguments(seed), arguments(seed)
    expected = load(text)(*plain)
    compiled = dsl.jit(load(text))
    try:
        found = compiled(*mine)
    except AliasError:  # which array is written depends on the run: refused, as documented
        event("refused for aliasing")
        assume(False)
    check_same(found, expected, "result")
    check_same(mine, plain, "arguments")
    check_graphs(compiled, arguments(seed))
