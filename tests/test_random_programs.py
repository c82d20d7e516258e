"""Random NumPy functions, compiled: results, dtypes and writes to arguments of the plain function, and sound graphs.

Functions run as machine code; graphs, which the interpreter runs, give the same there, with the same messages printed.
The programs of `random_kernels` are about whole arrays, exact to the bit.

`DSL_RANDOM_PROGRAMS=5000 pytest tests/test_random_programs.py` tries that many programs, new ones each time, in place
of 60 that are always the same, and shrinks the one that fails, which takes minutes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import os
from typing import Any

import numpy as np
import pytest
import random_kernels
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from random_graphs import graphs
from random_programs import arguments, programs
from test_programs import check_same

import dsl
from dsl.codegen.cpu.native import ParamKind, compile_graph
from dsl.config import config
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
    taken = compiled._signature.take_apart(args, {}, compiled._needs)
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


def randomly(examples: int) -> Any:
    """Settings for so many examples, always the same, or for as many new ones as are asked for."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=EXAMPLES == 0,
        phases=PHASES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@randomly(40)
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
    # float32 functions are not NumPy's to the bit, and float64 results are computed from them
    check_same(found, expected, "result", np.float32)
    check_same(mine, plain, "arguments", np.float32)
    check_graphs(compiled, arguments(seed))
    again = arguments(seed)
    with config.override(backend="interpreter"):
        check_same(dsl.jit(load(text))(*again), expected, "result of the interpreter", np.float32)
        check_same(again, plain, "arguments of the interpreter", np.float32)


def run_and_print(function: Any, inputs: list[Any]) -> tuple[Any, str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        found = function([np.array(x) for x in inputs])
    return found, printed.getvalue()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@randomly(40)
@given(graphs())
def test_random_graph_runs_natively(drawn: tuple[Any, list[Any]]) -> None:
    graph, inputs = drawn
    for k, param in enumerate(graph.params):
        if not param.tensor.is_static():  # native code takes sizes from 2
            inputs[k] = np.resize(np.append(inputs[k], 1.5), len(inputs[k]) + 2)
    expected, printed = run_and_print(lambda arrays: interpret(graph, arrays), inputs)
    native = compile_graph(graph, [ParamKind("array") for _ in graph.params])
    for _ in range(2):
        found, text = run_and_print(native, inputs)
        assert text == printed
        for a, b in zip(found, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-14, equal_nan=True)


@pytest.mark.parametrize("seed", range(EXAMPLES or 25))
def test_random_kernels_give_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text, kinds = random_kernels.write(rng, int(rng.integers(4, 16)))
    layout = ["C", "C", "F", "strided", "reversed"][seed % 5]
    make = lambda: random_kernels.arguments(np.random.default_rng(seed), kinds, layout)
    plain, mine = make(), make()
    expected = load(text)(*plain)
    try:
        found = dsl.jit(load(text), dynamic=[None, None, True][seed % 3])(*mine)
    except AliasError:
        pytest.skip("refused for aliasing")
    for a, b in zip([*found, *mine], [*expected, *plain], strict=True):
        assert (np.asarray(a).dtype, np.shape(a)) == (np.asarray(b).dtype, np.shape(b))
        np.testing.assert_array_equal(a, b)
