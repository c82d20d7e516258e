"""Code found again by what its text is made from, so that a process to which nothing is new makes no text.

The disk cache of `jit` knows code by the text of its module. To make that text takes the code generators, and to import
them alone takes longer than all the rest of a first call. So code is kept under a digest of its recipe: everything that
the text follows from. Before the object stands a note: the key by which `jit` knows the code, and a few facts that its
users need.

In: the parts of a recipe. Out: the note and the object, or None: then the text is made, compiled and kept (`load`).

What holds:
- The sources of the code generators, by path, size and time, are part of every recipe, as are the machine, LLVM, NumPy
  and Python. So what is kept is never older than what made it.
- Sources that changed while this process ran, or shortly before, are not those it may have imported: it then keeps code
  under its text.
- A damaged note is as good as none.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsl.codegen.cpu import cache, elf, jit, pool

__all__ = ["Note", "code", "find", "load", "provide", "recipe", "routine"]

_FOLDERS = ("codegen", "ir")  # of dsl, whose modules make text out of graphs
_SETTLED = 10.0
"""Seconds for which sources must have been left alone when this module is imported: longer than importing dsl takes."""

_imported = time.time()


class Note(NamedTuple):
    """The key by which `jit` knows the code, what else is known about it, and the object."""

    code: str
    facts: dict[str, Any]
    content: bytes


def recipe(kind: str, *parts: str) -> str | None:
    """Return the key for the note of something made from `parts`, or None if there can be no note."""
    if not elf.runs_here() or _sources() is None:
        return None
    return cache.digest("recipe", *_surroundings(), kind, *parts)


def find(key: str | None) -> Note | None:
    """Return what was kept under a key."""
    found = None if key is None else cache.store().get(key, counted=False)
    if found is None:
        return None
    told, _, content = found.partition(b"\n")
    try:
        known, facts = json.loads(told)
        return Note(known, facts, content)
    except (TypeError, ValueError):
        return None


def code(note: Note) -> jit.Code | None:
    """Return the code of a note, when what it refers to in the library is linked; None if some of that is missing."""
    return jit.link_object(note.code, note.content) if provide(note.facts["needs"]) else None


def load(
    key: str | None, text: str, *, level: int, flags: tuple[str, ...], needs: Sequence[str] = (), **facts: Any
) -> jit.Code:  # fmt: skip
    """Return the code of a module and keep it under a recipe; `needs` are the symbols of the library and of NumPy it refers to."""
    if key is None:
        return jit.load(text, level=level, flags=flags)
    made: list[bytes] = []
    found = jit.load(text, level=level, flags=flags, take=made.append)
    if not made and (other := find(_kept.get(found))) is not None:
        made.append(other.content)  # another recipe has the same text
    if made:
        known = jit.key(text, level=level, flags=flags)
        told = json.dumps([known, {"needs": list(needs), **facts}])
        cache.store().put(key, told.encode() + b"\n" + made[0])
        _kept[found] = key
    return found


_kept: weakref.WeakKeyDictionary[jit.Code, str] = weakref.WeakKeyDictionary()  # where code is


def provide(symbols: Iterable[str]) -> bool:
    """Make routines known to the linker by their notes, and functions of NumPy and SciPy; tell whether all are."""
    return all(jit.defines(symbol) or _provide(symbol) for symbol in symbols)


def _provide(symbol: str) -> bool:
    from dsl.codegen.library import foreign

    if foreign.is_foreign(symbol):
        loaded = len(sys.modules)
        jit.define(symbol, foreign.address_of(symbol))
        if len(sys.modules) != loaded:  # it may have loaded a BLAS, which knows of no limit yet
            pool.limit_blas(pool.count())
        return True
    note = find(routine(symbol))
    found = None if note is None else code(note)
    if found is None:
        return False
    _routines[symbol] = found
    jit.define(symbol, found.address(symbol))
    return True


_routines: dict[str, jit.Code] = {}


def routine(symbol: str) -> str | None:
    """Return the key for the note of one of the library's routines."""
    return recipe("routine", symbol)


@functools.cache
def _surroundings() -> tuple[str, ...]:
    return (*jit.machine_and_compiler(), np.__version__, sys.version, _sources() or "")


@functools.cache
def _sources() -> str | None:
    """Return a text that differs if a source file does, or None if one is too new to tell what was imported."""
    files = sorted(_files([os.path.join(_home(), folder) for folder in _FOLDERS]))
    if not files or max(changed for _, _, changed in files) > 1e9 * (_imported - _SETTLED):
        return None
    return "\n".join(f"{path} {size} {changed}" for path, size, changed in files)


def _home() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _files(folders: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of change, in nanoseconds, of the sources in folders; none if they are in an archive."""
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    info = entry.stat()
                    yield entry.path, info.st_size, info.st_mtime_ns
                elif entry.is_dir() and entry.name != "__pycache__":
                    yield from _files([entry.path])
