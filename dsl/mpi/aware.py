"""Whether the MPI library takes memory of GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

__all__ = ["is_aware"]


@functools.cache
def is_aware() -> bool:
    """Tell whether the MPI library says that it takes memory of GPUs. Some say nothing, some are wrong."""
    switches = ("OMPI_MCA_opal_cuda_support", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
    if any(os.environ.get(name, "").lower() in ("1", "true") for name in switches):
        return True
    from mpi4py import MPI

    info = MPI.COMM_WORLD.Get_info()
    if "cuda" in (info.Get("mpi_memory_alloc_kinds") or ""):
        return True
    with contextlib.suppress(OSError, AttributeError):  # Open MPI's own question
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    return False
