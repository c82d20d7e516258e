"""The values of a program while it runs: arrays and numbers on the device, numbers and objects on the host.

Memory is counted by the names that refer to it: an array that has one name, which is not needed any more, may be
overwritten. Memory that nobody names goes back to the device's pool at once; since all work is in order, whoever gets it
next comes after whoever used it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from dsl import events
from dsl.codegen.cuda.device import Buffer, Gpu, Part, Told
from dsl.codegen.cuda.source import Argument
from dsl.ir.dims import Dim, DimLike, evaluate
from dsl.ir.graph import Value
from dsl.ir.types import BFLOAT16, TensorType, bind_shape

__all__ = ["Context", "Frame", "Placed", "Wrong", "contiguous", "on_host", "placed_at", "shaped"]


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

    @property
    def reach(self) -> tuple[int, int]:
        """The elements that there are in memory before the first one, and from it to the last in memory."""
        if self.strides is None or 0 in self.shape:
            return 0, math.prod(self.shape)
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return -sum(e for e in ends if e < 0), 1 + sum(e for e in ends if e > 0)

    def part(self, dtype: np.dtype) -> Part:
        """The memory in which the elements are, from the lowest to the highest."""
        before, after = self.reach
        return Part(self.buffer, self.offset - before * dtype.itemsize, dtype, before + after)


class Context:
    """What a run has once: the device, its constants, and a flag that kernels set when something is wrong."""

    live = True  # whether what is issued happens

    def __init__(self, gpu: Gpu, constants: dict[Value, Placed], ptx: str) -> None:
        self.gpu, self.constants, self.ptx = gpu, constants, ptx
        self._flag: Buffer | None = None

    @property
    def flag(self) -> Buffer:
        if self._flag is None:
            self._flag = self.gpu.allocate(8)
            self.gpu.upload(np.zeros(1, np.int64), self._flag)
        return self._flag

    def fetch(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Return what is in places of the device, unless a kernel has found something wrong: then raise `Wrong`.

        Waits once, and not at all if nothing is asked for and no kernel checks anything.
        """
        flags = [] if self._flag is None else [Part(self._flag, 0, np.dtype(np.int64), 1)]
        if not parts and not flags:
            return []
        with self.told("wait", "results"):
            found = self.gpu.download_all([*flags, *parts])
        if flags and found[0][0]:
            raise Wrong
        return found[len(flags) :]

    def told(self, kind: str, name: str, data: Any = None) -> AbstractContextManager[None]:
        """Let a profile see, in the row of the device, what is issued in a `with` block; it is waited for then."""
        if events.LOG is None or not self.live:
            return _UNTOLD
        return self._told(kind, name, data)

    @contextmanager
    def _told(self, kind: str, name: str, data: Any) -> Generator[None]:
        self.gpu.synchronize()  # what was issued before is not part of it
        with events.on_device(str(self.gpu.name)), events.span(kind, name, data=data):
            yield
            self.gpu.synchronize()


_UNTOLD = nullcontext()


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
        if any(n < 0 for n in shape):
            raise Wrong
        return Placed(self.gpu.allocate(math.prod(shape) * value.dtype.itemsize), shape)

    def upload(self, array: Any) -> Placed:
        plain = np.array(array, order="C", copy=None)
        buffer = self.gpu.allocate(plain.nbytes)
        if plain.nbytes:
            with self.context.told("copy", "upload", {"bytes": plain.nbytes}):
                self.gpu.upload(plain, buffer)
        return Placed(buffer, plain.shape)

    def download(self, placed: Placed, dtype: np.dtype) -> np.ndarray:
        """Return an array of the device on the host."""
        if 0 in placed.shape:
            return np.empty(placed.shape, dtype)
        return shaped(self.gpu.download(*placed.part(dtype)), placed)

    def fetch(self, wanted: Sequence[tuple[Placed, np.dtype]]) -> list[np.ndarray]:
        """Return arrays of the device on the host, all at once, or raise `Wrong`; see `Context.fetch`."""
        parts = [placed.part(dtype) for placed, dtype in wanted if 0 not in placed.shape]
        flats = iter(self.context.fetch(parts))
        return [
            np.empty(placed.shape, dtype) if 0 in placed.shape else shaped(next(flats), placed)
            for placed, dtype in wanted
        ]

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
        with self.context.told("kernel", kernel, {"blocks": x * y, "threads": block}):
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


def shaped(flat: np.ndarray, placed: Placed) -> np.ndarray:
    """Return the elements of an array's memory, from the lowest to the highest, as the array."""
    if placed.strides is None:
        return flat.reshape(placed.shape)
    strides = [s * flat.itemsize for s in placed.strides]
    first = flat[placed.reach[0] :]
    return np.lib.stride_tricks.as_strided(first, placed.shape, strides).copy()


def on_host(gpu: Gpu, array: Any) -> np.ndarray:
    """Return a copy of an array of a device, whoever's it is."""
    told = gpu.take(array)
    placed = placed_at(told)
    if 0 in told.shape:
        return np.empty(told.shape, told.dtype)
    return shaped(gpu.download(*placed.part(told.dtype)), placed)


def placed_at(told: Told) -> Placed:
    """Return an array that is on the device already as a program has it."""
    size = told.dtype.itemsize
    strides = tuple(s // size for s in told.strides)
    plain = strides == contiguous(told.shape) or math.prod(told.shape) <= 1
    return Placed(told.buffer, told.shape, told.offset, None if plain else strides)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array in C order."""
    strides, total = [], 1
    for size in reversed(shape):
        strides.append(total)
        total *= size
    return tuple(reversed(strides))
