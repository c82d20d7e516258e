"""The code that makes views of arguments and results: NumPy's arrays over memory that another array owns."""

from __future__ import annotations

import functools
from collections.abc import Callable

from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu import words
from dsl.codegen.cpu.words import NULL, field
from dsl.codegen.llvm import Function, Module, Value, Variable

__all__ = ["emit"]


def emit(module: Module) -> None:
    """Add `dsl_view`."""
    _emit_place(module)
    _emit_view(module)


def _emit_view(module: Module) -> None:
    """A view of an array, writeable only if that is, whose base is what NumPy would make it; null if there is no memory."""
    params = [("ptr", "record"), ("ptr", "base"), ("ptr", "frame")]
    f = module.function("dsl_view", "ptr", params, internal=True)
    record, base, frame = f.params
    rank = layout.result(f, record, "rank")
    numbers = layout.space(f, layout.result(f, record, "steps"))
    f.call("void", "dsl_place", record, frame, numbers)
    descr = layout.result(f, record, "object", "ptr")
    f.call("void", "Py_IncRef", descr)
    dims = f.gep(numbers, 8)
    allowed = f.convert("trunc", layout.result(f, record, "writeable"), "i32")
    writeable = f.binary("and", field(f, base, layout.FLAGS, "i32"), allowed)
    made = f.call_pointer(
        "ptr", words.get(f, "new_array", "ptr"), words.get(f, "array_type", "ptr"), descr,
        f.convert("trunc", rank, "i32"), dims, f.gep(dims, rank, "i64"),
        f.gep(field(f, base, layout.DATA, "ptr"), f.load("i64", numbers)), writeable, NULL,
    )  # fmt: skip
    with f.if_(f.compare("eq", made, NULL), unlikely=True):
        f.ret(NULL)
    f.call("void", "Py_IncRef", base)
    failed = f.call_pointer("i32", words.get(f, "set_base", "ptr"), made, base)
    with f.if_(f.compare("ne", failed, 0), unlikely=True):
        f.call("void", "Py_DecRef", made)
        f.ret(NULL)
    f.ret(made)


def _emit_place(module: Module) -> None:
    """Follow the steps after a record: they leave the offset, the dims and the strides of a view."""
    params = [("ptr", "record"), ("ptr", "frame"), ("ptr", "numbers")]
    f = module.function("dsl_place", "void", params, internal=True)
    record, frame, numbers = f.params
    step, top = f.variable("ptr"), f.variable("ptr")
    step.set(f.gep(record, 8 * len(layout.RESULT)))
    top.set(numbers)
    with f.loop(0, layout.result(f, record, "steps")):
        what, operand = f.load("i64", step.get()), field(f, step.get(), 8)
        f.if_else(
            f.compare("sle", what, layout.WORD),
            functools.partial(_push, f, what, operand, frame, top),
            functools.partial(_combine, f, what, top),
        )
        step.set(f.gep(step.get(), 16))
    f.ret()


def _push(f: Function, what: Value, operand: Value, frame: Value, top: Variable) -> None:
    """Put a number, or a word of the frame, on top of the stack."""
    f.store(operand, top.get())
    with f.if_(f.compare("eq", what, layout.WORD)):
        f.store(layout.item(f, frame, operand), top.get())
    top.set(f.gep(top.get(), 8))


def _combine(f: Function, what: Value, top: Variable) -> None:
    """Replace the two numbers on top of the stack by one."""
    rhs = f.gep(top.get(), -8)
    lhs = f.gep(top.get(), -16)
    a, b = f.load("i64", lhs), f.load("i64", rhs)
    makers: dict[str, Callable[[], Value]] = {
        "add": lambda: f.binary("add", a, b),
        "multiply": lambda: f.binary("mul", a, b),
        "floordiv": lambda: _quotient(f, a, b),
        "mod": lambda: f.binary("sub", a, f.binary("mul", _quotient(f, a, b), b)),
        "max": lambda: f.select(f.compare("sgt", a, b), a, b),
        "min": lambda: f.select(f.compare("slt", a, b), a, b),
    }
    for name, make in makers.items():
        with f.if_(f.compare("eq", what, layout.STEPS[name])):
            f.store(make(), lhs)
    top.set(rhs)


def _quotient(f: Function, a: Value, b: Value) -> Value:
    """Divide by a positive number and round down; of a zero, which the program refuses, the result does not matter."""
    b = f.select(f.compare("eq", b, 0), 1, b)
    quotient = f.binary("sdiv", a, b)
    rest = f.binary("sub", a, f.binary("mul", quotient, b))
    less = f.convert("sext", f.compare("slt", rest, 0), "i64")
    return f.binary("add", quotient, less)
