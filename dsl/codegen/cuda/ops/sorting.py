"""Sorts, of values and of indices, along an axis.

Lines of up to 1024 elements are sorted by networks (`networks`). Longer ones are sorted by tiles of as many, which are
merged in passes through memory: each thread finds by a binary search where its element goes. Sorts of indices are stable;
in sorts of values that cannot be seen. `nth_element` sorts too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.arrays import load_scalar, store_scalar
from dsl.codegen.cuda.frame import Frame
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import Lines, flat, thread_number
from dsl.codegen.cuda.ops.networks import TILE, Network, Sort, plain_words
from dsl.codegen.cuda.ops.order import Order, Words, word_dtypes
from dsl.codegen.cuda.source import Argument, Source
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, DimLike, Symbol
from dsl.ir.types import I64, TensorType, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS", "emit_argsort"]

Emitted = tuple[list[Step], dict[ir.Value, tuple[ir.Value, ...]], tuple[ir.Value, ...]]
"""What runs, which operands are overwritten, and the memory that is needed meanwhile."""


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,), (y,) = node.inputs, node.outputs
    descending = bool(node.attrs.get("descending"))
    sort = Sort(lowering, x, y, node.attrs["axis"], node.op.name == "argsort", descending)
    return Made((y,), *_emit(sort))


def _lower_nth_element(lowering: Lowering, node: ir.Node) -> Step:
    """All lines are sorted; then each wanted element is fetched from its place."""
    (x, _), (y,) = node.inputs, node.outputs
    ordered = StandIn(None, x.tensor)
    steps, _, scratch = _emit(Sort(lowering, x, ordered, node.attrs["axis"], indices=False))
    return Made((y,), [*steps, _fetch(lowering, node, ordered)], {}, (ordered, *scratch))


LOWERINGS = {
    **dict.fromkeys(("sort", "argsort"), (lambda node: True, _lower)),
    "nth_element": (lambda node: True, _lower_nth_element),
}


def emit_argsort(lowering: Lowering, x: ir.Value, y: ir.Value) -> Emitted:
    """Emit what writes the indices that sort a vector."""
    return _emit(Sort(lowering, x, y, 0, True))


@dataclass(frozen=True)
class _Merges:
    """As many passes as the length needs, each of which doubles sorted runs, and what puts the elements into place."""

    length: DimLike
    size: Dim
    merge: tuple[Launch, Launch]  # from either set of buffers to the other
    place: tuple[Launch, Launch]

    def run(self, frame: Frame) -> None:
        size, turn, length = TILE, 0, frame.size(self.length)
        while size < length:
            frame.sizes[self.size] = size
            self.merge[turn].run(frame)
            size, turn = 2 * size, 1 - turn
        self.place[turn].run(frame)


def _swapped(launch: Launch, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Launch:
    """Return a launch with one set of buffers in the place of the other."""
    other = {**dict(zip(a, b, strict=True)), **dict(zip(b, a, strict=True))}
    arguments = [
        Argument(kind, other.get(what, what) if kind == "array" else what, which)
        for kind, what, which in launch.arguments
    ]
    return Launch(launch.kernel, arguments, launch.geometry)


def _emit(sort: Sort) -> Emitted:
    length = sort.length
    if isinstance(length, int) and length <= TILE:
        return [Network(sort, None).emit()], {}, ()
    dtypes = word_dtypes(sort.x.dtype) + [I64] * sort.indices
    a, b = (
        tuple(StandIn(None, TensorType(dtype, (sort.count, length))) for dtype in dtypes)
        for _ in range(2)
    )
    size = Symbol("run")
    merge, place = _merge(sort, a, b, size), _place(sort, a)
    passes = _Merges(length, size, (merge, _swapped(merge, a, b)), (place, _swapped(place, a, b)))
    return [Network(sort, a).emit(), passes], {}, a + b


# -- merging ----------------------------------------------------------------------------------------------------------


def _merge(sort: Sort, a: Sequence[ir.Value], b: Sequence[ir.Value], size: Dim) -> Launch:
    """Emit the kernel that merges each two runs of a size: a thread finds where its element goes."""
    source = sort.lowering.source("merge")
    fn, order, n = source.fn, Order(source.fn, sort.x.dtype), source.dim(sort.length)
    targets = [Lines(source, v, 1, made=True) for v in b]
    origins = [Lines(source, v, 1) for v in a]
    thread, total = thread_number(source), source.dim(sort.count * sort.length)
    with fn.if_(fn.compare("slt", thread, total)):
        line, at = fn.binary("udiv", thread, n), fn.binary("urem", thread, n)
        start = fn.mul(line, n)
        items = [lines.load(start, at) for lines in origins]

        def load(i: Operand) -> Words:
            return plain_words([lines.load(start, i) for lines in origins[: len(order.dtypes)]])

        words = plain_words(items[: len(order.dtypes)])
        place = _merged_place(fn, order, load, words, at, source.dim(size), n)
        for lines, item in zip(targets, items, strict=True):
            lines.store(start, place, item)
    source.finish(BLOCK)
    geometry = Geometry((ceil_div(sort.count * sort.length, BLOCK), 1), BLOCK)
    return sort.lowering.done(source, geometry, f"merge of {sort.name}")


def _merged_place(
    fn: Function, order: Order, load: Callable[[Operand], Words], words: Words, at: Value,
    run: Operand, n: Operand,
) -> Operand:  # fmt: skip
    """Return where the element at a place goes: of equal ones those of the left run are first."""
    both = fn.mul(run, 2)
    first = fn.mul(fn.binary("udiv", at, both), both)
    middle, end = fn.minimum(fn.add(first, run), n), fn.minimum(fn.add(first, both), n)
    is_left = fn.compare("slt", at, middle)
    start = fn.select(is_left, middle, first)  # of the other run
    low, high = fn.variable("i64", start), fn.variable("i64", fn.select(is_left, end, middle))
    with fn.while_(lambda: fn.compare("slt", low.get(), high.get())):
        probe = fn.binary("lshr", fn.binary("add", low.get(), high.get()), 1)
        found = load(probe)
        not_after = fn.invert(order.less(words, found))
        goes = fn.select(is_left, order.less(found, words), not_after)
        low.set(fn.select(goes, fn.binary("add", probe, 1), low.get()))
        high.set(fn.select(goes, high.get(), probe))
    passed = fn.sub(low.get(), start)
    return fn.add(fn.sub(at, fn.select(is_left, 0, fn.sub(middle, first))), passed)


def _place(sort: Sort, a: Sequence[ir.Value]) -> Launch:
    """Emit the kernel that puts what is sorted where it belongs: neighbouring threads write neighbours."""
    source = sort.lowering.source("place")
    fn, n = source.fn, source.dim(sort.length)
    order = Order(fn, sort.x.dtype, exact=True)
    out = source.place(sort.y)
    origins = [Lines(source, v, 1) for v in a]
    inner = source.dim(size_of(sort.x.shape[sort.axis + 1 :]))
    thread, total = thread_number(source), source.dim(sort.count * sort.length)
    with fn.if_(fn.compare("slt", thread, total)):
        column, rest = fn.binary("urem", thread, inner), fn.binary("udiv", thread, inner)
        at, outer = fn.binary("urem", rest, n), fn.binary("udiv", rest, n)
        if sort.descending:
            at = fn.binary("sub", fn.sub(n, 1), at)
        start = fn.mul(fn.add(fn.mul(outer, inner), column), n)
        items = [lines.load(start, at) for lines in origins]
        value = items[-1] if sort.indices else order.element(plain_words(items))
        store_scalar(fn, sort.y.dtype, value, flat(out, thread, source))
    source.finish(BLOCK)
    geometry = Geometry((ceil_div(sort.count * sort.length, BLOCK), 1), BLOCK)
    return sort.lowering.done(source, geometry, f"result of {sort.name}")


# -- elements by their places -----------------------------------------------------------------------------------------


def _fetch(lowering: Lowering, node: ir.Node, ordered: ir.Value) -> Launch:
    """Emit the kernel in which a thread copies an element from its place in a sorted line."""
    (x, places), (y,), axis = node.inputs, node.outputs, node.attrs["axis"]
    source = lowering.source("nth_element")
    fn, n, out = source.fn, source.dim(x.shape[axis]), source.place(y)
    known, wanted = source.array(ordered), source.array(places)
    inner, width = source.dim(size_of(y.shape[axis + 1 :])), source.dim(y.shape[axis])
    thread, total = thread_number(source), source.dim(size_of(y.shape))
    with fn.if_(fn.compare("slt", thread, total)):
        column, rest = fn.binary("urem", thread, inner), fn.binary("udiv", thread, inner)
        which, outer = fn.binary("urem", rest, width), fn.binary("udiv", rest, width)
        place = fn.load("i64", wanted.address(fn, (which,)), align=8)
        line = fn.minimum(fn.maximum(place, 0), fn.sub(n, 1))
        at = fn.add(fn.mul(fn.add(fn.mul(outer, n), line), inner), column)
        fn.if_else(
            fn.compare("sgt", n, 0),
            lambda: _copy(source, x.dtype, flat(known, at, source), flat(out, thread, source)),
            lambda: _none(source, x.dtype, flat(out, thread, source)),
        )
    source.finish(BLOCK)
    geometry = Geometry((ceil_div(size_of(y.shape), BLOCK), 1), BLOCK)
    return lowering.done(source, geometry, "nth_element")


def _copy(source: Source, dtype: np.dtype, origin: Value, target: Value) -> None:
    store_scalar(source.fn, dtype, load_scalar(source.fn, dtype, origin), target)


def _none(source: Source, dtype: np.dtype, target: Value) -> None:
    """Write what an element is of which there are none: NaN, or zero."""
    bits = np.zeros(1, dtype) if dtype.kind in "biu" else np.full(1, np.nan, dtype)
    for k, byte in enumerate(bits.view(np.uint8)):
        source.fn.store(Value(str(int(byte)), "i8"), source.fn.gep(target, k), align=1)
