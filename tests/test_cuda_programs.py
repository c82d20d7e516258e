"""Whole NumPy programs on the PTX emulator: loops, branches, mutation, gradients, errors; the results are the plain function's.

By default one program in so many runs; `DSL_FULL_SWEEP=1` runs them all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from test_programs import check_program, rows

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
