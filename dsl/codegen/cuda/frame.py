"""The values of a program while it runs: arrays and numbers on the device, numbers and objects on the host.

Memory is counted by the names that refer to it: an array that has one name, which is not needed any more, may be
overwritten. Memory that nobody names goes back to the device's pool at once; since all work is in order, whoever gets it
next comes after whoever used it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsl.codegen.cuda.device import Buffer, Gpu
from dsl.codegen.cuda.source import Argument
from dsl.ir.dims import Dim, DimLike, evaluate
from dsl.ir.graph import Value
from dsl.ir.types import BFLOAT16, TensorType, bind_shape

__all__ = ["Context", "Frame", "Placed", "Wrong"]


class Wrong(Exception):
    """Something in the data is an error; the interpreter knows its words."""


class Placed:
    """An array on the device: its memory, where in it the array begins, in bytes, its shape, and strides in elements."""

    __slots__ = ("buffer", "offset", "shape", "strides")

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.buffer, self.shape, self.offset, self.strides = buffer, shape, offset, strides

    @property
    def pointer(self) -> int:
        return self.buffer.pointer + self.offset


class Context:
    """What a run has once: the device, its constants, and a flag that kernels set when something is wrong."""

    def __init__(self, gpu: Gpu, constants: dict[Value, Placed], ptx: str) -> None:
        self.gpu, self.constants, self.ptx = gpu, constants, ptx
        self._flag: Buffer | None = None

    @property
    def flag(self) -> Buffer:
        if self._flag is None:
            self._flag = self.gpu.allocate(8)
            self.gpu.upload(np.zeros(1, np.int64), self._flag)
        return self._flag

    def check(self) -> None:
        """Raise `Wrong` if a kernel has found something wrong."""
        if self._flag is not None and self.gpu.download(self._flag, 0, np.dtype(np.int64), 1)[0]:
            raise Wrong


class Frame:
    """The values of one region while it runs."""

    def __init__(
        self, context: Context, sources: Mapping[Dim, Value], sizes: dict[Dim, int]
    ) -> None:
        self.context, self.sources, self.sizes = context, sources, dict(sizes)
        self.values: dict[Value, Any] = {}
        self.gpu = context.gpu

    # -- names -------------------------------------------------------------------------------------------------------

    def bind(self, value: Value, thing: Any) -> None:
        """Give something a name: an array, a number or an object."""
        if isinstance(thing, Placed):
            thing.buffer.users += 1
            self.learn(value, thing.shape)
        elif isinstance(value.type, TensorType):
            thing = np.asarray(thing)
        self.values[value] = thing

    def learn(self, value: Value, shape: tuple[int, ...]) -> None:
        """Take the sizes of symbols from an array's shape."""
        if value.shape != shape and not bind_shape(value.shape, shape, self.sizes):
            raise Wrong

    def drop(self, value: Value) -> None:
        thing = self.values.pop(value, None)
        if isinstance(thing, Placed):
            thing.buffer.users -= 1

    def close(self) -> None:
        """Forget all names."""
        for value in list(self.values):
            self.drop(value)

    def find(self, value: Value) -> Any:
        """Return what a value is; a constant that is wanted on the device is put there once."""
        found = self.values.get(value)
        if found is None and value.node.op.name == "const":
            return self.constant(value)
        return found

    def constant(self, value: Value) -> Placed:
        known = self.context.constants
        if value not in known:
            known[value] = self.upload(value.node.attrs["value"].array)
            known[value].buffer.users += 1
        return known[value]

    def is_free(self, value: Value) -> bool:
        """Tell whether this name is the only one of its array."""
        thing = self.values.get(value)
        return isinstance(thing, Placed) and thing.buffer.users == 1 and thing.strides is None

    # -- memory ------------------------------------------------------------------------------------------------------

    def size(self, dim: DimLike) -> int:
        """Return a size; one that an operand gives is read from it."""
        if isinstance(dim, int):
            return dim
        try:
            return evaluate(dim, self.sizes)
        except KeyError:
            for symbol, source in self.sources.items():
                known = source in self.values or source.node.op.name == "const"
                if symbol not in self.sizes and known:
                    self.sizes[symbol] = int(self.number(source))
            return evaluate(dim, self.sizes)

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.size(d) for d in value.shape)

    def allocate(self, value: Value) -> Placed:
        """Return memory for a value."""
        shape = self.shape(value)
        return Placed(self.gpu.allocate(math.prod(shape) * value.dtype.itemsize), shape)

    def upload(self, array: Any) -> Placed:
        plain = np.array(array, order="C", copy=None)
        buffer = self.gpu.allocate(plain.nbytes)
        if plain.nbytes:
            self.gpu.upload(plain, buffer)
        return Placed(buffer, plain.shape)

    def download(self, placed: Placed, dtype: np.dtype) -> np.ndarray:
        """Return an array of the device on the host."""
        count = math.prod(placed.shape)
        if not count:
            return np.empty(placed.shape, dtype)
        if placed.strides is None:
            flat = self.gpu.download(placed.buffer, placed.offset, dtype, count)
            return flat.reshape(placed.shape)
        last = sum((n - 1) * s for n, s in zip(placed.shape, placed.strides, strict=True))
        flat = self.gpu.download(placed.buffer, placed.offset, dtype, last + 1)
        strides = [s * dtype.itemsize for s in placed.strides]
        return np.lib.stride_tricks.as_strided(flat, placed.shape, strides).copy()

    def host(self, value: Value) -> Any:
        """Return a value on the host: an array, or an object."""
        thing = self.values.get(value)
        if thing is None and value.node.op.name == "const":
            return value.node.attrs["value"].array
        return self.download(thing, value.dtype) if isinstance(thing, Placed) else thing

    def number(self, value: Value) -> Any:
        """Return a rank-0 value on the host, waiting for it if it is on the device."""
        return self.host(value)[()]

    def cell(self, value: Value) -> Placed:
        """Return a rank-0 value on the device."""
        thing = self.values.get(value)
        if isinstance(thing, Placed):
            return thing
        return self.upload(self.host(value))

    # -- launches ----------------------------------------------------------------------------------------------------

    def argument(self, argument: Argument, keep: list[Any]) -> Any:
        """Return what to pass for a param of a kernel."""
        kind, what, which = argument
        if kind == "array":
            return self.find(what).pointer
        if kind == "dim":
            return np.int64(self.size(what))
        if kind == "number":
            return _number(self.host(what), what.dtype, which)
        if kind == "cell":
            placed = self.cell(what)
            keep.append(placed)
            return placed.pointer
        if kind == "stride":
            placed = self.find(what)
            strides = placed.strides or contiguous(placed.shape)
            return np.int64(strides[which])
        return self.context.flag.pointer

    def launch(
        self, kernel: str, grid: Sequence[DimLike], block: int, arguments: Sequence[Argument]
    ) -> None:
        """Run a kernel, unless its grid is empty."""
        x, y = (self.size(n) for n in grid)
        if x <= 0 or y <= 0:
            return
        keep: list[Any] = []
        args = [self.argument(argument, keep) for argument in arguments]
        self.gpu.launch(self.context.ptx, kernel, (x, y, 1), (block, 1, 1), args)


def _number(array: Any, dtype: np.dtype, part: int) -> Any:
    """Return a number, or a part of a complex one, as the param has it."""
    if dtype.kind == "c":
        return array.imag[()] if part else array.real[()]
    if dtype.kind == "b":
        return np.uint8(array)
    if dtype == BFLOAT16:
        return np.asarray(array).view(np.uint16)[()]
    return np.asarray(array)[()]


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array in C order."""
    strides, total = [], 1
    for size in reversed(shape):
        strides.append(total)
        total *= size
    return tuple(reversed(strides))
