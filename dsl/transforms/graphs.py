"""Gradients of graphs, hand-written ones included: `gradient_graph(graph)`."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.reverse import Reverse
from dsl.errors import GradientError
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.facts import is_flat
from dsl.ir.graph import Graph
from dsl.passes.raise_control import raise_control

__all__ = ["gradient_graph"]


def gradient_graph(graph: Graph, wrt: Sequence[int] | None = None) -> Graph:
    """Return a graph with the results of another and, after them, the gradient of the first with respect to its params.

    The first result is a scalar; `wrt` numbers the params, by default all floats among them. A graph in the flat spelling
    (Switch, Merge, Enter, Exit, NextIteration) is raised to structured control flow first.
    """
    structured = raise_control(graph) if is_flat(graph) else graph
    first = structured.results[0]
    if first.shape or not carries(first):
        raise GradientError(
            f"the gradient is of a graph whose first result is one number, not {first.type}"
        )
    chosen = (
        [k for k, p in enumerate(structured.params) if carries(p)] if wrt is None else list(wrt)
    )
    builder = Builder(structured.name)
    params = [builder.param(p.type, p.node.attrs["name"]) for p in structured.params]
    wanted = [k == 0 for k in range(len(structured.results))]
    reverse = Reverse(
        structured, builder, params, [k in chosen for k in range(len(params))], wanted
    )
    seeds = [builder.constant(1, first.dtype) if on else None for on in wanted]
    found, a = reverse.pull(builder, seeds), Algebra(builder)
    gs = [combine(a, found[k]) if found[k] else a.zeros(params[k].tensor) for k in chosen]
    return builder.finish([*reverse.outputs, *gs])
