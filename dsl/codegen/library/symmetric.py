"""A matrix times its own transpose: half of the products are computed, and the other half is a mirror image.

The result is computed in strips of rows, each from the diagonal to the right.
"""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import memory_type
from dsl.codegen.library.routines import at, parallel, per_thread, routine
from dsl.codegen.llvm import Module
from dsl.ir.graph import Node, Value

__all__ = ["is_symmetric", "strip_rows"]

_STRIPS = 8  # at most: they leave 9/16 of the work
_LEAST = 64  # rows of a strip, for which packing the right operand is little
_TILE = 16


def is_symmetric(node: Node) -> bool:
    """Tell whether a matmul of two matrices is of one and its transpose."""
    x, y = node.data_inputs
    return len(x.shape) == len(y.shape) == 2 and (_turns(x, y) or _turns(y, x))


def _turns(x: Value, y: Value) -> bool:
    node = x.node
    return node.op.name == "transpose" and node.attrs["axes"] == (1, 0) and node.inputs[0] is y


def strip_rows(n: int) -> int:
    """Return how many rows of a symmetric result are computed at a time; n if all are."""
    rows = max(-(-n // _STRIPS), _LEAST)
    return rows if rows < n else n


@routine("mirror", vectorize=True)
def _build_mirror(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`mirror(c, n)`: copy what is above the diagonal of a square matrix to below it, tile by tile."""
    f = module.function(symbol, "void", [("ptr", "c"), ("i64", "n")])
    c, n = f.params
    word = memory_type(dtype)
    tiles = f.binary("sdiv", f.add(n, _TILE - 1), _TILE)
    with (
        parallel(f, tiles, per_thread(f, 1 << 15, f.mul(n, _TILE))) as (part, lo, hi),
        part.loop(lo, hi) as down,
        part.loop(0, part.add(down, 1)) as across,
    ):
        top, left = part.mul(down, _TILE), part.mul(across, _TILE)
        with part.loop(top, part.minimum(part.add(top, _TILE), n)) as i:
            right = part.minimum(part.add(left, _TILE), i)
            with part.loop(left, right) as j:
                found = part.load(word, at(part, dtype, c, part.add(part.mul(j, n), i)))
                part.store(found, at(part, dtype, c, part.add(part.mul(i, n), j)))
    f.ret()
