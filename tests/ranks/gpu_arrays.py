"""Collectives on arrays of an emulated GPU: they come back on it, with what the host's arrays give; argument `direct`: by a
stand-in for CuPy whose memory is the host's, as MPI takes it from a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import dsl
from dsl import parallel
from dsl.config import config

RANK, SIZE = parallel.rank(), parallel.size()
OTHER = 1 - RANK
COLLECTIVES: list[tuple[str, tuple[Any, ...]]] = [
    ("allreduce", ()), ("allreduce", ("mean",)), ("allreduce", ("max",)), ("reduce", ("sum", 1)),
    ("broadcast", (1,)), ("gather", (1,)), ("allgather", ()), ("scatter", (0,)),
    ("reduce_scatter", ()), ("alltoall", ()),
]  # fmt: skip


def data(dtype: str = "f8") -> np.ndarray:
    return (10 * RANK + np.arange(6.0)).reshape(2, 3).astype(dtype)


def staged() -> None:
    for dtype in ("f8", "f4", "f2", "i4", "?", "c16"):
        for name, args in COLLECTIVES:
            if dtype in ("c16", "?") and "max" in args:
                continue
            x = data(dtype)
            there = dsl.cuda.to_device(x, "cuda-emulator:0")
            check(getattr(parallel, name)(there, *args), getattr(parallel, name)(x, *args))
    messages()
    tree = parallel.allreduce({"a": dsl.cuda.to_device(data(), "cuda-emulator:0"), "b": data()})
    check(tree["a"], tree["b"])
    assert isinstance(tree["b"], np.ndarray)


def messages() -> None:
    for n in (6, 10_000):  # within its record, and by itself
        x = RANK + np.arange(float(n))
        there = dsl.cuda.to_device(x, "cuda-emulator:0")
        check(parallel.sendrecv(there, OTHER, OTHER), OTHER + np.arange(float(n)))
        if RANK == 0:
            parallel.send(there, 1)
        else:
            check(parallel.recv(there, 0), np.arange(float(n)))


def check(found: Any, expected: Any) -> None:
    assert found.dsl_device.endswith("cuda-emulator:0")
    got = dsl.cuda.to_host(found)
    assert got.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(got, expected)


def direct() -> None:
    from fake_cupy import Fake

    from dsl.codegen.cuda.devices import gpu
    from dsl.ir.devices import DeviceName
    from dsl.parallel import gpu_arrays

    fake = sys.modules["cupy"] = Fake()
    there = gpu(DeviceName.parse("cuda:0"))
    gpu_arrays._divide = lambda x, n: divided(fake, x, n)
    for option in ("off", "on"):
        for dtype in ("f8", "i4", "f2"):
            for name, args in COLLECTIVES:
                x, mine = data(dtype), fake.array(data(dtype))
                fake.calls.clear()
                with config.override(cuda_mpi=option):
                    found = getattr(parallel, name)(mine, *args)
                assert there.is_own(found), name
                expected = np.asarray(getattr(parallel, name)(x, *args))
                copies = [call for call in fake.calls if call[0] == "memcpyAsync"]
                got = dsl.cuda.to_host(found)
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
                np.testing.assert_array_equal(got, expected)
                assert by_way_of_host(copies) == (option == "off" or not goes(name, args, dtype))


def divided(fake: Any, x: Any, n: int) -> Any:
    """What a kernel would do, which the stand-in cannot run; not one of its calls."""
    before = list(fake.calls)
    made = fake.array(dsl.cuda.to_host(x) / n)
    fake.calls[:] = before
    return made


def by_way_of_host(copies: list[Any]) -> bool:
    return any(kind != 3 for _, _, kind, _ in copies)  # 3: within the device


def goes(name: str, args: tuple[Any, ...], dtype: str) -> bool:
    """Tell whether a collective needs no copy on the host."""
    if name in ("broadcast", "allgather", "alltoall"):
        return True
    plain = dtype != "f2" and not (dtype == "i4" and "mean" in args)
    kept = "max" not in args or dtype == "i4"
    return name in ("allreduce", "reduce_scatter") and plain and kept


if __name__ == "__main__":
    direct() if "direct" in sys.argv else staged()
    print("done", RANK)
