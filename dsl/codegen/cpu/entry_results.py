"""The code that makes Python objects of a frame's results: arrays that own their blocks, numbers, tuples.

What cannot be made leaves nothing behind: objects are dropped, and blocks that no array owns are freed.
"""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu import entry_views, words
from dsl.codegen.cpu.words import NULL, field
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["call_python", "drop", "emit"]


def emit(module: Module) -> None:
    """Add `dsl_results`, `dsl_discard` and what they call."""
    entry_views.emit(module)
    for part in (
        _emit_wrap, _emit_capsule, _emit_result, _emit_tuple, _emit_discard, _emit_results,
    ):  # fmt: skip
        part(module)


def _emit_results(module: Module) -> None:
    """What the call returns; null, with an exception set and nothing kept, if that cannot be made."""
    params = [("ptr", "table"), ("ptr", "args"), ("ptr", "frame")]
    f = module.function("dsl_results", "ptr", params, internal=True)
    table, args, frame = f.params
    count = layout.head(f, table, "results")
    outputs = layout.space(f, count)
    record, cursor = f.variable("ptr"), f.variable("ptr")
    record.set(_first_result(f, table))
    cursor.set(frame)
    with f.loop(0, count) as index:
        here = record.get()
        made = f.call("ptr", "dsl_result", here, args, outputs, cursor.get(), frame)
        with f.if_(f.compare("eq", made, NULL), unlikely=True):
            drop(f, outputs, index)
            f.call("void", "dsl_discard", table, frame)
            f.ret(NULL)
        f.store(made, f.gep(outputs, index, "i64"))
        layout.advance(f, cursor, layout.result(f, here, "words"))
        layout.advance(f, record, layout.result(f, here, "length"))
    hidden = layout.head(f, table, "hidden")
    drop(f, outputs, hidden)
    shown, number = f.gep(outputs, hidden, "i64"), f.binary("sub", count, hidden)
    with f.if_(f.compare("ne", layout.head(f, table, "finish", "ptr"), NULL)):
        _finish(f, table, args, shown, number)
    with f.if_(f.compare("ne", f.binary("and", layout.head(f, table, "flags"), layout.TUPLE), 0)):
        f.ret(f.call("ptr", "dsl_tuple", shown, number))
    f.ret(f.load("ptr", shown))


def _first_result(f: Function, table: Value) -> Value:
    return f.gep(table, layout.head(f, table, "records"), "i64")


def drop(f: Function, objects: Value, count: Value) -> None:
    with f.loop(0, count) as index:
        f.call("void", "Py_DecRef", layout.item(f, objects, index, "ptr"))


def _finish(f: Function, table: Value, args: Value, outputs: Value, number: Value) -> None:
    """Return finish(args, outputs)."""
    pair = f.alloca(16)
    count = layout.head(f, table, "params")
    with f.loop(0, count) as index:
        f.call("void", "Py_IncRef", layout.item(f, args, index, "ptr"))
    given = f.call("ptr", "dsl_tuple", args, count)
    made = f.call("ptr", "dsl_tuple", outputs, number)
    f.store(given, pair)
    f.store(made, f.gep(pair, 8))
    value = f.variable("ptr")
    value.set(NULL)
    with f.if_(f.both(f.compare("ne", given, NULL), f.compare("ne", made, NULL))):
        value.set(call_python(f, layout.head(f, table, "finish", "ptr"), pair, 2))
    f.call("void", "Py_DecRef", given)
    f.call("void", "Py_DecRef", made)
    f.ret(value.get())


def call_python(f: Function, callable: Value, args: Value, count: int) -> Value:
    return f.call("ptr", "PyObject_Vectorcall", callable, args, f.as_value(count, "i64"), NULL)


def _emit_tuple(module: Module) -> None:
    """A tuple that takes over references to objects; drops them if it cannot be made."""
    f = module.function("dsl_tuple", "ptr", [("ptr", "objects"), ("i64", "count")], internal=True)
    objects, count = f.params
    made = f.call("ptr", "PyTuple_New", count)
    with f.if_(f.compare("eq", made, NULL), unlikely=True):
        drop(f, objects, count)
        f.ret(NULL)
    with f.loop(0, count) as index:
        f.call("i32", "PyTuple_SetItem", made, index, layout.item(f, objects, index, "ptr"))
    f.ret(made)


def _emit_result(module: Module) -> None:
    """A new reference to one result, or null."""
    params = [
        ("ptr", "record"),
        ("ptr", "args"),
        ("ptr", "outputs"),
        ("ptr", "frame"),
        ("ptr", "whole"),
    ]
    f = module.function("dsl_result", "ptr", params, internal=True)
    record, args, outputs, frame, whole = f.params
    kind, index = layout.result(f, record, "kind"), layout.result(f, record, "index")

    def scalar() -> Value:
        descr = layout.result(f, record, "object", "ptr")
        return f.call_pointer("ptr", words.get(f, "new_scalar", "ptr"), frame, descr, NULL)

    def complex() -> Value:
        parts = (f.load("double", frame), field(f, frame, 8, "double"))
        return f.call("ptr", "PyComplex_FromDoubles", *parts)

    def truth() -> Value:
        return f.call("ptr", "PyBool_FromLong", f.convert("zext", f.load("i8", frame), "i64"))

    def view() -> Value:
        of_argument = f.compare("eq", layout.result(f, record, "source"), layout.ARGUMENT)
        base = layout.item(f, f.select(of_argument, args, outputs), index, "ptr")
        return f.call("ptr", "dsl_view", record, base, whole)

    def held(object: Value) -> Value:
        f.call("void", "Py_IncRef", object)
        return object

    makers: list[tuple[int, Callable[[], Value]]] = [
        (layout.NEW_ARRAY, lambda: f.call("ptr", "dsl_wrap", record, frame)),
        (layout.NEW_SCALAR, scalar),
        (layout.NEW_INT, lambda: f.call("ptr", "PyLong_FromLongLong", f.load("i64", frame))),
        (layout.NEW_FLOAT, lambda: f.call("ptr", "PyFloat_FromDouble", f.load("double", frame))),
        (layout.NEW_COMPLEX, complex),
        (layout.NEW_BOOL, truth),
        (layout.ARGUMENT, lambda: held(layout.item(f, args, index, "ptr"))),
        (layout.EARLIER, lambda: held(layout.item(f, outputs, index, "ptr"))),
        (layout.VIEW, view),
    ]
    for number, make in makers:
        with f.if_(f.compare("eq", kind, number)):
            f.ret(make())
    f.ret(held(layout.result(f, record, "object", "ptr")))


def _emit_wrap(module: Module) -> None:
    """An array that owns the block in the frame, from then on zero there; of rank 0, a copy of the value there."""
    f = module.function("dsl_wrap", "ptr", [("ptr", "record"), ("ptr", "frame")], internal=True)
    record, frame = f.params
    rank = layout.result(f, record, "rank")
    block = f.variable("ptr")
    block.set(f.load("ptr", frame))
    with f.if_(f.compare("eq", rank, 0)):
        block.set(f.call("ptr", "dsl_alloc", f.as_value(16, "i64")))
        with f.if_(f.compare("eq", block.get(), NULL), unlikely=True):
            f.ret(f.call("ptr", "PyErr_NoMemory"))
        for offset in (0, 8):
            f.store(field(f, frame, offset), f.gep(block.get(), offset))
    f.store(NULL, frame)
    descr = layout.result(f, record, "object", "ptr")
    f.call("void", "Py_IncRef", descr)
    rank = f.convert("trunc", rank, "i32")
    made = f.call_pointer(
        "ptr", words.get(f, "new_array", "ptr"), words.get(f, "array_type", "ptr"), descr, rank,
        f.gep(frame, 8), NULL, block.get(), f.as_value(layout.CARRAY, "i32"), NULL,
    )  # fmt: skip
    with f.if_(f.compare("eq", made, NULL), unlikely=True):
        f.call("void", "dsl_free", block.get())
        f.ret(NULL)
    with f.if_(f.compare("ne", block.get(), NULL)):
        _give(f, made, block.get())
    f.ret(made)


def _give(f: Function, array: Value, block: Value) -> None:
    """Make an array the owner of its data: by NumPy's memory handler, or by a base object that frees it."""
    handler = words.get(f, "memory_handler", "ptr")

    def own() -> None:
        f.call("void", "Py_IncRef", handler)
        f.store(handler, f.gep(array, layout.MEMORY_HANDLER))
        flags = f.binary("or", field(f, array, layout.FLAGS, "i32"), layout.OWNDATA)
        f.store(flags, f.gep(array, layout.FLAGS))

    def lean() -> None:
        destructor = Value("@dsl_capsule_free", "ptr")
        capsule = f.call("ptr", "PyCapsule_New", block, NULL, destructor)
        with f.if_(f.compare("eq", capsule, NULL), unlikely=True):
            f.call("void", "dsl_free", block)
            f.call("void", "Py_DecRef", array)
            f.ret(NULL)
        f.call_pointer("i32", words.get(f, "set_base", "ptr"), array, capsule)

    f.if_else(f.compare("ne", handler, NULL), own, lean)


def _emit_capsule(module: Module) -> None:
    f = module.function(
        "dsl_capsule_free", "void", [("ptr", "capsule")], internal=True, attributes=words.RARE
    )
    f.call("void", "dsl_free", f.call("ptr", "PyCapsule_GetPointer", f.params[0], NULL))
    f.ret()


def _emit_discard(module: Module) -> None:
    """Free the blocks of results that no array owns."""
    params = [("ptr", "table"), ("ptr", "frame")]
    f = module.function("dsl_discard", "void", params, internal=True, attributes=words.RARE)
    table, frame = f.params
    record, cursor = f.variable("ptr"), f.variable("ptr")
    record.set(_first_result(f, table))
    cursor.set(frame)
    with f.loop(0, layout.head(f, table, "results")):
        here = record.get()
        is_array = f.compare("eq", layout.result(f, here, "kind"), layout.NEW_ARRAY)
        with f.if_(f.both(is_array, f.compare("ne", layout.result(f, here, "rank"), 0))):
            f.call("void", "dsl_free", f.load("ptr", cursor.get()))
        layout.advance(f, cursor, layout.result(f, here, "words"))
        layout.advance(f, record, layout.result(f, here, "length"))
    f.ret()
