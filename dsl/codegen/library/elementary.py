"""Elementary functions as routines, for one element and for vectors that fill several registers.

`dsl_math_exp_x32_f32` takes and returns a vector of 32 floats: four registers of AVX2. Loops call it instead of having
the function's code in them, many times over: for four vectors side by side, for what remains, and for single elements.
So a loop with elementary functions is compiled in a third of the time, and is as fast: a call for four vectors hides
the latencies of the function's chain of steps, and its cost is nothing beside a hundred instructions.
"""

from __future__ import annotations

import re

from dsl.codegen import math, widen
from dsl.codegen.kernels.vectors import Recorded, WideLoops
from dsl.codegen.library.vectors import vector
from dsl.codegen.llvm import Function, Module, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = ["FLAGS", "LEVEL", "module_text"]

LEVEL, FLAGS = 2, ("no-slp", "no-unroll")
_TYPES = {"f32": "float", "f64": "double"}


def module_text(symbol: str) -> str:
    """Return the module that defines a function by its name.

    >>> print(module_text("dsl_math_exp_x1_f32").splitlines()[-5])
    define float @dsl_math_exp_x1_f32(float %x) nounwind willreturn memory(none) {
    """
    found = re.fullmatch(r"dsl_math_(\w+)_x(\d+)_(f32|f64)", symbol)
    assert found is not None
    name, lanes, type = found[1], int(found[2]), _TYPES[found[3]]
    module = Module(symbol)
    whole = vector(type, lanes) if lanes > 1 else type
    params = [(whole, label) for label in "xy"[: math.arity(name)]]
    attributes = "nounwind willreturn memory(none)"
    fn = module.function(symbol, whole, params, attributes=attributes)
    if lanes == 1:
        fn.ret(math.inline(fn, name, *fn.params))
    elif math.define(name, type).by_register:
        _written_out(fn, name, lanes, type, whole)
    else:
        _lane_by_lane(fn, name, lanes, type, whole)
    return module.text()


def _written_out(fn: Function, name: str, lanes: int, type: str, whole: str) -> None:
    """Write the function by vectors, with instructions that LLVM's vectoriser does not know."""
    size = lanes * (4 if type == "float" else 8)
    *places, target = [fn.alloca(size, size) for _ in (*fn.params, None)]
    for place, param in zip(places, fn.params):
        fn.store(param, place)
    counter = fn.name_value("i64")
    with fn.recorded() as lines:
        args = [fn.load(type, fn.gep(place, counter, type)) for place in places]
        fn.store(math.splice(fn, name, *args), fn.gep(target, counter, type))
    body = widen.read(lines, counter.text)
    assert body is not None
    WideLoops(fn.module).wide_step(fn, Recorded(body, counter, lines, spliced=True), lanes, 0)
    fn.ret(fn.load(whole, target))


def _lane_by_lane(fn: Function, name: str, lanes: int, type: str, whole: str) -> None:
    """Go through the lanes in memory: LLVM makes a step or two of vectors of it, and registers of the memory."""
    size = lanes * (4 if type == "float" else 8)
    places = [fn.alloca(size, size) for _ in fn.params]
    target = fn.alloca(size, size)
    for place, param in zip(places, fn.params):
        fn.store(param, place)
    definition = math.define(name, type)
    part = "near" if definition.has_parts else ""
    far = fn.variable("i1", Value("false", "i1"))
    metadata, access = _independent(fn, _at_once(definition, lanes, type))
    with fn.loop(0, lanes, metadata=metadata) as at:
        args = [fn.load(type, fn.gep(place, at, type), metadata=access) for place in places]
        result = math.inline(fn, name, *args, part=part)
        fn.store(result, fn.gep(target, at, type), metadata=access)
        if part:
            far.set(fn.either(far.get(), math.inline(fn, name, *args, part="far")))
    if part:
        with fn.if_(far.get(), unlikely=True):
            _again(fn, name, lanes, type, places, target)
    fn.ret(fn.load(whole, target))


def _again(
    fn: Function, name: str, lanes: int, type: str, places: list[Value], target: Value
) -> None:
    """Call the routine for one element in each lane."""
    fn.lanes = ()
    scalar = fn.module.metadata('!{!"llvm.loop.vectorize.enable", i1 false}')
    with fn.loop(0, lanes, metadata=fn.module.metadata(f"distinct !{{%self, {scalar}}}")) as at:
        args = [fn.load(type, fn.gep(place, at, type)) for place in places]
        fn.store(math.call(fn, name, *args), fn.gep(target, at, type))


def _at_once(definition: math.Definition, lanes: int, type: str) -> int:
    """Return how many lanes to take in one step: half of them where floats are computed in doubles."""
    wider = type == "float" and any("double" in text for text in definition.texts.values())
    return lanes // 2 if wider and lanes > register_bytes() // 4 else lanes


def _independent(fn: Function, lanes: int) -> tuple[str, str]:
    """Return metadata for a loop that takes so many lanes at a time, and for its memory accesses."""
    group = fn.module.metadata("distinct !{}")
    accesses = fn.module.metadata(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
    width = fn.module.metadata(f'!{{!"llvm.loop.vectorize.width", i32 {lanes}}}')
    loop = fn.module.metadata(f"distinct !{{%self, {accesses}, {width}}}")
    return loop, f", !llvm.access.group {group}"
