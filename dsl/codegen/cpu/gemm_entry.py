"""The exported function of matrix multiplication: which way to go, how to cut the work, and whether to share it.

All of that follows from sizes and layouts alone but for the width of blocks of columns, which changes no bit of the result.
The numbers below were measured on a CPU of 2023 with AVX-512, 48 KB of first and 2 MB of second cache.
"""

from __future__ import annotations

from dsl.codegen.cpu.gemm_pack import ATTRIBUTES
from dsl.codegen.cpu.gemm_tall import tall_product
from dsl.codegen.cpu.gemm_tasks import Call, Plan, allocate, ceil_div, finish, round_up, tasks
from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.cpu.gemm_vector import Product, by_columns, by_rows
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["PARAMETERS", "entry"]

PARAMETERS = (
    ("i64", "m"), ("i64", "n"), ("i64", "k"),
    ("ptr", "a"), ("i64", "a_row"), ("i64", "a_column"),
    ("ptr", "b"), ("i64", "b_row"), ("i64", "b_column"),
    ("ptr", "c"), ("i64", "c_row"), ("ptr", "tile"), ("ptr", "env"),
)  # fmt: skip
"""The types and names of the exported function's parameters."""

_THREADED = 1 << 19
"""Multiplications from which threads pay: 3 µs of one core's work."""

_THREADED_VECTOR = 1 << 16
"""The same for a matrix and a vector, where memory sets the pace."""

_GRAIN = 64
"""Columns of a matrix that a thread multiplies at least: some lines of the cache."""

_FEW_VECTORS = 4
"""Rows of A for which a transposed B is better read in its own order."""

_FEW_PANELS, _FEW_PANELS_FAR = 14, 5
"""Panels of A for which B is not packed, if its rows lie together: the copying takes longer than it saves."""

_FAR = 3072
"""Bytes from row to row from which rows of B are far from each other: nearly each is on a page of its own."""

_SHORT = 256
"""Bytes of a column of far rows that are read in a run: for so many pages the processor has the addresses at hand."""

_ALIASED = 4096
"""Rows that are a multiple of these bytes apart share lines of the first cache: they are packed."""


def entry(module: Module, t: Tiling, name: str) -> None:
    """Define the function `name`."""
    fn = module.function(name, "void", PARAMETERS, attributes=ATTRIBUTES)
    call = Call(*fn.params)
    with fn.if_(
        fn.either(fn.compare("slt", call.m, 1), fn.compare("slt", call.n, 1)), unlikely=True
    ):
        fn.ret()
    with fn.if_(fn.compare("slt", call.k, 1), unlikely=True):
        _fill_with_zeros(fn, t, call)
        fn.ret()
    call = call._replace(
        a_column=fn.select(fn.compare("eq", call.k, 1), 1, call.a_column),
        b_column=fn.select(fn.compare("eq", call.n, 1), 1, call.b_column),
    )
    few = fn.compare("sle", call.m, _FEW_VECTORS)
    with fn.if_(fn.either(few, fn.compare("eq", call.n, 1))):
        _matrix_by_vectors(module, t, fn, call)
    tall_product(module, t, fn, call, name)
    _matrix_by_matrix(module, t, fn, call)
    fn.ret()


def _fill_with_zeros(fn: Function, t: Tiling, call: Call) -> None:
    with fn.loop(0, call.m) as i, fn.loop(0, call.n) as j:
        place = fn.add(fn.mul(i, call.c_row), j)
        fn.store(fn.as_value(0, t.type), fn.gep(call.c, place, t.type))
    finish(fn, call, 0, call.m, 0, call.n)


def _matrix_by_matrix(module: Module, t: Tiling, fn: Function, call: Call) -> None:
    work = fn.mul(fn.mul(call.m, call.n), call.k)
    alone = fn.compare("slt", work, _THREADED)
    threads = fn.variable("i64", 1)
    with fn.if_(fn.invert(alone)):
        threads.set(fn.call("i64", "dsl_threads"))
    plan = _plan(fn, t, call, threads.get())
    body = tasks(module, t, fn, call, plan)
    count = fn.mul(plan.panels, ceil_div(fn, call.n, plan.width))
    # A chunk a thread: more of them would pack the same blocks of B again, which takes 5 % longer.
    _share(fn, body, count, alone, fn.binary("sdiv", count, threads.get()))


def _plan(fn: Function, t: Tiling, call: Call, threads: Value) -> Plan:
    full, lower, *_ = t.heights
    panels = ceil_div(fn, call.m, full)
    spare = fn.sub(call.m, fn.mul(panels, lower))
    tall = fn.maximum(ceil_div(fn, spare, full - lower), 0)
    far = fn.compare("sge", fn.mul(call.b_row, t.size), _FAR)
    few = fn.compare("sle", panels, fn.select(far, _FEW_PANELS_FAR, _FEW_PANELS))
    direct = fn.both(fn.compare("eq", call.b_column, 1), few)
    longest = fn.select(fn.both(direct, far), _SHORT // t.size, t.depth)
    depth = round_up(fn, ceil_div(fn, call.k, ceil_div(fn, call.k, longest)), t.lanes)
    width = _width(fn, t, call, threads, panels, direct)
    beyond = fn.binary("and", call.n, t.columns - 1)
    packed = fn.select(direct, fn.select(fn.compare("eq", beyond, 0), 0, t.columns), width)
    aliased = fn.compare("eq", fn.binary("and", fn.mul(call.a_row, t.size), _ALIASED - 1), 0)
    pack_a = fn.either(fn.compare("ne", call.a_column, 1), aliased)
    pack_a = fn.both(pack_a, fn.compare("sgt", call.n, 2 * t.columns))
    return Plan(
        panels, fn.as_value(tall, "i64"), width, depth, packed, pack_a, pack_b=fn.invert(direct)
    )


def _width(
    fn: Function, t: Tiling, call: Call, threads: Value, panels: Value, direct: Value
) -> Value:
    """Return the width of blocks of columns: what the cache holds, and less if each thread can have blocks of its own.

    Then no two threads pack the same part of B. If B is not packed, threads share panels of rows as long as there are some.
    """
    most = ceil_div(fn, call.n, 4 * t.columns)
    wanted = fn.select(direct, ceil_div(fn, threads, panels), threads)
    blocks = fn.maximum(ceil_div(fn, call.n, t.width), fn.minimum(wanted, most))
    return round_up(fn, ceil_div(fn, call.n, blocks), t.columns)


def _matrix_by_vectors(module: Module, t: Tiling, fn: Function, call: Call) -> None:
    """Multiply and return, if the matrix has a layout for it. A row by a matrix is the transposed by a column."""
    column = fn.compare("eq", call.n, 1)
    pairs = (
        (call.m, call.n), (call.a, call.b), (call.a_row, call.b_column), (call.a_column, call.b_row),
        (call.b, call.a), (call.b_row, call.a_column), (call.c_row, 1), (1, call.m),
    )  # fmt: skip
    size, matrix, outer, inner, vector, step, result_step, count = (
        fn.select(column, x, y) for x, y in pairs
    )
    alone = fn.compare("slt", fn.mul(size, call.k), _THREADED_VECTOR)
    one = fn.compare("eq", count, 1)
    few = fn.either(one, fn.compare("eq", step, 1))
    together = fn.both(fn.compare("eq", outer, 1), fn.compare("eq", result_step, 1))
    together = fn.both(together, fn.both(one, fn.compare("ne", size, 1)))
    few_long = fn.both(few, fn.compare("eq", inner, 1))
    forms = (
        (by_columns, together, inner, _GRAIN),
        (by_rows, few_long, outer, ceil_div(fn, _THREADED_VECTOR // 2, call.k)),
    )
    for define, suits, stride, grain in forms[not t.masks :]:
        with fn.if_(suits):
            x, given_back = _in_a_row(fn, t, vector, step, call.k)
            product = Product(
                matrix, stride, x, call.a_row, count, call.k, call.c, result_step, call.c_row, column
            )  # fmt: skip
            _share(fn, define(module, t, fn, call, product), size, alone, grain)
            fn.call("void", "dsl_free", given_back)
            fn.ret()


def _in_a_row(
    fn: Function, t: Tiling, vector: Value, step: Value, count: Value
) -> tuple[Value, Value]:
    """Return a vector whose elements lie together, and the memory to free afterwards, which may be null."""
    place, space = fn.variable("ptr", vector), fn.variable("ptr", Value("null", "ptr"))
    with fn.if_(fn.compare("ne", step, 1)):
        space.set(allocate(fn, fn.mul(count, t.size)))
        place.set(space.get())
        with fn.loop(0, count) as k:
            element = fn.load(t.type, fn.gep(vector, fn.mul(k, step), t.type))
            fn.store(element, fn.gep(place.get(), k, t.type))
    return place.get(), space.get()


def _share(fn: Function, body: Function, count: Operand, alone: Value, grain: Operand) -> None:
    """Run a function for [0, count), here or in threads."""
    env, tasks = fn.environment(body), fn.as_value(count, "i64")
    with fn.if_(alone):
        fn.call("void", body.name, env, Value("0", "i64"), tasks)
    with fn.if_(fn.invert(alone)):
        address = Value(f"@{body.name}", "ptr")
        fn.call("void", "dsl_parallel", address, env, tasks, fn.as_value(grain, "i64"))
