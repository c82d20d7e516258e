"""C functions of NumPy and SciPy that compiled code calls, each under a symbol from which its address can be found.

| symbol | function |
| --- | --- |
| `dsl_ufunc_linalg_solve_dd_d` | inner loop `void (char **args, intp *dims, intp *steps, void *data)` of a ufunc |
| `dsl_ufuncdata_fft_fft_Dd_D` | the `data` to call it with: the symbol's address is the pointer |
| `dsl_sort_f32` | NumPy's `int (void *start, intp n, void *)`, in place, not stable, vectorised |
| `dsl_argsort_c64` | NumPy's `int (void *start, intp *order, intp n, void *)`, stable |
| `dsl_blas_zgemm`, `dsl_lapack_dgetrf` | SciPy's BLAS and LAPACK, Fortran conventions, 32-bit ints |

None of them needs Python's lock. A symbol, not an address, is part of compiled code, so stored code works in other
processes. The layouts read here are those of `PyUFuncObject` and `PyArray_ArrFuncs`, unchanged since NumPy 1.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from typing import Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.types import BY_NAME

__all__ = [
    "address_of",
    "argsort_symbol",
    "data_symbol",
    "is_foreign",
    "sort_symbol",
    "ufunc_symbol",
]

_UFUNC_MODULES = {
    "linalg": "numpy.linalg._umath_linalg",
    "fft": "numpy.fft._pocketfft_umath",
    "special": "scipy.special",
}
_PATTERN = re.compile(r"dsl_(ufunc|ufuncdata|sort|argsort|blas|lapack)_(\w+)")

# In words of 8 bytes: PyUFuncObject.functions and .data; PyArray_ArrFuncs.sort[0] and .argsort[stable];
# _PyDataType_GetArrFuncs in NumPy's table of functions.
_FUNCTIONS, _DATA, _SORT, _ARGSORT, _GET_FUNCTIONS = 4, 5, 33, 38, 365


def ufunc_symbol(module: str, name: str, types: str) -> str:
    """Return the symbol of a ufunc's loop for types in NumPy's spelling, `dd->d`."""
    return f"dsl_ufunc_{module}_{name}_{types.replace('->', '_')}"


def data_symbol(module: str, name: str, types: str) -> str:
    """Return the symbol whose address is the last argument of a ufunc's loop."""
    return f"dsl_ufuncdata_{module}_{name}_{types.replace('->', '_')}"


def sort_symbol(dtype: str) -> str:
    return f"dsl_sort_{dtype}"


def argsort_symbol(dtype: str) -> str:
    return f"dsl_argsort_{dtype}"


def is_foreign(symbol: str) -> bool:
    return _PATTERN.fullmatch(symbol) is not None


@functools.cache
def address_of(symbol: str) -> int:
    """Return the address of a symbol of the kinds above; 0 is a possible `data`."""
    found = _PATTERN.fullmatch(symbol)
    if found is None:
        raise InternalError(f"{symbol} is not a symbol of NumPy or SciPy")
    kind, rest = found.groups()
    if kind in ("ufunc", "ufuncdata"):
        return _loop_address(rest, _FUNCTIONS if kind == "ufunc" else _DATA)
    if kind in ("sort", "argsort"):
        return _sort_address(BY_NAME[rest], _SORT if kind == "sort" else _ARGSORT)
    return _capsule_address(kind, rest)


def _words(address: int) -> Any:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))


def _loop_address(rest: str, table: int) -> int:
    module, rest = rest.split("_", 1)
    name, inputs, outputs = rest.rsplit("_", 2)
    ufunc = getattr(importlib.import_module(_UFUNC_MODULES[module]), name)
    place = ufunc.types.index(f"{inputs}->{outputs}")
    loops = _words(id(ufunc))[table]
    return int(_words(loops)[place] or 0) if loops else 0


def _sort_address(dtype: np.dtype, place: int) -> int:
    umath = importlib.import_module("numpy._core._multiarray_umath")
    api = _words(_capsule_pointer(umath._ARRAY_API))
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(api[_GET_FUNCTIONS])
    return int(_words(get(dtype))[place])


def _capsule_address(library: str, name: str) -> int:
    module = importlib.import_module(f"scipy.linalg.cython_{library}")
    return _capsule_pointer(module.__pyx_capi__[name])


def _capsule_pointer(capsule: object) -> int:
    python = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", python))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", python)
    )
    return int(pointer_of(capsule, name_of(capsule)))
