"""Kernels that reduce everything: chunks of fixed sizes give partial results, which are combined pairwise.

Sizes alone decide about chunks and the order of combining, so the result has the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

from dsl.codegen import elementwise
from dsl.codegen.accesses import ceil_div, start_value
from dsl.codegen.arrays import Scalar, load_scalar, register_type, store_scalar
from dsl.codegen.evaluate import Evaluator, literal
from dsl.codegen.kernels.rows import Accumulators, Rows
from dsl.codegen.library.partials import STRETCHES
from dsl.codegen.library.routines import call_routine
from dsl.codegen.llvm import Function, Operand, Value, read
from dsl.codegen.plan import Root, Stage

__all__ = ["Splits"]

_CHUNK = 4096  # elements that one partial result covers, at least
_CHUNKS = 512  # partial results, at most
_STREAMS = 4  # places of a chunk that are read at once: memory gives a third more than for one


class Splits(Rows):
    """Partial results of chunks."""

    def split(self) -> None:
        fn = self.host.fn
        (stage,) = self.kernel.stages
        groups = self.merged(sorted(self.inner))
        reduces = [root for root in stage.roots if root.reduce]
        per_item = self.elements_of(groups[1:])
        length = max(1, math.ceil(_CHUNK / per_item))
        count = self.extent(fn, groups[0])
        if isinstance(count, int):
            chunk: Operand = max(length, -(-count // _CHUNKS))
        else:
            chunk = fn.maximum(length, ceil_div(fn, count, _CHUNKS))
        chunks = ceil_div(fn, count, chunk)
        room = 16 * max(1, chunks if isinstance(chunks, int) else _CHUNKS + 1)
        places = {(root, lane): fn.alloca(room) for root in reduces for lane in self.lanes}
        expressions = [root.expression for root in stage.roots]
        long = len(groups) == 1 and not (isinstance(count, int) and count < _CHUNK)
        streams = _STREAMS if long and self.side_by_side == 1 and self.lane_axis is None else 1

        def body(inner: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.evaluator(inner)
            evaluator.fetch = partial(self.row_fetch, evaluator, {}, {})
            self.hoist(evaluator, expressions)
            with inner.loop(lo, hi, as_written=True) as c, evaluator.scope():
                low = inner.mul(c, chunk)
                high = inner.minimum(inner.add(low, chunk), count)
                found = self.chunk(evaluator, groups, stage, low, high, streams)
                for (root, lane), place in places.items():
                    address = inner.gep(place, inner.mul(c, 16))
                    store_scalar(inner, root.value.dtype, found[root, lane], address)

        work = self.cost([stage]) * per_item * (chunk if isinstance(chunk, int) else 4 * length)
        self.parallel(chunks, work, body)
        for (root, lane), place in places.items():
            total = self.combine_partials(fn, root, place, chunks)
            if lane is None:
                self.host.set_register(root.value, total)
            elif root.value in self.stores:
                evaluator = self.evaluator(fn)
                with self.in_lane(evaluator, lane):
                    address = evaluator.address(self.stores[root.value], root.index)
                store_scalar(fn, root.value.dtype, total, address)

    def chunk(
        self, evaluator: Evaluator, groups: list[list[int]], stage: Stage, low: Operand, high: Operand, streams: int
    ) -> dict[tuple[Root, int | None], Scalar]:  # fmt: skip
        """Reduce [low, high) of the first group of axes, in several places at once; return what each root has there."""
        fn, expressions = evaluator.fn, [root.expression for root in stage.roots]
        sums: list[Accumulators] = [
            {(r, lane): self.accumulator(fn, r) for r in stage.roots if r.reduce for lane in self.lanes}
            for _ in range(streams)
        ]  # fmt: skip
        points = [partial(self.row_point, evaluator, stage, each, {}) for each in sums]
        if streams > 1 and self.is_stretch(stage, groups[0]):
            return self.stretch(evaluator, groups[0], stage, low, high)
        if streams == 1:
            self.nest(evaluator, groups, points[0], hoist=expressions, first=(low, high))
        else:
            part = fn.binary("udiv", fn.sub(high, low), streams)
            starts = [fn.add(low, fn.mul(part, s)) for s in range(streams)]
            self.at_once(evaluator, groups[0], starts, part, points, self.independent(self.group))
            rest = fn.add(low, fn.mul(part, streams))
            self.at_once(evaluator, groups[0], [rest], fn.sub(high, rest), points[:1], self.plain())
        return {key: self.united(fn, key[0], [read(each[key]) for each in sums]) for key in sums[0]}

    def at_once(
        self, evaluator: Evaluator, group: list[int], starts: list[Operand], count: Operand,
        points: Sequence[Callable[[], None]], metadata: str,
    ) -> None:  # fmt: skip
        """Go through stretches of merged axes side by side."""
        var = self.kernel.variables[group[-1]]
        for at in self.recorded_loop(evaluator, var, (0, count), metadata):
            for start, point in zip(starts, points, strict=True):
                with evaluator.scope():
                    self.place(evaluator, group, evaluator.fn.add(start, at))
                    point()
        for k in group:
            del evaluator.points[self.kernel.variables[k]]

    @staticmethod
    def united(fn: Function, root: Root, parts: list[Scalar]) -> Scalar:
        """Combine partial results from the left."""
        name, dtype = root.node.op.name, root.value.dtype
        return reduce(
            lambda a, b: elementwise.combine(fn, name, dtype, a, b, reassociate=False), parts
        )

    def combine_partials(self, fn: Function, root: Root, partial: Value, count: Operand) -> Scalar:
        """Combine neighbours, then neighbours of those: the order depends on the count alone."""
        name, dtype = root.node.op.name, root.value.dtype
        start = literal(start_value(name, dtype), dtype)
        if isinstance(count, int) and count <= 1:
            return load_scalar(fn, dtype, partial) if count else start
        if not isinstance(count, int):
            with fn.if_(fn.compare("eq", count, 0)):
                store_scalar(fn, dtype, start, partial)
        call_routine(fn, f"combine_{name}", dtype, partial, count)
        return load_scalar(fn, dtype, partial)

    # -- stretches of memory -----------------------------------------------------------------------------------------

    def is_stretch(self, stage: Stage, group: list[int]) -> bool:
        """Tell whether all that is reduced are elements that lie in memory one after another."""
        var = self.kernel.variables[group[-1]]
        return all(
            root.node.op.name in STRETCHES and root.expression.kind == "load"
            and root.value.dtype == root.expression.dtype and root.value.dtype.kind in "fiu"
            and root.value.dtype.itemsize >= 4 and self.step(root.expression.index, root.expression.value, var) == 1
            for root in stage.roots
        )  # fmt: skip

    def stretch(
        self, evaluator: Evaluator, group: list[int], stage: Stage, low: Operand, high: Operand
    ) -> dict[tuple[Root, int | None], Scalar]:
        """Let the library reduce elements that lie one after another."""
        fn = evaluator.fn
        found: dict[tuple[Root, int | None], Scalar] = {}
        self.place(evaluator, group, low)
        for root in stage.roots:
            e, dtype = root.expression, root.value.dtype
            address = evaluator.address(self.array_of(e), e.index)
            found[root, self.lane] = call_routine(
                fn, f"stretch_{root.node.op.name}", dtype, address, fn.sub(high, low), result=register_type(dtype)
            )  # fmt: skip
        for k in group:
            del evaluator.points[self.kernel.variables[k]]
        return found
