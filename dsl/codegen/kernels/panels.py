"""Kernels that reduce an axis before the last: panels of some columns are spread over threads.

A row's results are short vectors in scratch memory, and the innermost loop goes over the columns of a panel.

So are last axes that are reduced, if there are many short ones and what is read goes from element to element across them, as in sums over
windows, `sliding_window_view(x, 20).mean(axis=1)`, and over a few points for each of many, `(x[:, None] < y).sum(axis=1)`. Vectors along
such an axis would be added up to a number too often: 2 to 10 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.accesses import ceil_div, is_costly, start_value, walk
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.elementwise.reals import MATH
from dsl.codegen.evaluate import literal
from dsl.codegen.expressions import Affine, Expression, identity_index
from dsl.codegen.kernels.far_stores import LINE, are_far, past_caches
from dsl.codegen.kernels.rows import Room, Rows, Scratch, Temporaries
from dsl.codegen.kernels.vectors import fits_registers
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.plan import Root, Stage
from dsl.codegen.vector_unit import last_cache_bytes, register_bytes
from dsl.ir import graph as ir
from dsl.ir.types import size_of

__all__ = ["Panels"]

_TILE = 512  # columns of a panel: narrow ones touch a page for a few cache lines
_COPY = 1 << 21  # bytes of one that is copied by the first sweep
_NEAR, _HELD = 1 << 20, 1 << 26  # bytes of arrays that a near cache and the last one hold
_FAR = (
    1 << 24
)  # bytes of a result that is written past the caches, if they are half of the last one at least
_FEW = 16  # columns of a panel that LLVM must not unroll
_OUTER = (
    16.0  # points of the loops around that threads can share: then a panel may have all columns
)
_ROWS = 4  # that are added up at a time
_UNROLLED = 9, 36  # points of a last axis, and of all that are reduced, which LLVM unrolls
_LONG = 256  # points that are reduced for which vectors along them are as good
_COLUMNS = 64  # for which vectors are worth it


class Panels(Rows):
    """Panels side by side."""

    def goes_by_columns(self) -> bool:
        """Tell whether last axes that are reduced are short, and so many that vectors better go across them."""
        if not self.kept or self.checks or self.keeps_rows():
            return False
        return self.has_many_columns() and self.is_long_enough() and self.is_read_across()

    def has_many_columns(self) -> bool:
        across = self.last_kept()
        columns = size_of(tuple(self.kernel.variables[k].extent for k in across))
        return not isinstance(columns, int) or columns >= _COLUMNS

    def is_long_enough(self) -> bool:
        """Tell whether an axis is too long to be unrolled, or has functions, which are called for vectors, and not too long."""
        *_, last = extents = [self.kernel.variables[k].extent for k in sorted(self.inner)]
        size = size_of(tuple(extents))
        if not isinstance(size, int) or not isinstance(last, int) or not 1 < size <= _LONG:
            return False
        return last > _UNROLLED[0] or size > _UNROLLED[1] or self.has_functions()

    def has_functions(self) -> bool:
        ops = [e for stage in self.kernel.stages for r in stage.roots for e in walk(r.expression)]
        return any(e.node is not None and e.node.op.name in MATH for e in ops)

    def is_read_across(self) -> bool:
        """Tell whether stages reduce alone or are done once for each row, and read nothing in long steps in a sweep."""
        across = self.kernel.variables[self.last_kept()[-1]]
        swept = {self.kernel.variables[k] for k in self.inner}
        return all(
            stage.per_row
            or (
                all(root.reduce for root in stage.roots)
                and all(self.is_near(e, across) for e in self.loads(stage) if e.vars & swept)
            )
            for stage in self.kernel.stages
        )

    def panels(self) -> None:
        host = self.host.fn
        across = self.last_kept()
        columns = self.extent(host, across)
        tile = self.tile()
        outer = [[k] for k in self.kept if k not in across]
        if isinstance(columns, int) and columns < 2 * tile:  # two panels, if they are worth it
            alone = columns < 128 or (columns <= tile and self.elements_of(outer) >= _OUTER)
            tile = columns if alone else -(-columns // 128) * 64
        panels = ceil_div(host, columns, tile)
        swept = self.merged(sorted(self.inner))
        rest: Operand = 1
        for group in outer:
            rest = host.mul(rest, self.extent(host, group))

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            panel = Panel(self, fn, tile, swept)
            evaluator = panel.evaluator
            with fn.loop(lo, hi, as_written=True) as at, evaluator.scope():
                if outer:
                    self.unflatten(evaluator, outer, fn.binary("udiv", at, panels))
                    at = fn.binary("urem", at, panels)
                panel.left = fn.as_value(fn.mul(at, tile), "i64")
                panel.width = (
                    tile
                    if isinstance(columns, int) and columns % tile == 0
                    else fn.minimum(tile, fn.sub(columns, panel.left))
                )
                panel.run()
            panel.release()

        work = self.cost(self.kernel.stages) * tile
        self.parallel(host.mul(panels, rest), work, body, swept)
        self.end_if_short()

    def tile(self) -> int:
        """Return how many columns a panel has: few enough that a copy of it is near when it is swept again, if that can be.

        Narrow panels of long columns touch a page for each few lines, which costs more than what the caches no longer hold.
        """
        sweeps = sum(not stage.per_row for stage in self.kernel.stages)
        if sweeps == 1 or not self.read_again():
            return _TILE
        widest = max(root.value.dtype.itemsize for root in self.kernel.roots)
        column = self.elements_of([sorted(self.inner)]) * widest
        return max(_TILE // 2, min(_TILE, int(_COPY / max(column, 1)) // 64 * 64))

    def read_again(self) -> dict[Expression, list[int]]:
        """Return the loads of operands' elements, each at its own point, that the first of several sweeps copies, and these sweeps.

        Rows of a panel that are as far apart as a power of two share a few sets of the caches; the copy's follow one another. That
        is worth it if another value takes the copy's place, or if no cache holds the array.
        """
        found: dict[Expression, list[int]] = {}
        whole = identity_index(self.kernel.variables)
        for number, stage in enumerate(self.kernel.stages):
            for e in {e for root in stage.roots for e in walk(root.expression)}:
                if e.kind == "load" and e.value not in self.roots and e.index == whole:
                    found.setdefault(e, []).append(number)
        size = self.elements_of([[k] for k in range(len(self.kernel.variables))])
        return {
            e: sweeps
            for e, sweeps in found.items()
            if len(sweeps) > 1
            and size * e.dtype.itemsize > (_NEAR if self.follower(e, sweeps) else _HELD)
        }

    def follower(self, e: Expression, sweeps: list[int]) -> Root | None:
        """Return a value that waits for a later stage where the copy of what a load reads was, which it is the last to be computed from."""
        for root in self.kernel.roots:
            alike = e.dtype == root.value.dtype and e.index == root.index
            if alike and sweeps[-1] == root.stage and self.waits(root):
                return root
        return None


class Panel:
    """Emits the stages over one panel of columns."""

    def __init__(self, kernel: Panels, fn: Function, tile: int, swept: list[list[int]]) -> None:
        self.k, self.fn, self.tile, self.swept = kernel, fn, tile, swept
        self.evaluator = kernel.evaluator(fn)
        self.evaluator.fetch = self.fetch
        *before, self.last = (kernel.kernel.variables[k] for k in kernel.last_kept())
        self.evaluator.points.update(
            dict.fromkeys(before, 0)
        )  # the last one carries the place of all
        self.scratch = Scratch(kernel, fn, tile)
        self.sweeps = kernel.read_again()
        self.copies = {e: self.scratch.take(e.dtype) for e in self.sweeps}
        kernel.secure(fn, self.scratch.pointers)
        self.temps, self.free_temps = kernel.temporaries(fn, tile, self.after_copies())
        self.vectors: dict[Any, Array] = {}
        for root in kernel.kernel.roots:
            if root.reduce or kernel.kernel.stages[root.stage].per_row:
                self.vectors[root.value] = self.vector(root.value.dtype)
        self.left: Operand = 0
        self.width: Operand = tile
        self.column: Operand = 0

    def release(self) -> None:
        self.free_temps()
        self.scratch.release()

    def after_copies(self) -> Temporaries:
        """Return the values that take the place of a copy."""
        pairs = [(self.k.follower(e, self.sweeps[e]), room) for e, room in self.copies.items()]
        return {root.value: room for root, room in pairs if root is not None}

    def vector(self, dtype: np.dtype) -> Array:
        pointer = self.fn.alloca(max(16, self.tile * dtype.itemsize), 64)
        return Array(dtype, pointer, (self.tile,), (1,))

    def columns(self, body: Callable[[], None], *, hoist: Sequence[Expression] = ()) -> None:
        """Loop over the columns of the panel, vectorised."""
        k, fn, evaluator = self.k, self.fn, self.evaluator
        group = k.new_group()
        accesses = k.module.metadata(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
        plain = k.module.metadata(f"distinct !{{%self, {accesses}{self.unrolling()}}}")
        k.hoist(evaluator, hoist)
        with k.accessing(evaluator, group):
            for at in k.vector_loops(evaluator, self.last, (0, self.width), group, plain):
                self.column = at
                evaluator.points[self.last] = fn.add(self.left, at)
                body()
        del evaluator.points[self.last]

    def unrolling(self) -> str:
        """Keep LLVM from unrolling a few columns, to vectorise the rows around them instead: such code is long and slow."""
        if not isinstance(self.width, int) or self.width > _FEW:
            return ""
        once = self.k.module.metadata('!{!"llvm.loop.unroll.disable"}')
        return f", {once}"

    def run(self) -> None:
        for number, stage in enumerate(self.k.kernel.stages):
            self.k.current = number
            if stage.per_row:
                self.columns(partial(self.per_row, stage))
            else:
                self.full(stage)

    def per_row(self, stage: Stage) -> None:
        for root in stage.roots:
            value = self.evaluator.value(root.expression)
            self.put(self.vectors[root.value], value)
            self.store(root, value)

    def put(self, vector: Array, value: Scalar) -> None:
        store_scalar(
            self.fn,
            vector.dtype,
            value,
            vector.address(self.fn, (self.column,)),
            self.evaluator.metadata,
        )

    def take(self, vector: Array) -> Scalar:
        return load_scalar(
            self.fn, vector.dtype, vector.address(self.fn, (self.column,)), self.evaluator.metadata
        )

    def store(self, root: Root, value: Scalar) -> None:
        if root.value in self.k.stores:
            address = self.evaluator.address(self.k.stores[root.value], root.index)
            store_scalar(self.fn, root.value.dtype, value, address, self.evaluator.metadata)

    def full(self, stage: Stage) -> None:
        reduces = [root for root in stage.roots if root.reduce]
        expressions = [root.expression for root in stage.roots]
        everything = [e for expression in expressions for e in walk(expression)]
        ready = self.precompute(stage)
        if reduces:
            self.columns(partial(self.start, reduces))
        if reduces and not any(e.node is not None and e.node.op.name in MATH for e in everything):
            blocks = partial(self.blocks, stage, ready)
            self.k.nest(self.evaluator, self.swept[:-1], blocks, vector=False, hoist=expressions)
        else:
            row = partial(self.points, stage, ready, [None])
            with past_caches(self.k, self.fn) if self.is_far(stage) else nullcontext():
                self.k.nest(
                    self.evaluator, self.swept, lambda: self.columns(row, hoist=expressions),
                    vector=False, hoist=expressions,
                )  # fmt: skip
        if any(root.value in self.k.stores for root in reduces):
            self.columns(partial(self.store_vectors, reduces))

    def is_far(self, stage: Stage) -> bool:
        """Tell whether a sweep does nothing but write large results, by whole lines: rows of a panel are far from each other."""
        copies = any(sweeps[0] == self.k.current for sweeps in self.sweeps.values())
        if copies or any(r.reduce or r.value in self.temps for r in stage.roots):
            return False
        lined = all(
            isinstance(n := r.value.shape[-1], int) and n * r.value.dtype.itemsize % LINE == 0
            for r in stage.roots
        )
        return lined and are_far(self.k, stage.roots, max(_FAR, last_cache_bytes() // 2))

    def store_vectors(self, reduces: list[Root]) -> None:
        for root in reduces:
            self.store(root, self.take(self.vectors[root.value]))

    def put_all(self, found: dict[Expression, Array]) -> None:
        for e, vector in found.items():
            self.put(vector, self.evaluator.value(e))

    def start(self, reduces: list[Root]) -> None:
        for root in reduces:
            dtype = root.value.dtype
            self.put(
                self.vectors[root.value], literal(start_value(root.node.op.name, dtype), dtype)
            )

    def precompute(self, stage: Stage) -> dict[Expression, Array]:
        """Compute what is expensive and depends on the column alone before the sweep, not for each row of it."""
        kept = {self.k.kernel.variables[a] for a in self.k.kept}
        found: dict[Expression, Array] = {}
        pending = [root.expression for root in stage.roots]
        seen: set[Expression] = set()
        while pending:
            e = pending.pop()
            if e in seen:
                continue
            seen.add(e)
            if (
                e.kind == "op"
                and e.vars
                and e.vars <= kept
                and self.last in e.vars
                and is_costly(e)
            ):
                found[e] = self.vector(e.dtype)
                continue
            pending.extend(e.args)
        if found:
            self.columns(partial(self.put_all, found))
        return found

    def blocks(self, stage: Stage, ready: dict[Expression, Array]) -> None:
        """Take some rows at a time: what is added up is loaded and stored once for all of them, if it is not in registers."""
        fn, evaluator, group = self.fn, self.evaluator, self.swept[-1]
        rows, widest = self.k.extent(fn, group), max(r.value.dtype.itemsize for r in stage.roots)
        many = 1 if fits_registers(self.width, register_bytes() // widest) else _ROWS
        whole = fn.masked(rows, -many)
        for low, high, count in ((0, whole, many), (whole, rows, 1)):
            if low == high:
                continue
            with fn.loop(low, high, count, as_written=True) as first, evaluator.scope():
                places = [fn.add(first, k) for k in range(count)]
                self.columns(partial(self.points, stage, ready, places))
        for k in group:
            evaluator.points.pop(self.k.kernel.variables[k], None)

    def points(
        self, stage: Stage, ready: dict[Expression, Array], rows: Sequence[Operand | None]
    ) -> None:
        """Compute a column of the panel in some rows, or in the one that the loops around are at."""
        sums: dict[ir.Value, Scalar] = {}
        for row in rows:
            with self.evaluator.scope():
                if row is not None:
                    self.k.place(self.evaluator, self.swept[-1], row)
                self.point(stage, ready, sums)
        for value, total in sums.items():
            self.put(self.vectors[value], total)

    def point(
        self, stage: Stage, ready: dict[Expression, Array], sums: dict[ir.Value, Scalar]
    ) -> None:
        evaluator, fn = self.evaluator, self.fn
        for e, vector in ready.items():
            evaluator.scopes[-1][e] = self.take(vector)
        values = [evaluator.value(root.expression) for root in stage.roots]
        for e, room in self.copies.items():
            if self.sweeps[e][0] == self.k.current:
                address = self.temp_address(room, e.index)
                store_scalar(fn, e.dtype, evaluator.value(e), address, evaluator.metadata)
        for root, value in zip(stage.roots, values):
            if root.reduce:
                vector = self.vectors[root.value]
                before = sums[root.value] if root.value in sums else self.take(vector)
                sums[root.value] = elementwise.combine(
                    fn, root.node.op.name, vector.dtype, before, value, reassociate=True
                )
                continue
            self.store(root, value)
            if root.value in self.temps:
                address = self.temp_address(self.temps[root.value], root.index)
                store_scalar(fn, root.value.dtype, value, address, evaluator.metadata)

    def temp_address(self, room: Room, index: tuple[Affine, ...]) -> Value:
        """Return where an element of a temporary is."""
        place = index if room.is_result else self.temp_index(index)
        return self.evaluator.address(room.array, place)

    def temp_index(self, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        here = Expression("column", np.dtype(np.int64))
        self.evaluator.scopes[-1][here] = self.fn.as_value(self.column, "i64")
        return self.k.temp_index(index) + (Affine((), 0, ((here, 1),)),)

    def fetch(self, e: Expression) -> Scalar | None:
        root = self.k.root_of(e)
        if root is None:
            if e not in self.copies or self.sweeps[e][0] == self.k.current:
                return None
            address = self.temp_address(self.copies[e], e.index)
            return load_scalar(self.fn, e.dtype, address, self.evaluator.metadata)
        if root.value in self.vectors:
            return self.take(self.vectors[root.value])
        if root.stage == self.k.current and e.index == root.index:
            return self.evaluator.value(root.expression)
        if root.value in self.temps:
            address = self.temp_address(self.temps[root.value], e.index)
            return load_scalar(self.fn, root.value.dtype, address, self.evaluator.metadata)
        return None
