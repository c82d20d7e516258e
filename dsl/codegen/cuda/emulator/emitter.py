"""Python source for one block.

Inside a block each register value is a local variable, and a value is kept in every NumPy type it is needed in: a
32-bit register that is added as an integer and multiplied as a float is viewed, not converted. Between blocks a
register lives in the register file `R` in its *home* kind.

Kinds are NumPy type strings: "u4" for .u32 and .b32, "i4" for .s32, "f4" for .f32, "f2" for .f16, "u2" for .bf16 (its
bits), "b1" for predicates, "bytes" for a parameter that is an array (lanes by bytes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.operations import operation
from dsl.codegen.cuda.emulator.syntax import (
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Special,
    Variable,
)  # fmt: skip

if TYPE_CHECKING:
    from dsl.codegen.cuda.emulator.program import Program

__all__ = ["KINDS", "Emitter", "keep", "size_of_kind"]

Array = np.ndarray[Any, Any]

KINDS = {
    "pred": "b1", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4", "bf16x2": "u4", "tf32": "f4", "u16x2": "u4",
    "s16x2": "u4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "u8", "bytes": "bytes",
}  # fmt: skip


def size_of_kind(kind: str) -> int:
    """The bytes of a kind."""
    return 1 if kind == "b1" else int(kind[1:])


def keep(predicate: Array, new: Array, old: Array | None) -> Array:
    """What a guarded instruction leaves in its register."""
    if old is None:
        old = np.zeros(1, new.dtype)
    return np.where(predicate, new, old)


class Emitter:
    """Writes the lines of a block; `origins` are their PTX lines."""

    def __init__(self, program: Program, entry: str) -> None:
        self.program, self.entry = program, entry
        self.lines: list[str] = []
        self.origins: list[int] = []
        self.current: dict[Register, dict[str, str]] = {}
        self.uses: dict[Register, bool] = {}
        self.defined: set[Register] = set()
        self.instruction = Instruction(0, "", (), ())
        self.guard = ""
        self.count = 0

    # Lines and names ------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add a line of Python."""
        self.lines.append(text)
        self.origins.append(self.instruction.line)

    def fresh(self) -> str:
        """A new local name."""
        self.count += 1
        return f"v{self.count}"

    def let(self, expression: str) -> str:
        """A new local with this value."""
        name = self.fresh()
        self.line(f"{name} = {expression}")
        return name

    def bind(self, value: object, hint: str = "x") -> str:
        """The name by which the code sees a Python object."""
        return self.program.bind(value, hint)

    def op(self, name: str, kind: str = "") -> str:
        """The name of an operation's ufunc."""
        return self.bind(operation(name, kind), name)

    def const(self, value: float | int, kind: str) -> str:
        """The name of a one-element array."""
        return self.program.constant(value, kind)

    def unsupported(self, why: str = "") -> NoReturn:
        """Refuse the present instruction."""
        name = self.instruction.name
        line = self.instruction.line
        raise PtxError(
            f"the emulator does not know {name}" + (f": {why}" if why else ""),
            line=line,
            text=self.program.source.text(line),
            kernel=self.entry,
        )

    # Registers ------------------------------------------------------------------------------------------------------

    def versions(self, register: Register, strict: bool = True) -> dict[str, str]:
        """The names of a register's value by kind; first read from the register file if need be."""
        if register not in self.current:
            home = self.program.home(register)
            if register not in self.program.written:
                # Never written: LLVM's undef, any value will do.
                zero = self.bind(np.zeros((1, 64) if home == "bytes" else 1, _dtype(home)), "undef")
                self.current[register] = {home: zero}
            else:
                self.uses.setdefault(register, False)
                self.current[register] = {home: f"r{self.program.index(register)}"}
        if strict and register in self.uses and register not in self.defined:
            self.uses[register] = True
        return self.current[register]

    def read(self, operand: Operand, kind: str) -> str:
        """The name of an operand's value in a kind."""
        if isinstance(operand, Register):
            return self.register(operand, kind)
        if isinstance(operand, Immediate):
            return self.immediate(operand, kind)
        if isinstance(operand, Negated):
            return self.let(f"~{self.register(operand.register, 'b1')}")
        if isinstance(operand, Special):
            return self.special(operand.name, kind)
        if isinstance(operand, Variable):
            return self.program.address(self, operand, kind)
        self.unsupported(f"operand {operand!r}")

    def register(self, register: Register, kind: str) -> str:
        versions = self.versions(register)
        if kind in versions:
            return versions[kind]
        have, name = next(iter(versions.items()))
        if "b1" in (have, kind) or "bytes" in (have, kind):
            self.unsupported(f"{register} is a .{register.type}")
        if size_of_kind(have) < size_of_kind(kind):
            self.unsupported(f"{register} is narrower than the operand")
        if size_of_kind(have) == size_of_kind(kind):
            new = self.let(f"{name}.view({kind})")
            versions[kind] = new
            return new
        whole = self.register(register, f"u{size_of_kind(have)}")
        bits = f"u{size_of_kind(kind)}"
        cut = self.let(f"{whole}.astype({bits})")
        return cut if bits == kind else self.let(f"{cut}.view({kind})")

    def immediate(self, immediate: Immediate, kind: str) -> str:
        value = immediate.value
        if isinstance(value, float) and kind[0] in "uib":
            source = "f4" if immediate.type == "f32" or kind[1:] == "4" else "f8"
            value = int(np.array(value, source).view(f"u{source[1]}"))
        elif (
            isinstance(value, int)
            and kind[0] == "f"
            and self.instruction.type[:1] in ("b", "u", "s")
        ):
            size = size_of_kind(kind)
            raw = np.array(value & (1 << 8 * size) - 1, f"u{size}")
            value = float(raw.view(kind)) if self.instruction.type[:2] != "bf" else value
        return self.const(value, kind)

    def special(self, name: str, kind: str) -> str:
        if name.startswith(("clock", "globaltimer")):
            wide = name in ("clock64", "globaltimer")
            value = self.let(f"clock(G, {'u8' if wide else 'u4'})")
        else:
            value = self.let(f"G.special({name!r})")
            wide = name in ("gridid", "current_graph_exec")
        have = "u8" if wide else "u4"
        if size_of_kind(kind) != size_of_kind(have):
            return self.let(f"{value}.astype(u{kind[1:]})")
        return value if kind == have else self.let(f"{value}.view({kind})")

    def predicate(self, operand: Operand) -> str:
        """A predicate operand, possibly negated."""
        return self.read(operand, "b1")

    def write(self, register: Operand, kind: str, expression: str) -> None:
        """Give a register a value of a kind; a narrower one is extended by its sign."""
        if register is None:
            self.line(expression)
            return
        if not isinstance(register, Register):
            self.unsupported("a destination that is not a register")
        home = self.program.home(register)
        if "b1" not in (home, kind) and "bytes" not in (home, kind):
            have, need = size_of_kind(kind), size_of_kind(home)
            if have > need:
                self.unsupported(f"{register} is narrower than the result")
            if have < need:
                sign = "i" if kind[0] == "i" else "u"
                if kind[0] == "f":
                    expression, kind = f"({expression}).view(u{have})", f"u{have}"
                expression, kind = f"({expression}).astype({sign}{need})", f"{sign}{need}"
        elif home != kind:
            self.unsupported(f"{register} is a .{register.type}")
        if self.guard:
            old = self.guarded_old(register, kind)
            expression = f"keep({self.guard}, {expression}, {old})"
        self.define(register, kind, self.let(expression))

    def guarded_old(self, register: Register, kind: str) -> str:
        versions = self.versions(register, strict=False)
        if kind in versions:
            return versions[kind]
        name = next(iter(versions.values()))
        return f"(None if {name} is None else {name}.view({kind}))"

    def define(self, register: Register, kind: str, name: str) -> None:
        """Note that a local now holds the register."""
        self.current[register] = {kind: name}
        self.defined.add(register)

    def alias(self, target: Register, source: Register) -> None:
        """A move: both registers are the same value from here on, defined or not."""
        if self.guard:
            kind = self.program.home(target)
            name = self.guarded_old(source, kind)
            self.write(target, kind, name)
            return
        self.current[target] = dict(self.versions(source, strict=False))
        self.defined.add(target)

    def emit(self, instruction: Instruction) -> None:
        """Write one instruction."""
        from dsl.codegen.cuda.emulator.instructions import EMIT

        self.instruction = instruction
        if instruction.opcode not in EMIT:
            self.unsupported()
        self.guard = ""
        if instruction.guard is not None:
            register, sense = instruction.guard
            name = self.register(register, "b1")
            self.guard = name if sense else self.let(f"~{name}")
        EMIT[instruction.opcode](self, instruction)
        self.guard = ""


def _dtype(home: str) -> Any:
    return np.dtype("u1" if home == "bytes" else home)
