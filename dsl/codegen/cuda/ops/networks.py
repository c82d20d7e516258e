"""Emits networks that sort: a thread has an element, and compares it with another's, step by step.

Another element of the warp comes by a shuffle, one of another warp through shared memory, in two buffers in turn, so that
a step needs one barrier. Elements beyond the end of a line are greater than all others. Indices are compared where elements
are equal. Along an axis other than the last, threads read and write neighbouring lines, and exchange what they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import Lines, is_along
from dsl.codegen.cuda.ops.order import Order, Words
from dsl.codegen.cuda.steps import Launch
from dsl.codegen.cuda.teams import WARP, power_of_two, shuffled
from dsl.codegen.llvm import Operand, Value
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import BY_NAME, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["TILE", "Network", "Sort", "plain_words"]

TILE = 1024
"""Elements that a block sorts, at most: one for each thread."""

I32 = BY_NAME["i32"]


@dataclass(frozen=True)
class Sort:
    """What is sorted: the lines of x along an axis, into y, or the `indices` that sort them."""

    lowering: Lowering
    x: ir.Value
    y: ir.Value
    axis: int
    indices: bool
    descending: bool = False

    @property
    def name(self) -> str:
        return "argsort" if self.indices else "sort"

    @property
    def length(self) -> DimLike:
        return self.x.shape[self.axis]

    @property
    def count(self) -> DimLike:
        return size_of(self.x.shape[: self.axis] + self.x.shape[self.axis + 1 :])


def plain_words(items: Sequence[Scalar]) -> Words:
    """Return scalars that are known to be words."""
    found = [item for item in items if isinstance(item, Value)]
    assert len(found) == len(items)
    return found


class Network:
    """Emits the kernel that sorts short lines, or tiles of long ones into `buffers`; a thread has an element."""

    def __init__(self, sort: Sort, buffers: Sequence[ir.Value] | None) -> None:
        self.sort, self.buffers = sort, buffers
        self.source = sort.lowering.source(sort.name)
        self.fn = self.source.fn
        self.size = TILE
        if buffers is None:
            assert isinstance(sort.length, int)
            self.size = power_of_two(sort.length)
        self.along = is_along(sort.x.shape, sort.axis)
        self.rows = max(1, (BLOCK if self.along else TILE) // self.size)
        self.block = self.rows * self.size
        self.tiles = ceil_div(sort.length, self.size)
        self.order = Order(self.fn, sort.x.dtype, exact=not sort.indices)
        self.dtypes = self.order.dtypes + [I32] * sort.indices
        self.memory: list[list[Value]] = []
        self.odd = False

    def emit(self) -> Launch:
        fn, source, sort = self.fn, self.source, self.sort
        if self.buffers is None:
            targets = [Lines(source, sort.y, sort.axis, made=True)]
        else:
            targets = [Lines(source, v, 1, made=True) for v in self.buffers]
        self.lines = Lines(source, sort.x, sort.axis)
        self.n = source.dim(sort.length)
        self.thread, self.first = source.index("tid.x"), fn.mul(source.index("ctaid.x"), self.rows)
        self.units = source.dim(sort.count * self.tiles)
        self.turned = self.rows > 1 and not self.along and self.size > 1
        words = self.load()
        self.local = fn.binary("and", self.thread, self.size - 1)
        items = list(words)
        if sort.indices:
            items.append(fn.convert("trunc", self.local, "i32"))
        items = self.sorted(items)
        self.store(targets, items)
        source.finish(self.block)
        blocks = ceil_div(sort.count * self.tiles, self.rows)
        return sort.lowering.done(source, Geometry((blocks, 1), self.block), sort.name)

    # -- memory ------------------------------------------------------------------------------------------------------

    def spot(self, row: Operand) -> tuple[Value, Operand, Operand]:
        """Return whether there is such a row of the block, its line, and where in the line it begins."""
        fn = self.fn
        unit = fn.as_value(fn.add(self.first, row), "i64")
        inside = fn.compare("slt", unit, self.units)
        unit = fn.as_value(fn.minimum(unit, fn.sub(self.units, 1)), "i64")
        if isinstance(self.tiles, int) and self.tiles == 1:
            return inside, unit, 0
        tiles = self.source.dim(self.tiles)
        return (
            inside,
            fn.binary("udiv", unit, tiles),
            fn.mul(fn.binary("urem", unit, tiles), self.size),
        )

    def shares(self) -> tuple[Operand, Operand]:
        """Return the row and the place in it that a thread reads and writes: so that neighbours are so in memory."""
        fn = self.fn
        if self.turned:
            return fn.binary("urem", self.thread, self.rows), fn.binary(
                "udiv", self.thread, self.rows
            )
        return fn.binary("udiv", self.thread, self.size), fn.binary(
            "and", self.thread, self.size - 1
        )

    def load(self) -> Words:
        fn = self.fn
        row, at = self.shares()
        _, line, base = self.spot(row)
        i = fn.add(base, at)
        place = fn.minimum(i, fn.sub(self.n, 1))
        words = self.order.load(self.lines.address(self.lines.start(line), place))
        beyond = fn.compare("sge", i, self.n)
        pairs = zip(self.order.greatest(), words, strict=True)
        words = [fn.select(beyond, last, word) for last, word in pairs]
        return self.turn(words, self.order.dtypes, back=False) if self.turned else words

    def store(self, targets: Sequence[Lines], items: Sequence[Value]) -> None:
        fn, sort, dtypes = self.fn, self.sort, self.dtypes
        if self.turned:
            items = self.turn(items, dtypes, back=True)
        row, at = self.shares()
        inside, line, base = self.spot(row)
        i = fn.add(base, at)
        with fn.if_(fn.both(inside, fn.compare("slt", i, self.n))):
            found: list[Scalar] = list(items)
            if sort.indices:
                found[-1] = fn.as_value(fn.add(fn.convert("zext", items[-1], "i64"), base), "i64")
            if self.buffers is None:
                found = [found[-1] if sort.indices else self.order.element(items)]
                if sort.descending:
                    i = fn.sub(fn.sub(self.n, 1), i)
            for lines, item in zip(targets, found, strict=True):
                lines.store(lines.start(line), i, item)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def space(self) -> list[Value]:
        """Return shared memory for an exchange: there are two, in turn."""
        if not self.memory:
            size = self.rows * (self.size + 1) if self.turned else self.block
            self.memory = [
                [self.source.shared(size * d.itemsize) for d in self.dtypes] for _ in range(2)
            ]
        self.odd = not self.odd
        return self.memory[self.odd]

    def turn(self, items: Words, dtypes: Sequence[np.dtype], back: bool) -> Words:
        """Give each thread the element of its place in the network, or back: rows have an odd pitch in memory."""
        fn, pitch = self.fn, self.size + 1
        row, at = (
            fn.binary("urem", self.thread, self.rows),
            fn.binary("udiv", self.thread, self.rows),
        )
        turned = fn.add(fn.mul(row, pitch), at)
        row, at = (
            fn.binary("udiv", self.thread, self.size),
            fn.binary("and", self.thread, self.size - 1),
        )
        plain = fn.add(fn.mul(row, pitch), at)
        here, there = (plain, turned) if back else (turned, plain)
        return self.exchange(items, dtypes, here, there)

    def exchange(
        self, items: Words, dtypes: Sequence[np.dtype], here: Operand, there: Operand
    ) -> list[Value]:
        """Store at one place and load from another."""
        fn, space = self.fn, self.space()
        for dtype, item, place in zip(dtypes, items, space, strict=False):
            store_scalar(fn, dtype, item, fn.gep(place, fn.mul(here, dtype.itemsize)))
        self.source.barrier()
        found = [
            load_scalar(fn, dtype, fn.gep(place, fn.mul(there, dtype.itemsize)))
            for dtype, place in zip(dtypes, space, strict=False)
        ]
        return list(plain_words(found))

    # -- the network -------------------------------------------------------------------------------------------------

    def sorted(self, items: list[Value]) -> list[Value]:
        """Emit the bitonic network: runs of a size, rising and falling in turn, become runs of twice the size."""
        fn, size = self.fn, 2
        while size <= self.size:
            falls = fn.compare("ne", fn.binary("and", self.local, size), 0)
            distance = size // 2
            while distance:
                upper = fn.compare("ne", fn.binary("and", self.local, distance), 0)
                items = self.compared(items, distance, fn.binary("xor", upper, falls))
                distance //= 2
            size *= 2
        return items

    def compared(self, items: list[Value], distance: int, greater: Value) -> list[Value]:
        """Return the smaller or the greater of a thread's element and that of the thread at a distance."""
        fn = self.fn
        if distance < WARP:
            others = [shuffled(self.source, "bfly", item, distance) for item in items]
            other = list(plain_words(others))
        else:
            there = fn.binary("xor", self.thread, distance)
            other = self.exchange(items, self.dtypes, self.thread, there)
        takes = fn.select(greater, self.less(items, other), self.less(other, items))
        return [fn.select(takes, b, a) for a, b in zip(items, other, strict=True)]

    def less(self, a: list[Value], b: list[Value]) -> Value:
        if not self.sort.indices:
            return self.order.less(a, b)
        return self.order.less_or_same(a[:-1], a[-1], b[:-1], b[-1])
