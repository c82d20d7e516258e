"""The compiled scheduling core as Python functions; `token_layout` has the words, `token_core` says what they do."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsl.codegen.cpu import jit, runtime, token_core
from dsl.codegen.words_language import compile_module

__all__ = ["Core", "core", "module_text"]

_FLAGS = ("no-vectorize", "no-slp", "no-interleave", "no-unroll")  # tokens have few words


@dataclass(frozen=True)
class Core:
    """The functions of the core. They keep the GIL, but for `run`, which gives it up when that pays."""

    begin: Callable[[int], int]
    run: Callable[[int, int], int]
    given: Callable[[int, int, int, int], int]
    clear: Callable[[int], int]
    end: Callable[[int], int]
    release: Callable[[int], int]
    code: Any


_EXPORTS = {"begin": 1, "run": 2, "given": 4, "clear": 1, "end": 1, "release": 1}


@functools.cache
def core() -> Core:
    """Load the core, once a process."""
    loaded = runtime.ensure_loaded()
    for name in ("dsl_thread", "dsl_clock"):
        jit.define(name, loaded.address(name))
    code = jit.load(module_text(), level=2, flags=_FLAGS)
    return Core(code=code, **{name: _function(code, name, n) for name, n in _EXPORTS.items()})


@functools.cache
def module_text() -> str:
    """Return the core as LLVM IR."""
    return compile_module(token_core, [f"dsl_tokens_{name}" for name in _EXPORTS])


def _function(code: jit.Code, name: str, count: int) -> Callable[..., int]:
    words = [ctypes.c_int64] * count
    return ctypes.PYFUNCTYPE(ctypes.c_int64, *words)(code.address(f"dsl_tokens_{name}"))
