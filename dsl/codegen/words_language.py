"""A small language for runtime code: Python functions in which every value is a 64-bit word.

In: functions in the restricted Python below, read from their source. Out: a module of LLVM IR with a function
`i64 name(i64, …)` for each. What a function may hold:

| | |
| --- | --- |
| values | words; integer constants, also those of the functions' module by name (`LIMIT`, `Node.KIND`) |
| arithmetic | `+ - * & \\| ^ << ~ -`, wrapping; `//`, `%` and `>>` are unsigned |
| comparisons | signed; `and`, `or` and `not` in conditions, evaluated only as far as needed |
| memory | `a[i]` is the word at address `a + 8 * i`, to be read, assigned and augmented |
| statements | assignment, `if`, `while`, `for … in range(…)` or `records(…)`, `break`, `continue`, `return`, `pass`, expressions |
| calls | of functions of the same module, and of the intrinsics below |

Variables are local and begin as 0. A function that ends without `return` returns 0. Type annotations are ignored:
`Word` serves readers and type checkers. Anything else is refused with the line.

>>> def total(words: Word, count: Word) -> Word:
...     found = 0
...     for k in range(count):
...         found += words[k]
...     return found
>>> text = compile_source("example", inspect.getsource(total), {}, exports=["total"])
>>> text.splitlines()[0]
'define i64 @total(i64 %words, i64 %count) nounwind {'
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from dsl.codegen.cpu.words import pause as emit_pause
from dsl.codegen.cpu.words import store_fence as emit_store_fence
from dsl.codegen.llvm import Function, Module, Value, Variable
from dsl.errors import InternalError
from dsl.ir.python_source import parse_python

__all__ = [
    "Word", "acquire", "atomic_add", "call_at", "call_program", "compile_module", "compile_source", "copy_words", "external",
    "pause", "publish", "rarely", "records", "stream_lines",
]  # fmt: skip

Word = Any
"""The type of everything."""


# -- intrinsics, for readers: only compiled code has a meaning --------------------------------------------------------


def call_program(program: Word, frame: Word, context: Word) -> Word:
    """Call the function `i64 (ptr, ptr)` at an address."""
    raise NotImplementedError


def copy_words(target: Word, source: Word, count: Word) -> None:
    """Copy words to where they do not overlap."""
    raise NotImplementedError


def stream_lines(target: Word, source: Word, count: Word) -> None:
    """Copy lines of 64 bytes to the start of a line, past the caches; what is published later is seen after them."""
    raise NotImplementedError


def atomic_add(address: Word, amount: Word) -> Word:
    """Add to the word at an address, at once for all threads; what it was before."""
    raise NotImplementedError


def acquire(address: Word) -> Word:
    """Read a word that others write; what they wrote before it is there as well."""
    raise NotImplementedError


def publish(address: Word, value: Word) -> None:
    """Write a word that others read, after everything that was written before."""
    raise NotImplementedError


def pause() -> None:
    """Tell the CPU that this is a loop that waits."""
    raise NotImplementedError


def call_at(address: Word, *args: Word) -> Word:
    """Call the C function of words at an address."""
    raise NotImplementedError


def external(name: str, *args: Word) -> Word:
    """Call a C function of words by name; one whose name ends in `!` returns nothing."""
    raise NotImplementedError


def records(first: Word, count: Word, size: Word) -> Iterator[Word]:
    """In a `for` loop: the addresses of so many records of `size` bytes, one after the other."""
    raise NotImplementedError


def rarely(condition: Word) -> Word:
    """A condition that seldom holds."""
    raise NotImplementedError


# -- compiling --------------------------------------------------------------------------------------------------------


def compile_module(module: ModuleType, exports: Sequence[str]) -> str:
    """Return the IR of the functions of a Python module, in which there are no others."""
    return compile_source(module.__name__, inspect.getsource(module), vars(module), exports)


def compile_source(
    name: str, source: str, constants: Mapping[str, Any], exports: Sequence[str]
) -> str:
    """Return the IR of every function in a source text; those not exported are internal to the module."""
    tree = parse_python(textwrap.dedent(source))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    arity = {node.name: len(node.args.args) for node in functions}
    module = Module(name)
    for node in functions:
        _Compiler(module, node, arity, constants, node.name in exports).run()
    return module.text()


_ARITHMETIC = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "lshr", ast.FloorDiv: "udiv", ast.Mod: "urem",
}  # fmt: skip
_COMPARISONS = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge",
}  # fmt: skip


class _Compiler:
    """Compiles one function."""

    def __init__(
        self, module: Module, node: ast.FunctionDef, arity: Mapping[str, int], constants: Mapping[str, Any],
        exported: bool,
    ) -> None:  # fmt: skip
        self.node, self.arity, self.constants = node, arity, constants
        self.names = [arg.arg for arg in node.args.args]
        params = [("i64", name) for name in self.names]
        self.f: Function = module.function(node.name, "i64", params, internal=not exported)
        self.variables: dict[str, Variable] = {}
        self.loops: list[tuple[str, str]] = []  # where continue and break go

    def run(self) -> None:
        for name, value in zip(self.names, self.f.params, strict=True):
            self.variable(name).set(value)
        self.block(self.node.body)
        if not self.f.terminated:
            self.f.ret(0)

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", 0)
        text = ast.unparse(node)
        raise InternalError(
            f"{self.f.module.name}, line {line}, in {self.node.name}: {why}: {text}"
        )

    def variable(self, name: str) -> Variable:
        if name not in self.variables:
            made = self.variables[name] = self.f.variable("i64")
            self.f.at_entry(f"store i64 0, ptr {made.address.text}")
        return self.variables[name]

    # -- statements ------------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.f.terminated:
                self.refuse(statement, "nothing comes to this statement")
            kind = type(statement)
            if kind not in _STATEMENTS:
                self.refuse(statement, "no such statement in this language")
            _STATEMENTS[kind](self, statement)

    def assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            self.refuse(node, "one target at a time")
        self.store(node.targets[0], self.value(node.value))

    def augment(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Subscript):
            address = self.address(node.target)
            before = self.f.load("i64", address, align=8)
            self.f.store(self.arithmetic(node, before, self.value(node.value)), address, align=8)
            return
        before = self.value(node.target)
        self.store(node.target, self.arithmetic(node, before, self.value(node.value)))

    def store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.variable(target.id).set(value)
        elif isinstance(target, ast.Subscript):
            self.f.store(value, self.address(target), align=8)
        else:
            self.refuse(target, "only names and words in memory can be assigned")

    def expression(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.value(node.value)

    def branch(self, node: ast.If) -> None:
        then, otherwise, after = (self.f.label(stem) for stem in ("then", "else", "fi"))
        self.jump(node.test, then, otherwise if node.orelse else after)
        reached = not node.orelse
        for label, body in ((then, node.body), (otherwise, node.orelse)):
            if not body:
                continue
            self.f.continue_in(label)
            self.block(body)
            if not self.f.terminated:
                self.f.branch(after)
                reached = True
        if reached:
            self.f.continue_in(after)

    def loop(self, node: ast.While) -> None:
        head, body, after = (self.f.label(stem) for stem in ("while", "do", "done"))
        self.f.start(head)
        if isinstance(node.test, ast.Constant) and node.test.value is True:
            self.f.branch(body)
        else:
            self.jump(node.test, body, after)
        self.repeat(node, body, head, after)
        self.f.continue_in(after)

    def count(self, node: ast.For) -> None:
        counts = _is_call(node.iter, "range") or _is_call(node.iter, "records")
        if not (isinstance(node.target, ast.Name) and counts):
            self.refuse(node, "a for loop counts over a range, or over records")
        first, last, step = self.bounds(node.iter)
        index = self.variable(node.target.id)
        index.set(first)
        head, body, more, after = (self.f.label(stem) for stem in ("for", "do", "more", "done"))
        self.f.start(head)
        self.f.branch_if(self.f.compare("slt", index.get(), last), body, after)
        self.repeat(node, body, more, after)
        self.f.continue_in(more)
        index.set(self.f.binary("add", index.get(), step))
        self.f.branch(head)
        self.f.continue_in(after)

    def bounds(self, call: Any) -> tuple[Value, Value, Value]:
        """Return the first and last values of a loop variable, the latter exclusive, and the step."""
        given = [self.value(arg) for arg in call.args]
        if call.func.id == "records":
            first, count, size = given
            return first, self.f.binary("add", first, self.f.binary("mul", count, size)), size
        zero, one = (self.f.as_value(k, "i64") for k in (0, 1))
        return (zero, given[0], one) if len(given) == 1 else (given[0], given[1], (*given, one)[2])

    def repeat(self, node: ast.While | ast.For, body: str, again: str, after: str) -> None:
        if node.orelse:
            self.refuse(node, "a loop has no else")
        self.f.continue_in(body)
        self.loops.append((again, after))
        self.block(node.body)
        self.loops.pop()
        if not self.f.terminated:
            self.f.branch(again)

    def leave(self, node: ast.Break | ast.Continue) -> None:
        if not self.loops:
            self.refuse(node, "outside a loop")
        self.f.branch(self.loops[-1][isinstance(node, ast.Break)])

    def give(self, node: ast.Return) -> None:
        self.f.ret(0 if node.value is None else self.value(node.value))

    # -- conditions ------------------------------------------------------------------------------------------------

    def jump(self, test: ast.expr, yes: str, no: str, suffix: str = "") -> None:
        """Go to `yes` if a condition holds, else to `no`."""
        if _is_call(test, "rarely"):
            assert isinstance(test, ast.Call)
            self.jump(test.args[0], yes, no, self.f.weights(0))
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.jump(test.operand, no, yes)
        elif isinstance(test, ast.BoolOp):
            for part in test.values[:-1]:
                more = self.f.label("and")
                both = isinstance(test.op, ast.And)
                self.jump(part, more if both else yes, no if both else more)
                self.f.continue_in(more)
            self.jump(test.values[-1], yes, no, suffix)
        else:
            self.f.branch_if(self.truth(test), yes, no, suffix)

    def truth(self, test: ast.expr) -> Value:
        if isinstance(test, ast.Compare):
            return self.comparison(test)
        return self.f.compare("ne", self.value(test), 0)

    def comparison(self, node: ast.Compare) -> Value:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            self.refuse(node, "one comparison of two numbers at a time")
        a, b = self.value(node.left), self.value(node.comparators[0])
        return self.f.compare(_COMPARISONS[type(node.ops[0])], a, b)

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        constant = self.constant(node)
        if constant is not None:
            return self.f.as_value(constant, "i64")
        match node:
            case ast.Name(id=name):
                if name not in self.variables:
                    self.refuse(node, "a variable that nothing sets before")
                return self.variables[name].get()
            case ast.Subscript():
                return self.f.load("i64", self.address(node), align=8)
            case ast.BinOp():
                return self.arithmetic(node, self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub() | ast.Invert()):
                minuend = 0 if isinstance(node.op, ast.USub) else -1
                return self.f.binary("sub", minuend, self.value(node.operand))
            case ast.Compare():
                return self.f.convert("zext", self.comparison(node), "i64")
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                return self.call(node, name)
        self.refuse(node, "no such expression in this language")

    def constant(self, node: ast.expr) -> int | None:
        """Return the number that an expression is known to be."""
        match node:
            case ast.Constant(value=int() as number):
                return int(number)
            case ast.Name(id=name):
                known = None if name in self.variables else self.constants.get(name)
                return known if isinstance(known, int) else None
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                known = getattr(self.constants.get(name), attr, None)
                if not isinstance(known, int):
                    self.refuse(node, "not a constant of the module")
                return known
        return None

    def arithmetic(self, node: ast.BinOp | ast.AugAssign, a: Value, b: Value) -> Value:
        if type(node.op) not in _ARITHMETIC:
            self.refuse(node, "no such operator in this language")
        return self.f.binary(_ARITHMETIC[type(node.op)], a, b)

    def address(self, node: ast.Subscript) -> Value:
        base = self.pointer(self.value(node.value))
        index = self.constant(node.slice)
        return self.f.gep(base, self.value(node.slice) if index is None else index, "i64")

    def pointer(self, word: Value) -> Value:
        return self.f.convert("inttoptr", word, "ptr")

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call, name: str) -> Value:
        if name in _INTRINSICS:
            return _INTRINSICS[name](self, node)
        if self.arity.get(name) != len(node.args):
            self.refuse(node, "no such function with so many parameters")
        return self.f.call("i64", name, *map(self.value, node.args))

    def call_program(self, node: ast.Call) -> Value:
        program, frame, context = (self.pointer(self.value(arg)) for arg in node.args)
        return self.f.call_pointer("i64", program, frame, context)

    def copy_words(self, node: ast.Call) -> Value:
        target, source, count = map(self.value, node.args)
        f, to, at = self.f, self.pointer(target), self.pointer(source)
        with f.loop(0, count) as k:  # tokens have few words: a call of memcpy would take longer
            f.store(f.load("i64", f.gep(at, k, "i64"), align=8), f.gep(to, k, "i64"), align=8)
        return f.as_value(0, "i64")

    def stream_lines(self, node: ast.Call) -> Value:
        target, source, count = map(self.value, node.args)
        f, to, at = self.f, self.pointer(target), self.pointer(source)
        past = f", !nontemporal {f.module.metadata('!{i32 1}')}"
        with f.loop(0, f.binary("shl", count, 6), 64) as k:
            line = f.load("<8 x i64>", f.gep(at, k), align=1)
            f.store(line, f.gep(to, k), align=64, metadata=past)
        emit_store_fence(f)
        return f.as_value(0, "i64")

    def atomic_add(self, node: ast.Call) -> Value:
        address, amount = map(self.value, node.args)
        place = self.pointer(address).text
        return self.f.define("i64", f"atomicrmw add ptr {place}, i64 {amount.text} acq_rel")

    def acquire(self, node: ast.Call) -> Value:
        place = self.pointer(self.value(node.args[0])).text
        return self.f.define("i64", f"load atomic i64, ptr {place} acquire, align 8")

    def publish(self, node: ast.Call) -> Value:
        address, value = map(self.value, node.args)
        place = self.pointer(address).text
        self.f.emit(f"store atomic i64 {value.text}, ptr {place} release, align 8")
        return self.f.as_value(0, "i64")

    def pause(self, node: ast.Call) -> Value:
        emit_pause(self.f)
        return self.f.as_value(0, "i64")

    def call_at(self, node: ast.Call) -> Value:
        address, *args = map(self.value, node.args)
        return self.f.call_pointer("i64", self.pointer(address), *args)

    def external(self, node: ast.Call) -> Value:
        name = node.args[0]
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            self.refuse(node, "the name of a C function must be a string")
        args, callee = [self.value(arg) for arg in node.args[1:]], name.value
        if callee.endswith("!"):
            self.f.call("void", callee[:-1], *args)
            return self.f.as_value(0, "i64")
        return self.f.call("i64", callee, *args)


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


_STATEMENTS: dict[type[ast.stmt], Callable[[_Compiler, Any], None]] = {
    ast.Assign: _Compiler.assign,
    ast.AugAssign: _Compiler.augment,
    ast.Expr: _Compiler.expression,
    ast.If: _Compiler.branch,
    ast.While: _Compiler.loop,
    ast.For: _Compiler.count,
    ast.Break: _Compiler.leave,
    ast.Continue: _Compiler.leave,
    ast.Return: _Compiler.give,
    ast.Pass: lambda compiler, node: None,
}
_INTRINSICS: dict[str, Callable[[_Compiler, ast.Call], Value]] = {
    "call_program": _Compiler.call_program,
    "copy_words": _Compiler.copy_words,
    "stream_lines": _Compiler.stream_lines,
    "atomic_add": _Compiler.atomic_add,
    "acquire": _Compiler.acquire,
    "publish": _Compiler.publish,
    "pause": _Compiler.pause,
    "call_at": _Compiler.call_at,
    "external": _Compiler.external,
}
