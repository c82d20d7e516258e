"""What a user's function means: its bytecode and all that it reads from outside, as a digest.

Numba makes constants of the globals and closure variables that a function reads. Two functions of one digest compile
to the same code, in any process; line numbers and comments do not count. Functions, modules of the user's and tuples
are looked into. What has no lasting identity (an object of some class) gets a digest of this process alone.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.errors import UnsupportedError
from dsl.ir.location import Location

__all__ = ["Fingerprint", "fingerprint", "location_of"]

_FOREIGN = {"numpy", "scipy", "numba", "llvmlite", "dsl", *sys.stdlib_module_names} - {"__main__"}
_PROCESS = os.urandom(8).hex()


@dataclass(frozen=True)
class Fingerprint:
    """A digest, and what was read: a function, the name it uses, the value."""

    digest: str
    reads: tuple[tuple[types.FunctionType, str, Any], ...]


def fingerprint(*functions: types.FunctionType) -> Fingerprint:
    """Return what functions mean now."""
    walk = _Walk()
    for function in functions:
        walk.function(function)
    total = hashlib.sha256("\0".join(walk.parts).encode("utf-8", "surrogatepass"))
    return Fingerprint(total.hexdigest(), tuple(walk.reads))


def location_of(fn: types.FunctionType, line: int | None = None) -> Location:
    """Return where a function is written, or a line of it."""
    return Location(fn.__code__.co_filename, line or _line_of_def(fn.__code__), fn.__name__)


def _line_of_def(code: types.CodeType) -> int:
    """Return the line after the decorators, which Python counts to a function."""
    first = code.co_firstlineno
    for k, line in enumerate(linecache.getlines(code.co_filename)[first - 1 : first + 20]):
        if line.lstrip().startswith(f"def {code.co_name}"):
            return first + k
    return first


class _Walk:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.reads: list[tuple[types.FunctionType, str, Any]] = []
        self._seen: list[Any] = []

    def function(self, fn: types.FunctionType) -> None:
        if self._again(fn):
            return
        codes = list(_codes(fn.__code__))
        for code in codes:
            self._code(code)
        self._value(fn, fn.__defaults__)
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        for name, value in _outside(fn, names):
            self.parts.append(name)
            self.reads.append((fn, name, value))
            self._value(fn, value, tuple(names))

    def _again(self, item: Any) -> bool:
        for k, other in enumerate(self._seen):
            if other is item:
                self.parts.append(f"again {k}")
                return True
        self._seen.append(item)
        return False

    def _code(self, code: types.CodeType) -> None:
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_flags)
        table = getattr(code, "co_exceptiontable", b"")
        self.parts.append(repr((code.co_code, table, constants, names, counts)))

    def _value(self, fn: types.FunctionType, value: Any, names: tuple[str, ...] = ()) -> None:
        inner = getattr(value, "py_func", value)  # of numba's functions, and of kernels
        if isinstance(inner, types.FunctionType):
            self.parts.append(str(sorted(getattr(value, "targetoptions", {}).items())))
            self.function(inner)
        elif isinstance(value, types.ModuleType):
            self._module(fn, value, names)
        elif isinstance(value, tuple):
            self.parts.append(f"tuple of {len(value)}")
            for item in value:
                self._value(fn, item)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(fn, value)
        else:
            self.parts.append(_text(value))

    def _module(self, fn: types.FunctionType, module: types.ModuleType, names: Any) -> None:
        self.parts.append(f"module {module.__name__}")
        if module.__name__.partition(".")[0] in _FOREIGN or self._again(module):
            return
        for name in names:
            if hasattr(module, name):
                self.parts.append(name)
                self._value(fn, getattr(module, name), names)

    def _array(self, fn: types.FunctionType, array: np.ndarray | np.generic) -> None:
        if array.flags.writeable and isinstance(array, np.ndarray):
            raise UnsupportedError(
                f"the kernel {fn.__name__} reads an array from outside, which may change after it is compiled",
                location=location_of(fn),
                remedy="pass the array as an argument, or make it constant with `array.setflags(write=False)`",
            )
        data = hashlib.sha256(array.tobytes()).hexdigest()
        self.parts.append(f"array {array.dtype} {array.shape} {data}")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _outside(fn: types.FunctionType, names: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.dtype):
        return f"dtype {value.str}"
    module = getattr(value, "__module__", None) or ""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is not None and module.partition(".")[0] in _FOREIGN | {"builtins", ""}:
        return f"{module}.{name}"
    return f"{type(value).__name__} {id(value)} {_PROCESS}"
