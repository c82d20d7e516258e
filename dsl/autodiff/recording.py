"""Spell out what autodiff made: recorded loops become loops that write into buffers, checkpoints become their regions.

The buffers of a `recording_scan` have as many rows as it makes trips. A `recording_while` does not know how many those
will be: it runs in rounds, each in a buffer twice as long as the one before, into which the rows so far are copied.

    %0:2 = recording_scan(%n, %x) {carried=1}            %0 = full(0.0) {shape=(n,)}
      @body(%i, %x) { sin(%x); return %0, %x }    ->     %1:2 = scan(%n, %x, %0) {carried=2}
                                                           @body(%i, %x, %b) { sin(%x); update_dynamic_slice(%b, %x, %i) … }
"""

from __future__ import annotations

from collections.abc import Sequence

from dsl.autodiff.flow import CUSTOM
from dsl.autodiff.region import Region, inline
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, Symbol, dim_max, symbols_of
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import get_op
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import I64, TensorType, ValueType, scalar

__all__ = ["spell_out"]

_FIRST_ROWS = 64


def spell_out(graph: Graph) -> Graph:
    """Return the graph without recorded loops and checkpoints."""
    return rebuild(graph, _rewrite)


def _rewrite(builder: Rewriter, node: Node) -> Sequence[Value | None] | None:
    if node.op.name in ("checkpoint", *CUSTOM):
        results, effects = builder.inline(node.regions[0], node.inputs, node.controls)
        builder.stand_in(node, effects or node.controls)
        return results
    if node.op.name == "stop_gradient":
        return node.inputs
    if node.op.name == "recording_scan":
        return _scan(builder, node)
    return _while(builder, node) if node.op.name == "recording_while" else None


def _is_read(builder: Rewriter, count: int) -> list[bool]:
    """Tell which stacks of the node at hand something reads."""
    graph, node = builder.graph, builder.origin
    return [value in graph.results or value in builder.read for value in node.outputs[count:]]


def _made(builder: Rewriter, old: Node, op: str, inputs: Sequence[Value], carried: int,
          regions: Sequence[Graph], types: Sequence[ValueType]) -> Node:  # fmt: skip
    made = Node(
        get_op(op), tuple(inputs), {"carried": carried}, tuple(types), tuple(regions),
        old.controls, loc=old.loc,
    )  # fmt: skip
    builder.stand_in(old, [made])
    return builder.adopt(made)


def _scan(builder: Rewriter, node: Node) -> list[Value | None]:
    count, a = node.attrs["carried"], Algebra(builder)
    read = _is_read(builder, count)
    stacks = [v.tensor for v, on in zip(node.outputs[count:], read) if on]
    trips, carried, shared = node.inputs[0], node.inputs[1 : 1 + count], node.inputs[1 + count :]
    _bind_leading(builder, stacks, trips)
    buffers = [a.zeros(type) for type in stacks]
    body = _writing(node.regions[0], count, read, stacks, 1)
    made = _made(
        builder, node, "scan", [trips, *carried, *buffers, *shared], count + len(stacks), [body],
        [*node.types[:count], *stacks],
    )  # fmt: skip
    return _delivered(made.outputs[:count], made.outputs[count:], read)


def _bind_leading(builder: Builder, stacks: Sequence[TensorType], trips: Value) -> None:
    for type in stacks:
        dim = type.shape[0]
        if isinstance(dim, Dim) and symbols_of(dim) == [dim] and not builder.knows(dim):
            builder.bind(dim, trips)


def _delivered(
    carried: Sequence[Value], stacks: Sequence[Value], read: Sequence[bool]
) -> list[Value | None]:
    left = iter(stacks)
    return [*carried, *(next(left) if on else None for on in read)]


def _writing(
    graph: Graph,
    count: int,
    read: Sequence[bool],
    stacks: Sequence[TensorType],
    first: int,
    counter: bool = False,
) -> Graph:
    """Return a body that carries buffers too, and writes a row of each at the trip number."""
    body = Builder(graph.name)
    a = Algebra(body)
    own = [body.param(p.type, p.node.attrs["name"]) for p in graph.params]
    number = body.param(scalar(I64), "row") if counter else own[0]
    buffers = [body.param(type) for type in stacks]
    results = inline(body, graph, own)
    rows = [row for row, on in zip(results[count:], read) if on]
    written = [
        a.update_dynamic_slice(buffer, a.reshaped(row, (1, *row.shape)), number, axis=0, step=1)
        for buffer, row in zip(buffers, rows, strict=True)
    ]
    more = [a.add(number, 1)] if counter else []
    done = body.finish([*results[:count], *more, *written])
    end = first + count
    params = (*own[:end], *([number] if counter else []), *buffers, *own[end:])
    return Graph(body.name, params, done.results, done.effects)


# -- loops that do not know their number of trips -----------------------------------------------------------------


def _while(builder: Rewriter, node: Node) -> list[Value | None]:
    count, a = node.attrs["carried"], Algebra(builder)
    read = _is_read(builder, count)
    if not any(read):
        return [*_plain(builder, node, count), *(None for _ in read)]
    stacks = [v.tensor for v, on in zip(node.outputs[count:], read) if on]
    carried, shared = node.inputs[:count], node.inputs[count:]
    empty = [a.zeros(_rows(type, 0)) for type in stacks]
    room, after = Symbol("rows"), Symbol("rows")
    outer = _rounds(node, read, stacks, room)
    made = _made(
        builder, node, "while", [*carried, builder.constant(0, I64), *empty, *shared],
        count + 1 + len(stacks), [_testing(node, stacks, room, False), outer],
        [*node.types[:count], scalar(I64), *(_rows(type, after) for type in stacks)],
    )  # fmt: skip
    number, buffers = made.outputs[count], made.outputs[count + 1 :]
    _bind_leading(builder, stacks, number)
    rows = [
        _first(a, buffer, _rows(type, type.shape[0]))
        for buffer, type in zip(buffers, stacks, strict=True)
    ]
    return _delivered(made.outputs[:count], rows, read)


def _first(a: Algebra, buffer: Value, type: TensorType) -> Value:
    rank = len(type.shape)
    return a.slice(buffer, start=(0,) * rank, size=type.shape, step=(1,) * rank)  # type: ignore[no-any-return]


def _plain(builder: Rewriter, node: Node, count: int) -> tuple[Value, ...]:
    test, body = node.regions
    short = Graph(body.name, body.params, body.results[:count], body.effects)
    return _made(
        builder, node, "while", node.inputs, count, [test, short], node.types[:count]
    ).outputs


def _rows(type: TensorType, rows: DimLike) -> TensorType:
    return type.with_shape((rows, *type.shape[1:]))


def _after(param: Value, result: object) -> ValueType:
    """Return the type of a carried value after some trips: sizes that the loop changes are new ones."""
    if not isinstance(result, TensorType):
        return param.type
    dims = (
        d if d == after else Symbol("d") for d, after in zip(param.shape, result.shape, strict=True)
    )
    return param.tensor.with_shape(dims)


def _testing(node: Node, stacks: Sequence[TensorType], room: Dim, full: bool) -> Graph:
    """Return the loop's test; with `full`, one that also fails when the buffers are."""
    test, count = Builder("test"), node.attrs["carried"]
    a = Algebra(test)
    own = [test.param(p.type, p.node.attrs["name"]) for p in node.regions[0].params]
    number = test.param(scalar(I64), "row")
    buffers = [test.param(_rows(type, room)) for type in stacks]
    (go_on,) = inline(test, node.regions[0], own)
    if full:
        go_on = a.logical_and(go_on, a.less(number, a.dim_size(buffers[0], axis=0)))
    done = test.finish([go_on])
    return Graph("test", (*own[:count], number, *buffers, *own[count:]), done.results, done.effects)


def _rounds(node: Node, read: Sequence[bool], stacks: Sequence[TensorType], room: Dim) -> Graph:
    """Return the body of the outer loop: make the buffers longer, then run until they are full or the loop ends."""
    count, body = node.attrs["carried"], Region("rounds", Builder())
    a = Algebra(body)
    own = [body.param(p.type, p.node.attrs["name"]) for p in node.regions[1].params]
    number = body.param(scalar(I64), "row")
    buffers = [body.param(_rows(type, room)) for type in stacks]
    more = dim_max(room, _FIRST_ROWS)
    longer = [a.concatenate(b, a.zeros(_rows(b.tensor, more)), axis=0) for b in buffers]
    inside = Symbol("rows")
    typed = [_rows(type, inside) for type in stacks]
    inner = _writing(node.regions[1], count, read, typed, 0, counter=True)
    types = [*map(_after, own[:count], node.types), scalar(I64), *(b.type for b in longer)]
    made = body.node(
        "while", [*own[:count], number, *longer, *own[count:]], {"carried": len(types)},
        regions=[_testing(node, typed, inside, True), inner], types=types, loc=node.loc,
    )  # fmt: skip
    done = body.finish(made.outputs)
    params = (*own[:count], number, *buffers, *own[count:])
    return Graph("rounds", params, done.results, done.effects)
