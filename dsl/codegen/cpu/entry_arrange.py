"""The code that puts the arguments of a call in their places, as Python does: by position, by keyword, by default."""

from __future__ import annotations

from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu.words import NULL, field
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["emit"]

_EQUAL = 2  # Py_EQ


def emit(module: Module) -> None:
    """Add `dsl_arrange`."""
    _emit_find(module)
    _emit_arrange(module)


def _emit_arrange(module: Module) -> None:
    """Put arguments by keyword, and defaults, in their places; whether the call fits the signature."""
    params = [("ptr", "table"), ("ptr", "args"), ("i64", "count"), ("ptr", "names"), ("ptr", "places")]  # fmt: skip
    f = module.function("dsl_arrange", "i1", params, internal=True)
    table, args, count, names, places = f.params
    accepts = layout.head(f, table, "accepts")
    known = f.gep(table, layout.head(f, table, "names"), "i64")
    layout.require(f, f.compare("eq", accepts, layout.head(f, table, "params")))
    layout.require(f, f.compare("sle", count, layout.head(f, table, "positional")))
    with f.loop(0, count) as index:
        f.store(layout.item(f, args, index), f.gep(places, index, "i64"))
    with f.loop(count, accepts) as index:
        default = field(f, _known(f, known, index), 8)
        f.store(default, f.gep(places, index, "i64"))
    given = f.variable("i64", 0)
    with f.if_(f.compare("ne", names, NULL)):
        given.set(f.call("i64", "PyTuple_Size", names))
    with f.loop(0, given.get()) as index:
        name = f.call("ptr", "PyTuple_GetItem", names, index)
        place = f.call("i64", "dsl_find", known, count, accepts, name)
        layout.require(f, f.compare("sge", place, 0))
        object = layout.item(f, args, f.binary("add", count, index))
        f.store(object, f.gep(places, place, "i64"))
    with f.loop(0, accepts) as index:
        layout.require(f, f.compare("ne", layout.item(f, places, index), 0))
    f.ret(1)


def _known(f: Function, known: Value, index: Value) -> Value:
    """The address of an argument's name and default."""
    return f.gep(known, f.binary("mul", index, 16))


def _emit_find(module: Module) -> None:
    """Which argument from `first` on has a name, or -1. Names of calls, and those in the table, are mostly interned."""
    params = [("ptr", "known"), ("i64", "first"), ("i64", "accepts"), ("ptr", "name")]
    f = module.function("dsl_find", "i64", params, internal=True)
    known, first, accepts, name = f.params
    with (
        f.loop(first, accepts) as index,
        f.if_(f.compare("eq", f.load("ptr", _known(f, known, index)), name)),
    ):
        f.ret(index)
    with f.loop(first, accepts) as index:
        own = f.load("ptr", _known(f, known, index))
        with f.if_(f.compare("ne", own, NULL)):
            equal = f.call("i32", "PyObject_RichCompareBool", own, name, f.as_value(_EQUAL, "i32"))
            with f.if_(f.compare("eq", equal, 1)):
                f.ret(index)
    f.ret(-1)
