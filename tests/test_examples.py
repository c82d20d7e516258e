"""The examples run on 1, 2 and 4 ranks, check themselves, and learn the same on all of them."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import mpirun
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"
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
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", LAST)
def test_an_example_runs_and_checks_itself(name: str, ranks: int) -> None:
    assert LAST[name] in printed(name, ranks)[-1]


@on_ranks
@pytest.mark.parametrize("name", sorted(LAST.keys() - {"parameter_server"}))
def test_an_example_learns_the_same_on_any_number_of_ranks(name: str) -> None:
    steps = [[line for line in printed(name, n) if line.startswith("step")] for n in (1, 2, 4)]
    assert len(steps[0]) >= 5
    assert steps[0] == steps[1] == steps[2]


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
