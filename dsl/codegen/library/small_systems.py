"""Systems whose matrices are small, general and triangular ones: each has a lane of the vectors to itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

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
from dsl.codegen.library.elimination import (
    Arithmetic,
    Rows,
    factor,
    in_order,
    solution,
    substituted,
)
from dsl.codegen.library.routines import at, routine
from dsl.codegen.llvm import Function, Module, Value

__all__: list[str] = []

Solve = Callable[[Sequence[Value]], list[Value]]
System = Callable[[Arithmetic, Rows], tuple[Solve, Value | None]]
"""From the rows of matrices to what solves for a column, and where matrices are singular."""


def _general(x: Arithmetic, left: Rows) -> tuple[Solve, Value | None]:
    found = factor(x, left)
    solve: Solve = lambda column: solution(x, found, in_order(x, found, column))
    return solve, singular_in(x, found.pivots())


def _triangular(lower: bool, unit: bool) -> System:
    def system(x: Arithmetic, left: Rows) -> tuple[Solve, Value | None]:
        pivots = [row[k] for k, row in enumerate(left)]
        divisors = None if unit else [x.divisor(pivot) for pivot in pivots]

        def solve(column: Sequence[Value]) -> list[Value]:
            solved = substituted(x, left, column, divisors, lower=lower)
            return [value for value in solved if value is not None]

        return solve, None if unit else singular_in(x, pivots)

    return system


def _solved(solve: Solve, right: Rows) -> Rows:
    columns = [solve(column) for column in zip(*right)]
    return [list(row) for row in zip(*columns)]


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
    with checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = lanes_of(fn, dtype, width)
            left, right = (
                lanes.load(at(fn, dtype, base, fn.mul(first, step)), fn.use(step), size)
                for base, step, size in ((a, a_step, n * n), (b, b_step, n * k))
            )
            solve, singular = system(x, rows_of(left, n, turned=turned))
            if singular is not None:
                note(x, singular)
            solved = flat(_solved(solve, rows_of(right, k)))
            lanes.store(solved, at(fn, dtype, result, fn.mul(first, n * k)))

        each_matrix(f, count, n * n * (n + k), body, alone=alone)


def _build_wide(
    n: int, turned: bool, alone: bool, module: Module, symbol: str, dtype: np.dtype
) -> None:
    """`solve(a, a_step, b, b_step, x, count, k)`: systems of k right sides, at least `MOST`, so many of which are solved at a time."""
    params = [("ptr", "a"), ("i64", "a_step"), ("ptr", "b"), ("i64", "b_step"), ("ptr", "x")]
    f = module.function(symbol, "i1", [*params, ("i64", "count"), ("i64", "k")])
    a, a_step, b, b_step, result, count, k = f.params
    with checked(f) as note:

        def body(fn: Function, width: int, first: Value) -> None:
            lanes, x = lanes_of(fn, dtype, width)
            base = at(fn, dtype, a, fn.mul(first, a_step))
            left = lanes.load(base, fn.use(a_step), n * n)
            solve, singular = _general(x, rows_of(left, n, turned=turned))
            assert singular is not None
            note(x, singular)
            size, last = fn.mul(k, n), fn.sub(k, MOST)
            with fn.loop(0, fn.binary("sdiv", fn.add(k, MOST - 1), MOST)) as part:
                start = fn.minimum(fn.mul(part, MOST), last)
                places = [fn.add(fn.mul(k, i), start) for i in range(n)]
                sources = [fn.add(fn.mul(first, b_step), place) for place in places]
                targets = [fn.add(fn.mul(first, size), place) for place in places]
                right = [lanes.load(at(fn, dtype, b, s), fn.use(b_step), MOST) for s in sources]
                for row, target in zip(_solved(solve, right), targets):
                    lanes.store(row, at(fn, dtype, result, target), size)

        each_matrix(f, count, 4 * n * n * MOST, body, alone=alone)


_SYSTEMS: dict[str, System] = {
    "solve": _general,
    "lower": _triangular(True, False),
    "upper": _triangular(False, False),
    "lower_unit": _triangular(True, True),
    "upper_unit": _triangular(False, True),
}


def _register(n: int, *, turned: bool, alone: bool) -> None:
    wide = partial(_build_wide, n, turned, alone)
    routine(stem("solve_wide", n, turned=turned, alone=alone))(wide)
    for (name, system), k in itertools.product(_SYSTEMS.items(), range(1, MOST + 1)):
        build = partial(_build_systems, n, k, system, turned, alone)
        routine(stem(name, n, k, turned=turned, alone=alone))(build)


for rows, turned, alone in itertools.product(range(1, MOST + 1), (False, True), (False, True)):
    _register(rows, turned=turned, alone=alone)
