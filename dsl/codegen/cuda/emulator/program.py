"""A kernel as runnable Python: its blocks and those of the functions it calls, compiled to functions of (G, R).

`G` is the `Group` of lanes that run the block, `R` its registers. A block's function returns the predicate (or
index) of its exit, if it has one. Callees come before their callers, so that the rule "the lowest waiting block runs
first" brings lanes out of a function before others go on without them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.blocks import Block, build_blocks, callees
from dsl.codegen.cuda.emulator.chunk import LOCAL_START, PARAM_WINDOW, SHARED_START, Layout
from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter, keep
from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.groups import Group
from dsl.codegen.cuda.emulator.liveness import Flow
from dsl.codegen.cuda.emulator.parse import Source
from dsl.codegen.cuda.emulator.syntax import (
    Address,
    Function,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Variable,
    Vector,
    type_bytes,
)  # fmt: skip

__all__ = ["Program"]

Array = np.ndarray[Any, Any]
_SHARED_GAP = 64


def clock(group: Group, dtype: Any) -> Array:
    """%clock: nanoseconds, the same for all lanes."""
    return np.array([time.perf_counter_ns() & (2 ** (8 * dtype.itemsize) - 1)], dtype)


class Program:
    """One kernel, ready to run."""

    def __init__(self, source: Source, kernel: Function, symbols: dict[str, int]) -> None:
        self.source, self.kernel, self.symbols = source, kernel, symbols
        self.functions = self._reachable()
        self.names: dict[str, Any] = {
            k: np.dtype(k) for k in sorted(set(KINDS.values()) - {"bytes"})
        }
        self.names |= {"keep": keep, "clock": clock, "np": np}
        self._bound: dict[Any, str] = {}
        self._indices: dict[Register, int] = {}
        self._homes: dict[Register, str] = {}
        self.returns = {f.name: Register(f"return of {f.name}", "u32") for f in self.functions}
        self.params: dict[Variable, Register] = {}
        self.carry = Register("carry flag", "pred")
        self.places: dict[Variable, int] = {}
        self.blocks: list[Block] = []
        self.entries: dict[str, int] = {}
        for function in self.functions:
            self.entries[function.name] = len(self.blocks)
            self.blocks += build_blocks(function, len(self.blocks))
        self._param_registers()
        self.written = {*self.returns.values(), *self.params.values(), self.carry}
        self._vote()
        self.param_offsets, self.param_bytes = _param_layout(kernel.params)
        self.layout = self._layout()
        self._translate()

    # Names ----------------------------------------------------------------------------------------------------------

    def bind(self, value: object, hint: str) -> str:
        """The name by which the code sees an object."""
        if id(value) not in self._bound:
            name = f"{hint}_{len(self._bound)}"
            self._bound[id(value)] = name
            self.names[name] = value
        return self._bound[id(value)]

    def constant(self, value: float | int, kind: str) -> str:
        """The name of a one-element array of a kind."""
        array = _constant(value, kind)
        key = (array.tobytes(), kind)
        if key not in self._bound:
            self._bound[key] = f"c{len(self._bound)}"
            self.names[self._bound[key]] = array
        return self._bound[key]

    def index(self, register: Register) -> int:
        """The place of a register in the register file."""
        return self._indices.setdefault(register, len(self._indices))

    def home(self, register: Register) -> str:
        """The kind in which a register lives between blocks."""
        return self._homes.get(register) or KINDS[register.type]

    def address(self, emitter: Emitter, variable: Variable, kind: str) -> str:
        """The address of a variable in its own state space."""
        if variable in self.places:
            return self.constant(self.places[variable], kind)
        if variable.name not in self.symbols or kind[1:] != "8":
            emitter.unsupported(f"address of .{variable.space} {variable.name}")
        return emitter.let(f"G.symbols[{self.symbols[variable.name]}]")

    # Preparation ----------------------------------------------------------------------------------------------------

    def _reachable(self) -> list[Function]:
        """The kernel and what it calls, callees first."""
        order: list[Function] = []
        active: list[str] = []

        def visit(function: Function) -> None:
            if function in order:
                return
            if function.name in active:
                raise self.error(f"recursion in {function.name}", function.line)
            active.append(function.name)
            for name in callees(function):
                callee = self.source.functions.get(name)
                if callee is not None and callee.body is not None:
                    visit(callee)
            active.pop()
            order.append(function)

        visit(self.kernel)
        return order

    def error(self, what: str, line: int) -> PtxError:
        """An error of this kernel at a line."""
        return PtxError(what, line=line, text=self.source.text(line), kernel=self.kernel.name)

    def _instructions(self) -> list[Instruction]:
        return [i for block in self.blocks for i in block.instructions]

    def _param_registers(self) -> None:
        """Parameters of calls as registers: scalars as values, arrays (or parts taken of a scalar) as bytes."""
        variables: list[Variable] = []
        for function in self.functions:
            variables += [v for v in function.variables if v.space == "param"]
            if not function.entry:
                variables += function.params + function.returns
        whole = {v for v in variables if not v.array}
        for instruction in self._instructions():
            for operand in instruction.operands:
                if isinstance(operand, Address) and isinstance(operand.base, Variable):
                    size = type_bytes(instruction.type or "b8")
                    if operand.offset or instruction.has("v2", "v4") or size != operand.base.bytes:
                        whole.discard(operand.base)
        for v in variables:
            self.params[v] = Register(v.name, f"b{8 * v.bytes}" if v in whole else "bytes")

    def _vote(self) -> None:
        """Let registers live as what most instructions take them for, and note which are written at all."""
        votes: dict[Register, int] = {}
        for instruction in self._instructions():
            weight = 1 if instruction.type in ("f32", "f64", "f16") else -1
            if instruction.opcode in ("mov", "ld", "st", "selp", "setp") and weight < 0:
                weight = 0
            for i, register in _registers(instruction.operands):
                votes[register] = votes.get(register, 0) + weight
                if i == 0 and instruction.opcode not in ("st", "red"):
                    self.written.add(register)
        for register, vote in votes.items():
            home = KINDS[register.type]
            if home in ("u4", "u8", "u2") and vote > 0:
                self._homes[register] = f"f{home[1]}"

    def _layout(self) -> Layout:
        """Place shared variables (with gaps, so that a neighbour is not hit unnoticed) and local ones."""
        place, local = SHARED_START, LOCAL_START
        pieces: list[tuple[int, int]] = []
        owned = [v for f in self.functions for v in f.variables]
        used = self._named()
        module = [v for v in self.source.variables.values() if v in used]
        for v in [v for v in module + owned if v.space == "shared" and v.count is not None]:
            place = -(-place // max(v.align, 16)) * max(v.align, 16)
            self.places[v] = place
            pieces.append((place, v.bytes))
            place += v.bytes + _SHARED_GAP
        for v in owned:
            if v.space == "local":
                local = -(-local // max(v.align, 16)) * max(v.align, 16)
                self.places[v] = local
                local += v.bytes
        self.dynamic = -(-place // 128) * 128
        for v in module + owned:
            if v.space == "shared" and v.count is None:
                self.places[v] = self.dynamic
        for v, offset in zip(self.kernel.params, self.param_offsets):
            self.places[v] = PARAM_WINDOW + offset
        end = max((start + size for start, size in pieces), default=SHARED_START)
        return Layout(end, local, pieces, self._granule())

    def _named(self) -> set[Variable]:
        """The variables that instructions name."""
        found = set()
        for instruction in self._instructions():
            for operand in instruction.operands:
                base = operand.base if isinstance(operand, Address) else operand
                if isinstance(base, Variable):
                    found.add(base)
        return found

    def _granule(self) -> int:
        sizes = [
            type_bytes(i.type)
            for i in self._instructions()
            if i.opcode in ("ld", "st", "atom", "red") and i.type and not i.has("param", "global", "const", "local")
        ]  # fmt: skip
        return min(sizes, default=4)

    def layout_with(self, dynamic: int) -> Layout:
        """The layout of a launch with this much dynamic shared memory."""
        base = self.layout
        if not dynamic:
            return base
        pieces = base.variables + [(self.dynamic, dynamic)]
        return Layout(self.dynamic + dynamic, base.local_end, pieces, base.granule)

    @property
    def static_shared(self) -> int:
        """The bytes of static shared variables."""
        return sum(size for _, size in self.layout.variables)

    # Translation ----------------------------------------------------------------------------------------------------

    def _translate(self) -> None:
        emitters = [self._emit(block) for block in self.blocks]
        self.flow = Flow(self, emitters)
        text: list[str] = []
        self.origins: list[int] = []
        for block, emitter in zip(self.blocks, emitters):
            lines = self._finish(block, emitter)
            text += [line for line, _ in lines]
            self.origins += [origin for _, origin in lines]
        self.text = "\n".join(text)
        self.filename = f"<ptx {self.kernel.name}>"
        exec(compile(self.text, self.filename, "exec"), self.names)
        self.run = [self.names[f"b{i}"] for i in range(len(self.blocks))]
        self.registers = len(self._indices)

    def _emit(self, block: Block) -> Emitter:
        emitter = Emitter(self, self.kernel.name)
        if block.meets == "warp":
            # The scheduler looks at the member mask before the block runs.
            emitter.instruction = block.instructions[0]
            emitter.read(block.instructions[0].operands[-1], "u4")
        for instruction in block.instructions:
            emitter.emit(instruction)
        if block.last is not None:
            emitter.instruction = block.last
        exit = block.exit
        emitter.guard = ""
        if exit.kind == "if" and exit.register is not None:
            emitter.line(f"X = {emitter.register(exit.register, 'b1')}")
        elif exit.kind == "switch" and exit.register is not None:
            emitter.line(f"X = {emitter.register(exit.register, 'u4')}")
        elif exit.kind == "return":
            emitter.line(f"X = {emitter.register(self.returns[block.function.name], 'u4')}")
        elif exit.kind == "call":
            register = self.returns.get(exit.callee)
            if register is not None:
                emitter.define(register, "u4", self.constant(exit.targets[0], "u4"))
        return emitter

    def _finish(self, block: Block, emitter: Emitter) -> list[tuple[str, int]]:
        """The whole function: registers in, lines, registers out."""
        result = [(f"def b{block.number}(G, R):", block.line)]
        for register, strict in emitter.uses.items():
            i = self.index(register)
            result.append((f"    r{i} = R[{i}]", block.line))
            if strict and register not in self.flow.assigned[block.number]:
                name = self.bind(self, "program")
                first = self._first_use(block, register)
                result.append((f"    if r{i} is None: {name}.undefined(G, {register.name!r}, {first})", first))  # fmt: skip
        result += [(f"    {line}", origin) for line, origin in zip(emitter.lines, emitter.origins)]
        for register in self.flow.stored(block.number):
            result.append((f"    {self._store(register, emitter)}", block.line))
        tested = block.exit.kind in ("if", "switch", "return")
        result.append((f"    return {'X' if tested else 'None'}", block.line))
        return result

    def _first_use(self, block: Block, register: Register) -> int:
        for instruction in block.instructions:
            if any(r is register for _, r in _registers(instruction.operands)):
                return instruction.line
        return block.last.line if block.last is not None else block.line

    def _store(self, register: Register, emitter: Emitter) -> str:
        home, versions = self.home(register), emitter.current[register]
        i = self.index(register)
        if home in versions:
            return f"R[{i}] = {versions[home]}"
        name = next(iter(versions.values()))
        maybe = name.startswith("r")
        return f"R[{i}] = None if {name} is None else {name}.view({home})" if maybe else f"R[{i}] = {name}.view({home})"  # fmt: skip

    def undefined(self, group: Group, register: str, line: int) -> None:
        """Raise for a register that is read before it was written."""
        group.chunk.fail(line, f"{register} is read before it is written", int(group.lanes[0]))


def _constant(value: float | int, kind: str) -> Array:
    if kind == "b1":
        return np.array([bool(value)])
    if kind[0] == "f":
        with np.errstate(all="ignore"):
            return np.array([value], np.float64).astype(kind)
    bits = 8 * int(kind[1:])
    return np.array([int(value) & ((1 << bits) - 1)], np.uint64).astype(f"u{kind[1:]}").view(kind)


def _registers(operands: tuple[Operand, ...]) -> list[tuple[int, Register]]:
    """The registers of operands, each with the number of its operand (addresses count as sources)."""
    found: list[tuple[int, Register]] = []
    for i, operand in enumerate(operands):
        if isinstance(operand, Register):
            found.append((i, operand))
        elif isinstance(operand, Vector):
            found += [(i, r) for _, r in _registers(operand.items)]
        elif isinstance(operand, Pair):
            found += [(i, r) for r in (operand.first, operand.second) if r is not None]
        elif isinstance(operand, Negated):
            found.append((i + 1, operand.register))
        elif isinstance(operand, Address) and isinstance(operand.base, Register):
            found.append((i + 1, operand.base))
    return found


def _param_layout(params: list[Variable]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for v in params:
        end = -(-end // v.align) * v.align
        offsets.append(end)
        end += v.bytes
    return offsets, end
