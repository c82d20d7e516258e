"""`python -m dsl bench`: every case at a tiny size beside NumPy, the command line, and how results are judged.

Nothing here depends on how long anything takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsl.commands import bench
from dsl.commands.bench.case import ROWS, Case, Target
from dsl.commands.bench.load import all_cases, case_named, matching
from dsl.commands.bench.measure import TRIES, Contender, Result, disagreement, measure
from dsl.commands.bench.peers import NAMES, Dsl, Peer, make_peers
from dsl.commands.bench.probe import peak_memory, warm_start
from dsl.commands.bench.report import failures, record, tables
from dsl.commands.bench.verdict import judge
from dsl.config import config
from dsl.errors import ConfigError

QUICK = bench.PACES["quick"]


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[dict[str, Peer]]:
    with config.override(cache_dir=tmp_path):
        yield make_peers(["numpy"], NAMES, Dsl(tmp_path))[0]


# --- The cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_every_case_agrees_with_numpy_and_leaves_its_inputs_alone(
    case: Case, peers: dict[str, Peer]
) -> None:
    result = measure(case, peers, QUICK, quick=True)
    assert failures([result]) == []
    assert result.checked_against == "numpy"
    assert all(contender.samples for contender in result.contenders.values())
    inputs, kept = case.make_inputs(quick=True), case.make_inputs(quick=True)
    case.program(*inputs)
    assert all(np.array_equal(x, y) for x, y in zip(inputs, kept))


def test_names_are_unique_and_every_row_has_cases() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert {case.row for case in cases} == set(ROWS)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_every_peer_of_a_target_takes_part(case: Case) -> None:
    assert {peer for target in case.targets for peer in target.peers} <= case.ways.keys()


def test_the_short_run_has_cases_of_every_row_and_not_all() -> None:
    short = [case for case in all_cases() if case.short]
    assert {case.row for case in short} == set(ROWS)
    assert len(short) < len(all_cases()) / 2


# --- The command ---------------------------------------------------------------------------------


def test_list_names_the_cases_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["--list", "--case", "heat", "--case", "SCALAR LOOPS"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["heat-f64-500", "heat", "stencil"]
    assert {line.split()[0] for line in lines} >= {"lu", "floyd-warshall", "biquad"}


def test_a_run_prints_ratios_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    words = ["--quick", "--peers", "numpy", "--case", "add-f32", "--case", "sum-f64-16M"]
    assert bench.run([*words, "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split() == ["case", "dsl", "numpy", "targets"]
    assert "GB/s read: dsl" in out
    assert "MISSED" not in out  # tiny sizes are not judged
    assert "benchmarks [" in err
    found = json.loads(file.read_text())
    assert found["mode"] == "quick"
    assert found["missing"] == []
    assert found["versions"].keys() == {"python", "dsl", "numpy"}
    assert [case["name"] for case in found["cases"]] == ["add-f32-1024", "sum-f64-16M"]
    case = found["cases"][1]
    assert case.keys() == {
        "name", "row", "checked_against", "input_bytes", "contenders", "ratios", "targets", "verdicts",
        "warm", "memory",
    }  # fmt: skip
    assert case["contenders"]["dsl"].keys() == {
        "best", "samples", "median", "first_call", "compile", "gigabytes_per_second", "error",
    }  # fmt: skip
    assert case["ratios"].keys() == {"numpy"}
    assert case["targets"] == [{"ratio": 1.0, "peers": ["numpy", "jax"]}]


def test_laps_measure_every_case_again_and_keep_all_samples(
    tmp_path: Path, peers: dict[str, Peer]
) -> None:
    cases, counts = matching(all_cases(), ["silu-f32-1M", "while-collatz"]), []
    for result in bench.run_cases(cases, peers, "quick", 3):
        counts.append((result.case.name, len(result.contenders["dsl"].samples)))
    names = [case.name for case in cases]
    assert counts == [(name, lap) for lap in (1, 2, 3) for name in names]


def test_two_starts_of_a_new_process_count_as_the_quicker_with_the_compiles_of_both() -> None:
    first, second = (Result(make_case(), {}, quick=False) for _ in range(2))
    first.warm = {"overhead": 0.2, "llvm_compiles": 1}
    second.warm = {"overhead": 0.1, "llvm_compiles": 0}
    first.add(second)
    assert first.warm == {"overhead": 0.1, "llvm_compiles": 1}
    second.warm = {"error": "code 1"}
    first.add(second)
    assert first.warm == {"error": "code 1"}


def test_peers_that_are_not_installed_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NAMES["jax"], "module", "no_such_module")
    assert bench.run(["--quick", "--peers", "numpy,jax", "--case", "add-f32"]) == 0
    assert "Not installed, so left out: jax\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--case", "nothing-like-it"], "no case matches nothing-like-it"),
        (["--peers", "matlab"], "there is no peer 'matlab'; there are: numpy, numba"),
        (["--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
        (["--plot", "x.doc"], "expected one of .pdf, .png, .svg"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.run(["--quick", *words])


def test_a_misspelt_case_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mandelbrot'"):
        case_named("mandelbrod")
    assert [case.name for case in matching(all_cases(), ["matmul-*-64"])] == [
        "matmul-f32-64",
        "matmul-f64-64",
    ]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "found.svg"
    words = ["--quick", "--peers", "numpy", "--case", "mixed-f32-1M", "--plot", str(file)]
    assert bench.run(words) == 0
    assert "<svg" in file.read_text()


# --- Agreement -----------------------------------------------------------------------------------


class Liar(Peer):
    def take(self, result: Any) -> Any:
        return result + 1


def add(x: Any) -> Any:
    return x + x


def make_case(**changes: Any) -> Case:
    given: dict[str, Any] = {
        "name": "made-up",
        "row": ROWS[0],
        "program": add,
        "inputs": lambda rng, n: (rng.random(n),),
        "size": (4,),
        "tiny": (4,),
    }
    return Case(**(given | changes))


def test_another_result_is_a_failure_and_takes_no_part_in_the_race(peers: dict[str, Peer]) -> None:
    result = measure(make_case(numba=add), peers | {"numba": Liar()}, QUICK, quick=True)
    assert failures([result]) == ["made-up: numba wrong: 100 % of the elements differ"]
    assert result.ratios.keys() == {"numpy"}
    assert "WRONG" in tables([result], ["numpy", "numba"])


def test_first_calls_take_turns(peers: dict[str, Peer]) -> None:
    order: list[str] = []

    class Compiler(Peer):
        compiles = True

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forget(self) -> None:
            order.append(self.name)

    case = make_case(numba=add, jax=add)
    others: dict[str, Peer] = {"numba": Compiler("numba"), "jax": Compiler("jax")}
    measure(
        case, peers | others, bench.Pace(race=0.0, patience=0.0, compiles=1e9, starts=0), quick=True
    )
    assert order == ["numba", "jax"] * TRIES


def test_a_program_that_raises_is_a_failure(peers: dict[str, Peer]) -> None:
    result = measure(make_case(inputs=lambda rng, n: ("text", 1)), peers, QUICK, quick=True)
    assert [line.split(":")[1] for line in failures([result], of="dsl")] == [" dsl failed"]
    assert result.ratios == {}


def test_where_plain_python_is_slow_and_no_peer_runs_a_small_size_is_compared(
    peers: dict[str, Peer],
) -> None:
    result = measure(make_case(plain_is_slow=True), peers, QUICK, quick=False)
    assert result.contenders.keys() == {"dsl"}
    assert result.checked_against == "numpy, at a small size"
    assert failures([result]) == []


@pytest.mark.parametrize(
    ("found", "expected", "changes", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-12], {}, ""),
        ([1.0, 2.0], [1.0, 2.1], {}, "wrong: 50 % of the elements differ"),
        ([1.0, 2.0], [1.0, 2.1], {"mismatches": 0.5}, ""),
        ([1.0, 2.0], [1.0, 2.1], {"tolerance": 0.1}, ""),
        ([np.nan, np.inf], [np.nan, np.inf], {}, ""),
        ([1e-30, 1.0], [0.0, 1.0], {}, ""),
        ([1, 2], [1, 3], {}, "wrong: 50 % of the elements differ"),
        ([1, 2], [1.0, 2.0], {}, "wrong: dtype int64, expected float64"),
        ([1.0], [1.0, 2.0], {}, r"wrong: shape (1,), expected (2,)"),
    ],
)
def test_disagreement(found: Any, expected: Any, changes: Any, message: str) -> None:
    case = make_case(**changes)
    assert disagreement([np.array(found)], [np.array(expected)], case) == message


# --- Targets -------------------------------------------------------------------------------------


def made_up_result(case: Case, **seconds: float) -> Result:
    contenders = {name: Contender(name, Peer(), samples=[s]) for name, s in seconds.items()}
    return Result(case, contenders, quick=False)


def test_a_target_is_judged_by_the_fastest_of_its_peers() -> None:
    case = make_case(numba=add, jax=add, targets=(Target(1.5, "numpy", "jax", "torch"),))
    (verdict,) = judge(made_up_result(case, dsl=1.0, numpy=4.0, jax=1.25))
    assert str(verdict) == "MISSED 1.5x numpy/jax/torch: 1.25"
    assert judge(made_up_result(case, dsl=1.0, numba=2.0)) == []


def test_targets_in_seconds_of_compiling_of_second_processes_and_of_memory() -> None:
    result = made_up_result(make_case(numba=add, at_most=1e-6), dsl=5e-7, numba=1.0)
    for contender, first in zip(result.contenders.values(), (1.0, 3.0)):
        contender.peer.compiles = True
        contender.firsts, contender.seconds = [first], contender.samples
    result.warm = {"overhead": 0.05, "llvm_compiles": 1}
    result.memory = {"dsl": {"extra": 3 << 20}}
    assert [(v.kind, v.met) for v in judge(result)] == [
        ("time", True), ("compile", False), ("warm", True), ("warm", False), ("memory", False),
    ]  # fmt: skip
    text = tables([result], ["numba"])
    assert "| call overhead | 1 of 1 |  |" in text
    assert "| compile, cold | 0 of 1 | made-up 4x numba: 2.00 |" in text
    assert json.dumps(record([result], {}))


# --- Processes of their own ----------------------------------------------------------------------


def test_a_second_process_reports_its_first_call(tmp_path: Path) -> None:
    found = warm_start(case_named("add-f32-1024"), tmp_path)
    assert found.keys() == {"import", "first_call", "steady", "overhead", "llvm_compiles"}
    assert math.isfinite(found["first_call"])


def test_peak_memory_is_measured_beside_inputs_and_outputs() -> None:
    found = peak_memory(case_named("add-f32-1024"), "dsl")
    assert (found["inputs"], found["outputs"]) == (2 * 4096, 4096)
    assert isinstance(found["extra"], int)


def test_what_fails_in_another_process_is_said() -> None:
    found = peak_memory(make_case(name="made-up"), "dsl")
    assert "there is no case 'made-up'" in found["error"]


def test_the_rates_of_graphs_and_sessions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from dsl.commands.bench.executor import RATES

    assert bench.run(["executor", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [rate.name for rate in RATES]
    file = tmp_path / "rates.json"
    assert bench.run(["executor", "--quick", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(rate.name) for line, rate in zip(lines, RATES, strict=True)]
    found = json.loads(file.read_text(encoding="utf-8"))["rates"]
    assert all(row["rates"]["dsl"] > 0 for row in found)


@pytest.mark.parametrize(("first", "compiled"), [(5.0, 4.0), (1.5, None), (2.0, None)])
def test_a_compile_time_that_is_within_what_calls_vary_by_is_unknown(
    first: float, compiled: float | None, tmp_path: Path
) -> None:
    contender = Contender("dsl", Dsl(tmp_path), firsts=[first, 9.0], seconds=[1.0, 2.0, 3.0])
    assert contender.compile_time == compiled
