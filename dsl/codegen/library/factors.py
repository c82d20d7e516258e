"""LU factors and triangular systems, by SciPy's LAPACK in the operands' own precision."""

from __future__ import annotations

import numpy as np

from dsl.codegen.arrays import Array
from dsl.codegen.library.call import Call, bytes_of, product
from dsl.codegen.library.lanes import join_lanes, part_lanes
from dsl.codegen.library.lapack import call_fortran
from dsl.codegen.library.routines import at
from dsl.codegen.library.stacks import Axis, batch_axes, check_core, check_square, offsets
from dsl.codegen.library.substitution import emit_substitution, has_few_rows
from dsl.codegen.llvm import Value

__all__ = ["LOWERINGS"]


def _lapack(dtype: np.dtype, name: str) -> str:
    letter = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}[dtype.str[1:]]
    return f"dsl_lapack_{letter}{name}"


def _lu(call: Call) -> None:
    """Factor a copy in Fortran's order; LAPACK counts rows from 1."""
    fn, x = call.fn, call.contiguous(0)
    batch = product(fn, x.dims[:-2])
    m, n = (fn.as_value(dim, "i64") for dim in x.dims[-2:])
    inner, size = fn.minimum(m, n), fn.mul(m, n)
    packed, pivots = call.output(0).pointer, call.output(1).pointer
    space = call.scratch(bytes_of(fn, fn.mul(batch, size), x.dtype))
    count = fn.as_value(batch, "i64")
    part_lanes(call, x.dtype, x.pointer, space, count, m, n)
    info = fn.alloca(4)
    with fn.if_(fn.compare("ne", fn.mul(count, size), 0)), fn.loop(0, count) as index:
        matrix = at(fn, x.dtype, space, fn.mul(index, size))
        own = fn.gep(pivots, fn.mul(index, inner), "i32")
        call_fortran(fn, _lapack(x.dtype, "getrf"), m, n, matrix, fn.maximum(m, 1), own, info)
        with fn.loop(0, inner) as i:
            place = fn.gep(own, i, "i32")
            fn.store(fn.binary("sub", fn.load("i32", place), 1), place)
    join_lanes(call, x.dtype, space, packed, count, m, n)


def _triangular_solve(call: Call) -> None:
    """Solve by substitution if the rows are few, by LAPACK if they are many. Memory is had before it is asked which."""
    check_square(call)
    check_core(call, "triangular_solve", "(m,m),(m,n)->(m,n)")
    fn, a, b = call.fn, call.contiguous(0), call.contiguous(1)
    axes, out = batch_axes(call, a, b, 2, 2), call.output().pointer
    m, n = b.dims[-2:]
    count = fn.as_value(product(fn, [dim for dim, _, _ in axes]), "i64")
    few = has_few_rows(fn, b.dtype, m, n)
    if few is True:
        _substitute(call, a, b, out, axes, count)
        return
    size = bytes_of(fn, fn.mul(count, fn.mul(m, n)), b.dtype)
    if few is False:
        _by_lapack(call, a, b, out, axes, count, call.scratch(size))
        return
    space = call.scratch(fn.select(few, 0, size))
    fn.if_else(
        few,
        lambda: _substitute(call, a, b, out, axes, count),
        lambda: _by_lapack(call, a, b, out, axes, count, space),
    )


def _substitute(call: Call, a: Array, b: Array, out: Value, axes: list[Axis], count: Value) -> None:
    fn, (m, n) = call.fn, b.dims[-2:]
    size = fn.mul(m, n)
    with fn.if_(fn.compare("ne", size, 0)), fn.loop(0, count) as index:
        places = (*offsets(fn, axes, index), fn.mul(index, size))
        matrix, right, solved = (
            at(fn, b.dtype, base, place) for base, place in zip((a.pointer, b.pointer, out), places)
        )
        singular = emit_substitution(fn, b.dtype, matrix, right, solved, m, n, **call.node.attrs)
        call.fail(singular, "linalg:Singular matrix")


def _by_lapack(
    call: Call, a: Array, b: Array, out: Value, axes: list[Axis], count: Value, space: Value
) -> None:
    """Solve in place in a copy of b in Fortran's order; `a` in C order is its own transpose to Fortran."""
    fn, attrs = call.fn, call.node.attrs
    m, n = (fn.as_value(dim, "i64") for dim in b.dims[-2:])
    size, info = fn.mul(m, n), fn.alloca(4)
    options = [b"U" if attrs["lower"] else b"L", b"N" if attrs["transpose"] else b"T",
               b"U" if attrs["unit"] else b"N"]  # fmt: skip
    lead = fn.maximum(m, 1)
    with fn.if_(fn.compare("ne", size, 0)), fn.loop(0, count) as index:
        places = offsets(fn, axes, index)
        matrix, right = (at(fn, x.dtype, x.pointer, place) for x, place in zip((a, b), places))
        solved = at(fn, b.dtype, space, fn.mul(index, size))
        part_lanes(call, b.dtype, right, solved, fn.as_value(1, "i64"), m, n)
        call_fortran(
            fn, _lapack(b.dtype, "trtrs"), *options, m, n, matrix, lead, solved, lead, info
        )
        call.fail(fn.compare("sgt", fn.load("i32", info), 0), "linalg:Singular matrix")
    join_lanes(call, b.dtype, space, out, count, m, n)


LOWERINGS = {"lu": _lu, "triangular_solve": _triangular_solve}
