"""The distinct values of a vector.

A stable sort of indices, marks where a value differs from the one before, and their running sums, which number the
groups. The host reads how many there are; then each element writes what its group needs of it, and what lies between the
beginnings of groups is their counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.arrays import load_scalar, store_scalar
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import flat, thread_number
from dsl.codegen.cuda.ops.nonzero import Counted
from dsl.codegen.cuda.ops.order import Order, Words
from dsl.codegen.cuda.ops.running import emit_running
from dsl.codegen.cuda.ops.sorting import emit_argsort
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Launch, Step
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import Dim
from dsl.ir.types import I64, TensorType

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,) = node.inputs
    order, marks, groups, starts = (StandIn(None, TensorType(I64, x.shape)) for _ in range(4))
    sorts, _, scratch = emit_argsort(lowering, x, order)
    first: list[Step] = [*sorts, _mark(lowering, x, order, marks)]
    scans, more = emit_running(lowering, "cumsum", marks, groups, 0)
    second = [
        _write(lowering, node, (order, marks, groups), starts),
        _count(lowering, node, starts),
    ]
    (size,) = node.outputs[0].shape
    assert isinstance(size, Dim)
    memory = (order, marks, groups, starts, *scratch, *more)
    return Counted(node.outputs, [*first, *scans], groups, size, second, memory)


LOWERINGS = {"unique": (lambda node: True, _lower)}


def _at(source: Source, value: ir.Value, place: Operand) -> Value:
    return source.fn.load("i64", flat(source.array(value), place, source), align=8)


def _done(lowering: Lowering, source: Source, size: ir.Value, what: str) -> Launch:
    source.finish(BLOCK)
    return lowering.done(source, Geometry((ceil_div(size.shape[0], BLOCK), 1), BLOCK), what)


def _mark(lowering: Lowering, x: ir.Value, order: ir.Value, marks: ir.Value) -> Launch:
    """Emit the kernel that marks where groups begin."""
    source = lowering.source("mark")
    fn, out, array = source.fn, source.place(marks), source.array(x)
    thread, keys = thread_number(source), Order(source.fn, x.dtype)
    with fn.if_(fn.compare("slt", thread, source.dim(x.shape[0]))):
        before = fn.maximum(fn.sub(thread, 1), 0)
        a, b = (
            keys.load(array.address(fn, (_at(source, order, place),))) for place in (before, thread)
        )
        new = fn.either(fn.compare("eq", thread, 0), _differ(keys, a, b))
        fn.store(fn.convert("zext", new, "i64"), flat(out, thread, source), align=8)
    return _done(lowering, source, x, "beginnings of groups")


def _differ(keys: Order, a: Words, b: Words) -> Value:
    """Return whether an element is of another group than the one before it; complex numbers with a NaN are of one."""
    fn, less = keys.fn, keys.less(a, b)
    if not keys.is_complex:
        return less
    return fn.both(less, fn.invert(fn.both(keys.has_nan(a), keys.has_nan(b))))


def _write(
    lowering: Lowering, node: ir.Node, known: tuple[ir.Value, ir.Value, ir.Value], starts: ir.Value
) -> Launch:
    """Emit the kernel in which each element writes its group, and the first of a group what the group is."""
    source = lowering.source("unique")
    (x,), fn = node.inputs, source.fn
    values, index, inverse, begin = (source.place(v) for v in (*node.outputs[:3], starts))
    array, thread = source.array(x), thread_number(source)
    with fn.if_(fn.compare("slt", thread, source.dim(x.shape[0]))):
        own, mark, number = (_at(source, value, thread) for value in known)
        group = fn.binary("sub", number, 1)
        fn.store(group, flat(inverse, own, source), align=8)
        with fn.if_(fn.compare("ne", mark, 0)):
            found = load_scalar(fn, x.dtype, array.address(fn, (own,)))
            store_scalar(fn, x.dtype, found, flat(values, group, source))
            fn.store(own, flat(index, group, source), align=8)
            fn.store(thread, flat(begin, group, source), align=8)
    return _done(lowering, source, x, "unique")


def _count(lowering: Lowering, node: ir.Node, starts: ir.Value) -> Launch:
    """Emit the kernel that counts the elements of groups."""
    source = lowering.source("counts")
    (x,), counts = node.inputs, node.outputs[3]
    fn, out, thread = source.fn, source.place(counts), thread_number(source)
    groups, total = source.dim(counts.shape[0]), source.dim(x.shape[0])
    with fn.if_(fn.compare("slt", thread, groups)):
        following = fn.add(thread, 1)
        place = fn.minimum(following, fn.sub(groups, 1))
        is_last = fn.compare("eq", following, groups)
        end = fn.select(is_last, total, _at(source, starts, place))
        fn.store(
            fn.binary("sub", end, _at(source, starts, thread)), flat(out, thread, source), align=8
        )
    return _done(lowering, source, counts, "counts of unique")
