"""Derivatives of ops that move elements: cotangents go back where the elements came from."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Cotangent, Part, constant, derive, linear
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value

A = Algebra


def _broadcast(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [a.unbroadcast(gs[0], node.inputs[0].shape)]


def _reshape(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [a.reshaped(gs[0], node.inputs[0].shape)]


def _transpose(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    axes = node.attrs["axes"]
    return [a.permuted(gs[0], [axes.index(k) for k in range(len(axes))])]


def _slice(a: A, node: Node, gs: Sequence[Value]) -> list[Cotangent]:
    """An axis read with step 0 repeats one element: its cotangents are summed."""
    (x, *_), (g,) = node.inputs, gs
    step, size = node.attrs["step"], node.attrs["size"]
    still = tuple(k for k, s in enumerate(step) if s == 0 and size[k] != 1)
    if still:
        if any(size[k] == 0 for k in still):
            return [a.zeros(x.tensor)]
        g = a.expanded(a.sum(g, axes=still), still)
    moves = {"start": node.attrs["start"], "step": tuple(s or 1 for s in step)}
    return [Part("slice", x.tensor, g, moves)]


def _update_slice(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (_, v, *_), (g,) = node.inputs, gs
    start, step = node.attrs["start"], node.attrs["step"]
    kept = a.update_slice(g, a.zeros(v.tensor), start=start, step=step)
    return [kept, a.slice(g, start=start, size=v.shape, step=step)]


def _dynamic_slice(a: A, node: Node, gs: Sequence[Value]) -> list[Cotangent | None]:
    (x, start, *_), (g,) = node.inputs, gs
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    if step == 0:
        g, step = a.expanded(a.sum(g, axes=(axis,)), (axis,)), 1
    return [Part("dynamic_slice", x.tensor, g, {"axis": axis, "step": step}, (start,)), None]


def _update_dynamic(a: A, node: Node, gs: Sequence[Value]) -> list[Value | None]:
    (_, v, start, *_), (g,) = node.inputs, gs
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    kept = a.update_dynamic_slice(g, a.zeros(v.tensor), start, axis=axis, step=step)
    return [kept, a.dynamic_slice(g, start, axis=axis, size=v.shape[axis], step=step), None]


def _concatenate(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (g,), axis = gs, node.attrs["axis"]
    found: list[Value] = []
    at: DimLike = 0
    for x in node.data_inputs:
        start = tuple(at if k == axis else 0 for k in range(len(g.shape)))
        found.append(a.slice(g, start=start, size=x.shape, step=(1,) * len(g.shape)))
        at = at + x.shape[axis]
    return found


def _pad(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """What the border got: the cotangent with its inside taken out, summed."""
    (x, *_), (g,) = node.inputs, gs
    step = (1,) * len(g.shape)
    inner = a.slice(g, start=node.attrs["low"], size=x.shape, step=step)
    border = a.update_slice(g, a.zeros(x.tensor), start=node.attrs["low"], step=step)
    return [inner, a.sum(border, axes=tuple(range(len(g.shape))))]


derive("broadcast_to", linear(_broadcast, 0))
derive("reshape", linear(_reshape, 0))
derive("transpose", linear(_transpose, 0))
derive("slice", linear(_slice, 0))
derive("update_slice", linear(_update_slice, 0, 1))
derive("dynamic_slice", linear(_dynamic_slice, 0))
derive("update_dynamic_slice", linear(_update_dynamic, 0, 1))
derive("concatenate", linear(_concatenate))
derive("pad", linear(_pad, 0, 1))
derive("full", linear(lambda a, node, gs: [a.sum(gs[0], axes=tuple(range(len(gs[0].shape))))], 0))
derive("iota", constant("no inputs"))
derive("broadcast_dim", constant("a size"))
