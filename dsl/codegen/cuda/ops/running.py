"""Running sums, products, maxima and minima along an axis.

A team of threads goes along a line by tiles: each thread combines its points, warps scan the totals of their threads by
shuffles, and what the warps before have, with what came before the tile, is read from shared memory: two buffers in turn
need one barrier for each tile. A line that is cut goes through three kernels: the totals of the chunks, the running
totals, and the chunks once more. Across other axes a thread goes along a line by itself. Half precisions are summed and
multiplied in float32; the order depends on sizes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.ops.lines import (
    Lines,
    Spot,
    choose_team,
    chunks_of,
    geometry_of,
    is_along,
    spot_of,
    vector_of,
)
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.cuda.teams import WARP, Team, shuffled
from dsl.codegen.elementwise import combine
from dsl.codegen.elementwise.casts import is_half, narrow, widen
from dsl.codegen.evaluate import select_scalar
from dsl.codegen.library.cells import Cell
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import BY_NAME, TensorType, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS", "emit_running", "scan_chunks"]

F32 = BY_NAME["f32"]
_TRUE, _FALSE = Value("true", "i1"), Value("false", "i1")


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,), (y,) = node.inputs, node.outputs
    launches, scratch = emit_running(lowering, node.op.name, x, y, node.attrs["axis"])
    return Made((y,), launches, scratch=scratch)


LOWERINGS = dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), (lambda node: True, _lower))


def emit_running(
    lowering: Lowering, name: str, x: ir.Value, y: ir.Value, axis: int
) -> tuple[list[Launch], tuple[ir.Value, ...]]:
    """Emit what writes the running values of x to y, and return the memory that it needs meanwhile."""
    length = x.shape[axis]
    count = size_of(x.shape[:axis] + x.shape[axis + 1 :])
    team = choose_team(count, length, is_along(x.shape, axis), vector_of(lowering.layouts, x, axis))
    if team.chunk is None:
        return [_Scan(lowering, name, x, axis, team).emit(y)], ()
    work = _work(name, x.dtype)
    parts, sums = (
        StandIn(None, TensorType(work, (count, chunks_of(team, length)))) for _ in range(2)
    )
    launches = [
        _Scan(lowering, name, x, axis, team).emit(None, totals=parts),
        scan_chunks(lowering, name, parts, sums),
        _Scan(lowering, name, x, axis, team).emit(y, before=sums),
    ]
    return launches, (parts, sums)


def scan_chunks(lowering: Lowering, name: str, parts: ir.Value, sums: ir.Value) -> Launch:
    """Emit the kernel that scans each row of totals, by one team."""
    chosen = choose_team(parts.shape[0], parts.shape[1], True)
    return _Scan(lowering, name, parts, 1, Team(chosen.threads, chosen.rows, True)).emit(sums)


def _work(name: str, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which running values are computed."""
    return F32 if is_half(dtype) and name in ("cumsum", "cumprod") else dtype


class _Scan:
    """Emits one kernel."""

    def __init__(self, lowering: Lowering, name: str, x: ir.Value, axis: int, team: Team) -> None:
        self.lowering, self.name, self.team, self.axis = lowering, name, team, axis
        self.source = lowering.source(name)
        self.fn = self.source.fn
        self.x, self.dtype, self.work = x, x.dtype, _work(name, x.dtype)
        self.length: DimLike = x.shape[axis]
        self.count = size_of(x.shape[:axis] + x.shape[axis + 1 :])

    def emit(
        self, y: ir.Value | None, totals: ir.Value | None = None, before: ir.Value | None = None
    ) -> Launch:
        """Emit a kernel that writes running values to y or, without y, what each chunk comes to."""
        source, fn, team = self.source, self.fn, self.team
        self.targets = None if y is None else Lines(source, y, self.axis, made=True)
        ends = None if totals is None else Lines(source, totals, 1, made=True)
        spot = spot_of(source, team, self.count, self.length)
        self.lines = Lines(source, self.x, self.axis)
        self.begin(spot, before)
        if team.threads == 1:
            with fn.if_(spot.inside):
                self.alone(spot)
        else:
            self.together(spot)
        if ends is not None:
            first = fn.both(spot.inside, fn.compare("eq", spot.member, 0))
            with fn.if_(first):
                ends.store(ends.start(spot.line), spot.chunk, self.carry.get())
        source.finish(team.block)
        geometry = geometry_of(team, self.count, self.length)
        return self.lowering.done(source, geometry, self.name if y else f"{self.name} of chunks")

    def begin(self, spot: Spot, before: ir.Value | None) -> None:
        """Set what comes before the chunk, and whether anything does."""
        fn = self.fn
        self.start = self.lines.start(spot.line)
        self.into = 0 if self.targets is None else self.targets.start(spot.line)
        self.carry, self.valid = Cell(fn, self.work), fn.variable("i1", _FALSE)
        self.carry.set_zero()
        if before is not None:
            sums, after = Lines(self.source, before, 1), fn.compare("sgt", spot.chunk, 0)
            place = fn.maximum(fn.sub(spot.chunk, 1), 0)
            self.carry.set(sums.load(sums.start(spot.line), place))
            self.valid.set(after)

    # -- elements ----------------------------------------------------------------------------------------------------

    def load(self, i: Operand) -> Scalar:
        found = self.lines.load(self.start, i)
        if self.work is self.dtype:
            return found
        assert isinstance(found, Value)
        return widen(self.fn, self.dtype, found)

    def store(self, i: Operand, scalar: Scalar) -> None:
        if self.targets is None:
            return
        if self.work is not self.dtype:
            assert isinstance(scalar, Value)
            scalar = narrow(self.fn, scalar, self.dtype)
        self.targets.store(self.into, i, scalar)

    def both(self, a: Scalar, b: Scalar) -> Scalar:
        return combine(self.fn, self.name, self.work, a, b, reassociate=False)

    def after(self, valid: Value, a: Scalar, b: Scalar) -> Scalar:
        """Return a combined with b, or b if there is no a. A neutral element would not do: (1 + 0j) * inf is NaN."""
        return select_scalar(self.fn, valid, self.both(a, b), b)

    # -- one thread --------------------------------------------------------------------------------------------------

    def alone(self, spot: Spot) -> None:
        with self.fn.loop(spot.low, spot.high) as i:
            self.carry.set(self.after(self.valid.get(), self.carry.get(), self.load(i)))
            self.valid.set(_TRUE)
            self.store(i, self.carry.get())

    # -- a team ------------------------------------------------------------------------------------------------------

    def together(self, spot: Spot) -> None:
        """Go through a line tile by tile. Places beyond the end repeat the last, and nothing comes after them."""
        fn, team = self.fn, self.team
        size, tile = team.vector, team.threads * team.vector
        self.buffers = self.shared()
        with fn.loop(spot.low, spot.high, tile) as at:
            own = fn.add(at, fn.mul(spot.member, size))
            place = fn.minimum(own, fn.sub(spot.high, size))
            points = [self.load(fn.add(place, k)) for k in range(size)]
            for k in range(1, size):
                points[k] = self.both(points[k - 1], points[k])
            total = self.scan_warp(spot, points[-1])
            valid, ahead = self.before(spot, total)
            with fn.if_(fn.both(spot.inside, fn.compare("slt", own, spot.high))):
                for k, point in enumerate(points):
                    self.store(fn.add(own, k), self.after(valid, ahead, point))

    def scan_warp(self, spot: Spot, total: Scalar) -> Scalar:
        """Return the running totals of the threads of a warp, or of a smaller team."""
        fn, width = self.fn, min(WARP, self.team.threads)
        lane, distance = fn.binary("and", spot.member, width - 1), 1
        while distance < width:
            other = shuffled(self.source, "up", total, distance, 0)
            total = self.after(fn.compare("sge", lane, distance), other, total)
            distance *= 2
        return total

    def before(self, spot: Spot, total: Scalar) -> tuple[Value, Scalar]:
        """Return what comes before a thread's points, and whether anything does; `carry` becomes the next tile's."""
        fn, width = self.fn, min(WARP, self.team.threads)
        lane = fn.binary("and", spot.member, width - 1)
        valid, ahead, carry = self.warps_before(spot, lane, total)
        left = shuffled(self.source, "up", total, 1, 0)
        inner = fn.compare("sgt", lane, 0)
        found = select_scalar(fn, inner, self.after(valid, ahead, left), ahead)
        self.carry.set(carry)
        self.valid.set(_TRUE)
        return fn.either(inner, valid), found

    def warps_before(self, spot: Spot, lane: Value, total: Scalar) -> tuple[Value, Scalar, Scalar]:
        """Return whether anything comes before a thread's warp, what it is, and what the tile ends with."""
        fn, carry, valid = self.fn, self.carry.get(), self.valid.get()
        warps = self.team.threads // WARP
        if warps <= 1:
            last = shuffled(self.source, "idx", total, WARP - 1) if warps else total
            return valid, carry, self.after(valid, carry, last)
        size, warp = self.work.itemsize, fn.binary("lshr", spot.member, 5)
        buffer = self.turn()
        with fn.if_(fn.compare("eq", lane, WARP - 1)):
            store_scalar(fn, self.work, total, fn.gep(buffer, fn.mul(warp, size)))
        self.source.barrier()
        ahead, so_far = carry, carry
        for k in range(warps):
            one = load_scalar(fn, self.work, fn.gep(buffer, k * size))
            so_far = self.after(valid, so_far, one) if k == 0 else self.both(so_far, one)
            ahead = select_scalar(fn, fn.compare("sgt", warp, k), so_far, ahead)
        return fn.either(valid, fn.compare("sgt", warp, 0)), ahead, so_far

    def shared(self) -> Value | None:
        """Reserve two buffers for the totals of warps, one after the other."""
        warps = self.team.threads // WARP
        if warps <= 1:
            return None
        self.half = warps * self.work.itemsize
        self.odd = self.fn.variable("i64", 0)
        return self.source.shared(2 * self.half)

    def turn(self) -> Value:
        """Return the buffer whose turn it is: who still reads the other has not met the barrier after this one."""
        fn, odd = self.fn, self.odd.get()
        assert self.buffers is not None
        self.odd.set(fn.binary("xor", odd, 1))
        return fn.gep(self.buffers, fn.mul(odd, self.half))
