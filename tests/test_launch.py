"""`python -m dsl launch`: ranks that die, raise or fall silent are named, and a run that is started again ends as if nothing
had happened. Checkpoints of all ranks are whole or passed over, and any number of ranks restores them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpirun
import numpy as np
import pytest
from markdown_examples import check_page

from dsl import parallel
from dsl.commands import doctor
from dsl.commands.progress import progress
from dsl.errors import CheckpointError, ConfigError, CorruptCheckpointError, MissingCheckpointError
from dsl.mpi import pulse
from dsl.mpi.mpirun import Mpirun, find_mpirun
from dsl.parallel import checkpoints as module
from dsl.parallel.reading import INDEX, read_tree
from dsl.parallel.shards import SHARDS, Shard, owned
from dsl.profiler.merge import merge

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "resumable_training.py"
KILLS = int(os.environ.get("DSL_KILL_TESTS", "3"))
DEADLINE = 60 + 20 * KILLS

on_ranks = pytest.mark.skipif(bool(mpirun.missing()), reason=mpirun.missing() or "there is MPI")


# -- starting and finding processes ----------------------------------------------------------------


class Started:
    """A launcher, and all processes that come of it: they carry a mark in their environment."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DSL_")}
        clean |= {k: v for k, v in os.environ.items() if k == "DSL_CACHE_DIR"}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dsl", "launch", *words], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=clean | {"PYTHONPATH": path, "DSL_TEST_MARK": self.mark, **environment},
        )  # fmt: skip

    def marked(self) -> Iterator[tuple[int, str]]:
        """Yield the processes that are alive, with their environments."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found = Path("/proc", name, "environ").read_bytes().decode(errors="replace")
                if f"DSL_TEST_MARK={self.mark}" in found:
                    yield int(name), found

    def ranks(self) -> list[int]:
        """Return the processes that are ranks, not their parents."""
        return [pid for pid, found in self.marked() if f"DSL_LAUNCH_PID={pid}\0" in found]

    def end(self, code: int) -> tuple[str, str]:
        """Wait for the end, and check that nothing is left."""
        out, err = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == code, out + err
        left = [pid for pid, _ in self.marked()]
        assert not left
        return out, err


def launch(*words: str | Path, code: int = 0, **environment: str) -> tuple[str, str]:
    return Started(tuple(map(str, words)), environment).end(code)


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        file = tmp_path / "script.py"
        file.write_text("import os, sys, time\nimport dsl\nfrom dsl import parallel\n" + textwrap.dedent(text))  # fmt: skip
        return file

    return write


# -- launching -------------------------------------------------------------------------------------


@on_ranks
def test_every_rank_runs_the_script_and_its_lines_have_its_number(
    script: Any, tmp_path: Path
) -> None:
    file = script("""
        print("hello", parallel.rank(), "of", parallel.size(), sys.argv[1:])
        print("to stderr", file=sys.stderr)
        sys.stdout.write("no newline")
        parallel.barrier()
    """)
    out, err = launch("-n", "2", "--logs", tmp_path / "logs", file, "-x", "--steps", "3")
    for rank in (0, 1):
        assert f"[{rank}] hello {rank} of 2 ['-x', '--steps', '3']\n" in out
        assert f"[{rank}] no newline\n" in out
        assert f"[{rank}] to stderr\n" in err
        text = (tmp_path / "logs" / f"rank-{rank}.log").read_text()
        assert f"hello {rank} of 2" in text
        assert "to stderr" in text
    assert "launch:" not in err


@on_ranks
def test_a_rank_that_raises_is_named_with_its_exception_and_restarts_are_counted(
    script: Any,
) -> None:
    file = script("""
        print("attempt", os.environ["DSL_LAUNCH_ATTEMPT"])
        if parallel.rank() == 1:
            raise ValueError("the data are bad")
        parallel.barrier()
    """)
    out, err = launch("-n", "2", "--restarts", "1", file, code=1)
    assert err.count("rank 1 raised ValueError: the data are bad (script.py:7)") == 2
    assert "launch: restart 1 of 1\n" in err
    assert "launch: given up after 1 restart; the run did not finish\n" in err
    assert out.count("attempt 0") == out.count("attempt 1") == 2


@on_ranks
def test_a_silent_rank_is_found_by_the_deadline_and_the_run_is_started_again(script: Any) -> None:
    file = script("""
        parallel.alive("the first epoch")
        if parallel.rank() == 1 and os.environ["DSL_LAUNCH_ATTEMPT"] == "0":
            time.sleep(1000)
        parallel.barrier()
        print("done")
    """)
    out, err = launch("-n", "2", "--deadline", "3", "--restarts", "1", file)
    assert re.search(r"rank 1 is silent for [34] s: last it did the first epoch", err)
    assert "rank 0 is silent" not in err  # it waits for the other one
    assert "launch: finished, after 1 restart\n" in err
    assert out.count("done") == 2


@on_ranks
def test_a_program_that_does_not_start_says_why(tmp_path: Path, script: Any) -> None:
    file = script("import nothing_of_that_name\n")
    _, err = launch("-n", "1", file, code=1)
    assert "rank 0 raised ModuleNotFoundError: No module named 'nothing_of_that_name'" in err
    file.write_text("import os; os._exit(7)")
    _, err = launch("-n", "1", file, code=1)
    assert "rank 0 ended with exit code 7" in err


@on_ranks
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_end_of_the_launcher_ends_everything(script: Any, number: int, code: int) -> None:
    file = script("""
        print("ready")
        time.sleep(1000)
    """)
    started = Started(("-n", "2", str(file)), {})
    assert started.process.stdout is not None
    for _ in range(2):
        assert "ready" in started.process.stdout.readline()
    started.process.send_signal(number)
    assert started.process.wait(DEADLINE) == code
    end = time.monotonic() + 15
    while list(started.marked()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(started.marked())
    started.process.communicate()


@on_ranks
@pytest.mark.parametrize("ranks", [2])
def test_ranks_that_are_killed_at_random_change_nothing(tmp_path: Path, ranks: int) -> None:
    steps = 30 + 25 * KILLS
    common = ["-n", str(ranks), "--deadline", "60"]
    fixed = ["--steps", str(steps), "--every", "5", "--directory"]
    calm, _ = launch(*common, EXAMPLE, *fixed, tmp_path / "calm")
    words = [*common, "--restarts", str(KILLS), str(EXAMPLE), *fixed, str(tmp_path / "storm")]
    storm = Started((*words, "--pause", "0.05"), {})
    seed = random.randrange(1 << 30)
    killed = kill_at_random(storm, random.Random(seed), ranks, tmp_path / "storm")
    out, err = storm.end(0)
    assert trained(out) == trained(calm), f"seed {seed}"
    assert "going on after step" in out
    assert err.count("was ended by SIGKILL") == killed == KILLS, f"seed {seed}\n{err}"


def kill_at_random(started: Started, rng: random.Random, ranks: int, directory: Path) -> int:
    """Kill one of the ranks of each attempt, `KILLS` times, and return how often that was done."""
    known: set[int] = set()
    for count in range(KILLS):
        while len(fresh := set(started.ranks()) - known) < ranks:
            if started.process.poll() is not None:
                return count
            time.sleep(0.02)
        wait_at_random(started, rng, directory, progress=count == 0)
        known |= fresh
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(sorted(fresh)), signal.SIGKILL)
    return KILLS


def wait_at_random(started: Started, rng: random.Random, directory: Path, progress: bool) -> None:
    """Wait for a while, which may end before training begins; or, if `progress`, until there is a new checkpoint first."""
    before = saved_steps(directory)
    if progress or rng.random() < 0.7:
        while saved_steps(directory) <= before and started.process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.6))
    else:
        time.sleep(rng.uniform(0, 2))


def saved_steps(directory: Path) -> int:
    return max((int(f.parent.name[5:]) for f in directory.glob(f"step-*/{INDEX}")), default=0)


def trained(out: str) -> str:
    found = re.findall(r"^\[0\] trained: (\w+)$", out, re.MULTILINE)
    assert len(found) == 1, out
    return found[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "2", "missing.py"], "there is no script missing.py"),
        (["-n", "2", "--mpirun", "no-mpirun", __file__], "there is no no-mpirun"),
        (["-n", "0", __file__], "argument -n"),
        (["-n", "2", "--deadline", "-1", __file__], "argument --deadline"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(words: list[str], message: str) -> None:
    if mpirun.missing():
        pytest.skip(mpirun.missing())
    started = Started(tuple(words), {})
    _, err = started.process.communicate(timeout=DEADLINE)
    assert started.process.returncode in (1, 2)
    assert message in err


def test_launchers_of_mpi_are_told_apart(tmp_path: Path) -> None:
    for text, kind, version in (
        ("mpirun (Open MPI) 4.1.6", "Open MPI", "4.1.6"),
        ("HYDRA build details:\n    Version:          4.2.1", "MPICH", "4.2.1"),
        ("something else", "unknown", "something else"),
    ):
        file = tmp_path / "mpirun"
        file.write_text(f"#!/bin/sh\nprintf '{text}'\n")
        file.chmod(0o755)
        assert find_mpirun(str(file)) == Mpirun(str(file), kind, version)


def test_open_mpi_needs_flags_for_many_ranks_and_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    many = Mpirun("mpirun", "Open MPI", "5").command(8, ["python", "x.py"], ["--verbose"])
    flags = ["--oversubscribe", "--allow-run-as-root"]
    assert many == ["mpirun", *flags, "-n", "8", "--verbose", "python", "x.py"]
    assert Mpirun("mpirun", "MPICH", "4").command(2, ["x"]) == ["mpirun", "-n", "2", "x"]


# -- signs of life ---------------------------------------------------------------------------------


def test_signs_of_life_tell_what_was_last_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "_pulse", None)
    file = tmp_path / "rank-0.pulse"
    assert pulse.read(file) is None
    parallel.alive("nobody watches")
    pulse.begin(file)
    assert pulse.read(file) == pulse.Sign(1, "import dsl", False)
    parallel.alive("épo" * 5000)
    found = pulse.read(file)
    assert found is not None
    assert found.number == 2
    assert found.what.startswith("épo")
    pulse.waits("barrier")
    pulse.waits("barrier")  # nothing has moved
    assert pulse.read(file) == pulse.Sign(3, "barrier", True)
    pulse.tick()
    assert pulse.read(file) == pulse.Sign(4, "barrier", True)
    pulse.beat("barrier")
    assert pulse.read(file) == pulse.Sign(5, "barrier", False)


def test_a_child_of_a_rank_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "_pulse", None)
    pulse.begin(tmp_path / "pulse")
    child = os.fork()
    if child == 0:
        parallel.alive("the child")
        os._exit(0)
    os.waitpid(child, 0)
    assert pulse.read(tmp_path / "pulse") == pulse.Sign(1, "import dsl", False)


# -- checkpoints of all ranks ----------------------------------------------------------------------


def save_as(
    monkeypatch: pytest.MonkeyPatch, path: Path, trees: list[Any], whole: bool = True
) -> None:
    """Save as so many ranks would, one after the other."""
    word = uuid.uuid4().hex[:12]
    monkeypatch.setattr(module, "agree", lambda *args: None)
    monkeypatch.setattr(module, "_word", lambda: word)
    drafts = []
    for rank, tree in enumerate(trees):
        here = SimpleNamespace(rank=rank, size=len(trees))
        monkeypatch.setattr(module, "world", lambda here=here: here)
        drafts.append(module._Draft(path, tree, {"by": len(trees)}, copy=False))
        drafts[-1].write()
    if whole:
        drafts[0].write_index()
    monkeypatch.undo()


def tree_of(table: np.ndarray, strategy: str, rank: int, ranks: int) -> dict[str, Any]:
    mine = table[owned(len(table), strategy, rank, ranks)]
    everywhere = {"w": np.arange(6.0), "b": np.float32(2), "n": 3, "name": "run"}
    return {"table": Shard(mine, len(table), strategy), **everywhere}


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
@pytest.mark.parametrize("strategy", SHARDS)
def test_rows_are_dealt_out_once_and_in_order(rows: int, strategy: str) -> None:
    for ranks in (1, 2, 3, 5):
        ids = np.arange(rows)
        owner, place = SHARDS[strategy](ids, rows, ranks)
        for rank in range(ranks):
            mine = owned(rows, strategy, rank, ranks)
            assert np.array_equal(np.sort(mine), ids[owner == rank])
            assert np.array_equal(place[mine], np.arange(len(mine)))


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("strategy", SHARDS)
def test_any_number_of_ranks_restores_what_others_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, before: int
) -> None:
    table = np.random.default_rng(0).normal(size=(7, 2))
    save_as(monkeypatch, tmp_path, [tree_of(table, strategy, r, before) for r in range(before)])
    for ranks in (1, 2, 3, 4, 9):
        for rank in range(ranks):
            plain = read_tree(tmp_path, None, True, rank, ranks)()
            check_tree(plain, tree_of(table, strategy, rank, ranks))
            for other in SHARDS:
                wanted = tree_of(table, other, rank, ranks)
                empty = {**wanted, "w": np.zeros(6), "n": 0}
                check_tree(read_tree(tmp_path, empty, True, rank, ranks)(), wanted)


def check_tree(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(got) == list(wanted)
    assert np.array_equal(got["table"].array, wanted["table"].array)
    assert (got["table"].rows, got["table"].strategy) == (
        wanted["table"].rows,
        wanted["table"].strategy,
    )
    assert np.array_equal(got["w"], wanted["w"])
    assert (got["b"], got["n"], got["name"]) == (np.float32(2), 3, "run")


def test_what_all_ranks_have_is_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = {"a": np.ones(4000), "b": np.ones(4000), "c": np.ones(10)}
    save_as(monkeypatch, tmp_path, [big, big])
    sizes = sorted(f.stat().st_size for f in tmp_path.iterdir() if f.name != INDEX)
    assert len(sizes) == 2
    assert 32_000 < sizes[0] <= sizes[1] < 36_000


@on_ranks
def test_two_ranks_save_and_one_and_three_restore(tmp_path: Path) -> None:
    mpirun.run("shards", 2, "background", str(tmp_path / "a"), "mod", OMPI_MCA_btl="^ofi").check()
    mpirun.run("shards", 3, "restore", str(tmp_path / "a"), "mod", OMPI_MCA_btl="^ofi").check()
    mpirun.run("shards", 1, "restore", str(tmp_path / "a"), "mod", OMPI_MCA_btl="^ofi").check()


def newest(directory: Path, step: int, part: int = 0) -> Path:
    folder = directory / f"step-{step:010d}"
    return sorted(f for f in folder.iterdir() if f.name != INDEX)[part]


def flip(file: Path, place: int = -3) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "index", "no index"])
@pytest.mark.parametrize("background", [False, True])
def test_a_damaged_set_is_passed_over(tmp_path: Path, harm: str, background: bool) -> None:
    with parallel.ShardedCheckpoints(tmp_path, background=background) as saved:
        for step in (1, 2):
            saved.save(step, {"w": np.full(300, step)})
    file = newest(tmp_path, 2)
    if harm == "flip":
        flip(file)
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "missing":
        file.unlink()
    elif harm == "index":
        flip(file.with_name(INDEX), 200)
    else:
        file.with_name(INDEX).unlink()
    assert saved.restore()["w"][0] == 1
    assert saved.restored == 1
    with pytest.raises((CorruptCheckpointError, MissingCheckpointError)):
        saved.restore(2)


def test_a_save_that_was_cut_short_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.arange(8.0).reshape(4, 2)
    save_as(monkeypatch, tmp_path, [tree_of(table, "mod", r, 2) for r in range(2)])
    save_as(monkeypatch, tmp_path, [tree_of(table + 1, "mod", r, 2) for r in range(2)], whole=False)
    assert len(list(tmp_path.iterdir())) == 5
    assert np.array_equal(parallel.restore(tmp_path)["table"].array, table)
    save_as(monkeypatch, tmp_path, [tree_of(table + 2, "mod", 0, 1)])
    assert len(list(tmp_path.iterdir())) == 2  # the others are removed when a new one is whole
    assert np.array_equal(parallel.restore(tmp_path)["table"].array, table + 2)


def test_the_last_few_are_kept_and_half_ones_removed(tmp_path: Path) -> None:
    saved = parallel.ShardedCheckpoints(tmp_path, keep=2)
    assert saved.latest() is None
    with pytest.raises(MissingCheckpointError, match="no whole checkpoint"):
        saved.restore()
    (tmp_path / "step-0000000003").mkdir()
    for step in range(1, 7):
        saved.save(step, {"w": np.full(2, step)}, metadata={"at": step})
    assert sorted(os.listdir(tmp_path)) == ["step-0000000005", "step-0000000006"]
    assert (saved.steps(), saved.latest(), saved.metadata(5)) == ([5, 6], 6, {"at": 5})


def test_a_table_comes_back_with_the_slots_of_its_optimiser(tmp_path: Path) -> None:
    from dsl import optim

    def make() -> parallel.ShardedEmbedding:
        return parallel.ShardedEmbedding(9, 2, optimizer=optim.Adam(0.1), dtype=np.float64)

    table, other = make(), make()
    table.update([1, 4], np.ones((2, 2)))
    parallel.save(tmp_path / "t", {"table": table})
    table.update([4, 5], np.ones((2, 2)))
    parallel.restore(tmp_path / "t", like={"table": other})
    other.update([4, 5], np.ones((2, 2)))
    assert np.array_equal(table.table, other.table)


def test_a_tree_that_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    parallel.save(tmp_path / "t", {"w": np.ones(3), "rows": Shard(np.ones((4, 2)), 4)})
    with pytest.raises(CheckpointError, match=r"wrong shape: rows is f64\[4, 2\] in the file"):
        parallel.restore(tmp_path / "t", like={"w": np.ones(3), "rows": Shard(np.ones((4, 3)), 4)})
    with pytest.raises(CheckpointError, match="extra: rows"):
        parallel.restore(tmp_path / "t", like={"w": np.ones(3)})
    found = parallel.restore(tmp_path / "t", like={"w": np.zeros(3)}, strict=False)
    assert np.array_equal(found["w"], np.ones(3))
    with pytest.raises(ConfigError, match="'mod' or 'div'"):
        Shard(np.ones(3), 3, "both")


# -- seeing it -------------------------------------------------------------------------------------

PLACED = """
import numpy as np

@dsl.jit
def there_and_back(x):
    with dsl.device("/rank:1/cpu:0"):
        y = np.sin(x)
    with dsl.device("/rank:0/cpu:0"):
        return y + 1

for _ in range(2):
    there_and_back(np.ones(4))
"""


@on_ranks
def test_ranks_have_their_own_dumps_and_log_lines_and_one_trace(
    script: Any, tmp_path: Path
) -> None:
    file = script(PLACED)
    names = {"DSL_TRACE": tmp_path / "trace.json", "DSL_DUMP_IR_TO": tmp_path / "ir"}
    _, err = launch("-n", "2", file, DSL_LOGS="trace", **{k: str(v) for k, v in names.items()})
    for rank in (0, 1):
        assert f"[{rank}] [dsl.trace] there_and_back: first call" in err
        assert list((tmp_path / "ir" / f"rank-{rank}" / "there_and_back").glob("*.ir"))
    assert not list(tmp_path.glob("trace-rank-*"))
    listed = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in listed if e["name"] == "process_name"}
    assert titles == {0: "rank 0: dsl script.py", 1: "rank 1: dsl script.py"}
    ends = {e["id"]: {} for e in listed if e["ph"] == "s"}
    for event in listed:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
    across = [pair for pair in ends.values() if pair["s"]["pid"] != pair["f"]["pid"]]
    assert len(across) >= 2
    assert all(pair["s"]["ts"] <= pair["f"]["ts"] for pair in across)


def test_traces_of_several_machines_are_put_together_by_their_wall_clocks() -> None:
    def part(rank: int, boot: str, monotonic: int, wall: int) -> dict[str, Any]:
        about = {"rank": rank, "boot": boot, "monotonic": monotonic, "wall": wall, "ends": []}
        event = {"ph": "X", "name": "f", "ts": 1.0, "dur": 1.0, "pid": 7, "tid": 1}
        return {"traceEvents": [event], "dsl": about}

    def times(*parts: dict[str, Any]) -> list[float]:
        return [e["ts"] for e in merge(parts)["traceEvents"] if e["ph"] == "X"]

    assert times(part(0, "a", 5000, 9000), part(1, "a", 6000, 2000)) == [1.0, 2.0]
    assert times(part(0, "a", 5000, 9000), part(1, "b", 0, 2000)) == [8.0, 1.0]


def test_progress_is_drawn_by_rank_0_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert list(progress([1, 2], "training")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert list(progress([1, 2], "training")) == [1, 2]
    assert "training [" in capsys.readouterr().err


@on_ranks
def test_doctor_tells_what_mpi_there_is_and_tries_it() -> None:
    rows = dict(doctor.mpi())
    assert list(rows) == ["mpi4py", "mpirun", "library", "standard", "threads", "ring"]
    assert os.path.basename(rows["mpirun"].partition(",")[0]) in ("mpirun", "mpiexec")
    assert re.fullmatch(r"works: 2 ranks passed a number round in [\d.]+ ms", rows["ring"])


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "missing")
    assert doctor.mpi()[0][1].startswith('missing: one process alone; pip install "dsl[mpi]"')
    monkeypatch.setattr(doctor, "version", lambda name: "4.0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    said = dict(doctor.mpi())["mpirun"]
    assert said.startswith("missing: there is no mpirun, which starts ranks; pip install")


def test_doctor_says_why_two_ranks_do_not_work(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("a shell script stands in for mpirun")
    file = tmp_path / "mpirun"
    file.write_text("#!/bin/sh\necho there are not enough slots\nexit 3\n")
    file.chmod(0o755)
    ((_, said),) = doctor.ring(Mpirun(str(file), "unknown", ""))
    assert said.startswith("FAILED: mpirun ended with exit code 3")
    assert "there are not enough slots" in said


def test_the_page_about_launching_tells_the_truth(bless: bool) -> None:
    assert check_page(ROOT / "docs" / "launching.md", bless=bless) == 2
    text = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")
    for option in ("--restarts", "--deadline", "--logs", "--mpirun", "--mpi"):
        assert f"`{option} " in text
