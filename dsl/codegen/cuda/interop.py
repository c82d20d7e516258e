"""What an array of another library says of itself: `__cuda_array_interface__` and DLPack.

In: any object. Out: where its memory is, or None if it has none on a GPU. Nothing here needs CUDA or CuPy.
References: the CUDA Array Interface, version 3 (numba.readthedocs.io); the DLPack C API, version 1 (dmlc.github.io).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.errors import DeviceError, UnsupportedError

__all__ = [
    "Interface",
    "dense_strides",
    "dlpack_device",
    "gpu_index",
    "is_readonly",
    "read_interface",
    "span",
]

CUDA, CUDA_MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


# --- The CUDA Array Interface --------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """What `__cuda_array_interface__` says: the first element's address, and the stream that it must be waited for on."""

    pointer: int
    readonly: bool
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stream: int | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def read_interface(array: Any) -> Interface | None:
    """Return what an object says by the CUDA Array Interface, version 0 to 3; None if it does not have it.

    A stream is 1 for the legacy default stream, 2 for that of the thread, else a handle; None needs no waiting.
    """
    told = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(told, Mapping):
        return None
    if told.get("mask") is not None:
        raise UnsupportedError(
            "an array with a mask is on the GPU",
            remedy="pass the values and the mask as two arrays",
        )
    dtype, shape = np.dtype(told["typestr"]), tuple(map(int, told["shape"]))
    strides = told.get("strides")
    pointer, readonly = told["data"]
    return Interface(
        int(pointer or 0),
        bool(readonly),
        dtype,
        shape,
        dense_strides(shape, dtype.itemsize) if strides is None else tuple(map(int, strides)),
        _stream(told.get("stream")),
    )


def _stream(told: object) -> int | None:
    if told is None:
        return None
    if not isinstance(told, int) or told == 0:
        raise DeviceError(
            f"an array says that its stream is {told!r}",
            remedy="the CUDA Array Interface has 1 for the default stream, 2 for that of the thread, or a handle",
        )
    return told


# --- DLPack --------------------------------------------------------------------------------------


def dlpack_device(array: Any) -> tuple[int, int] | None:
    """Return the kind and index of the device that an object is on by DLPack; None if it does not say."""
    ask = getattr(array, "__dlpack_device__", None)
    if ask is None or not hasattr(array, "__dlpack__"):
        return None
    try:
        kind, index = ask()
    except (BufferError, NotImplementedError):  # an array of JAX that is on several devices
        return None
    return int(kind), int(index)


class _Versioned(ctypes.Structure):
    """The head of `DLManagedTensorVersioned`, as far as the flags."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


_NAME = b"dltensor_versioned"
# Prototypes of our own: `ctypes.pythonapi` is shared by the whole process.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_readonly(capsule: object) -> bool:
    """Tell whether a capsule of DLPack that nobody has taken yet must not be written to; older ones cannot say so."""
    if not _capsule_is_valid(capsule, _NAME):
        return False
    return bool(_Versioned.from_address(_capsule_pointer(capsule, _NAME)).flags & _READ_ONLY)


# --- Either --------------------------------------------------------------------------------------


def gpu_index(array: Any) -> int | None:
    """Return the index of the GPU that an array says it is on; None for arrays of the host and other objects.

    PyTorch's and JAX's arrays have the same type on the host and on a GPU, so it is the object that must be asked.
    """
    if isinstance(array, np.ndarray | np.generic | int | float | complex):
        return None
    if (told := dlpack_device(array)) is not None:
        kind, index = told
        return index if kind in (CUDA, CUDA_MANAGED) else None
    if not isinstance(getattr(array, "__cuda_array_interface__", None), Mapping):
        return None
    device = getattr(array, "device", None)
    index = getattr(device, "id", getattr(device, "index", 0))
    return index if isinstance(index, int) else 0


# --- Strides -------------------------------------------------------------------------------------


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array.

    >>> dense_strides((2, 3), 8)
    (24, 8)
    """
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the first byte, and the one after the last, counted from the first element.

    >>> span((3,), (-8,), 8)
    (-16, 8)
    """
    if 0 in shape:
        return 0, 0
    steps = [(size - 1) * stride for size, stride in zip(shape, strides)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize
