"""The code of the entry: `dsl_entry`, the METH_FASTCALL function behind every compiled program, and what it offers them.

In: `self`, whose data is the table that `entry` lays out; the arguments. Out: the program's results as Python objects;
NotImplemented, with nothing done, when an argument is not what the table asks for; or an exception.

A program is `i64 program(ptr frame, ptr context)` and returns 0, or a status that goes to the table's `on_error`. The
frame is described in `entry`. The context is this, in bytes from its start:

| offset | what |
| --- | --- |
| 0 | i64 error code, the program's to set before it returns a status |
| 8 … 48 | six i64 of error payload |
| 64 | i64 1 while the GIL is released |
| 72 | ptr thread state saved meanwhile |
| 80 | i64 for the program's own use, 0 at first |
| 88 | ptr Python callable of `dsl_python`, or null |
"""

from __future__ import annotations

from typing import Final

from dsl.codegen.cpu import entry_arrange, entry_match, entry_results, words
from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu.pool import THREAD_CONTEXT, THREAD_DEADLINE
from dsl.codegen.cpu.words import NULL, field
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["CONTEXT_SIZE", "emit"]

# Bytes from the start of a context.
CODE, RELEASED, SAVED, CALLBACK = 0, 64, 72, 88
CONTEXT_SIZE: Final = 128

POLL_EVERY = 50_000_000  # ns
COARSE_CLOCK = 6  # CLOCK_MONOTONIC_COARSE of Linux, CLOCK_MONOTONIC of macOS


def emit(module: Module) -> None:
    """Add the entry's functions."""
    entry_arrange.emit(module)
    entry_match.emit(module)
    entry_results.emit(module)
    for part in (_emit_fail, _emit_gil, _emit_poll, _emit_python, _emit_entry):
        part(module)


# --- The whole of a call -------------------------------------------------------------------------


def _emit_entry(module: Module) -> None:
    params = [("ptr", "self"), ("ptr", "args"), ("i64", "count"), ("ptr", "names")]
    f = module.function("dsl_entry", "ptr", params)
    self = f.params[0]
    table = field(f, self, layout.DATA, "ptr")
    slow = f.load("i64", words.get(f, "slow", "ptr"))
    always = f.binary("and", layout.head(f, table, "flags"), layout.ALWAYS)
    _decline_unless(f, table, f.either(f.compare("eq", slow, 0), f.compare("ne", always, 0)))
    places = _arranged(f, table)
    size, results_at = layout.head(f, table, "frame"), layout.head(f, table, "results_at")
    symbols = layout.head(f, table, "symbols")
    frame = layout.space(f, f.binary("add", size, symbols))
    results = f.gep(frame, results_at, "i64")
    layout.clear(f, results, f.binary("add", symbols, f.binary("sub", size, results_at)))
    _decline_unless(f, table, f.call("i1", "dsl_match", table, places, frame))
    context = f.alloca(CONTEXT_SIZE, 64)
    for offset in range(0, CONTEXT_SIZE, 8):
        f.store(f.as_value(0, "i64"), f.gep(context, offset))
    f.store(layout.head(f, table, "callback", "ptr"), f.gep(context, CALLBACK))
    status = _run(f, table, frame, context)
    with f.if_(f.compare("ne", status, 0), unlikely=True):
        _retry(f, table, results, status)
        _count(f, table)
        f.ret(f.call("ptr", "dsl_fail", table, results, context, status))
    _count(f, table)
    f.ret(f.call("ptr", "dsl_results", table, places, results))


def _count(f: Function, table: Value) -> None:
    """One more call taken. The way that `_retry` goes counts it itself."""
    place = f.gep(table, 8 * layout.HEAD.index("hits"))
    f.store(f.binary("add", f.load("i64", place), 1), place)


def _arranged(f: Function, table: Value) -> Value:
    """Where the arguments are, one for each parameter."""
    _, args, count, names = f.params
    places = f.variable("ptr", args)
    whole = f.compare("eq", count, layout.head(f, table, "straight"))
    with f.if_(f.invert(f.both(whole, f.compare("eq", names, NULL)))):
        places.set(layout.space(f, layout.head(f, table, "params")))
        fits = f.call("i1", "dsl_arrange", table, args, count, names, places.get())
        _decline_unless(f, table, fits)
    return places.get()


def _retry(f: Function, table: Value, results: Value, status: Value) -> None:
    """A call that failed goes to `retry`, if there is one: a longer way that knows better words, or does not fail."""
    _, args, count, names = f.params
    retry = layout.head(f, table, "retry", "ptr")
    wanted = f.both(f.compare("sgt", status, 0), f.compare("ne", retry, NULL))
    with f.if_(wanted):
        f.call("void", "dsl_discard", table, results)
        f.ret(f.call("ptr", "PyObject_Vectorcall", retry, args, count, names))


def _decline_unless(f: Function, table: Value, condition: Value) -> None:
    """Hand the call on to `declined`, or return NotImplemented."""
    _, args, count, names = f.params
    with f.if_(f.invert(condition), unlikely=True):
        other = layout.head(f, table, "declined", "ptr")
        with f.if_(f.compare("ne", other, NULL)):
            f.ret(f.call("ptr", "PyObject_Vectorcall", other, args, count, names))
        singleton = words.get(f, "not_implemented", "ptr")
        f.call("void", "Py_IncRef", singleton)
        f.ret(singleton)


def _run(f: Function, table: Value, frame: Value, context: Value) -> Value:
    """Call the program. The thread's record names the running context, for `dsl_poll`."""
    running = f.gep(f.call("ptr", "dsl_thread"), THREAD_CONTEXT)
    outer = f.load("ptr", running)
    f.store(context, running)
    release = f.compare(
        "ne", f.binary("and", layout.head(f, table, "flags"), layout.RELEASE_GIL), 0
    )
    with f.if_(release):
        f.call("void", "dsl_release", context)
    status = f.call_pointer("i64", layout.head(f, table, "program", "ptr"), frame, context)
    f.call("void", "dsl_acquire", context)
    f.store(outer, running)
    return status


def _emit_fail(module: Module) -> None:
    """A status that is not 0: null if an exception is set, else on_error(status, code, six of payload)."""
    params = [("ptr", "table"), ("ptr", "frame"), ("ptr", "context"), ("i64", "status")]
    f = module.function("dsl_fail", "ptr", params, internal=True, attributes=words.RARE)
    table, frame, context, status = f.params
    f.call("void", "dsl_discard", table, frame)
    with f.if_(f.compare("ne", f.call("ptr", "PyErr_Occurred"), NULL)):
        f.ret(NULL)
    args = f.alloca(64)
    for index in range(8):
        number = status if index == 0 else field(f, context, CODE + 8 * (index - 1))
        made = f.call("ptr", "PyLong_FromLongLong", number)
        with f.if_(f.compare("eq", made, NULL), unlikely=True):
            f.ret(NULL)
        f.store(made, f.gep(args, 8 * index))
    value = entry_results.call_python(f, layout.head(f, table, "on_error", "ptr"), args, 8)
    entry_results.drop(f, args, f.as_value(8, "i64"))
    f.ret(value)


# --- What programs call --------------------------------------------------------------------------


def _emit_gil(module: Module) -> None:
    """`void dsl_release(ptr context)` and `void dsl_acquire(ptr context)`: the GIL; nothing if that is so already."""
    f = module.function("dsl_release", "void", [("ptr", "context")])
    (context,) = f.params
    with f.if_(f.compare("eq", field(f, context, RELEASED), 0)):
        f.store(f.call("ptr", "PyEval_SaveThread"), f.gep(context, SAVED))
        f.store(f.as_value(1, "i64"), f.gep(context, RELEASED))
    f.ret()
    f = module.function("dsl_acquire", "void", [("ptr", "context")])
    (context,) = f.params
    with f.if_(f.compare("ne", field(f, context, RELEASED), 0)):
        f.call("void", "PyEval_RestoreThread", field(f, context, SAVED, "ptr"))
        f.store(f.as_value(0, "i64"), f.gep(context, RELEASED))
    f.ret()


def _emit_poll(module: Module) -> None:
    """`i32 dsl_poll()`: not 0 if a signal handler or `watch.look` raised; the program should then return a status.

    Cheap: it looks every 50 ms only. Signals come to Python's main thread alone, and if no thread is watched the others need
    not look. Threads without a running entry, such as those of the pool, may call it too.
    """
    f = module.function("dsl_poll", "i32", [])
    thread = f.call("ptr", "dsl_thread")
    context = field(f, thread, THREAD_CONTEXT, "ptr")
    with f.if_(f.compare("eq", context, NULL)):
        f.ret(0)
    now = f.call("i64", "dsl_clock", f.as_value(COARSE_CLOCK, "i32"))
    with f.if_(f.compare("slt", now, field(f, thread, THREAD_DEADLINE))):
        f.ret(0)
    f.store(f.binary("add", now, POLL_EVERY), f.gep(thread, THREAD_DEADLINE))
    is_main = f.compare("eq", f.call("i64", "pthread_self"), words.get(f, "main_thread"))
    is_watched = f.compare("ne", words.load(f, "watched"), 0)
    with f.if_(f.invert(f.either(is_main, is_watched))):
        f.ret(0)
    released = field(f, context, RELEASED)
    f.call("void", "dsl_acquire", context)
    raised = f.variable("i32", 0)
    with f.if_(is_main):
        raised.set(f.call("i32", "PyErr_CheckSignals"))
    with f.if_(f.both(is_watched, f.compare("eq", raised.get(), 0))):
        found = entry_results.call_python(f, words.get(f, "watch", "ptr"), NULL, 0)
        with f.if_(f.compare("eq", found, NULL)):
            raised.set(-1)
        with f.if_(f.compare("ne", found, NULL)):
            f.call("void", "Py_DecRef", found)
    with f.if_(f.compare("ne", released, 0)):
        f.call("void", "dsl_release", context)
    f.ret(raised.get())


def _emit_python(module: Module) -> None:
    """`i64 dsl_python(ptr context, i64 id, ptr words)`: what callback(id, address of words) returns, None being 0.

    -1 if it raised; the exception stays set, and the program should return a status. Only for the thread that the entry
    is running in.
    """
    f = module.function(
        "dsl_python",
        "i64",
        [("ptr", "context"), ("i64", "id"), ("ptr", "words")],
        attributes=words.RARE,
    )
    context, number, place = f.params
    released = field(f, context, RELEASED)
    f.call("void", "dsl_acquire", context)
    args = f.alloca(16)
    f.store(f.call("ptr", "PyLong_FromLongLong", number), args)
    whole = f.convert("ptrtoint", place, "i64")
    f.store(f.call("ptr", "PyLong_FromLongLong", whole), f.gep(args, 8))
    value = entry_results.call_python(f, field(f, context, CALLBACK, "ptr"), args, 2)
    entry_results.drop(f, args, f.as_value(2, "i64"))
    status = f.variable("i64", -1)
    with f.if_(f.compare("ne", value, NULL)):
        f.if_else(
            f.compare("eq", value, words.get(f, "none", "ptr")),
            lambda: status.set(0),
            lambda: status.set(f.call("i64", "PyLong_AsLongLong", value)),
        )
        f.call("void", "Py_DecRef", value)
    with f.if_(f.compare("ne", released, 0)):
        f.call("void", "dsl_release", context)
    f.ret(status.get())
