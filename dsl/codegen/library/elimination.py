"""Elimination with pivots, for a matrix in each lane of vectors of doubles: rows change places by selects.

The steps are those of LAPACK as OpenBLAS has it, rounding included: products are summed up and the sum is taken away, and
columns are multiplied by the reciprocal of the pivot. So matrices whose elimination meets a pivot of exactly zero are, where
OpenBLAS sums in this order, those that NumPy finds singular: fused steps would leave a rest of a row that is a multiple of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsl.codegen.library.vectors import (
    constant,
    fcompare,
    intrinsic,
    lanes,
    mask_bits,
    select,
    vector,
)
from dsl.codegen.llvm import Function, Value

__all__ = [
    "Arithmetic",
    "Factors",
    "Rows",
    "factor",
    "in_order",
    "inverse",
    "roots",
    "solution",
    "substituted",
]

Rows = list[list[Value]]
_LEAST = 2.0**-1022  # of the numbers that have a reciprocal
_UP = 2.0**108


@dataclass(frozen=True)
class Arithmetic:
    """What is computed with vectors of doubles, or with doubles; `careful` of pivots that have no reciprocal."""

    fn: Function
    type: str
    careful: bool

    def number(self, number: float) -> Value:
        return constant(number, self.type)

    def size(self, a: Value) -> Value:
        return intrinsic(self.fn, "llvm.fabs", a)

    def less(self, a: Value, b: Value) -> Value:
        return fcompare(self.fn, "olt", a, b)

    def is_zero(self, a: Value) -> Value:
        return fcompare(self.fn, "oeq", a, self.number(0.0))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return select(self.fn, condition, a, b)

    def exchanged(self, condition: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return self.select(condition, b, a), self.select(condition, a, b)

    def any(self, mask: Value) -> Value:
        """Tell whether a condition holds in one lane at least."""
        if not lanes(mask.type):
            return mask
        return self.fn.compare("ne", mask_bits(self.fn, mask), 0)

    def less_products(
        self, start: Value | None, left: Sequence[Value], right: Sequence[Value | None]
    ) -> Value | None:
        """Return a number, less a sum of products, each rounded; None is a zero that is known."""
        fn, total = self.fn, None
        for a, b in zip(left, right):
            if b is not None:
                product = fn.fmul(a, b)
                total = product if total is None else fn.fadd(total, product)
        if total is None:
            return start
        return fn.fsub(self.number(0.0) if start is None else start, total)

    def divisor(self, pivot: Value, *, defined: bool = False) -> Divisor:
        """Return what divides by a pivot. One that is too small to have a reciprocal is made larger before.

        With `defined`, division by zero gives zero.
        """
        one, scale, zero = self.number(1.0), None, self.is_zero(pivot)
        if self.careful:
            small = self.less(self.size(pivot), self.number(_LEAST))
            scale = self.select(small, self.number(_UP), one)
            pivot = self.fn.fmul(pivot, scale)
        reciprocal = self.fn.fdiv(one, pivot)
        if defined:
            reciprocal = self.select(zero, self.number(0.0), reciprocal)
        return Divisor(self.fn, reciprocal, scale)


@dataclass(frozen=True)
class Divisor:
    fn: Function
    reciprocal: Value
    scale: Value | None

    def divide(self, a: Value) -> Value:
        if self.scale is not None:
            a = self.fn.fmul(a, self.scale)
        return self.fn.fmul(a, self.reciprocal)


@dataclass
class Factors:
    """The triangles of a matrix, `rows[i][:i]` and `rows[i][i:]`, what divides by the pivots, and how rows changed places.

    `swaps` holds pairs of rows and in which lanes they changed places, in the order in which they did; `odd` in which lanes
    that was an odd number of times.
    """

    rows: Rows
    divisors: list[Divisor] = field(default_factory=list)
    swaps: list[tuple[int, int, Value]] = field(default_factory=list)
    odd: Value | None = None

    def pivots(self) -> list[Value]:
        return [row[k] for k, row in enumerate(self.rows)]

    def places(self, x: Arithmetic) -> list[Value]:
        """Return with which row each row changed places, as i32."""
        kind = vector("i32", lanes(x.type)) if lanes(x.type) else "i32"
        found = [constant(k, kind) for k in range(len(self.rows))]
        for i, j, swap in self.swaps:
            found[i] = x.select(swap, constant(j, kind), found[i])
        return found


def factor(x: Arithmetic, rows: Rows, *, defined: bool = False) -> Factors:
    """Factor square matrices column by column. With `defined`, what is below a pivot of zero, which is zero too, stays so."""
    found, n = Factors([list(row) for row in rows]), len(rows)
    for j in range(n):
        for i in range(n):
            _reduce(x, found.rows, i, j)
        _bring_up(x, found, j)
        found.divisors.append(x.divisor(found.rows[j][j], defined=defined))
        for row in found.rows[j + 1 :]:
            row[j] = found.divisors[j].divide(row[j])
    return found


def _reduce(x: Arithmetic, rows: Rows, i: int, j: int) -> None:
    above = [rows[k][j] for k in range(min(i, j))]
    rows[i][j] = x.less_products(rows[i][j], rows[i], above) or rows[i][j]


def _bring_up(x: Arithmetic, found: Factors, j: int) -> None:
    """Exchange row j with the first of those from it on whose element is the largest; one that is NaN is none, but in row j."""
    fn, rows = x.fn, found.rows
    largest, larger = x.size(rows[j][j]), list[Value]()
    for row in rows[j + 1 :]:
        size = x.size(row[j])
        larger.append(x.less(largest, size))
        largest = x.select(larger[-1], size, largest)
    later = None
    for k in range(len(larger) - 1, -1, -1):
        swap = larger[k]
        if later is not None:
            swap = fn.both(swap, fn.binary("xor", later, constant(1, later.type)))
        later = larger[k] if later is None else fn.either(later, larger[k])
        found.swaps.append((j, j + 1 + k, swap))
    if later is not None:
        found.odd = later if found.odd is None else fn.binary("xor", found.odd, later)
    for _, i, swap in found.swaps[len(found.swaps) - len(larger) :]:
        pairs = [x.exchanged(swap, a, b) for a, b in zip(rows[j], rows[i])]
        rows[j], rows[i] = [list(side) for side in zip(*pairs)]


def substituted(
    x: Arithmetic, rows: Rows, column: Sequence[Value | None], divisors: Sequence[Divisor] | None, *, lower: bool,
) -> list[Value | None]:  # fmt: skip
    """Solve a triangular system for a column, in which None is a zero that is known; without divisors the diagonal is one."""
    n = len(rows)
    found: list[Value | None] = [None] * n
    for i in range(n) if lower else range(n - 1, -1, -1):
        done = range(i) if lower else range(n - 1, i, -1)
        value = x.less_products(column[i], [rows[i][k] for k in done], [found[k] for k in done])
        if divisors is not None and value is not None:
            value = divisors[i].divide(value)
        found[i] = value
    return found


def in_order(x: Arithmetic, found: Factors, column: Sequence[Value]) -> list[Value]:
    """Return a column whose elements change places as the rows did."""
    ordered = list(column)
    for i, j, swap in found.swaps:
        ordered[i], ordered[j] = x.exchanged(swap, ordered[i], ordered[j])
    return ordered


def solution(x: Arithmetic, found: Factors, column: Sequence[Value | None]) -> list[Value]:
    """Solve for a column whose elements changed places with the rows; None is a zero that is known."""
    half = substituted(x, found.rows, column, None, lower=True)
    zero = x.number(0.0)
    return [
        value or zero for value in substituted(x, found.rows, half, found.divisors, lower=False)
    ]


def inverse(x: Arithmetic, found: Factors) -> Rows:
    """Return the inverse: the solutions for the columns of the identity, which change places as rows did, backwards."""
    n, one = len(found.rows), x.number(1.0)
    columns = [solution(x, found, [one if i == j else None for i in range(n)]) for j in range(n)]
    for i, j, swap in reversed(found.swaps):
        pairs = [x.exchanged(swap, a, b) for a, b in zip(columns[i], columns[j])]
        columns[i], columns[j] = [list(side) for side in zip(*pairs)]
    return [list(row) for row in zip(*columns)]


def roots(x: Arithmetic, rows: Rows) -> tuple[Rows, Value]:
    """Return the lower triangular factors of Cholesky, zeros included, and where there are none; reads the lower triangles."""
    zero, wrong = x.number(0.0), None
    found: Rows = [[zero] * len(rows) for _ in rows]
    for j in range(len(rows)):
        own = found[j][:j]
        left = x.less_products(rows[j][j], own, own)
        assert left is not None
        bad = fcompare(x.fn, "ole", left, zero)
        wrong = bad if wrong is None else x.fn.either(wrong, bad)
        found[j][j] = intrinsic(x.fn, "llvm.sqrt", left)
        divisor = x.divisor(found[j][j])
        for i in range(j + 1, len(rows)):
            below = x.less_products(rows[i][j], found[i][:j], own)
            assert below is not None
            found[i][j] = divisor.divide(below)
    assert wrong is not None
    return found, wrong
