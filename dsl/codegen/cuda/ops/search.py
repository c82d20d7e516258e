"""Where values would go into a sorted vector: a binary search for each, by a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import flat, offset, thread_number
from dsl.codegen.cuda.ops.order import Order, Words
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Made, Step
from dsl.codegen.llvm import Value
from dsl.ir import graph as ir
from dsl.ir.types import size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (a, v), (value,) = node.inputs, node.outputs
    source, total = lowering.source("searchsorted"), size_of(value.shape)
    fn, order = source.fn, Order(source.fn, a.dtype)
    out, thread = source.place(value), thread_number(source)
    with fn.if_(fn.compare("slt", thread, source.dim(total))):
        wanted = _wanted(source, order, v, thread)
        found = _search(source, order, a, wanted, node.attrs["side"] == "left")
        fn.store(found, flat(out, thread, source), align=8)
    source.finish(BLOCK)
    launch = lowering.done(source, Geometry((ceil_div(total, BLOCK), 1), BLOCK), "searchsorted")
    return Made((value,), [launch])


LOWERINGS = {"searchsorted": (lambda node: True, _lower)}


def _wanted(source: Source, order: Order, v: ir.Value, number: Value) -> Words:
    if not v.shape:
        return order.words_of(source.register(v))
    array = source.array(v)
    if not source.layouts.strided(v):
        return order.load(flat(array, number, source))
    axes = list(zip(array.dims, array.strides, strict=True))
    return order.load(flat(array, offset(source, axes, number), source))


def _search(source: Source, order: Order, a: ir.Value, wanted: Words, left: bool) -> Value:
    """Return how many elements of a sorted vector come before one."""
    fn, array = source.fn, source.array(a)
    low, high = fn.variable("i64", 0), fn.variable("i64", array.dims[0])
    with fn.while_(lambda: fn.compare("slt", low.get(), high.get())):
        middle = fn.binary("lshr", fn.binary("add", low.get(), high.get()), 1)
        found = order.load(array.address(fn, (middle,)))
        goes = order.less(found, wanted) if left else fn.invert(order.less(wanted, found))
        low.set(fn.select(goes, fn.binary("add", middle, 1), low.get()))
        high.set(fn.select(goes, high.get(), middle))
    return low.get()
