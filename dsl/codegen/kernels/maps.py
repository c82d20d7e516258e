"""Kernels without a reduction: contiguous axes are one loop, transposing reads are tiled (see `tiles`), plain copies move whole rows.

A map that a loop applies again and again is done a block of points at a time, so that the block stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dsl.codegen.accesses import ceil_div, stride_of, walk
from dsl.codegen.arrays import store_scalar
from dsl.codegen.evaluate import Evaluator, unchecked
from dsl.codegen.expressions import Affine, Expression
from dsl.codegen.kernels.far_stores import LINE, are_far, past_caches
from dsl.codegen.kernels.tiles import Tiles
from dsl.codegen.library.lanes import word_dtype
from dsl.codegen.library.routines import call_routine
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.vector_unit import last_cache_bytes

__all__ = ["Maps"]

_FAR = 1 << 25  # bytes of an array that no cache holds, or not for long
_MANY = 1 << 15  # elements that a routine picks
_TRIPS = 64  # of a loop, made on one block of points before the next
_MOVING = 64  # points of a block that is done when none of them moves
_BLOCK_BYTES = 32 * 1024  # of such a block; results that take their operand's place count twice


Share = Callable[[Function, Operand, Operand], None]


class Maps(Tiles):
    """Every point is computed and stored by itself."""

    def maps(self) -> None:
        groups = self.merged(range(len(self.kernel.variables)))
        expressions = [root.expression for root in self.kernel.roots]
        each = self.cost(self.kernel.stages)

        def store(evaluator: Evaluator) -> Callable[[], None]:
            return partial(self.store_point, evaluator)

        index = self.picking_index(groups)
        if index is not None:
            self.pick(groups[0], index)
            return
        tile = self.tiled_axis(groups)
        if tile is not None:
            self.tiled(groups, tile, store, each)
            return
        past = bool(groups) and are_far(self, self.kernel.roots, max(_FAR, last_cache_bytes()))
        copies = self.copies_rows(groups) and not (past and len(groups) == 1)
        if len(groups) <= 1:

            def flat(fn: Function, lo: Operand, hi: Operand) -> None:
                evaluator = self.own_fetch(self.evaluator(fn))
                if copies:
                    self.copy_row(evaluator, groups[0], lo, hi)
                else:
                    self.nest(
                        evaluator, groups, store(evaluator), hoist=expressions, first=(lo, hi)
                    )

            count = self.extent(self.host.fn, groups[0]) if groups else 1
            if past:
                self.by_lines(count, each, flat)
            else:
                self.parallel(count, each, flat)
            return
        prefix = min(self.flat_prefix(groups), len(groups) - 1)
        outer, rest = groups[:prefix], groups[prefix:]

        def nested(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.own_fetch(self.evaluator(fn))
            self.hoist(evaluator, expressions)
            told = self.independent(self.group)
            with fn.loop(lo, hi, metadata=told, as_written=True) as at, evaluator.scope():
                self.unflatten(evaluator, outer, at)
                if copies:
                    row = partial(
                        self.copy_row, evaluator, groups[-1], 0, self.extent(fn, groups[-1])
                    )
                    self.nest(evaluator, rest[:-1], row, vector=False)
                else:
                    self.nest(evaluator, rest, store(evaluator), hoist=expressions)

        count = self.extent(self.host.fn, [k for g in outer for k in g])
        row = self.extent(self.host.fn, groups[-1])
        lined = past and isinstance(row, int) and row % LINE == 0
        body = self.past_caches(nested) if lined else nested
        self.parallel(count, each, body, rest)

    def store_point(self, evaluator: Evaluator) -> None:
        """Compute and store the roots at one point: all loads before all stores, they may share memory."""
        roots = list(self.kernel.roots)
        values = [evaluator.value(root.expression) for root in roots]
        for root, value in zip(roots, values):
            if root.value in self.stores:
                address = evaluator.address(self.stores[root.value], root.index)
                store_scalar(evaluator.fn, root.value.dtype, value, address, evaluator.metadata)

    # -- what no cache holds -----------------------------------------------------------------------------------------

    def past_caches(self, body: Share) -> Share:
        """Let the stores of a share of the work go past the caches."""

        def share(fn: Function, low: Operand, high: Operand) -> None:
            with past_caches(self, fn):
                body(fn, low, high)

        return share

    def by_lines(self, count: Operand, each: float, body: Share) -> None:
        """Run a loop past the caches; shares of threads start with a line."""

        def share(fn: Function, low: Operand, high: Operand) -> None:
            body(fn, fn.mul(low, LINE), fn.minimum(fn.mul(high, LINE), count))

        lines = ceil_div(self.host.fn, count, LINE)
        self.parallel(lines, each * LINE, self.past_caches(share))

    # -- elements that are picked ------------------------------------------------------------------------------------

    def picking_index(self, groups: list[list[int]]) -> Expression | None:
        """Return the load of an index array if the kernel but picks many elements of a row by it, all in one stride."""
        root, *others = self.kernel.roots
        e, target = root.expression, self.stores.get(root.value)
        if others or len(groups) != 1 or target is None or self.flag is None or self.module.device:
            return None
        last = self.kernel.variables[groups[0][-1]]
        count = self.extent(self.host.fn, groups[0])
        if e.kind != "load" or self.is_own(e) or (isinstance(count, int) and count < _MANY):
            return None
        index = _only_index(e)
        if index is None or self.is_own(index) or self.array_of(e).strides != (1,):
            return None
        reads = stride_of(index.index, self.array_of(index), last)
        return index if (reads, stride_of(root.index, target, last)) == (1, 1) else None

    def pick(self, group: list[int], index: Expression) -> None:
        """Call the routine that moves elements of their size."""
        fn, (root,) = self.host.fn, self.kernel.roots
        e, evaluator = root.expression, Evaluator(self.host.fn, self.host, {}, [{}], unchecked)
        self.place(evaluator, group, 0)
        count = self.extent(fn, group)
        pointers = (
            self.array_of(e).pointer,
            evaluator.address(self.array_of(index), index.index),
            evaluator.address(self.stores[root.value], root.index),
        )
        assert self.flag is not None
        self.module.is_long |= not isinstance(count, int) or count >= _MANY
        kind = word_dtype(e.dtype)
        call_routine(fn, "gather", kind, *pointers, self.array_of(e).dims[0], count, self.flag)

    # -- copies -----------------------------------------------------------------------------------------------------

    def copies_rows(self, groups: list[list[int]]) -> bool:
        """Tell whether the kernel only moves stretches of memory that are not too short."""
        roots = list(self.kernel.roots)
        if (
            len(roots) != 1
            or not groups
            or roots[0].expression.kind != "load"
            or self.elements_of(groups[-1:]) < 16
        ):
            return False
        (root,) = roots
        e, last = root.expression, self.kernel.variables[groups[-1][-1]]
        source, target = self.array_of(e), self.stores.get(root.value)
        if target is None or any(i.extra and last in i.vars for i in e.index):
            return False
        return bool(
            stride_of(e.index, source, last) == 1 and stride_of(root.index, target, last) == 1
        )

    def copy_row(self, evaluator: Evaluator, group: list[int], lo: Operand, hi: Operand) -> None:
        """Copy a stretch of memory."""
        fn = evaluator.fn
        (root,) = self.kernel.roots
        e = root.expression
        self.place(evaluator, group, lo)
        target = evaluator.address(self.stores[root.value], root.index)
        source = evaluator.address(self.array_of(e), e.index)
        size = fn.maximum(fn.mul(fn.sub(hi, lo), root.value.dtype.itemsize), 0)
        fn.call(
            "void",
            "llvm.memmove.p0.p0.i64",
            target,
            source,
            fn.as_value(size, "i64"),
            Value("false", "i1"),
        )
        for k in group:
            del evaluator.points[self.kernel.variables[k]]

    def some_rows(self, fn: Function, ends: tuple[Operand, Operand] | None) -> None:
        """Emit the points between two places of the first axis, or all, in a function that has its own threads."""
        self.group = self.new_group()
        evaluator = self.own_fetch(self.evaluator(fn))
        expressions = [root.expression for root in self.kernel.roots]
        store = partial(self.store_point, evaluator)
        axes = range(1 if ends is not None else 0, len(self.kernel.variables))
        groups = self.merged(axes)
        if ends is None or not groups:
            self.nest(evaluator, groups or [[0]], store, hoist=expressions, first=ends)
            return
        self.hoist(evaluator, expressions)
        told = self.independent(self.group)
        with fn.loop(*ends, metadata=told, as_written=True) as at, evaluator.scope():
            self.place(evaluator, [0], at)
            self.nest(evaluator, groups, store, hoist=expressions)

    # -- maps that are repeated --------------------------------------------------------------------------------------

    def is_flat(self, points: int) -> bool:
        """Tell whether the kernel is one loop over at least so many points, as far as is known."""
        groups = self.merged(range(len(self.kernel.variables)))
        return len(groups) == 1 and self.elements_of(groups) >= points

    def repeat(
        self, trips: Value, start: Callable[[Value], None], finish: Callable[[], None], moving: Expression | None
    ) -> None:  # fmt: skip
        """Apply a flat map again and again, a block of points at a time.

        `start` is told the number of each trip; `finish` is called in the program after a share of the trips. Where
        `moving` is false, no later trip changes anything: a block of such points is done.
        """
        host, self.group = self.host.fn, self.new_group()
        (group,) = self.merged(range(len(self.kernel.variables)))
        count, block = self.extent(host, group), self.block() if moving is None else _MOVING

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.own_fetch(self.evaluator(fn))
            trip, end = fn.variable("i64"), fn.use(last)
            with fn.loop(lo, hi) as at:
                low = fn.mul(at, block)
                high = fn.minimum(fn.add(low, block), count)
                trip.set(fn.use(first))
                with fn.while_(lambda: fn.compare("slt", trip.get(), end)), evaluator.scope():
                    start(trip.get())
                    done = self.trip(evaluator, group, (low, high), moving)
                    trip.set(fn.select(done, end, fn.add(trip.get(), 1)))

        with host.loop(0, trips, _TRIPS) as first:
            last = host.as_value(host.minimum(host.add(first, _TRIPS), trips), "i64")
            work = self.cost(self.kernel.stages) * block * _TRIPS
            self.parallel(ceil_div(host, count, block), work, body)
            finish()

    def trip(
        self, evaluator: Evaluator, group: list[int], ends: tuple[Operand, Operand], moving: Expression | None
    ) -> Value:  # fmt: skip
        """Apply a map to a block of points once; return whether no further trip changes it."""
        fn = evaluator.fn
        any_moves = fn.variable("i1", Value("false", "i1"))

        def point() -> None:
            self.store_point(evaluator)
            if moving is not None:
                moves = evaluator.value(moving)
                assert isinstance(moves, Value)
                any_moves.set(fn.either(any_moves.get(), moves))

        expressions = [root.expression for root in self.kernel.roots]
        self.nest(evaluator, [group], point, hoist=expressions, first=ends)
        return Value("false", "i1") if moving is None else fn.invert(any_moves.get())

    def block(self) -> int:
        """Return for how many points all arrays of a map fit into half of the first cache."""
        loads = {e.value for r in self.kernel.roots for e in walk(r.expression) if e.kind == "load"}
        values = {*loads, *self.stores} - {None}
        size = sum(value.dtype.itemsize for value in values if value is not None)
        return max(64, _BLOCK_BYTES // size // 64 * 64)


def _only_index(e: Expression) -> Expression | None:
    """Return the load of the index that alone tells what a load reads from a row, if it is checked."""
    places = [(item, scale) for affine in e.index for item, scale in affine.extra]
    if len(e.index) != 1 or len(places) != 1 or e.index != (Affine((), 0, tuple(places)),):
        return None
    ((picked, scale),) = places
    if scale != 1 or picked.kind != "checked":
        return None
    (index,) = picked.args
    return index if index.kind == "load" and index.dtype == np.int64 else None
