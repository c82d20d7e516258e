"""PTX text to `syntax`: tokens, then one pass over them with the names in scope.

In: PTX as LLVM, nvcc or a person writes it. Out: `Source`, the variables and functions of the module with every name
resolved. Debug directives (`.loc`, `.file`, `.section`) are dropped. Anything unknown raises `PtxError` with its
line.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.scopes import Scope
from dsl.codegen.cuda.emulator.syntax import (
    TYPE_BYTES,
    Address,
    Function,
    FunctionName,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Relocation,
    Special,
    Variable,
    Vector,
    type_bytes,
)  # fmt: skip

__all__ = ["Source", "parse"]

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"[^"]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    |(?P<name>[A-Za-z_$%.](?:[\w$%.]|::)*)
    |(?P<mark>[-,;{}\[\]()|@!=:+<>*&~/])""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE_DIRECTIVE = re.compile(
    r"^[ \t]*\.(version|target|address_size|file|loc)\b(.*)$", re.MULTILINE
)
_SECTION = re.compile(r"^\s*\.section\b[^{]*\{.*?^\s*\}", re.MULTILINE | re.DOTALL)
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared", ".local", ".param"}
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(laneid|warpid|nwarpid|lanemask_(eq|lt|le|gt|ge)|clock|clock_hi|clock64|globaltimer|globaltimer_lo"
    r"|globaltimer_hi|smid|nsmid|gridid|envreg\d+|pm\d|dynamic_smem_size|total_smem_size|aggr_smem_size"
    r"|cluster_ctarank|cluster_nctarank|is_explicit_cluster|current_graph_exec)$"
)

Token = tuple[str, str, int]


@dataclass(slots=True)
class Source:
    """A parsed module; `lines` is its text, for errors."""

    lines: list[str]
    header: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def text(self, line: int) -> str:
        """The source text of a line."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else ""


def parse(text: str) -> Source:
    """Read a whole module."""
    source = Source(text.split("\n"))
    blank = lambda match: "\n" * match[0].count("\n") or " "
    text = _COMMENT.sub(blank, text)
    for match in _LINE_DIRECTIVE.finditer(text):
        source.header.setdefault(match[1], match[2].strip())
    text = _SECTION.sub(blank, _LINE_DIRECTIVE.sub(" ", text))
    _Parser(_tokens(text, source), source).module()
    return source


def _tokens(text: str, source: Source) -> list[Token]:
    result: list[Token] = []
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxError(f"unreadable {text[position]!r}", line=line, text=source.text(line))
        kind, word = match.lastgroup or "", match[0]
        if kind == "space":
            line += word.count("\n")
        elif word[0] == "." and "." in word[1:]:
            result += [(kind, f".{part}", line) for part in word[1:].split(".")]
        else:
            result.append((kind, word, line))
        position = match.end()
    result.append(("end", "", line))
    return result


class _Parser:
    def __init__(self, tokens: list[Token], source: Source) -> None:
        self.tokens, self.source, self.position = tokens, source, 0
        self.function = Function("", False, 0)
        self.scope: Scope | None = None

    # Tokens ---------------------------------------------------------------------------------------------------------

    @property
    def word(self) -> str:
        return self.tokens[self.position][1]

    @property
    def line(self) -> int:
        return self.tokens[self.position][2]

    def next(self) -> str:
        word = self.word
        self.position += 1
        return word

    def take(self, word: str) -> bool:
        if self.word == word:
            self.position += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.take(word):
            raise self.error(f"expected {word!r}, got {self.word!r}")

    def error(self, what: str, line: int = 0) -> PtxError:
        line = line or self.line
        return PtxError(what, line=line, text=self.source.text(line), kernel=self.function.name)

    def skip_statement(self) -> None:
        while self.next() != ";":
            if not self.word:
                raise self.error("the text ends inside a statement")

    # Module ---------------------------------------------------------------------------------------------------------

    def module(self) -> None:
        while self.word:
            linkage = set()
            while self.word in _LINKAGE:
                linkage.add(self.next())
            if self.word in (".entry", ".func"):
                self.read_function(".extern" in linkage)
            elif self.word in _SPACES:
                for variable in self.read_variables():
                    variable.extern = ".extern" in linkage
                    self.source.variables[variable.name] = variable
            elif self.word in (".pragma", ".alias"):
                self.skip_statement()
            elif not self.take(";"):
                raise self.error(f"unknown directive {self.word}")

    def read_variables(self) -> list[Variable]:
        space, align, ptx_type = self.next()[1:], 0, ""
        while self.word.startswith("."):
            word = self.next()[1:]
            if word == "align":
                align = int(self.next())
            elif word in TYPE_BYTES:
                ptx_type = word
            elif word == "ptr":
                ptx_type = self.skip_pointer(ptx_type)
            elif word in ("v2", "v4"):
                raise self.error("vector variables are not supported")
            elif word == "attribute":
                self.skip_parenthesised()
        if not ptx_type:
            raise self.error(f"a .{space} variable without a type")
        result = [self.read_variable(space, ptx_type, align)]
        while space != "param" and self.take(","):
            result.append(self.read_variable(space, ptx_type, align))
        if space != "param":
            self.expect(";")
        return result

    def skip_pointer(self, ptx_type: str) -> str:
        """`.ptr .global .align 4`: facts about a parameter that the emulator checks on access anyway."""
        while self.word in (".global", ".const", ".shared", ".local", ".generic", ".align"):
            if self.next() == ".align":
                self.next()
        return ptx_type

    def skip_parenthesised(self) -> None:
        self.expect("(")
        while self.next() != ")":
            pass

    def read_variable(self, space: str, ptx_type: str, align: int) -> Variable:
        line, name = self.line, self.next()
        count: int | None = 1
        array = False
        while self.take("["):
            size = None if self.word == "]" else self.integer()
            count = None if size is None or count is None else count * size
            array = True
            self.expect("]")
        align = align or type_bytes(ptx_type)
        variable = Variable(name, space, ptx_type, count, align, line, array)
        if self.take("="):
            self.read_initialiser(variable)
        return variable

    def read_initialiser(self, variable: Variable) -> None:
        data = bytearray()
        width = type_bytes(variable.type)
        depth = 0
        while True:
            if self.take("{"):
                depth += 1
            elif self.take("}"):
                depth -= 1
            elif not self.take(","):
                data += self.initial_value(variable, len(data), width)
            if depth == 0:
                break
        if variable.count is None:
            variable.count = len(data) // width
        variable.data = bytes(data)

    def initial_value(self, variable: Variable, offset: int, width: int) -> bytes:
        mask = 0
        if self.tokens[self.position + 1][1] == "(" and self.tokens[self.position][0] == "number":
            mask = self.integer()
        elif self.word in ("generic", "mask"):
            self.next()
        bracket = self.take("(")
        if self.tokens[self.position][0] != "name":
            data = self.literal_bytes(variable.type, width)
        else:
            symbol, addend = self.next(), 0
            while self.word in ("+", "-"):
                addend += self.integer_sum()
            shift = (mask & -mask).bit_length() - 1 if mask else 0
            variable.relocations.append(Relocation(offset, symbol, addend, width, shift))
            data = bytes(width)
        if bracket:
            self.expect(")")
        return data

    def literal_bytes(self, ptx_type: str, width: int) -> bytes:
        literal = self.literal()
        if isinstance(literal.value, float) or ptx_type in ("f32", "f64"):
            return struct.pack("<f" if width == 4 else "<d", literal.value)
        return (literal.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    # Functions ------------------------------------------------------------------------------------------------------

    def read_function(self, extern: bool) -> None:
        line, entry = self.line, self.next() == ".entry"
        self.scope = Scope(None)
        self.function = function = Function("", entry, line)
        if not entry and self.word == "(":
            function.returns = self.read_params()
        function.name = self.next()
        if self.word == "(":
            function.params = self.read_params()
        self.read_directives(function)
        if self.take(";") or extern:
            self.source.functions.setdefault(function.name, function)
        else:
            self.read_body(function)
            self.source.functions[function.name] = function
        self.scope, self.function = None, Function("", False, 0)

    def read_params(self) -> list[Variable]:
        self.expect("(")
        result: list[Variable] = []
        while not self.take(")"):
            if self.word == ".reg":
                raise self.error("register parameters are not supported; use .param")
            result += self.read_variables()
            self.take(",")
        assert self.scope is not None
        for variable in result:
            self.scope.names[variable.name] = variable
        return result

    def read_directives(self, function: Function) -> None:
        while self.word.startswith("."):
            name = self.next()[1:]
            if name == "attribute":
                self.skip_parenthesised()
                continue
            values = []
            while self.tokens[self.position][0] == "number" or self.word == ",":
                if not self.take(","):
                    values.append(self.integer())
            if self.tokens[self.position][0] == "string":
                self.next()
                self.take(";")
            function.directives[name] = tuple(values)

    def read_body(self, function: Function) -> None:
        self.expect("{")
        function.body = []
        depth = 1
        while depth:
            if not self.word:
                raise self.error(f"the text ends inside {function.name}")
            if self.take("{"):
                self.scope = Scope(self.scope)
                depth += 1
            elif self.take("}"):
                assert self.scope is not None
                self.scope.finish(self.error)
                self.scope = self.scope.parent or self.scope
                depth -= 1
            elif not self.take(";"):
                self.read_statement(function)

    def read_statement(self, function: Function) -> None:
        assert self.scope is not None
        assert function.body is not None
        word = self.word
        if word == ".reg":
            self.read_registers(function)
        elif word in _SPACES:
            for variable in self.read_variables() if word != ".param" else self.read_call_param():
                self.scope.names[variable.name] = variable
                function.variables.append(variable)
        elif word in (".pragma", ".maxnreg"):
            self.skip_statement()
        elif self.tokens[self.position + 1][1] == ":":
            self.read_label(function)
        elif word.startswith("."):
            raise self.error(f"unknown directive {word}")
        else:
            function.body.append(self.read_instruction())

    def read_call_param(self) -> list[Variable]:
        result = self.read_variables()
        while self.take(","):
            first = result[0]
            result.append(self.read_variable("param", first.type, first.align))
        self.expect(";")
        return result

    def read_registers(self, function: Function) -> None:
        assert self.scope is not None
        self.next()
        ptx_type = self.next()[1:]
        if ptx_type not in TYPE_BYTES:
            raise self.error(f"unknown register type .{ptx_type}")
        while True:
            name = self.next()
            if self.take("<"):
                count = self.integer()
                self.expect(">")
                self.scope.families.append((name, count, ptx_type, function.registers))
            else:
                register = Register(name, ptx_type)
                self.scope.names[name] = register
                function.registers.append(register)
            if not self.take(","):
                break
        self.expect(";")

    def read_label(self, function: Function) -> None:
        assert self.scope is not None
        assert function.body is not None
        label = self.scope.place(self.next())
        self.expect(":")
        if self.word == ".branchtargets":
            self.next()
            while not self.take(";"):
                if not self.take(","):
                    label.targets.append(self.scope.label(self.next(), self.line))
        elif self.word in (".callprototype", ".calltargets"):
            self.skip_statement()
        else:
            function.body.append(label)

    # Instructions ---------------------------------------------------------------------------------------------------

    def read_instruction(self) -> Instruction:
        line, guard = self.line, None
        if self.take("@"):
            sense = not self.take("!")
            predicate = self.name_operand(self.next())
            if not isinstance(predicate, Register):
                raise self.error("a guard that is not a predicate register")
            guard = (predicate, sense)
        if self.tokens[self.position][0] != "name":
            raise self.error(f"expected an instruction, got {self.word!r}")
        opcode, *modifiers = self.next().split(".")
        operands: list[Operand] = []
        while not self.take(";"):
            operands.append(self.operand(opcode))
            if self.word != ";":
                self.expect(",")
        return Instruction(line, opcode, tuple(modifiers), tuple(operands), guard)

    def operand(self, opcode: str) -> Operand:
        if self.take("["):
            return self.address()
        if self.word in ("{", "("):
            return self.vector(opcode)
        if self.take("!"):
            register = self.name_operand(self.next())
            if not isinstance(register, Register):
                raise self.error("'!' of something that is not a register")
            return Negated(register)
        if self.tokens[self.position][0] != "name":
            return self.literal()
        first = self.name_operand(self.next(), opcode)
        if self.take("|"):
            second = self.name_operand(self.next(), opcode)
            return Pair(self.register_or_sink(first), self.register_or_sink(second))
        return first

    def register_or_sink(self, operand: Operand) -> Register | None:
        if operand is not None and not isinstance(operand, Register):
            raise self.error("expected a register beside '|'")
        return operand

    def vector(self, opcode: str) -> Vector:
        close = {"{": "}", "(": ")"}[self.next()]
        items: list[Operand] = []
        while not self.take(close):
            items.append(self.operand(opcode))
            if self.word != close:
                self.expect(",")
        return Vector(tuple(items))

    def address(self) -> Address:
        base: Operand
        if self.tokens[self.position][0] == "name":
            base = self.name_operand(self.next())
        else:
            base = self.literal()
        offset = 0
        while self.word in ("+", "-"):
            offset += self.integer_sum()
        self.expect("]")
        if not isinstance(base, Register | Variable | Immediate):
            raise self.error("an address that is neither register nor variable")
        return Address(base, offset)

    def name_operand(self, name: str, opcode: str = "") -> Operand:
        if name == "_":
            return None
        if name == "WARP_SZ":
            return Immediate(32)
        assert self.scope is not None
        found = self.scope.find(name) or self.source.variables.get(name)
        if found is not None:
            return found
        if name.startswith("%"):
            if _SPECIAL.match(name):
                return Special(name[1:])
            raise self.error(f"unknown register {name}")
        if opcode == "call" or name in self.source.functions or name == self.function.name:
            return FunctionName(name)
        if opcode in ("bra", "brx"):
            return self.scope.label(name, self.line)
        raise self.error(f"unknown name {name}")

    # Literals -------------------------------------------------------------------------------------------------------

    def integer_sum(self) -> int:
        sign = {"+": 1, "-": -1}[self.next()]
        while self.word in ("+", "-"):
            sign *= {"+": 1, "-": -1}[self.next()]
        return sign * self.integer()

    def integer(self) -> int:
        value = self.literal().value
        if not isinstance(value, int):
            raise self.error("expected an integer")
        return value

    def literal(self) -> Immediate:
        sign = -1 if self.take("-") else 1
        if self.take("~"):
            return Immediate(~self.integer())
        kind, word, _ = self.tokens[self.position]
        if kind != "number":
            raise self.error(f"expected a number, got {word!r}")
        self.position += 1
        if word[:2] in ("0f", "0F"):
            return Immediate(sign * struct.unpack(">f", bytes.fromhex(word[2:]))[0], "f32")
        if word[:2] in ("0d", "0D"):
            return Immediate(sign * struct.unpack(">d", bytes.fromhex(word[2:]))[0], "f64")
        if "." in word or ("e" in word.lower() and word[:2].lower() != "0x"):
            return Immediate(sign * float(word))
        return Immediate(sign * _integer(word.rstrip("U")))


def _integer(word: str) -> int:
    octal = len(word) > 1 and word[0] == "0" and word.isdigit()
    return int(word, 8) if octal else int(word, 0)
