"""Tokens and arrays: the words of a token in memory as a NumPy array, and the other way round."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from dsl.codegen.cpu import runtime, token_layout
from dsl.codegen.cpu.tokens import core
from dsl.errors import InternalError
from dsl.ir.types import TensorType

__all__ = ["peek", "poke", "read_token", "write_feed", "write_result"]

_SMALL = 1 << 12  # bytes up to which a copy is quicker than giving memory away


_WORDS = [ctypes.c_int64 * count for count in range(67)]  # arrays have up to 64 dims


def peek(address: int, word: int = 0) -> int:
    """Return a word of memory."""
    return ctypes.c_int64.from_address(address + 8 * word).value


def poke(address: int, word: int, value: int) -> None:
    """Set a word of memory."""
    ctypes.c_int64.from_address(address + 8 * word).value = value


class _Block:
    """A block of the allocator that an array has for its base."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.release = address, core().release
        self.__array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self.release(self.address)


def read_token(address: int, type: TensorType) -> np.ndarray:
    """Return the value of a token as an array that nobody else writes.

    A large array that only this token owns goes over to the caller, and the token owns nothing afterwards; its words
    still tell where the array is.
    """
    if not type.rank:
        return _copied(address, type.dtype, ())
    pointer, *dims, owner = _WORDS[type.rank + 2].from_address(address)
    size = math.prod(dims) * type.dtype.itemsize
    if size > _SMALL and owner == pointer and peek(owner, token_layout.REFERENCES) == 1:
        poke(address, 1 + type.rank, 0)
        return np.asarray(_Block(owner, size)).view(type.dtype).reshape(dims)
    return _copied(pointer, type.dtype, tuple(dims))


def _copied(address: int, dtype: np.dtype, dims: tuple[int, ...]) -> np.ndarray:
    made = np.empty(dims, dtype)
    ctypes.memmove(_data(made), address, made.nbytes)
    return made


def _data(array: np.ndarray) -> int:
    """Return the address of an array's data, quicker than `array.ctypes` does."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def write_feed(address: int, array: np.ndarray) -> None:
    """Write the words of a token for an array that somebody else keeps."""
    if not array.ndim:
        ctypes.memmove(address, _data(array), array.nbytes)
        return
    words = [_data(array), *array.shape, 0]
    _WORDS[len(words)].from_address(address)[:] = words


def write_result(address: int, array: Any, type: TensorType) -> None:
    """Write a result of a unit, as its program would: an array goes to a block of its own."""
    plain = np.ascontiguousarray(array, type.dtype)
    if type.rank and plain.ndim != type.rank:
        raise InternalError(
            f"an op returned an array of shape {plain.shape} where the type says {type}"
        )
    if not type.rank:
        ctypes.memmove(address, plain.tobytes(), plain.nbytes)
        return
    alloc = runtime.function("dsl_alloc", ctypes.c_void_p, ctypes.c_int64)
    block = alloc(max(1, plain.nbytes))
    if not block:
        raise MemoryError
    ctypes.memmove(block, _data(plain), plain.nbytes)
    words = [block, *plain.shape]
    _WORDS[len(words)].from_address(address)[:] = words
