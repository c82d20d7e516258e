"""Every op of the registry on the PTX emulator: what a GPU would compute is what the interpreter computes.

Several samples are nodes of one graph, which becomes one module of PTX. An op without a form for the device runs on the
host, and so do these tests of it; the documentation's table of ops says which those are. By default some samples of each op
are taken; `DSL_FULL_SWEEP=1` takes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_op_sweep import (
    SWEPT,
    Case,
    by_outcome,
    check_near,
    interpreted,
    outcome,
    own,
    samples_of,
    special_cases,
    spread,
    tensor_types,
)  # fmt: skip

from dsl.codegen.cuda.devices import gpu
from dsl.codegen.cuda.program import DeviceProgram
from dsl.ir.build import Builder
from dsl.ir.devices import DeviceName
from dsl.ir.registry import Op, Sample

NODES = 8  # of one graph

# Functions of libdevice, allowed some units in the last place more than those of the CPU.
LIBDEVICE = {
    "power", "float_power", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "sin",
    "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "hypot", "cbrt", "erf", "erfc",
}  # fmt: skip

every_op = pytest.mark.parametrize("op", SWEPT, ids=lambda op: op.name)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def compile_cases(op: Op, cases: Sequence[Case]) -> Callable[..., list[Any]]:
    """Return a function of the cases' inputs that gives the outputs of each."""
    builder = Builder()
    nodes = [
        builder.node(op, map(builder.param, tensor_types(inputs)), sample.attrs)
        for inputs, sample in cases
    ]
    graph = builder.finish([value for node in nodes for value in node.outputs])
    program = DeviceProgram(graph, [False] * len(graph.params))

    def call(several: Sequence[tuple[np.ndarray, ...]]) -> list[Any]:
        device = gpu(DeviceName.parse("cuda-emulator:0"))
        found = iter(program(device, [x for inputs in several for x in inputs]))
        return [[next(found) for _ in node.outputs] for node in nodes]

    return call


def check_device(op: Op, cases: Sequence[Case]) -> None:
    found = compile_cases(op, cases)([inputs for inputs, _ in cases])
    for got, case in zip(found, cases, strict=True):
        for a, b in zip(got, interpreted(op, case), strict=True):
            check_close(op, a, b, case[1])


def check_close(op: Op, a: np.ndarray, b: np.ndarray, sample: Sample) -> None:
    if op.name not in LIBDEVICE or b.dtype.kind not in "fV":
        check_near(op, a, b, sample)
        return
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    eps = float(ml_dtypes.finfo(b.dtype).eps)
    np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=8 * eps, atol=0)


@every_op
def test_samples(op: Op) -> None:
    cases = [(own(s.inputs), s) for s in spread(samples_of(op), 5)]
    good = [case for case in cases if not isinstance(interpreted(op, case), tuple)]
    for k in range(0, len(good), NODES):
        check_device(op, good[k : k + NODES])


@every_op
def test_special_values_and_sizes(op: Op) -> None:
    good, raising = by_outcome(op, spread([*special_cases(op)], 4))
    for k in range(0, len(good), NODES):
        check_device(op, good[k : k + NODES])
    for case in spread(raising, 3):
        call = compile_cases(op, [case])
        assert outcome(lambda call=call, case=case: call([case[0]])) == interpreted(op, case)
