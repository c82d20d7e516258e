"""Profiles: what a trace holds, what the table says, and that nothing is left of either when nobody profiles."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl import events
from dsl.codegen.cpu import entry
from dsl.config import config
from dsl.errors import ConfigError, DslError
from dsl.events import Record, Site
from dsl.profiler.table import costs, shown_time
from dsl.profiler.timeline import Event, make_events, parents

HERE = os.path.basename(__file__)


@dsl.jit
def layer(x, w):
    return np.tanh(x @ w) + 1


@dsl.jit
def relax(plate, tolerance):
    sweeps, change = 0, 1.0
    while change > tolerance:
        old = plate.copy()
        plate[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) / 4
        change = np.abs(plate - old).max()
        sweeps += 1
    return sweeps


@dsl.jit
def pick(x, k):
    return np.sin(x)[k]


def line_of(text: str) -> int:
    """Return the number of the first line of this file that has a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(k for k, line in enumerate(lines, 1) if text in line)


def profile_of_layer(path: Path | None = None, calls: int = 2) -> Any:
    x, w = np.full((40, 30), 0.1), np.full((30, 20), 0.2)
    with dsl.profile(path) as p:
        for _ in range(calls):
            layer(x, w)
    return p


def of_kind(p: Any, *kinds: str) -> list[Event]:
    return [event for event in p.events if event.kind in kinds]


# --- The trace -----------------------------------------------------------------------------------


def test_a_file_is_a_chrome_trace(tmp_path: Path) -> None:
    profile_of_layer(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    listed = trace["traceEvents"]
    complete = [event for event in listed if event["ph"] == "X"]
    assert {"layer", "matmul", "tanh add"} <= {event["name"] for event in complete}
    for event in complete:
        assert event.keys() >= {"name", "cat", "ts", "dur", "pid", "tid", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    names = [event for event in listed if event["ph"] == "M"]
    assert {event["name"] for event in names} >= {"process_name", "thread_name"}
    rows = {
        event["tid"]: event["args"]["name"] for event in names if event["name"] == "thread_name"
    }
    assert {rows[event["tid"]] for event in complete} == {"MainThread"}


def test_nodes_have_the_users_line(tmp_path: Path) -> None:
    p = profile_of_layer()
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    args = {event["name"]: event["args"] for event in trace["traceEvents"] if event["ph"] == "X"}
    line = line_of("np.tanh(x @ w) + 1")
    for name in ("matmul", "tanh add"):
        assert (args[name]["file"], args[name]["line"]) == (__file__, line)
        assert args[name]["source"] == "return np.tanh(x @ w) + 1"
        assert args[name]["bytes"] > 0
    (call, *_) = of_kind(p, "call")
    assert call.line == f"{HERE}:{line_of('def layer') - 1}"


def test_kernels_lie_within_their_program_and_that_within_its_call() -> None:
    p = profile_of_layer(calls=3)
    found, around = p.events, parents(p.events)
    for k, event in enumerate(found):
        chain = []
        while (k := around[k]) >= 0:
            assert found[k].start <= event.start
            assert event.end <= found[k].end
            chain.append(found[k].kind)
        if event.kind in ("kernel", "library"):
            assert chain == ["program", "call"]
    assert [len(of_kind(p, kind)) for kind in ("call", "program", "library", "kernel")] == [3] * 4


def test_a_copy_before_an_update_is_an_event_of_its_own() -> None:
    @dsl.jit
    def raise_some(a):
        a.flat[::5] += 10

    with dsl.profile() as p:
        raise_some(np.ones((7, 9)))
    copies = [event for event in p.events if event.name == "copy"]
    (update,) = of_kind(p, "update")
    assert any(update.start <= copy.start and copy.end <= update.end for copy in copies)
    assert update.inside == ()
    (cost,) = (cost for cost in costs(p.events) if cost.name == "copy")
    assert (cost.calls, cost.total < 1.0) == (len(copies), True)


def test_phases_of_compiling_are_events() -> None:
    @dsl.jit
    def fresh(x):
        return np.sqrt(x) * 3

    with dsl.profile() as p:
        fresh(np.ones(100))
    assert {e.name for e in of_kind(p, "compile")} >= {"trace", "passes", "emit", "link"}
    assert {e.name for e in of_kind(p, "pass")} >= {"canonicalize", "simplify", "cse"}
    assert "compiling: trace" in p.table()


def test_loops_are_one_event_with_what_ran_inside_added_up() -> None:
    plate = np.zeros((40, 40))
    plate[0] = 100.0
    with dsl.profile() as p:
        sweeps = relax(plate, 0.1)
    (loop,) = of_kind(p, "loop")
    assert not of_kind(p, "kernel", "update")
    inside = {item.name: item for item in loop.inside}
    update, change = inside["update_slice"], inside["subtract absolute max"]
    assert update.count == change.count == sweeps
    assert change.line == f"{HERE}:{line_of('change = np.abs')}"
    assert update.seconds + change.seconds <= loop.seconds
    assert change.bytes == sweeps * 2 * plate.nbytes
    (row,) = [cost for cost in p.costs() if cost.kind == "loop"]
    assert row.own == pytest.approx(loop.seconds - update.seconds - change.seconds)


def test_loops_within_loops_and_branches() -> None:
    @dsl.jit
    def nested(x, n):
        total = x * 0
        for i in range(n):
            for _ in range(i):
                total = np.cos(total[::-1] + x)
            if i % 2 == 0:
                total = np.exp(-total)
        return total

    x = np.linspace(0, 1, 1000)
    with dsl.profile() as p:
        nested(x, 5)
    (outer,) = of_kind(p, "loop")
    inside = [(item.name, item.count) for item in outer.inside if item.kind != "copy"]
    assert sorted(inside) == [("add cos", 10), ("negative exp", 3), ("scan", 5)]
    names = [item.name for item in outer.inside]
    assert outer.inside[names.index("add cos")].parent == names.index("scan")


def test_trips_that_run_block_by_block_are_one_run_of_the_kernel() -> None:
    """A profile measures the code that runs without it."""

    @dsl.jit
    def pointwise(x, n):
        for _ in range(n):
            x = np.cos(x) + 1
        return x

    x = np.linspace(0, 1, 4000)
    expected = pointwise(x, 200)
    with dsl.profile() as p:
        assert pointwise(x, 200).tobytes() == expected.tobytes()
    (loop,) = of_kind(p, "loop")
    assert [(i.name, i.count) for i in loop.inside if i.kind == "kernel"] == [("cos add", 1)]


def test_scalar_code_in_loops_has_no_clocks() -> None:
    @dsl.jit
    def collatz(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    with dsl.profile() as p:
        assert collatz(27) == 111
    (loop,) = of_kind(p, "loop")
    assert loop.inside == ()


def test_bytes_of_sizes_that_only_a_run_knows() -> None:
    @dsl.jit(dynamic=True)
    def double(x):
        return np.tanh(x) * 2

    with dsl.profile() as p:
        double(np.ones(100))
        double(np.ones(3000))
    assert [event.bytes for event in of_kind(p, "kernel")] == [1600, 48000]


def test_threads_have_rows_of_their_own() -> None:
    x, w = np.ones((40, 30)), np.ones((30, 20))
    layer(x, w)
    threads = [threading.Thread(target=layer, args=(x, w), name=f"worker {k}") for k in range(3)]
    with dsl.profile() as p:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = {event.row for event in of_kind(p, "kernel")}
    assert rows == {"worker 0", "worker 1", "worker 2"}


def test_a_call_that_raises_is_an_event_and_leaves_a_valid_file(tmp_path: Path) -> None:
    with pytest.raises(IndexError), dsl.profile(tmp_path / "trace.json"):
        pick(np.ones(300), 500)
    listed = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (call,) = [event for event in listed if event.get("cat") == "call"]
    assert call["args"]["raised"] == "IndexError"
    assert entry.SLOW.value == 0
    with pytest.raises(IndexError):
        pick(np.ones(300), 500)


def test_a_program_that_calls_python_and_what_that_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @dsl.jit
    def talk(x):
        largest = np.sin(x).max()
        print("largest", largest)
        assert largest < 0.5, f"too large: {largest}"
        return np.cos(x) + largest

    with dsl.profile() as p:
        talk(np.zeros(200))
        with pytest.raises(AssertionError, match="too large"):
            talk(np.ones(200))
    assert capsys.readouterr().out.startswith("largest 0.0\nlargest 0.8")
    assert [event.args.get("raised") for event in of_kind(p, "call")] == [None, "AssertionError"]
    assert "sin max" in {event.name for event in of_kind(p, "kernel")}


def test_an_interrupt_while_times_are_taken_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    session, x, b = two_devices()
    value = np.full((200, 100), 0.5)
    expected = session.run(b, {x: value})
    with dsl.profile():
        monkeypatch.setattr(events, "program", interrupt)
        with pytest.raises(KeyboardInterrupt):
            layer(np.ones((40, 30)), np.ones((30, 20)))
        with pytest.raises(KeyboardInterrupt):
            session.run(b, {x: value})
        monkeypatch.undo()
        assert session.run(b, {x: value}) == expected
    assert layer(np.ones((40, 30)), np.ones((30, 20))).shape == (40, 20)


# --- Sessions ------------------------------------------------------------------------------------


def two_devices() -> tuple[dsl.Session, Any, Any]:
    graph = dsl.Graph("pair")
    with graph:
        x = dsl.placeholder("float64", (200, 100), name="x")
        with dsl.device("cpu:0"):
            a = np.sin(x) @ np.ones((100, 100))
        with dsl.device("cpu:1"):
            b = np.cos(a).sum()
    return dsl.Session(graph, devices=2), x, b


def test_devices_have_rows_and_tokens_between_them_arrows(tmp_path: Path) -> None:
    session, x, b = two_devices()
    value = np.full((200, 100), 0.5)
    expected = session.run(b, {x: value})
    with dsl.profile(tmp_path / "trace.json") as p:
        assert session.run(b, {x: value}) == expected
        assert session.run(b, {x: value}) == expected
    assert [e.name for e in of_kind(p, "step")] == ["pair", "pair"]
    assert {e.row for e in of_kind(p, "part")} == {"cpu:0 (MainThread)", "cpu:1"}
    assert {e.row for e in of_kind(p, "kernel") if e.name == "cos sum"} == {"cpu:1"}
    assert {e.name for e in of_kind(p, "send", "wait")} == {"send", "recv"}
    listed = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    starts = {event["id"]: event for event in listed if event["ph"] == "s"}
    ends = {event["id"]: event for event in listed if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        assert start["tid"] != ends[number]["tid"]
    assert "pair on cpu:1" in p.table()
    assert "<path" in p.svg()


def test_a_step_that_waits_for_a_queue_shows_the_wait() -> None:
    queue = dsl.FIFOQueue(4, "float64", (500,))
    graph = dsl.Graph("fed")
    with graph:
        total = dsl.Variable(np.zeros(500), name="total")
        step = total.assign_add(np.tanh(queue.dequeue()))
    session = dsl.Session(graph)
    queue.enqueue(np.ones(500))
    session.run(step)
    feeder = threading.Timer(0.1, queue.enqueue, [np.ones(500)])
    with dsl.profile() as p:
        feeder.start()
        session.run(step)
        feeder.join()
    (wait,) = [event for event in of_kind(p, "wait") if event.name == "dequeue"]
    assert 0.05 < wait.seconds < p.seconds
    assert wait.row == "MainThread waits"
    assert wait.line.startswith(f"{HERE}:")
    assert len(of_kind(p, "python")) == 1
    assert "dequeue (wait)" in p.table()


def test_threads_that_wait_for_a_queue_show_it() -> None:
    queue = dsl.FIFOQueue(4, "float64", ())
    feeder = threading.Timer(0.1, queue.enqueue, [1.0])
    with dsl.profile() as p:
        feeder.start()
        queue.dequeue()
        feeder.join()
    (wait,) = of_kind(p, "wait")
    assert wait.name == "dequeue"
    assert wait.seconds > 0.05
    assert wait.row == "MainThread"


def test_steps_through_callables_are_profiled() -> None:
    graph = dsl.Graph("plain")
    with graph:
        x = dsl.placeholder("float64", (300,), name="x")
        y = np.exp(x) + 1
    with dsl.Session(graph) as session:
        call = session.make_callable(y, [x])
        expected = call(np.ones(300))
        with dsl.profile() as p:
            found = call(np.ones(300))
        assert found.tobytes() == expected.tobytes() == call(np.ones(300)).tobytes()
    assert len(of_kind(p, "step")) == 1
    assert [event.name for event in of_kind(p, "kernel")] == ["exp add"]


# --- On and off ----------------------------------------------------------------------------------


def test_results_are_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((200, 150)), rng.standard_normal((150, 70))
    plain = layer(x, w)
    with dsl.profile():
        profiled = layer(x, w)
    assert plain.tobytes() == profiled.tobytes() == layer(x, w).tobytes()


def test_arrays_are_updated_in_place_as_without() -> None:
    plates = [np.zeros((30, 30)) for _ in range(2)]
    for plate in plates:
        plate[0] = 100.0
    plain = relax(plates[0], 0.01)
    with dsl.profile():
        assert relax(plates[1], 0.01) == plain
    assert plates[0].tobytes() == plates[1].tobytes()


def test_off_means_the_built_in_takes_calls_again() -> None:
    x, w = np.ones((40, 30)), np.ones((30, 20))
    layer(x, w)
    built_in = type(layer).__call__
    before = layer.cache_info()
    with dsl.profile():
        assert entry.SLOW.value == 1
        layer(x, w)
    assert events.LOG is None
    assert entry.SLOW.value == 0
    assert type(layer).__call__ is built_in
    (taker,) = layer._builtins.made[-1:]
    hits = entry.hits(taker)
    layer(x, w)
    assert entry.hits(taker) == hits + 1
    assert layer.cache_info() == (before.hits + 2, before.misses, before.entries)


def test_the_first_call_of_a_function_is_one_call() -> None:
    fresh = dsl.jit(lambda x: x + 1)
    with dsl.profile() as p:
        fresh(np.ones(3))
        fresh(np.ones(3))
    assert "2 calls and steps" in str(p)
    assert fresh.cache_info() == (1, 1, 1)


def test_programs_have_no_clocks_unless_somebody_profiles() -> None:
    x, w = np.ones((40, 30)), np.ones((30, 20))
    native = layer.lower(x, w).executable.native
    text = native.text
    with dsl.profile():
        layer(x, w)
    assert native.text == text
    assert "dsl_clock" not in text
    assert "dsl_clock" in native.timed().text
    assert layer.ir(x, w, stage="llvm") == text


def test_profiles_may_overlap_and_each_has_its_own_time() -> None:
    with dsl.profile() as outer:
        profile_of_layer()
        inner = profile_of_layer(calls=1)
    assert len(of_kind(inner, "call")) == 1
    assert len(of_kind(outer, "call")) == 3
    assert inner.events[0].start < outer.events[-1].start
    assert events.LOG is None


def test_a_profile_that_is_on_is_not_started_again() -> None:
    with dsl.profile() as p:
        with pytest.raises(DslError, match="this profile is on already"), p:
            pass
        layer(np.ones((4, 3)), np.ones((3, 2)))
        assert repr(p) == "<dsl.profile: on>"
        assert of_kind(p, "call")
    assert len(of_kind(p, "call")) == 1


def test_a_path_without_a_directory_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="there is no directory"),
        dsl.profile(tmp_path / "a" / "b"),
    ):
        pytest.fail("not reached")
    assert events.LOG is None


def test_events_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LIMIT", 3)
    p = profile_of_layer(calls=5)
    assert len(p.events) > 0
    assert p.dropped == 7
    assert "7 events are missing" in p.table()


def test_the_other_options_still_count_while_profiling() -> None:
    x = np.ones((4, 3))
    with dsl.profile() as p:
        with config.override(disable_jit=True):
            layer(x, np.ones((3, 2)))
        with config.override(debug_nans=True), pytest.raises(FloatingPointError):
            dsl.jit(lambda x: np.log(-x))(x)
        dsl.jit(lambda x: layer(x, x.T))(x)  # traced along, not called
    assert [event.name for event in of_kind(p, "call")] == ["<lambda>", "<lambda>"]


def test_profiling_is_cheap() -> None:
    """Well below 50 µs a call: 5 % of a step of a millisecond."""
    x, w = np.ones((4, 3)), np.ones((3, 2))

    def fastest() -> float:
        best = 1.0
        for _ in range(200):
            start = time.perf_counter()
            layer(x, w)
            best = min(best, time.perf_counter() - start)
        return best

    layer(x, w)
    plain = fastest()
    with dsl.profile():
        layer(x, w)
        profiled = fastest()
    assert profiled - plain < 50e-6


# --- The environment -----------------------------------------------------------------------------

SCRIPT = """\
import numpy as np
import dsl


@dsl.jit
def twice(x):
    return np.sin(x) * 2


twice(np.ones(300))
"""


def run_script(tmp_path: Path, **environment: str) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    paths = [str(Path(dsl.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, str(file)]
    variables = os.environ | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_environment_asks_for_a_profile_of_the_process(tmp_path: Path) -> None:
    run_script(tmp_path, DSL_TRACE=str(tmp_path / "new" / "trace.json"))
    listed = json.loads((tmp_path / "new" / "trace.json").read_text())["traceEvents"]
    assert {"twice", "sin multiply", "trace"} <= {event["name"] for event in listed}
    assert any(event.get("args", {}).get("name") == "dsl script.py" for event in listed)


def test_a_directory_receives_a_file_for_each_process(tmp_path: Path) -> None:
    run_script(tmp_path, DSL_TRACE=str(tmp_path / "traces"))
    run_script(tmp_path, DSL_TRACE=str(tmp_path / "traces"))
    files = sorted((tmp_path / "traces").iterdir())
    assert len(files) == 2
    assert all(json.loads(file.read_text())["traceEvents"] for file in files)


def test_the_option_is_a_profile_for_as_long_as_it_is_set(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    with config.override(trace=str(file)):
        profile_of_layer(calls=1)
        assert not file.exists()
    assert events.LOG is None
    listed = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert "layer" in {event["name"] for event in listed}


# --- The table and the picture -------------------------------------------------------------------


def record(kind: str, name: str, start: int, end: int, row: int = 0, data: Any = None) -> Record:
    return Record(kind, name, start, end, row, None, data)


def test_waits_that_overlap_get_rows_of_their_own() -> None:
    row = events.row()
    pending = [
        record("pending", "dequeue", a, b, row) for a, b in ((10, 50), (20, 30), (35, 60), (55, 70))
    ]
    found = make_events(pending, 0)
    assert [event.row for event in found] == [f"MainThread waits{k}" for k in ("", " 2", " 2", "")]


def test_what_began_before_the_profile_is_left_out() -> None:
    row = events.row()
    records = [record("call", "f", 5, 20, row), record("call", "g", 12, 15, row)]
    assert [event.name for event in make_events(records, 10)] == ["g"]


def test_sites_that_did_not_run_are_no_events() -> None:
    sites = [Site("exp", "kernel", (), -1, False, 8), Site("log", "kernel", (), -1, False, 8)]
    words = np.array([100, 300, 0, 0, 0, 0, 50, 400], np.int64).tobytes()
    found = make_events([record("program", "f", 50, 400, events.row(), (sites, words))], 0)
    assert [(event.name, round(1e9 * event.seconds)) for event in found] == [
        ("f", 350),
        ("exp", 200),
    ]


def test_the_table_adds_up() -> None:
    p = profile_of_layer(calls=4)
    found = {cost.name: cost for cost in p.costs()}
    matmul = found["matmul"]
    assert matmul.calls == 4
    assert matmul.total == pytest.approx(sum(e.seconds for e in of_kind(p, "library")))
    bytes = 8 * (40 * 30 + 30 * 20 + 40 * 20)
    assert matmul.bytes == 4 * bytes
    assert matmul.gigabytes_per_second == pytest.approx(4e-9 * bytes / matmul.total)
    assert [c.total for c in p.costs()] == sorted((c.total for c in p.costs()), reverse=True)
    text = p.table()
    shares = [float(line.split("%")[0].split()[-1]) for line in text.splitlines() if "%" in line]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert str(p) == text
    assert "… and 1 more" in p.table(n=1)


def test_the_table_of_nothing() -> None:
    with dsl.profile() as p:
        pass
    assert "0 calls and steps" in str(p)
    assert p.costs() == costs([]) == []
    assert ElementTree.fromstring(p.svg()).tag.endswith("svg")


def test_times_are_shown_in_units_that_suit_them() -> None:
    times = (0.0, 5e-9, 1.5e-6, 0.25, 2.0, 12345.0)
    assert [shown_time(t) for t in times] == ["0 ns", "5 ns", "1.5 µs", "250 ms", "2 s", "12345 s"]


def test_the_picture_is_whole_and_names_its_boxes(tmp_path: Path) -> None:
    p = profile_of_layer()
    p.save(tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    titles = [element.text or "" for element in root.iter() if element.tag.endswith("title")]
    assert any(title.startswith("matmul (library)") and HERE in title for title in titles)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"MainThread", "kernel", "library"} <= set(texts)
    assert str(Path(__file__).parent) not in p.svg()
    assert p._repr_html_().startswith("<div><svg")
