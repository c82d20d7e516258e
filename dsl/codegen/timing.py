"""Clocks in a program, for profiles: around each kernel, library call, copy and loop, the program notes the time.

In: a program under construction and its statements, as they are emitted. Out: the sites, and code that hands a buffer of
words to Python when the program ends: three for each site (see `dsl.events.Site`), then the start and end of the program.
A program without sites has no clocks.

What is timed: all that goes through arrays, and loops. Inside loops time is added up, and what takes less than reading a
clock twice does (scalar code, single elements, loops of scalars within loops within loops) is left to the loop around it.
The call of the clock also keeps LLVM from moving loads and stores past it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsl.codegen.expressions import Expression
from dsl.codegen.frame import STATUS
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.memory import nbytes
from dsl.codegen.plan import Kernel, Single, Statement
from dsl.errors import InternalError
from dsl.events import WORDS, Site
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, dim_min
from dsl.ir.facts import is_array

if TYPE_CHECKING:
    from dsl.codegen.program import Program
    from dsl.codegen.region import Region

__all__ = ["TELL", "Timer"]

TELL = -1
"""The number by which a program asks Python to take its times, where others are those of nodes."""

_MONOTONIC = 1 if sys.platform == "linux" else 6  # the system's clock, as in `pool`
_FEW = 64  # points of a kernel that is not worth a clock inside a loop
_LOOPS = ("while", "scan")
_UNTIMED = frozenset(("scalar", "check", "alias", "spread"))
_SHOWN = 5  # ops in the name of a kernel


class Timer:
    """The sites of a program under construction."""

    def __init__(self, program: Program) -> None:
        self.program, self.fn = program, program.fn
        self.sites: list[Site] = []
        self.buffer = self.fn.name_value("ptr")
        self.start = self.fn.name_value("i64")
        self.around: list[int] = []  # the sites that are being emitted
        self.depth = 0  # of loops

    # -- what is timed ---------------------------------------------------------------------------------------------

    def run(self, region: Region, statement: Statement, emit: Callable[[], None]) -> None:
        """Emit a statement, with clocks around it if it deserves them."""
        if isinstance(statement, Single) and statement.node.op.name in _LOOPS:
            self.loop(region, statement, emit)
            return
        if not self.deserves(statement):
            emit()
            return
        kind = _kind(statement)
        with self.site(region, _name(statement), kind, _places(statement), _moved(statement)):
            emit()

    def loop(self, region: Region, statement: Single, emit: Callable[[], None]) -> None:
        node = statement.node
        heavy = any(map(_has_arrays, (n for r in node.regions for n in r.walk())))
        timed = self.depth < 2 or heavy
        if not timed:
            emit()
            return
        with self.site(region, node.op.name, "loop", (node.loc,), None):
            self.depth += 1
            emit()
            self.depth -= 1

    def deserves(self, statement: Statement) -> bool:
        points = _points(statement)
        few = points is None or (isinstance(points, int) and points < _FEW)
        if isinstance(statement, Kernel):
            return not (few and self.depth)
        if statement.kind in _UNTIMED or statement.kind == "control":
            return False
        if statement.node.op.name == "assert":
            return False
        return _has_arrays(statement.node) and not (few and self.depth)

    # -- code ------------------------------------------------------------------------------------------------------

    @contextmanager
    def site(
        self, region: Region, name: str, kind: str, places: Iterable[Any], bytes: DimLike | None
    ) -> Iterator[None]:
        """Time what is emitted in a `with` block."""
        number = len(self.sites)
        parent = self.around[-1] if self.around else -1
        repeats = self.depth > 0
        known = bytes if isinstance(bytes, int) else None
        self.sites.append(Site(name, kind, _distinct(places), parent, repeats, known))
        before = self.clock()
        self.around.append(number)
        yield
        self.around.pop()
        after = self.clock()
        if repeats:
            self.add(number, 0, 1)
            self.add(number, 1, self.fn.sub(after, before))
        else:
            self.fn.store(before, self.word(number, 0))
            self.fn.store(after, self.word(number, 1))
        if known is None and bytes is not None:
            self.note_bytes(region, number, bytes)

    def note_bytes(self, region: Region, number: int, bytes: DimLike) -> None:
        """Add up bytes that only a run can tell; not if a size is out of reach."""
        try:
            self.add(number, 2, region.dim(bytes))
        except InternalError:
            return

    def clock(self) -> Value:
        return self.fn.call("i64", "dsl_clock", Value(str(_MONOTONIC), "i32"))

    def word(self, site: int, word: int) -> Value:
        return self.fn.gep(self.buffer, 8 * (WORDS * site + word))

    def add(self, site: int, word: int, amount: Operand) -> None:
        place = self.word(site, word)
        self.fn.store(self.fn.binary("add", self.fn.load("i64", place), amount), place)

    def finish(self) -> None:
        """Emit, where the program ends, what hands the times over; unless Python has an exception to tell of."""
        if not self.sites:
            return
        fn, at = self.fn, WORDS * len(self.sites)
        size = 8 * (at + 2)
        fn.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        fn.module.declare("dsl_clock", "i64", ["i32"])
        fn.at_entry(f"{self.buffer.text} = alloca [{size} x i8], align 16")
        fn.at_entry(
            f"call void @llvm.memset.p0.i64(ptr {self.buffer.text}, i8 0, i64 {size}, i1 false)"
        )
        fn.at_entry(f"{self.start.text} = call i64 @dsl_clock(i32 {_MONOTONIC})")
        fn.store(self.start, fn.gep(self.buffer, 8 * at))
        fn.store(self.clock(), fn.gep(self.buffer, 8 * (at + 1)))
        with fn.if_(fn.compare("ne", self.program.status.get(), STATUS.PYTHON)):
            number = Value(str(TELL), "i64")
            told = fn.call("i64", "dsl_python", fn.params[1], number, self.buffer)
            with fn.if_(fn.compare("ne", told, 0), unlikely=True):  # Ctrl-C
                self.program.status.set(STATUS.PYTHON)


# -- what a statement is -----------------------------------------------------------------------------------------------


def _kind(statement: Statement) -> str:
    return "kernel" if isinstance(statement, Kernel) else _SINGLE.get(statement.kind, "kernel")


_SINGLE = {"library": "library", "update": "update"}


def _name(statement: Statement) -> str:
    if isinstance(statement, Single):
        return statement.node.op.name
    names = list(dict.fromkeys(node.op.name for node in _nodes(statement)))
    return " ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


def _places(statement: Statement) -> Iterator[Any]:
    """Yield the user's places of a statement, that of its last result first."""
    nodes = [statement.node] if isinstance(statement, Single) else [*_nodes(statement)]
    yield from (node.loc for node in reversed(nodes))


def _distinct(places: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(place for place in places if place is not None))


def _nodes(kernel: Kernel) -> Iterator[ir.Node]:
    """Yield the nodes that a kernel computes, operands first."""
    seen: set[Expression] = set()
    for root in kernel.roots:
        inside = list(_computed(root.expression, seen))
        yield from inside
        if root.reduce or not inside:
            yield root.node


def _computed(root: Expression, seen: set[Expression]) -> Iterator[ir.Node]:
    stack = [(root, False)]
    while stack:
        e, ready = stack.pop()
        if ready:
            if e.kind == "op" and e.node is not None:
                yield e.node
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            stack.extend((arg, False) for arg in reversed(e.args))


def _has_arrays(node: ir.Node) -> bool:
    return any(map(is_array, (*node.inputs, *node.outputs)))


def _points(statement: Statement) -> DimLike | None:
    """Return how many elements a statement computes; None if it is not clear."""
    if isinstance(statement, Kernel):
        return nbytes(statement.space, 1)
    if statement.written is not None:
        return nbytes(statement.written.shape, 1)
    values = (*statement.node.inputs, *statement.node.outputs)
    sizes = [nbytes(value.shape, 1) for value in values if is_array(value)]
    static = [n for n in sizes if isinstance(n, int)]
    return None if not sizes else max(static) if len(static) == len(sizes) else sizes[-1]


# -- bytes -------------------------------------------------------------------------------------------------------------


def _moved(statement: Statement) -> DimLike:
    """Return the bytes that a statement reads and writes, each array once, at most an element for each point."""
    if isinstance(statement, Kernel):
        total = _read(statement, nbytes(statement.space, 1))
        return _sum(total, (_size(value) for value in statement.writes if is_array(value)))
    node = statement.node
    if statement.written is not None:
        shape = statement.written.shape
        total = _read(statement, nbytes(shape, 1), skip=node.inputs[0])
        return total + nbytes(shape, node.outputs[0].dtype.itemsize)
    return _sum(0, (_size(value) for value in (*node.inputs, *node.outputs) if is_array(value)))


def _read(statement: Statement, points: DimLike, skip: ir.Value | None = None) -> DimLike:
    arrays = [value for value in statement.reads if is_array(value) and value is not skip]
    return _sum(0, (dim_min(_size(v), points * v.dtype.itemsize) for v in arrays))


def _size(value: ir.Value) -> DimLike:
    return nbytes(value.shape, value.dtype.itemsize)


def _sum(total: DimLike, sizes: Iterable[DimLike]) -> DimLike:
    for size in sizes:
        total = total + size
    return total
