"""Gradients reduced over the ranks while others are still being computed.

The leaves are sorted by how much must be computed before them, put together to buckets of one dtype, and the reduction of a
bucket begins when its gradients are there. Only the last thing that needs them waits. The rows of a `Rows` are gathered: those of
all ranks one behind the other are their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import lift, read, wrap
from dsl.frontend.trees import unflatten
from dsl.ir.communicator import at_location, communicator
from dsl.ir.graph import Graph, Value
from dsl.ir.types import I64, size_of
from dsl.optim.leaves import flatten_gradients
from dsl.optim.rows import Rows
from dsl.parallel.collectives import allgather, size

__all__ = ["BUCKET", "reduce_gradients"]

BUCKET = 2 << 20
"""Bytes of a bucket: large enough for MPI's bandwidth, small enough that the first begins early."""


def reduce_gradients(grads: Any, op: str = "mean", bucket_bytes: int = BUCKET) -> Any:
    """Return a tree of gradients averaged, or reduced otherwise, over the ranks.

    In a traced function the reductions go on while the program computes other gradients; elsewhere, beside one another.
    Gradients that are `dsl.optim.Rows` can be summed and averaged, and name equally many rows on each rank.

    >>> reduce_gradients({"w": np.array([1.0, 2.0])})  # of one rank
    {'w': array([1., 2.])}
    """
    leaves, structure = flatten_gradients(grads)
    if size() == 1 or not leaves:
        return grads
    dense = iter(
        _reduced([leaf for leaf in leaves if not isinstance(leaf, Rows)], op, bucket_bytes)
    )
    found = [_gathered(leaf, op) if isinstance(leaf, Rows) else next(dense) for leaf in leaves]
    return unflatten(structure, found)


def _reduced(leaves: list[Any], op: str, limit: int) -> list[Any]:
    if not leaves:
        return []
    if current_trace() is None:
        with at_location(here()):
            return _reduce_arrays([np.asarray(leaf) for leaf in leaves], op, limit)
    values = [read(lift(leaf)) for leaf in leaves]
    return [wrap(value) for value in _reduce_values(values, op, limit)]


def _gathered(rows: Rows, op: str) -> Rows:
    """Return the sum or the mean of all ranks' rows: those of each, one behind the other."""
    if op not in ("sum", "mean"):
        raise UnsupportedError(
            f"reduce_gradients: the {op} of gradients that are rows", location=here(),
            remedy="reduce their arrays: `rows.dense()`",
        )  # fmt: skip
    indices, values = allgather(rows.indices), allgather(rows.values)
    values = values.reshape(-1, *values.shape[2:])
    values = values if op == "sum" else values / values.dtype.type(size())
    return replace(rows, indices=indices.reshape(-1), values=values)


def _reduce_arrays(arrays: list[np.ndarray], op: str, limit: int) -> list[Any]:
    ranks = communicator()
    buckets = _buckets([(a.dtype, a.nbytes) for a in arrays], range(len(arrays)), limit)
    started = [ranks.start([arrays[k] for k in bucket], op) for bucket in buckets]
    found: list[Any] = [None] * len(arrays)
    for bucket, number in zip(buckets, started):
        for k, y in zip(bucket, ranks.wait(number)):
            found[k] = np.array(y)[()]
    return found


def _reduce_values(values: list[Value], op: str, limit: int) -> list[Value]:
    scope, ranks = current_scope(), size()
    depth = _depths(values)
    order = sorted(range(len(values)), key=lambda k: depth[values[k]])
    buckets = _buckets([(v.dtype, _bytes(v, limit)) for v in values], order, limit)
    started, number = [], scope.constant(0, I64)
    for bucket in buckets:
        inputs = [number, *(values[k] for k in bucket)]
        number = scope.node("all_reduce_start", inputs, {"ranks": ranks, "how": op}).output
        started.append(number)
    found: dict[int, Value] = {}
    for bucket, number in zip(buckets, started):
        shapes = tuple(values[k].shape for k in bucket)
        attrs = {"ranks": ranks, "dtype": values[bucket[0]].dtype, "shapes": shapes}
        found.update(zip(bucket, scope.node("all_reduce_wait", [number], attrs).outputs))
    return [found[k] for k in range(len(values))]


def _bytes(value: Value, unknown: int) -> int:
    total = size_of(value.shape)
    return value.dtype.itemsize * total if isinstance(total, int) else unknown


def _depths(values: Sequence[Value]) -> dict[Value, int]:
    """Return for each value the length of the longest way to it."""
    depth: dict[Any, int] = {}
    for node in Graph("gradients", (), tuple(values)).nodes:
        sources = [v.node for v in node.inputs] + list(node.controls)
        depth[node] = 1 + max((depth[source] for source in sources), default=0)
    return {value: depth[value.node] for value in values}


def _buckets(
    sizes: Sequence[tuple[np.dtype, int]], order: Sequence[int], limit: int
) -> list[list[int]]:
    """Put items together, in order, to buckets of one dtype and at most `limit` bytes, or one item."""
    buckets: list[list[int]] = []
    latest: dict[np.dtype, tuple[list[int], int]] = {}
    for k in order:
        dtype, nbytes = sizes[k]
        bucket, filled = latest.get(dtype, ([], limit))
        if not bucket or filled + nbytes > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(k)
        latest[dtype] = bucket, filled + nbytes
    return sorted(buckets, key=lambda bucket: order.index(bucket[-1]))
