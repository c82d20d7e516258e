"""What a program asks of a GPU: memory, copies, kernels. The real one is CuPy's, the other interprets the PTX.

A `Buffer` is memory of a device for as long as somebody refers to it. Copies and launches are in order, as on one stream;
`download` and `download_all` alone wait. Kernels are given as PTX text, which is loaded once per device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dsl.errors import DeviceError
from dsl.ir.devices import DeviceName

__all__ = ["Buffer", "Gpu", "Part", "Recorder", "Target", "Told", "put", "refuse_capture"]


@dataclass(frozen=True)
class Target:
    """What PTX is made for: the compute capability (75 is sm_75) and the version of PTX, times ten."""

    sm: int = 75
    ptx: int = 63

    @property
    def arch(self) -> str:
        return f"sm_{self.sm}"


class Buffer:
    """Memory of a device: it is given back when nobody refers to this object any more."""

    __slots__ = ("__weakref__", "keep", "nbytes", "pointer", "users")

    def __init__(self, pointer: int, nbytes: int, keep: Any = None) -> None:
        self.pointer, self.nbytes, self.keep = pointer, nbytes, keep
        self.users = 0  # names of values in it, while a program runs


class Part(NamedTuple):
    """Elements of some memory: where they begin, in bytes, their dtype and how many they are."""

    buffer: Buffer
    offset: int
    dtype: np.dtype
    length: int


@dataclass(frozen=True)
class Told:
    """An array that is on the device already: where it begins, its dtype and shape, and its strides in bytes."""

    buffer: Buffer
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    readonly: bool = False  # who made it asks that nobody writes to it: JAX's arrays, for one


class Recorder(Protocol):
    """Launches and moves that were recorded in a `with` block, in which none of them ran."""

    keep: list[Any]

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...  # fmt: skip

    def launch(self) -> None:
        """Issue all of it again."""


class Gpu(Protocol):
    """A GPU, real or emulated."""

    name: DeviceName
    target: Target

    def allocate(self, nbytes: int) -> Buffer:
        """Return memory, aligned to 256 bytes; raises `DeviceMemoryError` if there is none."""

    def upload(self, array: np.ndarray, buffer: Buffer, offset: int = 0) -> None:
        """Copy a C-contiguous array to the device. The array may change as soon as this returns."""

    def download(self, buffer: Buffer, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
        """Wait for what was issued so far, and return elements of the memory as a new array of one axis."""

    def download_all(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Do what `download` does for several places, and wait once."""

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        """Copy bytes within the device."""

    def launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int = 0,
    ) -> None:  # fmt: skip
        """Run a kernel of a module; args are addresses (`int`) and NumPy scalars of the params' types."""

    def synchronize(self) -> None:
        """Wait until everything that was issued is done."""

    def mark(self) -> Any:
        """Return the point that has been reached in what was issued here: on the current stream."""

    def follow(self, mark: Any) -> None:
        """Let what is issued next come after a mark, of whatever stream. Nothing waits on the host."""

    def capture(self) -> Recorder:
        """Return a recorder, for a `with` block."""

    def is_own(self, array: Any) -> bool:
        """Tell whether an object is an array in this device's memory: CuPy's, or one that says so by a protocol."""

    def take(self, array: Any) -> Told:
        """Return where an array of the device is, without copying."""

    def give(self, buffer: Buffer, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        """Return memory as an array that users handle: a CuPy array for CUDA."""

    def free_memory(self) -> tuple[int, int]:
        """Return the bytes that are free, and all."""


def put(gpu: Gpu, array: Any) -> Any:
    """Return a copy of an array of the host on a GPU, as users handle it there."""
    plain = np.array(array, order="C", copy=None)
    buffer = gpu.allocate(plain.nbytes)
    if plain.nbytes:
        gpu.upload(plain, buffer)
    return gpu.give(buffer, 0, plain.dtype, plain.shape)


def refuse_capture(recording: object, what: str) -> None:
    """Raise an error if something that cannot be recorded happens during a recording."""
    if recording is not None:
        raise DeviceError(
            f"{what} cannot be part of a CUDA graph", remedy="do it before or after the recording"
        )
