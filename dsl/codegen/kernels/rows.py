"""Kernels that reduce the last axis: rows are spread over threads, each is swept stage by stage, its results in registers.

A last axis that is kept but very short is unrolled into lanes, which are swept together. What a later stage reads of an earlier
one, and nobody else does, is kept for one row in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.accesses import contiguous, start_value
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.evaluate import Evaluator, literal
from dsl.codegen.expressions import Affine, Expression
from dsl.codegen.kernels.ahead import Ahead
from dsl.codegen.kernels.space import Space
from dsl.codegen.kernels.turned import ACROSS, OUTER, Turned
from dsl.codegen.llvm import Function, Operand, Value, Variable, read
from dsl.codegen.plan import Root, Stage, reads_of
from dsl.ir import graph as ir

__all__ = ["Accumulators", "Results", "Room", "Rows", "Scratch", "Temporaries"]

_STACK = 16 * 1024  # bytes of scratch on the stack; more comes from the allocator

Accumulators = dict[tuple[Root, int | None], tuple[Variable, ...]]  # by lane of an unrolled axis
Results = dict[tuple[ir.Value, int | None], Scalar]


@dataclass(frozen=True)
class Room:
    """Memory for a value between two stages: of one row at a time, or where a result will be, and indexed as that."""

    array: Array
    is_result: bool = False


Temporaries = dict[ir.Value, Room]


class Scratch:
    """Memory for one row at a time, times some columns, of several values."""

    def __init__(self, space: Space, fn: Function, width: int) -> None:
        dims = [space.host.dim(space.kernel.variables[k].extent) for k in sorted(space.inner)]
        self.fn, self.dims = fn, tuple(dims) if width == 1 else (*dims, width)
        self.pointers: list[Value] = []

    def size(self, dtype: np.dtype) -> Operand:
        size: Operand = dtype.itemsize
        for dim in self.dims:
            size = self.fn.mul(size, dim)
        return size

    def is_short(self, dtype: np.dtype) -> bool:
        """Tell whether it goes onto the stack."""
        size = self.size(dtype)
        return isinstance(size, int) and size <= _STACK

    def take(self, dtype: np.dtype) -> Room:
        fn, size = self.fn, self.size(dtype)
        if self.is_short(dtype):
            assert isinstance(size, int)
            pointer = fn.alloca(max(size, 16), 64)
        else:
            pointer = fn.call("ptr", "dsl_alloc", fn.as_value(size, "i64"))
            self.pointers.append(pointer)
        return Room(Array(dtype, pointer, self.dims, contiguous(fn, self.dims)))

    def release(self) -> None:
        for pointer in self.pointers:
            self.fn.call("void", "dsl_free", pointer)


class Rows(Turned):
    """One row after another, each in all its stages."""

    short: Value | None = None  # where threads say that they had no memory

    def rows(self) -> None:
        host = self.host.fn
        kept, swept = self.merged(self.kept), self.merged(sorted(self.inner))
        prefix = self.flat_prefix(kept)
        outer, rest = kept[:prefix], kept[prefix:]
        everything = [root.expression for root in self.kernel.roots]
        give_back = self.turn_lanes(host)

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.evaluator(fn)
            temps, release = self.temporaries(fn, 1)
            results: Results = {}
            evaluator.fetch = partial(self.row_fetch, evaluator, results, temps)
            self.hoist(evaluator, everything)
            row = partial(self.row, evaluator, swept, results, temps, Ahead(self, fn, swept))
            told = self.independent(self.group)
            with fn.loop(lo, hi, metadata=told, as_written=True) as at, evaluator.scope():
                if outer:
                    self.unflatten(evaluator, outer, at)
                self.nest(evaluator, rest, row, vector=False, hoist=everything)
            release()

        count = self.extent(host, [k for g in outer for k in g])
        self.parallel(count, self.cost(self.kernel.stages), body, rest + swept)
        self.end_if_short()
        give_back()

    def turn_lanes(self, host: Function) -> Callable[[], None]:
        """Copy what lanes read in long steps, if with that every read goes from element to element."""
        if self.lane_axis is None or len(self.inner) != 1 or self.checks:
            return lambda: None
        along, (swept,) = self.kernel.variables[self.lane_axis], self.inner
        across = self.kernel.variables[swept]
        loads = [e for stage in self.kernel.stages if not stage.per_row for e in self.loads(stage)]
        moving = [e for e in loads if not self.is_near(e, across)]
        enough = self.elements_of([[k] for k in self.kept]) >= OUTER
        long = not isinstance(across.extent, int) or across.extent >= ACROSS
        if not (enough and long and all(self.can_turn(e, along, across) for e in moving)):
            return lambda: None
        return self.turn(host, along, across)

    def row(
        self, evaluator: Evaluator, swept: list[list[int]], results: Results, temps: Temporaries,
        ahead: Ahead,
    ) -> None:  # fmt: skip
        """All stages of one row."""
        fn = evaluator.fn
        results.clear()
        with evaluator.scope():
            for number, stage in enumerate(self.kernel.stages):
                self.current = number
                if stage.per_row:
                    self.finish_rows(evaluator, stage.roots, None, results)
                    continue
                reduces = [root for root in stage.roots if root.reduce]
                accumulators = {
                    (root, lane): self.accumulator(fn, root)
                    for root in reduces
                    for lane in self.lanes
                }
                point = partial(self.row_point, evaluator, stage, accumulators, temps)
                ahead.before(number, evaluator)
                self.nest(evaluator, swept, point, hoist=[root.expression for root in stage.roots])
                ahead.after(number, evaluator)
                self.finish_rows(evaluator, reduces, accumulators, results)

    def row_point(
        self, evaluator: Evaluator, stage: Stage, accumulators: Accumulators, temps: Temporaries
    ) -> None:
        """One point of a row, in all lanes; what the lanes share is computed before."""
        if self.lane_axis is not None:
            self.hoist(evaluator, [root.expression for root in stage.roots])
        for lane in self.lanes:
            with self.in_lane(evaluator, lane):
                self.sweep(evaluator, stage, accumulators)
                for root in stage.roots:
                    if root.value in temps:
                        address = self.temp_address(evaluator, temps[root.value], root.index)
                        value = evaluator.value(root.expression)
                        store_scalar(
                            evaluator.fn, root.value.dtype, value, address, evaluator.metadata
                        )

    def sweep(self, evaluator: Evaluator, stage: Stage, accumulators: Accumulators) -> None:
        """One point of a sweep: store what is stored, add up what is reduced."""
        fn = evaluator.fn
        values = [evaluator.value(root.expression) for root in stage.roots]
        for root, value in zip(stage.roots, values):
            dtype = root.value.dtype
            if root.reduce:
                parts = accumulators[root, self.lane]
                both = elementwise.combine(
                    fn, root.node.op.name, dtype, read(parts), value, reassociate=True
                )
                for variable, part in zip(parts, both if isinstance(both, tuple) else (both,)):
                    variable.set(part)
            elif root.value in self.stores:
                address = evaluator.address(self.stores[root.value], root.index)
                store_scalar(fn, dtype, value, address, evaluator.metadata)

    def finish_rows(
        self,
        evaluator: Evaluator,
        roots: Sequence[Root],
        accumulators: Accumulators | None,
        results: Results,
    ) -> None:
        """Take what a sweep has added up, or compute what a row has once, and store it if somebody else reads it."""
        for lane in self.lanes:
            with self.in_lane(evaluator, lane):
                for root in roots:
                    value = (
                        evaluator.value(root.expression)
                        if accumulators is None
                        else read(accumulators[root, lane])
                    )
                    results[root.value, lane] = value
                    if root.value in self.stores:
                        address = evaluator.address(self.stores[root.value], root.index)
                        store_scalar(
                            evaluator.fn, root.value.dtype, value, address, evaluator.metadata
                        )

    def row_fetch(
        self, evaluator: Evaluator, results: Results, temps: Temporaries, e: Expression
    ) -> Scalar | None:
        """Return a value that this kernel itself computes from where it is, or None for others."""
        root = self.root_of(e)
        if root is None:
            axis = self.lane_axis
            return (
                None
                if axis is None
                else self.turned_fetch(evaluator, self.kernel.variables[axis], e)
            )
        if (root.value, self.lane) in results:
            return results[root.value, self.lane]
        if root.stage == self.current and e.index == root.index:
            return evaluator.value(root.expression)
        if root.value in temps:
            address = self.temp_address(evaluator, temps[root.value], e.index)
            return load_scalar(evaluator.fn, root.value.dtype, address, evaluator.metadata)
        return None

    # -- accumulators and lanes --------------------------------------------------------------------------------------

    def accumulator(self, fn: Function, root: Root) -> tuple[Variable, ...]:
        dtype = root.value.dtype
        start = literal(start_value(root.node.op.name, dtype), dtype)
        parts = start if isinstance(start, tuple) else (start,)
        made = tuple(fn.variable(part.type) for part in parts)
        for variable, part in zip(made, parts):
            variable.set(part)
        return made

    # -- scratch memory ----------------------------------------------------------------------------------------------

    def temporaries(
        self, fn: Function, width: int, given: Temporaries | None = None
    ) -> tuple[Temporaries, Callable[[], None]]:
        """Make room for one row (times `width` columns) of each value that a later stage reads and nobody else."""
        made, lent, scratch = dict(given or {}), set[ir.Value](), Scratch(self, fn, width)
        for root in self.kernel.roots:
            if root.value in made or not self.waits(root):
                continue
            found = None if scratch.is_short(root.value.dtype) else self.later_result(root)
            if found is not None and found not in lent:
                lent.add(found)  # it has something else until it is computed
                made[root.value] = Room(self.stores[found], is_result=True)
            else:
                made[root.value] = scratch.take(root.value.dtype)
        self.secure(fn, scratch.pointers)
        return made, scratch.release

    def secure(self, fn: Function, pointers: Sequence[Value]) -> None:
        """End this thread's share if memory for it cannot be had; the program ends after the others' shares."""
        if not pointers:
            return
        host = self.host.fn
        if fn is not host and self.short is None:
            self.short = host.alloca(8)
            host.store(Value("0", "i64"), self.short)
        null = Value("null", "ptr")
        missing = reduce(fn.either, [fn.compare("eq", pointer, null) for pointer in pointers])
        with fn.if_(missing, unlikely=True):
            for pointer in pointers:
                fn.call("void", "dsl_free", pointer)
            if self.short is None:
                self.host.lacks_memory()
            else:
                fn.store(Value("1", "i64"), fn.use(self.short))
                fn.ret()

    def end_if_short(self) -> None:
        """End the program if a thread could not have its memory."""
        if self.short is not None:
            host = self.host.fn
            with host.if_(host.compare("ne", host.load("i64", self.short), 0), unlikely=True):
                self.host.lacks_memory()

    def waits(self, root: Root) -> bool:
        """Tell whether a root needs memory until a later stage reads it, and nobody else does."""
        own = root.reduce or root.value in self.stores or self.kernel.stages[root.stage].per_row
        return not own and self.read_later(root)

    def later_result(self, root: Root) -> ir.Value | None:
        """Return a result of a later stage that is stored where this root could be until then: read there, and nowhere after.

        An operand of that shape, which may have given its memory to the result, must not be read any more.
        """
        later = [other for other in self.kernel.roots if other.stage > root.stage]
        loads = [(other, e) for other in later for e in reads_of(other.expression)]
        if any(e.value not in self.roots and e.value.shape == root.value.shape for _, e in loads if e.value is not None):  # fmt: skip
            return None
        reads = [(other.stage, e.index) for other, e in loads if e.value is root.value]
        for other in later:
            if (
                other.reduce
                or other.value not in self.stores
                or other.value.dtype != root.value.dtype
            ):
                continue
            if all(
                stage <= other.stage and index == root.index == other.index
                for stage, index in reads
            ):
                return other.value
        return None

    def temp_address(self, evaluator: Evaluator, room: Room, index: tuple[Affine, ...]) -> Value:
        """Return where an element of a temporary is."""
        return evaluator.address(room.array, index if room.is_result else self.temp_index(index))

    def temp_index(self, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Drop the kept axes of an index: a temporary holds one row."""
        return tuple(i for k, i in enumerate(index) if k in self.inner)
