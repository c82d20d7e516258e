"""Emits `while` and `scan`.

Every so many trips the program looks whether the user wants to interrupt it. Innermost loops do not look where a loop around them
does, as that keeps LLVM from unrolling them: they tell how many trips they made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

from dsl.codegen.control.across import MOST as _POLL
from dsl.codegen.control.across import emit_across
from dsl.codegen.control.apart import Trip, trips_apart
from dsl.codegen.control.brief import MOST, goes_through_bits, is_brief
from dsl.codegen.control.carried import Loop
from dsl.codegen.control.endings import endings
from dsl.codegen.control.forecast import failing_first
from dsl.codegen.control.pairs import two_trips
from dsl.codegen.control.records import seeks_records
from dsl.codegen.control.spans import Spans, spans_of
from dsl.codegen.control.steady import takes_one_side
from dsl.codegen.control.weights import is_loop, is_short, weight
from dsl.codegen.frame import STATUS
from dsl.codegen.kernels.vectors import Recorded, WideLoops, read_loop
from dsl.codegen.llvm import Operand, Value, read
from dsl.codegen.repeats import emit_repeats
from dsl.codegen.trapezoids import emit_trapezoids
from dsl.ir import graph as ir

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_scan", "emit_while"]

_AT_ONCE = 4  # trips of a loop that seeks the best, between two that ask whether it has ended
_FEW = 16  # trips of a loop that LLVM may unroll


def emit_while(region: Region, node: ir.Node) -> None:
    test, body = node.regions
    loop = Loop(region, node, node.inputs, 0)
    fn = region.fn
    vectors = fn.module.wide_loops
    head, inside, after = fn.label("while"), fn.label("do"), fn.label("done")
    every = _poll_every(body)
    left = fn.variable("i64", every)  # counted down: one instruction, which sets the flag too
    loop.begin()
    fn.start(head)
    inner = loop.enter(test, ())
    inner.run()
    inner.ranges.assume_condition(test.results[0])
    loop.facts = inner.ranges.facts
    # Who is within a loop that looks often need not look, if it surely ends: only what it did counts.
    within = region.program.depth > 0 and every > 1
    clock = loop.clock(inner.ranges) if within else None
    brief = within and clock is None and is_brief(loop, test, inner.ranges)
    fn.branch_if(_single(inner, test.results[0]), inside, after)
    fn.start(inside)
    last = endings(loop.carried, test)
    pair = None if last else two_trips(node)
    if pair is None:
        inner = loop.enter(body, ())
        _run(loop, inner)
        ended = [_single(inner, item.result) for item in last]
        loop.next(inner, body)
    else:
        ended = []
        _two_trips(loop, test, pair, after)
    if ended:
        again = fn.label("again")
        fn.branch_if(reduce(fn.either, ended), after, again)
        fn.continue_in(again)
    if every == 1:
        _poll(region)
    elif _has_loops(body):
        _spend(region, 1)
        _poll_if_spent(region)
    elif clock is None and not brief:
        left.set(fn.binary("sub", left.get(), 1))
        with fn.if_(fn.compare("eq", left.get(), 0), unlikely=True):
            _poll(region)
            left.set(every)
    fn.module.as_written &= loop.is_serial(fn.module.wide_loops > vectors)
    fn.module.steady |= takes_one_side(loop)
    fn.branch(head)
    fn.continue_in(after)
    if brief and not _has_loops(body) and not goes_through_bits(node):
        _spend(region, MOST)
    if clock is not None and not _has_loops(body):
        _spend(region, fn.distance(read(clock.variables), _single(region, clock.initial)))
    loop.end()


def _two_trips(loop: Loop, test: ir.Graph, pair: ir.Graph, after: str) -> None:
    """Emit a trip and, if the test says so, another one, of which all has been computed."""
    fn, both = loop.region.fn, loop.enter(pair, ())
    loop.region.program.report.lines.append("two trips at once:")
    _run(loop, both)
    found = [both.register(result) for result in pair.results]
    count = len(loop.carried)

    def keep(results: list[Any]) -> None:
        for item, result in zip(loop.carried, results, strict=True):
            loop.region.assign({0: item.variables}, {0: result})

    keep(found[:count])
    asked = loop.enter(test, ())
    asked.run()
    again = fn.label("again")
    fn.branch_if(_single(asked, test.results[0]), again, after)
    fn.start(again)
    keep(found[count:])


def emit_scan(region: Region, node: ir.Node) -> None:
    with failing_first(region, node):
        _scan(region, node)


def _scan(region: Region, node: ir.Node) -> None:
    (body,), fn = node.regions, region.fn
    trips = _single(region, node.inputs[0])
    loop = Loop(region, node, node.inputs[1:], 1)
    spans = Spans(loop, [] if _has_loops(body) or _is_short(node, _FEW) else spans_of(loop)[0])
    loop.begin()
    if any(emit(loop, trips, lambda: _poll(region)) for emit in (emit_repeats, emit_trapezoids)):
        loop.end()
        return
    if not _is_short(node, _FEW):
        made = emit_across(loop, trips, _run, lambda every: _chunks(region, trips, every))
        if made is not None:
            fn.module.as_written = False
            if region.program.depth:
                _spend(region, made)
            loop.end()
            return
    every = _poll_every(body)
    spends = every > 1 and _has_loops(body)
    poll = every > 1 and not spends and not region.program.depth and not _is_short(node)
    chunks = _chunks(region, trips, every) if poll else nullcontext((0, trips))
    with chunks as (low, high), spans.parts(low, high) as ends:
        _trips(loop, ends, spans, every)
    if every > 1 and not poll and not spends and region.program.depth and not is_short(node):
        _spend(region, trips)
    loop.end()


@contextmanager
def _chunks(region: Region, trips: Value, every: Operand) -> Iterator[tuple[Operand, Operand]]:
    """Run the block for so many trips after the others, and look for interrupts in between."""
    fn = region.fn
    done, end = fn.variable("i64", 0), fn.variable("i64", fn.minimum(trips, every))
    with fn.again(lambda: fn.compare("slt", done.get(), trips)):
        high = end.get()
        yield done.get(), high
        done.set(high)
        end.set(fn.minimum(fn.add(high, every), trips))
        with fn.if_(fn.compare("slt", high, trips)):
            _poll(region)


def _trips(loop: Loop, ends: tuple[Operand, Operand], spans: Spans, every: int) -> None:
    """Emit the trips of a `scan` from one on, up to another."""
    region, node, body = loop.region, loop.node, loop.body
    fn = region.fn
    before, vectors = fn.point(), fn.module.wide_loops
    lines: list[str] = []
    alone: list[Trip] | None = None
    several = fn.module.several_trips(_AT_ONCE) if seeks_records(loop) else ""
    with fn.loop(*ends, metadata=several, as_written=True, ahead=True) as trip:
        start = fn.point()
        inner = loop.enter(body, (trip,))
        inner.ranges.count(body.params[0], node.inputs[0], region.ranges)
        inner.offsets = spans.offsets
        _run(loop, inner)
        loop.next(inner, body)
        if not _is_short(node, _FEW):
            alone = trips_apart(body, len(loop.carried), inner.ranges, spans.indices)
        if alone is not None:
            lines = fn.since(start)
        if every == 1:
            _poll(region)
        elif every > 1 and _has_loops(body):
            _spend(region, 1)
            _poll_if_spent(region)
    by_vectors = read_loop(lines, trip)
    if by_vectors is not None:
        fn.go_back(before)
        fn.module.wide_loops += 1
        _by_vectors(loop, by_vectors, *ends, alone or [])
    else:
        fn.module.as_written &= loop.is_serial(fn.module.wide_loops > vectors)
        fn.module.unrolled |= bool(several) or loop.is_masked()
        fn.module.steady |= not _is_short(node, _FEW) and takes_one_side(loop)


def _run(loop: Loop, inner: Region) -> None:
    """Emit the body of a loop."""
    program = inner.program
    one_by_one = not (program.together or loop.may_be_vectorised())
    around, program.serial = program.serial, one_by_one
    if not program.depth:
        program.touched.enter()
    program.depth += 1
    inner.run()
    program.depth -= 1
    program.serial = around


def _by_vectors(loop: Loop, body: Recorded, low: Operand, high: Operand, alone: list[Trip]) -> None:
    """Write a loop by vectors; a trip that is to be made alone parts those before it from those after it."""
    fn = loop.region.fn
    loops = WideLoops(fn.module)
    if not alone:
        loops.wide_loops(fn, body, (low, high))
        return
    (trip,) = alone
    first = fn.maximum(fn.minimum(loop.number_of(trip.value, trip.plus), high), low)
    stops = first, fn.minimum(fn.add(first, 1), high), high
    start, stop = fn.variable("i64", low), fn.variable("i64")
    with fn.loop(0, len(stops), metadata=loops.plain(), as_written=True) as part:
        for k, end in enumerate(stops):
            stop.set(end if k == 0 else fn.select(fn.compare("slt", part, k), stop.get(), end))
        loops.wide_loops(fn, body, (start.get(), stop.get()))
        start.set(stop.get())


def _single(region: Region, value: ir.Value) -> Value:
    """Return the register of a flag or an integer."""
    found = region.register(value)
    assert isinstance(found, Value)
    return found


def _has_loops(body: ir.Graph) -> bool:
    return any(is_loop(node) for node in body.walk())


def _spend(region: Region, trips: Operand) -> None:
    """Count trips since the program looked last."""
    if region.program.together:
        return
    budget = region.program.budget
    budget.set(region.fn.binary("sub", budget.get(), trips))


def _poll_if_spent(region: Region) -> None:
    """Look if many trips were made, of this loop and of those in it."""
    if region.program.together:
        return
    fn, budget = region.fn, region.program.budget
    with fn.if_(fn.compare("slt", budget.get(), 0), unlikely=True):
        _poll(region)
        budget.set(_POLL)


def _poll(region: Region) -> None:
    """Look whether the user wants to interrupt."""
    fn = region.fn
    stop = fn.call("i32", "dsl_poll")
    with fn.if_(fn.compare("ne", stop, 0), unlikely=True):
        region.program.status.set(STATUS.PYTHON)
        fn.branch(region.program.exit)


def _poll_every(body: ir.Graph) -> int:
    """Return after how many trips to look: scalar code makes many in the time that looking takes, kernels do not."""
    weights = [weight(node) for node in body.walk()]
    return {0: _POLL, 1: 64, 2: 1}[max(weights, default=0)]


def _is_short(node: ir.Node, few: int = _POLL) -> bool:
    """Tell whether a counted loop surely makes few trips."""
    trips = node.inputs[0].node
    return trips.op.name == "const" and int(trips.attrs["value"].array) <= few
