"""Mailboxes between ranks of one machine: the compiled core (`mail_core`) as built-in functions of Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.codegen.cpu import jit, mail_core, runtime
from dsl.codegen.cpu.builtin import FASTCALL, Method, new_builtin
from dsl.codegen.cpu.mail_layout import Dtype, Peer, Ring, State
from dsl.codegen.words_language import compile_module
from dsl.ir.types import DTYPES

__all__ = ["Mail", "mail", "mail_bytes", "module_text"]

_BUILTINS = ("post", "take", "taken")
_FLAGS = ("no-vectorize", "no-slp", "no-interleave", "no-unroll")
_PAGE = 4096
_RING = 48 << 10  # bytes
_HEAP = 12 << 20  # bytes, at most
_HEAPS = 48 << 20  # bytes of all of them: containers often have 64 MB to share


def mail_bytes(ranks: int) -> int:
    """Return how much memory so many ranks share."""
    return ranks * ranks * (_RING + _heap_bytes(ranks))


def _heap_bytes(ranks: int) -> int:
    return min(_HEAP, _HEAPS // ranks**2 // _PAGE * _PAGE)


def mail(memory: memoryview, own: int, ranks: Sequence[int], pids: Sequence[int]) -> Mail:
    """Return the mailboxes of one of some ranks, in memory that all of them see."""
    return Mail(memory, own, ranks, pids)


class Mail:
    """The mailboxes of one rank; see `dsl.ir.shared_memory`."""

    def __init__(
        self, memory: memoryview, own: int, ranks: Sequence[int], pids: Sequence[int]
    ) -> None:
        _keep(memory)  # arrays that were received are there, until the process ends
        count, heap = len(ranks), _heap_bytes(len(ranks))
        base = np.frombuffer(memory, np.uint8).ctypes.data
        places = np.arange(count * count).reshape(count, count)
        rings, heaps = base + places * _RING, base + count * count * _RING + places * heap
        self._incoming = rings[:, own].tolist()
        self._peers = np.zeros((count, Peer.SIZE), np.int64)
        for word, values in {
            Peer.OUT: rings[own], Peer.IN: rings[:, own], Peer.OUT_HEAP: heaps[own], Peer.IN_HEAP: heaps[:, own],
            Peer.PID: pids, Peer.NAME: ranks,
        }.items():  # fmt: skip
            self._peers[:, word] = values
        self._dtypes = np.array([(id(d), d.itemsize) for d in DTYPES], np.int64)
        self._state = _state(self._peers, self._dtypes, heap)
        self.post, self.take, self.taken = (
            new_builtin(_method(name), self._state) for name in _BUILTINS
        )

    def close(self) -> None:
        """Take nothing any more."""
        for ring in self._incoming:
            ctypes.c_int64.from_address(ring + 8 * Ring.CLOSED).value = 1


def _state(peers: np.ndarray, dtypes: np.ndarray, heap: int) -> np.ndarray:
    assert dtypes.shape[1] == Dtype.SIZE
    state = np.zeros(State.SIZE, np.int64)
    for word, value in {
        State.PEERS: peers.ctypes.data, State.PEER_COUNT: len(peers), State.ROOM: _RING - 8 * Ring.DATA, State.HEAP: heap,
        State.DTYPES: dtypes.ctypes.data, State.DTYPE_COUNT: len(dtypes), State.NONE: id(None),
        State.NOT_IMPLEMENTED: id(NotImplemented), State.ARRAY_TYPE: id(np.ndarray),
        State.NEW_ARRAY: runtime.word("new_array").value, State.SET_BASE: runtime.word("set_base").value,
        State.HANDLER: runtime.word("memory_handler").value, State.RELEASE: _code().address("dsl_mail_release"),
    }.items():  # fmt: skip
        state[word] = value
    return state


# -- compiled code ----------------------------------------------------------------------------------------------------


@functools.cache
def module_text() -> str:
    """Return the core as LLVM IR."""
    return compile_module(mail_core, [f"dsl_mail_{name}" for name in (*_BUILTINS, "release")])


@functools.cache
def _code() -> jit.Code:
    runtime.ensure_loaded()
    for name in ("PyTuple_GetItem", "PyTuple_Size"):
        jit.define(name, _address(getattr(ctypes.pythonapi, name)))
    library = ctypes.CDLL(None)
    for name in ("getpid", "memcpy", "process_vm_readv"):
        jit.define(name, _address(getattr(library, name)))
    code = jit.load(module_text(), level=2, flags=_FLAGS)
    _keep(code)  # those arrays call it at their end
    return code


def _keep(object: object) -> None:
    """Let an object live until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(object))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _method(name: str) -> Method:
    return Method(name.encode(), _code().address(f"dsl_mail_{name}"), FASTCALL, None)
