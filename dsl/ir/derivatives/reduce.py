"""Derivatives of reductions and of running ones.

Where several elements are the largest, they share the derivative equally.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import Derivative, constant, derive, linear, through
from dsl.ir.graph import Node, Value
from dsl.ir.types import scalar

A = Algebra


def _back(a: A, g: Value, x: Value, axes: tuple[int, ...]) -> Value:
    """Spread a reduced value over the axes it was reduced along."""
    return a.to_shape(a.expanded(g, axes), x.shape)


derive("sum", linear(lambda a, node, gs: [_back(a, gs[0], node.inputs[0], node.attrs["axes"])], 0))


# -- products -----------------------------------------------------------------------------------------------------


def _others(a: A, node: Node) -> Value:
    """The product of all other elements, for each; without division, so that zeros are right to any order."""
    (x,), axes = node.inputs, node.attrs["axes"]
    rank = len(x.shape)
    kept = [k for k in range(rank) if k not in axes]
    order = [*kept, *axes]
    size: object = 1
    for k in axes:
        size = size * x.shape[k]
    flat = a.reshaped(a.permuted(x, order), [*(x.shape[k] for k in kept), size])  # type: ignore[list-item]
    found = a.multiply(_exclusive(a, flat, False), _exclusive(a, flat, True))
    moved = a.reshaped(found, [x.shape[k] for k in order])
    return a.permuted(moved, [order.index(k) for k in range(rank)])


def _flipped(a: A, x: Value, axis: int) -> Value:
    start = tuple(d - 1 if k == axis else 0 for k, d in enumerate(x.shape))
    step = tuple(-1 if k == axis else 1 for k in range(len(x.shape)))
    return a.slice(x, start=start, size=x.shape, step=step)


def _exclusive(a: A, x: Value, backward: bool) -> Value:
    """The product of the elements before each (behind each, if `backward`) along the last axis."""
    axis = len(x.shape) - 1
    if backward:
        return _flipped(a, _exclusive(a, _flipped(a, x, axis), False), axis)
    none = (0,) * len(x.shape)
    rest = a.slice(x, start=none, size=(*x.shape[:-1], x.shape[-1] - 1), step=(1,) * len(x.shape))
    first = a.spread(1, x.tensor.with_shape((*x.shape[:-1], 1)))
    return a.cumprod(a.concatenate(first, rest, axis=axis), axis=axis)


def _is_empty(x: Value) -> bool:
    return any(isinstance(dim, int) and dim == 0 for dim in x.shape)


def _prod_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (x,), axes = node.inputs, node.attrs["axes"]
    if _is_empty(x):
        return [a.zeros(x.tensor)]
    return [through(a, _back(a, gs[0], x, axes), _others(a, node)) if axes else gs[0]]


def _prod_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    (x,), axes = node.inputs, node.attrs["axes"]
    if _is_empty(x):
        return [a.zeros(node.output.tensor)]
    return [a.sum(a.multiply(ts[0], _others(a, node)), axes=axes) if axes else ts[0]]


derive("prod", Derivative(_prod_vjp, _prod_jvp))


# -- extrema ------------------------------------------------------------------------------------------------------


def _share(a: A, node: Node) -> Value:
    (x,), axes = node.inputs, node.attrs["axes"]
    one, zero = a.builder.constant(1, x.dtype), a.builder.constant(0, x.dtype)
    here = a.where(a.equal(x, _back(a, node.output, x, axes)), one, zero)
    return a.divide(here, _back(a, a.sum(here, axes=axes), x, axes))


def _extremum_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    return [through(a, _back(a, gs[0], node.inputs[0], node.attrs["axes"]), _share(a, node))]


def _extremum_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [a.sum(a.multiply(ts[0], _share(a, node)), axes=node.attrs["axes"])]


for _name in ("max", "min"):
    derive(_name, Derivative(_extremum_vjp, _extremum_jvp))
for _name in ("any", "all", "reduce_and", "reduce_or", "reduce_xor"):
    derive(_name, constant("true or false" if _name in ("any", "all") else "integers"))
for _name in ("argmax", "argmin"):
    derive(_name, constant("indices"))


# -- running ------------------------------------------------------------------------------------------------------


def _suffix_sum(a: A, x: Value, axis: int) -> Value:
    return _flipped(a, a.cumsum(_flipped(a, x, axis), axis=axis), axis)


derive("cumsum", linear(lambda a, node, gs: [_suffix_sum(a, gs[0], node.attrs["axis"])], 0))


def _recurrence(a: A, x: Value, g: Value, axis: int, backward: bool) -> Value:
    """s[k] = g[k] + x[k] s[k - 1] along an axis, from s[-1] = 0 on; `backward`, s[k] = g[k] + x[k] s[k + 1] from the end.

    A loop, since no formula without division does it in as many steps.
    """
    rows = x.tensor.with_shape(1 if k == axis else d for k, d in enumerate(x.shape))
    body = Builder("recurrence")
    types = (scalar(np.dtype(np.int64)), rows, x.type, x.type, x.type)
    params = [body.param(type) for type in types]
    region = body.finish(_one_more(Algebra(body), *params, axis=axis, backward=backward))
    inputs = (a.builder.size(x.shape[axis]), a.zeros(rows), a.zeros(x.tensor), x, g)
    loop = a.builder.node("scan", inputs, {"carried": 2}, regions=(region,), types=types[1:3])
    return loop.outputs[1]


def _one_more(
    a: A, trip: Value, last: Value, done: Value, x: Value, g: Value, *, axis: int, backward: bool
) -> tuple[Value, Value]:
    """One row of a recurrence: itself, and the rows so far with it among them."""
    at = a.subtract(a.subtract(a.dim_size(x, axis=axis), 1), trip) if backward else trip
    factor, term = (a.dynamic_slice(v, at, axis=axis, size=1) for v in (x, g))
    row = a.add(term, a.multiply(factor, last))
    return row, a.update_dynamic_slice(done, row, at, axis=axis)


def _shifted(a: A, x: Value, axis: int, by: int, filler: int) -> Value:
    """Move elements one place on (`by` 1) or back (-1); a number fills the place that falls free."""
    edge = x.tensor.with_shape(1 if k == axis else d for k, d in enumerate(x.shape))
    ends = (a.spread(filler, edge), x)
    longer = a.concatenate(*(ends if by > 0 else reversed(ends)), axis=axis)
    start = tuple(1 if k == axis and by < 0 else 0 for k in range(len(x.shape)))
    return a.slice(longer, start=start, size=x.shape, step=(1,) * len(x.shape))


def _cumprod_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """gx[k] = y[k - 1] s[k] with s[k] = g[k] + x[k + 1] s[k + 1]: no division, so zeros are right to any order."""
    (x,), (g,), axis = node.inputs, gs, node.attrs["axis"]
    if _is_empty(x):
        return [g]
    sums = _recurrence(a, _shifted(a, x, axis, -1, 0), g, axis, backward=True)
    return [a.multiply(_shifted(a, node.output, axis, 1, 1), sums)]


def _cumprod_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    """dy[k] = dx[k] y[k - 1] + x[k] dy[k - 1]."""
    (x,), (t,), axis = node.inputs, ts, node.attrs["axis"]
    if _is_empty(x):
        return [t]
    term = a.multiply(t, _shifted(a, node.output, axis, 1, 1))
    return [_recurrence(a, x, term, axis, backward=False)]


derive("cumprod", Derivative(_cumprod_vjp, _cumprod_jvp))


def _leaders(a: A, node: Node) -> tuple[Value, list[Value]]:
    """For each place, the index of the element that is the extremum so far: the first of equal ones."""
    (x,), axis = node.inputs, node.attrs["axis"]
    rank, i64 = len(x.shape), np.dtype(np.int64)
    rows = [
        a.reshaped(
            a.iota(size=x.shape[k], dtype=i64), [x.shape[k] if j == k else 1 for j in range(rank)]
        )
        for k in range(rank)
    ]
    y = node.output
    before = a.slice(y, start=(0,) * rank, step=(1,) * rank,
                     size=tuple(d - 1 if k == axis else d for k, d in enumerate(x.shape)))  # fmt: skip
    head = a.slice(y, start=(0,) * rank, step=(1,) * rank,
                   size=tuple(1 if k == axis else d for k, d in enumerate(x.shape)))  # fmt: skip
    changed = a.not_equal(y, a.concatenate(head, before, axis=axis))
    new = a.where(changed, a.to_shape(rows[axis], x.shape), a.builder.constant(0, i64))
    leader = a.cummax(new, axis=axis)
    return leader, [leader if k == axis else rows[k] for k in range(rank)]


def _cummax_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    (x,) = node.inputs
    if _is_empty(x):
        return [a.zeros(x.tensor)]
    _, at = _leaders(a, node)
    axes = tuple(range(len(x.shape)))
    return [a.scatter(a.zeros(x.tensor), gs[0], *at, axes=axes, mode="add")]


def _cummax_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    (x,) = node.inputs
    if _is_empty(x):
        return [a.zeros(x.tensor)]
    _, at = _leaders(a, node)
    return [a.gather(ts[0], *at, axes=tuple(range(len(x.shape))))]


for _name in ("cummax", "cummin"):
    derive(_name, Derivative(_cummax_vjp, _cummax_jvp))
