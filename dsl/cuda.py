"""Arrays on GPUs: `to_device`, `to_host` and `devices`.

`@dsl.jit(device="cuda:0")` takes NumPy arrays and returns NumPy arrays. Arrays that are on the device already are taken as they
are, and the results stay there: CuPy arrays on `cuda:k`, arrays like them on `cuda-emulator:0`, which interprets the PTX that
a GPU would run and works on any machine.

>>> import numpy as np, dsl
>>> x = dsl.cuda.to_device(np.arange(4.0), "cuda-emulator:0")
>>> y = dsl.jit(lambda x: x * 2)(x)
>>> dsl.cuda.to_host(y)
array([0., 2., 4., 6.])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import DeviceError
from dsl.ir.devices import DeviceName

__all__ = ["devices", "to_device", "to_host"]


def to_device(array: Any, device: str = "cuda:0") -> Any:
    """Return a copy of an array on a GPU."""
    from dsl.codegen.cuda.device import put
    from dsl.codegen.cuda.devices import gpu, is_gpu

    name = DeviceName.parse(device)
    if not is_gpu(name):
        raise DeviceError(f"{device!r} is no GPU", remedy='say "cuda:0" or "cuda-emulator:0"')
    return put(gpu(name), array)


def to_host(array: Any) -> np.ndarray:
    """Return an array of a GPU as a NumPy array; one of the host as it is."""
    from dsl.codegen.cuda.devices import gpu
    from dsl.codegen.cuda.frame import on_host
    from dsl.frontend.signature import device_name, is_on_device

    if not is_on_device(array):
        return np.asarray(array)
    return on_host(gpu(DeviceName.parse(device_name(array))), array)


def devices() -> list[str]:
    """Return the names of the GPUs that are there, the emulator last."""
    from dsl.codegen.cuda.cupy_driver import devices as real

    try:
        found = [f"cuda:{k}" for k in range(len(real()))]
    except DeviceError:
        found = []
    return [*found, "cuda-emulator:0"]
