"""A stand-in for CuPy: as much of it as `dsl.codegen.cuda.cupy_gpu` uses, on the host's memory.

It records what is called, in order, as `Fake.calls`, and fails where it is told to. Names, arguments and errors are those of
CuPy 14.2; `test_cuda_device.py` compares the names with CuPy itself where that is installed.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np

__all__ = ["NAMES", "Fake", "FakeError"]

NAMES = (
    "Stream", "Event", "Device", "UnownedMemory", "MemoryPointer", "alloc", "alloc_pinned_memory", "get_current_stream",
    "function.Module", "driver.funcSetAttribute", "driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "runtime.memcpyAsync", "runtime.memcpyHostToDevice", "runtime.memcpyDeviceToHost", "runtime.memcpyDeviceToDevice",
    "runtime.memGetInfo", "runtime.getDeviceCount", "runtime.getDeviceProperties", "runtime.driverGetVersion",
    "runtime.runtimeGetVersion", "runtime.pointerGetAttributes", "runtime.eventRecord", "runtime.streamWaitEvent",
    "runtime.is_hip", "Stream.begin_capture", "Stream.end_capture", "Stream.synchronize", "Event.record", "Event.done",
    "Graph.launch", "function.Module.load", "function.Module.get_function", "memory.OutOfMemoryError",
)  # fmt: skip
"""What is used of `cupy.cuda`."""


class FakeError(RuntimeError):
    """As CUDARuntimeError and CUDADriverError: a number and CUDA's words."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Fake(types.ModuleType):
    """The module `cupy`."""

    def __init__(self, devices: int = 2, capability: int = 80, driver: int = 12040) -> None:
        super().__init__("cupy")
        self.calls: list[Any] = []
        self.fail: dict[str, Exception] = {}
        self.devices, self.capability, self.driver = devices, capability, driver
        self.current_device, self.streams = 0, [FakeStream(self, 0)]
        self.memory: dict[int, Any] = {}
        self.ndarray = type("ndarray", (FakeArray,), {})
        self.cuda = types.SimpleNamespace(
            Device=lambda index: FakeDevice(self, index),
            Event=lambda disable_timing=False: FakeEvent(self),
            Stream=lambda non_blocking=False: FakeStream(self, 77),
            UnownedMemory=lambda *args: FakeMemory(*args),
            MemoryPointer=FakePointer,
            alloc=self._alloc,
            alloc_pinned_memory=self._pinned,
            get_current_stream=lambda: self.streams[-1],
            function=types.SimpleNamespace(Module=lambda: FakeModule(self)),
            driver=types.SimpleNamespace(
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
                funcSetAttribute=lambda *args: self.note("funcSetAttribute", *args),
            ),
            runtime=FakeRuntime(self),
        )

    def note(self, name: str, *args: Any) -> None:
        self.calls.append((name, *args))
        self.trouble(name)

    def trouble(self, name: str) -> None:
        if name in self.fail:
            raise self.fail[name]

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def _alloc(self, nbytes: int) -> Any:
        self.note("alloc", nbytes, self.current_device)
        made = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(made)
        self.memory[address] = made
        return FakePointer(FakeMemory(address, nbytes, made, self.current_device), 0)

    def _pinned(self, nbytes: int) -> Any:
        self.note("alloc_pinned_memory", nbytes)
        return FakePinned(nbytes)

    def get_default_memory_pool(self) -> Any:
        return types.SimpleNamespace(free_bytes=lambda: 1000)

    def from_dlpack(self, array: Any) -> Any:
        self.note("from_dlpack", array.__dlpack_device__())
        return array.__dlpack__(stream=1, max_version=(1, 0), copy=None).consume(self)

    def array(self, values: np.ndarray, device: int = 0) -> Any:
        """An array of the fake GPU, on the memory of the NumPy array."""
        memory = FakeMemory(values.ctypes.data, values.nbytes, values, device)
        return self.ndarray(values.shape, values.dtype, FakePointer(memory, 0), values.strides)


class FakeRuntime:
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3
    is_hip = False

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def driverGetVersion(self) -> int:
        return self.fake.driver

    def runtimeGetVersion(self) -> int:
        return 12090

    def getDeviceCount(self) -> int:
        self.fake.note("getDeviceCount")
        return self.fake.devices

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        major, minor = divmod(self.fake.capability, 10)
        return {"name": b"Fake GPU", "major": major, "minor": minor}

    def memGetInfo(self) -> tuple[int, int]:
        return 3_000_000_000, 8_000_000_000

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self.fake.note("memcpyAsync", nbytes, kind, stream)
        ctypes.memmove(target, source, nbytes)

    def pointerGetAttributes(self, pointer: int) -> Any:
        self.fake.note("pointerGetAttributes", pointer)
        return types.SimpleNamespace(device=0)

    def eventRecord(self, event: int, stream: int) -> None:
        self.fake.note("eventRecord", event, stream)

    def streamWaitEvent(self, stream: int, event: int) -> None:
        self.fake.note("streamWaitEvent", stream, event)


class FakeDevice:
    def __init__(self, fake: Fake, index: int) -> None:
        self.fake, self.index = fake, index

    def __enter__(self) -> FakeDevice:
        self.before, self.fake.current_device = self.fake.current_device, self.index
        return self

    def __exit__(self, *_: object) -> None:
        self.fake.current_device = self.before
        self.fake.trouble("leave device")


class FakeStream:
    def __init__(self, fake: Fake, ptr: int) -> None:
        self.fake, self.ptr = fake, ptr

    def __enter__(self) -> FakeStream:
        self.fake.streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.fake.streams.pop() is self

    def synchronize(self) -> None:
        self.fake.note("synchronize", self.ptr)

    def begin_capture(self) -> None:
        self.fake.note("begin_capture", self.ptr)

    def end_capture(self) -> Any:
        self.fake.note("end_capture", self.ptr)
        current = lambda: self.fake.streams[-1].ptr
        return types.SimpleNamespace(launch=lambda: self.fake.note("graph launch", current()))


class FakeEvent:
    def __init__(self, fake: Fake) -> None:
        self.fake, self.ptr, self.done = fake, 4242, False

    def record(self) -> None:
        self.fake.note("record", self.fake.streams[-1].ptr)


class FakeModule:
    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def load(self, image: bytes) -> None:
        assert image.endswith(b"\0")
        self.fake.note("load", self.fake.current_device)

    def get_function(self, name: str) -> Any:
        self.fake.note("get_function", name)
        return FakeFunction(self.fake, name)


class FakeFunction:
    ptr = 99

    def __init__(self, fake: Fake, name: str) -> None:
        self.fake, self.name = fake, name

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        assert isinstance(grid, tuple)
        assert isinstance(block, tuple)
        for value in args:  # what CuPy itself takes
            assert type(value) in {np.dtype(code).type for code in "?bhilqBHILQefdFD"}
        self.fake.note(
            "launch", self.name, grid, block, list(args), shared_mem, self.fake.streams[-1].ptr
        )


class FakeMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class FakePointer:
    def __init__(self, mem: FakeMemory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class FakePinned(bytearray):
    """Pinned memory has the buffer protocol and an address."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


class FakeArray:
    def __init__(self, shape: Any, dtype: Any, data: FakePointer, strides: Any = None) -> None:
        if np.dtype(dtype).kind == "V":
            raise TypeError(f"Unsupported dtype {dtype}")
        self.shape, self.dtype, self.data = tuple(shape), np.dtype(dtype), data
        dense = np.empty(self.shape, dtype).strides if 0 not in self.shape else (0,) * len(shape)
        self.strides = tuple(dense if strides is None else strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.data.ptr, False)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": data,
            "strides": self.strides,
            "version": 3,
        }

    @property
    def device(self) -> Any:
        return types.SimpleNamespace(id=self.data.device_id)
