"""A function body as basic blocks.

A block ends in an `Exit`; lanes are always at the start of some block. An instruction at which lanes wait for each
other (a barrier, a shuffle) stands first in its block, so that waiting means waiting to enter the block. A guarded
instruction with an effect becomes a block of its own with a branch around it; other guarded ones select.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.syntax import Function, FunctionName, Instruction, Label, Register

__all__ = ["Block", "Exit", "build_blocks", "callees", "meeting"]

_EFFECTS = {
    "ld", "ldu", "st", "atom", "red", "call", "bar", "barrier", "shfl", "vote", "match", "redux", "elect", "trap",
    "brkpt", "nanosleep", "activemask",
}  # fmt: skip
_ENDS = {"bra", "brx", "ret", "exit", "call"}
_WARP = {"shfl", "vote", "match", "redux", "elect"}


def meeting(instruction: Instruction) -> str:
    """Who meets at an instruction: "block", "warp" or "" for nobody."""
    if instruction.opcode in ("bar", "barrier"):
        if "warp" in instruction.modifiers:
            return "warp"
        return "block"
    return "warp" if instruction.opcode in _WARP else ""


@dataclass(eq=False, slots=True)
class Exit:
    """How lanes leave a block.

    "goto" to `targets[0]`; "if" to `targets[0]` where `register` is `sense`, else to `targets[1]`; "switch" to
    `targets[register]`; "call" to the entry of `callee` and later to `targets[0]`; "return"; "exit".
    """

    kind: str
    targets: list[int] = field(default_factory=list)
    register: Register | None = None
    sense: bool = True
    callee: str = ""


@dataclass(eq=False, slots=True)
class Block:
    """A basic block; `meets` says who waits at its head, `number` is its place in the program."""

    function: Function
    number: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    exit: Exit = field(default_factory=lambda: Exit("exit"))
    last: Instruction | None = None

    @property
    def meets(self) -> str:
        return meeting(self.instructions[0]) if self.instructions else ""

    @property
    def line(self) -> int:
        if self.instructions:
            return self.instructions[0].line
        return self.last.line if self.last is not None else self.function.line


LIBM = {f"{name}{suffix}": name for name in ("sin", "cos", "tan", "fmod") for suffix in ("", "f")}
"""Functions of C's library that code without libdevice calls for rare arguments, by NumPy's names: they are the host's."""


def callees(function: Function) -> list[str]:
    """The functions that a function calls by name."""
    found = []
    for item in function.body or []:
        if isinstance(item, Instruction) and item.opcode == "call":
            found += [o.name for o in item.operands if isinstance(o, FunctionName)]
    return found


def build_blocks(function: Function, first: int) -> list[Block]:
    """The blocks of a function, numbered from `first` in the order of the text."""
    builder = _Builder(function)
    for item in function.body or []:
        if isinstance(item, Label):
            builder.place(item)
        else:
            builder.add(item)
    return builder.finish(first)


class _Builder:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.blocks = [Block(function)]
        self.places: dict[Label, int] = {}
        self.jumps: list[tuple[Exit, list[Label]]] = []
        self.open = True

    def start(self) -> Block:
        """A new block, into which the present one falls if it is still open."""
        if self.open:
            self.blocks[-1].exit = Exit("goto", [len(self.blocks)])
        self.blocks.append(Block(self.function))
        self.open = True
        return self.blocks[-1]

    def place(self, label: Label) -> None:
        if self.blocks[-1].instructions or not self.open or self.blocks[-1].last is not None:
            self.start()
        self.places[label] = len(self.blocks) - 1

    def add(self, instruction: Instruction) -> None:
        if not self.open:
            self.start()
        if instruction.opcode in _ENDS and instruction.opcode != "call":
            self.end(instruction)
        elif instruction.guard is not None and instruction.opcode in _EFFECTS:
            self.guarded(instruction)
        elif instruction.opcode == "call":
            self.call(instruction)
        else:
            if meeting(instruction) and self.blocks[-1].instructions:
                self.start()
            self.blocks[-1].instructions.append(instruction)

    def end(self, instruction: Instruction) -> None:
        block = self.blocks[-1]
        block.last = instruction
        after = len(self.blocks)
        labels = [operand for operand in instruction.operands if isinstance(operand, Label)]
        if instruction.opcode == "brx":
            register = instruction.operands[0]
            assert isinstance(register, Register)
            block.exit = Exit("switch", [], register)
            self.jumps.append((block.exit, resolve(labels[0]).targets))
            self.open = False
            return
        target: list[Label] = labels
        kind = {"bra": "goto", "ret": "return", "exit": "exit"}[instruction.opcode]
        if kind == "return" and self.function.entry:
            kind = "exit"
        if instruction.guard is None:
            block.exit = Exit(kind)
            if target:
                self.jumps.append((block.exit, target))
            self.open = False
            return
        register, sense = instruction.guard
        block.exit = Exit("if", [], register, sense)
        if target:
            self.jumps.append((block.exit, target))
            block.exit.targets = [-1, after]
        else:
            block.exit.targets = [after, after + 1]
            self.blocks.append(Block(self.function, exit=Exit(kind), last=instruction))
        self.blocks.append(Block(self.function))

    def guarded(self, instruction: Instruction) -> None:
        """`@p st ...` as a branch around a block with the store."""
        assert instruction.guard is not None
        register, sense = instruction.guard
        here = len(self.blocks)
        before = self.blocks[-1]
        before.last = instruction
        before.exit = Exit("if", [here, -1], register, sense)
        self.blocks.append(Block(self.function))
        plain = Instruction(
            instruction.line, instruction.opcode, instruction.modifiers, instruction.operands
        )
        self.add(plain)
        self.start()
        before.exit.targets[1] = len(self.blocks) - 1

    def call(self, instruction: Instruction) -> None:
        block = self.blocks[-1]
        names = [o.name for o in instruction.operands if isinstance(o, FunctionName)]
        if not names:
            raise PtxError("call through a register is not supported", line=instruction.line)
        block.instructions.append(instruction)
        block.last = instruction
        if names[0] == "vprintf" or names[0] in LIBM:
            return
        block.exit = Exit("call", [len(self.blocks)], callee=names[0])
        self.blocks.append(Block(self.function))

    def finish(self, first: int) -> list[Block]:
        if self.open:
            self.blocks[-1].exit = Exit("exit" if self.function.entry else "return")
        for exit, labels in self.jumps:
            numbers = [self.places[resolve(label)] for label in labels]
            exit.targets = numbers + exit.targets[1:]
        for i, block in enumerate(self.blocks):
            block.number = first + i
            block.exit.targets = [first + target for target in block.exit.targets]
        return self.blocks


def resolve(label: Label) -> Label:
    """The label that stands in the text, where an inner scope used it before."""
    while not label.placed:
        label = label.targets[0]
    return label
