"""Emits a whole structured graph as one LLVM function: its arguments, memory and results.

In: a graph, and where its params are. Out: a module with `i64 @dsl_program(ptr frame, ptr context)`; the frame is laid
out by `frame.Frame`, the status is 0 or names what went wrong. Rank-0 values are registers; arrays live in slots
(`memory`). What happens between the arguments and the results is the business of `region`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from dsl.codegen.arrays import Array, load_scalar, store_scalar
from dsl.codegen.frame import CONTEXT, STATUS, Frame
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable
from dsl.codegen.memory import Placed, Slot, contiguous_strides, nbytes
from dsl.codegen.places import contiguous_copy
from dsl.codegen.region import Region
from dsl.codegen.report import ErrorSite, Report
from dsl.codegen.timing import Timer
from dsl.codegen.touched import Touched
from dsl.config import config
from dsl.errors import InternalError
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, DimLike, symbols_of

__all__ = ["Program"]


_CALLS = 50  # lines of a long program for each that computes with floats, if all it does is call
_FEW = 8  # lines that compute with floats in a short one of that kind


class Program:
    """A program under construction."""

    def __init__(
        self,
        graph: ir.Graph,
        frame: Frame,
        *,
        written: Sequence[tuple[int, int]] = (),
        fastmath: bool = False,
        in_place: bool = True,
        timed: bool = False,
    ) -> None:
        self.graph, self.frame, self.written = graph, frame, list(written)
        self.module = Module(graph.name)
        self.module.fastmath = fastmath
        self.fn = self.module.function("dsl_program", "i64", [("ptr", "frame"), ("ptr", "context")])
        self.errors: list[ErrorSite] = []
        self.callbacks: list[ir.Node] = []
        self.slots: list[Slot] = []
        self.blocks: dict[
            Slot, Variable
        ] = {}  # where the memory of a block begins, whoever has it now
        self.free: list[Slot] = []
        self.symbols: dict[Dim, Operand] = {}
        self.status = self.fn.variable("i64", 0)
        self.exit = self.fn.label("exit")
        self.nowhere = Variable(
            self.fn, "ptr", Value("null", "ptr")
        )  # of slots that are not memory of the program
        self.taken: dict[Slot, Variable] = {}  # what results have taken of slots
        self.report = Report()
        self.in_place = in_place
        self.writes = self.failures = 0  # places that write arguments, places that can fail
        self.spoils = False  # whether a call that fails may leave an argument changed
        self.safe: set[tuple[ir.Node, int]] = (
            set()
        )  # accesses, by axis, of which it has been looked whether they fail
        self.checks = config.bounds_checks == "on"
        self.pointers: dict[int, Value] = {}  # of params that are arrays of rank 0
        self.constants: dict[ir.Node, Value] = {}
        self.timer = Timer(self) if timed else None
        self.depth = 0  # of loops around what is emitted
        self.touched = Touched()
        self.serial = False  # whether trips of the innermost of them are made one after the other
        self.together = False  # whether the trips of a loop around it are made many at once
        self.is_long = False  # whether there are so many kernels that each has a function
        self.budget = self.fn.variable("i64", 0)  # trips until the program looks for interrupts

    def note_write(self) -> None:
        """Remember that from here on an argument may have been written."""
        self.writes += 1

    def note_failure(self) -> None:
        """Remember that the program can fail here; it must not if an argument has been written."""
        self.failures += 1
        self.spoils |= self.writes > 0

    def failing(self) -> tuple[int, int, bool]:
        """Return where the program can fail so far, for `forget`."""
        return len(self.errors), self.failures, self.spoils

    def forget(self, state: tuple[int, int, bool]) -> None:
        """Drop the places of failures that came later."""
        count, self.failures, self.spoils = state
        del self.errors[count:]

    # -- the whole function ------------------------------------------------------------------------------------------

    def emit(self) -> str:
        """Emit everything and return the module's text."""
        fn = self.fn
        region = Region(self, self.graph, self.symbols)
        self.load_params(region)
        allocs, body = fn.label("allocs"), fn.label("body")
        fn.branch(allocs)
        fn.start(body)
        region.run()
        self.store_results(region)
        fn.branch(self.exit)
        self.emit_exit()
        self.emit_allocs(allocs, body)
        if self._but_calls():
            fn.note("nounwind noinline optnone")
        return self.module.text()

    def _but_calls(self) -> bool:
        """Tell whether nothing is gained by optimising the program's own function, as others do the work.

        In one with many kernels all pointers live from the first line to the last: to find registers for them takes LLVM most of its
        time. In one that passes a loop on to threads, what it does itself takes nanoseconds.
        """
        fn = self.fn
        if self.is_long:
            return fn.floats() * _CALLS < fn.length()
        return fn.floats() <= _FEW and fn.calls("dsl_parallel") and fn.is_straight()

    def load_params(self, region: Region) -> None:
        fn = self.fn
        frame = fn.params[0]
        written = {k for k, _ in self.written}
        for k, (param, place) in enumerate(zip(self.graph.params, self.frame.params, strict=True)):
            type = param.tensor
            if not type.shape and place.kind == "scalar":
                region.registers[param] = load_scalar(fn, type.dtype, fn.gep(frame, 8 * place.word))
                continue
            pointer = fn.load("ptr", fn.gep(frame, 8 * place.word))
            if not type.shape:
                region.registers[param] = load_scalar(fn, type.dtype, pointer)
                self.pointers[k] = pointer
                continue
            for axis, dim in enumerate(type.shape):
                if isinstance(dim, Dim) and symbols_of(dim) == [dim] and dim not in self.symbols:
                    size = fn.load("i64", fn.gep(frame, 8 * (place.word + 1 + axis)))
                    size.dim = dim
                    self.symbols[dim] = size
            region.symbols.update(self.symbols)
            slot = Slot(
                len(self.slots), fn.variable("ptr"), "param", nbytes(type.shape, type.dtype.itemsize),
                owned=self.in_place and k in written, note=f"argument {k}",
            )  # fmt: skip
            slot.variable.set(pointer)
            self.slots.append(slot)
            array = self.param_array(region, param, place, pointer)
            region.bind(param, Placed(slot, array, place.strides is None))
        self.entry_symbols = set(self.symbols)

    def param_array(self, region: Region, param: ir.Value, place: Any, pointer: Value) -> Array:
        fn, shape, dtype = self.fn, param.shape, param.dtype
        dims = tuple(region.dim(d) for d in shape)
        if place.strides is None:
            return Array(dtype, pointer, dims, contiguous_strides(fn, shape, region.dim))
        if place.strides == "any":
            strides: list[Operand] = []
            for axis in range(len(shape)):
                word = fn.load(
                    "i64", fn.gep(fn.params[0], 8 * (place.word + 1 + len(shape) + axis))
                )
                strides.append(fn.binary("sdiv exact", word, dtype.itemsize))
            return Array(dtype, pointer, dims, tuple(strides))
        return Array(dtype, pointer, dims, tuple(s // dtype.itemsize for s in place.strides))

    def emit_allocs(self, allocs: str, body: str) -> None:
        """Allocate the blocks before anything is written: what cannot be had leaves the arguments untouched.

        It is asked once whether all are there. A way to the exit from each of n blocks, where each of them is freed if it
        is there, takes LLVM the square of their number.
        """
        fn = self.fn
        fn.continue_in(allocs)
        region = Region(self, self.graph, self.symbols)
        missing = []
        for slot in self.slots:
            if slot.kind != "block":
                continue
            assert slot.size is not None
            size = region.bytes(slot.size)
            pointer = fn.call("ptr", "dsl_alloc", fn.as_value(size, "i64"))
            slot.variable.set(pointer)
            block = self.blocks[slot]
            block.set(pointer)
            missing.append(fn.compare("eq", pointer, Value("null", "ptr")))
        if missing:
            with fn.if_(reduce(fn.either, missing), unlikely=True):
                self.lacks_memory()
        fn.branch(body)

    def emit_exit(self) -> None:
        """Give back all memory but the results'."""
        fn = self.fn
        fn.start(self.exit)
        for slot in self.slots:
            if slot.kind == "block":
                pointer = self.blocks[slot].get()
                same = [fn.compare("eq", pointer, taken.get()) for taken in self.may_have(slot)]
                if same:
                    with fn.if_(fn.invert(reduce(fn.either, same))):
                        fn.call("void", "dsl_free", pointer)
                else:
                    fn.call("void", "dsl_free", pointer)
            elif slot.kind == "dynamic":
                fn.call("void", "dsl_free", slot.variable.get())
        if self.timer is not None:
            self.timer.finish()
        fn.ret(self.status.get())

    def may_have(self, slot: Slot) -> list[Variable]:
        """Return the results' pointers that may be to the block which a slot had at first."""
        return [
            taken
            for other, taken in self.taken.items()
            if other is slot or (other.exchanged and slot.exchanged)
        ]

    # -- results -----------------------------------------------------------------------------------------------------

    def store_results(self, region: Region) -> None:
        fn = self.fn
        claimed: set[Slot] = set()
        for place, index in self.frame.results:
            value = self.graph.results[index]
            address = fn.gep(fn.params[0], 8 * place.word)
            if not value.shape:
                store_scalar(fn, value.dtype, region.register(value), address)
                continue
            pointer = self.result_pointer(region, value, claimed)
            fn.store(pointer, address)
            for axis, dim in enumerate(value.shape):
                size = fn.as_value(region.dim(dim), "i64")
                fn.store(size, fn.gep(fn.params[0], 8 * (place.word + 1 + axis)))
        self.store_written(region)

    def store_written(self, region: Region) -> None:
        """Leave in the arguments what the program wrote to them."""
        fn, moves, returns = self.fn, [], []
        for k, index in self.written:
            value = self.graph.results[index]
            if not value.shape:
                store_scalar(fn, value.dtype, region.register(value), self.pointers[k])
                continue
            target = region.placed[self.graph.params[k]]
            source = region.place_of(value)
            if source.slot is target.slot:
                returns.append((source, target, value))
            else:  # what is in the memory of another argument would be overwritten
                lent = source.slot.lent
                moves.append(
                    (contiguous_copy(region, value, source) if lent else source, target, value)
                )
        for source, target, value in returns:
            if source.slot.exchanged:  # in memory that a loop gave to the argument's slot, perhaps
                moved = fn.compare("ne", source.array.pointer, target.array.pointer)
                with fn.if_(moved):
                    why = "back into an argument"
                    region.copy(source.array, target.array, value.shape, why, value.node.loc)
        region.copy_together(moves)

    def result_pointer(self, region: Region, value: ir.Value, claimed: set[Slot]) -> Value:
        fn = self.fn
        taken = fn.variable("ptr")
        fn.at_entry(f"store ptr null, ptr {taken.address.text}")
        placed = region.place_of(value)
        if (
            placed.slot.kind in ("block", "dynamic")
            and not placed.slot.lent
            and placed.contiguous
            and placed.slot not in claimed
            and value in region.placed
        ):
            claimed.add(placed.slot)
            pointer = placed.slot.variable.get()
            taken.set(pointer)
            self.taken[placed.slot] = taken
            if placed.slot.kind == "dynamic":
                placed.slot.variable.set(Value("null", "ptr"))
            return pointer
        size = region.bytes(nbytes(value.shape, value.dtype.itemsize))
        pointer = fn.call("ptr", "dsl_alloc", fn.as_value(size, "i64"))
        self.check_memory(pointer)
        dims = tuple(region.dim(d) for d in value.shape)
        target = Array(value.dtype, pointer, dims, contiguous_strides(fn, value.shape, region.dim))
        region.copy(
            placed.array,
            target,
            value.shape,
            "a result that is also an argument or another result",
            value.node.loc,
        )
        return pointer

    def check_memory(self, pointer: Value) -> None:
        fn = self.fn
        with fn.if_(fn.compare("eq", pointer, Value("null", "ptr")), unlikely=True):
            self.lacks_memory()

    def lacks_memory(self) -> None:
        self.status.set(STATUS.MEMORY)
        self.fn.branch(self.exit)

    # -- slots -------------------------------------------------------------------------------------------------------

    def allocate(self, size: DimLike, region: Region, note: str = "") -> Slot:
        """Return a slot with room for `size` bytes that nobody uses."""
        if set(symbols_of(size)) <= self.entry_symbols:
            for slot in self.free:
                if slot.kind == "block" and slot.size == size and not slot.lent:
                    self.free.remove(slot)
                    slot.taken += 1
                    return slot
            slot = Slot(len(self.slots), self.fn.variable("ptr"), "block", size, note=note)
            self.blocks[slot] = self.fn.variable("ptr")
            self.fn.at_entry(f"store ptr null, ptr {self.blocks[slot].address.text}")
            self.slots.append(slot)
            self.report.slots.append(("workspace", size, note))
            return slot
        return self.dynamic(region.bytes(size), note)

    def dynamic(self, bytes: Operand, note: str = "") -> Slot:
        """Return a slot grown to `bytes` here."""
        self.note_failure()
        fn = self.fn
        slot = next((s for s in self.free if s.kind == "dynamic"), None)
        if slot is None:
            slot = Slot(
                len(self.slots),
                fn.variable("ptr"),
                "dynamic",
                capacity=fn.variable("i64"),
                note=note,
            )
            fn.at_entry(f"store ptr null, ptr {slot.variable.address.text}")
            assert slot.capacity is not None
            fn.at_entry(f"store i64 0, ptr {slot.capacity.address.text}")
            self.slots.append(slot)
            self.report.slots.append(("grown as needed", None, note))
        else:
            self.free.remove(slot)
            slot.taken += 1
        self.ensure(slot, bytes)
        return slot

    def ensure(self, slot: Slot, bytes: Operand) -> None:
        fn = self.fn
        assert slot.capacity is not None
        wanted = fn.as_value(fn.maximum(bytes, 1), "i64")
        with fn.if_(fn.compare("slt", slot.capacity.get(), wanted)):
            fn.call("void", "dsl_free", slot.variable.get())
            pointer = fn.call("ptr", "dsl_alloc", wanted)
            slot.variable.set(pointer)
            slot.capacity.set(wanted)
            self.check_memory(pointer)

    def grow(self, slot: Slot, held: Operand, bytes: Operand) -> None:
        """Give a slot room for `bytes`, at least twice what it had, of which `held` are kept."""
        fn = self.fn
        assert slot.capacity is not None
        self.note_failure()
        wanted = fn.as_value(fn.maximum(bytes, 1), "i64")
        with fn.if_(fn.compare("slt", slot.capacity.get(), wanted), unlikely=True):
            room = fn.as_value(fn.maximum(wanted, fn.mul(slot.capacity.get(), 2)), "i64")
            pointer = fn.call("ptr", "dsl_alloc", room)
            self.check_memory(pointer)
            old = slot.variable.get()
            size = fn.as_value(held, "i64")
            fn.call("void", "llvm.memmove.p0.p0.i64", pointer, old, size, Value("false", "i1"))
            fn.call("void", "dsl_free", old)
            slot.variable.set(pointer)
            slot.capacity.set(room)

    def take(self, slot: Slot) -> None:
        """Have a slot belong to whoever it is meant for, if it is among the free ones."""
        if slot in self.free:
            self.free.remove(slot)

    def release(self, slot: Slot) -> None:
        if slot.kind in ("block", "dynamic") and slot not in self.free:
            self.free.append(slot)

    # -- errors ------------------------------------------------------------------------------------------------------

    def fail(self, fn: Function, condition: Value, site: ErrorSite, *payload: Operand) -> None:
        """Stop the program if the condition is true."""
        with fn.if_(condition, unlikely=True):
            self.stop(fn, site, *payload)

    def stop(self, fn: Function, site: ErrorSite, *payload: Operand) -> None:
        if fn is not self.fn:
            raise InternalError("only the program itself can stop")
        self.errors.append(site)
        self.note_failure()
        context = fn.params[1]
        fn.store(Value(str(len(self.errors)), "i64"), fn.gep(context, CONTEXT.CODE))
        for k, number in enumerate(payload):
            fn.store(fn.as_value(number, "i64"), fn.gep(context, CONTEXT.PAYLOAD + 8 * k))
        self.status.set(STATUS.ERROR)
        fn.branch(self.exit)

    def constant(self, node: ir.Node) -> Value:
        """Return the address of a constant array."""
        if node not in self.constants:
            array = node.attrs["value"].array
            self.constants[node] = self.module.constant(array.tobytes() or b"\0")
        return self.constants[node]
