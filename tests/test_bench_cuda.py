"""`python -m dsl bench cuda`: what the emulator and ptxas tell of kernels, and the race, with stand-ins for a GPU and CuPy."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.cuda import toolkit
from dsl.commands import bench
from dsl.commands.bench import cuda, cuda_static
from dsl.commands.bench.cuda_static import describe_case
from dsl.commands.bench.flops import count_flops
from dsl.commands.bench.gpu_case import GpuCase
from dsl.commands.bench.load import gpu_cases
from dsl.commands.bench.roofline import GPUS, Work
from dsl.errors import ConfigError


def case_named(name: str) -> GpuCase:
    return next(case for case in gpu_cases() if case.name == name)


def add(x: Any, y: Any) -> Any:
    return x + y


def transposed_sum(x: Any) -> Any:
    return x + x.T


def looped(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x * 0.5
    return x


def made_up(**changes: Any) -> GpuCase:
    given: dict[str, Any] = {
        "name": "made-up",
        "row": "elementwise",
        "program": add,
        "inputs": lambda rng, n: (rng.random(n), rng.random(n)),
        "size": (8192,),
        "small": (4096,),
        "tiny": (16,),
        "bar": 1.05,
    }
    return GpuCase(**(given | changes))


# --- The cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", gpu_cases(), ids=lambda case: case.name)
def test_every_case_runs_in_numpy_at_a_tiny_size(case: GpuCase) -> None:
    inputs, kept = case.make_inputs(quick=True), case.make_inputs(quick=True)
    case.program(*inputs)
    assert all(np.array_equal(x, y) for x, y in zip(inputs, kept))
    assert case.input_bytes(inputs) > 0
    assert {"numpy", "cupy", "dsl"} <= case.ways.keys()


def test_names_are_unique() -> None:
    names = [case.name for case in gpu_cases()]
    assert len(set(names)) == len(names)


# --- Without a GPU -------------------------------------------------------------------------------


def test_a_sum_of_arrays_moves_just_what_it_must() -> None:
    found = describe_case(made_up())
    (kernel,) = found.kernels.values()
    assert (found.least, found.moved, found.touched) == (3 * 4096 * 8,) * 3
    assert (kernel.launches, kernel.coalescing, kernel.block) == (1, 1.0, 256)
    assert (found.error, found.missed, found.other, found.host) == ("", False, False, [])
    assert found.flops == {"float64": 8192}
    assert found.work == Work(3 * 65536, 3 * 65536, 0, 8192, found.work.instructions)


def test_a_result_that_is_not_numpys_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = made_up().small_inputs()
    wrong = cuda_static._compared(made_up(), inputs, [inputs[0]])
    assert wrong == "wrong: 100 % of the elements differ"
    case = made_up(tolerance=1e-30, program=np.sin, own=lambda x: np.sin(x) + 1e-6,
                   inputs=lambda rng, n: (rng.random(n),))  # fmt: skip
    assert cuda_static.run_static([case], None) == 1
    assert "Not NumPy's result: made-up wrong" in capsys.readouterr().out


def test_a_program_that_fails_is_said_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = made_up(name="bad", program=lambda x, y: x + y.no_such_thing)
    assert cuda_static.run_static([bad, made_up()], None) == 1
    out = capsys.readouterr().out
    assert "bad failed: " in out
    assert "At most 1.05 of the least bytes: 1 of 1" in out


def test_more_than_the_least_bytes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    case = made_up(
        program=transposed_sum, inputs=lambda rng, n: (rng.random((n, n)),), size=(64,), small=(64,)
    )
    found = describe_case(case)
    assert found.ratio == pytest.approx(1.5)
    assert found.missed
    assert cuda_static.run_static([case], None) == 0
    out = capsys.readouterr().out
    assert "0 of 1; more: made-up 1.50" in out
    assert "not measurements" in out


def test_of_what_lanes_of_a_warp_read_at_once_one_counts() -> None:
    case = made_up(inputs=lambda rng, n: (rng.random((64, n // 64)), rng.random((64, 1))))
    found = describe_case(case)
    assert 1.0 < found.ratio < 1.5


def scaled_rows(x: Any, gain: Any, bias: Any) -> Any:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1) * gain + bias


def weighted_rows(x: Any, weight: Any) -> Any:
    return (x * weight).sum(axis=1)


@pytest.mark.parametrize(
    ("program", "others"), [(scaled_rows, 2), (weighted_rows, 1)], ids=["scaled", "weighted"]
)
def test_what_rows_share_is_read_once_by_each_block(program: Any, others: int) -> None:
    case = made_up(
        program=program, size=(4096, 512), small=(4096, 512), tiny=(3, 4),
        inputs=lambda rng, rows, n: tuple(rng.random(s) for s in ((rows, n), *[(n,)] * others)),
    )  # fmt: skip
    found = describe_case(case)
    (kernel,) = found.kernels.values()
    least = found.least - others * 512 * 8
    assert kernel.blocks == 128
    assert (found.error, found.moved) == ("", least + kernel.blocks * others * 512 * 8)
    assert not found.missed


@pytest.mark.parametrize(("axis", "blocks"), [(0, 43), (1, 128)])
def test_layer_norm_moves_hardly_more_than_it_must(axis: int, blocks: int) -> None:
    found = describe_case(case_named(f"layernorm-axis{axis}-f32"))
    (kernel,) = found.kernels.values()
    assert found.ratio <= 1.05
    assert (kernel.blocks, kernel.coalescing) == (blocks, 1.0)
    assert all(u.spill_stores + u.spill_loads == 0 for u in kernel.usage.values())


def test_a_loop_counts_each_trip() -> None:
    case = made_up(
        program=looped, inputs=lambda rng, n, trips: (rng.random(n), trips), size=(8192, 5),
        small=(4096, 5), tiny=(4, 2), passes=5,
    )  # fmt: skip
    found = describe_case(case)
    assert sum(kernel.launches for kernel in found.kernels.values()) == 5
    assert found.ratio == pytest.approx(1.0)
    assert found.flops == {"float64": 5 * 8192}


def test_the_arithmetic_of_a_graph() -> None:
    x, y = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)

    def program(x: Any, y: Any) -> Any:
        return np.exp(x @ y).sum(axis=0)

    graph = dsl.jit(program).lower(x, y).device_program.graph
    assert count_flops(graph) == {"float32": 2 * 8 * 16 * 4 + 8 * 4 + 8 * 4}


def test_a_roof_is_the_slowest_of_memory_arithmetic_and_instructions() -> None:
    t4 = GPUS[0]
    assert Work(nbytes=320e9).seconds(t4) == 1.0
    slow = Work(nbytes=1.0, float64=t4.float64 * 2)
    assert (slow.seconds(t4), slow.bound(t4)) == (2.0, "arithmetic")
    # 40 multiprocessors, 4 schedulers, 1.59 GHz
    assert t4.instructions == pytest.approx(40 * 4 * 1.59e9, rel=0.01)
    assert Work(least=4, float32=2).intensity == 0.5


def test_the_table_and_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "static.json"
    words = ["cuda", "--static", "--case", "transpose", "--case", "sum-rows", "--json", str(file)]
    assert bench.run(words) == 0
    out = capsys.readouterr().out
    assert "estimates, not measurements" in out
    assert "At most 1.05 of the least bytes: 1 of 1" in out
    found = json.loads(file.read_text())
    assert [case["name"] for case in found["cases"]] == ["sum-rows-f32", "transpose"]
    case = found["cases"][0]
    assert case["met"] is True
    assert case["same_kernels"] is True
    assert case["estimated_seconds"].keys() == {"T4", "A100", "H100", "B200"}
    usage = case["kernels"][0]["usage"]
    if toolkit.ptxas() is not None:
        assert usage.keys() == {"sm_75", "sm_80", "sm_90", "sm_100"}
        assert all(u["registers"] > 0 and u["spill_bytes"] == 0 for u in usage.values())


def test_without_ptxas_its_columns_are_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolkit, "find_ptxas", lambda: None)
    assert cuda_static.run_static([made_up()], None) == 0
    out = capsys.readouterr().out
    assert "There is no ptxas, so registers of sm_75, sm_80, sm_90, sm_100 are unknown" in out
    assert "Spills" not in out


# --- The race ------------------------------------------------------------------------------------


def test_without_a_gpu_one_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsl.errors import DeviceError

    def none(name: Any) -> Any:
        raise DeviceError("there is no NVIDIA driver on this machine", remedy="install one")

    monkeypatch.setattr(cuda, "gpu", none)
    with pytest.raises(ConfigError) as caught:
        bench.run(["cuda"])
    assert str(caught.value).splitlines() == [
        "this benchmark runs on an NVIDIA GPU: there is no NVIDIA driver on this machine",
        "Fix: `python -m dsl bench cuda --static` tells of the kernels what needs no GPU",
    ]


def test_the_list_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["cuda", "--list", "--case", "softmax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["softmax-axis1-f32", "softmax-axis0-f32"]
    with pytest.raises(ConfigError, match="no case matches nothing-like-it"):
        bench.run(["cuda", "--static", "--case", "nothing-like-it"])
    with pytest.raises(ConfigError, match="--static is for kernels"):
        bench.run(["--static"])


class FakeCupy(types.ModuleType):
    """NumPy under the name of CuPy, which counts how often somebody waits."""

    def __init__(self) -> None:
        super().__init__("cupy")
        vars(self).update({name: value for name, value in vars(np).items() if name[:2] != "__"})
        self.__version__, self.waits = "14.2.0", 0
        self.__spec__ = types.SimpleNamespace(name="cupy")  # type: ignore[assignment]
        self.asnumpy = np.asarray
        stream = types.SimpleNamespace(synchronize=self._wait)
        self.cuda = types.SimpleNamespace(get_current_stream=lambda: stream)

    def _wait(self) -> None:
        self.waits += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A GPU that is the emulator, and CuPy that is NumPy."""
    made = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(cuda, "DEVICE", "cuda-emulator:0")
    monkeypatch.setattr(cuda, "gpu", lambda name: None)
    return made


def test_the_race_with_stand_ins(
    fake: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    words = [
        "cuda",
        "--quick",
        "--peers",
        "numpy,cupy",
        "--case",
        "polynomial-f32",
        "--case",
        "sum-r",
    ]
    assert bench.run([*words, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split() == ["case", "dsl", "numpy", "cupy", "targets"]
    found = json.loads(file.read_text())
    assert found["device"] == "cuda-emulator:0"
    assert found["versions"].keys() == {"python", "dsl", "numpy", "cupy"}
    assert [case["name"] for case in found["cases"]] == ["polynomial-f32", "sum-rows-f32"]
    for case in found["cases"]:
        assert case["checked_against"] == "numpy"
        assert case["ratios"].keys() == {"numpy", "cupy"}
        assert not any(contender["error"] for contender in case["contenders"].values())
    assert fake.waits >= 4  # dsl and CuPy, each time


def test_a_wrong_result_fails_the_run(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda.CudaDsl, "take", lambda self, result: np.asarray(result) + 1)
    words = ["cuda", "--quick", "--peers", "numpy", "--case", "polynomial-f32"]
    assert bench.run(words) == 1
    assert "polynomial-f32: dsl wrong: 100 % of the elements differ" in capsys.readouterr().out


def test_peers_without_a_gpu_are_left_out_and_named(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = types.SimpleNamespace(update=lambda *args: None)
    jax = types.ModuleType("jax")
    vars(jax).update(config=config, default_backend=lambda: "cpu", __spec__=fake.__spec__)
    torch = types.ModuleType("torch")
    vars(torch).update(
        set_num_threads=lambda n: None, set_grad_enabled=lambda on: None, __spec__=fake.__spec__,
        cuda=types.SimpleNamespace(is_available=lambda: False),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", types.ModuleType("jax.numpy"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cuda.OnGpu, "module", "no_such_module")
    words = ["cuda", "--quick", "--peers", "numpy,cupy,jax,torch", "--case", "polynomial-f32"]
    assert bench.run(words) == 0
    left_out = "Left out: cupy (not installed), jax (jax sees no GPU), torch (torch sees no GPU)"
    assert left_out in capsys.readouterr().err
    with pytest.raises(ConfigError, match="there is no peer 'matlab'; there are: numpy, cupy"):
        bench.run(["cuda", "--peers", "matlab"])


class FakeTensor:
    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device

    def to(self, device: str) -> FakeTensor:
        return FakeTensor(self.array, device)

    def cpu(self) -> FakeTensor:
        return self.to("cpu")

    def numpy(self) -> np.ndarray:
        assert self.device == "cpu"
        return self.array


def test_torch_gets_tensors_on_the_gpu_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    torch = types.ModuleType("torch")
    vars(torch).update(
        set_num_threads=lambda n: None, set_grad_enabled=lambda on: None, from_numpy=FakeTensor,
        cuda=types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: waits.append(1)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    peer = cuda.CudaTorch()
    given = peer.give(np.arange(3))
    assert given.device == "cuda:0"
    assert peer.take(peer.wait(given)).tolist() == [0, 1, 2]
    assert (peer.give(5), waits) == (5, [1])
    assert peer.call_text(["a0"], given) == "wait(call(a0))"
