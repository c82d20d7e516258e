"""Stacks of small matrices, of float32 and float64: systems, inverses, determinants and Cholesky's factors, many at a time.

A call of LAPACK for each matrix takes many times as long as its arithmetic. Here each lane of the vectors has a matrix of
its own, from loading to storing; sizes are known when a routine is made. What is left over at the end of a stack is done
together with some that have been done before, and the matrices of a stack that fills no register are done one by one. Lanes
do not know of each other, so the bits are the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dsl.codegen.library.determinants import determinant, sign_and_logarithm
from dsl.codegen.library.elimination import (
    Arithmetic,
    Rows,
    factor,
    inverse,
    roots,
    solution,
    substituted,
)
from dsl.codegen.library.matrix_lanes import MatrixLanes
from dsl.codegen.library.routines import at, parallel, routine
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.codegen.vector_unit import register_bytes
from dsl.ir.types import BY_NAME

__all__ = ["MOST", "are_few", "stem"]

MOST = 8
"""The rows of the largest matrices that have routines here, and the columns of right sides."""

I32 = BY_NAME["i32"]
_WORK = 1 << 16  # multiplications that are worth a thread
Body = Callable[[Function, int, Value], None]


def stem(
    name: str, rows: int, columns: int = 0, *, turned: bool = False, alone: bool = False
) -> str:
    """Return the stem of a routine: `turned` for systems whose matrices are in Fortran's order, `alone` for few."""
    sizes = f"{rows}x{columns}" if columns else f"{rows}"
    return f"{name}{'_turned' if turned else ''}{sizes}{'_alone' if alone else ''}"


def are_few(count: Operand) -> bool:
    """Tell whether matrices surely do not fill a register."""
    return isinstance(count, int) and count < register_bytes() // 8


def _each(f: Function, count: Value, work: int, body: Body, *, alone: bool) -> None:
    """Emit `body(fn, width, first)` for all matrices: by so many as a register holds, or one by one if they are fewer.

    With `alone` they are surely fewer, and compiling the routine takes a fraction of the time.
    """
    width = register_bytes() // 8

    def many() -> None:
        blocks = f.binary("sdiv", f.add(count, width - 1), width)
        with parallel(f, blocks, max(1, _WORK // (work * width))) as (part, lo, hi):
            last = part.sub(count, width)
            with part.loop(lo, hi) as block:
                body(part, width, part.as_value(part.minimum(part.mul(block, width), last), "i64"))

    def few() -> None:
        with f.loop(0, count) as index:
            body(f, 1, index)

    if alone:
        few()
    else:
        f.if_else(f.compare("sge", count, width), many, few)


@contextlib.contextmanager
def _checked(f: Function) -> Iterator[Callable[[Arithmetic, Value], None]]:
    """Return from a routine whether what the block is given was true of any matrix."""
    wrong = f.alloca(8)
    f.store(f.as_value(0, "i64"), wrong)

    def note(x: Arithmetic, mask: Value) -> None:
        with x.fn.if_(x.any(mask), unlikely=True):
            x.fn.store(x.fn.as_value(1, "i64"), wrong)

    yield note
    f.ret(f.compare("ne", f.load("i64", wrong), 0))


def _lanes(fn: Function, dtype: np.dtype, width: int) -> tuple[MatrixLanes, Arithmetic]:
    lanes = MatrixLanes(fn, dtype, width)
    return lanes, Arithmetic(fn, lanes.of("double"), dtype.itemsize == 8)


def _rows(values: list[Value], columns: int, *, turned: bool = False) -> Rows:
    if turned:
        return [values[k::columns] for k in range(columns)]
    return [values[k : k + columns] for k in range(0, len(values), columns)]


def _flat(rows: Rows) -> list[Value]:
    return [value for row in rows for value in row]


def _singular(x: Arithmetic, pivots: list[Value]) -> Value:
    found = x.is_zero(pivots[0])
    for pivot in pivots[1:]:
        found = x.fn.either(found, x.is_zero(pivot))
    return found


System = Callable[[Arithmetic, Rows, Rows], tuple[Rows, Value | None]]
"""From the rows of matrices and right sides to those of solutions, and where matrices are singular."""


def _general(x: Arithmetic, left: Rows, right: Rows) -> tuple[Rows, Value | None]:
    n, k = len(left), len(right[0])
    found = factor(x, [row + own for row, own in zip(left, right)])
    columns = [solution(x, found, [row[n + j] for row in found.rows]) for j in range(k)]
    return [list(row) for row in zip(*columns)], _singular(x, found.pivots())


def _triangular(lower: bool, unit: bool) -> System:
    def solve(x: Arithmetic, left: Rows, right: Rows) -> tuple[Rows, Value | None]:
        pivots = [row[k] for k, row in enumerate(left)]
        divisors = None if unit else [x.divisor(pivot) for pivot in pivots]
        columns = [substituted(x, left, own, divisors, lower=lower) for own in zip(*right)]
        solved = [[value for value in row if value is not None] for row in zip(*columns)]
        return solved, None if unit else _singular(x, pivots)

    return solve


def _build_systems(
    n: int,
    k: int,
    system: System,
    turned: bool,
    alone: bool,
    module: Module,
    symbol: str,
    dtype: np.dtype,
) -> None:
    """`solve(a, a_step, b, b_step, x, count)`: systems of n rows and k right sides, so many elements apart; true if one is singular."""
    params = [("ptr", "a"), ("i64", "a_step"), ("ptr", "b"), ("i64", "b_step"), ("ptr", "x")]
    f = module.function(symbol, "i1", [*params, ("i64", "count")])
    a, a_step, b, b_step, result, count = f.params
    with _checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = _lanes(fn, dtype, width)
            left, right = (
                lanes.load(at(fn, dtype, base, fn.mul(first, step)), fn.use(step), size)
                for base, step, size in ((a, a_step, n * n), (b, b_step, n * k))
            )
            solved, singular = system(x, _rows(left, n, turned=turned), _rows(right, k))
            if singular is not None:
                note(x, singular)
            lanes.store(_flat(solved), at(fn, dtype, result, fn.mul(first, n * k)))

        _each(f, count, n * n * (n + k), body, alone=alone)


def _build_inverse(n: int, alone: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`inverse(x, y, count)`: true if a matrix is singular."""
    f = module.function(symbol, "i1", [("ptr", "x"), ("ptr", "y"), ("i64", "count")])
    source, target, count = f.params
    with _checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = _lanes(fn, dtype, width)
            place = fn.mul(first, n * n)
            found = factor(x, _rows(lanes.load(at(fn, dtype, source, place), n * n, n * n), n))
            note(x, _singular(x, found.pivots()))
            lanes.store(_flat(inverse(x, found)), at(fn, dtype, target, place))

        _each(f, count, 2 * n**3, body, alone=alone)


def _build_roots(
    n: int, upper: bool, alone: bool, module: Module, symbol: str, dtype: np.dtype
) -> None:
    """`roots(x, y, count)`: the triangles of Cholesky; true if a matrix has none."""
    f = module.function(symbol, "i1", [("ptr", "x"), ("ptr", "y"), ("i64", "count")])
    source, target, count = f.params
    with _checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = _lanes(fn, dtype, width)
            place = fn.mul(first, n * n)
            values = lanes.load(at(fn, dtype, source, place), n * n, n * n)
            found, wrong = roots(x, _rows(values, n, turned=upper))
            note(x, wrong)
            result = [list(row) for row in zip(*found)] if upper else found
            lanes.store(_flat(result), at(fn, dtype, target, place))

        _each(f, count, n**3, body, alone=alone)


def _build_factors(n: int, alone: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`lu(x, y, places, count)`: the triangles of each matrix, and with which row each row changed places."""
    pointers = [("ptr", name) for name in ("x", "y", "places")]
    f = module.function(symbol, "void", [*pointers, ("i64", "count")])
    source, target, places, count = f.params

    def body(fn: Function, width: int, first: Value) -> None:
        lanes, x = _lanes(fn, dtype, width)
        place = fn.mul(first, n * n)
        values = lanes.load(at(fn, dtype, source, place), n * n, n * n)
        found = factor(x, _rows(values, n), defined=True)
        lanes.store(_flat(found.rows), at(fn, dtype, target, place))
        numbers = MatrixLanes(fn, I32, width)
        numbers.store(found.places(x), at(fn, I32, places, fn.mul(first, n)))

    _each(f, count, n**3, body, alone=alone)
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
        lanes, x = _lanes(fn, dtype, width)
        base = at(fn, dtype, source, fn.mul(first, n * n))
        found = factor(x, _rows(lanes.load(base, n * n, n * n), n))
        values = sign_and_logarithm(x, found) if logarithm else (determinant(x, found),)
        for value, target in zip(values, targets):
            lanes.store([value], at(fn, dtype, target, first))

    _each(f, count, n**3, body, alone=alone)
    f.ret()


_SYSTEMS: dict[str, System] = {
    "solve": _general,
    "lower": _triangular(True, False),
    "upper": _triangular(False, False),
    "lower_unit": _triangular(True, True),
    "upper_unit": _triangular(False, True),
}


def _register() -> None:
    for n, alone in itertools.product(range(1, MOST + 1), (False, True)):
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
        for (name, system), k in itertools.product(_SYSTEMS.items(), range(1, MOST + 1)):
            for turned in (False, True):
                build = partial(_build_systems, n, k, system, turned)
                routine(stem(name, n, k, turned=turned, alone=alone))(partial(build, alone))


_register()
