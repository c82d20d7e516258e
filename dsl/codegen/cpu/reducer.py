"""Reductions over ranks that meet on a board: the compiled core (`reduce_core`) as a built-in function of Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsl.codegen.cpu import jit, reduce_core, runtime
from dsl.codegen.cpu.builtin import FASTCALL, Method, new_builtin
from dsl.codegen.cpu.reduce_core import Plan, State
from dsl.codegen.words_language import compile_module
from dsl.ir.communicator import UFUNCS

__all__ = ["Reducer", "module_text", "reducer"]

_FLAGS = ("no-vectorize", "no-slp", "no-interleave", "no-unroll")
_PLANS = 32  # that are known at a time


def reducer(
    marks: Sequence[Sequence[int]], pieces: Sequence[Sequence[int]], own: int, *, room: int, looks: int,
) -> Reducer:  # fmt: skip
    """Return what reduces for one rank, given the addresses of all ranks' marks and pieces."""
    return Reducer(np.array([marks, pieces], np.int64), own, room, looks)


class Reducer:
    """See `dsl.ir.shared_memory`."""

    def __init__(self, places: np.ndarray, own: int, room: int, looks: int) -> None:
        self._places, self._room, self._ranks = places, room, places.shape[2]
        self._plans = np.zeros((_PLANS, Plan.SIZE), np.int64)
        self._learned: dict[tuple[np.dtype, tuple[int, ...], str], _Loop] = {}
        self._kept: dict[np.dtype, np.ndarray] = {}  # the number of ranks, in each dtype
        self._state = self._made(own, looks)
        self.counter = ctypes.c_int64.from_buffer(self._state.data, 8 * State.NUMBER)
        self.reduce = new_builtin(_method(), self._state)
        self._bring = _bring()

    def _made(self, own: int, looks: int) -> np.ndarray:
        state = np.zeros(State.SIZE, np.int64)
        for word, value in {
            State.MARKS: self._places[0].ctypes.data, State.PIECES: self._places[1].ctypes.data, State.OWN: own,
            State.RANKS: self._ranks, State.LOOKS: looks, State.PLANS: self._plans.ctypes.data, State.NONE: id(None),
            State.NOT_IMPLEMENTED: id(NotImplemented), State.ARRAY_TYPE: id(np.ndarray),
            State.NEW_ARRAY: runtime.word("new_array").value,
        }.items():  # fmt: skip
            state[word] = value
        return state

    def bring(self, target: np.ndarray, piece: np.ndarray) -> None:
        """Copy a piece past the caches: lines that one core has written take long to come to another."""
        self._bring(target.ctypes.data, piece.ctypes.data, piece.nbytes)

    def last(self) -> tuple[np.dtype, tuple[int, ...], str]:
        """Return what the last `reduce` that did something was of."""
        plan = int(self._state[State.LAST]) - self._plans.ctypes.data
        return list(self._learned)[plan // self._plans.strides[0]]

    def learn(self, x: np.ndarray, how: str, digest: bytes) -> None:
        """Let `reduce` take arrays of this dtype and shape, if there is a way to."""
        key = x.dtype, x.shape, how
        if key in self._learned or not (
            0 < x.nbytes <= self._room and 0 < x.ndim <= Plan.MOST_DIMS
        ):
            return
        loop = _loop(UFUNCS[how], x.dtype) if any(how is name for name in UFUNCS) else None
        divide = _loop(np.true_divide, x.dtype) if how == "mean" else _NOTHING
        if loop is None or divide is None:
            return
        if len(self._learned) == _PLANS:
            self._forget()
        self._plans[len(self._learned)] = self._plan(x, how, digest, loop, divide)
        self._learned[key] = loop
        self._state[State.PLAN_COUNT] = len(self._learned)

    def _plan(
        self, x: np.ndarray, how: str, digest: bytes, loop: _Loop, divide: _Loop
    ) -> np.ndarray:
        plan = np.zeros(Plan.SIZE, np.int64)
        for word, value in {
            Plan.HOW: id(how), Plan.DESCR: id(x.dtype), Plan.RANK: x.ndim, Plan.BYTES: x.nbytes, Plan.COUNT: x.size,
            Plan.ITEMSIZE: x.itemsize, Plan.LOOP: loop.function, Plan.LOOP_DATA: loop.data, Plan.DIVIDE: divide.function,
            Plan.DIVIDE_DATA: divide.data, Plan.DIVISOR: self._divisor(x.dtype),
        }.items():  # fmt: skip
            plan[word] = value
        plan[Plan.FIRST : Plan.SECOND + 1] = np.frombuffer(digest, np.int64)
        plan[Plan.DIMS : Plan.DIMS + x.ndim] = x.shape
        return plan

    def _forget(self) -> None:
        self._state[State.PLAN_COUNT] = 0
        self._learned.clear()

    def _divisor(self, dtype: np.dtype) -> int:
        return self._kept.setdefault(dtype, np.array(self._ranks, dtype)).ctypes.data


# -- NumPy's loops ----------------------------------------------------------------------------------------------------


class _Loop(NamedTuple):
    """A loop of a ufunc over elements of one dtype: the address of `void (char **args, intp *n, intp *strides, void *data)`."""

    function: int
    data: int


_NOTHING = _Loop(0, 0)


class _Ufunc(ctypes.Structure):
    """The beginning of NumPy's PyUFuncObject."""

    _fields_ = [
        ("head", ctypes.c_int64 * 2),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    ]


@functools.cache
def _loop(ufunc: np.ufunc, dtype: np.dtype) -> _Loop | None:
    """Return the loop of a ufunc of two operands whose operands and result have a dtype, the usual object, or None."""
    if dtype is not np.dtype(dtype.type):  # another order of bytes, or with metadata
        return None
    found = _Ufunc.from_address(id(ufunc))
    told = (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes, ufunc.__name__.encode())
    if (found.nin, found.nout, found.nargs, found.ntypes, found.name) != told:
        return None  # NumPy keeps its ufuncs in another way
    signature = bytes([dtype.num] * 3)
    for k in range(found.ntypes):
        if found.types[3 * k : 3 * k + 3] == signature and found.functions[k]:
            data = found.data[k] if found.data else 0
            return _Loop(found.functions[k] or 0, data or 0)
    return None


# -- compiled code ----------------------------------------------------------------------------------------------------


@functools.cache
def module_text() -> str:
    """Return the core as LLVM IR."""
    return compile_module(reduce_core, ["dsl_board_reduce", "dsl_board_bring"])


@functools.cache
def _code() -> jit.Code:
    runtime.ensure_loaded()
    jit.define("memcpy", ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value or 0)
    code = jit.load(module_text(), level=2, flags=_FLAGS)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
    return code


@functools.cache
def _method() -> Method:
    return Method(b"reduce", _code().address("dsl_board_reduce"), FASTCALL, None)


@functools.cache
def _bring() -> Callable[[int, int, int], int]:
    words = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)
    return words(_code().address("dsl_board_bring"))
