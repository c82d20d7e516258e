"""Recordings of programs on a GPU, copies that are not waited for, arrays of a GPU in collectives, NaNs and profiles: on the
emulator, and with a stand-in for CuPy.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mpirun
import numpy as np
import pytest
from fake_cupy import Fake
from hypothesis import given
from random_programs import arguments, programs
from test_programs import check_same
from test_random_programs import load, randomly

import dsl
from dsl.codegen.cuda import devices, recording
from dsl.codegen.cuda.cupy_gpu import CupyGpu
from dsl.codegen.cuda.device import Gpu, Part
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.executable import DeviceExecutable
from dsl.codegen.cuda.program import DeviceProgram
from dsl.codegen.cuda.recording import Recorded, Recording
from dsl.config import config
from dsl.errors import AliasError, DeviceError, NanError
from dsl.ir.devices import DeviceName

PTX = (
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry add(.param .u64 p) { .reg .b64 %r; .reg .b32 %x;\n"
    "ld.param.u64 %r, [p]; ld.global.u32 %x, [%r]; add.u32 %x, %x, 1; st.global.u32 [%r], %x; ret; }\n"
)
ONE = (1, 1, 1)
I4 = np.dtype(np.int32)
on_ranks = pytest.mark.skipif(bool(mpirun.missing()), reason=mpirun.missing() or "no reason")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


class Counting(EmulatedGpu):
    """Notes what is copied and waited for."""

    def __init__(self, index: int = 5) -> None:
        super().__init__(index)
        self.notes: list[str] = []

    def upload(self, array: np.ndarray, buffer: Any, offset: int = 0) -> None:
        self.notes.append("upload")
        super().upload(array, buffer, offset)

    def download_all(self, parts: Sequence[Part]) -> list[np.ndarray]:
        self.notes.append(f"download {len(parts)}")
        return super().download_all(parts)

    def move(self, *args: Any) -> None:
        if self._capture is None:
            self.notes.append("move")
        super().move(*args)

    def synchronize(self) -> None:
        self.notes.append("synchronize")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setitem(devices._gpus, ("cuda-emulator", 5), made)
    return made


@pytest.fixture
def recorded() -> Iterator[None]:
    with config.override(cuda_graphs="on"):
        yield


# -- capture on the emulator -----------------------------------------------------------------------------------------


def test_what_is_captured_runs_when_it_is_launched() -> None:
    gpu = EmulatedGpu(4)
    a, b = gpu.allocate(4), gpu.allocate(4)
    gpu.upload(np.zeros(1, I4), a)
    with gpu.capture() as graph:
        gpu.launch(PTX, "add", ONE, ONE, [a.pointer])
        gpu.move(a, 0, b, 0, 4)
        inner = gpu.allocate(8)
    assert graph.keep == [inner]
    assert gpu.download(a, 0, I4, 1) == 0
    graph.launch()
    graph.launch()
    assert gpu.download_all([Part(a, 0, I4, 1), Part(b, 0, I4, 1)]) == [2, 2]


@pytest.fixture(params=["emulated", "by CuPy"])
def either_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    if request.param == "emulated":
        return EmulatedGpu(4)
    monkeypatch.setitem(sys.modules, "cupy", Fake())
    return CupyGpu()


def test_what_waits_cannot_be_captured(either_gpu: Gpu) -> None:
    gpu = either_gpu
    buffer = gpu.allocate(8)
    acts = {
        "an upload": lambda: gpu.upload(np.ones(1), buffer),
        "a download": lambda: gpu.download(buffer, 0, np.dtype("f8"), 1),
        "waiting": gpu.synchronize,
        "another recording": lambda: gpu.capture().__enter__(),
    }
    for name, act in acts.items():
        graph = gpu.capture()
        with pytest.raises(DeviceError, match=f"{name} cannot be part of a CUDA graph"), graph:
            act()
        with pytest.raises(DeviceError, match="not recorded to its end"):
            graph.launch()
    gpu.synchronize()


# -- what is recorded ------------------------------------------------------------------------------------------------


def step(w, x, k):
    h = x
    for _ in range(70):
        h = np.tanh(h @ w) * k
    x[0] = 7.0
    return h, h.sum(), w


def recordings_of(function: Any, *args: Any) -> list[Recording]:
    known = function.lower(*args).executable.program.recordings._known
    return [found for found in known.values() if found is not None]


def test_a_program_is_recorded_at_its_second_call(recorded: None, counting: Counting) -> None:
    f, w = dsl.jit(step, device="cuda-emulator:5"), numbers(5, 5)
    made = []
    for seed in range(4):
        x = numbers(3, 5, seed=seed)
        mine, plain = x.copy(), x.copy()
        for found, expected in zip(f(w, mine, 0.9), step(w, plain, 0.9), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10)
        np.testing.assert_array_equal(mine, plain)
        made.append(len(recordings_of(f, w, x, 0.9)))
    assert made == [0, 1, 1, 1]
    assert "recorded as a CUDA graph at the second call" in f.ir(w, x, 0.9, stage="kernels")
    assert "recorded as a CUDA graph at the second call" in f.explain()


def test_a_number_is_part_of_the_recording(recorded: None) -> None:
    f, x = dsl.jit(lambda x, k: x * k, device="cuda-emulator:0"), numbers(4)
    for k in (2.0, 3.0, 2.0, 3.0, 2.0, 3.0):
        np.testing.assert_array_equal(f(x, k), x * k)
    assert len(recordings_of(f, x, 2.0)) == 2


def test_numbers_that_always_differ_are_not_recorded(recorded: None) -> None:
    f, x = dsl.jit(lambda x, k: x * k, device="cuda-emulator:0"), numbers(4)
    for k in range(recording._SEEN + 5):
        np.testing.assert_array_equal(f(x, float(k)), x * k)
    assert recordings_of(f, x, 2.0) == []
    known = f.lower(x, 2.0).executable.program.recordings._known
    assert len(known) == recording._SEEN


def test_a_program_has_few_recordings(recorded: None) -> None:
    f = dsl.jit(lambda x: np.exp(x).sum(), dynamic=True, device="cuda-emulator:0")
    for size in (2, 3, 4, 5, 6, 7) * 3:
        x = numbers(size)
        np.testing.assert_allclose(f(x), np.exp(x).sum(), rtol=1e-12)
    assert len(recordings_of(f, x)) == recording._MOST


def test_the_memory_of_a_loop_is_used_again(recorded: None) -> None:
    f, w = dsl.jit(step, device="cuda-emulator:0"), numbers(5, 5)
    for _ in range(2):
        f(w, numbers(3, 5), 1.0)
    (found,) = recordings_of(f, w, numbers(3, 5), 1.0)
    assert len(found.tape.calls) > 140
    assert len(found.tape.blocks) < 10


def test_arrays_of_the_device_are_copied_within_it(recorded: None, counting: Counting) -> None:
    f = dsl.jit(lambda x: (np.sin(x), x * 2))
    x = dsl.cuda.to_device(numbers(9), "cuda-emulator:5")
    for _ in range(2):
        f(x)
    counting.notes.clear()
    first = f(x)
    assert counting.notes == ["move"] * 3
    second = f(dsl.cuda.to_device(np.zeros(9), "cuda-emulator:5"))
    np.testing.assert_array_equal(dsl.cuda.to_host(first[1]), numbers(9) * 2)
    np.testing.assert_array_equal(dsl.cuda.to_host(second[1]), 0)


def test_errors_are_found_in_a_recording(recorded: None) -> None:
    f, x = dsl.jit(lambda x, i: x[i] * 2, device="cuda-emulator:0"), np.arange(3.0)
    right, wrong = np.array([0, 2]), np.array([0, 9])
    for _ in range(3):
        np.testing.assert_array_equal(f(x, right), [0, 4])
    assert recordings_of(f, x, right)
    for _ in range(2):
        with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 3"):
            f(x, wrong)
        np.testing.assert_array_equal(f(x, right), [0, 4])


def test_threads_share_a_recording(recorded: None) -> None:
    f = dsl.jit(lambda x: np.cumsum(np.sin(x) * 2), device="cuda-emulator:0")
    for _ in range(2):
        f(numbers(50))
    found: dict[int, Any] = {}

    def call(k: int) -> None:
        found[k] = [f(numbers(50, seed=k)) for _ in range(5)]

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        for got in found[k]:
            np.testing.assert_allclose(got, np.cumsum(np.sin(numbers(50, seed=k)) * 2))


def test_a_recording_gives_its_memory_back(recorded: None) -> None:
    device, x = EmulatedGpu(8), numbers(64)
    program = DeviceProgram(dsl.jit(lambda x: np.exp(x) @ x).lower(x).optimized)
    for _ in range(3):
        program(device, [x])
    assert device.memory.in_use > 0
    del program
    assert device.memory.in_use == 0


# -- what is not -----------------------------------------------------------------------------------------------------


def until_small(x):
    while x.sum() > 1.0:
        x = x * 0.5
    return x


def chosen(x):
    return np.exp(x) if x.sum() > 0 else x * 2


def moved(x):
    k = np.argmax(x)
    return x[k : k + 1] * 2


def repeated(x):
    for _ in range(int(x.sum())):
        x = np.sin(x)
    return x


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (lambda x: np.linalg.solve(x @ x.T, x), (numbers(3, 3),), r"`\w+` runs on the host"),
        (lambda x: np.nonzero(x)[0], (numbers(4),), "how many elements `nonzero` finds"),
        (until_small, (np.abs(numbers(4)),), "the host reads when a `while` ends"),
        (chosen, (numbers(4),), "which side of a branch is taken"),
        (moved, (numbers(4),), "the host reads a size, which `maximum` computes"),
    ],
    ids=["host", "count", "while", "branch", "size"],
)
def test_what_the_host_reads_is_not_recorded(
    recorded: None, function: Any, args: tuple[Any, ...], reason: str
) -> None:
    f = dsl.jit(function, device="cuda-emulator:0")
    for _ in range(3):
        np.testing.assert_allclose(f(*args), function(*args))
    listing = f.ir(*args, stage="kernels")
    assert "not recorded as a CUDA graph: " in listing
    assert re.search(reason, listing), listing
    assert recordings_of(f, *args) == []


def test_where_a_slice_begins_is_read() -> None:
    def double(x, k):
        x[k:] = x[k:] * 2

    graph = dsl.jit(double).lower(numbers(4), 2).optimized
    found = [text for node in graph.nodes for text in recording._of_start(node, lambda v: False)]
    assert found == [
        "the host reads where a `dynamic_slice` begins",
        "the host reads where a `update_dynamic_slice` begins",
    ]


def test_what_only_the_tape_sees_is_refused_there(
    recorded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_reasons", lambda body, on_host: iter(()))
    f, x = dsl.jit(chosen, device="cuda-emulator:0"), numbers(4)
    for _ in range(3):
        np.testing.assert_allclose(f(x), chosen(x))
    assert "the host reads what a kernel computes" in f.ir(x, stage="kernels")


def test_large_arrays_and_long_loops_are_not_recorded(
    recorded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_WORTH", 100)
    f, x = dsl.jit(lambda x: x * 2, device="cuda-emulator:0"), numbers(100)
    for _ in range(3):
        f(x)
    assert "copying its arguments and results costs more" in f.explain()
    monkeypatch.setattr(recording, "_LONGEST", 50)
    g = dsl.jit(step, device="cuda-emulator:0")
    for _ in range(3):
        g(numbers(5, 5), numbers(3, 5), 1.0)
    assert "it has more than 50 launches" in g.explain()


def test_without_the_option_nothing_is_recorded() -> None:
    f, x = dsl.jit(lambda x: x * 2, device="cuda-emulator:0"), numbers(4)
    for _ in range(3):
        f(x)
    assert recordings_of(f, x) == []
    assert "the option `cuda_graphs` is off" in f.explain()
    assert "CUDA" not in (g := dsl.jit(lambda x: x)).explain()
    assert g(1) == 1


# -- loops -----------------------------------------------------------------------------------------------------------


def settle(x, i):
    trips = 0
    while x.sum() > 1.0:
        for k in range(70):
            x = x * 0.97 + x[i] * 1e-4 * k
        trips += 1
    return x, trips


def loops_in(body: Any) -> Iterator[Recorded]:
    for one, _ in body.steps:
        if isinstance(one, Recorded):
            yield one
        elif hasattr(one, "body"):
            yield from loops_in(one.body)


def test_a_loop_is_recorded_by_itself(recorded: None) -> None:
    f, x, i = dsl.jit(settle, device="cuda-emulator:0"), np.abs(numbers(40)) * 1e2, np.arange(40)
    for _ in range(2):
        found, trips = f(x, i)
        expected, count = settle(x, i)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert trips == count > 2
    program = f.lower(x, i).executable.program
    (loop,) = loops_in(program.lowering.body)
    assert any(loop.recordings._known.values())
    assert "loops that are, by themselves: 1" in f.ir(x, i, stage="kernels")
    with pytest.raises(IndexError, match="out of bounds"):
        f(x, np.full(40, 99))
    np.testing.assert_allclose(f(x, i)[0], expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@randomly(8)
@given(programs())
def test_random_programs(drawn: tuple[str, int]) -> None:
    text, seed = drawn
    f = dsl.jit(load(text), device="cuda-emulator:0")
    with config.override(cuda_graphs="on"):
        for _ in range(3):
            plain, mine = arguments(seed), arguments(seed)
            expected = load(text)(*plain)
            try:
                found = f(*mine)
            except AliasError:
                return
            check_same(found, expected, "result", np.float32)
            check_same(mine, plain, "arguments", np.float32)


# -- by CuPy ---------------------------------------------------------------------------------------------------------


def test_a_recording_by_cupy(recorded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in runs no kernels: what counts is the order of what is called."""
    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    x = numbers(6)
    graph = dsl.jit(lambda x: (np.sin(x), x.sum())).lower(x).optimized
    run = DeviceExecutable(graph, CupyGpu(), [False], [], [0, 1])
    mine = fake.array(x)
    run([mine])
    fake.calls.clear()
    run([mine])
    names = [name for name in fake.names() if name not in ("alloc", "record")]
    inside = names[names.index("begin_capture") : names.index("end_capture") + 1]
    assert inside == ["begin_capture", "launch", "end_capture"]
    fake.calls.clear()
    run([mine])
    names = [name for name in fake.names() if name != "alloc"]
    assert names == [
        "streamWaitEvent", "memcpyAsync", "graph launch", "memcpyAsync", "memcpyAsync", "record",
    ]  # fmt: skip


# -- copies ----------------------------------------------------------------------------------------------------------


def test_results_are_downloaded_together(counting: Counting) -> None:
    f = dsl.jit(lambda x, i: (x * 2, x.sum(), x[i]), device="cuda-emulator:5")
    counting.notes.clear()
    f(numbers(4), np.array([1, 2]))
    # two arguments and the flag go there; three results and the flag come back
    assert counting.notes == ["upload"] * 3 + ["download 4"]


def test_results_that_stay_are_not_waited_for(counting: Counting) -> None:
    x = dsl.cuda.to_device(numbers(4), "cuda-emulator:5")
    i = dsl.cuda.to_device(np.array([1, 2]), "cuda-emulator:5")
    f = dsl.jit(lambda x: (x * 2, x.sum()))
    counting.notes.clear()
    f(x)
    assert counting.notes == []
    g = dsl.jit(lambda x, i: x[i])
    counting.notes.clear()
    g(x, i)
    assert counting.notes == ["upload", "download 1"]  # the flag


def test_arguments_on_the_device_are_written_within_it(counting: Counting) -> None:
    def double(x):
        x[...] = x * 2

    x = dsl.cuda.to_device(np.arange(3.0), "cuda-emulator:5")
    counting.notes.clear()
    dsl.jit(double)(x)
    assert counting.notes == ["move"]
    np.testing.assert_array_equal(dsl.cuda.to_host(x), [0, 2, 4])


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_arguments_that_are_exchanged(graphs: str, gpu_name: str) -> None:
    def swap(x, y):
        x[...], y[...] = y.copy(), x.copy()

    f = dsl.jit(swap)
    x, y = (dsl.cuda.to_device(np.full(3, n), gpu_name) for n in (1.0, 2.0))
    with config.override(cuda_graphs=graphs):
        for _ in range(3):
            f(x, y)
    np.testing.assert_array_equal(dsl.cuda.to_host(x), 2)
    np.testing.assert_array_equal(dsl.cuda.to_host(y), 1)


def test_a_constant_is_not_handed_out(gpu_name: str) -> None:
    f = dsl.jit(lambda x: (x + 1, np.arange(3.0)))
    x = dsl.cuda.to_device(np.zeros(3), gpu_name)
    first = f(x)[1]
    dsl.jit(lambda y: y.__setitem__(0, 9.0))(first)
    np.testing.assert_array_equal(dsl.cuda.to_host(f(x)[1]), [0, 1, 2])


def test_copies_of_cupy_are_issued_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    gpu = CupyGpu()
    a, b = gpu.allocate(8), gpu.allocate(16)
    gpu.upload(np.ones(1), a)
    gpu.upload(np.arange(2.0), b)
    fake.calls.clear()
    found = gpu.download_all([Part(a, 0, np.dtype("f8"), 1), Part(b, 0, np.dtype("f8"), 2)])
    assert [x.tolist() for x in found] == [[1.0], [0.0, 1.0]]
    assert [n for n in fake.names() if n != "alloc_pinned_memory"] == [
        "memcpyAsync", "memcpyAsync", "synchronize",
    ]  # fmt: skip


def test_an_array_of_cupy_in_reverse_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsl.codegen.cuda.frame import on_host

    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    values = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(
        on_host(CupyGpu(), fake.array(values[::-1, ::-2])), values[::-1, ::-2]
    )


# -- ranks -----------------------------------------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize("how", ["staged", "direct"])
def test_collectives_on_arrays_of_a_gpu(how: str) -> None:
    mpirun.run("gpu_arrays", 2, how, deadline=120).check()


def test_a_rank_alone_may_pass_arrays_of_a_gpu() -> None:
    x = dsl.cuda.to_device(np.arange(3.0), "cuda-emulator:0")
    found = dsl.parallel.allreduce(x, "mean")
    assert found.dsl_device.endswith("cuda-emulator:0")
    np.testing.assert_array_equal(dsl.cuda.to_host(found), [0, 1, 2])


def test_ranks_of_one_machine_share_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Fake(devices=2))
    found = []
    for rank in range(4):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(rank))
        found.append(devices.own_index("cuda"))
    assert found == [0, 1, 0, 1]
    assert devices.own_index("cuda-emulator") == 0
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_RANK")
    assert devices.own_index("cuda") == 0


def test_a_mean_is_divided_on_the_device(gpu_name: str) -> None:
    from dsl.parallel.gpu_arrays import _divide

    x = dsl.cuda.to_device(np.arange(3.0, dtype=np.float32), gpu_name)
    found = dsl.cuda.to_host(_divide(x, 2))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [0, 0.5, 1])


# -- NaNs and profiles -----------------------------------------------------------------------------------------------


def test_nans_are_found_in_arrays_of_the_device(gpu_name: str) -> None:
    f = dsl.jit(lambda x: np.log(x) * 2)
    with config.override(debug_nans=True):
        good = f(dsl.cuda.to_device(np.ones(3), gpu_name))
        assert type(good) is not np.ndarray
        with (
            pytest.raises(NanError, match="`log` made the first NaN"),
            np.errstate(invalid="ignore"),
        ):
            f(dsl.cuda.to_device(np.array([1.0, -1.0]), gpu_name))


def test_a_profile_has_a_row_for_the_device(tmp_path: Path, gpu_name: str) -> None:
    f, x = dsl.jit(lambda x: np.exp(x).sum(), device=gpu_name), numbers(64)
    f(x)
    with dsl.profile() as profile:
        f(x)
    on_device = [event for event in profile.events if gpu_name in event.row]
    assert [event.kind for event in on_device] == ["copy", "kernel", "wait"]
    assert on_device[1].args["threads"] > 0
    profile.save(tmp_path / "trace.json")
    rows = [
        e["args"]["name"]
        for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if e["name"] == "thread_name"
    ]
    assert any(gpu_name in row for row in rows)
    assert str(profile)


def test_a_profile_shows_recordings(recorded: None) -> None:
    f, x = dsl.jit(lambda x: np.exp(x).sum(), device="cuda-emulator:0"), numbers(64)
    for _ in range(2):
        f(x)
    with dsl.profile() as profile:
        f(x)
    assert any(event.name.startswith("recording of") for event in profile.events)


def test_the_first_gpu_is_that_of_its_name() -> None:
    assert devices.gpu(DeviceName.parse("cuda-emulator")) is devices.gpu(
        DeviceName.parse("cuda-emulator:0")
    )
