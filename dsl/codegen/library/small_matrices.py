"""Inverses, determinants and factors of small matrices: each has a lane of the vectors to itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from dsl.codegen.library.determinants import determinant, sign_and_logarithm
from dsl.codegen.library.each_matrix import (
    MOST,
    checked,
    each_matrix,
    flat,
    lanes_of,
    rows_of,
    singular_in,
    stem,
)
from dsl.codegen.library.elimination import factor, inverse, roots
from dsl.codegen.library.matrix_lanes import MatrixLanes
from dsl.codegen.library.routines import at, routine
from dsl.codegen.llvm import Function, Module, Value
from dsl.ir.types import BY_NAME

__all__: list[str] = []

_I32 = BY_NAME["i32"]


def _build_inverse(n: int, alone: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`inverse(x, y, count)`: true if a matrix is singular."""
    f = module.function(symbol, "i1", [("ptr", "x"), ("ptr", "y"), ("i64", "count")])
    source, target, count = f.params
    with checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = lanes_of(fn, dtype, width)
            place = fn.mul(first, n * n)
            found = factor(x, rows_of(lanes.load(at(fn, dtype, source, place), n * n, n * n), n))
            note(x, singular_in(x, found.pivots()))
            lanes.store(flat(inverse(x, found)), at(fn, dtype, target, place))

        each_matrix(f, count, 2 * n**3, body, alone=alone)


def _build_roots(
    n: int, upper: bool, alone: bool, module: Module, symbol: str, dtype: np.dtype
) -> None:
    """`roots(x, y, count)`: the triangles of Cholesky; true if a matrix has none."""
    f = module.function(symbol, "i1", [("ptr", "x"), ("ptr", "y"), ("i64", "count")])
    source, target, count = f.params
    with checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = lanes_of(fn, dtype, width)
            place = fn.mul(first, n * n)
            values = lanes.load(at(fn, dtype, source, place), n * n, n * n)
            found, wrong = roots(x, rows_of(values, n, turned=upper))
            note(x, wrong)
            result = [list(row) for row in zip(*found)] if upper else found
            lanes.store(flat(result), at(fn, dtype, target, place))

        each_matrix(f, count, n**3, body, alone=alone)


def _build_factors(n: int, alone: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`lu(x, y, places, count)`: the triangles of each matrix, and with which row each row changed places."""
    pointers = [("ptr", name) for name in ("x", "y", "places")]
    f = module.function(symbol, "void", [*pointers, ("i64", "count")])
    source, target, places, count = f.params

    def body(fn: Function, width: int, first: Value) -> None:
        lanes, x = lanes_of(fn, dtype, width)
        place = fn.mul(first, n * n)
        values = lanes.load(at(fn, dtype, source, place), n * n, n * n)
        found = factor(x, rows_of(values, n), defined=True)
        lanes.store(flat(found.rows), at(fn, dtype, target, place))
        numbers = MatrixLanes(fn, _I32, width)
        numbers.store(found.places(x), at(fn, _I32, places, fn.mul(first, n)))

    each_matrix(f, count, n**3, body, alone=alone)
    f.ret()


def _build_determinant(
    n: int, logarithm: bool, alone: bool, module: Module, symbol: str, dtype: np.dtype
) -> None:
    """`det(x, y, count)` or `slogdet(x, sign, y, count)`."""
    results = ("sign", "y") if logarithm else ("y",)
    pointers = [("ptr", name) for name in ("x", *results)]
    f = module.function(symbol, "void", [*pointers, ("i64", "count")])
    source, *targets, count = f.params

    def body(fn: Function, width: int, first: Value) -> None:
        lanes, x = lanes_of(fn, dtype, width)
        base = at(fn, dtype, source, fn.mul(first, n * n))
        found = factor(x, rows_of(lanes.load(base, n * n, n * n), n))
        values = sign_and_logarithm(x, found) if logarithm else (determinant(x, found),)
        for value, target in zip(values, targets):
            lanes.store([value], at(fn, dtype, target, first))

    each_matrix(f, count, n**3, body, alone=alone)
    f.ret()


def _register(n: int, *, alone: bool) -> None:
    builds: dict[str, Callable[..., None]] = {
        "inv": partial(_build_inverse, n),
        "cholesky": partial(_build_roots, n, False),
        "cholesky_upper": partial(_build_roots, n, True),
        "lu": partial(_build_factors, n),
        "det": partial(_build_determinant, n, False),
        "slogdet": partial(_build_determinant, n, True),
    }
    for name, build in builds.items():
        routine(stem(name, n, alone=alone))(partial(build, alone))


for rows, alone in itertools.product(range(1, MOST + 1), (False, True)):
    _register(rows, alone=alone)
