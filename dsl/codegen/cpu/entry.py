"""Compiled programs as Python functions: what a program expects and returns, and the built-in function made of that.

In: the address of a program, `i64 program(ptr frame, ptr context)`, and an `EntrySpec`. Out: a built-in function that takes
the arguments by position. It returns NotImplemented, with nothing done, unless each argument is what the spec says, down
to dtype object, shape and strides; so several entries can be tried in turn, and what no entry takes goes a slower way.

The frame is an array of 64-bit words. First come the parameters in order, then the results:

| parameter | words |
| --- | --- |
| array of rank r | address of the data, r dims, r strides in bytes |
| number | 2: its bytes as in memory, at the start (int64, double, two doubles, or those of its dtype) |
| static object | none |

| result | words |
| --- | --- |
| array of rank r > 0 | address of a block from `dsl_alloc`, which the entry takes over; r dims |
| array of rank 0, or number | 2: its bytes as in memory, at the start |
| argument, constant, or an earlier result again | none |

The words of results are 0 at first. `EntrySpec.param_words` and `.result_words` give where each starts. The context is
described in `entry_code`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeGuard

import numpy as np

from dsl.codegen.cpu import entry_layout as layout
from dsl.errors import InternalError
from dsl.ir.dims import Dim, lower_bound

__all__ = [
    "SLOW", "Argument", "ArrayParam", "ArrayResult", "Constant", "Earlier", "EntrySpec", "NumberParam", "NumberResult",
    "Param", "Result", "ScalarResult", "StaticParam", "hits", "make_entry",
]  # fmt: skip

DType = np.dtype[Any]
Number = Literal["int", "float", "complex", "bool"]

SLOW: Final = ctypes.c_int64(0)
"""While this is not 0, every entry returns NotImplemented at once."""

_ALIGNED, _WRITEABLE, _C_CONTIGUOUS = 0x100, 0x400, 0x1
_MOST_WORDS = 1 << 15  # a frame is on the stack

_NUMBERS: Final[
    dict[str, tuple[type, int, int, int]]
] = {  # type, kind of parameter, bytes, kind of result
    "int": (int, layout.INT, 8, layout.NEW_INT),
    "float": (float, layout.VALUE, 8, layout.NEW_FLOAT),
    "complex": (complex, layout.VALUE, 16, layout.NEW_COMPLEX),
    "bool": (bool, layout.BOOL, 8, layout.NEW_BOOL),
}


class _Part:
    """What a parameter or a result is; compares by class and fields.

    Not a dataclass: to make nine of those took 6 ms of every first call, a seventh of it with code from disk.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


# --- Parameters ----------------------------------------------------------------------------------


class ArrayParam(_Part):
    """An aligned ndarray, of no subclass.

    A dim is a number, or the name of a symbol: any extent from 2 up, the same wherever the symbol stands; a `Dim` says
    itself whether it may be 0 or 1. `strides` are "contiguous" in C order, "any" whole numbers of elements, or exact
    bytes. A `written` array is writeable and shares no memory with other arguments. Arguments are different objects,
    except for one that is to be the `same_as` an earlier one.
    """

    def __init__(
        self,
        dtype: DType,
        dims: tuple[int | Hashable, ...],
        strides: Literal["contiguous", "any"] | tuple[int, ...] = "contiguous",
        written: bool = False,
        same_as: int | None = None,
    ) -> None:
        self.dtype, self.dims, self.strides = dtype, dims, strides
        self.written, self.same_as = written, same_as

    @property
    def words(self) -> int:
        return 1 + 2 * len(self.dims)

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        modes = {"contiguous": layout.CONTIGUOUS, "any": layout.ANY}
        mode = modes[self.strides] if isinstance(self.strides, str) else layout.EXACT
        flags = _ALIGNED | _WRITEABLE * self.written | _C_CONTIGUOUS * (mode == layout.CONTIGUOUS)
        root = index if self.same_as is None else self.same_as
        dims = [_code(d, symbols) for d in self.dims]
        strides = list(self.strides) if mode == layout.EXACT else [0] * len(dims)
        return _record(
            layout.PARAM, self.words, [*dims, *strides], kind=layout.ARRAY, type=id(np.ndarray),
            descr=id(_canonical(self.dtype)), array_flags=flags, rank=len(dims), strides=mode,
            itemsize=self.dtype.itemsize, written=int(self.written), root=root,
        )  # fmt: skip


class NumberParam(_Part):
    """A Python number of exactly that type (an int must fit 64 bits), or a NumPy scalar of a dtype."""

    words = 2

    def __init__(self, type: Number | DType) -> None:
        self.type = type

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        if isinstance(self.type, np.dtype):
            kind, size, python = layout.VALUE, self.type.itemsize, self.type.type
        else:
            python, kind, size, _ = _NUMBERS[self.type]
        return _record(layout.PARAM, self.words, kind=kind, type=id(python), itemsize=size)


class StaticParam(_Part):
    """This very object."""

    words = 0

    def __init__(self, object: object) -> None:
        self.object = object

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        return _record(layout.PARAM, self.words, kind=layout.STATIC, type=id(self.object))


class SameParam(_Part):
    """The same array as the argument of that number, which comes before."""

    words = 0

    def __init__(self, argument: int) -> None:
        self.argument = argument

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        return _record(
            layout.PARAM, self.words, kind=layout.SAME, type=id(np.ndarray), root=self.argument
        )


Param = ArrayParam | NumberParam | StaticParam | SameParam


# --- Results -------------------------------------------------------------------------------------


class ArrayResult(_Part):
    """A new array, contiguous in C order."""

    def __init__(self, dtype: DType, rank: int) -> None:
        self.dtype, self.rank = dtype, rank

    @property
    def words(self) -> int:
        return 1 + self.rank if self.rank else 2

    def record(self) -> list[int]:
        descr = id(_canonical(self.dtype))
        return _record(
            layout.RESULT, self.words, kind=layout.NEW_ARRAY, object=descr, rank=self.rank
        )


class ScalarResult(_Part):
    """A NumPy scalar."""

    words = 2

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def record(self) -> list[int]:
        descr = id(_canonical(self.dtype))
        return _record(layout.RESULT, self.words, kind=layout.NEW_SCALAR, object=descr)


class NumberResult(_Part):
    """A Python number: the program stores an int64, a double, two doubles, or a byte that is 0 or 1."""

    words = 2

    def __init__(self, type: Number) -> None:
        self.type = type

    def record(self) -> list[int]:
        return _record(layout.RESULT, self.words, kind=_NUMBERS[self.type][3])


class Argument(_Part):
    """The argument of that number itself."""

    words = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.ARGUMENT, index=self.index)


class Earlier(_Part):
    """The same object as the result of that number, which comes before."""

    words = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.EARLIER, index=self.index)


class Constant(_Part):
    """This very object, such as None."""

    words = 0

    def __init__(self, object: object) -> None:
        self.object = object

    def record(self) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.CONSTANT, object=id(self.object))


Result = ArrayResult | ScalarResult | NumberResult | Argument | Earlier | Constant


# --- Entries -------------------------------------------------------------------------------------


def _refuse(status: int, error: int, *payload: int) -> NoReturn:
    raise InternalError(f"a program returned status {status}, error {error}, payload {payload}")


def _no_callback(number: int, address: int) -> NoReturn:
    raise InternalError(f"a program calls Python (id {number}), but its entry has no callback")


@dataclass(frozen=True, eq=False)
class EntrySpec:
    """What a program takes and returns, and how it is run.

    `result` is "single" (there is one) or "tuple". `on_error(status, code, p0, …, p5)` is called for a status that is not
    0, unless a Python exception is set, and raises; what it returns is returned. `finish(arguments, results)`, both
    tuples, makes the value to return. `callback(id, address)` is what `dsl_python` calls; it returns an int that is not
    negative, or None. With `release_gil` the program runs without the GIL; otherwise it may call `dsl_release(context)`.
    """

    params: Sequence[Param]
    results: Sequence[Result]
    result: Literal["single", "tuple"] = "single"
    release_gil: bool = False
    on_error: Callable[..., object] = _refuse
    finish: Callable[[tuple[Any, ...], tuple[Any, ...]], object] | None = None
    callback: Callable[[int, int], int | None] = _no_callback
    always: bool = False
    """Run also while `SLOW` is set: for a caller that has looked."""
    declined: Callable[..., object] | None = None
    """Called with arguments that the spec does not take, instead of returning NotImplemented."""
    retry: Callable[..., object] | None = None
    """Called with the arguments if the program returns a status above 0, instead of `on_error`."""
    keep: object = field(default=None, repr=False)
    """Something to keep alive with the entry, such as the program's `Code`."""

    @functools.cached_property
    def param_words(self) -> list[int]:
        """The word of the frame at which each parameter starts."""
        return _starts(self.params, 0)[:-1]

    @functools.cached_property
    def result_words(self) -> list[int]:
        """The word of the frame at which each result starts."""
        return _starts(self.results, self._results_at)[:-1]

    @functools.cached_property
    def frame_words(self) -> int:
        """The length of the frame."""
        return _starts(self.results, self._results_at)[-1]

    @functools.cached_property
    def _results_at(self) -> int:
        return _starts(self.params, 0)[-1]


def _starts(parts: Sequence[Param] | Sequence[Result], first: int) -> list[int]:
    return list(itertools.accumulate((part.words for part in parts), initial=first))


class _Table(np.ndarray[Any, Any]):
    """The words that `dsl_entry` reads, and what keeps the objects alive that they refer to."""

    spec: EntrySpec


def make_entry(program: int, spec: EntrySpec) -> Callable[..., Any]:
    """Return a built-in function that runs the program at an address."""
    from dsl.codegen.cpu import runtime

    runtime.ensure_loaded()
    _check(spec)
    table = np.array(_table(program, spec), np.int64).view(_Table)
    table.spec = spec
    return _new_builtin(table)


def _check(spec: EntrySpec) -> None:
    if spec.result == "single" and spec.finish is None and len(spec.results) != 1:
        raise InternalError(f"a single result is expected, not {len(spec.results)}")
    if spec.frame_words > _MOST_WORDS:
        raise InternalError(
            f"a frame of {spec.frame_words} words; at most {_MOST_WORDS} are supported"
        )


def _table(program: int, spec: EntrySpec) -> list[int]:
    """Return the words of a table: head, records of parameters, records of results."""
    symbols = _symbols(spec)
    params = [word for i, p in enumerate(spec.params) for word in p.record(i, symbols)]
    results = [word for r in spec.results for word in r.record()]
    writes = any(isinstance(p, ArrayParam) and p.written for p in spec.params)
    flags = (
        layout.RELEASE_GIL * spec.release_gil
        | layout.TUPLE * (spec.result == "tuple")
        | layout.ALWAYS * spec.always
    )
    head = {
        "program": program,
        "params": len(spec.params),
        "results": len(spec.results),
        "frame": spec.frame_words,
        "results_at": spec._results_at,
        "symbols": len(symbols),
        "flags": flags | layout.WRITES * writes,
        "on_error": id(spec.on_error),
        "finish": id(spec.finish) if spec.finish is not None else 0,
        "callback": id(spec.callback),
        "declined": id(spec.declined) if spec.declined is not None else 0,
        "retry": id(spec.retry) if spec.retry is not None else 0,
        "hits": 0,
        "records": len(layout.HEAD) + len(params),
    }
    return [*(head[name] for name in layout.HEAD), *params, *results]


def _symbols(spec: EntrySpec) -> dict[Hashable, int]:
    """Number the symbols that stand in dims."""
    arrays = [p for p in spec.params if isinstance(p, ArrayParam)]
    names = dict.fromkeys(d for p in arrays for d in p.dims if not _is_number(d))
    return {name: index for index, name in enumerate(names)}


def _code(dim: Hashable, symbols: dict[Hashable, int]) -> int:
    """A dim as the table has it."""
    if _is_number(dim):
        return int(dim)
    free = isinstance(dim, Dim) and (lower_bound(dim) or 0) < 2
    return -1 - symbols[dim] - layout.FREE * free


def _is_number(dim: Hashable) -> TypeGuard[int]:
    return isinstance(dim, int | np.integer)


def _record(names: tuple[str, ...], size: int, tail: Sequence[int] = (), **given: int) -> list[int]:
    given |= {"words": size, "length": len(names) + len(tail)}
    return [*(given.get(name, 0) for name in names), *tail]


@functools.cache
def _canonical(dtype: DType) -> DType:
    """Return the dtype object that NumPy gives to new arrays of an equal dtype."""
    return np.dtype(dtype.type)


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METH_FASTCALL = 0x80 | 0x2  # with METH_KEYWORDS


@functools.cache
def _method() -> _MethodDef:
    """The definition that all entries share; it must outlive them."""
    from dsl.codegen.cpu import runtime

    return _MethodDef(b"dsl_entry", runtime.address("dsl_entry"), _METH_FASTCALL, None)


def hits(entry: Callable[..., Any]) -> int:
    """Return how often an entry has run its program."""
    table: Any = entry.__self__  # type: ignore[attr-defined]
    return int(table[layout.HEAD.index("hits")])


def _new_builtin(self: object) -> Callable[..., Any]:
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p],
    )
    made: Callable[..., Any] = new(ctypes.addressof(_method()), self, None)
    return made
