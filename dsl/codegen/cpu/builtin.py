"""Machine code as built-in functions of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["FASTCALL", "KEYWORDS", "Method", "new_builtin"]

FASTCALL, KEYWORDS = 0x80, 0x2


class Method(ctypes.Structure):
    """CPython's PyMethodDef: name, address, flags, documentation. It must outlive the functions made of it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def new_builtin(method: Method, self: object) -> Callable[..., Any]:
    """Return a function that calls the code of a method with an object for `self`, which it keeps."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    made: Callable[..., Any] = new(ctypes.addressof(method), self, None)
    return made
