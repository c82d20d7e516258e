"""Graphs of derivatives, and what makes them right.

`forward(graph)` takes the params of a graph and a tangent for each that has one, and returns the tangents of the results;
`backward(graph)` takes params and a cotangent for each result, and returns those of the params. `check` compares forward
mode with central differences and reverse mode with forward mode, by `Re sum(g * dy) = Re sum(gx * dx)`; for the second
order it does the same with these two graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.forward import push
from dsl.autodiff.reverse import Reverse
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Value
from dsl.ir.interpret import interpret
from dsl.ir.registry import Op, get_op
from dsl.ir.types import TensorType
from dsl.ir.verify import verify

Arrays = Sequence[np.ndarray]


# -- graphs -------------------------------------------------------------------------------------------------------


def types_of(arrays: Arrays) -> list[TensorType]:
    return [TensorType(x.dtype, x.shape) for x in arrays]


def one_node(op: Op | str, types: Iterable[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """Return a graph of one op, with the results that have derivatives."""
    builder = Builder()
    record = get_op(op) if isinstance(op, str) else op
    made = builder.node(record, map(builder.param, types), attrs)
    return builder.finish([v for v in made.outputs if carries(v)])


def forward(graph: Graph) -> Graph:
    builder = Builder()
    params = [builder.param(p.type) for p in graph.params]
    tangents = [builder.param(p.type) if carries(p) else None for p in graph.params]
    outputs, found = push(graph, builder, params, tangents, [True] * len(graph.results))
    return _finished(builder, found, outputs)


def backward(graph: Graph) -> Graph:
    builder = Builder()
    params = [builder.param(p.type) for p in graph.params]
    cotangents = [builder.param(r.type) for r in graph.results]
    active = [carries(p) for p in params]
    walk = Reverse(graph, builder, params, active, [True] * len(cotangents))
    found = walk.pull(builder, cotangents)
    a = Algebra(builder)
    sums = [combine(a, parts) if parts else None for parts, on in zip(found, active) if on]
    return _finished(builder, sums, [p for p, on in zip(params, active) if on])


def _finished(builder: Builder, found: Sequence[Value | None], like: Sequence[Value]) -> Graph:
    a = Algebra(builder)
    results = [a.zeros(v.tensor) if x is None else x for x, v in zip(found, like, strict=True)]
    assert [x.type for x in results] == [v.type for v in like]
    graph = builder.finish(results)
    verify(graph)
    return graph


# -- numbers ------------------------------------------------------------------------------------------------------


def has_tangent(x: np.ndarray) -> bool:
    return x.dtype.kind in "fc"


def directions(rng: np.random.Generator, arrays: Arrays) -> list[np.ndarray]:
    """Return random arrays like those that have tangents."""
    parts = [
        rng.uniform(-1, 1, x.shape) + (x.dtype.kind == "c") * 1j * rng.uniform(-1, 1, x.shape)
        for x in arrays
        if has_tangent(x)
    ]
    return [
        np.asarray(v if x.dtype.kind == "c" else v.real).astype(x.dtype)
        for v, x in zip(parts, filter(has_tangent, arrays))
    ]


def pairing(xs: Arrays, ys: Arrays) -> float:
    return sum(float(np.sum(x * y).real) for x, y in zip(xs, ys, strict=True))


def differences(graph: Graph, args: Arrays, tangents: Arrays, step: float = 1e-6) -> Arrays:
    def at(s: float) -> Arrays:
        moves = iter(tangents)
        return interpret(graph, [x + s * next(moves) if has_tangent(x) else x for x in args])

    return [(high - low) / (2 * step) for high, low in zip(at(step), at(-step), strict=True)]


def check(graph: Graph, args: Arrays, order: int = 2) -> None:
    """Check both modes at a point in a random direction, and for a higher `order` those of both modes' graphs."""
    rng = np.random.default_rng(1)
    tangents, along, back = directions(rng, args), forward(graph), backward(graph)
    moved = interpret(along, [*args, *tangents])
    for found, slope in zip(moved, differences(graph, args, tangents), strict=True):
        atol = 2e-6 * (1 + np.abs(slope).max(initial=0))
        np.testing.assert_allclose(found, slope, rtol=2e-6, atol=atol)
    cotangents = directions(rng, moved)
    pulled = interpret(back, [*args, *cotangents])
    expected = pairing(cotangents, moved)
    np.testing.assert_allclose(pairing(pulled, tangents), expected, rtol=1e-9, atol=1e-9)
    if order > 1:
        check(along, [*args, *tangents], order - 1)
        check(back, [*args, *cotangents], order - 1)


def gradient(op: str, args: Arrays, *cotangents: np.ndarray, **attrs: Any) -> Arrays:
    """Return what reverse mode of one op gives, having checked that forward mode gives the same."""
    graph = one_node(op, types_of(args), attrs)
    pulled = interpret(backward(graph), [*args, *cotangents])
    tangents = directions(np.random.default_rng(2), args)
    moved = interpret(forward(graph), [*args, *tangents])
    np.testing.assert_allclose(pairing(pulled, tangents), pairing(cotangents, moved), atol=1e-12)
    return pulled
