"""Innermost loops, by vectors: written out where that is simple, see `widen`; others LLVM vectorises, told what in metadata.

Iterations of such a loop are independent: its memory accesses form a group of which no two iterations touch the same place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from dsl.codegen import widen
from dsl.codegen.accesses import walk
from dsl.codegen.elementwise.reals import MATH
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Var
from dsl.codegen.kernels.space import Space
from dsl.codegen.llvm import Function, Lanes, Module, Operand, Value
from dsl.codegen.plan import Root
from dsl.codegen.vector_unit import register_bytes

__all__ = ["Recorded", "VectorLoops", "WideLoops", "fits_registers", "read_loop"]

_SIDE_BY_SIDE = {2: 128, 4: 512}  # iterations of a loop that may work on as many vectors at once
_REGISTERS = 4  # that a call of an elementary function fills
_SHORT = 16  # iterations of a loop that is left to be unrolled
_STAYING = 8  # registers with what a loop around adds up
_STEP = 12  # instructions of a loop that is done in one step, if all of it fits into registers
_LONG = 200  # instructions of a loop in which functions are called even if they are short
_SHORT_WORK = 12  # instructions of a loop that works on two vectors at once: four run no faster
_CHAIN = (
    80  # instructions of a loop with functions, whose steps wait for one another, that works on two
)


def fits_registers(extent: Operand, one: int) -> bool:
    """Tell whether all elements of a loop fill some registers, and few enough of them to stay there."""
    return isinstance(extent, int) and extent % one == 0 and 1 <= extent // one <= _STAYING


def has_masks(size: int) -> bool:
    """Tell whether this CPU loads and stores some lanes of a vector with elements of a size: AVX-512 does, AVX for larger ones."""
    return register_bytes() == 64 or (register_bytes() == 32 and size >= 4)


class Recorded(NamedTuple):
    """A loop's body: what is known of it, its counter, its lines, and whether functions are part of it."""

    body: widen.Body
    counter: Value
    lines: list[str]
    spliced: bool


def read_loop(
    lines: list[str], counter: Value, *, spliced: bool = False, slots: Iterable[str] = ()
) -> Recorded | None:
    """Return a loop that can be written out by vectors, or None; the slots are its body's own."""
    body = widen.read(lines, counter.text, slots)
    return None if body is None else Recorded(body, counter, lines, spliced)


class WideLoops:
    """Loops whose bodies were recorded, and are written out by vectors."""

    inner: frozenset[int] = frozenset()  # axes that are swept
    past = ""  # what is said of stores that go past the caches

    def __init__(self, module: Module) -> None:
        self.module = module

    @property
    def has_sweeps(self) -> bool:
        """Whether the same rows are gone over several times."""
        return False

    def by_vectors(
        self, fn: Function, ends: tuple[Operand, Operand], body: Callable[[Value], None]
    ) -> None:
        """Emit a loop of its own: by vectors if that can be, else as it is."""
        counter = fn.name_value("i64")
        with fn.recorded() as lines:
            body(counter)
        read = read_loop(lines, counter)
        if read is not None:
            self.wide_loops(fn, read, ends)
            return
        with fn.loop(*ends, metadata=self.plain(), counter=counter, as_written=True):
            fn.replay(lines)

    def wide_loops(self, fn: Function, loop: Recorded, ends: tuple[Operand, Operand]) -> None:
        """Emit a loop over vectors of as many lanes as fill some registers, and one over what remains, a register at a time.

        Where the last one cannot be masked, the last elements have a loop of their own.
        """
        low, high = ends
        one = register_bytes() // loop.body.widest
        extent = fn.sub(high, low)
        long = not isinstance(extent, int) or extent > _STAYING * one
        if loop.body.fill is not None and long and not self.past:
            self.fill(fn, loop, low, extent)
            return
        if fits_registers(extent, one) and loop.body.work <= _STEP and not loop.body.calls:
            self.wide_step(fn, loop, extent, low)
            return
        many = one * self.registers(loop, one, extent)
        masks = has_masks(loop.body.smallest)
        # A thread has many elements: what remains is little, and routines for one register would be compiled for it.
        share = isinstance(low, Value) and not self.inner and loop.body.calls and not masks
        around = loop.body.has_loops and masks  # a loop within takes as long for one register
        for lanes in (many,) if many == one or share or around else (many, one):
            middle = fn.add(low, fn.masked(fn.sub(high, low), -lanes))
            if lanes < many and masks and middle != high:
                break
            if middle != low:
                self.wide_loop(fn, loop, lanes, low, middle)
            low = middle
        if low == high:
            return
        if masks:
            self.wide_loop(fn, loop, many if around else one, low, high, masked=True)
            return
        with fn.loop(low, high, metadata=self.plain(), counter=loop.counter, as_written=True):
            fn.replay(loop.lines)

    def wide_loop(
        self, fn: Function, loop: Recorded, lanes: int, low: Operand, high: Operand, *, masked: bool = False
    ) -> None:  # fmt: skip
        """Emit a loop over vectors; if it is masked, the last one may have fewer elements than lanes."""
        stop = fn.as_value(high, "i64").text if masked else ""
        # With AVX-512 one instruction shifts elements between registers.
        shifts = not masked and register_bytes() == 64 and not loop.body.has_loops
        start = fn.as_value(low, "i64").text if shifts else ""
        wide = self.widened(fn, loop, lanes, stop, start, "" if masked else self.past)
        known = isinstance(low, int) and isinstance(high, int)
        with contextlib.nullcontext() if known else fn.if_(fn.compare("slt", low, high)):
            fn.replay(wide.before)
            counter = Value(wide.counter, "i64", fn)
            with fn.loop(low, high, lanes, metadata=self.plain(), counter=counter, as_written=True):
                fn.replay(wide.body)
            fn.replay(wide.after)

    @staticmethod
    def fill(fn: Function, loop: Recorded, low: Operand, extent: Operand) -> None:
        """Fill memory with bytes: the C library knows how to do that past the caches."""
        assert loop.body.fill is not None
        address, byte, size = loop.body.fill
        fn.emit(f"{loop.counter.text} = add i64 {fn.as_value(low, 'i64').text}, 0")
        fn.replay([line for line in loop.lines if not line.strip().startswith("store ")])
        count = fn.as_value(fn.mul(extent, size), "i64")
        given = (Value(address, "ptr", fn), Value(byte, "i8"), count, Value("false", "i1"))
        fn.call("void", "llvm.memset.p0.i64", *given)

    def wide_step(self, fn: Function, loop: Recorded, lanes: Operand, at: Operand) -> None:
        """Emit a loop whose elements all fit into registers, without the loop: what it adds up can stay in them."""
        assert isinstance(lanes, int)
        wide = self.widened(fn, loop, lanes)
        fn.replay(wide.before)
        fn.emit(f"{wide.counter} = add i64 {fn.as_value(at, 'i64').text}, 0")
        fn.replay([*wide.body, *wide.after])

    @staticmethod
    def widened(
        fn: Function, loop: Recorded, lanes: int, stop: str = "", start: str = "", past: str = ""
    ) -> widen.Widened:
        """Return a body for so many lanes; what it calls is declared, and its sums have memory."""
        wide = loop.body.widened(lanes, stop, start, past)
        for name, (result, args) in wide.calls.items():
            pure = (
                "" if name.startswith("llvm.") else " willreturn memory(none)"
            )  # LLVM knows its own
            fn.module.declare(name, result, args, f"nounwind{pure}")
        for name, type in wide.slots:
            fn.at_entry(f"{name} = alloca {type}")
        return wide

    def registers(self, loop: Recorded, one: int, extent: Operand) -> int:
        """Return how many registers of a vector a loop works on side by side."""
        body = loop.body
        if body.calls:
            most = _REGISTERS
        elif body.has_loops:  # trips of a loop within wait for one another
            most = 4 if body.work <= _SHORT_WORK else 2
        elif body.sums:  # a sum waits for the addition before: several take turns
            most = {1: 4, 2: 2, 3: 2}.get(len(body.sums), 1)
            if loop.spliced or (self.has_sweeps and body.has_extremum):
                most = min(most, 2)  # NaNs make long code of an extremum
        else:
            most = 2 if body.work <= (_CHAIN if loop.spliced else _SHORT_WORK) else 1
        long = extent if isinstance(extent, int) else most * one
        if body.has_loops and has_masks(body.smallest):
            return min((n for n in (1, 2, 4) if n <= most and n * one >= long), default=most)
        return max(n for n in (1, 2, 4) if n <= most and (n == 1 or n * one <= long))

    def plain(self) -> str:
        """Return what tells LLVM that a loop is short and best left alone."""
        scalar = self.module.metadata('!{!"llvm.loop.vectorize.enable", i1 false}')
        once = self.module.metadata('!{!"llvm.loop.unroll.disable"}')
        return self.module.metadata(f"distinct !{{%self, {scalar}, {once}}}")


class VectorLoops(Space, WideLoops):
    """The innermost loops of a kernel."""

    @property
    def has_sweeps(self) -> bool:
        """Whether the same rows are gone over several times."""
        return sum(not stage.per_row for stage in self.kernel.stages) > 1

    def vector_loops(
        self, evaluator: Evaluator, var: Var, ends: tuple[Operand, Operand], group: str, otherwise: str, *,
        dense: bool = False,
    ) -> Iterator[Value]:  # fmt: skip
        """Open, one after the other, the loops that together go from one end to the other; yield where each is.

        A loop from element to element is recorded, and its vectors are written out. If that cannot be, LLVM finds them.
        It is told how many elements to take at a time if elementary functions are called: as many as fill the four
        registers that a routine of the library takes; what remains is done a register at a time. For other loops it
        decides, and may call the routines for one register. In short ones functions are inlined.
        """
        fn = evaluator.fn
        if self.kernel.plain:
            with fn.loop(*ends, metadata=self.plain(), as_written=True) as at, evaluator.scope():
                yield at
            return
        if fn.sub(ends[1], ends[0]) == 1:
            with evaluator.scope():
                yield fn.as_value(ends[0], "i64")
            return
        dense = dense or self.is_dense(fn, var, ends)
        if dense and (yield from self.written_out(evaluator, ends)):
            return
        for low, high, lanes in self.stretches(fn, var, *ends):
            told = lanes is not None and len(lanes) == 1
            metadata = self.in_step(group, lanes[0]) if told else otherwise  # type: ignore[index]
            before, fn.lanes = fn.lanes, lanes
            with fn.loop(low, high, metadata=metadata) as at, evaluator.scope():
                yield at
            fn.lanes = before

    def recorded_loop(
        self, evaluator: Evaluator, var: Var, ends: tuple[Operand, Operand], metadata: str
    ) -> Iterator[Value]:
        """Open one loop, which is written out by vectors, or has metadata for LLVM."""
        dense = self.is_dense(evaluator.fn, var, ends)
        if not dense or not (yield from self.written_out(evaluator, ends)):
            with evaluator.fn.loop(*ends, metadata=metadata) as at, evaluator.scope():
                yield at

    def written_out(
        self, evaluator: Evaluator, ends: tuple[Operand, Operand]
    ) -> Generator[Value, None, bool]:
        """Record the body of a loop, and emit it by vectors; return whether that could be done.

        If all functions that it calls are short ones, they become part of it.
        """
        fn = evaluator.fn
        for splices in (True, False):
            counter = fn.name_value("i64")
            before, fn.lanes, fn.spliced = fn.lanes, (), [] if splices else None
            with fn.recorded() as lines, evaluator.scope():
                yield counter
            spliced, fn.lanes, fn.spliced = bool(fn.spliced), before, None
            read = read_loop(lines, counter, spliced=spliced)
            if read is None:
                return False
            if not (splices and (read.body.calls or read.body.work > _LONG)):
                self.wide_loops(fn, read, ends)
                return True
        return False

    def is_dense(self, fn: Function, var: Var, ends: tuple[Operand, Operand]) -> bool:
        """Tell whether a loop fills vectors and goes from element to element of all that it does not stay at."""
        roots = list(self.kernel.stages[self.current].roots if self.inner else self.kernel.roots)
        moving = [e for r in roots for e in walk(r.expression) if var in e.vars]
        extent = fn.sub(ends[1], ends[0])
        if isinstance(extent, int) and extent < _SHORT:
            return False
        return all(e.dtype.kind != "c" for e in moving) and all(
            self.steps(r, var) <= {0, 1} for r in roots
        )

    def stretches(
        self, fn: Function, var: Var, low: Operand, high: Operand
    ) -> Iterator[tuple[Operand, Operand, Lanes]]:
        """Yield where the loops along a variable start and end, and for how many elements each may call routines."""
        one, extent = self.elements_at_once(var), fn.sub(high, low)
        many = _REGISTERS * one
        short = isinstance(var.extent, int) and var.extent < _SHORT  # and so is each part of it
        if short or (isinstance(extent, int) and extent < max(many, _SHORT)):
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

        Zero if it does not: long strides, reads through index arrays and extrema are left to LLVM to weigh up. It prints
        a remark if it cannot do what it is told, as with the maximum of a choice or sums of two-byte floats.
        """
        roots = list(self.kernel.stages[self.current].roots if self.inner else self.kernel.roots)
        moving = [e for r in roots for e in walk(r.expression) if var in e.vars]
        if not any(e.node is not None and e.node.op.name in MATH for e in moving):
            return 0
        if any(e.dtype.kind == "c" for e in moving) or not all(
            self.is_smooth(r, var) and self.is_plain(r, var) for r in roots
        ):
            return 0
        return register_bytes() // max(4, *(e.dtype.itemsize for e in moving))

    def is_smooth(self, root: Root, var: Var) -> bool:
        """Tell whether the accesses for a root go to every element along a variable, or to every other, or stay."""
        return self.steps(root, var) <= {0, 1, 2}

    def is_plain(self, root: Root, var: Var) -> bool:
        """Tell whether LLVM is sure to see how a root combines what a variable goes through, if it does."""
        if not root.reduce or self.kernel.variables.index(var) not in self.inner:
            return True
        narrow = root.value.dtype.itemsize == 2 and root.value.dtype.kind not in "iu"
        return root.node.op.name not in ("max", "min") and not narrow

    def steps(self, root: Root, var: Var) -> set[Any]:
        """Return by how many elements the accesses for a root move with a variable."""
        places = [(e.index, e.value) for e in walk(root.expression) if e.kind == "load"]
        if root.value in self.stores:
            places.append((root.index, root.value))
        return {self.step(index, value, var) for index, value in places}

    # -- what LLVM is told -------------------------------------------------------------------------------------------

    def new_group(self) -> str:
        """Return a new name for memory accesses of which no two iterations of a loop touch the same place."""
        return self.module.metadata("distinct !{}")

    @staticmethod
    @contextlib.contextmanager
    def accessing(evaluator: Evaluator, group: str) -> Iterator[None]:
        """Let memory accesses belong to a group, if there is one."""
        before = evaluator.metadata
        if group:
            evaluator.metadata = f", !llvm.access.group {group}"
        yield
        evaluator.metadata = before

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

    def vectors(self, extent: Operand) -> int:
        """Return how many vectors a loop works on side by side; an extent of -1 is a thread's share of a long one."""
        if extent == -1:
            return self.side_by_side
        # A sum is a chain, too: each addition waits for the one before.
        sums = any(root.reduce for root in self.kernel.stages[self.current].roots)
        most = 4 if sums and self.side_by_side == 1 else self.side_by_side
        long = extent if isinstance(extent, int) else _SIDE_BY_SIDE[2]
        return max(v for v in (1, 2, 4) if v <= most and long >= _SIDE_BY_SIDE.get(v, 0))
