"""The code that holds the arguments of a call against the table, and fills the frame's parameters.

Nothing changes but the frame until all arguments are known to fit.
"""

from __future__ import annotations

from dsl.codegen.cpu import entry_layout as layout
from dsl.codegen.cpu import words
from dsl.codegen.cpu.words import field
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["emit"]

_EQUAL = 2  # Py_EQ


def emit(module: Module) -> None:
    """Add `dsl_match` and what it calls."""
    for part in (
        _emit_match_array,
        _emit_match_scalar,
        _emit_range,
        _emit_apart,
        _emit_match,
    ):
        part(module)


def _emit_match(module: Module) -> None:
    """Whether the arguments are what the table asks for; fills the frame's parameters."""
    params = [("ptr", "table"), ("ptr", "args"), ("ptr", "frame")]
    f = module.function("dsl_match", "i1", params, internal=True)
    table, args, frame = f.params
    symbols = f.gep(frame, layout.head(f, table, "frame"), "i64")
    record, cursor = f.variable("ptr"), f.variable("ptr")
    record.set(f.gep(table, 8 * len(layout.HEAD)))
    cursor.set(frame)
    with f.loop(0, layout.head(f, table, "params")) as index:
        object, here = layout.item(f, args, index, "ptr"), record.get()
        kind = layout.param(f, here, "kind")
        is_static = f.compare("eq", kind, layout.STATIC)
        seen = f.select(is_static, object, field(f, object, layout.TYPE, "ptr"))
        layout.require(f, f.compare("eq", seen, layout.param(f, here, "type", "ptr")))

        def match_array(here: Value = here, object: Value = object, index: Value = index) -> None:
            layout.require(f, f.call("i1", "dsl_match_array", here, object, cursor.get(), symbols))
            _require_distinct(f, here, args, index, object)

        def match_other(here: Value = here, object: Value = object, kind: Value = kind) -> None:
            with f.if_(f.compare("eq", kind, layout.SAME)):
                root = layout.param(f, here, "root")
                layout.require(f, f.compare("eq", layout.item(f, args, root, "ptr"), object))
            layout.require(f, f.call("i1", "dsl_match_scalar", here, object, cursor.get()))

        f.if_else(f.compare("eq", kind, layout.ARRAY), match_array, match_other)
        layout.advance(f, cursor, layout.param(f, here, "words"))
        layout.advance(f, record, layout.param(f, here, "length"))
    writes = f.compare("ne", f.binary("and", layout.head(f, table, "flags"), layout.WRITES), 0)
    with f.if_(writes):
        f.ret(f.call("i1", "dsl_apart", table, args))
    f.ret(1)


def _require_distinct(f: Function, record: Value, args: Value, index: Value, object: Value) -> None:
    """No earlier argument is the same object; or, if the record says which is, that one is."""
    root = layout.param(f, record, "root")

    def differ() -> None:
        with f.loop(0, index) as other:
            layout.require(f, f.compare("ne", layout.item(f, args, other, "ptr"), object))

    def equal() -> None:
        layout.require(f, f.compare("eq", layout.item(f, args, root, "ptr"), object))

    f.if_else(f.compare("eq", root, index), differ, equal)


def _emit_match_array(module: Module) -> None:
    params = [("ptr", "record"), ("ptr", "object"), ("ptr", "frame"), ("ptr", "symbols")]
    f = module.function("dsl_match_array", "i1", params, internal=True)
    record, object, frame, symbols = f.params
    descr = layout.param(f, record, "descr", "ptr")
    layout.require(f, f.compare("eq", field(f, object, layout.DESCR, "ptr"), descr))
    rank = layout.param(f, record, "rank")
    layout.require(
        f, f.compare("eq", f.convert("zext", field(f, object, layout.RANK, "i32"), "i64"), rank)
    )
    wanted = layout.param(f, record, "array_flags")
    flags = f.convert("zext", field(f, object, layout.FLAGS, "i32"), "i64")
    layout.require(f, f.compare("eq", f.binary("and", flags, wanted), wanted))
    f.store(field(f, object, layout.DATA, "ptr"), frame)
    dims, strides = field(f, object, layout.DIMS, "ptr"), field(f, object, layout.STRIDES, "ptr")
    dims_here = f.gep(frame, 8)
    strides_here = f.gep(dims_here, rank, "i64")
    wanted_dims = f.gep(record, 8 * len(layout.PARAM))
    with f.loop(0, rank) as axis:
        dim = layout.item(f, dims, axis)
        f.store(dim, f.gep(dims_here, axis, "i64"))
        f.store(layout.item(f, strides, axis), f.gep(strides_here, axis, "i64"))
        _match_dim(f, dim, layout.item(f, wanted_dims, axis), symbols)
    with f.if_(f.compare("ne", layout.param(f, record, "strides"), layout.CONTIGUOUS)):
        _match_strides(f, record, rank, dims, strides)
        with f.if_(f.compare("ne", layout.param(f, record, "written"), 0)):
            _require_elements_apart(f, record, rank, dims, strides)
    f.ret(1)


def _match_dim(f: Function, dim: Value, wanted: Value, symbols: Value) -> None:
    """A dim is the number wanted; or that of its symbol, which at first takes any from 2 up, or any at all."""

    def symbol() -> None:
        number = f.binary("sub", -1, wanted)
        place = f.gep(symbols, f.binary("and", number, layout.FREE - 1), "i64")
        least = f.select(f.compare("sge", number, layout.FREE), 0, 2)
        # 0 means that it is not bound yet.
        bound, kept = f.load("i64", place), f.binary("add", dim, 1)

        def bind() -> None:
            layout.require(f, f.compare("sge", dim, least))
            f.store(kept, place)

        f.if_else(
            f.compare("eq", bound, 0), bind, lambda: layout.require(f, f.compare("eq", kept, bound))
        )

    f.if_else(
        f.compare("slt", wanted, 0), symbol, lambda: layout.require(f, f.compare("eq", dim, wanted))
    )


def _match_strides(f: Function, record: Value, rank: Value, dims: Value, strides: Value) -> None:
    """Strides are the bytes wanted, or any whole elements; those of dims of 1 and of empty arrays never matter."""
    wanted_strides = f.gep(f.gep(record, 8 * len(layout.PARAM)), rank, "i64")
    exact = f.compare("eq", layout.param(f, record, "strides"), layout.EXACT)
    within = f.binary("sub", layout.param(f, record, "itemsize"), 1)
    wrong, empty = f.variable("i1", 0), f.variable("i1", 0)
    with f.loop(0, rank) as axis:
        dim, stride = layout.item(f, dims, axis), layout.item(f, strides, axis)
        differs = f.compare("ne", stride, layout.item(f, wanted_strides, axis))
        uneven = f.compare("ne", f.binary("and", stride, within), 0)
        bad = f.select(exact, differs, uneven)
        wrong.set(f.either(wrong.get(), f.both(bad, f.compare("sgt", dim, 1))))
        empty.set(f.either(empty.get(), f.compare("eq", dim, 0)))
    layout.require(f, f.either(f.invert(wrong.get()), empty.get()))


def _require_elements_apart(
    f: Function, record: Value, rank: Value, dims: Value, strides: Value
) -> None:
    """Each step goes past all that the shorter steps reach, so no two elements share memory; an empty array has none."""
    itemsize = layout.param(f, record, "itemsize")
    shared, empty, reach = f.variable("i1", 0), f.variable("i1", 0), f.variable("i64")
    with f.loop(0, rank) as axis:
        dim, step = layout.item(f, dims, axis), _length(f, layout.item(f, strides, axis))
        reach.set(itemsize)
        with f.loop(0, rank) as other:
            shorter = _length(f, layout.item(f, strides, other))
            tie = f.both(f.compare("eq", shorter, step), f.compare("slt", other, axis))
            before = f.either(f.compare("slt", shorter, step), tie)
            way = f.binary("mul", f.binary("sub", layout.item(f, dims, other), 1), shorter)
            reach.set(f.binary("add", reach.get(), f.select(before, way, 0)))
        close = f.both(f.compare("sgt", dim, 1), f.compare("slt", step, reach.get()))
        shared.set(f.either(shared.get(), close))
        empty.set(f.either(empty.get(), f.compare("eq", dim, 0)))
    layout.require(f, f.either(f.invert(shared.get()), empty.get()))


def _length(f: Function, stride: Value) -> Value:
    return f.select(f.compare("slt", stride, 0), f.binary("sub", 0, stride), stride)


def _emit_match_scalar(module: Module) -> None:
    """Put a number into the frame; its type is known to be right."""
    params = [("ptr", "record"), ("ptr", "object"), ("ptr", "frame")]
    f = module.function("dsl_match_scalar", "i1", params, internal=True)
    record, object, frame = f.params
    kind = layout.param(f, record, "kind")
    with f.if_(f.compare("eq", kind, layout.VALUE)):
        f.store(field(f, object, layout.VALUE_AT), frame)
        with f.if_(f.compare("eq", layout.param(f, record, "itemsize"), 16)):
            f.store(field(f, object, layout.VALUE_AT + 8), f.gep(frame, 8))
        f.ret(1)
    with f.if_(f.compare("eq", kind, layout.INT)):
        overflow = f.alloca(4)
        number = f.call("i64", "PyLong_AsLongLongAndOverflow", object, overflow)
        f.store(number, frame)
        f.ret(f.compare("eq", f.load("i32", overflow), 0))
    with f.if_(f.compare("eq", kind, layout.EQUAL)):
        wanted = layout.param(f, record, "descr", "ptr")
        with f.if_(f.compare("eq", wanted, object)):
            f.ret(1)
        alike = layout.param(f, record, "root", "ptr")
        equal = f.call("i32", "PyObject_RichCompareBool", alike, object, f.as_value(_EQUAL, "i32"))
        f.ret(f.compare("eq", equal, 1))
    with f.if_(f.compare("eq", kind, layout.BOOL)):
        is_true = f.compare("eq", object, words.get(f, "true", "ptr"))
        f.store(f.convert("zext", is_true, "i64"), frame)
    f.ret(1)


def _emit_apart(module: Module) -> None:
    """Whether no written array shares memory with another argument, but for those said to be the same object."""
    f = module.function(
        "dsl_apart", "i1", [("ptr", "table"), ("ptr", "args")], internal=True,
        attributes="nounwind noinline",
    )  # fmt: skip
    table, args = f.params
    first, second = f.alloca(16), f.alloca(16)
    written, other = f.variable("ptr"), f.variable("ptr")
    written.set(f.gep(table, 8 * len(layout.HEAD)))
    count = layout.head(f, table, "params")
    with f.loop(0, count) as i:
        with f.if_(f.compare("ne", layout.param(f, written.get(), "written"), 0)):
            f.call("void", "dsl_range", written.get(), layout.item(f, args, i, "ptr"), first)
            other.set(f.gep(table, 8 * len(layout.HEAD)))
            with f.loop(0, count) as j:
                is_array = f.compare("eq", layout.param(f, other.get(), "kind"), layout.ARRAY)
                roots = [layout.param(f, record.get(), "root") for record in (written, other)]
                with f.if_(f.both(is_array, f.compare("ne", *roots))):
                    f.call("void", "dsl_range", other.get(), layout.item(f, args, j, "ptr"), second)
                    layout.require(f, f.invert(_overlap(f, first, second)))
                layout.advance(f, other, layout.param(f, other.get(), "length"))
        layout.advance(f, written, layout.param(f, written.get(), "length"))
    f.ret(1)


def _overlap(f: Function, first: Value, second: Value) -> Value:
    lower = f.compare("ult", f.load("i64", first), field(f, second, 8))
    upper = f.compare("ult", f.load("i64", second), field(f, first, 8))
    return f.both(lower, upper)


def _emit_range(module: Module) -> None:
    """Store the address of an array's first byte and that after its last; of an empty one, twice 0."""
    params = [("ptr", "record"), ("ptr", "object"), ("ptr", "range")]
    f = module.function("dsl_range", "void", params, internal=True)
    record, object, place = f.params
    data = field(f, object, layout.DATA)
    low, high = f.variable("i64", data), f.variable("i64")
    high.set(f.binary("add", data, layout.param(f, record, "itemsize")))
    dims, strides = field(f, object, layout.DIMS, "ptr"), field(f, object, layout.STRIDES, "ptr")
    with f.loop(0, layout.param(f, record, "rank")) as axis:
        dim = layout.item(f, dims, axis)
        reach = f.binary("mul", f.binary("sub", dim, 1), layout.item(f, strides, axis))
        low.set(f.binary("add", low.get(), _operand(f.minimum(reach, 0))))
        high.set(f.binary("add", high.get(), _operand(f.maximum(reach, 0))))
        with f.if_(f.compare("eq", dim, 0)):
            f.store(f.as_value(0, "i64"), place)
            f.store(f.as_value(0, "i64"), f.gep(place, 8))
            f.ret()
    f.store(low.get(), place)
    f.store(high.get(), f.gep(place, 8))
    f.ret()


def _operand(value: Value | int) -> Value:
    assert isinstance(value, Value)
    return value
