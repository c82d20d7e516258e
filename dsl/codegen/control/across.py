"""Emits a loop around others by vectors, if its trips touch places of their own: all lanes go through the loops within together.

    for j in range(m):                   for j in range(0, m, 8):
        s = 0.0                              s = eight zeros
        for k in range(n):        ->         for k in range(n):
            s += a[i, k] * b[k, j]               s += a[i, k] * b[k, j : j + 8]
        c[i, j] = s                          c[i, j : j + 8] = s

The loop within waits for the addition of the trip before; loops of several places do not wait for one another, and their sums
have the bits that they have one by one. The loops within make as many trips in each trip of the loop around.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from dsl.codegen.control.apart import is_dense, is_nest, trips_apart
from dsl.codegen.control.carried import Loop
from dsl.codegen.kernels.vectors import Recorded, WideLoops, read_loop
from dsl.codegen.llvm import Function, Operand, Value
from dsl.ir import graph as ir
from dsl.ir.facts import constant_of

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["MOST", "emit_across"]

MOST = 1 << 16  # trips between looks for interrupts
_LEAST = 64  # of a loop around others
_UNKNOWN = 1 << 10  # trips that a loop is taken for of which nothing is known


def emit_across(
    loop: Loop,
    trips: Value,
    run: Callable[[Loop, Region], None],
    parts: Callable[[Operand], AbstractContextManager[tuple[Operand, Operand]]],
) -> Operand | None:
    """Emit a loop by vectors; return how many trips those are, of loops within too, or None if that cannot be.

    `run` emits a body, and `parts` what looks for interrupts every so many trips.
    """
    found = _record(loop, run)
    if found is None:
        return None
    fn, known = loop.region.fn, constant_of(loop.node.inputs[0])
    loops, each = WideLoops(fn.module), fn.add(trips_within(loop, loop.body), 1)
    fn.module.wide_loops += 1
    if known is not None and isinstance(each, int) and int(known) * each <= MOST:
        loops.wide_loops(fn, found, (0, int(known)))
        return int(known) * each
    with parts(_several(fn, each)) as ends:
        loops.wide_loops(fn, found, ends)
    return fn.minimum(fn.mul(trips, each), MOST)


def _several(fn: Function, each: Operand) -> Operand:
    """Return how many trips are made between looks for interrupts."""
    if isinstance(each, int):
        return max(_LEAST, MOST // each & -_LEAST)
    return fn.maximum(fn.masked(fn.binary("udiv", MOST, fn.maximum(each, 1)), -_LEAST), _LEAST)


def trips_within(loop: Loop, body: ir.Graph) -> Operand:
    """Return how many trips the loops in a trip make, as far as it is known before the loop."""
    total: Operand = 0
    for node in filter(is_nest, body.nodes):
        fn, each = loop.region.fn, trips_within(loop, node.regions[0])
        total = fn.add(total, fn.mul(_trips_of(loop, node), fn.add(each, 1)))
    return total


def _trips_of(loop: Loop, node: ir.Node) -> Operand:
    trips = node.inputs[0]
    known = constant_of(trips)
    if known is not None:
        return int(known)
    steady = loop.body.params[1 + len(loop.carried) :]
    return loop.number_of(trips, 0) if trips in steady else _UNKNOWN


def _record(loop: Loop, run: Callable[[Loop, Region], None]) -> Recorded | None:
    """Return the body of a loop around others, if it can be written by vectors."""
    region, body = loop.region, loop.body
    fn, program = region.fn, region.program
    if program.together or not any(map(is_nest, body.nodes)):
        return None
    known = loop.known(body)
    known.count(body.params[0], loop.node.inputs[0], region.ranges)
    if trips_apart(body, len(loop.carried), known) != [] or not is_dense(body, known):
        return None
    before, state, slots = fn.module.state(), program.failing(), len(fn.allocated())
    counter = fn.name_value("i64")
    program.together = True
    with fn.recorded() as lines:
        fn.start(fn.label("nest"))
        inner = loop.enter(body, (counter,))
        inner.ranges.count(body.params[0], loop.node.inputs[0], region.ranges)
        run(loop, inner)
        loop.next(inner, body)
    program.together = False
    found = read_loop(lines, counter, slots=fn.allocated(slots))
    if found is None:
        fn.module.restore(before)
        program.forget(state)
    return found
