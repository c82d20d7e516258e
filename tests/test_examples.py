"""The examples run on several ranks, check themselves, and learn the same on all numbers of ranks.

By default those are 1 and 4; `DSL_EXAMPLE_RANKS=1,2,3,4` names others.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from pathlib import Path

import mpirun
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"
RANKS = [int(n) for n in os.environ.get("DSL_EXAMPLE_RANKS", "1,4").split(",")]
DEADLINE = 120  # seconds of one run, which takes about three on an idle machine

on_ranks = pytest.mark.skipif(bool(mpirun.missing()), reason=mpirun.missing() or "no reason")

# What an example says when it has checked itself.
LAST = {
    "data_parallel": "of new points are on the right arm",
    "pipeline": "equal to one batch on one",
    "parameter_server": "loss on new rows",
    "word_embedding": "of the closest words are about the same topic",
    "heat_halo": "distance to the first state",
}
EVERY = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@functools.cache
def printed(name: str, ranks: int) -> list[str]:
    """The lines that an example prints."""
    found = mpirun.run(str(EXAMPLES / name), ranks, deadline=DEADLINE)
    found.check()
    return found.out.splitlines()


@on_ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", LAST)
def test_an_example_runs_and_checks_itself(name: str, ranks: int) -> None:
    assert LAST[name] in printed(name, ranks)[-1]


@on_ranks
@pytest.mark.parametrize("name", sorted(LAST.keys() - {"parameter_server"}))
def test_an_example_learns_the_same_on_any_number_of_ranks(name: str) -> None:
    steps = [[line for line in printed(name, n) if line.startswith("step")] for n in RANKS]
    assert len(steps[0]) >= 5
    assert all(found == steps[0] for found in steps)


@on_ranks
def test_the_slow_worker_is_not_waited_for() -> None:
    text = "\n".join(printed("parameter_server", 4))
    assert "300 steps, each with the first 2 of 3 gradients" in text
    assert (found := re.search(r"600 gradients counted, (\d+) dropped", text))
    assert int(found[1]) > 0
    assert re.search(r"rank 3: \d+ counted, the slow one", text)


@pytest.mark.parametrize("name", EVERY)
def test_an_example_says_how_it_is_run_and_is_listed(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(source)) or ""
    assert re.search(rf"(mpirun|launch) -n 4 .*examples/{name}\.py", said)
    assert f"(../examples/{name}.py)" in PAGE.read_text(encoding="utf-8")
