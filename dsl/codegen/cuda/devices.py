"""The GPUs of this process: `cuda:k`, which CuPy drives, and `cuda-emulator:k`, which interprets PTX."""

from __future__ import annotations

import os
import threading

from dsl.codegen.cuda.device import Gpu
from dsl.ir.devices import DeviceName

__all__ = ["KINDS", "gpu", "is_gpu"]

KINDS = ("cuda", "cuda-emulator")

_gpus: dict[tuple[str, int], Gpu] = {}
_lock = threading.RLock()


def is_gpu(name: DeviceName) -> bool:
    """Tell whether a name asks for a GPU."""
    return name.kind in KINDS


def gpu(name: DeviceName) -> Gpu:
    """Return a GPU by its name; raises `DeviceError` if it is not there, and says what is missing."""
    key = name.kind or "cuda", name.index or 0
    with _lock:
        if key not in _gpus:
            _gpus[key] = _make(*key)
        return _gpus[key]


def _make(kind: str, index: int) -> Gpu:
    if kind == "cuda-emulator":
        from dsl.codegen.cuda.emulated import EmulatedGpu

        return EmulatedGpu(index)
    from dsl.codegen.cuda.cupy_gpu import CupyGpu

    return CupyGpu(index)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
