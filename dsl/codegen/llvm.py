"""Builds textual LLVM IR: modules, functions, typed values, structured control flow.

Text is built rather than llvmlite's objects because it is several times faster to make, and parsing is quick. A `Value`
is a name with an LLVM type and the function that owns it; Python ints stand for integer constants and are folded.
Control flow is written with `with` blocks; a variable that changes over time is a `Variable` (a stack slot that LLVM
promotes to a register). A function that uses a value of the function around it captures it: the value arrives through
the environment that its first parameter points to (see `Function.captured`).

>>> module = Module("example")
>>> f = module.function("double", "i64", [("i64", "x")])
>>> f.ret(f.mul(f.params[0], 2))
>>> print(module.text().strip())
define i64 @double(i64 %x) nounwind {
entry:
  %v0 = mul nsw i64 %x, 2
  ret i64 %v0
}
"""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dsl.errors import InternalError

__all__ = [
    "Function",
    "Lanes",
    "Module",
    "Operand",
    "Value",
    "Variable",
    "float_constant",
    "read",
    "width",
]

_WIDTH = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}
_BYTES = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "ptr": 8,
}


def width(type: str) -> int:
    """Return the number of bits of an integer type."""
    return _WIDTH[type]


class Value:
    """A value of a function, or a constant (which no function owns); `dim` is the symbolic size it is known to be."""

    __slots__ = ("dim", "owner", "text", "type")

    def __init__(self, text: str, type: str, owner: Function | None = None) -> None:
        self.text, self.type, self.owner = text, type, owner
        self.dim: Any = None

    def __repr__(self) -> str:
        return f"{self.type} {self.text}"


def _bare(type: str) -> str:
    """Return a param's type without its attributes."""
    return type if type.startswith("<") else type.split()[0]


Operand = Value | int
Lanes = tuple[int, ...] | None
"""How many elements at a time the loop around an instruction may be vectorised for; None: nobody knows."""


def float_constant(number: float, type: str) -> Value:
    """Return a float constant, exact to the bit."""
    if type == "half":
        (bits,) = struct.unpack("<H", struct.pack("<e", number))
        return Value(f"0xH{bits:04X}", type)
    if type == "float":
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return Value(f"0x{bits:016X}", type)


class Variable:
    """A stack slot: a value that changes over time."""

    def __init__(self, function: Function, type: str, address: Value) -> None:
        self.function, self.type, self.address = function, type, address

    def get(self) -> Value:
        return self.function.load(self.type, self.address)

    def set(self, value: Operand) -> None:
        self.function.store(self.function.as_value(value, self.type), self.address)


_BARRIER = 'call void asm sideeffect "", ""() nounwind memory(none)'
"""No instruction, and nothing that LLVM may do where it is not asked for: it makes no choice of a branch with it."""


def read(parts: tuple[Variable, ...]) -> Any:
    """Return the value of a scalar's variables: one value, or a pair."""
    return parts[0].get() if len(parts) == 1 else (parts[0].get(), parts[1].get())


class Module:
    """A module under construction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: dict[str, Function] = {}
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._metadata: list[str] = []
        self._raw: dict[str, str] = {}
        self._kept: dict[str, None] = {}
        self.links: dict[str, str] = {}  # modules to link to this one, by name
        self._serial = 0
        self.unlikely: dict[int, str] = {}  # notes on branches, by their unlikely side
        self.fastmath = False
        self.is_long = False  # whether running it may take long
        self.as_written = (
            True  # whether all loops are written as they should run, and nothing is to be inlined
        )
        self.wide_loops = 0  # of the program's own, that are written by vectors
        self.products = 0  # of matrices, that are written out
        self.gathers = False  # whether memory is read or written where data says
        self.far = (
            False  # whether elements that no near cache holds are read, one where the last one says
        )
        self.unrolled = False  # whether a loop gains by several trips in one
        self.steady = False  # whether a loop asks in each trip for what stays
        self.device = False  # whether it is code for a GPU
        self.libdevice = False  # whether NVIDIA's library of functions can be linked to it

    def function(
        self, name: str, result: str, params: Sequence[tuple[str, str]], *, internal: bool = False,
        attributes: str = "nounwind", parent: Function | None = None,
    ) -> Function:  # fmt: skip
        """Start a function; params are (type with attributes such as `ptr noalias`, name)."""
        made = Function(self, name, result, params, internal, attributes, parent)
        self.functions[name] = made
        return made

    def fresh(self, stem: str) -> str:
        """Return a global name that is not in use."""
        self._serial += 1
        return f"{stem}.{self._serial}"

    def declare(
        self, name: str, result: str, params: Sequence[str], attributes: str = "nounwind"
    ) -> None:
        """Declare an external function, once; a function defined in this module needs no declaration."""
        self._declarations.setdefault(
            name, f"declare {result} @{name}({', '.join(params)}) {attributes}"
        )

    def keep(self, name: str) -> None:
        """Let LLVM keep a declaration that nothing refers to yet."""
        self._kept[name] = None

    def include(self, name: str, text: str) -> None:
        """Add a complete definition under a name, once."""
        self.as_written = False
        self._raw.setdefault(name, text)

    def state(self) -> tuple[int, bool]:
        """Return how many definitions there are, and whether nothing is to be inlined, for `restore`."""
        return len(self._raw), self.as_written

    def restore(self, state: tuple[int, bool]) -> None:
        """Drop the definitions that came later."""
        count, self.as_written = state
        self._raw = dict(itertools.islice(self._raw.items(), count))

    def constant(self, data: bytes, align: int = 64) -> Value:
        """Add constant bytes and return their address."""
        name = self.fresh("const")
        body = data.hex("\\").upper()
        self._globals.append(
            f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"\\{body}", align {align}'
        )
        return Value(f"@{name}", "ptr")

    def shared(self, size: int, align: int = 16) -> Value:
        """Add memory that the threads of a block share, and return its address."""
        name = self.fresh("shared")
        self._globals.append(
            f"@{name} = internal addrspace(3) global [{size} x i8] undef, align {align}"
        )
        return Value(f"addrspacecast (ptr addrspace(3) @{name} to ptr)", "ptr")

    def metadata(self, body: str) -> str:
        """Add a metadata node (`%self` in the body stands for its own name) and return its name."""
        name = f"!{len(self._metadata)}"
        self._metadata.append(f"{name} = {body.replace('%self', name)}")
        return name

    def independent(self) -> tuple[str, str]:
        """Return metadata for a loop whose iterations are independent, and for its memory accesses."""
        group = self.metadata("distinct !{}")
        accesses = self.metadata(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
        return self.metadata(f"distinct !{{%self, {accesses}}}"), f", !llvm.access.group {group}"

    def several_trips(self, count: int) -> str:
        """Return what tells LLVM to make so many trips of a loop in one."""
        several = self.metadata(f'!{{!"llvm.loop.unroll.count", i32 {count}}}')
        return self.metadata(f"distinct !{{%self, {several}}}")

    def text(self) -> str:
        """Return the module as text."""
        defined = set(self.functions) | set(self._raw)
        declared = [line for name, line in self._declarations.items() if name not in defined]
        bodies = [function.text() for function in self.functions.values()]
        if len(bodies) > 2:  # more than one beside the program
            bodies = _distinct(dict(zip(self.functions, bodies)), self._metadata)
        heads = [*self._globals, *self._list_of_kept(), *declared]
        texts = [*self._raw.values(), *bodies]
        return "\n".join([*heads, *texts, *self._notes_in(texts), ""])

    def _notes_in(self, bodies: Sequence[str]) -> list[str]:
        """Return the metadata that functions refer to. Loops that were not to be, since vectors took their place, had more."""
        wanted, pending = set[int](), list(bodies)
        while pending:
            new = set(map(int, _NOTE.findall(pending.pop()))) - wanted
            pending += [self._metadata[number] for number in new]
            wanted |= new
        return [self._metadata[number] for number in sorted(wanted)]

    def _list_of_kept(self) -> list[str]:
        if not self._kept:
            return []
        listing = ", ".join(f"ptr @{name}" for name in self._kept)
        kind = f"[{len(self._kept)} x ptr]"
        return [
            f'@llvm.compiler.used = appending global {kind} [{listing}], section "llvm.metadata"'
        ]


_NOTE = re.compile(r"!(\d+)")
_NAME = re.compile(r"@([\w.]+)")


def _distinct(bodies: dict[str, str], notes: Sequence[str]) -> list[str]:
    """Return the texts of functions without those that do what an earlier one does, which is called in their place."""
    first: dict[str, str] = {}
    gone: dict[str, str] = {}
    for name, text in bodies.items():
        if text.startswith("define internal "):
            key = _with_notes(text.replace(f"@{name}(", "@(", 1), notes)
            if (kept := first.setdefault(key, name)) != name:
                gone[name] = kept
    if not gone:
        return list(bodies.values())
    return [
        _NAME.sub(lambda found: "@" + gone.get(found[1], found[1]), text)
        for name, text in bodies.items()
        if name not in gone
    ]


def _with_notes(text: str, notes: Sequence[str]) -> str:
    """Return a text and the metadata that it refers to, numbered as they come."""
    numbers: dict[int, int] = {}
    pieces, pending = [], [text]

    def renumbered(found: re.Match[str]) -> str:
        note = int(found[1])
        if note not in numbers:
            numbers[note] = len(numbers)
            pending.append(notes[note])
        return f"!{numbers[note]}"

    while pending:
        pieces.append(_NOTE.sub(renumbered, pending.pop(0)))
    return "\n".join(pieces)


_FORWARD = {"allocs", "body", "exit", "then", "else", "fi"}
"""Blocks that no later one returns to, apart from the allocations, which are emitted last and run first."""


class Point(NamedTuple):
    """A place in a function under construction, and what its module was then."""

    lines: int
    block: str
    module: tuple[int, bool]


class Function:
    """A function under construction: instructions go to the current block."""

    def __init__(
        self, module: Module, name: str, result: str, params: Sequence[tuple[str, str]], internal: bool,
        attributes: str, parent: Function | None,
    ) -> None:  # fmt: skip
        self.module, self.name, self.result, self.parent = module, name, result, parent
        self.params = [Value(f"%{label}", _bare(type), self) for type, label in params]
        self._listing = [f"{type} %{label}" for type, label in params]
        self._linkage, self._attributes = "internal " if internal else "", attributes
        self._prologue: list[str] = []
        self._lines: list[str] = []
        self._serial = 0
        self._block = "entry"
        self.terminated = False
        self.captured: dict[Value, Value] = {}  # value of the parent -> value here
        self.lanes: Lanes = None
        self.singly = False  # whether what is emitted is computed for one number at a time
        self.spliced: list[str] | None = (
            None  # short functions that were put in the place of calls; None if none are to be
        )

    def text(self) -> str:
        named = f"define {self._linkage}{self.result} @{self.name}"
        head = f"{named}({', '.join(self._listing)}) {self._attributes} {{"
        return "\n".join([head, "entry:", *self._prologue, *self._lines, "}"])

    def length(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def floats(self) -> int:
        """Return how many lines compute with floats."""
        return sum(" = f" in line for line in self._lines)

    def is_straight(self) -> bool:
        """Return whether it surely has no loops: other blocks than those of branches may be theirs."""
        labels = [line for line in self._lines if line.endswith(":")]
        return all(label.rstrip("0123456789:") in _FORWARD for label in labels)

    def calls(self, name: str) -> bool:
        """Return whether a function is called here."""
        return any(f"@{name}(" in line for line in self._lines)

    def note(self, attributes: str) -> None:
        """Give the function other attributes."""
        self._attributes = attributes

    def add_param(self, type: str, label: str) -> Value:
        """Add a param at the end, while the function is under construction."""
        made = Value(f"%{label}", _bare(type), self)
        self.params.append(made)
        self._listing.append(f"{type} %{label}")
        return made

    # -- names and raw lines ---------------------------------------------------------------------------------------

    def name_value(self, type: str) -> Value:
        """Return a new value that no instruction defines yet."""
        value = Value(f"%v{self._serial}", type, self)
        self._serial += 1
        return value

    def emit(self, line: str) -> None:
        if not self.terminated:
            self._lines.append("  " + line)

    def define(self, type: str, instruction: str) -> Value:
        """Emit an instruction and return its result."""
        value = self.name_value(type)
        self.emit(f"{value.text} = {instruction}")
        return value

    def as_value(self, operand: Operand, type: str) -> Value:
        if isinstance(operand, Value):
            return self.use(operand)
        if type in ("float", "double", "half"):
            return float_constant(float(operand), type)
        return Value(str(int(operand)), type)

    def use(self, value: Value) -> Value:
        """Return a value for use here: one of the function around becomes a captured one."""
        if value.owner is self or value.owner is None:
            return value
        if self.parent is None:
            raise InternalError(f"{value} belongs to another function than {self.name}")
        outer = self.parent.use(value)
        if outer.owner is None:
            return outer
        if outer not in self.captured:
            place = 8 * len(self.captured)
            address, here = self.name_value("ptr"), self.name_value(outer.type)
            self._prologue.append(f"  {address.text} = getelementptr i8, ptr %env, i64 {place}")
            self._prologue.append(f"  {here.text} = load {outer.type}, ptr {address.text}")
            self.captured[outer] = here
        return self.captured[outer]

    def environment(self, inner: Function) -> Value:
        """Store what `inner` captured and return the address, which is the `env` to call it with."""
        space = self.alloca(max(8, 8 * len(inner.captured)))
        for place, value in enumerate(inner.captured):
            self.store(value, self.gep(space, 8 * place))
        return space

    # -- blocks ----------------------------------------------------------------------------------------------------

    def label(self, stem: str = "b") -> str:
        self._serial += 1
        return f"{stem}{self._serial}"

    @property
    def block(self) -> str:
        """The label of the current block."""
        return self._block

    def start(self, label: str) -> None:
        """Continue in a new block; falls through to it from an open one."""
        if not self.terminated:
            self.emit(f"br label %{label}")
        self._lines.append(f"{label}:")
        self._block, self.terminated = label, False

    def continue_in(self, label: str) -> None:
        """Continue in a new block that is reached by branches alone."""
        self._lines.append(f"{label}:")
        self._block, self.terminated = label, False

    def branch(self, label: str, suffix: str = "") -> None:
        self.emit(f"br label %{label}{suffix}")
        self.terminated = True

    def branch_if(self, condition: Value, then: str, otherwise: str, suffix: str = "") -> None:
        self.emit(f"br i1 {self.use(condition).text}, label %{then}, label %{otherwise}{suffix}")
        self.terminated = True

    def ret(self, value: Operand | None = None) -> None:
        self.emit(
            "ret void"
            if value is None
            else f"ret {self.result} {self.as_value(value, self.result).text}"
        )
        self.terminated = True

    def unreachable(self) -> None:
        self.emit("unreachable")
        self.terminated = True

    def point(self) -> Point:
        """Return where the next line goes, for `since` and `go_back`."""
        return Point(len(self._lines), self._block, self.module.state())

    def since(self, point: Point) -> list[str]:
        """Return the lines from a point on."""
        return self._lines[point.lines :]

    def go_back(self, point: Point) -> None:
        """Drop what was emitted from a point on, at which a block was open, and the definitions that it asked for."""
        del self._lines[point.lines :]
        self._block, self.terminated = point.block, False
        self.module.restore(point.module)

    @contextlib.contextmanager
    def one_by_one(self, singly: bool) -> Iterator[None]:
        """Say of what is emitted in the block whether it is for one number at a time, as LLVM will not make vectors of it."""
        before, self.singly = self.singly, singly
        yield
        self.singly = before

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[str]]:
        """Collect what is emitted in the block, which must not end its own, instead of emitting it."""
        block, lines = self._block, self._lines
        self._lines = []
        yield self._lines
        self._block, self._lines = block, lines

    def replay(self, lines: Iterable[str]) -> None:
        """Emit lines that were recorded, or made from such; the block is the last one that starts in them."""
        before = len(self._lines)
        self._lines.extend(lines)
        for line in reversed(self._lines[before:]):
            if line.endswith(":"):
                self._block = line[:-1]
                return

    @contextlib.contextmanager
    def loop(
        self, start: Operand, stop: Operand, step: int = 1, *, metadata: str = "",
        counter: Value | None = None, as_written: bool = False, ahead: bool = False,
    ) -> Iterator[Value]:  # fmt: skip
        """Run the block for start, start + step, … below stop (step > 0); `metadata` is a `!llvm.loop` node.

        The counter is a new value, or one that has been named already. With `as_written`, LLVM's passes over loops have
        nothing to add. With `ahead`, the next count is computed first: a branch in the body that computes it too would make LLVM
        compute it in each branch, and no longer see what is counted.
        """
        self.module.as_written &= as_written
        head, after = self.label("loop"), self.label("done")
        first, last = self.as_value(start, "i64"), self.as_value(stop, "i64")
        if not (isinstance(start, int) and isinstance(stop, int) and start < stop):
            self.branch_if(self.compare("slt", first, last), head, after)
        else:
            self.branch(head)
        before = self._block
        self.continue_in(head)
        index, following = counter or self.name_value("i64"), self.name_value("i64")
        place = len(self._lines)
        self.emit("")
        increment = f"{following.text} = add nuw nsw i64 {index.text}, {step}"
        if ahead:
            self.emit(increment)
        yield index
        if self.terminated:
            raise InternalError("a loop body may not end its block")
        self._lines[place] = (
            f"  {index.text} = phi i64 [{first.text}, %{before}], [{following.text}, %{self._block}]"
        )
        if not ahead:
            self.emit(increment)
        more = self.compare("slt", following, last)
        self.branch_if(more, head, after, f", !llvm.loop {metadata}" if metadata else "")
        self.continue_in(after)

    @contextlib.contextmanager
    def if_(self, condition: Value, *, unlikely: bool = False) -> Iterator[None]:
        """Run the block if the condition is true."""
        then, after = self.label("then"), self.label("fi")
        self.branch_if(condition, then, after, self.weights(0 if unlikely else None))
        self.start(then)
        yield
        if not self.terminated:
            self.branch(after)
        self.continue_in(after)

    def if_else(
        self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None],
        unlikely: int | None = None,
    ) -> None:  # fmt: skip
        """Run one of two functions that emit code; the first (0) or the second (1) may be unlikely, and stays a branch."""
        yes, no, after = self.label("then"), self.label("else"), self.label("fi")
        self.branch_if(condition, yes, no, self.weights(unlikely))
        for k, (label, body) in enumerate(((yes, then), (no, otherwise))):
            self.continue_in(label)
            if k == unlikely and not self.module.device:
                self.emit(_BARRIER)
            body()
            if not self.terminated:
                self.branch(after)
        self.continue_in(after)

    @contextlib.contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Run the block as long as the condition, emitted at the loop's head, is true."""
        self.module.as_written = False
        head, body, after = self.label("while"), self.label("do"), self.label("done")
        self.start(head)
        self.branch_if(condition(), body, after)
        self.continue_in(body)
        yield
        if not self.terminated:
            self.branch(head)
        self.continue_in(after)

    @contextlib.contextmanager
    def again(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Run the block as long as the condition is true: a loop around others, that LLVM has no need to unroll."""
        head, body, after = self.label("parts"), self.label("part"), self.label("done")
        self.start(head)
        self.branch_if(condition(), body, after)
        self.start(body)
        yield
        once = self.module.metadata('!{!"llvm.loop.unroll.disable"}')
        self.branch(head, f", !llvm.loop {self.module.metadata(f'distinct !{{%self, {once}}}')}")
        self.continue_in(after)

    def weights(self, unlikely: int | None) -> str:
        """The note on a branch of which one side, 0 or 1, is unlikely."""
        if unlikely is None:
            return ""
        if unlikely not in self.module.unlikely:
            sides = "i32 2000, i32 1" if unlikely else "i32 1, i32 2000"
            note = self.module.metadata(f'!{{!"branch_weights", {sides}}}')
            self.module.unlikely[unlikely] = f", !prof {note}"
        return self.module.unlikely[unlikely]

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocated(self, since: int = 0) -> list[str]:
        """Return what has room on the stack, by name, from so many of them on."""
        lines = [line.split() for line in self._prologue if " = alloca " in line]
        return [name for name, *_ in lines[since:]]

    def at_entry(self, line: str) -> None:
        """Emit a line where the function starts."""
        self._prologue.append("  " + line)

    def alloca(self, size: int, align: int = 16) -> Value:
        """Reserve stack space for the whole function."""
        value = self.name_value("ptr")
        self._prologue.append(f"  {value.text} = alloca [{size} x i8], align {align}")
        return value

    def variable(self, type: str, initial: Operand | None = None) -> Variable:
        value = self.name_value("ptr")
        self._prologue.append(f"  {value.text} = alloca {type}")
        made = Variable(self, type, value)
        if initial is not None:
            made.set(initial)
        return made

    def load(self, type: str, address: Value, *, align: int = 0, metadata: str = "") -> Value:
        suffix = (f", align {align}" if align else "") + metadata
        return self.define(type, f"load {type}, ptr {self.use(address).text}{suffix}")

    def store(self, value: Value, address: Value, *, align: int = 0, metadata: str = "") -> None:
        suffix = (f", align {align}" if align else "") + metadata
        value = self.use(value)
        self.emit(f"store {value.type} {value.text}, ptr {self.use(address).text}{suffix}")

    def gep(self, base: Value, index: Operand, type: str = "i8") -> Value:
        """Return the address `index` elements of `type` after `base`."""
        if isinstance(index, int) and index == 0:
            return self.use(base)
        place = self.as_value(index, "i64").text
        return self.define(
            "ptr", f"getelementptr inbounds {type}, ptr {self.use(base).text}, i64 {place}"
        )

    # -- integers --------------------------------------------------------------------------------------------------

    def binary(self, instruction: str, a: Operand, b: Operand, type: str = "i64") -> Value:
        """Emit a two-operand instruction; Python ints take the type of the other operand, or `type`."""
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else type
        lhs, rhs = self.as_value(a, kind), self.as_value(b, kind)
        return self.define(kind, f"{instruction} {kind} {lhs.text}, {rhs.text}")

    def add(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b == 0:
            return a
        return self.binary("add nsw", a, b)

    def sub(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if isinstance(b, int) and b == 0:
            return a
        return self.binary("sub nsw", a, b)

    def mul(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for one, other in ((a, b), (b, a)):
            if isinstance(one, int) and one in (0, 1):
                return other if one else 0
        return self.binary("mul nsw", a, b)

    def compare(self, predicate: str, a: Operand, b: Operand) -> Value:
        """Integer or pointer comparison: eq ne slt sle sgt sge ult ule ugt uge."""
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else "i64"
        lhs, rhs = self.as_value(a, kind), self.as_value(b, kind)
        return self.define("i1", f"icmp {predicate} {kind} {lhs.text}, {rhs.text}")

    def fcompare(self, predicate: str, a: Value, b: Value) -> Value:
        """Float comparison: oeq une olt ole ogt oge uno ord …"""
        a, b = self.use(a), self.use(b)
        return self.define("i1", f"fcmp {predicate} {a.type} {a.text}, {b.text}")

    def select(self, condition: Value, a: Operand, b: Operand, type: str = "i64") -> Value:
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else type
        lhs, rhs = self.as_value(a, kind), self.as_value(b, kind)
        return self.define(
            kind, f"select i1 {self.use(condition).text}, {kind} {lhs.text}, {kind} {rhs.text}"
        )

    def both(self, a: Value, b: Value) -> Value:
        return self.binary("and", a, b)

    def masked(self, a: Operand, mask: int) -> Operand:
        """The bits of an integer that are in a mask."""
        return a & mask if isinstance(a, int) else self.binary("and", a, mask)

    def either(self, a: Value, b: Value) -> Value:
        return self.binary("or", a, b)

    def distance(self, a: Value, b: Value) -> Value:
        """How far apart two integers are, of any width, as one of 64 bits."""
        apart = self.convert("sext", self.binary("sub", a, b), "i64")
        return self.call("i64", "llvm.abs.i64", apart, Value("false", "i1"))

    def invert(self, a: Value) -> Value:
        return self.binary("xor", a, Value("true", "i1") if a.type == "i1" else -1)

    def minimum(self, a: Operand, b: Operand) -> Operand:
        """The smaller of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.select(self.compare("slt", a, b), a, b)

    def maximum(self, a: Operand, b: Operand) -> Operand:
        """The larger of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.select(self.compare("sgt", a, b), a, b)

    def convert(self, instruction: str, value: Value, type: str) -> Value:
        """Emit a conversion: trunc zext sext fptrunc fpext fptosi fptoui sitofp uitofp bitcast ptrtoint inttoptr."""
        value = self.use(value)
        if value.type == type:
            return value
        return self.define(type, f"{instruction} {value.type} {value.text} to {type}")

    # -- floats ----------------------------------------------------------------------------------------------------

    def constant(self, number: float, type: str) -> Value:
        return float_constant(number, type)

    def fadd(self, a: Value, b: Value, flags: str = "") -> Value:
        return self.binary(f"fadd {flags}".strip(), a, b)

    def fsub(self, a: Value, b: Value, flags: str = "") -> Value:
        return self.binary(f"fsub {flags}".strip(), a, b)

    def fmul(self, a: Value, b: Value, flags: str = "") -> Value:
        return self.binary(f"fmul {flags}".strip(), a, b)

    def fdiv(self, a: Value, b: Value, flags: str = "") -> Value:
        return self.binary(f"fdiv {flags}".strip(), a, b)

    def fneg(self, a: Value) -> Value:
        a = self.use(a)
        return self.define(a.type, f"fneg {a.type} {a.text}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.intrinsic("llvm.fma", a, b, c)

    def intrinsic(self, name: str, *args: Value, flags: str = "") -> Value:
        """Call an intrinsic overloaded on its first argument, all arguments and the result being of that type."""
        used = [self.use(a) for a in args]
        type = used[0].type
        suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(type, type)
        return self.call(type, f"{name}.{suffix}", *used, flags=flags)

    def call(self, result: str, name: str, *args: Value, flags: str = "") -> Value:
        """Call a function by name; declares it if this module does not define it."""
        used = [self.use(a) for a in args]
        self.module.declare(name, result, [a.type for a in used])
        listing = ", ".join(f"{a.type} {a.text}" for a in used)
        prefix = f"call {flags} " if flags else "call "
        if result == "void":
            self.emit(f"{prefix}void @{name}({listing})")
            return Value("", "void")
        return self.define(result, f"{prefix}{result} @{name}({listing})")

    def call_pointer(self, result: str, address: Value, *args: Value) -> Value:
        """Call through a function pointer."""
        used = [self.use(a) for a in args]
        listing = ", ".join(f"{a.type} {a.text}" for a in used)
        callee = self.use(address).text
        if result == "void":
            self.emit(f"call void {callee}({listing})")
            return Value("", "void")
        return self.define(result, f"call {result} {callee}({listing})")
