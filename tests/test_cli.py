"""`python -m dsl`: each command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsl.commands.dump import argument
from dsl.errors import ConfigError

ROOT = Path(__file__).parent.parent

PROGRAM = """\
import numpy as np

def wave(x, n, scale=1.0):
    for i in range(n):
        x = np.sin(x) * scale
    return x

limit = 3
"""


def run(
    *words: str, cwd: Path | None = None, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DSL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "dsl", *words],
        cwd=cwd,
        env=clean | {"PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_demo_shows_a_loop_its_ir_its_result_and_an_error() -> None:
    done = run("demo")
    for part in (
        "def heat(rod, steps):",
        "graph @heat(%rod: f64[9], %steps: i64[])",
        "= scan(",
        "40 of 40 random rods agree with NumPy to the last bit.",
        "square_root(2) = 1.41421356237 after 5 steps",
        "UndefinedError: the variable `scale`",
        "Fix: ",
    ):
        assert part in done.stdout
    assert "comparing [" in done.stderr
    assert "40/40" in done.stderr


def test_doctor_lists_versions_options_topics_and_extras() -> None:
    done = run("doctor", DSL_VERIFY="each")
    for part in ("Python ", "numpy ", "scipy ", "ml_dtypes ", "CPU ", "cores ", "llvmlite "):
        assert f"\n  {part}" in done.stdout
    assert "DSL_VERIFY               each   (default: results)" in done.stdout
    assert "unroll   loops that were unrolled, and why" in done.stdout


def test_doctor_names_the_option_that_is_misspelt() -> None:
    done = run("doctor", DSL_VERIFY="eech", code=1)
    assert "DSL_VERIFY='eech': expected 'off', 'results' or 'each'" in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_dump_prints_the_ir_of_every_stage(folder: Path) -> None:
    done = run("dump", "program:wave", "--shape", "f64[3,4]", "5", cwd=folder)
    headings = [line for line in done.stdout.splitlines() if line.startswith("# ")]
    assert headings == [f"# program:wave, {s}" for s in ("traced", "optimized", "lowered")]
    assert "graph @wave(%x: f64[3, 4], %n: i64[], %scale: f64[])" in done.stdout
    assert "program.py:5: x = np.sin(x) * scale" in done.stdout


def test_dump_takes_one_stage_and_keyword_arguments(folder: Path) -> None:
    words = ["dump", "program:wave", "f32[2]", "n=3", "--stage", "optimized", "--no-locations"]
    done = run(*words, cwd=folder)
    assert done.stdout.count("graph @") == 1
    assert "%x: f32[2]" in done.stdout
    assert "program.py" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["program:wav", "1"], "program has no 'wav'; did you mean 'wave'?"),
        (["program:limit"], "program:limit is a int, not a function"),
        (["program"], "'program' does not name a function"),
        (["missing:f"], "cannot import 'missing'"),
        (["program:wave"], "missing a required argument: 'x'"),
        (["program:wave", "f63[2]", "1"], "no dtype 'f63'; did you mean 'f64'?"),
        (["program:wave", "x+1", "1"], "'x+1' is neither a type such as f64[3,4] nor"),
    ],
)
def test_dump_says_what_is_wrong(folder: Path, words: list[str], message: str) -> None:
    done = run("dump", *words, cwd=folder, code=1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_arguments_are_types_or_literals() -> None:
    array = argument("i32[2, 3]")
    assert (array.shape, array.dtype) == ((2, 3), np.int32)
    assert argument("f64[]").shape == ()
    assert argument("(1, 2.0)") == (1, 2.0)
    with pytest.raises(ConfigError, match="neither a type"):
        argument("f64[-1]")


def test_an_unknown_command_is_an_error_with_a_suggestion() -> None:
    done = run("dmo", code=2)
    assert done.stderr == "error: unknown command 'dmo'; did you mean 'demo'?\n"


def test_help_lists_the_commands_and_bench_says_when_it_comes() -> None:
    for words in ([], ["help"], ["--help"]):
        out = run(*words).stdout
        assert all(f"\n  {name} " in out for name in ("demo", "doctor", "dump", "bench", "help"))
    assert "benchmarks/tracing.py" in run("bench").stdout
