"""GPUs by way of CuPy, on a stand-in for it: what is called, what is handed over, what errors say. No GPU is needed."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_cupy import NAMES, Fake, FakeError

from dsl.codegen.cuda import cupy_driver, cupy_gpu, interop, toolkit
from dsl.codegen.cuda.cupy_gpu import CupyGpu
from dsl.codegen.cuda.device import Gpu, Target
from dsl.commands import doctor
from dsl.errors import DeviceError, DeviceMemoryError, InternalError, UnsupportedError

PTX = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n"
ONE = (1, 1, 1)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def gpu(cupy: Fake) -> CupyGpu:
    made = CupyGpu()
    cupy.calls.clear()
    return made


# --- Memory and copies ---------------------------------------------------------------------------


def test_arrays_go_there_and_back(gpu: CupyGpu) -> None:
    buffer = gpu.allocate(80)
    values = np.arange(8.0)
    gpu.upload(values, buffer, 16)
    np.testing.assert_array_equal(gpu.download(buffer, 16, values.dtype, 8), values)
    gpu.move(buffer, 16, buffer, 0, 16)
    np.testing.assert_array_equal(gpu.download(buffer, 0, values.dtype, 2), [0, 1])


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16", "i1", "?", ml_dtypes.bfloat16])
def test_every_dtype_goes_there_and_back(gpu: CupyGpu, dtype: Any) -> None:
    values = np.array([0, 1, 1, 0]).astype(dtype)
    buffer = gpu.allocate(values.nbytes)
    gpu.upload(values, buffer)
    assert gpu.download(buffer, 0, values.dtype, 4).tolist() == values.tolist()


def test_a_small_upload_is_staged_and_not_waited_for(gpu: CupyGpu, cupy: Fake) -> None:
    gpu.upload(np.ones(700), gpu.allocate(5600))
    assert cupy.calls == [
        ("alloc", 5600, 0),
        ("alloc_pinned_memory", 8192),
        ("memcpyAsync", 5600, 1, 0),
        ("record", 0),
    ]


def test_pinned_memory_is_kept_until_the_copy_is_done(gpu: CupyGpu) -> None:
    buffer = gpu.allocate(8)
    for _ in range(3):
        gpu.upload(np.ones(1), buffer)
    assert len(gpu._staged) == 3
    for event, _ in gpu._staged:
        event.done = True
    gpu.upload(np.ones(1), buffer)
    assert len(gpu._staged) == 1


def test_a_large_upload_is_waited_for(
    gpu: CupyGpu, cupy: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_gpu, "_STAGED", 100)
    gpu.upload(np.ones(100), gpu.allocate(800))
    assert cupy.names() == ["alloc", "memcpyAsync", "synchronize"]


def test_without_pinned_memory_an_upload_is_waited_for(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["alloc_pinned_memory"] = FakeError(2, "cudaErrorMemoryAllocation: out of memory")
    buffer = gpu.allocate(8)
    gpu.upload(np.array([3.0]), buffer)
    assert cupy.names()[-2:] == ["memcpyAsync", "synchronize"]
    assert gpu.download(buffer, 0, np.dtype("f8"), 1) == [3.0]


def test_a_download_waits(gpu: CupyGpu, cupy: Fake) -> None:
    gpu.download(gpu.allocate(8), 0, np.dtype("f8"), 1)
    assert cupy.names()[-2:] == ["memcpyAsync", "synchronize"]


def test_nothing_is_copied_of_empty_arrays(gpu: CupyGpu, cupy: Fake) -> None:
    buffer = gpu.allocate(0)
    gpu.upload(np.empty((0, 3)), buffer)
    gpu.move(buffer, 0, buffer, 0, 0)
    assert gpu.download(buffer, 0, np.dtype("f4"), 0).size == 0
    assert buffer.pointer != 0
    assert "memcpyAsync" not in cupy.names()


def test_a_copy_outside_of_a_buffer_is_refused(gpu: CupyGpu) -> None:
    buffer = gpu.allocate(8)
    with pytest.raises(InternalError, match="bytes 8 to 16 of a buffer of 8 bytes"):
        gpu.upload(np.ones(1), buffer, 8)
    with pytest.raises(InternalError, match="bytes -8 to 0"):
        gpu.download(buffer, -8, np.dtype("f8"), 1)


def test_calls_are_made_with_the_device_current(cupy: Fake) -> None:
    CupyGpu(1).allocate(8)
    assert cupy.calls[-1] == ("alloc", 8, 1)
    assert cupy.current_device == 0


def test_free_memory_has_what_the_pool_can_hand_out_again(gpu: CupyGpu) -> None:
    assert gpu.free_memory() == (3_000_001_000, 8_000_000_000)


# --- Kernels -------------------------------------------------------------------------------------


def test_a_module_is_loaded_once(gpu: CupyGpu, cupy: Fake) -> None:
    for kernel in ("k", "k", "j"):
        gpu.launch(PTX, kernel, ONE, ONE, [])
    assert cupy.names() == ["load", "get_function", "launch", "launch", "get_function", "launch"]


def test_arguments_are_of_the_types_that_cupy_takes(gpu: CupyGpu, cupy: Fake) -> None:
    args = [2**63 + 8, np.float32(1.5), np.bool_(True), ml_dtypes.bfloat16(1.5)]
    gpu.launch(PTX, "k", (2, 1, 1), (32, 1, 1), args, shared=64)
    *_, (_, name, grid, block, given, shared, stream) = cupy.calls
    assert (name, grid, block, shared, stream) == ("k", (2, 1, 1), (32, 1, 1), 64, 0)
    assert given == [2**63 + 8, 1.5, True, 0x3FC0]
    assert [value.dtype.str for value in given] == ["<u8", "<f4", "|b1", "<u2"]


def test_launches_are_on_the_current_stream(gpu: CupyGpu, cupy: Fake) -> None:
    with cupy.cuda.Stream():
        gpu.launch(PTX, "k", ONE, ONE, [])
    assert cupy.calls[-1][-1] == 77


def test_a_grid_of_no_blocks_runs_nothing(gpu: CupyGpu, cupy: Fake) -> None:
    gpu.launch(PTX, "k", (0, 1, 1), ONE, [])
    assert cupy.calls == []


def test_more_shared_memory_than_usual_is_asked_for(gpu: CupyGpu, cupy: Fake) -> None:
    gpu.launch(PTX, "k", ONE, ONE, [], shared=49152)
    assert "funcSetAttribute" not in cupy.names()
    gpu.launch(PTX, "k", ONE, ONE, [], shared=49153)
    assert ("funcSetAttribute", 99, 8, 49153) in cupy.calls


# --- CUDA graphs ---------------------------------------------------------------------------------


def test_a_recording_is_launched_again_on_the_current_stream(gpu: CupyGpu, cupy: Fake) -> None:
    with gpu.capture() as graph:
        inner = gpu.allocate(8)
        gpu.launch(PTX, "k", ONE, ONE, [inner.pointer])
    assert cupy.names() == [
        "begin_capture", "alloc", "load", "get_function", "launch", "end_capture",
    ]  # fmt: skip
    assert cupy.calls[4][-1] == 77
    assert graph.keep == [inner]
    graph.launch()
    assert cupy.calls[-1] == ("graph launch", 0)
    assert len(cupy.streams) == 1


def test_a_recording_that_fails_is_thrown_away(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["end_capture"] = FakeError(901, "cudaErrorStreamCaptureInvalidated")
    graph = gpu.capture()
    with pytest.raises(KeyError), graph:
        raise KeyError("mine")
    assert len(cupy.streams) == 1
    with pytest.raises(DeviceError, match="not recorded to its end"):
        graph.launch()
    with (
        pytest.raises(DeviceError, match=r"cuda:0 failed while recording a CUDA graph: cudaError"),
        gpu.capture(),
    ):
        pass


def test_another_thread_is_not_recorded(gpu: CupyGpu) -> None:
    with gpu.capture():
        thread = threading.Thread(target=gpu.synchronize)
        thread.start()
        thread.join()
    gpu.synchronize()


# --- Arrays of others ----------------------------------------------------------------------------


class Interfaced:
    """An array that speaks the CUDA Array Interface, on the host's memory."""

    def __init__(self, values: np.ndarray, **more: Any) -> None:
        self.values = values
        self.__cuda_array_interface__ = {
            "shape": values.shape, "typestr": values.dtype.str, "data": (values.ctypes.data, False),
            "strides": values.strides, "version": 3, **more,
        }  # fmt: skip


class Packed:
    """An array that speaks DLPack, as being on some device."""

    def __init__(self, values: np.ndarray, device: tuple[int, int] = (2, 0)) -> None:
        self.values, self.device, self.asked = values, device, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return types.SimpleNamespace(consume=lambda fake: fake.array(self.values))


def read(gpu: CupyGpu, array: Any) -> np.ndarray:
    """The elements of an array by what `take` tells of it."""
    told = gpu.take(array)
    raw = gpu.download(told.buffer, 0, np.dtype("u1"), told.buffer.nbytes)
    return np.ndarray(told.shape, told.dtype, raw, told.offset, told.strides)


VIEWS = {
    "plain": np.arange(12.0).reshape(3, 4),
    "transposed": np.arange(12.0).reshape(3, 4).T,
    "reversed": np.arange(12.0).reshape(3, 4)[::-1, ::-2],
    "broadcast": np.broadcast_to(np.arange(3.0), (2, 3)),
    "scalar": np.array(3.0),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["cupy", "interface", "dlpack"])
def test_arrays_of_any_layout_are_taken_where_they_are(
    gpu: CupyGpu, cupy: Fake, kind: str, view: str
) -> None:
    values = VIEWS[view]
    make = {"cupy": cupy.array, "interface": Interfaced, "dlpack": Packed}[kind]
    array = make(values)
    assert gpu.is_own(array)
    np.testing.assert_array_equal(read(gpu, array), values)
    told = gpu.take(array)
    assert told.buffer.pointer + told.offset == values.ctypes.data


def test_an_array_that_is_taken_is_kept_alive(gpu: CupyGpu) -> None:
    array = Interfaced(np.ones(3))
    assert gpu.take(array).buffer.keep is array


def test_contiguous_arrays_may_leave_out_their_strides(gpu: CupyGpu) -> None:
    told = gpu.take(Interfaced(np.ones((2, 3)), strides=None))
    assert told.strides == (24, 8)


@pytest.mark.parametrize("kind", ["interface", "dlpack"])
def test_empty_arrays_are_taken(gpu: CupyGpu, kind: str) -> None:
    values = np.empty((0, 3))
    array = Interfaced(values, data=(0, False)) if kind == "interface" else Packed(values)
    assert gpu.is_own(array)
    assert gpu.take(array).buffer.nbytes == 0


def test_the_stream_of_an_array_is_waited_for_on_the_gpu(gpu: CupyGpu, cupy: Fake) -> None:
    gpu.take(Interfaced(np.ones(3), stream=55))
    assert cupy.calls[-2:] == [("eventRecord", 4242, 55), ("streamWaitEvent", 1, 4242)]
    assert "synchronize" not in cupy.names()


@pytest.mark.parametrize("stream", [None, 1])
def test_nothing_is_waited_for_on_the_same_stream_or_without_one(
    gpu: CupyGpu, cupy: Fake, stream: int | None
) -> None:
    gpu.take(Interfaced(np.ones(3), stream=stream))
    assert "streamWaitEvent" not in cupy.names()


def test_the_stream_zero_is_refused(gpu: CupyGpu) -> None:
    with pytest.raises(DeviceError, match="says that its stream is 0"):
        gpu.take(Interfaced(np.ones(3), stream=0))


def test_dlpack_is_told_the_stream_that_will_read(gpu: CupyGpu, cupy: Fake) -> None:
    array = Packed(np.ones(3))
    gpu.take(array)
    assert array.asked == [{"stream": 1, "max_version": (1, 0)}]
    with cupy.cuda.Stream():
        gpu.take(array)
    assert array.asked[1]["stream"] == 77


def test_dlpack_of_old_is_understood(gpu: CupyGpu) -> None:
    class Old(Packed):
        def __dlpack__(self, *, stream: int) -> Any:
            return super().__dlpack__(stream=stream)

    assert gpu.take(Old(np.ones(3))).shape == (3,)


def test_what_is_readonly_says_so(gpu: CupyGpu) -> None:
    assert not gpu.take(Interfaced(np.ones(3))).readonly
    values = np.ones(3)
    assert gpu.take(Interfaced(values, data=(values.ctypes.data, True))).readonly


@pytest.mark.parametrize("writable", [True, False])
def test_a_capsule_says_whether_it_may_be_written(writable: bool) -> None:
    values = np.ones(3)
    values.flags.writeable = writable
    assert interop.is_readonly(values.__dlpack__(max_version=(1, 0))) is not writable
    if writable:
        assert not interop.is_readonly(values.__dlpack__())


def test_what_is_not_on_the_gpu_is_not_its_own(gpu: CupyGpu, cupy: Fake) -> None:
    others = [
        np.ones(3), np.float64(1.0), 1.0, "text", [1.0], None,
        Packed(np.ones(3), device=(1, 0)), Packed(np.ones(3), device=(2, 1)), cupy.array(np.ones(3), device=1),
    ]  # fmt: skip
    assert not any(map(gpu.is_own, others))


def test_an_array_of_another_gpu_is_refused(gpu: CupyGpu, cupy: Fake) -> None:
    with pytest.raises(DeviceError, match="is on cuda:1, but cuda:0 is asked") as error:
        gpu.take(cupy.array(np.ones(3), device=1))
    assert "copy it there first" in error.value.remedy
    with pytest.raises(DeviceError, match="an array of list is not on a GPU"):
        gpu.take([1.0])


def test_masks_and_dtypes_that_cupy_lacks_are_refused(gpu: CupyGpu, cupy: Fake) -> None:
    with pytest.raises(UnsupportedError, match="an array with a mask"):
        gpu.take(Interfaced(np.ones(3), mask=np.ones(3)))
    cupy.fail["from_dlpack"] = NotImplementedError("CuPy does not support bfloat16 yet")
    with pytest.raises(UnsupportedError, match="cannot be used on cuda:0: CuPy does not support"):
        gpu.take(Packed(np.ones(3)))


def test_what_is_given_is_on_the_same_memory_and_keeps_it(gpu: CupyGpu, cupy: Fake) -> None:
    buffer = gpu.allocate(64)
    array = gpu.give(buffer, 16, np.dtype("f4"), (2, 3))
    assert isinstance(array, cupy.ndarray)
    assert (array.data.ptr, array.data.device_id) == (buffer.pointer + 16, 0)
    assert (array.shape, array.dtype, array.data.mem.owner) == ((2, 3), np.dtype("f4"), buffer)
    told = gpu.take(array)
    assert (told.buffer.pointer, told.offset) == (buffer.pointer + 16, 0)


def test_a_dtype_that_cupy_lacks_is_not_given(gpu: CupyGpu) -> None:
    with pytest.raises(UnsupportedError, match="this version of CuPy has no arrays of bfloat16"):
        gpu.give(gpu.allocate(64), 0, np.dtype(ml_dtypes.bfloat16), (2, 3))


# --- Errors --------------------------------------------------------------------------------------


def opening(index: int = 0) -> DeviceError:
    with pytest.raises(DeviceError) as error:
        CupyGpu(index)
    assert error.value.remedy
    return error.value


def test_without_cupy_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(cupy_driver.importlib, "import_module", missing)
    error = opening()
    assert error.message == "CUDA needs CuPy, which is not installed"
    assert 'pip install "dsl[cuda13]"' in error.remedy
    assert "cuda-emulator:0" in error.remedy


@pytest.mark.parametrize("kind", [ImportError, RuntimeError, OSError])
def test_a_cupy_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    def broken(name: str) -> None:
        raise kind("libnvrtc.so.12: cannot open shared object file")

    monkeypatch.setattr(cupy_driver.importlib, "import_module", broken)
    assert opening().message.startswith("CuPy is installed but cannot be imported: libnvrtc.so.12")


def test_no_driver(cupy: Fake) -> None:
    cupy.driver = 0
    assert opening().message == "there is no NVIDIA driver on this machine"


REFUSALS = [
    (35, "the NVIDIA driver knows CUDA 11.4, which is too old for this CuPy, made for CUDA 12.9"),
    (100, "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES is '7')"),
    (3, "CUDA cannot be started in this process: CUDA's words"),
    (999, "CUDA cannot be started: CUDA's words"),
]


@pytest.mark.parametrize(("status", "message"), REFUSALS)
def test_a_driver_that_does_not_start(
    cupy: Fake, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    cupy.driver = 11040
    cupy.fail["getDeviceCount"] = FakeError(status, "CUDA's words")
    assert opening().message == message


def test_a_driver_without_gpus(cupy: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cupy.devices = 0
    assert opening().message == "the NVIDIA driver sees no GPU"


def test_a_cupy_for_amd(cupy: Fake) -> None:
    cupy.cuda.runtime.is_hip = True
    assert "ROCm" in opening().message


def test_an_index_that_is_not_there(cupy: Fake) -> None:
    error = opening(2)
    assert error.message == "there is no cuda:2"
    assert error.remedy.startswith("there are: cuda:0, cuda:1;")


def test_a_gpu_that_is_too_old(cupy: Fake) -> None:
    cupy.capability = 70
    assert opening().message.startswith("cuda:0 is too old: Fake GPU, compute capability 7.0")


@pytest.mark.parametrize(
    "cause", [MemoryError("Out of memory allocating 10 bytes"), FakeError(2, "out of memory")]
)
def test_memory_that_is_used_up(gpu: CupyGpu, cupy: Fake, cause: Exception) -> None:
    cupy.fail["alloc"] = cause
    with pytest.raises(DeviceMemoryError) as error:
        gpu.allocate(4_000_000_000)
    assert isinstance(error.value, MemoryError)
    assert error.value.message == (
        "cuda:0 is out of memory: 4,000,000,000 bytes are wanted; of 8,000,000,000 there are 3,000,000,000 free"
    )
    found = (error.value.wanted, error.value.free, error.value.total)
    assert found == (4_000_000_000, 3_000_000_000, 8_000_000_000)
    assert "free_all_blocks" in error.value.remedy


def test_a_kernel_that_cannot_be_loaded_has_the_words_of_ptxas(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["load"] = FakeError(218, "CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed")
    with pytest.raises(DeviceError, match="failed while loading the kernel 'k': CUDA_ERROR_INVALID_PTX") as error:  # fmt: skip
        gpu.launch(PTX.replace("ret", "rat"), "k", ONE, ONE, [])
    assert "ptxas" in error.value.message
    if toolkit.ptxas() is not None:
        assert ">     4 | .visible .entry k() { rat; }" in error.value.message


def test_without_ptxas_the_error_says_how_to_get_it(
    gpu: CupyGpu, cupy: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "ptxas", lambda: None)
    cupy.fail["get_function"] = FakeError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")
    with pytest.raises(DeviceError, match="ptxas would say why: pip install nvidia-cuda-nvcc"):
        gpu.launch(PTX, "k", ONE, ONE, [])


def test_a_launch_that_is_refused_says_of_what_size(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["launch"] = FakeError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
    with pytest.raises(DeviceError, match=r"starting the kernel 'k': CUDA_ERROR_INVALID_VALUE.*blocks \(2048, 1, 1\)"):  # fmt: skip
        gpu.launch(PTX, "k", ONE, (2048, 1, 1), [])


def test_a_gpu_that_is_lost_says_so(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["synchronize"] = FakeError(700, "cudaErrorIllegalAddress: an illegal memory access")
    with pytest.raises(DeviceError, match="cuda:0 failed, found out while waiting for it") as error:
        gpu.synchronize()
    assert "start again" in error.value.remedy
    assert "cuda-emulator:0" in error.value.remedy


def test_a_failure_may_be_told_by_any_call(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["leave device"] = FakeError(719, "cudaErrorLaunchFailure: unspecified launch failure")
    with pytest.raises(DeviceError, match="cuda:0 failed, found out while allocating memory"):
        gpu.allocate(8)


def test_mistakes_of_our_own_are_not_blamed_on_cuda(gpu: CupyGpu, cupy: Fake) -> None:
    cupy.fail["synchronize"] = AssertionError("ours")
    with pytest.raises(AssertionError, match="ours"):
        gpu.synchronize()


# --- Devices and targets -------------------------------------------------------------------------


def test_a_gpu_has_a_name_and_a_target(cupy: Fake) -> None:
    gpu: Gpu = CupyGpu(1)
    assert str(gpu.name) == "/rank:0/cuda:1"
    assert gpu.target == Target(80, 84)


def test_arrays_say_on_which_gpu_they_are_without_cupy() -> None:
    elsewhere = Interfaced(np.ones(3))
    elsewhere.device = types.SimpleNamespace(index=1)
    others = [np.ones(3), 1.0, "text", None, Packed(np.ones(3), device=(1, 0))]
    assert [interop.gpu_index(other) for other in others] == [None] * 5
    ours = [Interfaced(np.ones(3)), elsewhere, Packed(np.ones(3)), Packed(np.ones(3), (13, 2))]
    assert [interop.gpu_index(array) for array in ours] == [0, 1, 0, 2]


TARGETS = [
    ((75, 11080, 20), Target(75, 78)),
    ((75, 10000, 20), Target(75, 63)),
    ((80, 12040, 22), Target(80, 84)),
    ((86, 13020, 22), Target(86, 90)),
    ((88, 13000, 20), Target(87, 87)),  # LLVM 20 does not have sm_88
    ((90, 12000, 22), Target(90, 80)),
    ((100, 12090, 20), Target(100, 87)),
    ((103, 12090, 20), Target(101, 87)),
    ((103, 12090, 22), Target(103, 88)),
    ((107, 13040, 22), Target(103, 90)),
    ((120, 12080, 22), Target(120, 87)),
    ((121, 14000, 30), Target(121, 90)),
]


@pytest.mark.parametrize(("given", "expected"), TARGETS)
def test_the_target_is_the_newest_that_all_know(
    given: tuple[int, int, int], expected: Target
) -> None:
    assert cupy_driver.target_for(*given) == expected


@pytest.mark.parametrize("capability", [75, 80, 86, 87, 89, 90, 100, 103, 120, 121])
def test_llvm_writes_the_target_that_is_chosen(capability: int) -> None:
    llvm = pytest.importorskip("llvmlite.binding")
    target = cupy_driver.target_for(capability, 13000, llvm.llvm_version_info[0])
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu=target.arch, features=f"+ptx{target.ptx}"
    )
    text = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k() { ret void }\n'
    ptx = machine.emit_assembly(llvm.parse_assembly(text))
    assert f".version {target.ptx // 10}.{target.ptx % 10}\n.target {target.arch}\n" in ptx


def test_cupy_has_the_names_that_are_used() -> None:
    """The stand-in is only as good as its names."""
    pytest.importorskip("cupy")
    code = f"""
import cupy, operator
for name in {NAMES!r}:
    operator.attrgetter(name)(cupy.cuda)
memory = cupy.cuda.UnownedMemory(4096, 64, None, 0)
array = cupy.ndarray((2, 3), "f4", cupy.cuda.MemoryPointer(memory, 16))
assert (array.data.ptr, array.data.device_id, array.strides) == (4112, 0, (12, 4))
cupy.from_dlpack, cupy.get_default_memory_pool().free_bytes
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Tools and the doctor ------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any toolkit, and a folder to put one."""
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(toolkit, "_package_folders", lambda name: [tmp_path / name])
    monkeypatch.setattr(toolkit.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(toolkit.shutil, "which", lambda name: None)
    real = toolkit._roots

    def roots() -> Iterator[tuple[Path, str]]:
        return (pair for pair in real() if not str(pair[0]).startswith("/usr/"))

    monkeypatch.setattr(toolkit, "_roots", roots)
    toolkit._asked_version.cache_clear()
    return tmp_path


def put_toolkit(root: Path, version: str = "13.4.92") -> None:
    (root / "nvvm/libdevice").mkdir(parents=True)
    (root / "nvvm/libdevice/libdevice.10.bc").write_bytes(b"BC")
    put_ptxas(root / "bin/ptxas", f"echo 'release 13.4, V{version}'")


def put_ptxas(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_nothing_is_found_on_a_bare_machine(bare: Path) -> None:
    assert (toolkit.libdevice(), toolkit.ptxas()) == (None, None)
    rows = dict(toolkit.explain())
    assert all("pip install nvidia-cuda-nvcc" in row for row in rows.values())


@pytest.mark.parametrize("root", ["nvidia/cu13", "nvidia/cuda_nvcc", "prefix"])
def test_a_toolkit_is_found_where_packages_put_it(bare: Path, root: str) -> None:
    put_toolkit(bare / root)
    assert toolkit.libdevice() == bare / root / "nvvm/libdevice/libdevice.10.bc"
    found = toolkit.find_ptxas()
    assert found is not None
    assert (found.path, found.version) == (bare / root / "bin/ptxas", "13.4.92")


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"])
def test_a_toolkit_is_found_by_the_environment(
    bare: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_toolkit(bare / "mine")
    (bare / "mine/version.json").write_text('{"cuda": {"version": "12.6.3"}}')
    monkeypatch.setenv(variable, str(bare / "mine"))
    found = toolkit.find_libdevice()
    assert found is not None
    assert (found.origin, found.version) == (variable, "12.6.3")


def test_the_newest_package_comes_first(bare: Path) -> None:
    for name in ("cu9", "cu13", "cu14"):
        put_toolkit(bare / "nvidia" / name)
    assert toolkit.ptxas() == bare / "nvidia/cu14/bin/ptxas"


def test_a_ptxas_that_does_not_run_is_passed_over(bare: Path) -> None:
    put_ptxas(bare / "nvidia/cu13/bin/ptxas", "exit 1")
    put_ptxas(bare / "triton/backends/nvidia/bin/ptxas", "echo 'release 12.9, V12.9.86'")
    found = toolkit.find_ptxas()
    assert found is not None
    assert (found.origin, found.version) == ("the package triton", "12.9.86")


def test_the_doctor_lists_gpus(cupy: Fake) -> None:
    rows = dict(doctor.cuda())
    assert rows["driver"] == "knows CUDA 12.4; CuPy is for CUDA 12.9"
    assert rows["cuda:0"] == "Fake GPU, compute capability 8.0, 3.0 of 8.0 GB free"
    assert {"cupy", "libdevice", "ptxas", "cuda:1", "cuda-emulator:0"} <= set(rows)


def test_the_doctor_says_why_there_is_no_gpu(cupy: Fake) -> None:
    cupy.driver = 0
    rows = dict(doctor.cuda())
    assert rows["GPUs"].startswith("none: there is no NVIDIA driver on this machine; install one")
    assert "cuda-emulator:0" in rows


def test_the_doctor_survives_whatever_a_driver_does(cupy: Fake) -> None:
    cupy.fail["getDeviceCount"] = ZeroDivisionError("odd")
    assert dict(doctor.cuda())["GPUs"] == "none: ZeroDivisionError: odd"
