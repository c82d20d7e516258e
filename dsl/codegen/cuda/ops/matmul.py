"""Products of matrices, in stacks that are broadcast.

Large ones go by tiles (`tiles`). Vectors, and products of few elements or of few terms, are folds (`folds`): a thread or
a team for each element of the result. Where the blocks are few and the sums long, sums are cut, and a second kernel adds
the parts. Half precisions are summed in float32, small integers and bools in int32. A device that has a library for them, as
CUDA has cuBLAS, multiplies large matrices of floats itself (`multiply`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar, zero
from dsl.codegen.cuda.device import Told
from dsl.codegen.cuda.frame import Frame, Placed, Wrong, contiguous
from dsl.codegen.cuda.ops.folds import Fold, State, fold_line
from dsl.codegen.cuda.ops.lines import Lines, choose_team, chunks_of, flat, geometry_of, spot_of
from dsl.codegen.cuda.ops.products import (
    Factor,
    Sizes,
    axes_of,
    divided,
    factors_of,
    multiply_add,
    sizes_of,
    work_dtype,
)
from dsl.codegen.cuda.ops.tiles import SIDE, Tile, TileKernel, blocks_of
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.cuda.teams import Team
from dsl.codegen.elementwise import combine
from dsl.codegen.elementwise.casts import cast
from dsl.codegen.llvm import Function, Operand
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import TensorType

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]

_SMALL = 16  # rows and columns up to which each element is a fold
_SHORT = 4  # and terms of a sum
_FEW = 4096  # elements of the result that leave a GPU idle
_MANY_BLOCKS = 96  # from here on tiles may be large
_LONG = 512  # terms of a sum that may be cut
_PART = 256  # terms of a part, at least
_LIBRARY = 128  # rows, columns and terms from which on a library is asked
_FLOATS = frozenset(("float16", "float32", "float64", "complex64", "complex128"))

Launches = tuple[list[Launch], tuple[ir.Value, ...]]


@dataclass
class _Product(Made):
    """Launches that need factors whose sizes fit; `factors` are arrays, and in which order their axes are."""

    factors: tuple[tuple[ir.Value, tuple[int, ...]], ...] = ()

    def run(self, frame: Frame) -> None:
        x, y = (frame.shape(v) for v in self.values[0].node.data_inputs)
        if x[-1] != y[-min(2, len(y))]:
            raise Wrong
        try:
            np.broadcast_shapes(x[:-2], y[:-2])
        except ValueError:
            raise Wrong from None
        multiply = getattr(frame.gpu, "multiply", None)
        (value,) = self.values
        if multiply is None or not _is_large(value.dtype, x, y):
            super().run(frame)
            return
        made = frame.allocate(value)
        frame.bind(value, made)
        a, b = (_told(frame.find(base), base.dtype, axes) for base, axes in self.factors)
        multiply(a, b, _told(made, value.dtype, tuple(range(len(made.shape)))))


def _is_large(dtype: np.dtype, x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Tell whether a product is worth a library's."""
    if dtype.name not in _FLOATS or len(x) < 2 or len(y) < 2:
        return False
    return min(x[-2], x[-1], y[-1]) >= _LIBRARY


def _told(placed: Placed, dtype: np.dtype, axes: tuple[int, ...]) -> Told:
    """Return an array for a library: its axes in their order, strides in bytes."""
    strides = placed.strides or contiguous(placed.shape)
    return Told(
        placed.buffer, placed.offset, dtype, tuple(placed.shape[k] for k in axes),
        tuple(strides[k] * dtype.itemsize for k in axes),
    )  # fmt: skip


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    sizes = sizes_of(node)
    emit = _by_folds if _is_fold(sizes) else _by_tiles
    launches, scratch = emit(lowering, node, sizes)
    factors = tuple(axes_of(lowering, v) for v in node.data_inputs)
    return _Product(node.outputs, launches, scratch=scratch, factors=factors)


LOWERINGS = {"matmul": (lambda node: True, _lower)}


def _is(size: DimLike, most: int) -> bool:
    """Tell whether a size is known, and at most so large."""
    return isinstance(size, int) and size <= most


def _is_fold(sizes: Sizes) -> bool:
    if _is(sizes.k, _SHORT) or _is(sizes.m, 1) or _is(sizes.n, 1):
        return True
    return _is(sizes.m, _SMALL) and _is(sizes.n, _SMALL)


# -- folds ------------------------------------------------------------------------------------------------------------


def _by_folds(lowering: Lowering, node: ir.Node, sizes: Sizes) -> Launches:
    (value,), x = node.outputs, node.data_inputs[0]
    team = choose_team(sizes.count, sizes.k, _reads_along(lowering, node, sizes))
    if team.chunk is None:
        return [_fold(lowering, node, sizes, team, value)], ()
    shape = (sizes.count, chunks_of(team, sizes.k))
    parts = StandIn(None, TensorType(work_dtype(x.dtype), shape))
    launches = [_fold(lowering, node, sizes, team, parts), _add_parts(lowering, parts, 1, value)]
    return launches, (parts,)


def _reads_along(lowering: Lowering, node: ir.Node, sizes: Sizes) -> bool:
    """Tell whether neighbouring threads should take neighbouring terms of a sum: as the matrix is in memory."""
    x, y = (axes_of(lowering, v) for v in node.data_inputs)
    if _is(sizes.n, 1):
        return x[1][-1] == len(x[1]) - 1
    if _is(sizes.m, 1):
        return y[1][-2] == len(y[1]) - 1
    return _is(sizes.count, _FEW) and not _is(sizes.k, 2 * _SMALL)


def _fold(lowering: Lowering, node: ir.Node, sizes: Sizes, team: Team, target: ir.Value) -> Launch:
    """Emit a kernel whose teams make an element of the result each, or a part of its sum."""
    source = lowering.source("matmul")
    fn, dtype = source.fn, node.outputs[0].dtype
    work, out = work_dtype(dtype), source.place(target)
    spot = spot_of(source, team, sizes.count, sizes.k)
    a, b = factors_of(lowering, source, node, sizes)
    column, rest = divided(source, spot.line, sizes.n)
    row, number = divided(source, rest, sizes.m)
    left = fn.add(a.start(source, number), fn.mul(row, a.across))
    right = fn.add(b.start(source, number), fn.mul(column, b.across))

    def load(operand: Factor, start: Operand, i: Operand) -> Scalar:
        address = flat(operand.array, fn.add(start, fn.mul(i, operand.along)), source)
        return cast(fn, dtype, work, load_scalar(fn, dtype, address))

    def step(state: State, i: Operand) -> State:
        pair = load(a, left, i), load(b, right, i)
        return (multiply_add(fn, work, *pair, state[0]),)

    (total,) = fold_line(source, team, spot, _sum(fn, work, step))
    place = fn.add(fn.mul(spot.line, source.dim(chunks_of(team, sizes.k))), spot.chunk)
    with fn.if_(fn.both(spot.inside, fn.compare("eq", spot.member, 0))):
        address = flat(out, place, source)
        store_scalar(fn, target.dtype, cast(fn, work, target.dtype, total), address)
    source.finish(team.block)
    return lowering.done(source, geometry_of(team, sizes.count, sizes.k), "matmul by folds")


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


def _choose_tile(sizes: Sizes, work: np.dtype) -> Tile:
    m, n = (_fitting(s) for s in (sizes.m, sizes.n))
    if work.itemsize > 4 or not _enough(sizes):
        m, n = min(m, 64), min(n, 64)
    shallow = min(m, n) >= 2 * SIDE and (m * n > 64 * 64 or work.itemsize > 8)
    return Tile(m, n, 8 if shallow else 16)


def _fitting(size: DimLike) -> int:
    if not isinstance(size, int):
        return 64
    return next((side for side in (16, 32, 64) if size <= side), 128)


def _enough(sizes: Sizes) -> bool:
    blocks = blocks_of(sizes, Tile(128, 128, 8))
    return isinstance(blocks, int) and blocks >= _MANY_BLOCKS


def _by_tiles(lowering: Lowering, node: ir.Node, sizes: Sizes) -> Launches:
    (value,) = node.outputs
    work = work_dtype(value.dtype)
    tile = _choose_tile(sizes, work)
    parts = _parts(sizes, tile)
    if parts == 1:
        return [TileKernel(lowering, node, sizes, tile, value, None).emit()], ()
    assert isinstance(sizes.k, int)
    part = -(-sizes.k // parts // tile.k) * tile.k
    sums = StandIn(None, TensorType(work, (-(-sizes.k // part), sizes.count)))
    first = TileKernel(lowering, node, sizes, tile, sums, part).emit()
    return [first, _add_parts(lowering, sums, 0, value)], (sums,)


def _parts(sizes: Sizes, tile: Tile) -> int:
    """Return into how many parts sums are cut, so that enough blocks have work."""
    blocks, k = blocks_of(sizes, tile), sizes.k
    if not (isinstance(blocks, int) and isinstance(k, int)) or k < _LONG or blocks == 0:
        return 1
    return max(1, min(_MANY_BLOCKS // blocks, k // _PART))
