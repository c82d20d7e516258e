"""The table that an entry reads, and where Python and NumPy keep the parts of their objects.

`entry` writes tables: the words of `HEAD`, then a record of `PARAM` for each parameter, followed by its dims and strides,
then one of `RESULT` for each result, followed by the steps of a view, then the name and the default of each argument.
The functions here emit code that reads them.

Offsets into objects are those of 64-bit CPython 3.11 to 3.13 and NumPy 2; `runtime` verifies them before first use.
"""

from __future__ import annotations

from typing import Final

from dsl.codegen.cpu.words import field
from dsl.codegen.llvm import Function, Value, Variable

HEAD: Final = (
    "program", "params", "results", "frame", "results_at", "symbols", "flags", "on_error", "finish", "callback",
    "records", "declined", "retry", "hits", "hidden", "names", "accepts", "positional", "straight",
)  # fmt: skip
PARAM: Final = (
    "kind", "type", "descr", "array_flags", "rank", "strides", "itemsize", "written", "root", "words", "length",
)  # fmt: skip
RESULT: Final = (
    "kind",
    "object",
    "rank",
    "index",
    "words",
    "source",
    "steps",
    "writeable",
    "length",
)

ARRAY, INT, VALUE, BOOL, STATIC, SAME, EQUAL = range(7)
(
    NEW_ARRAY, NEW_SCALAR, NEW_INT, NEW_FLOAT, NEW_COMPLEX, NEW_BOOL, ARGUMENT, CONSTANT, EARLIER, VIEW,
) = range(10)  # fmt: skip
# The steps that follow the record of a view put numbers and words of the frame on a stack, and combine the two on top.
NUMBER, WORD = 0, 1
STEPS: Final = {"add": 2, "multiply": 3, "floordiv": 4, "mod": 5, "max": 6, "min": 7}
CONTIGUOUS, EXACT, ANY = range(3)
# A dim below 0 is that of symbol number -1 - dim; with this added to the number, of a symbol that may be 0 or 1.
FREE = 1 << 32
RELEASE_GIL, TUPLE, WRITES, ALWAYS = 1, 2, 4, 8

# Bytes from the start of Python's and NumPy's objects.
TYPE, VALUE_AT = 8, 16
DATA, RANK, DIMS, STRIDES, DESCR, FLAGS, MEMORY_HANDLER = 16, 24, 32, 40, 56, 64, 88
CARRAY, OWNDATA = 0x501, 0x4


def head(f: Function, table: Value, name: str, type: str = "i64") -> Value:
    return field(f, table, 8 * HEAD.index(name), type)


def param(f: Function, record: Value, name: str, type: str = "i64") -> Value:
    return field(f, record, 8 * PARAM.index(name), type)


def result(f: Function, record: Value, name: str, type: str = "i64") -> Value:
    return field(f, record, 8 * RESULT.index(name), type)


def item(f: Function, base: Value, index: Value, type: str = "i64") -> Value:
    """Load a word of an array of words."""
    return f.load(type, f.gep(base, index, "i64"))


def require(f: Function, condition: Value, otherwise: Value | int = 0) -> None:
    """Return `otherwise` unless the condition holds."""
    with f.if_(f.invert(condition), unlikely=True):
        f.ret(otherwise)


def advance(f: Function, cursor: Variable, count: Value) -> None:
    cursor.set(f.gep(cursor.get(), count, "i64"))


def space(f: Function, count: Value) -> Value:
    """Reserve words on the stack, as many as a value says."""
    return f.define("ptr", f"alloca i64, i64 {count.text}, align 16")


def clear(f: Function, address: Value, count: Value) -> None:
    with f.loop(0, count) as index:
        f.store(f.as_value(0, "i64"), f.gep(address, index, "i64"))
