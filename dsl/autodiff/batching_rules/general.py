"""Rules that many ops share: elementwise ops, ops on trailing axes, ops along an axis, and those that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, refusal, whole
from dsl.ir.dims import DimLike
from dsl.ir.graph import Attrs, Node

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching

__all__ = ["dynamic", "elementwise"]


def elementwise(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Items broadcast from the right, so axes of size 1 go between the batch axis and the items of lower rank."""
    return whole(*a.builder.node(node.op, a.aligned(inputs, batched), node.attrs).outputs)


def dynamic(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    raise refusal(
        node,
        "how large its result is depends on the data, so it would differ from item to item",
        "use a mask: `where` with three arguments, or sums and sorts, which keep the size",
    )


@batches(
    "identity", "stop_gradient", "polygamma", "random_bits", "cholesky", "lu", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals",
    "inv", "det", "slogdet",
)  # fmt: skip
def stacks(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Ops that take stacks of what they work on."""
    return whole(*a.builder.node(node.op, inputs, node.attrs).outputs)


@batches(
    "sum", "prod", "max", "min", "any", "all", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin", "cumsum",
    "cumprod", "cummax", "cummin", "sort", "argsort", "fft", "rfft", "irfft",
)  # fmt: skip
def along(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    """Ops along axes, which are now one further."""
    return whole(*a.builder.node(node.op, inputs, _further(node.attrs)).outputs)


def _further(attrs: Attrs) -> dict[str, Any]:
    if "axis" in attrs:
        return {**attrs, "axis": attrs["axis"] + 1}
    return {**attrs, "axes": tuple(axis + 1 for axis in attrs["axes"])}
