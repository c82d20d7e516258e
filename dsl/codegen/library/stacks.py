"""Stacks of matrices: axes in front are batches, broadcast where an op has two operands."""

from __future__ import annotations

from collections.abc import Sequence

from dsl.codegen.arrays import Array
from dsl.codegen.library.call import Call, array
from dsl.codegen.llvm import Function, Operand, Value

__all__ = ["Axis", "batch_axes", "check_core", "check_square", "offsets"]

Axis = tuple[Operand, Operand, Operand]
"""A size, and the strides of both operands in elements: 0 for one that is broadcast."""


def batch_axes(call: Call, x: Array, y: Array, x_core: int, y_core: int) -> list[Axis]:
    """Return the axes in front of the last `x_core` and `y_core`, as broadcast; emits the checks still needed."""
    fn, found = call.fn, []
    xs, ys = len(x.dims) - x_core, len(y.dims) - y_core
    for k in range(1, max(xs, ys) + 1):
        (p, p_stride), (q, q_stride) = (
            (a.dims[rank - k], a.strides[rank - k]) if k <= rank else (1, 0)
            for a, rank in ((x, xs), (y, ys))
        )
        _check_broadcast(call, p, q)
        size = _broadcast_size(fn, p, q)
        found.append((size, _stride(fn, p, size, p_stride), _stride(fn, q, size, q_stride)))
    return found[::-1]


def _broadcast_size(fn: Function, p: Operand, q: Operand) -> Operand:
    for one, other in ((p, q), (q, p)):
        if isinstance(one, int):
            return other if one == 1 else one
    return p if p is q else fn.select(fn.compare("eq", p, 1), q, p)


def _stride(fn: Function, dim: Operand, size: Operand, stride: Operand) -> Operand:
    if isinstance(dim, int):
        return 0 if dim == 1 else stride
    return stride if dim is size else fn.select(fn.compare("eq", dim, 1), 0, stride)


def _check_broadcast(call: Call, p: Operand, q: Operand) -> None:
    if p is q or (isinstance(p, int) and (p == 1 or isinstance(q, int))):
        return
    if isinstance(q, int) and q == 1:
        return
    fn = call.fn
    wrong = fn.compare("ne", p, q)
    for dim in (p, q):
        wrong = fn.both(wrong, fn.compare("ne", dim, 1))
    call.fail(wrong, "value:operands could not be broadcast together")


def offsets(fn: Function, axes: Sequence[Axis], index: Value) -> tuple[Operand, Operand]:
    """Return where the operands of one member of a batch start, in elements."""
    x: Operand = 0
    y: Operand = 0
    for place, (dim, x_stride, y_stride) in enumerate(reversed(axes)):
        own = index
        if place < len(axes) - 1:
            above = fn.binary("udiv", index, dim)
            own = fn.binary("sub", index, fn.binary("mul", above, dim))
            index = above
        x, y = fn.add(x, fn.mul(own, x_stride)), fn.add(y, fn.mul(own, y_stride))
    return x, y


def check_square(call: Call, k: int = 0) -> None:
    """Compare at run time the last two sizes of operand k, if the type rule could not."""
    shape, dims = call.node.inputs[k].shape, array(call, k).dims
    if shape[-1] != shape[-2]:
        differ = call.fn.compare("ne", dims[-1], dims[-2])
        call.fail(differ, "linalg:Last 2 dimensions of the array must be square")


def check_core(call: Call, name: str, signature: str) -> None:
    """Compare at run time the rows of both operands, if the type rule could not."""
    a, b = array(call, 0).dims, array(call, 1).dims
    if call.node.inputs[0].shape[-2] != call.node.inputs[1].shape[-2]:
        message = (
            f"value:{name}: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            f"signature {signature} (size {{}} is different from {{}})"
        )
        call.fail(call.fn.compare("ne", a[-2], b[-2]), message, b[-2], a[-2])
