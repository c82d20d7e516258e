"""`cuda-emulator:0`: a GPU whose kernels the PTX emulator runs. It works anywhere, slowly, and finds mistakes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from dsl.codegen.cuda.device import Buffer, Part, Target, Told, put, refuse_capture
from dsl.codegen.cuda.emulator import Memory, PtxModule
from dsl.errors import DeviceError, DeviceMemoryError
from dsl.ir.devices import DeviceName

__all__ = ["EmulatedArray", "EmulatedCapture", "EmulatedGpu"]

_MODULES = 256  # kept, newest last


class EmulatedGpu:
    """A GPU in software, with memory of its own."""

    def __init__(self, index: int = 0, target: Target = Target(), limit: int | None = None) -> None:  # noqa: B008
        self.name, self.target = DeviceName(0, "cuda-emulator", index), target
        self.memory = Memory(limit=limit) if limit is not None else Memory()
        self.limit = limit or 1 << 34
        self._modules: dict[str, PtxModule] = {}
        self._lock = threading.RLock()
        self._thread = threading.local()
        self.launches: list[tuple[str, Any]] | None = (
            None  # what was launched, if somebody wants to know
        )

    def __repr__(self) -> str:
        return f"<device {self.name}>"

    def allocate(self, nbytes: int) -> Buffer:
        try:
            # Vectors are whole: LLVM reads four aligned bytes where three are wanted.
            pointer = self.memory.allocate(-(-max(nbytes, 1) // 16) * 16)
        except MemoryError:
            raise DeviceMemoryError.of(self.name, nbytes, *self.free_memory()) from None
        made = Buffer(pointer, nbytes)
        weakref.finalize(made, self.memory.free, pointer).atexit = False
        if (capture := self._capture) is not None:
            capture.keep.append(made)
        return made

    def upload(self, array: np.ndarray, buffer: Buffer, offset: int = 0) -> None:
        refuse_capture(self._capture, "an upload")
        self.memory.write(buffer.pointer + offset, array)

    def download(self, buffer: Buffer, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
        return self.download_all([Part(buffer, offset, dtype, count)])[0]

    def download_all(self, parts: Sequence[Part]) -> list[np.ndarray]:
        refuse_capture(self._capture, "a download")
        return [self.memory.read(b.pointer + at, dtype, n) for b, at, dtype, n in parts]

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        if (capture := self._capture) is not None:
            capture.calls.append(partial(self.move, source, start, target, offset, nbytes))
            return
        data = self.memory.read(source.pointer + start, np.dtype(np.uint8), nbytes)
        self.memory.write(target.pointer + offset, data)

    def launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int = 0,
    ) -> None:  # fmt: skip
        if (capture := self._capture) is not None:
            capture.calls.append(partial(self.launch, ptx, kernel, grid, block, list(args), shared))
            return
        with self._lock:
            self._launch(ptx, kernel, grid, block, args, shared)

    def _launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int,
    ) -> None:  # fmt: skip
        module = self._modules.get(ptx)
        if module is None:
            if len(self._modules) >= _MODULES:
                self._modules.pop(next(iter(self._modules)))
            module = self._modules[ptx] = PtxModule(ptx)
        count = self.launches is not None
        counters = module.launch(
            self.memory, kernel, grid=grid, block=block, args=args, shared=shared, count=count
        )
        if self.launches is not None:
            self.launches.append((kernel, counters))

    def synchronize(self) -> None:
        """Nothing is ever pending."""
        refuse_capture(self._capture, "waiting")

    def mark(self) -> Any:
        """Everything that was issued is done."""

    def follow(self, mark: Any) -> None:
        """Everything comes after what was before."""

    def capture(self) -> EmulatedCapture:
        """Return a recorder, which has what a CUDA graph could have and refuses the rest."""
        return EmulatedCapture(self)

    @property
    def _capture(self) -> EmulatedCapture | None:
        return getattr(self._thread, "capture", None)

    def is_own(self, array: Any) -> bool:
        return isinstance(array, EmulatedArray) and array.gpu is self

    def take(self, array: Any) -> Told:
        strides, step = [], array.dtype.itemsize
        for size in reversed(array.shape):
            strides.append(step)
            step *= size
        return Told(array.buffer, array.offset, array.dtype, array.shape, tuple(reversed(strides)))

    def give(self, buffer: Buffer, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        return EmulatedArray(self, buffer, offset, dtype, shape)

    def free_memory(self) -> tuple[int, int]:
        return self.limit - self.memory.in_use, self.limit


class EmulatedCapture:
    """Launches and moves that were recorded, to be done again one after the other."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self._gpu, self._done = gpu, False
        self.calls: list[Callable[[], None]] = []
        self.keep: list[Any] = []

    def __enter__(self) -> Self:
        refuse_capture(self._gpu._capture, "another recording")
        self._gpu._thread.capture = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._gpu._thread.capture = None
        self._done = kind is None

    def launch(self) -> None:
        """Do what was recorded."""
        if not self._done:
            raise DeviceError(
                "a CUDA graph is launched that was not recorded to its end",
                remedy="leave the `with` block first",
            )
        for call in self.calls:
            call()


class EmulatedArray:
    """An array in the memory of an emulated GPU; `get` copies it to the host, as CuPy's does."""

    def __init__(
        self, gpu: EmulatedGpu, buffer: Buffer, offset: int, dtype: np.dtype, shape: tuple[int, ...]
    ) -> None:
        self.gpu, self.buffer, self.offset = gpu, buffer, offset
        self.dtype, self.shape = np.dtype(dtype), shape

    def __repr__(self) -> str:
        return f"EmulatedArray({self.get()!r}, device={str(self.gpu.name)!r})"

    @property
    def dsl_device(self) -> str:
        """The name of the device that the array is on."""
        return str(self.gpu.name)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def get(self) -> np.ndarray:
        """Return a copy on the host."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        flat = self.gpu.download(self.buffer, self.offset, self.dtype, self.size)
        return flat.reshape(self.shape)

    def like(self, array: Any) -> EmulatedArray:
        """Return a copy of an array of the host beside this one."""
        found: EmulatedArray = put(self.gpu, array)
        return found

    def __getitem__(self, key: Any) -> EmulatedArray:
        return self if isinstance(key, tuple) and not key else self.like(self.get()[key])

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self.get().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.get() if dtype is None else self.get().astype(dtype)
