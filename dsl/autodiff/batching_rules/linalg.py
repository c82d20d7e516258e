"""Rules of ops on two stacks, which broadcast: products, solvers, and keys derived from keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.types import size_of

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


@batches("solve", "triangular_solve")
def solve(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    return whole(a.builder.node(node.op, a.aligned(inputs, batched), node.attrs).output)


@batches("matmul")
def matmul(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """One matrix for all items makes one product of them all."""
    x, y = inputs
    x_rank, y_rank = len(x.shape) - batched[0], len(y.shape) - batched[1]
    if not batched[1] and y_rank <= 2:
        rows = a.reshaped(x, (size_of(x.shape[:-1]), x.shape[-1]))
        found = a.matmul(rows, y)
    elif not batched[0] and x_rank <= 2 and y_rank == 1:
        found = a.matmul(y, a.adjoint(x) if x_rank == 2 else x)
    else:
        x = _matrices(a, x, batched[0], x_rank, -2)
        y = _matrices(a, y, batched[1], y_rank, -1)
        found = a.matmul(*a.aligned((x, y), batched))
    return whole(a.reshaped(found, (size, *node.types[0].shape)))  # type: ignore[union-attr]


def _matrices(a: Batching, x: Value, batched: bool, rank: int, axis: int) -> Value:
    """Make a row, or a column, of items that are vectors."""
    return a.expanded(x, (batched + 2 + axis,)) if rank == 1 else x


@batches("fold_in")
def fold_in(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """A key has one axis that does not broadcast."""
    key, data = inputs
    rank = max(len(key.shape) - 1 - batched[0], len(data.shape) - batched[1])
    key = a.of_rank(key, rank + 1, batched[0])
    return whole(a.fold_in(key, a.of_rank(data, rank, batched[1])))
