"""Emits nodes that are neither kernels nor control flow: library routines, assertions, and calls back into NumPy.

What has no native form yet is run by the interpreter for that op alone: the program hands the addresses, dims and
strides of its operands to Python, which stores the results. `Callback` describes one such node for the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsl.codegen import library
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.elements import splat
from dsl.codegen.frame import STATUS
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.memory import Placed, Slot, nbytes
from dsl.codegen.places import contiguous_copy
from dsl.codegen.report import ErrorSite
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, DimLike, symbols_of
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_call"]


def emit_call(region: Region, node: ir.Node) -> None:
    """Emit one node."""
    region.program.module.is_long = True
    if node.op.name == "assert":
        _assert(region, node)
    elif node.op.name == "keep":
        return  # what is kept has been computed by now, and views have been checked
    elif library.supported(node):
        call = LibraryCall(region, node)
        library.LOWERINGS[node.op.name](call)
        call.finish()
    elif node.op.lower is not None:
        call = LibraryCall(region, node)
        node.op.lower(call)
        call.finish()
    else:
        _callback(region, node)


def _assert(region: Region, node: ir.Node) -> None:
    if region.ranges.holds(node.inputs[0]):
        return
    condition = region.register(node.inputs[0])
    assert isinstance(condition, Value)
    if len(node.inputs) > 1 or not _plain_message(node):
        fn = region.fn
        with fn.if_(fn.invert(condition), unlikely=True):
            _callback(region, node)
        return
    region.program.fail(region.fn, region.fn.invert(condition), ErrorSite("assert", node))


def _plain_message(node: ir.Node) -> bool:
    return len(node.outputs) == 0


@dataclass
class LibraryCall:
    """One op to lower, as `library.Call` has it."""

    region: Region
    node: ir.Node

    def __post_init__(self) -> None:
        self.fn: Function = self.region.fn
        self.slots: list[Slot] = []
        self.inputs: list[Array | Scalar] = [self._input(v) for v in self.node.data_inputs]

    def _input(self, value: ir.Value) -> Array | Scalar:
        if not value.shape:
            return self.region.register(value)
        if splat(value) is not None and value not in self.region.placed:
            return self.region.place_constant(value).array
        return self.region.place_of(value).array

    def output(self, k: int = 0, dims: Sequence[Operand] | None = None) -> Array:
        value = self.node.outputs[k]
        region = self.region
        if value in region.placed:
            return region.placed[value].array
        if dims is not None:
            for dim, size in zip(value.shape, dims, strict=True):
                if isinstance(dim, Dim) and symbols_of(dim) == [dim] and dim not in region.symbols:
                    region.symbols[dim] = self.fn.as_value(size, "i64")
        region.bind(value, region.new_place(value))
        return region.placed[value].array

    def set_output(self, k: int, scalar: Scalar) -> None:
        self.region.registers[self.node.outputs[k]] = scalar

    def size(self, dim: DimLike) -> Operand:
        return self.region.dim(dim)

    def scratch(self, bytes: Operand) -> Value:
        program = self.region.program
        slot = (
            program.allocate(bytes, self.region, "scratch")
            if isinstance(bytes, int)
            else program.dynamic(bytes, "scratch")
        )
        self.slots.append(slot)
        return slot.variable.get()

    def contiguous(self, k: int) -> Array:
        value = self.node.inputs[k]
        region = self.region
        if splat(value) is not None and value not in region.placed:
            return region.place_constant(value).array
        placed = region.place_of(value)
        if placed.contiguous:
            return placed.array
        made = contiguous_copy(region, value, placed)
        self.slots.append(made.slot)
        return made.array

    def fail(self, condition: Value, kind: str, *payload: Operand) -> None:
        self.region.program.fail(self.fn, condition, ErrorSite(kind, self.node), *payload)

    def finish(self) -> None:
        for slot in self.slots:
            self.region.program.release(slot)


def _callback(region: Region, node: ir.Node) -> None:
    """Call NumPy: words hold, for each operand, its address, dims and strides in bytes; then the same for results."""
    fn, program = region.fn, region.program
    program.callbacks.append(node)
    program.note_failure()
    if not node.op.has(Trait.EFFECT):  # prints and the like are Python's in any case
        program.report.fallbacks.append((node.op.name, node.loc))
    words = _Words(fn, node)
    for value in node.inputs:
        if isinstance(value.type, TensorType):
            words.operand(region, value)
    static = {v for v in node.outputs if isinstance(v.type, TensorType) and _is_known(region, v)}
    places: dict[ir.Value, Placed] = {}
    at: dict[ir.Value, int] = {}
    for value in node.outputs:
        if not isinstance(value.type, TensorType):
            continue
        at[value] = words.place
        if value.shape and value in static:
            places[value] = region.new_place(value)
            words.put(places[value].array.pointer)
            words.skip(len(value.shape))
        elif value.shape:
            words.put(Value("null", "ptr"))
            words.skip(len(value.shape))
        else:
            words.skip(2)
    number = Value(str(len(program.callbacks) - 1), "i64")
    context = fn.params[1]
    status = fn.call("i64", "dsl_python", context, number, words.finish())
    with fn.if_(fn.compare("ne", status, 0), unlikely=True):
        program.status.set(STATUS.PYTHON)
        fn.branch(program.exit)
    for value, place in at.items():
        if not value.shape:
            region.registers[value] = load_scalar(fn, value.dtype, words.address(place))
        elif value in places:
            region.bind(value, places[value])
        else:
            _adopt(region, value, words, place)


def _is_known(region: Region, value: ir.Value) -> bool:
    symbols = set(symbols_of(*value.shape))
    return symbols <= set(region.symbols) | set(region.sources)


def _adopt(region: Region, value: ir.Value, words: _Words, place: int) -> None:
    """Take a result of a size that only the call told: Python stored the address of a block, and the dims."""
    fn = region.fn
    dims: list[Operand] = [
        fn.load("i64", words.address(place + 1 + k)) for k in range(len(value.shape))
    ]
    for dim, size in zip(value.shape, dims):
        if isinstance(dim, Dim) and symbols_of(dim) == [dim] and dim not in region.symbols:
            region.symbols[dim] = size
    slot = region.program.dynamic(1, value.node.op.name)
    assert slot.capacity is not None
    fn.call("void", "dsl_free", slot.variable.get())
    slot.variable.set(fn.load("ptr", words.address(place)))
    slot.capacity.set(fn.as_value(region.dim(nbytes(value.shape, value.dtype.itemsize)), "i64"))
    region.bind(value, region.in_slot(slot, value))


class _Words:
    """The words of one call back into Python."""

    def __init__(self, fn: Function, node: ir.Node) -> None:
        self.fn = fn
        count = 0
        for value in (*node.inputs, *node.outputs):
            if isinstance(value.type, TensorType):
                count += 2 + 2 * len(value.type.shape)
        self.base = fn.alloca(8 * max(1, count))
        self.place = 0

    def address(self, place: int) -> Value:
        return self.fn.gep(self.base, 8 * place)

    def put(self, operand: Operand) -> None:
        value = operand if isinstance(operand, Value) else Value(str(operand), "i64")
        self.fn.store(self.fn.use(value), self.address(self.place))
        self.place += 1

    def skip(self, count: int) -> None:
        self.place += count

    def operand(self, region: Region, value: ir.Value) -> None:
        if not value.shape:
            store_scalar(self.fn, value.dtype, region.register(value), self.address(self.place))
            self.place += 2
            return
        placed = (
            region.place_constant(value)
            if splat(value) is not None and value not in region.placed
            else region.place_of(value)
        )
        self.put(placed.array.pointer)
        for dim in placed.array.dims:
            self.put(dim)
        for stride in placed.array.strides:
            self.put(self.fn.mul(stride, value.dtype.itemsize))

    def finish(self) -> Value:
        return self.base
