"""`python -m dsl`: each command in a process of its own."""

from __future__ import annotations

import os
import re
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


def test_demo_shows_a_loop_its_ir_its_result_times_and_an_error() -> None:
    done = run("demo")
    for part in (
        "def heat(rod, steps):",
        "graph @heat(%rod: f64[9], %steps: i64[])",
        "= scan(",
        "program @heat\n",
        "40 of 40 random rods agree with NumPy to the last bit,",
        "1,000,000 elements of float32: NumPy ",
        "300 x 300 of float64, 200 steps: NumPy ",
        " times as fast. The first call, which compiles, took ",
        "square_root(2) = 1.41421356237 after 5 steps",
        "UndefinedError: the variable `scale`",
        "Fix: ",
    ):
        assert part in done.stdout
    assert "comparing [" in done.stderr
    assert "40/40" in done.stderr


def test_doctor_lists_versions_native_code_options_topics_and_extras() -> None:
    done = run("doctor", DSL_VERIFY="each")
    rows = ("Python ", "numpy ", "scipy ", "ml_dtypes ", "llvmlite ", "CPU ", "cores ", "target ", "features ", "numba ")  # fmt: skip
    for row in rows:
        assert f"\n  {row}" in done.stdout
    assert "DSL_VERIFY               each   (default: results)" in done.stdout
    assert re.search(r"\n  unroll +loops that were unrolled, and why", done.stdout)


def test_doctor_tells_where_code_is_kept_and_how_many_threads_run_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    out = run("doctor", DSL_CACHE_DIR=str(folder), DSL_NUM_THREADS="3").stdout
    assert f"\n  cache     {folder} (made when first needed)\n" in out
    assert "\n  cached    0 files, 0.0 MB of at most 1,074 MB\n" in out
    assert "\n  threads   3, from DSL_NUM_THREADS\n" in out
    out = run("doctor", DSL_CACHE_DIR="off").stdout
    assert "\n  cache     off\n  cached    nothing is kept between processes\n" in out


def test_doctor_names_the_option_that_is_misspelt() -> None:
    done = run("doctor", DSL_VERIFY="eech", code=1)
    assert "DSL_VERIFY='eech': expected 'off', 'results' or 'each'" in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_dump_prints_every_graph_and_the_kernels(folder: Path) -> None:
    done = run("dump", "program:wave", "--shape", "f64[3,4]", "5", cwd=folder)
    assert headings(done.stdout) == ["traced", "optimized", "lowered", "kernels"]
    assert "graph @wave(%x: f64[3, 4], %n: i64[], %scale: f64[])" in done.stdout
    assert "program.py:5: x = np.sin(x) * scale" in done.stdout
    assert "program @wave\n" in done.stdout


def test_dump_prints_code_when_asked(folder: Path) -> None:
    llvm = run("dump", "program:wave", "f64[3,4]", "5", "--stage", "llvm", cwd=folder).stdout
    assert headings(llvm) == ["llvm"]
    assert "define i64 @dsl_program(ptr %frame, ptr %context)" in llvm
    asm = run("dump", "program:wave", "f64[3,4]", "5", "--stage", "asm", cwd=folder).stdout
    assert headings(asm) == ["asm"]
    assert "dsl_program:\n" in asm


def test_dump_leaves_the_kernels_out_where_there_are_none(folder: Path) -> None:
    words = ["dump", "program:wave", "f64[3,4]", "5"]
    done = run(*words, cwd=folder, DSL_BACKEND="interpreter")
    assert headings(done.stdout) == ["traced", "optimized", "lowered"]
    done = run(*words, "--stage", "asm", cwd=folder, DSL_BACKEND="interpreter", code=1)
    assert "the interpreter runs this function, so there is no machine code" in done.stderr


def headings(out: str) -> list[str]:
    start = "# program:wave, "
    return [line.removeprefix(start) for line in out.splitlines() if line.startswith(start)]


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


def test_help_lists_the_commands_and_bench_its_cases() -> None:
    for words in ([], ["help"], ["--help"]):
        out = run(*words).stdout
        assert all(f"\n  {name} " in out for name in ("demo", "doctor", "dump", "bench", "help"))
    assert "heat-f64-500" in run("bench", "--list").stdout
