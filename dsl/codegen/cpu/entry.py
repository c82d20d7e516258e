"""Compiled programs as Python functions: what a program expects and returns, and the built-in function made of that.

In: the address of a program, `i64 program(ptr frame, ptr context)`, and an `EntrySpec`. Out: a built-in function that takes
the arguments by position or, with a signature, as Python does. It returns NotImplemented, with nothing done, unless each
argument is what the spec says, down to dtype object, shape and strides; so several entries can be tried in turn, and
what no entry takes goes a slower way, which also knows what to say about a call that does not fit the signature.

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
| argument, constant, an earlier result again, or a view of one of those | none |

The words of results are 0 at first. `EntrySpec.param_words` and `.result_words` give where each starts. The context is
described in `entry_code`.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

import numpy as np

from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu.builtin import FASTCALL, KEYWORDS, Method, new_builtin
from dsl.codegen.cpu.entry_parts import (
    Argument,
    ArrayParam,
    ArrayResult,
    Constant,
    Earlier,
    NumberParam,
    NumberResult,
    Param,
    Place,
    Result,
    SameParam,
    ScalarResult,
    StaticParam,
    View,
    number_symbols,
)  # fmt: skip
from dsl.errors import InternalError

__all__ = [
    "SLOW", "Argument", "ArrayParam", "ArrayResult", "Constant", "Earlier", "EntrySpec", "NumberParam", "NumberResult",
    "Param", "Place", "Result", "SameParam", "ScalarResult", "StaticParam", "View", "hits", "make_entry",
]  # fmt: skip

SLOW: Final = ctypes.c_int64(0)
"""While this is not 0, every entry returns NotImplemented at once."""

_MOST_WORDS = 1 << 15  # a frame is on the stack


# --- Entries -------------------------------------------------------------------------------------


def _refuse(status: int, error: int, *payload: int) -> NoReturn:
    raise InternalError(f"a program returned status {status}, error {error}, payload {payload}")


def _no_callback(number: int, address: int) -> NoReturn:
    raise InternalError(f"a program calls Python (id {number}), but its entry has no callback")


@dataclass(frozen=True, eq=False)
class EntrySpec:
    """What a program takes and returns, and how it is run.

    `result` is "single" (there is one) or "tuple"; the first results, as many as are `hidden`, are there for views of them
    alone. `on_error(status, code, p0, …, p5)` is called for a status that is not
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
    signature: inspect.Signature | None = None
    """How the arguments may be given: one for each parameter, none of them `*args` or `**kwargs`."""
    hidden: int = 0
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

    def word(self, place: Place) -> int:
        """A word of the frame, counted from that of the first result."""
        kind, index, word = place
        starts = self.param_words if kind == "param" else self.result_words
        return starts[index] + word - self._results_at

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
    return new_builtin(_method(), table)


def _check(spec: EntrySpec) -> None:
    shown = len(spec.results) - spec.hidden
    if spec.result == "single" and spec.finish is None and shown != 1:
        raise InternalError(f"a single result is expected, not {shown}")
    if spec.frame_words > _MOST_WORDS:
        raise InternalError(
            f"a frame of {spec.frame_words} words; at most {_MOST_WORDS} are supported"
        )


def _table(program: int, spec: EntrySpec) -> list[int]:
    """Return the words of a table: head, records of parameters, records of results, names and defaults."""
    symbols = number_symbols(spec.params)
    params = [word for i, p in enumerate(spec.params) for word in p.record(i, symbols)]
    results = [word for r in spec.results for word in r.record(spec.word)]
    names, defaults, positional = _accepted(spec)
    head = {
        "program": program,
        "params": len(spec.params),
        "results": len(spec.results),
        "frame": spec.frame_words,
        "results_at": spec._results_at,
        "symbols": len(symbols),
        "flags": _flags(spec),
        "on_error": id(spec.on_error),
        "finish": _id(spec.finish),
        "callback": id(spec.callback),
        "declined": _id(spec.declined),
        "retry": _id(spec.retry),
        "hits": 0,
        "records": len(layout.HEAD) + len(params),
        "hidden": spec.hidden,
        "names": len(layout.HEAD) + len(params) + len(results),
        "accepts": len(names),
        "positional": positional,
        "straight": len(spec.params) if positional == len(spec.params) else -1,
    }
    known = [word for pair in zip(map(_id, names), defaults, strict=True) for word in pair]
    return [*(head[name] for name in layout.HEAD), *params, *results, *known]


def _id(item: object | None) -> int:
    return 0 if item is None else id(item)


def _flags(spec: EntrySpec) -> int:
    writes = any(isinstance(p, ArrayParam) and p.written for p in spec.params)
    return (
        layout.RELEASE_GIL * spec.release_gil
        | layout.TUPLE * (spec.result == "tuple")
        | layout.ALWAYS * spec.always
        | layout.WRITES * writes
    )


def _accepted(spec: EntrySpec) -> tuple[list[str | None], list[int], int]:
    """Return the name, if it may be used, and the default of each argument; and how many may be given by position."""
    if spec.signature is None:
        return [], [], len(spec.params)
    params = spec.signature.parameters.values()
    names = [None if p.kind is p.POSITIONAL_ONLY else _interned(p.name) for p in params]
    defaults = [0 if p.default is p.empty else id(p.default) for p in params]
    return names, defaults, sum(p.kind is not p.KEYWORD_ONLY for p in params)


@functools.cache
def _interned(name: str) -> str:
    """Return the one object that stands for a name in calls; it is kept, since tables refer to it."""
    return sys.intern(name)


@functools.cache
def _method() -> Method:
    """The definition that all entries share; it must outlive them."""
    from dsl.codegen.cpu import runtime

    return Method(b"dsl_entry", runtime.address("dsl_entry"), FASTCALL | KEYWORDS, None)


def hits(entry: Callable[..., Any]) -> int:
    """Return how many calls an entry has taken: it ran its program, and did not hand them on."""
    table: Any = entry.__self__  # type: ignore[attr-defined]
    return int(table[layout.HEAD.index("hits")])
