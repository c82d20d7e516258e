"""Emits kernels: loop nests over an iteration space, vectorised inside and spread over threads outside.

Four shapes, chosen by which axes are reduced:
- maps: no reduction; contiguous axes are merged into one loop, transposing reads are tiled;
- split: everything is reduced; fixed-size chunks give partial results, which are combined pairwise;
- rows: the last axis is reduced; rows are spread over threads, each row is swept stage by stage with its results in
  registers;
- panels: the last axis is kept; panels of some columns are spread over threads, and a row's results are short vectors.

Chunks and panels depend on sizes alone, so the result has the same bits for any number of threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Protocol

from dsl.codegen import elementwise
from dsl.codegen.accesses import ceil_div, contiguous, read_again, start_value, stride_of, walk
from dsl.codegen.ahead import Ahead
from dsl.codegen.arrays import Array, Scalar, load_scalar, register_type, store_scalar
from dsl.codegen.elementwise.reals import MATH
from dsl.codegen.evaluate import Evaluator, Host, literal
from dsl.codegen.expressions import Affine, Expression, Var
from dsl.codegen.library.partials import STRETCHES
from dsl.codegen.library.routines import call_routine
from dsl.codegen.llvm import Function, Lanes, Operand, Value, Variable, read
from dsl.codegen.panels import Panel
from dsl.codegen.plan import Kernel, Root, Stage, is_checked, reads_of
from dsl.codegen.vector_unit import register_bytes
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import size_of

__all__ = ["KernelEmitter", "KernelHost", "read_again", "start_value"]

_TILE = 512  # columns of a panel: narrow ones touch a page for a few cache lines
_PANEL = 1 << 21  # bytes of a panel that is swept several times: a share of the last cache
_LANES = 8  # points of a last axis that is unrolled
_BLOCK = 32  # side of a tile when a transposed array is read
_CHUNK = 4096  # elements that one partial result covers, at least
_CHUNKS = 512  # partial results, at most
_TRIPS = 64  # of a loop, made on one block of points before the next
_MOVING = 64  # points of a block that is done when none of them moves
_BLOCK_BYTES = 32 * 1024  # of such a block; results that take their operand's place count twice
_STREAMS = 4  # places of a chunk that are read at once: memory gives a third more than for one
_STACK = 16 * 1024  # bytes of scratch on the stack; more comes from the allocator
_SIDE_BY_SIDE = {2: 128, 4: 512}  # iterations of a loop that may work on as many vectors at once
_FEW = 3  # elementary functions of a loop that works on four vectors at once
_REGISTERS = 4  # that a call of an elementary function fills
_SHORT = 16  # iterations of a loop that is left to be unrolled
_NANOSECONDS = 20_000.0  # work that is worth a thread


Accumulators = dict[tuple[Root, int | None], tuple[Variable, ...]]  # by lane of an unrolled axis
Results = dict[tuple[ir.Value, int | None], Scalar]
Temporaries = dict[ir.Value, Array]


class KernelHost(Host, Protocol):
    """What a kernel asks its program."""

    fn: Function

    def set_register(self, value: ir.Value, scalar: Scalar) -> None: ...

    def fail_expression(
        self, fn: Function, bad: Value, expression: Expression, number: Value
    ) -> None: ...


class KernelEmitter:
    """Emits one kernel. `stores` holds the memory of roots that others read; the other roots stay inside."""

    def __init__(self, host: KernelHost, kernel: Kernel, stores: dict[ir.Value, Array]) -> None:
        self.host, self.kernel, self.stores = host, kernel, stores
        self.module = host.fn.module
        self.roots = {root.value: root for root in kernel.roots}
        self.inner = kernel.inner or frozenset()
        self.kept = [k for k in range(len(kernel.variables)) if k not in self.inner]
        ops = [e for r in kernel.roots for e in walk(r.expression)]
        self.checks = any(is_checked(e) for e in ops)
        deep = {e for e in ops if e.node is not None and e.node.op.name in MATH}
        self.side_by_side = 1 if not deep else 4 if len(deep) <= _FEW else 2
        self.flag: Value | None = None
        self.bad: dict[Function, Variable] = {}
        self.current = 0  # the stage that is emitted
        self.group = ""  # of all memory accesses, if every loop's iterations are independent
        self.lane: int | None = None
        self.lanes: list[int | None] = [None]
        self.lane_axis = self.short_axis()
        if self.lane_axis is not None:
            self.kept.remove(self.lane_axis)
            self.lanes = list(range(self.kernel.variables[self.lane_axis].extent))  # type: ignore[arg-type]

    def emit(self) -> None:
        """Emit the kernel and, if it reads through index arrays, what happens when an index is wrong."""
        before, self.host.fn.lanes = self.host.fn.lanes, ()
        self.emit_loops()
        self.host.fn.lanes = before

    def emit_loops(self) -> None:
        if self.checks:
            self.flag = self.host.fn.alloca(8)
            self.host.fn.store(Value("0", "i64"), self.flag)
        by_row = self.lane_axis is not None or len(self.kernel.variables) - 1 in self.inner
        if not self.inner or self.is_split() or (by_row and not self.keeps_rows()):
            self.group = self.new_group()
        if not self.inner:
            self.maps()
        elif self.is_split():
            self.split()
        elif by_row:
            self.rows()
        else:
            self.panels()
        if self.flag is not None:
            wrong = self.host.fn.compare("ne", self.host.fn.load("i64", self.flag), 0)
            with self.host.fn.if_(wrong, unlikely=True):
                self.find_error()

    def short_axis(self) -> int | None:
        """Return the last axis if it is kept and so short that it is better unrolled: three coordinates, say."""
        last = len(self.kernel.variables) - 1
        if not self.inner or last in self.inner or self.keeps_rows():
            return None
        extent = self.kernel.variables[last].extent
        return last if isinstance(extent, int) and extent <= _LANES else None

    def keeps_rows(self) -> bool:
        """Tell whether some value is kept for a row while later stages read it."""
        return any(
            not root.reduce and root.value not in self.stores and not self.kernel.stages[root.stage].per_row
            and self.read_later(root)
            for root in self.kernel.roots
        )  # fmt: skip

    # -- parts that all shapes use -----------------------------------------------------------------------------------

    def evaluator(self, fn: Function) -> Evaluator:
        """An evaluator that remembers whether some index was wrong and goes on with another one."""
        metadata = f", !llvm.access.group {self.group}" if self.group else ""
        if self.flag is None:
            return Evaluator(fn, self.host, {}, [{}], _no_checks, metadata)

        def remember(bad: Value, e: Expression, number: Value) -> None:
            variable = self.bad_variable(fn)
            variable.set(fn.either(variable.get(), bad))

        return Evaluator(fn, self.host, {}, [{}], remember, metadata)

    def bad_variable(self, fn: Function) -> Variable:
        """The variable of a function that is true once an index was wrong."""
        if fn not in self.bad:
            self.bad[fn] = fn.variable("i1")
            fn.at_entry(f"store i1 false, ptr {self.bad[fn].address.text}")
        return self.bad[fn]

    def finish_checks(self, fn: Function) -> None:
        """Tell the program, after this thread's share, that an index was wrong."""
        if self.flag is None:
            return
        with fn.if_(self.bad_variable(fn).get(), unlikely=True):
            fn.store(Value("1", "i64"), fn.use(self.flag))

    def find_error(self) -> None:
        """Go through each index array in order until the first wrong index, and fail there.

        Arrays are looked at in the order in which NumPy would: operands from the left, then axis by axis.
        """
        fn = self.host.fn

        def stop(bad: Value, e: Expression, number: Value) -> None:
            self.host.fail_expression(fn, bad, e, number)

        evaluator = Evaluator(fn, self.host, {}, [{}], stop)
        evaluator.fetch = lambda e: self._refetch(evaluator, e)
        checked = [
            e
            for r in self.kernel.roots
            for e in reversed(list(walk(r.expression)))
            if is_checked(e)
        ]
        order = {id(e.node): k for k, e in reversed(list(enumerate(checked)))}
        groups = [[k] for k in range(len(self.kernel.variables))]
        for e in sorted(checked, key=lambda e: (order[id(e.node)], e.output)):
            self.nest(evaluator, groups, partial(evaluator.compute, e), vector=False)

    def _refetch(self, evaluator: Evaluator, e: Expression) -> Scalar | None:
        root = self.roots.get(e.value)  # type: ignore[arg-type]
        if root is None or e.value in self.stores:
            return None
        return evaluator.value(root.expression) if not root.reduce else None

    def extent(self, fn: Function, group: Sequence[int]) -> Operand:
        total: DimLike = 1
        for k in group:
            total = total * self.kernel.variables[k].extent
        found = self.host.dim(total)
        return fn.use(found) if isinstance(found, Value) else found

    def place(self, evaluator: Evaluator, group: Sequence[int], at: Operand) -> None:
        """Put merged axes at a position: the last one carries it, see `merged`."""
        for k in group[:-1]:
            evaluator.points[self.kernel.variables[k]] = 0
        evaluator.points[self.kernel.variables[group[-1]]] = at

    def nest(
        self, evaluator: Evaluator, groups: Sequence[Sequence[int]], body: Callable[[], None], *,
        vector: bool = True, hoist: Sequence[Expression] = (), first: tuple[Operand, Operand] | None = None,
    ) -> None:  # fmt: skip
        """Open a loop for each group of merged axes; the innermost is told to LLVM as free of dependences."""
        fn = evaluator.fn
        if not groups:
            body()
            return
        last = len(groups) == 1
        group = self.group or (self.new_group() if last and vector else "")
        self.hoist(evaluator, hoist)
        low, high = first or (0, self.extent(fn, groups[0]))
        extent = high if first is None else -1
        if last and vector:
            inner = self.kernel.variables[groups[0][-1]]
            with self.accessing(evaluator, group):
                plain = self.independent(group, extent)
                for at in self.vector_loops(evaluator, inner, (low, high), group, plain):
                    self.place(evaluator, groups[0], at)
                    body()
        else:
            loop = fn.loop(low, high, metadata=self.independent(group, extent))
            with loop as at, evaluator.scope(), self.accessing(evaluator, group):
                self.place(evaluator, groups[0], at)
                self.nest(evaluator, groups[1:], body, vector=vector, hoist=hoist)
        for k in groups[0]:
            del evaluator.points[self.kernel.variables[k]]

    @staticmethod
    @contextlib.contextmanager
    def accessing(evaluator: Evaluator, group: str) -> Iterator[None]:
        """Let memory accesses belong to a group, if there is one."""
        before = evaluator.metadata
        if group:
            evaluator.metadata = f", !llvm.access.group {group}"
        yield
        evaluator.metadata = before

    def vector_loops(
        self, evaluator: Evaluator, var: Var, ends: tuple[Operand, Operand], group: str, otherwise: str
    ) -> Iterator[Value]:  # fmt: skip
        """Open, one after the other, the loops that together go from one end to the other; yield where each is.

        A loop that calls elementary functions is told how many elements to take at a time: as many as fill the four
        registers that a routine of the library takes. What remains is done a register at a time. Other loops are left
        to LLVM, with other metadata; it may call the routines for one register. In short ones functions are inlined.
        """
        fn = evaluator.fn
        for low, high, lanes in self.stretches(fn, var, *ends):
            told = lanes is not None and len(lanes) == 1
            metadata = self.in_step(group, lanes[0]) if told else otherwise  # type: ignore[index]
            before, fn.lanes = fn.lanes, lanes
            with fn.loop(low, high, metadata=metadata) as at, evaluator.scope():
                yield at
            fn.lanes = before

    def stretches(
        self, fn: Function, var: Var, low: Operand, high: Operand
    ) -> Iterator[tuple[Operand, Operand, Lanes]]:
        """Yield where the loops along a variable start and end, and for how many elements each may call routines."""
        one, extent = self.elements_at_once(var), fn.sub(high, low)
        many = _REGISTERS * one
        if isinstance(extent, int) and extent < max(many, _SHORT):
            yield low, high, None
        elif not one:
            yield low, high, (register_bytes() // 8, register_bytes() // 4)
        elif isinstance(low, Value) and not self.inner:  # a thread's share: what remains is little
            yield low, high, (many,)
        else:
            middle = fn.add(low, fn.masked(extent, -many))
            yield low, middle, (many,)
            if middle != high:
                yield middle, high, (one,)

    def elements_at_once(self, var: Var) -> int:
        """Return how many elements fill a register in a loop that calls functions and reads elements close together.

        Zero if it does not: long strides and reads through index arrays are left to LLVM to weigh up.
        """
        roots = list(self.kernel.stages[self.current].roots if self.inner else self.kernel.roots)
        moving = [e for r in roots for e in walk(r.expression) if var in e.vars]
        if not any(e.node is not None and e.node.op.name in MATH for e in moving):
            return 0
        if any(e.dtype.kind == "c" for e in moving) or not all(
            self.is_smooth(r, var) for r in roots
        ):
            return 0
        return register_bytes() // max(4, *(e.dtype.itemsize for e in moving))

    def is_smooth(self, root: Root, var: Var) -> bool:
        """Tell whether the accesses for a root go to every element along a variable, or to every other, or stay."""
        places = [(e.index, e.value) for e in walk(root.expression) if e.kind == "load"]
        if root.value in self.stores:
            places.append((root.index, root.value))
        return all(self.step(index, value, var) in (0, 1, 2) for index, value in places)

    def step(self, index: tuple[Affine, ...], value: Any, var: Var) -> Any:
        """Return by how many elements an access moves with a variable, or None if that is not known."""
        if value in self.stores:
            return stride_of(index, self.stores[value], var)
        if value not in self.roots:
            return stride_of(index, self.host.array(value), var)
        last = index[-1] if index else Affine()
        own = sum(scale for v, scale in last.terms if v is var)
        return own if all(var not in i.vars for i in index[:-1]) else None

    def new_group(self) -> str:
        """Return a new name for memory accesses of which no two iterations of a loop touch the same place."""
        return self.module.metadata("distinct !{}")

    def independent(self, group: str, extent: Operand = -1) -> str:
        """Return what tells LLVM that a loop's iterations are independent, if a group of accesses says so.

        Vector code gains nothing from more unrolling than the vectoriser's own; that costs a tenth of the compile time.
        Loops of a few iterations are left to be unrolled, so that the loop around them is the one to vectorise. Where an
        element takes long chains of dependent steps, vectors are worked on side by side: four need 0.85 times the time
        of two, but with many functions a fifth more of compile time, too. (Most loops that call functions are not told
        this, but how many elements to take: see `vector_loops`.)
        """
        if not group:
            return ""
        accesses = self.module.metadata(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
        if isinstance(extent, int) and 0 <= extent <= _SHORT:
            return self.module.metadata(f"distinct !{{%self, {accesses}}}")
        once = self.module.metadata('!{!"llvm.loop.unroll.disable"}')
        vectors = self.vectors(extent)
        if vectors == 1:
            return self.module.metadata(f"distinct !{{%self, {accesses}, {once}}}")
        several = self.module.metadata(f'!{{!"llvm.loop.interleave.count", i32 {vectors}}}')
        return self.module.metadata(f"distinct !{{%self, {accesses}, {once}, {several}}}")

    def in_step(self, group: str, lanes: int) -> str:
        """Return what tells LLVM to take so many iterations at a time, which are independent."""
        parts = [
            f'!{{!"llvm.loop.parallel_accesses", {group}}}',
            '!{!"llvm.loop.unroll.disable"}',
            f'!{{!"llvm.loop.vectorize.width", i32 {lanes}}}',
            '!{!"llvm.loop.interleave.count", i32 1}',
        ]
        return self.module.metadata(
            f"distinct !{{%self, {', '.join(map(self.module.metadata, parts))}}}"
        )

    def plain(self) -> str:
        """Return what tells LLVM that a loop is short and best left alone."""
        scalar = self.module.metadata('!{!"llvm.loop.vectorize.enable", i1 false}')
        once = self.module.metadata('!{!"llvm.loop.unroll.disable"}')
        return self.module.metadata(f"distinct !{{%self, {scalar}, {once}}}")

    def vectors(self, extent: Operand) -> int:
        """Return how many vectors a loop works on side by side; an extent of -1 is a thread's share of a long one."""
        if extent == -1:
            return self.side_by_side
        # A sum is a chain, too: each addition waits for the one before.
        sums = any(root.reduce for root in self.kernel.stages[self.current].roots)
        most = 4 if sums and self.side_by_side == 1 else self.side_by_side
        long = extent if isinstance(extent, int) else _SIDE_BY_SIDE[2]
        return max(v for v in (1, 2, 4) if v <= most and long >= _SIDE_BY_SIDE.get(v, 0))

    def hoist(self, evaluator: Evaluator, expressions: Iterable[Expression]) -> None:
        """Compute here what does not depend on the loops still to be opened."""
        open_now = set(evaluator.points)
        pending, seen = list(expressions), set()
        while pending:
            e = pending.pop()
            if e in seen or e.kind in ("const", "register"):
                continue
            seen.add(e)
            if e.vars <= open_now:
                if e.kind != "load" or not self.is_own(e):
                    evaluator.value(e)
                continue
            pending.extend(e.args)
            for affine in e.index:
                pending.extend(item for item, _ in affine.extra)

    def is_own(self, e: Expression) -> bool:
        return e.value in self.roots

    def cost(self, stages: Iterable[Stage]) -> float:
        """Return a rough number of nanoseconds for one point."""
        total = 0.0
        for stage in stages:
            for e in {e for root in stage.roots for e in walk(root.expression)}:
                total += 0.25 if e.kind == "load" else 0.08
                if e.kind == "op" and e.node is not None:
                    total += elementwise.cost(e.node.op.name, [a.dtype for a in e.args])
        return total + 0.1

    def parallel(
        self, count: Operand, nanoseconds: float, body: Callable[[Function, Operand, Operand], None]
    ) -> None:
        """Run `body(fn, lo, hi)` over [0, count): in this function if that is little work, else over threads."""
        fn = self.host.fn
        if (isinstance(count, int) and count * nanoseconds < 2 * _NANOSECONDS) or nanoseconds <= 0:
            body(fn, 0, count)
            self.finish_checks(fn)
            return
        self.module.is_long = True
        name = self.module.fresh("kernel")
        made = self.module.function(
            name, "void", [("ptr", "env"), ("i64", "lo"), ("i64", "hi")], internal=True, parent=fn,
        )  # fmt: skip
        made.lanes = ()
        body(made, made.params[1], made.params[2])
        self.finish_checks(made)
        made.ret()
        grain = max(1, math.ceil(_NANOSECONDS / max(nanoseconds, 0.01)))
        env = fn.environment(made)
        fn.call(
            "void", "dsl_parallel", Value(f"@{name}", "ptr"), env, fn.as_value(count, "i64"), Value(str(grain), "i64")
        )  # fmt: skip

    def elements_of(self, groups: Sequence[Sequence[int]]) -> float:
        """Return how many points groups have, a guess for symbolic ones."""
        total = 1.0
        for group in groups:
            for k in group:
                extent = self.kernel.variables[k].extent
                total *= extent if isinstance(extent, int) else 256.0
        return total

    def flat_prefix(self, groups: list[list[int]]) -> int:
        """Return how many leading loops to flatten so that there is enough to share among threads."""
        total = 1
        for k, group in enumerate(groups):
            extent = size_of(tuple(self.kernel.variables[a].extent for a in group))
            if not isinstance(extent, int):
                return k + 1
            total *= extent
            if total >= 64:
                return k + 1
        return len(groups)

    def unflatten(self, evaluator: Evaluator, groups: Sequence[Sequence[int]], at: Operand) -> None:
        """Set the points of flattened loops from their common counter."""
        fn = evaluator.fn
        for k, group in enumerate(reversed(groups)):
            if k == len(groups) - 1:
                self.place(evaluator, group, at)
                return
            extent = self.extent(fn, group)
            self.place(evaluator, group, fn.binary("urem", at, extent))
            at = fn.binary("udiv", at, extent)

    # -- merging axes ------------------------------------------------------------------------------------------------

    def merged(self, axes: Sequence[int]) -> list[list[int]]:
        """Group neighbouring axes over which every access runs through memory in one stride."""
        groups: list[list[int]] = []
        accesses = list(self.accesses())
        for k in axes:
            if (
                groups
                and groups[-1][-1] == k - 1
                and all(self.merges(a, k - 1, k) for a in accesses)
            ):
                groups[-1].append(k)
            else:
                groups.append([k])
        return groups

    def accesses(self) -> Iterable[tuple[tuple[Affine, ...], Array | None]]:
        """Yield every index that depends on loop variables, with the array that it goes into."""
        for root in self.kernel.roots:
            array = self.stores.get(root.value)
            if array is not None:
                yield root.index, array
            for e in walk(root.expression):
                if e.kind == "load":
                    own = e.value in self.roots and e.value not in self.stores
                    yield e.index, None if own else self.host.array(e.value)  # type: ignore[arg-type]
                elif e.index:
                    yield e.index, None

    def merges(self, access: tuple[tuple[Affine, ...], Array | None], a: int, b: int) -> bool:
        index, array = access
        va, vb = self.kernel.variables[a], self.kernel.variables[b]
        if array is None:
            root_like = all(len(i.terms) <= 1 and not i.extra for i in index)
            uses = [i for i in index if va in i.vars or vb in i.vars]
            return not uses or (root_like and self._identity_pair(index, va, vb))
        if any(v in item.vars for i in index for item, _ in i.extra for v in (va, vb)):
            return False
        sa, sb = stride_of(index, array, va), stride_of(index, array, vb)
        if sa is None or sb is None:
            return False
        return bool(sa == sb * vb.extent)

    @staticmethod
    def _identity_pair(index: tuple[Affine, ...], va: Var, vb: Var) -> bool:
        """An index into a value that the kernel itself computes and keeps: both axes or none, as they are."""
        plain = [i.terms[0] for i in index if len(i.terms) == 1 and i.offset == 0]
        return (va, 1) in plain and (vb, 1) in plain

    # -- maps --------------------------------------------------------------------------------------------------------

    def maps(self) -> None:
        groups = self.merged(range(len(self.kernel.variables)))
        expressions = [root.expression for root in self.kernel.roots]
        each = self.cost(self.kernel.stages)

        def store(evaluator: Evaluator) -> Callable[[], None]:
            return partial(self.store_point, evaluator)

        tile = self.tiled_axis(groups)
        if tile is not None:
            self.tiled_maps(groups, tile, store, each)
            return
        copies = self.copies_rows(groups)
        if len(groups) <= 1:

            def flat(fn: Function, lo: Operand, hi: Operand) -> None:
                evaluator = self.own_fetch(self.evaluator(fn))
                if copies:
                    self.copy_row(evaluator, groups[0], lo, hi)
                else:
                    self.nest(
                        evaluator, groups, store(evaluator), hoist=expressions, first=(lo, hi)
                    )

            self.parallel(self.extent(self.host.fn, groups[0]) if groups else 1, each, flat)
            return
        prefix = min(self.flat_prefix(groups), len(groups) - 1)
        outer, rest = groups[:prefix], groups[prefix:]

        def nested(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.own_fetch(self.evaluator(fn))
            self.hoist(evaluator, expressions)
            with fn.loop(lo, hi, metadata=self.independent(self.group)) as at, evaluator.scope():
                self.unflatten(evaluator, outer, at)
                if copies:
                    row = partial(
                        self.copy_row, evaluator, groups[-1], 0, self.extent(fn, groups[-1])
                    )
                    self.nest(evaluator, rest[:-1], row, vector=False)
                else:
                    self.nest(evaluator, rest, store(evaluator), hoist=expressions)

        count = self.extent(self.host.fn, [k for g in outer for k in g])
        self.parallel(count, each * self.elements_of(rest), nested)

    def store_point(self, evaluator: Evaluator) -> None:
        """Compute and store the roots at one point: all loads before all stores, they may share memory."""
        roots = list(self.kernel.roots)
        values = [evaluator.value(root.expression) for root in roots]
        for root, value in zip(roots, values):
            if root.value in self.stores:
                address = evaluator.address(self.stores[root.value], root.index)
                store_scalar(evaluator.fn, root.value.dtype, value, address, evaluator.metadata)

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
        source, target = self.host.array(e.value), self.stores.get(root.value)  # type: ignore[arg-type]
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
        source = evaluator.address(self.host.array(e.value), e.index)  # type: ignore[arg-type]
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

    def own_fetch(self, evaluator: Evaluator) -> Evaluator:
        """Loads of what this kernel computes at the same point are registers."""

        def fetch(e: Expression) -> Scalar | None:
            root = self.roots.get(e.value)  # type: ignore[arg-type]
            return evaluator.value(root.expression) if root is not None else None

        evaluator.fetch = fetch
        return evaluator

    def tiled_axis(self, groups: list[list[int]]) -> int | None:
        """Return the loop along which some array is read contiguously while another one is written so, or None."""
        if len(groups) < 2 or self.elements_of(groups) < 4096:
            return None
        last = self.kernel.variables[groups[-1][-1]]
        for k, group in enumerate(groups[:-1]):
            var = self.kernel.variables[group[-1]]
            for root in self.kernel.roots:
                for e in walk(root.expression):
                    if e.kind != "load" or e.value in self.roots:
                        continue
                    array = self.host.array(e.value)  # type: ignore[arg-type]
                    along, across = stride_of(e.index, array, var), stride_of(e.index, array, last)
                    if along == 1 and across not in (None, 0, 1):
                        return k
        return None

    def tiled_maps(self, groups: list[list[int]], tile: int, store: Any, each: float) -> None:
        """Read and write in square tiles, so that both sides use whole cache lines."""
        outer = [g for k, g in enumerate(groups[:-1]) if k != tile]
        across, along = groups[tile], groups[-1]
        host = self.host.fn
        expressions = [root.expression for root in self.kernel.roots]
        high, wide = self.extent(host, across), self.extent(host, along)
        bands = ceil_div(host, high, _BLOCK)
        rest: Operand = 1
        for g in outer:
            rest = host.mul(rest, self.extent(host, g))

        def band(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.own_fetch(self.evaluator(fn))
            with fn.loop(lo, hi) as at, evaluator.scope():
                row = fn.binary("urem", at, bands)
                self.unflatten(evaluator, outer, fn.binary("udiv", at, bands)) if outer else None
                top = fn.mul(row, _BLOCK)
                bottom = fn.minimum(fn.add(top, _BLOCK), high)
                with fn.loop(0, wide, _BLOCK) as left, evaluator.scope():
                    right = fn.minimum(fn.add(left, _BLOCK), wide)
                    with fn.loop(top, bottom) as i, evaluator.scope():
                        self.place(evaluator, across, i)
                        self.nest(
                            evaluator,
                            [along],
                            store(evaluator),
                            hoist=expressions,
                            first=(left, right),
                        )

        self.parallel(host.mul(bands, rest), each * 2 * _BLOCK * self.elements_of([along]), band)

    # -- reductions of everything --------------------------------------------------------------------------------------

    def is_split(self) -> bool:
        return not self.kept and len(self.kernel.stages) == 1

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
            with inner.loop(lo, hi) as c, evaluator.scope():
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
            address = evaluator.address(self.host.array(e.value), e.index)  # type: ignore[arg-type]
            found[root, self.lane] = call_routine(
                fn, f"stretch_{root.node.op.name}", dtype, address, fn.sub(high, low), result=register_type(dtype)
            )  # fmt: skip
        for k in group:
            del evaluator.points[self.kernel.variables[k]]
        return found

    def at_once(
        self, evaluator: Evaluator, group: list[int], starts: list[Operand], count: Operand,
        points: Sequence[Callable[[], None]], metadata: str,
    ) -> None:  # fmt: skip
        """Go through stretches of merged axes side by side."""
        fn = evaluator.fn
        with fn.loop(0, count, metadata=metadata) as at:
            for start, point in zip(starts, points, strict=True):
                with evaluator.scope():
                    self.place(evaluator, group, fn.add(start, at))
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

    @contextlib.contextmanager
    def in_lane(self, evaluator: Evaluator, lane: int | None) -> Iterator[None]:
        """Be at one point of the unrolled axis."""
        if self.lane_axis is None or lane is None:
            yield
            return
        var = self.kernel.variables[self.lane_axis]
        with evaluator.scope():
            self.lane = evaluator.points[var] = lane
            yield
        del evaluator.points[var]
        self.lane = None

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

    def accumulator(self, fn: Function, root: Root) -> tuple[Variable, ...]:
        dtype = root.value.dtype
        start = literal(start_value(root.node.op.name, dtype), dtype)
        parts = start if isinstance(start, tuple) else (start,)
        made = tuple(fn.variable(part.type) for part in parts)
        for variable, part in zip(made, parts):
            variable.set(part)
        return made

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

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self) -> None:
        host = self.host.fn
        kept, swept = self.merged(self.kept), self.merged(sorted(self.inner))
        prefix = self.flat_prefix(kept)
        outer, rest = kept[:prefix], kept[prefix:]
        everything = [root.expression for root in self.kernel.roots]

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.evaluator(fn)
            temps, release = self.temporaries(fn, 1)
            results: Results = {}
            evaluator.fetch = partial(self.row_fetch, evaluator, results, temps)
            self.hoist(evaluator, everything)
            row = partial(self.row, evaluator, swept, results, temps, Ahead(self, fn, swept))
            with fn.loop(lo, hi, metadata=self.independent(self.group)) as at, evaluator.scope():
                if outer:
                    self.unflatten(evaluator, outer, at)
                self.nest(evaluator, rest, row, vector=False, hoist=everything)
            release()

        count = self.extent(host, [k for g in outer for k in g])
        self.parallel(count, self.cost(self.kernel.stages) * self.elements_of(rest + swept), body)

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
                        address = evaluator.address(temps[root.value], self.temp_index(root.index))
                        value = evaluator.value(root.expression)
                        store_scalar(
                            evaluator.fn, root.value.dtype, value, address, evaluator.metadata
                        )

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
        root = self.roots.get(e.value)  # type: ignore[arg-type]
        if root is None:
            return None
        if (root.value, self.lane) in results:
            return results[root.value, self.lane]
        if root.stage == self.current and e.index == root.index:
            return evaluator.value(root.expression)
        if root.value in temps:
            address = evaluator.address(temps[root.value], self.temp_index(e.index))
            return load_scalar(evaluator.fn, root.value.dtype, address, evaluator.metadata)
        return None

    def temporaries(
        self, fn: Function, width: int
    ) -> tuple[dict[ir.Value, Array], Callable[[], None]]:
        """Make room for one row (times `width` columns) of each value that a later stage reads and nobody else."""
        made: dict[ir.Value, Array] = {}
        to_free: list[Value] = []
        dims = [self.host.dim(self.kernel.variables[k].extent) for k in sorted(self.inner)]
        if width > 1:
            dims.append(width)
        for root in self.kernel.roots:
            if (
                root.reduce
                or root.value in self.stores
                or self.kernel.stages[root.stage].per_row
                or not self.read_later(root)
            ):
                continue
            size: Operand = root.value.dtype.itemsize
            for dim in dims:
                size = fn.mul(size, dim)
            if isinstance(size, int) and size <= _STACK:
                pointer = fn.alloca(max(size, 16), 64)
            else:
                pointer = fn.call("ptr", "dsl_alloc", fn.as_value(size, "i64"))
                to_free.append(pointer)
            made[root.value] = Array(root.value.dtype, pointer, tuple(dims), contiguous(fn, dims))

        def release() -> None:
            for pointer in to_free:
                fn.call("void", "dsl_free", pointer)

        return made, release

    def read_later(self, root: Root) -> bool:
        """Tell whether a stage after the root's own reads it."""
        return any(
            e.value is root.value
            for other in self.kernel.roots
            if other.stage > root.stage
            for e in reads_of(other.expression)
        )

    def temp_index(self, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Drop the kept axes of an index: a temporary holds one row."""
        return tuple(i for k, i in enumerate(index) if k in self.inner)

    # -- panels ------------------------------------------------------------------------------------------------------

    def panels(self) -> None:
        host = self.host.fn
        last = len(self.kernel.variables) - 1
        columns = self.extent(host, [last])
        tile = self.tile()
        if isinstance(columns, int) and columns < 2 * tile:  # two panels, if they are worth it
            tile = columns if columns < 128 else -(-columns // 128) * 64
        panels = ceil_div(host, columns, tile)
        outer = [[k] for k in self.kept if k != last]
        swept = self.merged(sorted(self.inner))
        rest: Operand = 1
        for group in outer:
            rest = host.mul(rest, self.extent(host, group))

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            panel = Panel(self, fn, tile, swept)
            evaluator = panel.evaluator
            with fn.loop(lo, hi) as at, evaluator.scope():
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

        work = self.cost(self.kernel.stages) * self.elements_of(swept) * tile
        self.parallel(host.mul(panels, rest), work, body)

    def tile(self) -> int:
        """Return how many columns a panel has: few enough that what is swept again is still in the cache."""
        if sum(not stage.per_row for stage in self.kernel.stages) == 1:
            return _TILE
        widest = max(root.value.dtype.itemsize for root in self.kernel.roots)
        column = self.elements_of([sorted(self.inner)]) * widest
        return max(_TILE // 4, min(_TILE, int(_PANEL / max(column, 1)) // 64 * 64))


def _no_checks(bad: Value, e: Expression, number: Value) -> None:
    raise AssertionError("an unplanned check")
