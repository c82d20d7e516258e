"""Looks before a loop whether one of its trips fails, so that nothing has been written then, and no argument is copied for that.

    for i in range(n):               for i in range(n):
        for j in range(m):       ->      is m - 1 below the columns of y, i below its rows?
            y[i, j] = x[i, j]        for i in range(n): ...

What comes first is a loop like it, without the arrays: each trip looks at what an innermost loop reads and writes in even steps by its
ends. That can be done if all that may fail are places, and numbers alone tell them that no array has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsl.codegen.control.carried import Loop
from dsl.codegen.control.passing import is_integer
from dsl.codegen.control.spans import Spans, accesses, is_inside, may_fail, spans_of
from dsl.codegen.control.weights import is_loop
from dsl.codegen.llvm import Value
from dsl.codegen.scalars import emit_scalar
from dsl.ir import graph as ir
from dsl.ir.dims import symbols_of
from dsl.ir.facts import has_effect, is_array
from dsl.ir.registry import Trait

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["failing_first"]


@contextmanager
def failing_first(region: Region, node: ir.Node) -> Iterator[None]:
    """Have a `scan` that is emitted in the block, and writes arguments, fail before it starts if that can be told there."""
    program = region.program
    writes = any(map(is_array, node.outputs)) and bool(program.written)
    if program.depth or not program.checks or not writes:
        yield
        return
    _look_first(region, node)
    yield
    program.safe.clear()


def _look_first(region: Region, node: ir.Node) -> None:
    program = region.program
    before, state = region.fn.point(), program.failing()
    seen: set[tuple[ir.Node, int]] = set()
    if _look(region, node, seen):
        program.safe |= seen
    else:
        region.fn.go_back(before)
        program.forget(state)


def _look(region: Region, node: ir.Node, seen: set[tuple[ir.Node, int]]) -> bool:
    """Emit the loop that looks; return whether it looks at all that may fail, and what that is."""
    loop = Loop(region, node, node.inputs[1:], 1)
    if not all(
        _is_known(region, v) for v in (node.inputs[0], *filter(is_integer, loop.invariants))
    ):
        return False
    trips = region.register(node.inputs[0])
    assert isinstance(trips, Value)
    if not any(inner.op.name == "scan" or is_loop(inner) for inner in loop.body.walk()):
        spans, alone = spans_of(loop)
        alone = alone and all(set(symbols_of(s.size)) <= set(region.symbols) for s in spans)
        if alone and spans:
            Spans(loop, spans).fail(trips)
        seen.update((span.node, span.axis) for span in spans)
        return alone
    with region.fn.loop(0, trips, as_written=True) as trip:
        inner = _enter(loop, trip)
        found = all(_step(inner, step, seen) for step in loop.body.nodes)
    return found


def _enter(loop: Loop, trip: Value) -> Region:
    body, region = loop.body, loop.region
    inner = region.inner(body)
    inner.ranges = loop.known(body)
    inner.ranges.count(body.params[0], loop.node.inputs[0], region.ranges)
    inner.registers[body.params[0]] = trip
    for param, operand in zip(body.params[1 + len(loop.carried) :], loop.invariants, strict=True):
        if is_integer(operand):
            inner.registers[param] = region.register(operand)
    return inner


def _step(region: Region, node: ir.Node, seen: set[tuple[ir.Node, int]]) -> bool:
    """Look at what a node of a loop's body reads and writes, or compute a number; return whether nothing else in it can fail."""
    if node.op.name == "scan":
        return _look(region, node, seen)
    spans = [s for s in accesses(node, region.ranges, set()) if not is_inside(s, region.ranges)]
    for span in spans:
        known = set(symbols_of(span.size)) <= set(region.symbols)
        if not known or not _is_known(region, span.number):
            return False
        number = region.register(span.number)
        assert isinstance(number, Value)
        Spans.place(region, span, number)
        seen.add((span.node, span.axis))
    if accesses(node, region.ranges, set()):
        return True
    if may_fail(node) or has_effect(node):
        return False
    numbers = node.op.has(Trait.ELEMENTWISE) and not any(map(is_array, node.outputs))
    if numbers and all(_is_known(region, v) for v in node.inputs):
        emit_scalar(region, node)
    return True


def _is_known(region: Region, value: ir.Value) -> bool:
    return value in region.registers or value.node.op.name == "const"
