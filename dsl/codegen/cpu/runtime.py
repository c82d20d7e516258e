"""The native runtime: allocator, thread pool and entry, one module of machine code that every program calls by name.

`ensure_loaded()` finds the module's object in the disk cache, or makes its text (the same in every process) and compiles it;
links it, tells it where Python's and NumPy's objects are, and makes its functions known to `jit` for programs:

| symbol | what it is |
| --- | --- |
| `ptr dsl_alloc(i64 bytes)`, `void dsl_free(ptr)` | `memory` |
| `void dsl_parallel(ptr fn, ptr env, i64 n, i64 grain)`, `i64 dsl_threads()` | `pool` |
| `i32 dsl_poll()`, `i64 dsl_python(ptr context, i64 id, ptr words)` | `entry_code` |
| `void dsl_release(ptr context)`, `void dsl_acquire(ptr context)` (the GIL) | `entry_code` |

The code is never unloaded: worker threads and NumPy's arrays refer to it until the process ends.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.cpu import entry, jit, memory, pool, recipes, watch, words
from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.llvm import Module
from dsl.config import config
from dsl.errors import InternalError
from dsl.ir.types import BFLOAT16

__all__ = ["EXPORTS", "address", "ensure_loaded", "function", "module_text", "word"]

EXPORTS = (
    "dsl_alloc", "dsl_free", "dsl_parallel", "dsl_threads", "dsl_poll", "dsl_release", "dsl_acquire", "dsl_python",
)  # fmt: skip
"""The functions that programs may call."""

_PYTHON = (
    "PyBool_FromLong", "PyCapsule_GetPointer", "PyCapsule_New", "PyComplex_FromDoubles", "PyErr_CheckSignals",
    "PyErr_NoMemory", "PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread", "PyFloat_FromDouble",
    "PyLong_AsLongLong", "PyLong_AsLongLongAndOverflow", "PyLong_FromLongLong", "PyObject_RichCompareBool",
    "PyObject_Vectorcall", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyTuple_Size", "Py_DecRef", "Py_IncRef",
)  # fmt: skip
_NEW_ARRAY, _NEW_SCALAR, _SET_BASE, _GET_HANDLER = 94, 60, 282, 305  # in NumPy's table of functions

_FLAGS = ("no-vectorize", "no-slp", "no-interleave", "no-unroll")  # the loops here are short

_lock = threading.Lock()
_loaded: jit.Code | None = None


def _renew_lock() -> None:
    """In the child after `fork`: a thread that is gone may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def ensure_loaded() -> jit.Code:
    """Load the runtime, once a process, and return its code."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load()
                _start()
    return _loaded


@functools.cache
def module_text() -> str:
    """Return the runtime as LLVM IR."""
    from dsl.codegen.cpu import entry_code

    module = Module("dsl_runtime")
    for part in (words, memory, pool, entry_code):
        part.emit(module)
    return module.text()


def address(symbol: str) -> int:
    """Return the address of a function of the runtime."""
    return ensure_loaded().address(symbol)


@functools.cache
def function(symbol: str, result: Any, *params: Any) -> Callable[..., Any]:
    """Return a function of the runtime that Python can call; it keeps the GIL."""
    return ctypes.PYFUNCTYPE(result, *params)(address(symbol))


@functools.cache
def word(name: str) -> ctypes.c_int64:
    """Return a word of the runtime, live."""
    memory_address = function("dsl_memory", ctypes.c_void_p)()
    return words.view(memory_address, name)


def _load() -> jit.Code:
    for name in _PYTHON:
        jit.define(name, _pointer(getattr(ctypes.pythonapi, name)))
    code = _code()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))  # see above: never unloaded
    for name in EXPORTS:
        jit.define(name, code.address(name))
    _initialize(code)
    return code


def _code() -> jit.Code:
    """Return the code, by its note if there is one: that spares 10 ms of making the text."""
    key = recipes.recipe("runtime")
    note = recipes.find(key)
    code = None if note is None else recipes.code(note)
    if code is None:
        code = recipes.load(key, module_text(), level=2, flags=_FLAGS)
    return code


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _initialize(code: jit.Code) -> None:
    """Tell the code where things are; it can be used from then on."""
    values = _objects(code)
    table = (ctypes.c_int64 * len(words.OBJECTS))(*(values[name] for name in words.OBJECTS))
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(code.address("dsl_init"))(table)
    ctypes.PYFUNCTYPE(None)(code.address("dsl_pool_start"))()


def _start() -> None:
    """Follow the options, `fork` and the end of the process."""
    word("main_thread").value = threading.main_thread().ident or 0
    pool.apply_limit()
    config.watch("num_threads", pool.apply_limit)
    stop = function("dsl_pool_stop", None, ctypes.c_int64)
    atexit.register(stop, 1)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=functools.partial(stop, 0), after_in_child=_start_child)


def _start_child() -> None:
    """After `fork`, only the thread that forked is left, and it is Python's main thread from then on."""
    word("main_thread").value = threading.get_ident()
    function("dsl_pool_reset", None)()
    function("dsl_memory_reset", None)()


# --- Python's and NumPy's objects ----------------------------------------------------------------

_kept: list[object] = []


def _objects(code: jit.Code) -> dict[str, int]:
    """Return what `dsl_init` wants to know."""
    numpy_api = _numpy_api()
    _verify_layouts()
    capsule = memory.handler_capsule(code.address)
    _kept.append(capsule)
    return {
        "not_implemented": id(NotImplemented),
        "none": id(None),
        "true": id(True),
        "array_type": id(np.ndarray),
        "new_array": numpy_api[_NEW_ARRAY],
        "new_scalar": numpy_api[_NEW_SCALAR],
        "set_base": numpy_api[_SET_BASE],
        "memory_handler": id(capsule) if _handler_is_known(numpy_api[_GET_HANDLER]) else 0,
        "slow": ctypes.addressof(entry.SLOW),
        "watch": id(watch.look),
        "cache_cap": memory.cache_cap(),
        "largest": memory.largest(),
    }


def _numpy_api() -> Any:
    """Return NumPy's table of functions, as addresses."""
    umath = importlib.import_module("numpy._core._multiarray_umath")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = get(umath._ARRAY_API, None)
    return ctypes.cast(table, ctypes.POINTER(ctypes.c_int64))


def _word_at(address: int, kind: Any = ctypes.c_int64) -> int:
    return int(kind.from_address(address).value)


def _verify_layouts() -> None:
    """Raise unless arrays and scalars keep their parts where the entry looks for them."""
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    place = id(array)
    found = (
        _word_at(place + layout.TYPE), _word_at(place + layout.DATA),
        _word_at(place + layout.RANK, ctypes.c_int), _word_at(place + layout.DESCR),
        _word_at(place + layout.FLAGS, ctypes.c_int),
    )  # fmt: skip
    told = (id(np.ndarray), array.ctypes.data, array.ndim, id(array.dtype), array.flags.num)
    if found == told:
        pointers = (layout.DIMS, array.shape), (layout.STRIDES, array.strides)
        read = [
            tuple(_word_at(_word_at(place + at) + 8 * i) for i in range(array.ndim))
            for at, _ in pointers
        ]
        if read == [array.shape, array.strides] and all(map(_scalar_is_known, _DTYPES)):
            return
    raise InternalError(
        f"NumPy {np.__version__} lays its objects out in another way than native code knows"
    )


_DTYPES = [np.dtype(code) for code in "?bhilqBHILQefdFD"] + [BFLOAT16]


def _scalar_is_known(dtype: np.dtype[Any]) -> bool:
    scalar = np.ones((), dtype)[()]
    return ctypes.string_at(id(scalar) + layout.VALUE_AT, dtype.itemsize) == scalar.tobytes()


def _handler_is_known(get_handler: int) -> bool:
    """Return whether an array that owns its data names its memory handler where the entry stores ours."""
    array = np.empty(3)
    handler = ctypes.PYFUNCTYPE(ctypes.py_object)(get_handler)()
    owner, view = (_word_at(id(a) + layout.MEMORY_HANDLER) for a in (array, array[1:]))
    return owner == id(handler) and view == 0
