"""Products of matrices, in stacks that are broadcast.

Large ones go by tiles: a block of 16 x 16 threads makes a tile of the result, each thread some rows and columns of it in
registers. Slices of the operands pass through shared memory, in two buffers: while one is multiplied the next slice is
read, so that a slice needs one barrier. Vectors, and products of few elements, are folds (`folds`): a thread or a team
for each element of the result. Where the blocks are few and the sums long, sums are cut, and a second kernel adds the
parts. Half precisions are summed in float32, small integers and bools in int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar, zero
from dsl.codegen.cuda.frame import Frame, Wrong
from dsl.codegen.cuda.grid import Geometry, ceil_div
from dsl.codegen.cuda.ops.folds import Fold, State, fold_line
from dsl.codegen.cuda.ops.lines import (
    Lines,
    choose_team,
    chunks_of,
    flat,
    geometry_of,
    offset,
    spot_of,
)
from dsl.codegen.cuda.ops.vectors import load_vector, store_vector
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.cuda.teams import Team
from dsl.codegen.elementwise import combine
from dsl.codegen.elementwise.casts import cast, is_half
from dsl.codegen.evaluate import select_scalar
from dsl.codegen.library.cells import Cell
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import BY_NAME, TensorType, is_float, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]

F32, I32 = BY_NAME["f32"], BY_NAME["i32"]
_SIDE = 16  # threads along each side of a tile
_THREADS = _SIDE * _SIDE
_VECTOR = 16  # bytes that a thread reads at once
_SMALL = 16  # rows and columns up to which each element is a fold
_MANY_BLOCKS = 96  # from here on tiles may be large
_LONG = 512  # sums of tiles that may be cut
_PART = 256  # points of a part, at least


@dataclass(frozen=True)
class _Sizes:
    """`[m, k] @ [k, n]`, `batch` times: sizes as the graph has them."""

    batch: tuple[DimLike, ...]
    m: DimLike
    n: DimLike
    k: DimLike

    @property
    def count(self) -> DimLike:
        return size_of(self.batch) * self.m * self.n


@dataclass
class _Product(Made):
    """Launches that need operands whose sizes fit."""

    node: ir.Node | None = None

    def run(self, frame: Frame) -> None:
        assert self.node is not None
        x, y = (frame.shape(v) for v in self.node.data_inputs)
        if x[-1] != y[-min(2, len(y))]:
            raise Wrong
        try:
            np.broadcast_shapes(x[:-2], y[:-2])
        except ValueError:
            raise Wrong from None
        super().run(frame)


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (value,), sizes = node.outputs, _sizes_of(node)
    if _is_fold(sizes):
        launches, scratch = _by_folds(lowering, node, sizes)
    else:
        launches, scratch = _by_tiles(lowering, node, sizes)
    return _Product((value,), launches, scratch=scratch, node=node)


LOWERINGS = {"matmul": (lambda node: True, _lower)}


def _sizes_of(node: ir.Node) -> _Sizes:
    x, y = (v.shape for v in node.data_inputs)
    core = (len(x) > 1) + (len(y) > 1)
    out = node.outputs[0].shape
    return _Sizes(
        out[: len(out) - core], x[-2] if len(x) > 1 else 1, y[-1] if len(y) > 1 else 1, x[-1]
    )


def _is_fold(sizes: _Sizes) -> bool:
    small = all(isinstance(s, int) and s <= _SMALL for s in (sizes.m, sizes.n))
    short = isinstance(sizes.k, int) and sizes.k <= 4
    return small or short or any(isinstance(s, int) and s == 1 for s in (sizes.m, sizes.n))


def _work(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which products are summed."""
    if is_half(dtype):
        return F32
    return I32 if dtype.kind in "biu" and dtype.itemsize < 4 else dtype


def _multiply_add(fn: Function, dtype: np.dtype, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    if isinstance(a, tuple) and isinstance(b, tuple) and isinstance(c, tuple):
        real = fn.fma(fn.fneg(a[1]), b[1], fn.fma(a[0], b[0], c[0]))
        return real, fn.fma(a[1], b[0], fn.fma(a[0], b[1], c[1]))
    assert isinstance(a, Value)
    assert isinstance(b, Value)
    assert isinstance(c, Value)
    if is_float(dtype):
        return fn.fma(a, b, c)
    return fn.binary("add", c, fn.binary("mul", a, b))


# -- operands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """One operand: its rows (columns, for the right one) and their points along the sums, with strides in elements."""

    array: Array
    batch: list[tuple[Operand, Operand]]
    across: Operand
    along: Operand
    packed: bool  # whether it is in C order

    def start(self, source: Source, number: Operand) -> Operand:
        return offset(source, self.batch, number)


def _operands(source: Source, node: ir.Node, sizes: _Sizes) -> tuple[_Operand, _Operand]:
    x, y = node.data_inputs
    a, b = source.array(x), source.array(y)
    packed = [not source.layouts.strided(v) for v in (x, y)]
    left = a.strides[-2] if len(a.dims) > 1 else 0
    right = (b.strides[-1], b.strides[-2]) if len(b.dims) > 1 else (0, b.strides[-1])
    return (
        _Operand(a, _batch(source, x, a, sizes), left, a.strides[-1], packed[0]),
        _Operand(b, _batch(source, y, b, sizes), *right, packed[1]),
    )


def _batch(
    source: Source, value: ir.Value, array: Array, sizes: _Sizes
) -> list[tuple[Operand, Operand]]:
    """Return the sizes of the stack and an operand's strides along it: 0 where it is broadcast."""
    fn, own = source.fn, value.shape[:-2]
    missing = len(sizes.batch) - len(own)
    found: list[tuple[Operand, Operand]] = []
    for k, size in enumerate(sizes.batch):
        stride: Operand = 0
        if k >= missing:
            dim, stride = own[k - missing], array.strides[k - missing]
            if isinstance(dim, int):
                stride = 0 if dim == 1 else stride
            elif dim != size:
                stride = fn.select(fn.compare("eq", source.dim(dim), 1), 0, stride)
        found.append((source.dim(size), stride))
    return found


# -- folds ------------------------------------------------------------------------------------------------------------

Launches = tuple[list[Launch], tuple[ir.Value, ...]]


def _by_folds(lowering: Lowering, node: ir.Node, sizes: _Sizes) -> Launches:
    (value,), x = node.outputs, node.data_inputs[0]
    team = choose_team(sizes.count, sizes.k, _reads_along(node, sizes))
    if team.chunk is None:
        return [_fold(lowering, node, sizes, team, value)], ()
    shape = (sizes.count, chunks_of(team, sizes.k))
    parts = StandIn(None, TensorType(_work(x.dtype), shape))
    launches = [_fold(lowering, node, sizes, team, parts), _add_parts(lowering, parts, 1, value)]
    return launches, (parts,)


def _reads_along(node: ir.Node, sizes: _Sizes) -> bool:
    """Tell whether neighbouring threads should take neighbouring points of a sum: as the matrix is in memory."""
    x, y = node.data_inputs
    if len(y.shape) == 1 or (isinstance(sizes.n, int) and sizes.n == 1):
        return True
    if isinstance(sizes.m, int) and sizes.m == 1:
        return False
    few = isinstance(sizes.count, int) and sizes.count < _THREADS * _SMALL
    return few and not (isinstance(sizes.k, int) and sizes.k <= 2 * _SMALL)


def _fold(
    lowering: Lowering, node: ir.Node, sizes: _Sizes, team: Team, target: ir.Value
) -> Launch:
    """Emit a kernel whose teams make an element of the result each, or a part of its sum."""
    source = lowering.source("matmul")
    fn, dtype = source.fn, node.outputs[0].dtype
    work, out = _work(dtype), source.place(target)
    spot = spot_of(source, team, sizes.count, sizes.k)
    a, b = _operands(source, node, sizes)
    column, rest = _divided(source, spot.line, sizes.n)
    row, number = _divided(source, rest, sizes.m)
    left = fn.add(a.start(source, number), fn.mul(row, a.across))
    right = fn.add(b.start(source, number), fn.mul(column, b.across))

    def load(operand: _Operand, start: Operand, i: Operand) -> Scalar:
        address = flat(operand.array, fn.add(start, fn.mul(i, operand.along)), source)
        return cast(fn, dtype, work, load_scalar(fn, dtype, address))

    def step(state: State, i: Operand) -> State:
        pair = load(a, left, i), load(b, right, i)
        return (_multiply_add(fn, work, *pair, state[0]),)

    (total,) = fold_line(source, team, spot, _sum(fn, work, step))
    place = fn.add(fn.mul(spot.line, source.dim(chunks_of(team, sizes.k))), spot.chunk)
    with fn.if_(fn.both(spot.inside, fn.compare("eq", spot.member, 0))):
        address = flat(out, place, source)
        store_scalar(fn, target.dtype, cast(fn, work, target.dtype, total), address)
    source.finish(team.block)
    return lowering.done(source, geometry_of(team, sizes.count, sizes.k), "matmul by folds")


def _divided(source: Source, number: Operand, size: DimLike) -> tuple[Operand, Operand]:
    """Return the rest and the quotient of a number by a size."""
    fn = source.fn
    if isinstance(size, int) and size == 1:
        return 0, number
    dim = source.dim(size)
    return fn.binary("urem", number, dim), fn.binary("udiv", number, dim)


def _sum(fn: Function, dtype: np.dtype, step: Callable[[State, Operand], State]) -> Fold:
    def merge(a: State, b: State) -> State:
        return (combine(fn, "sum", dtype, a[0], b[0], reassociate=False),)

    return Fold((dtype,), (zero(fn, dtype),), step, merge)


def _add_parts(lowering: Lowering, parts: ir.Value, axis: int, value: ir.Value) -> Launch:
    """Emit the kernel that adds the parts of each sum, which are along an axis."""
    source = lowering.source("add_parts")
    fn, work, count, length = source.fn, parts.dtype, parts.shape[1 - axis], parts.shape[axis]
    chosen = choose_team(count, length, axis == 1)
    team = Team(chosen.threads, chosen.rows, chosen.along)
    out = source.place(value)
    spot = spot_of(source, team, count, length)
    lines = Lines(source, parts, axis)
    start = lines.start(spot.line)

    def step(state: State, i: Operand) -> State:
        both = combine(fn, "sum", work, state[0], lines.load(start, i), reassociate=False)
        return (both,)

    (total,) = fold_line(source, team, spot, _sum(fn, work, step))
    with fn.if_(fn.both(spot.inside, fn.compare("eq", spot.member, 0))):
        address = flat(out, spot.line, source)
        store_scalar(fn, value.dtype, cast(fn, work, value.dtype, total), address)
    source.finish(team.block)
    return lowering.done(source, geometry_of(team, count, length), "parts of matmul")


# -- tiles ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tile:
    """A tile of the result has m rows and n columns; slices of the operands are k deep."""

    m: int
    n: int
    k: int


def _choose_tile(sizes: _Sizes, work: np.dtype) -> _Tile:
    m, n = (_fitting(s) for s in (sizes.m, sizes.n))
    if work.itemsize > 4 or not _enough(sizes):
        m, n = min(m, 64), min(n, 64)
    shallow = min(m, n) >= 2 * _SIDE and (m * n > 64 * 64 or work.itemsize > 8)
    return _Tile(m, n, 8 if shallow else 16)


def _fitting(size: DimLike) -> int:
    if not isinstance(size, int):
        return 64
    return next((side for side in (16, 32, 64) if size <= side), 128)


def _enough(sizes: _Sizes) -> bool:
    blocks = _blocks(sizes, _Tile(128, 128, 8))
    return isinstance(blocks, int) and blocks >= _MANY_BLOCKS


def _blocks(sizes: _Sizes, tile: _Tile) -> DimLike:
    return size_of(sizes.batch) * ceil_div(sizes.m, tile.m) * ceil_div(sizes.n, tile.n)


def _by_tiles(lowering: Lowering, node: ir.Node, sizes: _Sizes) -> Launches:
    (value,) = node.outputs
    work = _work(value.dtype)
    tile = _choose_tile(sizes, work)
    parts = _parts(sizes, tile)
    if parts == 1:
        return [_TileKernel(lowering, node, sizes, tile, value, None).emit()], ()
    assert isinstance(sizes.k, int)
    part = -(-sizes.k // parts // tile.k) * tile.k
    sums = StandIn(None, TensorType(work, (-(-sizes.k // part), sizes.count)))
    first = _TileKernel(lowering, node, sizes, tile, sums, part).emit()
    return [first, _add_parts(lowering, sums, 0, value)], (sums,)


def _parts(sizes: _Sizes, tile: _Tile) -> int:
    """Return into how many parts sums are cut, so that enough blocks have work."""
    blocks, k = _blocks(sizes, tile), sizes.k
    if not (isinstance(blocks, int) and isinstance(k, int)) or k < _LONG or blocks == 0:
        return 1
    return max(1, min(_MANY_BLOCKS // blocks, k // _PART))


class _Slices:
    """How the threads of a block bring slices of an operand to shared memory, where neighbours are rows."""

    def __init__(
        self, kernel: _TileKernel, operand: _Operand, first: Operand, rows: DimLike, side: int
    ) -> None:
        self.kernel, self.operand, self.side = kernel, operand, side
        self.source, self.fn = kernel.source, kernel.fn
        self.size, depth = kernel.work.itemsize, kernel.tile.k
        self.pitch = side + max(1, _VECTOR // self.size)  # in elements; keeps vectors aligned
        self.bytes = depth * self.pitch * self.size
        self.deep = isinstance(operand.along, int) and operand.along == 1
        self.limit = self.source.dim(rows)
        self.first = first
        share = side * depth // _THREADS
        self.vector = self._vector(kernel.sizes.k if self.deep else rows, share)
        self.steps = share // self.vector

    def _vector(self, extent: DimLike, share: int) -> int:
        """Return how many neighbours a thread reads at once."""
        size = min(share, max(1, _VECTOR // self.operand.array.dtype.itemsize))
        packed = self.operand.packed and (self.deep or self.operand.across == 1)
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
                self.start, fn.add(fn.mul(at, self.operand.across), fn.mul(to, self.operand.along))
            )
            values = [self._load(fn.add(start, i)) for i in range(near)]
            if not kernel.whole:
                inside = fn.compare("slt", deep, kernel.depth)
                nothing = zero(fn, kernel.work)
                values = [select_scalar(fn, inside, v, nothing) for v in values]
            found += values
        return found

    def _load(self, place: Operand) -> Scalar:
        found = load_scalar(self.fn, self.kernel.dtype, flat(self.operand.array, place, self.source))
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
                store_scalar(fn, work, value, fn.gep(address, i * self.pitch * self.size))

    @property
    def near(self) -> int:
        """How many neighbouring rows a thread multiplies: a vector of them, if it has as many."""
        return min(self.side // _SIDE, max(1, _VECTOR // self.size))

    def own(self, which: Value) -> list[Operand]:
        """Return where the vectors of rows are that a thread multiplies: those of the other threads are between them."""
        start, step = self.fn.mul(which, self.near), _SIDE * self.near
        return [self.fn.add(start, k) for k in range(0, self.side, step)]

    def fragment(self, buffer: Value, rows: list[Operand], k: int) -> list[Scalar]:
        """Load what a thread multiplies of one depth."""
        fn, found = self.fn, []
        for row in rows:
            place = fn.gep(fn.gep(buffer, fn.mul(row, self.size)), k * self.pitch * self.size)
            found += load_vector(fn, self.kernel.work, place, self.near)
        return found


class _TileKernel:
    """Emits the kernel by tiles; with `part`, sums of so many points go to the rows of `target`."""

    def __init__(
        self, lowering: Lowering, node: ir.Node, sizes: _Sizes, tile: _Tile, target: ir.Value,
        part: int | None,
    ) -> None:  # fmt: skip
        self.lowering, self.node, self.sizes, self.tile = lowering, node, sizes, tile
        self.target, self.part = target, part
        self.source = lowering.source("matmul")
        self.fn, self.dtype = self.source.fn, node.outputs[0].dtype
        self.work = _work(self.dtype)
        self.whole = isinstance(sizes.k, int) and sizes.k % tile.k == 0

    def emit(self) -> Launch:
        source, fn, sizes, tile = self.source, self.fn, self.sizes, self.tile
        out = source.place(self.target)
        operands = _operands(source, self.node, sizes)
        self.thread, block = source.index("tid.x"), source.index("ctaid.x")
        self.depth = source.dim(sizes.k)
        wide, high = ceil_div(sizes.n, tile.n), ceil_div(sizes.m, tile.m)
        column, rest = _divided(source, block, wide)
        row, number = _divided(source, rest, high)
        top, left = fn.mul(row, tile.m), fn.mul(column, tile.n)
        self.slices = (
            _Slices(self, operands[0], top, sizes.m, tile.m),
            _Slices(self, operands[1], left, sizes.n, tile.n),
        )
        for slices, operand in zip(self.slices, operands, strict=True):
            slices.start = operand.start(source, number)
        self.rows = self.slices[0].own(fn.binary("udiv", self.thread, _SIDE))
        self.columns = self.slices[1].own(fn.binary("urem", self.thread, _SIDE))
        self.sums = [
            [Cell(fn, self.work) for _ in range(tile.n // _SIDE)] for _ in range(tile.m // _SIDE)
        ]
        for cell in (c for line in self.sums for c in line):
            cell.set_zero()
        self.multiply()
        self.store(out, number, top, left)
        source.finish(_THREADS)
        parts = 1 if self.part is None else self.target.shape[0]
        geometry = Geometry((_blocks(sizes, tile), parts), _THREADS)
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
            self.multiply_slice([self.half(b, s, now) for b, s in zip(buffers, self.slices, strict=True)])
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
                    cell.set(_multiply_add(self.fn, self.work, a, b, cell.get()))

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
                for c, cell in enumerate(line):
                    j = fn.add(fn.add(left, self.columns[c // wide]), c % wide)
                    with fn.if_(fn.compare("slt", j, n)):
                        value = cast(fn, self.work, self.target.dtype, cell.get())
                        place = flat(out, fn.add(start, fn.add(fn.mul(i, n), j)), source)
                        store_scalar(fn, self.target.dtype, value, place)
