"""NVIDIA's GPUs by way of CuPy: its memory pool, its current stream, its arrays.

In: what `Gpu` says. Everything is issued on CuPy's current stream of the calling thread, so it is in order with the
user's own CuPy code, and `with stream:` means here what it means there. Memory is from CuPy's current allocator.
CuPy is imported when the first GPU is asked for. `cupy_driver` has the errors.

This has not run on a GPU: see there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from dsl.codegen.cuda import interop, toolkit
from dsl.codegen.cuda.cupy_driver import Calling, open_device
from dsl.codegen.cuda.device import Buffer, Part, Target, Told, refuse_capture
from dsl.codegen.cuda.ptxas import assemble
from dsl.errors import DeviceError, DeviceMemoryError, DslError, InternalError, UnsupportedError
from dsl.ir.devices import DeviceName

__all__ = ["Capture", "CupyGpu"]

# Up to here an upload is copied to pinned memory first, so that it need not be waited for; more than this is copied
# straight from the array, and waited for, since pinned memory is dear and CuPy's pool keeps it.
_STAGED = 16 << 20
_SMALLEST_STAGE = 4 << 10
_PLAIN_SHARED = 48 << 10  # bytes of shared memory that a kernel has without asking


class CupyGpu:
    """A GPU of this process, `cuda:0` and on. Raises `DeviceError` if it is not there or cannot be used."""

    def __init__(self, index: int = 0) -> None:
        self.name, self.index = DeviceName(0, "cuda", index), index
        self._cupy, self.facts, target = open_device(self.index)
        self.target: Target = target
        self._kernels: dict[tuple[str, str], Any] = {}
        self._modules: dict[str, Any] = {}
        self._staged: list[
            tuple[Any, Any]
        ] = []  # events, and pinned memory that is read until then
        self._lock = threading.Lock()
        self._thread = threading.local()

    def _calling(self, doing: str, wanted: int = 0) -> Calling:
        return Calling(self._cupy, self.index, doing, wanted)

    # --- Memory ---

    def allocate(self, nbytes: int) -> Buffer:
        """Return memory of CuPy's current allocator, which aligns to 512 bytes."""
        with self._calling("allocating memory", wanted=nbytes):
            memory = self._cupy.cuda.alloc(max(nbytes, 1))  # of no bytes there is no address
        buffer = Buffer(memory.ptr, nbytes, memory)
        if (capture := self._capture) is not None:
            capture.keep.append(buffer)
        return buffer

    def free_memory(self) -> tuple[int, int]:
        """Return the bytes that CUDA and CuPy's pool have free, and all."""
        with self._calling("asking for its memory"):
            free, total = self._cupy.cuda.runtime.memGetInfo()
            pooled = self._cupy.get_default_memory_pool().free_bytes()
        return free + pooled, total

    # --- Copies ---

    def upload(self, array: np.ndarray, buffer: Buffer, offset: int = 0) -> None:
        """Copy a C-contiguous array to the device, by way of pinned memory if it is not large."""
        target = _address(buffer, offset, array.nbytes)
        refuse_capture(self._capture, "an upload")
        if not array.nbytes:
            return
        with self._calling("copying to it"):
            pinned = self._stage(array)
            source = array.ctypes.data if pinned is None else pinned.ptr
            self._copy(target, source, array.nbytes, "memcpyHostToDevice")
            if pinned is None:
                self._stream.synchronize()
            else:
                self._keep_staged(pinned)

    def _stage(self, array: np.ndarray) -> Any:
        """A copy of an array in pinned memory; None if it is large or there is no more such memory."""
        pinned = self._pinned(array.nbytes)
        if pinned is not None:
            np.frombuffer(pinned, np.uint8, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        return pinned

    def _pinned(self, nbytes: int) -> Any:
        """Pinned memory; None if it is large, nothing, or there is no more."""
        if not 0 < nbytes <= _STAGED:
            return None
        # Powers of two, since the pool hands out again only what has the very size that is asked for.
        size = max(_SMALLEST_STAGE, 1 << (nbytes - 1).bit_length())
        try:
            return self._cupy.cuda.alloc_pinned_memory(size)
        except (RuntimeError, MemoryError):
            return None

    def _keep_staged(self, pinned: Any) -> None:
        """Keep pinned memory until what was issued so far has read it."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        with self._lock:
            self._staged = [pair for pair in self._staged if not pair[0].done]
            self._staged.append((event, pinned))

    def download(self, buffer: Buffer, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
        """Wait for what was issued on the current stream, and return elements as a new array."""
        return self.download_all([Part(buffer, offset, dtype, count)])[0]

    def download_all(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Issue all copies, wait once, and return the elements as new arrays."""
        arrays = [np.empty(part.length, part.dtype) for part in parts]
        sources = [_address(p.buffer, p.offset, a.nbytes) for p, a in zip(parts, arrays)]
        refuse_capture(self._capture, "a download")
        staged: list[tuple[Any, np.ndarray]] = []
        with self._calling("copying from it"):
            for array, source in zip(arrays, sources):
                # CUDA waits for each copy to memory that is not pinned; for a single one that is as good.
                pinned = self._pinned(array.nbytes) if len(parts) > 1 else None
                target = array.ctypes.data if pinned is None else pinned.ptr
                if pinned is not None:
                    staged.append((pinned, array))
                if array.nbytes:
                    self._copy(target, source, array.nbytes, "memcpyDeviceToHost")
            self._stream.synchronize()
        for pinned, array in staged:
            array.view(np.uint8)[:] = np.frombuffer(pinned, np.uint8, array.nbytes)
        return arrays

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        """Copy bytes within the device."""
        to, from_ = _address(target, offset, nbytes), _address(source, start, nbytes)
        if nbytes:
            with self._calling("copying within it"):
                self._copy(to, from_, nbytes, "memcpyDeviceToDevice")

    def _copy(self, target: int, source: int, nbytes: int, kind: str) -> None:
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(target, source, nbytes, getattr(runtime, kind), self._stream.ptr)

    @property
    def _stream(self) -> Any:
        return self._cupy.cuda.get_current_stream()

    def synchronize(self) -> None:
        """Wait until everything on the current stream is done."""
        refuse_capture(self._capture, "waiting")
        with self._calling("waiting for it"):
            self._stream.synchronize()

    def mark(self) -> Any:
        """An event of the current stream."""
        with self._calling("marking a stream"):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record()
        return event

    def follow(self, mark: Any) -> None:
        """Make the current stream wait for an event. The host does not wait."""
        with self._calling("waiting for another stream"):
            self._cupy.cuda.runtime.streamWaitEvent(self._stream.ptr or 1, mark.ptr)

    # --- Kernels ---

    def launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int = 0,
    ) -> None:  # fmt: skip
        """Run a kernel on the current stream; a grid of no blocks runs nothing."""
        if 0 in grid:
            return  # CuPy would run one block
        function = self._kernels.get((ptx, kernel)) or self._load(ptx, kernel)
        try:
            with self._calling(f"starting the kernel {kernel!r}"):
                if shared > _PLAIN_SHARED:
                    self._allow_shared(function, shared)
                function(grid, block, tuple(map(_argument, args)), shared_mem=shared)
        except DeviceError as error:
            error.message += f"; grid {grid}, blocks {block}, {shared} bytes of shared memory"
            raise

    def _allow_shared(self, function: Any, nbytes: int) -> None:
        driver = self._cupy.cuda.driver
        most = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(function.ptr, most, nbytes)

    def _load(self, ptx: str, kernel: str) -> Any:
        """Return a kernel; its module is compiled by the driver once, however many kernels it has."""
        with self._lock:
            try:
                with self._calling(f"loading the kernel {kernel!r}"):
                    module = self._modules.get(ptx) or self._module(ptx)
                    function = module.get_function(kernel)
            except DeviceMemoryError:
                raise
            except DeviceError as error:
                error.message += self._view_of_ptxas(ptx)
                raise
            self._kernels[ptx, kernel] = function
        return function

    def _module(self, ptx: str) -> Any:
        module = self._cupy.cuda.function.Module()
        module.load(ptx.encode() + b"\0")  # the driver reads to the zero
        self._modules[ptx] = module
        return module

    def _view_of_ptxas(self, ptx: str) -> str:
        """What ptxas says of PTX that the driver refuses, which gives a number only; nothing if it has no complaint."""
        if toolkit.ptxas() is None:
            return f"; ptxas would say why: {toolkit.INSTALL}"
        try:
            assemble(ptx, self.target.arch)
        except DslError as complaint:
            return f"\n{complaint.message}"
        return ""

    # --- Arrays of others ---

    def is_own(self, array: Any) -> bool:
        """Tell whether an object is an array in this GPU's memory."""
        return not isinstance(array, np.ndarray | np.generic) and self._home(array) == self.index

    def _home(self, array: Any) -> int | None:
        """The index of the GPU that has an array; None for what is no array of a GPU."""
        if isinstance(array, self._cupy.ndarray):
            return int(array.data.device_id)
        if (told := interop.dlpack_device(array)) is not None:
            kind, index = told
            return index if kind in (interop.CUDA, interop.CUDA_MANAGED) else None
        if (interface := interop.read_interface(array)) is None:
            return None
        if not interface.pointer:  # of no elements, so it may be anywhere
            return self.index
        with self._calling("asking where an array is"):
            return int(self._cupy.cuda.runtime.pointerGetAttributes(interface.pointer).device)

    def take(self, array: Any) -> Told:
        """Return where an array is, without copying. What follows on the current stream waits for who makes the array."""
        if (home := self._home(array)) != self.index:
            where = "not on a GPU" if home is None else f"on cuda:{home}"
            raise DeviceError(
                f"an array of {type(array).__name__} is {where}, but cuda:{self.index} is asked to use it",
                remedy="copy it there first, with cupy.asarray inside `with cupy.cuda.Device(i)`",
            )
        if isinstance(array, self._cupy.ndarray):
            return self._told(array)
        if interop.dlpack_device(array) is not None:
            return self._take_dlpack(array)
        return self._take_interface(array)

    def _told(self, array: Any, readonly: bool = False) -> Told:
        return _told(array.data.ptr, array, array.dtype, array.shape, array.strides, readonly)

    def _take_dlpack(self, array: Any) -> Told:
        # Preferred to the other interface, by which PyTorch does not tell its stream.
        try:
            with self._calling("taking an array by DLPack"):
                capsule = _capsule(array, self._stream.ptr or 1)  # DLPack's 1 is the default stream
                readonly = interop.is_readonly(capsule)
                taken = self._cupy.from_dlpack(_Handed(capsule, array.__dlpack_device__()))
        except (BufferError, TypeError, NotImplementedError) as error:
            if isinstance(error, DslError):
                raise
            raise UnsupportedError(
                f"an array of {type(array).__name__} cannot be used on cuda:{self.index}: {error}",
                remedy="convert it to a CuPy array of a dtype of NumPy",
            ) from error
        return self._told(taken, readonly)

    def _take_interface(self, array: Any) -> Told:
        told = interop.read_interface(array)
        assert told is not None  # `_home` has read it
        if told.stream is not None and told.size:
            self._wait_for(told.stream)
        return _told(told.pointer, array, told.dtype, told.shape, told.strides, told.readonly)

    def _wait_for(self, stream: int) -> None:
        """Make the current stream wait for what another one has been given so far. The host does not wait."""
        with self._calling("waiting for the stream of an array"):
            current = self._stream.ptr or 1
            if stream != current:
                event = self._cupy.cuda.Event(disable_timing=True)
                self._cupy.cuda.runtime.eventRecord(event.ptr, stream)
                self._cupy.cuda.runtime.streamWaitEvent(current, event.ptr)

    def multiply(self, a: Told, b: Told, target: Told) -> None:
        """Multiply matrices by cuBLAS, which CuPy calls; a `Gpu` without this method has kernels of dsl's for them."""
        with self._calling("multiplying matrices"):
            self._cupy.matmul(self._seen(a), self._seen(b), out=self._seen(target))

    def _seen(self, told: Told) -> Any:
        """Return an array of any strides as CuPy's."""
        cuda, buffer = self._cupy.cuda, told.buffer
        memory = cuda.UnownedMemory(buffer.pointer, max(buffer.nbytes, 1), buffer, self.index)
        place = cuda.MemoryPointer(memory, told.offset)
        return self._cupy.ndarray(told.shape, told.dtype, place, told.strides)

    def give(self, buffer: Buffer, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        """Return memory as a CuPy array, which keeps it."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(buffer.pointer, max(buffer.nbytes, 1), buffer, self.index)
        try:
            with self._calling("handing out an array"):
                return self._cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, offset))
        except (TypeError, ValueError) as error:
            if isinstance(error, DslError):
                raise
            raise UnsupportedError(
                f"this version of CuPy has no arrays of {dtype}: {error}",
                remedy="convert the result to a dtype that it has, or use a newer CuPy",
            ) from error

    # --- CUDA graphs ---

    def capture(self) -> Capture:
        """Return a recorder: what is launched and moved inside `with gpu.capture() as graph:` runs at `graph.launch()`."""
        return Capture(self)

    @property
    def _capture(self) -> Capture | None:
        return getattr(self._thread, "capture", None)


class Capture:
    """Launches and copies within the device that were recorded, to be issued again as one CUDA graph.

    While it records, nothing runs. Memory that is allocated meanwhile lives as long as this object; whoever records keeps
    other buffers that are named, as addresses are recorded and not objects. A recording that ends with an
    exception is thrown away.
    """

    def __init__(self, gpu: CupyGpu) -> None:
        self._gpu = gpu
        self._graph: Any = None
        self._open = ExitStack()
        self.keep: list[Any] = []

    def __enter__(self) -> Self:
        gpu = self._gpu
        refuse_capture(gpu._capture, "another recording")
        with ExitStack() as stack:
            stack.enter_context(gpu._calling("recording a CUDA graph"))
            # Not the default stream, which cannot be recorded, and not one that waits for it.
            self._stream = stack.enter_context(gpu._cupy.cuda.Stream(non_blocking=True))
            self._stream.begin_capture()
            self._open = stack.pop_all()
        gpu._thread.capture = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gpu._thread.capture = None
        with self._open:  # the stream, then the device, are again what they were
            if kind is None:
                self._graph = self._stream.end_capture()
                return
            with suppress(
                RuntimeError
            ):  # a recording that failed is invalid, and CUDA says so once more
                self._stream.end_capture()

    def launch(self) -> None:
        """Issue what was recorded on the current stream."""
        if self._graph is None:
            raise DeviceError(
                "a CUDA graph is launched that was not recorded to its end",
                remedy="leave the `with` block first",
            )
        with self._gpu._calling("launching a CUDA graph"):
            self._graph.launch()


# --- Pieces --------------------------------------------------------------------------------------


def _address(buffer: Buffer, offset: int, nbytes: int) -> int:
    """The address of bytes of a buffer, which must have them."""
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise InternalError(
            f"bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes} bytes"
        )
    return buffer.pointer + offset


_PLAIN = {np.dtype(code).type for code in "?bhilqBHILQefdFD"}  # what CuPy takes as it is


def _argument(value: Any) -> Any:
    """An argument as CuPy takes it: addresses are of 64 bits, and what NumPy itself does not have goes by its bits."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    return np.uint64(value) if kind is int else value.view(f"u{value.dtype.itemsize}")


def _told(
    pointer: int, keep: Any, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int], readonly: bool
) -> Told:  # fmt: skip
    """What to tell of an array by its first element; the buffer begins at its lowest byte."""
    low, high = interop.span(shape, strides, dtype.itemsize)
    buffer = Buffer(pointer + low, high - low, keep)
    return Told(buffer, -low, np.dtype(dtype), tuple(shape), tuple(strides), readonly)


class _Handed:
    """A capsule of DLPack as the object that `from_dlpack` wants; it can be taken once."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _capsule(array: Any, stream: int) -> object:
    """Ask for the capsule that can say `read only`, else for the older one."""
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return array.__dlpack__(stream=stream)
