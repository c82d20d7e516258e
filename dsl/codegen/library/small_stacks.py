"""Calls of the routines for stacks of small matrices, in the place of LAPACK where sizes are known and small.

One matrix is a stack of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dsl.codegen.arrays import Array, load_scalar
from dsl.codegen.library import (
    small_matrices,  # noqa: F401 - its routines are called here
    small_systems,  # noqa: F401 - its routines are called here
)
from dsl.codegen.library.call import Call, array, product
from dsl.codegen.library.each_matrix import MOST, are_few, stem
from dsl.codegen.library.routines import at, call_routine
from dsl.codegen.library.stacks import Axis, batch_axes, offsets
from dsl.codegen.llvm import Operand, Value

__all__ = ["or_else"]


def _is_small(call: Call) -> bool:
    """Tell whether matrices are real, of known sizes, and small, and right sides few; or many, of a stack of systems."""
    x = array(call, 0)
    rows, columns = x.dims[-2:]
    if x.dtype.kind != "f" or not (_fits(rows) and rows == columns):
        return False
    if len(call.inputs) == 1:
        return True
    *_, below, wide = array(call, 1).dims
    many = call.node.op.name == "solve" and isinstance(wide, int) and wide > MOST
    return below == rows and (_fits(wide) or (many and len(x.dims) > 2))


def _fits(size: Operand) -> bool:
    return isinstance(size, int) and 1 <= size <= MOST


def _by_routine(name: Callable[[Call], str], message: str) -> Callable[[Call], None]:
    """Return what emits an op from matrices to matrices that may fail."""

    def emit(call: Call) -> None:
        wrong = _run(call, name(call), [call.output().pointer], result="i1")
        call.fail(wrong, f"linalg:{message}")

    return emit


def _run(call: Call, name: str, places: Sequence[Value], result: str = "void") -> Value:
    """Emit a call of a routine of one operand."""
    fn, x = call.fn, call.contiguous(0)
    n, count = x.dims[-1], product(fn, x.dims[:-2])
    assert isinstance(n, int)
    symbol = stem(name, n, alone=are_few(count))
    return call_routine(fn, symbol, x.dtype, x.pointer, *places, count, result=result)


def _to_numbers(name: str) -> Callable[[Call], None]:
    """Return what emits an op from matrices to a number for each, or several."""

    def emit(call: Call) -> None:
        fn, x = call.fn, array(call, 0)
        stacked, results = len(x.dims) > 2, range(len(call.node.outputs))
        places = [
            call.output(k).pointer if stacked else fn.alloca(x.dtype.itemsize) for k in results
        ]
        _run(call, name, places)
        if not stacked:
            for k, place in enumerate(places):
                call.set_output(k, load_scalar(fn, x.dtype, place))

    return emit


def _lu(call: Call) -> None:
    _run(call, "lu", [call.output(k).pointer for k in range(2)])


# -- systems ------------------------------------------------------------------------------------------------------


def _solve(call: Call) -> None:
    _systems(call, "solve", transpose=False)


def _triangular_solve(call: Call) -> None:
    lower, transpose, unit = (call.node.attrs[name] for name in ("lower", "transpose", "unit"))
    name = "lower" if lower != transpose else "upper"
    _systems(call, f"{name}_unit" if unit else name, transpose=transpose)


def _systems(call: Call, name: str, *, transpose: bool) -> None:
    fn, turned = call.fn, _is_turned(array(call, 0))
    a, b = array(call, 0) if turned else call.contiguous(0), call.contiguous(1)
    axes, out = _runs(call, a, b, in_order=not turned), call.output().pointer
    m, n = b.dims[-2:]
    assert isinstance(m, int)
    assert isinstance(n, int)
    *outer, (count, a_step, b_step) = axes or [(1, 0, 0)]
    sizes, more = ((m, n), []) if n <= MOST else ((m,), [n])
    name = name if n <= MOST else f"{name}_wide"
    symbol = stem(name, *sizes, turned=turned != transpose, alone=are_few(count))

    def solve(a_first: Operand, b_first: Operand, first: Operand) -> None:
        left, right = (at(fn, x.dtype, x.pointer, k) for x, k in ((a, a_first), (b, b_first)))
        solved = at(fn, b.dtype, out, fn.mul(first, fn.mul(m, n)))
        args = (left, a_step, right, b_step, solved, count, *more)
        call.fail(call_routine(fn, symbol, b.dtype, *args, result="i1"), "linalg:Singular matrix")

    if not outer:
        solve(0, 0, 0)
        return
    with fn.loop(0, product(fn, [size for size, _, _ in outer])) as index:
        solve(*offsets(fn, outer, index), fn.mul(index, count))


def _is_turned(x: Array) -> bool:
    """Tell whether columns of matrices are rows in memory, one after another."""
    n = x.dims[-1]
    return n != 1 and x.strides[-2] == 1 and x.strides[-1] == n


def _runs(call: Call, a: Array, b: Array, *, in_order: bool) -> list[Axis]:
    """Return the axes in front, as few as they are known to make: one, where nothing is broadcast."""
    fn, axes = call.fn, batch_axes(call, a, b, 2, 2)
    if in_order and _are_alike(a.dims[:-2], b.dims[:-2]):
        m, n = b.dims[-2:]
        return [(product(fn, a.dims[:-2]), fn.mul(m, m), fn.mul(m, n))]
    found: list[Axis] = []
    for axis in reversed(axes):
        if found and _goes_on(axis, found[0]):
            size, x_step, y_step = found[0]
            found[0] = (fn.mul(axis[0], size), x_step, y_step)
        else:
            found.insert(0, axis)
    return found


def _goes_on(outer: Axis, inner: Axis) -> bool:
    """Tell whether steps along one axis surely follow those along the next, for both operands."""
    size = inner[0]
    if not isinstance(size, int):
        return outer[1:] == inner[1:] == (0, 0)
    return all(
        isinstance(x, int) and isinstance(y, int) and x == y * size
        for x, y in zip(outer[1:], inner[1:])
    )


def _are_alike(one: tuple[Operand, ...], other: tuple[Operand, ...]) -> bool:
    """Tell whether the axes in front are surely the same, so that there is nothing to broadcast."""
    return len(one) == len(other) and all(
        p is q or (isinstance(p, int) and isinstance(q, int) and p == q) for p, q in zip(one, other)
    )


def _triangle(call: Call) -> str:
    return "cholesky_upper" if call.node.attrs["upper"] else "cholesky"


Lowering = Callable[[Call], None]
_LOWERINGS: dict[str, Lowering] = {
    "solve": _solve,
    "triangular_solve": _triangular_solve,
    "inv": _by_routine(lambda call: "inv", "Singular matrix"),
    "lu": _lu,
    "cholesky": _by_routine(_triangle, "Matrix is not positive definite"),
    "det": _to_numbers("det"),
    "slogdet": _to_numbers("slogdet"),
}


def or_else(others: Mapping[str, Lowering]) -> dict[str, Lowering]:
    """Return what emits the ops that small matrices have routines for; other matrices are for `others`."""
    return {name: _chosen(small, others[name]) for name, small in _LOWERINGS.items()}


def _chosen(small: Lowering, other: Lowering) -> Lowering:
    def lower(call: Call) -> None:
        (small if _is_small(call) else other)(call)

    return lower
