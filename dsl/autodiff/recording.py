"""Spell out what autodiff made: recorded loops become loops that write into buffers, checkpoints become their regions.

The buffers of a `recording_scan` have as many rows as it makes trips. A `recording_while` does not know how many those
will be: it runs in rounds, each in a buffer twice as long as the one before, into which the rows so far are copied.

    %0:2 = recording_scan(%n, %x) {carried=1}            %0 = full(0.0) {shape=(n,)}
      @body(%i, %x) { sin(%x); return %0, %x }    ->     %1:2 = scan(%n, %x, %0) {carried=2}
                                                           @body(%i, %x, %b) { sin(%x); update_dynamic_slice(%b, %x, %i) … }

Values that are joined, since their sizes change from trip to trip, go one behind the other into a buffer that either loop
carries with the number of rows in use; a trip that needs more room first doubles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsl.autodiff.flow import CUSTOM, LOOPS, is_joined
from dsl.autodiff.region import Region, inline, types_after
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, Symbol, dim_max, symbols_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import get_op, placement_of
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import I64, TensorType, ValueType, scalar

__all__ = ["spell_out", "spell_out_and_follow"]

_FIRST_ROWS = 64
_BODIES = frozenset(("checkpoint", *CUSTOM))
_RECORDED = frozenset(("recording_scan", "recording_while"))
_SPELLED = _BODIES | _RECORDED | {"stop_gradient"}


def spell_out(graph: Graph) -> Graph:
    """Return the graph without recorded loops and checkpoints."""
    return rebuild(graph, _rewrite, _SPELLED)


def spell_out_and_follow(graph: Graph) -> tuple[Graph, Callable[[Node], tuple[Node, ...]]]:
    """Do the same, and return a function that tells what nodes became."""
    rewriter = Rewriter(graph, _rewrite)
    return rewriter.run(graph.results, graph.params), rewriter.became


def _rewrite(builder: Rewriter, node: Node) -> Sequence[Value | None] | None:
    if node.op.name in _BODIES:
        results, effects = builder.inline(node.regions[0], node.inputs, node.controls)
        builder.stand_in(node, effects or node.controls)
        return results
    if node.op.name == "stop_gradient":
        return node.inputs
    if node.op.name in _RECORDED:
        return _recorded(builder, node)
    return None


@dataclass
class _Loop:
    """A recorded loop on its way. Of what it records, `stacks` has the types; what is joined is carried."""

    old: Node
    first: int  # the inputs in front of the carried ones
    inputs: list[Value]
    count: int  # the carried values
    regions: list[Graph]
    types: list[ValueType]
    stacks: list[TensorType]

    @property
    def carried(self) -> list[Value]:
        return self.inputs[self.first : self.first + self.count]

    @property
    def shared(self) -> list[Value]:
        return self.inputs[self.first + self.count :]

    def made(self, builder: Rewriter, op: str, inputs: Sequence[Value], regions: Sequence[Graph],
             types: Sequence[ValueType]) -> tuple[Value, ...]:  # fmt: skip
        """Put a loop that carries values of these types in place of the old one."""
        attrs = {**placement_of(self.old), "carried": len(types)}
        made = Node(
            get_op(op), tuple(inputs), attrs, tuple(types), tuple(regions), self.old.controls,
            loc=self.old.loc,
        )  # fmt: skip
        builder.stand_in(self.old, [made])
        return builder.adopt(made).outputs


def _recorded(builder: Rewriter, node: Node) -> list[Value | None]:
    """Spell out a recorded loop; of what it records, what something reads."""
    graph, count = builder.graph, node.attrs["carried"]
    read = {
        k for k, value in enumerate(builder.origin.outputs)
        if k >= count and (value in graph.results or value in builder.read)
    }  # fmt: skip
    joined = [k for k in sorted(read) if is_joined(node, k)]
    stacked = [k for k in sorted(read) if not is_joined(node, k)]
    loop = _joining(builder, node, joined, stacked)
    found = (_scan if loop.first else _while)(builder, loop)
    outputs = dict(enumerate(found[:count])) | dict(zip(stacked, found[loop.count :], strict=True))
    for k, used, buffer in zip(joined, found[count::2], found[count + 1 :: 2]):
        type = node.outputs[k].tensor
        _bind_leading(builder, [type], used)
        outputs[k] = _first(Algebra(builder), buffer, type)
    return [outputs.get(k) for k in range(len(node.outputs))]


# -- values that are joined ---------------------------------------------------------------------------------------


def _joining(builder: Rewriter, node: Node, joined: Sequence[int], stacked: Sequence[int]) -> _Loop:
    """Return a recorded loop as one that carries, for each value that is joined, the rows in use and a buffer."""
    count, first, a = node.attrs["carried"], LOOPS[node.op.name], Algebra(builder)
    end, body = first + count, node.regions[-1]
    results = [*body.results[:count], *(body.results[k] for k in stacked)]
    short = Graph(body.name, body.params, tuple(results), body.effects)
    stacks = [node.outputs[k].tensor for k in stacked]
    loop = _Loop(
        node, first, list(node.inputs), count, [*node.regions[:-1], short],
        list(node.types[:count]), stacks,
    )  # fmt: skip
    if not joined:
        return loop
    types = [node.outputs[k].tensor for k in joined]
    empty = [v for t in types for v in (builder.constant(0, I64), a.zeros(_rows(t, 0)))]
    loop.inputs = [*node.inputs[:end], *empty, *node.inputs[end:]]
    loop.regions = [_passing(test, types, count) for test in node.regions[:-1]]
    loop.regions.append(_appending(node, joined, stacked, first))
    loop.types += [t for type in types for t in (scalar(I64), _rows(type, Symbol("rows")))]
    loop.count += len(empty)
    return loop


def _buffers(builder: Builder, types: Sequence[TensorType]) -> list[Value]:
    """Add params for the rows in use and the buffer of each type."""
    pairs = [(scalar(I64), _rows(type, Symbol("rows"))) for type in types]
    return [builder.param(type) for pair in pairs for type in pair]


def _passing(graph: Graph, types: Sequence[TensorType], count: int) -> Graph:
    """Return a test of a loop that takes buffers too."""
    test = Builder(graph.name)
    own = [test.param(p.type, p.node.attrs["name"]) for p in graph.params]
    more = _buffers(test, types)
    done = test.finish(inline(test, graph, own))
    return Graph(test.name, (*own[:count], *more, *own[count:]), done.results, done.effects)


def _appending(node: Node, joined: Sequence[int], stacked: Sequence[int], first: int) -> Graph:
    """Return the body of a loop with values to be joined written into buffers that it carries."""
    graph, end = node.regions[-1], first + node.attrs["carried"]
    body = Region(graph.name, Builder())
    own = [body.param(p.type, p.node.attrs["name"]) for p in graph.params]
    more = _buffers(body, [node.outputs[k].tensor for k in joined])
    results = inline(body, graph, own)
    carried = results[: end - first]
    for k, used, buffer in zip(joined, more[::2], more[1::2], strict=True):
        carried += _append(Algebra(body), used, buffer, results[k])
    done = body.finish([*carried, *(results[k] for k in stacked)])
    return Graph(body.name, (*own[:end], *more, *own[end:]), done.results, done.effects)


def _append(a: Algebra, used: Value, buffer: Value, value: Value) -> list[Value]:
    """Write a value behind the rows in use; return how many those are then, and the buffer."""
    needed = a.add(used, a.builder.size(value.shape[0]))
    roomy = _with_room(a.builder, buffer, needed)
    return [needed, a.update_dynamic_slice(roomy, value, used, axis=0, step=1)]


def _with_room(builder: Builder, buffer: Value, needed: Value) -> Value:
    """Return a buffer of the rows needed at least, of twice as many if it must grow.

    This is a loop of one trip at most and not a branch, since a loop leaves a buffer that need not grow where it is.
    """
    type, after = _rows(buffer.tensor, Symbol("rows")), _rows(buffer.tensor, Symbol("rows"))
    regions = [_is_short(type), _doubled(type)]
    attrs = {"carried": 1}
    return builder.node("while", [buffer, needed], attrs, regions=regions, types=[after]).output


def _is_short(type: TensorType) -> Graph:
    test = Builder("test")
    buffer, needed = test.param(type), test.param(scalar(I64), "needed")
    a = Algebra(test)
    return test.finish([a.less(a.dim_size(buffer, axis=0), needed)])


def _doubled(type: TensorType) -> Graph:
    body = Builder("grow")
    buffer, needed = body.param(type), body.param(scalar(I64), "needed")
    more = dim_max(dim_max(type.shape[0], body.as_dim(needed)), _FIRST_ROWS)
    a = Algebra(body)
    return body.finish([a.concatenate(buffer, a.zeros(_rows(type, more)), axis=0)])


# -- counted loops ------------------------------------------------------------------------------------------------


def _scan(builder: Rewriter, loop: _Loop) -> list[Value]:
    trips, a = loop.inputs[0], Algebra(builder)
    _bind_leading(builder, loop.stacks, trips)
    buffers = [a.zeros(type) for type in loop.stacks]
    inputs = [trips, *loop.carried, *buffers, *loop.shared]
    types = [*loop.types, *loop.stacks]
    return list(loop.made(builder, "scan", inputs, [_writing(loop, loop.stacks)], types))


def _bind_leading(builder: Builder, stacks: Sequence[TensorType], trips: Value) -> None:
    for type in stacks:
        dim = type.shape[0]
        if isinstance(dim, Dim) and symbols_of(dim) == [dim] and not builder.knows(dim):
            builder.bind(dim, trips)


def _writing(loop: _Loop, stacks: Sequence[TensorType]) -> Graph:
    """Return a body that carries buffers too, and writes a row of each at the trip number, which a `while` counts."""
    graph, count, counts = loop.regions[-1], loop.count, not loop.first
    body = Builder(graph.name)
    a = Algebra(body)
    own = [body.param(p.type, p.node.attrs["name"]) for p in graph.params]
    number = body.param(scalar(I64), "row") if counts else own[0]
    buffers = [body.param(type) for type in stacks]
    results = inline(body, graph, own)
    written = [
        a.update_dynamic_slice(buffer, a.reshaped(row, (1, *row.shape)), number, axis=0, step=1)
        for buffer, row in zip(buffers, results[count:], strict=True)
    ]
    more = [a.add(number, 1)] if counts else []
    done = body.finish([*results[:count], *more, *written])
    end = loop.first + count
    params = (*own[:end], *([number] if counts else []), *buffers, *own[end:])
    return Graph(body.name, params, done.results, done.effects)


# -- loops that do not know their number of trips -----------------------------------------------------------------


def _while(builder: Rewriter, loop: _Loop) -> list[Value]:
    a, count, stacks = Algebra(builder), loop.count, loop.stacks
    if not stacks:
        return list(loop.made(builder, "while", loop.inputs, loop.regions, loop.types))
    empty = [a.zeros(_rows(type, 0)) for type in stacks]
    room, after = Symbol("rows"), Symbol("rows")
    made = loop.made(
        builder, "while", [*loop.carried, builder.constant(0, I64), *empty, *loop.shared],
        [_testing(loop, room, False), _rounds(loop, room)],
        [*loop.types, scalar(I64), *(_rows(type, after) for type in stacks)],
    )  # fmt: skip
    _bind_leading(builder, stacks, made[count])
    buffers = zip(made[count + 1 :], stacks, strict=True)
    return [*made[:count], *(_first(a, buffer, type) for buffer, type in buffers)]


def _first(a: Algebra, buffer: Value, type: TensorType) -> Value:
    rank = len(type.shape)
    return a.slice(buffer, start=(0,) * rank, size=type.shape, step=(1,) * rank)


def _rows(type: TensorType, rows: DimLike) -> TensorType:
    return type.with_shape((rows, *type.shape[1:]))


def _testing(loop: _Loop, room: Dim, full: bool) -> Graph:
    """Return the loop's test; with `full`, one that also fails when the buffers are."""
    test, count = Builder("test"), loop.count
    a = Algebra(test)
    own = [test.param(p.type, p.node.attrs["name"]) for p in loop.regions[0].params]
    number = test.param(scalar(I64), "row")
    buffers = [test.param(_rows(type, room)) for type in loop.stacks]
    (go_on,) = inline(test, loop.regions[0], own)
    if full:
        go_on = a.logical_and(go_on, a.less(number, a.dim_size(buffers[0], axis=0)))
    done = test.finish([go_on])
    return Graph("test", (*own[:count], number, *buffers, *own[count:]), done.results, done.effects)


def _rounds(loop: _Loop, room: Dim) -> Graph:
    """Return the body of the outer loop: make the buffers longer, then run until they are full or the loop ends."""
    count, body = loop.count, Region("rounds", Builder())
    a = Algebra(body)
    own = [body.param(p.type, p.node.attrs["name"]) for p in loop.regions[1].params]
    number = body.param(scalar(I64), "row")
    buffers = [body.param(_rows(type, room)) for type in loop.stacks]
    more = dim_max(room, _FIRST_ROWS)
    longer = [a.concatenate(b, a.zeros(_rows(b.tensor, more)), axis=0) for b in buffers]
    inside = Symbol("rows")
    inner = _writing(loop, [_rows(type, inside) for type in loop.stacks])
    types = [*types_after(own[:count], loop.types), scalar(I64), *(b.type for b in longer)]
    made = body.node(
        "while", [*own[:count], number, *longer, *own[count:]], {"carried": len(types)},
        regions=[_testing(loop, inside, True), inner], types=types, loc=loop.old.loc,
    )  # fmt: skip
    done = body.finish(made.outputs)
    params = (*own[:count], number, *buffers, *own[count:])
    return Graph("rounds", params, done.results, done.effects)
