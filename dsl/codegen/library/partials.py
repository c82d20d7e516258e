"""Parts of reductions over everything: a stretch of memory, and the partial results of many.

`dsl_lib_stretch_sum_f32` reduces elements that lie one after another. Four parts of the stretch are read side by side:
memory gives a third more than for one. `dsl_lib_combine_sum_f32` combines partial results in place: neighbours, then
neighbours of those, in an order that depends on their number alone.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.accesses import start_value
from dsl.codegen.arrays import Scalar, load_scalar, register_type, store_scalar
from dsl.codegen.evaluate import literal
from dsl.codegen.library.routines import at, routine
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable
from dsl.codegen.plan import REDUCTIONS

__all__ = ["STRETCHES", "STRIDE"]

STRIDE = 16  # bytes from one partial result to the next
STRETCHES = frozenset(("sum", "prod", "max", "min"))
"""What stretches are reduced by."""

_STREAMS = 4


def _combine(op: str, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`void combine(ptr partial, i64 count)`; the first partial result becomes that of all."""
    fn = module.function(symbol, "void", [("ptr", "partial"), ("i64", "count")])
    partial, count = fn.params
    step, here = fn.variable("i64", 1), fn.variable("i64")
    with fn.while_(lambda: fn.compare("slt", step.get(), count)):
        here.set(0)
        with fn.while_(lambda: fn.compare("slt", fn.add(here.get(), step.get()), count)):
            one = fn.gep(partial, fn.mul(here.get(), STRIDE))
            other = fn.gep(partial, fn.mul(fn.add(here.get(), step.get()), STRIDE))
            a, b = load_scalar(fn, dtype, one), load_scalar(fn, dtype, other)
            both = elementwise.combine(fn, op, dtype, a, b, reassociate=False)
            store_scalar(fn, dtype, both, one)
            here.set(fn.add(here.get(), fn.mul(step.get(), 2)))
        step.set(fn.mul(step.get(), 2))
    fn.ret()


def _stretch(op: str, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`dtype stretch(ptr elements, i64 count)`."""
    type = register_type(dtype)
    fn = module.function(symbol, type, [("ptr", "elements"), ("i64", "count")])
    start = literal(start_value(op, dtype), dtype)
    assert isinstance(start, Value)
    sums = [fn.variable(type, start) for _ in range(_STREAMS)]
    part = fn.binary("udiv", fn.params[1], _STREAMS)
    once = module.metadata('!{!"llvm.loop.unroll.disable"}')
    with fn.loop(0, part, metadata=module.metadata(f"distinct !{{%self, {once}}}")) as i:
        for k, total in enumerate(sums):
            _add(fn, op, dtype, total, fn.add(fn.mul(part, k), i))
    scalar = module.metadata('!{!"llvm.loop.vectorize.enable", i1 false}')
    rest = module.metadata(f"distinct !{{%self, {once}, {scalar}}}")
    with fn.loop(fn.mul(part, _STREAMS), fn.params[1], metadata=rest) as i:
        _add(fn, op, dtype, sums[0], i)

    for total in sums[1:]:
        _join(fn, op, dtype, sums[0], total.get(), reassociate=False)
    fn.ret(sums[0].get())


def _add(fn: Function, op: str, dtype: np.dtype, total: Variable, index: Operand) -> None:
    element = load_scalar(fn, dtype, at(fn, dtype, fn.params[0], index))
    _join(fn, op, dtype, total, element, reassociate=True)


def _join(
    fn: Function, op: str, dtype: np.dtype, total: Variable, other: Scalar, *, reassociate: bool
) -> None:
    both = elementwise.combine(fn, op, dtype, total.get(), other, reassociate=reassociate)
    assert isinstance(both, Value)
    total.set(both)


for _op in sorted(REDUCTIONS):
    routine(f"combine_{_op}")(partial(_combine, _op))
for _op in sorted(STRETCHES):
    routine(f"stretch_{_op}", vectorize=True)(partial(_stretch, _op))
