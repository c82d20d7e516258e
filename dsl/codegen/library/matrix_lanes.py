"""Brings stacks of small matrices into vectors, where each matrix has a lane, and back.

In memory the elements of a matrix lie one after another. Vectors of as many matrices as a register has lanes are loaded
and turned round in registers: element k of all of them is vector k. Arithmetic is in double precision, as NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.routines import at
from dsl.codegen.library.vectors import shuffle, vector
from dsl.codegen.llvm import Function, Operand, Value

__all__ = ["MatrixLanes"]


@dataclass(frozen=True)
class MatrixLanes:
    """So many matrices side by side (a power of two, or one, which is in scalars), with elements of a dtype.

    Those that are only stored may be integers.
    """

    fn: Function
    dtype: np.dtype
    width: int

    def of(self, scalar: str) -> str:
        """Return the type of a scalar for each matrix."""
        return scalar if self.width == 1 else vector(scalar, self.width)

    def load(self, base: Value, stride: Operand, size: int) -> list[Value]:
        """Return the elements of matrices of a size that start `stride` elements apart."""
        if size >= self.width:
            found = self._load_each(base, stride, size)
        else:
            found = self._load_short(base, stride, size)
        return [self._converted("fpext", value, "double") for value in found]

    def store(self, values: Sequence[Value], base: Value, stride: Operand | None = None) -> None:
        """Store the elements of matrices one after another; those that fill a register may start `stride` elements apart."""
        kind = register_type(self.dtype)
        narrow = [self._converted("fptrunc", value, kind) for value in values]
        size = len(narrow)
        if size < self.width:
            for k, register in enumerate(self._joined(narrow)):
                self._store_at(register, base, k * self.width)
            return
        for start in self._starts(size):
            rows = self._turn(narrow[start : start + self.width])
            for k, row in enumerate(rows):
                place = self.fn.mul(size if stride is None else stride, k)
                self._store_at(row, base, self.fn.add(place, start))

    # -- memory ----------------------------------------------------------------------------------------------------

    def _starts(self, size: int) -> list[int]:
        """Return where pieces of a matrix start that fill a register; the last two may overlap."""
        return [*range(0, size - self.width, self.width), size - self.width]

    def _load_each(self, base: Value, stride: Operand, size: int) -> list[Value]:
        """Load pieces of each matrix, and turn them round."""
        found: dict[int, Value] = {}
        for start in self._starts(size):
            places = [self.fn.add(self.fn.mul(stride, k), start) for k in range(self.width)]
            rows = [self._load_at(base, place) for place in places]
            for k, column in enumerate(self._turn(rows)):
                found.setdefault(start + k, column)
        return [found[k] for k in range(size)]

    def _load_short(self, base: Value, stride: Operand, size: int) -> list[Value]:
        """Load matrices of which several are in a register: all as they lie, or element by element."""
        fn = self.fn
        if stride == size:
            return self._load_dense(base, size)
        variables = [fn.variable(self.of(register_type(self.dtype))) for _ in range(size)]

        def dense() -> None:
            for variable, found in zip(variables, self._load_dense(base, size)):
                variable.set(found)

        def apart() -> None:
            for k, variable in enumerate(variables):
                variable.set(self._gathered(base, stride, k))

        fn.if_else(fn.compare("eq", stride, size), dense, apart)
        return [variable.get() for variable in variables]

    def _load_dense(self, base: Value, size: int) -> list[Value]:
        return self._parted(
            [self._load_at(base, k) for k in range(0, size * self.width, self.width)]
        )

    def _gathered(self, base: Value, stride: Operand, first: int) -> Value:
        fn, kind = self.fn, register_type(self.dtype)
        found = Value("poison", self.of(kind))
        for k in range(self.width):
            place = fn.add(fn.mul(stride, k), first)
            one = fn.load(kind, at(fn, self.dtype, base, place), align=self.dtype.itemsize)
            found = fn.define(
                found.type, f"insertelement {found.type} {found.text}, {kind} {one.text}, i64 {k}"
            )
        return found

    def _load_at(self, base: Value, place: Operand) -> Value:
        address = at(self.fn, self.dtype, base, place)
        return self.fn.load(self.of(register_type(self.dtype)), address, align=self.dtype.itemsize)

    def _store_at(self, value: Value, base: Value, place: Operand) -> None:
        self.fn.store(value, at(self.fn, self.dtype, base, place), align=self.dtype.itemsize)

    # -- registers -------------------------------------------------------------------------------------------------

    def _converted(self, instruction: str, value: Value, scalar: str) -> Value:
        if register_type(self.dtype) != "float":
            return value
        return self.fn.convert(instruction, value, self.of(scalar))

    def _turn(self, rows: list[Value]) -> list[Value]:
        """Return the columns of a square of as many registers as each has lanes."""
        rows, width, step = list(rows), self.width, self.width // 2
        while step:
            low = [k if not k & step else width + k - step for k in range(width)]
            high = [k + step if not k & step else width + k for k in range(width)]
            for k in range(width):
                if not k & step:
                    a, b = rows[k], rows[k + step]
                    rows[k] = shuffle(self.fn, a, b, low)
                    rows[k + step] = shuffle(self.fn, a, b, high)
            step //= 2
        return rows

    def _parted(self, registers: list[Value]) -> list[Value]:
        """Return element k of matrices, which lie one after another in as many registers as they have elements."""
        size, count = len(registers), len(registers) * self.width
        if size % 2:
            return [self._pick(registers, range(k, count, size)) for k in range(size)]
        found = list(registers)
        for side in (0, 1):
            places = range(side, 2 * self.width, 2)
            pairs = zip(registers[::2], registers[1::2])
            found[side::2] = self._parted([self._pick(pair, places) for pair in pairs])
        return found

    def _joined(self, values: list[Value]) -> list[Value]:
        """Return matrices one after another: what `_parted` takes."""
        size, width = len(values), self.width
        if size % 2:
            turned = [p % size * width + p // size for p in range(size * width)]
            return [
                self._pick(values, turned[k : k + width]) for k in range(0, size * width, width)
            ]
        found = list[Value]()
        turned = [p % 2 * width + p // 2 for p in range(2 * width)]
        for pair in zip(self._joined(values[::2]), self._joined(values[1::2])):
            found += [self._pick(pair, turned[:width]), self._pick(pair, turned[width:])]
        return found

    def _pick(self, registers: Sequence[Value], places: Sequence[int]) -> Value:
        """Return one register with elements of several, which are counted through."""
        found, width = registers[0], self.width
        for k, register in enumerate(registers):
            own = [width + p % width if p // width == k else lane for lane, p in enumerate(places)]
            if own != list(range(width)):
                found = shuffle(self.fn, found, register, own)
        return found
