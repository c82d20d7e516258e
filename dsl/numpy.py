"""`dsl.numpy`: the Python array API standard (2024.12) and NumPy's functions beyond it.

The functions work on NumPy arrays at once, by NumPy itself, and inside compiled functions as dataflow. Dtypes and constants are
NumPy's. Data-dependent shapes (`nonzero`, boolean masks, `unique_*`) are supported.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from dsl import fft, linalg
from dsl.frontend import functions as _functions
from dsl.frontend.library import NAMESPACES, public
from dsl.frontend.traced import _UFUNCS

__array_api_version__ = "2024.12"

e, inf, nan, pi, newaxis = np.e, np.inf, np.nan, np.pi, np.newaxis
bool = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
bfloat16 = ml_dtypes.bfloat16
complex64, complex128 = np.complex64, np.complex128
finfo, iinfo, from_dlpack = np.finfo, np.iinfo, np.from_dlpack

_ = (_functions, fft, linalg)
__all__ = sorted(name for name in NAMESPACES["numpy"] if not name.startswith("_"))
globals().update({name: public("numpy", name) for name in __all__})
_UFUNCS["namespace"] = lambda: sys.modules[__name__]


def __array_namespace_info__() -> Any:
    """Return what the standard asks: capabilities, devices and dtypes, which are NumPy's."""
    return np.__array_namespace_info__()


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'dsl.numpy' has no attribute {name!r}")
