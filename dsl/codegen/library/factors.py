"""LU factors and triangular systems, by SciPy's LAPACK in the operands' own precision."""

from __future__ import annotations

import numpy as np

from dsl.codegen.library.call import Call, bytes_of, product
from dsl.codegen.library.lanes import join_lanes, part_lanes
from dsl.codegen.library.lapack import call_fortran
from dsl.codegen.library.routines import at
from dsl.codegen.library.stacks import batch_axes, check_core, check_square, offsets

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
    """Solve in place in a copy of b in Fortran's order; `a` in C order is its own transpose to Fortran."""
    check_square(call)
    check_core(call, "triangular_solve", "(m,m),(m,n)->(m,n)")
    fn, attrs = call.fn, call.node.attrs
    a, b = call.contiguous(0), call.contiguous(1)
    axes = batch_axes(call, a, b, 2, 2)
    m, n = (fn.as_value(dim, "i64") for dim in b.dims[-2:])
    size, count = fn.mul(m, n), fn.as_value(product(fn, [dim for dim, _, _ in axes]), "i64")
    space = call.scratch(bytes_of(fn, fn.mul(count, size), b.dtype))
    info = fn.alloca(4)
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
    join_lanes(call, b.dtype, space, call.output().pointer, count, m, n)


LOWERINGS = {"lu": _lu, "triangular_solve": _triangular_solve}
