"""Arrays of a GPU in collectives: by way of the host or, if the option `cuda_mpi` says so, by MPI as they are.

A staged array is copied to the host, and what comes back to its device. A direct one is passed to mpi4py by
`__cuda_array_interface__`, when its stream is done; that needs an MPI library that was built with CUDA. Both say the same
to the other ranks, which may have arrays anywhere. Directly go, of arrays in C order on a `cuda:k`, `allreduce`,
`reduce_scatter` (not in 16 bits, and of floats no maximum or minimum, whose NaNs MPI does not keep), `broadcast`,
`allgather` and `alltoall`. Everything else is staged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl import events
from dsl.codegen.cuda.device import Buffer, Gpu, put
from dsl.codegen.cuda.devices import gpu as gpu_named
from dsl.codegen.cuda.frame import Placed, on_host, placed_at
from dsl.config import config
from dsl.frontend.signature import device_name
from dsl.ir.communicator import communicator, current_location
from dsl.ir.devices import DeviceName
from dsl.mpi.aware import is_aware
from dsl.mpi.reducing import operator, work_dtype

__all__ = ["apply_on_gpu", "to_gpu_of"]


def apply_on_gpu(op: str, x: Any, attrs: dict[str, Any], apply: Callable[..., Any]) -> Any:
    """Apply an op to an array of a GPU; `apply` does it for one of the host. The result is on the GPU."""
    gpu = gpu_named(DeviceName.parse(device_name(x)))
    told = gpu.take(x)
    placed = placed_at(told)
    if _goes_directly(op, gpu, placed, told.dtype, attrs):
        window = _Window(gpu, placed.buffer, placed.offset, told.dtype, placed.shape)
        return _direct(op, window, attrs)
    found = apply(op, on_host(gpu, x), attrs)
    return None if found is None else put(gpu, found)


def to_gpu_of(like: Any, array: Any) -> Any:
    """Return an array of the host on the GPU of another one."""
    return put(gpu_named(DeviceName.parse(device_name(like))), array)


# -- by MPI as they are -----------------------------------------------------------------------------------------------


def _goes_directly(
    op: str, gpu: Gpu, placed: Placed, dtype: np.dtype, attrs: dict[str, Any]
) -> bool:
    if config.cuda_mpi == "off" or op not in _OPS or gpu.name.kind != "cuda":
        return False
    if communicator().size == 1 or placed.strides is not None or 0 in placed.shape:
        return False
    return _reduces(attrs.get("how"), dtype) and (config.cuda_mpi == "on" or is_aware())


def _reduces(how: str | None, dtype: np.dtype) -> bool:
    """Tell whether MPI itself makes a reduction of a dtype."""
    if how is None:
        return True
    if work_dtype(dtype) != dtype or (how == "mean" and dtype.kind not in "fc"):
        return False
    return how not in ("max", "min") or dtype.kind in "iu"


@dataclass(frozen=True)
class _Window:
    """Memory of a GPU as mpi4py takes it: flat, of one dtype."""

    gpu: Gpu
    buffer: Buffer
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (math.prod(self.shape),),
            "typestr": self.dtype.str,
            "data": (self.buffer.pointer + self.offset, False),
            "version": 3,
        }

    def bytes(self) -> _Window:
        return _Window(self.gpu, self.buffer, self.offset, np.dtype(np.uint8), (self.nbytes,))

    def empty(self, shape: tuple[int, ...]) -> _Window:
        """New memory for elements of the same dtype."""
        buffer = self.gpu.allocate(math.prod(shape) * self.dtype.itemsize)
        return _Window(self.gpu, buffer, 0, self.dtype, shape)


def _direct(op: str, x: _Window, attrs: dict[str, Any]) -> Any:
    from dsl.mpi.collectives import ranks

    everybody = ranks()
    how = {name: attrs[name] for name in ("how", "root") if name in attrs}
    with everybody.lock, events.span("collective", op, current_location(), {"on": str(x.gpu.name)}):
        x.gpu.synchronize()  # MPI knows nothing of streams
        found = _OPS[op](everybody, x, **how)
    made = found.gpu.give(found.buffer, found.offset, found.dtype, found.shape)
    return _divide(made, everybody.size) if how.get("how") == "mean" else made


def _all_reduce(ranks: Any, x: _Window, how: str) -> _Window:
    comm, found = ranks._meet("all_reduce", x, how), x.empty(x.shape)
    comm.Allreduce(x, found, operator(how, x.dtype))
    return found


def _reduce_scatter(ranks: Any, x: _Window, how: str) -> _Window:
    comm, found = ranks._meet("reduce_scatter", x, how), x.empty(x.shape[1:])
    comm.Reduce_scatter_block(x, found, operator(how, x.dtype))
    return found


def _broadcast(ranks: Any, x: _Window, root: int) -> _Window:
    comm, found = ranks._meet("broadcast", x, f"root={root}"), x.empty(x.shape)
    if root == ranks.rank:
        x.gpu.move(x.buffer, x.offset, found.buffer, 0, x.nbytes)
        x.gpu.synchronize()
    comm.Bcast(found.bytes(), root)
    return found


def _all_gather(ranks: Any, x: _Window) -> _Window:
    comm, found = ranks._meet("allgather", x), x.empty((ranks.size, *x.shape))
    comm.Allgather(x.bytes(), found.bytes())
    return found


def _all_to_all(ranks: Any, x: _Window) -> _Window:
    comm, found = ranks._meet("alltoall", x), x.empty(x.shape)
    comm.Alltoall(x.bytes(), found.bytes())
    return found


_OPS: dict[str, Callable[..., _Window]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "broadcast_from": _broadcast,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}


def _divide(x: Any, ranks: int) -> Any:
    """Return a mean, from a sum, on the GPU."""
    return _quotient()(x, ranks)


@functools.cache
def _quotient() -> Callable[[Any, int], Any]:
    from dsl.compile import jit

    return jit(_divided)


def _divided(x: Any, n: int) -> Any:
    return x / n
