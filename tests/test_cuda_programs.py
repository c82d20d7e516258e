"""Whole NumPy programs on the PTX emulator: loops, branches, mutation, gradients, errors; the results are the plain function's.

By default one program in so many runs; `DSL_FULL_SWEEP=1` runs them all.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from test_programs import check_program, rows

import dsl
from dsl.config import config

EVERY = 1 if os.environ.get("DSL_FULL_SWEEP") else 10
# Where a search ends in an array that is not sorted is open: the program asserts that it ends as NumPy's does.
UNSPECIFIED = {"sorting_and_searching-lower_bounds-2"}


@pytest.mark.parametrize(
    ("function", "make"), [row for row in rows()[::EVERY] if row.id not in UNSPECIFIED]
)
def test_program_on_the_emulator_is_the_plain_one(
    function: Any, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(device="cuda-emulator:0"):
        check_program(function, make, capsys)


# -- what is called in a block ---------------------------------------------------------------------------------------


def _is_for_a_gpu(function: Any, *args: Any) -> bool:
    return "for a GPU" in function.ir(*args, stage="kernels").splitlines()[0]


def test_functions_that_are_called_in_a_block_run_on_its_device() -> None:
    x = np.arange(3.0)
    total, own = dsl.jit(lambda x: np.exp(x).sum()), dsl.jit(lambda x: 2 * x, device="cpu")
    expected = np.exp(x).sum()
    assert total(x) == pytest.approx(expected)
    with config.override(device=None), dsl.device("cuda-emulator:0"):
        assert total(x) == pytest.approx(expected)
        assert _is_for_a_gpu(total, x)
        np.testing.assert_allclose(dsl.grad(total)(x), np.exp(x))
        assert not _is_for_a_gpu(own, x)
        with dsl.device("cpu"):
            assert not _is_for_a_gpu(total, x)
        with dsl.Graph() as graph:
            given = dsl.placeholder(np.float64, (3,), name="given")
            made = given + 1
        session = dsl.Session(graph)
        assert session.run(made, {given: x}).tolist() == [1, 2, 3]
    with config.override(device=None):
        assert not _is_for_a_gpu(total, x)
        assert total(x) == pytest.approx(expected)
    assert [n.attrs.get("device") for n in graph.root.order if n.op.name == "add"] == [
        "cuda-emulator:0"
    ]


def test_a_block_outside_of_functions_names_no_rank_and_no_unknown_device() -> None:
    with pytest.raises(dsl.errors.UnsupportedError, match="none are being made"):
        dsl.device("/rank:1/cpu:0").__enter__()
    with pytest.raises(dsl.errors.DslError, match="tpu"):
        dsl.device("tpu:0").__enter__()
