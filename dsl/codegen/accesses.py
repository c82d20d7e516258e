"""Questions about expressions and memory accesses that kernels ask, and what reductions start from."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.arrays import Array
from dsl.codegen.expressions import Affine, Expression, Var, walk
from dsl.codegen.llvm import Function, Operand
from dsl.codegen.plan import Kernel, Root, is_checked, reads_of
from dsl.ir.dims import Dim, DimLike
from dsl.ir.graph import Value

__all__ = [
    "ceil_div",
    "contiguous",
    "is_costly",
    "read_again",
    "reads_only_at",
    "start_value",
    "stride_of",
    "walk",
]


def start_value(name: str, dtype: np.dtype) -> Any:
    """Return what a reduction over nothing starts from."""
    if name in ("max", "min"):
        low = name == "max"
        if dtype.kind == "b":
            return not low
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return info.min if low else info.max
        edge = -math.inf if low else math.inf
        return complex(edge, edge) if dtype.kind == "c" else edge
    if name == "reduce_and":
        return True if dtype.kind == "b" else np.array(-1).astype(dtype)
    return {"prod": 1, "all": True}.get(name, 0)


def read_again(expression: Expression) -> Iterable[Expression]:
    """Yield what is read once more when a check has failed, to find out where: no sweep may overwrite it."""
    for e in walk(expression):
        if is_checked(e):
            yield from reads_of(e)


def reads_only_at(kernel: Kernel, values: Container[Value | None], root: Root) -> bool:
    """Tell whether values are read only where the root is written, and by nothing that may sweep after it."""
    if any(e.value in values for other in kernel.roots for e in read_again(other.expression)):
        return False
    return all(
        e.index == root.index and not (other.reduce and other.stage == root.stage)
        for other in kernel.roots
        for e in reads_of(other.expression)
        if e.kind == "load" and e.value in values
    )


def is_costly(e: Expression) -> bool:
    return any(
        item.kind == "op"
        and item.node is not None
        and elementwise.expensive(item.node.op.name, [a.dtype for a in item.args])
        for item in walk(e)
    )


def stride_of(index: tuple[Affine, ...], array: Array, var: Var) -> Any:
    """Return by how many elements an access moves with a variable, or None if that is not known."""
    total: DimLike = 0
    for i, stride in zip(index, array.strides, strict=True):
        for v, scale in i.terms:
            if v is var:
                if not isinstance(stride, int):
                    known = _symbolic(array, stride)
                    if known is None:
                        return None
                    total = total + known * scale
                else:
                    total = total + stride * scale
        if any(var in item.vars for item, _ in i.extra):
            return None
    return total


def _symbolic(array: Array, stride: Operand) -> Dim | None:
    """A stride of a contiguous array with symbolic dims, as a dim."""
    found = getattr(stride, "dim", None)
    return found if isinstance(found, Dim) else None


def contiguous(fn: Function, dims: Sequence[Operand]) -> tuple[Operand, ...]:
    strides: list[Operand] = []
    total: Operand = 1
    for dim in reversed(dims):
        strides.append(total)
        total = fn.mul(total, dim)
    return tuple(reversed(strides))


def ceil_div(fn: Function, a: Operand, b: Operand) -> Operand:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return fn.binary("sdiv", fn.sub(fn.add(a, b), 1), b)
