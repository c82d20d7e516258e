"""Emits one graph, the program's or that of a branch or loop body, into the program's function.

A region knows where the values of its graph are: rank-0 ones in registers, arrays placed in slots. It runs its planned
statements in order and gives memory back as values die.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.arrays import Array, Scalar, register_type
from dsl.codegen.beside_one import beside_one
from dsl.codegen.calls import emit_call
from dsl.codegen.control import emit_control
from dsl.codegen.describe import Names, describe
from dsl.codegen.elements import Elements, splat
from dsl.codegen.evaluate import Evaluator, literal, unchecked
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Function, Operand, Value, Variable
from dsl.codegen.math import BESIDE_ONE
from dsl.codegen.memory import Placed, Slot, contiguous_strides, nbytes
from dsl.codegen.places import emit_alias, emit_pieces, emit_room, emit_spread
from dsl.codegen.plan import REDUCTIONS, Kernel, Plan, Root, Stage, Statement, plan
from dsl.codegen.ranges import Ranges
from dsl.codegen.report import ErrorSite
from dsl.codegen.scalars import emit_check, emit_scalar
from dsl.codegen.standins import StandIn
from dsl.codegen.sweeps import emit_kernel
from dsl.codegen.updates import emit_update
from dsl.codegen.within import Within
from dsl.errors import InternalError
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, DimLike, lower_bound, symbols_of
from dsl.ir.types import Shape, TensorType

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Loop
    from dsl.codegen.program import Program

__all__ = ["Region", "is_expensive", "is_native"]


def is_native(node: ir.Node) -> bool:
    """Tell whether a node can be part of a kernel or of scalar code."""
    name = node.op.name
    if name in REDUCTIONS or name in _STRUCTURAL:
        return True
    tensors = [v.type for v in node.inputs if isinstance(v.type, TensorType)]
    return elementwise.supported(name, [t.dtype for t in tensors])


Offset = Callable[[tuple[Affine, ...]], tuple[Affine, ...]]
_MANY = 80  # statements of a program whose kernels have functions of their own
_STRUCTURAL = frozenset(
    (
        "broadcast_to", "transpose", "slice", "reshape", "dynamic_slice", "full", "iota", "gather", "pad",
        "concatenate", "identity", "dim_size", "broadcast_dim", "assert",
    )
)  # fmt: skip


def is_expensive(node: ir.Node) -> bool:
    """Tell whether a node costs so much that a kernel should not compute it twice."""
    tensors = [v.type for v in node.inputs if isinstance(v.type, TensorType)]
    return bool(tensors) and elementwise.expensive(node.op.name, [t.dtype for t in tensors])


class Region:
    """Emits one graph."""

    def __init__(self, program: Program, graph: ir.Graph, symbols: dict[Dim, Operand]) -> None:
        self.program, self.graph, self.fn = program, graph, program.fn
        self.symbols = dict(symbols)
        self.registers: dict[ir.Value, Scalar] = {}
        self.placed: dict[ir.Value, Placed] = {}
        self.wanted: dict[ir.Value, Slot] = {}
        self.givings: dict[Slot, int] = {}  # how often those slots had been taken before
        self.sources: dict[Dim, ir.Value] = {}
        self.ranges = Ranges()
        self.now = 0
        self.names = Names(graph)
        self.mark = 0  # of the report's lines, where the current statement's begin
        self.last: dict[ir.Value, int] = {}
        self.within: dict[ir.Node, Within] = {}  # updates of parts, by those that put them back
        self.loop: Loop | None = None  # whose body this is
        # How far places are from what indices for axes of some sizes say, where that has been looked at before.
        self.offsets: dict[tuple[ir.Value, DimLike], Value] = {}

    def inner(self, graph: ir.Graph) -> Self:
        """Return a region inside this one: it knows the sizes of its params that operands here give, alone or in a sum."""
        symbols = symbols_of(*(dim for param in graph.params for dim in param.shape))
        sized = {s: self.dim(s) for s in symbols if s not in self.symbols and s in self.sources}
        return type(self)(self.program, graph, {**self.symbols, **sized})

    def register(self, value: ir.Value) -> Scalar:
        found = self.registers.get(value)
        if found is None:
            if value.node.op.name == "const":
                return literal(value.node.attrs["value"].array, value.dtype)
            raise InternalError(f"{value} is used before it is computed")
        return found

    def set_register(self, value: ir.Value, scalar: Scalar) -> None:
        self.registers[value] = scalar

    def array(self, value: ir.Value) -> Array:
        return self.place_of(value).array

    def place_of(self, value: ir.Value) -> Placed:
        """Return where a materialised value is, or a constant."""
        found = self.placed.get(value)
        if found is not None:
            return found
        if value.node.op.name == "const":
            return self.place_constant(value)
        view = self.view(value)
        if view is None:
            raise InternalError(f"{value} is not in memory")
        return view

    def place_constant(self, value: ir.Value) -> Placed:
        pointer = self.program.constant(value.node)
        slot = Slot(-1, self.program.nowhere, "const", owned=False)
        dims = tuple(self.dim(d) for d in value.shape)
        array = Array(
            value.dtype, pointer, dims, contiguous_strides(self.fn, value.shape, self.dim)
        )
        return Placed(slot, array)

    def view(self, value: ir.Value) -> Placed | None:
        """Return a value that only rearranges a materialised one as an array over the same memory."""
        pool = Pool()
        elements = Elements(
            pool, lambda v: v in self.placed or (v.node.op.name == "const" and splat(v) is None)
        )
        variables = tuple(Var(d) for d in value.shape)
        try:
            e = elements.at(value, identity_index(variables))
        except InternalError:
            return None
        if e.kind != "load" or any(item.vars for i in e.index for item, _ in i.extra):
            return None
        assert e.value is not None
        base = self.place_of(e.value)
        fn = self.fn
        start = Evaluator(fn, self, dict.fromkeys(variables, 0), [{}], unchecked).address(
            base.array, e.index
        )
        strides: list[Operand] = []
        for var in variables:
            total: Operand = 0
            for i, stride in zip(e.index, base.array.strides, strict=True):
                for v, scale in i.terms:
                    if v is var:
                        total = fn.add(total, fn.mul(stride, scale))
            strides.append(total)
        dims = tuple(self.dim(d) for d in value.shape)
        return Placed(base.slot, Array(value.dtype, start, dims, tuple(strides)), contiguous=False)

    def dim(self, dim: DimLike) -> Operand:
        """Return a size as a number; one that an operand gives is read from its register."""
        if isinstance(dim, int):
            return dim
        known = self.symbols.get(dim)
        if known is not None:
            return known
        found = self._dim(dim)
        if isinstance(found, Value):
            found.dim = dim
        return found

    def bytes(self, size: DimLike) -> Operand:
        """Return how many bytes to allocate: a size that does not fit in a word is one that nobody has.

        It is found out in floating point, where products of sizes that are too large do not wrap around to small ones.
        """
        exact = self.dim(size)
        if isinstance(size, int) or not isinstance(exact, Value):
            return exact
        fn = self.fn
        total = fn.as_value(0, "double")
        for factors, scale in size.terms:
            product = fn.as_value(scale, "double")
            for factor in factors:
                each = fn.convert("sitofp", fn.as_value(self._factor(factor), "i64"), "double")
                product = fn.binary("fmul", product, each)
            total = fn.binary("fadd", total, product)
        fits = fn.define(
            "i1", f"fcmp olt double {total.text}, {fn.as_value(1 << 62, 'double').text}"
        )
        return fn.select(fits, exact, (1 << 63) - 1)

    def _dim(self, dim: Dim) -> Operand:
        fn = self.fn
        total: Operand = 0
        for factors, scale in dim.terms:
            product: Operand = scale
            for factor in factors:
                product = fn.mul(product, self._factor(factor))
            total = fn.add(total, product)
        return total

    def _factor(self, factor: Any) -> Operand:
        fn = self.fn
        symbol = Dim((((factor,), 1),))
        if symbol in self.symbols:
            return self.symbols[symbol]
        kind = getattr(factor, "kind", None)
        if kind is None:
            source = self.sources.get(symbol)
            if source is None:
                raise InternalError(f"the size {symbol} is not known here")
            number = self.register(source)
            assert isinstance(number, Value)
            return number
        a, b = self.dim(factor.lhs), self.dim(factor.rhs)
        if kind == "max":
            return fn.maximum(a, b)
        if kind == "min":
            return fn.minimum(a, b)
        if (lower_bound(factor.rhs) or 0) < 1:
            # What a program refuses to divide by may be computed before it does; the processor would end the process.
            b = fn.select(fn.compare("eq", b, 0), 1, b)
        quotient = fn.binary(
            "sdiv", a, b
        )  # floor: correct the quotient where signs differ and it is not exact
        rest = fn.binary("srem", a, b)
        wrong = fn.both(fn.compare("ne", rest, 0), fn.compare("slt", fn.binary("xor", rest, b), 0))
        if kind == "floordiv":
            return fn.sub(quotient, fn.convert("zext", wrong, "i64"))
        return fn.add(rest, fn.select(wrong, b, 0))

    def function_of(self, node: ir.Node) -> str:
        """Return the name by which `elementwise` has what computes a node, in vectors."""
        name = node.op.name
        return BESIDE_ONE[name] if name in BESIDE_ONE and node in self.beside_one else name

    @cached_property
    def beside_one(self) -> frozenset[ir.Node]:
        """The nodes whose results are rounded as parts of sums."""
        return beside_one(self.graph)

    @property
    def checks(self) -> bool:
        """Whether indices are checked."""
        return self.program.checks

    def lacks_memory(self) -> None:
        """End the program: memory cannot be had."""
        self.program.lacks_memory()

    def fail_expression(self, fn: Function, bad: Value, e: Expression, number: Value) -> None:
        if e.kind == "checked":
            assert e.node is not None
            signed = e.args[0].dtype.kind == "i"
            wide = fn.convert("sext" if signed else "zext", number, "i64")
            site = ErrorSite("index", e.node, e.output)
            self.program.fail(fn, bad, site, wide, self.dim(e.constant))
        else:
            own = e.node is not None and e.node.op.raised is not None
            site = ErrorSite("raised" if own else "negative_power", e.node)
            self.program.fail(fn, bad, site, number)

    def bind(self, value: ir.Value, placed: Placed) -> None:
        self.placed[value] = placed
        placed.slot.users.add(value)
        placed.slot.taken += 1
        if placed.slot.kind == "param" and value not in self.program.graph.params:
            self.program.note_write()

    def bind_symbols(self, shape: Shape, dims: Sequence[Operand]) -> None:
        """Learn the sizes of symbols from an array's dims."""
        for dim, size in zip(shape, dims, strict=True):
            if not isinstance(dim, Dim):
                continue
            unknown = [s for s in symbols_of(dim) if s == dim or s not in self.symbols]
            if len(unknown) == 1:
                solved = self.solve(dim, unknown[0], size)
                if solved is not None:
                    self.symbols[unknown[0]] = solved

    def solve(self, dim: Dim, symbol: Dim, size: Operand) -> Operand | None:
        """Return the symbol's size from that of a dim in which it stands linearly."""
        if dim == symbol:
            return size
        rest = dim - symbol
        scale = next((s for factors, s in dim.terms if Dim(((factors, 1),)) == symbol), None)
        if scale is None:
            return None
        rest = dim - symbol * scale
        if symbol in symbols_of(rest):
            return None
        return self.fn.binary("sdiv", self.fn.sub(size, self.dim(rest)), scale)

    def want(self, value: ir.Value, home: Slot) -> None:
        """Have a value that is made here be left in a slot, if nothing else is in it then."""
        self.wanted.setdefault(value, home)
        self.givings[home] = home.taken

    def vacant_home(self, value: ir.Value) -> Slot | None:
        """Return the slot that a value is wanted in, unless another value, or a statement's workspace, has it now."""
        home = self.wanted.get(value)
        if home is None or home.users:
            return None
        lent = home.taken != self.givings[home] and home not in self.program.free
        return None if lent else home

    def new_place(self, value: ir.Value, note: str = "") -> Placed:
        """Return memory for a value of known dims: where somebody wants it, or a slot of its own."""
        slot = self.vacant_home(value)
        size = nbytes(value.shape, value.dtype.itemsize)
        if slot is None:
            slot = self.program.allocate(size, self, note or value.node.op.name)
        else:
            self.program.take(slot)
            if slot.kind == "dynamic":
                self.program.ensure(slot, self.dim(size))
        return self.in_slot(slot, value)

    def borrow(self, size: DimLike, note: str) -> tuple[Value, Callable[[], None]]:
        """Return the address of so many bytes of the program's workspace, and what gives them back."""
        slot = self.program.allocate(size, self, note)
        return slot.variable.get(), lambda: self.program.release(slot)

    def in_slot(self, slot: Slot, value: ir.Value) -> Placed:
        dims = tuple(self.dim(d) for d in value.shape)
        pointer = slot.variable.get()
        return Placed(
            slot,
            Array(value.dtype, pointer, dims, contiguous_strides(self.fn, value.shape, self.dim)),
        )

    def dies(self, value: ir.Value) -> bool:
        return self.last.get(value, -1) <= self.now

    def may_overwrite(self, value: ir.Value) -> bool:
        """Tell whether a value's memory may be overwritten by the current statement."""
        placed = self.placed.get(value)
        if placed is None or not placed.slot.owned:
            return False
        return placed.slot.users == {value} and self.dies(value)

    def is_new(self, value: ir.Value, read: Iterable[ir.Value]) -> bool:
        """Tell whether a value has memory of the program's own, which starts with a line of the cache, and none of others is in it."""
        placed = self.placed.get(value)
        if placed is None or self.program.depth or not placed.contiguous:
            return False  # loops may exchange memory with that of callers
        slot = placed.slot
        others = (self.placed[v].slot for v in read if v in self.placed)
        return slot.kind == "block" and not slot.exchanged and all(s is not slot for s in others)

    @property
    def apart(self) -> bool:
        """Whether kernels have functions of their own, however little they do."""
        return self.program.is_long and not self.program.depth

    def planned(self) -> Plan:
        """Return the statements that the graph becomes."""
        return plan(
            self.graph, supported=is_native, expensive=is_expensive, within=True, rooms=True
        )

    def run(self) -> None:
        """Emit all statements."""
        made = self.planned()
        self.within = made.within
        self.program.is_long |= len(made.statements) > _MANY
        for node in self.graph.nodes:
            for symbol, operand in zip(node.dims, node.inputs[len(node.inputs) - len(node.dims) :]):
                self.sources.setdefault(symbol, operand)
        self.readers = _readers(made.statements)
        for k, statement in enumerate(made.statements):
            for value in statement.reads:
                self.last[value] = k
        forever = len(made.statements)
        for value in self.graph.results:
            self.last[value] = forever
        for k, statement in enumerate(made.statements):
            self.now = k
            self.mark = len(self.program.report.lines)
            self.timed(statement, partial(self.statement, statement))
            self.note(statement, self.names)
            for value in [*statement.reads, *statement.writes]:
                if self.last.get(value, -1) <= k:
                    self.drop(value)
        self.now = forever

    def note(self, statement: Statement, names: Names) -> None:
        """Describe a statement for the kernels stage; a branch's or loop's regions have described theirs before."""
        memory = {
            v: f"{p.slot.kind} {p.slot.number}"
            for v in statement.writes
            if (p := self.placed.get(v)) is not None
        }
        report = self.program.report
        lines = list(describe(statement, names, memory))
        report.lines[self.mark :] = [*lines, *("  " + line for line in report.lines[self.mark :])]
        self.mark = len(report.lines)

    def drop(self, value: ir.Value) -> None:
        placed = self.placed.get(value)
        if placed is None or value not in placed.slot.users:
            return
        placed.slot.users.discard(value)
        if not placed.slot.users and placed.slot.owned:
            self.program.release(placed.slot)

    def timed(self, statement: Statement, emit: Callable[[], None]) -> None:
        """Emit a statement, with clocks around it if the program has any."""
        timer = self.program.timer
        if timer is None:
            emit()
        else:
            timer.run(self, statement, emit)

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, Kernel):
            emit_kernel(self, statement)
            return
        _SINGLES[statement.kind](self, statement.node)

    def loops(
        self,
        shape: Shape,
        body: Callable[[tuple[Operand, ...]], None],
        index: tuple[Operand, ...] = (),
        *,
        as_written: bool = False,
    ) -> None:
        if len(index) == len(shape):
            body(index)
            return
        extent = self.dim(shape[len(index)])
        with self.fn.loop(0, extent, as_written=as_written) as at:
            self.loops(shape, body, (*index, at), as_written=as_written)

    def map_to(
        self,
        value: ir.Value,
        target: Array,
        space: Shape,
        offset: Offset,
        line: str = "",
    ) -> None:
        """Emit a kernel that computes `value` over `space` and stores it at `offset` of the index."""
        self.map_all_to([(value, lambda i: i, offset)], target, space, line)

    def map_all_to(
        self,
        parts: Sequence[tuple[ir.Value, Offset, Offset]],
        target: Array,
        space: Shape,
        line: str = "",
    ) -> None:
        """Emit a kernel that at each point of `space` computes several values, at one offset of it, and stores them at another."""
        variables = tuple(Var(d, f"i{k}") for k, d in enumerate(space))
        pool = Pool()
        elements = Elements(pool, self.in_memory)
        index = identity_index(variables)
        roots = [
            Root(x.node, StandIn(x), elements.at(x, read(index)), written(index))
            for x, read, written in parts
        ]
        kernel = Kernel(variables, pool, elements)
        kernel.stages = [Stage(False, roots)]
        if any(isinstance(d, int) and d == 0 for d in space):
            return
        self.program.report.lines.extend([line] if line else describe(kernel, self.names, {}))
        KernelEmitter(self, kernel, {root.value: target for root in roots}).emit()

    def in_memory(self, value: ir.Value) -> bool:
        return value in self.placed or value.node.op.name == "const"

    def copy(self, source: Array, target: Array, shape: Shape, why: str, loc: Any) -> None:
        """Copy an array, and note it for the memory report."""
        self.program.report.copies.append((why, nbytes(shape, source.dtype.itemsize), loc))
        value = StandIn(None, TensorType(source.dtype, shape))
        self.placed[value] = Placed(Slot(-1, self.program.nowhere, "view"), source, False)
        try:
            line = f"copy of ({', '.join(map(str, shape))}): {why}"
            with self.timed_copy(shape, source.dtype.itemsize, loc):
                self.map_to(value, target, shape, lambda i: i, line)
        finally:
            del self.placed[value]

    def timed_copy(self, shape: Shape, itemsize: int, loc: Any) -> AbstractContextManager[None]:
        timer = self.program.timer
        if timer is None:
            return nullcontext()
        return timer.site(self, "copy", "copy", (loc,), nbytes(shape, 2 * itemsize))

    def copy_together(self, moves: list[tuple[Placed, Placed, ir.Value]]) -> None:
        """Copy arrays as if at once: a source that another copy overwrites is saved first."""
        targets = {target.slot for _, target, _ in moves}
        ready = []
        for source, target, value in moves:
            if source.slot in targets and source.slot is not target.slot and len(moves) > 1:
                slot = self.program.allocate(
                    nbytes(value.shape, value.dtype.itemsize), self, "exchange"
                )
                saved = self.in_slot(slot, value)
                self.copy(
                    source.array,
                    saved.array,
                    value.shape,
                    "arrays that change places",
                    value.node.loc,
                )
                source = saved
            ready.append((source, target, value))
        for source, target, value in ready:
            self.copy(
                source.array, target.array, value.shape, "back into its place", value.node.loc
            )

    def element(self, value: ir.Value, index: tuple[Affine, ...]) -> Expression:
        return Elements(Pool(), self.in_memory).at(value, index)

    def evaluate(self, e: Expression) -> Scalar:
        def bad(condition: Value, item: Expression, number: Value) -> None:
            self.fail_expression(self.fn, condition, item, number)

        return Evaluator(self.fn, self, {}, [{}], bad).value(e)

    def copy_value(self, x: ir.Value, target: Placed, why: str, node: ir.Node) -> None:
        if self.in_memory(x) and splat(x) is None:
            self.program.report.copies.append((why, nbytes(x.shape, x.dtype.itemsize), node.loc))
        with self.timed_copy(x.shape, x.dtype.itemsize, node.loc):
            self.map_to(x, target.array, x.shape, lambda i: i)

    def address(self, array: Array, index: tuple[Affine, ...]) -> Value:
        return Evaluator(self.fn, self, {}, [{}], unchecked).address(array, index)

    def scalar_variables(self, dtype: np.dtype) -> tuple[Variable, ...]:
        count = 2 if dtype.kind == "c" else 1
        return tuple(self.fn.variable(register_type(dtype)) for _ in range(count))

    def assign(self, variables: dict[Any, tuple[Variable, ...]], values: dict[Any, Scalar]) -> None:
        for key, parts in variables.items():
            value = values[key]
            for variable, part in zip(parts, value if isinstance(value, tuple) else (value,)):
                variable.set(part)


def _readers(statements: Sequence[Statement]) -> dict[ir.Value, list[Statement]]:
    found: dict[ir.Value, list[Statement]] = {}
    for statement in statements:
        for value in statement.reads:
            found.setdefault(value, []).append(statement)
    return found


_SINGLES: dict[str, Callable[[Region, ir.Node], None]] = {
    "scalar": emit_scalar,
    "check": emit_check,
    "alias": emit_alias,
    "spread": emit_spread,
    "room": emit_room,
    "pieces": emit_pieces,
    "update": emit_update,
    "library": emit_call,
    "control": emit_control,
}
