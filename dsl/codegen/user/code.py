"""Compiles a user's function with numba and makes a module of LLVM IR of it that programs link to.

In: a function, and the types of its arguments. Out: a `Code`: the text of a module that defines one function

    i32 symbol(ptr results, ptr raised, arguments...)

which stores its results one after another as C lays out a struct, and returns 0; or stores the number, from 1, of one
of `errors`, or the address of that number, and returns another status. A number is passed as it is, a bool as i8, a
complex number as its two parts, an array of rank r as null, null, its count, its item size, its address, r dims and r
strides in bytes.

The text is kept on disk: a second process neither compiles nor imports numba, unless the kernel needs numba's own
run-time functions, to allocate arrays.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import json
import pickle
import re
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dsl.codegen.cpu import cache, jit
from dsl.codegen.user.adapt import UnfitError, adapt
from dsl.codegen.user.fingerprint import location_of
from dsl.errors import DslError, TypeRuleError, UnsupportedError
from dsl.ir.location import Location
from dsl.ir.types import BY_NAME, dtype_name
from dsl.logs import log

__all__ = ["Argument", "Code", "Source", "numba_address", "numba_module"]

_VERSION = "2"
"""Of the texts kept on disk. Change it with anything below that makes another text from the same function."""


class Argument(NamedTuple):
    """The type of an argument: a number, or an array of a rank in C order, which the kernel may read or must fill."""

    dtype: np.dtype
    rank: int | None = None
    is_output: bool = False

    def __str__(self) -> str:
        if self.rank is None:
            return dtype_name(self.dtype)
        return f"{dtype_name(self.dtype)}[{', '.join(':' * self.rank)}]{' out' * self.is_output}"


@dataclass(frozen=True)
class Code:
    """A compiled function: see the head of this file."""

    symbol: str
    results: tuple[str, ...]  # short names of dtypes
    several: bool  # whether it returned a tuple
    text: str  # this and the others as `adapt` made them
    errors: tuple[str, ...]
    functions: tuple[str, ...]
    externals: tuple[str, ...]
    cost: float

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtypes of the results."""
        return tuple(BY_NAME[name] for name in self.results)

    def error(self, number: int) -> tuple[Exception, Location | None]:
        """Return what the function raised and, if a line of the user's did so, where."""
        if number > len(self.errors):  # the address of a record that begins with the number
            number = ctypes.c_int64.from_address(number).value
        kind, args, place = pickle.loads(base64.b64decode(self.errors[number - 1]))
        where = Location(place[1], place[2], place[0]) if place else None
        return kind(*(args or ())), where


class Source:
    """A function as it is at one moment: `digest` tells it and what it reads from outside from any other."""

    def __init__(self, fn: types.FunctionType, digest: str, *, boundscheck: bool) -> None:
        self.fn, self.digest, self.boundscheck = fn, digest, boundscheck
        self.name = re.sub(r"\W", "_", fn.__name__, flags=re.ASCII).strip("_") or "f"
        self._codes: dict[tuple[Argument, ...], Code | DslError] = {}
        self._lock = threading.RLock()

    def code(self, arguments: tuple[Argument, ...]) -> Code:
        """Return the code for arguments of these types: known already, found on disk, or compiled."""
        with self._lock:
            found = self._codes.get(arguments)
            if found is None:
                found = self._codes[arguments] = self._find(arguments)
        if isinstance(found, DslError):
            raise found.with_traceback(None)
        return found

    def _find(self, arguments: tuple[Argument, ...]) -> Code | DslError:
        listing = ", ".join(map(str, arguments))
        versions = (_VERSION, numba_version(), np.__version__, sys.version)
        place = str(location_of(self.fn))  # which exceptions tell
        made_from = (self.name, self.digest, listing)
        key = cache.digest("kernel", *versions, *jit.machine_and_compiler(), place, *made_from)
        store = cache.store()
        stored = store.get(key)
        if stored is not None:
            return _restored(stored)
        log("compile", "kernel %s(%s): numba compiles it", self.name, listing)
        try:
            found = self._compile(
                arguments, f"dsl.user.{self.name}.{cache.digest(*made_from)[:16]}"
            )
        except DslError as error:
            return error
        store.put(key, json.dumps(asdict(found)).encode())
        return found

    def _compile(self, arguments: tuple[Argument, ...], symbol: str) -> Code:
        signature = tuple(map(_numba_type, arguments))
        whole = any(a.rank is not None for a in arguments)
        try:
            with contextlib.nullcontext() if whole else _without_vectors():
                self.dispatcher.compile(signature)
        except Exception as error:
            raise self._refusal(arguments, error) from None
        compiled = self.dispatcher.overloads[signature]
        results, several = self._results(compiled.signature.return_type, arguments)
        text, main = compiled.library.get_llvm_str(), compiled.fndesc.llvm_func_name
        try:
            made = adapt(text, main, symbol, inline=bool(results))
        except UnfitError as error:
            message, place = f"the kernel {self.name} {error}", location_of(self.fn)
            raise UnsupportedError(message, location=place, remedy=error.remedy) from None
        return Code(symbol, results=results, several=several, **made._asdict())

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's function; it freezes what the function reads from outside."""
        options = {"error_model": "numpy", "boundscheck": self.boundscheck}
        return numba_module().njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(
            self.fn
        )

    def _results(self, type: Any, arguments: tuple[Argument, ...]) -> tuple[tuple[str, ...], bool]:
        """Return the dtypes of what the function returns, and whether that is a tuple."""
        kinds = numba_module().types
        if any(a.is_output for a in arguments):
            if not isinstance(type, kinds.NoneType):
                self._refuse_result(
                    type, "nothing: it stores its results in the arrays it is given"
                )
            return (), True
        several = isinstance(type, kinds.BaseTuple)
        parts = [kinds.unliteral(part) for part in (type.types if several else (type,))]
        if not parts or not all(isinstance(p, (kinds.Number, kinds.Boolean)) for p in parts):
            self._refuse_result(type, "a number, or a tuple of numbers, on every path")
        from numba.np.numpy_support import as_dtype

        return tuple(dtype_name(np.dtype(as_dtype(part))) for part in parts), several

    def _refuse_result(self, type: Any, expected: str) -> None:
        raise TypeRuleError(
            f"the kernel {self.name} must return {expected}, got {type}",
            location=location_of(self.fn),
        )

    def _refusal(self, arguments: tuple[Argument, ...], error: Exception) -> DslError:
        """Return the error for a function that numba does not compile, with numba's reason and the guilty line."""
        listing = ", ".join(map(str, arguments))
        place = getattr(error, "loc", None)
        same = getattr(place, "filename", None) == self.fn.__code__.co_filename
        return TypeRuleError(
            f"the kernel {self.name}({listing}) cannot be compiled: {_reason(str(error))}",
            location=location_of(self.fn, place.line if same and place is not None else None),
            remedy="kernels are written in the part of Python and NumPy that numba compiles; "
            "functions that they call are kernels themselves",
        )


def _restored(stored: bytes) -> Code:
    fields: dict[str, Any] = json.loads(stored)
    lists = {name: tuple(field) for name, field in fields.items() if isinstance(field, list)}
    return Code(**{**fields, **lists})


# -- numba ---------------------------------------------------------------------------------------------------------------


def numba_module() -> Any:
    """Import numba, which takes a while."""
    try:
        import numba
    except ImportError:
        raise _missing() from None
    return numba


@contextlib.contextmanager
def _without_vectors() -> Iterator[None]:
    """Let numba write no vectors: whoever compiles the program makes those that its target has.

    Numba takes this lock for all of its compiling, so nobody else sees what is changed.
    """
    core = numba_module().core
    config = core.config
    with core.compiler_lock.global_compiler_lock:
        before = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
        config.LOOP_VECTORIZE = config.SLP_VECTORIZE = 0
        try:
            yield
        finally:
            config.LOOP_VECTORIZE, config.SLP_VECTORIZE = before


@functools.cache
def numba_version() -> str:
    """Return numba's version without importing it."""
    import importlib.metadata

    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        raise _missing() from None


def _missing() -> UnsupportedError:
    return UnsupportedError("dsl.kernel needs numba", remedy="pip install numba")


def _numba_type(argument: Argument) -> Any:
    numba = numba_module()
    item = numba.from_dtype(argument.dtype)
    if argument.rank is None:
        return item
    return numba.types.Array(item, argument.rank, "C", readonly=not argument.is_output)


@functools.cache
def numba_address(symbol: str) -> int:
    """Return the address of a function of numba's run-time library."""
    numba_module()
    import llvmlite.binding
    from numba.core.registry import cpu_target
    from numba.core.runtime.nrt import rtsys

    rtsys.initialize(cpu_target.target_context)
    return int(llvmlite.binding.address_of_symbol(symbol) or 0)


_NOISE = re.compile(r"Failed in nopython|During: |File |There are \d|\s*$|Overload|With argument")


def _reason(message: str) -> str:
    """Return what matters of numba's message, in one line."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", message)
    specific = re.search(r"Numba\w*Error: (.*)", plain)
    if specific is not None:
        return specific[1].strip()
    lines = [line.strip() for line in plain.splitlines() if not _NOISE.match(line)]
    wanted = lines[:2] if len(lines) > 1 and lines[1].startswith(">>>") else lines[:1]
    return " ".join(wanted).replace(">>> ", "") or "numba gives no reason"
