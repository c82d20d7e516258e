"""Products with few elements, each the sum of very many products: too few tiles to share among threads.

The inner dimension is cut into parts instead, by sizes alone. Each part makes a result of its own, by the exported function
itself, and the results are added in the order of the parts.
"""

from __future__ import annotations

from typing import NamedTuple

from dsl.codegen.cpu.gemm_lanes import load
from dsl.codegen.cpu.gemm_pack import ATTRIBUTES
from dsl.codegen.cpu.gemm_tasks import Call, allocate, ceil_div, finish, round_up
from dsl.codegen.cpu.gemm_tiles import Tiling
from dsl.codegen.llvm import Function, Module, Value

__all__ = ["tall_product"]

_FEW = 64
"""Rows and columns of a result, at most, that threads have no tiles of their own of."""

_PART = 1 << 13
"""Multiplications of vectors of a part at least."""

_PARTS = 64
"""Parts, at most; a part that is tall itself is cut again."""

_WORTH = 4
"""Parts, at least: with fewer, some threads would wait for others."""


class _Parts(NamedTuple):
    """How many parts there are, of which length, and their results: `size` elements from one to the next."""

    number: Value
    length: Value
    results: Value
    size: Value


def tall_product(module: Module, t: Tiling, fn: Function, call: Call, name: str) -> None:
    """Multiply and return, if the result is small for the length of the inner dimension; `name` is the exported function."""
    few = fn.both(fn.compare("sle", call.m, _FEW), fn.compare("sle", call.n, _FEW))
    with fn.if_(few):
        least = ceil_div(fn, _PART, fn.mul(call.m, ceil_div(fn, call.n, t.lanes)))
        with fn.if_(fn.compare("sge", call.k, fn.mul(least, _WORTH))):
            wanted = fn.maximum(least, ceil_div(fn, call.k, _PARTS))
            length = fn.minimum(round_up(fn, wanted, t.lanes), call.k)
            _in_parts(module, t, fn, call, name, fn.as_value(length, "i64"))
            fn.ret()


def _in_parts(
    module: Module, t: Tiling, fn: Function, call: Call, name: str, length: Value
) -> None:
    size = fn.as_value(round_up(fn, fn.mul(call.m, call.n), t.lanes), "i64")
    count = ceil_div(fn, call.k, length)
    results = allocate(fn, fn.mul(fn.mul(count, size), t.size))
    parts = _Parts(count, length, results, size)
    body = _multiply_parts(module, t, fn, call, name, parts)
    env, address = fn.environment(body), Value(f"@{body.name}", "ptr")
    fn.call("void", "dsl_parallel", address, env, count, Value("1", "i64"))
    _add_up(t, fn, call, parts)
    fn.call("void", "dsl_free", results)
    finish(fn, call, 0, call.m, 0, call.n)


def _multiply_parts(
    module: Module, t: Tiling, parent: Function, call: Call, name: str, parts: _Parts
) -> Function:
    """Define the function that makes the results of parts `lo` to `hi`."""
    params = [("ptr", "env"), ("i64", "lo"), ("i64", "hi")]
    fn = module.function(
        "gemm.parts", "void", params, internal=True, attributes=ATTRIBUTES, parent=parent
    )
    call, parts, null = Call(*map(fn.use, call)), _Parts(*map(fn.use, parts)), Value("null", "ptr")
    with fn.loop(fn.params[1], fn.params[2]) as part:
        k0 = fn.mul(part, parts.length)
        here = call._replace(
            k=fn.as_value(fn.minimum(parts.length, fn.sub(call.k, k0)), "i64"),
            a=fn.gep(call.a, fn.mul(k0, call.a_column), t.type),
            b=fn.gep(call.b, fn.mul(k0, call.b_row), t.type),
            c=fn.gep(parts.results, fn.mul(part, parts.size), t.type),
            c_row=call.n, tile=null, env=null,
        )  # fmt: skip
        fn.call("void", name, *here)
    fn.ret()
    return fn


def _add_up(t: Tiling, fn: Function, call: Call, parts: _Parts) -> None:
    """Add the results to the first, which is padded to whole vectors as they all are, and copy that to C."""
    with fn.loop(1, parts.number) as part, fn.loop(0, parts.size, t.lanes) as place:
        other = load(fn, t, parts.results, fn.add(fn.mul(part, parts.size), place))
        sum = fn.fadd(load(fn, t, parts.results, place), other)
        fn.store(sum, fn.gep(parts.results, place, t.type), align=t.size)
    with fn.loop(0, call.m) as i, fn.loop(0, call.n) as j:
        found = fn.load(t.type, fn.gep(parts.results, fn.add(fn.mul(i, call.n), j), t.type))
        fn.store(found, fn.gep(call.c, fn.add(fn.mul(i, call.c_row), j), t.type))
