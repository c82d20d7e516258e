"""Emits products by tiles.

A block of 16 x 16 threads makes a tile of the result, each thread some rows and columns of it in registers. Slices of the
factors pass through shared memory, in two buffers: while one is multiplied the next slice is read, so that a slice needs
one barrier. What lies beyond an edge is read from within and not stored; beyond the last term of the sums it is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar, zero
from dsl.codegen.cuda.grid import Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import flat
from dsl.codegen.cuda.ops.products import (
    Factor,
    Sizes,
    divided,
    factors_of,
    multiply_add,
    work_dtype,
)
from dsl.codegen.cuda.ops.vectors import load_vector, store_vector
from dsl.codegen.cuda.steps import Launch
from dsl.codegen.elementwise.casts import cast
from dsl.codegen.evaluate import select_scalar
from dsl.codegen.library.cells import Cell
from dsl.codegen.llvm import Operand, Value
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["SIDE", "Tile", "TileKernel", "blocks_of"]

SIDE = 16
"""Threads along each side of a tile."""

_THREADS = SIDE * SIDE
_VECTOR = 16  # bytes that a thread reads at once


@dataclass(frozen=True)
class Tile:
    """A tile of the result has m rows and n columns; slices of the factors are k deep."""

    m: int
    n: int
    k: int


def blocks_of(sizes: Sizes, tile: Tile) -> DimLike:
    return size_of(sizes.batch) * ceil_div(sizes.m, tile.m) * ceil_div(sizes.n, tile.n)


class _Slices:
    """How the threads of a block bring slices of a factor to shared memory, where neighbours are rows."""

    def __init__(
        self, kernel: TileKernel, factor: Factor, number: Operand, first: Operand, rows: DimLike,
        side: int,
    ) -> None:  # fmt: skip
        self.kernel, self.factor, self.side = kernel, factor, side
        self.source, self.fn = kernel.source, kernel.fn
        self.size, depth = kernel.work.itemsize, kernel.tile.k
        self.pitch = side + max(1, _VECTOR // self.size)  # in elements; keeps vectors aligned
        self.bytes = depth * self.pitch * self.size
        self.deep = isinstance(factor.along, int) and factor.along == 1
        self.limit = self.source.dim(rows)
        self.first, self.start = first, factor.start(self.source, number)
        share = side * depth // _THREADS
        self.vector = self._vector(kernel.sizes.k if self.deep else rows, share)
        self.steps = share // self.vector

    def _vector(self, extent: DimLike, share: int) -> int:
        """Return how many neighbours a thread reads at once."""
        size = min(share, max(1, _VECTOR // self.factor.array.dtype.itemsize))
        packed = self.factor.packed and (self.deep or self.factor.across == 1)
        fits = isinstance(extent, int) and extent % size == 0 and size & (size - 1) == 0
        return size if packed and fits else 1

    def places(self) -> list[tuple[Operand, Operand]]:
        """Return the row and the depth of what a thread brings, one for each vector."""
        fn, wide = self.fn, (self.kernel.tile.k if self.deep else self.side) // self.vector
        found: list[tuple[Operand, Operand]] = []
        for j in range(self.steps):
            e = fn.add(self.kernel.thread, j * _THREADS)
            near = fn.mul(fn.binary("urem", e, wide), self.vector)
            far = fn.binary("udiv", e, wide)
            found.append((far, near) if self.deep else (near, far))
        return found

    def read(self, depth: Operand) -> list[Scalar]:
        """Load a thread's share of the slice that begins at a depth; beyond the last point it is zero."""
        fn, kernel, found = self.fn, self.kernel, []
        for row, deep in self.places():
            near = self.vector
            row = fn.add(self.first, row)
            deep = fn.add(depth, deep)
            rows, points = (1, near) if self.deep else (near, 1)
            at = fn.minimum(row, fn.sub(self.limit, rows))
            to = deep if kernel.whole else fn.minimum(deep, fn.sub(kernel.depth, points))
            start = fn.add(
                self.start, fn.add(fn.mul(at, self.factor.across), fn.mul(to, self.factor.along))
            )
            values = [self._load(fn.add(start, i)) for i in range(near)]
            if not kernel.whole:
                inside = fn.compare("slt", deep, kernel.depth)
                nothing = zero(fn, kernel.work)
                values = [select_scalar(fn, inside, v, nothing) for v in values]
            found += values
        return found

    def _load(self, place: Operand) -> Scalar:
        found = load_scalar(self.fn, self.kernel.dtype, flat(self.factor.array, place, self.source))
        return cast(self.fn, self.kernel.dtype, self.kernel.work, found)

    def write(self, buffer: Value, values: list[Scalar]) -> None:
        """Store a thread's share to shared memory."""
        fn, work, size = self.fn, self.kernel.work, self.vector
        for j, (row, deep) in enumerate(self.places()):
            place = fn.add(fn.mul(deep, self.pitch), row)
            address = fn.gep(buffer, fn.mul(place, self.size))
            own = values[j * size : (j + 1) * size]
            if not self.deep:
                store_vector(fn, work, address, own)
                continue
            for i, value in enumerate(own):
                store_vector(fn, work, fn.gep(address, i * self.pitch * self.size), [value])

    @property
    def near(self) -> int:
        """How many neighbouring rows a thread multiplies: a vector of them, if it has as many."""
        return min(self.side // SIDE, max(1, _VECTOR // self.size))

    def own(self, which: Value) -> list[Operand]:
        """Return where the vectors of rows are that a thread multiplies: those of the other threads are between them."""
        start, step = self.fn.mul(which, self.near), SIDE * self.near
        return [self.fn.add(start, k) for k in range(0, self.side, step)]

    def fragment(self, buffer: Value, rows: list[Operand], k: int) -> list[Scalar]:
        """Load what a thread multiplies of one depth."""
        fn, found = self.fn, []
        for row in rows:
            place = fn.gep(fn.gep(buffer, fn.mul(row, self.size)), k * self.pitch * self.size)
            found += load_vector(fn, self.kernel.work, place, self.near)
        return found


class TileKernel:
    """Emits the kernel by tiles; with `part`, sums of so many points go to the rows of `target`."""

    def __init__(
        self, lowering: Lowering, node: ir.Node, sizes: Sizes, tile: Tile, target: ir.Value,
        part: int | None,
    ) -> None:  # fmt: skip
        self.lowering, self.node, self.sizes, self.tile = lowering, node, sizes, tile
        self.target, self.part = target, part
        self.source = lowering.source("matmul")
        self.fn, self.dtype = self.source.fn, node.outputs[0].dtype
        self.work = work_dtype(self.dtype)
        self.whole = isinstance(sizes.k, int) and sizes.k % tile.k == 0

    def emit(self) -> Launch:
        source, fn, sizes, tile = self.source, self.fn, self.sizes, self.tile
        out = source.place(self.target)
        factors = factors_of(self.lowering, source, self.node, sizes)
        self.thread, block = source.index("tid.x"), source.index("ctaid.x")
        self.depth = source.dim(sizes.k)
        wide, high = ceil_div(sizes.n, tile.n), ceil_div(sizes.m, tile.m)
        column, rest = divided(source, block, wide)
        row, number = divided(source, rest, high)
        top, left = fn.mul(row, tile.m), fn.mul(column, tile.n)
        self.slices = (
            _Slices(self, factors[0], number, top, sizes.m, tile.m),
            _Slices(self, factors[1], number, left, sizes.n, tile.n),
        )
        self.rows = self.slices[0].own(fn.binary("udiv", self.thread, SIDE))
        self.columns = self.slices[1].own(fn.binary("urem", self.thread, SIDE))
        self.sums = [
            [Cell(fn, self.work) for _ in range(tile.n // SIDE)] for _ in range(tile.m // SIDE)
        ]
        for cell in (c for line in self.sums for c in line):
            cell.set_zero()
        self.multiply()
        self.store(out, number, top, left)
        source.finish(_THREADS)
        parts = 1 if self.part is None else self.target.shape[0]
        geometry = Geometry((blocks_of(sizes, tile), parts), _THREADS)
        return self.lowering.done(source, geometry, f"matmul by {tile.m} x {tile.n} tiles")

    def multiply(self) -> None:
        """Sum over all slices, if there is one."""
        if isinstance(self.sizes.k, int):
            if self.sizes.k:
                self.each_slice()
            return
        with self.fn.if_(self.fn.compare("sgt", self.depth, 0)):
            self.each_slice()

    def each_slice(self) -> None:
        fn, source, deep = self.fn, self.source, self.tile.k
        low, high = self.ends()
        last = fn.mul(fn.binary("udiv", fn.sub(high, 1), deep), deep)
        buffers = [source.shared(2 * s.bytes) for s in self.slices]
        for slices, buffer in zip(self.slices, buffers, strict=True):
            slices.write(buffer, slices.read(low))
        source.barrier()
        odd = fn.variable("i64", 0)
        with fn.loop(low, high, deep) as at:
            following = fn.minimum(fn.add(at, deep), last)
            ahead = [slices.read(following) for slices in self.slices]
            now = odd.get()
            odd.set(fn.binary("xor", now, 1))
            self.multiply_slice(
                [self.half(b, s, now) for b, s in zip(buffers, self.slices, strict=True)]
            )
            for slices, buffer, values in zip(self.slices, buffers, ahead, strict=True):
                slices.write(self.half(buffer, slices, odd.get()), values)
            source.barrier()

    def half(self, buffer: Value, slices: _Slices, odd: Value) -> Value:
        return self.fn.gep(buffer, self.fn.mul(odd, slices.bytes))

    def ends(self) -> tuple[Operand, Operand]:
        """Return where a block's part of the sums begins and ends."""
        if self.part is None:
            return 0, self.depth
        low = self.fn.mul(self.source.index("ctaid.y"), self.part)
        return low, self.fn.minimum(self.fn.add(low, self.part), self.depth)

    def multiply_slice(self, buffers: list[Value]) -> None:
        for k in range(self.tile.k):
            left, right = (
                slices.fragment(buffer, rows, k)
                for slices, buffer, rows in zip(
                    self.slices, buffers, (self.rows, self.columns), strict=True
                )
            )
            for a, line in zip(left, self.sums, strict=True):
                for b, cell in zip(right, line, strict=True):
                    cell.set(multiply_add(self.fn, self.work, a, b, cell.get()))

    def store(self, out: Array, number: Operand, top: Operand, left: Operand) -> None:
        """Store what a thread has of the tile, as far as it lies within the result."""
        fn, source = self.fn, self.source
        m, n = source.dim(self.sizes.m), source.dim(self.sizes.n)
        start = fn.mul(number, source.dim(self.sizes.m * self.sizes.n))
        if self.part is not None:
            count = source.dim(self.sizes.count)
            start = fn.add(start, fn.mul(source.index("ctaid.y"), count))
        high, wide = (s.near for s in self.slices)
        for r, line in enumerate(self.sums):
            i = fn.add(fn.add(top, self.rows[r // high]), r % high)
            with fn.if_(fn.compare("slt", i, m)):
                for c, column in enumerate(self.columns):
                    place = fn.add(start, fn.mul(i, n))
                    self.store_near(
                        out, place, fn.add(left, column), line[c * wide : (c + 1) * wide]
                    )

    def store_near(self, out: Array, start: Operand, first: Operand, cells: list[Cell]) -> None:
        """Store neighbours of a row; they are all within the result, or all beyond, if its rows are whole vectors."""
        fn, n, dtype = self.fn, self.sizes.n, self.target.dtype
        size = len(cells) if isinstance(n, int) and n % len(cells) == 0 else 1
        for k in range(0, len(cells), size):
            with fn.if_(fn.compare("slt", fn.add(first, k), self.source.dim(n))):
                for c in range(k, k + size):
                    value = cast(fn, self.work, dtype, cells[c].get())
                    place = fn.add(start, fn.add(first, c))
                    store_scalar(fn, dtype, value, flat(out, place, self.source))
