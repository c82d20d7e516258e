"""Which op is emitted by which function."""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.library import (
    argsort,
    extremum,
    factors,
    fourier,
    fourier_lanes,  # noqa: F401 - its routines are called by those of `fourier`
    linalg,
    matmul,
    nonzero,
    partials,  # noqa: F401 - its routines are called by kernels
    points,  # noqa: F401 - its routines are called by kernels and updates
    random,
    running,
    search,
    selection,
    small_stacks,
    sorting,
    turning,  # noqa: F401 - its routines are called by kernels
    unique,
)
from dsl.codegen.library.call import Call
from dsl.ir.graph import Node

__all__ = ["LOWERINGS", "supported"]

LOWERINGS: dict[str, Callable[[Call], None]] = {
    **running.LOWERINGS,
    **extremum.LOWERINGS,
    **sorting.LOWERINGS,
    **argsort.LOWERINGS,
    **nonzero.LOWERINGS,
    **search.LOWERINGS,
    **selection.LOWERINGS,
    **unique.LOWERINGS,
    **matmul.LOWERINGS,
    **linalg.LOWERINGS,
    **factors.LOWERINGS,
    **fourier.LOWERINGS,
    **random.LOWERINGS,
}
LOWERINGS |= small_stacks.or_else(LOWERINGS)


def supported(node: Node) -> bool:
    """Tell whether a node can be compiled."""
    return node.op.name in LOWERINGS
