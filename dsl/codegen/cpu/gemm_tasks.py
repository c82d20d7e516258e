"""The work of matrix multiplication: from tasks to micro-kernels.

A task is a panel of rows by a block of columns. Tasks are counted through the panels of the first block, then those of the
second, …; so a thread that gets a run of tasks packs a block of B once for many panels of A.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from dsl.codegen.cpu.gemm_lanes import prefetch
from dsl.codegen.cpu.gemm_pack import ATTRIBUTES, columns_together, panel_bytes, strip
from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable

__all__ = ["Call", "Plan", "allocate", "ceil_div", "finish", "merge", "round_up", "tasks"]


class Call(NamedTuple):
    """The arguments of a multiplication."""

    m: Value
    n: Value
    k: Value
    a: Value
    a_row: Value
    a_column: Value
    b: Value
    b_row: Value
    b_column: Value
    c: Value
    c_row: Value
    tile: Value
    env: Value


class Plan(NamedTuple):
    """How a multiplication is cut.

    Of `panels` of rows, `tall` have a full tile's height, spread evenly, and the others the next lower one, but the last
    may have fewer. Blocks have `width` columns, of which `packed` are packed: all, or those past the last full tile. A block
    is done in runs of `depth` of the inner dimension.
    """

    panels: Value
    tall: Value
    width: Value
    depth: Value
    packed: Value
    pack_a: Value
    pack_b: Value


class _Block(NamedTuple):
    """A run of the inner dimension of a block of columns, with B where the kernels read it: `wide` columns as full tiles at
    `b`, rows `b_step` and tiles `b_tile` bytes apart, of which what is `b_ahead` is to be fetched, and the others at `rest`,
    rows `rest_step` apart."""

    j0: Operand
    columns: Operand
    wide: Value
    depth: Value
    more: Value
    b: Value
    b_step: Value
    b_tile: Value
    b_ahead: Value
    rest: Value
    rest_step: Value


class _Panel(NamedTuple):
    """A panel of rows with A where the kernels read it, and how far from there the next panel is. In bytes."""

    i0: Value
    rows: Value
    a: Value
    a_row: Value
    a_step: Value
    ahead: Value


def ceil_div(fn: Function, a: Operand, b: Operand) -> Value:
    """Return a / b rounded up, for b > 0; a negative a gives at most 0."""
    return fn.binary("sdiv", fn.sub(fn.add(a, b), 1), b)


def round_up(fn: Function, a: Operand, power: int) -> Value:
    """Return the next multiple of a power of two."""
    return fn.binary("and", fn.add(a, power - 1), -power)


def allocate(fn: Function, size: Operand) -> Value:
    """Return memory for some bytes. It is little; a system that has none left ends the process."""
    space = fn.call("ptr", "dsl_alloc", fn.as_value(size, "i64"))
    with fn.if_(fn.compare("eq", space, Value("null", "ptr")), unlikely=True):
        fn.call("void", "abort")
        fn.unreachable()
    return space


def finish(fn: Function, call: Call, i0: Operand, i1: Operand, j0: Operand, j1: Operand) -> None:
    """Hand a finished part of C to the program."""
    with fn.if_(fn.compare("ne", call.tile, Value("null", "ptr"))):
        part = [fn.as_value(x, "i64") for x in (i0, i1, j0, j1)]
        fn.call_pointer("void", call.tile, call.env, *part)


def tasks(module: Module, t: Tiling, parent: Function, call: Call, plan: Plan) -> Function:
    """Define the function that does tasks `lo` to `hi`."""
    params = [("ptr", "env"), ("i64", "lo"), ("i64", "hi")]
    fn = module.function(
        "gemm.tasks", "void", params, internal=True, attributes=ATTRIBUTES, parent=parent
    )
    _, lo, hi = fn.params
    work = _Work(fn, t, Call(*map(fn.use, call)), Plan(*map(fn.use, plan)))
    with work.memory():
        now = fn.variable("i64", lo)
        with fn.while_(lambda: fn.compare("slt", now.get(), hi)):
            panels = work.plan.panels
            block = fn.binary("sdiv", now.get(), panels)
            first = fn.sub(now.get(), fn.mul(block, panels))
            last = fn.minimum(fn.add(first, fn.sub(hi, now.get())), panels)
            work.block(block, first, last)
            now.set(fn.add(now.get(), fn.sub(last, first)))
    fn.ret()
    return fn


class _Work:
    """Emits the loops over blocks, runs, panels and tiles."""

    def __init__(self, fn: Function, t: Tiling, call: Call, plan: Plan) -> None:
        self.fn, self.t, self.call, self.plan = fn, t, call, plan
        self.c_row = fn.as_value(fn.mul(call.c_row, t.size), "i64")
        self.panel = fn.alloca(panel_bytes(t), 64)
        self.space = fn.variable("ptr", Value("null", "ptr"))  # for packed B
        self.tile = None if t.masks else fn.alloca(t.heights[0] * t.columns * t.size, 64)

    @contextlib.contextmanager
    def memory(self) -> Iterator[None]:
        """Have memory for packed B meanwhile."""
        fn, plan = self.fn, self.plan
        needed = fn.compare("ne", plan.packed, 0)
        with fn.if_(needed):
            size = fn.mul(fn.mul(plan.depth, plan.packed), self.t.size)
            self.space.set(allocate(fn, size))
        yield
        with fn.if_(needed):
            fn.call("void", "dsl_free", self.space.get())

    def block(self, block: Value, first: Operand, last: Operand) -> None:
        """Multiply panels `first` to `last` by a block of columns."""
        fn, call, depth = self.fn, self.call, self.plan.depth
        j0 = fn.mul(block, self.plan.width)
        columns = fn.minimum(self.plan.width, fn.sub(call.n, j0))
        runs = ceil_div(fn, call.k, depth)
        with fn.loop(0, runs) as run:
            k0 = fn.mul(run, depth)
            here = fn.as_value(fn.minimum(depth, fn.sub(call.k, k0)), "i64")
            made = self.block_of_b(j0, columns, k0, here, fn.compare("ne", run, 0))
            final = fn.compare("eq", fn.add(run, 1), runs)
            row = self.first_row(first)
            with fn.loop(first, last):
                i0, rows = self.next_rows(*row)
                self.row_of_tiles(self.panel_of_a(i0, rows, k0, made), made)
                with fn.if_(final):
                    finish(fn, call, i0, fn.add(i0, rows), j0, fn.add(j0, columns))

    def block_of_b(
        self, j0: Operand, columns: Operand, k0: Operand, depth: Value, more: Value
    ) -> _Block:
        """Pack what is to be packed of a block of B: also columns past the last full tile, if a kernel would read past B's end."""
        fn, t, call, pack_b = self.fn, self.t, self.call, self.plan.pack_b
        tile = t.columns * t.size
        wide = fn.binary("and", columns, -t.columns)
        source = fn.gep(call.b, fn.add(fn.mul(k0, call.b_row), fn.mul(j0, call.b_column)), t.type)
        packed = self.space.get()
        start = fn.select(pack_b, 0, wide)
        count = fn.as_value(fn.sub(columns, start), "i64")
        after = self.rows_after(k0, depth, call.b_row, t.columns)
        in_place = fn.both(fn.invert(pack_b), after)
        with fn.if_(fn.both(fn.compare("sgt", count, 0), fn.invert(in_place))):
            first = fn.gep(source, fn.mul(start, call.b_column), t.type)
            fn.call("void", "gemm.pack_b", packed, first, call.b_row, call.b_column, depth, count)
        return _Block(
            j0, columns, wide, depth, more,
            b=fn.select(pack_b, packed, source),
            b_step=fn.select(pack_b, tile, fn.mul(call.b_row, t.size)),
            b_tile=fn.select(pack_b, fn.mul(depth, tile), tile),
            b_ahead=fn.select(pack_b, _AHEAD, fn.mul(call.b_row, _ROWS_AHEAD * t.size)),
            rest=fn.select(
                in_place,
                fn.gep(source, wide, t.type),
                fn.gep(packed, fn.mul(fn.mul(fn.sub(wide, start), depth), t.size)),
            ),
            rest_step=fn.select(in_place, fn.mul(call.b_row, t.size), tile),
        )  # fmt: skip

    def rows_after(self, k0: Operand, depth: Value, step: Value, count: int) -> Value:
        """Tell whether the rows after a run, `step` elements apart, are `count` elements or more.

        A kernel may read so many past the end of each of the run's rows then. It multiplies them, but writes no product.
        """
        fn = self.fn
        left = fn.sub(self.call.k, fn.add(k0, depth))
        return fn.compare("sge", fn.mul(left, step), count)

    def first_row(self, panel: Operand) -> tuple[Variable, Variable]:
        """Return the first row of a panel, and the remainder that tells when a tall panel is due."""
        fn, plan, (full, lower, *_) = self.fn, self.plan, self.t.heights
        product = fn.mul(panel, plan.tall)
        before = fn.binary("sdiv", product, plan.panels)
        row = fn.add(fn.mul(panel, lower), fn.mul(before, full - lower))
        remainder = fn.sub(product, fn.mul(before, plan.panels))
        return fn.variable("i64", row), fn.variable("i64", remainder)

    def next_rows(self, row: Variable, remainder: Variable) -> tuple[Value, Value]:
        """Return the first row and the number of rows of the next panel, and go past it."""
        fn, plan, (full, lower, *_) = self.fn, self.plan, self.t.heights
        start, after = row.get(), fn.add(remainder.get(), plan.tall)
        due = fn.compare("sge", after, plan.panels)
        remainder.set(fn.sub(after, fn.select(due, plan.panels, 0)))
        rows = fn.minimum(fn.select(due, full, lower), fn.sub(self.call.m, start))
        row.set(fn.add(start, rows))
        return start, fn.as_value(rows, "i64")

    def panel_of_a(self, i0: Value, rows: Value, k0: Operand, block: _Block) -> _Panel:
        """Pack a panel of A if need be: also if a kernel would read rows that are not there."""
        fn, t, call = self.fn, self.t, self.call
        source = fn.gep(call.a, fn.add(fn.mul(i0, call.a_row), fn.mul(k0, call.a_column)), t.type)
        stride = fn.as_value(fn.mul(call.a_row, t.size), "i64")
        ahead = fn.gep(source, fn.mul(rows, stride))
        a, row = fn.variable("ptr", source), fn.variable("i64", stride)
        step = fn.variable("i64", fn.mul(call.a_column, t.size))
        rest = fn.sub(block.columns, block.wide)
        exact = [
            fn.compare("eq", rows, self.lookup("heights", "i64", rows, two))
            for two in (Value("true", "i1"), fn.compare("sgt", rest, t.lanes))
        ]
        exact[1] = fn.either(exact[1], fn.compare("eq", rest, 0))
        after = self.rows_after(k0, block.depth, call.a_column, t.heights[0])
        readable = fn.either(fn.both(*exact), fn.both(fn.compare("eq", call.a_row, 1), after))
        with fn.if_(fn.either(self.plan.pack_a, fn.invert(readable))):
            strides = call.a_row, call.a_column
            fn.call("void", "gemm.pack_a", self.panel, source, *strides, rows, block.depth)
            by_columns = columns_together(fn, *strides)
            a.set(self.panel)
            row.set(fn.select(by_columns, t.size, strip(t) * t.size))
            step.set(fn.select(by_columns, t.heights[0] * t.size, t.size))
        return _Panel(i0, rows, a.get(), row.get(), step.get(), ahead)

    def lookup(self, table: str, type: str, rows: Value, two: Value) -> Value:
        """Return what a table has for a kernel of some rows, of two vectors or one."""
        fn = self.fn
        place = fn.add(fn.select(two, self.t.heights[0], 0), fn.sub(rows, 1))
        return fn.load(type, fn.gep(Value(f"@gemm.{table}", "ptr"), place, type))

    def row_of_tiles(self, panel: _Panel, block: _Block) -> None:
        """Multiply a panel by a block; while at each tile, fetch one row of the next panel."""
        fn, t, call = self.fn, self.t, self.call
        c = fn.gep(call.c, fn.add(fn.mul(panel.i0, call.c_row), block.j0), t.type)
        two, ahead = Value("true", "i1"), fn.variable("i64", panel.ahead)
        with fn.loop(0, block.wide, t.columns) as j:
            b = fn.gep(
                block.b, fn.mul(fn.binary("lshr", j, t.columns.bit_length() - 1), block.b_tile)
            )
            here = fn.gep(c, j, t.type)
            self.fetch(panel, block, here)
            self.multiply(panel, block, ahead.get(), b, block.b_step, here, t.columns, two)
            ahead.set(fn.add(ahead.get(), fn.mul(call.a_row, t.size)))
        rest = fn.as_value(fn.sub(block.columns, block.wide), "i64")
        with fn.if_(fn.compare("sgt", rest, 0)):
            two, step = fn.compare("sgt", rest, t.lanes), block.rest_step
            here, none = fn.gep(c, block.wide, t.type), fn.as_value(0, "i64")
            self.multiply(panel, block, none, block.rest, step, here, rest, two)

    def fetch(self, panel: _Panel, block: _Block, c: Value) -> None:
        """Fetch the tile of C that is written next, if there is time for it."""
        fn = self.fn
        with fn.if_(fn.compare("sgt", block.depth, 64)), fn.loop(0, panel.rows) as i:
            line = fn.gep(c, fn.mul(i, self.c_row))
            for address in (line, fn.gep(line, _LINE)):
                prefetch(fn, address, write=True, near=False)

    def multiply(
        self, panel: _Panel, block: _Block, a_ahead: Value, b: Value, b_step: Value, c: Value,
        columns: Operand, two: Value,
    ) -> None:  # fmt: skip
        """Multiply a panel by the columns of one tile."""
        fn, t = self.fn, self.t
        kernel = self.lookup("kernels", "ptr", panel.rows, two)
        operands = block.depth, panel.a, panel.a_row, panel.a_step, b, b_step, block.b_ahead
        bits = f"i{t.lanes}"
        if t.masks:
            missing = fn.binary("and", fn.sub(0, columns), t.lanes - 1)
            mask = fn.binary("lshr", Value("-1", bits), fn.convert("trunc", missing, bits))
            more = fn.convert("sext", block.more, bits)
            fn.call_pointer("void", kernel, *operands, c, self.c_row, panel.rows, mask, more)
            return
        assert self.tile is not None
        exact = fn.compare("eq", panel.rows, self.lookup("heights", "i64", panel.rows, two))
        whole = fn.both(exact, fn.compare("eq", fn.as_value(columns, "i64"), t.columns))
        whole = fn.both(whole, fn.invert(block.more))
        target = fn.select(whole, c, self.tile)
        row = fn.select(whole, self.c_row, t.columns * t.size)
        none = Value("0", bits)
        fn.call_pointer("void", kernel, *operands, target, row, panel.rows, none, none)
        with fn.if_(fn.invert(whole)):
            sizes = panel.rows, fn.as_value(columns, "i64")
            fn.call("void", "gemm.merge", c, self.tile, self.c_row, *sizes, block.more)


_AHEAD, _ROWS_AHEAD = 2048, 8
"""How far to fetch B ahead: bytes if it is packed (3 % where a block fills half of the second cache, 10 % where it does not
fit), or rows (more would share the same lines of the first cache if their number of bytes is a power of two)."""

_LINE = 64
"""Bytes of a line of the cache."""


def merge(module: Module, t: Tiling) -> None:
    """Define the copying of a tile to C, `rows` by `columns`, or adding to it; for kernels without masks."""
    pointers = ("ptr noalias", "c"), ("ptr noalias", "tile")
    sizes = ("i64", "c_row"), ("i64", "rows"), ("i64", "columns")
    params = [*pointers, *sizes, ("i1", "more")]
    fn = module.function("gemm.merge", "void", params, internal=True, attributes=ATTRIBUTES)
    c, tile, c_row, rows, columns, more = fn.params
    with fn.loop(0, rows) as i, fn.loop(0, columns) as j:
        place = fn.gep(fn.gep(c, fn.mul(i, c_row)), j, t.type)
        new = fn.load(t.type, fn.gep(tile, fn.add(fn.mul(i, t.columns), j), t.type))
        sum = fn.fadd(new, fn.load(t.type, place))
        fn.store(fn.select(more, sum, new), place)
    fn.ret()
