"""The indices of elements that are not zero.

A warp has some hundred elements, 32 at a time: the votes of its lanes are how many there are, and which lane writes where.
The first kernel counts for each warp, the counts are summed, and after the host has read how many there are in all, the
second kernel writes the indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsl.codegen.arrays import load_scalar
from dsl.codegen.cuda.frame import Frame
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import flat, thread_number
from dsl.codegen.cuda.ops.running import emit_running
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Launch, Step
from dsl.codegen.cuda.teams import WARP
from dsl.codegen.elementwise.casts import truth
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import Dim
from dsl.ir.types import I64, TensorType, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS", "Counted"]

_CHUNK = 1024  # elements of a warp
_ALL = Value("-1", "i32")


@dataclass(frozen=True)
class Counted:
    """Launches between which the host reads how many elements there are: the last of `sums`."""

    values: tuple[ir.Value, ...]
    first: Sequence[Step]
    sums: ir.Value
    size: Dim
    second: Sequence[Step]
    scratch: tuple[ir.Value, ...]

    def run(self, frame: Frame) -> None:
        for value in self.scratch:
            frame.bind(value, frame.allocate(value))
        for step in self.first:
            step.run(frame)
        frame.sizes[self.size] = self._count(frame)
        for value in self.values:
            frame.bind(value, frame.allocate(value))
        for step in self.second:
            step.run(frame)
        for value in self.scratch:
            frame.drop(value)

    def _count(self, frame: Frame) -> int:
        placed = frame.find(self.sums)
        (length,) = placed.shape
        if not length:
            return 0
        return int(frame.gpu.download(placed.buffer, placed.offset + 8 * (length - 1), I64, 1)[0])


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,) = node.inputs
    chunks = ceil_div(size_of(x.shape), _CHUNK)
    counts, sums = (StandIn(None, TensorType(I64, (chunks,))) for _ in range(2))
    first: list[Step] = [_count(lowering, x, counts)]
    scans, scratch = emit_running(lowering, "cumsum", counts, sums, 0)
    second = [_write(lowering, node, counts, sums)]
    (size,) = node.outputs[0].shape
    assert isinstance(size, Dim)
    return Counted(node.outputs, [*first, *scans], sums, size, second, (counts, sums, *scratch))


LOWERINGS = {"nonzero": (lambda node: True, _lower)}


class _Sweep:
    """A warp's way through its elements."""

    def __init__(self, source: Source, x: ir.Value) -> None:
        self.source, self.fn, self.x = source, source.fn, x
        fn, thread = source.fn, thread_number(source)
        self.array = source.array(x)
        self.total = source.dim(size_of(x.shape))
        self.lane, self.chunk = fn.binary("and", thread, WARP - 1), fn.binary("lshr", thread, 5)
        chunks = source.dim(ceil_div(size_of(x.shape), _CHUNK))
        self.inside = fn.compare("slt", self.chunk, chunks)

    def each(self, body: Callable[[Value, Value, Value, list[Operand]], None]) -> None:
        """Emit a body for each 32 elements: given the votes, a lane's own vote, and where its element is."""
        fn = self.fn
        start = fn.mul(self.chunk, _CHUNK)
        with fn.loop(0, _CHUNK, WARP) as k:
            at = fn.as_value(fn.add(fn.add(start, k), self.lane), "i64")
            place = fn.as_value(fn.minimum(at, fn.sub(self.total, 1)), "i64")
            index = _unflatten(self.source, self.x, place)
            element = load_scalar(fn, self.x.dtype, self.array.address(fn, tuple(index)))
            own = truth(fn, self.x.dtype, element)
            own = fn.both(own, fn.compare("slt", at, self.total))
            body(self.votes(own), own, place, index)

    def votes(self, own: Value) -> Value:
        name = "llvm.nvvm.vote.ballot.sync"
        self.source.module.declare(name, "i32", ["i32", "i1"], "convergent nocallback nounwind")
        return self.fn.call("i32", name, _ALL, own)

    def number(self, bits: Value) -> Value:
        """Return how many bits are set."""
        return self.fn.convert("zext", self.fn.call("i32", "llvm.ctpop.i32", bits), "i64")


def _unflatten(source: Source, x: ir.Value, place: Value) -> list[Operand]:
    fn, found = source.fn, []
    for dim in reversed(x.shape[1:]):
        size = source.dim(dim)
        found.append(fn.binary("urem", place, size))
        place = fn.binary("udiv", place, size)
    return [place, *reversed(found)]


def _count(lowering: Lowering, x: ir.Value, counts: ir.Value) -> Launch:
    source = lowering.source("count")
    fn, out = source.fn, source.place(counts)
    sweep, count = _Sweep(source, x), fn.variable("i64", 0)
    sweep.each(lambda votes, *_: count.set(fn.add(count.get(), sweep.number(votes))))
    with fn.if_(fn.both(sweep.inside, fn.compare("eq", sweep.lane, 0))):
        fn.store(count.get(), flat(out, sweep.chunk, source), align=8)
    source.finish(BLOCK)
    return lowering.done(source, _geometry(x), "count of nonzero")


def _geometry(x: ir.Value) -> Geometry:
    return Geometry((ceil_div(size_of(x.shape), _CHUNK * BLOCK // WARP), 1), BLOCK)


def _write(lowering: Lowering, node: ir.Node, counts: ir.Value, sums: ir.Value) -> Launch:
    source = lowering.source("nonzero")
    (x,), fn = node.inputs, source.fn
    outs = [source.place(value) for value in node.outputs]
    sweep = _Sweep(source, x)
    chunk = fn.select(sweep.inside, sweep.chunk, 0)
    total, own = (
        fn.load("i64", flat(source.array(v), chunk, source), align=8) for v in (sums, counts)
    )
    before = fn.variable("i64", fn.binary("sub", total, own))
    lane = fn.convert("trunc", sweep.lane, "i32")
    earlier = fn.binary("sub", fn.binary("shl", 1, lane), 1)

    def write(votes: Value, own: Value, place: Value, index: list[Operand]) -> None:
        to = fn.add(before.get(), sweep.number(fn.binary("and", votes, earlier)))
        with fn.if_(own):
            for out, i in zip(outs, index, strict=True):
                fn.store(fn.as_value(i, "i64"), flat(out, to, source), align=8)
        before.set(fn.add(before.get(), sweep.number(votes)))

    sweep.each(write)
    source.finish(BLOCK)
    return lowering.done(source, _geometry(x), "nonzero")
