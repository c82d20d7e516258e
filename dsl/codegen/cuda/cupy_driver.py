"""CuPy and the driver below it: whether they are there, which GPUs they see, and what their errors mean.

All of dsl's calls to CuPy that need a driver are made inside a `Calling`, or `available` before there is a device. What
they raise leaves as a `DeviceError` that says what was tried, what CUDA said and what to do.

None of this has run on a GPU: it follows CuPy's sources and NVIDIA's documentation, and its tests use a stand-in for
CuPy. Without a driver it has run, and says so.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from dsl.codegen.cuda.device import Target
from dsl.errors import DeviceError, DeviceMemoryError, DslError

__all__ = ["Calling", "Facts", "available", "cuda_version", "devices", "import_cupy", "target_for"]

EMULATOR = '"cuda-emulator:0" runs the same kernels without a GPU'
_INSTALL = 'pip install "dsl[cuda13]", or "dsl[cuda12]" for a driver of CUDA 12'
_OLDEST = 75  # Turing: the oldest that CUDA 13 and its ptxas know


# --- What is there -------------------------------------------------------------------------------


def import_cupy() -> Any:
    """Return the module `cupy`, which is imported here and nowhere else."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            raise DeviceError(
                "CUDA needs CuPy, which is not installed", remedy=f"{_INSTALL}; {EMULATOR}"
            ) from None
        raise _broken(error) from error
    except Exception as error:  # CuPy looks for libraries while it is imported
        raise _broken(error) from error


def _broken(error: Exception) -> DeviceError:
    return DeviceError(
        f"CuPy is installed but cannot be imported: {error}",
        remedy=f"reinstall it: {_INSTALL}; {EMULATOR}",
    )


def available() -> tuple[Any, int]:
    """Return CuPy and how many GPUs it sees, at least one; else raise a `DeviceError` that says what is missing."""
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    if getattr(runtime, "is_hip", False):
        raise DeviceError("this CuPy is made for AMD's ROCm, not for CUDA", remedy=_INSTALL)
    try:
        driver = runtime.driverGetVersion()
        count = runtime.getDeviceCount() if driver else 0
    except RuntimeError as error:
        raise _no_devices(cupy, error) from error
    if not driver:
        raise DeviceError(
            "there is no NVIDIA driver on this machine",
            remedy=f"install one, or pass the GPU on to the container (--gpus all); {EMULATOR}",
        )
    if not count:
        raise _no_gpu()
    return cupy, count


_INITIALIZATION, _INSUFFICIENT, _NO_DEVICE = 3, 35, 100  # codes of cudaError_t


def _no_devices(cupy: Any, error: RuntimeError) -> DeviceError:
    """Why the GPUs cannot be counted."""
    status = getattr(error, "status", None)
    runtime = cupy.cuda.runtime
    if status == _NO_DEVICE:
        return _no_gpu()
    if status == _INSUFFICIENT:
        return DeviceError(
            f"the NVIDIA driver knows CUDA {cuda_version(runtime.driverGetVersion())}, which is too old for "
            f"this CuPy, made for CUDA {cuda_version(runtime.runtimeGetVersion())}",
            remedy="update the driver, or install the CuPy of an older CUDA",
        )
    if status == _INITIALIZATION:
        return DeviceError(
            f"CUDA cannot be started in this process: {error}",
            remedy='a process forked from one that uses CUDA cannot: use multiprocessing\'s "spawn"',
        )
    return DeviceError(
        f"CUDA cannot be started: {error}", remedy=f"nvidia-smi may tell more; {EMULATOR}"
    )


def _no_gpu() -> DeviceError:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return DeviceError(
        f"the NVIDIA driver sees no GPU{hidden}", remedy=f"nvidia-smi lists them; {EMULATOR}"
    )


def cuda_version(number: int) -> str:
    """Return a version as people write it.

    >>> cuda_version(12090)
    '12.9'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


# --- Devices -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """A GPU as CUDA describes it; memory in bytes."""

    index: int
    name: str
    capability: int  # 80 is 8.0
    free: int
    total: int

    def __str__(self) -> str:
        version = f"{self.capability // 10}.{self.capability % 10}"
        memory = f"{self.free / 1e9:.1f} of {self.total / 1e9:.1f} GB free"
        old = "" if self.capability >= _OLDEST else "; too old for dsl, which needs 7.5"
        return f"{self.name}, compute capability {version}, {memory}{old}"


def devices() -> list[Facts]:
    """Return the GPUs that there are; raises `DeviceError` if there are none."""
    cupy, count = available()
    return [describe(cupy, index) for index in range(count)]


def describe(cupy: Any, index: int) -> Facts:
    """Return what CUDA tells of a GPU."""
    with Calling(cupy, index, "asking for its properties"):
        told = cupy.cuda.runtime.getDeviceProperties(index)
        free, total = cupy.cuda.runtime.memGetInfo()
    name = told["name"]
    return Facts(
        index,
        name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        10 * told["major"] + told["minor"],
        free,
        total,
    )


def open_device(index: int) -> tuple[Any, Facts, Target]:
    """Return CuPy, a GPU that dsl can use, and what PTX is made for it."""
    cupy, count = available()
    if not 0 <= index < count:
        there = ", ".join(f"cuda:{i}" for i in range(count))
        raise DeviceError(f"there is no cuda:{index}", remedy=f"there are: {there}; {EMULATOR}")
    facts = describe(cupy, index)
    if facts.capability < _OLDEST:
        raise DeviceError(
            f"cuda:{index} is too old: {facts}", remedy=f"use a GPU of Turing or newer; {EMULATOR}"
        )
    driver = cupy.cuda.runtime.driverGetVersion()
    return cupy, facts, target_for(facts.capability, driver, _llvm())


# --- What PTX is made for ------------------------------------------------------------------------

# The PTX ISA's release notes: the version, times ten, that came with a CUDA, and that each architecture needs.
_PTX_OF_CUDA = {
    (10, 0): 63, (10, 1): 64, (10, 2): 65, (11, 0): 70, (11, 1): 71, (11, 2): 72, (11, 3): 73, (11, 4): 74,
    (11, 5): 75, (11, 6): 76, (11, 7): 77, (11, 8): 78, (12, 0): 80, (12, 1): 81, (12, 2): 82, (12, 3): 83,
    (12, 4): 84, (12, 5): 85, (12, 6): 85, (12, 7): 86, (12, 8): 87, (12, 9): 88, (13, 0): 90,
}  # fmt: skip
_PTX_OF_SM = {
    75: 63, 80: 70, 86: 71, 87: 74, 88: 90, 89: 78, 90: 78, 100: 86, 101: 86, 103: 88, 110: 90, 120: 87, 121: 88,
}  # fmt: skip
# The newest that LLVM writes, by its major version, tried out with llvmlite 0.47 (LLVM 20) and 0.48 to 0.50 (LLVM 22).
_PTX_OF_LLVM = {20: 87, 22: 90}


def target_for(capability: int, driver: int, llvm: int) -> Target:
    """Return the newest PTX that GPU, driver (12040 is CUDA 12.4) and LLVM (its major version) all know.

    PTX for an older architecture runs on newer ones, so a GPU that LLVM does not know yet gets that of the one before.

    >>> target_for(90, 12040, 22), target_for(121, 13000, 20)
    (Target(sm=90, ptx=84), Target(sm=120, ptx=87))
    """
    cuda = (driver // 1000, driver % 1000 // 10)
    by_driver = max((ptx for known, ptx in _PTX_OF_CUDA.items() if known <= cuda), default=63)
    by_llvm = max((ptx for known, ptx in _PTX_OF_LLVM.items() if known <= llvm), default=78)
    ptx = min(by_driver, by_llvm)
    sm = max(sm for sm, needs in _PTX_OF_SM.items() if sm <= capability and needs <= ptx)
    return Target(sm, ptx)


def _llvm() -> int:
    from llvmlite.binding import llvm_version_info

    return int(llvm_version_info[0])


# --- Errors --------------------------------------------------------------------------------------

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
# After these the process cannot use the GPU any more, and every later call fails in the same way.
_LOST = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719}


class Calling:
    """Makes a GPU the current one, and turns what CUDA raises into a `DeviceError`.

    `doing` is for the message; `wanted` is how many bytes are asked for. Every launch is inside of one, hence a class: a
    generator takes 2 microseconds more.
    """

    __slots__ = ("_asked", "_cupy", "_device")

    def __init__(self, cupy: Any, index: int, doing: str, wanted: int = 0) -> None:
        self._cupy, self._asked = cupy, (index, doing, wanted)

    def __enter__(self) -> None:
        try:
            self._device = self._cupy.cuda.Device(self._asked[0])
            self._device.__enter__()
        except RuntimeError as error:
            raise _explained(self._cupy, *self._asked, error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            self._device.__exit__(kind, error, trace)
        except RuntimeError as late:  # any call may tell of a kernel that failed before
            error = error or late
        # CuPy's errors are subclasses of these two; so is NotImplementedError, its word for a dtype that it lacks.
        ours = isinstance(error, DslError | NotImplementedError)
        if isinstance(error, RuntimeError | MemoryError) and not ours:
            raise _explained(self._cupy, *self._asked, error) from error


def _explained(cupy: Any, index: int, doing: str, wanted: int, error: Exception) -> DeviceError:
    status = getattr(error, "status", None)
    if isinstance(error, MemoryError) or status == _OUT_OF_MEMORY:
        remedy = "use smaller arrays or fewer at a time; cupy.get_default_memory_pool().free_all_blocks() gives back what is kept"
        return DeviceMemoryError.of(f"cuda:{index}", wanted, *_memory(cupy, index), remedy=remedy)
    if status in _LOST:
        return DeviceError(
            f"cuda:{index} failed, found out while {doing}: {error}",
            remedy=f"this process cannot use it any more, so start again; {EMULATOR} and checks every access",
        )
    return DeviceError(
        f"cuda:{index} failed while {doing}: {error}", remedy="`python -m dsl doctor` tells more"
    )


def _memory(cupy: Any, index: int) -> tuple[int, int]:
    """Free and all bytes, if CUDA still tells."""
    try:
        with cupy.cuda.Device(index):
            free, total = cupy.cuda.runtime.memGetInfo()
            return free, total
    except RuntimeError:
        return 0, 0
