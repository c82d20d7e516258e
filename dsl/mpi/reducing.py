"""Reductions as MPI has them: the dtype that they are computed in, and MPI's op.

Floats of 16 bits are reduced in 32; bools, as bytes. MPI leaves open what its maximum does with NaNs, so that of floats is
NumPy's, which keeps them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dsl.ir.communicator import UFUNCS
from dsl.ir.types import BFLOAT16

__all__ = ["finished", "operator", "prepared", "work_dtype"]

_WORK: dict[np.dtype, np.dtype] = {
    BFLOAT16: np.dtype(np.float32),
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.bool_): np.dtype(np.uint8),
}


def work_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which arrays of a dtype are reduced."""
    return _WORK.get(dtype, dtype)


def prepared(x: np.ndarray) -> np.ndarray:
    """Return an array as one to reduce: contiguous, the same memory if it can be."""
    if x.flags.c_contiguous and work_dtype(x.dtype) is x.dtype:
        return x
    return np.ascontiguousarray(x, work_dtype(x.dtype)).reshape(x.shape)


def finished(y: np.ndarray, how: str, size: int, dtype: np.dtype) -> np.ndarray:
    """Return the result of a reduction over `size` ranks; `y` may be written."""
    if how == "mean":
        np.divide(y, size, out=y)
    return y if y.dtype is dtype or y.dtype == dtype else y.astype(dtype)


@functools.cache
def operator(how: str, dtype: np.dtype) -> Any:
    """Return MPI's op for arrays of a dtype in which is reduced."""
    from mpi4py import MPI

    if how in ("max", "min") and dtype.kind == "f":
        return _keeping_nans(how, dtype)
    return {"sum": MPI.SUM, "mean": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}[how]


def _keeping_nans(how: str, dtype: np.dtype) -> Any:
    from mpi4py import MPI

    ufunc = UFUNCS[how]

    def combine(one: Any, both: Any, datatype: Any) -> None:
        target = np.frombuffer(both, dtype)
        ufunc(np.frombuffer(one, dtype), target, out=target)

    return MPI.Op.Create(combine, commute=True)
