"""Random bits and keys: Threefry-2x32, a thread for each element; the bits are the CPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.arrays import Array, memory_type, store_scalar
from dsl.codegen.cuda.frame import Frame, Wrong
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.ops.lines import flat, offset, stack_axes, thread_number
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Made, Step
from dsl.codegen.library.random import threefry
from dsl.codegen.llvm import Operand, Value
from dsl.ir import graph as ir
from dsl.ir.types import Shape, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]


def _random_bits(lowering: Lowering, node: ir.Node) -> Step:
    key, (value,) = node.data_inputs[0], node.outputs
    source, total = lowering.source("random_bits"), size_of(value.shape)
    fn, dtype = source.fn, value.dtype
    out, keys, thread = source.place(value), source.array(key), thread_number(source)
    with fn.if_(fn.compare("slt", thread, source.dim(total))):
        each = source.dim(size_of(tuple(node.attrs["shape"])))
        which, place = fn.binary("udiv", thread, each), fn.binary("urem", thread, each)
        w0, w1 = _encrypted(source, key.shape[:-1], key, keys, which, place)
        if dtype.itemsize == 8:
            high = fn.binary("shl", fn.convert("zext", w0, "i64"), 32)
            bits = fn.binary("or", high, fn.convert("zext", w1, "i64"))
        else:
            bits = fn.convert("trunc", fn.binary("xor", w0, w1), memory_type(dtype))
        store_scalar(fn, dtype, bits, flat(out, thread, source))
    source.finish(BLOCK)
    geometry = Geometry((ceil_div(total, BLOCK), 1), BLOCK)
    return Made((value,), [lowering.done(source, geometry, "random_bits")])


def _encrypted(
    source: Source, batch: Shape, key: ir.Value, keys: Array, which: Operand, counter: Value
) -> tuple[Value, Value]:
    """Return the two words of a counter for one key of a stack."""
    fn = source.fn
    start = offset(source, stack_axes(source, batch, key, keys, 1), which)
    k0, k1 = (
        fn.load("i32", flat(keys, fn.add(start, step), source), align=4)
        for step in (0, keys.strides[-1])
    )
    high = fn.convert("trunc", fn.binary("lshr", counter, 32), "i32")
    return threefry(fn, k0, k1, high, fn.convert("trunc", counter, "i32"))


class _Folded(Made):
    """Launches that need keys and data whose sizes fit."""

    def run(self, frame: Frame) -> None:
        (value,) = self.values
        key, data = value.node.data_inputs
        for batch in (key.shape[:-1], data.shape):
            sizes = zip(reversed(batch), reversed(value.shape[:-1]), strict=False)
            if any(frame.size(a) not in (1, frame.size(b)) for a, b in sizes):
                raise Wrong
        super().run(frame)


def _fold_in(lowering: Lowering, node: ir.Node) -> Step:
    (key, data), (value,) = node.data_inputs, node.outputs
    source, batch = lowering.source("fold_in"), value.shape[:-1]
    fn, total = source.fn, size_of(batch)
    out, keys, thread = source.place(value), source.array(key), thread_number(source)
    with fn.if_(fn.compare("slt", thread, source.dim(total))):
        number = source.register(data) if not data.shape else _number(source, batch, data, thread)
        assert isinstance(number, Value)
        counter = fn.convert("sext" if data.dtype.kind == "i" else "zext", number, "i64")
        words = _encrypted(source, batch, key, keys, thread, counter)
        for k, word in enumerate(words):
            fn.store(word, flat(out, fn.add(fn.mul(thread, 2), k), source), align=4)
    source.finish(BLOCK)
    geometry = Geometry((ceil_div(total, BLOCK), 1), BLOCK)
    return _Folded((value,), [lowering.done(source, geometry, "fold_in")])


def _number(source: Source, batch: Shape, data: ir.Value, which: Value) -> Value:
    array = source.array(data)
    place = offset(source, stack_axes(source, batch, data, array, 0), which)
    address = flat(array, place, source)
    return source.fn.load(memory_type(data.dtype), address, align=data.dtype.itemsize)


LOWERINGS = {
    "random_bits": (lambda node: True, _random_bits),
    "fold_in": (lambda node: True, _fold_in),
}
