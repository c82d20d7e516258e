"""Derivatives of gathers, scatters and sorts."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import Cotangent, Derivative, Part, constant, derive, linear
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, Shape, TensorType, scalar, size_of

A = Algebra


def _gather(a: A, node: Node, gs: Sequence[Value]) -> list[Cotangent | None]:
    x, *indices = node.inputs
    return [
        Part("gather", x.tensor, gs[0], {"axes": node.attrs["axes"]}, tuple(indices)),
        *(None for _ in indices),
    ]


def _order(
    a: A, v: Value, indices: Sequence[Value], type: TensorType, axes: tuple[int, ...]
) -> tuple[Value, Value]:
    """Number the elements of `v` in C order; say for each, and for each element of x, which one was written last."""
    count = a.reshaped(a.iota(size=size_of(v.shape), dtype=I64), v.shape)
    never = a.spread(-1, type.with_dtype(I64))
    last = a.scatter(never, count, *indices, axes=axes, mode="max")
    return a.equal(a.gather(last, *indices, axes=axes), count), a.equal(last, -1)


def _scatter_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Value | None]:
    (x, v, *indices), (g,), axes = node.inputs, gs, node.attrs["axes"]
    rest: list[Value | None] = [None] * len(indices)
    mode = node.attrs["mode"]
    zero = a.builder.constant(0, g.dtype)
    taken = a.gather(g, *indices, axes=axes)
    if mode == "add":
        return [g, taken, *rest]
    if mode == "update" and _are_distinct(indices):
        # What it costs to write to one place in a loop must not depend on the size of x.
        return [a.scatter(g, a.zeros(v.tensor), *indices, axes=axes, mode=mode), taken, *rest]
    if mode == "update":
        wrote, untouched = _order(a, v, indices, x.tensor, axes)
        return [a.where(untouched, g, zero), a.where(wrote, taken, zero), *rest]
    if mode == "multiply":
        return [a.multiply(g, _all(a, node)), a.multiply(taken, _others(a, node)), *rest]
    share, kept = _extremum(a, node)
    return [a.multiply(g, kept), a.multiply(taken, share), *rest]


def _are_distinct(indices: Sequence[Value]) -> bool:
    """Tell whether each place is surely named once: it is the only one, or they are those where a mask is true."""
    if not any(index.shape for index in indices):
        return True
    found = indices[0].node
    return found.op.name == "nonzero" and found.outputs == tuple(indices)


def _all(a: A, node: Node) -> Value:
    """The product of what was written to each place."""
    (x, v, *indices), axes = node.inputs, node.attrs["axes"]
    return a.scatter(a.spread(1, x.tensor), v, *indices, axes=axes, mode="multiply")


def _others(a: A, node: Node) -> Value:
    """Of x * v1 * v2 …, for each v, the product of the others: no division, so zeros are right to any order."""
    (x, v, *_), axes = node.data_inputs, node.attrs["axes"]
    if 0 in v.shape:
        return v
    rest = [k for k in range(len(x.shape)) if k not in axes]
    places = _flat_places(a, node)
    rows = a.reshaped(v, [places.shape[0], *(x.shape[k] for k in rest)])
    count = size_of(tuple(x.shape[k] for k in axes))
    start = a.reshaped(a.permuted(x, [*axes, *rest]), [count, *rows.shape[1:]])
    before = _products(a, start, rows, places, backward=False)
    behind = _products(a, a.spread(1, start.tensor), rows, places, backward=True)
    return a.reshaped(a.multiply(before, behind), v.shape)


def _flat_places(a: A, node: Node) -> Value:
    """Return a vector of where each writer writes, in C order of the indexed axes."""
    (x, v, *indices), axes = node.data_inputs, node.attrs["axes"]
    shape = v.shape[: len(v.shape) - len(x.shape) + len(axes)]
    flat = a.zeros(TensorType(I64, shape))
    for axis, index in zip(axes, indices):
        size = a.builder.size(x.shape[axis])
        signed = a.as_dtype(index, I64)
        counted = a.where(a.less(signed, 0), a.add(signed, size), signed)
        flat = a.to_shape(a.add(a.multiply(flat, size), counted), shape)
    return a.reshaped(flat, [size_of(shape)])


def _products(a: A, start: Value, rows: Value, places: Value, *, backward: bool) -> Value:
    """For each row, the row of `start` at its place times all rows for that place that come before (behind) it."""
    body = Builder("products")
    types = (scalar(I64), start.type, rows.type, rows.type, places.type)
    trip, so_far, done, all_rows, at_all = (body.param(type) for type in types)
    b = Algebra(body)
    k = b.subtract(b.subtract(b.dim_size(all_rows, axis=0), 1), trip) if backward else trip
    place = b.reshape(b.dynamic_slice(at_all, k, axis=0, size=1), shape=())
    row = b.dynamic_slice(so_far, place, axis=0, size=1)
    grown = b.multiply(row, b.dynamic_slice(all_rows, k, axis=0, size=1))
    region = body.finish(
        [
            b.update_dynamic_slice(so_far, grown, place, axis=0),
            b.update_dynamic_slice(done, row, k, axis=0),
        ]
    )
    inputs = (a.builder.size(rows.shape[0]), start, a.zeros(rows.tensor), rows, places)
    loop = a.builder.node("scan", inputs, {"carried": 2}, regions=(region,), types=types[1:3])
    return loop.outputs[1]


def _extremum(a: A, node: Node) -> tuple[Value, Value]:
    """The parts that writers and the old contents have in a minimum or maximum: equal ones share."""
    (x, v, *indices), axes, y = node.inputs, node.attrs["axes"], node.output
    one, zero = a.builder.constant(1, x.dtype), a.builder.constant(0, x.dtype)
    won = a.where(a.equal(v, a.gather(y, *indices, axes=axes)), one, zero)
    stayed = a.where(a.equal(x, y), one, zero)
    winners = a.maximum(a.scatter(stayed, won, *indices, axes=axes, mode="add"), 1)
    return a.divide(won, a.gather(winners, *indices, axes=axes)), a.divide(stayed, winners)


def _scatter_jvp(a: A, node: Node, ts: Sequence[Value | None]) -> list[Value]:
    (x, v, *indices), axes, mode = node.inputs, node.attrs["axes"], node.attrs["mode"]
    tx = a.zeros(x.tensor) if ts[0] is None else ts[0]
    tv = a.zeros(v.tensor) if ts[1] is None else ts[1]
    if mode in ("add", "update"):
        return [a.scatter(tx, tv, *indices, axes=axes, mode=mode)]
    if mode == "multiply":
        dx, dv = _all(a, node), _others(a, node)
    else:
        dv, dx = _extremum(a, node)
    return [a.scatter(a.multiply(tx, dx), a.multiply(tv, dv), *indices, axes=axes, mode="add")]


derive("gather", linear(_gather, 0))
derive("scatter", Derivative(_scatter_vjp, _scatter_jvp))


# -- order --------------------------------------------------------------------------------------------------------


def _positions(a: A, node: Node) -> list[Value]:
    """Where each element of a sorted array came from: an index for every axis."""
    (x,), axis = node.inputs, node.attrs["axis"]
    rank = len(x.shape)
    if node.attrs.get("descending"):
        flip = {"start": tuple(d - 1 if k == axis else 0 for k, d in enumerate(x.shape)), "size": x.shape,
                "step": tuple(-1 if k == axis else 1 for k in range(rank))}  # fmt: skip
        found = a.slice(a.argsort(a.slice(x, **flip), axis=axis, stable=True), **flip)
        source = a.subtract(a.subtract(a.builder.size(x.shape[axis]), 1), found)
    else:
        source = a.argsort(x, axis=axis, stable=node.attrs["stable"])
    return _everywhere(a, x.shape, axis, source)


def _everywhere(a: A, shape: Shape, axis: int, source: Value) -> list[Value]:
    """Return indices along an axis with those of where they are along the others."""
    rank = len(shape)
    rows = [
        a.reshaped(
            a.iota(size=shape[k], dtype=I64), [shape[k] if j == k else 1 for j in range(rank)]
        )
        for k in range(rank)
    ]
    return [source if k == axis else rows[k] for k in range(rank)]


def _sort_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Cotangent]:
    axes = tuple(range(len(node.inputs[0].shape)))
    return [
        Part("gather", node.inputs[0].tensor, gs[0], {"axes": axes}, tuple(_positions(a, node)))
    ]


def _sort_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [a.gather(ts[0], *_positions(a, node), axes=tuple(range(len(ts[0].shape))))]


derive("sort", Derivative(_sort_vjp, _sort_jvp))


def _wanted(a: A, node: Node) -> list[Value]:
    """Where each of the chosen elements came from: an index for every axis."""
    (x, places), axis = node.inputs, node.attrs["axis"]
    rank = len(x.shape)
    order = a.argsort(x, axis=axis, stable=False)
    last = a.subtract(a.builder.size(x.shape[axis]), 1)
    found = a.gather(order, a.minimum(a.maximum(places, 0), last), axes=(axis,))
    axes = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return _everywhere(a, x.shape, axis, a.transpose(found, axes=axes))


def _nth_element_vjp(a: A, node: Node, gs: Sequence[Value]) -> list[Cotangent | None]:
    axes = tuple(range(len(node.inputs[0].shape)))
    return [
        Part("gather", node.inputs[0].tensor, gs[0], {"axes": axes}, tuple(_wanted(a, node))),
        None,
    ]


def _nth_element_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value]:
    return [a.gather(ts[0], *_wanted(a, node), axes=tuple(range(len(ts[0].shape))))]


derive("nth_element", Derivative(_nth_element_vjp, _nth_element_jvp))


def _unique_vjp(a: A, node: Node, gs: Sequence[Value | None]) -> list[Cotangent | None]:
    x, index = node.inputs[0], node.outputs[1]
    return [None if gs[0] is None else Part("gather", x.tensor, gs[0], {"axes": (0,)}, (index,))]


def _unique_jvp(a: A, node: Node, ts: Sequence[Value]) -> list[Value | None]:
    return [a.gather(ts[0], node.outputs[1], axes=(0,)), None, None, None]


derive("unique", Derivative(_unique_vjp, _unique_jvp))
for _name in ("argsort", "searchsorted", "nonzero"):
    derive(_name, constant("indices"))
