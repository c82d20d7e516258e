"""Random nests of explicit loops give the plain function's results to the bit, for sizes that are known and for others.

Every other program is compiled without checks of indices, which keep loops from being written by vectors.
`DSL_RANDOM_LOOPS=5000 pytest -n 0 tests/test_random_loops.py` tries that many programs in place of 150.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import random_loops
from test_random_programs import load

import dsl
from dsl.config import config

GROUPS = 10
PROGRAMS = int(os.environ.get("DSL_RANDOM_LOOPS", "150"))
SIZES = (0, 1, 7, 8, 9, 16, 17, 33)
FUNCTIONS = ("tanh", "sin", "exp", "arctan")


def check_same(got: Any, want: Any, text: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if any(name in text for name in FUNCTIONS) and got.dtype.kind == "f":
        close = (1e-4, 1e-6) if "float32" in text or got.dtype == np.float32 else (1e-11, 1e-12)
        np.testing.assert_allclose(got, want, *close)
    else:
        np.testing.assert_array_equal(got, want)


def check(seed: int) -> None:
    text, rng = random_loops.write(seed), random.Random(seed)
    plain, compiled = load(text), dsl.jit(load(text))
    for size in [rng.choice((17, 20, 33, 40)), *rng.sample(SIZES, 3)]:
        expected, args = random_loops.arguments(seed, size), random_loops.arguments(seed, size)
        try:
            want = plain(*expected)
        except (IndexError, ZeroDivisionError):
            continue
        try:
            got = compiled(*args)
        except IndexError:  # by a constant, found although no trip is made
            assert size < 8
            continue
        kinds = f"{text} {random_loops.dtypes(seed)}"
        for one, other in zip((*got, *args), (*want, *expected), strict=True):
            check_same(one, other, kinds)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_loops_are_the_plain_ones(group: int) -> None:
    for seed in range(group, PROGRAMS, GROUPS):
        with config.override(bounds_checks="off" if seed % 2 else "on"):
            try:
                check(seed)
            except Exception:
                print(random_loops.write(seed), random_loops.dtypes(seed))
                raise
