"""The GPUs of this process: `cuda:k`, which CuPy drives, and `cuda-emulator:k`, which interprets PTX."""

from __future__ import annotations

import os
import threading

from dsl.codegen.cuda.device import Gpu
from dsl.config import launched_local_rank
from dsl.errors import DeviceError
from dsl.ir.devices import DeviceName

__all__ = ["KINDS", "gpu", "is_gpu", "own_index"]

KINDS = ("cuda", "cuda-emulator")

_gpus: dict[tuple[str, int], Gpu] = {}
_lock = threading.RLock()


def is_gpu(name: DeviceName) -> bool:
    """Tell whether a name asks for a GPU."""
    return name.kind in KINDS


def gpu(name: DeviceName) -> Gpu:
    """Return a GPU by its name; raises `DeviceError` if it is not there, and says what is missing."""
    kind = name.kind or "cuda"
    if kind not in KINDS:
        raise DeviceError(
            f"there are no devices of the kind {kind!r}",
            remedy='ask for "cpu:0", "cuda:0" or "cuda-emulator:0"',
        )
    key = kind, own_index(kind) if name.index is None else name.index
    with _lock:
        if key not in _gpus:
            _gpus[key] = _make(*key)
        return _gpus[key]


def own_index(kind: str) -> int:
    """Return the GPU that `cuda` without an index is: of the processes on one machine, each has the next."""
    rank = launched_local_rank() if kind == "cuda" else None
    if not rank:
        return 0
    from dsl.codegen.cuda.cupy_driver import available

    return rank % available()[1]


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
