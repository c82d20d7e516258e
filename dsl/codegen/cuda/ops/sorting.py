"""Sorts, of values and of indices, along an axis.

Lines of up to 1024 elements are sorted by networks: a thread has an element, and compares it with another's, of its warp
by a shuffle, else through shared memory, in two buffers, so that a step needs one barrier. Longer lines are sorted by
tiles of as many, which are merged in passes through memory: each thread finds by a binary search where its element goes.
Elements beyond the end of a line come last. Indices are compared where elements are equal, so that sorts of indices are
stable; in sorts of values that cannot be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.frame import Frame
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import Lines, flat, is_along
from dsl.codegen.cuda.ops.order import Order, Words
from dsl.codegen.cuda.ops.search import thread_number
from dsl.codegen.cuda.source import Argument
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.cuda.teams import WARP, power_of_two, shuffled
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.types import BY_NAME, I64, TensorType, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS", "emit_sort"]

_TILE = 1024  # elements that a block sorts, at most: one for each thread
I32 = BY_NAME["i32"]


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,), (y,) = node.inputs, node.outputs
    descending = bool(node.attrs.get("descending"))
    return emit_sort(lowering, x, y, node.attrs["axis"], node.op.name == "argsort", descending)


LOWERINGS = dict.fromkeys(("sort", "argsort"), (lambda node: True, _lower))


def emit_sort(
    lowering: Lowering, x: ir.Value, y: ir.Value, axis: int, indices: bool, descending: bool = False
) -> Sorted:
    """Emit what sorts the lines of x along an axis into y, or the indices that sort them."""
    sort = _Sort(lowering, x, y, axis, indices, descending)
    length = x.shape[axis]
    if isinstance(length, int) and length <= _TILE:
        return Sorted((y,), [sort.network(None)])
    order = Order(lowering.source("none").fn, x.dtype)
    shape = sort.count, length
    buffers = [
        tuple(
            StandIn(None, TensorType(dtype, shape))
            for dtype in [order.word] * order.words + [I64] * indices
        )
        for _ in range(2)
    ]
    run = Symbol("run")
    tiles, merge = sort.network(buffers[0]), sort.merge(*buffers, run)
    place = sort.place(buffers[0])
    scratch = buffers[0] + buffers[1]
    return Sorted((y,), [tiles], scratch=scratch, length=length, run=run, passes=(
        (merge, place), (_swapped(merge, *buffers), _swapped(place, *buffers)),
    ))  # fmt: skip


def _swapped(launch: Launch, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Launch:
    """Return a launch with one set of buffers in the place of another."""
    other = {**dict(zip(a, b, strict=True)), **dict(zip(b, a, strict=True))}
    arguments = [
        Argument(kind, other.get(what, what) if kind == "array" else what, which)
        for kind, what, which in launch.arguments
    ]
    return Launch(launch.kernel, arguments, launch.geometry)


@dataclass
class Sorted(Made):
    """Launches that sort: tiles, then as many passes as the length needs, each of which doubles sorted runs."""

    length: DimLike = 0
    run: DimLike = 0
    passes: tuple[tuple[Launch, Launch], ...] = ()  # merge and place, from either set of buffers

    def run_launches(self, frame: Frame) -> None:
        for launch in self.launches:
            launch.run(frame)
        if not self.passes:
            return
        size, turn, length = _TILE, 0, frame.size(self.length)
        while size < length:
            assert not isinstance(self.run_symbol, int)
            frame.sizes[self.run_symbol] = size
            self.passes[turn][0].run(frame)
            size, turn = 2 * size, 1 - turn
        self.passes[turn][1].run(frame)
