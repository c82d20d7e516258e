"""Loops in segments, so that going back through a loop of n trips keeps about sqrt(n) states.

The loop becomes two: the outer one runs over segments, the inner one over the trips of one. Going back, only the state at
the beginning of each segment has been kept, and the trips of one segment at a time are run again. A counted loop has
sqrt(n) segments of equal length; a `while`, which does not know its n, has segments of 1, 2, 3 … trips.
"""

from __future__ import annotations

import numpy as np

from dsl.autodiff.flow import LOOPS
from dsl.autodiff.region import Region, inline, types_after
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import I64, scalar

__all__ = ["segmented"]

F64 = np.dtype(np.float64)


def segmented(node: Node) -> Graph:
    """Return a graph that means what a `while` or `scan` node does, with the inner loop marked to be run again."""
    builder = Builder("segments")
    args = [builder.param(value.type) for value in node.inputs]
    results = _scan(builder, node, args) if node.op.name == "scan" else _while(builder, node, args)
    return builder.finish(results)


def _checkpoint(builder: Builder, graph: Graph, args: list[Value]) -> tuple[Value, ...]:
    types = [value.type for value in graph.results]
    return builder.node("checkpoint", args, {"whole": True}, regions=[graph], types=types).outputs


def _params(builder: Builder, node: Node) -> list[Value]:
    """Add params for the carried values and invariants; sizes that the loop changes have names of their own."""
    first, count = LOOPS[node.op.name], node.attrs["carried"]
    params = node.regions[-1].params[first:]
    types = types_after(params[:count], node.types)
    return [builder.param(type) for type in (*types, *(p.type for p in params[count:]))]


def _scan(builder: Builder, node: Node, args: list[Value]) -> tuple[Value, ...]:
    a, count = Algebra(builder), node.attrs["carried"]
    trips, rest = args[0], args[1:]
    root = a.ceil(a.sqrt(a.cast(trips, dtype=F64)))
    length = a.maximum(a.cast(root, dtype=I64), 1)
    number = a.floor_divide(a.subtract(a.add(trips, length), 1), length)
    outer = Region("segment", builder)
    b = Algebra(outer)
    segment = outer.param(scalar(I64), "segment")
    own = _params(outer, node)
    total, size = outer.param(scalar(I64), "trips"), outer.param(scalar(I64), "length")
    start = b.multiply(segment, size)
    here = b.minimum(size, b.subtract(total, start))
    done = outer.finish(_checkpoint(outer, _segment_of_scan(node), [here, start, *own]))
    graph = Graph("segment", (segment, *own, total, size), done.results, done.effects)
    made = builder.node(
        "scan",
        [number, *rest, trips, length],
        {"carried": count},
        regions=[graph],
        types=node.types,
        loc=node.loc,
    )
    return made.outputs


def _segment_of_scan(node: Node) -> Graph:
    """The trips of one segment: (how many, the first, …carried, …invariants) -> carried."""
    graph, count = node.regions[0], node.attrs["carried"]
    builder = Builder("trips")
    here, start = builder.param(scalar(I64), "here"), builder.param(scalar(I64), "start")
    own = _params(builder, node)
    inner = Region("body", builder)
    params = [inner.param(p.type) for p in graph.params]
    first = inner.param(scalar(I64), "start")
    number = Algebra(inner).add(params[0], first)
    done = inner.finish(inline(inner, graph, [number, *params[1:]]))
    body = Graph("body", (*params, first), done.results, done.effects)
    made = builder.node(
        "scan",
        [here, *own, start],
        {"carried": count},
        regions=[body],
        types=types_after(own[:count], node.types),
        loc=node.loc,
    )
    return builder.finish(made.outputs)


def _while(builder: Builder, node: Node, args: list[Value]) -> tuple[Value, ...]:
    test, count = node.regions[0], node.attrs["carried"]
    outer = Region("segment", builder)
    own = _params(outer, node)
    length = outer.param(scalar(I64), "length")
    ended = _checkpoint(outer, _segment_of_while(node), [length, *own])
    done = outer.finish([*ended, Algebra(outer).add(length, 1)])
    graph = Graph("segment", (*own[:count], length, *own[count:]), done.results, done.effects)
    asking = Builder("test")
    params = [asking.param(p.type) for p in test.params]
    extra = asking.param(scalar(I64), "length")
    asked = asking.finish(inline(asking, test, params))
    tested = Graph("test", (*params[:count], extra, *params[count:]), asked.results, asked.effects)
    made = builder.node(
        "while", [*args[:count], builder.constant(1, I64), *args[count:]], {"carried": count + 1},
        regions=[tested, graph], types=[*node.types, scalar(I64)], loc=node.loc,
    )  # fmt: skip
    return made.outputs[:count]


def _segment_of_while(node: Node) -> Graph:
    """At most `length` trips: (length, …carried, …invariants) -> carried."""
    test, body = node.regions
    count = node.attrs["carried"]
    builder = Builder("trips")
    length = builder.param(scalar(I64), "length")
    own = _params(builder, node)
    asking = Builder("test")
    params = [asking.param(p.type) for p in test.params]
    number, most = asking.param(scalar(I64), "trip"), asking.param(scalar(I64), "length")
    (go_on,) = inline(asking, test, params)
    a = Algebra(asking)
    asked = asking.finish([a.logical_and(go_on, a.less(number, most))])
    tested = Graph(
        "test", (*params[:count], number, *params[count:], most), asked.results, asked.effects
    )
    inner = Builder("body")
    params = [inner.param(p.type) for p in body.params]
    number, most = inner.param(scalar(I64), "trip"), inner.param(scalar(I64), "length")
    done = inner.finish([*inline(inner, body, params), Algebra(inner).add(number, 1)])
    step = Graph(
        "body", (*params[:count], number, *params[count:], most), done.results, done.effects
    )
    types = [*types_after(own[:count], node.types), scalar(I64)]
    made = builder.node(
        "while", [*own[:count], builder.constant(0, I64), *own[count:], length], {"carried": count + 1},
        regions=[tested, step], types=types, loc=node.loc,
    )  # fmt: skip
    return builder.finish(made.outputs[:count])
