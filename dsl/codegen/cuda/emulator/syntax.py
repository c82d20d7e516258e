"""A PTX module as data: what `parse` makes and the translator reads.

Names are resolved: a register operand is its `Register`, a variable operand its `Variable`, a label a `Label` of its
own function. Every instruction keeps its line, for errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "TYPE_BYTES", "Address", "Function", "FunctionName", "Immediate", "Instruction", "Label", "Negated", "Operand",
    "Pair", "Register", "Relocation", "Special", "Variable", "Vector", "type_bytes",
]  # fmt: skip

TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "u16x2": 4, "s16x2": 4, "b64": 8, "u64": 8, "s64": 8,
    "f64": 8, "f32x2": 8, "b128": 16,
}  # fmt: skip


def type_bytes(ptx_type: str) -> int:
    """The bytes of a PTX type."""
    return TYPE_BYTES[ptx_type]


@dataclass(eq=False, slots=True)
class Register:
    """A register of one function; `index` is its place in the register file of the module."""

    name: str
    type: str
    index: int = -1

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Relocation:
    """An address inside an initialiser: `(address of symbol + addend) & mask >> shift`, `bytes` wide at `offset`."""

    offset: int
    symbol: str
    addend: int
    bytes: int
    shift: int = 0


@dataclass(eq=False, slots=True)
class Variable:
    """A variable of a state space; `count` is None for `extern .shared x[]`."""

    name: str
    space: str
    type: str
    count: int | None
    align: int
    line: int
    array: bool = False
    extern: bool = False
    data: bytes = b""
    relocations: list[Relocation] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return type_bytes(self.type) * (self.count or 0)


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an int, or a float with the PTX type it was written in ("f32", "f64" or "" for a decimal)."""

    value: int | float
    type: str = ""


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(eq=False, slots=True)
class Label:
    """A place in a function, or a table of them (`.branchtargets`)."""

    name: str
    targets: list[Label] = field(default_factory=list)
    placed: bool = False


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The callee of a `call`."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`."""

    base: Register | Variable | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`, and the parenthesised lists of a `call`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """`%r|%p`: a result and a predicate."""

    first: Register | None
    second: Register | None


# None is the sink `_`.
Operand = (
    Register | Variable | Immediate | Special | Label | FunctionName | Address | Vector | Negated | Pair | None
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction: `opcode` is its first word, `modifiers` the rest, `guard` the predicate and its sense."""

    line: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None = None

    @property
    def type(self) -> str:
        """The last type among the modifiers ("" when there is none)."""
        for modifier in reversed(self.modifiers):
            if modifier in TYPE_BYTES:
                return modifier
        return ""

    def has(self, *modifiers: str) -> bool:
        """Whether any of these modifiers is there."""
        return any(modifier in self.modifiers for modifier in modifiers)

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


@dataclass(eq=False, slots=True)
class Function:
    """An `.entry` or `.func`; `body` is None for a declaration."""

    name: str
    entry: bool
    line: int
    params: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction | Label] | None = None
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
