"""Native forms of the ops that are not elementwise, views or plain reductions.

`LOWERINGS` maps an op's name to a function that emits it; `supported` tells whether a node has one. Before a module
with such code is loaded, `provide(text)` makes the routines and foreign functions that it names known to the linker.
`special` emits elementwise ops that SciPy computes.
"""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.library import (
    argsort,
    extremum,
    factors,
    fourier,
    linalg,
    matmul,
    nonzero,
    random,
    running,
    search,
    sorting,
    unique,
)
from dsl.codegen.library.call import Call
from dsl.codegen.library.routines import provide, routine_text
from dsl.codegen.library.special import SPECIAL, special
from dsl.ir.graph import Node

__all__ = ["LOWERINGS", "SPECIAL", "Call", "provide", "routine_text", "special", "supported"]

LOWERINGS: dict[str, Callable[[Call], None]] = {
    **running.LOWERINGS,
    **extremum.LOWERINGS,
    **sorting.LOWERINGS,
    **argsort.LOWERINGS,
    **nonzero.LOWERINGS,
    **search.LOWERINGS,
    **unique.LOWERINGS,
    **matmul.LOWERINGS,
    **linalg.LOWERINGS,
    **factors.LOWERINGS,
    **fourier.LOWERINGS,
    **random.LOWERINGS,
}


def supported(node: Node) -> bool:
    """Tell whether a node can be compiled."""
    return node.op.name in LOWERINGS
